//! Tests of drivers that lack the newest version of a call, and of GPUs without memory of their own.

use super::{FakeGpu, Harness, ReadingKind, Scenario, error, fake_gpus, of, put, with};
use crate::procfs::host_file::tests::meminfo_with;
use lab::scenario::{MigSlot, ProcessList, process};
use model::Absence;
use model::gpu::{Gpu, MemoryKind};
use model::unit::Bytes;

const GIB: u64 = 1 << 30;

/// The kernel's file of a host with 128 GB, of which this much is available.
fn meminfo(available_kb: u64) -> String {
    meminfo_with(&["MemTotal: 125000000 kB", &format!("MemAvailable: {available_kb} kB")])
}

#[test]
fn memory_and_processes_are_read_on_old_drivers() {
    for driver in ["470.256.02", "418.226.00"] {
        let graphics = lab::scenario::FakeProcess { kind: ProcessList::Graphics, ..process(8, GIB, 0.0) };
        let gpu = FakeGpu { processes: vec![process(7, 2 * GIB, 10.0), graphics], ..fake_gpus("V100", 1) };
        let mut harness = Harness::start(Scenario { driver: driver.into(), ..of(vec![gpu]) });
        let sample = harness.sample(0, driver, |sample| sample.memory_used.get().is_some());
        let gpu = harness.until("the GPU", |seen| seen.gpus.clone()?.pop());
        // A V100 of the fake driver has 32 GiB, of which the driver reserves 268 MiB.
        assert_eq!((gpu.memory_total.get(), gpu.memory_kind), (Some(Bytes(32 * GIB)), MemoryKind::OwnWithReserved));
        assert_eq!(sample.memory_used.get(), Some(Bytes(3 * GIB + 268 * Bytes::MIB)), "with what is reserved");
        assert_eq!(sample.memory_free.get(), Some(Bytes(29 * GIB - 268 * Bytes::MIB)));
        assert_eq!(sample.memory_reserved.absence(), Some(Absence::NotInThisDriver), "not zero");
        let uuid = harness.uuid(0);
        let held = |seen: &super::Seen| -> Option<Vec<(u32, Option<Bytes>)>> {
            let list = seen.processes.get(&uuid)?.list.value()?;
            Some(list.iter().map(|process| (process.pid, process.memory_used.get())).collect())
        };
        let held = harness.until("its processes", held);
        assert_eq!(held, [(7, Some(Bytes(2 * GIB))), (8, Some(Bytes(GIB)))], "{driver}");
    }
}

#[test]
fn mig_instances_are_read_on_a_driver_without_the_newest_calls() {
    let inside = lab::scenario::FakeProcess { mig: Some(1), ..process(7, GIB, 10.0) };
    let slots = ["3g.20gb", "2g.10gb"].map(|profile| MigSlot::Profile(profile.into())).to_vec();
    let gpu = FakeGpu { mig: slots, processes: vec![inside], ..fake_gpus("A100-40", 1) };
    let mut harness = Harness::start(Scenario { driver: "470.256.02".into(), ..of(vec![gpu]) });
    let sample =
        harness.sample(0, "both", |sample| sample.mig.iter().filter_map(|mig| mig.memory_used.get()).count() == 2);
    assert_eq!(sample.mig[1].memory_used.get(), Some(Bytes(GIB)));
    assert_eq!(sample.mig[1].memory_reserved.absence(), Some(Absence::NotInThisDriver));
    let (uuid, instance) = (harness.uuid(0), sample.mig[1].uuid.clone());
    let mig = |seen: &super::Seen| seen.processes.get(&uuid)?.list.value()?.first()?.mig.clone();
    assert_eq!(harness.until("the process", mig), instance, "the second version of the list names the instance");
}

#[test]
fn a_gpu_without_memory_of_its_own_shows_the_memory_of_the_host() {
    let gpu = FakeGpu { processes: vec![process(7, 9 * GIB, 10.0)], ..fake_gpus("GB10", 1) };
    let mut harness = Harness::prepare(of(vec![gpu, fake_gpus("H100", 1)]));
    put(&harness.path("proc/meminfo"), &meminfo(97_656_250));
    harness.open();
    let sample = harness.sample(0, "the host's memory", |sample| sample.memory_used.get().is_some());
    assert_eq!(sample.memory_used.get(), Some(Bytes((125_000_000 - 97_656_250) * 1024)));
    assert_eq!(sample.memory_free.get(), Some(Bytes(97_656_250 * 1024)));
    assert_eq!(sample.memory_reserved.absence(), Some(Absence::NotSupported));
    let gpus = harness.until("both", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == 2));
    assert_eq!((gpus[0].memory_total.get(), gpus[0].memory_kind), (Some(Bytes(125_000_000 * 1024)), MemoryKind::Host));
    assert_eq!(gpus[1].memory_kind, MemoryKind::Own);
    // The host has less available now.
    put(&harness.path("proc/meminfo"), &meminfo(1_000_000));
    harness.sample(0, "the new value", |sample| sample.memory_free.get() == Some(Bytes(1_000_000 * 1024)));
}

/// A GPU for which the driver reports this much memory, of which nothing is in use, and does not support these calls.
fn answering(memory_total_kb: f64, refused: &[&str]) -> FakeGpu {
    let not_supported = refused.iter().map(|call| (*call).to_owned()).collect();
    let sizes = [
        (ReadingKind::MemoryTotalBytes, memory_total_kb * 1024.0),
        (ReadingKind::MemoryUsedBytes, 0.0),
        (ReadingKind::MemoryReservedBytes, 0.0),
    ];
    with(FakeGpu { not_supported, processes: vec![process(7, 9 * GIB, 10.0)], ..fake_gpus("L40S", 1) }, &sizes)
}

#[test]
fn a_driver_that_reports_the_memory_of_the_host_as_that_of_the_gpu_is_recognised() {
    let (bar1, numa) = ("nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetNumaNodeId");
    let cases = [
        ("a GB10", answering(125_000_000.0, &[bar1, numa]), MemoryKind::Host),
        ("a little less than the host's", answering(120_000_000.0, &[bar1, numa]), MemoryKind::Host),
        ("a GH200, by chance as large", answering(125_000_000.0, &[bar1]), MemoryKind::Own),
        ("a GH200 that is no NUMA node", answering(96_000_000.0, &[bar1, numa]), MemoryKind::Own),
        ("a GPU on PCIe, by chance as large", answering(125_000_000.0, &[numa]), MemoryKind::Own),
    ];
    let mut harness = Harness::prepare(of(cases.iter().map(|(_, gpu, _)| gpu.clone()).collect()));
    put(&harness.path("proc/meminfo"), &meminfo(97_656_250));
    harness.open();
    let gpus = harness.until("all", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == cases.len()));
    for (place, (name, _, kind)) in cases.iter().enumerate() {
        assert_eq!(gpus[place].memory_kind, *kind, "{name}");
        let sample = harness.sample(place, name, |sample| sample.memory_used.get().is_some());
        let used = if *kind == MemoryKind::Host { (125_000_000 - 97_656_250) * 1024 } else { 0 };
        assert_eq!(sample.memory_used.get(), Some(Bytes(used)), "{name}");
    }
    assert_eq!(gpus[1].memory_total.get(), Some(Bytes(125_000_000 * 1024)), "the kernel's total, as used and free");
    assert_eq!(gpus[3].memory_total.get(), Some(Bytes(96_000_000 * 1024)));
    // The host has less available now.
    put(&harness.path("proc/meminfo"), &meminfo(1_000_000));
    harness.sample(0, "the new value", |sample| sample.memory_free.get() == Some(Bytes(1_000_000 * 1024)));
}

#[test]
fn a_gpu_with_memory_of_its_own_never_shows_the_memory_of_the_host() {
    let refused = |call, gpu| error(call, gpu, 3);
    // The third GPU is a NUMA node.
    let faults = vec![
        refused("nvmlDeviceGetMemoryInfo*", 0),
        refused("nvmlDeviceGetMemoryInfo*", 2),
        refused("nvmlDeviceGetBAR1MemoryInfo", 2),
    ];
    let mut harness = Harness::prepare(Scenario { faults, ..of(vec![fake_gpus("H100", 3)]) });
    put(&harness.path("proc/meminfo"), &meminfo(97_656_250));
    harness.open();
    let gpus = harness.until("all", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == 3));
    let size = 81_559 * Bytes::MIB;
    for gpu in [&gpus[0], &gpus[2]] {
        assert_eq!(gpu.memory_total.absence(), Some(Absence::NotSupported), "refused from the start");
    }
    assert_eq!((gpus[1].memory_total.get(), gpus[1].memory_kind), (Some(Bytes(size)), MemoryKind::Own));
    // Later the driver refuses the calls for the other GPU. The power limit shows that an inventory had these answers.
    harness.change(|scenario| {
        scenario.faults.push(refused("nvmlDeviceGetMemoryInfo*", 1));
        scenario.faults.push(refused("nvmlDeviceGetBAR1MemoryInfo", 1));
        scenario.faults.push(refused("nvmlDeviceGetNumaNodeId", 1));
        scenario.faults.push(error("nvmlDeviceGetEnforcedPowerLimit", 1, 999));
    });
    let later = |gpus: &Vec<Gpu>| gpus[1].power_limit.absence().is_some();
    let gpus = harness.until("the refusals", |seen| seen.gpus.clone().filter(later));
    assert_eq!((gpus[1].memory_total.get(), gpus[1].memory_kind), (Some(Bytes(size)), MemoryKind::Own));
    harness.sample(1, "no memory", |sample| sample.memory_used.absence() == Some(Absence::NotSupported));
    // The driver answers again.
    harness.change(|scenario| scenario.faults.clear());
    let known = |gpus: &Vec<Gpu>| gpus[0].memory_total.get() == Some(Bytes(size));
    let gpus = harness.until("the size", |seen| seen.gpus.clone().filter(known));
    assert!(gpus.iter().all(|gpu| gpu.memory_kind == MemoryKind::Own), "{gpus:?}");
}
