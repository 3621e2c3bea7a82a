//! Tests `/metrics` of the whole program: simulated GPUs are marked, each metric set has its path, and a thousand
//! connections need little memory.

use crate::driver::fake;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::http::read_answer;
use lab::scenario::{FakeGpu, FakeProcess, MigDetail, MigSlot, Scenario, fake_gpus, process};
use lab::slow_reader;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Longest wait for the first readings: tests run while other code compiles.
const SOON: Duration = Duration::from_secs(20);

fn simulated() -> Agent {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:2").start();
    eventually("a reading of both GPUs", SOON, || {
        let text = agent.get("/metrics").text();
        let series = text.lines().filter(|line| line.starts_with("gpu_steward_gpu_memory_used_bytes{"));
        (series.count() == 2).then_some(())
    });
    agent
}

#[test]
fn simulated_gpus_are_marked_and_each_set_has_its_path() {
    let agent = simulated();
    let own = agent.get("/metrics").text();
    assert!(own.contains("\ngpu_steward_gpus_simulated 1\n"));
    let infos: Vec<&str> = own.lines().filter(|line| line.starts_with("gpu_steward_gpu_info{")).collect();
    assert_eq!(infos.len(), 2);
    assert!(infos.iter().all(|line| line.contains("simulated=\"true\"")), "{infos:?}");
    assert!(own.contains("\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-"), "dcgm's names are on");
    assert!(!own.contains("container_cpu_usage_seconds_total") && !own.contains("HostGPUMemoryUsage"), "these are off");
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"] {
        assert!(own.lines().any(|line| line.starts_with(name)), "{name}");
    }
    let gpu = agent.get("/metrics/gpu").text();
    assert_eq!(gpu.lines().filter(|line| line.starts_with("gpu_steward_gpu_memory_used_bytes{")).count(), 2);
    assert!(
        !gpu.contains("DCGM_FI_") && !gpu.contains("gpu_steward_node_"),
        "GPUs only, and with names of gpu-steward only"
    );
    for (path, name) in
        [("/metrics/dcgm", "DCGM_FI_DEV_FB_USED{"), ("/metrics/hami", "hami_host_gpu_memory_used_bytes{")]
    {
        let text = agent.get(path).text();
        assert_eq!(text.lines().filter(|line| line.starts_with(name)).count(), 2, "{path}");
        assert!(!text.contains("gpu_steward_"), "{path}");
    }
    assert_eq!(agent.get("/metrics/cadvisor").status, 200);
}

#[test]
fn compute_instances_of_one_gpu_instance_are_counted_once_in_the_metrics() {
    let slot = |gpu_instance, compute_instance| {
        let profile = "1c.2g.20gb".to_owned();
        MigSlot::Detailed(MigDetail { profile, gpu_instance: Some(gpu_instance), compute_instance, uuid: None })
    };
    let inside = |pid, mig| FakeProcess { mig: Some(mig), ..process(pid, 1 << 30, 10.0) };
    let gpu = FakeGpu {
        mig: vec![slot(3, 0), slot(3, 1)],
        processes: vec![inside(4_000_001, 0), inside(4_000_002, 1)],
        ..fake_gpus("A100", 1)
    };
    let (_directory, fake) = fake(&Scenario { gpus: vec![gpu], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).start();
    let text = eventually("a reading of the instances", SOON, || {
        let text = agent.get("/metrics").text();
        text.contains("\ngpu_steward_mig_memory_used_bytes{").then_some(text)
    });
    let values = |name: &str| -> Vec<f64> {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    assert_eq!(values("DCGM_FI_DEV_FB_USED"), [2048.0]);
    assert_eq!(values("gpu_steward_mig_memory_used_bytes"), [2_147_483_648.0]);
    assert_eq!(values("gpu_steward_mig_info").len(), 2);
    let mut series: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap().0).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "no series appears twice");
}

#[test]
fn the_start_time_metric_is_the_start_of_the_process() {
    let agent = simulated();
    let text = agent.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds ")).unwrap();
    let started: f64 = line.parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..120.0).contains(&(now - started)), "{started} and {now}");
}

/// Promise 19 in docs/specification.md.
#[test]
fn a_thousand_scrapes_that_never_read_cost_little_memory() {
    let agent = simulated();
    let before = agent.resident_mib();
    let mut silent = Vec::new();
    for _ in 0..1000 {
        if let Ok(mut stream) = TcpStream::connect_timeout(&agent.metrics, Duration::from_millis(250)) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n");
            silent.push(stream);
        }
    }
    let other_client = |path| {
        let stream = slow_reader::ask(Ipv4Addr::new(127, 0, 0, 2), agent.metrics, path).unwrap();
        read_answer(&mut BufReader::new(stream)).unwrap()
    };
    assert_eq!(other_client("/healthz").text(), "ok\n");
    assert_eq!(other_client("/metrics").status, 200, "another client is answered at once");
    let grown = agent.resident_mib() - before;
    println!("{} silent connections: {grown:.1} MiB more resident", silent.len());
    assert!(silent.len() > 900, "only {} of a thousand connections", silent.len());
    // 256 connection permits with hyper's buffers, and eight answers under way.
    assert!(grown < 16.0, "{grown} MiB");
    // The agent closes an old connection to make room for this one, and counts the old one until its task has ended.
    eventually("no more connections than the limit and this one", Duration::from_secs(10), || {
        let text = other_client("/metrics").text();
        let open = text.lines().find_map(|line| line.strip_prefix("gpu_steward_http_connections ")).unwrap();
        (open.parse::<u32>().unwrap() <= 257).then_some(())
    });
}
