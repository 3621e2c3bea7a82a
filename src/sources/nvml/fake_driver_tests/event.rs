//! Tests of driver errors (XIDs) from NVML and from the kernel log.

use super::{Code, FakeGpu, Harness, Which, XidEvent, fake_gpus, of};
use lab::scenario::MigSlot;
use model::Absence;
use model::gpu::{GpuSample, XidSeverity, XidSource};
use std::io::Write;

fn xid(id: u64, gpu: u32, code: u64, mig: Option<u32>) -> XidEvent {
    XidEvent { id, gpu: Which::Place(gpu), code, event: 8, at_s: 0.0, mig }
}

fn log(harness: &Harness, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(harness.path("kmsg")).unwrap();
    writeln!(file, "4,1,1,-;{line}").unwrap();
}

#[test]
fn an_xid_is_reported_once_for_its_gpu_although_two_sources_report_it() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    let uuid = harness.uuid(1);
    let slot = harness.until("its slot", |seen| seen.gpus.as_ref()?[1].pci_bus_id.value().cloned());
    harness.sample(1, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.xids = vec![xid(1, 1, 79, None)]);
    harness.wait("NVML's event", |seen| seen.xids.len() == 1);
    let reported = &harness.seen.xids[0];
    assert_eq!((reported.gpu.as_ref(), reported.code, reported.source), (Some(&uuid), 79, XidSource::Nvml));
    let place = slot[4..].trim_end_matches(".0").to_owned();
    log(&harness, &format!("NVRM: Xid (PCI:{place}): 79, pid=77, name=x, GPU has fallen off the bus."));
    log(&harness, &format!("NVRM: Xid (PCI:{place}): 63, pid=78, name=x, Row Remapper"));
    harness.wait("the log's other error", |seen| seen.xids.len() == 2);
    let reported = &harness.seen.xids[1];
    assert_eq!((reported.gpu.as_ref(), reported.code, reported.pid), (Some(&uuid), 63, Some(78)));
    assert_eq!(reported.source, XidSource::KernelLog);
    let named: Vec<_> = harness.seen.completed.iter().map(|xid| (xid.gpu.as_ref(), xid.code, xid.pid)).collect();
    assert_eq!(named, [(Some(&uuid), 79, Some(77))], "the process that NVML does not name");
    harness.change(|scenario| scenario.xids.push(xid(2, 0, 13, None)));
    harness.wait("the next event", |seen| seen.xids.len() == 3);
    assert_eq!(harness.seen.xids[2].code, 13, "and not 79 again");
}

#[test]
fn the_severity_in_the_log_completes_an_error_that_nvml_reports_first() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    let uuid = harness.uuid(1);
    let slot = harness.until("its slot", |seen| seen.gpus.as_ref()?[1].pci_bus_id.value().cloned());
    let place = slot[4..].trim_end_matches(".0").to_owned();
    harness.sample(1, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.xids = vec![xid(1, 1, 145, None), xid(2, 1, 13, None)]);
    harness.wait("the second event, which needs no severity", |seen| seen.xids.iter().any(|xid| xid.code == 13));
    assert_eq!(harness.seen.xids.len(), 1, "the first one waits for the log");
    log(&harness, &format!("NVRM: Xid (PCI:{place}): 145, RLW_RXPIPE"));
    log(&harness, "  Nonfatal XC0 i0 Link 13 (0x00000004 0x00000000)");
    harness.wait("the first one", |seen| seen.xids.len() == 2);
    let reported = &harness.seen.xids[1];
    assert_eq!((reported.gpu.as_ref(), reported.code), (Some(&uuid), 145));
    assert_eq!(reported.severity, Some(XidSeverity::Nonfatal));
    // Without a line in the log, the number decides, a little later.
    harness.change(|scenario| scenario.xids.push(xid(3, 0, 149, None)));
    harness.wait("an error that the log does not have", |seen| seen.xids.iter().any(|xid| xid.code == 149));
    assert_eq!((harness.seen.xids.len(), harness.seen.xids[2].severity), (3, None));
}

#[test]
fn the_severity_in_the_log_is_added_to_an_error_that_nvml_has_reported() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    let uuid = harness.uuid(0);
    let slot = harness.until("its slot", |seen| seen.gpus.as_ref()?[0].pci_bus_id.value().cloned());
    let place = slot[4..].trim_end_matches(".0").to_owned();
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.xids = vec![xid(1, 0, 48, None)]);
    harness.wait("NVML's event, whose number says that it is fatal", |seen| seen.xids.len() == 1);
    log(&harness, &format!("NVRM: Xid (PCI:{place}): 48, pid=77, Nonfatal error in a memory"));
    harness.wait("what the log adds", |seen| !seen.completed.is_empty());
    let added = &harness.seen.completed[0];
    assert_eq!((added.gpu.as_ref(), added.code), (Some(&uuid), 48));
    assert_eq!((added.pid, added.severity), (Some(77), Some(XidSeverity::Nonfatal)));
    assert_eq!(harness.seen.xids.len(), 1, "it is one error");
}

#[test]
fn a_gpu_that_is_lost_without_an_xid_is_reported_by_its_slot() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    for line in [
        "NVRM: The NVIDIA GPU 0000:17:00.0",
        "NVRM: (PCI ID: 10de:2330)",
        "NVRM: installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ] {
        log(&harness, line);
    }
    log(&harness, "NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.");
    harness.wait("both", |seen| seen.fell_off.len() == 2);
    assert_eq!(harness.seen.fell_off, ["00000000:17:00.0", "00000000:65:00.0"]);
}

#[test]
fn an_xid_in_a_mig_instance_is_reported_for_that_instance() {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    let gpu = FakeGpu { mig: vec![slot("3g.40gb"), slot("1g.10gb")], ..fake_gpus("H100", 1) };
    let mut harness = Harness::start(of(vec![gpu]));
    let gpus = harness.until("the GPU", |seen| seen.gpus.clone());
    harness.change(|scenario| scenario.xids = vec![xid(1, 0, 43, Some(1))]);
    harness.wait("the event", |seen| seen.xids.len() == 1);
    assert_eq!(harness.seen.xids[0].gpu.as_ref(), Some(&gpus[0].uuid));
    assert_eq!(harness.seen.xids[0].mig.as_ref(), Some(&gpus[0].instances()[1].uuid));
}

#[test]
fn a_gpu_that_refuses_events_does_not_stop_events_of_other_gpus() {
    let mut harness = Harness::start(of(vec![fake_gpus("vGPU", 1), fake_gpus("H100", 1)]));
    let uuid = harness.uuid(1);
    harness.change(|scenario| scenario.xids = vec![xid(1, 1, 31, None)]);
    harness.wait("the event", |seen| seen.xids.iter().any(|xid| xid.gpu.as_ref() == Some(&uuid) && xid.code == 31));
}

#[test]
fn a_lost_gpu_does_not_stop_events_of_other_gpus_and_its_own_events_return() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1), fake_gpus("H100", 1), fake_gpus("H100", 1)]));
    let gpus = [0, 1, 2].map(|place| harness.uuid(place));
    let reported_for = |seen: &super::Seen, place: usize, code| {
        seen.xids.iter().any(|xid| xid.gpu.as_ref() == Some(&gpus[place]) && xid.code == code)
    };
    // One event of each GPU is received, so all are in the set.
    harness.change(|scenario| scenario.xids = (0..3).map(|gpu| xid(gpu.into(), gpu, 13, None)).collect());
    harness.wait("an event of each GPU", |seen| (0..3).all(|place| reported_for(seen, place, 13)));
    harness.change(|scenario| {
        scenario.gpus[1].lost = true;
        scenario.xids = vec![xid(3, 1, 79, None)];
    });
    harness.wait("its last event", |seen| reported_for(seen, 1, 79));
    harness.sample(1, "lost", |sample| *sample == GpuSample::absent(Absence::GpuLost));
    harness.change(|scenario| scenario.xids = vec![xid(4, 0, 79, None), xid(5, 2, 48, None)]);
    harness.wait("the others", |seen| reported_for(seen, 0, 79) && reported_for(seen, 2, 48));
    assert!(harness.seen.events_fail.is_empty(), "the wait fails once, and the next one succeeds");
    harness.change(|scenario| {
        scenario.gpus[1].lost = false;
        scenario.xids = vec![xid(6, 1, 62, None)];
    });
    harness.wait("its events again", |seen| reported_for(seen, 1, 62));
}

#[test]
fn repeated_failures_of_the_event_wait_are_reported_until_one_succeeds() {
    let fails = |code| super::CallFault {
        call: "nvmlEventSetWait*".into(),
        error: Some(Code(code)),
        ..super::CallFault::default()
    };
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    harness.sample(1, "readings", |sample| sample.power.get().is_some());
    harness.change(|scenario| scenario.faults = vec![fails(999)]);
    harness.wait("the report of the failures", |seen| seen.events_fail.last() == Some(&true));
    assert!(harness.seen.failures >= 3, "each is counted: {}", harness.seen.failures);
    // Now the driver answers for every GPU that it is lost: all are tried again after a while.
    harness.change(|scenario| scenario.faults = vec![fails(15)]);
    let failures = harness.seen.failures;
    harness.wait("another failure", |seen| seen.failures > failures);
    harness.change(|scenario| {
        scenario.faults.clear();
        scenario.xids = vec![xid(1, 1, 79, None)];
    });
    harness.wait("an event", |seen| seen.xids.iter().any(|xid| xid.code == 79));
    harness.wait("the report of the success", |seen| seen.events_fail.last() == Some(&false));
}

#[test]
fn the_kernel_log_reports_xids_without_a_driver() {
    let broken = super::Scenario { init_error: Some(super::Code(9)), ..super::Scenario::default() };
    let mut harness = Harness::start(broken);
    harness.wait("no driver", |seen| !seen.source.is_empty());
    // Written again and again, because nothing shows when the reader has reached the end of the file.
    let path = harness.path("kmsg");
    harness.wait("the log's error", |seen| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "4,1,1,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.").unwrap();
        !seen.xids.is_empty()
    });
    let reported = &harness.seen.xids[0];
    assert_eq!((reported.gpu.as_ref(), reported.pci_bus_id.as_deref()), (None, Some("00000000:65:00.0")));
}

#[test]
fn errors_of_a_switch_are_reported_once_each() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1)]));
    harness.sample(0, "readings", |sample| sample.power.get().is_some());
    for line in [
        "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
        "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 22013, Data {0x0000002c, 0x0000002c}",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ] {
        log(&harness, line);
    }
    harness.wait("the second error", |seen| seen.sxids.iter().any(|sxid| sxid.fatal));
    let reported: Vec<_> = harness.seen.sxids.iter().map(|sxid| (&*sxid.switch, sxid.code, sxid.link)).collect();
    assert_eq!(reported, [("00000000:C4:00.0", 22_013, Some(44)), ("00000000:C1:00.0", 20_034, Some(30))]);
    assert!(harness.seen.xids.is_empty(), "they belong to no GPU");
}
