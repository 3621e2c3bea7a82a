//! Tests of the readings that are made rarely: board data and limits, PCI errors, retired pages, each NVLink, fabric.

use super::{CallFault, FakeGpu, Harness, ReadingKind, Scenario, SickLink, fake_gpus, of, put, with};
use model::hardware::{FabricHealth, FabricState, LinkError, NvLink};
use model::unit::{Count, Watts};
use model::{Absence, Reading};
use std::sync::Arc;

fn text(reading: &Reading<Arc<str>>) -> Option<&str> {
    reading.value().map(|text| &**text)
}

#[test]
fn a_gpu_is_reported_with_its_board_data_limits_and_pci_slot() {
    let slow = with(fake_gpus("A100", 1), &[(ReadingKind::PcieGeneration, 3.0), (ReadingKind::PcieWidth, 8.0)]);
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1), slow, fake_gpus("vGPU", 1)]));
    let gpus = harness.until("the GPUs", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == 3));
    let board = &gpus[0].board;
    assert_eq!((text(&board.serial), text(&board.vbios)), (Some("1650023000000"), Some("96.00.74.00.1F")));
    assert_eq!(board.power_default.get(), Some(Watts(700.0)));
    assert_eq!((board.power_least.get(), board.power_most.get()), (Some(Watts(175.0)), Some(Watts(700.0))));
    assert_eq!((board.pcie_generation_most.get(), board.pcie_width_most.get()), (Some(5), Some(16)));
    let reported = harness.sample(1, "its slot", |sample| sample.hardware.pcie_width.get().is_some());
    assert_eq!((reported.hardware.pcie_generation.get(), reported.hardware.pcie_width.get()), (Some(3), Some(8)));
    let slice = &gpus[2].board;
    let absent = [slice.serial.absence(), slice.power_default.absence(), slice.pcie_width_most.absence()];
    assert_eq!(absent, [Some(Absence::NotSupported); 3]);
}

#[test]
fn pcie_errors_and_the_pci_path_from_the_kernel_are_reported() {
    let gpu = |slot: &str| FakeGpu { pci_bus_id: Some(slot.into()), ..fake_gpus("H100", 1) };
    let mut harness = Harness::prepare(of(vec![gpu("00000000:18:00.0"), gpu("00000000:19:00.0")]));
    let path = "pci0000:15/0000:15:01.0/0000:18:00.0";
    let slot = harness.path("sys/devices").join(path);
    put(&slot.join("aer_dev_correctable"), "RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n");
    put(&slot.join("aer_dev_nonfatal"), "Undefined 0\nTOTAL_ERR_NONFATAL 0\n");
    put(&slot.join("aer_dev_fatal"), "torn");
    let all = harness.path("sys/bus/pci/devices");
    std::fs::create_dir_all(&all).unwrap();
    std::os::unix::fs::symlink(format!("../../../devices/{path}"), all.join("0000:18:00.0")).unwrap();
    harness.open();
    let ready = |sample: &model::gpu::GpuSample| sample.hardware.pcie_errors.correctable != Reading::NOT_YET;
    let errors = harness.sample(0, "its errors", ready).hardware.pcie_errors;
    assert_eq!((errors.correctable.get(), errors.nonfatal.get()), (Some(Count(4)), Some(Count(0))));
    assert_eq!(errors.fatal.absence(), Some(Absence::Unreadable));
    let errors = harness.sample(1, "a GPU whose firmware handles them", ready).hardware.pcie_errors;
    assert_eq!(errors.correctable.absence(), Some(Absence::NoSuchFile));
    let gpus = harness.until("the GPUs", |seen| seen.gpus.clone());
    assert_eq!(text(&gpus[0].board.pci_path), Some(path));
    assert_eq!(gpus[1].board.pci_path.absence(), Some(Absence::NoSuchFile));
}

/// Board data is read once: every later call would fail in this test, and no reading shows a failure.
#[test]
fn board_data_is_read_only_once() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness
        .wait("the board data", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus[0].board.serial.value().is_some()));
    let calls = ["Serial", "VbiosVersion", "PowerManagementDefaultLimit", "MaxPcieLink*"];
    harness.change(|scenario| {
        let hangs = |call| CallFault { call: format!("nvmlDeviceGet{call}"), hang: true, ..CallFault::default() };
        scenario.faults = calls.map(hangs).into();
        // A new power limit changes the list, which proves that another round was made.
        scenario.gpus = vec![with(fake_gpus("H100", 1), &[(ReadingKind::PowerLimitWatts, 600.0)])];
    });
    let gpus = harness.until("a later inventory", |seen| {
        seen.gpus.clone().filter(|gpus| gpus[0].power_limit.get() == Some(Watts(600.0)))
    });
    assert_eq!(text(&gpus[0].board.serial), Some("1650023000000"));
    harness.rounds(0, 5);
}

#[test]
fn retired_pages_are_counted_by_cause_if_the_gpu_retires_pages() {
    let worn = [
        (ReadingKind::RetiredPagesSbe, 5.0),
        (ReadingKind::RetiredPagesDbe, 2.0),
        (ReadingKind::RetiredPagesPending, 1.0),
    ];
    let mut harness =
        Harness::start(of(vec![with(fake_gpus("V100", 1), &worn), fake_gpus("T4", 1), fake_gpus("A100", 1)]));
    let ready = |sample: &model::gpu::GpuSample| sample.hardware.retired.pending != Reading::NOT_YET;
    let retired = harness.sample(0, "V100", ready).hardware.retired;
    assert_eq!((retired.corrected.get(), retired.uncorrected.get()), (Some(Count(5)), Some(Count(2))));
    assert_eq!(retired.pending.get(), Some(true));
    let retired = harness.sample(1, "T4", ready).hardware.retired;
    assert_eq!(
        (retired.corrected.get(), retired.pending.get()),
        (Some(Count(0)), Some(false)),
        "no retired page is 0, not absent"
    );
    let retired = harness.sample(2, "A100", ready).hardware.retired;
    assert_eq!(retired.uncorrected.absence(), Some(Absence::NotSupported), "it remaps rows");
}

/// Errors of each kind, of one link.
fn errors(link: &NvLink) -> Vec<(&'static str, u64)> {
    let counted = |kind: LinkError| Some((kind.code(), link.errors(kind).get()?.0));
    LinkError::ALL.into_iter().filter_map(counted).collect()
}

fn sick(model: &str) -> FakeGpu {
    let link = SickLink {
        link: 3,
        down: true,
        crc_flit: 7,
        crc_data: 2,
        replay: 5,
        recovery: 3,
        recovery_failed: 1,
        received: 9,
        symbol: 40,
    };
    FakeGpu { nvlinks: vec![link], ..fake_gpus(model, 1) }
}

#[test]
fn nvlinks_are_reported_with_the_errors_that_their_generation_counts() {
    let scenario = of(vec![sick("V100"), sick("A100"), sick("H100"), sick("B200"), fake_gpus("L40S", 1)]);
    let mut harness = Harness::start(scenario);
    let older = [("crc_flit", 7), ("crc_data", 2), ("replay", 5), ("recovery", 3)];
    for (place, model, count, counted) in [
        (0, "V100", 6, &older[..]),
        (1, "A100", 12, &older[..]),
        (2, "H100", 18, &[("crc", 9), ("replay", 5), ("recovery", 3)]),
        (3, "B200", 18, &[("recovery", 3), ("recovery_failed", 1), ("received", 9), ("symbol", 40)]),
    ] {
        let sample = harness.sample(place, model, |sample| sample.hardware.nvlinks != Reading::NOT_YET);
        let links = sample.hardware.nvlinks.value().expect(model);
        assert_eq!(links.len(), count, "{model}: a link that is down is in the list");
        let down: Vec<u32> = links.iter().filter(|link| !link.up).map(|link| link.number).collect();
        assert_eq!(down, [3], "{model}");
        assert_eq!(errors(&links[3]), counted, "{model}");
        let well: Vec<_> = counted.iter().map(|(kind, _)| (*kind, 0)).collect();
        assert_eq!(errors(&links[4]), well, "{model}: 0 for each kind that is counted, and no other kind");
    }
    let none = harness.sample(4, "a GPU without links", |sample| sample.hardware.nvlinks != Reading::NOT_YET);
    assert_eq!(none.hardware.nvlinks.absence(), Some(Absence::NotSupported));
}

#[test]
fn the_fabric_is_reported_with_its_state_and_its_faults() {
    let scenario = |driver: &str| Scenario {
        driver: driver.into(),
        ..of(vec![
            with(
                fake_gpus("B200", 1),
                &[
                    (ReadingKind::FabricClique, 7.0),
                    (ReadingKind::FabricCluster, 4711.0),
                    (ReadingKind::FabricHealth, f64::from(0b1001)),
                    (ReadingKind::FabricSummary, 3.0),
                ],
            ),
            with(fake_gpus("H100", 1), &[(ReadingKind::FabricState, 1.0)]),
            fake_gpus("L40S", 1),
        ])
    };
    // The older driver does not know the newer structure.
    for (driver, summary) in [("570.86.15", Some(FabricHealth::LimitedCapacity)), ("550.127.08", None)] {
        let mut harness = Harness::start(scenario(driver));
        let reported = |harness: &mut Harness, place| {
            harness.sample(place, driver, |sample| sample.hardware.fabric != Reading::NOT_YET).hardware.fabric
        };
        let fabric = reported(&mut harness, 0).get().unwrap();
        assert_eq!((fabric.state, fabric.outcome, fabric.clique), (FabricState::Completed, 0, 7), "{driver}");
        assert_eq!((fabric.cluster, fabric.summary), (4711, summary), "{driver}");
        let faults: Vec<_> = fabric.faults().collect();
        assert_eq!(faults, [("degraded_bandwidth", true), ("route_recovery", false)], "{driver}");
        let waiting = reported(&mut harness, 1).get().unwrap();
        assert_eq!(waiting.state, FabricState::NotStarted, "{driver}: no fabric manager");
        assert_eq!(reported(&mut harness, 2).absence(), Some(Absence::NotSupported), "{driver}: in no fabric");
    }
}
