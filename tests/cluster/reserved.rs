//! What the API server says of a pod that asks for GPUs and would loosen its own limits. Promise 26 in docs/specification.md.

use crate::chart::{install, render};
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::{CommandOutput, Kubectl};
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const NAMES: &str = "names a variable that carries limits of GPUs";
const MOUNTS: &str = "is where the limits of its GPUs are mounted";

/// A pod that asks for a GPU and for a priority, with this in its container.
fn pod(namespace: &str, extra: &Value) -> Value {
    let mut container = json!({
        "name": "main", "image": "registry.local/busybox:1",
        "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/priority": "0" } },
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "own", "namespace": namespace },
        "spec": { "schedulerName": "nobody", "containers": [container], "volumes": [{ "name": "v", "emptyDir": {} }] },
    })
}

fn named(name: &str, value: &str) -> Value {
    json!({ "env": [{ "name": "TEAM", "value": "a" }, { "name": name, "value": value }] })
}

fn mounted(path: &str) -> Value {
    json!({ "volumeMounts": [{ "name": "v", "mountPath": path }] })
}

/// What is said, and whether anything is.
fn cases() -> Vec<(Value, Option<&'static str>)> {
    vec![
        (json!({}), None),
        (named("NVIDIA_VISIBLE_DEVICES", "all"), Some(NAMES)),
        (named("CUDA_DEVICE_MEMORY_LIMIT", "80g"), Some(NAMES)),
        (named("CUDA_DEVICE_MEMORY_LIMIT_11", "80g"), Some(NAMES)),
        (named("CUDA_DEVICE_SM_LIMIT_0", "100"), Some(NAMES)),
        (named("CUDA_DISABLE_CONTROL", "true"), Some(NAMES)),
        (named("GPU_CORE_UTILIZATION_POLICY", "disable"), Some(NAMES)),
        (named("CUDA_TASK_PRIORITY", "1"), Some(NAMES)),
        // As a webhook adds them: what the pod asks for, and what opens nothing.
        (named("CUDA_TASK_PRIORITY", "0"), None),
        (named("NVIDIA_VISIBLE_DEVICES", "void"), None),
        // A pod's own, and names that only look alike.
        (named("CUDA_VISIBLE_DEVICES", "0"), None),
        (named("MY_CUDA_DEVICE_MEMORY_LIMIT", "1"), None),
        (
            json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] }),
            Some(NAMES),
        ),
        // A ConfigMap's variables are not in the pod: this cannot be seen.
        (json!({ "envFrom": [{ "configMapRef": { "name": "loose" } }] }), None),
        (mounted("/etc/gpu-steward"), Some(MOUNTS)),
        (mounted("/etc/gpu-steward/limits.json"), Some(MOUNTS)),
        (mounted("etc/ld.so.preload"), Some(MOUNTS)),
        (mounted("/usr/local/vgpu/"), Some(MOUNTS)),
        (mounted("/overrideEnv"), Some(MOUNTS)),
        (mounted("/data/../overrideEnv"), Some(MOUNTS)),
        (mounted("/etc//gpu-steward"), Some(MOUNTS)),
        (mounted("/tmp"), None),
        (mounted("/etc/gpu-steward-of-mine"), None),
        (mounted("/data/.cache"), None),
    ]
}

fn tried(admin: &Kubectl, pod: &Value) -> CommandOutput {
    admin.run_with(&["create", "--dry-run=server", "-f", "-"], &pod.to_string())
}

/// The policy and its binding once more, as they are with `deny`, for one namespace.
struct Denying<'a>(&'a Kubectl);

impl Denying<'_> {
    const NAME: &'static str = "test-reserved";

    fn within<'a>(cluster: &Cluster, admin: &'a Kubectl, namespace: &str) -> Denying<'a> {
        let text = render(cluster, &["guard/reserved"], &["guard.reserved.action=deny"]);
        assert!(text.contains("validationActions: [Deny]") && text.contains("failurePolicy: Fail"), "{text}");
        let here = format!(
            "matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}\n  validationActions:"
        );
        let text = text.replace("gpu-steward-reserved", Denying::NAME).replace("validationActions:", &here);
        let _ = admin.apply(&text).ok();
        Denying(admin)
    }
}

impl Drop for Denying<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let _ = self.0.run(&["delete", kind, Denying::NAME]);
        }
    }
}

/// With `warn` whoever makes such a pod is told and the pod is taken; with `deny` it is refused; a pod without GPUs is nobody's
/// business.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_that_would_loosen_its_limits_is_warned_of_or_refused() {
    let cluster = Cluster::shared();
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("reserved"));
    let namespace = space.name.as_str();
    let worst = pod(namespace, &named("NVIDIA_VISIBLE_DEVICES", "all"));
    eventually("the warning", SOON, || tried(&admin, &worst).err.contains("Warning").then_some(()));
    for (extra, says) in cases() {
        let said = tried(&admin, &pod(namespace, &extra));
        assert!(said.well, "{extra}: {}", said.err);
        let fits =
            says.map_or(!said.err.contains("reserved"), |word| said.err.contains(word) && said.err.contains("main"));
        assert!(fits, "{extra}: {}", said.err);
    }
    let denying = Denying::within(&cluster, &admin, namespace);
    eventually("the refusal", SOON, || (!tried(&admin, &worst).well).then_some(()));
    for (extra, says) in cases() {
        let said = tried(&admin, &pod(namespace, &extra));
        assert_eq!(said.well, says.is_none(), "{extra}: {}", said.err);
    }
    // In an init container, and in one that is added to a running pod.
    let mut early = pod(namespace, &json!({}));
    early["spec"]["initContainers"] =
        json!([{ "name": "warm", "image": "a", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }]);
    assert!(tried(&admin, &early).refused().contains("env of warm names"));
    let _ = admin.create(&pod(namespace, &json!({})).to_string()).ok();
    let path = format!("/api/v1/namespaces/{namespace}/pods/own/ephemeralcontainers");
    let mut later = admin.get(&["pod", "own", "-n", namespace]);
    later["spec"]["ephemeralContainers"] =
        json!([{ "name": "debug", "image": "a", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }]);
    later["metadata"]["resourceVersion"] = Value::Null;
    let said = admin.run_with(&["replace", "--raw", &path, "-f", "-"], &later.to_string()).refused();
    assert!(said.contains("env of debug names"), "{said}");

    let mut plain = worst.clone();
    plain["metadata"]["name"] = "plain".into();
    plain["spec"]["containers"][0]["resources"] = json!({});
    let _ = tried(&admin, &plain).ok();
    drop(denying);
}
