//! A GPU's board data: serial number, firmware, power limits, and the fastest PCIe link of its slot.
//!
//! What must never happen here: a call every ten seconds whose answer cannot change while the GPU is in its slot. A
//! value that was read once, or that the driver does not have, is not read again.

use crate::infiniband::pci_path;
use crate::nvml::absence::lasting;
use crate::nvml::poll_round::PollRound;
use clock::monotonic;
use model::hardware::Board;
use model::physical_range::PhysicalRange as Range;
use model::unit::Watts;
use model::{Absence, Reading};
use nvml_wrapper::Device;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use wire::kernel_log::{PciSlot, pci_slot};

/// Reads the values that are not known yet; `before` is the result of earlier rounds for this GPU.
pub(super) fn read(
    round: &mut PollRound<'_>,
    device: &Device<'static>,
    (slot, sysfs): (&Reading<Arc<str>>, &Path),
    before: Option<&Board>,
) -> Board {
    let mut board = before.cloned().unwrap_or_default();
    once(&mut board.pci_path, || path_of_slot(slot, sysfs));
    once(&mut board.serial, || round.call("serial number", || device.serial()).map(Arc::from));
    once(&mut board.vbios, || round.call("VBIOS version", || device.vbios_version()).map(Arc::from));
    once(&mut board.power_default, || {
        let limit = round.call("default power limit", || device.power_management_limit_default()).map(watts);
        round.within(Range::POWER_DEFAULT, limit)
    });
    if unsettled(&board.power_least) || unsettled(&board.power_most) {
        let limits = round.call("power limit constraints", || device.power_management_limit_constraints());
        let at = monotonic();
        let least = limits.as_ref().map(|it| watts(it.min_limit)).map_err(|why| *why);
        board.power_least = Reading::from_result(round.within(Range::POWER_LEAST, least), at);
        let most = round.within(Range::POWER_MOST, limits.map(|it| watts(it.max_limit)));
        board.power_most = Reading::from_result(most, at);
    }
    once(&mut board.pcie_generation_most, || {
        let generation = round.call("highest PCIe generation", || device.max_pcie_link_gen());
        round.within(Range::PCIE_LINK_GENERATION_MOST, generation)
    });
    once(&mut board.pcie_width_most, || {
        let width = round.call("highest PCIe width", || device.max_pcie_link_width());
        round.within(Range::PCIE_LINK_WIDTH_MOST, width)
    });
    board
}

/// The PCIe bridges above a slot, from the target of the kernel's link to it.
fn path_of_slot(slot: &Reading<Arc<str>>, sysfs: &Path) -> Result<Arc<str>, Absence> {
    let slot = match slot {
        Reading::Measured(id, _) => pci_slot(id).ok_or(Absence::Unreadable)?,
        Reading::Absent(why) => return Err(*why),
    };
    let target = std::fs::read_link(sysfs.join(device_of_slot(slot))).map_err(|_| Absence::NoSuchFile)?;
    pci_path(target.as_os_str().as_bytes()).map(Arc::from).ok_or(Absence::Unreadable)
}

/// The sysfs directory of a slot's device.
pub(super) fn device_of_slot(PciSlot { domain, bus, device }: PciSlot) -> String {
    format!("bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0")
}

/// Reads the value if it is not settled yet.
fn once<T>(reading: &mut Reading<T>, call: impl FnOnce() -> Result<T, Absence>) {
    if unsettled(reading) {
        *reading = Reading::from_result(call(), monotonic());
    }
}

/// Whether another read may give another result.
fn unsettled<T>(reading: &Reading<T>) -> bool {
    reading.absence().is_some_and(|why| !lasting(why))
}

fn watts(milliwatts: u32) -> Watts {
    Watts(f64::from(milliwatts) / 1000.0)
}
