//! Tests the program on a bad host: file systems that accept no writes, servers that do not answer, too many connections
//! at once.

use crate::profiles::history;
use crate::program::BINARY;
use lab::agent::{Agent, Recipe};
use lab::eventually::eventually;
use lab::http;
use lab::pods::Pods;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// What the log says where histories are in memory only.
const NOT_KEPT: &str = "histories of GPUs and pods cannot be kept";

fn quiet() -> Recipe {
    Agent::standalone(BINARY).with("--gpus", "none")
}

/// The agent serves its pages, logs each complaint once and ends with exit code 0.
fn serves_and_ends(agent: Agent, complaints: &[&str]) {
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

/// Promise 23 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn on_a_read_only_root_metrics_are_served_and_each_loss_is_logged_once() {
    let agent = quiet()
        .within("mount --bind / / && mount -o remount,bind,ro / && ! touch /nothing 2>/dev/null && cd /")
        .with("--usage-socket", "/run-only/gpu-steward/agent.sock")
        .with("--state-dir", "/var-only/gpu-steward")
        .launch();
    serves_and_ends(agent, &["cannot write the state directory", "cannot open the usage socket", NOT_KEPT]);
}

/// Promise 22 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn on_a_full_disk_metrics_are_served_and_each_loss_is_logged_once() {
    let recipe = quiet().within("mkdir $DIR/full && mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs $DIR/full");
    let full = recipe.dir().join("full");
    let agent = recipe.with("--usage-socket", full.join("agent.sock")).with("--state-dir", full.join("state")).launch();
    serves_and_ends(agent, &["cannot write the state directory", "cannot open the usage socket", NOT_KEPT]);
}

/// Promise 22 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn a_disk_that_fills_up_costs_the_file_of_histories_only() {
    let recipe = Agent::standalone(BINARY)
        .with("--gpus", "simulated=H100:1")
        .within("mkdir $DIR/full && mount -t tmpfs -o size=1m tmpfs $DIR/full");
    let full = recipe.dir().join("full");
    let agent = recipe.with("--state-dir", full.join("state")).start();
    eventually("the file of histories", Duration::from_secs(30), || {
        let recorder = agent.get("/api/v1/profile").json()["recorder"].clone();
        (recorder["file_bytes"].as_u64()? > 0 && recorder["not_kept"].is_null()).then_some(())
    });
    // The mount is in the agent's namespace.
    let rest = format!("/proc/{}/root{}/rest", agent.pid(), full.display());
    let error = std::fs::write(&rest, vec![b'x'; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let values = || history(&agent, "series=gpu/0/utilization&from=-5m&step=1s").len();
    let before = values();
    eventually("five more values", Duration::from_secs(30), || (values() >= before + 5).then_some(()));
    assert_eq!((agent.get("/readyz").status, agent.get("/metrics").status), (200, 200));
    // The agent writes every five minutes, and when it stops.
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    let lines = ended.log.lines().filter(|line| line.contains(NOT_KEPT)).collect::<Vec<_>>();
    assert!(lines.len() == 1 && lines[0].contains("profile.db: the disk is full"), "{}", ended.log);
    assert!(!ended.log.contains("panicked"), "{}", ended.log);
}

/// Promise 22 in docs/specification.md.
#[test]
fn the_agent_serves_and_ends_although_its_log_takes_no_line() {
    let agent = quiet().log_to("/dev/full").launch();
    assert_eq!(agent.get("/healthz").status, 200);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0));
    // Promise 14: the longest time of a drain.
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}

/// Promise 25 in docs/specification.md.
#[test]
fn sockets_that_never_answer_are_logged_once_and_only_names_are_lost() {
    let recipe = quiet();
    let [runtime, kubelet] = ["cri.sock", "kubelet.sock"].map(|name| recipe.dir().join(name));
    // The kernel accepts connections on behalf of a listener that never calls `accept`.
    let _hanging = [&runtime, &kubelet].map(|path| UnixListener::bind(path).unwrap());
    let agent = recipe.with("--cri-socket", &runtime).with("--pod-resources-socket", &kubelet).start();
    let errors = |kind: &str| -> u64 {
        let node = agent.get("/api/v1/node").json();
        let counts = node["troubles"].as_array().unwrap().clone();
        counts.iter().find(|error| error["kind"] == kind).map_or(0, |error| error["count"].as_u64().unwrap())
    };
    // The agent asks both sockets again and again, and counts each failure.
    eventually("two failures of each", Duration::from_secs(30), || {
        (errors("cri_failed") >= 2 && errors("pod_resources_failed") >= 2).then_some(())
    });
    eventually("a new reading: the machine is sampled", Duration::from_secs(30), || {
        let node = agent.get("/api/v1/node").json();
        (node["cpu_user_seconds"]["age_seconds"].as_f64()? < 2.0).then_some(())
    });
    assert_eq!(agent.get("/readyz").status, 200);
    assert_eq!(agent.get("/metrics").status, 200);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    // Promise 14: the longest time of a drain.
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    for path in [runtime, kubelet] {
        let lines = ended.log.lines().filter(|line| line.contains(path.to_str().unwrap())).collect::<Vec<_>>();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("no answer within 2 s"), "{lines:#?}");
    }
}

/// Promise 4 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn without_host_pid_hidden_readings_are_absent_and_never_zero() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    let uid = pods.add(1, 2, &["sleep", "1000"]).unwrap().uid.clone();
    // `unshare` does not pass SIGTERM on to the first process of the namespace, so `--kill-child` kills that process when
    // `unshare` ends.
    let agent = quiet().within("exec unshare --pid --fork --kill-child --mount-proc \"$@\"").start();
    // Series show the short form of a container id.
    let id = &pods.pods[0].containers[1].id[..12].to_owned();
    let lines_of = |path: &str, series: &str, of: &str| -> Vec<String> {
        let text = agent.get(path).text();
        let lines = text.lines().filter(|line| line.starts_with(&format!("{series}{{")) && line.contains(of));
        lines.map(str::to_owned).collect()
    };
    eventually("its tasks", Duration::from_secs(20), || {
        (lines_of("/metrics", "gpu_steward_pod_tasks", &uid).len() == 1).then_some(())
    });
    for (path, series, of) in [
        ("/metrics", "gpu_steward_pod_processes", &uid),
        ("/metrics", "gpu_steward_pod_process_io_read_bytes", &uid),
        ("/metrics", "gpu_steward_pod_process_io_write_bytes", &uid),
        ("/metrics", "gpu_steward_pod_network_receive_bytes_total", &uid),
        ("/metrics", "gpu_steward_container_processes", id),
        ("/metrics", "gpu_steward_container_process_io_write_bytes", id),
        ("/metrics/cadvisor", "container_processes", &uid),
        ("/metrics/cadvisor", "container_processes", id),
    ] {
        assert_eq!(lines_of(path, series, of), Vec::<String>::new(), "{path}");
    }
    assert_eq!(lines_of("/metrics", "gpu_steward_container_tasks", id).len(), 1);
    let reason = lines_of("/metrics", "gpu_steward_pod_network_absent", &uid);
    assert!(reason.len() == 1 && reason[0].contains("reason=\"processes_hidden\""), "{reason:?}");
    let text = agent.get("/metrics").text();
    for prefix in ["gpu_steward_node_processes ", "gpu_steward_node_network_receive_bytes_total "] {
        assert!(!text.lines().any(|line| line.starts_with(prefix)), "{prefix}");
    }
    assert!(text.contains("\ngpu_steward_node_tasks "), "readings of the whole machine stay");
    assert_eq!(agent.log().matches("(no hostPID)").count(), 1, "{}", agent.log());
}

/// Promise 4 in docs/specification.md.
#[test]
fn without_proc_and_sys_readings_are_absent_with_the_reason_and_it_is_logged_once() {
    let recipe = quiet().with("--procfs-root", "/nonexistent").with("--sysfs-root", "/nonexistent/sys");
    let agent = recipe.with("--slow-period", "1s").launch();
    for complaint in ["processes of the machine cannot be listed", "disks of the machine cannot be listed"] {
        agent.logs(complaint);
    }
    let node = eventually("a second failure", Duration::from_secs(30), || {
        let node = agent.get("/api/v1/node").json();
        let errors = node["troubles"].as_array()?.iter().find(|error| error["kind"] == "proc_unreadable")?;
        (errors["count"].as_u64()? >= 4).then_some(node)
    });
    for reading in ["processes", "disk_read_bytes", "cpu_user_seconds"] {
        assert_eq!(node[reading]["absent"], "no_such_file", "{reading}: {node}");
    }
    let text = agent.get("/metrics").text();
    for series in ["gpu_steward_node_processes ", "gpu_steward_node_disk_read_bytes_total "] {
        assert!(!text.lines().any(|line| line.starts_with(series)), "{series}");
    }
    let ended = agent.terminate();
    for complaint in ["processes of the machine cannot be listed", "disks of the machine cannot be listed"] {
        assert_eq!(ended.log.matches(complaint).count(), 1, "{complaint:?} once in {}", ended.log);
    }
}

/// Promise 16 in docs/specification.md.
#[test]
fn with_a_thousand_open_connections_the_agent_needs_little_memory_answers_and_ends() {
    // The connections stay open for the whole drain.
    let agent = quiet().with("--drain-timeout", "1s").start();
    let before = agent.resident_mib();
    let mut open = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..1000 {
        assert!(Instant::now() < deadline, "{} connections took a minute", open.len());
        // The agent may refuse or close some of these connections.
        if let Ok(mut stream) = TcpStream::connect_timeout(&agent.metrics, Duration::from_millis(250)) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            open.push(stream);
        }
    }
    eventually("an answer besides the open connections", Duration::from_secs(5), || {
        http::get(agent.metrics, "/healthz").ok().filter(|answer| answer.status == 200)
    });
    let grown = agent.resident_mib() - before;
    println!("{} connections: {grown:.1} MiB more resident", open.len());
    assert!(open.len() > 900, "only {} of a thousand connections", open.len());
    // 256 connection permits, with hyper's buffers for each.
    assert!(grown < 16.0, "{grown} MiB");
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.took < Duration::from_secs(15), "the drain takes 1 s: {:?}", ended.took);
    drop(open);
}
