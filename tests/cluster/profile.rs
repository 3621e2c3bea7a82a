//! Tests what a Node shows of the load of its GPUs, as people look at it with `kubectl describe`. Only the driver is the fake NVML
//! library.

use crate::audit;
use crate::bed::{Bed, SOON};
use crate::built::binary;
use crate::container::device_nodes;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::{Churn, FakeGpu, FakeNvml, Program, ReadingKind, Scenario, Value as Number, process};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a cyclic load may run before the Node shows it, and how long the Node may show it after its end.
const SHOWN_WITHIN: Duration = Duration::from_secs(180);
const ENDED_WITHIN: Duration = Duration::from_secs(240);
/// A key of Alnair's device plugin, which no agent writes.
const FOREIGN: &str = "ai.centaurus.io/physical-gpu-count";
const DOMAIN: &str = "ai.centaurus.io/";
const PROFILE: &str = "gpu-steward.io/gpu-";
/// The commands with which people look at Alnair's annotations, after `kubectl describe`: that of Alnair's documentation, and the one
/// that also shows long values (docs/decisions/0200).
const KEYS: &str = "grep ai.centaurus.io";
const KEYS_AND_VALUES: &str = "grep -A1 ai.centaurus.io";
/// The process of each GPU. Its number is far above those of the processes of this machine.
const PID: u32 = 3_999_999;

/// GPUs whose loads the test sets.
struct Driver {
    fake: FakeNvml,
    dev: PathBuf,
    _folder: tempfile::TempDir,
}

impl Driver {
    fn new(loads: &[Number]) -> Driver {
        let folder = tempfile::tempdir().expect("a directory");
        let fake = FakeNvml::install(folder.path()).expect("the fake library");
        let dev = device_nodes(folder.path(), &["nvidia0", "nvidia1", "nvidia2", "nvidiactl"]);
        let driver = Driver { fake, dev, _folder: folder };
        driver.load(loads, None);
        driver
    }

    /// Sets the load of each GPU, with one process, and processes that start and end on each.
    fn load(&self, loads: &[Number], churn: Option<&Churn>) {
        let gpu = |load: &Number| FakeGpu {
            values: [ReadingKind::UtilizationPercent, ReadingKind::MemoryCopyPercent]
                .map(|kind| (kind, load.clone()))
                .into(),
            processes: vec![process(PID, 1 << 30, 50.0)],
            churn: churn.cloned(),
            ..FakeGpu::default()
        };
        let scenario = Scenario { gpus: loads.iter().map(gpu).collect(), ..Scenario::default() };
        self.fake.write(&scenario).expect("a scenario");
    }

    fn agent(&self, bed: &Bed) -> Agent {
        let library = format!("--nvml-library={}", self.fake.library().display());
        bed.agent(&[
            "--workload-profiles=on",
            "--gpus=nvml",
            &library,
            &format!("--dev-root={}", self.dev.display()),
            "--process-period=1s",
        ])
    }
}

/// Cycles of this length.
fn cycles(period_s: f64) -> Number {
    Number::Program(Program::Square { low: 5.0, high: 95.0, period_s, duty: 0.5, phase_s: 0.0 })
}

/// Removes what agents wrote on the Node.
fn clean_node(bed: &Bed) {
    let output = Command::new(binary())
        .args(["clean-node", bed.node(), "--kubeconfig"])
        .arg(bed.kubeconfig())
        .output()
        .expect("the program can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What people see of Alnair's annotations.
fn described(bed: &Bed, filter: &str) -> String {
    let status = bed.cluster.status();
    let path = format!("{}:{}", status.programs, std::env::var("PATH").unwrap_or_default());
    let script = format!("kubectl describe node \"$0\" | {filter}");
    let output = Command::new("bash")
        .args(["-c", &script, bed.node()])
        .env("PATH", path)
        .env("KUBECONFIG", &status.kubeconfig)
        .output()
        .expect("bash can be run");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What the Node shows of the first GPU.
#[derive(Debug)]
struct ShownLoad {
    job: String,
    cyclic: bool,
    period: Option<f64>,
}

fn shown_load(text: &str) -> Option<ShownLoad> {
    let after = |words: &str| text.split_once(words).map(|(_, rest)| rest);
    Some(ShownLoad {
        job: after("ai.centaurus.io/GPU-0-job-type: ")?.split_whitespace().next()?.to_owned(),
        cyclic: after("'cyclic_pattern': ")?.starts_with("True"),
        period: after("'period': '").and_then(|rest| rest.split('\'').next()?.parse().ok()),
    })
}

/// The keys on the Node about the load of GPUs, except [`FOREIGN`].
fn keys(bed: &Bed) -> Vec<String> {
    let node = bed.node_object();
    let all = node["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key.clone());
    all.filter(|key| (key.starts_with(DOMAIN) || key.starts_with(PROFILE)) && key != FOREIGN).collect()
}

/// The times of the minutes in the agent's history of the first GPU.
fn minutes(agent: &Agent) -> Vec<String> {
    let answer = agent.get("/api/v1/history?series=gpu/0/memory_copy&step=1m");
    let Ok(document) = serde_json::from_str::<Value>(&answer.text()) else { return Vec::new() };
    let points = document["points"].as_array().into_iter().flatten();
    points.filter_map(|point| point["time"].as_str().map(str::to_owned)).collect()
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_cyclic_load_is_shown_on_its_node_until_it_ends() {
    let bed = Bed::up("profile");
    clean_node(&bed);
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &format!("{FOREIGN}=1")]).ok();
    let driver = Driver::new(&[cycles(6.0)]);
    let agent = driver.agent(&bed);
    let found = eventually("the cyclic pattern on the Node", SHOWN_WITHIN, || {
        shown_load(&described(&bed, KEYS_AND_VALUES)).filter(|load| load.job == "DLT" && load.cyclic)
    });
    println!("{}", described(&bed, KEYS_AND_VALUES));
    let short = described(&bed, KEYS);
    assert!(short.contains("ai.centaurus.io/GPU-0-job-type: DLT"), "{short}");
    assert!(short.contains("ai.centaurus.io/gpu-0:") && !short.contains("cyclic_pattern"), "{short}");
    assert!(found.period.is_some_and(|samples| (5.7..=6.3).contains(&samples)), "{found:?}");
    let node = bed.node_object();
    let text = |key: &str| node["metadata"]["annotations"][format!("{DOMAIN}{key}")].as_str().map(str::to_owned);
    let facts = "{'count': '1', 'model': 'NVIDIA H100 80GB HBM3', 'mem_size': '80GB', 'pcie_gen_width': '5x16'}";
    assert_eq!(text("gpu-static").as_deref(), Some(facts));
    assert_eq!(text("GPU-0-mem-util-max").as_deref(), Some("95"));

    // Another process of the agent: what the Node shows stays, and the history goes on.
    let before = eventually("a minute of history", SOON, || minutes(&agent).first().cloned());
    let ended = agent.terminate();
    assert!(ended.status.success(), "{}", ended.log);
    let agent = driver.agent(&bed);
    eventually("the history from before the restart", SOON, || minutes(&agent).contains(&before).then_some(()));
    let load = shown_load(&described(&bed, KEYS_AND_VALUES)).expect("the load of the GPU");
    assert!(load.job == "DLT" && load.cyclic, "{load:?}");

    driver.load(&[Number::Constant(0.0)], None);
    eventually("the end of the load on the Node", ENDED_WITHIN, || {
        shown_load(&described(&bed, KEYS_AND_VALUES)).filter(|load| load.job == "Empty" && !load.cyclic)
    });
    assert!(!keys(&bed).contains(&format!("{DOMAIN}GPU-0-mem-util-max")), "{:?}", keys(&bed));

    assert!(agent.terminate().status.success());
    assert!(!keys(&bed).is_empty());
    clean_node(&bed);
    assert_eq!(keys(&bed), Vec::<String>::new());
    assert_eq!(bed.node_object()["metadata"]["annotations"][FOREIGN], "1");
    let _ = bed.admin.run(&["annotate", "node", bed.node(), &format!("{FOREIGN}-")]).ok();
}

/// The writes of the agent on its Node in this time.
fn writes_in(bed: &Bed, agent: &Agent, span: Duration) -> usize {
    let (from, end) = (audit::end(&bed.cluster), Instant::now() + span);
    while Instant::now() < end {
        assert_eq!(agent.get("/healthz").status, 200);
        std::thread::sleep(Duration::from_secs(1));
    }
    let writes = audit::writes_since(bed, from);
    println!("{} writes in {} s: {writes:#?}", writes.len(), span.as_secs());
    assert!(writes.iter().all(|write| write.resource() == "nodes"), "{writes:#?}");
    writes.len()
}

/// An agent may write this often in an hour without anything to say about loads (promise 31 in docs/specification.md).
const HANDSHAKES: usize = 16;

/// Loads that repeat, slowly and fast, and one that does not change.
fn steady_loads() -> [Number; 3] {
    let slow = Number::Program(Program::Sine { low: 30.0, high: 90.0, period_s: 47.3, phase_s: 0.0 });
    [cycles(6.0), slow, Number::Constant(80.0)]
}

/// An agent whose Node shows the kind of job of each GPU.
fn agent_that_shows_jobs(bed: &Bed, driver: &Driver) -> Agent {
    clean_node(bed);
    let agent = driver.agent(bed);
    eventually("the kind of job of each GPU", SHOWN_WITHIN, || {
        let shown = |gpu: usize| keys(bed).contains(&format!("{DOMAIN}GPU-{gpu}-job-type"));
        (0..steady_loads().len()).all(shown).then_some(())
    });
    agent
}

/// Loads that stay as they are cost at most six writes an hour.
#[test]
#[ignore = "takes 36 minutes and a cluster: tests/run --long"]
fn steady_loads_cost_six_writes_an_hour() {
    let bed = Bed::up("profile-steady");
    let driver = Driver::new(&steady_loads());
    let agent = agent_that_shows_jobs(&bed, &driver);
    // The verdicts on ten minutes come later, each once.
    let _ = writes_in(&bed, &agent, Duration::from_secs(15 * 60));
    let writes = writes_in(&bed, &agent, Duration::from_secs(20 * 60));
    assert!(writes <= (HANDSHAKES + 6) / 3, "{writes}");
}

/// An hour in which processes start and end all the time costs at most thirty writes, and what waits is counted.
#[test]
#[ignore = "takes 62 minutes and a cluster: tests/run --long"]
fn any_load_costs_thirty_writes_an_hour() {
    let bed = Bed::up("profile-churn");
    let driver = Driver::new(&steady_loads());
    let agent = agent_that_shows_jobs(&bed, &driver);
    let churn = Churn { from_pid: 4_000_000, live: 3, per_second: 2.0, memory: 1 << 30, sm: 5 };
    driver.load(&steady_loads(), Some(&churn));
    let writes = writes_in(&bed, &agent, Duration::from_secs(60 * 60));
    assert!(writes <= HANDSHAKES + 30 && writes > HANDSHAKES, "{writes}");
    let metrics = agent.get("/metrics").text();
    assert!(metrics.contains("gpu_steward_troubles_total{kind=\"profile_write_delayed\"}"), "what waits is counted");
}
