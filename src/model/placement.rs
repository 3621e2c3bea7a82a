//! What a pod requests from the scheduler besides amounts: which GPUs it accepts, and which it prefers.

use crate::id::{GpuUuid, PodRef, PodUid};
use crate::request::ContainerRequest;
use crate::time::WallTime;
use std::sync::Arc;

/// Which GPUs a pod accepts. The default accepts every GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuSelection {
    /// The product name contains one of these words, in lower case (`nvidia.com/use-gputype`). Empty: any product.
    pub use_types: Vec<Arc<str>>,
    /// The product name contains none of these words, in lower case (`nvidia.com/nouse-gputype`).
    pub avoid_types: Vec<Arc<str>>,
    /// The UUID is one of these (`nvidia.com/use-gpuuuid`), in order. Empty: any UUID.
    pub use_uuids: Vec<GpuUuid>,
    /// The UUID is none of these (`nvidia.com/nouse-gpuuuid`), in order.
    pub avoid_uuids: Vec<GpuUuid>,
    /// This text contains the sharing mode of the GPU (`nvidia.com/vgpu-mode`). `None`: any mode.
    pub modes: Option<Arc<str>>,
    /// All GPUs of one container are on one NUMA node (`nvidia.com/numa-bind`).
    pub numa_bind: bool,
}

/// Which of the fitting nodes a pod prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodePolicy {
    /// The fullest node, so that whole nodes stay free.
    #[default]
    Binpack,
    /// The emptiest node.
    Spread,
}

/// Which of the fitting GPUs of a node a container prefers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuPolicy {
    /// The keys by which GPUs are ordered; the first key decides first. Never empty.
    pub order: Vec<GpuOrder>,
    /// Only GPUs that no other pod shares (`mutex`).
    pub idle_only: bool,
    /// Several GPUs of one container are the best connected GPUs (`topology-aware`).
    pub topology: bool,
}

/// One key of the order of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuOrder {
    /// The fullest GPU first.
    Binpack,
    /// The emptiest GPU first.
    Spread,
    /// GPUs of one NUMA node next to each other.
    Numa,
}

impl Default for GpuPolicy {
    fn default() -> Self {
        GpuPolicy { order: vec![GpuOrder::Spread], idle_only: false, topology: false }
    }
}

/// The weight of each part of a GPU when GPUs and nodes are compared. At least one is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScoreWeights {
    /// Slots, of which each container takes one.
    pub slots: u32,
    /// SM time.
    pub cores: u32,
    /// Memory.
    pub memory: u32,
}

impl Default for ScoreWeights {
    fn default() -> Self {
        ScoreWeights { slots: 1, cores: 1, memory: 1 }
    }
}

/// What a pod prefers; `None` is the cluster's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacementPreference {
    /// `hami.io/node-scheduler-policy`.
    pub node_policy: Option<NodePolicy>,
    /// `hami.io/gpu-scheduler-policy`.
    pub gpu_policy: Option<GpuPolicy>,
    /// `hami.io/device-scoring-weights`.
    pub weights: Option<ScoreWeights>,
}

/// A pod that requests GPUs from the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The identity.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: PodRef,
    /// The resource version of the pod with this request, if the server uses numbers.
    pub version: Option<u64>,
    /// When the pod was created.
    pub created: Option<WallTime>,
    /// What the pod's containers request, init containers first.
    pub requests: Vec<ContainerRequest>,
    /// Which GPUs the pod accepts.
    pub selection: GpuSelection,
    /// Which nodes and GPUs the pod prefers.
    pub preference: PlacementPreference,
    /// The pod's priority: pods of higher priority may evict it.
    pub priority: i32,
    /// The gang of the pod, with its namespace: kube-scheduler binds all members of a gang or none.
    pub gang: Option<Arc<str>>,
    /// Whether the pod asks for the check of memory that is really free (`hami.io/enable-realtime-check`); `None` if it does not say.
    pub realtime: Option<bool>,
    /// Whether the pod also prefers nodes by rules that only kube-scheduler knows: affinity and topology spread.
    pub prefers_nodes: bool,
}

impl PlacementRequest {
    /// Whether the pod accepts only some GPUs.
    #[must_use]
    pub fn chooses_gpus(&self) -> bool {
        self.selection != GpuSelection::default()
            || self.preference.gpu_policy.as_ref().is_some_and(|policy| policy.idle_only)
    }

    /// Whether this is the same request of the same pod, in any version: then a decision for one version holds for the other.
    #[must_use]
    pub fn asks_the_same(&self, other: &PlacementRequest) -> bool {
        // Named one by one, so that a new field is not forgotten here.
        let PlacementRequest {
            uid,
            pod,
            version: _,
            requests,
            selection,
            preference,
            priority: _,
            created: _,
            gang: _,
            realtime,
            prefers_nodes: _,
        } = self;
        (uid, pod, requests) == (&other.uid, &other.pod, &other.requests)
            && (selection, preference, realtime) == (&other.selection, &other.preference, &other.realtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ContainerRole;
    use crate::unit::CorePercent;

    #[test]
    fn another_version_asks_the_same_until_something_differs_that_decides() {
        let container = ContainerRequest {
            container: "main".into(),
            role: ContainerRole::App,
            slots: 1,
            memory: None,
            cores: None,
            priority: None,
        };
        let asked = PlacementRequest {
            uid: PodUid::parse(&"1".repeat(32)).unwrap(),
            pod: PodRef { namespace: "ml".into(), name: "train".into() },
            version: Some(7),
            created: None,
            requests: vec![container.clone()],
            selection: GpuSelection::default(),
            preference: PlacementPreference::default(),
            priority: 0,
            gang: None,
            realtime: None,
            prefers_nodes: false,
        };
        assert!(asked.asks_the_same(&PlacementRequest { version: Some(8), prefers_nodes: true, ..asked.clone() }));
        let more = ContainerRequest { cores: Some(CorePercent(10)), ..container };
        let bound = GpuSelection { numa_bind: true, ..GpuSelection::default() };
        let policy = PlacementPreference { node_policy: Some(NodePolicy::Spread), ..PlacementPreference::default() };
        for other in [
            PlacementRequest { uid: PodUid::parse(&"2".repeat(32)).unwrap(), ..asked.clone() },
            PlacementRequest { requests: vec![more], ..asked.clone() },
            PlacementRequest { selection: bound, ..asked.clone() },
            PlacementRequest { preference: policy, ..asked.clone() },
            PlacementRequest { realtime: Some(false), ..asked.clone() },
        ] {
            assert!(!asked.asks_the_same(&other), "{other:?}");
        }
    }
}
