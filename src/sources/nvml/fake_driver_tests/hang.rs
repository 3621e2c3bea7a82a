//! Tests of calls that do not return.

use super::{CallFault, DriverPatience, Harness, Scenario, Which, XidEvent, fake_gpus, hang, of};
use model::Absence;
use model::gpu::GpuSample;
use model::observation::GpuSourceState;
use std::time::Duration;

fn hangs(sample: &GpuSample) -> bool {
    *sample == GpuSample::absent(Absence::CallHangs)
}

fn reads(sample: &GpuSample) -> bool {
    sample.power.get().is_some()
}

/// Checks that the source was reported as working and in no other state. The report and the readings come from
/// different threads, so the report may come after the readings.
fn has_only_worked(harness: &mut Harness) {
    harness.wait("the state of the source", |seen| !seen.source.is_empty());
    assert!(matches!(harness.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", harness.seen.source);
}

#[test]
fn a_hanging_gpu_is_absent_and_other_gpus_are_still_read() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 3)]));
    harness.sample(1, "readings", reads);
    harness.change(|scenario| scenario.faults = vec![hang("nvmlDeviceGetPowerUsage", 1)]);
    harness.sample(1, "the hanging one", hangs);
    let uuid = harness.uuid(1);
    harness.wait("its processes", |seen| seen.processes[&uuid].list.absence() == Some(Absence::CallHangs));
    harness.rounds(0, 10);
    harness.rounds(2, 10);
    assert!(harness.sample(0, "its neighbour", |_| true).power.get().is_some());
    assert_eq!(harness.seen.gpus.as_ref().map(Vec::len), Some(3), "it stays in the list");
    has_only_worked(&mut harness);
    harness.change(|scenario| scenario.faults.clear());
    harness.sample(1, "back", reads);
}

/// Removes the GPUs at these places, and waits until the list has `left` GPUs.
fn take_out(harness: &mut Harness, places: &[usize], left: usize) {
    harness.change(|scenario| places.iter().for_each(|place| scenario.gpus[*place].present = false));
    harness.wait("a shorter list", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == left));
}

fn one_by_one(count: usize) -> Scenario {
    of((0..count).map(|_| fake_gpus("H100", 1)).collect())
}

#[test]
fn a_hanging_gpu_is_skipped_by_uuid_when_indices_change() {
    let mut harness = Harness::start(one_by_one(4));
    let [first, hung, second, third] = [0, 1, 2, 3].map(|place| harness.uuid(place));
    harness.sample(3, "readings", reads);
    harness.change(|scenario| scenario.faults = vec![hang("*", 1)]);
    harness.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    take_out(&mut harness, &[0], 3);
    // Several inventories are taken, and every GPU is polled many times.
    let listed: Vec<_> = harness.seen.gpus.iter().flatten().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
    assert_eq!(listed, [(0, hung.clone()), (1, second.clone()), (2, third.clone())]);
    for uuid in [&second, &third] {
        harness.rounds_of(uuid, 40);
        assert!(harness.seen.samples.get(uuid).is_some_and(reads), "a healthy neighbour is still read");
    }
    assert!(harness.seen.samples.get(&hung).is_some_and(hangs));
    assert!(!harness.seen.source.contains(&GpuSourceState::Hanging), "{:?}", harness.seen.source);
    assert_eq!(harness.seen.gpus.as_ref().map(Vec::len), Some(3));
    assert!(harness.seen.unidentified.is_empty());
    // A GPU that comes back meanwhile is reported once it is clear which index belongs to which GPU.
    harness.change(|scenario| scenario.gpus[0].present = true);
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("all of them", |seen| {
        [&first, &hung, &second, &third].iter().all(|one| seen.samples.get(*one).is_some_and(reads))
    });
}

#[test]
fn a_hanging_gpu_that_is_removed_stays_in_the_list_until_its_call_returns() {
    let mut harness = Harness::start(one_by_one(3));
    let hung = harness.uuid(1);
    harness.sample(2, "readings", reads);
    harness.change(|scenario| scenario.faults = vec![hang("*", 1)]);
    harness.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    harness.change(|scenario| scenario.gpus[1].present = false);
    harness.wait("another index", |seen| {
        seen.gpus.as_ref().is_some_and(|gpus| gpus.iter().any(|gpu| gpu.index == 1 && gpu.uuid != hung))
    });
    assert!(harness.seen.gpus.iter().flatten().any(|gpu| gpu.uuid == hung), "absent: call hangs");
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("it is gone", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
}

#[test]
fn a_new_gpu_is_found_while_another_gpu_hangs() {
    let mut harness = Harness::prepare(one_by_one(3));
    harness.change(|scenario| scenario.gpus[2].present = false);
    harness.open();
    let hung = harness.uuid(0);
    harness.sample(1, "readings", reads);
    harness.change(|scenario| scenario.faults = vec![hang("*", 0)]);
    harness.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    harness.change(|scenario| scenario.gpus[2].present = true);
    harness.sample(2, "the new one", reads);
}

/// Promise 11 in docs/specification.md.
#[test]
fn when_the_replacement_poller_hangs_too_all_gpus_are_absent_until_a_call_returns() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 3)]));
    harness.sample(2, "readings", reads);
    let both = vec![hang("nvmlDeviceGetPowerUsage", 0), hang("nvmlDeviceGetTemperature", 1)];
    harness.change(|scenario| scenario.faults = both);
    harness.wait("the whole source", |seen| seen.source.last() == Some(&GpuSourceState::Hanging));
    for place in 0..3 {
        harness.sample(place, "all absent", hangs);
    }
    // The first call returns: the next poller skips only the second GPU.
    harness.change(|scenario| {
        scenario.faults.remove(0);
    });
    harness.wait("it works again", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
    harness.sample(0, "the first", reads);
    harness.sample(2, "the third", reads);
    harness.sample(1, "the second still hangs", hangs);
    harness.change(|scenario| scenario.faults.clear());
    harness.sample(1, "the second", reads);
}

#[test]
fn a_hang_while_the_library_opens_is_reported_and_ends_when_it_opens() {
    let stuck = CallFault { call: "nvmlInit_v2".into(), hang: true, ..CallFault::default() };
    let mut harness = Harness::start(Scenario { faults: vec![stuck], ..of(vec![fake_gpus("H100", 1)]) });
    harness.wait("it hangs", |seen| seen.source == [GpuSourceState::Hanging]);
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("it works", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
    harness.sample(0, "readings", reads);
}

#[test]
fn a_gpu_that_hangs_before_it_is_identified_does_not_hide_the_others() {
    let mut harness =
        Harness::start(Scenario { faults: vec![hang("nvmlDeviceGetUUID", 0)], ..of(vec![fake_gpus("H100", 2)]) });
    harness.wait("the other", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1 && gpus[0].index == 1));
    harness.sample(0, "its readings", reads);
    harness.wait("the one that hangs", |seen| seen.unidentified_reasons() == [(0, Absence::CallHangs)]);
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("both", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    harness.sample(0, "the first", reads);
    harness.wait("none without a name", |seen| seen.unidentified.is_empty());
}

/// A call that takes `latency_ms` milliseconds, the first `times` times. The tests use times far above the limit,
/// because the check may be late on a busy machine.
fn stall(call: &str, latency_ms: u64, times: u32) -> CallFault {
    CallFault { call: call.into(), latency_ms, times: Some(times), ..CallFault::default() }
}

#[test]
fn a_stalled_call_about_no_particular_gpu_makes_all_readings_absent_and_no_gpu_unfit() {
    let mut harness = Harness::prepare(of(vec![fake_gpus("H100", 3)]));
    // The default limits, so that no other call is late on a busy machine.
    harness.patience = DriverPatience::default();
    harness.open();
    harness.sample(2, "readings", reads);
    let gpus: Vec<_> = (0..3).map(|place| harness.uuid(place)).collect();
    harness.change(|scenario| scenario.faults = vec![stall("nvmlDeviceGetCount_v2", 5000, 1)]);
    harness.wait("all absent", |seen| gpus.iter().all(|gpu| seen.absent.contains(&(gpu.clone(), Absence::CallStalls))));
    for place in 0..3 {
        harness.sample(place, "back", reads);
    }
    has_only_worked(&mut harness);
    assert!(harness.seen.absent.iter().all(|(_, why)| *why == Absence::CallStalls), "{:?}", harness.seen.absent);
    assert_eq!(harness.seen.stalled, [], "the driver was busy, and no GPU is to blame");
}

#[test]
fn repeated_stalls_of_one_gpu_count_for_that_gpu_and_other_gpus_are_still_read() {
    let mut harness = Harness::prepare(of(vec![fake_gpus("H100", 3)]));
    harness.patience.hang_after = Duration::from_secs(30);
    harness.open();
    harness.sample(1, "readings", reads);
    let [first, slow, third] = [0, 1, 2].map(|place| harness.uuid(place));
    let thrice = CallFault { gpu: Some(Which::Place(1)), ..stall("nvmlDeviceGetPowerUsage", 3000, 3) };
    harness.change(|scenario| scenario.faults = vec![thrice]);
    harness.wait("three stalls", |seen| seen.stalled.iter().filter(|gpu| **gpu == slow).count() >= 3);
    harness.rounds_of(&first, 3);
    harness.rounds_of(&third, 3);
    harness.sample(1, "back", reads);
    assert!(harness.seen.absent.contains(&(slow, Absence::CallStalls)));
    assert!(harness.seen.absent.iter().all(|(_, why)| *why == Absence::CallStalls), "{:?}", harness.seen.absent);
    has_only_worked(&mut harness);
}

#[test]
fn a_library_that_opens_slowly_is_not_reported_as_hanging() {
    let mut harness =
        Harness::prepare(Scenario { faults: vec![stall("nvmlInit_v2", 3000, 1)], ..of(vec![fake_gpus("H100", 1)]) });
    harness.patience.open_hangs_after = Duration::from_secs(60);
    harness.open();
    harness.sample(0, "readings", reads);
    has_only_worked(&mut harness);
}

#[test]
fn slow_calls_are_not_reported_as_hanging() {
    let slow = CallFault { call: "nvmlDeviceGetPowerUsage".into(), latency_ms: 200, ..CallFault::default() };
    let mut harness = Harness::start(Scenario { faults: vec![slow], ..of(vec![fake_gpus("H100", 2)]) });
    harness.sample(1, "readings", reads);
    harness.rounds(1, 4);
    assert!(harness.seen.source.iter().all(|state| matches!(state, GpuSourceState::Working { .. })));
}

#[test]
fn a_hanging_event_wait_is_reported_and_events_resume_when_it_returns() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", reads);
    let stuck = CallFault { call: "nvmlEventSetWait*".into(), hang: true, ..CallFault::default() };
    harness.change(|scenario| scenario.faults = vec![stuck]);
    harness.wait("the event thread hangs", |seen| seen.events_hang == [true]);
    harness.rounds(0, 10);
    assert!(harness.sample(0, "the GPU goes on", |_| true).power.get().is_some());
    has_only_worked(&mut harness);
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("it returns", |seen| seen.events_hang == [true, false]);
    let uuid = harness.uuid(1);
    harness.change(|scenario| {
        scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(1), code: 79, event: 8, at_s: 0.0, mig: None }];
    });
    harness.wait("an event", |seen| seen.xids.iter().any(|xid| xid.gpu.as_ref() == Some(&uuid) && xid.code == 79));
}

#[test]
fn slow_registration_of_events_is_not_reported_as_hanging() {
    let slow = CallFault { call: "nvmlDeviceRegisterEvents".into(), latency_ms: 400, ..CallFault::default() };
    let mut harness = Harness::start(Scenario { faults: vec![slow], ..of(vec![fake_gpus("H100", 4)]) });
    harness.sample(3, "readings", reads);
    harness.change(|scenario| {
        scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(3), code: 79, event: 8, at_s: 0.0, mig: None }];
    });
    harness.wait("an event", |seen| !seen.xids.is_empty());
    assert!(harness.seen.events_hang.is_empty());
}
