//! kubelet's topology manager chooses GPUs by NUMA node, the scheduler by memory: where both can be had, a claim moves.
//! A machine with one NUMA node leaves kubelet no choice, which is then whatever ids it takes; the ids are what counts here.

use crate::bed::{Bed, SOON, promised};
use lab::eventually::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// kubelet with this topology policy, until it is dropped.
struct Policy<'a> {
    bed: &'a Bed,
    file: PathBuf,
    before: String,
    /// Where kubeadm puts kubelet's configuration, and the agent looks for it.
    usual: PathBuf,
}

impl Policy<'_> {
    fn set<'a>(bed: &'a Bed, policy: &str) -> Policy<'a> {
        let (file, usual) = (bed.place().path("/etc/kubernetes/kubelet.yaml"), bed.place().kubelet.join("config.yaml"));
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

/// The only device of the claim on the pod, by UUID.
fn claimed(bed: &Bed, pod: &str) -> String {
    let pod = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    let text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().unwrap_or_default().to_owned();
    text.split_once(',').map(|(device, _)| device.to_owned()).unwrap_or_default()
}

/// The device whose slot kubelet gave the pod's container, from its own books.
fn chosen(bed: &Bed, pod: &str) -> String {
    let uid = bed.admin.get(&["pod", pod, "-n", &bed.space.name])["metadata"]["uid"].clone();
    let books = std::fs::read(&bed.place().checkpoint).expect("kubelet's checkpoint");
    let books: Value = serde_json::from_slice(&books).expect("JSON");
    let rows = books["Data"]["PodDeviceEntries"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["PodUID"] == uid).expect("the pod's row");
    let ids = row["DeviceIDs"].as_object().expect("ids by NUMA node").values().filter_map(Value::as_array).flatten();
    let id = ids.filter_map(Value::as_str).next().expect("an id");
    id.rsplit_once('-').expect("a slot").0.to_owned()
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_claim_moves_to_the_numa_node_of_kubelets_choice_and_stands_where_that_is_full() {
    let bed = Bed::up("topology");
    let _policy = Policy::set(&bed, "single-numa-node");
    // Two and two: the first half says NUMA node 0, the second 1.
    let agent = bed.agent(&["--gpus=simulated=H100:4"]);
    agent.logs("kubelet aligns devices by topology");
    let gpus = Bed::gpus(&agent);
    let numa = |gpu: &str| gpus.iter().position(|other| other == gpu).expect("a GPU of the node") / 2;
    // Each takes most of a card, so the cards fill up, and claims move, then stand.
    let mut places = BTreeSet::new();
    for number in 0..gpus.len() {
        let name = format!("pod-{number}");
        let claim = (0..gpus.len()).rev().find(|n| !places.contains(&gpus[*n])).expect("a free card");
        bed.create(&bed.pod(&name, &gpus, &[("main", "app", &[(claim, 60000, 30)])], &Value::Null));
        bed.ready(&[&name]);
        let devices = promised(&bed.limits(&name, "main"));
        assert_eq!(devices.len(), 1);
        let (device, bytes) = &devices[0];
        assert_eq!(*bytes, 60000 * MIB, "what was promised of it stays");
        eventually("the claim that the container has", SOON, || (claimed(&bed, &name) == *device).then_some(()));
        let kubelets = chosen(&bed, &name);
        println!("{name}: claim on GPU {claim}, kubelet chose {kubelets}, it has {device}");
        let full = places.contains(&kubelets);
        if numa(&kubelets) == claim / 2 || full {
            assert_eq!(*device, gpus[claim], "{name} is near enough, or kubelet's choice is full");
        } else {
            assert_eq!(*device, kubelets, "{name} moves");
        }
        assert!(places.insert(device.clone()), "{name}: nothing of this size is left on {device}");
    }
    drop(agent);
}
