//! A GPU: its identity and its samples. MIG instances are GPUs inside a GPU.

use crate::hardware::{Board, HardwareState};
use crate::id::{GpuUuid, PodUid};
use crate::nvidia::KERNEL_MODULE;
use crate::reading::{Absence, Reading, readings};
use crate::reading_name::{ReadingName, metric};
use crate::recovery::RecoveryAction;
use crate::sample_value::SampleValue;
use crate::time::Monotonic;
use crate::unit::{Bytes, BytesPerSecond, Celsius, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};
use std::sync::Arc;

/// Upper bound on the GPUs of one node: the largest HGX and PCIe hosts have 16, so there is a fourfold reserve.
pub const MAX_GPUS: usize = 64;
/// Upper bound on the MIG instances of one GPU: NVML reports at most 7.
pub const MAX_MIG: usize = 8;

/// The facts about one GPU. They change only when hardware, driver or MIG layout change.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The UUID.
    pub uuid: GpuUuid,
    /// NVML's index, which may change at the next driver load.
    pub index: u32,
    /// The `N` of `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    /// Marketing name, as NVML gives it.
    pub model: Arc<str>,
    /// PCI bus id, such as `00000000:65:00.0`.
    pub pci_bus_id: Reading<Arc<str>>,
    /// NUMA node of the PCI slot.
    pub numa_node: Reading<u32>,
    /// Architecture, as NVML names it, such as `Hopper`.
    pub architecture: Reading<Arc<str>>,
    /// CUDA compute capability.
    pub compute: Reading<ComputeCapability>,
    /// All memory of the GPU, including what the driver reserves.
    pub memory_total: Reading<Bytes>,
    /// How the GPU's memory is counted.
    pub memory_kind: MemoryKind,
    /// Current power limit.
    pub power_limit: Reading<Watts>,
    /// Whether MIG mode is on.
    pub mig_mode: Reading<bool>,
    /// The MIG instances, ordered by GPU instance and compute instance; measured as an empty list if MIG is off or not
    /// supported.
    pub mig: Reading<Vec<MigInstance>>,
    /// The GPU's links to the other GPUs of the node, ordered by their index.
    pub links: Vec<GpuLink>,
    /// Number of NVLinks that are up.
    pub nvlinks_active: Reading<u32>,
    /// Facts about the board and its PCIe slot.
    pub board: Board,
}

impl Gpu {
    /// The known MIG instances. An empty slice does not mean "none": a caller that needs the difference reads
    /// [`Gpu::mig`].
    #[must_use]
    pub fn instances(&self) -> &[MigInstance] {
        self.mig.value().map_or(&[], Vec::as_slice)
    }

    /// The known MIG instances grouped by GPU instance. Each group holds its compute instances, at least one, which
    /// share memory and counters.
    pub fn gpu_instances(&self) -> impl Iterator<Item = &[MigInstance]> {
        self.instances().chunk_by(|one, next| one.gpu_instance == next.gpu_instance)
    }

    /// Whether the GPU is divided by MIG, so that no pod can have all of it.
    #[must_use]
    pub fn divided(&self) -> bool {
        self.mig_mode.get() == Some(true) || !self.instances().is_empty()
    }
}

/// What the memory values of a GPU mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of its own. The used part does not contain what the driver reserves.
    #[default]
    Own,
    /// Memory of its own, as drivers before R510 count it: the used part contains what the driver reserves, and nothing
    /// says how much that is.
    OwnWithReserved,
    /// The GPU has no memory of its own and uses the host's (GB10, Jetson Thor): total is the host's memory, free is what the
    /// host has available, and used is the rest, including what programs without the GPU use.
    Host,
}

impl MemoryKind {
    /// A stable short code, for label values and JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            MemoryKind::Own => "own",
            MemoryKind::OwnWithReserved => "own_with_reserved",
            MemoryKind::Host => "host",
        }
    }
}

/// CUDA compute capability; Hopper has 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeCapability {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

/// A GPU that NVML counts but that could never be identified: lost, hanging, or not accessible to the agent since its
/// start. There are at most [`MAX_GPUS`] of them.
#[derive(Clone, Debug, PartialEq)]
pub struct UnidentifiedGpu {
    /// NVML's index, the only fact that is certain.
    pub index: u32,
    /// PCI address, as the kernel driver spells it (`0000:65:00.0`), if only one place is possible.
    pub pci_bus_id: Reading<Arc<str>>,
    /// The reason why the GPU cannot be identified.
    pub why: Absence,
}

/// A GPU that the PCI bus or the kernel's driver has and that NVML does not list. There are at most [`MAX_GPUS`] of
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingGpu {
    /// PCI address, as the kernel spells it (`0000:65:00.0`).
    pub pci_bus_id: Arc<str>,
    /// Whether the PCI bus has the GPU.
    pub on_bus: bool,
    /// Whether the kernel's driver serves the GPU.
    pub in_driver: bool,
    /// The kernel driver to which the GPU is bound, if any.
    pub bound_to: Option<Arc<str>>,
}

impl MissingGpu {
    /// A stable short code of the reason, for label values and JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.bound_to {
            Some(driver) if **driver != *KERNEL_MODULE => "other_driver",
            _ if !self.on_bus => "not_on_bus",
            _ if self.in_driver => "not_in_nvml",
            _ => "not_initialised",
        }
    }

    /// The reason, as half a sentence.
    #[must_use]
    pub fn reason(&self) -> String {
        match (self.code(), &self.bound_to) {
            ("other_driver", Some(driver)) => format!("it is bound to the kernel driver {driver}"),
            ("not_on_bus", _) => "the driver serves it, but it is not on the PCI bus any more".to_owned(),
            ("not_in_nvml", _) => "the driver serves it, but NVML does not list it".to_owned(),
            _ => "NVIDIA's driver has not initialised it".to_owned(),
        }
    }

    /// What to do, as a sentence.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self.code() {
            "other_driver" => "Bind it to NVIDIA's driver, or, if a virtual machine is to have it, to vfio-pci.",
            "not_on_bus" => "Drain and restart the node; if the GPU stays away, check power, seating and cables.",
            "not_in_nvml" => {
                "Check that the agent's container has all GPUs (NVIDIA_VISIBLE_DEVICES=all) and the kernel log (dmesg) \
                 for this address; if the driver has lost the GPU, restart the node."
            }
            _ => {
                "Check the kernel log (dmesg) for lines of NVRM about this address, such as RmInitAdapter failed; \
                 restart the node, then check that the driver supports this GPU, and its power and seating."
            }
        }
    }
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq)]
pub struct MigInstance {
    /// The UUID, `MIG-…`.
    pub uuid: GpuUuid,
    /// Index among the devices of the instance's parent.
    pub index: u32,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
    /// The profile with its suffix, such as `1g.10gb` or `1g.24gb+me.all`.
    pub profile: Arc<str>,
    /// Memory of the GPU instance, shared by the compute instances in it.
    pub memory_total: Reading<Bytes>,
}

impl MigInstance {
    /// The profile of the GPU instance: `2g.20gb+me` for a compute instance `1c.2g.20gb+me`.
    #[must_use]
    pub fn gpu_profile(&self) -> &str {
        match self.profile.split_once('.') {
            Some((compute, rest)) if compute.ends_with('c') => rest,
            _ => &self.profile,
        }
    }
}

/// The link from one GPU to another.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuLink {
    /// The other GPU.
    pub peer: GpuUuid,
    /// The nearest common point of both GPUs.
    pub path: Reading<GpuPath>,
    /// Number of direct NVLinks between the two; 0 if there are none, absent if they go through a switch.
    pub nvlinks: Reading<u32>,
}

/// NVML's topology levels, nearest first, with the words of `nvidia-smi topo -m` in brackets.
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

readings! {
    /// The readings of one GPU. Cheap readings are made every second, the others less often; every reading has its own time.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct GpuSample {
        /// Memory in use by processes, without what the driver reserves; [`Gpu::memory_kind`] has the exceptions. The view
        /// never shows less than the sum of the processes.
        pub memory_used: Reading<Bytes>,
        /// Memory that the driver reserves.
        pub memory_reserved: Reading<Bytes>,
        /// Free memory.
        pub memory_free: Reading<Bytes>,
        /// Share of time with a kernel running: NVML's newest sample, which covers a sixth of a second to one second.
        pub utilization: Reading<Percent>,
        /// Share of time with device memory being read or written.
        pub memory_copy: Reading<Percent>,
        /// Encoder use.
        pub encoder: Reading<Percent>,
        /// Decoder use.
        pub decoder: Reading<Percent>,
        /// Power drawn.
        pub power: Reading<Watts>,
        /// Energy since the driver was loaded; starts again at 0 when the driver is reloaded.
        pub energy: Reading<Millijoules>,
        /// Clock of the streaming multiprocessors (SMs).
        pub clock_sm: Reading<Megahertz>,
        /// Clock of the memory.
        pub clock_memory: Reading<Megahertz>,
        /// NVML's bit set of the reasons why the clocks are not higher.
        pub throttle_reasons: Reading<u64>,
        /// Time for which the clocks were reduced, by cause.
        pub violations: Violations,
        /// Temperature of the chip.
        pub temperature: Reading<Celsius>,
        /// Temperature of the memory.
        pub temperature_memory: Reading<Celsius>,
        /// PCIe bytes sent by the GPU (NVML measures over 20 ms).
        pub pcie_tx: Reading<BytesPerSecond>,
        /// PCIe bytes received by the GPU.
        pub pcie_rx: Reading<BytesPerSecond>,
        /// PCIe packets sent again.
        pub pcie_replays: Reading<Count>,
        /// ECC errors since the driver was loaded.
        pub ecc_volatile: EccErrors,
        /// ECC errors over the life of the GPU.
        pub ecc_aggregate: EccErrors,
        /// Row remapping.
        pub remapped: RemappedRows,
        /// NVML's recovery action for the GPU.
        pub recovery: Reading<RecoveryAction>,
        /// Persistence mode: whether the driver keeps the GPU initialised while no program uses it.
        pub persistence: Reading<bool>,
        /// Bytes over all NVLinks, sent and received.
        pub nvlink_bytes: Reading<Bytes>,
        /// Counters of the profiling unit (Hopper and later).
        pub gpm: GpmSample,
        /// The samples of the GPU's MIG instances.
        pub mig: Vec<MigSample>,
        /// Readings that change rarely: PCIe slot, retired pages, links, fabric.
        pub hardware: HardwareState,
        /// Readings for which the driver reported numbers outside their physical range, with the count of such numbers since the
        /// last sample. Readings with a count of 0 are left out. The readings themselves are absent.
        pub implausible: Vec<(&'static str, u32)>,
    }
}

/// Reads one value of a GPU, in base units.
pub type ReadOfGpu = fn(&Gpu, &GpuSample) -> Reading<SampleValue>;

/// The readings of a GPU that are one number each, in the order in which they are shown: `/metrics`, `/api/v1/gpus` and
/// the tests of the driver's calls are made from this table.
#[rustfmt::skip]
pub static GPU_READINGS: &[(ReadingName, ReadOfGpu)] = &[
    (metric("memory_total_bytes", "bytes", "Total memory of the GPU, including what the driver reserves.").json("memory_total_bytes"), |gpu, _| gpu.memory_total.number()),
    (metric("memory_used_bytes", "bytes", "Memory that processes hold, without what the driver reserves.").json("memory_used_bytes"), |_, sample| sample.memory_used.number()),
    (metric("memory_reserved_bytes", "bytes", "Memory that the driver keeps for itself.").json("memory_reserved_bytes"), |_, sample| sample.memory_reserved.number()),
    (metric("memory_free_bytes", "bytes", "Free memory.").json("memory_free_bytes"), |_, sample| sample.memory_free.number()),
    (metric("utilization_ratio", "ratio", "Share of time with a kernel running.").json("utilization_ratio"), |_, sample| sample.utilization.number()),
    (metric("memory_copy_ratio", "ratio", "Share of time with device memory being read or written.").json("memory_copy_ratio"), |_, sample| sample.memory_copy.number()),
    (metric("encoder_ratio", "ratio", "Use of the video encoder.").json("encoder_ratio"), |_, sample| sample.encoder.number()),
    (metric("decoder_ratio", "ratio", "Use of the video decoder.").json("decoder_ratio"), |_, sample| sample.decoder.number()),
    (metric("power_watts", "watts", "Power drawn by the GPU.").json("power_watts"), |_, sample| sample.power.number()),
    (metric("power_limit_watts", "watts", "Enforced power limit: the lowest of the configured limit and the limits of the board and its slot.").json("power_limit_watts"), |gpu, _| gpu.power_limit.number()),
    (metric("energy_joules_total", "joules", "Energy drawn since the driver was loaded.").json("energy_joules"), |_, sample| sample.energy.number()),
    (metric("clock_sm_hertz", "hertz", "Clock of the multiprocessors.").json("clock_sm_hertz"), |_, sample| sample.clock_sm.number()),
    (metric("clock_memory_hertz", "hertz", "Clock of the memory.").json("clock_memory_hertz"), |_, sample| sample.clock_memory.number()),
    (metric("clock_throttle_reasons", "", "NVML's bit set of reasons why the clocks are not higher.").json("throttle_reasons"), |_, sample| sample.throttle_reasons.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"power\""), |_, sample| sample.violations.power.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"thermal\""), |_, sample| sample.violations.thermal.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"sync_boost\""), |_, sample| sample.violations.sync_boost.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"board_limit\""), |_, sample| sample.violations.board_limit.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"low_utilization\""), |_, sample| sample.violations.low_utilization.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"reliability\""), |_, sample| sample.violations.reliability.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"application_clocks\""), |_, sample| sample.violations.application_clocks.number()),
    (metric("violation_seconds_total", "seconds", VIOLATED).label("policy=\"base_clocks\""), |_, sample| sample.violations.base_clocks.number()),
    (metric("temperature_celsius", "celsius", "Temperature of the chip.").json("temperature_celsius"), |_, sample| sample.temperature.number()),
    (metric("memory_temperature_celsius", "celsius", "Temperature of the memory.").json("temperature_memory_celsius"), |_, sample| sample.temperature_memory.number()),
    (metric("pcie_transmit_bytes_per_second", "bytes_per_second", "Data sent over PCIe by the GPU.").json("pcie_tx_bytes_per_second"), |_, sample| sample.pcie_tx.number()),
    (metric("pcie_receive_bytes_per_second", "bytes_per_second", "Data received over PCIe by the GPU.").json("pcie_rx_bytes_per_second"), |_, sample| sample.pcie_rx.number()),
    (metric("pcie_replays_total", "", "PCIe packets sent again.").json("pcie_replays"), |_, sample| sample.pcie_replays.number()),
    (metric("nvlink_bytes_total", "bytes", "Bytes over all NVLinks, both ways.").json("nvlink_bytes"), |_, sample| sample.nvlink_bytes.number()),
    (metric("nvlinks_active", "", "NVLinks that are up.").json("nvlinks_active"), |gpu, _| gpu.nvlinks_active.number()),
    (metric("ecc_volatile_errors_total", "", ECC_VOLATILE).label("type=\"corrected\""), |_, sample| sample.ecc_volatile.corrected.number()),
    (metric("ecc_volatile_errors_total", "", ECC_VOLATILE).label("type=\"uncorrected\""), |_, sample| sample.ecc_volatile.uncorrected.number()),
    (metric("ecc_aggregate_errors_total", "", ECC_AGGREGATE).label("type=\"corrected\""), |_, sample| sample.ecc_aggregate.corrected.number()),
    (metric("ecc_aggregate_errors_total", "", ECC_AGGREGATE).label("type=\"uncorrected\""), |_, sample| sample.ecc_aggregate.uncorrected.number()),
    (metric("remapped_rows_total", "", REMAPPED).label("cause=\"corrected\""), |_, sample| sample.remapped.correctable.number()),
    (metric("remapped_rows_total", "", REMAPPED).label("cause=\"uncorrected\""), |_, sample| sample.remapped.uncorrectable.number()),
    (metric("row_remap_pending", "", "1 while a row remapping waits for a reset."), |_, sample| sample.remapped.pending.number()),
    (metric("row_remap_failed", "", "1 after a row remapping failed."), |_, sample| sample.remapped.failed.number()),
    (metric("recovery_action", "", RECOVERY), |_, sample| sample.recovery.number()),
    (metric("graphics_active_ratio", "ratio", "Graphics or compute engine active (GPM)."), |_, sample| sample.gpm.graphics_active.number()),
    (metric("sm_active_ratio", "ratio", "Multiprocessors with at least one warp (GPM)."), |_, sample| sample.gpm.sm_active.number()),
    (metric("sm_occupancy_ratio", "ratio", "Resident warps as a share of the maximum (GPM)."), |_, sample| sample.gpm.sm_occupancy.number()),
    (metric("tensor_active_ratio", "ratio", "Tensor pipes active (GPM)."), |_, sample| sample.gpm.tensor_active.number()),
    (metric("dram_active_ratio", "ratio", "Device memory interface active (GPM)."), |_, sample| sample.gpm.dram_active.number()),
    (metric("fp64_active_ratio", "ratio", "FP64 pipe active (GPM)."), |_, sample| sample.gpm.fp64_active.number()),
    (metric("fp32_active_ratio", "ratio", "FP32 pipe active (GPM)."), |_, sample| sample.gpm.fp32_active.number()),
    (metric("fp16_active_ratio", "ratio", "FP16 pipe active (GPM)."), |_, sample| sample.gpm.fp16_active.number()),
    (metric("counted_pcie_transmit_bytes_per_second", "bytes_per_second", "Data sent over PCIe, as the profiling unit counts it (GPM)."), |_, sample| sample.gpm.pcie_tx.number()),
    (metric("counted_pcie_receive_bytes_per_second", "bytes_per_second", "Data received over PCIe, as the profiling unit counts it (GPM)."), |_, sample| sample.gpm.pcie_rx.number()),
    (metric("counted_nvlink_transmit_bytes_per_second", "bytes_per_second", "Data sent over NVLink (GPM)."), |_, sample| sample.gpm.nvlink_tx.number()),
    (metric("counted_nvlink_receive_bytes_per_second", "bytes_per_second", "Data received over NVLink (GPM)."), |_, sample| sample.gpm.nvlink_rx.number()),
];

const VIOLATED: &str = "Time for which the clocks were below the requested clocks, by NVML policy.";
const ECC_VOLATILE: &str = "ECC errors since the driver was loaded.";
const ECC_AGGREGATE: &str = "ECC errors over the lifetime of the GPU.";
const REMAPPED: &str = "Memory rows remapped, by the errors that caused it.";
const RECOVERY: &str = "Recovery action that NVML advises: 0 none, 1 reset GPU, 2 reboot node, 3 drain peers, 4 drain and reset, 5 recover IMEX domain, 6 reset PCIe bus, 7 reboot system.";

/// NVML's names of the bits of [`GpuSample::throttle_reasons`], without their common prefix.
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

readings! {
    /// Time since the driver was loaded for which clocks were lower than requested, by cause.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Violations {
        /// Power limit.
        pub power: Reading<Nanos>,
        /// Temperature.
        pub thermal: Reading<Nanos>,
        /// Another GPU of the same sync-boost group.
        pub sync_boost: Reading<Nanos>,
        /// Board limit.
        pub board_limit: Reading<Nanos>,
        /// Low utilization.
        pub low_utilization: Reading<Nanos>,
        /// Voltage limits for reliability.
        pub reliability: Reading<Nanos>,
        /// Any cause, with clocks below the application clocks.
        pub application_clocks: Reading<Nanos>,
        /// Any cause, with clocks below the base clocks.
        pub base_clocks: Reading<Nanos>,
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

    /// GPM (profiling) counters over the time between two samples. Shares are ratios of one; rates are in bytes per
    /// second.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct GpmSample {
        /// Graphics or compute engine active.
        pub graphics_active: Reading<Ratio>,
        /// At least one warp on an SM, mean over all SMs.
        pub sm_active: Reading<Ratio>,
        /// Resident warps, as a share of the possible warps.
        pub sm_occupancy: Reading<Ratio>,
        /// Tensor pipes active.
        pub tensor_active: Reading<Ratio>,
        /// Device memory interface active.
        pub dram_active: Reading<Ratio>,
        /// FP64 pipe active.
        pub fp64_active: Reading<Ratio>,
        /// FP32 pipe active.
        pub fp32_active: Reading<Ratio>,
        /// FP16 pipe active.
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
}

/// The readings of one MIG instance. All values belong to its GPU instance, so the compute instances in it report the
/// same values.
#[derive(Clone, Debug, PartialEq)]
pub struct MigSample {
    /// The MIG instance.
    pub uuid: GpuUuid,
    /// Memory in use.
    pub memory_used: Reading<Bytes>,
    /// Free memory.
    pub memory_free: Reading<Bytes>,
    /// Memory reserved.
    pub memory_reserved: Reading<Bytes>,
    /// The profiling counters of the instance.
    pub gpm: GpmSample,
}

/// The source that reported an XID first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    /// An NVML event.
    Nvml,
    /// A line of the kernel log.
    KernelLog,
}

/// The severity that the driver states in the text of an error; NVML's events do not carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSeverity {
    /// The GPU has handled the error.
    Nonfatal,
    /// The GPU does not work until it is reset.
    Fatal,
}

impl XidSeverity {
    /// The word shown to people.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            XidSeverity::Nonfatal => "nonfatal",
            XidSeverity::Fatal => "fatal",
        }
    }
}

/// A driver error (XID). It is reported once, even when both NVML and the kernel log report it.
#[derive(Clone, Debug, PartialEq)]
pub struct Xid {
    /// The GPU, if it is known.
    pub gpu: Option<GpuUuid>,
    /// The MIG instance that the error hit, if there is one and it is known.
    pub mig: Option<GpuUuid>,
    /// PCI bus id, if the kernel log names it.
    pub pci_bus_id: Option<Arc<str>>,
    /// The number in NVIDIA's catalogue.
    pub code: u32,
    /// The severity that the kernel log states, if any.
    pub severity: Option<XidSeverity>,
    /// The PID that the kernel log names, if any.
    pub pid: Option<u32>,
    /// The pod of that process, looked up when the error is reported, because the process is often gone a moment later.
    pub pod: Option<PodUid>,
    /// When the agent received the error.
    pub at: Monotonic,
    /// The source that reported the error first.
    pub source: XidSource,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn each_reason_for_a_missing_gpu_has_its_own_remedy() {
        let missing = |on_bus, in_driver, bound_to: Option<&str>| MissingGpu {
            pci_bus_id: "0000:65:00.0".into(),
            on_bus,
            in_driver,
            bound_to: bound_to.map(Arc::from),
        };
        for (gpu, code, remedy) in [
            (missing(true, false, Some("nouveau")), "other_driver", "vfio-pci"),
            (missing(true, false, None), "not_initialised", "RmInitAdapter"),
            (missing(true, false, Some("nvidia")), "not_initialised", "RmInitAdapter"),
            (missing(true, true, Some("nvidia")), "not_in_nvml", "NVIDIA_VISIBLE_DEVICES"),
            (missing(false, true, None), "not_on_bus", "seating"),
        ] {
            assert_eq!(gpu.code(), code);
            assert!(gpu.advice().contains(remedy) && gpu.advice().ends_with('.'), "{code}");
            assert!(!gpu.reason().ends_with('.'), "{code}");
        }
        assert!(missing(true, false, Some("nouveau")).reason().ends_with("nouveau"));
    }

    /// A GPU whose readings are all known and all 0.
    pub(crate) fn gpu() -> Gpu {
        let at = Monotonic(1);
        Gpu {
            uuid: GpuUuid::parse("GPU-0").unwrap(),
            index: 0,
            minor: Reading::NOT_YET,
            model: "H100".into(),
            pci_bus_id: Reading::NOT_YET,
            numa_node: Reading::NOT_YET,
            architecture: Reading::NOT_YET,
            compute: Reading::NOT_YET,
            memory_total: Reading::Measured(Bytes(0), at),
            memory_kind: MemoryKind::Own,
            power_limit: Reading::Measured(Watts(0.0), at),
            mig_mode: Reading::NOT_YET,
            mig: Reading::NOT_YET,
            links: Vec::new(),
            nvlinks_active: Reading::Measured(0, at),
            board: Board::default(),
        }
    }
}
