//! Tests GPUs that become unfit and recover, and GPUs that an administrator cordons, through a real kubelet. Only the
//! driver is the fake NVML library.

use crate::bed::{Bed, SOON, devices_in};
use crate::fleet;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::{
    CallFault, Code, FakeGpu, FakeNvml, ReadingKind, Scenario, Value as Number, Which, XidEvent, fake_gpus,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SLOTS: u32 = 4;
const CORDON: &str = "hami.io/device-cordon";

/// Three GPUs whose driver the test controls.
struct Driver {
    fake: FakeNvml,
    scenario: Scenario,
    dir: tempfile::TempDir,
}

impl Driver {
    fn new() -> Driver {
        let dir = tempfile::tempdir().expect("a directory");
        let fake = FakeNvml::install(dir.path()).expect("the fake library was built");
        let scenario = Scenario { gpus: (0..3).map(|_| fake_gpus("H100", 1)).collect(), ..Scenario::default() };
        let mut driver = Driver { fake, scenario, dir };
        driver.change(|_| {});
        driver
    }

    fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        self.fake.write(&self.scenario).expect("the scenario is written");
    }

    fn gpu(&mut self, number: usize, change: impl FnOnce(&mut FakeGpu)) {
        self.change(|scenario| change(&mut scenario.gpus[number]));
    }

    fn xid(&mut self, gpu: u32, code: u64) {
        self.change(|scenario| {
            let id = scenario.xids.len() as u64 + 1;
            scenario.xids.push(XidEvent { id, gpu: Which::Place(gpu), code, event: 8, at_s: 0.0, mig: None });
        });
    }

    /// Creates device nodes for containers, because there is no driver to create them.
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
        let node = bed.node_object();
        (node["status"]["allocatable"]["nvidia.com/gpu"].as_str() == Some(&expected.to_string())).then_some(())
    });
}

/// The UUIDs that the register on the Node shows as healthy, in order.
fn registered_healthy(bed: &Bed) -> Option<Vec<String>> {
    let node = bed.node_object();
    let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
    let entries: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let healthy = entries.iter().filter(|entry| entry["health"] == true);
    Some(healthy.map(|entry| entry["id"].as_str().expect("a UUID").to_owned()).collect())
}

fn wait_for_register(bed: &Bed, healthy: &[&String]) {
    eventually("the register annotation", SOON, || {
        (registered_healthy(bed)?.iter().collect::<Vec<_>>() == healthy).then_some(())
    });
}

/// The number of events about an object with this reason whose message contains `words`.
fn events(bed: &Bed, namespace: &str, about: &str, reason: &str, words: &str) -> usize {
    let selector = format!("involvedObject.name={about},reason={reason}");
    let list = bed.admin.get(&["events", "-n", namespace, "--field-selector", &selector]);
    let items = list["items"].as_array().expect("a list");
    items.iter().filter(|event| event["message"].as_str().unwrap_or_default().contains(words)).count()
}

/// The container id and restart count of a pod, which must not change while a container runs on.
fn container_life(bed: &Bed, pod: &str) -> (String, u64) {
    let pod = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    assert_eq!(pod["status"]["phase"], "Running", "{}", pod["status"]);
    let container = &pod["status"]["containerStatuses"][0];
    (container["containerID"].as_str().expect("an id").to_owned(), container["restartCount"].as_u64().expect("a count"))
}

fn wait_for_metric(agent: &Agent, line: &str) {
    eventually(&format!("{line:?} in the metrics"), SOON, || {
        agent.get("/metrics").text().lines().any(|found| found == line).then_some(())
    });
}

/// Promise 33 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_unfit_gpu_loses_only_its_own_slots_and_recovers() {
    let bed = Bed::up("health");
    let mut driver = Driver::new();
    let agent = driver.agent(&bed, &["--health-quiet-period=3s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    bed.create(&bed.pod("beside", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.create(&bed.pod("on-it", &gpus, &[("main", "app", &[(1, 1000, 10)])], &Value::Null));
    bed.ready(&["beside", "on-it"]);
    let lives = [container_life(&bed, "beside"), container_life(&bed, "on-it")];
    let on_node = |words: &str, reason: &str| events(&bed, "default", bed.node(), reason, words);
    let on_pod = |pod: &str, reason: &str| events(&bed, &bed.space.name, pod, reason, &gpus[1]);
    let before = [on_node("XID 79", "GpuUnhealthy"), on_node(&gpus[1], "GpuHealthy")];

    // The GPU falls off the bus, and the driver advises a reset until the reset is done.
    driver.gpu(1, |gpu| drop(gpu.values.insert(ReadingKind::RecoveryAction, Number::Constant(1.0))));
    driver.xid(1, 79);
    allocatable(&bed, 2 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[2]]);
    eventually("the event on the Node", SOON, || (on_node("XID 79", "GpuUnhealthy") > before[0]).then_some(()));
    eventually("the event on the pod", SOON, || (on_pod("on-it", "GpuUnhealthy") >= 2).then_some(()));
    wait_for_metric(
        &agent,
        &format!("gpu_steward_gpu_incident{{gpu=\"1\",uuid=\"{}\",incident=\"xid_79\"}} 1", gpus[1]),
    );
    wait_for_metric(&agent, &format!("gpu_steward_plugin_claims{{uuid=\"{}\",healthy=\"false\"}} 1", gpus[1]));
    wait_for_metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 3", gpus[1]));
    let answer: Value = serde_json::from_str(&agent.get("/api/v1/gpus?gpu=1").text()).expect("JSON");
    let incidents: Vec<&str> = answer["gpus"][0]["incidents"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["incident"].as_str())
        .collect();
    assert_eq!((incidents, &answer["gpus"][0]["health"]), (vec!["xid_79", "advised_reset_gpu"], &json!("unhealthy")));
    // In the meantime the other GPUs take new pods.
    bed.create(&bed.pod("new", &gpus, &[("main", "app", &[(2, 1000, 10)])], &Value::Null));
    bed.ready(&["new"]);

    // The GPU was reset.
    driver.gpu(1, |gpu| drop(gpu.values.remove(&ReadingKind::RecoveryAction)));
    allocatable(&bed, 3 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    eventually("the event of the recovery", SOON, || (on_node(&gpus[1], "GpuHealthy") > before[1]).then_some(()));
    eventually("the event of the recovery on the pod", SOON, || (on_pod("on-it", "GpuHealthy") == 1).then_some(()));
    assert_eq!(on_node("XID 79", "GpuUnhealthy"), before[0] + 1, "once");
    assert_eq!(on_pod("on-it", "GpuUnhealthy"), 2, "one event for the error and one for the advice");
    assert_eq!([on_pod("beside", "GpuUnhealthy"), on_pod("beside", "GpuHealthy")], [0, 0]);

    // An error of an application makes no GPU unfit.
    driver.xid(0, 31);
    wait_for_metric(&agent, &format!("gpu_steward_gpu_xids_total{{gpu=\"0\",uuid=\"{}\",xid=\"31\"}} 1", gpus[0]));
    wait_for_metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 0", gpus[0]));

    // A GPU that is lost and returns.
    driver.gpu(2, |gpu| gpu.lost = true);
    allocatable(&bed, 2 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1]]);
    driver.gpu(2, |gpu| gpu.lost = false);
    allocatable(&bed, 3 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    assert_eq!(
        [container_life(&bed, "beside"), container_life(&bed, "on-it")],
        lives,
        "the running container was not restarted"
    );
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn the_flag_fatal_xids_replaces_the_fatal_xids() {
    let bed = Bed::up("fatal-xids");
    let mut driver = Driver::new();
    let agent = driver.agent(&bed, &["--fatal-xids=94", "--health-quiet-period=25s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    // XID 79 is fatal by default, but not with this flag.
    driver.xid(0, 79);
    wait_for_metric(&agent, &format!("gpu_steward_gpu_xids_total{{gpu=\"0\",uuid=\"{}\",xid=\"79\"}} 1", gpus[0]));
    driver.xid(1, 94);
    allocatable(&bed, 2 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[2]]);
    allocatable(&bed, 3 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
}

/// An error of an application makes no GPU unfit. The kernel log names the process, and the pod gets an event.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_driver_error_is_an_event_on_the_pod_of_the_process_that_it_names() {
    let bed = Bed::up("driver-error");
    let driver = Driver::new();
    let log = driver.dir.path().join("kmsg");
    std::fs::write(&log, "").expect("a file");
    let agent = driver.agent(&bed, &[&format!("--kernel-log={}", log.display()), "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("trains", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["trains"]);
    let (container, _) = container_life(&bed, "trains");
    let pod = bed.admin.get(&["pod", "trains", "-n", &bed.space.name]);
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let id = container.rsplit('/').next().expect("an id");
    let folder = fleet::process(&bed.paths().cgroup, uid, id).expect("a process of the container");
    let pid = folder.file_name().and_then(|name| name.to_str()).expect("a PID");
    let known: Value = serde_json::from_str(&agent.get("/api/v1/gpus?gpu=0").text()).expect("JSON");
    let bus_id = known["gpus"][0]["pci_bus_id"]["value"].as_str().expect("a PCI slot");
    let bus_id = bus_id[4..].trim_end_matches(".0");
    let line = format!("4,1,1,-;NVRM: Xid (PCI:{bus_id}): 31, pid={pid}, name=sleep, Ch 00000008\n");
    let mut kernel = std::fs::File::options().append(true).open(&log).expect("the file");
    eventually("the event on the pod", SOON, || {
        // The agent looks up the pod of a process in its last list of processes, which may be older than this process.
        std::io::Write::write_all(&mut kernel, line.as_bytes()).expect("a line");
        std::thread::sleep(Duration::from_secs(1));
        (events(&bed, &bed.space.name, "trains", "GpuDriverError", "31") == 1).then_some(())
    });
    allocatable(&bed, 3 * SLOTS);
}

/// Failing memory: an uncorrected error, a row that waits for a reset, and a row that could not be remapped.
#[test]
#[ignore = "needs cluster: tests/run"]
fn memory_errors_and_failed_rows_make_their_gpu_unfit_until_it_recovers() {
    let bed = Bed::up("memory-errors");
    let mut driver = Driver::new();
    driver.gpu(1, |gpu| drop(gpu.values.insert(ReadingKind::EccVolatileUncorrected, Number::Constant(3.0))));
    // After an error without a pending reset the GPU is unfit for the quiet period. It is longer than the 10 s between
    // two readings of each source.
    let agent = driver.agent(&bed, &["--health-quiet-period=25s", "--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    // Errors from before the start of the agent make no GPU unfit.
    allocatable(&bed, 3 * SLOTS);
    wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    bed.create(&bed.pod("on-it", &gpus, &[("main", "app", &[(1, 1000, 10)])], &Value::Null));
    bed.ready(&["on-it"]);
    let before = container_life(&bed, "on-it");
    let incidents: [(ReadingKind, f64, &str, &str); 3] = [
        (ReadingKind::EccVolatileUncorrected, 4.0, "ecc_uncorrected", "ECC errors"),
        (ReadingKind::RemappedPending, 1.0, "row_remap_pending", "waits for a reset"),
        (ReadingKind::RemappedFailed, 1.0, "row_remap_failed", "could not be remapped"),
    ];
    for (quantity, value, code, words) in incidents {
        let count = |about: &str, namespace: &str, reason: &str| events(&bed, namespace, about, reason, words);
        let (on_node, on_pod) =
            (count(bed.node(), "default", "GpuUnhealthy"), count("on-it", &bed.space.name, "GpuUnhealthy"));
        driver.gpu(1, |gpu| drop(gpu.values.insert(quantity, Number::Constant(value))));
        allocatable(&bed, 2 * SLOTS);
        wait_for_register(&bed, &[&gpus[0], &gpus[2]]);
        wait_for_metric(
            &agent,
            &format!("gpu_steward_gpu_incident{{gpu=\"1\",uuid=\"{}\",incident=\"{code}\"}} 1", gpus[1]),
        );
        wait_for_metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"unhealthy\"}} 3", gpus[1]));
        eventually(&format!("the event of {code} on the Node"), SOON, || {
            (count(bed.node(), "default", "GpuUnhealthy") > on_node).then_some(())
        });
        eventually(&format!("the event of {code} on the pod"), SOON, || {
            (count("on-it", &bed.space.name, "GpuUnhealthy") > on_pod).then_some(())
        });
        // The error counter does not fall, but the quiet period ends. A row is remapped by a reset.
        if quantity != ReadingKind::EccVolatileUncorrected {
            driver.gpu(1, |gpu| drop(gpu.values.remove(&quantity)));
        }
        allocatable(&bed, 3 * SLOTS);
        wait_for_register(&bed, &[&gpus[0], &gpus[1], &gpus[2]]);
    }
    assert_eq!(container_life(&bed, "on-it"), before, "the running container was not restarted");
}

/// A GPU whose device node is unknown is not offered, because a container could not open it.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_gpu_is_offered_only_once_its_device_node_is_known() {
    let bed = Bed::up("no-node");
    let mut driver = Driver::new();
    let call = "nvmlDeviceGetMinorNumber".into();
    let fault = CallFault { call, gpu: Some(Which::Place(1)), error: Some(Code::UNKNOWN), ..CallFault::default() };
    driver.change(|scenario| scenario.faults.push(fault));
    let agent = driver.agent(&bed, &[]);
    allocatable(&bed, 2 * SLOTS);
    agent.logs("is not offered: its device node is not known");
    driver.change(|scenario| scenario.faults.clear());
    allocatable(&bed, 3 * SLOTS);
}

/// An administrator's cordon: no new containers, running containers stay, and a typing error does not remove the cordon.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_cordoned_gpu_gets_no_new_containers_and_keeps_its_running_ones() {
    let bed = Bed::up("cordon");
    let driver = Driver::new();
    let agent = driver.agent(&bed, &["--without-claim=share"]);
    let gpus = Bed::gpus(&agent);
    allocatable(&bed, 3 * SLOTS);
    bed.create(&bed.pod("there", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["there"]);
    let before = container_life(&bed, "there");
    let cordon = |value: &str| {
        let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &format!("{CORDON}={value}")]).ok();
    };
    cordon(&format!(" {}, ", gpus[0]));
    allocatable(&bed, 3 * SLOTS - (SLOTS - 1));
    wait_for_metric(&agent, &format!("gpu_steward_plugin_cordoned{{uuid=\"{}\"}} 1", gpus[0]));
    wait_for_metric(&agent, &format!("gpu_steward_plugin_slots{{uuid=\"{}\",state=\"used\"}} 1", gpus[0]));
    // These pods have no claim, so the kubelet chooses: it gives the cordoned GPU to none of them.
    for name in ["one", "two", "three"] {
        bed.create(&bed.bare_pod(name, &[("main", "app", &[(1, 0, 0)])], &Value::Null));
    }
    bed.ready(&["one", "two", "three"]);
    for name in ["one", "two", "three"] {
        let limits = bed.limits(name, "main");
        assert!(devices_in(&limits).iter().all(|(gpu, _)| *gpu != gpus[0]), "{name}: {limits}");
    }
    cordon("GPU x");
    agent.logs("cannot read which GPUs are cordoned");
    wait_for_metric(&agent, &format!("gpu_steward_plugin_cordoned{{uuid=\"{}\"}} 1", gpus[0]));
    let _ = bed.admin.run(&["annotate", "node", bed.node(), &format!("{CORDON}-")]).ok();
    allocatable(&bed, 3 * SLOTS);
    assert_eq!(container_life(&bed, "there"), before, "the running container was not restarted");
}
