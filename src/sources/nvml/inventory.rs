//! Which GPUs there are and who each of them is.

use crate::clock::monotonic;
use crate::nvml::instance::{self, Instance, settle};
use crate::nvml::pulse::Pulse;
use crate::nvml::raw;
use model::gpu::{Gpu, Link, MAX_GPUS, Path as Nearest, Unidentified};
use model::id::GpuUuid;
use model::unit::{Bytes, Watts};
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use wire::kernel_log::{PciSlot, pci_slot};

/// NVML's own bound of NVLinks on one GPU (`NVML_NVLINK_MAX_LINKS`).
const MAX_NVLINKS: u32 = 18;

/// A GPU with the handles to ask it by.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) gpu: Gpu,
    pub(super) device: Device<'static>,
    pub(super) instances: Vec<Instance>,
}

impl Clone for Known {
    fn clone(&self) -> Self {
        Known { gpu: self.gpu.clone(), device: raw::again(&self.device), instances: self.instances.clone() }
    }
}

/// Where the inventory is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) nvml: &'static Nvml,
    pub(super) pulse: &'a Pulse,
    pub(super) sysfs: &'a Path,
}

/// What an inventory found.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Ordered by index. A GPU that was known and does not answer stays in.
    pub(super) known: Vec<Known>,
    /// Indices that NVML counts but that could never be identified, and why.
    pub(super) unidentified: Vec<(u32, Absence)>,
}

/// Looks at all GPUs; what was known before is kept where nothing new could be read, with its time.
///
/// # Errors
/// When NVML does not even tell how many GPUs there are.
pub(super) fn take(place: Place<'_>, before: &[Known]) -> Result<Inventory, Absence> {
    let count = place.pulse.call(None, || place.nvml.device_count())?;
    let mut found = Inventory::default();
    for index in 0..count.min(u32::try_from(MAX_GPUS).unwrap_or(u32::MAX)) {
        let answer = if place.pulse.skips(index) { Err(Absence::CallHangs) } else { identify(place, index, before) };
        match answer {
            Ok(known) => found.known.push(known),
            Err(why) => match before.iter().find(|known| known.gpu.index == index) {
                Some(known) => found.known.push(known.clone()),
                None => found.unidentified.push((index, why)),
            },
        }
    }
    // Indices move when a GPU is taken out: then one that does not answer must not appear a second time by its old one.
    let mut seen = BTreeSet::new();
    found.known.retain(|known| seen.insert(known.gpu.uuid.clone()));
    Ok(found)
}

fn identify(place: Place<'_>, index: u32, before: &[Known]) -> Result<Known, Absence> {
    let pulse = place.pulse;
    let device = pulse.call(Some(index), || place.nvml.device_by_index(index))?;
    let text = pulse.call(Some(index), || device.uuid())?;
    let uuid = GpuUuid::parse(&text).map_err(|_| Absence::Unreadable)?;
    let old = before.iter().find(|known| known.gpu.uuid == uuid);
    let fresh = read(place, &device, index, uuid);
    let mut gpu = match old {
        Some(old) => merge(&old.gpu, fresh),
        None => fresh,
    };
    let instances = match gpu.mig_mode {
        Reading::Measured(true, _) => {
            let total = gpu.memory_total.get().unwrap_or_default();
            match instance::list(pulse, &device, index, total) {
                Ok(instances) => instances,
                Err(_) => old.map(|old| old.instances.clone()).unwrap_or_default(),
            }
        }
        _ => Vec::new(),
    };
    gpu.mig = instances.iter().map(|instance| instance.identity.clone()).collect();
    if let Some(old) = old {
        instance::keep_times(&old.gpu.mig, &mut gpu.mig);
    }
    Ok(Known { gpu, device, instances })
}

/// The slots that the kernel's driver serves (`/proc/driver/nvidia/gpus`) and that NVML does not list: GPUs that were
/// plugged in after the library was opened. Nothing where the driver does not tell.
pub(super) fn unlisted(procfs: &Path, known: &[Known]) -> BTreeSet<PciSlot> {
    let listed: BTreeSet<PciSlot> = known.iter().filter_map(|known| pci_slot(known.gpu.pci_bus_id.value()?)).collect();
    let Ok(folders) = std::fs::read_dir(procfs.join("driver/nvidia/gpus")) else { return BTreeSet::new() };
    let served = folders.flatten().take(MAX_GPUS).filter_map(|folder| pci_slot(folder.file_name().to_str()?));
    served.filter(|slot| !listed.contains(slot)).collect()
}

/// GPUs that could not be identified, each with its slot where only one is left. NVML's indices do not tell slots.
pub(super) fn nameless(procfs: &Path, found: &Inventory) -> Vec<Unidentified> {
    if found.unidentified.is_empty() {
        return Vec::new();
    }
    let mut left = unlisted(procfs, &found.known).into_iter();
    let pci_bus_id = match (left.next(), left.next(), found.unidentified.len()) {
        (Some(PciSlot { domain, bus, device }), None, 1) => {
            Reading::Measured(format!("{domain:04x}:{bus:02x}:{device:02x}.0").into(), monotonic())
        }
        _ => Reading::Absent(Absence::NotAttributable),
    };
    let one = |(index, why): &(u32, Absence)| Unidentified { index: *index, pci_bus_id: pci_bus_id.clone(), why: *why };
    found.unidentified.iter().map(one).collect()
}

/// Reads an identity, all but MIG instances and links.
fn read(place: Place<'_>, device: &Device<'static>, index: u32, uuid: GpuUuid) -> Gpu {
    let at = monotonic();
    let pulse = place.pulse;
    let gpu = Some(index);
    let text = |answer: Result<String, Absence>| Reading::from_result(answer.map(Arc::<str>::from), at);
    let pci_bus_id = text(pulse.call(gpu, || device.pci_info()).map(|pci| pci.bus_id));
    let numa = pci_bus_id
        .value()
        .and_then(|id| numa_of_slot(place.sysfs, id))
        .map_or_else(|| pulse.call(gpu, || device.numa_node_id()), Ok);
    Gpu {
        uuid,
        index,
        minor: Reading::from_result(pulse.call(gpu, || device.minor_number()), at),
        model: pulse.call(gpu, || device.name()).map_or_else(|_| Arc::from("unknown"), Arc::from),
        numa_node: Reading::from_result(numa, at),
        pci_bus_id,
        architecture: text(pulse.call(gpu, || device.architecture()).map(|architecture| architecture.to_string())),
        memory_total: Reading::from_result(pulse.call(gpu, || device.memory_info()).map(|info| Bytes(info.total)), at),
        power_limit: Reading::from_result(
            pulse.call(gpu, || device.enforced_power_limit()).map(|milliwatts| Watts(f64::from(milliwatts) / 1000.0)),
            at,
        ),
        mig_mode: Reading::from_result(pulse.call(gpu, || device.mig_mode()).map(|mode| mode.current == 1), at),
        mig: Vec::new(),
        links: Vec::new(),
        nvlinks_active: Reading::NOT_YET,
    }
}

/// What was known stays with its time where the new look says the same or nothing.
fn merge(old: &Gpu, fresh: Gpu) -> Gpu {
    Gpu {
        minor: settle(old.minor, fresh.minor),
        model: if &*fresh.model == "unknown" { Arc::clone(&old.model) } else { fresh.model },
        pci_bus_id: settle(old.pci_bus_id.clone(), fresh.pci_bus_id),
        numa_node: settle(old.numa_node, fresh.numa_node),
        architecture: settle(old.architecture.clone(), fresh.architecture),
        memory_total: settle(old.memory_total, fresh.memory_total),
        power_limit: settle(old.power_limit, fresh.power_limit),
        mig_mode: settle(old.mig_mode, fresh.mig_mode),
        links: old.links.clone(),
        nvlinks_active: old.nvlinks_active,
        ..fresh
    }
}

/// NUMA node of a PCI slot as the kernel tells it. NVML's own call is only about GPUs that are NUMA nodes themselves.
fn numa_of_slot(sysfs: &Path, bus_id: &str) -> Option<u32> {
    let PciSlot { domain, bus, device } = pci_slot(bus_id)?;
    let slot = format!("bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node");
    // The kernel writes -1 where the machine does not tell, which is no number here either.
    std::fs::read_to_string(sysfs.join(slot)).ok()?.trim().parse().ok()
}

/// Reads how the GPUs are tied together. Costs a call for each pair and some for each NVLink, so it is done when the set
/// of GPUs changed, and seldom besides (an NVLink may go down).
pub(super) fn tie(place: Place<'_>, known: &mut [Known]) {
    let slots: Vec<(GpuUuid, Option<PciSlot>)> = known
        .iter()
        .map(|known| (known.gpu.uuid.clone(), known.gpu.pci_bus_id.value().and_then(|id| pci_slot(id))))
        .collect();
    for here in 0..known.len() {
        let Some(one) = known.get(here) else { continue };
        if place.pulse.skips(one.gpu.index) {
            continue;
        }
        let (active, remotes) = nvlinks(place.pulse, one);
        let mut links = Vec::new();
        for (there, other) in known.iter().enumerate() {
            if there == here {
                continue;
            }
            let Some(path) = nearest(place.pulse, one, other) else { continue };
            let slot = slots.get(there).and_then(|(_, slot)| *slot);
            let direct = remotes.iter().filter(|remote| slot.is_some() && **remote == slot).count();
            links.push(Link { peer: other.gpu.uuid.clone(), path, nvlinks: u32::try_from(direct).unwrap_or(u32::MAX) });
        }
        if let Some(one) = known.get_mut(here) {
            one.gpu.nvlinks_active = settle(one.gpu.nvlinks_active, active);
            one.gpu.links = links;
        }
    }
}

/// The nearest common place of two GPUs; what was known of it if it cannot be asked now.
fn nearest(pulse: &Pulse, one: &Known, other: &Known) -> Option<Nearest> {
    let before = one.gpu.links.iter().find(|link| link.peer == other.gpu.uuid).map(|link| link.path);
    if pulse.skips(other.gpu.index) {
        return before;
    }
    let level = pulse.call(Some(one.gpu.index), || one.device.topology_common_ancestor(raw::again(&other.device)));
    match level {
        Ok(TopologyLevel::Internal) => Some(Nearest::Internal),
        Ok(TopologyLevel::Single) => Some(Nearest::SingleSwitch),
        Ok(TopologyLevel::Multiple) => Some(Nearest::MultipleSwitches),
        Ok(TopologyLevel::HostBridge) => Some(Nearest::HostBridge),
        Ok(TopologyLevel::Node) => Some(Nearest::NumaNode),
        Ok(TopologyLevel::System) => Some(Nearest::System),
        Err(_) => before,
    }
}

/// How many NVLinks are up, and where each of them ends (at another GPU or at a switch).
fn nvlinks(pulse: &Pulse, known: &Known) -> (Reading<u32>, Vec<Option<PciSlot>>) {
    let index = Some(known.gpu.index);
    let at = monotonic();
    let mut active = 0;
    let mut remotes = Vec::new();
    for number in 0..MAX_NVLINKS {
        let link = known.device.link_wrapper_for(number);
        match pulse.call(index, || link.is_active()) {
            Ok(true) => {
                active += 1;
                remotes.push(pulse.call(index, || link.remote_pci_info()).ok().and_then(|pci| pci_slot(&pci.bus_id)));
            }
            Ok(false) => {}
            // The first link that does not exist ends the list; if that is the very first, there are none at all.
            Err(why) if number == 0 => return (Reading::Absent(why), remotes),
            Err(_) => break,
        }
    }
    (Reading::Measured(active, at), remotes)
}

/// Whether both inventories are of the same GPUs.
pub(super) fn same_set(one: &[Known], other: &[Known]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.gpu.uuid == other.gpu.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numa_node_comes_from_the_slot_and_minus_one_is_none() {
        let sysfs = tempfile::tempdir().unwrap();
        for (slot, text) in [("0000:65:00.0", "1\n"), ("0000:66:00.0", "-1\n")] {
            let folder = sysfs.path().join("bus/pci/devices").join(slot);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("numa_node"), text).unwrap();
        }
        assert_eq!(numa_of_slot(sysfs.path(), "00000000:65:00.0"), Some(1));
        assert_eq!(numa_of_slot(sysfs.path(), "00000000:66:00.0"), None);
        assert_eq!(numa_of_slot(sysfs.path(), "00000000:67:00.0"), None);
    }
}
