//! Tests claims with the kubelet's topology manager. The kubelet chooses GPUs by NUMA node, and the scheduler by memory;
//! if both can be satisfied, a claim moves. On a machine with one NUMA node the kubelet has no preference, and the slots
//! that it takes count as its choice.

use crate::bed::{Bed, SOON, devices_in};
use lab::eventually::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// Sets this topology policy of the kubelet until it is dropped.
struct Policy<'a> {
    bed: &'a Bed,
    file: PathBuf,
    before: String,
    /// The path where kubeadm puts the kubelet's configuration, and where the agent reads it.
    usual: PathBuf,
}

impl Policy<'_> {
    fn set<'a>(bed: &'a Bed, policy: &str) -> Policy<'a> {
        let (file, usual) = (bed.paths().path("/etc/kubernetes/kubelet.yaml"), bed.paths().kubelet.join("config.yaml"));
        let before = std::fs::read_to_string(&file).expect("kubelet's configuration");
        let text = format!("{before}topologyManagerPolicy: {policy}\n");
        for file in [&file, &usual] {
            std::fs::write(file, &text).expect("kubelet's configuration can be written");
        }
        bed.part("restart", "kubelet");
        Policy { bed, file, before, usual }
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        let _ = (std::fs::write(&self.file, &self.before), std::fs::remove_file(&self.usual));
        self.bed.part("restart", "kubelet");
    }
}

/// The UUID of the only device of the claim on the pod.
fn claimed_uuid(bed: &Bed, pod: &str) -> String {
    let pod = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    let text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().unwrap_or_default().to_owned();
    text.split_once(',').map(|(device, _)| device.to_owned()).unwrap_or_default()
}

/// The UUID of the device whose slot the kubelet gave to the pod's container, from the checkpoint.
fn kubelets_choice(bed: &Bed, pod: &str) -> String {
    let uid = bed.admin.get(&["pod", pod, "-n", &bed.space.name])["metadata"]["uid"].clone();
    let checkpoint = std::fs::read(&bed.paths().checkpoint).expect("kubelet's checkpoint");
    let checkpoint: Value = serde_json::from_slice(&checkpoint).expect("JSON");
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array().expect("rows");
    let entry = entries.iter().find(|entry| entry["PodUID"] == uid).expect("the pod's row");
    let ids = entry["DeviceIDs"].as_object().expect("ids by NUMA node").values().filter_map(Value::as_array).flatten();
    let id = ids.filter_map(Value::as_str).next().expect("an id");
    id.rsplit_once('-').expect("a slot").0.to_owned()
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_claim_moves_to_the_kubelets_numa_node_unless_that_is_full() {
    let bed = Bed::up("topology");
    let _policy = Policy::set(&bed, "single-numa-node");
    // The first two GPUs report NUMA node 0, the other two report NUMA node 1.
    let agent = bed.agent(&["--gpus=simulated=H100:4"]);
    agent.logs("kubelet aligns devices by topology");
    let gpus = Bed::gpus(&agent);
    let numa = |gpu: &str| gpus.iter().position(|other| other == gpu).expect("a GPU of the node") / 2;
    // Each pod takes most of a GPU. The GPUs fill up, so the first claims move and later ones stay.
    let mut used = BTreeSet::new();
    for number in 0..gpus.len() {
        let name = format!("pod-{number}");
        let claim = (0..gpus.len()).rev().find(|n| !used.contains(&gpus[*n])).expect("a free GPU");
        bed.create(&bed.pod(&name, &gpus, &[("main", "app", &[(claim, 60000, 30)])], &Value::Null));
        bed.ready(&[&name]);
        let devices = devices_in(&bed.limits(&name, "main"));
        assert_eq!(devices.len(), 1);
        let (device, bytes) = &devices[0];
        assert_eq!(*bytes, 60000 * MIB, "the claimed memory stays");
        eventually("the claim that the container has", SOON, || (claimed_uuid(&bed, &name) == *device).then_some(()));
        let kubelets = kubelets_choice(&bed, &name);
        println!("{name}: claim on GPU {claim}, kubelet chose {kubelets}, it has {device}");
        let full = used.contains(&kubelets);
        if numa(&kubelets) == claim / 2 || full {
            assert_eq!(*device, gpus[claim], "{name} is near enough, or kubelet's choice is full");
        } else {
            assert_eq!(*device, kubelets, "{name} moves");
        }
        assert!(used.insert(device.clone()), "{name}: nothing of this size is left on {device}");
    }
    drop(agent);
}
