//! Promise 3 (docs/specification.md): nothing grows with the number of processes that ever lived. A `/proc` of our own
//! is fast-forwarded through generations of new processes, which hold GPU memory as well; the agent's resident size at
//! 100,000 processes seen and at the last one must differ by less than 1 MiB.
//!
//! Run by `tests/run flood`. `FLOOD_PROCESSES` sets how many distinct processes are seen (300,000; the long form takes
//! 1,000,000), and `FLOOD_RECORD` names a directory for the record.

use lab::http;
use lab::scenario::{FakeNvml, Scenario};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Living at once: fewer than the agent keeps by name, so that every one of them is observed.
const LIVING: u64 = 4000;
const GPUS: u32 = 4;
const ON_EACH_GPU: u64 = 50;
const FIRST_MARK: u64 = 100_000;
const REAL: u32 = 20_000;
const LIMIT_KIB: u64 = 1024;

fn main() -> ExitCode {
    if std::env::var_os("FLOOD").is_none() {
        lab::say("flood: takes minutes; run it with tests/run flood");
        return ExitCode::SUCCESS;
    }
    match flood() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            lab::say(&format!("flood: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The agent; killed when dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn flood() -> Outcome<bool> {
    let target: u64 = std::env::var("FLOOD_PROCESSES").ok().map_or(Ok(300_000), |text| text.parse())?;
    let made_up = through_a_fake_proc(target)?;
    let real = through_real_processes()?;
    let mut ok = true;
    let mut text = String::new();
    for (what, before, after) in [made_up, real] {
        let holds = after.abs_diff(before) < LIMIT_KIB || after < before;
        ok &= holds;
        text += &format!("{}  {what}: VmRSS {before} KiB, then {after} KiB\n", if holds { "ok  " } else { "FAIL" });
    }
    lab::say(&text);
    if let Some(place) = std::env::var_os("FLOOD_RECORD") {
        let place = PathBuf::from(place);
        fs::create_dir_all(&place)?;
        fs::write(place.join("flood.txt"), &text)?;
    }
    Ok(ok)
}

type Grown = (String, u64, u64);

fn through_a_fake_proc(target: u64) -> Outcome<Grown> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let proc = dir.path().join("proc");
    let cgroup = dir.path().join("cgroup");
    prepare(&proc, &cgroup)?;
    let fake = FakeNvml::install(dir.path(), &Scenario::gpus("A100", GPUS))?;
    let agent = start(dir.path(), |command| {
        command.arg("--procfs-root").arg(&proc).arg("--cgroup-root").arg(&cgroup);
        command.arg("--nvml-library").arg(&fake.library);
        command.args(["--period", "250ms", "--slow-period", "250ms", "--process-period", "250ms"]);
    })?;
    let mut first = None;
    let mut living: Vec<u64> = Vec::new();
    let mut seen = 0;
    for generation in 0.. {
        // The number of living processes differs from one generation to the next, so the agent's own count tells when
        // it has seen this one.
        let count = LIVING + generation % 16;
        let next: Vec<u64> = (0..count).map(|i| 1000 + (seen + i) % 4_000_000).collect();
        replace(&proc, &living, &next, generation)?;
        fake.write(&Scenario::gpus("A100", GPUS).with_processes_spread(&next[..(u64::from(GPUS) * ON_EACH_GPU) as usize]))?;
        living = next;
        lab::eventually(Duration::from_secs(30), &format!("the agent sees generation {generation}"), || {
            processes_seen(&agent) == Some(count)
        });
        seen += count;
        if seen >= FIRST_MARK && first.is_none() {
            first = Some(rss_kib(agent.child.id())?);
        }
        if seen >= target {
            break;
        }
    }
    let last = rss_kib(agent.child.id())?;
    Ok((format!("{FIRST_MARK} and {seen} made-up processes"), first.unwrap_or(last), last))
}

fn through_real_processes() -> Outcome<Grown> {
    let dir = tempfile::tempdir()?;
    let agent = start(dir.path(), |command| {
        command.args(["--gpus", "none", "--slow-period", "500ms"]);
    })?;
    let spawn = |count: u32| -> Outcome<()> {
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
        Command::new("sh").args(["-c", &script]).status()?;
        Ok(())
    };
    spawn(REAL / 10)?;
    let before = rss_kib(agent.child.id())?;
    spawn(REAL)?;
    Ok((format!("{} and {} real processes", REAL / 10, REAL + REAL / 10), before, rss_kib(agent.child.id())?))
}

fn start(dir: &Path, arrange: impl FnOnce(&mut Command)) -> Outcome<Agent> {
    let mut command = lab::agent::Agent::command(Path::new(env!("CARGO_BIN_EXE_gpu-steward")), dir);
    arrange(&mut command);
    let mut child = command.stdin(Stdio::null()).stderr(fs::File::create(dir.join("agent.log"))?).spawn()?;
    let address = lab::agent::announced_address(dir, &mut child)?;
    Ok(Agent { child, address })
}

/// The files of the machine's own `/proc` that are not about processes, and an empty v2 hierarchy.
fn prepare(proc: &Path, cgroup: &Path) -> Outcome<()> {
    fs::create_dir_all(proc.join("net"))?;
    fs::create_dir_all(proc.join("self/net"))?;
    fs::create_dir_all(proc.join("sys/kernel"))?;
    for file in ["stat", "meminfo", "loadavg", "diskstats", "net/dev", "uptime", "sys/kernel/osrelease", "self/cgroup", "self/mountinfo"] {
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
            format!("{pid} (worker) S 1 {pid} {pid} 0 -1 4194560 100 0 0 0 3 2 0 0 20 0 1 0 {start} 10000000 500 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
        )?;
        fs::write(dir.join("cgroup"), "0::/system.slice/worker.service\n")?;
        fs::write(dir.join("comm"), "worker\n")?;
    }
    Ok(())
}

fn processes_seen(agent: &Agent) -> Option<u64> {
    let body = http::get(&agent.address, "/api/v1/node").ok()?.body;
    let json: serde_json::Value = serde_json::from_slice(&body).ok()?;
    json.pointer("/processes/total")?.as_u64()
}

fn rss_kib(pid: u32) -> Outcome<u64> {
    // Freed pages go back within the allocator's decay time; both marks are taken after the same wait.
    let settled = Instant::now() + Duration::from_secs(3);
    while Instant::now() < settled {
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
