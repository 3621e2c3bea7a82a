//! Tests the usage socket and `gpu-steward usage`, from outside.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

fn usage(socket: &std::path::Path, flags: &[&str]) -> Output {
    Command::new(BINARY).arg("usage").arg("--usage-socket").arg(socket).args(flags).output().unwrap()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn answers(socket: &std::path::Path) {
    eventually("an answer on the usage socket", LIMIT, || usage(socket, &[]).status.success().then_some(()));
}

#[test]
fn the_usage_socket_is_open_to_owner_and_group_and_gives_the_nodes_name() {
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--node-name", "node-a").launch();
    answers(&agent.usage_socket);
    assert_eq!(std::fs::symlink_metadata(&agent.usage_socket).unwrap().mode() & 0o777, 0o660);

    let answer = usage(&agent.usage_socket, &["-o", "json"]);
    assert_eq!(answer.status.code(), Some(0), "{}", String::from_utf8_lossy(&answer.stderr));
    let state = json(&answer.stdout);
    assert_eq!((&state["node"], &state["simulated"]), (&"node-a".into(), &false.into()));
    assert_eq!(state["gpus"], serde_json::json!([]));

    let table = usage(&agent.usage_socket, &[]);
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.starts_with("node-a  ") && text.contains("no GPUs"), "{text}");
}

#[test]
fn a_missing_usage_socket_is_reported_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    for state in ["absent", "stale"] {
        if state == "stale" {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        }
        for flags in [&[][..], &["--watch"]] {
            let answer = usage(&path, flags);
            let complaint = String::from_utf8_lossy(&answer.stderr);
            assert_eq!(answer.status.code(), Some(69), "{state}: {complaint}");
            assert!(answer.stdout.is_empty());
            assert!(
                complaint.contains(path.to_str().unwrap()) && complaint.to_lowercase().contains("start"),
                "{state}: {complaint}"
            );
        }
    }
    let off = Command::new(BINARY).args(["usage", "--usage-socket", "none"]).output().unwrap();
    assert_eq!(off.status.code(), Some(64), "{}", String::from_utf8_lossy(&off.stderr));
}

#[test]
fn a_usage_socket_that_never_answers_ends_in_a_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let answer = usage(&path, &[]);
    let complaint = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(answer.status.code(), Some(69), "{complaint}");
    assert!(complaint.contains("did not answer within 5 s"), "{complaint}");
}

#[test]
fn usage_watch_prints_one_line_for_each_state_and_outlives_the_agent() {
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--drain-timeout", "60s").launch();
    answers(&agent.usage_socket);
    let mut watching = Command::new(BINARY)
        .args(["usage", "--watch", "-o", "json", "--usage-socket"])
        .arg(&agent.usage_socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let first = json(lines.next().unwrap().unwrap().as_bytes());
    assert!(first["made_at_us"].as_u64().unwrap() > 0);

    agent.signal(libc::SIGTERM);
    let ended = agent.wait();
    assert!(ended.took < Duration::from_secs(30), "an open stream delays the end: {:?}", ended.took);
    let mut complaints = BufReader::new(watching.stderr.take().unwrap()).lines();
    let complaint = complaints.next().unwrap().unwrap();
    assert!(complaint.starts_with("waiting for the agent"), "{complaint}");
    assert!(watching.try_wait().unwrap().is_none(), "it keeps waiting");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn the_usage_socket_is_removed_at_the_end_and_a_stale_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/agent.sock");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--usage-socket", &path).launch();
    answers(&path);
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.wait().status.code(), Some(0));
    assert!(!path.exists());
}
