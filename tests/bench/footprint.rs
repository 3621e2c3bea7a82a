//! Measures the cost of an agent that watches 8 GPUs and 100 pods of 2 containers each (real cgroups with real
//! processes) at 1 Hz, with a scrape every 15 s and one usage watcher. cAdvisor watches the same containers in the same
//! run, for comparison. Promise 1 in docs/specification.md.
//!
//! `tests/run --long footprint` runs it as root. `FOOTPRINT_SECONDS` sets the length, `BASELINE`
//! names the cAdvisor program, and `FOOTPRINT_BINARY` names an agent other than that of the test profile.
//! `FOOTPRINT_PODS` and `FOOTPRINT_GPUS` change the load, and `FOOTPRINT_MIG` divides each GPU into this many
//! instances. With `FOOTPRINT_WATCH` the agent also watches the same pods at an API server; then it may use 18 MiB. With
//! `FOOTPRINT_STREAM` the bench measures the cost of a stream to the leading extender instead ([`reporting`]), with
//! `FOOTPRINT_PROFILES` that of workload profiles ([`workload_profiles`]); all other measurements are without profiles.
//! `FOOTPRINT=smoke` is the smoke test of each run: memory only, of an agent alone, with sharing, and with a stream.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

mod process_cost;
mod reporting;
mod workload_profiles;

use lab::agent::Agent;
use lab::api_server::{self, FakeApiServer};
use lab::pods::Pods;
use lab::scenario::{self, FakeNvml};
use process_cost::{ALONE_KIB, Measurand, Measured, Outcome, Running, SHARING_KIB, all_hold, measure};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

const CONTAINERS: u32 = 2;
const NODE: &str = "bench-node";
/// The limit of promise 1.
const CPU_LIMIT: f64 = 0.01;
/// The CPU share of cAdvisor with the load of promise 1 on the machine of the record (`tests/bench/runs`). If cAdvisor
/// takes more, the machine is slower or busy, and the agent's limit grows in the same proportion.
const BASELINE_CPU: f64 = 0.139;
const PODS: usize = 100;
const BASELINE_SHARE: f64 = 0.2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("container") {
        container();
    }
    if std::env::var_os("FOOTPRINT").is_none() {
        println!("footprint: needs root, real cgroups and minutes; run it with tests/run footprint");
        return ExitCode::SUCCESS;
    }
    match bench() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("footprint: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The program in each container: it wakes once a second and touches a MiB, so that counters change.
fn container() -> ! {
    let mut page = vec![1_u8; 1 << 20];
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for byte in page.iter_mut().step_by(64) {
            *byte = byte.wrapping_mul(3);
        }
    }
}

/// A count from a variable. The promise is about 100 pods and 8 GPUs; other counts show the cost of one more pod or GPU.
fn count_from_env(name: &str, default: usize) -> Outcome<usize> {
    Ok(std::env::var(name).ok().map_or(Ok(default), |text| text.parse())?)
}

/// A scenario with one process of each pod, on the GPUs in turn.
fn scenario(pods: &Pods, (gpus, instances): (usize, usize)) -> Value {
    let mut pids: Vec<Vec<u32>> = vec![Vec::new(); gpus];
    for (index, pod) in pods.pods.iter().enumerate() {
        pids[index % gpus].push(pod.containers[0].pid);
    }
    if instances > 0 { scenario::busy_instances(&pids, instances) } else { scenario::busy(&pids) }
}

fn start_agent(pods: &Pods, gpus: (usize, usize)) -> Outcome<(Agent, Running, Option<FakeApiServer>)> {
    let binary = &*process_cost::binary();
    let server = std::env::var_os("FOOTPRINT_WATCH").map(|_| api_server(pods));
    let recipe = match &server {
        Some(server) => Agent::in_cluster(binary, server, NODE),
        None => Agent::standalone(binary),
    };
    let fake = FakeNvml::install(recipe.dir())?;
    fake.write_text(&serde_json::to_vec(&scenario(pods, gpus))?)?;
    let agent = recipe.with("--nvml-library", fake.library()).switch("--workload-profiles=off").start();
    let watcher = Command::new(binary)
        .args(["usage", "--watch", "-o", "json", "--usage-socket"])
        .arg(&agent.usage_socket)
        .stdout(Stdio::null())
        .spawn()?;
    Ok((agent, Running(watcher), server))
}

/// An API server with the same pods.
fn api_server(pods: &Pods) -> FakeApiServer {
    let server = FakeApiServer::start();
    for pod in &pods.pods {
        let containers: Vec<(&str, &str)> = pod.containers.iter().map(|one| (&one.id[60..], &*one.id)).collect();
        server.put("pods", api_server::pod(NODE, "bench", &format!("pod-{}", pod.uid), &pod.uid, &containers));
    }
    server
}

fn start_baseline() -> Outcome<(Running, SocketAddr)> {
    let path =
        std::env::var("BASELINE").map_err(|_| "BASELINE must name the cAdvisor program (tests/bench/cadvisor)")?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let child =
        Command::new(path).args(["-listen", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok((Running(child), port))
}

fn bench() -> Outcome<bool> {
    let seconds: u64 = std::env::var("FOOTPRINT_SECONDS").ok().map_or(Ok(120), |text| text.parse())?;
    let (count, gpus) = (count_from_env("FOOTPRINT_PODS", PODS)?, count_from_env("FOOTPRINT_GPUS", 8)?.max(1));
    let instances = count_from_env("FOOTPRINT_MIG", 0)?;
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup"))?;
    let this_program = std::env::current_exe()?;
    let this_program = this_program.to_string_lossy();
    println!(
        "footprint: makes {count} pods of {CONTAINERS} containers beside {gpus} GPUs of {instances} MIG instances, then measures for {seconds} s"
    );
    for number in 0..count {
        pods.add(u32::try_from(number)?, CONTAINERS, &[&this_program, "container"])?;
    }
    let smoke = std::env::var("FOOTPRINT").is_ok_and(|form| form == "smoke");
    if smoke || std::env::var_os("FOOTPRINT_STREAM").is_some() {
        return reporting::bench(&pods, gpus, Duration::from_secs(seconds), smoke);
    }
    if std::env::var_os("FOOTPRINT_PROFILES").is_some() {
        return workload_profiles::bench(&pods, (gpus, instances), Duration::from_secs(seconds));
    }
    let (agent, _watcher, server) = start_agent(&pods, (gpus, instances))?;
    let (baseline, baseline_address) = start_baseline()?;
    let programs = [
        Measurand { name: "gpu-steward", pid: agent.pid(), address: agent.metrics },
        Measurand { name: "cAdvisor", pid: baseline.0.id(), address: baseline_address },
    ];
    let measured = measure(&programs, Duration::from_secs(seconds))?;
    let divided = agent.get("/api/v1/gpus").json()["gpus"].as_array().map_or(0, |gpus| {
        gpus.iter().filter(|gpu| gpu["mig"]["value"].as_array().map_or(0, Vec::len) == instances).count()
    });
    let seen = listed(&agent, "/api/v1/pods", "pods") >= count
        && listed(&agent, "/api/v1/gpus", "gpus") == gpus
        && divided == gpus;
    let named = agent.get("/api/v1/pods?namespace=bench").json()["pods"].as_array().map_or(0, Vec::len);
    let seen = seen && (server.is_none() || named >= count);
    let limit = if server.is_some() { SHARING_KIB } else { ALONE_KIB };
    let bound = if count == PODS { CPU_LIMIT * slower_than_record(&measured) } else { CPU_LIMIT };
    report(&measured, seen, (limit, bound))
}

/// The number of objects that the agent shows. The bench checks it, because an agent that misses objects would look cheap.
fn listed(agent: &Agent, path: &str, key: &str) -> usize {
    agent.get(path).json()[key].as_array().map_or(0, Vec::len)
}

/// How many times slower this machine is than the machine of the record, by cAdvisor's CPU share.
fn slower_than_record(measured: &[Measured]) -> f64 {
    measured.last().map_or(1.0, |baseline| (baseline.cpu_share / BASELINE_CPU).max(1.0))
}

fn report(measured: &[Measured], all_seen: bool, (limit, cpu_limit): (u64, f64)) -> Outcome<bool> {
    let [agent, baseline] = measured else { return Err("two programs are compared".into()) };
    #[expect(clippy::cast_precision_loss, reason = "KiB of two processes")]
    let memory_ratio = agent.anon_kib as f64 / baseline.anon_kib as f64;
    let cpu_ratio = agent.cpu_share / baseline.cpu_share;
    let mut text = String::new();
    for one in measured {
        writeln!(text, "{}", one.line())?;
    }
    writeln!(text, "ratio        {cpu_ratio:>6.3} of its CPU       {memory_ratio:.3} of its memory")?;
    print!("{text}");
    let mut checks = vec![("all pods and GPUs are shown".to_owned(), all_seen)];
    checks.extend(agent.memory_checks(limit));
    checks.extend([
        (
            format!(
                "at most {:.2} % of a core (1 % where cAdvisor takes {:.1} %)",
                100.0 * cpu_limit,
                100.0 * BASELINE_CPU
            ),
            agent.cpu_share <= cpu_limit,
        ),
        ("at most 1/5 of cAdvisor's CPU".to_owned(), cpu_ratio <= BASELINE_SHARE),
        ("at most 1/5 of cAdvisor's memory".to_owned(), memory_ratio <= BASELINE_SHARE),
    ]);
    Ok(all_hold(&checks))
}
