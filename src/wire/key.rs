//! The keys: every annotation, label and resource by its exact name, once.

/// Kubernetes allows this much for all annotations of one object together, so no single value is longer.
pub const MAX_ANNOTATION: usize = 256 * 1024;

/// Node: the GPUs it offers ([`crate::register`]).
pub const REGISTER: &str = "hami.io/node-nvidia-register";
/// Node: when it last said that it is there ([`crate::handshake`]).
pub const HANDSHAKE: &str = "hami.io/node-handshake";
/// Node: GPUs that get no new containers ([`crate::cordon`]).
pub const CORDON: &str = "hami.io/device-cordon";
/// Node: the lock of HAMi's scheduler ([`crate::node_lock`]).
pub const NODE_LOCK: &str = "hami.io/mutex.lock";
/// Node: pair scores of its GPUs, written by HAMi's plugin.
pub const TOPOLOGY_SCORE: &str = "hami.io/node-nvidia-score";
/// Node: what is promised there, written by our leader.
pub const ASSUMED: &str = "hami.io/node-nvidia-assume";

/// Pod, annotation and label: the node that was chosen for it.
pub const ASSIGNED_NODE: &str = "hami.io/vgpu-node";
/// Pod: when it was chosen ([`crate::bind`] reads such times).
pub const ASSIGNED_TIME: &str = "hami.io/vgpu-time";
/// Pod: the grants of containers that have not started ([`crate::assignment`]).
pub const TO_ALLOCATE: &str = "hami.io/vgpu-devices-to-allocate";
/// Pod: all its grants ([`crate::assignment`]).
pub const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// Pod: its MIG instances.
pub const MIG_ALLOCATIONS: &str = "hami.io/vgpu-mig-allocations";
/// Pod: when it was bound ([`crate::bind`]).
pub const BIND_TIME: &str = "hami.io/bind-time";
/// Pod: how far its start has come ([`crate::bind`]).
pub const BIND_PHASE: &str = "hami.io/bind-phase";

/// The word of the vendor in device strings.
pub const NVIDIA: &str = "NVIDIA";

/// Pod: who made its assignment, where that was no scheduler.
pub const PLACED_BY: &str = "gpu-steward.io/placed-by";
/// Its value on a pod that the node gave something by itself.
pub const PLACED_BY_AGENT: &str = "agent";
