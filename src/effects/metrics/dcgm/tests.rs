//! Tests of DCGM's names: over every MIG layout of a GPU, and compared with dcgm-exporter.

use super::*;
use crate::metrics::{MetricSet, ProcessFootprint, ServerCounts, render};
use crate::sample_view::{self, NOW};
use model::gpu::XidSource;
use model::id::GpuUuid;
use model::time::Monotonic;
use serve::exposition::ExpositionFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// MIG slices of a GPU, and so the maximum of GPU instances and of compute instances, for every model of the fake
/// driver.
const SLICES: u32 = 7;
/// Slices that a GPU instance or a compute instance may have.
const PROFILES: [u32; 5] = [7, 4, 3, 2, 1];

fn text(sets: &[MetricSet], view: &NodeView) -> String {
    let own = ServerCounts::default();
    let footprint =
        ProcessFootprint { started_seconds: Reading::Measured(1.5e9, NOW.monotonic), ..ProcessFootprint::default() };
    let mut out = Vec::new();
    let input = MetricsInput { view, profiles: None, now: NOW, own: &own, footprint };
    render(sets, &input, ExpositionFormat::OpenMetrics, &mut out);
    String::from_utf8(out).unwrap()
}

/// Every list of at least one profile, largest first, that fits into this number of slices.
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

/// Every layout: the slices of each GPU instance, and the slices of its compute instances.
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
fn in_every_mig_layout_series_are_unique_and_sum_up_to_the_gpu_instances() {
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
            let values = series(&text, family);
            assert_eq!(values.len(), layout.len(), "{layout:?}: {values:?}");
            assert!(
                (values.iter().map(|(_, value)| value).sum::<f64>() - gib * unit).abs() < 0.5,
                "{layout:?}: {values:?}"
            );
        }
        assert_eq!(series(&text, "DCGM_FI_PROF_SM_ACTIVE").len(), layout.len(), "{layout:?}");
        let inside: usize = layout.iter().map(|(_, inside)| inside.len()).sum();
        assert_eq!(series(&text, "gpu_steward_mig_info").len(), inside, "each compute instance has an info series");
    }
}

#[test]
fn compute_instances_of_one_gpu_instance_are_one_series_with_its_profile() {
    let text = text(&[MetricSet::Dcgm], &divided(&[(2, vec![1, 1]), (3, vec![2])]));
    let values = series(&text, "DCGM_FI_DEV_FB_USED");
    for (labels, (profile, id)) in values.iter().map(|(labels, _)| labels).zip([("2g.20gb", 0), ("3g.30gb", 1)]) {
        assert!(labels.contains(&format!(",GPU_I_PROFILE=\"{profile}\",GPU_I_ID=\"{id}\",")), "{labels}");
    }
    assert_eq!(values.len(), 2);
}

#[test]
fn an_unreadable_compute_instance_does_not_hide_the_value_of_another() {
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
    let families = GPU.iter().chain(hardware::DCGM).map(|row| &row.family);
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
fn a_renamed_field_has_the_series_of_the_known_field() {
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
fn the_last_xid_is_shown_with_its_number_and_text() {
    let mut view = sample_view::small();
    let values = |view: &NodeView, gpu: u32| {
        let text = text(&[MetricSet::Dcgm], view);
        let begin = format!("DCGM_FI_DEV_XID_ERRORS{{gpu=\"{gpu}\"");
        text.lines().find(|line| line.starts_with(&begin)).map(str::to_owned)
    };
    assert!(values(&view, 0).unwrap().ends_with(",err_code=\"0\",err_msg=\"No Error\"} 0"));
    assert!(values(&view, 3).unwrap().ends_with(",err_code=\"79\",err_msg=\"GPU has fallen off the bus\"} 79"));
    let xid = model::gpu::Xid {
        gpu: None,
        mig: None,
        pci_bus_id: None,
        code: 999,
        severity: None,
        pid: None,
        pod: None,
        at: Monotonic(1),
        source: XidSource::Nvml,
    };
    view.gpus[0].last_xid = Some(xid);
    assert!(values(&view, 0).unwrap().ends_with(",err_code=\"999\",err_msg=\"Unknown Error\"} 999"));
    view.gpus[3].last_xid = None;
    assert_eq!(values(&view, 3), None, "no series for a GPU that does not answer");
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
        severity: None,
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
fn nvlink_traffic_is_a_rate_as_in_dcgm() {
    let text = text(&[MetricSet::Dcgm], &sample_view::small());
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{gpu=\"0\"")).unwrap();
    // 2.048·10⁹ bytes a second are 2,000,000 KiB a second.
    assert!(line.ends_with(" 2000"), "{line}");
}
