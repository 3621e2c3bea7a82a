//! NVSwitches. The agent knows their errors from the kernel log only, because NVML does not list them.

use crate::time::Monotonic;
use std::sync::Arc;

/// Upper bound on switches: the largest machine sold with its own switches (DGX-2) has 12.
pub const MAX_SWITCHES: usize = 64;
/// Upper bound on the error codes counted on one switch; a faulty switch shows a handful.
pub const MAX_SXID_CODES: usize = 64;

/// An error of an NVSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sxid {
    /// The switch's PCI bus id, spelled as NVML spells the ids of GPUs.
    pub switch: Arc<str>,
    /// The number in NVIDIA's catalogue.
    pub code: u32,
    /// Whether traffic through the switch is lost until the switch is reset.
    pub fatal: bool,
    /// The number of the affected link on the switch, if the error names one.
    pub link: Option<u32>,
    /// When the agent received the error.
    pub at: Monotonic,
}

/// One switch that has reported errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// PCI bus id.
    pub pci_bus_id: Arc<str>,
    /// Errors since the agent's start: code, whether fatal, number. At most [`MAX_SXID_CODES`].
    pub sxids: Vec<(u32, bool, u64)>,
}
