//! `gpu-steward doctor` against a real API server: pods that wait for the reasons of its decision tree, and the leader, which it
//! reaches by a port forwarded through API server, kubelet and container runtime.

use crate::built::binary;
use crate::chart::NAMESPACE;
use crate::guides;
use crate::placed::{Placed, container, spec};
use lab::cluster::TestNamespace;
use lab::eventually::eventually;
use lab::kubectl::{CommandOutput, Kubectl};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The name of each object of this file that belongs to no namespace.
const NAME: &str = "gpu-steward-doctor-test";
/// The kinds of these objects.
const KINDS: [&str; 5] = [
    "validatingadmissionpolicybinding",
    "validatingadmissionpolicy",
    "validatingwebhookconfiguration",
    "storageclass",
    "node",
];
/// The pods whose bindings the API server cannot store, and refuses.
const UNWELL: &str = "unwell";
const BARRED: &str = "barred";
/// Longest time until a pod waits for its reason. A pod that fits must wait for 30 s before another plugin is the reason.
const FOUND: Duration = Duration::from_secs(90);

/// Pods that are made together, the flags with which `doctor` is asked about each, and the only code that it finds beside notes.
const LEAVES: [(&str, &[&str], &str); 14] = [
    ("none", &[], "PodNotFound"),
    ("holder", &[], "PodBound"),
    ("many", &[], "NodeInsufficientDevice"),
    ("alone", &[], "ExclusiveDeviceAllocateConflict"),
    ("type", &[], "CardTypeMismatch"),
    ("unreadable", &[], "FilteringFailed"),
    ("elsewhere", &[], "RefusedBeforeGpus"),
    ("plain", &[], "NoGpuRequested"),
    ("other", &[], "OtherScheduler"),
    ("other", &["--scheduler-name", "nobody"], "NoEvent"),
    ("gated", &[], "SchedulingGated"),
    ("broken", &[], "PodNotStarted"),
    (BARRED, &[], "BindingForbidden"),
    (UNWELL, &[], "ApiServerUnwell"),
];

/// Pods that wait, in a namespace of their own, and what stops some of them.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    placed: &'a Placed,
    space: TestNamespace,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // No panic here: it would hide the panic of the test.
        let _ = remove(&self.placed.admin);
    }
}

/// Removes the objects that belong to no namespace.
fn remove(admin: &Kubectl) -> CommandOutput {
    let names = KINDS.map(|kind| format!("{kind}/{NAME}"));
    let mut words = vec!["delete", "--ignore-not-found", "--wait=false"];
    words.extend(names.iter().map(String::as_str));
    admin.run(&words)
}

impl Waiting<'_> {
    /// Makes the namespace, and what keeps two pods from being bound. A policy comes into force some seconds after its creation, so
    /// this is done long before [`Waiting::check`].
    pub(crate) fn prepare(placed: &Placed) -> Waiting<'_> {
        // A killed test may have left them in a cluster that was kept.
        let _ = remove(&placed.admin).ok();
        let waiting = Waiting { placed, space: placed.cluster.namespace("doctor") };
        let space = &waiting.space.name;
        let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"] }]);
        let only = |pod: &str| json!([{ "name": "one-pod", "expression": format!("request.namespace == '{space}' && request.name == '{pod}'") }]);
        let version = "admissionregistration.k8s.io/v1";
        waiting.create(&[
            json!({
                "apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": NAME },
                "spec": {
                    "failurePolicy": "Fail", "matchConstraints": { "resourceRules": rules }, "matchConditions": only(BARRED),
                    "validations": [{ "expression": "false", "reason": "Forbidden", "message": "this pod is not bound" }],
                },
            }),
            json!({
                "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": NAME },
                "spec": { "policyName": NAME, "validationActions": ["Deny"] },
            }),
            // Nobody listens there, so the API server answers each of these bindings with 500.
            json!({
                "apiVersion": version, "kind": "ValidatingWebhookConfiguration", "metadata": { "name": NAME },
                "webhooks": [{
                    "name": "unwell.gpu-steward.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "timeoutSeconds": 1, "failurePolicy": "Fail", "clientConfig": { "url": "https://127.0.0.1:9/" },
                    "rules": rules, "matchConditions": only(UNWELL),
                }],
            }),
            // Nobody makes its volumes, so kube-scheduler holds a pod for which the extender has found a node.
            json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": NAME },
                "provisioner": "gpu-steward.test/nobody", "volumeBindingMode": "WaitForFirstConsumer",
            }),
        ]);
        waiting
    }

    /// Checks `doctor nodes`, each leaf, and the commands of the guides. Afterwards no agent and no extender runs.
    pub(crate) fn check(&self) {
        let begun = Instant::now();
        self.check_nodes();
        self.create_pods();
        for (pod, flags, code) in LEAVES {
            let _ = self.leaf(pod, code, flags);
        }
        let refused = self.leaf("large", "CardInsufficientMemory", &[]).to_string();
        assert!(refused.contains("claims leave"), "the leader's live use of memory: {refused}");
        guides::check(self.placed, (&self.space.name, "large"));
        let pods = ["delete", "pod", UNWELL, BARRED, "-n", &self.space.name, "--wait=false"];
        let _ = self.placed.admin.run(&pods).ok();
        self.check_whole_node();
        let _ = self.leaf("stopped", "StoppedByOtherPlugin", &[]);
        let off = ["scale", "deployment/gpu-steward-extender", "-n", NAMESPACE, "--replicas=0"];
        let _ = self.placed.admin.run(&off).ok();
        let _ = self.leaf("other", "SchedulerNotRunning", &[]);
        println!("the leaves of doctor took {:.1} s", begun.elapsed().as_secs_f64());
    }

    /// Nothing is wrong with the nodes, and the leader says so too.
    fn check_nodes(&self) {
        let (_, report) = doctor(self.placed, &["nodes"]);
        assert!(!report.to_string().contains("LeaderNotSeen"), "{report:#}");
        assert_eq!(found(&report), Vec::<&str>::new(), "{report:#}");
        let rows = report["rows"].as_array().expect("rows").iter();
        let open = rows.filter(|row| row["stream"] == "open" && row["register"] == "ok").count();
        assert_eq!(open, self.placed.cluster.status().nodes.len(), "{report:#}");
    }

    /// The pods of all leaves that need no other cluster.
    fn create_pods(&self) {
        let node = &self.placed.cluster.status().nodes[0].name;
        let here = json!({ "kubernetes.io/hostname": node });
        let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000 });
        let on_all = json!({ "nvidia.com/gpu": 4, "nvidia.com/gpumem": 1000 });
        self.create(&[with(pod("holder", &on_all), "nodeSelector", here.clone())]);
        let _ = self.leaf("holder", "PodBound", &[]);
        let whole = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 100 });
        let mut typed = pod("type", &share);
        typed["metadata"]["annotations"] = json!({ "nvidia.com/use-gputype": "A100" });
        let mut broken = pod("broken", &json!({}));
        broken["spec"]["containers"][0]["image"] = "registry.local/none:1".into();
        broken["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
        let volume = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
        self.create(&[
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
                "spec": {
                    "storageClassName": NAME, "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } },
                },
            }),
            with(pod("stopped", &share), "volumes", volume),
            pod("many", &json!({ "nvidia.com/gpu": 5, "nvidia.com/gpumem": 1000 })),
            pod("large", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 200_000 })),
            with(pod("alone", &whole), "nodeSelector", here),
            typed,
            pod("unreadable", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": "3Gi" })),
            with(pod("elsewhere", &share), "nodeSelector", json!({ "gpu-steward.test/none": "true" })),
            with(pod("plain", &json!({})), "schedulerName", "nobody".into()),
            with(pod("other", &share), "schedulerName", "nobody".into()),
            with(pod("gated", &share), "schedulingGates", json!([{ "name": "gpu-steward.test/gate" }])),
            broken,
            pod(BARRED, &share),
            pod(UNWELL, &share),
        ]);
    }

    /// The leaves about a Node as a whole: it has no register; its handshake is old; what it shows does not say why it was refused.
    fn check_whole_node(&self) {
        let admin = &self.placed.admin;
        // The agents tolerate every taint, and the Node has no kubelet that could end the pod of one.
        let _ = admin.run(&["delete", "daemonset/gpu-steward-agent", "-n", NAMESPACE, "--cascade=foreground"]).ok();
        let amounts = json!({ "cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": "80" });
        let conditions = json!([{ "type": "Ready", "status": "True" }]);
        let labels = json!({ "kubernetes.io/hostname": NAME });
        let waits =
            with(pod("whole", &json!({ "nvidia.com/gpu": 1 })), "tolerations", json!([{ "operator": "Exists" }]));
        self.create(&[
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": NAME, "labels": labels },
                "status": { "capacity": amounts, "allocatable": amounts, "conditions": conditions },
            }),
            with(waits, "nodeSelector", labels.clone()),
        ]);
        let _ = self.leaf("whole", "NodeUnregistered", &[]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
        let handshake = |at: u64| {
            let key = format!("hami.io/node-handshake={at}");
            let _ = admin.run(&["annotate", "node", NAME, "--overwrite", &key]).ok();
        };
        handshake(now - 1000);
        let _ = self.leaf("whole", "HandshakeStale", &[]);
        // From now on kube-scheduler itself refuses the Node, so the extender's refusal stays its last decision.
        let none = json!({ "status": { "allocatable": { "nvidia.com/gpu": "0" } } }).to_string();
        let _ = admin.run(&["patch", "node", NAME, "--subresource=status", "--type=merge", "-p", &none]).ok();
        let gpu = json!([{
            "id": "GPU-d0c70000-0000-4000-8000-000000000000", "index": 0, "count": 10, "devmem": 81_920, "devcore": 100,
            "type": "NVIDIA-NVIDIA H100", "numa": 0, "mode": "hami-core", "health": true,
        }]);
        let register = format!("hami.io/node-nvidia-register={gpu}");
        let _ = admin.run(&["annotate", "node", NAME, &register]).ok();
        handshake(now);
        let _ = self.leaf("whole", "NodeUnfitPod", &[]);
    }

    /// Waits until `doctor` finds only this about the pod, beside notes. Returns its report.
    fn leaf(&self, name: &str, code: &str, flags: &[&str]) -> Value {
        let (begun, pod) = (Instant::now(), format!("{}/{name}", self.space.name));
        eventually(&format!("pod {name} to be {code}"), 2 * FOUND, || {
            let (exit, report) = doctor(self.placed, &[&["pod", pod.as_str()][..], flags].concat());
            if found(&report) == [code] {
                assert_eq!(exit, i32::from(report["verdict"] != "well"), "{report:#}");
                let all_is_seen = !report.to_string().contains("NotLookedAt");
                assert!(all_is_seen || code == "SchedulerNotRunning", "{report:#}");
                return Some(report);
            }
            assert!(begun.elapsed() < FOUND, "pod {name} is not {code}: {report:#}");
            None
        })
    }

    fn create(&self, items: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let _ = self.placed.admin.run_with(&["create", "-n", &self.space.name, "-f", "-"], &list).ok();
    }
}

/// A pod of one container with these limits.
fn pod(name: &str, limits: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec(&[container("main", limits)]) })
}

/// The same pod with this field in its spec.
fn with(mut pod: Value, field: &str, value: Value) -> Value {
    pod["spec"][field] = value;
    pod
}

/// The exit code and the report of a command of `doctor`, with the credentials of an administrator.
fn doctor(placed: &Placed, words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(binary());
    command.arg("doctor").args(words).args(["-o", "json", "--kubeconfig"]).arg(&placed.cluster.status().kubeconfig);
    let output = command.stdin(Stdio::null()).output().expect("the program can be run");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
    (output.status.code().expect("an exit code"), report)
}

/// The codes of the findings of a report, without the notes.
fn found(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings.filter(|finding| finding["verdict"] != "note").filter_map(|finding| finding["code"].as_str()).collect()
}
