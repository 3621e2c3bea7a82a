//! The replay of each kind of file that a scenario may name returns the recorded values.

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::scenario::{Clock, FakeGpu, ReadingKind as Q, Scenario};
use fake_nvml::trace::Trace;
use fake_nvml::value::{Program, Replay, Value};
use nvml_wrapper::enum_wrappers::device::Clock as ClockKind;
use nvml_wrapper::error::NvmlError;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/traces").join(name)
}

fn replaying(what: Q, replay: Replay) -> FakeGpu {
    FakeGpu { values: [(what, Program::Replay(replay).into())].into(), ..fake_gpu("A100") }
}

#[test]
fn a_log_of_nvidia_smi_drives_power_and_utilisation() {
    let path = golden("nvidia-smi-a100.csv");
    let mut a100 = replaying(Q::PowerWatts, Replay::of(&path, "power.draw.instant [W]"));
    a100.values.insert(Q::UtilizationPercent, Program::Replay(Replay::of(&path, "utilization.gpu")).into());
    a100.values.insert(Q::SampleMillis, Value::Constant(1.0));
    let trace = Trace::read(&path, "power.draw.instant", None).unwrap();
    assert_eq!(trace.rows(), 300);
    for second in [0.0, 0.5, 1.0, 2.0, 3.0, trace.length() - 0.01] {
        let bench = Bench::new(&still(vec![a100.clone()], second));
        let nvml = bench.load().unwrap();
        let milliwatts = f64::from(nvml.device_by_index(0).unwrap().power_usage().unwrap());
        assert!((milliwatts - trace.at(second).unwrap() * 1000.0).abs() < 1.0, "at {second}");
    }
}

#[test]
fn a_gap_in_the_log_is_the_error_that_nvidia_smi_met() {
    let path = golden("nvidia-smi-units.csv");
    let mut a100 = replaying(Q::PowerWatts, Replay::of(&path, "power.draw"));
    a100.values.insert(Q::ClockSmMhz, Program::Replay(Replay::of(&path, "clocks.current.sm")).into());
    let bench = Bench::new(&still(vec![a100], 0.0));
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.device_by_index(0).unwrap().power_usage().unwrap(), 46_190);
    assert!(matches!(nvml.device_by_index(0).unwrap().clock_info(ClockKind::SM), Err(NvmlError::Unknown)));
}

#[test]
fn a_wide_table_is_replayed_faster_than_it_was_recorded() {
    let path = golden("helios-two-tenants.csv");
    let trace = Trace::read(&path, "vc6YE", None).unwrap();
    assert_eq!((trace.rows(), trace.length()), (360, 359.0 * 60.0));
    let replay = Replay { speed: 60.0, scale: 0.5, ..Replay::of(&path, "vc6YE") };
    let bench = Bench::new(&still(vec![replaying(Q::PcieReplays, replay)], 200.0));
    let nvml = bench.load().unwrap();
    let got = nvml.device_by_index(0).unwrap().pcie_replay_counter().unwrap();
    assert_eq!(f64::from(got), (trace.at(200.0 * 60.0).unwrap() * 0.5).round());
}

#[test]
fn one_pod_of_a_long_table_is_replayed_and_its_integral_is_right() {
    let path = golden("two-pods.csv");
    let pod = "a3f09b5d7c1e48d2960fe8b47a5c3d11";
    let trace = Trace::read(&path, "value", Some(("container_ip", pod))).unwrap();
    let filter = Some(("container_ip".to_owned(), pod.to_owned()));
    let replay = Replay { filter, repeat: false, ..Replay::of(&path, "value") };
    let seconds = trace.length();
    let mut watts = 0.0;
    let steps = 100_000;
    for step in 0..steps {
        watts += trace.at(seconds * f64::from(step) / f64::from(steps)).unwrap() / f64::from(steps);
    }
    // The energy counter is the integral of the replayed column over the whole recording, read in 200 steps.
    let scenario = |second| still(vec![replaying(Q::PowerWatts, replay.clone())], second);
    let bench = Bench::new(&scenario(0.0));
    let nvml = bench.load().unwrap();
    let mut joules = 0.0;
    for step in 0..=200 {
        let second = seconds * f64::from(step) / 200.0;
        bench.write(&Scenario { driver: step.to_string(), ..scenario(second) });
        eventually("the step is read", || nvml.sys_driver_version().unwrap() == step.to_string());
        joules = f64::from(
            u32::try_from(nvml.device_by_index(0).unwrap().total_energy_consumption().unwrap() / 1000).unwrap(),
        );
    }
    let expected = watts * seconds;
    assert!((joules - expected).abs() < expected * 0.001, "{joules} J, expected {expected}");
}

#[test]
fn a_recording_runs_with_the_clock_and_a_missing_one_leaves_the_old_scenario() {
    let path = golden("helios-two-tenants.csv");
    let replay = Replay { repeat: false, ..Replay::of(&path, "vcLJZ") };
    let last = Trace::read(&path, "vcLJZ", None).unwrap().at(f64::MAX).unwrap();
    let clock = Clock { scale: 1e6, ..Clock::default() };
    let bench = Bench::new(&Scenario { clock, gpus: vec![replaying(Q::PcieReplays, replay)], ..Scenario::default() });
    let nvml = bench.load().unwrap();
    let got = || f64::from(nvml.device_by_index(0).unwrap().pcie_replay_counter().unwrap());
    eventually("the end of the recording", || got() == last);
    bench.write(&still(vec![replaying(Q::PcieReplays, Replay::of("no-such.csv", "a"))], 0.0));
    assert_eq!(got(), last);
}
