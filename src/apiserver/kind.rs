//! The kinds of objects that are followed: which objects, how many, and what identifies an object.

use crate::client::{ApiClient, ApiSelection, ObjectForm, ReadAge};
use crate::error::ApiError;
use crate::resource::ApiResource;
use model::followed_node::{FollowedNode, MAX_CLUSTER_NODES};
use model::id::{NodeName, ObjectUid, PodUid};
use model::placement::PlacementRequest;
use model::pod::{
    ContainerState, LabelKeys, MAX_CLUSTER_PODS, MAX_LEFT_OUT_PODS, MAX_POD_OBJECTS, MAX_UNPROVEN_PODS, Pod,
    PodContainer, PodPhase,
};
use model::pod_memory::{MAX_CLUSTER_PODS_BYTES, MAX_NODE_PODS_BYTES, MAX_WAITING_REQUEST_BYTES};
use model::time::{Arrival, WallTime};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use wire::annotation_keys::{
    ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, CLAIM_VERSION, EPOCH, EVICT, LEADS, LEASE, PLACED_BY,
};
use wire::resource::RequestRules;
use wire::watch::{NodePods, WatchedKind};
use wire::{gpu_pod, placement};

/// How much it matters that an object is held, least first. If there are too many objects, the objects that matter least are left
/// out. Anyone who may create pods can create any number of pods, bind them to a node and keep them from ending. So the classes
/// depend only on what a scheduler or the kubelet writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// The object holds no devices.
    HoldsNothing,
    /// A pod of a node that has ended. Its containers may still be stopping.
    Ended,
    /// A pod without devices that the kubelet has begun with: its name is shown.
    Named,
    /// A pod that requests devices but may get none: no scheduler has given it a claim, and the kubelet has not begun with it. In the
    /// cluster, none of its containers with a request has run.
    Unproven,
    /// The object may hold devices.
    MayHold,
}

/// A kind of objects that a follower can follow.
pub trait Followed:
    WatchedKind<Object: Debug + Clone + PartialEq + Send + Sync, Uid: Debug + Clone + Ord + Hash + Send + Sync>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// Maximum number of held objects. Objects beyond it are only counted.
    const MOST: usize;
    /// Maximum number of bytes that the held objects take together; `None` if only their number is bounded. Objects beyond it are
    /// only counted.
    const MOST_BYTES: Option<usize>;
    /// Maximum number of held objects that are [`Importance::Unproven`].
    const MOST_UNPROVEN: usize;
    /// Maximum number of objects that are counted and not held.
    const MOST_LEFT_OUT: usize;
    /// Maximum number of objects in one page of a list. `None`: one list from the server's cache, which a server answers in one piece
    /// whatever the limit; only a list that is too large for that is read in pages. Pages are read from etcd, or from a cache that
    /// agrees with it.
    const PAGE: Option<u32>;

    /// The objects.
    fn selection(&self) -> ApiSelection;
    /// The UID of an object.
    fn uid_of(object: &Self::Object) -> &Self::Uid;
    /// The object's resource version, if it is a number.
    fn version_of(object: &Self::Object) -> Option<u64>;
    /// When the object was created.
    fn created_of(object: &Self::Object) -> Option<WallTime>;
    /// About as many bytes of memory as the object takes.
    fn memory(object: &Self::Object) -> usize;
    /// How much it matters that the object is held.
    fn importance(object: &Self::Object) -> Importance;
    /// The object's place in the order in which the objects arrived.
    fn arrival(object: &Self::Object) -> Option<Arrival>;
    /// Sets its place in that order.
    fn arrive(object: &mut Self::Object, place: Option<Arrival>);
    /// Reads the object of that name as it is in etcd now.
    fn read_now(client: &ApiClient, object: &Self::Object) -> impl Future<Output = Result<Vec<u8>, ApiError>> + Send;
}

/// The resources of which the requests of containers are kept; `None` keeps all.
type KeptResources = Option<Arc<[Arc<str>]>>;

/// The pods of one node.
#[derive(Clone, Debug)]
pub struct PodsOfNode {
    node: NodeName,
    pods: NodePods,
    resources: KeptResources,
}

/// The annotations that are kept of each pod of the cluster.
const KEPT: [&str; 9] = [ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, EPOCH, CLAIM_VERSION, LEASE, PLACED_BY, EVICT, LEADS];
/// Maximum number of texts that a thread shares between pods: namespaces, names of containers and nodes, keys and usual
/// amounts. Beyond it the thread starts with an empty set.
const MAX_SHARED: usize = 16_384;
/// Maximum size of a shared text in bytes: longer texts are rarely the same in two pods.
const MAX_SHARED_TEXT: usize = 64;

thread_local! {
    /// One copy of each text that many pods have: with a copy in each pod, 50,000 pods take 20 MiB more.
    static SHARED: RefCell<HashSet<Arc<str>>> = RefCell::default();
}

/// Replaces a text by an equal text that other pods share.
fn share(text: &mut Arc<str>) {
    if text.len() > MAX_SHARED_TEXT {
        return;
    }
    SHARED.with_borrow_mut(|shared| {
        if let Some(known) = shared.get(text) {
            *text = Arc::clone(known);
            return;
        }
        if shared.len() >= MAX_SHARED {
            shared.clear();
        }
        shared.insert(Arc::clone(text));
    });
}

/// Maximum size in bytes of a kept annotation's value, except the claim of a pod that may hold GPUs: the names of a Lease. A longer
/// value is cut.
const MAX_VALUE: usize = 512;

/// All pods of the cluster, with the fields that a scheduler needs.
#[derive(Clone, Debug, Default)]
pub struct AllPods {
    resources: KeptResources,
    rules: Arc<RequestRules>,
    /// `spec.schedulerName` of the pods that wait for this scheduler.
    scheduler: Option<Arc<str>>,
    /// The namespaces whose bound pods keep their places even if they hold no GPU.
    needed: Arc<BTreeSet<Arc<str>>>,
}

/// All Nodes of the cluster, with the fields that a scheduler needs.
#[derive(Clone, Debug, Default)]
pub struct AllNodes;

impl PodsOfNode {
    /// The pods of `node`; only the labels with these keys are kept.
    #[must_use]
    pub fn new(node: NodeName, label_keys: LabelKeys) -> PodsOfNode {
        PodsOfNode { node, pods: NodePods { label_keys }, resources: None }
    }

    /// The same pods, with only the requests for these resources.
    #[must_use]
    pub fn with_resources<'a>(self, names: impl IntoIterator<Item = &'a str>) -> PodsOfNode {
        PodsOfNode { resources: Some(names.into_iter().map(Into::into).collect()), ..self }
    }
}

impl WatchedKind for PodsOfNode {
    type Object = Pod;
    type Uid = PodUid;
    const NAME: &'static str = "pod";

    fn uid(text: &str) -> Option<PodUid> {
        NodePods::uid(text)
    }

    fn decode(&self, json: &str) -> Result<Pod, String> {
        let mut pod = self.pods.decode(json)?;
        if let Some(resources) = &self.resources {
            gpu_pod::keep_resources(&mut pod, resources);
        }
        trim_on_node(&mut pod);
        Ok(pod)
    }
}

/// Removes what the agent does not use from a pod of its node. A pod has up to 128 containers, and the names and amounts of each may
/// differ from all others. Pods that have ended stay until they are deleted, and so do pods with which the kubelet never begins.
fn trim_on_node(pod: &mut Pod) {
    // The position of a container tells which share of a claim is its own.
    if !has_claim(pod) {
        if pod.ended() {
            // One container is enough to know that a pod with GPUs has ended.
            pod.containers.retain(asks);
            pod.containers.truncate(1);
        } else if !asks_for_devices(pod) {
            pod.containers.retain(has_begun);
        }
    }
    // The agent shows the images of containers that run.
    let has_ended = pod.ended();
    for container in pod.containers.iter_mut().filter(|container| has_ended || container.id.is_none()) {
        container.image = None;
    }
    pod.containers.shrink_to_fit();
}

/// Whether a pod has a claim, or may have a claim that is too large to be kept. Only the system writes claims.
fn has_claim(pod: &Pod) -> bool {
    pod.annotation(ALLOCATED).is_some() || pod.system_keys_left_out > 0
}

/// Whether a container requests one of the kept resources, or may do so. The API server writes the amount 0 as `0`.
fn asks(container: &PodContainer) -> bool {
    container.requests_left_out || container.limits.iter().any(|(_, amount)| &**amount != "0")
}

/// Whether a pod requests one of the kept resources, or may do so.
fn asks_for_devices(pod: &Pod) -> bool {
    pod.containers_left_out.is_some() || pod.containers.iter().any(asks)
}

/// Whether the kubelet has reported anything about a container. A pod that it does not admit ends at once, and about a pod that only
/// looks like the mirror of a static pod it reports nothing.
fn has_begun(container: &PodContainer) -> bool {
    container.id.is_some() || container.state != ContainerState::Unknown
}

/// How much it matters to the agent of its node that a pod is held.
fn importance_on_node(pod: &Pod) -> Importance {
    if pod.ended() {
        return Importance::Ended;
    }
    if has_claim(pod) {
        return Importance::MayHold;
    }
    let begun = pod.phase == PodPhase::Running || pod.containers.iter().any(has_begun);
    match (asks_for_devices(pod), begun) {
        (true, true) => Importance::MayHold,
        (true, false) => Importance::Unproven,
        (false, true) => Importance::Named,
        (false, false) => Importance::HoldsNothing,
    }
}

impl AllPods {
    /// All pods, with only the parts of their containers that show by these rules which GPUs a pod holds.
    #[must_use]
    pub fn with_rules(rules: &RequestRules) -> AllPods {
        let resources = Some(rules.names.all().into_iter().map(Into::into).collect());
        AllPods { resources, rules: Arc::new(rules.clone()), ..AllPods::default() }
    }

    /// Keeps the places of all bound pods in these namespaces, even if a pod holds no GPU.
    #[must_use]
    pub fn needing(self, namespaces: BTreeSet<Arc<str>>) -> AllPods {
        AllPods { needed: Arc::new(namespaces), ..self }
    }

    /// Keeps the requests of the pods that wait for the scheduler with this name.
    #[must_use]
    pub fn placed_by(self, scheduler: Arc<str>) -> AllPods {
        AllPods { scheduler: Some(scheduler), ..self }
    }

    /// What a pod requests, if it waits for this scheduler. Call this before [`AllPods::trim`].
    fn request(&self, pod: &Pod) -> Option<Box<PlacementRequest>> {
        let may_be_placed = pod.node.is_none() && !pod.gated && pod.deleted_at.is_none() && !pod.ended();
        if !may_be_placed || pod.scheduler.is_none() || pod.scheduler != self.scheduler {
            return None;
        }
        // The extender tells the owner what is wrong with a request when kube-scheduler asks about the pod.
        let request = placement::of(pod, &self.rules).ok().flatten()?;
        (request.memory() <= MAX_WAITING_REQUEST_BYTES).then(|| Box::new(request))
    }

    /// Removes fields that the extender does not read here, because only an agent uses them or because kube-scheduler's calls have
    /// them. A pod has up to 128 containers, and the cluster up to 300,000 pods. All containers are kept only if the pod may have a
    /// claim, which has shares for each container; a pod that holds no GPU keeps no container, unless its namespace is needed.
    fn trim(&self, pod: &mut Pod) {
        (pod.controller, pod.runtime_class, pod.gang) = (None, None, None);
        let mut keeps_any = !holds_no_gpu(pod);
        if keeps_any && let Some(resources) = &self.resources {
            gpu_pod::keep_resources(pod, resources);
            keeps_any = has_claim(pod) || gpu_pod::keep_one_container(pod, &self.rules);
            if !keeps_any && self.needed.contains(&pod.name.namespace) {
                // A container without a request keeps the place of the pod.
                pod.containers.iter_mut().for_each(|container| container.limits.clear());
                keeps_any = true;
            }
        }
        if !keeps_any {
            pod.containers.clear();
            pod.containers_left_out = None;
        }
    }
}

/// Whether a pod certainly holds no GPU: it has ended, or it is not bound. kube-scheduler's calls have the whole of a pod that is not
/// bound.
fn holds_no_gpu(pod: &Pod) -> bool {
    pod.ended() || pod.node.is_none()
}

/// How much it matters to a scheduler that a pod is held. It holds no GPU if it is not bound, has ended, or has lost its containers
/// to [`AllPods::trim`]. Anyone who may create pods can bind any number of pods to nodes and keep the kubelet from starting them, so
/// a pod without a claim is proven by a container that has run. [`AllPods::trim`] keeps that container. Of a pod that requests no GPU
/// in a needed namespace it keeps a container without a request.
fn importance_in_cluster(pod: &Pod) -> Importance {
    if holds_no_gpu(pod) || (pod.containers.is_empty() && pod.containers_left_out.is_none()) {
        return Importance::HoldsNothing;
    }
    let has_run = |one: &PodContainer| {
        matches!(one.state, ContainerState::Running | ContainerState::Terminated) || one.id.is_some()
    };
    match has_claim(pod) || !asks_for_devices(pod) || pod.containers.iter().any(has_run) {
        true => Importance::MayHold,
        false => Importance::Unproven,
    }
}

impl WatchedKind for AllPods {
    type Object = Pod;
    type Uid = PodUid;
    const NAME: &'static str = "pod";

    fn uid(text: &str) -> Option<PodUid> {
        NodePods::uid(text)
    }

    fn decode(&self, json: &str) -> Result<Pod, String> {
        let mut pod = wire::pod::decode_text(json, &[]).map_err(|why| why.to_string())?;
        pod.request = self.request(&pod);
        // kube-scheduler sends a pod's request in its call; for a bound pod only the claim counts.
        pod.annotations.retain(|(key, _)| KEPT.contains(&&**key));
        self.trim(&mut pod);
        // Removes the fields that only the agent of the pod's node uses.
        for container in &mut pod.containers {
            container.image = None;
            // Between two starts, the id shows that the container has run.
            if container.id.take().is_some() && container.state == ContainerState::Waiting {
                container.state = ContainerState::Terminated;
            }
            // A claim goes by the places of the containers.
            container.name = "".into();
            share(&mut container.name);
            for (name, amount) in &mut container.limits {
                share(name);
                share(amount);
            }
        }
        pod.containers.shrink_to_fit();
        let holds_no_gpu = holds_no_gpu(&pod);
        for (key, value) in &mut pod.annotations {
            share(key);
            // Every pod has a different claim. Of a pod that holds no GPU only the presence of a claim counts.
            if &**key != ALLOCATED || holds_no_gpu {
                if value.len() > MAX_VALUE {
                    *value = value[..value.floor_char_boundary(MAX_VALUE)].into();
                }
                share(value);
            }
        }
        share(&mut pod.name.namespace);
        pod.scheduler.iter_mut().for_each(share);
        pod.annotations.shrink_to_fit();
        Ok(pod)
    }
}

impl WatchedKind for AllNodes {
    type Object = FollowedNode;
    type Uid = ObjectUid;
    const NAME: &'static str = "node";

    fn uid(text: &str) -> Option<ObjectUid> {
        ObjectUid::parse(text).ok()
    }

    fn decode(&self, json: &str) -> Result<FollowedNode, String> {
        wire::node::decode_followed_node(json.as_bytes()).map_err(|why| why.to_string())
    }
}

/// The identity of a pod is the same for both kinds of pods.
macro_rules! pods {
    ($kind:ty, ($most:expr, $unproven:expr, $left_out:expr, $most_bytes:expr), $page:expr, $fields:expr, $importance:expr) => {
        impl Followed for $kind {
            const MOST: usize = $most;
            const MOST_BYTES: Option<usize> = Some($most_bytes);
            const MOST_UNPROVEN: usize = $unproven;
            const MOST_LEFT_OUT: usize = $left_out;
            const PAGE: Option<u32> = $page;

            fn selection(&self) -> ApiSelection {
                let fields: fn(&Self) -> Option<String> = $fields;
                ApiSelection { fields: fields(self), ..ApiSelection::all(ApiResource::Pods, ObjectForm::Whole) }
            }

            fn uid_of(pod: &Pod) -> &PodUid {
                &pod.uid
            }

            fn version_of(pod: &Pod) -> Option<u64> {
                pod.version
            }

            fn created_of(pod: &Pod) -> Option<WallTime> {
                pod.created_at
            }

            fn memory(pod: &Pod) -> usize {
                pod.memory()
            }

            fn importance(pod: &Pod) -> Importance {
                $importance(pod)
            }

            fn arrival(pod: &Pod) -> Option<Arrival> {
                pod.arrival
            }

            fn arrive(pod: &mut Pod, place: Option<Arrival>) {
                pod.arrival = place;
            }

            async fn read_now(client: &ApiClient, pod: &Pod) -> Result<Vec<u8>, ApiError> {
                client.get_pod(&pod.name, &ReadAge::Newest).await
            }
        }
    };
}

pods!(
    PodsOfNode,
    (MAX_POD_OBJECTS, MAX_UNPROVEN_PODS, MAX_LEFT_OUT_PODS, MAX_NODE_PODS_BYTES),
    None,
    |kind| Some(format!("spec.nodeName={}", kind.node)),
    importance_on_node
);
// Anyone who may create pods can create any number of pods that hold no GPU. Pods without a claim give their places to others, so
// their number needs no separate bound.
pods!(
    AllPods,
    (MAX_CLUSTER_PODS, MAX_CLUSTER_PODS, MAX_CLUSTER_PODS, MAX_CLUSTER_PODS_BYTES),
    Some(500),
    |_| None,
    importance_in_cluster
);

impl Followed for AllNodes {
    const MOST: usize = MAX_CLUSTER_NODES;
    // No limit: users write no Nodes, and little is kept of each Node.
    const MOST_BYTES: Option<usize> = None;
    const MOST_UNPROVEN: usize = MAX_CLUSTER_NODES;
    const MOST_LEFT_OUT: usize = MAX_CLUSTER_NODES;
    const PAGE: Option<u32> = Some(500);

    fn selection(&self) -> ApiSelection {
        ApiSelection::all(ApiResource::Nodes, ObjectForm::Metadata)
    }

    fn uid_of(node: &FollowedNode) -> &ObjectUid {
        &node.uid
    }

    fn version_of(node: &FollowedNode) -> Option<u64> {
        node.version
    }

    fn created_of(node: &FollowedNode) -> Option<WallTime> {
        node.created_at
    }

    fn memory(_: &FollowedNode) -> usize {
        size_of::<FollowedNode>()
    }

    fn importance(_: &FollowedNode) -> Importance {
        Importance::MayHold
    }

    fn arrival(node: &FollowedNode) -> Option<Arrival> {
        node.arrival
    }

    fn arrive(node: &mut FollowedNode, place: Option<Arrival>) {
        node.arrival = place;
    }

    async fn read_now(client: &ApiClient, node: &FollowedNode) -> Result<Vec<u8>, ApiError> {
        client.get_node(&node.name, &ReadAge::Newest, ObjectForm::Metadata).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::pod::MAX_ANNOTATIONS;
    use serde_json::{Value, json};

    fn pod(annotations: &Value, limits: impl Fn(usize) -> Value) -> String {
        let container = |number| json!({ "name": format!("c{number}"), "resources": { "limits": limits(number) } });
        let containers: Vec<Value> = (0..100).map(container).collect();
        let metadata = json!({ "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations });
        json!({ "metadata": metadata, "spec": { "nodeName": "n1", "containers": containers } }).to_string()
    }

    fn pods_of_node() -> PodsOfNode {
        let node = NodeName::parse("n1").unwrap();
        PodsOfNode::new(node, LabelKeys::default()).with_resources(["nvidia.com/gpu", "nvidia.com/gpumem"])
    }

    #[test]
    fn the_agent_keeps_only_requests_for_gpus_images_of_containers_with_an_id_and_little_of_a_pod_that_has_ended() {
        let kind = pods_of_node();
        let limits = |_: usize| -> Value {
            let other = (0..31).map(|number| (format!("a/b{number:02}"), json!("1")));
            other.chain([("nvidia.com/gpu".to_owned(), json!("1"))]).collect::<serde_json::Map<_, _>>().into()
        };
        let mut object: Value = serde_json::from_str(&pod(&json!({ "hami.io/x": "1" }), limits)).unwrap();
        for place in [0, 1] {
            object["spec"]["containers"][place]["image"] = "train:1".into();
        }
        let ids = json!([{ "name": "c0", "containerID": format!("containerd://{}", "a".repeat(64)) }]);
        for (phase, claim, containers, image) in [
            ("Running", Value::Null, 100, Some("train:1")),
            ("Running", json!("x"), 100, Some("train:1")),
            ("Succeeded", Value::Null, 1, None),
            ("Failed", Value::Null, 1, None),
            ("Failed", json!("x"), 100, None),
        ] {
            object["status"] = json!({ "phase": phase, "containerStatuses": ids });
            object["metadata"]["annotations"][ALLOCATED] = claim.clone();
            if claim.is_null() {
                object["metadata"]["annotations"].as_object_mut().unwrap().remove(ALLOCATED);
            }
            let kept = kind.decode(&object.to_string()).unwrap();
            assert_eq!(
                (kept.containers.len(), kept.containers.capacity()),
                (containers, containers),
                "{phase} {claim}"
            );
            let images: Vec<_> = kept.containers.iter().filter_map(|container| container.image.as_deref()).collect();
            assert_eq!(images, Vec::from_iter(image), "{phase} {claim}");
            let gpus = |container: &PodContainer| container.limit("nvidia.com/gpu") == Some("1");
            assert!(kept.containers.iter().all(|container| gpus(container) && container.limits.len() == 1));
            assert_eq!(kept.annotation("hami.io/x"), Some("1"));
        }
    }

    #[test]
    fn each_text_of_a_pod_counts_in_its_memory() {
        let kind = NodePods { label_keys: [Arc::from("team")].into() };
        let owner = json!({ "apiVersion": "x", "kind": "x", "name": "x", "uid": "x", "controller": true });
        let container = json!({ "name": "x", "image": "x", "resources": { "limits": { "a/b": "x" } } });
        let object = json!({
            "metadata": {
                "name": "x", "namespace": "x", "uid": "1".repeat(32), "ownerReferences": [owner],
                "annotations": { "hami.io/x": "x" }, "labels": { "team": "x" },
            },
            "spec": { "nodeName": "x", "runtimeClassName": "x", "schedulingGroup": { "podGroupName": "x" }, "containers": [container] },
            "status": { "nominatedNodeName": "x" },
        });
        let memory = |object: &Value| kind.decode(&object.to_string()).unwrap().memory();
        for text in [
            "/metadata/name",
            "/metadata/namespace",
            "/metadata/ownerReferences/0/apiVersion",
            "/metadata/ownerReferences/0/kind",
            "/metadata/ownerReferences/0/name",
            "/metadata/ownerReferences/0/uid",
            "/metadata/annotations/hami.io~1x",
            "/metadata/labels/team",
            "/spec/nodeName",
            "/spec/runtimeClassName",
            "/spec/schedulingGroup/podGroupName",
            "/spec/containers/0/name",
            "/spec/containers/0/image",
            "/spec/containers/0/resources/limits/a~1b",
            "/status/nominatedNodeName",
        ] {
            let mut longer = object.clone();
            *longer.pointer_mut(text).unwrap() = "x".repeat(51).into();
            assert_eq!(memory(&longer) - memory(&object), 50, "{text}");
        }
        let mut more = object.clone();
        more["spec"]["containers"] = (0..128).map(|_| object["spec"]["containers"][0].clone()).collect();
        assert!(memory(&more) - memory(&object) > 127 * 100);
    }

    #[test]
    fn of_a_pod_without_gpus_the_agent_keeps_only_containers_that_the_kubelet_has_begun_with() {
        let mut object: Value = serde_json::from_str(&pod(&json!({}), |_| json!({ "nvidia.com/gpu": "0" }))).unwrap();
        assert!(pods_of_node().decode(&object.to_string()).unwrap().containers.is_empty());
        object["status"]["containerStatuses"] =
            json!([{ "name": "c7", "state": { "waiting": { "reason": "ImagePullBackOff" } } }]);
        let kept = pods_of_node().decode(&object.to_string()).unwrap();
        let names: Vec<&str> = kept.containers.iter().map(|container| &*container.name).collect();
        assert_eq!(names, ["c7"]);
    }

    #[test]
    fn a_pod_matters_to_its_agent_by_what_only_a_scheduler_and_the_kubelet_write() {
        let begun = json!({ "phase": "Pending", "containerStatuses": [{ "name": "c9", "state": { "waiting": {} } }] });
        let running = json!({ "phase": "Running" });
        let [pending, ended] = ["Pending", "Failed"].map(|phase| json!({ "phase": phase }));
        let claim = json!({ ALLOCATED: "x" });
        let long = json!({ ALLOCATED: "x".repeat(MAX_ANNOTATIONS) });
        let mirror = json!({ "kubernetes.io/config.mirror": "x", "hami.io/x": "y" });
        let (none, gpu) = (json!({}), json!({ "nvidia.com/gpu": "1" }));
        for (annotations, limits, status, importance) in [
            (&mirror, &none, &pending, Importance::HoldsNothing),
            (&mirror, &json!({ "nvidia.com/gpu": "0", "a/b": "1" }), &pending, Importance::HoldsNothing),
            (&claim, &gpu, &ended, Importance::Ended),
            (&mirror, &gpu, &ended, Importance::Ended),
            (&mirror, &none, &ended, Importance::Ended),
            (&mirror, &none, &begun, Importance::Named),
            (&mirror, &none, &running, Importance::Named),
            (&mirror, &gpu, &pending, Importance::Unproven),
            (&mirror, &json!({ "nvidia.com/gpumem": "1" }), &pending, Importance::Unproven),
            (&mirror, &gpu, &begun, Importance::MayHold),
            (&mirror, &gpu, &running, Importance::MayHold),
            (&claim, &gpu, &pending, Importance::MayHold),
            (&long, &none, &pending, Importance::MayHold),
        ] {
            let mut object: Value = serde_json::from_str(&pod(annotations, |_| limits.clone())).unwrap();
            object["status"] = status.clone();
            let kept = pods_of_node().decode(&object.to_string()).unwrap();
            assert_eq!(PodsOfNode::importance(&kept), importance, "{annotations:.60} {limits} {status}");
        }
    }

    #[test]
    fn pods_that_hold_no_gpu_matter_least_and_then_those_without_a_claim_that_have_not_run() {
        let kind = AllPods::with_rules(&RequestRules::default());
        let none = |_: usize| json!({ "example.com/nic": "1", "nvidia.com/gpumem": "1000" });
        let gpu = |_: usize| json!({ "nvidia.com/gpu": "1" });
        let claim = json!({ ALLOCATED: "x" });
        let ended = |text: String| text.replacen("\"spec\"", "\"status\":{\"phase\":\"Failed\"},\"spec\"", 1);
        let unbound = |text: String| text.replace("\"nodeName\"", "\"other\"");
        let with_status = |text: String, name: &str, state: &str| {
            let mut object: Value = serde_json::from_str(&text).unwrap();
            object["status"]["containerStatuses"] = json!([{ "name": name, "state": { state: {} } }]);
            object.to_string()
        };
        for (text, importance) in [
            (pod(&json!({}), none), Importance::HoldsNothing),
            (pod(&json!({ "a/b": "c" }), none), Importance::HoldsNothing),
            (pod(&json!({}), gpu), Importance::Unproven),
            (with_status(pod(&json!({}), gpu), "c7", "waiting"), Importance::Unproven),
            (with_status(pod(&json!({}), gpu), "c7", "running"), Importance::MayHold),
            (with_status(pod(&json!({}), gpu), "c7", "terminated"), Importance::MayHold),
            (
                with_status(pod(&json!({}), |n| if n == 3 { gpu(n) } else { none(n) }), "c7", "running"),
                Importance::Unproven,
            ),
            (pod(&claim, none), Importance::MayHold),
            (pod(&json!({ ALLOCATED: "x".repeat(MAX_ANNOTATIONS) }), none), Importance::MayHold),
            (ended(pod(&claim, gpu)), Importance::HoldsNothing),
            (unbound(pod(&claim, gpu)), Importance::HoldsNothing),
        ] {
            assert_eq!(AllPods::importance(&kind.decode(&text).unwrap()), importance, "{text:.200}");
        }
        let needing = kind.needing(BTreeSet::from(["b".into()]));
        let importance = |text: String| AllPods::importance(&needing.decode(&text).unwrap());
        assert_eq!(importance(pod(&json!({}), none)), Importance::MayHold);
        assert_eq!(importance(ended(pod(&json!({}), none))), Importance::HoldsNothing);
    }

    /// kube-scheduler does not ask a new leader about the pods that an earlier leader has refused.
    #[test]
    fn the_request_of_a_pod_is_kept_while_it_waits_for_this_scheduler() {
        let kind = AllPods::with_rules(&RequestRules::default()).placed_by("gpu-steward".into());
        let text = pod(&json!({ "nvidia.com/use-gputype": "H100" }), |_| json!({ "nvidia.com/gpu": "1" }));
        let mut waits: Value = serde_json::from_str(&text).unwrap();
        waits["spec"].as_object_mut().unwrap().remove("nodeName");
        waits["spec"]["schedulerName"] = "gpu-steward".into();
        assert_eq!(kind.decode(&waits.to_string()).unwrap().request, None, "it has too many containers");
        waits["spec"]["containers"].as_array_mut().unwrap().truncate(2);
        let whole = wire::pod::decode_text(&waits.to_string(), &[]).unwrap();
        let expected = placement::of(&whole, &RequestRules::default()).unwrap().map(Box::new);
        let kept = kind.decode(&waits.to_string()).unwrap();
        assert!(expected.is_some() && kept.request == expected && kept.containers.is_empty());
        assert!(kept.memory() > Pod { request: None, ..kept.clone() }.memory());
        for (place, change) in [
            ("/spec/nodeName", json!("n1")),
            ("/spec/schedulerName", json!("default-scheduler")),
            ("/spec/schedulingGates", json!([{ "name": "a" }])),
            ("/metadata/deletionTimestamp", json!("2026-11-21T10:00:00Z")),
            ("/status/phase", json!("Failed")),
            ("/spec/containers", json!([{ "name": "a" }])),
            ("/metadata/annotations", json!({ "hami.io/enable-realtime-check": "never" })),
        ] {
            let (parent, key) = place.rsplit_once('/').unwrap();
            let mut other = waits.clone();
            other["status"] = json!({});
            other.pointer_mut(parent).unwrap()[key] = change;
            assert_eq!(kind.decode(&other.to_string()).unwrap().request, None, "{place}");
        }
    }

    #[test]
    fn all_containers_are_kept_only_of_a_pod_that_may_have_a_claim_and_none_of_a_pod_that_requests_no_gpu() {
        let kind = AllPods::with_rules(&RequestRules::default());
        let many = |_: usize| -> Value {
            (0..20).map(|number| (format!("{}.example/r{number}", "x".repeat(200)), "1".to_owned())).collect()
        };
        let kept = kind.decode(&pod(&json!({ "a/b": "c" }), many)).unwrap();
        assert!(kept.containers.is_empty() && kept.node.is_some());
        let gpu = |number: usize| {
            let mut limits = many(number);
            if number == 7 {
                limits["nvidia.com/gpu"] = "1".into();
            }
            limits
        };
        for (annotations, containers) in [(json!({}), 1), (json!({ ALLOCATED: "x" }), 100)] {
            let kept = kind.decode(&pod(&annotations, gpu)).unwrap();
            assert_eq!(kept.containers.len(), containers, "the places of the containers count only for a claim");
            assert!(kept.containers.iter().all(|container| container.name.is_empty()));
            let limits: Vec<_> = kept.containers.iter().flat_map(|container| &container.limits).collect();
            assert_eq!(limits, [&("nvidia.com/gpu".into(), "1".into())]);
        }
        let kept = kind.decode(&pod(&json!({ ALLOCATED: "x", LEADS: "é".repeat(4000) }), many)).unwrap();
        assert_eq!((kept.containers.len(), kept.annotation(LEADS).map(str::len)), (100, Some(MAX_VALUE)));
        // Each of its containers has a name and amounts of its own.
        let own = |number: usize| {
            let amount = |resource: usize| (1_000_000_000 + number * 10 + resource).to_string();
            let names = RequestRules::default().names;
            names.all().into_iter().enumerate().map(|(at, name)| (name.to_owned(), amount(at))).collect::<Value>()
        };
        let kept = kind.decode(&pod(&json!({}), own)).unwrap();
        assert!(kept.memory() < 2048, "{} bytes", kept.memory());
        // Other annotations do not say that a pod may hold GPUs, and users may write some of them.
        let kept = kind.decode(&pod(&json!({ LEADS: "x", EVICT: "y" }), many)).unwrap();
        assert_eq!((kept.containers.len(), kept.annotation(LEADS), kept.annotation(EVICT)), (0, Some("x"), Some("y")));
    }

    #[test]
    fn of_a_pod_that_holds_no_gpu_no_containers_are_kept_whatever_they_request() {
        let kind = AllPods::with_rules(&RequestRules::default());
        let limits = |number: usize| json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": number.to_string() });
        let annotations = json!({ ALLOCATED: "x".repeat(9000), EPOCH: "7" });
        let mut object: Value = serde_json::from_str(&pod(&annotations, limits)).unwrap();
        let main = object["spec"]["containers"][0].clone();
        // More than the decoder keeps.
        object["spec"]["containers"] = (0..200).map(|_| main.clone()).collect();
        object["spec"]["runtimeClassName"] = "nvidia".into();
        object["spec"]["schedulingGroup"] = json!({ "podGroupName": "train-workers" });
        object["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "ReplicaSet", "name": "a", "uid": "u", "controller": true }]);
        for (node, phase, containers, claim) in [
            (Some("n1"), "Running", 128, 9000),
            (Some("n1"), "Pending", 128, 9000),
            (Some("n1"), "Failed", 0, MAX_VALUE),
            (Some("n1"), "Succeeded", 0, MAX_VALUE),
            (None, "Pending", 0, MAX_VALUE),
        ] {
            object["spec"]["nodeName"] = node.into();
            object["status"] = json!({ "phase": phase });
            let kept = kind.decode(&object.to_string()).unwrap();
            assert_eq!(kept.containers.len(), containers, "{node:?} {phase}");
            assert_eq!(kept.containers_left_out.is_some(), containers > 0, "{node:?} {phase}");
            assert_eq!(kept.annotation(ALLOCATED).map(str::len), Some(claim), "{node:?} {phase}");
            assert_eq!(kept.annotation(EPOCH), Some("7"));
            assert!(kept.controller.is_none() && kept.runtime_class.is_none() && kept.gang.is_none());
            assert!(kept.bytes > 9000 && kept.status_bytes >= 200 * 1024, "its size is judged whatever is kept");
        }
    }
}
