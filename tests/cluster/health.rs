//! GPUs that fall ill and come back, and GPUs that an operator cordons, through a real kubelet: the driver is our fake NVML
//! library, all else is real.

use crate::bed::{Bed, SOON, promised};
use crate::fleet;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::{
    CallFault, Code, FakeGpu, FakeNvml, ReadingKind, Scenario, Value as Number, Which, XidEvent, cards,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SLOTS: u32 = 4;
const CORDON: &str = "hami.io/device-cordon";

/// Three cards whose driver the test is.
struct Driver {
    fake: FakeNvml,
    scenario: Scenario,
    dir: tempfile::TempDir,
}

impl Driver {
    fn new() -> Driver {
        let dir = tempfile::tempdir().expect("a directory");
        let fake = FakeNvml::install(dir.path()).expect("the fake library was built");
        let scenario = Scenario { gpus: (0..3).map(|_| cards("H100", 1)).collect(), ..Scenario::default() };
        let mut driver = Driver { fake, scenario, dir };
        driver.change(|_| {});
        driver
    }

    fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        self.fake.write(&self.scenario).expect("the scenario is written");
    }

    fn card(&mut self, number: usize, change: impl FnOnce(&mut FakeGpu)) {
        self.change(|scenario| change(&mut scenario.gpus[number]));
    }

    fn xid(&mut self, gpu: u32, code: u64) {
        self.change(|scenario| {
            let id = scenario.xids.len() as u64 + 1;
            scenario.xids.push(XidEvent { id, gpu: Which::Place(gpu), code, event: 8, at_s: 0.0, mig: None });
        });
    }

    /// Device nodes that a container can be given: there is no driver that would have made any.
    fn nodes(&self) -> PathBuf {
        let dev = self.dir.path().join("dev");
        std::fs::create_dir(&dev).expect("a directory");
        for name in ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"] {
            make_null(&dev.join(name));
        }
        dev
    }

    fn agent(&self, bed: &Bed, more: &[&str]) -> Agent {
        let library = format!("--nvml-library={}", self.fake.library().display());
        let (dev, slots) = (format!("--dev-root={}", self.nodes().display()), format!("--split-count={SLOTS}"));
        bed.agent(&[&["--gpus=nvml", &library, &dev, &slots], more].concat())
    }
}

fn make_null(path: &Path) {
    let made = Command::new("mknod").arg(path).args(["c", "1", "3"]).status().expect("mknod can be run");
    assert!(made.success(), "{}", path.display());
}

fn allocatable(bed: &Bed, expected: u32) {
    eventually(&format!("{expected} allocatable GPUs"), SOON, || {
        let node = bed.told();
        (node["status"]["allocatable"]["nvidia.com/gpu"].as_str() == Some(&expected.to_string())).then_some(())
    });
}

/// The UUIDs that the Node's annotation calls healthy, in order.
fn registered_healthy(bed: &Bed) -> Option<Vec<String>> {
    let node = bed.told();
    let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
    let entries: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let healthy = entries.iter().filter(|entry| entry["health"] == true);
    Some(healthy.map(|entry| entry["id"].as_str().expect("a UUID").to_owned()).collect())
}

fn register_says(bed: &Bed, healthy: &[&String]) {
    eventually("the register annotation", SOON, || {
        (registered_healthy(bed)?.iter().collect::<Vec<_>>() == healthy).then_some(())
    });
}

/// How many events of this reason there are about an object whose note holds `words`.
fn events(bed: &Bed, namespace: &str, about: &str, reason: &str, words: &str) -> usize {
    let selector = format!("involvedObject.name={about},reason={reason}");
    let list = bed.admin.get(&["events", "-n", namespace, "--field-selector", &selector]);
    let items = list["items"].as_array().expect("a list");
    items.iter().filter(|event| event["message"].as_str().unwrap_or_default().contains(words)).count()
}

/// What must stay as it is while a container runs on: which one it is, and how often it was started.
fn life(bed: &Bed, pod: &str) -> (String, u64) {
    let pod = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    assert_eq!(pod["status"]["phase"], "Running", "{}", pod["status"]);
    let container = &pod["status"]["containerStatuses"][0];
    (container["containerID"].as_str().expect("an id").to_owned(), container["restartCount"].as_u64().expect("a count"))
}

fn metric(agent: &Agent, line: &str) {
    eventually(&format!("{line:?} in the metrics"), SOON, || {
        agent.get("/metrics").text().lines().any(|told| told == line).then_some(())
    });
}

/// Promise 33 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_sick_gpu_takes_its_own_slots_only_and_comes_back() {
    let bed = Bed::up("health");
    let mut driver = Driver::new();
    let agent = driver.agent(&bed, &["--health-quiet-period=3s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    bed.create(&bed.pod("beside", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.create(&bed.pod("on-it", &gpus, &[("main", "app", &[(1, 1000, 10)])], &Value::Null));
    bed.ready(&["beside", "on-it"]);
    let lives = [life(&bed, "beside"), life(&bed, "on-it")];
    let on_node = |words: &str, reason: &str| events(&bed, "default", bed.node(), reason, words);
    let on_pod = |pod: &str, reason: &str| events(&bed, &bed.space.name, pod, reason, &gpus[1]);
    let before = [on_node("XID 79", "GpuUnhealthy"), on_node(&gpus[1], "GpuHealthy")];

    // It falls off the bus, and the driver advises a reset, which stands until it is done.
    driver.card(1, |card| drop(card.values.insert(ReadingKind::RecoveryAction, Number::Constant(1.0))));
    driver.xid(1, 79);
    allocatable(&bed, 2 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[2]]);
    eventually("the event on the Node", SOON, || (on_node("XID 79", "GpuUnhealthy") > before[0]).then_some(()));
    eventually("the event on the pod", SOON, || (on_pod("on-it", "GpuUnhealthy") >= 2).then_some(()));
    metric(&agent, &format!("gpu_steward_gpu_incident{{gpu=\"1\",uuid=\"{}\",incident=\"xid_79\"}} 1", gpus[1]));
    metric(&agent, &format!("gpu_steward_plugin_claims{{uuid=\"{}\",healthy=\"false\"}} 1", gpus[1]));
    metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 3", gpus[1]));
    let told: Value = serde_json::from_str(&agent.get("/api/v1/gpus?gpu=1").text()).expect("JSON");
    let incidents: Vec<&str> = told["gpus"][0]["incidents"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["incident"].as_str())
        .collect();
    assert_eq!((incidents, &told["gpus"][0]["health"]), (vec!["xid_79", "advised_reset_gpu"], &json!("unhealthy")));
    // Its neighbours take new work meanwhile.
    bed.create(&bed.pod("new", &gpus, &[("main", "app", &[(2, 1000, 10)])], &Value::Null));
    bed.ready(&["new"]);

    // It was reset.
    driver.card(1, |card| drop(card.values.remove(&ReadingKind::RecoveryAction)));
    allocatable(&bed, 3 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    eventually("the event of the way back", SOON, || (on_node(&gpus[1], "GpuHealthy") > before[1]).then_some(()));
    eventually("the same on the pod", SOON, || (on_pod("on-it", "GpuHealthy") == 1).then_some(()));
    assert_eq!(on_node("XID 79", "GpuUnhealthy"), before[0] + 1, "once");
    assert_eq!(on_pod("on-it", "GpuUnhealthy"), 2, "the error and the advice, once each");
    assert_eq!([on_pod("beside", "GpuUnhealthy"), on_pod("beside", "GpuHealthy")], [0, 0]);

    // An application's own error condemns nothing.
    driver.xid(0, 31);
    metric(&agent, &format!("gpu_steward_gpu_xids_total{{gpu=\"0\",uuid=\"{}\",xid=\"31\"}} 1", gpus[0]));
    metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 0", gpus[0]));

    // One that is lost, and back.
    driver.card(2, |card| card.lost = true);
    allocatable(&bed, 2 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1]]);
    driver.card(2, |card| card.lost = false);
    allocatable(&bed, 3 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    assert_eq!([life(&bed, "beside"), life(&bed, "on-it")], lives, "what runs was not touched");
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn which_xids_are_fatal_is_said_by_the_operator() {
    let bed = Bed::up("fatal-xids");
    let mut driver = Driver::new();
    let agent = driver.agent(&bed, &["--fatal-xids=94", "--health-quiet-period=25s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    // Fatal unless somebody says otherwise.
    driver.xid(0, 79);
    metric(&agent, &format!("gpu_steward_gpu_xids_total{{gpu=\"0\",uuid=\"{}\",xid=\"79\"}} 1", gpus[0]));
    driver.xid(1, 94);
    allocatable(&bed, 2 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[2]]);
    allocatable(&bed, 3 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
}

/// An error of an application, which condemns nothing: the kernel log names its process, and the pod's owner is told.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_driver_error_is_an_event_on_the_pod_whose_process_it_names() {
    let bed = Bed::up("driver-error");
    let driver = Driver::new();
    let log = driver.dir.path().join("kmsg");
    std::fs::write(&log, "").expect("a file");
    let agent = driver.agent(&bed, &[&format!("--kernel-log={}", log.display()), "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("trains", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["trains"]);
    let (container, _) = life(&bed, "trains");
    let pod = bed.admin.get(&["pod", "trains", "-n", &bed.space.name]);
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let id = container.rsplit('/').next().expect("an id");
    let folder = fleet::process(&bed.place().cgroup, uid, id).expect("a process of the container");
    let pid = folder.file_name().and_then(|name| name.to_str()).expect("a PID");
    let known: Value = serde_json::from_str(&agent.get("/api/v1/gpus?gpu=0").text()).expect("JSON");
    let place = known["gpus"][0]["pci_bus_id"]["value"].as_str().expect("a PCI slot");
    let place = place[4..].trim_end_matches(".0");
    let line = format!("4,1,1,-;NVRM: Xid (PCI:{place}): 31, pid={pid}, name=sleep, Ch 00000008\n");
    let mut kernel = std::fs::File::options().append(true).open(&log).expect("the file");
    eventually("the event on the pod", SOON, || {
        // The agent joins a process to its pod by its last look at the processes, which may be before this one began.
        std::io::Write::write_all(&mut kernel, line.as_bytes()).expect("a line");
        std::thread::sleep(Duration::from_secs(1));
        (events(&bed, &bed.space.name, "trains", "GpuDriverError", "31") == 1).then_some(())
    });
    allocatable(&bed, 3 * SLOTS);
}

/// Memory that fails: an error that was not corrected, a row that waits for its reset, a row that could not be remapped.
#[test]
#[ignore = "needs cluster: tests/run"]
fn memory_errors_and_rows_that_fail_condemn_their_gpu_and_it_comes_back() {
    let bed = Bed::up("memory-errors");
    let mut driver = Driver::new();
    driver.card(1, |card| drop(card.values.insert(ReadingKind::EccVolatileUncorrected, Number::Constant(3.0))));
    // An error that is over condemns for so long, in which all who tell of it have looked: each does every 10 s.
    let agent = driver.agent(&bed, &["--health-quiet-period=25s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    // Errors of a time before the agent condemn nothing.
    allocatable(&bed, 3 * SLOTS);
    register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    bed.create(&bed.pod("on-it", &gpus, &[("main", "app", &[(1, 1000, 10)])], &Value::Null));
    bed.ready(&["on-it"]);
    let before = life(&bed, "on-it");
    let incidents: [(ReadingKind, f64, &str, &str); 3] = [
        (ReadingKind::EccVolatileUncorrected, 4.0, "ecc_uncorrected", "ECC errors"),
        (ReadingKind::RemappedPending, 1.0, "row_remap_pending", "waits for a reset"),
        (ReadingKind::RemappedFailed, 1.0, "row_remap_failed", "could not be remapped"),
    ];
    for (quantity, value, code, words) in incidents {
        let told = |about: &str, namespace: &str, reason: &str| events(&bed, namespace, about, reason, words);
        let (on_node, on_pod) =
            (told(bed.node(), "default", "GpuUnhealthy"), told("on-it", &bed.space.name, "GpuUnhealthy"));
        driver.card(1, |card| drop(card.values.insert(quantity, Number::Constant(value))));
        allocatable(&bed, 2 * SLOTS);
        register_says(&bed, &[&gpus[0], &gpus[2]]);
        metric(&agent, &format!("gpu_steward_gpu_incident{{gpu=\"1\",uuid=\"{}\",incident=\"{code}\"}} 1", gpus[1]));
        metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 3", gpus[1]));
        eventually(&format!("the event of {code} on the Node"), SOON, || {
            (told(bed.node(), "default", "GpuUnhealthy") > on_node).then_some(())
        });
        eventually(&format!("the event of {code} on the pod"), SOON, || {
            (told("on-it", &bed.space.name, "GpuUnhealthy") > on_pod).then_some(())
        });
        // A counter stays where it is and the quiet period is over; a row is remapped by a reset.
        if quantity != ReadingKind::EccVolatileUncorrected {
            driver.card(1, |card| drop(card.values.remove(&quantity)));
        }
        allocatable(&bed, 3 * SLOTS);
        register_says(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    }
    assert_eq!(life(&bed, "on-it"), before, "what runs was not touched");
}

/// A container could not open what has no known node.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_gpu_whose_device_node_is_not_known_is_not_offered_until_it_is() {
    let bed = Bed::up("no-node");
    let mut driver = Driver::new();
    let call = "nvmlDeviceGetMinorNumber".into();
    let fault = CallFault { call, gpu: Some(Which::Place(1)), error: Some(Code::UNKNOWN), ..CallFault::default() };
    driver.change(|scenario| scenario.faults.push(fault));
    let agent = driver.agent(&bed, &[]);
    allocatable(&bed, 2 * SLOTS);
    agent.logs("a GPU is not offered: its device node is not known");
    driver.change(|scenario| scenario.faults.clear());
    allocatable(&bed, 3 * SLOTS);
}

/// An operator's cordon: no new containers, what runs stays, and a typing error gives nothing away.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_cordoned_gpu_gets_no_new_containers_and_keeps_what_it_has() {
    let bed = Bed::up("cordon");
    let driver = Driver::new();
    let agent = driver.agent(&bed, &["--without-claim=share"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    bed.create(&bed.pod("there", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["there"]);
    let before = life(&bed, "there");
    let cordon = |value: &str| {
        let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &format!("{CORDON}={value}")]).ok();
    };
    cordon(&format!(" {}, ", gpus[0]));
    allocatable(&bed, 3 * SLOTS - (SLOTS - 1));
    metric(&agent, &format!("gpu_steward_plugin_cordoned{{uuid=\"{}\"}} 1", gpus[0]));
    metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"used\"}} 1", gpus[0]));
    // Nobody placed these, so kubelet's own choice decides: none of them comes to the cordoned card.
    for name in ["one", "two", "three"] {
        bed.create(&bed.bare_pod(name, &[("main", "app", &[(1, 0, 0)])], &Value::Null));
    }
    bed.ready(&["one", "two", "three"]);
    for name in ["one", "two", "three"] {
        let limits = bed.limits(name, "main");
        assert!(promised(&limits).iter().all(|(gpu, _)| *gpu != gpus[0]), "{name}: {limits}");
    }
    cordon("GPU x");
    agent.logs("cannot read which GPUs are cordoned");
    metric(&agent, &format!("gpu_steward_plugin_cordoned{{uuid=\"{}\"}} 1", gpus[0]));
    let _ = bed.admin.run(&["annotate", "node", bed.node(), &format!("{CORDON}-")]).ok();
    allocatable(&bed, 3 * SLOTS);
    assert_eq!(life(&bed, "there"), before, "what runs was not touched");
}
