//! A GPU: who it is, and what was read of it. MIG instances are GPUs inside a GPU.

use crate::id::{GpuUuid, PodUid};
use crate::reading::{Absence, Reading};
use crate::time::{Monotonic, WallTime};
use crate::unit::{Bytes, BytesPerSecond, Celsius, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};
use crate::upkeep::{Board, Upkeep};
use std::sync::Arc;

/// At most this many GPUs on one node: the largest HGX and PCIe hosts carry 16, a fourfold reserve.
pub const MAX_GPUS: usize = 64;
/// At most this many MIG instances on one GPU: NVML itself never reports more than 7.
pub const MAX_MIG: usize = 8;

/// Who a GPU is. Changes only when hardware, driver or MIG layout change.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The identity.
    pub uuid: GpuUuid,
    /// NVML's index, which may change at the next driver load.
    pub index: u32,
    /// The `N` of `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    /// Marketing name, as NVML gives it.
    pub model: Arc<str>,
    /// `00000000:65:00.0`.
    pub pci_bus_id: Reading<Arc<str>>,
    /// NUMA node of the PCI slot.
    pub numa_node: Reading<u32>,
    /// Architecture, as NVML names it: `Hopper`.
    pub architecture: Reading<Arc<str>>,
    /// CUDA compute capability.
    pub compute: Reading<ComputeCapability>,
    /// All of the card's memory (v2 call: with what the driver reserves).
    pub memory_total: Reading<Bytes>,
    /// Limit of power as it is set now.
    pub power_limit: Reading<Watts>,
    /// Whether MIG is on.
    pub mig_mode: Reading<bool>,
    /// The MIG instances, ordered by GPU instance and compute instance; measured as none where MIG is off or not offered.
    pub mig: Reading<Vec<MigInstance>>,
    /// How it is tied to the other GPUs of the node, ordered by their index.
    pub links: Vec<GpuLink>,
    /// NVLinks that are up.
    pub nvlinks_active: Reading<u32>,
    /// What is on its plate, and what it can do in its slot.
    pub board: Board,
}

impl Gpu {
    /// The MIG instances that are known. Empty is not "none": whoever concludes from that looks at [`Gpu::mig`].
    #[must_use]
    pub fn instances(&self) -> &[MigInstance] {
        self.mig.value().map_or(&[], Vec::as_slice)
    }

    /// The same by GPU instance: its compute instances, at least one, which share its memory and its counters.
    pub fn gpu_instances(&self) -> impl Iterator<Item = &[MigInstance]> {
        self.instances().chunk_by(|one, next| one.gpu_instance == next.gpu_instance)
    }

    /// Whether it is divided, so that nothing on it has the whole of it.
    #[must_use]
    pub fn divided(&self) -> bool {
        self.mig_mode.get() == Some(true) || !self.instances().is_empty()
    }
}

/// What CUDA programs can be built for: 9.0 is Hopper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeCapability {
    /// Before the point.
    pub major: u32,
    /// Behind it.
    pub minor: u32,
}

/// A GPU that NVML counts and that could never be identified: lost, hanging or closed to us since the start. At most
/// [`MAX_GPUS`] of them.
#[derive(Clone, Debug, PartialEq)]
pub struct UnidentifiedGpu {
    /// NVML's index: all that is known of it for certain.
    pub index: u32,
    /// Where it sits, as the kernel's driver spells it (`0000:65:00.0`), where there is only one place it can be.
    pub pci_bus_id: Reading<Arc<str>>,
    /// Why it cannot be identified.
    pub why: Absence,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq)]
pub struct MigInstance {
    /// The identity: `MIG-…`.
    pub uuid: GpuUuid,
    /// Index among the devices of its parent.
    pub index: u32,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
    /// `1g.10gb`, made from NVML's attributes.
    pub profile: Arc<str>,
    /// Memory of its GPU instance, which the compute instances there share.
    pub memory_total: Reading<Bytes>,
}

impl MigInstance {
    /// The profile of its GPU instance: `2g.20gb` of a compute instance `1c.2g.20gb`.
    #[must_use]
    pub fn gpu_profile(&self) -> &str {
        match self.profile.split_once('.') {
            Some((compute, rest)) if compute.ends_with('c') => rest,
            _ => &self.profile,
        }
    }
}

/// How one GPU reaches another.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuLink {
    /// The other GPU.
    pub peer: GpuUuid,
    /// The nearest common place of both.
    pub path: Reading<GpuPath>,
    /// Direct NVLinks between the two; 0 where there are none, absent where they go through a switch.
    pub nvlinks: Reading<u32>,
}

/// NVML's topology levels, nearest first; the words of `nvidia-smi topo -m` are in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuPath {
    /// On one board.
    Internal,
    /// One PCIe switch (PIX).
    SingleSwitch,
    /// Several PCIe switches (PXB).
    MultipleSwitches,
    /// One host bridge (PHB).
    HostBridge,
    /// One NUMA node (NODE).
    NumaNode,
    /// Between NUMA nodes (SYS).
    System,
}

impl GpuPath {
    /// The word of `nvidia-smi topo -m`.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            GpuPath::Internal => "PSB",
            GpuPath::SingleSwitch => "PIX",
            GpuPath::MultipleSwitches => "PXB",
            GpuPath::HostBridge => "PHB",
            GpuPath::NumaNode => "NODE",
            GpuPath::System => "SYS",
        }
    }
}

/// What is read of a GPU every second (the cheap calls) and, more rarely, the rest; every reading has its own time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSample {
    /// Memory in use by processes, as the v2 call counts it: without what the driver reserves.
    pub memory_used: Reading<Bytes>,
    /// Memory that the driver keeps for itself.
    pub memory_reserved: Reading<Bytes>,
    /// Memory nobody holds.
    pub memory_free: Reading<Bytes>,
    /// Share of time with a kernel running: mean of the distinct samples that NVML took since the last poll.
    pub utilization: Reading<Percent>,
    /// NVML's own stamp of the newest of those samples.
    pub utilization_stamp: Reading<WallTime>,
    /// How many distinct samples went into it.
    pub utilization_samples: u32,
    /// Share of time with device memory being read or written.
    pub memory_copy: Reading<Percent>,
    /// Encoder.
    pub encoder: Reading<Percent>,
    /// Decoder.
    pub decoder: Reading<Percent>,
    /// Power drawn.
    pub power: Reading<Watts>,
    /// Energy since the driver was loaded; starts again at 0 with the driver.
    pub energy: Reading<Millijoules>,
    /// Clock of the streaming multiprocessors.
    pub clock_sm: Reading<Megahertz>,
    /// Clock of the memory.
    pub clock_memory: Reading<Megahertz>,
    /// NVML's bit set of reasons why the clocks are not higher.
    pub throttle_reasons: Reading<u64>,
    /// For how long the clocks were held down.
    pub violations: Violations,
    /// Temperature of the chip.
    pub temperature: Reading<Celsius>,
    /// Temperature of the memory.
    pub temperature_memory: Reading<Celsius>,
    /// PCIe, from the GPU's side: sent (NVML measures over 20 ms).
    pub pcie_tx: Reading<BytesPerSecond>,
    /// PCIe, received.
    pub pcie_rx: Reading<BytesPerSecond>,
    /// PCIe packets sent again.
    pub pcie_replays: Reading<Count>,
    /// ECC errors since the driver was loaded.
    pub ecc_volatile: EccErrors,
    /// ECC errors in the card's life.
    pub ecc_aggregate: EccErrors,
    /// Row remapping.
    pub remapped: RemappedRows,
    /// What NVML advises to do with the card.
    pub recovery: Reading<RecoveryAction>,
    /// Whether the driver keeps the card initialised while no program uses it.
    pub persistence: Reading<bool>,
    /// Bytes over all NVLinks, both ways.
    pub nvlink_bytes: Reading<Bytes>,
    /// Counters of the profiling unit (Hopper and later).
    pub gpm: GpmSample,
    /// The MIG instances' own readings.
    pub mig: Vec<MigSample>,
    /// What changes rarely: its slot, worn memory, links, fabric.
    pub upkeep: Upkeep,
}

/// NVML's names of the bits of [`GpuSample::throttle_reasons`], without their common beginning.
pub const THROTTLE_REASONS: [(u64, &str); 9] = [
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
];

/// Time since the driver was loaded for which clocks were lower than asked for, by what held them down.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Violations {
    /// The limit of power.
    pub power: Reading<Nanos>,
    /// Temperature.
    pub thermal: Reading<Nanos>,
    /// Another GPU of the same group.
    pub sync_boost: Reading<Nanos>,
    /// A limit of the board.
    pub board_limit: Reading<Nanos>,
    /// Little to do.
    pub low_utilization: Reading<Nanos>,
    /// Limits of voltage for reliability.
    pub reliability: Reading<Nanos>,
    /// Any of these, below the application clocks.
    pub application_clocks: Reading<Nanos>,
    /// Any of these, below the base clocks.
    pub base_clocks: Reading<Nanos>,
}

impl Violations {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        let none = Reading::Absent(why);
        Violations {
            power: none,
            thermal: none,
            sync_boost: none,
            board_limit: none,
            low_utilization: none,
            reliability: none,
            application_clocks: none,
            base_clocks: none,
        }
    }
}

/// ECC counters of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EccErrors {
    /// Corrected.
    pub corrected: Reading<Count>,
    /// Not corrected.
    pub uncorrected: Reading<Count>,
}

/// Row remapper.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RemappedRows {
    /// Rows remapped after corrected errors.
    pub correctable: Reading<Count>,
    /// Rows remapped after uncorrected errors.
    pub uncorrectable: Reading<Count>,
    /// A remapping waits for a reset.
    pub pending: Reading<bool>,
    /// A remapping failed.
    pub failed: Reading<bool>,
}

/// NVML field 230.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryAction {
    /// Nothing to do.
    None,
    /// Reset the GPU.
    ResetGpu,
    /// Reboot the node.
    RebootNode,
    /// Drain peers.
    DrainPeers,
    /// Drain, then reset.
    DrainAndReset,
    /// Recover the IMEX domain that the GPU's node belongs to (R595 and later).
    RecoverImexDomain,
    /// Reset the GPU's PCIe bus (R615 and later).
    ResetBus,
    /// Reboot the whole system (R615 and later).
    RebootSystem,
    /// A number newer than this program.
    Unknown(u32),
}

impl RecoveryAction {
    /// From NVML's number.
    #[must_use]
    pub fn from_nvml(number: u32) -> Self {
        match number {
            0 => RecoveryAction::None,
            1 => RecoveryAction::ResetGpu,
            2 => RecoveryAction::RebootNode,
            3 => RecoveryAction::DrainPeers,
            4 => RecoveryAction::DrainAndReset,
            5 => RecoveryAction::RecoverImexDomain,
            6 => RecoveryAction::ResetBus,
            7 => RecoveryAction::RebootSystem,
            other => RecoveryAction::Unknown(other),
        }
    }

    /// A stable short word.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            RecoveryAction::None => "none",
            RecoveryAction::ResetGpu => "reset_gpu",
            RecoveryAction::RebootNode => "reboot_node",
            RecoveryAction::DrainPeers => "drain_peers",
            RecoveryAction::DrainAndReset => "drain_and_reset",
            RecoveryAction::RecoverImexDomain => "recover_imex_domain",
            RecoveryAction::ResetBus => "reset_bus",
            RecoveryAction::RebootSystem => "reboot_system",
            RecoveryAction::Unknown(_) => "unknown",
        }
    }

    /// NVML's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            RecoveryAction::None => 0,
            RecoveryAction::ResetGpu => 1,
            RecoveryAction::RebootNode => 2,
            RecoveryAction::DrainPeers => 3,
            RecoveryAction::DrainAndReset => 4,
            RecoveryAction::RecoverImexDomain => 5,
            RecoveryAction::ResetBus => 6,
            RecoveryAction::RebootSystem => 7,
            RecoveryAction::Unknown(other) => other,
        }
    }
}

/// GPM counters over the time between two samples. Shares are of one; rates are in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpmSample {
    /// Graphics or compute engine active.
    pub graphics_active: Reading<Ratio>,
    /// At least one warp on a multiprocessor, mean over all of them.
    pub sm_active: Reading<Ratio>,
    /// Warps resident, of what could be.
    pub sm_occupancy: Reading<Ratio>,
    /// Tensor pipes.
    pub tensor_active: Reading<Ratio>,
    /// Device memory interface.
    pub dram_active: Reading<Ratio>,
    /// FP64 pipe.
    pub fp64_active: Reading<Ratio>,
    /// FP32 pipe.
    pub fp32_active: Reading<Ratio>,
    /// FP16 pipe.
    pub fp16_active: Reading<Ratio>,
    /// PCIe sent.
    pub pcie_tx: Reading<BytesPerSecond>,
    /// PCIe received.
    pub pcie_rx: Reading<BytesPerSecond>,
    /// NVLink sent.
    pub nvlink_tx: Reading<BytesPerSecond>,
    /// NVLink received.
    pub nvlink_rx: Reading<BytesPerSecond>,
}

impl GpmSample {
    /// All absent for one reason.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        GpmSample {
            graphics_active: Reading::Absent(why),
            sm_active: Reading::Absent(why),
            sm_occupancy: Reading::Absent(why),
            tensor_active: Reading::Absent(why),
            dram_active: Reading::Absent(why),
            fp64_active: Reading::Absent(why),
            fp32_active: Reading::Absent(why),
            fp16_active: Reading::Absent(why),
            pcie_tx: Reading::Absent(why),
            pcie_rx: Reading::Absent(why),
            nvlink_tx: Reading::Absent(why),
            nvlink_rx: Reading::Absent(why),
        }
    }
}

/// What is read of one MIG instance. All of it is of its GPU instance: of the compute instances there each tells the same.
#[derive(Clone, Debug, PartialEq)]
pub struct MigSample {
    /// Which.
    pub uuid: GpuUuid,
    /// Memory in use.
    pub memory_used: Reading<Bytes>,
    /// Memory nobody holds.
    pub memory_free: Reading<Bytes>,
    /// Memory reserved.
    pub memory_reserved: Reading<Bytes>,
    /// Its part of the profiling counters.
    pub gpm: GpmSample,
}

impl GpuSample {
    /// Every reading absent for one reason: a GPU that is lost, hangs or could not be opened.
    #[must_use]
    pub fn absent(why: Absence) -> Self {
        let ecc = EccErrors { corrected: Reading::Absent(why), uncorrected: Reading::Absent(why) };
        GpuSample {
            memory_used: Reading::Absent(why),
            memory_reserved: Reading::Absent(why),
            memory_free: Reading::Absent(why),
            utilization: Reading::Absent(why),
            utilization_stamp: Reading::Absent(why),
            utilization_samples: 0,
            memory_copy: Reading::Absent(why),
            encoder: Reading::Absent(why),
            decoder: Reading::Absent(why),
            power: Reading::Absent(why),
            energy: Reading::Absent(why),
            clock_sm: Reading::Absent(why),
            clock_memory: Reading::Absent(why),
            throttle_reasons: Reading::Absent(why),
            violations: Violations::absent(why),
            temperature: Reading::Absent(why),
            temperature_memory: Reading::Absent(why),
            pcie_tx: Reading::Absent(why),
            pcie_rx: Reading::Absent(why),
            pcie_replays: Reading::Absent(why),
            ecc_volatile: ecc,
            ecc_aggregate: ecc,
            remapped: RemappedRows {
                correctable: Reading::Absent(why),
                uncorrectable: Reading::Absent(why),
                pending: Reading::Absent(why),
                failed: Reading::Absent(why),
            },
            recovery: Reading::Absent(why),
            persistence: Reading::Absent(why),
            nvlink_bytes: Reading::Absent(why),
            gpm: GpmSample::absent(why),
            mig: Vec::new(),
            upkeep: Upkeep::absent(why),
        }
    }
}

/// Where an XID was seen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    /// NVML's event.
    Nvml,
    /// A line of the kernel's log.
    KernelLog,
}

/// A driver error, told once even when NVML and the kernel log both tell it.
#[derive(Clone, Debug, PartialEq)]
pub struct Xid {
    /// Which GPU, if it could be found out.
    pub gpu: Option<GpuUuid>,
    /// Which of its MIG instances, if it hit one and that one is known.
    pub mig: Option<GpuUuid>,
    /// PCI bus id, if the kernel told it.
    pub pci_bus_id: Option<Arc<str>>,
    /// The number in NVIDIA's catalogue.
    pub code: u32,
    /// The process the kernel names, if any.
    pub pid: Option<u32>,
    /// The pod whose process that is, found when the error was heard of: the process is often gone a moment later.
    pub pod: Option<PodUid>,
    /// When we heard of it.
    pub at: Monotonic,
    /// Who told.
    pub source: XidSource,
}
