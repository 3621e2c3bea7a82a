//! Tests of every error of NVML, from calls and from opening the library.

use super::{CallFault, Code, FakeGpu, Harness, error, fake_gpus, of};
use lab::scenario::{List, MigSlot};
use model::Absence;
use model::gpu::{GpuSample, MigSample};
use model::observation::GpuSourceState;
use std::time::{Duration, Instant};

/// NVML's errors and their reasons, without "GPU is lost" (which has a test of its own).
const ERRORS: [(u32, Absence); 30] = [
    (1, Absence::Nvml(1)),
    (2, Absence::Nvml(2)),
    (3, Absence::NotSupported),
    (4, Absence::NoPermission),
    (5, Absence::Nvml(5)),
    (6, Absence::Nvml(6)),
    (7, Absence::Nvml(7)),
    (8, Absence::Nvml(8)),
    (9, Absence::DriverNotLoaded),
    (10, Absence::Nvml(10)),
    (11, Absence::Nvml(11)),
    (12, Absence::LibraryNotFound),
    (13, Absence::NotInThisDriver),
    (14, Absence::Nvml(14)),
    (16, Absence::ResetRequired),
    (17, Absence::NoPermission),
    (18, Absence::Nvml(18)),
    (19, Absence::Nvml(19)),
    (20, Absence::Nvml(20)),
    (21, Absence::Nvml(21)),
    (22, Absence::NotSupported),
    (23, Absence::Nvml(23)),
    (24, Absence::Nvml(24)),
    (25, Absence::NotInThisDriver),
    (26, Absence::NotInThisDriver),
    (27, Absence::Nvml(27)),
    (28, Absence::Nvml(28)),
    (29, Absence::Nvml(29)),
    (30, Absence::Nvml(30)),
    (999, Absence::Nvml(999)),
];

/// Promise 10 in docs/specification.md.
#[test]
fn every_error_of_a_call_is_the_reason_for_that_reading_only() {
    for errors in ERRORS.chunks(15) {
        let faults = (0..).zip(errors).map(|(gpu, (code, _))| error("nvmlDeviceGetPowerUsage", gpu, *code)).collect();
        let mut harness =
            Harness::start(super::Scenario { faults, ..of(vec![fake_gpus("H100", 15), fake_gpus("H100", 1)]) });
        for (place, (code, why)) in errors.iter().enumerate() {
            let sample = harness.sample(place, "a sample", |_| true);
            assert_eq!(sample.power.absence(), Some(*why), "NVML error {code}");
            assert!(sample.temperature.get().is_some() && sample.memory_used.get().is_some(), "NVML error {code}");
        }
        assert!(harness.sample(15, "the neighbour", |_| true).power.get().is_some());
    }
}

#[test]
fn a_failed_call_makes_only_its_own_reading_absent() {
    type Reason = fn(&GpuSample) -> Option<Absence>;
    let calls: [(&str, Option<Reason>); 16] = [
        ("nvmlDeviceGetMemoryInfo_v2", Some(|s| s.memory_used.absence())),
        ("nvmlDeviceGetTotalEnergyConsumption", Some(|s| s.energy.absence())),
        ("nvmlDeviceGetClockInfo", Some(|s| s.clock_sm.absence().and(s.clock_memory.absence()))),
        ("nvmlDeviceGetCurrentClocks*", Some(|s| s.throttle_reasons.absence())),
        ("nvmlDeviceGetTemperature", Some(|s| s.temperature.absence())),
        ("nvmlDeviceGetFieldValues", Some(|s| s.temperature_memory.absence().and(s.recovery.absence()))),
        ("nvmlDeviceGetPcieThroughput", Some(|s| s.pcie_tx.absence().and(s.pcie_rx.absence()))),
        ("nvmlDeviceGetPcieReplayCounter", Some(|s| s.pcie_replays.absence())),
        ("nvmlDeviceGetTotalEccErrors", Some(|s| s.ecc_volatile.corrected.absence())),
        ("nvmlDeviceGetRemappedRows", Some(|s| s.remapped.pending.absence())),
        ("nvmlDeviceGetPowerUsage", Some(|s| s.power.absence())),
        ("nvmlGpmSampleGet", Some(|s| s.gpm.sm_active.absence())),
        ("nvmlGpmQueryDeviceSupport", Some(|s| s.gpm.sm_active.absence())),
        // No reading depends on one of these calls alone, and none may become absent with it.
        ("nvmlDeviceGetEncoderUtilization", None),
        ("nvmlDeviceGetName", None),
        ("nvmlDeviceGetMigMode", None),
    ];
    let faults: Vec<CallFault> = (0..).zip(calls).map(|(gpu, (call, _))| error(call, gpu, 999)).collect();
    // A GPU without GPM, so that PCIe throughput is read by the plain call.
    let gpus = vec![fake_gpus("H100", 6), fake_gpus("A100", 1), fake_gpus("H100", 9)];
    let mut harness = Harness::start(super::Scenario { faults, ..of(gpus) });
    for (place, (call, reason)) in calls.iter().enumerate() {
        let sample = harness.sample(place, call, |sample| {
            sample.pcie_rx.absence() != Some(Absence::NotYet) && sample.gpm.sm_active.absence() != Some(Absence::NotYet)
        });
        if let Some(reason) = reason {
            assert_eq!(reason(&sample), Some(Absence::Nvml(999)), "{call}");
        }
        assert!(sample.utilization.get().is_some(), "{call}: {:?}", sample.utilization);
    }
}

/// Promise 10 in docs/specification.md.
#[test]
fn a_call_that_one_mig_instance_refuses_still_works_for_the_others() {
    let slots = ["1g.10gb", "2g.20gb", "1g.10gb"].map(|profile| MigSlot::Profile(profile.into()));
    let mut harness = Harness::start(of(vec![FakeGpu { mig: slots.to_vec(), ..fake_gpus("H100", 1) }]));
    let read = |mig: &MigSample| mig.memory_used.get().is_some() && mig.gpm.sm_active.get().is_some();
    let whole = harness.sample(0, "all three", |sample| sample.mig.len() == 3 && sample.mig.iter().all(read));
    let middle = whole.mig[1].uuid.to_string();
    for (call, part) in [("nvmlDeviceGetMemoryInfo_v2", 0), ("nvmlGpmMigSampleGet", 1)] {
        let gpu = Some(super::Which::Uuid(middle.clone()));
        harness.change(|scenario| {
            scenario.faults = vec![CallFault { call: call.into(), gpu, error: Some(Code(3)), ..CallFault::default() }];
        });
        let reasons = |mig: &MigSample| [mig.memory_used.absence(), mig.gpm.sm_active.absence()];
        let refused = Some(Absence::NotSupported);
        harness.sample(0, call, |sample| sample.mig.get(1).is_some_and(|mig| reasons(mig)[part] == refused));
        harness.rounds(0, 3);
        let sample = harness.sample(0, "the next", |_| true);
        assert!(read(&sample.mig[0]) && read(&sample.mig[2]), "{call}: {:?}", sample.mig);
        assert_eq!(reasons(&sample.mig[1])[part], refused, "{call}");
    }
}

#[test]
fn an_unidentified_gpu_is_reported_by_its_index_and_reason() {
    let faults = vec![error("nvmlDeviceGetUUID", 0, 4), error("nvmlDeviceGetHandleByIndex*", 0, 4)];
    let mut harness = Harness::start(super::Scenario { faults, ..of(vec![fake_gpus("H100", 2)]) });
    harness.wait("the other", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1 && gpus[0].index == 1));
    harness.wait("the one", |seen| seen.unidentified_reasons() == [(0, Absence::NoPermission)]);
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("both", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    harness.wait("none without a name", |seen| seen.unidentified.is_empty());
}

#[test]
fn a_gpu_lost_from_the_start_is_reported_with_its_pci_slot_and_does_not_hide_an_added_gpu() {
    let slot = |bus: &str| Some(format!("00000000:{bus}:00.0"));
    let folder = |harness: &Harness, bus: &str| harness.path(&format!("proc/driver/nvidia/gpus/0000:{bus}:00.0"));
    let well = FakeGpu { pci_bus_id: slot("65"), ..fake_gpus("H100", 1) };
    let lost = FakeGpu { pci_bus_id: slot("66"), lost: true, ..fake_gpus("H100", 1) };
    let later = FakeGpu { pci_bus_id: slot("67"), present: false, ..fake_gpus("L40S", 1) };
    let mut harness = Harness::prepare(super::Scenario { list: List::AtInit, ..of(vec![well, lost, later]) });
    for bus in ["65", "66"] {
        std::fs::create_dir_all(folder(&harness, bus)).unwrap();
    }
    harness.open();
    harness.wait("the lost one", |seen| seen.unidentified_reasons() == [(1, Absence::GpuLost)]);
    assert_eq!(harness.seen.unidentified[0].pci_bus_id.value().map(|slot| &**slot), Some("0000:66:00.0"));
    harness.sample(0, "its neighbour", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.gpus[2].present = true);
    std::fs::create_dir_all(folder(&harness, "67")).unwrap();
    harness.wait("the new one", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2 && gpus[1].index == 2));
    assert_eq!(harness.seen.unidentified_reasons(), [(1, Absence::GpuLost)]);
    harness.change(|scenario| scenario.gpus[1].lost = false);
    harness.wait("all", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 3) && seen.unidentified.is_empty());
}

/// Puts a GPU on the fake PCI bus.
fn on_bus(harness: &Harness, bus: &str) {
    let folder = harness.path(&format!("sys/bus/pci/devices/0000:{bus}:00.0"));
    super::put(&folder.join("vendor"), "0x10de\n");
    super::put(&folder.join("class"), "0x030200\n");
}

/// Promise 12 in docs/specification.md.
#[test]
fn a_gpu_that_the_machine_has_and_nvml_does_not_list_is_reported_until_it_is_listed() {
    let slot = |bus: &str| Some(format!("00000000:{bus}:00.0"));
    let well = FakeGpu { pci_bus_id: slot("65"), ..fake_gpus("H100", 1) };
    let later = FakeGpu { pci_bus_id: slot("66"), present: false, ..fake_gpus("H100", 1) };
    let mut harness = Harness::prepare(of(vec![well, later]));
    for bus in ["65", "66"] {
        on_bus(&harness, bus);
    }
    harness.open();
    harness.wait("the one that failed at its start", |seen| {
        seen.missing == [("0000:66:00.0".to_owned(), "not_initialised")]
    });
    let served = harness.path("proc/driver/nvidia/gpus/0000:66:00.0");
    std::fs::create_dir_all(&served).unwrap();
    harness.wait("the driver serves it", |seen| seen.missing == [("0000:66:00.0".to_owned(), "not_in_nvml")]);
    std::fs::remove_dir_all(harness.path("sys/bus/pci/devices/0000:66:00.0")).unwrap();
    harness.wait("it left the bus", |seen| seen.missing == [("0000:66:00.0".to_owned(), "not_on_bus")]);
    on_bus(&harness, "66");
    harness.change(|scenario| scenario.gpus[1].present = true);
    harness
        .wait("it is listed", |seen| seen.missing.is_empty() && seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    // A GPU that NVML counts but cannot identify may be the one that the bus has.
    harness.change(|scenario| scenario.gpus[1].lost = true);
    harness.sample(1, "lost", |sample| *sample == GpuSample::absent(Absence::GpuLost));
    harness.rounds(0, 12);
    assert!(harness.seen.missing.is_empty(), "it is known as a lost GPU: {:?}", harness.seen.missing);
}

/// Promise 13 in docs/specification.md.
#[test]
fn without_a_driver_the_reason_is_reported_and_opening_is_retried() {
    for (code, why, word) in [
        (9, Absence::DriverNotLoaded, "modprobe nvidia"),
        (4, Absence::NoPermission, "/dev/nvidiactl"),
        (18, Absence::Nvml(18), "restart gpu-steward"),
        (999, Absence::Nvml(999), "dmesg"),
    ] {
        let broken = super::Scenario { init_error: Some(Code(code)), ..of(vec![fake_gpus("H100", 1)]) };
        let mut harness = Harness::start(broken);
        let (reported, advice) = harness.until("the reason", |seen| match seen.source.first()? {
            GpuSourceState::Missing { why, advice } => Some((*why, advice.clone())),
            other => panic!("{other:?}"),
        });
        assert_eq!(reported, why);
        assert!(advice.contains(word) && advice.contains("libnvidia-ml.so.1"), "{advice}");
        if code == 9 {
            harness.change(|scenario| scenario.init_error = None);
            harness.wait("the driver", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
            harness.sample(0, "readings", |sample| sample.power.get().is_some());
        }
        assert!(harness.seen.source.len() <= 2, "each reason is reported once: {:?}", harness.seen.source);
    }
}

const OPENS: &str = "nvmlInit";
const CLOSES: &str = "nvmlShutdown";

/// A scenario whose calls are counted.
fn counted(gpus: Vec<FakeGpu>) -> super::Scenario {
    super::Scenario { log_calls: true, ..of(gpus) }
}

/// Promise 13 in docs/specification.md.
#[test]
fn a_library_that_cannot_count_gpus_is_closed_and_reopened_with_backoff() {
    for (code, why) in [(9, Absence::DriverNotLoaded), (1, Absence::Nvml(1)), (999, Absence::Nvml(999))] {
        let counts = CallFault { call: "nvmlDeviceGetCount*".into(), error: Some(Code(code)), ..CallFault::default() };
        let begun = Instant::now();
        let mut harness =
            Harness::start(super::Scenario { faults: vec![counts], ..counted(vec![fake_gpus("H100", 1)]) });
        let fake = harness.fake.clone();
        harness.wait("four attempts", |_| fake.called(&[OPENS]).len() >= 4);
        // The pauses between them are 100, 200 and 400 ms.
        assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
        let calls = fake.called(&[OPENS, CLOSES]);
        assert!(calls.iter().step_by(2).all(|call| call.starts_with(OPENS)), "{calls:?}");
        assert!(calls.iter().skip(1).step_by(2).all(|call| call == CLOSES), "{calls:?}");
        let states = &harness.seen.source[..];
        assert!(
            matches!(states, [GpuSourceState::Missing { why: reason, .. }] if *reason == why),
            "one reason is reported once: {states:?}"
        );
        harness.change(|scenario| scenario.faults.clear());
        harness.sample(0, "readings", |sample| sample.power.get().is_some());
        // A sample and the source's state travel separately, so the sample may come first.
        harness.wait("one more state, that it works", |seen| {
            matches!(seen.source[..], [_, GpuSourceState::Working { .. }])
        });
    }
}

#[test]
fn a_driver_that_is_reloaded_while_in_use_is_read_again() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", |sample| sample.power.get().is_some());
    for epoch in 1..4 {
        harness.change(|scenario| scenario.driver_epoch = epoch);
        let times = usize::try_from(epoch).unwrap();
        harness.wait("it is gone", |seen| seen.source.len() >= 2 * times);
        harness.wait("it is back", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
        harness.seen.samples.clear();
        for place in 0..2 {
            harness.sample(place, "readings", |sample| sample.power.get().is_some());
        }
    }
    assert_eq!(harness.seen.replaced, 0, "the library still fits");
}

/// Promise 13 in docs/specification.md.
#[test]
fn a_driver_that_is_updated_while_in_use_is_reported() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| (scenario.driver_epoch, scenario.init_error) = (1, Some(Code(18))));
    harness.wait("the report of the new driver", |seen| seen.replaced > 0);
    harness.wait("why", |seen| {
        matches!(seen.source.last(), Some(GpuSourceState::Missing { why: Absence::Nvml(18), advice })
            if advice.contains("was updated"))
    });
}

#[test]
fn a_library_that_never_matched_the_driver_is_retried() {
    let mut harness =
        Harness::start(super::Scenario { init_error: Some(Code(18)), ..counted(vec![fake_gpus("H100", 1)]) });
    let fake = harness.fake.clone();
    harness.wait("three attempts", |_| fake.called(&[OPENS]).len() >= 3);
    harness.change(|scenario| scenario.init_error = None);
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    // The first sample may come before the state of the source.
    harness.wait("the source works", |seen| seen.source.len() > 1);
    assert_eq!(harness.seen.replaced, 0);
    assert_eq!(harness.seen.source.len(), 2, "{:?}", harness.seen.source);
}

#[test]
fn a_gpu_that_refuses_every_call_is_called_in_every_round() {
    let refused = error("*", 1, 4);
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.faults = vec![refused]);
    harness.sample(1, "refused", |sample| sample.power.absence() == Some(Absence::NoPermission));
    harness.rounds(1, 3);
    harness.change(|scenario| scenario.faults.clear());
    // Not a minute later, as after a single refused call.
    harness.sample(1, "permitted", |sample| sample.power.get().is_some() && sample.memory_used.get().is_some());
}

#[test]
fn without_a_library_the_advice_names_the_file_that_was_tried() {
    let mut harness = Harness::prepare(super::Scenario::default());
    let nowhere = harness.path("nowhere/libnvidia-ml.so.1");
    harness.open_at(nowhere.clone());
    harness.wait("the reason", |seen| match seen.source.first() {
        Some(GpuSourceState::Missing { why: Absence::LibraryNotFound, advice }) => {
            advice.contains(nowhere.to_str().unwrap())
        }
        _ => false,
    });
}

#[test]
fn readings_are_absent_while_the_driver_is_unloaded() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    let gone = CallFault { call: "*".into(), error: Some(Code(9)), ..CallFault::default() };
    harness.change(|scenario| scenario.faults = vec![gone]);
    harness.wait("no driver", |seen| {
        matches!(seen.source.last(), Some(GpuSourceState::Missing { why: Absence::DriverNotLoaded, .. }))
    });
    harness.sample(0, "absent", |sample| *sample == GpuSample::absent(Absence::DriverNotLoaded));
    harness.change(|scenario| scenario.faults.clear());
    harness.wait("the driver", |seen| matches!(seen.source.last(), Some(GpuSourceState::Working { .. })));
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
}
