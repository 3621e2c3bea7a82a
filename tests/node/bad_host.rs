//! A host that is not as it should be: nothing to write on, nobody who reads, everybody at once.

use crate::program::BINARY;
use lab::agent::{Agent, Recipe};
use lab::http;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn quiet() -> Recipe {
    Agent::standalone(BINARY).with("--gpus", "none")
}

/// It answers, says what it cannot do once, and ends well.
fn goes_on(agent: Agent, complaints: &[&str]) {
    for complaint in complaints {
        agent.logs(complaint);
    }
    assert_eq!(agent.get("/healthz").status, 200);
    assert_eq!(agent.get("/metrics").status, 200);
    let ready = agent.get("/readyz");
    assert_eq!(ready.status, 503);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    for complaint in complaints {
        assert_eq!(ended.log.matches(complaint).count(), 1, "{complaint:?} once in {}", ended.log);
    }
    assert!(!ended.log.contains("panicked"), "{}", ended.log);
}

#[test]
#[ignore = "needs root: tests/run"]
fn on_a_read_only_root_metrics_are_served_and_what_is_lost_is_said_once() {
    let agent = quiet()
        .within("mount --bind / / && mount -o remount,bind,ro / && ! touch /nothing 2>/dev/null && cd /")
        .with("--usage-socket", "/run-only/gpu-steward/agent.sock")
        .with("--state-dir", "/var-only/gpu-steward")
        .launch();
    goes_on(agent, &["cannot write the state directory", "cannot open the usage socket"]);
}

/// Promise 19 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn on_a_full_disk_metrics_are_served_and_what_is_lost_is_said_once() {
    let recipe = quiet().within("mkdir $DIR/full && mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs $DIR/full");
    let full = recipe.dir().join("full");
    let agent = recipe.with("--usage-socket", full.join("agent.sock")).with("--state-dir", full.join("state")).launch();
    goes_on(agent, &["cannot write the state directory", "cannot open the usage socket"]);
}

#[test]
fn a_log_that_takes_no_line_stops_nothing() {
    let agent = quiet().log_to("/dev/full").launch();
    assert_eq!(agent.get("/healthz").status, 200);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0));
    assert!(ended.took < Duration::from_secs(5));
}

/// Promise 16 in docs/specification.md.
#[test]
fn a_thousand_open_connections_stop_neither_answers_nor_the_end() {
    let agent = quiet().launch();
    let mut open = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    for _ in 0..1000 {
        assert!(Instant::now() < deadline, "{} connections took 20 s", open.len());
        // Some of them may be refused or cut; that is the point.
        if let Ok(mut stream) = TcpStream::connect_timeout(&agent.metrics, Duration::from_millis(250)) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            open.push(stream);
        }
    }
    let begin = Instant::now();
    lab::eventually::eventually("an answer beside them", Duration::from_secs(5), || {
        http::get(agent.metrics, "/healthz").ok().filter(|answer| answer.status == 200)
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(6), "drain takes at most 5 s: {:?}", ended.took);
    drop(open);
}
