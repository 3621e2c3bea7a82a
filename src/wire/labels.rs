//! The labels of a node about its GPUs, with the names of GPU feature discovery (GFD), by which users select nodes.
//!
//! ```text
//!   nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3   gpu.count: "8"   gpu.memory: "81559"   gpu.family: hopper
//!   nvidia.com/gpu.compute.major: "9"   gpu.replicas: "10"   cuda.driver-version.full: 550.127.08
//!   nvidia.com/mig.capable: "true"
//! ```
//!
//! On a node with several GPU models the labels describe the first, as with GFD. A value that NVML does not report has
//! no label. One difference from GFD: the product never ends in `-SHARED`, because the agent shares every GPU, and a
//! device share is not a time slice.

use crate::annotation_keys;
use model::gpu::Gpu;
use model::observation::GpuSourceState;
use model::unit::Bytes;
use model::view::NodeView;
use std::collections::BTreeMap;

/// Labels by key.
pub type NodeLabels = BTreeMap<&'static str, String>;

/// Kubernetes' limit for the value of a label, in bytes.
const MAX_VALUE: usize = 63;

/// The labels of a node with `replicas` slots for each GPU, about the GPUs that are offered to pods. `None` while the GPUs of
/// the node are not known.
#[must_use]
pub fn of(view: &NodeView, replicas: u32, offered: impl Fn(&Gpu) -> bool) -> Option<NodeLabels> {
    let GpuSourceState::Working { driver, cuda, .. } = &view.gpu_source else { return None };
    let mut labels = NodeLabels::new();
    let gpus: Vec<&Gpu> = view.gpus.iter().map(|gpu| &*gpu.gpu).filter(|gpu| offered(gpu)).collect();
    let Some(first) = gpus.first().copied() else { return Some(labels) };
    let mut set = |key, value: Option<String>| {
        if let Some(value) = value.map(|value| fit(&value)).filter(|value| !value.is_empty()) {
            labels.insert(key, value);
        }
    };
    set(annotation_keys::LABEL_PRESENT, Some("true".into()));
    set(annotation_keys::LABEL_COUNT, Some(gpus.len().to_string()));
    set(annotation_keys::LABEL_PRODUCT, Some(product(first, &gpus)));
    set(annotation_keys::LABEL_MEMORY, first.memory_total.get().map(|total| (total.0 / Bytes::MIB).to_string()));
    set(annotation_keys::LABEL_REPLICAS, Some(replicas.to_string()));
    let strategy = if replicas > 1 { "time-slicing" } else { "none" };
    set(annotation_keys::LABEL_SHARING, Some(strategy.into()));
    if let Some(compute) = first.compute.get() {
        set(annotation_keys::LABEL_COMPUTE_MAJOR, Some(compute.major.to_string()));
        set(annotation_keys::LABEL_COMPUTE_MINOR, Some(compute.minor.to_string()));
        set(annotation_keys::LABEL_FAMILY, family(compute.major, compute.minor).map(str::to_owned));
    }
    let capable = gpus.iter().any(|gpu| gpu.mig_mode.value().is_some());
    set(annotation_keys::LABEL_MIG_CAPABLE, Some(capable.to_string()));
    set(annotation_keys::LABEL_MIG_STRATEGY, mig_strategy(&gpus).map(str::to_owned));
    versions(driver, cuda.as_deref(), &mut set);
    Some(labels)
}

fn versions(driver: &str, cuda: Option<&str>, set: &mut impl FnMut(&'static str, Option<String>)) {
    let part = |text: &str, place: usize| text.split('.').nth(place).map(str::to_owned);
    set(annotation_keys::LABEL_DRIVER, Some(driver.to_owned()));
    for (place, keys) in annotation_keys::LABELS_DRIVER.iter().enumerate() {
        keys.iter().for_each(|key| set(key, part(driver, place)));
    }
    set(annotation_keys::LABEL_RUNTIME, cuda.map(str::to_owned));
    for (place, keys) in annotation_keys::LABELS_RUNTIME.iter().enumerate() {
        keys.iter().for_each(|key| set(key, cuda.and_then(|cuda| part(cuda, place))));
    }
}

/// The product name. If all GPUs are divided into the same MIG profile, the profile is appended, as in GFD's strategy
/// `single`; like GFD, with a point for the `+` that a label cannot have.
fn product(first: &Gpu, all: &[&Gpu]) -> String {
    let words = |name: &str| name.split_whitespace().collect::<Vec<_>>().join("-");
    match single_profile(all) {
        Some(profile) => format!("{}-MIG-{}", words(&first.model), profile.replace('+', ".")),
        None => words(&first.model),
    }
}

/// The MIG profile, if every GPU is in MIG mode and all instances have the same profile.
fn single_profile<'a>(gpus: &[&'a Gpu]) -> Option<&'a str> {
    let mut instances = gpus.iter().flat_map(|gpu| gpu.instances());
    let profile = &*instances.next()?.profile;
    let all = gpus.iter().all(|gpu| gpu.mig_mode.get() == Some(true)) && instances.all(|one| &*one.profile == profile);
    all.then_some(profile)
}

/// The MIG strategy; `None` if no GPU is in MIG mode.
fn mig_strategy(gpus: &[&Gpu]) -> Option<&'static str> {
    gpus.iter()
        .any(|gpu| gpu.mig_mode.get() == Some(true))
        .then(|| if single_profile(gpus).is_some() { "single" } else { "mixed" })
}

/// NVIDIA's architecture name for a compute capability.
fn family(major: u32, minor: u32) -> Option<&'static str> {
    Some(match (major, minor) {
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..=4) => "volta",
        (7, _) => "turing",
        (8, 9) => "ada-lovelace",
        (8, _) => "ampere",
        (9, _) => "hopper",
        (10..=12, _) => "blackwell",
        _ => return None,
    })
}

/// The value as Kubernetes accepts it: letters, digits, `-`, `_`, `.`, with a letter or digit at both ends. A value that is
/// too long loses its middle, because products differ at both ends: maker and model, size and MIG profile. A checksum in
/// place of the middle keeps values apart that differ only there.
fn fit(text: &str) -> String {
    let plain: String = text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
    let plain = plain.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if plain.len() <= MAX_VALUE {
        return plain.to_owned();
    }
    let mark = format!("-{:04x}-", checksum(plain));
    let kept = MAX_VALUE - mark.len();
    let (front, back) = plain.split_at(kept.div_ceil(2));
    // Only ASCII is left, so each byte is a character.
    format!("{front}{mark}{}", back.get(back.len() - kept / 2..).unwrap_or_default())
}

/// The 16 bits of FNV-1a, folded. It must never change: nodes would get other labels.
fn checksum(text: &str) -> u16 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let [a, b, c, d] = text.bytes().fold(0x811c_9dc5, step).to_be_bytes();
    u16::from_be_bytes([a ^ c, b ^ d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu::{ComputeCapability, MigInstance};
    use model::id::{GpuUuid, NodeName};
    use model::incident::GpuCondition;
    use model::reading::{Absence, Reading};
    use model::time::{Monotonic, Now};
    use model::view::{GpuHealth, GpuView, SoleHolders};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn m<T>(value: T) -> Reading<T> {
        Reading::Measured(value, Monotonic(1))
    }

    fn gpu(index: u32, profiles: &[&str]) -> Gpu {
        let uuid = |kind: &str, n: usize| GpuUuid::parse(&format!("{kind}-{index}-{n}")).unwrap();
        let instance = |(n, profile): (usize, &&str)| MigInstance {
            uuid: uuid("MIG", n),
            index: 0,
            gpu_instance: 1,
            compute_instance: 0,
            profile: (*profile).into(),
            memory_total: m(Bytes(10 << 30)),
        };
        Gpu {
            uuid: uuid("GPU", 0),
            index,
            minor: m(index),
            model: "NVIDIA H100 80GB HBM3".into(),
            pci_bus_id: Reading::NOT_YET,
            numa_node: Reading::NOT_YET,
            architecture: m("Hopper".into()),
            compute: m(ComputeCapability { major: 9, minor: 0 }),
            memory_total: m(Bytes(81_559 << 20)),
            memory_kind: model::gpu::MemoryKind::Own,
            power_limit: Reading::NOT_YET,
            mig_mode: m(!profiles.is_empty()),
            mig: m(profiles.iter().enumerate().map(instance).collect()),
            links: Vec::new(),
            nvlinks_active: Reading::NOT_YET,
            board: model::hardware::Board::default(),
        }
    }

    fn view(gpus: Vec<Gpu>) -> NodeView {
        let shown = |gpu: Gpu| GpuView {
            gpu: Arc::new(gpu),
            sample: Arc::default(),
            health: GpuHealth::Healthy,
            condition: GpuCondition::default(),
            processes: Reading::NOT_YET,
            processes_left_out: 0,
            holders: Vec::new(),
            sole_holders: SoleHolders::default(),
            nvlink_rate: Reading::NOT_YET,
            strangers: 0,
            memory_used_now: Reading::NOT_YET,
            listed_memory: Reading::NOT_YET,
            unattributed_memory: Reading::NOT_YET,
            unattributed_sm: Reading::NOT_YET,
            last_xid: None,
            xids: Vec::new(),
            xid_count: 0,
            implausible: Vec::new(),
        };
        NodeView {
            gpus: gpus.into_iter().map(shown).collect(),
            gpu_source: GpuSourceState::Working {
                driver: "550.127.08".into(),
                nvml: "12".into(),
                cuda: Some("12.4".into()),
                simulated: false,
            },
            ..NodeView::empty(NodeName::parse("n").unwrap(), Now::default())
        }
    }

    #[test]
    fn a_node_has_the_labels_of_gpu_feature_discovery() {
        let labels = of(&view(vec![gpu(0, &[]), gpu(1, &[])]), 10, |_| true).unwrap();
        let shown_labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            shown_labels,
            [
                "nvidia.com/cuda.driver-version.full=550.127.08",
                "nvidia.com/cuda.driver-version.major=550",
                "nvidia.com/cuda.driver-version.minor=127",
                "nvidia.com/cuda.driver-version.revision=08",
                "nvidia.com/cuda.driver.major=550",
                "nvidia.com/cuda.driver.minor=127",
                "nvidia.com/cuda.driver.rev=08",
                "nvidia.com/cuda.runtime-version.full=12.4",
                "nvidia.com/cuda.runtime-version.major=12",
                "nvidia.com/cuda.runtime-version.minor=4",
                "nvidia.com/cuda.runtime.major=12",
                "nvidia.com/cuda.runtime.minor=4",
                "nvidia.com/gpu.compute.major=9",
                "nvidia.com/gpu.compute.minor=0",
                "nvidia.com/gpu.count=2",
                "nvidia.com/gpu.family=hopper",
                "nvidia.com/gpu.memory=81559",
                "nvidia.com/gpu.present=true",
                "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.replicas=10",
                "nvidia.com/gpu.sharing-strategy=time-slicing",
                "nvidia.com/mig.capable=true",
            ]
        );
    }

    #[test]
    fn divided_gpus_are_labelled_by_their_profile_if_all_have_the_same() {
        let alike = of(&view(vec![gpu(0, &["1g.10gb", "1g.10gb"])]), 1, |_| true).unwrap();
        assert_eq!(alike[annotation_keys::LABEL_PRODUCT], "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
        assert_eq!(
            (&*alike[annotation_keys::LABEL_MIG_STRATEGY], &*alike[annotation_keys::LABEL_SHARING]),
            ("single", "none")
        );
        for mixed in [vec![gpu(0, &["1g.10gb", "2g.20gb"])], vec![gpu(0, &["1g.10gb"]), gpu(1, &[])]] {
            let labels = of(&view(mixed), 1, |_| true).unwrap();
            assert_eq!(labels[annotation_keys::LABEL_MIG_STRATEGY], "mixed");
            assert_eq!(labels[annotation_keys::LABEL_PRODUCT], "NVIDIA-H100-80GB-HBM3");
        }
    }

    #[test]
    fn a_long_product_keeps_its_mig_profile_and_different_products_stay_different() {
        let long = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition";
        let product = |model: &str, profile: &str| {
            let mut one = gpu(0, &[profile]);
            one.model = model.into();
            of(&view(vec![one]), 1, |_| true).unwrap()[annotation_keys::LABEL_PRODUCT].clone()
        };
        let profiles = ["1g.24gb", "1g.12gb", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me", "1g.24gb+me"];
        let products: Vec<String> = profiles.iter().map(|profile| product(long, profile)).collect();
        for (product, profile) in products.iter().zip(profiles) {
            let end = format!("-MIG-{}", profile.replace('+', "."));
            assert!(product.len() <= MAX_VALUE && product.ends_with(&end), "{product}");
            assert!(product.starts_with("NVIDIA-RTX-PRO-6000-Blackwell"), "{product}");
        }
        let different: std::collections::BTreeSet<&String> = products.iter().collect();
        assert_eq!(different.len(), profiles.len(), "{products:?}");
        let other = long.replace("Max-Q", "Max-P");
        assert_ne!(product(long, "1g.24gb"), product(&other, "1g.24gb"), "they differ only in the middle");
        assert_eq!(product("NVIDIA A100-SXM4-40GB", "1g.5gb+me"), "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me");
        assert_eq!(products[0], "NVIDIA-RTX-PRO-6000-Blackwell-be8b-kstation-Edition-MIG-1g.24gb");
    }

    #[test]
    fn no_label_promises_a_gpu_that_is_not_offered() {
        let mut other = gpu(0, &[]);
        other.model = "GB10".into();
        let node = view(vec![other, gpu(1, &[])]);
        let labels = of(&node, 1, |gpu| gpu.index == 1).unwrap();
        assert_eq!(labels[annotation_keys::LABEL_COUNT], "1");
        assert_eq!(labels[annotation_keys::LABEL_PRODUCT], "NVIDIA-H100-80GB-HBM3");
        assert_eq!(of(&node, 1, |_| false), Some(NodeLabels::new()), "no GPU is offered");
    }

    #[test]
    fn unknown_values_have_no_label() {
        let mut bare = gpu(0, &[]);
        bare.memory_total = Reading::Absent(Absence::NotSupported);
        bare.compute = Reading::Absent(Absence::NotSupported);
        bare.model = "H100 (simulated)".into();
        let labels = of(&view(vec![bare]), 1, |_| true).unwrap();
        assert!(
            !labels.contains_key(annotation_keys::LABEL_MEMORY) && !labels.contains_key(annotation_keys::LABEL_FAMILY)
        );
        assert_eq!(labels[annotation_keys::LABEL_PRODUCT], "H100-simulated");
        assert_eq!(of(&view(Vec::new()), 1, |_| true), Some(NodeLabels::new()), "no GPU");
        let starting = NodeView::empty(NodeName::parse("n").unwrap(), Now::default());
        assert_eq!(of(&starting, 1, |_| true), None);
        assert_eq!((family(8, 9), family(10, 3), family(4, 0)), (Some("ada-lovelace"), Some("blackwell"), None));
    }

    proptest! {
        #[test]
        fn values_of_any_length_keep_both_ends(text in "[A-Za-z0-9]([A-Za-z0-9._-]{0,120}[A-Za-z0-9])?") {
            let value = fit(&text);
            prop_assert!(value.len() <= MAX_VALUE);
            prop_assert_eq!(value == text, text.len() <= MAX_VALUE);
            let end = text.len().min(20);
            prop_assert!(value.starts_with(&text[..end]) && value.ends_with(&text[text.len() - end..]));
        }

        #[test]
        fn every_value_is_one_that_kubernetes_accepts(model in ".{0,100}", driver in ".{0,80}") {
            let mut one = gpu(0, &[]);
            one.model = model.into();
            let mut view = view(vec![one]);
            view.gpu_source = GpuSourceState::Working {
                driver: driver.into(), nvml: "".into(), cuda: None, simulated: false,
            };
            for (key, value) in of(&view, 3, |_| true).unwrap() {
                let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
                prop_assert!(value.len() <= MAX_VALUE && end(value.chars().next()) && end(value.chars().last()), "{}", key);
            }
        }
    }
}
