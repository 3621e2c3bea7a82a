//! Promise 1 (docs/specification.md): what the agent costs while it watches 8 GPUs and 100 pods of 2 containers each,
//! real cgroups with real processes, at 1 Hz, scraped every 15 s and followed by one usage watcher; beside cAdvisor,
//! which looks at the same containers in the same run.
//!
//! Run by `tests/run footprint` as root. `FOOTPRINT_SECONDS` sets the length (120; the long form takes 600), and
//! `FOOTPRINT_RECORD` names a directory for the record.

use lab::http;
use lab::pods::Pods;
use lab::scenario::{FakeNvml, Scenario};
use serde_json::json;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PODS: u32 = 100;
const CONTAINERS: u32 = 2;
const GPUS: u32 = 8;
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// The promises.
const RSS_LIMIT_KIB: u64 = 25 * 1024;
const CPU_LIMIT: f64 = 0.01;
const YARDSTICK_SHARE: f64 = 0.2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).map(String::as_str) == Some("container") {
        container();
    }
    if std::env::var_os("FOOTPRINT").is_none() {
        lab::say("footprint: needs root, real cgroups and minutes; run it with tests/run footprint");
        return ExitCode::SUCCESS;
    }
    match bench() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            lab::say(&format!("footprint: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What runs in each container: wakes once a second and works for about a tenth of a millisecond, so that counters move.
fn container() -> ! {
    let mut page = vec![1_u8; 1 << 20];
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for byte in page.iter_mut().step_by(64) {
            *byte = byte.wrapping_mul(3);
        }
    }
}

/// CPU time and memory of one process, as the kernel accounts for it.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu: Duration,
    rss_kib: u64,
    peak_kib: u64,
}

/// Processor time by `/proc/<pid>/stat` (the same sums that getrusage gives) and memory by `/proc/<pid>/status`.
fn cost(pid: u32) -> Outcome<Cost> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields.get(11).ok_or("no utime")?.parse::<u64>()? + fields.get(12).ok_or("no stime")?.parse::<u64>()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| -> Outcome<u64> {
        let line = status.lines().find(|line| line.starts_with(key)).ok_or("no such line in status")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    };
    Ok(Cost { cpu: Duration::from_millis(ticks * 10), rss_kib: kib("VmRSS:")?, peak_kib: kib("VmHWM:")? })
}

/// A program under measurement; killed when dropped.
struct Running {
    name: &'static str,
    child: Child,
    address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_agent(dir: &Path, pods: &Pods) -> Outcome<(Running, Child)> {
    let holders: Vec<u32> = pods.pods.iter().map(|pod| pod.containers[0].pid).collect();
    let scenario = Scenario::gpus("H100", GPUS).with_processes(&holders);
    let fake = FakeNvml::install(dir, &scenario)?;
    let binary = env!("CARGO_BIN_EXE_gpu-steward");
    let socket = dir.join("agent.sock");
    let agent = lab::agent::Agent::command(Path::new(binary), dir)
        .arg("--nvml-library")
        .arg(&fake.library)
        .arg("--usage-socket")
        .arg(&socket)
        .stderr(std::fs::File::create(dir.join("agent.log"))?)
        .spawn()?;
    let mut running = Running { name: "gpu-steward", child: agent, address: String::new() };
    running.address = lab::agent::announced_address(dir, &mut running.child)?;
    let watcher = Command::new(binary)
        .args(["usage", "--watch", "-o", "json", "--usage-socket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((running, watcher))
}

fn start_yardstick() -> Outcome<Running> {
    let path = std::env::var("YARDSTICK").map_err(|_| "YARDSTICK must name the cAdvisor program (tests/bench/cadvisor)")?;
    let address = format!("127.0.0.1:{}", lab::http::free_port()?);
    let child = Command::new(path).args(["-listen", &address]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(Running { name: "cAdvisor", child, address })
}

fn bench() -> Outcome<bool> {
    let seconds: u64 = std::env::var("FOOTPRINT_SECONDS").ok().map_or(Ok(120), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup"))?;
    let itself = std::env::current_exe()?;
    let itself = itself.to_string_lossy();
    lab::say(&format!("footprint: making {PODS} pods of {CONTAINERS} containers"));
    for number in 0..PODS {
        pods.add(number, CONTAINERS, &[&itself, "container"])?;
    }
    let (agent, mut watcher) = start_agent(dir.path(), &pods)?;
    let yardstick = start_yardstick()?;
    let result = measure(&[&agent, &yardstick], Duration::from_secs(seconds));
    let seen = agent_sees(&agent);
    let _ = watcher.kill();
    let _ = watcher.wait();
    drop(agent);
    drop(yardstick);
    let measured = result?;
    let (pods_seen, gpus_seen) = seen?;
    let ok = report(&measured, Duration::from_secs(seconds), (pods_seen, gpus_seen))?;
    Ok(ok)
}

/// What the agent says it watches, so that a cheap agent is not one that looks away.
fn agent_sees(agent: &Running) -> Outcome<(usize, usize)> {
    let count = |path: &str, key: &str| -> Outcome<usize> {
        let body = http::get(&agent.address, path)?.body;
        let json: serde_json::Value = serde_json::from_slice(&body)?;
        Ok(json[key].as_array().map_or(0, Vec::len))
    };
    Ok((count("/api/v1/pods", "pods")?, count("/api/v1/gpus", "gpus")?))
}

/// Start, end and the largest resident size seen, of each program.
struct Measured {
    name: &'static str,
    cpu_share: f64,
    rss_kib: u64,
    peak_kib: u64,
    scrape_bytes: usize,
}

fn measure(programs: &[&Running], span: Duration) -> Outcome<Vec<Measured>> {
    // Start-up is not steady state: both get the same time to find everything.
    std::thread::sleep(Duration::from_secs(10));
    let begin = Instant::now();
    let first: Vec<Cost> = programs.iter().map(|p| cost(p.child.id())).collect::<Outcome<_>>()?;
    let mut largest: Vec<u64> = first.iter().map(|cost| cost.rss_kib).collect();
    let mut bytes = vec![0; programs.len()];
    let mut next_scrape = begin;
    while begin.elapsed() < span {
        if Instant::now() >= next_scrape {
            for (index, program) in programs.iter().enumerate() {
                bytes[index] = http::get(&program.address, "/metrics")?.body.len();
            }
            next_scrape += SCRAPE_EVERY;
        }
        for (index, program) in programs.iter().enumerate() {
            largest[index] = largest[index].max(cost(program.child.id())?.rss_kib);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let elapsed = begin.elapsed();
    let mut measured = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let last = cost(program.child.id())?;
        measured.push(Measured {
            name: program.name,
            cpu_share: (last.cpu - first[index].cpu).as_secs_f64() / elapsed.as_secs_f64(),
            rss_kib: largest[index],
            peak_kib: last.peak_kib,
            scrape_bytes: bytes[index],
        });
    }
    Ok(measured)
}

fn report(measured: &[Measured], span: Duration, seen: (usize, usize)) -> Outcome<bool> {
    let [agent, yardstick] = measured else { return Err("two programs are compared".into()) };
    #[expect(clippy::cast_precision_loss, reason = "KiB of two processes")]
    let memory_ratio = agent.rss_kib as f64 / yardstick.rss_kib as f64;
    let cpu_ratio = agent.cpu_share / yardstick.cpu_share;
    let mut text = String::new();
    for m in measured {
        writeln!(
            text,
            "{:<12} {:>6.2} % of a core   VmRSS {:>7} KiB   VmHWM {:>7} KiB   scrape {:>8} B",
            m.name,
            m.cpu_share * 100.0,
            m.rss_kib,
            m.peak_kib,
            m.scrape_bytes
        )?;
    }
    writeln!(text, "ratio        {cpu_ratio:>6.3} of its CPU      {memory_ratio:.3} of its memory")?;
    let checks = [
        ("all pods are seen", seen.0 == PODS as usize),
        ("all GPUs are seen", seen.1 == GPUS as usize),
        ("VmRSS at most 25 MiB", agent.rss_kib <= RSS_LIMIT_KIB),
        ("at most 1 % of a core", agent.cpu_share <= CPU_LIMIT),
        ("at most 1/5 of cAdvisor's CPU", cpu_ratio <= YARDSTICK_SHARE),
        ("at most 1/5 of cAdvisor's memory", memory_ratio <= YARDSTICK_SHARE),
    ];
    for (what, holds) in checks {
        writeln!(text, "{}  {what}", if holds { "ok  " } else { "FAIL" })?;
    }
    lab::say(&text);
    if let Some(place) = std::env::var_os("FOOTPRINT_RECORD") {
        let place = PathBuf::from(place);
        std::fs::create_dir_all(&place)?;
        let rows: Vec<_> = measured
            .iter()
            .map(|m| json!({"program": m.name, "cpu_share_of_core": m.cpu_share, "vm_rss_kib": m.rss_kib, "vm_hwm_kib": m.peak_kib, "scrape_bytes": m.scrape_bytes}))
            .collect();
        let record = json!({"pods": PODS, "containers_per_pod": CONTAINERS, "gpus": GPUS, "seconds": span.as_secs(), "programs": rows, "cpu_ratio": cpu_ratio, "memory_ratio": memory_ratio});
        std::fs::write(place.join("footprint.json"), serde_json::to_vec_pretty(&record)?)?;
        std::fs::write(place.join("footprint.txt"), &text)?;
    }
    Ok(checks.iter().all(|(_, holds)| *holds))
}
