//! Readings about a GPU's condition, taken in the rounds of expensive calls. Each such round reads the PCIe
//! link, the PCIe error counts and the fabric state. Every [`EVERY`]th round also reads retired pages, and NVLinks with at
//! least one call for each link.

use crate::nvml::board::device_of_slot;
use crate::nvml::polled_gpu::PolledGpu;
use crate::nvml::{links, raw};
use clock::monotonic;
use model::hardware::{Fabric, FabricHealth, FabricState, PcieErrors, RetiredPages};
use model::physical_range::PhysicalRange as Range;
use model::time::Monotonic;
use model::unit::Count;
use model::{Absence, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::path::Path;
use wire::kernel_log::pci_slot;
use wire::sysfs_file::aer_total;

/// Number of rounds between two readings of the links: a minute with rounds 15 s apart, and about two calls a second for
/// 18 links.
const EVERY: u32 = 4;

/// Takes the readings of one round.
pub(super) fn read(gpu: &mut PolledGpu, sysfs: &Path) {
    let at = monotonic();
    slot(gpu, at);
    gpu.sample.hardware.pcie_errors = match &gpu.known.gpu.pci_bus_id {
        Reading::Measured(id, _) => pcie_errors(sysfs, id, at),
        Reading::Absent(why) => PcieErrors::absent(*why),
    };
    fabric(gpu, at);
    if gpu.rounds.is_multiple_of(EVERY) {
        retired(gpu, at);
        gpu.sample.hardware.nvlinks = links::read(gpu, at);
    }
    gpu.rounds = gpu.rounds.wrapping_add(1);
}

fn slot(gpu: &mut PolledGpu, at: Monotonic) {
    let (device, asker, hardware) = (&gpu.known.device, &mut gpu.asker, &mut gpu.sample.hardware);
    let generation = asker.ask("pcie generation", || device.current_pcie_link_gen());
    hardware.pcie_generation = Reading::from_result(asker.within(Range::PCIE_LINK_GENERATION, generation), at);
    let width = asker.ask("pcie width", || device.current_pcie_link_width());
    hardware.pcie_width = Reading::from_result(asker.within(Range::PCIE_LINK_WIDTH, width), at);
}

/// The kernel's counts of PCIe errors that the GPU reported (AER). These files do not exist on a machine whose firmware
/// handles the errors itself.
fn pcie_errors(sysfs: &Path, bus_id: &str, at: Monotonic) -> PcieErrors {
    let Some(slot) = pci_slot(bus_id) else { return PcieErrors::absent(Absence::Unreadable) };
    let folder = sysfs.join(device_of_slot(slot));
    let total = |name: &str| {
        let text = std::fs::read(folder.join(name)).map_err(|_| Absence::NoSuchFile);
        Reading::from_result(text.and_then(|text| aer_total(&text).map(Count).ok_or(Absence::Unreadable)), at)
    };
    PcieErrors {
        correctable: total("aer_dev_correctable"),
        nonfatal: total("aer_dev_nonfatal"),
        fatal: total("aer_dev_fatal"),
    }
}

fn retired(gpu: &mut PolledGpu, at: Monotonic) {
    let (device, asker) = (&gpu.known.device, &mut gpu.asker);
    let mut pages = |name, cause| {
        let count = asker.ask(name, || raw::retired_pages(device, cause)).map(|count| Count(count.into()));
        Reading::from_result(asker.within(Range::RETIRED, count), at)
    };
    let corrected = pages("retired pages corrected", raw::AFTER_CORRECTED);
    let uncorrected = pages("retired pages uncorrected", raw::AFTER_UNCORRECTED);
    let pending = asker.ask("retired pages pending", || device.are_pages_pending_retired());
    gpu.sample.hardware.retired = RetiredPages { corrected, uncorrected, pending: Reading::from_result(pending, at) };
}

fn fabric(gpu: &mut PolledGpu, at: Monotonic) {
    let device = &gpu.known.device;
    let fabric = gpu.asker.ask("fabric", || read_fabric(device));
    gpu.sample.hardware.fabric = Reading::from_result(fabric, at);
}

/// The GPU's place in the fabric. If a driver answers the state "not supported", the GPU is in no fabric.
fn read_fabric(device: &Device<'static>) -> Result<Fabric, NvmlError> {
    let (info, summary) = raw::fabric(device)?;
    Ok(Fabric {
        state: FabricState::from_nvml(info.state.into()).ok_or(NvmlError::NotSupported)?,
        outcome: info.status,
        cluster: u128::from_be_bytes(info.clusterUuid),
        clique: info.cliqueId,
        health: info.healthMask,
        summary: summary.and_then(FabricHealth::from_nvml),
    })
}
