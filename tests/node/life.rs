//! Start, stop, signals, addresses.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::scenario::{FakeNvml, Fault, Scenario, cards};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

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
fn it_is_ready_once_the_first_looks_are_taken() {
    let agent = Agent::standalone(BINARY).with("--gpus", "none").start();
    assert_eq!(agent.get("/readyz").status, 200);
    assert_eq!(agent.get("/healthz").status, 200);
    agent.logs("] ready");
    let addresses = std::fs::read(agent.dir().join("state/addresses.json")).unwrap();
    let addresses: serde_json::Value = serde_json::from_slice(&addresses).unwrap();
    assert_eq!(addresses["metrics"], agent.metrics.to_string());
}

#[test]
fn a_usage_socket_that_cannot_be_opened_is_a_reason_at_readyz_and_nothing_else() {
    let agent =
        Agent::standalone(BINARY).with("--gpus", "none").with("--usage-socket", "/proc/nowhere/a.sock").launch();
    agent.logs("cannot open the usage socket");
    let answer = lab::eventually::eventually("readyz to name the socket", Duration::from_secs(20), || {
        Some(agent.get("/readyz")).filter(|answer| answer.text().contains("usage socket /proc/nowhere/a.sock"))
    });
    assert_eq!(answer.status, 503);
    assert_eq!(agent.get("/metrics").status, 200);
}

#[test]
fn a_second_signal_ends_at_once() {
    // A request whose end never comes holds the drain.
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--drain-timeout", "60s").launch();
    let mut held = Vec::new();
    for address in [Some(agent.metrics), agent.admin].into_iter().flatten() {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"PUT /loglevel HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").unwrap();
        held.push(stream);
    }
    assert_eq!(agent.get("/healthz").status, 200);
    agent.signal(libc::SIGTERM);
    agent.logs("stopping: requests in flight may end");
    // Later than the 0.1 s within which two signals are one request.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    agent.signal(libc::SIGTERM);
    let ended = agent.wait();
    assert_eq!(ended.status.code(), Some(143), "the signal ended it, not the drain: {}", ended.log);
    assert!(!ended.log.contains("stopped"), "{}", ended.log);
    drop(held);
}

/// Promise 11 in docs/specification.md.
#[test]
fn an_event_thread_that_hangs_in_the_driver_is_said_once_and_holds_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeNvml::install(dir.path()).unwrap();
    let well = Scenario { gpus: vec![cards("H100", 2)], ..Scenario::default() };
    fake.write(&well).unwrap();
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    let hang = |agent: &Agent| agent.get("/metrics").text().contains("\ngpu_steward_gpu_events_hang 1\n");
    assert!(!hang(&agent));
    let fault = Fault { call: "nvmlEventSetWait*".into(), hang: true, ..Fault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well.clone() }).unwrap();
    let soon = Duration::from_secs(30);
    lab::eventually::eventually("the metric", soon, || hang(&agent).then_some(()));
    assert_eq!(agent.get("/api/v1/node").json()["gpu_events_hang"], true);
    let why = agent.get("/readyz");
    assert!(why.status == 503 && why.text().contains("the GPU driver's events hangs"), "{}", why.text());
    fake.write(&well).unwrap();
    lab::eventually::eventually("it returns", soon, || (!hang(&agent)).then_some(()));
    assert_eq!(agent.get("/readyz").status, 200);
    let fault = Fault { call: "nvmlEventSetWait*".into(), hang: true, ..Fault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well }).unwrap();
    lab::eventually::eventually("it hangs again", soon, || hang(&agent).then_some(()));
    let energy = || agent.get("/api/v1/gpus").json()["gpus"][1]["energy_joules"]["value"].as_f64();
    let before = energy().expect("a counter");
    lab::eventually::eventually("GPUs to be read", soon, || energy().filter(|now| *now > before));
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    // The second time is kept back as a repetition of the first.
    for words in ["the wait for NVML's events does not return", "returned after all"] {
        assert_eq!(ended.log.matches(words).count(), 1, "{words:?} in {}", ended.log);
    }
}

#[test]
fn while_every_gpu_call_hangs_it_says_so_lives_and_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeNvml::install(dir.path()).unwrap();
    let well = Scenario { gpus: vec![cards("H100", 2)], ..Scenario::default() };
    fake.write(&well).unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--nvml-library", fake.library())
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "1000000")
        .start();
    let fault = Fault { call: "*".into(), hang: true, ..Fault::default() };
    fake.write(&Scenario { faults: vec![fault], ..well }).unwrap();
    let why = lab::eventually::eventually("readyz to tell that calls hang", Duration::from_secs(60), || {
        Some(agent.get("/readyz")).filter(|answer| answer.status == 503)
    });
    assert!(why.text().contains("hang"), "{}", why.text());
    // Nobody has read so far: the socket is full, and that has stopped nothing. Its old messages go first.
    let mut buffer = [0; 1024];
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut buffer).is_ok() {}
    manager.set_nonblocking(false).unwrap();
    let mut signs = 0;
    while signs < 4 {
        let length = manager.recv(&mut buffer).expect("a sign of life");
        signs += usize::from(String::from_utf8_lossy(&buffer[..length]).contains("WATCHDOG=1"));
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
    // The one that hangs, and the one that took its place and hangs too: no third.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.trim() == "nvml-poll").count(), 2);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}
