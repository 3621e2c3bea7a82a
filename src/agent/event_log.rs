//! Writes to the log what happens to GPUs and to the pods that hold them. Lines about the agent's own work on a pod, such as a
//! write to the API server or the check of CDI, are logged by the code that does that work. A line is a sentence with the event
//! and its reason; the values are fields, which journald keeps as `GPU_UUID`, `POD` (`ml/train-0`) and `CONTAINER`.
//!
//! ```text
//!   decide::node ──NodeEvent──▶ log_event
//!   sharing ───────PodEvent───▶ log_pod_event
//! ```

use apiserver::ApiError;
use decide::allocator::Refusal;
use decide::node_event::NodeEvent;
use model::claim::Claim;
use model::gpu::{Xid, XidSeverity};
use model::id::{GpuUuid, PodRef};
use model::incident::{HOW_TO_CLEAR, Incident, KeptIncidents};
use model::observation::GpuSourceState;
use model::plugin::PodFiles;
use model::switch::Sxid;
use model::view::{NodeView, OverUse};
use model::withheld::WithheldDevice;
use std::fmt::Display;

/// What happens to a pod of this node.
pub(crate) enum PodEvent<'a> {
    /// A container may not start.
    MayNotStart { container: &'a str, why: &'a Refusal },
    /// The files of a container cannot be written.
    NotDelivered { container: &'a str, error: &'a dyn Display },
    /// A container runs without its limits: the container runtime ignored its CDI device.
    LimitsNotApplied { container: &'a str },
    /// The claim that an extender made for the pod does not fit on this node.
    NoRoom,
    /// The pod holds a GPU that this node does not list.
    GpuMissing(&'a GpuUuid),
    /// The pod holds this GPU without a claim for it, so the GPU gets no new containers.
    GpuTaken(&'a GpuUuid),
    /// The pod's processes hold more memory than it claims. As in the next three events, the event on the pod has the same
    /// text.
    OverUse(&'a OverUse, &'a str),
    /// The pod has written too much to its folders on this node.
    WroteTooMuch(&'a PodFiles, &'a str),
    /// The pod is evicted.
    Evicted(&'a str),
    /// The pod cannot be evicted.
    NotEvicted(&'a str, &'a ApiError),
    /// The pod's claim has moved to other devices.
    ClaimMoved(&'a Claim),
    /// The pod has device shares that its annotation does not show yet.
    ClaimUnwritten,
}

/// Writes one log line about a pod.
pub(crate) fn log_pod_event(pod: &PodRef, event: &PodEvent<'_>) {
    match event {
        PodEvent::MayNotStart { container, why } => {
            tracing::warn!(%pod, container, reason = why.code(), "a container may not start: {why}");
        }
        PodEvent::NotDelivered { container, error } => {
            tracing::error!(%pod, container, %error, "a container cannot get its GPUs");
        }
        PodEvent::LimitsNotApplied { container } => tracing::error!(
            %pod,
            container,
            "a container runs without its limits: the runtime accepts CDI devices from kubelet and ignores them \
             (enable_cdi of containerd?)"
        ),
        PodEvent::NoRoom => tracing::warn!(
            %pod,
            "the pod's claim does not fit on this node: marked for eviction, to be scheduled again"
        ),
        PodEvent::GpuMissing(gpu) => {
            tracing::warn!(%pod, gpu_uuid = %gpu, "a pod runs and holds a GPU that this node does not list");
        }
        PodEvent::GpuTaken(gpu) => tracing::warn!(
            gpu_uuid = %gpu,
            %pod,
            "a GPU gets no new containers until the pod {pod} ends: another device plugin gave it to the pod, or the pod's \
             claim cannot be mapped to a GPU"
        ),
        PodEvent::OverUse(over, note) => {
            tracing::warn!(%pod, gpu_uuid = %over.device, "a pod uses too much GPU memory: {note}");
        }
        PodEvent::WroteTooMuch(files, note) => {
            tracing::warn!(%pod, bytes = files.bytes.0, files = files.files, "a pod has written too much: {note}");
        }
        PodEvent::Evicted(note) => tracing::warn!(%pod, "a pod is evicted: {note}"),
        PodEvent::NotEvicted(note, error) => tracing::warn!(%pod, %error, "cannot evict a pod: {note}"),
        PodEvent::ClaimMoved(claim) => {
            let devices: Vec<&str> = claim.iter().flatten().map(|share| share.device.as_str()).collect();
            tracing::info!(%pod, ?devices, "a claim has moved to other devices: the pod's annotation is rewritten");
        }
        PodEvent::ClaimUnwritten => {
            tracing::info!(%pod, "this pod's claim is not in its annotation yet: it is written now");
        }
    }
}

/// A device that the driver lists is not offered.
pub(crate) fn log_withheld(withheld: &WithheldDevice) {
    tracing::warn!(
        gpu_index = withheld.index,
        gpu_uuid = withheld.device.as_ref().map(tracing::field::display),
        reason = withheld.why.code(),
        advice = withheld.why.advice(),
        "{withheld}"
    );
}

/// The GPU had incidents when the previous agent ended.
pub(crate) fn log_kept_incidents(kept: &KeptIncidents) {
    let incidents: Vec<String> = kept.incidents.iter().map(|(incident, _)| incident.code()).collect();
    tracing::warn!(gpu_uuid = %kept.gpu, ?incidents, "the GPU had these incidents before the agent started");
}

/// No pod holds the GPU without a claim any more.
pub(crate) fn log_not_taken(gpu: &GpuUuid) {
    tracing::info!(gpu_uuid = %gpu, "no other owner holds the GPU any more: it gets new containers again");
}

/// An operator has cleared the GPU's incidents.
pub(crate) fn log_cleared(gpu: &GpuUuid) {
    tracing::warn!(gpu_uuid = %gpu, "an operator has cleared the incidents of the GPU");
}

/// Writes one log line. The view gives the name of the pod to which an XID belongs.
pub(crate) fn log_event(event: &NodeEvent, view: &NodeView) {
    match event {
        NodeEvent::GpuSource(state) => gpu_source(state),
        NodeEvent::GpuAppeared { gpu, model, index } => {
            tracing::info!(gpu_uuid = %gpu, model = &**model, index, "GPU found");
        }
        NodeEvent::GpuDisappeared(gpu) => tracing::warn!(gpu_uuid = %gpu, "GPU is not in the driver's list any more"),
        NodeEvent::GpuMissing(gpu) => {
            let (reason, advice) = (gpu.reason(), gpu.advice());
            tracing::error!(
                pci_bus_id = &*gpu.pci_bus_id,
                reason = gpu.code(),
                advice,
                "this machine has a GPU that NVML does not list: {reason}. {advice}"
            );
        }
        NodeEvent::GpuNotMissing(pci_bus_id) => {
            tracing::info!(pci_bus_id = &**pci_bus_id, "a GPU that NVML did not list is listed or gone");
        }
        NodeEvent::GpuSick(gpu, why) => tracing::error!(gpu_uuid = %gpu, reason = %why, "GPU cannot be read: {why}"),
        NodeEvent::GpuAnswers(gpu) => tracing::info!(gpu_uuid = %gpu, "GPU can be read again"),
        NodeEvent::GpuUnfit(gpu, incident) => {
            tracing::error!(gpu_uuid = %gpu, incident = incident.code(), advice = incident.advice(), "GPU gets no new containers: {incident}; {}", incident.advice());
        }
        NodeEvent::GpuAwaitsReset(gpu) => tracing::warn!(gpu_uuid = %gpu, "{HOW_TO_CLEAR}"),
        NodeEvent::GpuFit(gpu) => tracing::info!(gpu_uuid = %gpu, "GPU gets new containers again"),
        NodeEvent::Xid(error) => xid(error, view),
        NodeEvent::GpuFellOff { gpu, pci_bus_id } => {
            let advice = Incident::FallenOff.advice();
            tracing::error!(
                gpu_uuid = gpu.as_ref().map(tracing::field::display),
                pci_bus_id = &**pci_bus_id,
                advice,
                "the driver says that a GPU has fallen off the bus, without an XID: {advice}"
            );
        }
        NodeEvent::XidDetails(error) => xid_details(error, view),
        NodeEvent::Sxid(error) => sxid(error),
        NodeEvent::LeftOut { what, count } => {
            tracing::warn!(what, count, "too many to keep; the rest is missing in metrics and API");
        }
    }
}

fn gpu_source(state: &GpuSourceState) {
    match state {
        GpuSourceState::SwitchedOff => tracing::info!("GPU detection is off (--gpus none)"),
        GpuSourceState::Starting => tracing::debug!("looking for GPUs"),
        GpuSourceState::Working { driver, nvml, cuda, simulated } => {
            let cuda = cuda.as_deref().unwrap_or("unknown");
            let (driver, nvml) = (&**driver, &**nvml);
            if *simulated {
                tracing::warn!(driver, nvml, cuda, simulated, "GPUs are simulated: no GPU value is real");
            } else {
                tracing::info!(driver, nvml, cuda, simulated, "GPUs answer");
            }
        }
        GpuSourceState::Missing { why, advice } => {
            tracing::warn!(reason = why.code(), advice = &**advice, "no GPUs can be read: {advice}");
        }
        GpuSourceState::Released { until } => {
            let seconds = until.since(clock::now().monotonic).as_secs_f64().ceil();
            tracing::warn!(
                seconds,
                "the agent releases the GPU driver because an operator asked for it: until then it reads no GPUs, and XIDs come from the kernel log only"
            );
        }
        GpuSourceState::Hanging => {
            tracing::error!("all calls to the GPU driver hang; GPU values are absent, CPU and memory values continue");
        }
    }
}

fn xid(xid: &Xid, view: &NodeView) {
    // NVML does not name the process. If one pod is the sole holder of the GPU, the error concerns that pod.
    let pod = pod_of(xid, view).or_else(|| sole_holder(xid.gpu.as_ref()?, view));
    let meaning = model::xid::find(xid.code).map_or("not in NVIDIA's catalogue", |entry| entry.meaning);
    tracing::error!(
        gpu_uuid = xid.gpu.as_ref().map(tracing::field::display),
        mig_uuid = xid.mig.as_ref().map(tracing::field::display),
        pci_bus_id = xid.pci_bus_id.as_deref(),
        xid = xid.code,
        severity = xid.severity.map(XidSeverity::code),
        pid = xid.pid,
        pod = pod.map(tracing::field::display),
        "GPU driver error: XID {} ({meaning})",
        xid.code
    );
}

/// Logs the process and the severity of an XID. NVML reported the error earlier; now the kernel log has them.
fn xid_details(xid: &Xid, view: &NodeView) {
    let gpu_uuid = xid.gpu.as_ref().map(tracing::field::display);
    if xid.pid.is_some() {
        let pod = pod_of(xid, view);
        tracing::error!(
            gpu_uuid,
            xid = xid.code,
            pid = xid.pid,
            pod = pod.map(tracing::field::display),
            "the process behind GPU driver error XID {}",
            xid.code
        );
    }
    if let Some(severity) = xid.severity.map(XidSeverity::code) {
        tracing::warn!(
            gpu_uuid,
            xid = xid.code,
            severity,
            "the kernel log calls GPU driver error XID {} {severity}",
            xid.code
        );
    }
}

fn sxid(sxid: &Sxid) {
    let (switch, code, link) = (&*sxid.switch, sxid.code, sxid.link);
    if sxid.fatal {
        tracing::error!(pci_bus_id = switch, sxid = code, link, "NVSwitch error: SXid {code}, fatal");
    } else {
        tracing::warn!(pci_bus_id = switch, sxid = code, link, "NVSwitch error: SXid {code}, not fatal");
    }
}

fn sole_holder<'a>(gpu: &GpuUuid, view: &'a NodeView) -> Option<&'a PodRef> {
    let gpu = view.gpus.iter().find(|seen| seen.gpu.uuid == *gpu)?;
    view.pod(gpu.sole_holder()?)?.name.as_ref()
}

fn pod_of<'a>(xid: &Xid, view: &'a NodeView) -> Option<&'a PodRef> {
    view.pod(xid.pod.as_ref()?)?.name.as_ref()
}
