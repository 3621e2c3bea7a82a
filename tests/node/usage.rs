//! The usage socket and `gpu-steward usage`, from outside.

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
fn the_socket_is_for_owner_and_group_and_answers_with_the_nodes_name() {
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
fn a_socket_that_is_not_there_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    for place in ["absent", "stale"] {
        if place == "stale" {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        }
        for flags in [&[][..], &["--watch"]] {
            let answer = usage(&path, flags);
            let said = String::from_utf8_lossy(&answer.stderr);
            assert_eq!(answer.status.code(), Some(69), "{place}: {said}");
            assert!(answer.stdout.is_empty());
            assert!(said.contains(path.to_str().unwrap()) && said.to_lowercase().contains("start"), "{place}: {said}");
        }
    }
    let off = Command::new(BINARY).args(["usage", "--usage-socket", "none"]).output().unwrap();
    assert_eq!(off.status.code(), Some(64), "{}", String::from_utf8_lossy(&off.stderr));
}

#[test]
fn a_socket_of_another_kind_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let answer = usage(&path, &[]);
    let said = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(answer.status.code(), Some(69), "{said}");
    assert!(said.contains("did not answer within 5 s"), "{said}");
}

#[test]
fn watch_prints_a_line_a_state_and_outlives_an_agent() {
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
    assert!(ended.took < Duration::from_secs(30), "an open stream holds nobody up: {:?}", ended.took);
    let mut complaints = BufReader::new(watching.stderr.take().unwrap()).lines();
    let said = complaints.next().unwrap().unwrap();
    assert!(said.starts_with("waiting for the agent"), "{said}");
    assert!(watching.try_wait().unwrap().is_none(), "it goes on waiting");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn the_socket_is_gone_after_the_agent_and_a_stale_one_is_no_obstacle() {
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
