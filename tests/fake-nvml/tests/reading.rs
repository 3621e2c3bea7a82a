//! Every number comes back through the wrapper, in NVML's units.

use crate::bench::{Bench, ORIGIN_US, eventually, fake_gpu, still};
use fake_nvml::code::Code;
use fake_nvml::scenario::{Clock, FakeGpu, ReadingKind as Q, Scenario};
use fake_nvml::value::{Program, Then, Value};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock as ClockKind, EccCounter, MemoryError, PcieUtilCounter, Sampling, TemperatureSensor,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

fn with(values: &[(Q, f64)]) -> FakeGpu {
    FakeGpu {
        values: values.iter().map(|(what, number)| (*what, Value::Constant(*number))).collect(),
        ..fake_gpu("H100")
    }
}

#[test]
fn numbers_of_the_file_come_back() {
    let gpu = with(&[
        (Q::UtilizationPercent, 61.0),
        (Q::MemoryCopyPercent, 17.0),
        (Q::EncoderPercent, 4.0),
        (Q::DecoderPercent, 3.0),
        (Q::PowerWatts, 321.5),
        (Q::PowerLimitWatts, 650.0),
        (Q::EnergyMillijoules, 9e12),
        (Q::ClockSmMhz, 1755.0),
        (Q::ClockMemoryMhz, 2000.0),
        (Q::ThrottleReasons, 4.0),
        (Q::TemperatureCelsius, 71.0),
        (Q::PcieTxBytesPerSecond, 1024.0 * 500.0),
        (Q::PcieRxBytesPerSecond, 1024.0 * 700.0),
        (Q::PcieReplays, 12.0),
        (Q::EccVolatileCorrected, 1.0),
        (Q::EccVolatileUncorrected, 2.0),
        (Q::EccAggregateCorrected, 3.0),
        (Q::EccAggregateUncorrected, 4.0),
    ]);
    let bench = Bench::new(&still(vec![gpu], 10.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let rates = device.utilization_rates().unwrap();
    assert_eq!((rates.gpu, rates.memory), (61, 17));
    assert_eq!(device.encoder_utilization().unwrap().utilization, 4);
    assert_eq!(device.decoder_utilization().unwrap().utilization, 3);
    assert_eq!(device.decoder_utilization().unwrap().sampling_period, 167_000);
    assert_eq!(device.power_usage().unwrap(), 321_500);
    assert_eq!(device.enforced_power_limit().unwrap(), 650_000);
    assert_eq!(device.power_management_limit().unwrap(), 650_000);
    assert_eq!(device.total_energy_consumption().unwrap(), 9_000_000_000_000);
    assert_eq!(device.clock_info(ClockKind::SM).unwrap(), 1755);
    assert_eq!(device.clock_info(ClockKind::Memory).unwrap(), 2000);
    assert_eq!(device.current_throttle_reasons().unwrap(), ThrottleReasons::SW_POWER_CAP);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 71);
    assert_eq!(device.pcie_throughput(PcieUtilCounter::Send).unwrap(), 500);
    assert_eq!(device.pcie_throughput(PcieUtilCounter::Receive).unwrap(), 700);
    assert_eq!(device.pcie_replay_counter().unwrap(), 12);
    for (kind, counter, errors) in [
        (MemoryError::Corrected, EccCounter::Volatile, 1),
        (MemoryError::Uncorrected, EccCounter::Volatile, 2),
        (MemoryError::Corrected, EccCounter::Aggregate, 3),
        (MemoryError::Uncorrected, EccCounter::Aggregate, 4),
    ] {
        assert_eq!(device.total_ecc_errors(kind, counter).unwrap(), errors);
    }
}

#[test]
fn memory_adds_up_and_used_memory_excludes_reserved_memory() {
    let bench = Bench::new(&still(vec![with(&[(Q::MemoryUsedBytes, 5e9)])], 0.0));
    let nvml = bench.load().unwrap();
    let memory = nvml.device_by_index(0).unwrap().memory_info().unwrap();
    assert_eq!((memory.total, memory.reserved, memory.used), (81_559 << 20, 551 << 20, 5_000_000_000));
    assert_eq!(memory.free + memory.used + memory.reserved, memory.total);
}

#[test]
fn fields_are_answered_one_by_one() {
    let gpu = with(&[
        (Q::TemperatureMemoryCelsius, 88.0),
        (Q::PcieReplays, 12.0),
        (Q::RemappedPending, 1.0),
        (Q::RecoveryAction, 2.0),
        (Q::NvlinkTxBytes, 18.0 * 1024.0 * 100.0),
    ]);
    let bench = Bench::new(&still(vec![gpu], 0.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let ids = [82, 94, 144, 230, 138, 91, 7];
    let fields = device.field_values_for(&ids.map(FieldId)).unwrap();
    let numbers: Vec<Option<u64>> = fields
        .iter()
        .map(|field| {
            let value = field.as_ref().ok()?.value.as_ref().ok()?;
            Some(match value {
                SampleValue::U32(number) => u64::from(*number),
                SampleValue::U64(number) => *number,
                other => panic!("{other:?}"),
            })
        })
        .collect();
    // The wrapper leaves the scope 0, which is the first of 18 links.
    assert_eq!(numbers, [Some(88), Some(12), Some(1), Some(2), Some(100), Some(18), None]);
}

#[test]
fn utilisation_is_sampled_six_times_a_second_at_stamps_of_its_own() {
    let ramp = Program::Ramp { from: 0.0, to: 100.0, over_s: 100.0, then: Then::Hold, start_s: 0.0 };
    let gpu = FakeGpu { values: [(Q::UtilizationPercent, ramp.into())].into(), ..fake_gpu("H100") };
    let bench = Bench::new(&still(vec![gpu], 50.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let samples = device.samples(Sampling::GpuUtilization, None).unwrap();
    assert_eq!(samples.len(), 100);
    assert!(samples.windows(2).all(|pair| pair[1].timestamp - pair[0].timestamp == 167_000));
    let newest = samples.last().unwrap();
    assert_eq!(newest.timestamp, ORIGIN_US + 299 * 167_000);
    assert!(matches!(newest.value, SampleValue::U32(50)), "{:?}", newest.value);
    let newer = device.samples(Sampling::GpuUtilization, newest.timestamp - 167_000 * 5).unwrap();
    assert_eq!(newer.len(), 5);
    assert!(matches!(device.samples(Sampling::GpuUtilization, newest.timestamp), Err(NvmlError::NotFound)));
}

#[test]
fn an_a100_refreshes_once_a_second() {
    let bench = Bench::new(&still(vec![fake_gpu("A100")], 50.0));
    let nvml = bench.load().unwrap();
    let samples = nvml.device_by_index(0).unwrap().samples(Sampling::GpuUtilization, ORIGIN_US + 40_000_000).unwrap();
    assert_eq!(samples.len(), 10);
}

#[test]
fn energy_is_the_sum_of_power_and_begins_again_with_each_epoch() {
    let scenario =
        |second, power, energy_epoch| still(vec![FakeGpu { energy_epoch, ..with(&[(Q::PowerWatts, power)]) }], second);
    let bench = Bench::new(&scenario(0.0, 100.0, 0));
    let nvml = bench.load().unwrap();
    let energy = || nvml.device_by_index(0).unwrap().total_energy_consumption().unwrap();
    assert_eq!(energy(), 0);
    bench.write(&scenario(30.0, 100.0, 0));
    eventually("30 s at 100 W", || energy() == 3_000_000);
    bench.write(&scenario(30.0, 200.0, 0));
    eventually("a new power limit", || nvml.device_by_index(0).unwrap().power_usage().unwrap() == 200_000);
    bench.write(&scenario(40.0, 200.0, 0));
    eventually("10 s at 200 W more", || energy() == 5_000_000);
    bench.write(&scenario(41.0, 200.0, 1));
    eventually("a new epoch", || energy() == 0);
}

#[test]
fn an_error_in_place_of_a_number_is_what_its_call_returns() {
    let lost = FakeGpu { values: [(Q::PowerWatts, Program::Error(Code(21)).into())].into(), ..fake_gpu("H100") };
    let bench = Bench::new(&still(vec![lost], 0.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.power_usage(), Err(NvmlError::NoData)));
    assert!(matches!(device.total_energy_consumption(), Err(NvmlError::NoData)));
    assert!(device.temperature(TemperatureSensor::Gpu).is_ok());
}

#[test]
fn time_can_run_fast() {
    let clock = Clock { scale: 100_000.0, ..Clock::default() };
    let ramp = Program::Ramp { from: 0.0, to: 1.0, over_s: 1.0, then: Then::Continue, start_s: 0.0 };
    let gpu = FakeGpu { values: [(Q::PcieReplays, ramp.into())].into(), ..fake_gpu("H100") };
    let bench = Bench::new(&Scenario { clock, gpus: vec![gpu], ..Scenario::default() });
    let nvml = bench.load().unwrap();
    eventually("an hour passes", || nvml.device_by_index(0).unwrap().pcie_replay_counter().unwrap() > 3600);
}

#[test]
fn a_vgpu_answers_few_calls() {
    let bench = Bench::new(&still(vec![fake_gpu("vGPU")], 0.0));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.power_usage(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.temperature(TemperatureSensor::Gpu), Err(NvmlError::NotSupported)));
    assert!(matches!(device.samples(Sampling::GpuUtilization, None), Err(NvmlError::NotSupported)));
    assert!(device.memory_info().is_ok() && device.utilization_rates().is_ok());
}
