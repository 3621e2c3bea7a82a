//! Tests the policy about the shape of pods: what no pod of a user may have, because it hurts others. A real API server refuses it,
//! and allows what only looks similar.

use crate::chart::{NAMESPACE, install};
use crate::guard::{READY, user};
use lab::cluster::{Cluster, TestNamespace};
use lab::eventually::eventually;
use lab::kubectl::{CommandOutput, Kubectl};
use serde_json::{Map, Value, json};

/// What the API server adds to each pod.
const OWN_TOLERATIONS: usize = 2;
const NAME_OF_NAMESPACE: &str = "kubernetes.io/metadata.name";

/// A user who may create pods in a namespace.
struct PodOwner {
    user: Kubectl,
    space: TestNamespace,
}

impl PodOwner {
    /// With the policy in force.
    fn new(cluster: &Cluster, namespace: &str) -> PodOwner {
        install(cluster, &[]);
        let space = cluster.namespace(namespace);
        let owner = PodOwner { user: user(&cluster.admin(), &space.name), space };
        let everywhere = json!({ "namespaces": [NAMESPACE], "labelSelector": {} });
        eventually("the policy about the shape of pods", READY, || {
            (!owner.stays_apart(&everywhere).success).then_some(())
        });
        owner
    }

    /// A pod that no scheduler places.
    fn pod(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": self.space.name },
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "registry.local/busybox:1" }] },
        })
    }

    /// Asks for a pod with this value at this place.
    fn creates(&self, place: &str, value: Value) -> CommandOutput {
        let mut pod = self.pod("shaped");
        let (parent, key) = place.rsplit_once('/').expect("a place in the pod");
        pod.pointer_mut(parent).expect("a part of the pod")[key] = value;
        self.asks_for(&pod)
    }

    /// Asks for a pod, without creating it.
    fn asks_for(&self, pod: &Value) -> CommandOutput {
        self.user.run_with(&["create", "--dry-run=server", "-f", "-"], &pod.to_string())
    }

    /// Asks for a pod with a required anti-affinity with this term.
    fn stays_apart(&self, term: &Value) -> CommandOutput {
        let mut term = term.clone();
        term["topologyKey"] = "kubernetes.io/os".into();
        let rule = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
        self.creates("/spec/affinity", rule)
    }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
}

fn by_label(key: &str, value: &str) -> Value {
    json!({ "matchLabels": { key: value } })
}

/// With two such pods on different nodes, no new pod of gpu-steward would be scheduled.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_that_may_keep_those_of_gpu_steward_away_is_refused() {
    let owner = PodOwner::new(&Cluster::shared(), "shape-affinity");
    let ours = by_label("app.kubernetes.io/name", "gpu-steward");
    let exists = |key: &str, operator: &str| json!({ "matchExpressions": [{ "key": key, "operator": operator }] });
    for (spaces, labels) in [
        (json!({ "namespaces": ["other", NAMESPACE] }), &ours),
        (json!({ "namespaceSelector": {} }), &json!({})),
        (json!({ "namespaceSelector": by_label(NAME_OF_NAMESPACE, NAMESPACE) }), &json!({})),
        (json!({ "namespaceSelector": by_label("team", "a") }), &ours),
        (json!({ "namespaceSelector": expression(NAME_OF_NAMESPACE, "NotIn", &["other"]) }), &json!({})),
        (json!({ "namespaceSelector": {} }), &exists("app", "DoesNotExist")),
        (json!({ "namespaceSelector": {} }), &expression("app", "NotIn", &["db"])),
        (json!({ "namespaceSelector": {} }), &exists("pod-template-hash", "Exists")),
        (json!({ "namespaceSelector": {} }), &by_label("app.kubernetes.io/component", "agent")),
    ] {
        let mut term = spaces;
        term["labelSelector"] = labels.clone();
        let output = owner.stays_apart(&term).refused();
        let told =
            output.contains("may match the pods of gpu-steward") && output.contains("the labels of your own pods");
        assert!(told, "{term}: {output}");
    }
    for term in [
        json!({ "labelSelector": {} }),
        json!({ "namespaceSelector": {} }),
        json!({ "namespaces": ["other"], "labelSelector": {} }),
        json!({ "namespaceSelector": {}, "labelSelector": by_label("app", "db") }),
        json!({ "namespaceSelector": {}, "labelSelector": by_label("app.kubernetes.io/name", "db") }),
        json!({ "namespaceSelector": {}, "labelSelector": expression("app.kubernetes.io/instance", "In", &["db"]) }),
        json!({ "namespaceSelector": by_label(NAME_OF_NAMESPACE, "other"), "labelSelector": {} }),
        json!({ "namespaceSelector": expression(NAME_OF_NAMESPACE, "NotIn", &[NAMESPACE]), "labelSelector": {} }),
    ] {
        let _ = owner.stays_apart(&term).ok();
    }
}

fn entries(count: usize) -> Value {
    (0..count).map(|at| (format!("k{at}"), json!(""))).collect::<Map<String, Value>>().into()
}

fn list(count: usize, entry: impl Fn(usize) -> Value) -> Value {
    (0..count).map(entry).collect::<Vec<Value>>().into()
}

fn owner_named(name: &str) -> Value {
    json!({ "apiVersion": "a/v1", "kind": "A", "name": name, "uid": name })
}

/// The place of a part of a pod, the part with this many entries, how many are allowed, and how the refusal calls them.
type PodPart = (&'static str, fn(usize) -> Value, usize, &'static str);

const COUNTED: [PodPart; 10] = [
    ("/metadata/labels", entries, 64, "at most 64 labels, and this one has 65"),
    ("/metadata/annotations", entries, 1000, "at most 1000 annotations, and this one has 1001"),
    ("/metadata/annotations", |length| json!({ "a": "b".repeat(length) }), (32 << 10) - 1, "have at most 32768 bytes"),
    ("/metadata/finalizers", |count| list(count, |at| json!(format!("a.example/f{at}"))), 20, "at most 20 finalizers"),
    (
        "/metadata/ownerReferences",
        |count| list(count, |at| owner_named(&format!("a{at}"))),
        20,
        "at most 20 ownerReferences",
    ),
    (
        "/metadata/ownerReferences",
        |length| json!([owner_named(&"a".repeat(length))]),
        317,
        "has more than 317 characters",
    ),
    (
        "/spec/tolerations",
        |count| list(count, |at| json!({ "key": format!("k{at}"), "operator": "Exists" })),
        200 - OWN_TOLERATIONS,
        "at most 200 tolerations, and this one has 201",
    ),
    (
        "/spec/affinity",
        |count| {
            let term = json!({ "topologyKey": "a", "labelSelector": by_label("a", "b") });
            json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": vec![term; count] } })
        },
        50,
        "at most 50 terms",
    ),
    (
        "/spec/topologySpreadConstraints",
        |count| {
            list(
                count,
                |at| json!({ "maxSkew": 1, "topologyKey": format!("k{at}"), "whenUnsatisfiable": "ScheduleAnyway" }),
            )
        },
        50,
        "at most 50 topologySpreadConstraints",
    ),
    (
        "/spec/initContainers",
        |count| list(count, |at| json!({ "name": format!("c{at}"), "image": "registry.local/busybox:1" })),
        64 - 1,
        "at most 64 containers, init containers included",
    ),
];

/// What the kubelet and the runtime keep or repeat of each container.
const OF_CONTAINERS: [PodPart; 9] = [
    ("/spec/containers/0/image", |length| "a".repeat(length).into(), 512, "more than 512 characters"),
    (
        "/spec/containers/0/ports",
        |length| json!([{ "containerPort": 80, "hostIP": "1".repeat(length) }]),
        64,
        "is no IP address",
    ),
    (
        "/metadata/labels",
        |length| {
            let mut labels = Map::new();
            let key = |at: usize| format!("a.example/{at:02}{}", "k".repeat(61));
            (0..60).for_each(|at| drop(labels.insert(key(at), json!("v".repeat(63)))));
            labels.insert("more".into(), json!("v".repeat(length)));
            labels.into()
        },
        8192 - 60 * (73 + 63) - 4,
        "the labels of a pod may have at most 8192 bytes",
    ),
    (
        "/spec/containers/0/lifecycle",
        |length| json!({ "preStop": { "exec": { "command": ["<".repeat(length)] } } }),
        2048 - 3,
        "the preStop hooks of a pod",
    ),
    (
        "/spec/containers/0/lifecycle",
        |length| {
            let headers = json!([{ "name": "a", "value": "b".repeat(length) }]);
            json!({ "preStop": { "httpGet": { "port": 80, "path": "/", "httpHeaders": headers } } })
        },
        2048 - 22,
        "the preStop hooks of a pod",
    ),
    (
        "/spec/containers/0/terminationMessagePath",
        |length| "/".repeat(length).into(),
        4 << 10,
        "the terminationMessagePath of all containers",
    ),
    (
        "/spec/containers/0/ports",
        |count| list(count, |at| json!({ "containerPort": at + 1 })),
        128,
        "at most 128 ports, and this one has 129",
    ),
    (
        "/metadata/annotations",
        |length| json!({ "blockio.resources.beta.kubernetes.io/pod": "a".repeat(length) }),
        253,
        "has more than 253 characters",
    ),
    (
        "/metadata/annotations",
        |length| json!({ "rdt.resources.beta.kubernetes.io/container.main": "a".repeat(length) }),
        253,
        "has more than 253 characters",
    ),
];

/// Of each part as much as is allowed, and one more.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_that_is_too_large_for_the_api_server_or_a_kubelet_is_refused() {
    let owner = PodOwner::new(&Cluster::shared(), "shape-size");
    for (place, part, most, why) in COUNTED.into_iter().chain(OF_CONTAINERS) {
        let _ = owner.creates(place, part(most)).ok();
        let output = owner.creates(place, part(most + 1)).refused();
        assert!(output.contains(why), "{place}: {output}");
    }
    let mut mirror = owner.pod("mirror");
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "a" });
    mirror["spec"]["nodeName"] = "node-1".into();
    mirror["spec"]["automountServiceAccountToken"] = false.into();
    let mirror = owner.asks_for(&mirror).refused();
    assert!(mirror.contains("only a kubelet creates mirror pods"), "{mirror}");
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_grows_only_up_to_its_bounds() {
    let owner = PodOwner::new(&Cluster::shared(), "shape-growth");
    let namespace = owner.space.name.as_str();
    let mut pod = owner.pod("large");
    pod["metadata"]["labels"] = entries(64);
    let _ = owner.user.create(&pod.to_string()).ok();
    let label = |changes: &[&str]| owner.user.run(&[&["label", "pod", "large", "-n", namespace], changes].concat());
    let output = label(&["one=more"]).refused();
    assert!(output.contains("at most 64 labels, and this one has 65"), "{output}");
    let _ = label(&["k0-", "one=more"]).ok();

    // What agents and schedulers write fits beside it, and the kubelet's status too.
    pod = owner.pod("annotated");
    pod["metadata"]["annotations"] = json!({ "a": "b".repeat((32 << 10) - 1) });
    let _ = owner.user.create(&pod.to_string()).ok();
    let annotate = |by: &Kubectl| by.run(&["annotate", "pod", "annotated", "-n", namespace, "more=text"]);
    assert!(annotate(&owner.user).refused().contains("have at most 32768 bytes"));
    let admin = Cluster::shared().admin();
    let _ = annotate(&admin).ok();
    let status = r#"{"status":{"message":"of a kubelet"}}"#;
    let _ = admin.run(&["patch", "pod", "annotated", "-n", namespace, "--subresource=status", "-p", status]).ok();
}
