//! Tests how the API server handles a pod that requests GPUs and would weaken its own limits. Promise 26 in
//! docs/specification.md.

use crate::chart::{install, render};
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::{CommandOutput, Kubectl};
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const NAMES: &str = "names a variable that carries limits of GPUs";
const MOUNTS: &str = "is where the limits of its GPUs are mounted";

/// A pod that requests a GPU and a priority, with these fields in its container.
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

fn with_variable(name: &str, value: &str) -> Value {
    json!({ "env": [{ "name": "TEAM", "value": "a" }, { "name": name, "value": value }] })
}

fn with_mount(path: &str) -> Value {
    json!({ "volumeMounts": [{ "name": "v", "mountPath": path }] })
}

/// The fields of the container, and the expected message, if any.
fn cases() -> Vec<(Value, Option<&'static str>)> {
    vec![
        (json!({}), None),
        (with_variable("NVIDIA_VISIBLE_DEVICES", "all"), Some(NAMES)),
        (with_variable("CUDA_DEVICE_MEMORY_LIMIT", "80g"), Some(NAMES)),
        (with_variable("CUDA_DEVICE_MEMORY_LIMIT_11", "80g"), Some(NAMES)),
        (with_variable("CUDA_DEVICE_SM_LIMIT_0", "100"), Some(NAMES)),
        (with_variable("CUDA_DISABLE_CONTROL", "true"), Some(NAMES)),
        (with_variable("GPU_CORE_UTILIZATION_POLICY", "disable"), Some(NAMES)),
        (with_variable("CUDA_TASK_PRIORITY", "1"), Some(NAMES)),
        // Values that HAMi's webhook adds: they repeat the request or weaken no limit.
        (with_variable("CUDA_TASK_PRIORITY", "0"), None),
        (with_variable("NVIDIA_VISIBLE_DEVICES", "void"), None),
        // The pod's own variables, and names that only look similar.
        (with_variable("CUDA_VISIBLE_DEVICES", "0"), None),
        (with_variable("MY_CUDA_DEVICE_MEMORY_LIMIT", "1"), None),
        (
            json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] }),
            Some(NAMES),
        ),
        // The pod does not contain the variables of a ConfigMap, so the policy cannot see them.
        (json!({ "envFrom": [{ "configMapRef": { "name": "loose" } }] }), None),
        (with_mount("/etc/gpu-steward"), Some(MOUNTS)),
        (with_mount("/etc/gpu-steward/limits.json"), Some(MOUNTS)),
        (with_mount("etc/ld.so.preload"), Some(MOUNTS)),
        (with_mount("/usr/local/vgpu/"), Some(MOUNTS)),
        (with_mount("/overrideEnv"), Some(MOUNTS)),
        (with_mount("/data/../overrideEnv"), Some(MOUNTS)),
        (with_mount("/etc//gpu-steward"), Some(MOUNTS)),
        (with_mount("/tmp"), None),
        (with_mount("/etc/gpu-steward-of-mine"), None),
        (with_mount("/data/.cache"), None),
    ]
}

fn dry_run(admin: &Kubectl, pod: &Value) -> CommandOutput {
    admin.run_with(&["create", "--dry-run=server", "-f", "-"], &pod.to_string())
}

/// A second copy of the policy and its binding, with `deny`, for one namespace.
struct DenyPolicy<'a>(&'a Kubectl);

impl DenyPolicy<'_> {
    const NAME: &'static str = "test-reserved";

    fn within<'a>(admin: &'a Kubectl, namespace: &str) -> DenyPolicy<'a> {
        let text = render(&["guard/reserved"], &["guard.reserved.action=deny"]);
        assert!(text.contains("validationActions: [Deny]") && text.contains("failurePolicy: Fail"), "{text}");
        let here = format!(
            "matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}\n  validationActions:"
        );
        let text = text.replace("gpu-steward-reserved", DenyPolicy::NAME).replace("validationActions:", &here);
        let _ = admin.apply(&text).ok();
        DenyPolicy(admin)
    }
}

impl Drop for DenyPolicy<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let _ = self.0.run(&["delete", kind, DenyPolicy::NAME]);
        }
    }
}

/// With `warn` the API server accepts such a pod with a warning, and with `deny` it refuses the pod. Pods without GPUs are
/// not affected.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_that_would_loosen_its_limits_gets_a_warning_or_is_refused() {
    let cluster = Cluster::shared();
    install(&cluster, &[]);
    let (admin, space) = (cluster.admin(), cluster.namespace("reserved"));
    let namespace = space.name.as_str();
    let worst = pod(namespace, &with_variable("NVIDIA_VISIBLE_DEVICES", "all"));
    eventually("the warning", SOON, || dry_run(&admin, &worst).err.contains("Warning").then_some(()));
    for (extra, expected) in cases() {
        let output = dry_run(&admin, &pod(namespace, &extra));
        assert!(output.success, "{extra}: {}", output.err);
        let fits = expected
            .map_or(!output.err.contains("reserved"), |word| output.err.contains(word) && output.err.contains("main"));
        assert!(fits, "{extra}: {}", output.err);
    }
    let deny_policy = DenyPolicy::within(&admin, namespace);
    eventually("the refusal", SOON, || (!dry_run(&admin, &worst).success).then_some(()));
    for (extra, expected) in cases() {
        let output = dry_run(&admin, &pod(namespace, &extra));
        assert_eq!(output.success, expected.is_none(), "{extra}: {}", output.err);
    }
    // The same holds for an init container, and for a container that is added to a running pod.
    let mut in_init = pod(namespace, &json!({}));
    in_init["spec"]["initContainers"] =
        json!([{ "name": "warm", "image": "a", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }]);
    assert!(dry_run(&admin, &in_init).refused().contains("env of warm names"));
    let _ = admin.create(&pod(namespace, &json!({})).to_string()).ok();
    let path = format!("/api/v1/namespaces/{namespace}/pods/own/ephemeralcontainers");
    let mut added = admin.get(&["pod", "own", "-n", namespace]);
    added["spec"]["ephemeralContainers"] =
        json!([{ "name": "debug", "image": "a", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }]);
    added["metadata"]["resourceVersion"] = Value::Null;
    let output = admin.run_with(&["replace", "--raw", &path, "-f", "-"], &added.to_string()).refused();
    assert!(output.contains("env of debug names"), "{output}");

    let mut plain = worst.clone();
    plain["metadata"]["name"] = "plain".into();
    plain["spec"]["containers"][0]["resources"] = json!({});
    let _ = dry_run(&admin, &plain).ok();
    drop(deny_policy);
}
