//! The admin port of the extender: access to it, its profiles, and the work of an idle leader in a profile.

use crate::extender::{Extender, SOON, node, pod};
use crate::pprof::{go_reads, of_ours, shipped};
use crate::program::BINARY;
use lab::api_server::{FakeApiServer, ReceivedRequest};
use lab::eventually::eventually;
use lab::http::{self, read_answer};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Nodes of the cluster of the idle leader, each with 8 GPUs.
const NODES: usize = 1000;
/// Length of a profile of the idle leader, in seconds: some periods of every timer, and less than the longest wait of a
/// test's request for its answer.
const IDLE: u64 = 15;
/// The number of Lease requests in a row after which a leader has completed its start: ten of its retry periods.
const RENEWALS: usize = 10;

#[test]
fn the_admin_port_shows_and_sets_the_log_level_and_has_profiles_only_with_the_flag() {
    let server = FakeApiServer::start();
    let extender = Extender::start_with(BINARY, &server, &[]);
    assert_eq!(extender.admin("GET", "/loglevel", "").text(), "5\n");
    assert_eq!(extender.admin("PUT", "/loglevel", "2").text(), "2\n");
    assert_eq!(extender.admin("GET", "/loglevel", "").text(), "2\n");
    let refused = extender.admin("GET", "/debug/pprof/heap", "");
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("--profiling"), "{}", refused.text());
    // An extender has no GPUs.
    for path in ["/incidents/all", "/nvml/release"] {
        assert_eq!(extender.admin("DELETE", path, "").status, 404, "{path}");
    }
    let mut foreign = TcpStream::connect(extender.started_with("admin")).unwrap();
    write!(foreign, "GET /loglevel HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n").unwrap();
    let refused = read_answer(&mut BufReader::new(foreign)).unwrap();
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("--allowed-hosts"), "{}", refused.text());
}

#[test]
fn with_a_token_the_admin_port_answers_only_callers_that_send_it() {
    let (server, folder) = (FakeApiServer::start(), tempfile::tempdir().unwrap());
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let flags = ["--profiling", "--admin-token-file", token.to_str().unwrap()];
    let extender = Extender::start_with(BINARY, &server, &flags);
    let address = extender.started_with("admin");
    for path in ["/loglevel", "/debug/pprof/cmdline"] {
        for (sent, status) in [(None, 401), (Some("Bearer other"), 403), (Some("Bearer secret"), 200)] {
            let headers: Vec<(&str, &str)> = sent.map(|sent| ("Authorization", sent)).into_iter().collect();
            let answer = http::request(address, "GET", path, &headers, b"").unwrap();
            assert_eq!(answer.status, status, "{path} {sent:?}: {}", answer.text());
        }
    }
}

#[test]
fn an_admin_port_for_other_machines_without_https_is_no_start() {
    let output = std::process::Command::new(BINARY)
        .args(["extender", "--extender-admin-listen", "0.0.0.0:0", "--config"])
        .arg(Path::new("/dev/null"))
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains("extender-admin-listen 0.0.0.0:0 can be reached from other machines"), "{text}");
}

/// A leader of a cluster with many nodes, whose allocations are sampled.
fn leader(server: &FakeApiServer, binary: &str) -> Extender {
    (0..NODES).for_each(|n| node(server, &format!("n{n}"), 8));
    // If a leader loses its Lease on a busy machine, it reads everything again.
    let lease = ["--lease-duration", "120s", "--renew-deadline", "100s"];
    let extender = Extender::start_with(binary, server, &[&["--profiling"][..], &lease].concat());
    extender.wait_until_leads();
    extender
}

/// The functions of this workspace that decode objects, or request them from the API server, and that allocated memory in
/// this many seconds.
fn reads_objects(extender: &Extender, seconds: u64) -> Vec<String> {
    let answer = extender.admin("GET", &format!("/debug/pprof/allocs?debug=1&seconds={seconds}"), "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    // A stack begins with its values: objects and bytes allocated, then objects and bytes in use. If memory was only freed in
    // this time, the first values are zero.
    let stacks = text.split("\n\n").filter(|stack| {
        let values = stack.lines().find_map(|line| line.split_once(" @")).map_or("", |(values, _)| values);
        values.split(' ').next().is_some_and(|objects| objects.parse::<i64>().is_ok_and(|objects| objects > 0))
    });
    let places = ["node", "register", "pod", "claim", "watch"].map(|file| format!("src/wire/{file}"));
    let places = places.iter().map(String::as_str).chain(["src/apiserver/follow", "src/apiserver/store"]);
    let places: Vec<&str> = places.collect();
    let frames = stacks.flat_map(str::lines).filter(|line| places.iter().any(|place| line.contains(place)));
    let frames: BTreeSet<String> = frames.map(|line| line.split('\t').skip(2).collect::<Vec<_>>().join(" ")).collect();
    frames.into_iter().collect()
}

fn is_for_lease(request: &ReceivedRequest) -> bool {
    request.path.contains("/leases/")
}

/// HAMi's scheduler decodes the annotations of every node on a timer, even when there is no pod to place. Promise 46 in
/// docs/specification.md.
#[test]
fn an_idle_leader_of_a_thousand_nodes_decodes_nothing_and_asks_only_for_its_lease() {
    let server = FakeApiServer::start();
    let extender = leader(&server, BINARY);
    let before = eventually("the end of the leader's start", SOON, || {
        let asked = server.requests();
        let newest = asked.len().checked_sub(RENEWALS).map(|from| &asked[from..]);
        newest.is_some_and(|newest| newest.iter().all(is_for_lease)).then_some(asked.len())
    });
    let idle = reads_objects(&extender, IDLE);
    let asked = server.requests().split_off(before);
    assert_eq!(idle, [""; 0], "an idle leader reads objects");
    let others: Vec<&ReceivedRequest> = asked.iter().filter(|one| !is_for_lease(one)).collect();
    assert!(others.is_empty() && !asked.is_empty(), "{others:?}");
    // Decoding is visible in a profile: the same profile while each node changes once.
    let changing = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..NODES {
                node(&server, &format!("n{n}"), 8);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        reads_objects(&extender, 5)
    });
    println!("while nodes change: {changing:#?}");
    for place in ["src/wire/node", "src/wire/register"] {
        assert!(changing.iter().any(|frame| frame.contains(place)), "{place} is not in {changing:#?}");
    }
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "needs go: tests/run"]
fn go_tool_pprof_reads_the_extender() {
    let server = FakeApiServer::start();
    let extender = leader(&server, &shipped());
    let asks = pod(&server, 1, 3000);
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let (done, address) = (AtomicBool::new(false), extender.started_with("admin"));
    std::thread::scope(|scope| {
        // An idle extender takes hardly a sample.
        scope.spawn(|| {
            let question = json!({ "Pod": asks, "Nodes": null, "NodeNames": names });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(extender.ask("filter", &question).status, 200);
            }
        });
        for (page, kind) in [
            ("heap", "Type: inuse_space"),
            ("allocs?seconds=3", "Type: alloc_space"),
            ("profile?seconds=5", "Type: cpu"),
        ] {
            let text = go_reads(&format!("http://{address}/debug/pprof/{page}"), kind);
            println!("{page}: {} lines of ours", of_ours(&text).count());
        }
        done.store(true, Ordering::Relaxed);
    });
}
