//! Checks that the agent's memory does not grow with the number of processes that have ever run. A fake `/proc` shows
//! generation after generation of new processes, and each process holds GPU memory. The bench waits until the agent has
//! counted each generation in `/proc` and on every GPU. The agent's resident size after 100,000 processes and after the
//! last one must differ by less than 1 MiB. Promise 2 in docs/specification.md.
//!
//! `tests/run --long flood` runs it. `FLOOD_PROCESSES` sets the number of distinct processes (200,000; 1,000,000 in the record).

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::FakeNvml;
use serde_json::{Value, json};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The least number of processes that run at once on each GPU; up to [`STEPS`] more may run. The agent keeps 1,024
/// processes of a GPU and 4,096 in total by name, so it observes all of these.
const ON_EACH_GPU: u64 = 1000;
const GPUS: usize = 4;
/// Generations have different sizes, so the agent's counts show which generation it has seen.
const STEPS: u64 = 16;
const FIRST_MARK: u64 = 100_000;
const REAL: u32 = 20_000;
const LIMIT_KIB: u64 = 1024;
/// Number of samples of the resident size, one second apart: see [`settled_rss_kib`].
const SAMPLES: u32 = 12;
/// Largest number of samples at the end. Twelve were sometimes too few, even on an idle machine.
const MAX_SAMPLES: u32 = 60;

fn main() -> ExitCode {
    if std::env::var_os("FLOOD").is_none() {
        println!("flood: takes minutes; run it with tests/run --long flood");
        return ExitCode::SUCCESS;
    }
    match flood() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("flood: {error}");
            ExitCode::FAILURE
        }
    }
}

fn flood() -> Outcome<bool> {
    let target: u64 = std::env::var("FLOOD_PROCESSES").ok().map_or(Ok(200_000), |text| text.parse())?;
    let fake = through_a_fake_proc(target)?;
    let real = through_real_processes()?;
    let mut ok = true;
    let mut text = String::new();
    for (what, before, after) in [fake, real] {
        let holds = after.abs_diff(before) < LIMIT_KIB || after < before;
        ok &= holds;
        text += &format!(
            "{}  {what}: RssAnon and RssShmem {before} KiB, then {after} KiB\n",
            if holds { "ok  " } else { "FAIL" }
        );
    }
    print!("{text}");
    Ok(ok)
}

type Grown = (String, u64, u64);

fn through_a_fake_proc(target: u64) -> Outcome<Grown> {
    let recipe = Agent::standalone(env!("CARGO_BIN_EXE_gpu-steward"));
    let tree = tempfile::tempdir_in("/dev/shm")?;
    let (proc, cgroup) = (tree.path().join("proc"), tree.path().join("cgroup"));
    prepare(&proc, &cgroup)?;
    let fake = FakeNvml::install(tree.path())?;
    write_scenario(&fake, &[])?;
    let agent = recipe
        .with("--nvml-library", fake.library())
        .with("--procfs-root", &proc)
        .with("--cgroup-root", &cgroup)
        .with("--period", "250ms")
        .with("--slow-period", "250ms")
        .with("--process-period", "250ms")
        // Histories in memory grow for a quarter of an hour, whatever processes there are.
        .switch("--workload-profiles=off")
        .start();
    let mut first = None;
    let mut running: Vec<u64> = Vec::new();
    let mut seen = 0;
    for generation in 0.. {
        let on_each = ON_EACH_GPU + generation % STEPS;
        let count = GPUS as u64 * on_each;
        let next: Vec<u64> = (0..count).map(|i| 1000 + (seen + i) % 4_000_000).collect();
        replace(&proc, &running, &next, generation)?;
        write_scenario(&fake, &next)?;
        running = next;
        eventually(&format!("generation {generation} in the agent's counts"), Duration::from_secs(30), || {
            let seen = processes_seen(&agent) == Some(count) && processes_on_gpus(&agent) == [on_each; GPUS];
            seen.then_some(())
        });
        seen += count;
        if seen / FIRST_MARK > (seen - count) / FIRST_MARK {
            println!("      {seen} fake processes: {}", rss_parts(agent.pid())?);
        }
        if seen >= FIRST_MARK && first.is_none() {
            first = Some(settled_rss_kib(agent.pid())?);
        }
        if seen >= target {
            break;
        }
    }
    let first = first.ok_or("fewer processes than the first mark")?;
    let last = settled_rss_within_kib(agent.pid(), first)?;
    Ok((format!("after {FIRST_MARK} and {seen} fake processes"), first, last))
}

fn through_real_processes() -> Outcome<Grown> {
    let agent = Agent::standalone(env!("CARGO_BIN_EXE_gpu-steward"))
        .with("--gpus", "none")
        .with("--slow-period", "500ms")
        .switch("--workload-profiles=off")
        .start();
    let spawn = |count: u32| -> Outcome<()> {
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
        Command::new("sh").args(["-c", &script]).status()?;
        Ok(())
    };
    spawn(REAL / 10)?;
    let before = settled_rss_kib(agent.pid())?;
    spawn(REAL)?;
    let after = settled_rss_within_kib(agent.pid(), before)?;
    Ok((format!("after {} and {} real processes", REAL / 10, REAL + REAL / 10), before, after))
}

fn write_scenario(fake: &FakeNvml, pids: &[u64]) -> Outcome<()> {
    let gpu_json = |chunk: &[u64]| {
        let list: Vec<Value> = chunk.iter().map(|pid| json!({"pid": pid, "memory": 1 << 20, "sm": 1})).collect();
        json!({"model": "A100", "processes": list})
    };
    let on_each = pids.len() / GPUS;
    let gpus: Vec<Value> = (0..GPUS).map(|gpu| gpu_json(&pids[gpu * on_each..(gpu + 1) * on_each])).collect();
    fake.write_text(&serde_json::to_vec(&json!({"gpus": gpus}))?)?;
    Ok(())
}

/// Makes the files of `/proc` that are not about processes, copied from the machine, and an empty cgroup v2 hierarchy.
fn prepare(proc: &Path, cgroup: &Path) -> Outcome<()> {
    fs::create_dir_all(proc.join("net"))?;
    fs::create_dir_all(proc.join("self/net"))?;
    fs::create_dir_all(proc.join("sys/kernel"))?;
    for file in [
        "stat",
        "meminfo",
        "loadavg",
        "diskstats",
        "vmstat",
        "net/dev",
        "uptime",
        "sys/kernel/osrelease",
        "self/cgroup",
        "self/mountinfo",
    ] {
        fs::write(proc.join(file), fs::read(Path::new("/proc").join(file))?)?;
    }
    fs::create_dir_all(cgroup)?;
    fs::write(cgroup.join("cgroup.controllers"), "cpu memory io pids\n")?;
    fs::write(cgroup.join("cgroup.procs"), "")?;
    Ok(())
}

fn replace(proc: &Path, old: &[u64], new: &[u64], generation: u64) -> Outcome<()> {
    for pid in old {
        let _ = fs::remove_dir_all(proc.join(pid.to_string()));
    }
    for pid in new {
        let dir = proc.join(pid.to_string());
        fs::create_dir(&dir)?;
        let start = 100 + generation;
        fs::write(
            dir.join("stat"),
            format!(
                "{pid} (worker) S 1 {pid} {pid} 0 -1 4194560 100 0 0 0 3 2 0 0 20 0 1 0 {start} 10000000 500 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            ),
        )?;
        fs::write(dir.join("cgroup"), "0::/system.slice/worker.service\n")?;
        fs::write(dir.join("comm"), "worker\n")?;
    }
    Ok(())
}

fn processes_seen(agent: &Agent) -> Option<u64> {
    agent.get("/api/v1/node").json().pointer("/processes/value")?.as_u64()
}

/// The number of processes on each GPU.
fn processes_on_gpus(agent: &Agent) -> Vec<u64> {
    let text = agent.get("/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with("gpu_steward_gpu_processes{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

/// The smallest of several samples. The allocator returns freed pages within its decay time of a second, and every pass
/// frees some pages. So the size swings by 2 MiB without a trend, and a single sample may be too large. The memory that is
/// really kept is in every sample.
fn settled_rss_kib(pid: u32) -> Outcome<u64> {
    smallest_kib(pid, SAMPLES, 0)
}

/// The same, with more samples until one is within the limit. Memory that has grown permanently is in every sample,
/// however many samples there are.
fn settled_rss_within_kib(pid: u32, before: u64) -> Outcome<u64> {
    smallest_kib(pid, MAX_SAMPLES, before + LIMIT_KIB - 1)
}

fn smallest_kib(pid: u32, samples: u32, enough: u64) -> Outcome<u64> {
    std::thread::sleep(Duration::from_secs(4));
    let mut smallest = u64::MAX;
    for _ in 0..samples {
        std::thread::sleep(Duration::from_secs(1));
        smallest = smallest.min(rss_kib(pid)?);
        if smallest <= enough {
            break;
        }
    }
    Ok(smallest)
}

/// The resident size without the pages of the program's file. Those come with the code that runs, and
/// the file limits their number.
fn rss_kib(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| -> Outcome<u64> {
        let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such line in status")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    };
    Ok(of("RssAnon:")? + of("RssShmem:")?)
}

/// The parts of the resident size: allocated memory, and pages of the program's file.
fn rss_parts(pid: u32) -> Outcome<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines: Vec<&str> = status.lines().filter(|line| line.starts_with("Rss")).collect();
    Ok(lines.join(", ").replace(char::is_whitespace, " "))
}
