//! GPUs that appear, disappear, fail and come back.

use super::*;
use crate::unread;
use model::gpu::XidSource;
use model::incident::Incident;
use model::unit::{Bytes, Celsius};

const AT: Monotonic = Monotonic(1);

fn gpu(number: u32) -> Gpu {
    Gpu {
        pci_bus_id: Reading::Measured(format!("00000000:{number:02X}:00.0").into(), Monotonic(1)),
        memory_total: Reading::Measured(Bytes(80 << 30), Monotonic(1)),
        ..unread::gpu(number)
    }
}

fn well() -> GpuSample {
    GpuSample { temperature: Reading::Measured(Celsius(40), Monotonic(1)), ..GpuSample::default() }
}

fn xid(pci: &str) -> Xid {
    Xid {
        gpu: None,
        mig: None,
        pci_bus_id: Some(pci.into()),
        code: 79,
        pid: None,
        pod: None,
        at: Monotonic(1),
        source: XidSource::KernelLog,
    }
}

#[test]
fn a_gpu_that_falls_silent_and_answers_again_is_reported_once_each() {
    let mut cards = GpuStates::default();
    let uuid = gpu(0).uuid;
    assert_eq!(cards.listed(vec![gpu(0)]).len(), 1);
    assert_eq!(cards.read(&uuid, well(), AT), []);
    assert_eq!(
        cards.read(&uuid, GpuSample::absent(Absence::GpuLost), AT),
        [
            NodeEvent::GpuSick(uuid.clone(), Absence::GpuLost),
            NodeEvent::GpuCondemned(uuid.clone(), Incident::Silent(Absence::GpuLost)),
        ]
    );
    assert_eq!(cards.read(&uuid, GpuSample::absent(Absence::GpuLost), AT), []);
    assert_eq!(cards.read(&uuid, well(), AT), [NodeEvent::GpuWell(uuid)]);
}

#[test]
fn hot_plug_keeps_the_neighbours_readings_and_counts() {
    let mut cards = GpuStates::default();
    cards.listed(vec![gpu(0), gpu(1)]);
    cards.read(&gpu(1).uuid, well(), AT);
    cards.xid(xid("0000:01:00"), AT);
    let remarks = cards.listed(vec![gpu(2), gpu(1)]);
    assert_eq!(remarks.len(), 2, "one came, one went");
    assert_eq!(cards.cards[0].gpu.uuid, gpu(1).uuid, "ordered by index");
    assert_eq!(*cards.cards[0].sample, well());
    assert_eq!(cards.cards[0].xids, [(79, 1)].into());
}

#[test]
fn the_kernels_address_and_nvmls_are_one_slot() {
    let mut cards = GpuStates::default();
    cards.listed(vec![gpu(0), gpu(0x65)]);
    let remarks = cards.xid(xid("0000:65:00"), AT);
    assert!(
        matches!(&remarks[..], [NodeEvent::Xid(told), NodeEvent::GpuCondemned(..)] if told.gpu == Some(gpu(0x65).uuid))
    );
    for (address, expect) in
        [("0000:65:00", Some((0, 0x65, 0))), ("65:00", None), ("x:65:00", None), ("0:1:2:3", None), ("", None)]
    {
        assert_eq!(slot(address), expect, "{address}");
    }
}

/// Promise 4 in docs/specification.md.
#[test]
fn without_a_source_every_reading_is_absent_for_its_reason() {
    let mut cards = GpuStates::default();
    cards.listed(vec![gpu(0)]);
    cards.read(&gpu(0).uuid, well(), AT);
    assert_eq!(cards.source(GpuSourceState::Hanging, AT).len(), 1);
    assert_eq!(cards.cards[0].sample.temperature.absence(), Some(Absence::CallHangs));
    assert_eq!(cards.source(GpuSourceState::Hanging, AT), [], "said once");
}

#[test]
fn gpus_that_were_never_identified_are_kept_in_order_and_bounded() {
    let nameless = |index| UnidentifiedGpu { index, pci_bus_id: Reading::NOT_YET, why: Absence::GpuLost };
    let mut cards = GpuStates::default();
    cards.nameless(vec![nameless(3), nameless(1), nameless(3)]);
    assert_eq!(cards.unidentified, [nameless(1), nameless(3)]);
    cards.source(GpuSourceState::Hanging, AT);
    assert!(cards.unidentified.iter().all(|gpu| gpu.why == Absence::CallHangs), "the source's reason is theirs");
    cards.nameless((0..1000).map(nameless).collect());
    assert_eq!(cards.unidentified.len(), MAX_GPUS);
    cards.nameless(Vec::new());
    assert_eq!(cards.unidentified, [], "identified after all, or gone");
}

/// Promise 33 in docs/specification.md.
#[test]
fn an_incident_of_one_gpu_makes_no_other_gpu_unfit() {
    let mut cards = GpuStates::default();
    cards.listed((0..4).map(gpu).collect());
    for number in 0..4 {
        cards.read(&gpu(number).uuid, well(), AT);
    }
    cards.xid(xid("0000:02:00"), AT);
    cards.read(&gpu(3).uuid, GpuSample::absent(Absence::GpuLost), AT);
    let fit: Vec<bool> = cards.cards.iter().map(|card| card.record.condition(&cards.policy).fit()).collect();
    assert_eq!(fit, [true, true, false, false]);
    cards.xid(xid("0000:77:00"), AT);
    let still: Vec<bool> = cards.cards.iter().map(|card| card.record.condition(&cards.policy).fit()).collect();
    assert_eq!(still, fit, "an error of no known card condemns none");
}

#[test]
fn codes_of_xids_are_bounded() {
    let mut cards = GpuStates::default();
    cards.listed(vec![gpu(0)]);
    for code in 0..1000 {
        cards.xid(Xid { code, ..xid("0000:00:00") }, AT);
    }
    assert_eq!((cards.cards[0].xids.len(), cards.cards[0].xid_count), (MAX_XID_CODES, 1000));
}

/// A sample from a driver that reports no recovery action.
fn mute(second: u64) -> GpuSample {
    GpuSample { recovery: Reading::Absent(Absence::NotSupported), ..well_at(second) }
}

fn well_at(second: u64) -> GpuSample {
    GpuSample { temperature: Reading::Measured(Celsius(40), at(second)), ..GpuSample::default() }
}

fn at(second: u64) -> Monotonic {
    Monotonic(second * 1_000_000_000)
}

fn awaits(cards: &GpuStates) -> Vec<bool> {
    cards.cards.iter().map(|card| card.record.condition(&cards.policy).awaits_reset).collect()
}

/// Two GPUs, the second of which has had XID 95, with a driver that reports no recovery action.
fn one_condemned() -> GpuStates {
    let mut cards = GpuStates::default();
    cards.source(working(), at(1));
    cards.listed(vec![gpu(0), gpu(1)]);
    for number in 0..2 {
        cards.read(&gpu(number).uuid, mute(1), at(1));
    }
    let remarks = cards.xid(Xid { code: 95, ..xid("0000:01:00") }, at(2));
    assert!(remarks.contains(&NodeEvent::GpuAwaitsReset(gpu(1).uuid)), "{remarks:?}");
    assert_eq!(cards.xid(Xid { code: 95, ..xid("0000:01:00") }, at(2)).len(), 1, "told once");
    assert_eq!(awaits(&cards), [false, true]);
    cards
}

fn working() -> GpuSourceState {
    GpuSourceState::Working { driver: "535".into(), nvml: "12".into(), cuda: None, simulated: false }
}

#[test]
fn a_gpu_that_left_the_drivers_list_and_comes_back_was_reset() {
    let mut cards = one_condemned();
    cards.listed(vec![gpu(0)]);
    assert_eq!(cards.kept().len(), 1, "it is not forgotten meanwhile");
    cards.listed(vec![gpu(0), gpu(1)]);
    cards.read(&gpu(1).uuid, mute(3), at(3));
    assert_eq!(awaits(&cards), [false, false]);
    let condition = cards.cards[1].record.condition(&cards.policy);
    assert_eq!(condition.fit_at, Some(at(2).after(cards.policy.quiet)), "quiet is waited for as ever");
}

#[test]
fn a_gpu_that_could_not_be_made_out_for_a_while_was_not_reset() {
    let mut cards = one_condemned();
    cards.nameless(vec![UnidentifiedGpu { index: 1, pci_bus_id: Reading::NOT_YET, why: Absence::CallHangs }]);
    cards.listed(vec![gpu(0)]);
    cards.nameless(Vec::new());
    cards.listed(vec![gpu(0), gpu(1)]);
    cards.read(&gpu(1).uuid, mute(3), at(3));
    assert_eq!(awaits(&cards), [false, true]);
}

#[test]
fn a_driver_that_was_loaded_again_has_reset_every_gpu_and_a_library_that_failed_none() {
    let missing = |why| GpuSourceState::Missing { why, advice: "".into() };
    for (why, expect) in
        [(Absence::LibraryNotFound, true), (Absence::Nvml(18), true), (Absence::DriverNotLoaded, false)]
    {
        let mut cards = one_condemned();
        cards.source(missing(why), at(3));
        cards.source(GpuSourceState::Hanging, at(4));
        cards.source(working(), at(5));
        cards.read(&gpu(1).uuid, mute(6), at(6));
        assert_eq!(awaits(&cards), [false, expect], "{why:?}");
    }
}

/// NVML was released, or the agent did not run: the driver is loaded again, with another load number than before.
#[test]
fn a_newly_loaded_driver_has_reset_every_gpu_even_if_none_was_read() {
    for (loads, expect) in [(&[4, 4][..], true), (&[4, 5], false), (&[], true)] {
        let mut cards = one_condemned();
        for load in loads {
            cards.source(GpuSourceState::Released { until: at(9) }, at(3));
            cards.driver_loaded(*load);
            cards.source(working(), at(5));
        }
        cards.read(&gpu(1).uuid, mute(6), at(6));
        assert_eq!(awaits(&cards), [false, expect], "{loads:?}");
    }
    let mut before = one_condemned();
    before.driver_loaded(4);
    for (load, expect) in [(4, true), (5, false)] {
        let mut cards = GpuStates::restored(HealthPolicy::default(), &before.kept(), at(1000));
        cards.driver_loaded(load);
        cards.listed(vec![gpu(0), gpu(1)]);
        cards.read(&gpu(1).uuid, mute(1001), at(1001));
        assert_eq!(awaits(&cards), [false, expect], "{load}");
    }
}

#[test]
fn what_was_kept_is_held_against_the_gpu_that_comes_and_no_other() {
    let kept = one_condemned().kept();
    let twice = [kept.clone(), kept.clone()].concat();
    let mut cards = GpuStates::restored(HealthPolicy::default(), &twice, at(1000));
    assert_eq!(cards.kept(), kept, "before any GPU is listed");
    cards.listed(vec![gpu(0), gpu(1)]);
    for number in 0..2 {
        cards.read(&gpu(number).uuid, mute(1001), at(1001));
    }
    assert_eq!(awaits(&cards), [false, true]);
    assert_eq!(cards.kept(), kept);
    // A GPU that is missing from the first list may have been removed; it certainly was if it appears later.
    let mut cards = GpuStates::restored(HealthPolicy::default(), &kept, at(1000));
    cards.listed(vec![gpu(0)]);
    cards.listed(vec![gpu(0), gpu(1)]);
    cards.read(&gpu(1).uuid, mute(1001), at(1001));
    assert_eq!(awaits(&cards), [false, false]);
}

#[test]
fn an_operator_clears_one_gpu_or_all_and_gets_the_remaining_incidents() {
    let uuid = |number| gpu(number).uuid;
    let mut cards = one_condemned();
    cards.listed(vec![gpu(0), gpu(1), gpu(2)]);
    assert_eq!(cards.clear(Some(&uuid(0))), (vec![], vec![]));
    assert_eq!(cards.clear(Some(&uuid(7))), (vec![], vec![]));
    let (cleared, remarks) = cards.clear(Some(&uuid(1)));
    assert_eq!((cleared, remarks), (vec![(uuid(1), GpuCondition::default())], vec![NodeEvent::GpuFit(uuid(1))]));
    let mut cards = one_condemned();
    cards.read(&uuid(1), GpuSample::absent(Absence::GpuLost), at(3));
    let (cleared, remarks) = cards.clear(None);
    assert_eq!(remarks, []);
    assert_eq!(cleared[0].1.incidents, [(Incident::Silent(Absence::GpuLost), at(3))]);
    assert_eq!(cards.kept(), []);
    let mut cards = one_condemned();
    cards.listed(vec![gpu(0)]);
    assert_eq!(cards.clear(None).0, [(uuid(1), GpuCondition::default())], "one that is not listed as well");
    assert_eq!(cards.kept(), []);
}

#[test]
fn while_the_driver_is_let_go_of_every_gpu_stays_as_it_was() {
    let mut cards = one_condemned();
    cards.read(&gpu(0).uuid, GpuSample { remapped: pending(), ..mute(3) }, at(3));
    let health = |cards: &GpuStates| -> Vec<_> {
        cards
            .cards
            .iter()
            .map(|card| (card.record.health(&card.sample), card.record.condition(&cards.policy)))
            .collect()
    };
    let before = health(&cards);
    assert!(!before[0].1.fit() && before[1].1.awaits_reset);
    let mut well = GpuStates::default();
    well.listed(vec![gpu(2)]);
    well.read(&gpu(2).uuid, mute(3), at(3));
    for cards in [&mut cards, &mut well] {
        let before = health(cards);
        let remarks = cards.source(GpuSourceState::Released { until: at(64) }, at(4));
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        assert!(cards.cards.iter().all(|card| card.sample.memory_used.absence() == Some(Absence::Released)));
        assert_eq!(health(cards), before);
        cards.source(working(), at(65));
        assert_eq!(health(cards), before);
    }
    assert!(health(&well)[0].1.fit());
}

fn pending() -> model::gpu::RemappedRows {
    model::gpu::RemappedRows { pending: Reading::Measured(true, at(3)), ..model::gpu::RemappedRows::default() }
}
