//! Lists the GPUs and reads the identity of each.

use crate::nvml::absence::{NOT_FOUND, none_of_it};
use crate::nvml::board;
use crate::nvml::heartbeat::{GpuKey, Heartbeat};
use crate::nvml::instance::{self, Instance};
use crate::nvml::poll_round::{Failed, PollRound, renew, settle};
use crate::nvml::{memory, presence, raw};
use crate::roots::HostRoots;
use clock::monotonic;
use model::gpu::{ComputeCapability, Gpu, MAX_GPUS, MemoryKind, MigInstance, UnidentifiedGpu};
use model::hardware::Board;
use model::id::GpuUuid;
use model::physical_range::{ImplausibleValue, PhysicalRange as Range};
use model::unit::{Bytes, Watts};
use model::{Absence, Reading};
use nvml_wrapper::structs::device::CudaComputeCapability;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use wire::kernel_log::{PciSlot, pci_slot};

/// A GPU with its handles.
#[derive(Debug)]
pub(super) struct KnownGpu {
    pub(super) gpu: Gpu,
    pub(super) device: Device<'static>,
    pub(super) instances: Vec<Instance>,
}

impl Clone for KnownGpu {
    fn clone(&self) -> Self {
        KnownGpu { gpu: self.gpu.clone(), device: raw::again(&self.device), instances: self.instances.clone() }
    }
}

impl KnownGpu {
    /// How the GPU is identified between calls.
    pub(super) fn key(&self) -> GpuKey {
        GpuKey::Uuid(self.gpu.uuid.clone())
    }
}

/// The sources of an inventory: the library, under a heartbeat, and the kernel's file systems.
#[derive(Clone, Copy, Debug)]
pub(super) struct InventorySource<'a> {
    pub(super) nvml: &'static Nvml,
    pub(super) heartbeat: &'a Heartbeat,
    pub(super) roots: &'a HostRoots,
}

/// The result of an inventory.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// The known GPUs, ordered by index. A GPU that does not answer stays in the list.
    pub(super) known: Vec<KnownGpu>,
    /// Indices that NVML counts but that were never identified, with the reason.
    pub(super) unidentified: Vec<(u32, Absence)>,
    /// The calls that failed, by GPU.
    pub(super) failed: Vec<(GpuUuid, Failed)>,
    /// The values that no GPU can have, by GPU.
    pub(super) implausible: Vec<(GpuUuid, Vec<ImplausibleValue>)>,
}

/// A GPU that was identified, and the problems of its calls.
struct Identified {
    known: KnownGpu,
    failed: Failed,
    implausible: Vec<ImplausibleValue>,
}

/// Takes the inventory of all GPUs. If nothing new can be read, the known values stay, with their times.
///
/// A known GPU is found by its PCI slot: indices change when another GPU leaves the bus, and a GPU that hangs must not
/// be called.
///
/// # Errors
/// When NVML does not return the number of GPUs.
pub(super) fn take(source: InventorySource<'_>, before: &[KnownGpu]) -> Result<Inventory, Absence> {
    let count = source.heartbeat.call(None, || source.nvml.device_count())?;
    let mut search = Search {
        source,
        before,
        found: Inventory::default(),
        hanging: Vec::new(),
        unanswering: Vec::new(),
        moved: false,
    };
    for known in before {
        search.find(known);
    }
    let taken: BTreeSet<u32> = search.found.known.iter().map(|known| known.gpu.index).collect();
    let count = count.min(u32::try_from(MAX_GPUS).unwrap_or(u32::MAX));
    let left: Vec<u32> = (0..count).filter(|index| !taken.contains(index)).collect();
    search.identify_rest(&left);
    let mut found = search.found;
    found.known.sort_by_key(|known| known.gpu.index);
    // A GPU that does not answer must not appear a second time under its old index.
    let mut seen = BTreeSet::new();
    found.known.retain(|known| seen.insert(known.gpu.uuid.clone()));
    Ok(found)
}

/// One inventory while it is taken.
struct Search<'a> {
    source: InventorySource<'a>,
    before: &'a [KnownGpu],
    found: Inventory,
    /// Known GPUs with a call that does not return. They stay in the list and are not called.
    hanging: Vec<KnownGpu>,
    /// Known GPUs that did not answer when they were searched for by slot.
    unanswering: Vec<KnownGpu>,
    /// A known GPU has left, or has another index than before.
    moved: bool,
}

impl Search<'_> {
    /// Finds a known GPU by its slot.
    fn find(&mut self, known: &KnownGpu) {
        if self.source.heartbeat.skips(&known.key()) {
            self.hanging.push(known.clone());
            return;
        }
        match self.by_slot(known) {
            Ok(now) => {
                self.moved |= now.known.gpu.index != known.gpu.index;
                self.add(now);
            }
            Err(NOT_FOUND) => self.moved = true,
            Err(_) => self.unanswering.push(known.clone()),
        }
    }

    fn by_slot(&self, known: &KnownGpu) -> Result<Identified, Absence> {
        let slot = known.gpu.pci_bus_id.value().ok_or(Absence::NotYet)?;
        let mut round = PollRound::new(self.source.heartbeat, known.key());
        let device = round.call("handle by slot", || self.source.nvml.device_by_pci_bus_id(&**slot))?;
        let index = round.call("index", || device.index())?;
        identify(self.source, (round, index), device, self.before)
    }

    /// Identifies the GPUs at the indices without a known GPU, except indices that may belong to a GPU that hangs.
    fn identify_rest(&mut self, left: &[u32]) {
        let only_index = self.source.heartbeat.skips_an_index();
        if !self.moved || (self.hanging.is_empty() && !only_index) {
            for index in left {
                let hangs = self.source.heartbeat.skips(&GpuKey::Index(*index));
                if hangs {
                    self.found.unidentified.push((*index, Absence::CallHangs));
                } else if !self.hanging.iter().any(|known| known.gpu.index == *index) {
                    self.identify_index(*index);
                }
            }
        } else {
            if left.len() <= self.hanging.len() && !only_index {
                // All indices that are left belong to the hanging GPUs, in their old order.
                self.hanging.iter_mut().zip(left).for_each(|(known, index)| known.gpu.index = *index);
            } else {
                // It is unknown which of these indices belong to hanging GPUs. Until it is known, all GPUs keep their
                // old indices, so the next round also sees that they have moved.
                self.keep_indices();
            }
            let others = left.len().saturating_sub(self.hanging.len() + self.unanswering.len());
            self.found.unidentified.extend(left.iter().rev().take(others).map(|index| (*index, Absence::CallHangs)));
            self.found.known.append(&mut self.unanswering);
        }
        self.found.known.append(&mut self.hanging);
    }

    /// Identifies the GPU at an index.
    fn identify_index(&mut self, index: u32) {
        let round = PollRound::new(self.source.heartbeat, GpuKey::Index(index));
        match self.by_index(round, index) {
            Ok(now) => {
                self.unanswering.retain(|unanswering| unanswering.gpu.uuid != now.known.gpu.uuid);
                self.add(now);
            }
            Err(why) => {
                let before = self.unanswering.iter().position(|known| known.gpu.index == index);
                // If others have moved, this GPU may have moved too.
                match before.or((self.moved && !self.unanswering.is_empty()).then_some(0)) {
                    Some(position) => self.found.known.push(self.unanswering.remove(position)),
                    None => self.found.unidentified.push((index, why)),
                }
            }
        }
    }

    fn by_index(&self, mut round: PollRound<'_>, index: u32) -> Result<Identified, Absence> {
        let device = round.call("handle", || self.source.nvml.device_by_index(index))?;
        identify(self.source, (round, index), device, self.before)
    }

    fn add(&mut self, Identified { known, failed, implausible }: Identified) {
        self.found.failed.push((known.gpu.uuid.clone(), failed));
        self.found.implausible.push((known.gpu.uuid.clone(), implausible));
        self.found.known.push(known);
    }

    fn keep_indices(&mut self) {
        for known in &mut self.found.known {
            let before = self.before.iter().find(|before| before.gpu.uuid == known.gpu.uuid);
            known.gpu.index = before.map_or(known.gpu.index, |before| before.gpu.index);
        }
    }
}

/// Reads the identity, board data and MIG instances of the GPU behind an NVML handle. If a read fails, the value of the
/// last inventory stays. Fails if the UUID cannot be read.
fn identify(
    source: InventorySource<'_>,
    (mut round, index): (PollRound<'_>, u32),
    device: Device<'static>,
    before: &[KnownGpu],
) -> Result<Identified, Absence> {
    let text = round.call("UUID", || device.uuid())?;
    let uuid = GpuUuid::parse(&text).map_err(|_| Absence::Unreadable)?;
    round.set_key(GpuKey::Uuid(uuid.clone()));
    let old = before.iter().find(|known| known.gpu.uuid == uuid);
    let mut fresh = read(&mut round, source.roots, &device, (uuid, index));
    let slot = (&fresh.pci_bus_id, &*source.roots.sysfs);
    fresh.board = board::read(&mut round, &device, slot, old.map(|old| &old.gpu.board));
    let mut gpu = match old {
        Some(old) => merge(&old.gpu, fresh),
        None => fresh,
    };
    let listed = match gpu.mig_mode {
        Reading::Measured(true, _) => {
            let before = old.map_or(&[][..], |old| old.gpu.instances());
            instance::list(&mut round, &device, (gpu.memory_total.get(), before))
        }
        Reading::Measured(false, _) => Ok(Vec::new()),
        // Without MIG there are no instances; with any other reason it is unknown whether there are any.
        Reading::Absent(why) if none_of_it(why) => Ok(Vec::new()),
        Reading::Absent(why) => Err(why),
    };
    let instances = match listed {
        Ok(instances) => {
            let mut mig: Vec<MigInstance> = instances.iter().map(|instance| instance.identity.clone()).collect();
            instance::keep_times(gpu.instances(), &mut mig);
            gpu.mig = settle(gpu.mig, Reading::Measured(mig, monotonic()));
            instances
        }
        Err(why) => {
            gpu.mig = settle(gpu.mig, Reading::Absent(why));
            old.map(|old| old.instances.clone()).unwrap_or_default()
        }
    };
    let implausible = round.take_implausible();
    Ok(Identified { known: KnownGpu { gpu, device, instances }, failed: round.failed(), implausible })
}

/// Slots that the kernel's driver serves but NVML does not list: GPUs that were added after the library was opened.
/// Empty if the driver does not list them.
pub(super) fn unlisted(procfs: &Path, known: &[KnownGpu]) -> BTreeSet<PciSlot> {
    let listed: BTreeSet<PciSlot> = known.iter().filter_map(|known| pci_slot(known.gpu.pci_bus_id.value()?)).collect();
    presence::in_driver(procfs).into_iter().filter(|slot| !listed.contains(slot)).collect()
}

/// GPUs that could not be identified. The slot is known only if exactly one GPU and one slot are left, because an index
/// of NVML does not name a slot.
pub(super) fn unidentified_gpus(procfs: &Path, found: &Inventory) -> Vec<UnidentifiedGpu> {
    if found.unidentified.is_empty() {
        return Vec::new();
    }
    let mut left = unlisted(procfs, &found.known).into_iter();
    let pci_bus_id = match (left.next(), left.next(), found.unidentified.len()) {
        (Some(slot), None, 1) => Reading::Measured(presence::address(slot).into(), monotonic()),
        _ => Reading::Absent(Absence::NotAttributable),
    };
    let one =
        |(index, why): &(u32, Absence)| UnidentifiedGpu { index: *index, pci_bus_id: pci_bus_id.clone(), why: *why };
    found.unidentified.iter().map(one).collect()
}

/// Reads an identity, except MIG instances and links.
fn read(round: &mut PollRound<'_>, roots: &HostRoots, device: &Device<'static>, (uuid, index): (GpuUuid, u32)) -> Gpu {
    let at = monotonic();
    let text = |answer: Result<String, Absence>| Reading::from_result(answer.map(Arc::<str>::from), at);
    let pci_bus_id = text(round.call("PCI slot", || device.pci_info()).map(|pci| pci.bus_id));
    let numa = pci_bus_id
        .value()
        .and_then(|id| numa_of_slot(&roots.sysfs, id))
        .map_or_else(|| round.call("NUMA node", || device.numa_node_id()), Ok);
    let power_limit = round.call("power limit", || device.enforced_power_limit());
    let power_limit =
        round.within(Range::POWER_LIMIT, power_limit.map(|milliwatts| Watts(f64::from(milliwatts) / 1000.0)));
    let (memory, memory_kind) = memory::identify(round, device, &roots.procfs);
    let memory_total = round.within(Range::MEMORY_TOTAL, memory.map(|memory| Bytes(memory.total)));
    Gpu {
        uuid,
        index,
        minor: Reading::from_result(round.call("minor number", || device.minor_number()), at),
        model: round.call("name", || device.name()).map_or_else(|_| Arc::from("unknown"), Arc::from),
        numa_node: Reading::from_result(numa, at),
        pci_bus_id,
        architecture: text(round.call("architecture", || device.architecture()).map(|it| it.to_string())),
        compute: Reading::from_result(
            round.call("compute capability", || device.cuda_compute_capability()).and_then(compute),
            at,
        ),
        memory_total: Reading::from_result(memory_total, at),
        memory_kind,
        power_limit: Reading::from_result(power_limit, at),
        mig_mode: Reading::from_result(round.call("MIG mode", || device.mig_mode()).map(|mode| mode.current == 1), at),
        mig: Reading::NOT_YET,
        links: Vec::new(),
        nvlinks_active: Reading::NOT_YET,
        board: Board::default(),
    }
}

fn compute(capability: CudaComputeCapability) -> Result<ComputeCapability, Absence> {
    let part = |number: i32| u32::try_from(number).map_err(|_| Absence::Unreadable);
    Ok(ComputeCapability { major: part(capability.major)?, minor: part(capability.minor)? })
}

/// Known values keep their times if the new read is equal or failed. The power limit is the exception, because an
/// operator may change it.
fn merge(old: &Gpu, mut fresh: Gpu) -> Gpu {
    // A GPU that has shown memory of its own keeps it, whatever the driver answers later.
    let has_own_memory = old.memory_kind != MemoryKind::Host && old.memory_total.value().is_some();
    if has_own_memory && fresh.memory_kind == MemoryKind::Host {
        fresh.memory_total = Reading::Absent(Absence::NotSupported);
    }
    Gpu {
        minor: settle(old.minor, fresh.minor),
        model: if &*fresh.model == "unknown" { Arc::clone(&old.model) } else { fresh.model },
        pci_bus_id: settle(old.pci_bus_id.clone(), fresh.pci_bus_id),
        numa_node: settle(old.numa_node, fresh.numa_node),
        architecture: settle(old.architecture.clone(), fresh.architecture),
        compute: settle(old.compute, fresh.compute),
        memory_total: settle(old.memory_total, fresh.memory_total),
        memory_kind: if fresh.memory_total.value().is_some() { fresh.memory_kind } else { old.memory_kind },
        power_limit: renew(old.power_limit, fresh.power_limit),
        mig_mode: settle(old.mig_mode, fresh.mig_mode),
        mig: old.mig.clone(),
        links: old.links.clone(),
        nvlinks_active: old.nvlinks_active,
        ..fresh
    }
}

/// NUMA node of a PCI slot from the kernel. NVML's own call covers only GPUs that are NUMA nodes themselves.
fn numa_of_slot(sysfs: &Path, bus_id: &str) -> Option<u32> {
    let slot = board::device_of_slot(pci_slot(bus_id)?) + "/numa_node";
    // The kernel writes -1 if it does not know the node; that does not parse as `u32` either.
    std::fs::read_to_string(sysfs.join(slot)).ok()?.trim().parse().ok()
}

/// Whether both inventories have the same GPUs.
pub(super) fn same_set(one: &[KnownGpu], other: &[KnownGpu]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.gpu.uuid == other.gpu.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numa_node_is_read_from_sysfs_and_minus_one_is_none() {
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
