//! GPUs that appear, disappear, fail and come back.

use super::*;
use crate::fixtures;
use model::gpu::{XidSeverity, XidSource};
use model::incident::Incident;
use model::unit::{Bytes, Celsius};

const AT: Monotonic = Monotonic(1);

fn gpu(number: u32) -> Gpu {
    Gpu {
        pci_bus_id: Reading::Measured(format!("00000000:{number:02X}:00.0").into(), Monotonic(1)),
        memory_total: Reading::Measured(Bytes(80 << 30), Monotonic(1)),
        ..fixtures::gpu(number)
    }
}

fn healthy() -> GpuSample {
    GpuSample { temperature: Reading::Measured(Celsius(40), Monotonic(1)), ..GpuSample::default() }
}

#[test]
fn a_lost_gpu_is_found_by_its_slot_and_an_unknown_one_is_an_event_too() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(1), gpu(2)]);
    let events = gpus.fell_off(&"0000:02:00.0".into(), AT);
    let uuid = gpu(2).uuid;
    let said = NodeEvent::GpuFellOff { gpu: Some(uuid.clone()), pci_bus_id: "0000:02:00.0".into() };
    assert_eq!(events, [said, NodeEvent::GpuUnfit(uuid, Incident::FallenOff)]);
    let unknown = NodeEvent::GpuFellOff { gpu: None, pci_bus_id: "00000000:67:00.0".into() };
    assert_eq!(gpus.fell_off(&"00000000:67:00.0".into(), AT), [unknown]);
    let healthy: Vec<bool> = gpus.list.iter().map(|state| state.record.condition(&gpus.policy).fit()).collect();
    assert_eq!(healthy, [true, false]);
}

#[test]
fn a_missing_gpu_is_an_event_once_for_each_reason() {
    let missing = |in_driver| MissingGpu { pci_bus_id: "0000:65:00.0".into(), on_bus: true, in_driver, bound_to: None };
    let mut gpus = GpuStates::default();
    assert_eq!(gpus.set_missing(vec![missing(false)]), [NodeEvent::GpuMissing(missing(false))]);
    assert_eq!(gpus.set_missing(vec![missing(false)]), []);
    assert_eq!(gpus.set_missing(vec![missing(true)]), [NodeEvent::GpuMissing(missing(true))]);
    assert_eq!(gpus.set_missing(Vec::new()), [NodeEvent::GpuNotMissing("0000:65:00.0".into())]);
    gpus.set_missing(vec![missing(true)]);
    gpus.source(GpuSourceState::Missing { why: Absence::DriverNotLoaded, advice: "".into() }, AT);
    assert!(gpus.missing.is_empty(), "without a driver, no GPU is listed, and the log says so once");
}

fn xid(pci: &str) -> Xid {
    Xid {
        gpu: None,
        mig: None,
        pci_bus_id: Some(pci.into()),
        code: 79,
        severity: None,
        pid: None,
        pod: None,
        at: Monotonic(1),
        source: XidSource::KernelLog,
    }
}

#[test]
fn a_gpu_that_stops_answering_and_answers_again_gives_one_event_each() {
    let mut gpus = GpuStates::default();
    let uuid = gpu(0).uuid;
    assert_eq!(gpus.listed(vec![gpu(0)]).len(), 1);
    assert_eq!(gpus.read(&uuid, healthy(), AT), []);
    assert_eq!(
        gpus.read(&uuid, GpuSample::absent(Absence::GpuLost), AT),
        [
            NodeEvent::GpuSick(uuid.clone(), Absence::GpuLost),
            NodeEvent::GpuUnfit(uuid.clone(), Incident::Silent(Absence::GpuLost)),
        ]
    );
    assert_eq!(gpus.read(&uuid, GpuSample::absent(Absence::GpuLost), AT), []);
    assert_eq!(gpus.read(&uuid, healthy(), AT), [NodeEvent::GpuAnswers(uuid)]);
}

#[test]
fn hot_plug_keeps_the_neighbours_readings_and_counts() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(0), gpu(1)]);
    gpus.read(&gpu(1).uuid, healthy(), AT);
    gpus.xid(xid("0000:01:00"), AT);
    let events = gpus.listed(vec![gpu(2), gpu(1)]);
    assert_eq!(events.len(), 2, "one GPU appeared and one disappeared");
    assert_eq!(gpus.list[0].gpu.uuid, gpu(1).uuid, "ordered by index");
    assert_eq!(*gpus.list[0].sample, healthy());
    assert_eq!(gpus.list[0].xids, [(79, 1)].into());
}

#[test]
fn the_pci_addresses_of_kernel_and_nvml_name_the_same_gpu() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(0), gpu(0x65)]);
    let events = gpus.xid(xid("0000:65:00"), AT);
    assert!(matches!(&events[..], [NodeEvent::Xid(xid), NodeEvent::GpuUnfit(..)] if xid.gpu == Some(gpu(0x65).uuid)));
    for (address, expect) in
        [("0000:65:00", Some((0, 0x65, 0))), ("65:00", None), ("x:65:00", None), ("0:1:2:3", None), ("", None)]
    {
        assert_eq!(slot(address), expect, "{address}");
    }
}

#[test]
fn a_severity_that_the_log_states_later_decides_on_the_gpu() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(0)]);
    let from_nvml = || Xid { gpu: Some(gpu(0).uuid), code: 48, source: XidSource::Nvml, ..xid("0000:00:00") };
    let late = |severity| Xid { severity: Some(severity), ..from_nvml() };
    let unfit = |gpus: &GpuStates| !gpus.list[0].record.condition(&gpus.policy).fit();
    gpus.xid(from_nvml(), AT);
    assert!(unfit(&gpus), "its number says so");
    let events = gpus.xid_details(late(XidSeverity::Nonfatal), AT);
    assert_eq!(events, [NodeEvent::XidDetails(late(XidSeverity::Nonfatal)), NodeEvent::GpuFit(gpu(0).uuid)]);
    assert!(!unfit(&gpus));
    let last = gpus.list[0].last_xid.as_ref().and_then(|last| last.severity);
    assert_eq!((last, gpus.list[0].xid_count), (Some(XidSeverity::Nonfatal), 1), "the error is counted once");
    gpus.xid(from_nvml(), AT);
    assert_eq!(gpus.xid_details(late(XidSeverity::Fatal), AT).len(), 1, "as its number says");
    assert!(unfit(&gpus));
    let elsewhere = Xid { gpu: None, ..late(XidSeverity::Nonfatal) };
    assert_eq!(gpus.xid_details(elsewhere.clone(), AT), [NodeEvent::XidDetails(elsewhere)]);
}

/// Promise 4 in docs/specification.md.
#[test]
fn without_a_source_every_reading_is_absent_for_its_reason() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(0)]);
    gpus.read(&gpu(0).uuid, healthy(), AT);
    assert_eq!(gpus.source(GpuSourceState::Hanging, AT).len(), 1);
    assert_eq!(gpus.list[0].sample.temperature.absence(), Some(Absence::CallHangs));
    assert_eq!(gpus.source(GpuSourceState::Hanging, AT), [], "reported once");
}

#[test]
fn gpus_that_were_never_identified_are_kept_in_order_and_bounded() {
    let unidentified = |index| UnidentifiedGpu { index, pci_bus_id: Reading::NOT_YET, why: Absence::GpuLost };
    let mut gpus = GpuStates::default();
    gpus.set_unidentified(vec![unidentified(3), unidentified(1), unidentified(3)]);
    assert_eq!(gpus.unidentified, [unidentified(1), unidentified(3)]);
    gpus.source(GpuSourceState::Hanging, AT);
    assert!(gpus.unidentified.iter().all(|gpu| gpu.why == Absence::CallHangs), "for the reason of the source");
    gpus.set_unidentified((0..1000).map(unidentified).collect());
    assert_eq!(gpus.unidentified.len(), MAX_GPUS);
    gpus.set_unidentified(Vec::new());
    assert_eq!(gpus.unidentified, [], "an empty list replaces the old one");
}

/// Promise 33 in docs/specification.md.
#[test]
fn an_incident_of_one_gpu_makes_no_other_gpu_unfit() {
    let mut gpus = GpuStates::default();
    gpus.listed((0..4).map(gpu).collect());
    for number in 0..4 {
        gpus.read(&gpu(number).uuid, healthy(), AT);
    }
    gpus.xid(xid("0000:02:00"), AT);
    gpus.read(&gpu(3).uuid, GpuSample::absent(Absence::GpuLost), AT);
    let fit: Vec<bool> = gpus.list.iter().map(|state| state.record.condition(&gpus.policy).fit()).collect();
    assert_eq!(fit, [true, true, false, false]);
    gpus.xid(xid("0000:77:00"), AT);
    let still: Vec<bool> = gpus.list.iter().map(|state| state.record.condition(&gpus.policy).fit()).collect();
    assert_eq!(still, fit, "an error of an unknown GPU makes no GPU unfit");
}

#[test]
fn the_number_of_xid_codes_is_bounded() {
    let mut gpus = GpuStates::default();
    gpus.listed(vec![gpu(0)]);
    for code in 0..1000 {
        gpus.xid(Xid { code, ..xid("0000:00:00") }, AT);
    }
    assert_eq!((gpus.list[0].xids.len(), gpus.list[0].xid_count), (MAX_XID_CODES, 1000));
}

/// A sample from a driver that reports no recovery action.
fn without_recovery_action(second: u64) -> GpuSample {
    GpuSample { recovery: Reading::Absent(Absence::NotSupported), ..well_at(second) }
}

fn well_at(second: u64) -> GpuSample {
    GpuSample { temperature: Reading::Measured(Celsius(40), at(second)), ..GpuSample::default() }
}

fn at(second: u64) -> Monotonic {
    Monotonic(second * 1_000_000_000)
}

fn awaits(gpus: &GpuStates) -> Vec<bool> {
    gpus.list.iter().map(|state| state.record.condition(&gpus.policy).awaits_reset).collect()
}

/// Two GPUs, the second of which has had XID 95, with a driver that reports no recovery action.
fn two_gpus_one_unfit() -> GpuStates {
    let mut gpus = GpuStates::default();
    gpus.source(working(), at(1));
    gpus.listed(vec![gpu(0), gpu(1)]);
    for number in 0..2 {
        gpus.read(&gpu(number).uuid, without_recovery_action(1), at(1));
    }
    let events = gpus.xid(Xid { code: 95, ..xid("0000:01:00") }, at(2));
    assert!(events.contains(&NodeEvent::GpuAwaitsReset(gpu(1).uuid)), "{events:?}");
    assert_eq!(gpus.xid(Xid { code: 95, ..xid("0000:01:00") }, at(2)).len(), 1, "reported once");
    assert_eq!(awaits(&gpus), [false, true]);
    gpus
}

fn working() -> GpuSourceState {
    GpuSourceState::Working { driver: "535".into(), nvml: "12".into(), cuda: None, simulated: false }
}

#[test]
fn a_gpu_that_left_the_drivers_list_and_comes_back_was_reset() {
    let mut gpus = two_gpus_one_unfit();
    gpus.listed(vec![gpu(0)]);
    assert_eq!(gpus.kept().len(), 1, "the incident is kept while the GPU is absent");
    gpus.listed(vec![gpu(0), gpu(1)]);
    gpus.read(&gpu(1).uuid, without_recovery_action(3), at(3));
    assert_eq!(awaits(&gpus), [false, false]);
    let condition = gpus.list[1].record.condition(&gpus.policy);
    assert_eq!(condition.fit_at, Some(at(2).after(gpus.policy.quiet)), "the quiet period still counts");
}

#[test]
fn a_gpu_that_was_unidentified_for_a_while_was_not_reset() {
    let mut gpus = two_gpus_one_unfit();
    gpus.set_unidentified(vec![UnidentifiedGpu { index: 1, pci_bus_id: Reading::NOT_YET, why: Absence::CallHangs }]);
    gpus.listed(vec![gpu(0)]);
    gpus.set_unidentified(Vec::new());
    gpus.listed(vec![gpu(0), gpu(1)]);
    gpus.read(&gpu(1).uuid, without_recovery_action(3), at(3));
    assert_eq!(awaits(&gpus), [false, true]);
}

#[test]
fn a_driver_reload_resets_every_gpu_and_a_failed_library_resets_none() {
    let missing = |why| GpuSourceState::Missing { why, advice: "".into() };
    for (why, expect) in
        [(Absence::LibraryNotFound, true), (Absence::Nvml(18), true), (Absence::DriverNotLoaded, false)]
    {
        let mut gpus = two_gpus_one_unfit();
        gpus.source(missing(why), at(3));
        gpus.source(GpuSourceState::Hanging, at(4));
        gpus.source(working(), at(5));
        gpus.read(&gpu(1).uuid, without_recovery_action(6), at(6));
        assert_eq!(awaits(&gpus), [false, expect], "{why:?}");
    }
}

/// NVML was released, or the agent did not run: the driver is loaded again, with another load number than before.
#[test]
fn another_driver_load_resets_every_gpu_even_if_none_was_read() {
    for (loads, expect) in [(&[4, 4][..], true), (&[4, 5], false), (&[], true)] {
        let mut gpus = two_gpus_one_unfit();
        for load in loads {
            gpus.source(GpuSourceState::Released { until: at(9) }, at(3));
            gpus.driver_loaded(*load);
            gpus.source(working(), at(5));
        }
        gpus.read(&gpu(1).uuid, without_recovery_action(6), at(6));
        assert_eq!(awaits(&gpus), [false, expect], "{loads:?}");
    }
    let mut before = two_gpus_one_unfit();
    before.driver_loaded(4);
    for (load, expect) in [(4, true), (5, false)] {
        let mut gpus = GpuStates::restored(HealthPolicy::default(), &before.kept(), at(1000));
        gpus.driver_loaded(load);
        gpus.listed(vec![gpu(0), gpu(1)]);
        gpus.read(&gpu(1).uuid, without_recovery_action(1001), at(1001));
        assert_eq!(awaits(&gpus), [false, expect], "{load}");
    }
}

#[test]
fn saved_incidents_apply_only_to_the_gpu_with_their_uuid() {
    let kept = two_gpus_one_unfit().kept();
    let twice = [kept.clone(), kept.clone()].concat();
    let mut gpus = GpuStates::restored(HealthPolicy::default(), &twice, at(1000));
    assert_eq!(gpus.kept(), kept, "before any GPU is listed");
    gpus.listed(vec![gpu(0), gpu(1)]);
    for number in 0..2 {
        gpus.read(&gpu(number).uuid, without_recovery_action(1001), at(1001));
    }
    assert_eq!(awaits(&gpus), [false, true]);
    assert_eq!(gpus.kept(), kept);
    // A GPU that is missing from the first list may have been removed; it certainly was if it appears later.
    let mut gpus = GpuStates::restored(HealthPolicy::default(), &kept, at(1000));
    gpus.listed(vec![gpu(0)]);
    gpus.listed(vec![gpu(0), gpu(1)]);
    gpus.read(&gpu(1).uuid, without_recovery_action(1001), at(1001));
    assert_eq!(awaits(&gpus), [false, false]);
}

#[test]
fn an_operator_clears_one_gpu_or_all_and_gets_the_remaining_incidents() {
    let uuid = |number| gpu(number).uuid;
    let mut gpus = two_gpus_one_unfit();
    gpus.listed(vec![gpu(0), gpu(1), gpu(2)]);
    assert_eq!(gpus.clear(Some(&uuid(0))), (vec![], vec![]));
    assert_eq!(gpus.clear(Some(&uuid(7))), (vec![], vec![]));
    let (cleared, events) = gpus.clear(Some(&uuid(1)));
    assert_eq!((cleared, events), (vec![(uuid(1), GpuCondition::default())], vec![NodeEvent::GpuFit(uuid(1))]));
    let mut gpus = two_gpus_one_unfit();
    gpus.read(&uuid(1), GpuSample::absent(Absence::GpuLost), at(3));
    let (cleared, events) = gpus.clear(None);
    assert_eq!(events, []);
    assert_eq!(cleared[0].1.incidents, [(Incident::Silent(Absence::GpuLost), at(3))]);
    assert_eq!(gpus.kept(), []);
    let mut gpus = two_gpus_one_unfit();
    gpus.listed(vec![gpu(0)]);
    assert_eq!(gpus.clear(None).0, [(uuid(1), GpuCondition::default())], "a GPU that is not listed, too");
    assert_eq!(gpus.kept(), []);
}

#[test]
fn a_released_driver_changes_the_health_of_no_gpu() {
    let mut gpus = two_gpus_one_unfit();
    gpus.read(&gpu(0).uuid, GpuSample { remapped: pending(), ..without_recovery_action(3) }, at(3));
    let health = |gpus: &GpuStates| -> Vec<_> {
        gpus.list
            .iter()
            .map(|state| (state.record.health(&state.sample), state.record.condition(&gpus.policy)))
            .collect()
    };
    let before = health(&gpus);
    assert!(!before[0].1.fit() && before[1].1.awaits_reset);
    let mut healthy = GpuStates::default();
    healthy.listed(vec![gpu(2)]);
    healthy.read(&gpu(2).uuid, without_recovery_action(3), at(3));
    for gpus in [&mut gpus, &mut healthy] {
        let before = health(gpus);
        let events = gpus.source(GpuSourceState::Released { until: at(64) }, at(4));
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(gpus.list.iter().all(|state| state.sample.memory_used.absence() == Some(Absence::Released)));
        assert_eq!(health(gpus), before);
        gpus.source(working(), at(65));
        assert_eq!(health(gpus), before);
    }
    assert!(health(&healthy)[0].1.fit());
}

fn pending() -> model::gpu::RemappedRows {
    model::gpu::RemappedRows { pending: Reading::Measured(true, at(3)), ..model::gpu::RemappedRows::default() }
}
