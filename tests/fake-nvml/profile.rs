//! The GPU models. Sizes, limits and clocks come from the data sheets and from `nvidia-smi -q` on such GPUs.

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The properties of a GPU model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuModel {
    /// Short name used in scenarios.
    pub model: &'static str,
    /// Name that NVML reports.
    pub name: &'static str,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// `nvmlBrandType_t`.
    pub brand: u32,
    /// CUDA compute capability.
    pub capability: (i32, i32),
    /// PCI device and vendor number.
    pub pci_device: u32,
    /// The whole memory in bytes.
    pub memory_total: u64,
    /// The part of the memory that the driver reserves.
    pub memory_reserved: u64,
    /// Highest SM and memory clock, MHz.
    pub clocks: (u32, u32),
    /// Idle and highest power, watts.
    pub power: (u32, u32),
    /// Number of NVLinks, their version, and whether they end at a switch.
    pub nvlinks: (u32, u32, bool),
    /// Highest PCIe generation and lanes.
    pub pcie: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Largest number of MIG instances.
    pub mig_slices: u32,
    /// Milliseconds between two utilisation samples.
    pub sample_ms: u32,
    /// C functions that return `NOT_SUPPORTED`; a `*` at the end matches any ending.
    pub lacks: &'static [&'static str],
}

/// GPUs without NVLink.
const NO_NVLINK: (u32, u32, bool) = (0, 0, false);

/// Ampere and later GPUs remap rows of memory, and retire no pages.
const REMAPS_ROWS: &[&str] = &["nvmlDeviceGetRetiredPages*"];

/// Inference GPUs have neither MIG nor GPM ([`GpuModel::has_gpm`]).
const NO_MIG_NO_GPM: &[&str] = &["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetRetiredPages*"];

/// The GB10 shares the memory of the CPU: NVML reports neither its size nor that of BAR1, and the GPU is no NUMA node.
const GB10_LACKS: &[&str] = &[
    "nvmlDeviceGetMemoryInfo*",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages*",
    "nvmlDeviceGetPowerManagementLimit*",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPcieThroughput",
    "field:82",
];

/// A slice of a GPU in a virtual machine. The hypervisor keeps the functions of the whole GPU.
const VGPU_LACKS: &[&str] = &[
    "nvmlDeviceGetPower*",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperature*",
    "nvmlDeviceGetPcie*",
    "nvmlDeviceGetCurrPcie*",
    "nvmlDeviceGetMaxPcie*",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages*",
    "nvmlDeviceGetCurrentClocks*",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetPersistenceMode",
    "field:82",
    "field:94",
    "field:230",
];

/// A Hopper GPU with SXM. The other models are defined by their differences.
const H100: GpuModel = GpuModel {
    model: "H100",
    name: "NVIDIA H100 80GB HBM3",
    architecture: 9,
    brand: 14,
    capability: (9, 0),
    pci_device: 0x2330_10de,
    memory_total: 81_559 * MIB,
    memory_reserved: 551 * MIB,
    clocks: (1980, 2619),
    power: (70, 700),
    nvlinks: (18, 4, true),
    pcie: (5, 16),
    multiprocessors: 132,
    mig_slices: 7,
    sample_ms: 167,
    lacks: REMAPS_ROWS,
};

/// An Ampere GPU with SXM.
const A100: GpuModel = GpuModel {
    model: "A100",
    name: "NVIDIA A100-SXM4-80GB",
    architecture: 7,
    capability: (8, 0),
    pci_device: 0x20b2_10de,
    memory_total: 81_920 * MIB,
    memory_reserved: 769 * MIB,
    clocks: (1410, 1593),
    power: (56, 400),
    nvlinks: (12, 3, true),
    pcie: (4, 16),
    multiprocessors: 108,
    sample_ms: 1000,
    ..H100
};

/// An Ada GPU with PCIe.
const L40S: GpuModel = GpuModel {
    model: "L40S",
    name: "NVIDIA L40S",
    architecture: 8,
    capability: (8, 9),
    pci_device: 0x26b9_10de,
    memory_total: 46_068 * MIB,
    memory_reserved: 588 * MIB,
    clocks: (2520, 9001),
    power: (35, 350),
    nvlinks: NO_NVLINK,
    pcie: (4, 16),
    multiprocessors: 142,
    mig_slices: 0,
    lacks: NO_MIG_NO_GPM,
    ..H100
};

/// Every model that a scenario may name.
pub const PROFILES: [GpuModel; 13] = [
    H100,
    GpuModel {
        model: "H200",
        name: "NVIDIA H200",
        pci_device: 0x2335_10de,
        memory_total: 143_771 * MIB,
        memory_reserved: 615 * MIB,
        clocks: (1980, 3201),
        ..H100
    },
    A100,
    GpuModel {
        model: "A100-40",
        name: "NVIDIA A100-SXM4-40GB",
        pci_device: 0x20b0_10de,
        memory_total: 40_960 * MIB,
        memory_reserved: 433 * MIB,
        clocks: (1410, 1215),
        ..A100
    },
    L40S,
    GpuModel {
        model: "L4",
        name: "NVIDIA L4",
        pci_device: 0x27b8_10de,
        memory_total: 23_034 * MIB,
        memory_reserved: 522 * MIB,
        clocks: (2040, 6251),
        power: (16, 72),
        multiprocessors: 58,
        ..L40S
    },
    GpuModel {
        model: "T4",
        name: "Tesla T4",
        architecture: 6,
        brand: 2,
        capability: (7, 5),
        pci_device: 0x1eb8_10de,
        memory_total: 15_360 * MIB,
        memory_reserved: 437 * MIB,
        clocks: (1590, 5001),
        power: (9, 70),
        pcie: (3, 16),
        multiprocessors: 40,
        lacks: &["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetRemappedRows", "field:82"],
        ..L40S
    },
    GpuModel {
        model: "V100",
        name: "Tesla V100-SXM2-32GB",
        architecture: 5,
        brand: 2,
        capability: (7, 0),
        pci_device: 0x1db5_10de,
        memory_total: 32_768 * MIB,
        memory_reserved: 268 * MIB,
        clocks: (1530, 877),
        power: (42, 300),
        nvlinks: (6, 2, false),
        pcie: (3, 16),
        multiprocessors: 80,
        mig_slices: 0,
        lacks: &["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetRemappedRows"],
        ..H100
    },
    GpuModel {
        model: "A10",
        name: "NVIDIA A10",
        architecture: 7,
        capability: (8, 6),
        pci_device: 0x2236_10de,
        memory_total: 23_028 * MIB,
        memory_reserved: 298 * MIB,
        clocks: (1695, 6251),
        power: (20, 150),
        multiprocessors: 72,
        ..L40S
    },
    GpuModel {
        model: "B200",
        name: "NVIDIA B200",
        architecture: 10,
        capability: (10, 0),
        pci_device: 0x2901_10de,
        memory_total: 183_359 * MIB,
        memory_reserved: 721 * MIB,
        clocks: (1965, 3996),
        power: (140, 1000),
        nvlinks: (18, 5, true),
        multiprocessors: 148,
        ..H100
    },
    GpuModel {
        model: "RTXPRO6000",
        name: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        architecture: 10,
        capability: (12, 0),
        pci_device: 0x2bb4_10de,
        memory_total: 97_887 * MIB,
        memory_reserved: 638 * MIB,
        clocks: (2430, 14_001),
        power: (15, 300),
        nvlinks: NO_NVLINK,
        multiprocessors: 188,
        mig_slices: 4,
        ..H100
    },
    GpuModel {
        model: "GB10",
        name: "NVIDIA GB10",
        architecture: 10,
        capability: (12, 1),
        pci_device: 0x2e12_10de,
        memory_total: 128 * GIB,
        memory_reserved: 0,
        clocks: (3003, 8533),
        power: (4, 140),
        nvlinks: NO_NVLINK,
        multiprocessors: 48,
        mig_slices: 0,
        lacks: GB10_LACKS,
        ..H100
    },
    GpuModel {
        model: "vGPU",
        name: "GRID A100-20C",
        architecture: 7,
        brand: 9,
        capability: (8, 0),
        pci_device: 0x20b5_10de,
        memory_total: 20_480 * MIB,
        memory_reserved: 1_640 * MIB,
        clocks: (1410, 1215),
        power: (0, 0),
        nvlinks: NO_NVLINK,
        multiprocessors: 108,
        mig_slices: 0,
        lacks: VGPU_LACKS,
        ..H100
    },
];

impl GpuModel {
    /// The model with this short name.
    #[must_use]
    pub fn named(model: &str) -> Option<&'static GpuModel> {
        PROFILES.iter().find(|profile| profile.model.eq_ignore_ascii_case(model))
    }

    /// Whether the GPU returns `NOT_SUPPORTED` for this C function (or for `field:N`).
    #[must_use]
    pub fn refuses(&self, function: &str) -> bool {
        self.lacks.iter().any(|lacked| matches(lacked, function))
    }

    /// Whether the GPU has the profiling counters (GPM), as data centre GPUs of Hopper and later do.
    #[must_use]
    pub fn has_gpm(&self) -> bool {
        self.architecture >= 9 && self.mig_slices > 0
    }
}

/// Whether a pattern matches a name. A pattern is a name, `*`, or a prefix with `*` at its end.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}
