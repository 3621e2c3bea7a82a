//! Topology between GPUs: the nearest common ancestor of each pair, and their NVLinks.
//!
//! What must never happen here: a link, a GPU or a level that could not be read, counted as absent from the machine.

use crate::nvml::absence::{INVALID_ARGUMENT, none_of_it};
use crate::nvml::inventory::{InventorySource, KnownGpu};
use crate::nvml::poll_round::{Failed, PollRound, renew, settle};
use crate::nvml::raw;
use clock::monotonic;
use model::gpu::{GpuLink, GpuPath};
use model::hardware::MAX_NVLINKS;
use model::id::GpuUuid;
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use std::collections::BTreeSet;
use wire::kernel_log::{PciSlot, pci_slot};

/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const SWITCH: u32 = 2;

/// The answers for a link that the GPU does not have.
const BEHIND_THE_LAST: [Absence; 2] = [Absence::NotSupported, INVALID_ARGUMENT];

/// The far end of an NVLink that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Switch,
    Slot(PciSlot),
    /// The driver does not report the kind of device in this slot; with the reason.
    Unknown(PciSlot, Absence),
}

/// Reads the topology. This costs a call for each pair and some for each NVLink, so it is done only when the set of
/// GPUs changes, and rarely otherwise (an NVLink may go down). Returns the failed calls of each GPU.
pub(super) fn read(source: InventorySource<'_>, known: &mut [KnownGpu]) -> Vec<(GpuUuid, Failed)> {
    let mut failed = Vec::new();
    let slots_of_gpus: BTreeSet<PciSlot> =
        known.iter().filter_map(|known| pci_slot(known.gpu.pci_bus_id.value()?)).collect();
    for index in 0..known.len() {
        let Some(one) = known.get(index) else { continue };
        let mut round = PollRound::new(source.heartbeat, one.key());
        let hangs = source.heartbeat.skips(&one.key());
        let ends = if hangs { Err(Absence::CallHangs) } else { nvlinks(&mut round, one) };
        let others = known.iter().enumerate().filter(|(other_index, _)| *other_index != index);
        let links = others.map(|(_, other)| {
            let before = one.gpu.links.iter().find(|link| link.peer == other.gpu.uuid);
            let callable = !hangs && !source.heartbeat.skips(&other.key());
            let path = if callable { nearest(&mut round, one, other) } else { Err(Absence::CallHangs) };
            let path = Reading::from_result(path, monotonic());
            let nvlinks = Reading::from_result(direct(&ends, other, &slots_of_gpus), monotonic());
            GpuLink {
                peer: other.gpu.uuid.clone(),
                path: before.map_or(path, |before| settle(before.path, path)),
                nvlinks: before.map_or(nvlinks, |before| renew(before.nvlinks, nvlinks)),
            }
        });
        let links = links.collect();
        let active = ends.map(|ends| u32::try_from(ends.len()).unwrap_or(u32::MAX));
        failed.push((one.gpu.uuid.clone(), round.failed()));
        if let Some(one) = known.get_mut(index) {
            one.gpu.nvlinks_active = renew(one.gpu.nvlinks_active, Reading::from_result(active, monotonic()));
            one.gpu.links = links;
        }
    }
    failed
}

/// The nearest common ancestor of two GPUs.
fn nearest(round: &mut PollRound<'_>, one: &KnownGpu, other: &KnownGpu) -> Result<GpuPath, Absence> {
    let level = round.call("topology", || one.device.topology_common_ancestor(raw::again(&other.device)))?;
    Ok(match level {
        TopologyLevel::Internal => GpuPath::Internal,
        TopologyLevel::Single => GpuPath::SingleSwitch,
        TopologyLevel::Multiple => GpuPath::MultipleSwitches,
        TopologyLevel::HostBridge => GpuPath::HostBridge,
        TopologyLevel::Node => GpuPath::NumaNode,
        TopologyLevel::System => GpuPath::System,
    })
}

/// The far end of each NVLink that is up.
fn nvlinks(round: &mut PollRound<'_>, one: &KnownGpu) -> Result<Vec<Result<End, Absence>>, Absence> {
    let mut ends = Vec::new();
    for number in 0..MAX_NVLINKS {
        // The first missing link ends the list; if that is link 0, the GPU has no NVLinks.
        let nothing: &[Absence] = if number == 0 { &[] } else { &BEHIND_THE_LAST };
        match round.call_optional("NVLink state", nothing, || one.device.link_wrapper_for(number).is_active())? {
            Some(true) => ends.push(end(round, one, number)),
            Some(false) => {}
            None => break,
        }
    }
    Ok(ends)
}

/// The far end of a link.
fn end(round: &mut PollRound<'_>, one: &KnownGpu, number: u32) -> Result<End, Absence> {
    let unknown = match round.call("NVLink far end", || raw::far_end(&one.device, number)) {
        Ok(SWITCH) => return Ok(End::Switch),
        Ok(_) => None,
        Err(why) if none_of_it(why) => Some(why),
        Err(why) => return Err(why),
    };
    let pci = round.call("NVLink far slot", || one.device.link_wrapper_for(number).remote_pci_info())?;
    let slot = pci_slot(&pci.bus_id).ok_or(Absence::Unreadable)?;
    Ok(unknown.map_or(End::Slot(slot), |why| End::Unknown(slot, why)))
}

/// The number of NVLinks that end at the other GPU itself; `slots_of_gpus` are the slots of all GPUs.
fn direct(
    ends: &Result<Vec<Result<End, Absence>>, Absence>,
    other: &KnownGpu,
    slots_of_gpus: &BTreeSet<PciSlot>,
) -> Result<u32, Absence> {
    let ends = match ends {
        Ok(ends) => ends,
        Err(why) if none_of_it(*why) => return Ok(0),
        Err(why) => return Err(*why),
    };
    let ends = ends.iter().copied().collect::<Result<Vec<End>, Absence>>()?;
    if ends.is_empty() {
        return Ok(0);
    }
    let slot = match &other.gpu.pci_bus_id {
        Reading::Measured(id, _) => pci_slot(id).ok_or(Absence::Unreadable)?,
        Reading::Absent(why) => return Err(*why),
    };
    let index = |end: &&End| matches!(end, End::Slot(at) | End::Unknown(at, _) if *at == slot);
    let direct = ends.iter().filter(index).count();
    let otherwise = ends.iter().find_map(|end| match end {
        End::Switch => Some(Absence::ThroughSwitch),
        End::Unknown(at, why) if !slots_of_gpus.contains(at) => Some(*why),
        End::Unknown(..) | End::Slot(_) => None,
    });
    match otherwise {
        Some(why) if direct == 0 => Err(why),
        _ => Ok(u32::try_from(direct).unwrap_or(u32::MAX)),
    }
}
