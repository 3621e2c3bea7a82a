//! The built agent among pods of its node whose owners want to stop it. A user decides how many pods there are, how large they are,
//! and, with the annotation of a mirror pod and a finalizer, that the kubelet neither begins with them nor removes them.

use crate::kubelet::Kubelet;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const NODE: &str = "n1";
/// The same number as `model::pod::MAX_UNPROVEN_PODS`.
const MAX_UNPROVEN_PODS: u32 = 256;

/// A server with the node, an agent there that shares two simulated GPUs, and its kubelet.
fn started(server: &FakeApiServer) -> (Agent, Kubelet) {
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let recipe = Agent::in_cluster(BINARY, server, NODE).with("--gpus", "simulated=H100:2");
    let kubelet = Kubelet::start(&recipe.dir().join("kubelet"));
    let agent = recipe.start();
    kubelet.plugin();
    (agent, kubelet)
}

fn uid(number: u32) -> String {
    format!("eeeeeeee-0000-4000-8000-{number:012}")
}

/// A pod with which the kubelet has not begun.
fn pending(number: u32, limits: &Value) -> Value {
    let main = json!({ "name": "main", "image": "x", "resources": { "limits": limits } });
    json!({
        "metadata": { "name": format!("pod-{number}"), "namespace": "ml", "uid": uid(number), "annotations": {} },
        "spec": { "nodeName": NODE, "containers": [main] }, "status": { "phase": "Pending" },
    })
}

/// The same as its owner makes it look like a mirror pod that stays.
fn mirror(number: u32, limits: &Value) -> Value {
    let mut pod = pending(number, limits);
    pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
    pod["metadata"]["finalizers"] = json!(["example.com/stays"]);
    pod
}

fn has_line(agent: &Agent, line: &str) -> bool {
    agent.get("/metrics").text().lines().any(|one| one == line)
}

#[test]
fn pods_that_look_like_mirror_pods_keep_no_gpu_pod_from_starting() {
    const PODS: u32 = 1100;
    let (none, gpu) = (json!({}), json!({ "nvidia.com/gpu": "1" }));
    let server = FakeApiServer::start();
    for number in 0..PODS {
        server.put("pods", mirror(number, if number % 2 == 0 { &gpu } else { &none }));
    }
    let (agent, kubelet) = started(&server);
    let left_out = PODS / 2 - MAX_UNPROVEN_PODS;
    let counted = || has_line(&agent, &format!("gpu_steward_left_out{{what=\"api_pods\"}} {left_out}"));
    eventually("the pods that are left out", SOON, || counted().then_some(()));
    // A scheduler has given a claim to one pod. The kubelet has begun with the other one, which the node shares without a claim.
    let mut claimed = pending(5000, &gpu);
    claimed["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "GPU-1,NVIDIA,1000,10:;".into();
    let mut begun = pending(5001, &gpu);
    begun["status"]["containerStatuses"] = json!([{ "name": "main", "state": { "waiting": {} } }]);
    let gpus = agent.get("/api/v1/gpus").json();
    let uuid = gpus["gpus"][0]["uuid"].as_str().unwrap();
    // More pods of the attacker, until nothing is left.
    for number in PODS..2 * PODS {
        server.put("pods", mirror(number, &none));
    }
    for (slot, pod) in [claimed, begun].into_iter().enumerate() {
        let (name, slot) = (pod["metadata"]["name"].as_str().unwrap().to_owned(), format!("{uuid}-{slot}"));
        kubelet.admits(pod["metadata"]["uid"].as_str().unwrap(), &slot);
        server.put("pods", pod);
        // The kubelet of these tests loses the agent's answers, which the agent can only say of a pod that it knows.
        let why = kubelet.starts(&slot).unwrap_err();
        assert!(why.contains(&format!("ml/{name}, container main: the kubelet's checkpoint")), "{why}");
    }
    let ready = agent.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains(" pods are too many to keep: delete pods of this node"), "{}", ready.text());
}

#[test]
fn pods_with_many_containers_and_annotations_take_little_memory_once_they_have_ended_or_if_they_never_begin() {
    const PODS: u32 = 240;
    let server = FakeApiServer::start();
    let (agent, _kubelet) = started(&server);
    let before = agent.anonymous_mib();
    for number in 0..PODS {
        // No two containers have a text in common that could be shared.
        let container = |at: u32| {
            let own = u64::from(number * 128 + at) + 1_000_000_000_000;
            let limits = match number % 3 {
                0 => json!({}),
                _ => json!({
                    "nvidia.com/gpu": own.to_string(), "nvidia.com/gpumem": (own + 1_000_000).to_string(),
                    "nvidia.com/gpucores": (own + 2_000_000).to_string(), "nvidia.com/priority": (own + 3_000_000).to_string(),
                }),
            };
            let (name, image) = (format!("{}-{own}", "c".repeat(40)), format!("{}:{own}", "i".repeat(480)));
            json!({ "name": name, "image": image, "resources": { "limits": limits } })
        };
        let mut odd = mirror(number, &json!({}));
        odd["spec"]["containers"] = (0..128).map(container).collect();
        if number % 3 > 0 {
            odd["status"]["phase"] = "Failed".into();
            let annotations: serde_json::Map<String, Value> =
                (0..1640).map(|at| (format!("hami.io/{at:x}"), "".into())).collect();
            odd["metadata"]["annotations"] = annotations.into();
        }
        server.put("pods", odd);
    }
    eventually("all pods", SOON, || (agent.get("/api/v1/node").json()["pod_watch"]["pods"] == PODS).then_some(()));
    let more = agent.anonymous_mib() - before;
    assert!(more <= 16.0, "{more} MiB more for {PODS} pods");
}
