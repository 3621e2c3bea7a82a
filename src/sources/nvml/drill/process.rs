//! Whose processes are on a GPU, and what they do there.

use super::{Card, Drill, cards, of};
use lab::scenario::{MigSlot, Process, process};
use model::Absence;
use model::process::{GpuProcess, GpuProcessKind};
use model::unit::Bytes;

/// The listed processes of the first GPU, once they are as wished.
fn listed(drill: &mut Drill, what: &str, wish: impl Fn(&[GpuProcess]) -> bool) -> Vec<GpuProcess> {
    let uuid = drill.uuid(0);
    drill.until(what, |seen| {
        Some(seen.processes.get(&uuid)?.list.value()?).filter(|list| wish(list)).map(|list| list.to_vec())
    })
}

#[test]
fn processes_are_listed_with_memory_and_use_and_an_idle_one_is_zero_not_gone() {
    let card = Card { processes: vec![process(4711, 3 << 30, 40.0), process(4712, 1 << 30, 0.0)], ..cards("H100", 1) };
    let mut drill = Drill::start(of(vec![card]));
    let list =
        listed(&mut drill, "a measured share", |list| list.len() == 2 && list[0].sm.get().is_some_and(|p| p.0 > 0.0));
    assert_eq!((list[0].pid, list[0].memory_used.get()), (4711, Some(Bytes(3 << 30))));
    assert!((list[0].sm.get().unwrap().0 - 40.0).abs() < 1.0, "{:?}", list[0].sm);
    assert_eq!((list[1].pid, list[1].sm.get().map(|percent| percent.0)), (4712, Some(0.0)));
    assert_eq!(list[0].kind, GpuProcessKind::Compute);
}

#[test]
fn a_jump_of_memory_lists_processes_at_once() {
    let mut drill = Drill::prepare(of(vec![cards("H100", 1)]));
    drill.open();
    listed(&mut drill, "none", <[GpuProcess]>::is_empty);
    drill.change(|scenario| scenario.gpus[0].processes.push(process(4711, 3 << 30, 40.0)));
    listed(&mut drill, "one", |list| list.len() == 1);
}

#[test]
fn under_mig_the_instance_is_told_and_use_is_not_known() {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    let inside = Process { mig: Some(1), ..process(4711, 1 << 30, 40.0) };
    let card = Card { mig: vec![slot("3g.40gb"), slot("1g.10gb")], processes: vec![inside], ..cards("A100", 1) };
    let mut drill = Drill::start(of(vec![card]));
    let list = listed(&mut drill, "the process", |list| list.len() == 1);
    let instance = drill.until("the instance", |seen| Some(seen.gpus.as_ref()?[0].mig.get(1)?.uuid.clone()));
    assert_eq!(list[0].mig, Some(instance));
    assert_eq!(list[0].sm.absence(), Some(Absence::MigEnabled));
}

#[test]
fn a_list_that_is_refused_is_absent_with_the_reason() {
    let faults = vec![super::error("nvmlDeviceGetComputeRunningProcesses*", 0, 4)];
    let mut drill = Drill::start(super::Scenario { faults, ..of(vec![cards("H100", 1)]) });
    let uuid = drill.uuid(0);
    drill.wait("the reason", |seen| {
        seen.processes.get(&uuid).is_some_and(|list| list.list.absence() == Some(Absence::NoPermission))
    });
}

#[test]
fn more_processes_than_are_kept_are_counted() {
    let processes = (1..=1100).map(|pid| process(pid, u64::from(pid) << 20, 0.0)).collect();
    let mut drill = Drill::start(of(vec![Card { processes, ..cards("H100", 1) }]));
    let uuid = drill.uuid(0);
    let (kept, left_out) = drill.until("the list", |seen| {
        let processes = seen.processes.get(&uuid)?;
        Some((processes.list.value()?.len(), processes.left_out))
    });
    assert_eq!((kept, left_out), (1024, 76));
}
