//! NVSwitches: what they tell of is known from the kernel's log only, NVML does not list them.

use crate::time::Monotonic;
use std::sync::Arc;

/// At most this many switches: the largest machine that was sold with switches of its own (DGX-2) has 12.
pub const MAX_SWITCHES: usize = 64;
/// Codes counted on one switch; a sick one shows a handful.
pub const MAX_SXID_CODES: usize = 64;

/// An error of an NVSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sxid {
    /// Which one: PCI bus id, spelt as NVML spells those of GPUs.
    pub switch: Arc<str>,
    /// The number in NVIDIA's catalogue.
    pub code: u32,
    /// Whether what goes through the switch is lost until it is reset.
    pub fatal: bool,
    /// The switch's number of the link, where it hit one.
    pub link: Option<u32>,
    /// When we heard of it.
    pub at: Monotonic,
}

/// One switch that told of errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// PCI bus id.
    pub pci_bus_id: Arc<str>,
    /// Errors since the start: code, whether fatal, how many. At most [`MAX_SXID_CODES`].
    pub sxids: Vec<(u32, bool, u64)>,
}
