//! Tests of the processes on a GPU: their containers, and what they use.

use super::{CallFault, FakeGpu, Harness, fake_gpus, of, put};
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::inventory::{self, InventorySource};
use crate::nvml::library;
use crate::nvml::polled_gpu::{self, GpuCaller};
use crate::nvml::process::{Clients, list};
use crate::process_owner::ProcessOwnerReader;
use crate::report::Reporter;
use crate::roots::HostRoots;
use clock::{self, monotonic};
use lab::scenario::{FakeProcess, MigSlot, process};
use model::process::{GpuProcess, GpuProcessKind, ProcessOwner};
use model::unit::Bytes;
use model::{Absence, Reading};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The listed processes of the first GPU, once they satisfy `condition`.
fn listed(harness: &mut Harness, what: &str, condition: impl Fn(&[GpuProcess]) -> bool) -> Vec<GpuProcess> {
    let uuid = harness.uuid(0);
    harness.until(what, |seen| {
        Some(seen.processes.get(&uuid)?.list.value()?).filter(|list| condition(list)).map(|list| list.to_vec())
    })
}

#[test]
fn processes_are_listed_with_memory_and_use_and_an_idle_process_has_zero_use() {
    let gpu =
        FakeGpu { processes: vec![process(4711, 3 << 30, 40.0), process(4712, 1 << 30, 0.0)], ..fake_gpus("H100", 1) };
    let mut harness = Harness::start(of(vec![gpu]));
    let list =
        listed(&mut harness, "a measured share", |list| list.len() == 2 && list[0].sm.get().is_some_and(|p| p.0 > 0.0));
    assert_eq!((list[0].pid, list[0].memory_used.get()), (4711, Some(Bytes(3 << 30))));
    assert!((list[0].sm.get().unwrap().0 - 40.0).abs() < 1.0, "{:?}", list[0].sm);
    assert_eq!((list[1].pid, list[1].sm.get().map(|percent| percent.0)), (4712, Some(0.0)));
    assert_eq!(list[0].kind, GpuProcessKind::Compute);
}

#[test]
fn a_jump_of_used_memory_lists_processes_at_once() {
    let mut harness = Harness::prepare(of(vec![fake_gpus("H100", 1)]));
    harness.open();
    listed(&mut harness, "none", <[GpuProcess]>::is_empty);
    harness.change(|scenario| scenario.gpus[0].processes.push(process(4711, 3 << 30, 40.0)));
    listed(&mut harness, "one", |list| list.len() == 1);
}

#[test]
fn under_mig_the_instance_of_a_process_is_known_and_its_use_is_absent() {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    let inside = FakeProcess { mig: Some(1), ..process(4711, 1 << 30, 40.0) };
    let gpu = FakeGpu { mig: vec![slot("3g.40gb"), slot("1g.10gb")], processes: vec![inside], ..fake_gpus("A100", 1) };
    let mut harness = Harness::start(of(vec![gpu]));
    let list = listed(&mut harness, "the process", |list| list.len() == 1);
    let instance = harness.until("the instance", |seen| Some(seen.gpus.as_ref()?[0].instances().get(1)?.uuid.clone()));
    assert_eq!(list[0].mig, Some(instance));
    assert_eq!(list[0].sm.absence(), Some(Absence::MigEnabled));
}

#[test]
fn a_refused_process_list_is_absent_with_the_reason() {
    let faults = vec![super::error("nvmlDeviceGetComputeRunningProcesses*", 0, 4)];
    let mut harness = Harness::start(super::Scenario { faults, ..of(vec![fake_gpus("H100", 1)]) });
    let uuid = harness.uuid(0);
    harness.wait("the reason", |seen| {
        seen.processes.get(&uuid).is_some_and(|list| list.list.absence() == Some(Absence::NoPermission))
    });
}

#[test]
fn gpu_processes_beyond_the_limit_are_counted() {
    let processes = (1..=1100).map(|pid| process(pid, u64::from(pid) << 20, 0.0)).collect();
    let mut harness = Harness::start(of(vec![FakeGpu { processes, ..fake_gpus("H100", 1) }]));
    let uuid = harness.uuid(0);
    let (kept, left_out) = harness.until("the list", |seen| {
        let processes = seen.processes.get(&uuid)?;
        Some((processes.list.value()?.len(), processes.left_out))
    });
    assert_eq!((kept, left_out), (1024, 76));
}

const POD: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

/// A process of a container in the fake `/proc`.
fn alive(harness: &Harness, pid: u32, start: u64, container: u32) {
    let text = format!("{pid} (train) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {start} 1000 5 1 1 1 0\n");
    put(&harness.path(&format!("proc/{pid}/cgroup")), &format!("0::{}\n", path(container)));
    put(&harness.path(&format!("proc/{pid}/stat")), &text);
}

fn path(container: u32) -> String {
    format!("/kubepods/burstable/pod{POD}/{container:064x}")
}

/// Boot time of the fake machine, in seconds since 1970.
fn booted(harness: &Harness, seconds: u64) {
    put(&harness.path("proc/stat"), &format!("cpu  1 2 3 4 5 6 7 8 0 0\nctxt 1\nbtime {seconds}\nprocesses 1\n"));
}

/// The container's path, if the process was assigned to one.
fn container(process: &GpuProcess) -> Option<&str> {
    match &process.owner {
        ProcessOwner::Cgroup(identity) => Some(&identity.path),
        _ => None,
    }
}

#[test]
fn a_process_is_attributed_to_its_container_and_a_reused_pid_to_the_new_one() {
    let running = vec![process(4711, 3 << 30, 40.0), process(4712, 1 << 30, 0.0)];
    let mut harness = Harness::prepare(of(vec![FakeGpu { processes: running, ..fake_gpus("H100", 1) }]));
    booted(&harness, 1000);
    alive(&harness, 4711, 500, 1);
    harness.open();
    let list = listed(&mut harness, "its container", |list| list.len() == 2 && container(&list[0]).is_some());
    assert_eq!(container(&list[0]), Some(&*path(1)));
    assert_eq!((list[0].key.map(|key| key.start_ticks), &*list[0].command), (Some(500), "train"));
    assert_eq!(
        (&list[1].owner, list[1].key),
        (&ProcessOwner::Unknown, None),
        "a process that cannot be read has no owner"
    );
    alive(&harness, 4711, 900, 2);
    listed(&mut harness, "the next one", |list| container(&list[0]) == Some(&*path(2)));
}

#[test]
fn a_process_that_started_after_its_samples_has_no_owner() {
    let running = vec![process(4711, 3 << 30, 40.0)];
    let mut harness = Harness::prepare(of(vec![FakeGpu { processes: running, ..fake_gpus("H100", 1) }]));
    booted(&harness, clock::now().wall.0 / 1_000_000 + 1000);
    alive(&harness, 4711, 500, 1);
    harness.open();
    let list = listed(&mut harness, "the process", |list| list.len() == 1 && list[0].owner == ProcessOwner::Unknown);
    assert_eq!(list[0].memory_used.get(), Some(Bytes(3 << 30)), "shown without an owner");
}

#[test]
fn a_pid_reused_between_two_readings_belongs_to_no_pod() {
    let running = vec![process(4711, 3 << 30, 0.0)];
    let mut harness = Harness::prepare(of(vec![FakeGpu { processes: running, ..fake_gpus("H100", 1) }]));
    booted(&harness, 1000);
    alive(&harness, 4711, 500, 1);
    // The first list is two calls; the first of the second list does not return for a while.
    let stuck = CallFault {
        call: "nvmlDeviceGetComputeRunningProcesses*".into(),
        hang: true,
        after: 2,
        ..CallFault::default()
    };
    harness.change(|scenario| scenario.faults = vec![stuck]);
    let (mut gpu, heartbeat) = opened(harness.fake.library(), &harness.roots());
    let mut owners = ProcessOwnerReader::new(harness.roots());
    let reader = std::thread::spawn(move || {
        let mut clients = Clients::default();
        let first = list(&mut gpu, &mut clients, &mut owners, clock::now());
        let second = list(&mut gpu, &mut clients, &mut owners, clock::now());
        [first, second].map(|list| list.list.value().unwrap()[0].clone())
    });
    while !heartbeat.silent_for(monotonic(), Duration::from_millis(20)) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    alive(&harness, 4711, 900, 2);
    harness.change(|scenario| scenario.faults.clear());
    let [first, second] = reader.join().unwrap();
    assert_eq!((&first.owner, first.key), (&ProcessOwner::Unknown, None));
    assert_eq!(container(&second), Some(&*path(2)), "the next list knows it");
}

/// An early list keeps the last measured use of processes that still exist.
#[test]
fn a_pid_reused_between_two_lists_does_not_inherit_the_measured_use() {
    let running = vec![process(4711, 3 << 30, 40.0)];
    let harness = Harness::prepare(of(vec![FakeGpu { processes: running, ..fake_gpus("H100", 1) }]));
    booted(&harness, 1000);
    alive(&harness, 4711, 500, 1);
    let (mut gpu, _heartbeat) = opened(harness.fake.library(), &harness.roots());
    let mut owners = ProcessOwnerReader::new(harness.roots());
    let mut list_once = |clients: &mut Clients| {
        let list = list(&mut gpu, clients, &mut owners, clock::now());
        list.list.value().unwrap()[0].clone()
    };
    let until = std::time::Instant::now() + super::DEADLINE;
    let (mut clients, first) = loop {
        let mut clients = Clients::default();
        let first = list_once(&mut clients);
        if first.sm.get().is_some_and(|percent| percent.0 > 0.0) {
            break (clients, first);
        }
        assert!(std::time::Instant::now() < until, "no use is seen: {first:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    };
    assert_eq!(list_once(&mut clients).sm, first.sm);
    alive(&harness, 4711, 900, 2);
    let next = list_once(&mut clients);
    assert_eq!((container(&next), next.sm, next.encoder), (Some(&*path(2)), Reading::NOT_YET, Reading::NOT_YET));
}

/// The first GPU of a library, without any thread.
pub(super) fn opened(library: &Path, roots: &HostRoots) -> (polled_gpu::PolledGpu, Arc<Heartbeat>) {
    let heartbeat = Arc::new(Heartbeat::default());
    let nvml = library::open(Some(library), None, &heartbeat).unwrap();
    let source = InventorySource { nvml, heartbeat: &heartbeat, roots };
    let known = inventory::take(source, &[]).unwrap().known.remove(0);
    let (reporter, _queue) = Reporter::channel();
    let asker = GpuCaller::new(Arc::clone(&heartbeat), reporter, &known);
    (polled_gpu::PolledGpu::new(known, asker), heartbeat)
}
