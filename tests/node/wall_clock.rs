//! Sets the wall clock of the running program one hour ahead, back, and another hour back. The program has its own wall
//! clock for this (`wall_clock.c`). Its boot time and the time stamps of the driver move with that clock, as a real
//! kernel's and NVIDIA driver's do. The machine's clock does not change.

use crate::profiles::{history, seconds};
use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{self, FakeGpu, FakeNvml, ReadingKind, Scenario, fake_gpus, process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A pod number that no other test uses.
const NUMBER: u32 = 0xc10c;
/// The fake GPU's report about its only process.
const MEMORY: u64 = 3 << 30;
const SM: f64 = 0.4;
/// How long the test checks the program after each jump: some passes, process lists and views, and one message of a
/// usage stream in which nothing changes (one in 10 s).
const CHECK_TIME: Duration = Duration::from_secs(12);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);
/// The pod keeps one processor busy. Even if a pass is late, this is more than any true rate.
const MOST_CORES: f64 = 1.5;

/// The wall clock of the program, the boot time in its `/proc/stat`, and the driver's clock.
struct Clock {
    library: PathBuf,
    offset: PathBuf,
    boot: PathBuf,
    driver: FakeNvml,
    scenario: Scenario,
    /// Seconds by which the clock is moved.
    now: i64,
}

impl Clock {
    fn build(folder: &Path, scenario: Scenario) -> Clock {
        let (library, source) = (folder.join("wall_clock.so"), folder.join("wall_clock.c"));
        std::fs::write(&source, include_str!("wall_clock.c")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).args([&library, &source]);
        let output = cc.output().expect("cc is installed: Rust links with it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let driver = FakeNvml::install(folder).unwrap();
        let (offset, boot) = (folder.join("offset"), folder.join("stat"));
        std::fs::write(&offset, 0_i64.to_ne_bytes()).unwrap();
        let origin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let clock = scenario::Clock { origin_us: Some(u64::try_from(origin).unwrap()), ..scenario.clock };
        let scenario = Scenario { clock, ..scenario };
        driver.write(&scenario).unwrap();
        Clock { library, offset, boot, driver, scenario, now: 0 }
    }

    /// Sets all three. On a real machine all three change at once. Here they change one after the other, in an order in
    /// which no process ever seems to have started after it was measured.
    fn set(&mut self, seconds: i64, agent: &Agent) {
        let by = seconds - self.now;
        self.now = seconds;
        if by > 0 {
            self.move_clocks(by);
            self.move_boot(agent);
        } else {
            self.move_boot(agent);
            self.move_clocks(by);
        }
    }

    fn move_clocks(&mut self, by: i64) {
        // Written in place: the program maps the file, and would crash if it read the file while it is truncated.
        let file = std::fs::File::options().write(true).open(&self.offset).unwrap();
        file.write_all_at(&self.now.to_ne_bytes(), 0).unwrap();
        let origin = self.scenario.clock.origin_us.as_mut().unwrap();
        *origin = origin.checked_add_signed(by * 1_000_000).unwrap();
        self.driver.write(&self.scenario).unwrap();
    }

    fn move_boot(&self, agent: &Agent) {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")).unwrap();
        let moved = boot.parse::<i64>().unwrap() + self.now;
        let first = !self.boot.exists();
        std::fs::write(&self.boot, stat.replace(&format!("btime {boot}"), &format!("btime {moved}"))).unwrap();
        if first {
            let mut mount = Command::new("nsenter");
            mount.args(["-m", "-t", &agent.pid().to_string(), "mount", "--bind"]).arg(&self.boot).arg("/proc/stat");
            assert!(mount.status().unwrap().success());
        }
    }

    /// The time of the program's wall clock, in seconds since 1970.
    fn shows(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an hour")]
        let moved = self.now as f64;
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() + moved
    }
}

/// The lines of `gpu-steward usage --watch`.
struct Watch {
    child: Child,
    lines: Receiver<Value>,
}

impl Watch {
    fn start(agent: &Agent) -> Watch {
        let mut child = Command::new(BINARY)
            .args(["usage", "--watch", "-o", "json", "--usage-socket"])
            .arg(&agent.usage_socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Watch { child, lines }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every age in a document, with its path.
fn ages(value: &Value, path: &str, seen: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field.as_f64()) {
                    ("age_seconds", Some(age)) => seen.push((path.to_owned(), age)),
                    ("age_us", Some(age)) => seen.push((path.to_owned(), age / 1e6)),
                    _ => ages(field, &format!("{path}.{name}"), seen),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| ages(item, &format!("{path}[]"), seen)),
        _ => {}
    }
}

/// The values of the last check, and the subjects of the checks.
struct Checker<'a> {
    agent: &'a Agent,
    began: Instant,
    uid: &'a str,
    pid: u32,
    cpu_seconds: f64,
    checked: Instant,
    sequence: u64,
}

impl Checker<'_> {
    fn ages_are_plausible(&self, document: &Value, path: &str) {
        let mut seen = Vec::new();
        ages(document, path, &mut seen);
        assert!(seen.len() > 1, "no ages in {path}");
        let oldest = self.began.elapsed().as_secs_f64() + 1.0;
        for (path, age) in seen {
            assert!((0.0..oldest).contains(&age), "{path} is {age} s old");
        }
    }

    fn pod<'v>(&self, pods: &'v Value, key: &str) -> &'v Value {
        let found = pods.as_array().and_then(|pods| pods.iter().find(|pod| pod[key] == self.uid));
        found.unwrap_or_else(|| panic!("the pod is lost: {pods}\n{}", self.agent.log()))
    }

    /// Checks everything that the agent serves, once.
    fn check(&mut self, clock: &Clock, settled: bool) {
        for path in ["/api/v1/node", "/api/v1/gpus", "/api/v1/pods", "/api/v1/processes"] {
            let document = self.agent.get(path).json();
            self.ages_are_plausible(&document, path);
            let time = document["view"]["time_seconds"].as_f64().unwrap();
            assert!(!settled || (clock.shows() - time).abs() < 5.0, "{path}: {time}, and it is {}", clock.shows());
            match path {
                "/api/v1/node" => {
                    let cores = document["cpu_cores"]["value"].as_f64().unwrap_or_else(|| panic!("{document}"));
                    let processors = document["processors"]["value"].as_f64().unwrap();
                    assert!((0.0..processors + 0.5).contains(&cores), "{cores} of {processors} processors");
                }
                "/api/v1/gpus" => self.gpu(&document["gpus"][0]),
                "/api/v1/pods" => self.cpu(&document["pods"]),
                _ => {}
            }
        }
        let text = self.agent.get("/metrics/cadvisor").text();
        let seen = text.lines().filter(|line| line.starts_with("container_last_seen{") && line.contains(self.uid));
        let seen: Vec<f64> = seen.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(seen.len(), 2, "the pod and its container: {text}");
        let now = clock.shows();
        assert!(!settled || seen.iter().all(|seen| (now - seen).abs() < 5.0), "last seen {seen:?}, and it is {now}");
    }

    fn gpu(&self, gpu: &Value) {
        self.pod(&gpu["holders"], "pod_uid");
        assert_eq!(
            (&gpu["strangers"]["value"], &gpu["unattributed_memory_bytes"]["value"]),
            (&0.into(), &0.into()),
            "{gpu}"
        );
        let process = &gpu["processes"]["value"][0];
        assert_eq!((&process["pid"], &process["memory_used_bytes"]["value"]), (&self.pid.into(), &MEMORY.into()));
        for (what, reading) in [("process", &process["sm_ratio"]), ("GPU", &gpu["utilization_ratio"])] {
            let ratio = reading["value"].as_f64().unwrap_or_else(|| panic!("{what}: {reading}"));
            assert!((0.0..=1.0).contains(&ratio), "{what}: {ratio}");
        }
    }

    fn cpu(&mut self, pods: &Value) {
        let usage = &self.pod(pods, "uid")["usage"];
        let cores = usage["cpu_cores"]["value"].as_f64().unwrap_or_else(|| panic!("{usage}"));
        assert!((0.0..MOST_CORES).contains(&cores), "{cores} cores");
        let seconds = usage["cpu_seconds"]["value"].as_f64().unwrap();
        let used = seconds - self.cpu_seconds;
        // The value shown may be two seconds old.
        let most = MOST_CORES * (self.checked.elapsed().as_secs_f64() + 2.0);
        assert!((0.0..most).contains(&used), "{used} s of processor time since the last check");
        (self.cpu_seconds, self.checked) = (seconds, Instant::now());
    }

    fn usage(&mut self, watch: &Watch, clock: &Clock, settled: bool) {
        for state in watch.lines.try_iter() {
            self.ages_are_plausible(&state, "usage");
            self.pod(&state["gpus"][0]["pods"], "pod_uid");
            let sequence = state["sequence"].as_u64().unwrap();
            assert!(sequence > self.sequence, "{sequence} after {}", self.sequence);
            self.sequence = sequence;
            let made = state["made_at_us"].as_f64().unwrap() / 1e6;
            assert!(!settled || (clock.shows() - made).abs() < 5.0, "made at {made}, and it is {}", clock.shows());
        }
    }
}

/// The history is of the whole test, in order and without a gap, and its newest value is of now. Its times do not follow the jump:
/// they are those of the clock with which the program started, which is the machine's.
fn check_history(agent: &Agent, began: f64, what: &str) {
    let points = history(agent, "series=gpu/0/utilization&from=-5m&step=1s");
    let (Some(first), Some(last)) = (points.first(), points.last()) else { panic!("no history after the jump {what}") };
    let now = seconds();
    assert!((began - 2.0..now).contains(&first.0), "{what}: it begins {:.0} s ago", now - first.0);
    assert!((now - last.0).abs() < 5.0, "{what}: the newest value is {:.0} s old", now - last.0);
    assert!((last.0 - first.0) > CHECK_TIME.as_secs_f64() - 2.0, "{what}: {points:?}");
    assert!(points.iter().all(|(_, mean)| (mean - SM).abs() < 0.001), "{what}: {points:?}");
    let distances: Vec<f64> = points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(distances.iter().all(|distance| (0.5..4.0).contains(distance)), "{what}: {distances:?}");
}

/// Promise 24 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn a_wall_clock_that_jumps_an_hour_changes_no_age_rate_or_owner() {
    let folder = tempfile::tempdir().unwrap();
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let pod = pods.add(NUMBER, 1, &["sh", "-c", "while :; do :; done"]).unwrap();
    let (uid, pid) = (pod.uid.clone(), pod.containers[0].pid);
    let values = [(ReadingKind::UtilizationPercent, scenario::Value::Constant(100.0 * SM))].into();
    let gpu = FakeGpu { processes: vec![process(pid, MEMORY, 100.0 * SM)], values, ..fake_gpus("H100", 1) };
    let mut clock = Clock::build(folder.path(), Scenario { gpus: vec![gpu], ..Scenario::default() });
    let started = seconds();
    let agent = Agent::standalone(BINARY)
        .within("true")
        .env("LD_PRELOAD", &clock.library)
        .env("WALL_CLOCK_OFFSET", &clock.offset)
        .with("--nvml-library", clock.driver.library())
        .with("--slow-period", "1s")
        .with("--process-period", "1s")
        .start();
    eventually("the pod's use of the GPU and its rate", START, || {
        let shares = agent.get("/api/v1/gpus").json()["gpus"][0]["processes"]["value"][0]["sm_ratio"]["value"].as_f64();
        let pods = agent.get("/api/v1/pods").json();
        let pod = pods["pods"].as_array()?.iter().find(|pod| pod["uid"] == *uid)?;
        (shares? > 0.0 && pod["usage"]["cpu_cores"]["value"].as_f64()? > 0.1).then_some(())
    });
    let missed = |agent: &Agent| agent.get("/api/v1/node").json()["deadlines_missed"].as_u64().unwrap();
    let (missed_before, lines_before) = (missed(&agent), agent.log().lines().count());
    let watch = Watch::start(&agent);
    let began = Instant::now().checked_sub(START).unwrap_or_else(Instant::now);
    let mut checker = Checker { agent: &agent, began, uid: &uid, pid, cpu_seconds: 0.0, checked: began, sequence: 0 };
    checker.check(&clock, true);
    for (seconds, what) in [(3600, "ahead"), (0, "back"), (-3600, "further back")] {
        clock.set(seconds, &agent);
        let (jumped, sequence, mut checks) = (Instant::now(), checker.sequence, 0);
        while jumped.elapsed() < CHECK_TIME {
            // For one period the agent may show a view from before the jump.
            let settled = jumped.elapsed() > Duration::from_secs(3);
            checker.check(&clock, settled);
            checker.usage(&watch, &clock, settled);
            checks += 1;
            std::thread::sleep(PAUSE);
        }
        assert!(checker.sequence > sequence, "the stream has stopped after the jump {what}");
        println!("{what}: {checks} checks");
        check_history(&agent, started, what);
        let (gpus, node) = (agent.get("/api/v1/gpus").json(), agent.get("/api/v1/node").json());
        let sm = gpus["gpus"][0]["processes"]["value"][0]["sm_ratio"]["value"].as_f64().unwrap();
        assert!((sm - SM).abs() < 0.02, "{what}: {sm}");
        assert_eq!(gpus["gpus"][0]["utilization_ratio"]["value"].as_f64(), Some(SM), "{what}");
        assert_eq!(node["gpu_source"]["state"], "working", "{what}");
    }
    assert!(missed(&agent) <= missed_before + 5, "an hour of deadlines was not missed");
    drop(watch);
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    let warnings: Vec<&str> = ended.log.lines().skip(lines_before).filter(|line| !line.starts_with('I')).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}
