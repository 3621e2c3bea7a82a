//! Start, stop, signals, addresses.

use crate::program::BINARY;
use lab::agent::Agent;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

/// Promise 14 in docs/specification.md.
#[test]
fn sigterm_and_sigint_drain_and_end_well_within_five_seconds() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let agent = Agent::standalone(BINARY).with("--gpus", "none").launch();
        agent.signal(signal);
        let ended = agent.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
        assert!(ended.log.contains("stopped"), "{}", ended.log);
    }
}

#[test]
fn a_port_in_use_is_told_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin-listen"] {
        let output = Agent::standalone(BINARY).with("--gpus", "none").with(flag, &address).run();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{log}");
        for part in [&format!("cannot listen on {address}"), "in use", "another program listens there", flag] {
            assert!(log.contains(part), "{part:?} in {log}");
        }
    }
}

#[test]
fn an_address_of_another_machine_is_told_as_such() {
    let output = Agent::standalone(BINARY).with("--gpus", "none").with("--listen", "192.0.2.1:1").run();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{log}");
    assert!(log.contains("no interface of this machine has that address"), "{log}");
}

#[test]
fn without_standalone_it_says_how_to_run() {
    let output = Command::new(BINARY).args(["agent", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("gpu-steward agent --standalone"));
}
