//! Data of GPU models, from their data sheets.

use model::gpu::ComputeCapability;
use model::unit::Bytes;

/// The data that all GPUs of a model share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    /// The short name.
    pub(super) model: &'static str,
    /// The name that NVML returns.
    pub(super) name: &'static str,
    /// Architecture.
    pub(super) architecture: &'static str,
    /// Total memory; `None` if NVML does not report it.
    pub(super) memory: Option<Bytes>,
    /// Clocks of SMs and memory, in MHz.
    pub(super) clocks: (u32, u32),
    /// Idle and highest power in watts; `None` if NVML does not report it.
    pub(super) power: Option<(f64, f64)>,
    /// The number of NVLinks.
    pub(super) nvlinks: u32,
    /// Whether the model supports MIG.
    pub(super) mig: bool,
    /// Whether the model has GPM.
    pub(super) gpm: bool,
}

const fn mib(number: u64) -> Option<Bytes> {
    Some(Bytes(number * Bytes::MIB))
}

const H100: Product = Product {
    model: "H100",
    name: "NVIDIA H100 80GB HBM3",
    architecture: "Hopper",
    memory: mib(81_559),
    clocks: (1980, 2619),
    power: Some((70.0, 700.0)),
    nvlinks: 18,
    mig: true,
    gpm: true,
};

const A100: Product = Product {
    model: "A100",
    name: "NVIDIA A100-SXM4-80GB",
    architecture: "Ampere",
    memory: mib(81_920),
    clocks: (1410, 1593),
    power: Some((56.0, 400.0)),
    nvlinks: 12,
    mig: true,
    gpm: false,
};

const L40S: Product = Product {
    model: "L40S",
    name: "NVIDIA L40S",
    architecture: "Ada",
    memory: mib(46_068),
    clocks: (2520, 9001),
    power: Some((35.0, 350.0)),
    nvlinks: 0,
    mig: false,
    gpm: false,
};

/// All models that can be simulated.
pub(super) const PRODUCTS: [Product; 12] = [
    H100,
    Product { model: "H200", name: "NVIDIA H200", memory: mib(143_771), clocks: (1980, 3201), ..H100 },
    A100,
    Product { model: "A100-40", name: "NVIDIA A100-SXM4-40GB", memory: mib(40_960), clocks: (1410, 1215), ..A100 },
    L40S,
    Product {
        model: "L4",
        name: "NVIDIA L4",
        memory: mib(23_034),
        clocks: (2040, 6251),
        power: Some((16.0, 72.0)),
        ..L40S
    },
    Product {
        model: "T4",
        name: "Tesla T4",
        architecture: "Turing",
        memory: mib(15_360),
        clocks: (1590, 5001),
        power: Some((9.0, 70.0)),
        ..L40S
    },
    Product {
        model: "V100",
        name: "Tesla V100-SXM2-32GB",
        architecture: "Volta",
        memory: mib(32_768),
        clocks: (1530, 877),
        power: Some((42.0, 300.0)),
        nvlinks: 6,
        ..L40S
    },
    Product {
        model: "A10",
        name: "NVIDIA A10",
        architecture: "Ampere",
        memory: mib(23_028),
        clocks: (1695, 6251),
        power: Some((20.0, 150.0)),
        ..L40S
    },
    Product {
        model: "B200",
        name: "NVIDIA B200",
        architecture: "Blackwell",
        memory: mib(183_359),
        clocks: (1965, 3996),
        power: Some((140.0, 1000.0)),
        ..H100
    },
    Product {
        model: "GB10",
        name: "NVIDIA GB10",
        architecture: "Blackwell",
        memory: None,
        clocks: (3003, 8533),
        power: Some((4.0, 140.0)),
        ..L40S
    },
    Product {
        model: "vGPU",
        name: "GRID A100-20C",
        architecture: "Ampere",
        memory: mib(20_480),
        clocks: (1410, 1215),
        power: None,
        ..L40S
    },
];

impl Product {
    /// CUDA compute capability.
    pub(super) fn compute(&self) -> ComputeCapability {
        let (major, minor) = match (self.architecture, self.model) {
            ("Volta", _) => (7, 0),
            ("Turing", _) => (7, 5),
            ("Ampere", "A10") => (8, 6),
            ("Ampere", _) => (8, 0),
            ("Ada", _) => (8, 9),
            ("Blackwell", "GB10") => (12, 1),
            ("Blackwell", _) => (10, 0),
            _ => (9, 0),
        };
        ComputeCapability { major, minor }
    }

    /// The model with this short name, in upper or lower case.
    pub(super) fn named(model: &str) -> Option<&'static Product> {
        PRODUCTS.iter().find(|product| product.model.eq_ignore_ascii_case(model))
    }
}
