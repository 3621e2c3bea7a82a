//! The identities of GPUs, and the connections between them.

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::code::Code;
use fake_nvml::profile::PROFILES;
use fake_nvml::scenario::{FakeGpu, FakeLink, LinkPath, List, Scenario};
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;

#[test]
fn each_model_has_its_name_memory_and_architecture() {
    let scenario = still(PROFILES.iter().map(|profile| fake_gpu(profile.model)).collect(), 0.0);
    let bench = Bench::new(&scenario);
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.device_count().unwrap(), u32::try_from(PROFILES.len()).unwrap());
    for (profile, index) in PROFILES.iter().zip(0..) {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.name().unwrap(), profile.name);
        assert_eq!(device.architecture().unwrap().as_c(), profile.architecture, "{}", profile.model);
        match (device.memory_info(), profile.model) {
            (Err(NvmlError::NotSupported), "GB10") => {}
            (memory, _) => assert_eq!(memory.unwrap().total, profile.memory_total),
        }
        assert_eq!(device.bar1_memory_info().is_ok(), profile.model != "GB10", "{}", profile.model);
    }
}

#[test]
fn a_gpu_is_found_by_index_uuid_and_bus_id() {
    let named = FakeGpu {
        uuid: Some("GPU-0a1b2c3d-0000-4000-8000-000000000007".into()),
        pci_bus_id: Some("00000000:65:00.0".into()),
        minor: Some(5),
        numa_node: Some(1),
        ..fake_gpu("A100")
    };
    let bench = Bench::new(&still(vec![fake_gpu("T4"), named], 0.0));
    let nvml = bench.load().unwrap();
    for device in [
        nvml.device_by_index(1).unwrap(),
        nvml.device_by_uuid("GPU-0a1b2c3d-0000-4000-8000-000000000007").unwrap(),
        nvml.device_by_pci_bus_id("0000:65:00.0").unwrap(),
    ] {
        assert_eq!(device.uuid().unwrap(), "GPU-0a1b2c3d-0000-4000-8000-000000000007");
        assert_eq!((device.index().unwrap(), device.minor_number().unwrap()), (1, 5));
        assert_eq!(device.numa_node_id().unwrap(), 1);
        let pci = device.pci_info().unwrap();
        assert_eq!((pci.bus_id.as_str(), pci.domain, pci.bus, pci.device), ("00000000:65:00.0", 0, 0x65, 0));
    }
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
}

#[test]
fn versions_are_those_of_the_file() {
    let scenario = Scenario { driver: "580.82.07".into(), cuda: 13_000, ..Scenario::default() };
    let bench = Bench::new(&scenario);
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.82.07");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "12.550.127.08");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
}

#[test]
fn sixteen_gpus_are_distinct() {
    let bench = Bench::new(&still(vec![FakeGpu { count: 16, ..fake_gpu("H100") }], 0.0));
    let nvml = bench.load().unwrap();
    let all = (0..16).map(|index| nvml.device_by_index(index).unwrap());
    let mut ids: Vec<_> = all.map(|device| (device.uuid().unwrap(), device.pci_info().unwrap().bus_id)).collect();
    ids.dedup_by(|one, other| one.0 == other.0 || one.1 == other.1);
    assert_eq!(ids.len(), 16);
}

#[test]
fn links_between_gpus_are_those_of_the_file() {
    let direct = FakeGpu { links: vec![FakeLink { peer: 1, path: LinkPath::Pix, nvlinks: 2 }], ..fake_gpu("V100") };
    let bench = Bench::new(&still(vec![direct, fake_gpu("V100"), FakeGpu { count: 2, ..fake_gpu("H100") }], 0.0));
    let nvml = bench.load().unwrap();
    let at = |index| nvml.device_by_index(index).unwrap();
    for (one, other, level) in [
        (0, 1, TopologyLevel::Single),
        (1, 0, TopologyLevel::Single),
        (2, 3, TopologyLevel::Node),
        (0, 3, TopologyLevel::System),
    ] {
        assert_eq!(at(one).topology_common_ancestor(at(other)).unwrap(), level, "{one} {other}");
    }
    let gpu = at(0);
    assert!(gpu.link_wrapper_for(1).is_active().unwrap());
    let far = gpu.link_wrapper_for(1).remote_pci_info().unwrap().bus_id;
    assert_eq!(far, at(1).pci_info().unwrap().bus_id);
    let switch = at(2).link_wrapper_for(17).remote_pci_info().unwrap().bus_id;
    assert!((0..4).all(|index| at(index).pci_info().unwrap().bus_id != switch));
    assert!(matches!(at(2).link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
}

#[test]
fn a_gpu_comes_goes_is_lost_and_returns() {
    let scenario = |present, lost| still(vec![fake_gpu("L4"), FakeGpu { present, lost, ..fake_gpu("L40S") }], 0.0);
    let bench = Bench::new(&scenario(false, false));
    let nvml = bench.load().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 1);
    bench.write(&scenario(true, false));
    eventually("the GPU appears", || nvml.device_count().unwrap() == 2);
    let device = nvml.device_by_index(1).unwrap();
    bench.write(&scenario(true, true));
    eventually("the GPU is lost", || matches!(device.memory_info(), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 2, "a lost GPU is still counted");
    bench.write(&scenario(true, false));
    eventually("the GPU is back", || device.memory_info().is_ok());
    bench.write(&scenario(false, false));
    eventually("the GPU is gone", || nvml.device_count().unwrap() == 1);
    assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
}

#[test]
fn with_the_list_of_init_a_new_gpu_is_seen_by_the_next_init_only() {
    let scenario = |count| Scenario { list: List::AtInit, ..still(vec![FakeGpu { count, ..fake_gpu("L4") }], 0.0) };
    let bench = Bench::new(&scenario(1));
    let nvml = bench.load().unwrap();
    bench.write(&Scenario { driver: "changed".into(), ..scenario(2) });
    eventually("the file is read", || nvml.sys_driver_version().unwrap() == "changed");
    assert_eq!(nvml.device_count().unwrap(), 1);
    assert_eq!(bench.load().unwrap().device_count().unwrap(), 2);
}

#[test]
fn a_newly_loaded_driver_needs_a_shutdown_for_every_init() {
    let scenario = |driver_epoch| Scenario { driver_epoch, log_calls: true, ..Scenario::default() };
    let bench = Bench::new(&scenario(0));
    let (first, second) = (bench.load().unwrap(), bench.load().unwrap());
    bench.write(&scenario(1));
    eventually("the driver has changed", || matches!(first.device_count(), Err(NvmlError::DriverNotLoaded)));
    assert!(second.shutdown().is_ok());
    let third = bench.load().unwrap();
    assert!(matches!(third.device_count(), Err(NvmlError::DriverNotLoaded)), "this nvmlInit was only counted");
    assert!(first.shutdown().is_ok() && third.shutdown().is_ok());
    assert_eq!(bench.load().unwrap().device_count().unwrap(), 1);
    assert_eq!(bench.calls("nvmlInit"), ["nvmlInit_v2"; 4]);
}

#[test]
fn init_returns_the_error_of_the_file() {
    let bench = Bench::new(&Scenario { init_error: Code::named("DRIVER_NOT_LOADED"), ..Scenario::default() });
    assert!(matches!(bench.load(), Err(NvmlError::DriverNotLoaded)));
    bench.write(&Scenario::default());
    eventually("the driver is loaded", || bench.load().is_ok());
}
