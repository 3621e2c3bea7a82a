//! Tests the power of a stolen token of an agent: on its own Node and on the pods bound to this Node, it can write the
//! annotations and labels that an agent writes, and nothing else. Promise 27 in docs/specification.md.

use crate::bed::{Bed, SOON};
use crate::chart::{self, AGENT, EXTRAS, NAMESPACE, agent_of, install, token};
use crate::life::sleeper;
use lab::agent::Agent;
use lab::bearer::Bearer;
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::time::Duration;

const READY: Duration = Duration::from_secs(60);
/// The text of a refusal by RBAC.
const NO_RIGHT: &str = "cannot ";

/// A refused write: path, patch, and a part of the reason.
type Refused = (String, Value, &'static str);

fn annotation(key: &str, value: &str) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

fn label(key: &str, value: &str) -> Value {
    json!({ "metadata": { "labels": { key: value } } })
}

/// The token that the kubelet put into an agent's pod on this node, where a thief can read it.
fn stolen_token(cluster: &Cluster, node: &str) -> Bearer {
    let (admin, name) = (cluster.admin(), format!("robbed-{node}"));
    let pod = sleeper(NAMESPACE, &name, node).replacen("spec: {", &format!("spec: {{serviceAccountName: {AGENT}, "), 1);
    let _ = admin.run(&["delete", "pod", "-n", NAMESPACE, &name, "--ignore-not-found"]).ok();
    let _ = admin.create(&pod).ok();
    admin.wait("condition=Ready", READY, &[&format!("pod/{name}"), "-n", NAMESPACE]);
    let path = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    cluster.caller(&admin.exec(NAMESPACE, &name, &["cat", path]))
}

fn refused_on_own_node(node: &str) -> Vec<Refused> {
    let path = format!("/api/v1/nodes/{node}");
    let annotations = "may not change these annotations of node";
    let labels = "may not change these labels of node";
    let mut list: Vec<Refused> = [
        (annotation("anything", "1"), annotations),
        (annotation("gpu-steward.io/guard-check", "1"), annotations),
        (annotation("gpu-steward.io/guard-check-keys", "1"), "no account may write gpu-steward.io/guard-check-keys"),
        (annotation("gpu-steward.io/epoch", "9"), annotations),
        (annotation("hami.io/node-nvidia-assume", "{}"), annotations),
        (annotation("hami.io/device-cordon", ""), annotations),
        (annotation("ai.centaurus.io/physical-gpu-count", "8"), annotations),
        (annotation("ai.centaurus.io/gpu-memused", "1"), annotations),
        (annotation("ai.centaurus.io/GPU-0-job-type-x", "DLT"), annotations),
        (annotation("aixcentaurus.io/gpu-0", "{}"), annotations),
        (annotation("gpu-steward.io/gpu-x-profile", "{}"), annotations),
        (annotation("hami.io/mutex.lock", "2026-11-21T10:00:00Z,ml,train"), "may remove hami.io/mutex.lock"),
        (label("team", "a"), labels),
        (label("node-restriction.kubernetes.io/trusted", "true"), labels),
        (label("node-role.kubernetes.io/control-plane", ""), labels),
        (label("kubernetes.io/hostname", "other"), labels),
        (label("nvidia.com/gfd.timestamp", "1"), labels),
        (label("nvidia.com/gpu.deploy.driver", "false"), labels),
        (json!({ "spec": { "unschedulable": true } }), "may not change the spec of node"),
        (json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } }), "may not change the spec of node"),
        (json!({ "metadata": { "finalizers": ["a.io/stay"] } }), "may not change the finalizers of node"),
        (
            json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "1" }] } }),
            "may not change the ownerReferences of node",
        ),
    ]
    .into_iter()
    .map(|(patch, why)| (path.clone(), patch, why))
    .collect();
    // An allowed key does not allow another key in the same patch.
    let mut both = annotation("hami.io/node-handshake", "1763730000");
    both["metadata"]["labels"] = json!({ "nvidia.com/gpu.count": "8", "team": "a" });
    list.push((path.clone(), both, "labels of node"));
    list.push((format!("{path}/status"), json!({ "status": { "capacity": { "nvidia.com/gpu": "99" } } }), NO_RIGHT));
    list
}

fn refused_on_own_pod(path: &str) -> Vec<Refused> {
    let annotations = "may not change these annotations of pod";
    let labels = "may not change these labels of pod";
    let mut list: Vec<Refused> = [
        (annotation("anything", "1"), annotations),
        (annotation("gpu-steward.io/guard-check", "1"), annotations),
        (annotation("gpu-steward.io/epoch", "9"), annotations),
        (annotation("hami.io/vgpu-time", "1763730000"), annotations),
        (annotation("hami.io/bind-time", "1763730000"), annotations),
        (annotation("hami.io/vgpu-mig-allocations", "[]"), annotations),
        (annotation("hami.io/vgpu-node", "elsewhere"), "may set hami.io/vgpu-node only to"),
        (label("app", "other"), labels),
        (label("hami.io/vgpu-node", "elsewhere"), labels),
        (json!({ "spec": { "containers": [{ "name": "main", "image": "other:1" }] } }), "may not change the spec of pod"),
        (json!({ "spec": { "activeDeadlineSeconds": 1 } }), "may not change the spec of pod"),
        (json!({ "metadata": { "finalizers": ["a.io/stay"] } }), "may not change the finalizers of pod"),
        (
            json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "1" }] } }),
            "may not change the ownerReferences of pod",
        ),
    ]
    .into_iter()
    .map(|(patch, why)| (path.to_owned(), patch, why))
    .collect();
    for part in ["status", "ephemeralcontainers", "resize"] {
        list.push((format!("{path}/{part}"), annotation("hami.io/bind-phase", "failed"), NO_RIGHT));
    }
    list
}

/// The annotations that an agent writes on its Node and removes from it.
const NODE_ANNOTATIONS: [&str; 8] = [
    "hami.io/node-nvidia-register",
    "hami.io/node-nvidia-score",
    "hami.io/node-handshake",
    "ai.centaurus.io/gpu-static",
    "ai.centaurus.io/gpu-0",
    "ai.centaurus.io/GPU-15-job-type",
    "ai.centaurus.io/GPU-15-mem-util-max",
    "gpu-steward.io/gpu-15-profile",
];

/// All writes of an agent, as the same requests.
fn make_agent_writes(thief: &Bearer, admin: &Kubectl, node: &str, (namespace, pod): (&str, &str)) {
    let path = format!("/api/v1/nodes/{node}");
    let lock = format!("hami.io/mutex.lock=2026-11-21T10:00:00Z,{namespace},{pod}");
    let _ = admin.run(&["annotate", "--overwrite", "node", node, &lock]).ok();
    for value in [json!("[]"), Value::Null] {
        let set: serde_json::Map<String, Value> =
            NODE_ANNOTATIONS.iter().map(|key| ((*key).to_owned(), value.clone())).collect();
        let _ = thief.patch(&path, &json!({ "metadata": { "annotations": set } })).ok();
    }
    let at = "/metadata/annotations/hami.io~1mutex.lock";
    let value = lock.split_once('=').expect("a value").1;
    let release = json!([{ "op": "test", "path": at, "value": value }, { "op": "remove", "path": at }]);
    let _ = thief.send("PATCH", &path, "application/json-patch+json", &release).ok();
    let keys = chart::annotation_keys();
    // The other keys of this domain are annotations of users and a label of another program.
    let own = ["nvidia.com/gpu.", "nvidia.com/cuda.", "nvidia.com/mig."];
    let labels = keys.iter().map(String::as_str).filter(|word| own.iter().any(|prefix| word.starts_with(prefix)));
    let labels: Vec<&str> = labels.collect();
    assert!(labels.len() >= 20, "{labels:?}");
    for value in [json!("1"), Value::Null] {
        let set: serde_json::Map<String, Value> = labels.iter().map(|key| ((*key).to_owned(), value.clone())).collect();
        let path = format!("{path}?fieldManager=gpu-steward-labels");
        let _ = thief.patch(&path, &json!({ "metadata": { "labels": set } })).ok();
    }

    let uid = admin.get(&["pod", pod, "-n", namespace])["metadata"]["uid"].clone();
    let claim = json!({ "metadata": { "uid": uid, "annotations": {
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,3000,30:;", "hami.io/vgpu-node": node,
        "gpu-steward.io/placed-by": "agent", "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": "", "gpu-steward.io/evict": "NotPlaced",
    } } });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let written = thief.patch(&path, &claim).ok();
    assert_eq!(written["metadata"]["annotations"]["hami.io/vgpu-node"], *node);
    let _ = thief.patch(&path, &json!({ "metadata": { "annotations": { "gpu-steward.io/evict": null } } })).ok();
}

/// Requests for which an agent's account has no rights, even on objects of its own node.
fn check_missing_rights(thief: &Bearer, node: &str, namespace: &str) {
    let pod = format!("/api/v1/namespaces/{namespace}/pods/here");
    for (method, path) in [
        ("DELETE", pod.clone()),
        ("DELETE", format!("/api/v1/nodes/{node}")),
        ("POST", format!("/api/v1/namespaces/{namespace}/pods")),
        ("GET", format!("{pod}/log")),
        ("GET", "/api/v1/secrets".into()),
        ("POST", format!("/api/v1/namespaces/{namespace}/pods/here/binding")),
        ("POST", format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{AGENT}/token")),
    ] {
        let output = thief.send(method, &path, "application/json", &json!({})).forbidden();
        assert!(output.contains(NO_RIGHT), "{method} {path}: {output}");
    }
}

/// With its token an agent can make its own writes on its Node and on the pods bound to this Node. A policy or RBAC refuses
/// every other request.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_stolen_token_can_write_only_what_an_agent_writes() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let node = lease.node.as_str();
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("stolen"));
    let namespace = space.name.as_str();
    let other = cluster.status().nodes.iter().map(|node| &*node.name).find(|name| *name != node).expect("another node");
    let _ = admin.create(&sleeper(namespace, "here", node)).ok();
    let _ = admin.create(&sleeper(namespace, "elsewhere", other)).ok();
    let _ = admin.create(&sleeper(namespace, "nowhere", "x").replace("nodeName: x", "schedulerName: nobody")).ok();
    let thief = stolen_token(&cluster, node);
    let pod = |name: &str| format!("/api/v1/namespaces/{namespace}/pods/{name}");

    make_agent_writes(&thief, &admin, node, (namespace, "here"));
    for (path, patch, why) in refused_on_own_node(node).into_iter().chain(refused_on_own_pod(&pod("here"))) {
        // A merge patch would replace the whole list of containers.
        let output = thief.send("PATCH", &path, "application/strategic-merge-patch+json", &patch).forbidden();
        assert!(output.contains(why), "{path} {patch}: {output}");
    }
    // The token cannot remove the node from a pod either.
    let output =
        thief.patch(&pod("here"), &json!({ "metadata": { "annotations": { "hami.io/vgpu-node": null } } })).forbidden();
    assert!(output.contains("may set hami.io/vgpu-node only to"), "{output}");
    // The API server drops a status in such a patch, or refuses the patch.
    for (path, patch) in [
        (format!("/api/v1/nodes/{node}"), json!({ "status": { "capacity": { "example.com/forged": "99" } } })),
        (pod("here"), json!({ "status": { "message": "example.com/forged" } })),
    ] {
        let answer = thief.patch(&path, &patch);
        assert!(!answer.body.to_string().contains("example.com/forged"), "{path}: {answer:?}");
    }
    // An agent may not write to another Node, not even the keys that it may write to its own.
    let others_node = format!("/api/v1/nodes/{other}");
    for patch in
        [annotation("hami.io/node-handshake", "1"), label("nvidia.com/gpu.count", "8"), annotation("anything", "1")]
    {
        let output = thief.patch(&others_node, &patch).forbidden();
        assert!(output.contains(&format!("may not write to node {other}")), "{output}");
    }
    for name in ["elsewhere", "nowhere"] {
        let output = thief.patch(&pod(name), &annotation("hami.io/bind-phase", "success")).forbidden();
        assert!(output.contains("may write only to pods bound to it"), "{name}: {output}");
    }
    check_missing_rights(&thief, node, namespace);
    // None of the refused writes had an effect.
    let here = admin.get(&["pod", "here", "-n", namespace]);
    assert_eq!(here["metadata"]["annotations"]["hami.io/vgpu-node"], *node);
    assert!(here["metadata"]["labels"].is_null() && here["metadata"]["finalizers"].is_null(), "{here}");

    // A token that names no node can write nothing. A token that is bound to the Node has the same limits as that of a pod.
    let unbound = cluster.caller(&token(&admin, AGENT, &[]));
    for path in [format!("/api/v1/nodes/{node}"), pod("here")] {
        let output = unbound.patch(&path, &annotation("hami.io/bind-phase", "1")).forbidden();
        assert!(output.contains("this one names no node"), "{output}");
    }
    let output = agent_of(&cluster, node).patch(&others_node, &annotation("hami.io/node-handshake", "1")).forbidden();
    assert!(output.contains(&format!("may not write to node {other}")), "{output}");
    let _ = admin.run(&["delete", "pod", "-n", NAMESPACE, &format!("robbed-{node}"), "--wait=false"]).ok();
}

/// Removes a policy binding, and restores it when dropped, even if the test fails.
struct RemovedBinding<'a> {
    admin: &'a Kubectl,
    binding: String,
}

impl RemovedBinding<'_> {
    fn of<'a>(admin: &'a Kubectl, name: &str) -> RemovedBinding<'a> {
        let mut binding = admin.get(&["validatingadmissionpolicybinding", name]);
        binding["metadata"] = json!({ "name": name, "labels": binding["metadata"]["labels"] });
        let _ = admin.run(&["delete", "validatingadmissionpolicybinding", name]).ok();
        RemovedBinding { admin, binding: binding.to_string() }
    }
}

impl Drop for RemovedBinding<'_> {
    fn drop(&mut self) {
        let _ = self.admin.apply(&self.binding);
    }
}

/// Waits until the line of `/readyz` about the policies has this text.
fn wait_for_policies(agent: &Agent, expected: &str) {
    eventually(&format!("a guard that is {expected:?}"), SOON, || {
        let text = agent.get("/readyz").text().to_owned();
        text.lines().any(|line| line == format!("admission policies: {expected}")).then_some(())
    });
}

/// An agent finds out at its start, with dry-run writes, which policies are in force, and reports each policy that is not
/// in force.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn an_agent_reports_which_policies_are_in_force() {
    let bed = Bed::exclusive("stolen-guard");
    install(&bed.cluster, &EXTRAS);
    bed.create(&bed.bare_pod("here", &[("main", "app", &[])], &Value::Null));
    bed.ready(&["here"]);
    let agent = bed.agent(&["--evict-over-use"]);
    wait_for_policies(&agent, "in force: agent-nodes agent-pods system-keys agent-evictions");
    assert!(agent.get("/metrics").text().contains("gpu_steward_guard{policy=\"agent-pods\",state=\"in_force\"} 1"));
    // None of the dry-run writes was stored.
    let here = bed.admin.get(&["pod", "here", "-n", &bed.space.name]);
    assert!(here["metadata"]["annotations"].is_null(), "{here}");
    assert!(!bed.node_object().to_string().contains("guard-check"));
    drop(agent);

    let names = ["agent-pods", "system-keys", "agent-evictions"].map(|name| format!("gpu-steward-{name}"));
    let unbound = names.each_ref().map(|name| RemovedBinding::of(&bed.admin, name));
    let (thief, namespace) = (agent_of(&bed.cluster, bed.node()), &bed.space.name);
    let pod = format!("/api/v1/namespaces/{namespace}/pods/here?dryRun=All");
    let node = format!("/api/v1/nodes/{}?dryRun=All", bed.node());
    let none = format!("/api/v1/namespaces/{namespace}/pods/gpu-steward-guard-check/eviction?dryRun=All");
    let evict = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "gpu-steward-guard-check", "namespace": namespace } });
    eventually("the end of three policies", SOON, || {
        let open = thief.patch(&pod, &annotation("anything", "1")).code == 200
            && thief.patch(&node, &annotation("gpu-steward.io/guard-check-keys", "1")).code == 200
            && thief.post(&none, &evict).code == 404;
        open.then_some(())
    });
    let agent = bed.agent(&["--evict-over-use"]);
    wait_for_policies(&agent, "in force: agent-nodes; NOT in force: agent-pods system-keys agent-evictions");
    agent.logs("any account that may write to pods can take any GPU");
    assert_eq!(agent.get("/readyz").status, 200, "the agent reports this, but still samples and shares the node");
    drop(unbound);
}
