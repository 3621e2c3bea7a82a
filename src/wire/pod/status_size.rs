//! How large the status of a pod may become, as far as the pod shows it. A pod whose status does not fit into etcd's limit keeps its
//! GPUs, and its kubelet can report nothing.
//!
//! The kubelet cuts the messages of ended containers, but not the message of a container that waits: that message quotes the error
//! of the kubelet or the runtime. These texts of a pod have no maximum length and may be in it, or elsewhere in the status:
//!
//! | text | where it is repeated | counted |
//! |---|---|---|
//! | `image`, `volumes[].image` | in the status and in messages of the pull | [`IMAGE_COPIES`] |
//! | first text of `command` or `args`, with its variables | the runtime cannot start it | [`MESSAGE_COPIES`] |
//! | `workingDir`, `volumeDevices`, `terminationMessagePath` | the runtime cannot create the path | [`MESSAGE_COPIES`] |
//! | `lifecycle.postStart` | the kubelet's message that the hook failed | [`MESSAGE_COPIES`] |
//! | `securityContext`: profiles, SELinux, Windows, capabilities | the runtime does not know them | [`MESSAGE_COPIES`] |
//! | `volumeMounts`, and `securityContext` of the pod | in the status of each container, and in messages | 1 + [`MESSAGE_COPIES`] |
//! | `subPathExpr`, with its variables | the path leads out of the volume | 1 |
//! | `volumes[].hostPath` | the runtime cannot read the path | the longest, [`MESSAGE_COPIES`] for each container |
//! | names in `env`, `prefix` in `envFrom` | the runtime refuses a value with a zero byte | the longest, [`MESSAGE_COPIES`] |
//! | `valueFrom`: path of `fileKeyRef`, container of `resourceFieldRef` | the kubelet does not find it | with the name |
//! | values of `CUDA_VERSION` and of `NVIDIA_…` variables | NVIDIA's runtime does not know the version, device or capability | the longest, [`MESSAGE_COPIES`] |
//! | annotations `blockio.resources.beta.kubernetes.io/…`, `rdt.…` | the runtime does not know the class | the longest, [`MESSAGE_COPIES`] for each container |
//! | `resources.requests`, `resources.claims` | in the status of container and pod | [`REQUEST_COPIES`] |
//! | `readinessGates` | in the condition of the pod | [`GATE_COPIES`] |
//!
//! Not counted, because only events have them: probes, `preStop`, `hostAliases`, `dnsConfig`, `ports[].hostIP`, `imagePullSecrets`,
//! and all other volumes (the kubelet does not create a container before its volumes are mounted and its sandbox runs). Not counted,
//! because the API server bounds them: names, keys of a ConfigMap or Secret, `hostname`, names of `sysctls` (the pod's
//! `securityContext` has their values). The names of `resourceClaims` are in the status before the pod is placed, so they are
//! part of its size. Texts that are not in the pod are listed in docs/security.md.
//!
//! What must never happen here: a text without a maximum length that the status may repeat is not counted.

use super::{Container, Spec};
use crate::variables;
use serde_json::value::RawValue;

/// Bytes of the status of a container, without the parts that the other constants count: the ids of container and image (about 250),
/// two states (about 300), and its name in three conditions (up to 200).
const CONTAINER_STATUS: usize = 1024;
/// How often a status has the image of a container: once as it is, and twice in the message that the name is not valid. The
/// message has quoted texts, in which Go writes a control character as four bytes.
const IMAGE_COPIES: usize = 9;
/// How often a status may have a text in the message about a container that cannot be created or started: once as it is and once
/// quoted.
const MESSAGE_COPIES: usize = 5;
/// How often a status has the resource requests of a container: as limits, requests and allocated resources of the container, and
/// as the same three of the pod. The API server accepts extended resources only if limits and requests are equal.
const REQUEST_COPIES: usize = 6;
/// Factor for the size of a readiness gate. The kubelet's sentence about a gate that is not fulfilled has 66 bytes and the gate's
/// name; a gate counts as 25 bytes and its name.
const GATE_COPIES: usize = 3;
/// Maximum bytes of the lists of variables of a pod for which their names are not counted, which saves the time to read them. Their
/// copies take 80 KiB, a sixth of the room that [`MAX_POD`](super::MAX_POD) leaves.
const SMALL_LISTS: usize = 16 << 10;

/// About as many bytes as the kubelet may write into the status of a pod with this specification.
pub(super) fn status_bytes(spec: &Spec<'_>, longest_class: usize) -> u32 {
    let lists = [&spec.init_containers, &spec.containers, &spec.ephemeral_containers];
    let containers = || lists.into_iter().flat_map(|list| &list.0);
    // Any container may mount any volume.
    let images: usize = spec.volumes.0.iter().map(|volume| volume.image.stored()).sum();
    let host_path = spec.volumes.0.iter().map(|volume| volume.host_path.stored()).max().unwrap_or_default();
    let variables: usize = containers().flat_map(lists_of_variables).map(|list| list.get().len()).sum();
    let shared = Shared {
        images,
        host_path,
        security_context: spec.security_context.stored(),
        longest_class,
        reads_variables: variables > SMALL_LISTS,
    };
    let containers = containers().map(|container| shared.of_container(container)).fold(0, usize::saturating_add);
    let gates = GATE_COPIES * spec.readiness_gates.stored();
    u32::try_from(containers.saturating_add(gates)).unwrap_or(u32::MAX)
}

/// What the status of each container may have of its pod.
struct Shared {
    images: usize,
    host_path: usize,
    security_context: usize,
    /// Bytes of the longest annotation that chooses a class of block I/O or of caches.
    longest_class: usize,
    /// Whether the names of variables are counted.
    reads_variables: bool,
}

impl Shared {
    fn of_container(&self, container: &Container<'_>) -> usize {
        let Container { image, working_dir, resources, lifecycle, security_context, .. } = container;
        let known = container.variables();
        let (mounts, longest_path) = container.mounts(&known);
        let named = lists_of_variables(container).filter(|_| self.reads_variables).map(variables::longest_name);
        // The kubelet names a path that leads out of its volume once, as it is.
        let expanded = MESSAGE_COPIES
            .saturating_mul(known.expanded(container.program()).saturating_add(known.longest_of_nvidia()))
            .saturating_add(longest_path);
        let paths = container.termination_message_path.with(container.volume_devices).with(*working_dir).stored();
        let texts = paths
            + security_context.0.texts()
            + lifecycle.0.post_start.stored()
            + self.host_path
            + self.longest_class
            + named.max().unwrap_or_default();
        let stated = CONTAINER_STATUS
            + IMAGE_COPIES * (image.0.len() + self.images)
            + REQUEST_COPIES * (resources.0.requests.stored() + resources.0.claims.stored())
            + MESSAGE_COPIES * texts
            // The status of each container also has its mounts, and the groups of the pod.
            + (1 + MESSAGE_COPIES) * (mounts + self.security_context);
        stated.saturating_add(expanded)
    }
}

fn lists_of_variables<'a>(container: &Container<'a>) -> impl Iterator<Item = &'a RawValue> + use<'a> {
    [container.env, container.env_from].into_iter().flatten()
}
