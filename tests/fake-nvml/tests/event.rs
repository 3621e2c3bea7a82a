//! Each XID is delivered once, to an event set in which its GPU is registered.

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::scenario::{FakeGpu, Scenario, Which, XidEvent};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

fn with(xids: Vec<XidEvent>) -> Scenario {
    Scenario { xids, ..still(vec![FakeGpu { count: 2, ..fake_gpu("H100") }], 5.0) }
}

fn xid(id: u64, place: u32, code: u64) -> XidEvent {
    XidEvent { id, gpu: Which::Place(place), code, event: 8, at_s: 0.0, mig: None }
}

#[test]
fn each_xid_wakes_one_wait_and_never_another() {
    let bench = Bench::new(&with(vec![]));
    let nvml = bench.load().unwrap();
    let device = nvml.device_by_index(1).unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap());
    let set = set.map_err(|error| error.error).unwrap();
    assert!(matches!(set.wait(5), Err(NvmlError::Timeout)));
    std::thread::scope(|threads| {
        threads.spawn(|| bench.write(&with(vec![xid(1, 0, 13), xid(2, 1, 79)])));
        let event = set.wait(20_000).unwrap();
        assert_eq!(event.device.uuid().unwrap(), device.uuid().unwrap());
        assert!(matches!(event.event_data, Some(XidError::Value(79))), "{:?}", event.event_data);
    });
    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)), "only once, and no event of another GPU");
    bench.write(&with(vec![xid(2, 1, 79), XidEvent { at_s: 6.0, ..xid(3, 1, 48) }]));
    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)), "the same id again, and an event of a later second");
}

#[test]
fn a_set_with_a_lost_gpu_delivers_its_last_event_and_then_fails_for_all_gpus() {
    let lost = |xids| {
        let gpus = vec![FakeGpu { lost: true, ..fake_gpu("H100") }, fake_gpu("H100")];
        Scenario { xids, ..still(gpus, 5.0) }
    };
    let bench = Bench::new(&with(vec![]));
    let nvml = bench.load().unwrap();
    let register = |set, index| {
        let device = nvml.device_by_index(index).unwrap();
        device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error).unwrap()
    };
    let both = register(register(nvml.create_event_set().unwrap(), 0), 1);
    let well = register(nvml.create_event_set().unwrap(), 1);
    bench.write(&lost(vec![xid(1, 0, 79)]));
    eventually("the last event", || both.wait(0).is_ok());
    assert!(matches!(both.wait(20_000), Err(NvmlError::GpuLost)), "the wait fails at once");
    assert!(matches!(well.wait(20), Err(NvmlError::Timeout)), "a set without the lost GPU");
    bench.write(&with(vec![]));
    eventually("it answers again", || matches!(both.wait(0), Err(NvmlError::Timeout)));
}

#[test]
fn event_types_that_a_gpu_does_not_support_are_refused() {
    let bench = Bench::new(&still(vec![fake_gpu("H100"), fake_gpu("vGPU")], 0.0));
    let nvml = bench.load().unwrap();
    let types = nvml.device_by_index(0).unwrap().supported_event_types().unwrap();
    assert!(types.contains(EventTypes::CRITICAL_XID_ERROR));
    let set = nvml.create_event_set().unwrap();
    let refused = nvml.device_by_index(1).unwrap().register_events(EventTypes::CRITICAL_XID_ERROR, set);
    assert!(matches!(refused.map_err(|error| error.error), Err(NvmlError::NotSupported)));
}
