//! A cluster for the measurements: Nodes with 8 GPUs and ten claims each, the pods of their agents, and the calls of
//! kube-scheduler about them.

use crate::served::{AGENTS, AUDIENCE};
use lab::api_server::FakeApiServer;
use lab::pass_through;
use lab::tokens::claims;
use serde_json::{Value, json};

/// GPUs of each node.
pub(crate) const GPUS: usize = 8;
/// Pods with a claim on each node.
pub(crate) const PODS_A_NODE: usize = 10;
const GPU_MIB: u64 = 81_920;

/// The name of a node.
pub(crate) fn node_name(number: usize) -> String {
    format!("gpu-node-{number:05}")
}

/// The UID of a pod.
pub(crate) fn uid(number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-000000000001")
}

/// The UUID of a GPU.
pub(crate) fn gpu_uuid(node: usize, index: usize) -> String {
    format!("GPU-{node:08x}-0000-4000-8000-{index:012x}")
}

/// Nodes with 8 GPUs each and ten pods with claims. This many of ten nodes are full.
pub(crate) fn cluster(nodes: usize, tenths: u8) -> FakeApiServer {
    let server = FakeApiServer::start();
    for number in 0..nodes {
        let name = node_name(number);
        let gpu = |index: usize| {
            json!({
                "id": gpu_uuid(number, index), "index": index, "count": 10,
                "devmem": GPU_MIB, "devcore": 100, "type": "NVIDIA-NVIDIA H100 80GB HBM3", "numa": index / 4,
                "mode": "hami-core", "health": true,
            })
        };
        let register = Value::from((0..GPUS).map(gpu).collect::<Vec<_>>()).to_string();
        let annotations = json!({ "hami.io/node-nvidia-register": register });
        let metadata = json!({ "name": name, "uid": format!("uid-{number}"), "annotations": annotations });
        server.put("nodes", json!({ "metadata": metadata }));
        let mib = if pass_through::is_full(&name, tenths) { GPU_MIB / 10 * 9 } else { GPU_MIB / 10 };
        for place in 0..PODS_A_NODE {
            let mib = if place < GPUS { mib } else { 100 };
            let claim = format!("{},NVIDIA,{mib},5:;", gpu_uuid(number, place % GPUS));
            server.put("pods", held_pod((number * PODS_A_NODE + place, &name), mib, &claim));
        }
    }
    server
}

/// A running pod that holds a GPU.
fn held_pod((number, node): (usize, &str), mib: u64, claim: &str) -> Value {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": "5" });
    json!({
        "metadata": {
            "name": format!("held-{number}"), "namespace": "ml", "uid": uid(number), "creationTimestamp": "2026-11-21T10:00:00Z",
            "annotations": {
                "hami.io/vgpu-devices-allocated": claim, "hami.io/vgpu-devices-to-allocate": ";", "hami.io/vgpu-node": node,
                "hami.io/vgpu-time": "1795256507", "hami.io/bind-time": "1795256507", "hami.io/bind-phase": "success",
                "gpu-steward.io/epoch": "1", "gpu-steward.io/claim-version": "1/0",
            },
        },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "registry.example/train:1", "resources": { "limits": limits, "requests": limits } }],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{ "name": "main", "containerID": format!("containerd://{number:064x}"), "state": { "running": {} } }],
        },
    })
}

/// A pod as kube-scheduler sends it, with the fields that a real API server adds.
pub(crate) fn asking_pod(number: usize, mib: u64) -> Value {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": "5" });
    let owned = json!({ "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { ".": {}, "f:image": {}, "f:imagePullPolicy": {},
        "f:name": {}, "f:resources": { ".": {}, "f:limits": { ".": {}, "f:nvidia.com/gpu": {}, "f:nvidia.com/gpumem": {} } },
        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {} } }, "f:dnsPolicy": {}, "f:enableServiceLinks": {},
        "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {} } });
    json!({
        "metadata": {
            "name": format!("asks-{number}"), "namespace": "ml", "uid": uid(0x0fff_0000 + number),
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "time": "2026-11-21T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": owned }],
        },
        "spec": {
            "volumes": [{ "name": "kube-api-access", "projected": { "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            ], "defaultMode": 420 } }],
            "containers": [{
                "name": "main", "image": "registry.example/train:1", "resources": { "limits": limits, "requests": limits },
                "volumeMounts": [{ "name": "kube-api-access", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
                "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "gpu-steward", "priority": 0,
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }],
        },
        "status": { "phase": "Pending", "qosClass": "BestEffort" },
    })
}

/// The bodies of filter calls about all nodes.
pub(crate) fn calls(nodes: usize, count: usize, mib: impl Fn(usize) -> u64) -> Vec<Vec<u8>> {
    let names: Vec<String> = (0..nodes).map(node_name).collect();
    let one = |number: usize| {
        let call = json!({ "Pod": asking_pod(number, mib(number)), "Nodes": null, "NodeNames": names });
        call.to_string().into_bytes()
    };
    (0..count).map(one).collect()
}

// === agents ===

fn agent_uid(node: usize) -> String {
    uid(0x0e00_0000 + node)
}

/// The pod of the agent of each node.
pub(crate) fn put_agents(server: &FakeApiServer, nodes: usize) {
    for number in 0..nodes {
        server.put(
            "pods",
            json!({
                "metadata": {
                    "name": format!("agent-{number}"), "namespace": "gpu", "uid": agent_uid(number),
                    "creationTimestamp": "2026-11-21T10:00:00Z",
                },
                "spec": { "nodeName": node_name(number), "containers": [{ "name": "agent", "image": "registry.example/agent:1" }] },
                "status": { "phase": "Running" },
            }),
        );
    }
}

/// The token of the agent of a node.
pub(crate) fn agent_token(server: &FakeApiServer, node: usize) -> String {
    let of = (&*node_name(node), &*format!("uid-{node}"));
    server.token(&claims(AGENTS, AUDIENCE, of, (&format!("agent-{node}"), &agent_uid(node))))
}
