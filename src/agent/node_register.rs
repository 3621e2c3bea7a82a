//! The register annotation of the agent's Node, made from the GPUs that the kubelet is offered.
//!
//! What must never happen here: a register without GPUs because they are not known yet.

use super::settings::RegisterFormat;
use super::sharing::devices;
use decide::allocator::SharedDevice;
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::reading::Absence;
use model::registered::RegisteredGpu;
use model::unit::{CorePercent, Mib};
use model::view::NodeView;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::device_config::DeviceConfig;
use wire::register;

/// The register annotation.
pub(super) fn encode(view: &NodeView, offered: Vec<SharedDevice>, format: RegisterFormat) -> Option<Arc<str>> {
    // Schedulers must not place pods on a GPU that another owner holds.
    let slots = view.plugin.iter().flat_map(|plugin| plugin.slots.iter());
    let taken: BTreeSet<&GpuUuid> = slots.filter(|slots| slots.taken).map(|slots| &slots.device).collect();
    let gpus: Vec<RegisteredGpu> = offered
        .into_iter()
        .map(|device| RegisteredGpu {
            healthy: device.healthy && !taken.contains(&device.device),
            ..registered(device)
        })
        .collect();
    let text = match format {
        RegisterFormat::Json => register::encode(&gpus),
        RegisterFormat::Colon => register::encode_colons(&gpus),
    };
    text.map(Arc::from).inspect_err(|fault| tracing::error!(%fault, "cannot encode the register of this node")).ok()
}

/// The devices that the register names. `None` before the first answer about GPUs, because it is not known whether the node has GPUs,
/// and before this agent's plugin has slots.
pub(super) fn known_devices(
    view: &NodeView,
    config: &DeviceConfig,
    split_counts: &[(String, u32)],
) -> Option<Vec<SharedDevice>> {
    if !matches!(view.gpu_source, GpuSourceState::Working { .. }) && view.gpus.is_empty() {
        return None;
    }
    let offered = devices::of(view, config, split_counts);
    // Until this agent serves the kubelet, it does not know which GPUs other owners hold. The previous agent may know, so the
    // register that it wrote must stay.
    let without_slots = view.plugin.as_ref().is_some_and(|plugin| plugin.slots.is_empty());
    (!without_slots || offered.is_empty()).then_some(offered)
}

/// Whether the driver reports no GPU, or there is no driver and this agent has seen no GPU since its start.
pub(super) fn none_left(view: &NodeView) -> bool {
    let known = match &view.gpu_source {
        GpuSourceState::Working { .. } => true,
        GpuSourceState::Missing { why, .. } => matches!(why, Absence::DriverNotLoaded | Absence::LibraryNotFound),
        GpuSourceState::Starting
        | GpuSourceState::Hanging
        | GpuSourceState::Released { .. }
        | GpuSourceState::SwitchedOff => false,
    };
    known && view.gpus.is_empty() && view.gpus_unidentified.is_empty()
}

fn registered(device: SharedDevice) -> RegisteredGpu {
    RegisteredGpu {
        uuid: device.device,
        index: device.index,
        slots: u32::from(device.slots),
        memory: Mib::within(device.memory),
        cores: CorePercent(device.cores),
        product: device.model,
        numa: device.numa.unwrap_or(0),
        mode: "hami-core".into(),
        healthy: device.healthy,
        mig_profiles: Vec::new(),
    }
}
