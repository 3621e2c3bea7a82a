//! Pods at the API server, reduced to the fields that matter on their node.

use crate::id::{ContainerId, NodeName, PodRef, PodUid};
use crate::placement::PlacementRequest;
use crate::time::{Arrival, Monotonic, WallTime};
use std::sync::Arc;

/// Upper bound on the pods of one node. The kubelet's default limit is 110, and the largest supported setup has about
/// 500. Pods that have ended stay at the API server until they are deleted, so there is room for as many again.
pub const MAX_POD_OBJECTS: usize = 1024;
/// Upper bound on the pods of one node that request GPUs but may get none: no scheduler has given them a claim, and the kubelet has
/// not begun with them. Anyone who may create pods can create any number of such pods. The kubelet begins within seconds with all
/// pods that it admits, so this is about twice its default limit, for a node that fills up at once.
pub const MAX_UNPROVEN_PODS: usize = 256;
/// Upper bound on the pods of one node that are not kept but counted by UID: 16 times as many as are kept, which take 2 MiB.
pub const MAX_LEFT_OUT_PODS: usize = 16 * MAX_POD_OBJECTS;
/// Upper bound on the pods of a cluster: twice the number that Kubernetes supports, because pods that have ended count too.
pub const MAX_CLUSTER_PODS: usize = 300_000;
/// Upper bound on the containers of one pod: an object of 1.5 MiB could name thousands, but the kubelet starts dozens.
pub const MAX_CONTAINERS: usize = 128;
/// Upper bound in bytes on all kept annotations of one pod: keys, values, and [`ANNOTATION_BYTES`] for each annotation. The longest
/// annotation that is needed lists 16 GPUs for each of several containers: about 4 KiB, and a pod has three such annotations. The API
/// server allows 256 KiB, and a node full of such pods must not fill the agent's memory.
pub const MAX_ANNOTATIONS: usize = 16 * 1024;
/// Bytes of memory of a kept annotation without its texts: two pointers with lengths, and the counts of two shared texts.
pub const ANNOTATION_BYTES: usize = 64;
/// Upper bound on the extended resources of one container: HAMi has five, MIG a dozen profiles.
pub const MAX_RESOURCES: usize = 32;

/// Upper bound on the pod labels that an operator can show: each adds a series for each pod.
pub const MAX_LABEL_KEYS: usize = 16;

/// The label keys that are kept of each pod, ordered, at most [`MAX_LABEL_KEYS`].
pub type LabelKeys = Arc<[Arc<str>]>;

/// Labels of one pod: key and value.
pub type PodLabels = Vec<(Arc<str>, Arc<str>)>;

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The UID at the API server.
    pub uid: PodUid,
    /// For the mirror pod of a static pod, the hash of the manifest: the kubelet uses it as the pod's UID instead of
    /// `uid`.
    pub mirror_of: Option<PodUid>,
    /// Namespace and name.
    pub name: PodRef,
    /// The Node to which the pod is bound.
    pub node: Option<NodeName>,
    /// Phase of the pod's life.
    pub phase: PodPhase,
    /// When the pod was created.
    pub created_at: Option<WallTime>,
    /// The resource version, if the server uses numbers: higher is later, over all pods.
    pub version: Option<u64>,
    /// The pod's place in the order in which pods came to this node; `None` until it is in a [`PodList`].
    pub arrival: Option<Arrival>,
    /// When the pod's deletion was requested, if it was.
    pub deleted_at: Option<WallTime>,
    /// Annotations that the agent uses, ordered by key.
    pub annotations: Vec<(Arc<str>, Arc<str>)>,
    /// Number of annotations that the agent would use but that are too large ([`MAX_ANNOTATIONS`]); their values are
    /// not known.
    pub annotations_left_out: u32,
    /// How many annotations in `annotations_left_out` have a key that only the system writes, such as a claim.
    pub system_keys_left_out: u32,
    /// Bytes of all annotations together, with their keys and including annotations that are not kept. Kubernetes limits this
    /// number.
    pub annotation_bytes: u32,
    /// Bytes of the whole object as JSON, each escaped character counted as one: at least as many as etcd stores.
    pub bytes: u32,
    /// Estimate of the bytes that the kubelet may write into its status; most of them repeat the specification.
    pub status_bytes: u32,
    /// The labels to show, in the order of [`LabelKeys`].
    pub labels: PodLabels,
    /// Priority, once admission has set it.
    pub priority: Option<i32>,
    /// The controller that owns the pod.
    pub controller: Option<PodController>,
    /// The node on which kube-scheduler has evicted other pods for the pod.
    pub nominated: Option<NodeName>,
    /// The scheduler that is to place the pod; `None` if it has a node.
    pub scheduler: Option<Arc<str>>,
    /// What the pod requests, if it waits for the scheduler that follows the pods. Only a scheduler sets it.
    pub request: Option<Box<PlacementRequest>>,
    /// Whether the pod has scheduling gates: no scheduler may place it before they are removed.
    pub gated: bool,
    /// The group of pods with which the pod is to be placed together, in its namespace.
    pub gang: Option<Arc<str>>,
    /// Whether the pod prefers some nodes: by preferred node or pod affinity, or by a soft topology spread constraint.
    pub prefers_nodes: bool,
    /// Whether the pod uses the node's network namespace.
    pub host_network: bool,
    /// The runtime class that the pod's author chose: its runtime can differ from the runtime of the node's other pods.
    pub runtime_class: Option<Arc<str>>,
    /// Restart policy of the pod's containers.
    pub restart: Option<RestartPolicy>,
    /// Containers in the order in which the kubelet handles them: init, then app, then ephemeral.
    pub containers: Vec<PodContainer>,
    /// The init and app containers beyond [`MAX_CONTAINERS`] that request extended resources; `None` for nearly every pod.
    pub containers_left_out: Option<Box<LeftOutContainers>>,
}

/// Containers of a pod that are not kept and request extended resources. Containers without such requests are not counted: a user
/// could otherwise make a pod look as if it might hold GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOutContainers {
    /// Number of these containers.
    pub number: u32,
    /// The resources that they request with an amount other than 0, each once, at most [`MAX_RESOURCES`].
    pub resources: Vec<Arc<str>>,
    /// Whether these containers request resources that are not in `resources`.
    pub more_resources: bool,
}

/// The phase of a pod's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Accepted, but not all containers have been started.
    Pending,
    /// Bound and started.
    Running,
    /// All containers ended successfully.
    Succeeded,
    /// All containers ended, at least one with a failure.
    Failed,
    /// Unknown to the API server, or a phase that this version does not know.
    #[default]
    Unknown,
}

/// When the kubelet restarts a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whenever the container ends.
    Always,
    /// When the container ends with a failure.
    OnFailure,
    /// Never.
    Never,
}

/// The controller among a pod's owner references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodController {
    /// Group and version, such as `apps/v1`.
    pub api_version: Arc<str>,
    /// Kind, such as `ReplicaSet`.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
}

/// One container of a pod, with its specification and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// The container's name in the pod.
    pub name: Arc<str>,
    /// The list of the pod's specification that the container is in.
    pub kind: ContainerKind,
    /// The container's own restart policy, if it has one.
    pub restart: Option<RestartPolicy>,
    /// Image as written in the specification.
    pub image: Option<Arc<str>>,
    /// Limits of extended resources as text, such as `("nvidia.com/gpumem", "8k")`, ordered by name.
    pub limits: Vec<(Arc<str>, Arc<str>)>,
    /// Number of extended resources beyond [`MAX_RESOURCES`]; resources with an amount of 0 are left out first.
    pub limits_left_out: u32,
    /// Whether a resource that was left out may have an amount other than 0. Then the container may request GPUs.
    pub requests_left_out: bool,
    /// Id of the running or last container of that name; `None` before the first container is created.
    pub id: Option<ContainerId>,
    /// The container's state.
    pub state: ContainerState,
    /// Whether the container can change its own mounts: privileged, or with `SYS_ADMIN` or all capabilities added.
    pub may_mount: bool,
}

/// The list of the pod's specification that a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Runs to its end before the next container begins.
    Init,
    /// Listed with the init containers, but runs as long as the pod (`restartPolicy: Always`).
    Sidecar,
    /// An app container.
    App,
    /// Added by `kubectl debug`.
    Ephemeral,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// The kubelet has not reported the container.
    #[default]
    Unknown,
    /// Not started yet, or between two starts.
    Waiting,
    /// Running.
    Running,
    /// Ended.
    Terminated,
}

impl Pod {
    /// The UID that the kubelet uses for the pod's cgroup.
    #[must_use]
    pub fn cgroup_uid(&self) -> &PodUid {
        self.mirror_of.as_ref().unwrap_or(&self.uid)
    }

    /// Whether the pod has ended, so that none of its containers runs again.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The annotation with this key; also `None` if it was too large to be kept.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let place = self.annotations.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.annotations.get(place).map(|(_, value)| &**value)
    }
}

impl PodContainer {
    /// The limit of this resource, as written in the specification.
    #[must_use]
    pub fn limit(&self, resource: &str) -> Option<&str> {
        self.limits.iter().find(|(name, _)| &**name == resource).map(|(_, quantity)| &**quantity)
    }
}

/// The pods of this node at the API server, all of them.
#[derive(Clone, Debug, Default)]
pub struct PodList {
    /// The pods, ordered by UID, at most [`MAX_POD_OBJECTS`] and [`MAX_NODE_PODS_BYTES`](crate::pod_memory::MAX_NODE_PODS_BYTES).
    pub pods: Vec<Arc<Pod>>,
    /// Number of pods beyond these bounds or beyond [`MAX_UNPROVEN_PODS`]; at most [`MAX_LEFT_OUT_PODS`] are counted. Pods that hold
    /// no GPU are left out first: pods that have ended, and pods that request no GPU.
    pub left_out: u32,
    /// The pods that are left out, have not ended, have no claim and request no GPU, ordered.
    pub left_out_plain: Arc<[PodUid]>,
    /// The pods that are left out, request GPUs and have no claim, and that the API server shows as not begun by the kubelet,
    /// ordered.
    pub left_out_unproven: Arc<[PodUid]>,
    /// Number of pods whose newest version could not be parsed. If an older version could be parsed, it is in `pods`.
    pub unreadable: u32,
}

/// The state of the pod watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWatchState {
    /// When the API server last sent anything; `None` before the first list.
    pub last_received: Option<Monotonic>,
    /// The reason why the API server cannot be reached now; `None` if it can be reached.
    pub broken: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_found_by_their_key() {
        let pod = Pod {
            uid: PodUid::parse(&"1".repeat(32)).unwrap(),
            mirror_of: None,
            name: PodRef { namespace: "ml".into(), name: "train-0".into() },
            node: None,
            phase: PodPhase::Running,
            created_at: None,
            version: None,
            arrival: None,
            deleted_at: None,
            annotations: vec![("hami.io/a".into(), "1".into()), ("hami.io/b".into(), "2".into())],
            annotations_left_out: 0,
            system_keys_left_out: 0,
            annotation_bytes: 0,
            bytes: 0,
            status_bytes: 0,
            labels: Vec::new(),
            priority: None,
            controller: None,
            scheduler: None,
            request: None,
            host_network: false,
            nominated: None,
            gang: None,
            gated: false,
            prefers_nodes: false,
            runtime_class: None,
            restart: None,
            containers: vec![],
            containers_left_out: None,
        };
        assert_eq!((pod.annotation("hami.io/b"), pod.annotation("hami.io/c")), (Some("2"), None));
        assert_eq!(pod.cgroup_uid(), &pod.uid);
        assert!(!pod.ended());
    }
}
