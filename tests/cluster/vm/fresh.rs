//! A machine that becomes a node: the agent runs before there is a Node of its name, and cannot ask the container runtime.

use super::shares::LOOK;
use super::{GPUS, Machine, OURS, SLOTS, SOON, shipped};
use crate::bed::{Claim, bare_pod, claimed, promised};
use crate::chart;
use lab::eventually::eventually;
use lab::vm::NODE;
use serde_json::{Value, json};

/// Pods that wait for a node, and come to it at once.
const PODS: u64 = 6;

/// Its own variables loosen no pod's limits: none of them is bound before it is known how this runtime is given devices.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn the_first_pods_of_a_new_node_get_what_nothing_of_theirs_can_loosen() {
    let machine = Machine::up();
    machine.ready();
    chart::install(machine.vm.cluster(), &[]);
    let _ =
        machine.vm.sh("systemctl stop kubelet && rm -f /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
    let _ = machine.admin.run(&["delete", "node", NODE]).ok();
    // No Node, so no token that is bound to one: it may read, and write nothing.
    machine.credentials(&[]);
    machine.drop_in("sharing.conf", &shipped("options/sharing.conf"));
    let settings =
        [GPUS, "GPU_STEWARD_KUBECONFIG=/etc/gpu-steward/kubeconfig", "GPU_STEWARD_CRI_SOCKET=/run/elsewhere.sock"];
    machine.settings(&settings);
    machine.start();

    let space = machine.namespace("vm-fresh");
    let gpus = machine.gpus();
    for n in 0..PODS {
        let _ = machine.admin.create(&waiting(&space.name, n, &gpus).to_string()).ok();
    }
    machine.vm.sh("systemctl start kubelet");
    let limits = eventually("every pod to run", SOON, || {
        let pods = machine.admin.get(&["pods", "-n", &space.name]);
        let failed = pods["items"].as_array()?.iter().find(|pod| pod["status"]["phase"] == "Failed");
        assert!(failed.is_none(), "{failed:#?}\n{}", machine.log());
        let look = machine.vm.sh(LOOK);
        (look.lines().count() == usize::try_from(PODS).ok()?).then_some(look)
    });
    for line in limits.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let limits: Value = serde_json::from_str(parts[1]).expect("JSON");
        let mib = promised(&limits)[0].1 >> 20;
        let told: Vec<&str> =
            parts[2].split(' ').filter(|line| line.starts_with("CUDA_DEVICE_MEMORY_LIMIT_0=")).collect();
        assert_eq!(told, [format!("CUDA_DEVICE_MEMORY_LIMIT_0={mib}m")], "{line}\n{}", machine.log());
    }
    assert_eq!(machine.admin.get(&["node", NODE])["status"]["allocatable"]["nvidia.com/gpu"], SLOTS);
    let said = machine.vm.sh(&format!("journalctl -b -u {OURS} -o json --all"));
    assert!(said.contains("/run/elsewhere.sock"), "which socket was looked for is not said: {said}");
}

/// Left to the scheduler, which has no node for it yet; with the claim that is made for the node that will come.
fn waiting(namespace: &str, n: u64, gpus: &[String]) -> Value {
    let devices = [(usize::try_from(n % 2).unwrap_or(0), 1000 + 10 * n, 1)];
    let claims: [Claim<'_>; 1] = [("main", "app", &devices)];
    let loose = json!({ "env": [{ "name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "999999m" }] });
    let pod = bare_pod((namespace, &format!("pod-{n}")), NODE, &claims, &loose);
    let mut pod = claimed(pod, gpus, &claims);
    pod["spec"].as_object_mut().expect("an object").remove("nodeName");
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": NODE });
    pod
}
