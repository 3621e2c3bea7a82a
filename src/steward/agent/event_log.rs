//! Writes node events to the log. A line is a sentence with the event and its reason; the values are fields, which
//! journald keeps as `GPU_UUID`, `POD`, `NAMESPACE`.

use decide::node_event::NodeEvent;
use model::gpu::Xid;
use model::id::{GpuUuid, PodRef};
use model::incident::HOW_TO_CLEAR;
use model::observation::GpuSourceState;
use model::switch::Sxid;
use model::view::NodeView;

/// Writes one log line. The view gives the name of the pod that an XID belongs to.
pub(crate) fn log_event(event: &NodeEvent, view: &NodeView) {
    match event {
        NodeEvent::GpuSource(state) => gpu_source(state),
        NodeEvent::GpuAppeared { gpu, model, index } => {
            tracing::info!(gpu_uuid = %gpu, model = &**model, index, "GPU found");
        }
        NodeEvent::GpuDisappeared(gpu) => tracing::warn!(gpu_uuid = %gpu, "GPU is not in the driver's list any more"),
        NodeEvent::GpuSick(gpu, why) => tracing::error!(gpu_uuid = %gpu, reason = %why, "GPU cannot be read: {why}"),
        NodeEvent::GpuAnswers(gpu) => tracing::info!(gpu_uuid = %gpu, "GPU can be read again"),
        NodeEvent::GpuUnfit(gpu, incident) => {
            tracing::error!(gpu_uuid = %gpu, incident = incident.code(), advice = incident.advice(), "GPU gets no new containers: {incident}; {}", incident.advice());
        }
        NodeEvent::GpuAwaitsReset(gpu) => tracing::warn!(gpu_uuid = %gpu, "{HOW_TO_CLEAR}"),
        NodeEvent::GpuFit(gpu) => tracing::info!(gpu_uuid = %gpu, "GPU gets new containers again"),
        NodeEvent::Xid(error) => xid(error, view),
        NodeEvent::XidProcess(error) => xid_process(error, view),
        NodeEvent::Sxid(error) => sxid(error),
        NodeEvent::LeftOut { what, count } => {
            tracing::warn!(what, count, "more than can be kept; the rest is missing in metrics and API");
        }
    }
}

fn gpu_source(state: &GpuSourceState) {
    match state {
        GpuSourceState::SwitchedOff => tracing::info!("GPUs are not looked for (--gpus none)"),
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
            let seconds = until.since(sources::clock::now().monotonic).as_secs_f64().ceil();
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
    // NVML names no process. If one pod is the sole holder of the GPU, the error concerns that pod.
    let pod = pod_of(xid, view).or_else(|| sole_holder(xid.gpu.as_ref()?, view));
    let meaning = model::xid::find(xid.code).map_or("not in NVIDIA's catalogue", |entry| entry.meaning);
    tracing::error!(
        gpu_uuid = xid.gpu.as_ref().map(tracing::field::display),
        mig_uuid = xid.mig.as_ref().map(tracing::field::display),
        pci_bus_id = xid.pci_bus_id.as_deref(),
        xid = xid.code,
        pid = xid.pid,
        pod = pod.map(|pod| &*pod.name),
        namespace = pod.map(|pod| &*pod.namespace),
        "GPU driver error: XID {} ({meaning})",
        xid.code
    );
}

/// Logs the process of an XID. NVML reported the error before; the kernel log now names the process.
fn xid_process(xid: &Xid, view: &NodeView) {
    let pod = pod_of(xid, view);
    tracing::error!(
        gpu_uuid = xid.gpu.as_ref().map(tracing::field::display),
        xid = xid.code,
        pid = xid.pid,
        pod = pod.map(|pod| &*pod.name),
        namespace = pod.map(|pod| &*pod.namespace),
        "the process behind GPU driver error XID {}",
        xid.code
    );
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
