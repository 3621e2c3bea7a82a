//! Tests of the release of the driver for an operator: the agent closes the NVML library and opens it again later.

use super::{CallFault, Drill, Scenario, Which, XidEvent, fake_gpus, hang, of};
use crate::clock::monotonic;
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

fn released(drill: &Drill) -> bool {
    matches!(*drill.gate.seen().borrow(), DriverHold::Released { .. })
}

fn let_go(drill: &mut Drill) {
    drill.gate.release(monotonic().after(LONG));
    drill.wait("it is released", |seen| matches!(seen.source.last(), Some(GpuSourceState::Released { .. })));
    assert!(released(drill));
}

fn works(drill: &mut Drill) {
    drill.wait("it works again", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
}

#[test]
fn a_released_driver_has_no_open_file_and_everything_is_read_again_afterwards() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 2)]));
    drill.sample(1, "readings", |sample| reads(sample) && sample.gpm.sm_active.get().is_some());
    assert!(drill.fake.is_open_in(std::process::id()), "the fake holds its device file as the real library does");
    for round in 1..3 {
        let_go(&mut drill);
        assert!(!drill.fake.is_open_in(std::process::id()), "no session is left");
        drill.seen.samples.clear();
        drill.gate.take_back();
        works(&mut drill);
        for place in 0..2 {
            drill.sample(place, "readings", |sample| reads(sample) && sample.gpm.sm_active.get().is_some());
        }
        let uuid = drill.uuid(1);
        drill.change(|scenario| {
            scenario.xids.push(XidEvent { id: round, gpu: Which::Place(1), code: 79, event: 8, at_s: 0.0, mig: None });
        });
        drill.wait("events are heard again", |seen| {
            seen.xids.iter().filter(|xid| xid.gpu.as_ref() == Some(&uuid)).count() as u64 == round
        });
    }
    assert_eq!(drill.seen.gpus.as_ref().map(Vec::len), Some(2));
    assert!(drill.seen.samples.values().all(|sample| sample.temperature.absence() != Some(Absence::GpuLost)));
}

#[test]
fn the_driver_load_is_reported_each_time_that_the_driver_works() {
    let mut drill = Drill::prepare(of(vec![fake_gpus("H100", 1)]));
    let module = drill.path("sys/module/nvidia");
    std::fs::create_dir_all(&module).unwrap();
    drill.open();
    drill.sample(0, "readings", reads);
    for loaded_anew in [false, true] {
        let_go(&mut drill);
        if loaded_anew {
            // Both directories exist for a moment, so that they have different inodes.
            std::fs::create_dir(module.with_file_name("next")).unwrap();
            std::fs::remove_dir(&module).unwrap();
            std::fs::rename(module.with_file_name("next"), &module).unwrap();
        }
        drill.gate.take_back();
        works(&mut drill);
    }
    let [first, second, third] = drill.seen.loads[..] else { panic!("{:?}", drill.seen.loads) };
    assert_eq!(first, second);
    assert_ne!(second, third);
}

#[test]
fn a_release_ends_when_its_time_is_over() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 1)]));
    drill.sample(0, "readings", reads);
    let_go(&mut drill);
    drill.gate.release(monotonic().after(Duration::from_millis(20)));
    works(&mut drill);
    assert_eq!(*drill.gate.seen().borrow(), DriverHold::default());
    drill.sample(0, "readings", reads);
}

#[test]
fn a_session_that_was_opened_twice_is_closed_completely() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 1)]));
    drill.sample(0, "readings", reads);
    // The driver restarts while the library is open: every call answers that the library is not initialised, until it
    // is initialised again.
    let over = CallFault {
        call: "nvmlDeviceGetCount_v2".into(),
        error: Some(super::Code(1)),
        times: Some(1),
        ..CallFault::default()
    };
    drill.change(|scenario| scenario.faults = vec![over]);
    drill.wait("the session is over", |seen| {
        seen.source.iter().any(|state| matches!(state, GpuSourceState::Missing { .. }))
    });
    works(&mut drill);
    let_go(&mut drill);
    assert!(!drill.fake.is_open_in(std::process::id()));
}

#[test]
fn a_release_works_without_a_driver_and_ends_when_it_is_taken_back() {
    let mut drill = Drill::start(Scenario { init_error: Some(super::Code(9)), ..of(vec![fake_gpus("H100", 1)]) });
    drill.wait("no driver", |seen| matches!(seen.source.last(), Some(GpuSourceState::Missing { .. })));
    let_go(&mut drill);
    drill.change(|scenario| scenario.init_error = None);
    drill.gate.take_back();
    drill.sample(0, "readings", reads);
}

#[test]
fn the_release_of_a_hanging_driver_is_refused() {
    let mut drill = Drill::start(of(vec![fake_gpus("H100", 2)]));
    drill.sample(1, "readings", reads);
    drill.change(|scenario| scenario.faults = vec![hang("nvmlDeviceGetPowerUsage", 0)]);
    drill.sample(0, "one hangs", |sample| *sample == GpuSample::absent(Absence::CallHangs));
    drill.rounds(1, 2);
    drill.gate.release(monotonic().after(LONG));
    drill.wait("refused", {
        let seen = drill.gate.seen();
        move |_| matches!(*seen.borrow(), DriverHold::Held { refused: Some(_) })
    });
    drill.rounds(1, 2);
    assert!(!drill.seen.source.iter().any(|state| matches!(state, GpuSourceState::Released { .. })));
    drill.change(|scenario| scenario.faults.clear());
    drill.sample(0, "it returned", reads);
    let_go(&mut drill);
    assert!(!drill.fake.is_open_in(std::process::id()));
}
