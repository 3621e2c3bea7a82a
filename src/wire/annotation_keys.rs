//! The name of every annotation and label that the agent reads, writes or guards.
//!
//! A key that the agent writes must also be in `charts/gpu-steward/templates/guard/_keys.tpl`, or the admission policy refuses the
//! write. A key on a Node must also be in `agent/clean.rs`, or it stays after an uninstall. The same is true for the key that the
//! extender writes on Nodes.
//!
//! The keys of NVIDIA's devices are in [`model::nvidia`].

use model::pod::MAX_ANNOTATIONS;

pub use model::nvidia::{
    ASSUMED, AVOID_TYPES, AVOID_UUIDS, DISCOVERY, LABEL_COMPUTE_MAJOR, LABEL_COMPUTE_MINOR, LABEL_COUNT, LABEL_DRIVER,
    LABEL_FAMILY, LABEL_MEMORY, LABEL_MIG_CAPABLE, LABEL_MIG_STRATEGY, LABEL_PRESENT, LABEL_PRODUCT, LABEL_REPLICAS,
    LABEL_RUNTIME, LABEL_SHARING, LABELS_DRIVER, LABELS_RUNTIME, NODE_LINKS, NUMA_BIND, REGISTER, SHARING_MODES,
    USE_TYPES, USE_UUIDS,
};

/// Maximum size of a value in bytes: Kubernetes' limit for all annotations of one object together.
pub const MAX_ANNOTATION: usize = 256 * 1024;

/// Bytes of all annotations that the program may write on one pod: the claim twice, with the longest names of a node and a Lease,
/// and the marks that come later. A pod without this room is not bound: the API server does not check the annotations of a Binding,
/// and refuses all later writes to a pod that has too many, even writes of its status.
pub const ROOM: usize = MAX_ANNOTATIONS;

/// Node: when its agent was last alive ([`crate::handshake`]).
pub const HANDSHAKE: &str = "hami.io/node-handshake";
/// Node: GPUs that get no new containers ([`crate::cordon`]).
pub const CORDON: &str = "hami.io/device-cordon";
/// Node: the node lock of HAMi's scheduler ([`crate::node_lock`]).
pub const NODE_LOCK: &str = "hami.io/mutex.lock";

/// Node: what its GPUs are, as Alnair writes it ([`crate::alnair`]).
pub const GPU_STATIC: &str = "ai.centaurus.io/gpu-static";
/// Node: the keys about the load of one GPU, with its index ([`crate::profile_keys`]), as the patterns of the chart's policy.
pub const GPU_LOAD_PATTERNS: [&str; 4] = [
    "^ai[.]centaurus[.]io/gpu-[0-9]+$",
    "^ai[.]centaurus[.]io/GPU-[0-9]+-job-type$",
    "^ai[.]centaurus[.]io/GPU-[0-9]+-mem-util-max$",
    "^gpu-steward[.]io/gpu-[0-9]+-profile$",
];

/// Pod, annotation and label: the node that the scheduler chose for it.
pub const ASSIGNED_NODE: &str = "hami.io/vgpu-node";
/// Pod: when the scheduler chose the node, in Unix seconds.
pub const ASSIGNED_TIME: &str = "hami.io/vgpu-time";
/// Pod: the device shares of containers that have not received their GPUs yet ([`crate::claim`]).
pub const TO_ALLOCATE: &str = "hami.io/vgpu-devices-to-allocate";
/// Pod: its claim, that is, all its device shares ([`crate::claim`]).
pub const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// Pod: its MIG instances.
pub const MIG_ALLOCATIONS: &str = "hami.io/vgpu-mig-allocations";
/// Pod: when it was bound, in Unix seconds.
pub const BIND_TIME: &str = "hami.io/bind-time";
/// Pod: its bind phase ([`crate::bind`]).
pub const BIND_PHASE: &str = "hami.io/bind-phase";

/// Pod: the annotations that say which GPUs it accepts.
pub const GPU_CONDITIONS: [&str; 6] = [USE_TYPES, AVOID_TYPES, USE_UUIDS, AVOID_UUIDS, NUMA_BIND, SHARING_MODES];
/// Pod: which nodes it prefers.
pub const NODE_POLICY: &str = "hami.io/node-scheduler-policy";
/// Pod: which GPUs of a node it prefers.
pub const GPU_POLICY: &str = "hami.io/gpu-scheduler-policy";
/// Pod: the weights of slots, SM time and memory in its placement scores.
pub const SCORE_WEIGHTS: &str = "hami.io/device-scoring-weights";
/// Pod: whether it is checked against the memory that is really in use.
pub const REALTIME_CHECK: &str = "hami.io/enable-realtime-check";

/// Pod: the reason why a controller should evict it, for example because it can never start on this node.
pub const EVICT: &str = "gpu-steward.io/evict";

/// Pod: the program that made its claim, if it was not a scheduler.
pub const PLACED_BY: &str = "gpu-steward.io/placed-by";
/// Value of [`PLACED_BY`] on a pod whose claim the agent made.
pub const PLACED_BY_AGENT: &str = "agent";
/// Pod and Node: the epoch of the leading extender that wrote the annotations.
pub const EPOCH: &str = "gpu-steward.io/epoch";
/// Pod: the version of the format of its claim ([`crate::claim_version`]).
pub const CLAIM_VERSION: &str = "gpu-steward.io/claim-version";
/// Pod: namespace and name of the Lease that the leader held when it wrote the pod's claim.
pub const LEASE: &str = "gpu-steward.io/lease";
/// Pod that is not bound: the pod version that a leader made obsolete by this write, so that the API server refuses
/// earlier bindings that name this version.
pub const FENCE: &str = "gpu-steward.io/fence";
/// Pod that is not bound: the epoch of a leader and the number of a wake. The leader writes it when a node has room for the
/// pod, so that kube-scheduler tries the pod again.
pub const WAKE: &str = "gpu-steward.io/wake";
/// Pod of an extender: a mark that the extender writes when it has won the election, and waits for in its pod watch.
pub const LEADS: &str = "gpu-steward.io/leads";
/// Lease: address and port where the leader serves agents and the other extenders.
pub const LEADER_ADDRESS: &str = "gpu-steward.io/address";

/// Only in dry-run writes: the agent tests whether the admission policy for agents' writes to Nodes is in force.
pub const GUARD_CHECK: &str = "gpu-steward.io/guard-check";
/// Only in dry-run writes: the agent tests whether the admission policy for system-owned keys is in force.
pub const GUARD_CHECK_KEYS: &str = "gpu-steward.io/guard-check-keys";

/// Annotations of pods that users must not write. The admission policies guard them, and the pod decoder keeps them
/// before all other annotations.
pub const SYSTEM_OWNED: [&str; 12] = [
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    TO_ALLOCATE,
    ALLOCATED,
    MIG_ALLOCATIONS,
    BIND_TIME,
    BIND_PHASE,
    EPOCH,
    CLAIM_VERSION,
    LEASE,
    PLACED_BY,
    EVICT,
];

/// Every label that the agent may write on its Node.
pub const LABELS: [&[&str]; 3] = [
    &[
        LABEL_PRESENT,
        LABEL_COUNT,
        LABEL_PRODUCT,
        LABEL_MEMORY,
        LABEL_FAMILY,
        LABEL_COMPUTE_MAJOR,
        LABEL_COMPUTE_MINOR,
        LABEL_REPLICAS,
        LABEL_SHARING,
        LABEL_MIG_CAPABLE,
        LABEL_MIG_STRATEGY,
        LABEL_DRIVER,
        LABEL_RUNTIME,
    ],
    LABELS_DRIVER.as_flattened(),
    LABELS_RUNTIME.as_flattened(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotations_that_are_read_first_are_those_that_the_policies_guard() {
        let chart = include_str!("../../charts/gpu-steward/templates/guard/_keys.tpl");
        let (_, keys) = chart.split_once("steward.podKeys").unwrap();
        let (keys, _) = keys.split_once("end }}").unwrap();
        let keys: Vec<&str> = keys.split('\'').filter(|key| key.contains('/')).collect();
        assert_eq!(keys, SYSTEM_OWNED);
    }
}
