//! Nodes of the cluster, reduced to the fields that a scheduler of GPUs needs.

use crate::id::{GpuUuid, NodeName, ObjectUid};
use crate::registered::RegisteredGpu;
use crate::time::{Arrival, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Upper bound on the Nodes of a cluster: three times the number that Kubernetes supports.
pub const MAX_CLUSTER_NODES: usize = 15_000;

/// One Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedNode {
    /// The UID.
    pub uid: ObjectUid,
    /// The name.
    pub name: NodeName,
    /// When the Node was created.
    pub created_at: Option<WallTime>,
    /// The resource version, if the server uses numbers.
    pub version: Option<u64>,
    /// The Node's place in the order in which Nodes were first seen.
    pub arrival: Option<Arrival>,
    /// Annotations about GPUs, ordered by key, bounded like the annotations of a pod.
    pub annotations: Vec<(Arc<str>, Arc<str>)>,
    /// Number of such annotations that are too large; their values are not known.
    pub annotations_left_out: u32,
    /// How much of the Node's GPUs is taken, as an extender has written. It is not in `annotations`, so that it takes no room of the
    /// register; `None` also if it is larger than an extender writes it.
    pub assumed: Option<Arc<str>>,
}

impl FollowedNode {
    /// The annotation with this key; also `None` if it was too large to be kept.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let place = self.annotations.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.annotations.get(place).map(|(_, value)| &**value)
    }
}

/// The facts about a Node that the scheduler uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The UID.
    pub uid: ObjectUid,
    /// The name.
    pub name: NodeName,
    /// The GPUs that the node registers (empty if it registers none), or why the register cannot be read.
    pub register: Result<Vec<RegisteredGpu>, Arc<str>>,
    /// The devices that an operator cordoned.
    pub cordoned: BTreeSet<GpuUuid>,
    /// The time in the Node's handshake; `None` if it has no handshake, or the handshake is not a Unix time.
    pub handshake: Option<WallTime>,
    /// What the Node says is taken of its GPUs.
    pub assumed: Option<Arc<str>>,
    /// How well each pair of devices is connected, in both orders; empty if not known.
    pub links: BTreeMap<(GpuUuid, GpuUuid), u32>,
}
