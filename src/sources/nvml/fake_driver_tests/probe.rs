//! The one look at the driver that `doctor` takes.

use super::{CallFault, Code, FakeNvml, Scenario, Which, fake_gpus};
use crate::nvml::probe::{NvmlFailure, NvmlProbe, probe};
use model::Absence;
use std::path::Path;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);

fn asked(scenario: &Scenario, uuids: &[&str], within: Duration) -> Result<NvmlProbe, NvmlFailure> {
    let directory = tempfile::tempdir().unwrap();
    let fake = FakeNvml::install(directory.path()).unwrap();
    fake.write(scenario).unwrap();
    let uuids = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
    let answer = probe(Some(fake.library().to_owned()), uuids, within);
    // A thread may still hang in the library, which reads the scenario of this folder.
    std::mem::forget(directory);
    answer
}

#[test]
fn the_probe_shows_versions_gpus_and_the_uuids_that_the_driver_does_not_know() {
    let lost = CallFault {
        call: "nvmlDeviceGetName".into(),
        gpu: Some(Which::Place(1)),
        error: Some(Code(15)),
        ..CallFault::default()
    };
    let scenario = Scenario { gpus: vec![fake_gpus("H100", 2)], faults: vec![lost], ..Scenario::default() };
    let seen = asked(&scenario, &["GPU-12345"], WITHIN).unwrap();
    assert_eq!((&*seen.driver, &*seen.nvml), ("550.127.08", "12.550.127.08"));
    let [Ok(first), Err(second)] = &seen.gpus[..] else { panic!("{seen:?}") };
    assert!(first.uuid.starts_with("GPU-") && first.name.contains("H100"), "{first:?}");
    assert_eq!(second.why, Absence::GpuLost);
    let [(uuid, why)] = &seen.unknown[..] else { panic!("{seen:?}") };
    assert_eq!((&**uuid, why.why), ("GPU-12345", Absence::Nvml(6)));
}

#[test]
fn a_library_that_cannot_be_used_gives_its_reason_and_a_hanging_driver_is_left_alone() {
    for (code, why) in [(9, Absence::DriverNotLoaded), (4, Absence::NoPermission)] {
        let scenario = Scenario { init_error: Some(Code(code)), ..Scenario::default() };
        assert_eq!(asked(&scenario, &[], WITHIN).unwrap_err().why, why);
    }
    let none = probe(Some(Path::new("/nonexistent/libnvidia-ml.so.1").to_owned()), Vec::new(), WITHIN);
    assert_eq!(none.unwrap_err().why, Absence::LibraryNotFound);
    let hangs = CallFault { call: "nvmlDeviceGetCount*".into(), hang: true, ..CallFault::default() };
    let scenario = Scenario { faults: vec![hangs], ..Scenario::default() };
    assert_eq!(asked(&scenario, &[], Duration::from_millis(300)).unwrap_err().why, Absence::CallHangs);
}
