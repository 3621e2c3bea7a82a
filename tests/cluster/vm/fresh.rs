//! Tests a machine that becomes a node: the agent runs before its Node exists, and cannot reach the container runtime.

use super::shares::READ_CONTAINERS;
use super::{GPUS, Machine, SERVICE, SLOTS, SOON, shipped};
use crate::bed::{Claim, bare_pod, devices_in, with_claim};
use crate::chart;
use lab::eventually::eventually;
use lab::vm::NODE;
use serde_json::{Value, json};

/// The number of pods that wait for a node and are all bound to this one at the same time.
const PODS: u64 = 6;

/// The pods' own variables weaken no limits: the agent offers no slots before it knows whether the runtime has CDI.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn the_first_pods_of_a_new_node_cannot_loosen_their_limits() {
    let machine = Machine::up();
    machine.ready();
    chart::install(machine.vm.cluster(), &[]);
    let _ =
        machine.vm.sh("systemctl stop kubelet && rm -f /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
    let _ = machine.admin.run(&["delete", "node", NODE]).ok();
    // There is no Node yet to which a token could be bound, so the agent may read and write nothing.
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
        let output = machine.vm.sh(READ_CONTAINERS);
        (output.lines().count() == usize::try_from(PODS).ok()?).then_some(output)
    });
    for line in limits.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let limits: Value = serde_json::from_str(parts[1]).expect("JSON");
        let mib = devices_in(&limits)[0].1 >> 20;
        let found: Vec<&str> =
            parts[2].split(' ').filter(|line| line.starts_with("CUDA_DEVICE_MEMORY_LIMIT_0=")).collect();
        assert_eq!(found, [format!("CUDA_DEVICE_MEMORY_LIMIT_0={mib}m")], "{line}\n{}", machine.log());
    }
    assert_eq!(machine.admin.get(&["node", NODE])["status"]["allocatable"]["nvidia.com/gpu"], SLOTS);
    let journal = machine.vm.sh(&format!("journalctl -b -u {SERVICE} -o json --all"));
    assert!(journal.contains("/run/elsewhere.sock"), "the log does not name the missing socket: {journal}");
}

/// A pod that the scheduler cannot bind yet, with a claim for the future node.
fn waiting(namespace: &str, n: u64, gpus: &[String]) -> Value {
    let devices = [(usize::try_from(n % 2).unwrap_or(0), 1000 + 10 * n, 1)];
    let claims: [Claim<'_>; 1] = [("main", "app", &devices)];
    let loose = json!({ "env": [{ "name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "999999m" }] });
    let pod = bare_pod((namespace, &format!("pod-{n}")), NODE, &claims, &loose);
    let mut pod = with_claim(pod, gpus, &claims);
    pod["spec"].as_object_mut().expect("an object").remove("nodeName");
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": NODE });
    pod
}
