//! Pods as the API server knows them: of each what matters on its node, and nothing else.

use crate::id::{ContainerId, PodRef, PodUid};
use crate::time::{Arrival, Monotonic, WallTime};
use std::sync::Arc;

/// At most this many pods of one node are kept. kubelet's default limit is 110 and the largest supported is about 500;
/// pods that have ended stay at the API server until somebody deletes them, so there is room for as many again.
pub const MAX_POD_OBJECTS: usize = 1024;
/// At most this many containers of one pod are kept: an object of 1.5 MiB could name thousands, kubelet starts dozens.
pub const MAX_CONTAINERS: usize = 128;
/// Annotations of one pod that are kept may be this large together, keys included. The longest that anybody needs are
/// the devices of 16 GPUs for each of several containers, some 4 KiB, three times; the API server allows 256 KiB, and a
/// node full of such pods must not fill our memory.
pub const MAX_ANNOTATIONS: usize = 16 * 1024;
/// Extended resources that one container may ask for: HAMi has five, MIG a dozen profiles.
pub const MAX_RESOURCES: usize = 32;

/// Labels of pods that an operator may have shown: each is one more series for each pod.
pub const MAX_LABEL_KEYS: usize = 16;

/// The keys of labels that are kept of each pod, at most [`MAX_LABEL_KEYS`], ordered.
pub type LabelKeys = Arc<[Arc<str>]>;

/// Labels of one pod, each with its key.
pub type PodLabels = Vec<(Arc<str>, Arc<str>)>;

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The API server's identity of it.
    pub uid: PodUid,
    /// The hash of the manifest of which this is the mirror: kubelet calls a static pod by that and not by `uid`.
    pub mirror_of: Option<PodUid>,
    /// Namespace and name.
    pub name: PodRef,
    /// How far it is.
    pub phase: PodPhase,
    /// When it was made.
    pub created_at: Option<WallTime>,
    /// Which version of it this is, where the server counts them by numbers: higher is later, over all pods.
    pub version: Option<u64>,
    /// When it came to this node, beside the others; `None` until it stands in a [`PodList`].
    pub arrival: Option<Arrival>,
    /// When it was asked to end, if it was.
    pub deleted_at: Option<WallTime>,
    /// Annotations that matter to us, ordered by key.
    pub annotations: Vec<(Arc<str>, Arc<str>)>,
    /// Annotations that would matter and are too large ([`MAX_ANNOTATIONS`]): what they say is not known.
    pub annotations_left_out: u32,
    /// Those of them that a user does not write, so that a claim may be among them.
    pub system_keys_left_out: u32,
    /// Labels that are wanted, in the order of [`LabelKeys`].
    pub labels: PodLabels,
    /// Priority, once admission has set it.
    pub priority: Option<i32>,
    /// The object that made it and answers for it.
    pub controller: Option<PodController>,
    /// Whether it lives in the node's network.
    pub host_network: bool,
    /// The runtime class that its author chose: another runtime than that of the node's other pods.
    pub runtime_class: Option<Arc<str>>,
    /// When its containers are started again.
    pub restart: Option<RestartPolicy>,
    /// Containers in the order in which kubelet deals with them: init, then app, then ephemeral.
    pub containers: Vec<PodContainer>,
    /// Init and app containers beyond [`MAX_CONTAINERS`]: what they ask for is not known.
    pub containers_left_out: u32,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Accepted, not all containers have been started.
    Pending,
    /// Bound and started.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one of them badly.
    Failed,
    /// The server says so, or a word that is not known.
    #[default]
    Unknown,
}

/// When a container is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whenever it ends.
    Always,
    /// When it ends badly.
    OnFailure,
    /// Not at all.
    Never,
}

/// The controller among a pod's owners.
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

/// One container of a pod, as it was asked for and as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// Its name in the pod.
    pub name: Arc<str>,
    /// Which list it stands in.
    pub kind: ContainerKind,
    /// Its own rule, where it has one.
    pub restart: Option<RestartPolicy>,
    /// Image as the author wrote it.
    pub image: Option<Arc<str>>,
    /// Limits of extended resources as text, such as `("nvidia.com/gpumem", "8k")`, ordered by name.
    pub limits: Vec<(Arc<str>, Arc<str>)>,
    /// Extended resources beyond [`MAX_RESOURCES`], those of which nothing is asked for first: whether GPUs are among them is not known.
    pub limits_left_out: u32,
    /// The running or last container of that name; `None` before the first one is made.
    pub id: Option<ContainerId>,
    /// What it does.
    pub state: ContainerState,
    /// Whether it may change what is mounted in it: privileged, or with `SYS_ADMIN` or all capabilities added.
    pub may_mount: bool,
}

/// Which list of the pod a container stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Runs to its end before the next one begins.
    Init,
    /// Listed with the init containers, and runs as long as the pod (`restartPolicy: Always`).
    Sidecar,
    /// What the pod is for.
    App,
    /// Added by `kubectl debug`.
    Ephemeral,
}

/// What a container does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// kubelet has not said.
    #[default]
    Unknown,
    /// Not started yet, or between two starts.
    Waiting,
    /// Runs.
    Running,
    /// Ended.
    Terminated,
}

impl Pod {
    /// The UID under which kubelet makes its cgroup.
    #[must_use]
    pub fn cgroup_uid(&self) -> &PodUid {
        self.mirror_of.as_ref().unwrap_or(&self.uid)
    }

    /// Whether no container of it will ever run again.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The annotation of this key; also `None` where it was too large to be kept.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let place = self.annotations.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.annotations.get(place).map(|(_, value)| &**value)
    }
}

impl PodContainer {
    /// The limit of this resource, as it was written.
    #[must_use]
    pub fn limit(&self, resource: &str) -> Option<&str> {
        self.limits.iter().find(|(name, _)| &**name == resource).map(|(_, quantity)| &**quantity)
    }
}

/// The pods of this node at the API server, all of them.
#[derive(Clone, Debug, Default)]
pub struct PodList {
    /// Ordered by UID, at most [`MAX_POD_OBJECTS`].
    pub pods: Vec<Arc<Pod>>,
    /// Pods beyond that bound. Those that ended are left out first.
    pub left_out: u32,
    /// Pods whose newest version could not be read. Of those that could be read before, the older version is in `pods`.
    pub unreadable: u32,
}

/// How the watch of this node's pods fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWatchState {
    /// When the API server last said anything; `None` before the first list.
    pub heard: Option<Monotonic>,
    /// Why it cannot be asked now, if it cannot.
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
            phase: PodPhase::Running,
            created_at: None,
            version: None,
            arrival: None,
            deleted_at: None,
            annotations: vec![("hami.io/a".into(), "1".into()), ("hami.io/b".into(), "2".into())],
            annotations_left_out: 0,
            system_keys_left_out: 0,
            labels: Vec::new(),
            priority: None,
            controller: None,
            host_network: false,
            runtime_class: None,
            restart: None,
            containers: vec![],
            containers_left_out: 0,
        };
        assert_eq!((pod.annotation("hami.io/b"), pod.annotation("hami.io/c")), (Some("2"), None));
        assert_eq!(pod.cgroup_uid(), &pod.uid);
        assert!(!pod.ended());
    }
}
