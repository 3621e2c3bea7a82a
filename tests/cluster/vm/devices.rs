//! Tests the device filter of cgroup v2, a BPF program of the runtime, as `tests/cluster/devices.rs` does, on a machine
//! that has only cgroup v2.

use super::{Machine, SOON};
use crate::bed::{bare_pod, with_claim};
use crate::devices::{NODES, PAIR, check_reachable_gpus};
use lab::scenario::{FakeGpu, FakeNvml, Scenario};
use lab::vm::NODE;
use serde_json::Value;

/// The fake driver, and device nodes with NVIDIA's major number and no driver. This test removes the folder at its end,
/// or else the next run does at its start.
const FOLDER: &str = "/srv/nvml";

/// Promises 28 and 29 in docs/specification.md, on cgroup v2.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn containers_on_cgroup_v2_reach_only_their_own_gpus() {
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
    // This line comes after the line with the simulated GPUs: of two lines for one variable, systemd takes the later one.
    machine.share(&["GPU_STEWARD_GPUS=nvml", &library, &nodes]);
    let space = machine.namespace("vm-devices");
    let pod = with_claim(bare_pod((&space.name, "pair"), NODE, &PAIR, &Value::Null), &machine.gpus(), &PAIR);
    let _ = machine.admin.create(&pod.to_string()).ok();
    machine.admin.wait("condition=Ready", SOON, &["pod/pair", "-n", &space.name]);
    for (container, own) in [("first", [true, false]), ("second", [false, true]), ("none", [false, false])] {
        check_reachable_gpus(&machine.admin, [&space.name, "pair", container], own);
    }
    machine.vm.sh(&format!("rm -rf {FOLDER}"));
}
