//! Maintenance data of a GPU: board, PCIe slot, retired memory pages, NVLinks and fabric. It is read rarely, because it
//! changes rarely.
//!
//! ```text
//!   Board    board and limits: once        HardwareState   slot, retired pages, links, fabric: every 15 to 60 s
//! ```

use crate::reading::{Reading, readings};
use crate::reading_name::{ReadingName, metric};
use crate::sample_value::SampleValue;
use crate::unit::{Count, Watts};
use std::sync::Arc;

/// Upper bound on the NVLinks of one GPU: `NVML_NVLINK_MAX_LINKS` of the current header; no GPU on the market has more
/// than 18.
pub const MAX_NVLINKS: u32 = 36;

readings! {
    /// The facts that do not change while a GPU stays in its slot.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Board {
        /// Serial number of the board, as printed on it.
        pub serial: Reading<Arc<str>>,
        /// Version of the firmware (VBIOS).
        pub vbios: Reading<Arc<str>>,
        /// Default power limit.
        pub power_default: Reading<Watts>,
        /// The lowest power limit that can be set.
        pub power_least: Reading<Watts>,
        /// The highest power limit that can be set.
        pub power_most: Reading<Watts>,
        /// The highest PCIe generation that GPU and slot support together.
        pub pcie_generation_most: Reading<u32>,
        /// The highest number of PCIe lanes that GPU and slot support together.
        pub pcie_width_most: Reading<u32>,
        /// PCI bridges from the root of the bus to the GPU, as the kernel writes them:
        /// `pci0000:15/0000:15:01.0/0000:18:00.0`.
        pub pci_path: Reading<Arc<str>>,
    }

    /// The readings of a GPU that are taken rarely: PCIe slot, retired pages, links, fabric.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct HardwareState {
        /// Current PCIe generation. It falls while the GPU is idle, to save power.
        pub pcie_generation: Reading<u32>,
        /// PCIe lanes currently in use.
        pub pcie_width: Reading<u32>,
        /// Errors that the GPU reported on its PCIe link (AER), as the kernel counted them since boot.
        pub pcie_errors: PcieErrors,
        /// Retired memory pages (GPUs before Ampere; later GPUs remap rows).
        pub retired: RetiredPages,
        /// The GPU's NVLinks in the order of their numbers, including links that are down. At most [`MAX_NVLINKS`].
        pub nvlinks: Reading<Arc<[NvLink]>>,
        /// The GPU's place in the NVLink fabric (NVSwitch, NVL72).
        pub fabric: Reading<Fabric>,
    }

    /// PCIe errors by severity.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct PcieErrors {
        /// Errors that the hardware corrected, for example by sending again.
        pub correctable: Reading<Count>,
        /// A packet was lost, but the link still works.
        pub nonfatal: Reading<Count>,
        /// The link is no longer reliable.
        pub fatal: Reading<Count>,
    }

    /// Page retirement.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct RetiredPages {
        /// Pages retired after several corrected errors each.
        pub corrected: Reading<Count>,
        /// Pages that were retired after an uncorrected error.
        pub uncorrected: Reading<Count>,
        /// Whether pages wait for the next reset to be retired.
        pub pending: Reading<bool>,
    }
}

/// Reads one value of a GPU's board or hardware, in base units.
pub type ReadOfHardware = fn(&Board, &HardwareState) -> Reading<SampleValue>;

/// The readings of a GPU's board and hardware that are one number each, in the order in which `/metrics` shows them.
#[rustfmt::skip]
pub static HARDWARE_READINGS: &[(ReadingName, ReadOfHardware)] = &[
    (metric("power_limit_default_watts", "watts", "Default power limit of the GPU."), |board, _| board.power_default.number()),
    (metric("power_limit_minimum_watts", "watts", "Lowest power limit that can be set."), |board, _| board.power_least.number()),
    (metric("power_limit_maximum_watts", "watts", "Highest power limit that can be set."), |board, _| board.power_most.number()),
    (metric("pcie_link_generation", "", "Current PCIe generation of the GPU's link; it is lower while the GPU idles."), |_, hardware| hardware.pcie_generation.number()),
    (metric("pcie_link_generation_maximum", "", "Highest PCIe generation that both the GPU and its slot support."), |board, _| board.pcie_generation_most.number()),
    (metric("pcie_link_width", "", "Current number of PCIe lanes in use."), |_, hardware| hardware.pcie_width.number()),
    (metric("pcie_link_width_maximum", "", "Most PCIe lanes that both the GPU and its slot support."), |board, _| board.pcie_width_most.number()),
    (metric("pcie_errors_total", "", PCIE_ERRORS).label("severity=\"correctable\""), |_, hardware| hardware.pcie_errors.correctable.number()),
    (metric("pcie_errors_total", "", PCIE_ERRORS).label("severity=\"nonfatal\""), |_, hardware| hardware.pcie_errors.nonfatal.number()),
    (metric("pcie_errors_total", "", PCIE_ERRORS).label("severity=\"fatal\""), |_, hardware| hardware.pcie_errors.fatal.number()),
    (metric("retired_pages_total", "", RETIRED).label("cause=\"corrected\""), |_, hardware| hardware.retired.corrected.number()),
    (metric("retired_pages_total", "", RETIRED).label("cause=\"uncorrected\""), |_, hardware| hardware.retired.uncorrected.number()),
    (metric("retired_pages_pending", "", "1 while pages wait for a GPU reset to be retired."), |_, hardware| hardware.retired.pending.number()),
];

const PCIE_ERRORS: &str = "Errors that the GPU reported on its PCIe link (AER) since boot, by severity.";
const RETIRED: &str = "Memory pages retired, by the errors that caused it (GPUs before Ampere).";

/// One NVLink.
#[derive(Clone, Debug, PartialEq)]
pub struct NvLink {
    /// The link's number on the GPU.
    pub number: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Errors since the driver was loaded, in the order of [`LinkError::ALL`]. The architecture determines which kinds
    /// are counted.
    pub errors: [Reading<Count>; LinkError::ALL.len()],
}

impl NvLink {
    /// Errors of one kind.
    #[must_use]
    pub fn errors(&self, kind: LinkError) -> Reading<Count> {
        self.errors.get(kind as usize).copied().unwrap_or_default()
    }
}

/// The kinds of NVLink errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkError {
    /// CRC error in a flow-control digit (up to Ampere).
    CrcFlit,
    /// CRC error in data (up to Ampere).
    CrcData,
    /// CRC error in either (Hopper).
    Crc,
    /// Replay: a packet was sent again (up to Hopper).
    Replay,
    /// The link was retrained.
    Recovery,
    /// The link could not be retrained and went down (Blackwell and later).
    RecoveryFailed,
    /// Packets received with errors (Blackwell and later).
    Received,
    /// Symbols received with errors that were not corrected (Blackwell and later).
    Symbol,
}

impl LinkError {
    /// All kinds of errors.
    pub const ALL: [LinkError; 8] = [
        LinkError::CrcFlit,
        LinkError::CrcData,
        LinkError::Crc,
        LinkError::Replay,
        LinkError::Recovery,
        LinkError::RecoveryFailed,
        LinkError::Received,
        LinkError::Symbol,
    ];

    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            LinkError::CrcFlit => "crc_flit",
            LinkError::CrcData => "crc_data",
            LinkError::Crc => "crc",
            LinkError::Replay => "replay",
            LinkError::Recovery => "recovery",
            LinkError::RecoveryFailed => "recovery_failed",
            LinkError::Received => "received",
            LinkError::Symbol => "symbol",
        }
    }
}

/// A GPU's place in the NVLink fabric. A GPU that belongs to no fabric has no place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fabric {
    /// How far the fabric manager has registered the GPU.
    pub state: FabricState,
    /// NVML's status code of that registration; 0 is success. It has no meaning before the registration has ended.
    pub outcome: u32,
    /// The cluster (NVL domain): its UUID as a number, 0 outside a cluster.
    pub cluster: u128,
    /// GPUs with the same number reach each other over NVLink.
    pub clique: u32,
    /// NVML's bit mask of faults, see [`Fabric::faults`].
    pub health: u32,
    /// NVML's own summary (R570 and later).
    pub summary: Option<FabricHealth>,
}

/// `NVML_GPU_FABRIC_STATE_…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricState {
    /// The fabric manager has not registered the GPU: CUDA does not start.
    #[default]
    NotStarted,
    /// The registration is in progress.
    InProgress,
    /// The registration has ended, with success or without.
    Completed,
    /// A number that this version does not know.
    Unknown(u32),
}

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricHealth {
    /// Nothing is wrong.
    Healthy,
    /// Something is wrong.
    Unhealthy,
    /// The GPU works with fewer links.
    LimitedCapacity,
}

impl FabricState {
    /// The state with NVML's number; `None` if the GPU belongs to no fabric.
    #[must_use]
    pub fn from_nvml(number: u32) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(FabricState::NotStarted),
            2 => Some(FabricState::InProgress),
            3 => Some(FabricState::Completed),
            other => Some(FabricState::Unknown(other)),
        }
    }

    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            FabricState::NotStarted => "not_started",
            FabricState::InProgress => "in_progress",
            FabricState::Completed => "completed",
            FabricState::Unknown(_) => "unknown",
        }
    }
}

impl FabricHealth {
    /// The summary with NVML's number; `None` if NVML does not report one.
    #[must_use]
    pub fn from_nvml(number: u8) -> Option<Self> {
        match number {
            1 => Some(FabricHealth::Healthy),
            2 => Some(FabricHealth::Unhealthy),
            3 => Some(FabricHealth::LimitedCapacity),
            _ => None,
        }
    }

    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            FabricHealth::Healthy => "healthy",
            FabricHealth::Unhealthy => "unhealthy",
            FabricHealth::LimitedCapacity => "limited_capacity",
        }
    }
}

/// Faults with two bits each: 0 not reported, 1 present, 2 not present (`NVML_GPU_FABRIC_HEALTH_MASK_…`).
const FAULTS: [(&str, u32); 4] =
    [("degraded_bandwidth", 0), ("route_recovery", 2), ("route_unhealthy", 4), ("access_timeout_recovery", 6)];
/// Configuration fault, four bits: 0 not reported, 1 no fault, any other number is a fault.
const CONFIGURATION: u32 = 8;

impl Fabric {
    /// The possible faults, each with a stable short code and whether it is present. Faults that NVML does not report
    /// are left out.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let health = self.health;
        let plain = FAULTS.into_iter().filter_map(move |(name, shift)| match health >> shift & 3 {
            1 => Some((name, true)),
            2 => Some((name, false)),
            _ => None,
        });
        let configuration = match health >> CONFIGURATION & 0xf {
            0 => None,
            number => Some(("incorrect_configuration", number > 1)),
        };
        plain.chain(configuration)
    }

    /// UUID of the cluster; `None` outside a cluster.
    #[must_use]
    pub fn cluster(&self) -> Option<String> {
        let text = format!("{:032x}", self.cluster);
        let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
        let parts = [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)];
        (self.cluster != 0).then(|| parts.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_link_error_has_its_place() {
        for (place, kind) in LinkError::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{}", kind.code());
        }
    }

    #[test]
    fn a_fabric_mask_separates_faults_good_states_and_unknown_states() {
        let fabric =
            |health| Fabric { state: FabricState::Completed, outcome: 0, cluster: 0, clique: 0, health, summary: None };
        let faults = |health| fabric(health).faults().collect::<Vec<_>>();
        assert_eq!(faults(0), []);
        assert_eq!(faults(0b01), [("degraded_bandwidth", true)]);
        assert_eq!(
            faults(0b10_0110),
            [("degraded_bandwidth", false), ("route_recovery", true), ("route_unhealthy", false)]
        );
        assert_eq!(faults(1 << 8), [("incorrect_configuration", false)]);
        assert_eq!(faults(5 << 8), [("incorrect_configuration", true)]);
        assert_eq!(faults(0b11), [], "a value without a meaning is not reported");
    }

    #[test]
    fn a_cluster_is_written_as_its_uuid() {
        let fabric = Fabric {
            state: FabricState::Completed,
            outcome: 0,
            cluster: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            clique: 0,
            health: 0,
            summary: None,
        };
        assert_eq!(fabric.cluster().as_deref(), Some("01020304-0506-0708-090a-0b0c0d0e0f10"));
        assert_eq!(Fabric { cluster: 0, ..fabric }.cluster(), None);
    }
}
