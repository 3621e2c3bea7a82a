//! What whoever keeps the machines looks at: what a card is by its plate, how it sits in its slot, what it has worn out,
//! and how its links and its fabric fare. Read rarely, because it changes rarely.
//!
//! ```text
//!   Board    plate and limits: once        Upkeep   slot, worn pages, links, fabric: every 15 to 60 s
//! ```

use crate::reading::{Absence, Reading};
use crate::unit::{Count, Watts};
use std::sync::Arc;

/// At most this many NVLinks on one GPU: `NVML_NVLINK_MAX_LINKS` of today's header; no card sold has more than 18.
pub const MAX_NVLINKS: u32 = 36;

/// What does not change while a card is in its slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Board {
    /// Serial number of the board, as printed on it.
    pub serial: Reading<Arc<str>>,
    /// Version of the firmware (VBIOS).
    pub vbios: Reading<Arc<str>>,
    /// Limit of power that the card starts with.
    pub power_default: Reading<Watts>,
    /// The least that may be set.
    pub power_least: Reading<Watts>,
    /// The most that may be set.
    pub power_most: Reading<Watts>,
    /// The highest PCIe generation that card and slot can do together.
    pub pcie_generation_most: Reading<u32>,
    /// The most PCIe lanes that card and slot have in common.
    pub pcie_width_most: Reading<u32>,
    /// Bridges from the root of the bus to the card, as the kernel writes them: `pci0000:15/0000:15:01.0/0000:18:00.0`.
    pub pci_path: Reading<Arc<str>>,
}

/// What is read of the card's upkeep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// PCIe generation now. Falls while the card idles, to save power.
    pub pcie_generation: Reading<u32>,
    /// PCIe lanes in use now.
    pub pcie_width: Reading<u32>,
    /// Errors that the card reported on its PCIe link (AER), as the kernel counted them since boot.
    pub pcie_errors: PcieErrors,
    /// Pages of memory that were given up (cards before Ampere; later ones remap rows).
    pub retired: RetiredPages,
    /// Its NVLinks in the order of their numbers, those that are down with them. At most [`MAX_NVLINKS`].
    pub nvlinks: Reading<Arc<[NvLink]>>,
    /// Its place in the NVLink fabric (NVSwitch, NVL72).
    pub fabric: Reading<Fabric>,
}

/// PCIe errors by what they mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PcieErrors {
    /// The hardware made good: sent again, say.
    pub correctable: Reading<Count>,
    /// A packet is lost, the link is well.
    pub nonfatal: Reading<Count>,
    /// The link is not to be relied on any more.
    pub fatal: Reading<Count>,
}

/// Page retirement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RetiredPages {
    /// Given up after several corrected errors each.
    pub corrected: Reading<Count>,
    /// Given up after an uncorrected error each.
    pub uncorrected: Reading<Count>,
    /// Pages wait for the next reset to be given up.
    pub pending: Reading<bool>,
}

/// One NVLink.
#[derive(Clone, Debug, PartialEq)]
pub struct NvLink {
    /// Its number on the card.
    pub number: u32,
    /// Whether it is up.
    pub up: bool,
    /// Errors since the driver was loaded, in the order of [`LinkError::ALL`]. Which of them are counted is a matter of the
    /// architecture.
    pub errors: [Reading<Count>; LinkError::ALL.len()],
}

impl NvLink {
    /// Errors of one kind.
    #[must_use]
    pub fn errors(&self, kind: LinkError) -> Reading<Count> {
        self.errors.get(kind as usize).copied().unwrap_or_default()
    }
}

/// What goes wrong on an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkError {
    /// Checksum of a flow-control digit (up to Ampere).
    CrcFlit,
    /// Checksum of data (up to Ampere).
    CrcData,
    /// Checksum, of either (Hopper).
    Crc,
    /// Sent again (up to Hopper).
    Replay,
    /// The link was trained anew.
    Recovery,
    /// It could not be trained anew and went down (Blackwell and later).
    RecoveryFailed,
    /// Packets that came in broken (Blackwell and later).
    Received,
    /// Symbols that came in wrong, corrected ones not among them (Blackwell and later).
    Symbol,
}

impl LinkError {
    /// All of them.
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

    /// A stable short word.
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

/// Where a GPU stands in the NVLink fabric. A card that is of no fabric has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// How far the fabric manager has come with it.
    pub state: FabricState,
    /// NVML's code of how that ended; 0 is well. Says nothing before it ended.
    pub outcome: u32,
    /// The cluster (NVL domain): its UUID as a number, 0 outside of one.
    pub cluster: u128,
    /// GPUs with the same number reach each other over NVLink.
    pub clique: u32,
    /// NVML's mask of what is wrong, see [`Fabric::faults`].
    pub health: u32,
    /// NVML's own judgement (from R570 on).
    pub summary: Option<FabricHealth>,
}

/// `NVML_GPU_FABRIC_STATE_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricState {
    /// The fabric manager has not asked for it: CUDA does not start.
    NotStarted,
    /// It is being taken in.
    InProgress,
    /// Done, well or not.
    Completed,
    /// A number newer than this program.
    Unknown(u32),
}

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricHealth {
    /// Nothing is wrong.
    Healthy,
    /// Something is.
    Unhealthy,
    /// It works with fewer links.
    LimitedCapacity,
}

impl FabricState {
    /// From NVML's number; `None`: this GPU is of no fabric.
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

    /// A stable short word.
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
    /// From NVML's number; `None`: not told.
    #[must_use]
    pub fn from_nvml(number: u8) -> Option<Self> {
        match number {
            1 => Some(FabricHealth::Healthy),
            2 => Some(FabricHealth::Unhealthy),
            3 => Some(FabricHealth::LimitedCapacity),
            _ => None,
        }
    }

    /// A stable short word.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            FabricHealth::Healthy => "healthy",
            FabricHealth::Unhealthy => "unhealthy",
            FabricHealth::LimitedCapacity => "limited_capacity",
        }
    }
}

/// Two bits each: 0 not told, 1 so, 2 not so (`NVML_GPU_FABRIC_HEALTH_MASK_…`).
const FAULTS: [(&str, u32); 4] =
    [("degraded_bandwidth", 0), ("route_recovery", 2), ("route_unhealthy", 4), ("access_timeout_recovery", 6)];
/// Four bits: 0 not told, 1 none, else what is wrong.
const CONFIGURATION: u32 = 8;

impl Fabric {
    /// What may be wrong, by a stable short word, and whether it is. What NVML does not tell is left out.
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

    /// UUID of the cluster; `None` outside of one.
    #[must_use]
    pub fn cluster(&self) -> Option<String> {
        let text = format!("{:032x}", self.cluster);
        let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
        let parts = [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)];
        (self.cluster != 0).then(|| parts.join("-"))
    }
}

impl Board {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        Board {
            serial: Reading::Absent(why),
            vbios: Reading::Absent(why),
            power_default: Reading::Absent(why),
            power_least: Reading::Absent(why),
            power_most: Reading::Absent(why),
            pcie_generation_most: Reading::Absent(why),
            pcie_width_most: Reading::Absent(why),
            pci_path: Reading::Absent(why),
        }
    }
}

impl Upkeep {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        Upkeep {
            pcie_generation: Reading::Absent(why),
            pcie_width: Reading::Absent(why),
            pcie_errors: PcieErrors::absent(why),
            retired: RetiredPages::absent(why),
            nvlinks: Reading::Absent(why),
            fabric: Reading::Absent(why),
        }
    }
}

impl PcieErrors {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        PcieErrors { correctable: Reading::Absent(why), nonfatal: Reading::Absent(why), fatal: Reading::Absent(why) }
    }
}

impl RetiredPages {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        RetiredPages {
            corrected: Reading::Absent(why),
            uncorrected: Reading::Absent(why),
            pending: Reading::Absent(why),
        }
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
    fn a_mask_of_the_fabric_says_what_is_wrong_what_is_not_and_what_is_not_told() {
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
        assert_eq!(faults(0b11), [], "a value of no meaning is not told");
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
