//! Texts of events for the owners of pods: what is wrong, and what to do about it.

use model::id::GpuUuid;
use model::nvidia::MEMORY;
use model::plugin::PodFiles;
use model::unit::Bytes;
use model::view::OverUse;
use std::fmt::Display;

/// A file of this container could not be written.
pub(super) fn not_delivered(container: &str, why: &dyn Display) -> String {
    format!(
        "container {container} cannot get its GPUs: {why}; make room on the disk of --state-dir \
         (or of --cdi-dir, if that path is named), or repair it; the kubelet then starts the container"
    )
}

/// The containers of the pod run without the edits of their CDI devices.
pub(super) const NOT_APPLIED: &str = "the containers of this pod have neither their GPUs nor their limits: the container runtime did not \
                           make the edits of their CDI devices (is its CDI switched off?); delete the pod";

/// The pod has written too much into its folders on the node.
pub(super) fn too_much_written(files: &PodFiles, limit: Bytes) -> String {
    format!(
        "the pod has written {} MiB in {} files or more into /usr/local/vgpu and /tmp/vgpulock, which are on the node's disk, \
         and may write {} MiB, each file counted as 4 KiB or more (--pod-files-limit); write elsewhere, and delete the pod",
        files.bytes.0 >> 20,
        files.files,
        limit.0 >> 20
    )
}

/// The pod holds a GPU that this node does not list.
pub(super) fn gpu_missing(device: &GpuUuid) -> String {
    format!(
        "this pod holds {device}, and this node lists no such GPU, so the agent cannot measure it; delete the pod, so that \
         it is placed again. A real GPU may have been taken out or replaced; the UUID of a simulated one \
         (--gpus simulated) depends on the node's name and the GPU's number"
    )
}

/// The processes of the pod hold more memory of a GPU than the pod claims.
pub(super) fn over_use(over: &OverUse) -> String {
    let used = over.used.value().map_or_else(|| "more memory".to_owned(), |used| format!("{} MiB", used.0 >> 20));
    format!(
        "the pod's processes hold {used} of {}, and its claim has {} MiB; \
         keep within {MEMORY}, or ask for more of it",
        over.device,
        over.claimed.0 >> 20
    )
}
