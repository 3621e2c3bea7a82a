//! The cost of workload profiles: two agents watch the same GPUs and pods in one run, one with `--workload-profiles=off` and one
//! with `on`. The row "with workload profiles" of docs/specification.md.
//!
//! A minute is not enough: the histories in memory fill up for a quarter of an hour, and pods are analysed every five minutes.

use crate::process_cost::{Measurand, Outcome, Running, all_hold, binary, measure};
use crate::{CONTAINERS, listed, scenario, slower_than_record};
use lab::agent::{Agent, Recipe};
use lab::pods::Pods;
use lab::scenario::FakeNvml;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Memory (`RssAnon`) and CPU time that profiles may take in addition.
const MORE_KIB: i64 = 10 << 10;
const MORE_CPU: f64 = 0.004;
/// Seconds of analysis in any second.
const BUSIEST: f64 = 0.020;

pub(crate) fn bench(pods: &Pods, gpus: (usize, usize), span: Duration) -> Outcome<bool> {
    let mut agents = Vec::new();
    for switch in ["--workload-profiles=off", "--workload-profiles=on"] {
        agents.push(start(Agent::standalone(&binary()).switch(switch), pods, gpus)?);
    }
    let (baseline, baseline_address) = crate::start_baseline()?;
    let mut programs: Vec<Measurand> = ["without", "profiles"]
        .into_iter()
        .zip(&agents)
        .map(|(name, (agent, _))| Measurand { name, pid: agent.pid(), address: agent.metrics })
        .collect();
    programs.push(Measurand { name: "cAdvisor", pid: baseline.0.id(), address: baseline_address });
    let measured = measure(&programs, span)?;
    measured.iter().for_each(|one| println!("{}", one.line()));
    let [without, with, _] = &measured[..] else { return Err("two agents are compared".into()) };
    let more_kib = with.anon_kib.cast_signed() - without.anon_kib.cast_signed();
    let more_cpu = with.cpu_share - without.cpu_share;
    println!(
        "profiles     {:>+6.2} % of a core  RssAnon {more_kib:>+7} KiB  in {} s",
        100.0 * more_cpu,
        span.as_secs()
    );
    let slower = slower_than_record(&measured);
    let listing = agents[1].0.get("/api/v1/profile").json();
    let busiest = listing["recorder"]["busiest_second_seconds"].as_f64().unwrap_or(f64::INFINITY);
    println!("profiles     {:.1} ms of analysis in the busiest second", 1e3 * busiest);
    let series = listed(&agents[1].0, "/api/v1/profile", "profiles");
    let expected = 4 * gpus.0 + 2 * pods.pods.len();
    Ok(all_hold(&[
        (
            format!("{series} series of {CONTAINERS} containers in each pod are profiled, at least {expected}"),
            series >= expected,
        ),
        (format!("profiles: at most {} MiB of RssAnon more", MORE_KIB >> 10), more_kib <= MORE_KIB),
        (format!("profiles: at most {:.2} % of a core more", 100.0 * MORE_CPU * slower), more_cpu <= MORE_CPU * slower),
        (
            format!("profiles: at most {:.0} ms of analysis in any second", 1e3 * BUSIEST * slower),
            busiest <= BUSIEST * slower,
        ),
    ]))
}

/// Starts an agent on a copy of the fake library, with one usage watcher.
fn start(recipe: Recipe, pods: &Pods, gpus: (usize, usize)) -> Outcome<(Agent, Running)> {
    let fake = FakeNvml::install(recipe.dir())?;
    fake.write_text(&serde_json::to_vec(&scenario(pods, gpus))?)?;
    let agent = recipe.with("--nvml-library", fake.library()).start();
    let watcher = Command::new(binary())
        .args(["usage", "--watch", "-o", "json", "--usage-socket"])
        .arg(&agent.usage_socket)
        .stdout(Stdio::null())
        .spawn()?;
    Ok((agent, Running(watcher)))
}
