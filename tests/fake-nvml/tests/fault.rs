//! Faults: every error number, delays, hangs, and invalid scenario files.

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::code::{Code, NAMES};
use fake_nvml::scenario::{CallFault, FakeGpu, Scenario, Which};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_try};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn with(fault: CallFault) -> Scenario {
    Scenario { faults: vec![fault], ..still(vec![FakeGpu { count: 3, ..fake_gpu("H100") }], 0.0) }
}

fn power(nvml: &Nvml, index: u32) -> Result<u32, NvmlError> {
    nvml.device_by_index(index).and_then(|device| device.power_usage())
}

#[test]
fn every_error_code_comes_back_from_its_call_and_gpu() {
    let bench = Bench::new(&with(CallFault::default()));
    bench.write(&still(vec![FakeGpu { count: 3, ..fake_gpu("H100") }], 0.0));
    let nvml = bench.load().unwrap();
    for (name, number) in NAMES.into_iter().filter(|(_, number)| *number != 0) {
        let call = "nvmlDeviceGetPowerUsage".into();
        bench.write(&with(CallFault {
            call,
            gpu: Some(Which::Place(1)),
            error: Some(Code(number)),
            ..CallFault::default()
        }));
        let expected = format!("{:?}", nvml_try(number).unwrap_err());
        eventually(name, || power(&nvml, 1).is_err_and(|error| format!("{error:?}") == expected));
        assert!(power(&nvml, 0).is_ok() && power(&nvml, 2).is_ok(), "{name} affects only one GPU");
        assert!(nvml.device_by_index(1).unwrap().memory_info().is_ok(), "{name} affects only one call");
    }
}

#[test]
fn a_fault_of_all_calls_on_a_gpu_affects_no_other_gpu() {
    let bench =
        Bench::new(&with(CallFault { gpu: Some(Which::Place(2)), error: Some(Code::UNKNOWN), ..CallFault::default() }));
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 3);
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::Unknown)));
    assert!(power(&nvml, 0).is_ok());
}

#[test]
fn a_fault_begins_and_ends_after_the_given_numbers_of_calls() {
    let call = "nvmlDeviceGetPower*".to_owned();
    let bench =
        Bench::new(&with(CallFault { call, error: Some(Code(21)), after: 1, times: Some(2), ..CallFault::default() }));
    let nvml = bench.load().unwrap();
    let went_well: Vec<bool> = (0..5).map(|_| power(&nvml, 0).is_ok()).collect();
    assert_eq!(went_well, [true, false, false, true, true]);
}

#[test]
fn a_slow_call_takes_its_time() {
    let bench =
        Bench::new(&with(CallFault { call: "nvmlDeviceGetPowerUsage".into(), latency_ms: 60, ..CallFault::default() }));
    let nvml = bench.load().unwrap();
    let begin = Instant::now();
    assert!(power(&nvml, 0).is_ok());
    assert!(begin.elapsed() >= Duration::from_millis(60));
}

#[test]
fn a_hanging_call_returns_when_its_fault_is_removed_and_others_go_on_meanwhile() {
    let hang = CallFault {
        call: "nvmlDeviceGetPowerUsage".into(),
        gpu: Some(Which::Place(1)),
        hang: true,
        ..CallFault::default()
    };
    let bench = Bench::new(&with(hang));
    let nvml = bench.load().unwrap();
    std::thread::scope(|threads| {
        let (sender, receiver) = mpsc::channel();
        let nvml = &nvml;
        threads.spawn(move || sender.send(power(nvml, 1)).unwrap());
        assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "it hangs");
        assert!(power(nvml, 0).is_ok() && nvml.device_by_index(1).unwrap().memory_info().is_ok());
        bench.write(&still(vec![FakeGpu { count: 3, ..fake_gpu("H100") }], 0.0));
        assert!(receiver.recv_timeout(Duration::from_secs(20)).unwrap().is_ok(), "it returns");
    });
}

#[test]
fn a_torn_file_leaves_the_old_scenario() {
    let bench = Bench::new(&still(vec![FakeGpu { count: 3, ..fake_gpu("H100") }], 0.0));
    let nvml = bench.load().unwrap();
    for torn in ["", "{\"gpus\":[", "{\"gpus\":[{\"model\":\"none\"}]}", "\u{0}\u{1}"] {
        bench.write_text(torn);
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            assert_eq!(nvml.device_count().unwrap(), 3);
        }
    }
    bench.write(&still(vec![fake_gpu("H100")], 0.0));
    eventually("a valid file is used again", || nvml.device_count().unwrap() == 1);
}

#[test]
fn a_function_that_the_file_marks_as_unsupported_returns_not_supported() {
    let gpu = FakeGpu { not_supported: vec!["nvmlDeviceGetPower*".into()], ..fake_gpu("H100") };
    let bench = Bench::new(&still(vec![gpu], 0.0));
    let nvml = bench.load().unwrap();
    assert!(matches!(power(&nvml, 0), Err(NvmlError::NotSupported)));
}
