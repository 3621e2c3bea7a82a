//! Tests of every reading, and of when it is absent.

use super::{FakeGpu, Harness, ReadingKind, Scenario, Value, error, fake_gpus, of, with};
use crate::nvml::read::driven;
use lab::scenario::{FakeProcess, MigDetail, MigSlot, Program, process};
use model::gpu::GPU_READINGS;
use model::physical_range::PhysicalRange;
use model::sample_value::SampleValue;
use model::unit::{Bytes, Percent, Ratio, Watts};
use model::{Absence, Reading};

/// Whether two values are equal, up to the rounding of rates and shares.
fn equal(measured: SampleValue, expected: SampleValue) -> bool {
    match (measured, expected) {
        (SampleValue::Real(measured), SampleValue::Real(expected)) => (measured / expected - 1.0).abs() < 0.001,
        _ => measured == expected,
    }
}

#[test]
fn every_reading_has_the_value_from_the_library() {
    let rows = driven::rows();
    let driven: Vec<_> = rows.iter().map(|row| row.name).collect();
    let shown: Vec<_> = GPU_READINGS.iter().map(|(name, _)| (name.metric, name.label)).collect();
    assert_eq!(driven, shown, "each reading that is shown is tested");
    let numbers: Vec<_> = rows.iter().flat_map(|row| row.numbers).copied().collect();
    let mut harness = Harness::start(of(vec![with(fake_gpus("H100", 1), &numbers)]));
    let sample = harness.sample(0, "a sample with counters between two", |sample| {
        sample.utilization.get().is_some() && sample.pcie_rx.get().is_some() && sample.gpm.sm_active.get().is_some()
    });
    let gpu = harness.until("the GPU with its links", |seen| {
        seen.gpus.clone()?.pop().filter(|gpu| gpu.nvlinks_active.get().is_some())
    });
    for (row, (name, read)) in rows.iter().zip(GPU_READINGS) {
        let measured = read(&gpu, &sample);
        let fits = measured.get().is_some_and(|measured| equal(measured, row.value));
        assert!(fits, "{} {}: {measured:?}, expected {:?}", name.metric, name.label, row.value);
    }
}

/// Promise 4 in docs/specification.md.
#[test]
fn every_reading_with_an_impossible_number_is_absent_and_counted() {
    // Utilisations of hundreds of millions of percent, and all bits set in a number of 32 or 64 bits.
    let rows = driven::rows();
    let ranges: Vec<&str> = PhysicalRange::EVERY.iter().map(|range| range.reading).collect();
    let numbers: Vec<_> = rows.iter().flat_map(|row| row.numbers).map(|(kind, _)| (*kind, 1e19)).collect();
    let process = FakeProcess { memory: Some(Value::Constant(1e19)), ..process(7, 1, 808_334_905.0) };
    let gpu = FakeGpu { processes: vec![process], ..with(fake_gpus("H100", 1), &numbers) };
    let sane = with(fake_gpus("H100", 1), &[(ReadingKind::GpmSmPercent, -5.0), (ReadingKind::PowerWatts, 300.0)]);
    let mut harness = Harness::start(of(vec![gpu, sane]));
    let sample = harness.sample(0, "two samples of the profiling unit", |sample| {
        sample.gpm.sm_active.absence() == Some(Absence::Implausible)
            && sample.ecc_volatile.corrected.absence() != Some(Absence::NotYet)
    });
    let gpu = harness.until("the GPU", |seen| seen.gpus.clone()?.into_iter().next());
    for (name, read) in GPU_READINGS.iter().filter(|(name, _)| ranges.contains(&name.metric)) {
        assert_eq!(read(&gpu, &sample).absence(), Some(Absence::Implausible), "{} {}", name.metric, name.label);
    }
    harness.sample(0, "each impossible sample is counted", |sample| {
        sample.implausible.contains(&("power_watts", 1)) && sample.implausible.contains(&("temperature_celsius", 1))
    });
    let uuid = harness.uuid(0);
    let process = harness.until("the process", |seen| seen.processes.get(&uuid)?.list.value()?.first().cloned());
    assert_eq!(process.memory_used.absence(), Some(Absence::Implausible));
    harness.wait("its use", |seen| {
        let list = seen.processes.get(&uuid).and_then(|processes| processes.list.value());
        list.and_then(|list| list.first()).is_some_and(|one| one.sm.absence() == Some(Absence::Implausible))
    });
    let neighbour =
        harness.sample(1, "a negative share", |sample| sample.gpm.sm_active.absence() == Some(Absence::Implausible));
    assert_eq!((neighbour.power.get(), neighbour.gpm.tensor_active.get()), (Some(Watts(300.0)), Some(Ratio(0.0))));
}

#[test]
fn a_single_impossible_sample_is_no_part_of_a_mean() {
    let mut harness = Harness::start(of(vec![with(fake_gpus("H100", 1), &[(ReadingKind::UtilizationPercent, 40.0)])]));
    harness.sample(0, "a mean", |sample| sample.utilization.get() == Some(Percent(40.0)));
    let spike = |low: f64, high: f64| Program::Square { low, high, period_s: 1.0, duty: 0.3, phase_s: 0.0 };
    harness.change(|scenario| {
        scenario.gpus[0].values.insert(ReadingKind::UtilizationPercent, Value::Program(spike(40.0, 1980.0)));
    });
    let mut counted = 0;
    harness.wait("three impossible samples", |seen| {
        for sample in seen.samples.values() {
            let percent = sample.utilization.get();
            assert!(percent.is_none_or(|percent| (percent.0 - 40.0).abs() < 1e-9), "{percent:?}");
            counted += sample.implausible.iter().filter(|(reading, _)| *reading == "utilization_ratio").count();
        }
        counted >= 3
    });
}

#[test]
fn compute_instances_report_the_memory_and_the_number_of_their_gpu_instance() {
    let slot = |gpu_instance, compute_instance| {
        let profile = "1c.2g.20gb".to_owned();
        MigSlot::Detailed(MigDetail { profile, gpu_instance: Some(gpu_instance), compute_instance, uuid: None })
    };
    let inside = |pid, memory, mig| FakeProcess { mig: Some(mig), ..process(pid, memory, 10.0) };
    let divided = FakeGpu {
        mig: vec![slot(3, 0), slot(5, 0), slot(3, 1)],
        processes: vec![inside(30, 1 << 30, 0), inside(31, 2 << 30, 2)],
        ..fake_gpus("H100", 1)
    };
    let mut harness = Harness::start(of(vec![divided]));
    let sample = harness.sample(0, "all instances", |sample| sample.mig.len() == 3);
    let gpu = harness.until("the list", |seen| seen.gpus.clone()?.pop());
    let known: Vec<Vec<(u32, u32, &str)>> = gpu
        .gpu_instances()
        .map(|inside| inside.iter().map(|mig| (mig.gpu_instance, mig.compute_instance, mig.gpu_profile())).collect())
        .collect();
    assert_eq!(known, [vec![(3, 0, "2g.20gb"), (3, 1, "2g.20gb")], vec![(5, 0, "2g.20gb")]]);
    let used = |at: usize| {
        let uuid = &gpu.instances()[at].uuid;
        sample.mig.iter().find(|mig| mig.uuid == *uuid).and_then(|mig| mig.memory_used.get())
    };
    assert_eq!([used(0), used(1), used(2)], [Some(Bytes(3 << 30)), Some(Bytes(3 << 30)), Some(Bytes(0))]);
}

#[test]
fn instances_with_equal_slices_and_different_suffixes_have_different_profiles() {
    let profiles = ["1g.24gb", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me"];
    let slots = profiles.map(|profile| MigSlot::Profile(profile.into())).to_vec();
    let mut harness = Harness::start(of(vec![FakeGpu { mig: slots, ..fake_gpus("RTXPRO6000", 1) }]));
    let shown = |gpu: &model::gpu::Gpu| -> Vec<String> {
        gpu.instances().iter().map(|mig| mig.gpu_profile().to_owned()).collect()
    };
    let gpu = harness.until("four", |seen| seen.gpus.clone()?.pop().filter(|gpu| gpu.instances().len() == 4));
    assert_eq!(shown(&gpu), profiles);
    // The profile of an instance does not change when its name cannot be read for a while.
    harness.change(|scenario| scenario.faults = vec![error("nvmlDeviceGetName", 0, 999)]);
    let failures = harness.seen.failures;
    harness.wait("a failed call", |seen| seen.failures > failures);
    harness.rounds(0, 12);
    let gpu = harness.until("the GPU", |seen| seen.gpus.clone()?.pop());
    assert_eq!(shown(&gpu), profiles);
}

#[test]
fn gpm_is_read_if_the_gpu_has_it() {
    use ReadingKind as Q;
    let gpu = with(
        fake_gpus("H100", 1),
        &[(Q::GpmSmPercent, 80.0), (Q::GpmTensorPercent, 25.0), (Q::PcieTxBytesPerSecond, 1e9)],
    );
    let mut harness = Harness::start(of(vec![gpu, fake_gpus("A100", 1)]));
    let gpm = harness.sample(0, "counters between two samples", |sample| sample.gpm.sm_active.get().is_some()).gpm;
    assert_eq!(gpm.sm_active.get(), Some(Ratio(0.8)));
    assert_eq!(gpm.tensor_active.get(), Some(Ratio(0.25)));
    assert!((gpm.pcie_tx.get().unwrap().0 - 1e9).abs() < 1e4, "{:?}", gpm.pcie_tx);
    assert!(gpm.sm_occupancy.get().is_some() && gpm.dram_active.get().is_some() && gpm.nvlink_rx.get().is_some());
    let absent = |sample: &model::gpu::GpuSample| sample.gpm.sm_active.absence() == Some(Absence::NotThisArchitecture);
    harness.sample(1, "an Ampere GPU has none", absent);
}

#[test]
fn utilisation_is_the_plain_call_each_second_whatever_the_sample_buffers_say() {
    let busy = |percent| {
        with(fake_gpus("H100", 1), &[(ReadingKind::UtilizationPercent, percent), (ReadingKind::EncoderPercent, 5.0)])
    };
    let faults = vec![error("nvmlDeviceGetSamples", 0, 999)];
    let mut harness = Harness::start(Scenario { faults, ..of(vec![busy(42.0)]) });
    let sample = harness.sample(0, "a first sample", |_| true);
    assert_eq!((sample.utilization.get(), sample.encoder.get()), (Some(Percent(42.0)), Some(Percent(5.0))));
    harness.change(|scenario| scenario.gpus = vec![busy(7.0)]);
    harness.sample(0, "the new load", |sample| sample.utilization.get() == Some(Percent(7.0)));
    harness.change(|scenario| scenario.faults = vec![error("nvmlDeviceGetUtilizationRates", 0, 999)]);
    let absent = harness.sample(0, "the reason", |sample| sample.utilization.absence() == Some(Absence::Nvml(999)));
    assert_eq!(absent.encoder.get(), Some(Percent(5.0)));
}

#[test]
fn unsupported_readings_are_absent_with_the_reason_and_others_are_measured() {
    let mut harness = Harness::start(of(vec![fake_gpus("GB10", 1), fake_gpus("vGPU", 1), fake_gpus("T4", 1)]));
    let ready = |sample: &model::gpu::GpuSample| sample.remapped.pending != Reading::NOT_YET;
    let unified = harness.sample(0, "GB10", ready);
    assert_eq!(unified.memory_used.absence(), Some(Absence::NotSupported));
    assert!(unified.temperature.get().is_some() && unified.utilization.get().is_some());
    let slice = harness.sample(1, "vGPU", ready);
    assert_eq!(slice.power.absence(), Some(Absence::NotSupported));
    assert!(slice.memory_used.get().is_some());
    assert!(slice.utilization.get().is_some());
    let turing = harness.sample(2, "T4", ready);
    assert_eq!(turing.nvlink_bytes.absence(), Some(Absence::NotSupported));
    assert!(turing.energy.get().is_some());
}
