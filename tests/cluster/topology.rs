//! kubelet's topology manager chooses GPUs by NUMA node, the scheduler by memory: where both can be had, a claim moves.
//! The machine under the tests has one NUMA node; cards that say they are on another are none that kubelet would choose.

use crate::bed::{Bed, promised};
use serde_json::Value;
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

/// The devices of the claim on the pod, by UUID.
fn claimed(bed: &Bed, pod: &str) -> Vec<String> {
    let pod = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    let text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().unwrap_or_default().to_owned();
    text.split([';', ':']).filter_map(|one| Some(one.split_once(',')?.0.to_owned())).collect()
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_claim_moves_to_kubelets_choice_where_it_fits_and_stands_where_not() {
    let bed = Bed::up("topology");
    let _policy = Policy::set(&bed, "single-numa-node");
    // Two and two: the first half says NUMA node 0, the second 1.
    let agent = bed.agent(&["--gpus=simulated=H100:4"]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("moves", &gpus, &[("main", "app", &[(3, 60000, 30)])], &Value::Null));
    bed.ready(&["moves"]);
    let devices = promised(&bed.limits("moves", "main"));
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].1, 60000 * MIB, "what was promised of it stays");
    let place = gpus.iter().position(|gpu| *gpu == devices[0].0).expect("a GPU of the node");
    assert!(place < 2, "GPU {place} is not on the node that kubelet chose");
    assert_eq!(claimed(&bed, "moves"), [devices[0].0.as_str()], "the claim on the pod is what it has");

    // Nothing of this size is left on kubelet's side.
    let other = 1 - place;
    bed.create(&bed.pod("fills", &gpus, &[("main", "app", &[(other, 60000, 30)])], &Value::Null));
    bed.ready(&["fills"]);
    assert_eq!(promised(&bed.limits("fills", "main")), [(gpus[other].clone(), 60000 * MIB)]);
    bed.create(&bed.pod("stands", &gpus, &[("main", "app", &[(2, 60000, 30)])], &Value::Null));
    bed.ready(&["stands"]);
    assert_eq!(promised(&bed.limits("stands", "main")), [(gpus[2].clone(), 60000 * MIB)]);
    assert_eq!(claimed(&bed, "stands"), [gpus[2].as_str()]);
    drop(agent);
}
