//! Tests of DCGM's names: over every MIG layout of a GPU, and compared with dcgm-exporter.

use super::*;
use crate::exposition::ExpositionFormat;
use crate::metrics::{MetricSet, ProcessFootprint, ServerCounts, render};
use crate::sample_view::{self, NOW};
use model::gpu::XidSource;
use model::id::GpuUuid;
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// MIG slices of a GPU, and so the most GPU instances and compute instances, for every model that the fake driver has.
const SLICES: u32 = 7;
/// Slices that a GPU instance or a compute instance may have.
const PROFILES: [u32; 5] = [7, 4, 3, 2, 1];

fn text(sets: &[MetricSet], view: &NodeView) -> String {
    let own = ServerCounts::default();
    let footprint =
        ProcessFootprint { started_seconds: Reading::Measured(1.5e9, NOW.monotonic), ..ProcessFootprint::default() };
    let mut out = Vec::new();
    render(sets, &MetricsInput { view, now: NOW, own: &own, footprint }, ExpositionFormat::OpenMetrics, &mut out);
    String::from_utf8(out).unwrap()
}

/// Every list of at least one profile, largest first, that fits into this many slices.
fn parts(slices: u32) -> Vec<Vec<u32>> {
    fn grow(list: &mut Vec<u32>, left: u32, all: &mut Vec<Vec<u32>>) {
        for profile in PROFILES {
            if profile <= left && list.last().is_none_or(|last| profile <= *last) {
                list.push(profile);
                all.push(list.clone());
                grow(list, left - profile, all);
                list.pop();
            }
        }
    }
    let mut all = Vec::new();
    grow(&mut Vec::new(), slices, &mut all);
    all
}

/// Every layout: the slices of each GPU instance with the slices of its compute instances.
fn layouts() -> Vec<Vec<(u32, Vec<u32>)>> {
    let mut all = Vec::new();
    for instances in parts(SLICES) {
        let mut some: Vec<Vec<(u32, Vec<u32>)>> = vec![Vec::new()];
        for slices in instances {
            let inside = parts(slices);
            some = some
                .iter()
                .flat_map(|layout| inside.iter().map(|list| [&layout[..], &[(slices, list.clone())]].concat()))
                .collect();
        }
        all.extend(some);
    }
    all
}

/// The small view with its third GPU divided by `layout`. The GPU instance with index n has n + 1 GiB in use, and each
/// of its compute instances reports that value.
fn divided(layout: &[(u32, Vec<u32>)]) -> NodeView {
    let mut view = sample_view::small();
    let (known, read) = (&view.gpus[2].gpu, &view.gpus[2].sample);
    let (instance, sample) = (known.instances()[0].clone(), read.mig[0].clone());
    let (mut instances, mut samples) = (Vec::new(), Vec::new());
    for (place, (slices, inside)) in (0..).zip(layout) {
        for (compute, part) in (0..).zip(inside) {
            let uuid = GpuUuid::parse(&format!("MIG-{place}-{compute}")).unwrap();
            let whole = format!("{slices}g.{}gb", slices * 10);
            instances.push(MigInstance {
                uuid: uuid.clone(),
                gpu_instance: place,
                compute_instance: compute,
                profile: if part == slices { whole } else { format!("{part}c.{whole}") }.into(),
                ..instance.clone()
            });
            let used = Reading::Measured(Bytes(u64::from(place + 1) << 30), NOW.monotonic);
            samples.push(MigSample { uuid, memory_used: used, ..sample.clone() });
        }
    }
    let mig = Reading::Measured(instances, NOW.monotonic);
    let known = model::gpu::Gpu { mig, ..(**known).clone() };
    let read = model::gpu::GpuSample { mig: samples, ..(**read).clone() };
    view.gpus[2].gpu = Arc::new(known);
    view.gpus[2].sample = Arc::new(read);
    view
}

/// Labels and value of each series of a family for the divided GPU.
fn series<'t>(text: &'t str, family: &str) -> Vec<(&'t str, f64)> {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{family}{{gpu=\"2\"")));
    lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(labels, value)| (labels, value.parse().unwrap())).collect()
}

#[test]
fn whatever_the_layout_no_series_stands_twice_and_sums_are_what_the_gpu_instances_have() {
    let all = layouts();
    assert!(all.contains(&vec![(2, vec![1, 1])]) && all.contains(&vec![(1, vec![1]); 7]), "{}", all.len());
    for layout in all {
        let text = text(&[MetricSet::Own, MetricSet::Dcgm, MetricSet::DcgmRenamed, MetricSet::Hami], &divided(&layout));
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, _) = line.rsplit_once(' ').unwrap();
            assert!(seen.insert(name), "{layout:?}: {name}");
        }
        let count = u32::try_from(layout.len()).unwrap();
        let gib = f64::from(count * (count + 1) / 2);
        for (family, unit) in [("DCGM_FI_DEV_FB_USED", 1024.0), ("gpu_steward_mig_memory_used_bytes", 1_073_741_824.0)]
        {
            let told = series(&text, family);
            assert_eq!(told.len(), layout.len(), "{layout:?}: {told:?}");
            assert!(
                (told.iter().map(|(_, value)| value).sum::<f64>() - gib * unit).abs() < 0.5,
                "{layout:?}: {told:?}"
            );
        }
        assert_eq!(series(&text, "DCGM_FI_PROF_SM_ACTIVE").len(), layout.len(), "{layout:?}");
        let inside: usize = layout.iter().map(|(_, inside)| inside.len()).sum();
        assert_eq!(series(&text, "gpu_steward_mig_info").len(), inside, "each compute instance says who it is");
    }
}

#[test]
fn two_compute_instances_are_one_entity_with_the_profile_of_their_gpu_instance() {
    let text = text(&[MetricSet::Dcgm], &divided(&[(2, vec![1, 1]), (3, vec![2])]));
    let told = series(&text, "DCGM_FI_DEV_FB_USED");
    for (labels, (profile, id)) in told.iter().map(|(labels, _)| labels).zip([("2g.20gb", 0), ("3g.30gb", 1)]) {
        assert!(labels.contains(&format!(",GPU_I_PROFILE=\"{profile}\",GPU_I_ID=\"{id}\",")), "{labels}");
    }
    assert_eq!(told.len(), 2);
}

#[test]
fn a_compute_instance_that_could_not_be_read_does_not_hide_what_another_tells() {
    let mut view = divided(&[(2, vec![1, 1])]);
    let mut read = (*view.gpus[2].sample).clone();
    read.mig[0].memory_used = Reading::Absent(model::Absence::NoPermission);
    view.gpus[2].sample = Arc::new(read);
    assert_eq!(series(&text(&[MetricSet::Dcgm], &view), "DCGM_FI_DEV_FB_USED")[0].1, 1024.0);
}

/// The types are from `default-counters.csv` of dcgm-exporter 4.5.3-4.8.2, including the fields commented out there.
#[test]
fn types_are_those_of_dcgm_exporter() {
    let counters = [
        "TOTAL_ENERGY_CONSUMPTION",
        "PCIE_REPLAY_COUNTER",
        "POWER_VIOLATION",
        "THERMAL_VIOLATION",
        "SYNC_BOOST_VIOLATION",
        "BOARD_LIMIT_VIOLATION",
        "LOW_UTIL_VIOLATION",
        "RELIABILITY_VIOLATION",
        "NVLINK_BANDWIDTH_TOTAL",
        "UNCORRECTABLE_REMAPPED_ROWS",
        "CORRECTABLE_REMAPPED_ROWS",
        "RETIRED_SBE",
        "RETIRED_DBE",
        "RETIRED_PENDING",
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    ];
    let families = CARD.iter().chain(upkeep::DCGM).map(|row| &row.family);
    let families = families.chain(MEMORY.iter().map(|row| &row.family)).chain(PROFILING.iter().map(|row| &row.family));
    let kinds: BTreeMap<&str, &str> =
        families.chain([&XID]).map(|family| (family.name, family.kind.word(ExpositionFormat::Classic))).collect();
    for (name, kind) in &kinds {
        let counter = counters.iter().any(|counter| name.strip_prefix("DCGM_FI_DEV_") == Some(counter));
        assert_eq!(*kind, if counter { "counter" } else { "gauge" }, "{name}");
    }
    let known: BTreeSet<&str> = RENAMED.iter().map(|(known, _)| *known).collect();
    assert!(known.iter().all(|name| kinds.contains_key(name)), "every renamed field is one that is served");
    assert_eq!(known.len(), RENAMED.len());
    assert!(RENAMED.iter().all(|(_, name)| !kinds.contains_key(name)));
}

#[test]
fn a_renamed_field_has_the_lines_of_the_known_one() {
    let view = sample_view::small();
    let (known, renamed) = (text(&[MetricSet::Dcgm], &view), text(&[MetricSet::DcgmRenamed], &view));
    let lines = |text: &str, name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{').map(str::to_owned));
        lines.collect()
    };
    for (old, new) in RENAMED {
        assert!(!lines(&renamed, new).is_empty(), "{new}");
        assert_eq!(lines(&renamed, new), lines(&known, old), "{new}");
    }
}

#[test]
fn an_xid_is_shown_with_its_number_and_text_and_no_xid_is_no_error() {
    let mut view = sample_view::small();
    let told = |view: &NodeView, gpu: u32| {
        let text = text(&[MetricSet::Dcgm], view);
        let begin = format!("DCGM_FI_DEV_XID_ERRORS{{gpu=\"{gpu}\"");
        text.lines().find(|line| line.starts_with(&begin)).map(str::to_owned)
    };
    assert!(told(&view, 0).unwrap().ends_with(",err_code=\"0\",err_msg=\"No Error\"} 0"));
    assert!(told(&view, 3).unwrap().ends_with(",err_code=\"79\",err_msg=\"GPU has fallen off the bus\"} 79"));
    let xid = model::gpu::Xid {
        gpu: None,
        mig: None,
        pci_bus_id: None,
        code: 999,
        pid: None,
        pod: None,
        at: Monotonic(1),
        source: XidSource::Nvml,
    };
    view.gpus[0].last_xid = Some(xid);
    assert!(told(&view, 0).unwrap().ends_with(",err_code=\"999\",err_msg=\"Unknown Error\"} 999"));
    view.gpus[3].last_xid = None;
    assert_eq!(told(&view, 3), None, "of a GPU that does not answer it is not known that there was none");
}

#[test]
fn labels_of_a_gpu_stay_when_its_source_fails() {
    let mut view = sample_view::small();
    let line = |view: &NodeView| {
        let text = text(&[MetricSet::Dcgm], view);
        let mut lines = text.lines().filter(|line| line.starts_with("DCGM_FI_DEV_XID_ERRORS{gpu=\"0\""));
        lines.next().map(str::to_owned)
    };
    let xid = model::gpu::Xid {
        gpu: Some(view.gpus[0].gpu.uuid.clone()),
        mig: None,
        pci_bus_id: None,
        code: 79,
        pid: None,
        pod: None,
        at: Monotonic(1),
        source: XidSource::Nvml,
    };
    view.gpus[0].last_xid = Some(xid);
    let before = line(&view).unwrap();
    assert!(
        before.contains("DCGM_FI_DRIVER_VERSION=\"570.86.15\",container=\"main\",namespace=\"ml\",pod=\"train-0\"")
    );
    let why = model::Absence::DriverNotLoaded;
    view.gpu_source = model::observation::GpuSourceState::Missing { why, advice: "load it".into() };
    view.gpus[0].sample = Arc::new(model::gpu::GpuSample::absent(why));
    view.gpus[0].processes = Reading::Absent(why);
    assert_eq!(line(&view), Some(before));
}

#[test]
fn nvlink_is_a_rate_as_dcgm_makes_it() {
    let text = text(&[MetricSet::Dcgm], &sample_view::small());
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{gpu=\"0\"")).unwrap();
    // 2.048·10⁹ bytes a second are 2,000,000 KiB a second.
    assert!(line.ends_with(" 2000"), "{line}");
}
