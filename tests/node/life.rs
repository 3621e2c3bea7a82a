//! Tests start, stop, signals, addresses and access to the ports.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::scenario::{CallFault, FakeNvml, Scenario, fake_gpus};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Promise 14 in docs/specification.md: the drain takes 5 s at most (`--drain-timeout`), and less if no request is in
/// flight.
#[test]
fn sigterm_and_sigint_drain_and_end_with_exit_code_0_within_five_seconds() {
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
fn a_port_in_use_is_reported_with_what_to_do() {
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
fn an_address_of_another_machine_is_reported() {
    let output = Agent::standalone(BINARY).with("--gpus", "none").with("--listen", "192.0.2.1:1").run();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{log}");
    assert!(log.contains("no interface of this machine has that address"), "{log}");
}

#[test]
fn the_agent_is_ready_after_the_first_readings() {
    let agent = Agent::standalone(BINARY).with("--gpus", "none").start();
    assert_eq!(agent.get("/readyz").status, 200);
    assert_eq!(agent.get("/healthz").status, 200);
    agent.logs("] ready");
    let addresses = std::fs::read(agent.dir().join("state/addresses.json")).unwrap();
    let addresses: serde_json::Value = serde_json::from_slice(&addresses).unwrap();
    assert_eq!(addresses["metrics"], agent.metrics.to_string());
}

#[test]
fn if_the_usage_socket_cannot_be_opened_readyz_says_so_and_the_rest_is_served() {
    let agent =
        Agent::standalone(BINARY).with("--gpus", "none").with("--usage-socket", "/proc/nowhere/a.sock").launch();
    agent.logs("cannot open the usage socket");
    let answer = lab::eventually::eventually("readyz to name the socket", Duration::from_secs(20), || {
        Some(agent.get("/readyz")).filter(|answer| answer.text().contains("usage socket /proc/nowhere/a.sock"))
    });
    assert_eq!(answer.status, 503);
    assert_eq!(agent.get("/metrics").status, 200);
}

/// The agent replaces a stale socket. It does not replace a socket that another program serves, because clients could
/// then reach neither program reliably.
#[test]
fn a_usage_socket_in_use_is_refused_and_a_stale_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let agent = || Agent::standalone(BINARY).with("--gpus", "none").with("--usage-socket", &path);
    let output = agent().run();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{log}");
    for part in ["another program listens on", path.to_str().unwrap(), "--usage-socket"] {
        assert!(log.contains(part), "{part:?} in {log}");
    }
    drop(listener);
    assert_eq!(agent().start().get("/readyz").status, 200);
}

#[test]
fn a_missing_device_configuration_is_an_error_even_if_it_is_not_used() {
    let path = "/nowhere/device-config.yaml";
    let output = Agent::standalone(BINARY).with("--gpus", "none").with("--device-config-file", path).run();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{log}");
    assert!(log.contains(&format!("device configuration {path}")) && log.contains("No such file"), "{log}");
}

#[test]
fn an_admin_port_open_to_other_machines_needs_authentication() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("token"), "secret\n").unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(at("chain.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let open = || Agent::standalone(BINARY).with("--gpus", "none").with("--admin-listen", "0.0.0.0:0");
    let tls = || open().with("--admin-tls-cert", at("chain.pem")).with("--admin-tls-key", at("key.pem"));
    for refused in [open(), tls(), open().with("--admin-token-file", at("token"))] {
        let output = refused.run();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{log}");
        assert!(log.contains("can be reached from other machines") && log.contains("admin-client-ca"), "{log}");
    }
    let agent = tls().with("--admin-token-file", at("token")).launch();
    assert_eq!(agent.terminate().status.code(), Some(0));
}

/// DNS rebinding: a web page of another site whose host name resolves to this machine.
#[test]
fn a_request_with_an_unknown_host_header_changes_and_shows_nothing() {
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--node-name", "node-7")
        .with("--allowed-hosts", "steward.example")
        .start();
    let send = |address: std::net::SocketAddr, line: &str, host: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 1\r\n\r\n5").unwrap();
        lab::http::read_answer(&mut std::io::BufReader::new(stream)).unwrap()
    };
    let admin = agent.admin.unwrap();
    for (host, ours) in [
        ("rebound.example:9411", false),
        ("10.1.2.3", false),
        ("localhost:9411", true),
        ("127.0.0.1", true),
        ("node-7:9411", true),
        ("steward.example", true),
    ] {
        let expected = if ours { 200 } else { 403 };
        for line in ["GET /loglevel", "GET /"] {
            assert_eq!(send(admin, line, host).status, expected, "{line} {host}");
        }
        assert_eq!(send(agent.metrics, "GET /api/v1/node", host).status, expected, "{host}");
        for open in ["GET /metrics", "GET /healthz", "GET /readyz"] {
            assert_eq!(send(agent.metrics, open, host).status, 200, "{open} {host}");
        }
    }
    let refused = send(admin, "PUT /loglevel", "rebound.example");
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("--allowed-hosts"), "{}", refused.text());
    assert_eq!(agent.admin("GET", "/loglevel", "").text(), "0\n", "nothing was changed");
    assert_eq!(send(admin, "PUT /loglevel", "localhost").text(), "5\n");
}

#[test]
fn with_a_token_file_local_callers_need_the_token_too() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--api-token-file", &token)
        .with("--admin-token-file", &token)
        .start();
    for (address, path) in [(agent.metrics, "/api/v1/node"), (agent.admin.unwrap(), "/loglevel")] {
        let send = |headers: &[(&str, &str)]| lab::http::request(address, "GET", path, headers, b"").unwrap().status;
        assert_eq!(send(&[]), 401, "{path}");
        assert_eq!(send(&[("Authorization", "Bearer wrong")]), 403, "{path}");
        assert_eq!(send(&[("Authorization", "Bearer secret")]), 200, "{path}");
    }
    assert_eq!(agent.get("/metrics").status, 200);
}

#[test]
fn a_second_signal_ends_at_once() {
    // An incomplete request keeps the drain waiting.
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--drain-timeout", "60s").launch();
    let mut open_requests = Vec::new();
    for address in [Some(agent.metrics), agent.admin].into_iter().flatten() {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"PUT /loglevel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n").unwrap();
        open_requests.push(stream);
    }
    assert_eq!(agent.get("/healthz").status, 200);
    agent.signal(libc::SIGTERM);
    agent.logs("stopping: requests in flight may end");
    // Longer than 0.1 s, because the agent treats two signals within 0.1 s as one.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    agent.signal(libc::SIGTERM);
    let ended = agent.wait();
    assert_eq!(ended.status.code(), Some(143), "the signal ended it, not the drain: {}", ended.log);
    assert!(!ended.log.contains("stopped"), "{}", ended.log);
    drop(open_requests);
}

/// Promise 11 in docs/specification.md, and the end within 5 s.
#[test]
fn an_event_thread_that_hangs_in_the_driver_is_logged_once_and_stops_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeNvml::install(dir.path()).unwrap();
    let well = Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() };
    fake.write(&well).unwrap();
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    let hang = |agent: &Agent| agent.get("/metrics").text().contains("\ngpu_steward_gpu_events_hang 1\n");
    assert!(!hang(&agent));
    let fault = CallFault { call: "nvmlEventSetWait*".into(), hang: true, ..CallFault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well.clone() }).unwrap();
    let soon = Duration::from_secs(30);
    lab::eventually::eventually("the metric", soon, || hang(&agent).then_some(()));
    assert_eq!(agent.get("/api/v1/node").json()["gpu_events_hang"], true);
    let why = agent.get("/readyz");
    assert!(why.status == 503 && why.text().contains("the GPU driver's events hangs"), "{}", why.text());
    fake.write(&well).unwrap();
    lab::eventually::eventually("it returns", soon, || (!hang(&agent)).then_some(()));
    assert_eq!(agent.get("/readyz").status, 200);
    let fault = CallFault { call: "nvmlEventSetWait*".into(), hang: true, ..CallFault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well }).unwrap();
    lab::eventually::eventually("it hangs again", soon, || hang(&agent).then_some(()));
    let energy = || agent.get("/api/v1/gpus").json()["gpus"][1]["energy_joules"]["value"].as_f64();
    let before = energy().expect("a counter");
    lab::eventually::eventually("GPUs to be read", soon, || energy().filter(|now| *now > before));
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    // The log suppresses the second hang as a repetition of the first.
    for words in ["the wait for NVML's events does not return", "returned after all"] {
        assert_eq!(ended.log.matches(words).count(), 1, "{words:?} in {}", ended.log);
    }
}

/// Promise 11 in docs/specification.md, and the end within 5 s.
#[test]
fn while_every_driver_call_hangs_the_agent_serves_the_rest_and_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeNvml::install(dir.path()).unwrap();
    let well = Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() };
    fake.write(&well).unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--nvml-library", fake.library())
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "1000000")
        .start();
    let fault = CallFault { call: "*".into(), hang: true, ..CallFault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well }).unwrap();
    let why = lab::eventually::eventually("readyz to report that calls hang", Duration::from_secs(60), || {
        Some(agent.get("/readyz")).filter(|answer| answer.status == 503)
    });
    assert!(why.text().contains("hang"), "{}", why.text());
    // The test has not read the socket so far, so it is full, but this has not stopped the agent. The old messages are read
    // first.
    let mut buffer = [0; 1024];
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut buffer).is_ok() {}
    manager.set_nonblocking(false).unwrap();
    let mut heartbeats = 0;
    while heartbeats < 4 {
        let length = manager.recv(&mut buffer).expect("a heartbeat");
        heartbeats += usize::from(String::from_utf8_lossy(&buffer[..length]).contains("WATCHDOG=1"));
    }
    for reading in ["cpu_user_seconds", "memory_available_bytes"] {
        let measured = || {
            let node = agent.get("/api/v1/node").json();
            let number = |value: &serde_json::Value| value.as_f64().expect("a number");
            number(&node["view"]["time_seconds"]) + number(&node["view"]["age_seconds"])
                - number(&node[reading]["age_seconds"])
        };
        let before = measured();
        lab::eventually::eventually(&format!("CPU and memory to go on: {reading}"), Duration::from_secs(30), || {
            (measured() > before + 0.5).then_some(())
        });
    }
    // One poller hangs, and so does its replacement. The supervisor starts no third poller.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.trim() == "nvml-poll").count(), 2);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}
