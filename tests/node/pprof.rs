//! Tests profiles of the agent itself. `tests/profiled` checks profiles against known work.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::http;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The release build if `GPU_STEWARD_SHIPPED` names it (`tests/run newcomer`), else the test build.
pub(crate) fn shipped() -> String {
    std::env::var("GPU_STEWARD_SHIPPED").unwrap_or_else(|_| BINARY.into())
}

fn profiled() -> lab::agent::Recipe {
    Agent::standalone(&shipped()).with("--gpus", "simulated=H100:8").switch("--profiling")
}

#[test]
fn profiles_are_served_only_with_the_flag_profiling() {
    let agent = Agent::standalone(BINARY).with("--gpus", "none").start();
    let refused = agent.admin("GET", "/debug/pprof/heap", "");
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("--profiling"), "{}", refused.text());
}

#[test]
fn profiles_show_the_agents_own_functions_and_threads() {
    let agent = profiled().start();
    // The profile is sampled: an allocation of this workspace's code among the first few is likely, but not certain.
    eventually("a line of this workspace among the allocations", Duration::from_secs(30), || {
        let text = agent.admin("GET", "/debug/pprof/allocs?debug=1", "").text();
        text.contains("src/steward/").then_some(())
    });
    let threads = agent.admin("GET", "/debug/pprof/goroutine?debug=1", "").text();
    assert!(threads.contains("\"thread\":\"gpu-steward\"") && threads.contains("src/steward/"), "{threads}");
    let profile = agent.admin("GET", "/debug/pprof/profile?seconds=1", "");
    assert_eq!(profile.status, 200, "{}", profile.text());
    assert_eq!(&profile.body[..2], &[0x1f, 0x8b], "a compressed profile");
}

/// Promise 3 in docs/specification.md.
#[test]
fn memory_during_and_after_profiling_stays_within_bounds() {
    memory_over(10);
}

/// Promise 3 in docs/specification.md.
#[test]
#[ignore = "takes 3 minutes: tests/run --long"]
fn memory_is_the_same_after_a_hundred_profiles() {
    memory_over(100);
}

fn memory_over(count: usize) {
    let agent = profiled().start();
    let before = agent.resident_mib();
    let (mut during, mut children, mut after_first) = (before, 0.0_f64, 0.0);
    for turn in 0..count {
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| agent.admin("GET", "/debug/pprof/profile?seconds=1", ""));
            while !taken.is_finished() {
                // The memory of the child that reads the line tables counts too, because it counts against the pod's limit.
                let in_children: f64 = agent.children_resident_mib().iter().sum();
                children = in_children.max(children);
                during = (agent.resident_mib() + in_children).max(during);
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(taken.join().unwrap().status, 200);
        });
        assert_eq!(agent.admin("GET", "/debug/pprof/heap", "").status, 200);
        if turn == 0 {
            after_first = agent.resident_mib();
        }
    }
    let after = agent.resident_mib();
    println!(
        "{before:.1} MiB before, at most {during:.1} during ({children:.1} of children), {after_first:.1} after one, {after:.1} \
         after {count}"
    );
    assert!(children > 0.0, "the child that reads the line tables was never seen");
    // The line tables of the test build are several times as large as those of the shipped program.
    let most = if std::env::var_os("GPU_STEWARD_SHIPPED").is_some() { 192.0 } else { 288.0 };
    assert!(during <= most && after <= 96.0, "{during} MiB during, {after} after");
    assert!(after < after_first + 4.0, "{after_first} MiB after one profile, {after} after {count}");
}

/// A client that reads `/metrics` again and again until it is dropped.
struct LoadClient(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl LoadClient {
    fn start(agent: &Agent) -> LoadClient {
        let (done, metrics) = (Arc::new(AtomicBool::new(false)), agent.metrics);
        let until = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                // If an answer fails, the profile under test shows it.
                let _ = http::get(metrics, "/metrics");
            }
        });
        LoadClient(done, Some(thread))
    }
}

impl Drop for LoadClient {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().map(JoinHandle::join);
    }
}

/// Promise 21 in docs/specification.md. The release build is optimised and still shows lines and inline frames.
#[test]
#[ignore = "needs go: tests/run"]
fn go_tool_pprof_reads_the_agent() {
    let agent = profiled().with("--period", "100ms").with("--slow-period", "100ms").start();
    // An idle agent takes only one or two CPU samples in five seconds, so a client sends requests all the time.
    let _client = LoadClient::start(&agent);
    for (page, kind) in
        [("heap", "Type: inuse_space"), ("goroutine", "Type: goroutine"), ("profile?seconds=5", "Type: cpu")]
    {
        let text = go_reads(&format!("http://{}/debug/pprof/{page}", agent.admin.expect("an admin port")), kind);
        if page.starts_with("profile") {
            assert!(of_ours(&text).any(|line| line.ends_with("(inline)")), "no inline frame of this workspace\n{text}");
        }
    }
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "needs go: tests/run"]
fn go_reads_over_https() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let recipe = profiled().with("--period", "100ms").with("--slow-period", "100ms");
    let agent = recipe.with("--admin-tls-cert", &chain).with("--admin-tls-key", &key).launch();
    let _client = LoadClient::start(&agent);
    let address = agent.admin.expect("an admin port");
    let _ = go_reads(&format!("https+insecure://{address}/debug/pprof/profile?seconds=5"), "Type: cpu");
}

/// The output of `go tool pprof` for this profile, which must have this type and functions of this workspace with their
/// lines.
pub(crate) fn go_reads(url: &str, kind: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut go = Command::new(std::env::var_os("GO").unwrap_or_else(|| "go".into()));
    go.args(["tool", "pprof", "-top", "-lines", "-nodecount=10000", url]);
    let output = go.env("PPROF_TMPDIR", folder.path()).env("GOTOOLCHAIN", "local").output();
    let output = output.expect("go is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(kind) && text.contains("File: gpu-steward"), "{url}: {text}");
    let numbered = |line: &str| {
        let place = line.trim_end_matches(" (inline)").rsplit(':').next();
        place.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number > 0))
    };
    assert!(of_ours(&text).any(numbered), "{url}: no line of this workspace\n{text}");
    text
}

/// The lines with a function of this workspace.
pub(crate) fn of_ours(text: &str) -> impl Iterator<Item = &str> {
    let crates =
        ["steward", "sources", "effects", "pprof", "decide", "wire", "apiserver"].map(|name| format!("src/{name}/"));
    text.lines().filter(move |line| crates.iter().any(|name| line.contains(name)))
}
