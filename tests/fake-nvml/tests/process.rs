//! Processes: three lists, idle processes, and processes that start and end.

use crate::bench::{Bench, ORIGIN_US, fake_gpu, still};
use fake_nvml::scenario::{Churn, FakeGpu, FakeProcess, ProcessList, ProcessSamples};
use fake_nvml::value::{Program, Value};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

fn holding(pid: u32, memory: f64) -> FakeProcess {
    FakeProcess { pid, memory: Some(memory.into()), ..FakeProcess::default() }
}

#[test]
fn each_process_is_in_the_list_of_its_kind_with_its_memory() {
    let processes = vec![
        holding(10, 1e9),
        FakeProcess { kind: ProcessList::Graphics, ..holding(11, 2e9) },
        FakeProcess { kind: ProcessList::Mps, ..holding(12, 3e9) },
        FakeProcess { pid: 13, memory: None, ..FakeProcess::default() },
    ];
    let bench = Bench::new(&still(vec![FakeGpu { processes, ..fake_gpu("H100") }], 0.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let compute = device.running_compute_processes().unwrap();
    let list: Vec<_> = compute.iter().map(|process| (process.pid, process.used_gpu_memory.clone())).collect();
    assert_eq!(list, [(10, UsedGpuMemory::Used(1_000_000_000)), (13, UsedGpuMemory::Unavailable)]);
    assert_eq!(device.running_graphics_processes().unwrap()[0].pid, 11);
    assert_eq!(device.mps_running_compute_processes().unwrap()[0].pid, 12);
    assert_eq!(device.memory_info().unwrap().used, 6_000_000_000);
}

#[test]
fn an_idle_process_keeps_its_memory_and_has_no_utilisation_sample() {
    let busy = FakeProcess { sm: 40.0.into(), mem: 7.0.into(), enc: 2.0.into(), dec: 1.0.into(), ..holding(20, 1e9) };
    let bench = Bench::new(&still(vec![FakeGpu { processes: vec![busy, holding(21, 1e9)], ..fake_gpu("H100") }], 10.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.running_compute_processes().unwrap().len(), 2);
    let samples = device.process_utilization_stats(None).unwrap();
    assert_eq!(samples.len(), 1);
    let sample = &samples[0];
    assert_eq!((sample.pid, sample.sm_util, sample.mem_util, sample.enc_util, sample.dec_util), (20, 40, 7, 2, 1));
    assert_eq!(sample.timestamp, ORIGIN_US + 59 * 167_000);
    let newer = device.process_utilization_stats(sample.timestamp);
    assert!(matches!(newer, Err(NvmlError::NotFound)), "{newer:?}");
    assert_eq!(device.utilization_rates().unwrap().gpu, 40, "the GPU is as busy as its processes");
}

#[test]
fn a_burst_between_two_calls_is_in_the_sample_of_its_time() {
    let burst = Program::Square { low: 0.0, high: 90.0, period_s: 10.0, duty: 0.1, phase_s: 0.0 };
    let process = FakeProcess { sm: burst.into(), ..holding(22, 0.0) };
    let bench = Bench::new(&still(vec![FakeGpu { processes: vec![process], ..fake_gpu("H100") }], 5.0));
    let nvml = bench.load().unwrap();
    let samples = nvml.device_by_index(0).unwrap().process_utilization_stats(ORIGIN_US).unwrap();
    assert_eq!((samples[0].sm_util, samples[0].timestamp), (90, ORIGIN_US + 5 * 167_000));
}

#[test]
fn a_driver_of_means_answers_with_the_mean_since_the_requested_stamp() {
    let burst = Program::Square { low: 0.0, high: 90.0, period_s: 10.0, duty: 0.1, phase_s: 0.0 };
    let processes = vec![FakeProcess { sm: burst.into(), ..holding(22, 0.0) }];
    let gpu = FakeGpu { processes, process_samples: ProcessSamples::Mean, ..fake_gpu("H100") };
    let bench = Bench::new(&still(vec![gpu], 5.0));
    let nvml = bench.load().unwrap();
    let since = |number: u64| {
        let samples = nvml.device_by_index(0).unwrap().process_utilization_stats(ORIGIN_US + number * 167_000).unwrap();
        (samples[0].sm_util, samples[0].timestamp)
    };
    let newest = ORIGIN_US + 5 * 167_000;
    assert_eq!(since(0), (16, newest), "five of 29 samples are busy");
    assert_eq!(since(4), (4, newest), "one of 25 samples is busy");
}

#[test]
fn processes_live_from_and_until_their_seconds() {
    let process = FakeProcess { from_s: 10.0, until_s: Some(20.0), ..holding(23, 1e9) };
    for (second, count) in [(9.9, 0), (10.0, 1), (19.9, 1), (20.0, 0)] {
        let bench = Bench::new(&still(vec![FakeGpu { processes: vec![process.clone()], ..fake_gpu("H100") }], second));
        let nvml = bench.load().unwrap();
        assert_eq!(nvml.device_by_index(0).unwrap().running_compute_processes().unwrap().len(), count, "{second}");
    }
}

#[test]
fn a_million_processes_come_and_go() {
    let churn = Some(Churn { from_pid: 1000, live: 50, per_second: 1000.0, memory: 1 << 20, sm: 1 });
    let bench = Bench::new(&still(vec![FakeGpu { churn, ..fake_gpu("H100") }], 1000.0));
    let nvml = bench.load().unwrap();
    let list = nvml.device_by_index(0).unwrap().running_compute_processes().unwrap();
    let pids: Vec<u32> = list.iter().map(|process| process.pid).collect();
    assert_eq!(pids, (1_001_000..1_001_050).collect::<Vec<u32>>());
}

#[test]
fn memory_may_grow() {
    let leak = Program::Ramp { from: 0.0, to: 1e9, over_s: 10.0, then: fake_nvml::value::Then::Continue, start_s: 0.0 };
    let process = FakeProcess { memory: Some(Value::Program(leak)), ..FakeProcess::default() };
    let bench = Bench::new(&still(vec![FakeGpu { processes: vec![process], ..fake_gpu("H100") }], 20.0));
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.device_by_index(0).unwrap().memory_info().unwrap().used, 2_000_000_000);
}
