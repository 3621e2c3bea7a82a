//! Compares three lists of GPUs: of the PCI bus, of the kernel's driver, and of NVML.
//!
//! ```text
//!   /sys/bus/pci/devices/0000:65:00.0 (vendor, class, driver, physfn) ──┐
//!   /proc/driver/nvidia/gpus/0000:65:00.0 ──────────────────────────────┼──▶ GPUs that NVML does not list
//!   NVML's list ────────────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: a virtual function, or a GPU that was passed to a virtual machine, counted as missing.

use crate::bounded_file;
use crate::nvml::board::device_of_slot;
use crate::nvml::inventory::Inventory;
use model::gpu::{MAX_GPUS, MissingGpu};
use model::nvidia::{KERNEL_MODULE, PCI_VENDOR};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use wire::kernel_log::{PciSlot, pci_slot};
use wire::sysfs_file::{hexadecimal, is_gpu_class};

/// Maximum number of PCI devices that are looked at: large hosts have a thousand.
const MAX_DEVICES: usize = 8192;
/// Maximum bytes of a small file that are read: `0x030200` and a line end.
const MAX_TEXT: usize = 64;

/// The GPUs on the PCI bus, with the kernel driver that each is bound to. Virtual functions and GPUs that are kept for
/// virtual machines are left out.
fn on_bus(sysfs: &Path) -> BTreeMap<PciSlot, Option<Arc<str>>> {
    let Ok(devices) = std::fs::read_dir(sysfs.join("bus/pci/devices")) else { return BTreeMap::new() };
    let devices = devices.flatten().take(MAX_DEVICES).filter_map(|device| {
        let slot = device.file_name().to_str().filter(|name| name.ends_with(".0")).and_then(pci_slot)?;
        let folder = device.path();
        let number = |name: &str| hexadecimal(&bounded_file::read(&folder.join(name), MAX_TEXT).ok()?);
        let ours = number("vendor") == Some(PCI_VENDOR) && number("class").is_some_and(is_gpu_class);
        if !ours || folder.join("physfn").exists() {
            return None;
        }
        let driver = std::fs::read_link(folder.join("driver")).ok();
        let driver = driver.and_then(|target| Some(Arc::from(target.file_name()?.to_str()?)));
        (!driver.as_deref().is_some_and(is_for_guests)).then_some((slot, driver))
    });
    devices.take(MAX_GPUS).collect()
}

/// Whether a kernel driver keeps devices for virtual machines: `vfio-pci` and its variants, and Xen's drivers.
fn is_for_guests(driver: &str) -> bool {
    driver.contains("vfio") || matches!(driver, "pci-stub" | "pciback" | "xen-pciback")
}

/// The GPUs that the kernel's driver serves. Empty if it does not list them.
pub(super) fn in_driver(procfs: &Path) -> BTreeSet<PciSlot> {
    let Ok(folders) = std::fs::read_dir(procfs.join("driver").join(KERNEL_MODULE).join("gpus")) else {
        return BTreeSet::new();
    };
    folders.flatten().take(MAX_GPUS).filter_map(|folder| pci_slot(folder.file_name().to_str()?)).collect()
}

/// The GPUs that the bus or the driver has and that NVML does not list, ordered by address. Empty if NVML counts at
/// least that many GPUs without a known address: they may be the same GPUs.
pub(super) fn missing((procfs, sysfs): (&Path, &Path), found: &Inventory) -> Vec<MissingGpu> {
    let listed: BTreeSet<PciSlot> =
        found.known.iter().filter_map(|known| pci_slot(known.gpu.pci_bus_id.value()?)).collect();
    let (bus, driver) = (on_bus(sysfs), in_driver(procfs));
    let slots: BTreeSet<PciSlot> = bus.keys().chain(&driver).copied().filter(|slot| !listed.contains(slot)).collect();
    let without_address = found.known.iter().filter(|known| known.gpu.pci_bus_id.value().is_none()).count();
    if slots.len() <= found.unidentified.len() + without_address {
        return Vec::new();
    }
    let one = |slot: PciSlot| MissingGpu {
        pci_bus_id: address(slot).into(),
        on_bus: bus.contains_key(&slot) || sysfs.join(device_of_slot(slot)).exists(),
        in_driver: driver.contains(&slot),
        bound_to: bus.get(&slot).cloned().flatten(),
    };
    slots.into_iter().map(one).take(MAX_GPUS).collect()
}

/// The address as the kernel spells it.
pub(super) fn address(PciSlot { domain, bus, device }: PciSlot) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A device on the fake bus.
    fn device(sysfs: &Path, address: &str, (vendor, class): (&str, &str), driver: Option<&str>) {
        let folder = sysfs.join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        std::fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        if let Some(driver) = driver {
            symlink(format!("../../../bus/pci/drivers/{driver}"), folder.join("driver")).unwrap();
        }
    }

    #[test]
    fn only_gpus_for_this_host_are_found_on_the_bus() {
        let sysfs = tempfile::tempdir().unwrap();
        let gpu = ("0x10de", "0x030200");
        for (address, kind, driver) in [
            ("0000:65:00.0", gpu, Some("nvidia")),
            ("0000:66:00.0", ("0x10de", "0x030000"), None),
            ("0000:67:00.0", gpu, Some("vfio-pci")),
            ("0000:68:00.0", gpu, Some("nvgrace_gpu_vfio_pci")),
            ("0000:69:00.0", gpu, Some("nvidia")),
            ("0000:6a:00.0", ("0x10de", "0x068000"), Some("nvidia-nvswitch")),
            ("0000:6a:00.1", ("0x10de", "0x040300"), Some("snd_hda_intel")),
            ("0000:6b:00.0", ("0x1a03", "0x030000"), Some("ast")),
            ("0000:6c:00.0", gpu, Some("nouveau")),
        ] {
            device(sysfs.path(), address, kind, driver);
        }
        std::fs::write(sysfs.path().join("bus/pci/devices/0000:69:00.0/physfn"), "").unwrap();
        let found: Vec<(String, Option<Arc<str>>)> =
            on_bus(sysfs.path()).into_iter().map(|(slot, driver)| (address(slot), driver)).collect();
        let expected = [("0000:65:00.0", Some("nvidia")), ("0000:66:00.0", None), ("0000:6c:00.0", Some("nouveau"))];
        assert_eq!(found, expected.map(|(address, driver)| (address.to_owned(), driver.map(Arc::from))));
        assert!(on_bus(&sysfs.path().join("nowhere")).is_empty());
    }
}
