//! Tests of calls that do not return.

use super::{CallFault, Drill, DriverPatience, Scenario, Which, XidEvent, fake_gpus, hang, of};
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

#[test]
fn a_hanging_gpu_is_absent_and_other_gpus_are_still_read() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 3)]));
    drill.sample(1, "readings", reads);
    drill.change(|scenario| scenario.faults = vec![hang("nvmlDeviceGetPowerUsage", 1)]);
    drill.sample(1, "the hanging one", hangs);
    let uuid = drill.uuid(1);
    drill.wait("its processes", |seen| seen.processes[&uuid].list.absence() == Some(Absence::CallHangs));
    drill.rounds(0, 10);
    drill.rounds(2, 10);
    assert!(drill.sample(0, "its neighbour", |_| true).power.get().is_some());
    assert_eq!(drill.seen.gpus.as_ref().map(Vec::len), Some(3), "it stays in the list");
    assert!(matches!(drill.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", drill.seen.source);
    drill.change(|scenario| scenario.faults.clear());
    drill.sample(1, "back", reads);
}

/// Removes the GPUs at these places, and waits until the list has as many as are left.
fn take_out(drill: &mut Drill, places: &[usize], left: usize) {
    drill.change(|scenario| places.iter().for_each(|place| scenario.gpus[*place].present = false));
    drill.wait("a shorter list", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == left));
}

fn one_by_one(count: usize) -> Scenario {
    of((0..count).map(|_| fake_gpus("H100", 1)).collect())
}

#[test]
fn a_hanging_gpu_is_skipped_by_uuid_when_indices_change() {
    let mut drill = Drill::start(one_by_one(4));
    let [first, hung, second, third] = [0, 1, 2, 3].map(|place| drill.uuid(place));
    drill.sample(3, "readings", reads);
    drill.change(|scenario| scenario.faults = vec![hang("*", 1)]);
    drill.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    take_out(&mut drill, &[0], 3);
    // Several inventories are taken, and every GPU is polled many times.
    let listed: Vec<_> = drill.seen.gpus.iter().flatten().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
    assert_eq!(listed, [(0, hung.clone()), (1, second.clone()), (2, third.clone())]);
    for uuid in [&second, &third] {
        drill.rounds_of(uuid, 40);
        assert!(drill.seen.samples.get(uuid).is_some_and(reads), "a healthy neighbour is still read");
    }
    assert!(drill.seen.samples.get(&hung).is_some_and(hangs));
    assert!(!drill.seen.source.contains(&GpuSourceState::Hanging), "{:?}", drill.seen.source);
    assert_eq!(drill.seen.gpus.as_ref().map(Vec::len), Some(3));
    assert!(drill.seen.unidentified.is_empty());
    // A GPU that comes back meanwhile is reported once it is clear which index belongs to which GPU.
    drill.change(|scenario| scenario.gpus[0].present = true);
    drill.change(|scenario| scenario.faults.clear());
    drill.wait("all of them", |seen| {
        [&first, &hung, &second, &third].iter().all(|one| seen.samples.get(*one).is_some_and(reads))
    });
}

#[test]
fn a_hanging_gpu_that_is_removed_stays_in_the_list_until_its_call_returns() {
    let mut drill = Drill::start(one_by_one(3));
    let hung = drill.uuid(1);
    drill.sample(2, "readings", reads);
    drill.change(|scenario| scenario.faults = vec![hang("*", 1)]);
    drill.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    drill.change(|scenario| scenario.gpus[1].present = false);
    drill.wait("another index", |seen| {
        seen.gpus.as_ref().is_some_and(|gpus| gpus.iter().any(|gpu| gpu.index == 1 && gpu.uuid != hung))
    });
    assert!(drill.seen.gpus.iter().flatten().any(|gpu| gpu.uuid == hung), "absent: call hangs");
    drill.change(|scenario| scenario.faults.clear());
    drill.wait("it is gone", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
}

#[test]
fn a_new_gpu_is_found_while_another_gpu_hangs() {
    let mut drill = Drill::prepare(one_by_one(3));
    drill.change(|scenario| scenario.gpus[2].present = false);
    drill.open();
    let hung = drill.uuid(0);
    drill.sample(1, "readings", reads);
    drill.change(|scenario| scenario.faults = vec![hang("*", 0)]);
    drill.wait("the hanging one", |seen| seen.samples.get(&hung).is_some_and(hangs));
    drill.change(|scenario| scenario.gpus[2].present = true);
    drill.sample(2, "the new one", reads);
}

/// Promise 11 in docs/specification.md.
#[test]
fn when_the_replacement_poller_hangs_too_all_gpus_are_absent_until_a_call_returns() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 3)]));
    drill.sample(2, "readings", reads);
    let both = vec![hang("nvmlDeviceGetPowerUsage", 0), hang("nvmlDeviceGetTemperature", 1)];
    drill.change(|scenario| scenario.faults = both);
    drill.wait("the whole source", |seen| seen.source.last() == Some(&GpuSourceState::Hanging));
    for place in 0..3 {
        drill.sample(place, "all absent", hangs);
    }
    // The first call returns: the next poller skips only the second GPU.
    drill.change(|scenario| {
        scenario.faults.remove(0);
    });
    drill.wait("it works again", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
    drill.sample(0, "the first", reads);
    drill.sample(2, "the third", reads);
    drill.sample(1, "the second still hangs", hangs);
    drill.change(|scenario| scenario.faults.clear());
    drill.sample(1, "the second", reads);
}

#[test]
fn a_hang_while_the_library_opens_is_reported_and_ends_when_it_opens() {
    let stuck = CallFault { call: "nvmlInit_v2".into(), hang: true, ..CallFault::default() };
    let mut drill = Drill::start(Scenario { faults: vec![stuck], ..of(vec![fake_gpus("H100", 1)]) });
    drill.wait("it hangs", |seen| seen.source == [GpuSourceState::Hanging]);
    drill.change(|scenario| scenario.faults.clear());
    drill.wait("it works", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
    drill.sample(0, "readings", reads);
}

#[test]
fn a_gpu_that_hangs_before_it_is_identified_does_not_hide_the_others() {
    let mut drill =
        Drill::start(Scenario { faults: vec![hang("nvmlDeviceGetUUID", 0)], ..of(vec![fake_gpus("H100", 2)]) });
    drill.wait("the other", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1 && gpus[0].index == 1));
    drill.sample(0, "its readings", reads);
    drill.wait("the one that hangs", |seen| seen.nameless() == [(0, Absence::CallHangs)]);
    drill.change(|scenario| scenario.faults.clear());
    drill.wait("both", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    drill.sample(0, "the first", reads);
    drill.wait("none without a name", |seen| seen.unidentified.is_empty());
}

/// A call that takes this many milliseconds, this many times. That is far more than the limit, because the check may be
/// late on a busy machine.
fn stall(call: &str, latency_ms: u64, times: u32) -> CallFault {
    CallFault { call: call.into(), latency_ms, times: Some(times), ..CallFault::default() }
}

#[test]
fn a_stalled_call_about_no_particular_gpu_makes_all_readings_absent_and_no_gpu_unfit() {
    let mut drill = Drill::prepare(of(vec![fake_gpus("H100", 3)]));
    // The default limits, so that no other call is late on a busy machine.
    drill.patience = DriverPatience::default();
    drill.open();
    drill.sample(2, "readings", reads);
    let gpus: Vec<_> = (0..3).map(|place| drill.uuid(place)).collect();
    drill.change(|scenario| scenario.faults = vec![stall("nvmlDeviceGetCount_v2", 5000, 1)]);
    drill.wait("all absent", |seen| gpus.iter().all(|gpu| seen.absent.contains(&(gpu.clone(), Absence::CallStalls))));
    for place in 0..3 {
        drill.sample(place, "back", reads);
    }
    assert!(matches!(drill.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", drill.seen.source);
    assert!(drill.seen.absent.iter().all(|(_, why)| *why == Absence::CallStalls), "{:?}", drill.seen.absent);
    assert_eq!(drill.seen.stalled, [], "the driver was busy, and no GPU is to blame");
}

#[test]
fn repeated_stalls_of_one_gpu_count_for_that_gpu_and_other_gpus_are_still_read() {
    let mut drill = Drill::prepare(of(vec![fake_gpus("H100", 3)]));
    drill.patience.hang_after = Duration::from_secs(30);
    drill.open();
    drill.sample(1, "readings", reads);
    let [first, slow, third] = [0, 1, 2].map(|place| drill.uuid(place));
    let thrice = CallFault { gpu: Some(Which::Place(1)), ..stall("nvmlDeviceGetPowerUsage", 3000, 3) };
    drill.change(|scenario| scenario.faults = vec![thrice]);
    drill.wait("three stalls", |seen| seen.stalled.iter().filter(|gpu| **gpu == slow).count() >= 3);
    drill.rounds_of(&first, 3);
    drill.rounds_of(&third, 3);
    drill.sample(1, "back", reads);
    assert!(drill.seen.absent.contains(&(slow, Absence::CallStalls)));
    assert!(drill.seen.absent.iter().all(|(_, why)| *why == Absence::CallStalls), "{:?}", drill.seen.absent);
    assert!(matches!(drill.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", drill.seen.source);
}

#[test]
fn a_library_that_opens_slowly_is_not_reported_as_hanging() {
    let mut drill =
        Drill::prepare(Scenario { faults: vec![stall("nvmlInit_v2", 3000, 1)], ..of(vec![fake_gpus("H100", 1)]) });
    drill.patience.open_hangs_after = Duration::from_secs(60);
    drill.open();
    drill.sample(0, "readings", reads);
    assert!(matches!(drill.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", drill.seen.source);
}

#[test]
fn slow_calls_are_not_reported_as_hanging() {
    let slow = CallFault { call: "nvmlDeviceGetPowerUsage".into(), latency_ms: 200, ..CallFault::default() };
    let mut drill = Drill::start(Scenario { faults: vec![slow], ..of(vec![fake_gpus("H100", 2)]) });
    drill.sample(1, "readings", reads);
    drill.rounds(1, 4);
    assert!(drill.seen.source.iter().all(|state| matches!(state, GpuSourceState::Working { .. })));
}

#[test]
fn a_hanging_event_wait_is_reported_and_events_resume_when_it_returns() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 2)]));
    drill.sample(1, "readings", reads);
    let stuck = CallFault { call: "nvmlEventSetWait*".into(), hang: true, ..CallFault::default() };
    drill.change(|scenario| scenario.faults = vec![stuck]);
    drill.wait("the event thread hangs", |seen| seen.events_hang == [true]);
    drill.rounds(0, 10);
    assert!(drill.sample(0, "the GPU goes on", |_| true).power.get().is_some());
    assert!(matches!(drill.seen.source[..], [GpuSourceState::Working { .. }]), "{:?}", drill.seen.source);
    drill.change(|scenario| scenario.faults.clear());
    drill.wait("it returns", |seen| seen.events_hang == [true, false]);
    let uuid = drill.uuid(1);
    drill.change(|scenario| {
        scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(1), code: 79, event: 8, at_s: 0.0, mig: None }];
    });
    drill.wait("an event", |seen| seen.xids.iter().any(|xid| xid.gpu.as_ref() == Some(&uuid) && xid.code == 79));
}

#[test]
fn slow_registration_of_events_is_not_reported_as_hanging() {
    let slow = CallFault { call: "nvmlDeviceRegisterEvents".into(), latency_ms: 400, ..CallFault::default() };
    let mut drill = Drill::start(Scenario { faults: vec![slow], ..of(vec![fake_gpus("H100", 4)]) });
    drill.sample(3, "readings", reads);
    drill.change(|scenario| {
        scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(3), code: 79, event: 8, at_s: 0.0, mig: None }];
    });
    drill.wait("an event", |seen| !seen.xids.is_empty());
    assert!(drill.seen.events_hang.is_empty());
}
