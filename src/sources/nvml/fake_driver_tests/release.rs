//! Tests of the release of the driver for an operator: the agent closes the NVML library and opens it again later.

use super::{CallFault, Harness, Scenario, Which, XidEvent, fake_gpus, hang, of};
use clock::monotonic;
use model::Absence;
use model::driver_hold::DriverHold;
use model::gpu::GpuSample;
use model::observation::GpuSourceState;
use std::time::Duration;

/// Longer than any test: only the test itself ends it.
const LONG: Duration = Duration::from_secs(600);

fn reads(sample: &GpuSample) -> bool {
    sample.power.get().is_some()
}

fn released(harness: &Harness) -> bool {
    matches!(*harness.gate.seen().borrow(), DriverHold::Released { .. })
}

fn release(harness: &mut Harness) {
    harness.gate.release(monotonic().after(LONG));
    harness.wait("it is released", |seen| matches!(seen.source.last(), Some(GpuSourceState::Released { .. })));
    assert!(released(harness));
}

fn works(harness: &mut Harness) {
    harness.wait("it works again", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
}

#[test]
fn a_released_driver_has_no_open_file_and_everything_is_read_again_afterwards() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", |sample| reads(sample) && sample.gpm.sm_active.get().is_some());
    assert!(harness.fake.is_open_in(std::process::id()), "the fake holds its device file as the real library does");
    for round in 1..3 {
        release(&mut harness);
        assert!(!harness.fake.is_open_in(std::process::id()), "no session is left");
        harness.seen.samples.clear();
        harness.gate.take_back();
        works(&mut harness);
        for place in 0..2 {
            harness.sample(place, "readings", |sample| reads(sample) && sample.gpm.sm_active.get().is_some());
        }
        let uuid = harness.uuid(1);
        harness.change(|scenario| {
            scenario.xids.push(XidEvent { id: round, gpu: Which::Place(1), code: 79, event: 8, at_s: 0.0, mig: None });
        });
        harness.wait("events are reported again", |seen| {
            seen.xids.iter().filter(|xid| xid.gpu.as_ref() == Some(&uuid)).count() as u64 == round
        });
    }
    assert_eq!(harness.seen.gpus.as_ref().map(Vec::len), Some(2));
    assert!(harness.seen.samples.values().all(|sample| sample.temperature.absence() != Some(Absence::GpuLost)));
}

#[test]
fn the_driver_load_is_reported_each_time_that_the_driver_works() {
    let mut harness = Harness::prepare(of(vec![fake_gpus("H100", 1)]));
    let module = harness.path("sys/module/nvidia");
    std::fs::create_dir_all(&module).unwrap();
    harness.open();
    harness.sample(0, "readings", reads);
    for loaded_anew in [false, true] {
        release(&mut harness);
        if loaded_anew {
            // Both directories exist for a moment, so that they have different inodes.
            std::fs::create_dir(module.with_file_name("next")).unwrap();
            std::fs::remove_dir(&module).unwrap();
            std::fs::rename(module.with_file_name("next"), &module).unwrap();
        }
        harness.gate.take_back();
        works(&mut harness);
    }
    let [first, second, third] = harness.seen.loads[..] else { panic!("{:?}", harness.seen.loads) };
    assert_eq!(first, second);
    assert_ne!(second, third);
}

#[test]
fn a_release_ends_when_its_time_is_over() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", reads);
    release(&mut harness);
    harness.gate.release(monotonic().after(Duration::from_millis(20)));
    works(&mut harness);
    assert_eq!(*harness.gate.seen().borrow(), DriverHold::default());
    harness.sample(0, "readings", reads);
}

#[test]
fn a_session_that_was_opened_twice_is_closed_completely() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", reads);
    // The driver restarts while the library is open: every call answers that the library is not initialised, until it
    // is initialised again.
    let over = CallFault {
        call: "nvmlDeviceGetCount_v2".into(),
        error: Some(super::Code(1)),
        times: Some(1),
        ..CallFault::default()
    };
    harness.change(|scenario| scenario.faults = vec![over]);
    harness.wait("the session is over", |seen| {
        seen.source.iter().any(|state| matches!(state, GpuSourceState::Missing { .. }))
    });
    works(&mut harness);
    release(&mut harness);
    assert!(!harness.fake.is_open_in(std::process::id()));
}

#[test]
fn a_release_works_without_a_driver_and_ends_when_it_is_taken_back() {
    let mut harness = Harness::start(Scenario { init_error: Some(super::Code(9)), ..of(vec![fake_gpus("H100", 1)]) });
    harness.wait("no driver", |seen| matches!(seen.source.last(), Some(GpuSourceState::Missing { .. })));
    release(&mut harness);
    harness.change(|scenario| scenario.init_error = None);
    harness.gate.take_back();
    harness.sample(0, "readings", reads);
}

#[test]
fn the_release_of_a_hanging_driver_is_refused() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", reads);
    harness.change(|scenario| scenario.faults = vec![hang("nvmlDeviceGetPowerUsage", 0)]);
    harness.sample(0, "one hangs", |sample| *sample == GpuSample::absent(Absence::CallHangs));
    harness.rounds(1, 2);
    harness.gate.release(monotonic().after(LONG));
    harness.wait("refused", {
        let seen = harness.gate.seen();
        move |_| matches!(*seen.borrow(), DriverHold::Held { refused: Some(_) })
    });
    harness.rounds(1, 2);
    assert!(!harness.seen.source.iter().any(|state| matches!(state, GpuSourceState::Released { .. })));
    harness.change(|scenario| scenario.faults.clear());
    harness.sample(0, "it returned", reads);
    release(&mut harness);
    assert!(!harness.fake.is_open_in(std::process::id()));
}
