//! Tests the guard of system-owned keys: a real API server accepts each write that must pass, and refuses each write
//! that must not pass. Promise 26 in docs/specification.md.

use crate::chart::{EXTENDER, NAMESPACE, install, render};
use crate::life::sleeper;
use lab::cluster::{Cluster, ClusterOptions};
use lab::eventually::eventually;
use lab::kubectl::{CommandOutput, Kubectl};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

pub(crate) const READY: Duration = Duration::from_secs(60);
const REFUSED: &str = "system-owned keys are written by the GPU scheduler and the agents alone";
const HAMI: [&str; 2] = ["guard.hami[0].namespace=kube-system", "guard.hami[0].name=hami-scheduler"];

const POD_KEYS: [&str; 12] = [
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-mig-allocations",
    "hami.io/bind-time",
    "hami.io/bind-phase",
    "gpu-steward.io/epoch",
    "gpu-steward.io/claim-version",
    "gpu-steward.io/lease",
    "gpu-steward.io/placed-by",
    "gpu-steward.io/evict",
];
const NODE_KEYS: [&str; 6] = [
    "hami.io/node-nvidia-register",
    "hami.io/node-nvidia-score",
    "hami.io/node-nvidia-assume",
    "hami.io/node-handshake",
    "hami.io/mutex.lock",
    "gpu-steward.io/epoch",
];

fn account(admin: &Kubectl, namespace: &str, name: &str) -> Kubectl {
    let group = format!("system:serviceaccounts:{namespace}");
    admin.impersonating(
        &format!("system:serviceaccount:{namespace}:{name}"),
        &["system:serviceaccounts", &group, "system:authenticated"],
    )
}

/// A user with the rights of an owner of workloads in the namespace, and the right to create bindings.
pub(crate) fn user(admin: &Kubectl, namespace: &str) -> Kubectl {
    let _ = admin.run(&["create", "rolebinding", "ann", "-n", namespace, "--clusterrole=edit", "--user=ann"]).ok();
    let _ = admin
        .run(&[
            "create",
            "role",
            "binder",
            "-n",
            namespace,
            "--verb=get,create,update,patch",
            "--resource=pods/binding,pods/status,pods/ephemeralcontainers,pods/resize,bindings",
        ])
        .ok();
    let _ = admin.run(&["create", "rolebinding", "binder", "-n", namespace, "--role=binder", "--user=ann"]).ok();
    admin.impersonating("ann", &["system:authenticated"])
}

fn annotate(by: &Kubectl, object: &[&str], key: &str, value: &str) -> CommandOutput {
    let pair = format!("{key}={value}");
    by.run(&[&["annotate", "--overwrite"], object, &[&pair]].concat())
}

fn remove(by: &Kubectl, object: &[&str], key: &str) -> CommandOutput {
    let key = format!("{key}-");
    by.run(&[&["annotate"], object, &[&key]].concat())
}

/// The result of a write. A write that conflicts with another write is repeated, because a conflict does not show how the
/// guard decides.
fn verdict(write: impl Fn() -> CommandOutput) -> CommandOutput {
    eventually("a write without a conflict", READY, || {
        let output = write();
        (!output.err.contains("(Conflict)")).then_some(output)
    })
}

/// Newer API servers drop annotations in these subresources. With older ones, the guard refuses the annotations.
fn by_subresources(ann: &Kubectl, admin: &Kubectl, namespace: &str) {
    let own = ["pod", "own", "-n", namespace];
    let path = format!("/api/v1/namespaces/{namespace}/pods/own/ephemeralcontainers");
    let debug = |pod: &mut Value| {
        pod["metadata"]["annotations"]["hami.io/bind-phase"] = "success".into();
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "image": "registry.local/busybox:1" }]);
        ann.run_with(&["replace", "--raw", &path, "-f", "-"], &pod.to_string())
    };
    // The pod has changed since it was read, so the API server reports the conflict before it checks the guard.
    let mut stale = admin.get(&own);
    let _ = annotate(admin, &own, "team", "3").ok();
    assert!(debug(&mut stale).refused().contains("(Conflict)"));
    let replaced = verdict(|| debug(&mut admin.get(&own)));
    let resized = r#"{"metadata":{"annotations":{"hami.io/bind-phase":"success"}}}"#;
    let patched = verdict(|| ann.run(&["patch", "pod", "own", "-n", namespace, "--subresource=resize", "-p", resized]));
    for output in [replaced, patched] {
        assert!(
            output.success || (output.err.contains("(Forbidden)") && output.err.contains(REFUSED)),
            "{}",
            output.err
        );
        assert_eq!(admin.get(&own)["metadata"]["annotations"]["hami.io/bind-phase"], json!(null), "{}", output.out);
    }
}

/// A user can neither create a pod with a claim nor add, change or remove a claim, in any way in which annotations can be
/// written.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_user_cannot_forge_a_claim() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let node = lease.node.as_str();
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("guard-user"));
    let namespace = space.name.as_str();
    let ann = user(&admin, namespace);
    let refused = |what: &str, output: String| assert!(output.contains(REFUSED), "{what}: {output}");

    for key in POD_KEYS {
        let pod = sleeper(namespace, "forged", node).replacen(
            "name: forged",
            &format!("name: forged, annotations: {{{key}: '1'}}"),
            1,
        );
        let output = ann.create(&pod).refused();
        assert!(output.contains(REFUSED) && output.contains("not by ann") && output.contains(key), "{key}: {output}");
    }
    let labelled = sleeper(namespace, "forged", node).replacen(
        "name: forged",
        &format!("name: forged, labels: {{hami.io/vgpu-node: {node}}}"),
        1,
    );
    refused("a label", ann.create(&labelled).refused());

    let _ = ann.create(&sleeper(namespace, "own", node)).ok();
    let own = ["pod", "own", "-n", namespace];
    // Annotations of users stay free.
    for key in ["nvidia.com/use-gputype", "hami.io/enable-realtime-check", "hami.io/gpu-scheduler-policy", "team"] {
        let _ = annotate(&ann, &own, key, "1").ok();
    }
    for key in POD_KEYS {
        refused(key, annotate(&ann, &own, key, "1").refused());
    }
    refused(
        "label",
        ann.run(&["label", "pod", "own", "-n", namespace, &format!("hami.io/vgpu-node={node}")]).refused(),
    );
    let patch = r#"{"metadata":{"annotations":{"hami.io/bind-phase":"success"}}}"#;
    for more in [&["--type=merge"][..], &["--type=strategic"], &["--type=merge", "--subresource=status"]] {
        let output = ann.run(&[&["patch", "pod", "own", "-n", namespace, "-p", patch], more].concat()).refused();
        refused(&format!("{more:?}"), output);
    }
    by_subresources(&ann, &admin, namespace);
    // A user can neither change nor remove an existing claim, but can still change everything else of the pod.
    let _ = annotate(&admin, &own, "hami.io/vgpu-devices-allocated", "GPU-x,NVIDIA,3000,30:;").ok();
    refused("change", annotate(&ann, &own, "hami.io/vgpu-devices-allocated", "GPU-y,NVIDIA,3000,30:;").refused());
    refused("removal", remove(&ann, &own, "hami.io/vgpu-devices-allocated").refused());
    let _ = annotate(&ann, &own, "team", "2").ok();

    // The pod is not bound, and the API server merges the annotations of a Binding into the pod.
    let unbound = sleeper(namespace, "unbound", node).replace(&format!("nodeName: {node}"), "schedulerName: nobody");
    let _ = ann.create(&unbound).ok();
    let binding = |annotations: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Binding","metadata":{{"name":"unbound","namespace":"{namespace}","annotations":{annotations}}},"target":{{"apiVersion":"v1","kind":"Node","name":"{node}"}}}}"#
        )
    };
    let forged = binding(r#"{"hami.io/vgpu-devices-allocated":"GPU-x,NVIDIA,3000,30:;"}"#);
    for path in ["pods/unbound/binding", "bindings"] {
        let path = format!("/api/v1/namespaces/{namespace}/{path}");
        refused(&path, ann.run_with(&["create", "--raw", &path, "-f", "-"], &forged).refused());
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/unbound/binding");
    let _ = ann.run_with(&["create", "--raw", &path, "-f", "-"], &binding(r#"{"team":"2"}"#)).ok();
}

/// The kubelet's status updates and mirror pods work on a Node with system-owned keys. The kubelet itself may write
/// none of these keys.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_kubelet_works_under_the_guard() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let own = lease.node.as_str();
    let kubelet = format!("{own}-kubelet");
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("guard-kubelet"));
    let namespace = space.name.as_str();
    for key in NODE_KEYS {
        let _ = annotate(&admin, &["node", own], key, "1").ok();
    }
    // The kubelet writes its Node's status.
    let beat = || {
        let node = admin.get(&["node", own]);
        let conditions = node["status"]["conditions"].as_array().expect("conditions").clone();
        let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").expect("Ready");
        ready["lastHeartbeatTime"].as_str().expect("a time").to_owned()
    };
    cluster.part("restart", &kubelet);
    let first = beat();
    cluster.part("restart", &kubelet);
    eventually("a later heartbeat", READY, || (beat() > first).then_some(()));

    // A static pod, and the mirror pod that the kubelet creates for it. The kubelet would read text that begins with a
    // brace as JSON.
    let manifests = &cluster.node(own).manifests;
    let write = |name: &str, annotations: &str| {
        let pod = sleeper(namespace, name, "").replacen(
            &format!("name: {name}"),
            &format!("name: {name}, annotations: {{{annotations}}}"),
            1,
        );
        fs::write(manifests.join(name), format!("---\n{pod}")).expect("a manifest");
    };
    write("forged", "hami.io/bind-phase: success");
    write("static", "team: a");
    let mirror = format!("pod/static-{own}");
    admin.wait("create", READY, &[&mirror, "-n", namespace]);
    admin.wait("condition=Ready", READY, &[&mirror, "-n", namespace]);
    let log = cluster.status().parts.iter().find(|part| part.name == kubelet).expect("a kubelet").log.clone();
    eventually("the refusal of a mirror pod with an assignment", READY, || {
        fs::read_to_string(&log)
            .ok()?
            .lines()
            .any(|line| line.contains("mirror pod") && line.contains(REFUSED))
            .then_some(())
    });
    for name in ["forged", "static"] {
        fs::remove_file(manifests.join(name)).expect("the manifest exists");
    }
    // The kubelet's own identity may write no system-owned key.
    let user = format!("system:node:{own}");
    let kubelet = admin.impersonating(&user, &["system:nodes", "system:authenticated"]);
    for key in NODE_KEYS {
        let output = annotate(&kubelet, &["node", own], key, "forged").refused();
        assert!(output.contains(REFUSED) && output.contains(&format!("not by {user}")), "{key}: {output}");
    }
    for key in NODE_KEYS {
        let _ = remove(&admin, &["node", own], key).ok();
    }
}

/// Deployments work with pods that have system-owned keys. A Deployment whose template has such a key gets no pods.
#[test]
#[ignore = "needs cluster: tests/run"]
fn controllers_work_under_the_guard() {
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let node = lease.node.as_str();
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("guard-controllers"));
    let namespace = space.name.as_str();
    // A Deployment with a user's annotation, whose pods get a claim and become Ready.
    let deployment = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: well, namespace: {namespace}}}, spec: {{replicas: 2, \
         selector: {{matchLabels: {{app: well}}}}, template: {{metadata: {{labels: {{app: well}}, annotations: \
         {{nvidia.com/use-gputype: H100}}}}, spec: {{nodeSelector: {{kubernetes.io/hostname: {node}}}, terminationGracePeriodSeconds: 0, dnsPolicy: Default, containers: \
         [{{name: main, image: 'registry.local/busybox:1', command: [sleep, '100000']}}]}}}}}}}}"
    );
    let _ = admin.apply(&deployment).ok();
    let _ = admin.run(&["rollout", "status", "deployment/well", "-n", namespace, "--timeout=60s"]).ok();
    let pods = admin.get(&["pods", "-n", namespace, "-l", "app=well"]);
    let name = pods["items"][0]["metadata"]["name"].as_str().expect("a name").to_owned();
    let _ = annotate(&admin, &["pod", &name, "-n", namespace], "hami.io/bind-phase", "success").ok();
    let _ = admin.run(&["rollout", "restart", "deployment/well", "-n", namespace]).ok();
    let _ = admin.run(&["rollout", "status", "deployment/well", "-n", namespace, "--timeout=60s"]).ok();

    // A Deployment whose template has a system-owned key gets no pods, and its ReplicaSet says why.
    let forging =
        deployment.replace("well", "ill").replace("nvidia.com/use-gputype: H100", "hami.io/bind-phase: success");
    let _ = admin.apply(&forging).ok();
    eventually("the reason in the ReplicaSet", READY, || {
        let sets = admin.get(&["replicasets", "-n", namespace, "-l", "app=ill"]);
        let condition = &sets["items"][0]["status"]["conditions"][0];
        (condition["type"] == "ReplicaFailure" && condition["message"].as_str()?.contains(REFUSED)).then_some(())
    });
}

/// HAMi's accounts may write the keys only if the chart names the accounts.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn hamis_accounts_pass_only_if_the_chart_names_them() {
    let cluster = Cluster::up(&ClusterOptions::usual());
    install(&cluster, &HAMI);
    let (admin, space) = (cluster.admin(), cluster.namespace("guard-hami"));
    let role = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: as-hami}, rules: [\
                {apiGroups: [''], resources: [pods, nodes], verbs: [get, list, watch, patch]}]}";
    let _ = admin.apply(role).ok();
    let _ = admin.create(&sleeper(&space.name, "given", "node-1")).ok();
    let pod = ["pod", "given", "-n", space.name.as_str()];
    let scheduler = account(&admin, "kube-system", "hami-scheduler");
    let plugin = account(&admin, "kube-system", "hami-device-plugin");
    for name in ["hami-scheduler", "hami-device-plugin"] {
        let subject = format!("--serviceaccount=kube-system:{name}");
        let binding = format!("as-{name}");
        let _ = admin.run(&["create", "clusterrolebinding", &binding, "--clusterrole=as-hami", &subject]);
    }
    for key in POD_KEYS {
        let _ = annotate(&scheduler, &pod, key, "1").ok();
        let output = annotate(&plugin, &pod, key, "2").refused();
        assert!(output.contains(REFUSED), "{output}");
    }
    let _ = scheduler.run(&["label", "pod", "given", "-n", &space.name, "hami.io/vgpu-node=node-1"]).ok();
    for key in NODE_KEYS {
        let _ = annotate(&scheduler, &["node", "node-1"], key, "1").ok();
        let output = annotate(&plugin, &["node", "node-1"], key, "2").refused();
        assert!(output.contains(REFUSED), "{output}");
        let _ = remove(&scheduler, &["node", "node-1"], key).ok();
    }
    // Every account that may write to Nodes may write an administrator's key.
    let _ = annotate(&plugin, &["node", "node-1"], "hami.io/device-cordon", "GPU-x").ok();
    let _ = remove(&plugin, &["node", "node-1"], "hami.io/device-cordon").ok();
}

/// With `--assume-annotation` the extender's account may patch Nodes, and change one annotation there.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_extender_may_change_one_annotation_of_a_node() {
    const KEY: &str = "hami.io/node-nvidia-assume";
    const ROLE: &str = "gpu-steward-test-assumes";
    let cluster = Cluster::shared();
    let lease = cluster.lease();
    let node = lease.node.as_str();
    install(&cluster, &[]);
    let admin = cluster.admin();
    let values = ["extender.enabled=true", "extender.settings.assume-annotation=true"];
    let _ = admin.apply(&render(&["guard/extender"], &values)).ok();
    // The rights that the chart gives to the account of an extender, and more: the policy alone must refuse the other writes.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": ROLE },
        "rules": [
            { "apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch"] },
            { "apiGroups": ["gpu-steward.io"], "resources": ["systemkeys"], "verbs": ["own"] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": ROLE },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE },
        "subjects": [{ "kind": "ServiceAccount", "name": EXTENDER, "namespace": NAMESPACE }],
    });
    let _ = admin.apply(&format!("{role}\n---\n{binding}")).ok();
    let extender = account(&admin, NAMESPACE, EXTENDER);
    let patch = |patch: &Value, more: &[&str]| {
        let text = patch.to_string();
        extender.run(&[&["patch", "node", node, "--type=merge", "-p", &text], more].concat())
    };
    let annotation = |key: &str| json!({ "metadata": { "annotations": { key: "{}" } } });
    let other = "an extender may not change these annotations of node";
    eventually("the policy of the extender", READY, || {
        patch(&annotation("anything"), &["--dry-run=server"]).err.contains(other).then_some(())
    });
    let taint = json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } });
    for (change, more, why) in [
        (annotation("hami.io/node-nvidia-register"), &[][..], other),
        (annotation("hami.io/device-cordon"), &[], other),
        (json!({ "metadata": { "labels": { "team": "a" } } }), &[], "an extender may not change these labels of node"),
        (
            json!({ "metadata": { "finalizers": ["a.io/stay"] } }),
            &[],
            "an extender may not change the finalizers of node",
        ),
        (taint, &[], "an extender may not change the spec of node"),
        (annotation(KEY), &["--subresource=status"], "an extender may only change an annotation of a node"),
    ] {
        let output = patch(&change, more).refused();
        assert!(output.contains(why), "{change}: {output}");
    }
    let _ = patch(&annotation(KEY), &[]).ok();
    let _ = patch(&json!({ "metadata": { "annotations": { KEY: null } } }), &[]).ok();
    let _ = admin.run(&["delete", "clusterrole,clusterrolebinding", ROLE]).ok();
}
