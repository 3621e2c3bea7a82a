//! Tests of the identities of GPUs and MIG instances, and of GPUs that come, go or are lost.

use super::{FakeGpu, Harness, Scenario, Which, XidEvent, fake_gpus, of, put};
use lab::scenario::{FakeLink, FakeProcess, LinkPath, List, MigSlot, Value};
use model::Absence;
use model::gpu::{ComputeCapability, GpuPath};
use model::observation::GpuSourceState;
use model::recovery::RecoveryAction;
use model::unit::{Bytes, Ratio, Watts};

#[test]
fn a_gpu_is_reported_with_its_whole_identity() {
    let tie = FakeLink { peer: 1, path: LinkPath::Pix, nvlinks: 4 };
    let first = FakeGpu { links: vec![tie], pci_bus_id: Some("00000000:65:00.0".into()), ..fake_gpus("H100", 1) };
    let mut harness = Harness::prepare(of(vec![first, fake_gpus("A100", 1)]));
    put(&harness.path("sys/bus/pci/devices/0000:65:00.0/numa_node"), "1\n");
    harness.open();
    let gpus = harness.until("both GPUs", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == 2));
    let one = &gpus[0];
    assert_eq!(one.uuid.as_str(), "GPU-5eed0000-0000-4000-8000-000000000000");
    assert_eq!((one.index, one.minor.get(), &*one.model), (0, Some(0), "NVIDIA H100 80GB HBM3"));
    assert_eq!(one.pci_bus_id.value().map(|id| &**id), Some("00000000:65:00.0"));
    assert_eq!(one.numa_node.get(), Some(1), "from the slot in sysfs");
    assert_eq!(one.architecture.value().map(|name| &**name), Some("Hopper"));
    assert_eq!(one.compute.get(), Some(ComputeCapability { major: 9, minor: 0 }));
    assert_eq!(one.memory_total.get(), Some(Bytes(81_559 << 20)));
    assert_eq!(one.power_limit.get(), Some(Watts(700.0)));
    assert_eq!((one.mig_mode.get(), one.mig.value().map(Vec::len)), (Some(false), Some(0)));
    assert_eq!(one.nvlinks_active.get(), Some(18));
    assert_eq!(one.links.len(), 1);
    let tie = &one.links[0];
    assert_eq!((&tie.peer, tie.path.get(), tie.nvlinks.get()), (&gpus[1].uuid, Some(GpuPath::SingleSwitch), Some(4)));
    let back = &gpus[1].links[0];
    assert_eq!((back.path.get(), back.nvlinks.absence()), (Some(GpuPath::SingleSwitch), Some(Absence::ThroughSwitch)));
    assert_eq!(gpus[1].architecture.value().map(|name| &**name), Some("Ampere"));
    assert_eq!(gpus[1].numa_node.get(), Some(1), "from NVML, because sysfs does not have the slot");
    let expected = GpuSourceState::Working {
        driver: "550.127.08".into(),
        nvml: "12.550.127.08".into(),
        cuda: Some("12.4".into()),
        simulated: false,
    };
    harness.wait("the versions of the driver and of NVML", |seen| seen.source == [expected.clone()]);
}

#[test]
fn mig_instances_are_reported_and_so_is_a_new_layout() {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    // Each instance has a load of its own, and none has the load of the whole GPU.
    let load = |pid, mig, sm, memory| FakeProcess {
        pid,
        mig: Some(mig),
        sm: Value::Constant(sm),
        memory: Some(Value::Constant(memory)),
        ..FakeProcess::default()
    };
    let processes = vec![load(71, 0, 60.0, 7e9), load(72, 1, 20.0, 3e9)];
    let gpu = FakeGpu { mig: vec![slot("3g.40gb"), slot("1g.10gb")], processes, ..fake_gpus("H100", 1) };
    let mut harness = Harness::start(of(vec![gpu]));
    let gpus = harness.until("the GPU", |seen| seen.gpus.clone());
    assert_eq!(gpus[0].mig_mode.get(), Some(true));
    let profiles =
        |gpu: &model::gpu::Gpu| gpu.instances().iter().map(|mig| mig.profile.to_string()).collect::<Vec<_>>();
    assert_eq!(profiles(&gpus[0]), ["3g.40gb", "1g.10gb"]);
    assert!(
        gpus[0].instances().iter().all(|mig| mig.uuid.as_str().starts_with("MIG-") && mig.memory_total.get().is_some())
    );
    let sample = harness.sample(0, "the instances' readings", |sample| {
        sample.mig.len() == 2 && sample.mig.iter().all(|mig| mig.gpm.sm_active.get().is_some())
    });
    let uuids: Vec<_> = gpus[0].instances().iter().map(|mig| &mig.uuid).collect();
    for ((mig, uuid), (busy, used)) in sample.mig.iter().zip(uuids).zip([(0.6, 7_000_000_000), (0.2, 3_000_000_000)]) {
        assert_eq!((&mig.uuid, mig.memory_used.get()), (uuid, Some(Bytes(used))));
        assert!(mig.memory_free.get().is_some());
        let shares = [mig.gpm.graphics_active, mig.gpm.sm_active].map(|share| share.get());
        assert_eq!(shares, [Some(Ratio(busy)); 2], "{uuid}");
        let halves = [mig.gpm.sm_occupancy, mig.gpm.tensor_active, mig.gpm.dram_active].map(|share| share.get());
        assert_eq!(halves, [Some(Ratio(busy / 2.0)); 3], "{uuid}");
        let absent = [mig.gpm.fp64_active, mig.gpm.fp32_active, mig.gpm.fp16_active].map(|share| share.absence());
        assert_eq!(absent, [Some(Absence::NotSupported); 3], "{uuid}");
    }
    assert_eq!(sample.utilization.absence(), Some(Absence::MigEnabled));
    harness.change(|scenario| scenario.gpus[0].mig = vec![slot("7g.80gb")]);
    harness.wait("the new layout", |seen| seen.gpus.as_ref().is_some_and(|gpus| profiles(&gpus[0]) == ["7g.80gb"]));
    harness.change(|scenario| scenario.gpus[0].mig.clear());
    harness
        .wait("MIG switched off", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus[0].mig_mode.get() == Some(false)));
    let sample = harness.sample(0, "utilisation again", |sample| sample.utilization.get().is_some());
    assert!(sample.mig.is_empty());
}

/// Promise 12 in docs/specification.md.
#[test]
fn an_added_gpu_appears_and_a_removed_gpu_disappears() {
    let absent = FakeGpu { present: false, ..fake_gpus("L40S", 1) };
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 1), absent]));
    harness.wait("one GPU", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1));
    harness.change(|scenario| scenario.gpus[1].present = true);
    harness.wait("two GPUs", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    assert!(harness.sample(1, "its readings", |sample| sample.power.get().is_some()).temperature.get().is_some());
    harness.change(|scenario| scenario.gpus[0].present = false);
    harness.wait("one GPU again, under another index", |seen| {
        seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 1 && &*gpus[0].model == "NVIDIA L40S" && gpus[0].index == 0)
    });
    harness.rounds(0, 2);
}

/// Promise 12 in docs/specification.md.
#[test]
fn a_lost_gpu_stays_in_the_list_and_recovers() {
    let mut harness = Harness::start(of(vec![fake_gpus("H100", 2)]));
    let before = harness.sample(0, "slow readings", |sample| sample.recovery.get().is_some());
    assert_eq!(before.recovery.get(), Some(RecoveryAction::None));
    harness.change(|scenario| {
        scenario.gpus = vec![FakeGpu { lost: true, ..fake_gpus("H100", 1) }, fake_gpus("H100", 1)];
    });
    let lost = harness.sample(0, "absent readings", |sample| sample.power.absence() == Some(Absence::GpuLost));
    assert_eq!(lost, model::gpu::GpuSample::absent(Absence::GpuLost));
    let uuid = harness.uuid(0);
    harness.wait("absent processes", |seen| seen.processes[&uuid].list.absence() == Some(Absence::GpuLost));
    harness.rounds(0, 8);
    assert_eq!(harness.seen.gpus.as_ref().map(Vec::len), Some(2));
    assert!(harness.sample(1, "its neighbour", |_| true).power.get().is_some());
    harness.change(|scenario| scenario.gpus[0].lost = false);
    let back = harness.sample(0, "everything again", |sample| sample.recovery.get().is_some());
    assert!(back.power.get().is_some() && back.ecc_volatile.corrected.get().is_some());
    harness.wait("its processes", |seen| seen.processes[&uuid].list.value().is_some());
}

#[test]
fn a_gpu_that_only_a_reopened_library_lists_is_found() {
    let slot = |bus: &str| Some(format!("00000000:{bus}:00.0"));
    let first = FakeGpu { pci_bus_id: slot("65"), ..fake_gpus("H100", 1) };
    let second = FakeGpu { present: false, pci_bus_id: slot("66"), ..fake_gpus("L40S", 1) };
    let mut harness = Harness::prepare(Scenario { list: List::AtInit, ..of(vec![first, second]) });
    std::fs::create_dir_all(harness.path("proc/driver/nvidia/gpus/0000:65:00.0")).unwrap();
    harness.open();
    harness.sample(0, "readings", |sample| sample.gpm.sm_active.get().is_some());
    harness.change(|scenario| scenario.gpus[1].present = true);
    std::fs::create_dir_all(harness.path("proc/driver/nvidia/gpus/0000:66:00.0")).unwrap();
    harness.wait("both", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    harness.sample(1, "its readings", |sample| sample.power.get().is_some());
    harness.rounds(0, 2);
    let uuid = harness.uuid(1);
    harness.change(|scenario| {
        scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(1), code: 13, event: 8, at_s: 0.0, mig: None }];
    });
    harness.wait("its events", |seen| seen.xids.iter().any(|xid| xid.gpu.as_ref() == Some(&uuid)));
}
