//! Nothing grows with the number of processes that ever lived. A `/proc` of our own is fast-forwarded through
//! generations of new processes, each of which holds memory of a GPU as well, and each generation is waited for in `/proc`
//! and on every GPU; the agent's resident size at 100,000 processes seen and at the last one must differ by less than
//! 1 MiB. Promise 2 in docs/specification.md.
//!
//! Run by `tests/run flood`. `FLOOD_PROCESSES` sets how many distinct processes are seen (200,000; the long form takes
//! 1,000,000).

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

/// Living at once on each GPU, and up to [`STEPS`] more: fewer than the agent keeps by name (1,024 of a GPU and 4,096 in
/// all), so that every one of them is observed.
const ON_EACH_GPU: u64 = 1000;
const GPUS: usize = 4;
/// Generations of different size. The agent's own counts tell which one it has seen.
const STEPS: u64 = 16;
const FIRST_MARK: u64 = 100_000;
const REAL: u32 = 20_000;
const LIMIT_KIB: u64 = 1024;
/// Looks at the resident size, a second apart: see [`settled_rss_kib`].
const LOOKS: u32 = 12;
/// Of the second size at most. Twelve were not always enough on a machine that had nothing else to do.
const LOOKS_AGAIN: u32 = 60;

fn main() -> ExitCode {
    if std::env::var_os("FLOOD").is_none() {
        println!("flood: takes minutes; run it with tests/run flood");
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
    let made_up = through_a_fake_proc(target)?;
    let real = through_real_processes()?;
    let mut ok = true;
    let mut text = String::new();
    for (what, before, after) in [made_up, real] {
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
        .start();
    let mut first = None;
    let mut living: Vec<u64> = Vec::new();
    let mut seen = 0;
    for generation in 0.. {
        let on_each = ON_EACH_GPU + generation % STEPS;
        let count = GPUS as u64 * on_each;
        let next: Vec<u64> = (0..count).map(|i| 1000 + (seen + i) % 4_000_000).collect();
        replace(&proc, &living, &next, generation)?;
        write_scenario(&fake, &next)?;
        living = next;
        eventually(&format!("generation {generation} in the agent's counts"), Duration::from_secs(30), || {
            let seen = processes_seen(&agent) == Some(count) && processes_on_gpus(&agent) == [on_each; GPUS];
            seen.then_some(())
        });
        seen += count;
        if seen / FIRST_MARK > (seen - count) / FIRST_MARK {
            println!("      {seen} made-up processes: {}", parts(agent.pid())?);
        }
        if seen >= FIRST_MARK && first.is_none() {
            first = Some(settled_rss_kib(agent.pid())?);
        }
        if seen >= target {
            break;
        }
    }
    let first = first.ok_or("fewer processes than the first mark")?;
    let last = settled_again_kib(agent.pid(), first)?;
    Ok((format!("after {FIRST_MARK} and {seen} made-up processes"), first, last))
}

fn through_real_processes() -> Outcome<Grown> {
    let agent = Agent::standalone(env!("CARGO_BIN_EXE_gpu-steward"))
        .with("--gpus", "none")
        .with("--slow-period", "500ms")
        .start();
    let spawn = |count: u32| -> Outcome<()> {
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
        Command::new("sh").args(["-c", &script]).status()?;
        Ok(())
    };
    spawn(REAL / 10)?;
    let before = settled_rss_kib(agent.pid())?;
    spawn(REAL)?;
    let after = settled_again_kib(agent.pid(), before)?;
    Ok((format!("after {} and {} real processes", REAL / 10, REAL + REAL / 10), before, after))
}

fn write_scenario(fake: &FakeNvml, pids: &[u64]) -> Outcome<()> {
    let card = |chunk: &[u64]| {
        let list: Vec<Value> = chunk.iter().map(|pid| json!({"pid": pid, "memory": 1 << 20, "sm": 1})).collect();
        json!({"model": "A100", "processes": list})
    };
    let on_each = pids.len() / GPUS;
    let cards: Vec<Value> = (0..GPUS).map(|gpu| card(&pids[gpu * on_each..(gpu + 1) * on_each])).collect();
    fake.write_text(&serde_json::to_vec(&json!({"gpus": cards}))?)?;
    Ok(())
}

/// The files of the machine's own `/proc` that are not about processes, and an empty v2 hierarchy.
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

/// Of each GPU.
fn processes_on_gpus(agent: &Agent) -> Vec<u64> {
    let text = agent.get("/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with("gpu_steward_gpu_processes{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

/// The smallest of several looks. Pages that are freed go back within the allocator's decay time of a second, and every
/// pass frees some: from look to look the size swings by 2 MiB while it has no trend, so one look says more of its moment
/// than of what is kept. What is kept is in each of them.
fn settled_rss_kib(pid: u32) -> Outcome<u64> {
    smallest_kib(pid, LOOKS, 0)
}

/// The same, until it is within the limit of what it was before: what has grown for good is in every look, however many there are.
fn settled_again_kib(pid: u32, before: u64) -> Outcome<u64> {
    smallest_kib(pid, LOOKS_AGAIN, before + LIMIT_KIB - 1)
}

fn smallest_kib(pid: u32, looks: u32, enough: u64) -> Outcome<u64> {
    std::thread::sleep(Duration::from_secs(4));
    let mut smallest = u64::MAX;
    for _ in 0..looks {
        std::thread::sleep(Duration::from_secs(1));
        smallest = smallest.min(rss_kib(pid)?);
        if smallest <= enough {
            break;
        }
    }
    Ok(smallest)
}

/// Without the pages of the program's file: those come and go with the code that is run (`agent/text.rs`), and there are no more
/// of them than the file has.
fn rss_kib(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| -> Outcome<u64> {
        let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such line in status")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    };
    Ok(of("RssAnon:")? + of("RssShmem:")?)
}

/// What the resident size consists of: what the program allocated, and the pages of its file that it has run through.
fn parts(pid: u32) -> Outcome<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines: Vec<&str> = status.lines().filter(|line| line.starts_with("Rss")).collect();
    Ok(lines.join(", ").replace(char::is_whitespace, " "))
}
