//! The device filter of cgroup v2, which is a BPF program of the runtime's: as in `tests/cluster/devices.rs`, on a machine that has
//! nothing else.

use super::{Machine, SOON};
use crate::bed::{bare_pod, claimed};
use crate::devices::{NODES, PAIR, reaches};
use lab::scenario::{FakeGpu, FakeNvml, Scenario};
use lab::vm::NODE;
use serde_json::Value;

/// The fake driver and nodes with NVIDIA's major number and no driver behind them; gone with the test's end or the next one's begin.
const FOLDER: &str = "/srv/nvml";

/// Promises 28 and 29 in docs/specification.md, on cgroup v2.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn containers_on_cgroup_v2_reach_their_own_gpus_alone() {
    let machine = Machine::up();
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    let scenario = Scenario { gpus: vec![FakeGpu { count: 2, ..FakeGpu::default() }], ..Scenario::default() };
    let scenario = serde_json::to_vec(&scenario).expect("JSON");
    let _ = machine.vm.sh(&format!("rm -rf {FOLDER}; mkdir -p {FOLDER}/dev"));
    machine.vm.put(&std::fs::read(fake.library()).expect("the library"), "644", &format!("{FOLDER}/libnvidia-ml.so.1"));
    machine.vm.put(&scenario, "644", &format!("{FOLDER}/scenario.json"));
    for (name, minor) in NODES {
        machine.vm.sh(&format!("mknod {FOLDER}/dev/{name} c 195 {minor}"));
    }
    let library = format!("GPU_STEWARD_NVML_LIBRARY={FOLDER}/libnvidia-ml.so.1");
    let nodes = format!("GPU_STEWARD_DEV_ROOT={FOLDER}/dev");
    // Behind the made-up GPUs of other tests: of two lines for one variable systemd takes the later.
    machine.share(&["GPU_STEWARD_GPUS=nvml", &library, &nodes]);
    let space = machine.namespace("vm-devices");
    let pod = claimed(bare_pod((&space.name, "pair"), NODE, &PAIR, &Value::Null), &machine.gpus(), &PAIR);
    let _ = machine.admin.create(&pod.to_string()).ok();
    machine.admin.wait("condition=Ready", SOON, &["pod/pair", "-n", &space.name]);
    for (container, own) in [("first", [true, false]), ("second", [false, true]), ("none", [false, false])] {
        reaches(&machine.admin, [&space.name, "pair", container], own);
    }
    machine.vm.sh(&format!("rm -rf {FOLDER}"));
}
