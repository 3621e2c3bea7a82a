//! MIG instances and the profiling counters.

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::scenario::{FakeGpu, FakeProcess, MigSlot, ReadingKind as Q};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};

fn divided() -> FakeGpu {
    let process = |pid, mig| FakeProcess {
        pid,
        memory: Some(1e9.into()),
        sm: 50.0.into(),
        mig: Some(mig),
        ..FakeProcess::default()
    };
    FakeGpu {
        mig: ["3g.40gb", "2g.20gb", "1g.10gb"].map(|profile| MigSlot::Profile(profile.into())).to_vec(),
        processes: vec![process(30, 0), process(31, 2)],
        ..fake_gpu("H100")
    }
}

#[test]
fn mig_instances_have_identity_memory_and_processes() {
    let bench = Bench::new(&still(vec![divided()], 0.0));
    let nvml = bench.load().unwrap();
    let parent = nvml.device_by_index(0).unwrap();
    assert_eq!((parent.mig_mode().unwrap().current, parent.mig_device_count().unwrap()), (1, 7));
    assert!(matches!(parent.mig_device_by_index(3), Err(NvmlError::NotFound)));
    for (index, slices, memory, pids) in [(0, 3, 39_424, vec![30]), (1, 2, 19_712, vec![]), (2, 1, 9_856, vec![31])] {
        let mig = parent.mig_device_by_index(index).unwrap();
        assert!(mig.mig_is_mig_device_handle().unwrap() && mig.uuid().unwrap().starts_with("MIG-"));
        let attributes = mig.attributes().unwrap();
        assert_eq!((attributes.gpu_instance_slice_count, attributes.memory_size_mb), (slices, memory));
        assert_eq!(mig.memory_info().unwrap().total, memory << 20);
        let here: Vec<u32> = mig.running_compute_processes().unwrap().iter().map(|process| process.pid).collect();
        assert_eq!(here, pids);
        assert_eq!(mig.mig_parent_device().unwrap().uuid().unwrap(), parent.uuid().unwrap());
        assert_eq!(nvml.device_by_uuid(mig.uuid().unwrap()).unwrap().uuid().unwrap(), mig.uuid().unwrap());
        assert!(matches!(mig.utilization_rates(), Err(NvmlError::NotSupported)));
    }
    let all = parent.running_compute_processes().unwrap();
    let instances: Vec<_> = all.iter().map(|process| (process.pid, process.gpu_instance_id)).collect();
    assert_eq!(instances, [(30, Some(1)), (31, Some(3))]);
}

#[test]
fn a_divided_gpu_has_no_utilisation_until_it_is_whole_again() {
    let bench = Bench::new(&still(vec![divided()], 0.0));
    let nvml = bench.load().unwrap();
    let parent = nvml.device_by_index(0).unwrap();
    assert!(matches!(parent.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(parent.process_utilization_stats(None), Err(NvmlError::NotSupported)));
    let instance = parent.mig_device_by_index(0).unwrap();
    bench.write(&still(vec![fake_gpu("H100")], 0.0));
    eventually("MIG is off", || parent.utilization_rates().is_ok());
    assert!(matches!(instance.uuid(), Err(NvmlError::NotFound)));
}

#[test]
fn gpus_without_mig_say_so() {
    let bench = Bench::new(&still(vec![fake_gpu("T4"), fake_gpu("H100")], 0.0));
    let nvml = bench.load().unwrap();
    assert!(matches!(nvml.device_by_index(0).unwrap().mig_mode(), Err(NvmlError::NotSupported)));
    assert_eq!(nvml.device_by_index(1).unwrap().mig_mode().unwrap().current, 0);
}

fn metrics(nvml: &Nvml, first: &GpmSample<'_>, second: &GpmSample<'_>, ids: &[GpmMetricId]) -> Vec<Option<f64>> {
    let results = gpm_metrics_get(nvml, first, second, ids).expect("two samples of one GPU");
    results.into_iter().map(|metric| metric.ok().map(|metric| metric.value)).collect()
}

#[test]
fn profiling_counters_are_means_between_two_samples() {
    let values = [(Q::GpmTensorPercent, 42.0.into()), (Q::PcieTxBytesPerSecond, (3.0 * 1_048_576.0).into())].into();
    let whole = FakeGpu { values, ..fake_gpu("H100") };
    let bench = Bench::new(&still(vec![whole.clone(), divided(), fake_gpu("A100")], 0.0));
    let nvml = bench.load().unwrap();
    let at = |index| nvml.device_by_index(index).unwrap();
    assert!(at(0).gpm_support().unwrap() && !at(2).gpm_support().unwrap());
    let (first, in_first) = (at(0).gpm_sample().unwrap(), at(1).gpm_mig_sample(1).unwrap());
    bench.write(&still(vec![whole, divided(), fake_gpu("A100")], 10.0));
    let (second, in_second) = (at(0).gpm_sample().unwrap(), at(1).gpm_mig_sample(1).unwrap());
    let ids = [GpmMetricId::AnyTensorUtil, GpmMetricId::PcieTxPerSec];
    assert_eq!(metrics(&nvml, &first, &second, &ids), [Some(42.0), Some(3.0)]);
    let ids = [GpmMetricId::SmUtil, GpmMetricId::PcieTxPerSec];
    assert_eq!(metrics(&nvml, &in_first, &in_second, &ids), [Some(50.0), None]);
    assert!(matches!(at(2).gpm_sample(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpm_metrics_get(&nvml, &first, &in_second, &ids), Err(NvmlError::InvalidArg)));
}
