//! Tests `gpu-steward top` in a pipe, in a terminal, and without an agent.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Long enough for a program that starts while other code compiles.
const PATIENCE: Duration = Duration::from_secs(20);

fn top(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("top").args(["--url", url]).args(arguments).env_remove("COLUMNS").stdin(Stdio::null());
    command.output().unwrap()
}

/// An agent with two simulated GPUs that it has read.
fn agent() -> (Agent, String) {
    agent_of(2)
}

fn agent_of(gpus: usize) -> (Agent, String) {
    let agent = Agent::standalone(BINARY).with("--gpus", format!("simulated=H100:{gpus}")).launch();
    eventually("its GPUs", PATIENCE, || {
        let read = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
        (read.len() == gpus && read.iter().all(|gpu| gpu["memory_used_bytes"]["value"].is_u64())).then_some(())
    });
    let url = format!("http://{}", agent.metrics);
    (agent, url)
}

/// Promise 9 in docs/specification.md.
#[test]
fn a_pipe_gets_one_plain_frame_that_says_that_the_gpus_are_simulated() {
    let (_agent, url) = agent();
    // In a pipe, `top` without `--once` prints one frame too, because no key can be pressed.
    for arguments in [&["--once"][..], &[]] {
        let output = top(&url, arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        for part in ["gpu-steward top", "SIMULATED GPUs", "2 GPUs", "H100", "POD"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("quit"), "{text}");
    }
}

#[test]
fn a_pipe_gets_every_gpu() {
    for gpus in [8, 16] {
        let (_agent, url) = agent_of(gpus);
        let text = String::from_utf8(top(&url, &["--once"]).stdout).unwrap();
        for gpu in 0..gpus {
            assert!(text.lines().any(|line| line.starts_with(&format!("{gpu:<5}H100"))), "GPU {gpu} in\n{text}");
        }
        assert!(!text.contains("key 2"), "{text}");
    }
}

#[test]
fn json_is_one_document_with_the_four_answers() {
    let (_agent, url) = agent();
    let output = top(&url, &["-o", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for part in ["node", "gpus", "pods", "processes"] {
        assert_eq!(document[part]["view"]["simulated"], true, "{part}");
    }
    assert_eq!(document["gpus"]["gpus"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_failure() {
    let (_agent, url) = agent();
    let mut command = Command::new(BINARY);
    let mut child = command.args(["top", "--once", "--url", &url]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_an_agent_it_says_what_was_tried_and_what_to_do() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = top(&format!("http://{free}"), &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{text}");
    for part in [&format!("no agent answers at http://{free}"), "refused", "gpu-steward agent --standalone", "--url"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let output = top("localhost", &[]);
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_server_that_is_not_an_agent_is_reported() {
    for (answer, part) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404 Not Found; is this a gpu-steward agent?"),
        ("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "--token-file"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "the answer cannot be read"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "/api/v1/node"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "http://127.0.0.1"),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let output = top(&url, &["--once"]);
        serve.join().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{text}");
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

/// The PID of the program that `script` runs.
fn child_of(pid: u32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    let name = std::fs::read_link(Path::new("/proc").join(format!("{child}/exe"))).ok()?;
    (name == std::fs::canonicalize(BINARY).ok()?).then_some(child)
}

/// Runs the live view in its own terminal, with a variable such as `NO_COLOR=1`, until `end`, which gets the program's
/// PID. Returns the program's output.
fn in_a_terminal(url: &str, variable: &str, end: impl FnOnce(i32, &mut dyn Write)) -> String {
    let line = format!("stty rows 24 cols 80; {variable} exec {BINARY} top --url {url} --interval 0.2");
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` of bsdutils");
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (send, seen) = std::sync::mpsc::channel();
    let read = std::thread::spawn(move || {
        let (mut all, mut part, mut sent) = (Vec::new(), [0; 4096], false);
        while let Ok(length @ 1..) = screen.read(&mut part) {
            all.extend_from_slice(&part[..length]);
            if !sent && String::from_utf8_lossy(&all).contains("quit") {
                sent = send.send(()).is_ok();
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    seen.recv_timeout(PATIENCE).expect("the first frame");
    let child = eventually("the program in the terminal", PATIENCE, || child_of(script.id()));
    end(child, &mut keys);
    let status = eventually("its end", PATIENCE, || script.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{status}");
    drop(keys);
    read.join().unwrap()
}

#[test]
#[ignore = "needs script: tests/run"]
fn the_terminal_is_restored_after_q_ctrl_c_and_signals() {
    let (_agent, url) = agent();
    let signal = |number| {
        move |pid: i32, _: &mut dyn Write| {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, number).unwrap();
        }
    };
    let press = |key: &'static [u8]| {
        move |_: i32, keys: &mut dyn Write| {
            keys.write_all(key).unwrap();
            keys.flush().unwrap();
        }
    };
    let screens = [
        ("q", in_a_terminal(&url, "", press(b"q"))),
        ("Ctrl-C", in_a_terminal(&url, "", press(b"\x03"))),
        ("SIGTERM", in_a_terminal(&url, "", signal(rustix::process::Signal::TERM))),
        ("SIGHUP", in_a_terminal(&url, "", signal(rustix::process::Signal::HUP))),
    ];
    for (how, screen) in screens {
        let taken = screen.find("\u{1b}[?1049h").unwrap_or_else(|| panic!("{how}: the screen was never taken"));
        let left = screen.rfind("\u{1b}[?1049l").unwrap_or_else(|| panic!("{how}: the screen was not restored"));
        assert!(taken < left, "{how}");
        assert!(screen[left..].contains("\u{1b}[?25h"), "{how}: the cursor is hidden");
    }
}

#[test]
#[ignore = "needs script: tests/run"]
fn with_no_color_set_top_writes_no_colours() {
    let (_agent, url) = agent();
    // SGR 30 to 49 and 38;5;n are colours; bold (1) and reversed (7) are not.
    for (variable, expect) in [("", true), ("NO_COLOR=1", false)] {
        let screen = in_a_terminal(&url, variable, |_, keys| keys.write_all(b"q").unwrap());
        let coloured = screen.contains("\u{1b}[38;5;") || screen.contains("\u{1b}[48;5;");
        assert_eq!(coloured, expect, "{variable}");
    }
}
