//! Tests of the SM use of each process. The test sets the clock of the fake driver: the agent reads its utilisation each
//! second, and processes and their use every five seconds.

use super::process::opened;
use super::{FakeGpu, Harness, ReadingKind, Scenario, fake_gpus, of, with};
use crate::nvml::polled_gpu::GpuCaller;
use crate::nvml::process::{Clients, list};
use crate::nvml::read;
use crate::process_owner::ProcessOwnerReader;
use crate::report::Reporter;
use lab::scenario::{Clock, FakeProcess, ProcessSamples, Program, Value, process};
use model::time::{Monotonic, Now, WallTime};
use model::unit::Percent;
use model::utilization::UtilizationSample;
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::Sampling;
use std::collections::BTreeMap;
use std::time::Duration;

/// The driver's clock at scenario second 0, in microseconds.
const ORIGIN: u64 = 1_700_000_000_000_000;
/// The read for a second is made this much later, in microseconds.
const LATER: u64 = 50_000;

/// SM use of each process in the lists of `seconds` seconds, without the first list.
fn lists(gpu: FakeGpu, seconds: u64) -> Vec<BTreeMap<u32, Reading<Percent>>> {
    played(gpu, seconds).0
}

/// The same, and the driver's own samples of utilisation that were reported to a subscriber.
fn played(gpu: FakeGpu, seconds: u64) -> (Vec<BTreeMap<u32, Reading<Percent>>>, Vec<UtilizationSample>) {
    let clock = |second: u64| {
        let micros = Duration::from_micros(second * 1_000_000 + LATER);
        Clock { frozen_at_s: Some(micros.as_secs_f64()), origin_us: Some(ORIGIN), ..Clock::default() }
    };
    let mut harness = Harness::prepare(Scenario { clock: clock(0), ..of(vec![gpu]) });
    let (mut polled, heartbeat) = opened(harness.fake.library(), &harness.roots());
    let (reporter, _queue) = Reporter::channel();
    let subscription = reporter.utilization_series().unwrap();
    polled.asker = GpuCaller::new(heartbeat, reporter, &polled.known);
    let (mut clients, mut owners) = (Clients::default(), ProcessOwnerReader::new(harness.roots()));
    let mut lists = Vec::new();
    for second in 1..=seconds {
        harness.change(|scenario| scenario.clock = clock(second));
        let wall = ORIGIN + second * 1_000_000 + LATER;
        // The fake library reads its scenario again on some of its calls only. Its clock must not move between the call
        // for the length and the call for the list: that is an error.
        let newest =
            || polled.known.device.samples(Sampling::GpuUtilization, 0).ok()?.last().map(|sample| sample.timestamp);
        while newest().is_none_or(|newest| newest + 200_000 < wall) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let now = Now { monotonic: Monotonic((1000 + second) * 1_000_000_000), wall: WallTime(wall) };
        assert!(read::often(&mut polled, &harness.path("proc"), now));
        if second % 5 == 0 {
            let list = list(&mut polled, &mut clients, &mut owners, now);
            lists.push(list.list.value().unwrap().iter().map(|process| (process.pid, process.sm)).collect());
        }
    }
    let reported = subscription.take().samples;
    (lists.split_off(1), reported.iter().flat_map(|part| part.samples.iter().copied()).collect())
}

/// The measured use of one process.
fn percent(list: &BTreeMap<u32, Reading<Percent>>, pid: u32) -> f64 {
    list[&pid].get().unwrap_or_else(|| panic!("{list:?}")).0
}

/// The share of time is right on GPUs that take six samples a second, and on those that take one.
#[test]
fn process_use_is_the_mean_since_the_last_list() {
    let burst = Program::Square { low: 0.0, high: 100.0, period_s: 10.0, duty: 0.04, phase_s: 0.0 };
    for model in ["H100", "A100"] {
        let gpu = |process| FakeGpu {
            process_samples: ProcessSamples::Mean,
            processes: vec![process],
            ..fake_gpus(model, 1)
        };
        for list in lists(gpu(process(1, 1 << 30, 40.0)), 20) {
            let steady = percent(&list, 1);
            assert!((steady - 40.0).abs() < 0.5, "{model}: a steady load reads {steady}");
        }
        let short: Vec<f64> =
            lists(gpu(FakeProcess { sm: Value::Program(burst.clone()), ..process(1, 1 << 30, 0.0) }), 45)
                .iter()
                .map(|list| percent(list, 1))
                .collect();
        // A GPU that takes one sample a second sees a burst of 0.4 s in one second, or not at all.
        let (most, mean) = (short.iter().copied().fold(0.0, f64::max), short.iter().sum::<f64>() / 8.0);
        assert!(most <= 20.5 && (2.0..=11.0).contains(&mean), "{model}: a duty of 4 % reads {short:?}");
    }
}

#[test]
fn an_impossible_sample_is_absent_and_other_processes_are_still_measured() {
    let processes = vec![process(1, 2 << 30, 4e9), process(2, 1 << 30, 1.0), process(3, 1 << 30, 0.0)];
    let gpu = FakeGpu { processes, ..with(fake_gpus("H100", 1), &[(ReadingKind::UtilizationPercent, 1.0)]) };
    for list in lists(gpu, 15) {
        assert_eq!(list[&1].absence(), Some(Absence::Implausible), "absent, neither 100 nor 0");
        assert!((percent(&list, 2) - 1.0).abs() < 0.05, "{list:?}");
        assert_eq!(list[&3].get(), Some(Percent(0.0)));
    }
}

/// Promise 6 in docs/specification.md.
#[test]
fn process_shares_are_scaled_down_to_the_use_of_the_gpu_and_never_up() {
    let busy = |shares: &[f64], gpu| {
        let processes = shares.iter().zip(1..).map(|(share, pid)| process(pid, 1 << 30, *share)).collect();
        let lists =
            lists(FakeGpu { processes, ..with(fake_gpus("H100", 1), &[(ReadingKind::UtilizationPercent, gpu)]) }, 10);
        shares.iter().zip(1..).map(|(_, pid)| percent(&lists[0], pid).round()).collect::<Vec<f64>>()
    };
    assert_eq!(
        busy(&[100.0, 80.0, 20.0], 50.0),
        [25.0, 20.0, 5.0],
        "as under MPS, where each may fill all of the time"
    );
    assert_eq!(busy(&[10.0, 20.0], 60.0), [10.0, 20.0], "other processes use the rest");
}

#[test]
fn the_process_use_of_an_idle_gpu_is_not_read() {
    let scenario = Scenario {
        log_calls: true,
        ..of(vec![FakeGpu { processes: vec![process(1, 1 << 30, 0.0)], ..fake_gpus("H100", 1) }])
    };
    let mut harness = Harness::start(scenario);
    let uuid = harness.uuid(0);
    harness.wait("a list", |seen| {
        let list = seen.processes.get(&uuid).and_then(|processes| processes.list.value());
        list.is_some_and(|list| list.first().is_some_and(|process| process.sm.get() == Some(Percent(0.0))))
    });
    harness.rounds(0, 5);
    assert_eq!(harness.fake.calls("nvmlDeviceGetProcessUtilization", 0), 0);
    harness.change(|scenario| scenario.gpus[0].processes = vec![process(1, 1 << 30, 30.0)]);
    harness.wait("its use", |seen| {
        let list = seen.processes.get(&uuid).and_then(|processes| processes.list.value());
        list.is_some_and(|list| list[0].sm.get().is_some_and(|percent| percent.0 > 25.0))
    });
}

#[test]
fn a_subscriber_gets_each_of_the_drivers_samples_once_with_its_stamp() {
    let (_, samples) = played(
        FakeGpu { processes: Vec::new(), ..with(fake_gpus("H100", 1), &[(ReadingKind::UtilizationPercent, 40.0)]) },
        20,
    );
    assert!(samples.windows(2).all(|pair| pair[0].stamp < pair[1].stamp), "no sample is reported twice: {samples:?}");
    assert!(samples.iter().all(|sample| sample.percent == Percent(40.0)), "{samples:?}");
    // Six a second; the first list begins a second before its time.
    assert!((90..=120).contains(&samples.len()), "{} samples in 16 s", samples.len());
}
