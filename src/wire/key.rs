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

/// Pod: why it can never start here; who may is asked to evict it.
pub const EVICT: &str = "gpu-steward.io/evict";

/// Pod: who made its assignment, where that was no scheduler.
pub const PLACED_BY: &str = "gpu-steward.io/placed-by";
/// Its value on a pod that the node gave something by itself.
pub const PLACED_BY_AGENT: &str = "agent";
/// Pod and Node: the leader that wrote.
pub const EPOCH: &str = "gpu-steward.io/epoch";

/// Never written: an agent tries with it whether its own writes are guarded.
pub const GUARD_CHECK: &str = "gpu-steward.io/guard-check";
/// Never written: an agent tries with it whether system-owned keys are guarded.
pub const GUARD_CHECK_KEYS: &str = "gpu-steward.io/guard-check-keys";

/// The keys of pods that users do not write: what is guarded in the API server, and read before what is anybody's.
pub const SYSTEM_OWNED: [&str; 10] = [
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    TO_ALLOCATE,
    ALLOCATED,
    MIG_ALLOCATIONS,
    BIND_TIME,
    BIND_PHASE,
    EPOCH,
    PLACED_BY,
    EVICT,
];

/// What GPU feature discovery leaves on a Node that it labels.
pub const DISCOVERY: &str = "nvidia.com/gfd.timestamp";
/// Node, label ([`crate::labels`]), as the next ones: there are GPUs.
pub const LABEL_PRESENT: &str = "nvidia.com/gpu.present";
/// How many.
pub const LABEL_COUNT: &str = "nvidia.com/gpu.count";
/// Their name.
pub const LABEL_PRODUCT: &str = "nvidia.com/gpu.product";
/// Memory of each, in MiB.
pub const LABEL_MEMORY: &str = "nvidia.com/gpu.memory";
/// Their generation.
pub const LABEL_FAMILY: &str = "nvidia.com/gpu.family";
/// CUDA compute capability, before the point.
pub const LABEL_COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
/// Behind the point.
pub const LABEL_COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
/// Into how many each is cut.
pub const LABEL_REPLICAS: &str = "nvidia.com/gpu.replicas";
/// How they are shared.
pub const LABEL_SHARING: &str = "nvidia.com/gpu.sharing-strategy";
/// Whether one of them can be divided by MIG.
pub const LABEL_MIG_CAPABLE: &str = "nvidia.com/mig.capable";
/// How they are divided, where they are.
pub const LABEL_MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
/// Version of the driver.
pub const LABEL_DRIVER: &str = "nvidia.com/cuda.driver-version.full";
/// Its parts, each by its new and its old name.
pub const LABELS_DRIVER: [[&str; 2]; 3] = [
    ["nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"],
    ["nvidia.com/cuda.driver-version.minor", "nvidia.com/cuda.driver.minor"],
    ["nvidia.com/cuda.driver-version.revision", "nvidia.com/cuda.driver.rev"],
];
/// Version of CUDA that the driver brings.
pub const LABEL_RUNTIME: &str = "nvidia.com/cuda.runtime-version.full";
/// Its parts, each by its new and its old name.
pub const LABELS_RUNTIME: [[&str; 2]; 2] = [
    ["nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime.major"],
    ["nvidia.com/cuda.runtime-version.minor", "nvidia.com/cuda.runtime.minor"],
];
/// Every label that we may write on our Node.
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
    fn what_is_read_first_is_what_the_policies_guard() {
        let chart = include_str!("../../charts/gpu-steward/templates/guard/_keys.tpl");
        let (_, keys) = chart.split_once("steward.podKeys").unwrap();
        let (keys, _) = keys.split_once("end }}").unwrap();
        let keys: Vec<&str> = keys.split('\'').filter(|key| key.contains('/')).collect();
        assert_eq!(keys, SYSTEM_OWNED);
    }
}
