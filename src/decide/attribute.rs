//! Attributes the use of a GPU: sums over the processes of each pod and container, and an unattributed remainder.
//!
//! What must never happen here: a value is distributed over pods by a guess. A sum with an unknown part is unknown.

use model::cgroup::CgroupIdentity;
use model::gpu::{GpuSample, MemoryKind};
use model::id::{ContainerId, GpuUuid, PodUid};
use model::process::{GpuProcess, ProcessOwner};
use model::reading::{Absence, Reading};
use model::unit::{Bytes, Percent};
use model::view::GpuUse;
use std::collections::BTreeMap;

/// A possible holder of a process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PossibleHolder {
    /// A container of a pod.
    PodContainer(PodUid, ContainerId),
    /// A container without a pod.
    Container(ContainerId),
    /// A pod, if a process runs in the pod's own cgroup.
    Pod(PodUid),
}

impl PossibleHolder {
    fn of(identity: &CgroupIdentity) -> Option<PossibleHolder> {
        match (identity.pod(), identity.container()) {
            (Some(pod), Some(container)) => Some(PossibleHolder::PodContainer(pod.clone(), container.clone())),
            (None, Some(container)) => Some(PossibleHolder::Container(container.clone())),
            (Some(pod), None) => Some(PossibleHolder::Pod(pod.clone())),
            (None, None) => None,
        }
    }

    /// The pod, if there is a pod.
    #[must_use]
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            PossibleHolder::PodContainer(pod, _) | PossibleHolder::Pod(pod) => Some(pod),
            PossibleHolder::Container(_) => None,
        }
    }
}

/// The use of one GPU by holder, and the processes on it that belong to no pod.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    /// Use by holder and MIG instance.
    pub holders: BTreeMap<(PossibleHolder, Option<GpuUuid>), GpuUse>,
    /// Number of processes that belong to no pod.
    pub strangers: u32,
    /// Sum of the SM use of the processes that belong to no pod.
    pub strangers_sm: Reading<Percent>,
}

/// Adds two readings. The sum is absent if one of them is; its time is the time of the older reading.
#[must_use]
pub fn sum<T>(left: Reading<T>, right: Reading<T>, add: impl Fn(T, T) -> T) -> Reading<T> {
    match (left, right) {
        (Reading::Measured(a, at_a), Reading::Measured(b, at_b)) => Reading::Measured(add(a, b), at_a.min(at_b)),
        (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
    }
}

fn add_percent(a: Percent, b: Percent) -> Percent {
    Percent(a.0 + b.0)
}

/// Sums the processes of one GPU. `living` is whether a cgroup exists now: a process list is some seconds old, and a
/// process in it whose pod is gone belongs to no pod.
pub fn shares(gpu: &GpuUuid, processes: &[GpuProcess], living: impl Fn(&CgroupIdentity) -> bool) -> Occupancy {
    let mut shares = Occupancy::default();
    let mut strangers_sm: Option<Reading<Percent>> = None;
    for process in processes {
        let holder = match &process.owner {
            ProcessOwner::Cgroup(identity) if living(identity) => PossibleHolder::of(identity),
            _ => None,
        };
        if holder.as_ref().and_then(PossibleHolder::pod).is_none() {
            shares.strangers += 1;
            strangers_sm = Some(match strangers_sm {
                None => process.sm,
                Some(so_far) => sum(so_far, process.sm, add_percent),
            });
        }
        let Some(holder) = holder else { continue };
        shares
            .holders
            .entry((holder, process.mig.clone()))
            .and_modify(|share| {
                share.processes += 1;
                share.memory_used = sum(share.memory_used, process.memory_used, Bytes::plus);
                share.sm = sum(share.sm, process.sm, add_percent);
            })
            .or_insert_with(|| GpuUse {
                gpu: gpu.clone(),
                mig: process.mig.clone(),
                processes: 1,
                memory_used: process.memory_used,
                sm: process.sm,
            });
    }
    shares.strangers_sm = strangers_sm.unwrap_or(Reading::NOT_YET);
    shares
}

/// The memory that no process of a pod holds: contexts that the driver does not list, host processes, unknown
/// processes. Never below zero, although list and memory are read at slightly different moments.
#[must_use]
pub fn unattributed_memory(kind: MemoryKind, sample: &GpuSample, shares: &Occupancy) -> Reading<Bytes> {
    let mut remainder = match (kind, sample.memory_used) {
        // Nothing says how much of it the driver reserves.
        (MemoryKind::OwnWithReserved, Reading::Measured(..)) => Reading::Absent(Absence::NotInThisDriver),
        (_, used) => used,
    };
    for ((holder, _), share) in &shares.holders {
        if holder.pod().is_some() {
            remainder = sum(remainder, share.memory_used, Bytes::less);
        }
    }
    remainder
}

/// The part of the memory in use at the time of the process list whose owners are known: `used` without the processes of unknown
/// owners, and at least what the processes of the list held together. Absent if the list does not show the owners of the memory,
/// for example without `hostPID`.
#[must_use]
pub fn listed_memory(used: Reading<Bytes>, list: &[GpuProcess], left_out: u32) -> Reading<Bytes> {
    let unknown = |process: &&GpuProcess| process.owner == ProcessOwner::Unknown;
    if left_out > 0 {
        return Reading::Absent(Absence::NotAttributable);
    }
    if !list.is_empty() && list.iter().all(|process| unknown(&process)) {
        return Reading::Absent(Absence::ProcessesHidden);
    }
    let held = list.iter().filter_map(|process| process.memory_used.get()).fold(Bytes(0), Bytes::plus);
    let used = used.map(|used| Bytes(used.0.max(held.0)));
    list.iter().filter(unknown).fold(used, |used, process| sum(used, process.memory_used, Bytes::less))
}

/// Merges the use of several containers into one entry for each GPU and MIG instance.
#[must_use]
pub fn merge(mut shares: Vec<GpuUse>) -> Vec<GpuUse> {
    shares.sort_by(|a, b| (&a.gpu, &a.mig).cmp(&(&b.gpu, &b.mig)));
    let mut merged: Vec<GpuUse> = Vec::with_capacity(shares.len());
    for share in shares {
        match merged.last_mut() {
            Some(last) if last.gpu == share.gpu && last.mig == share.mig => {
                last.processes += share.processes;
                last.memory_used = sum(last.memory_used, share.memory_used, Bytes::plus);
                last.sm = sum(last.sm, share.sm, add_percent);
            }
            _ => merged.push(share),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::cgroup::{CgroupKind, Qos, RuntimeKind};
    use model::process::GpuProcessKind;
    use model::time::Monotonic;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn identity(pod: u8, container: u8) -> Arc<CgroupIdentity> {
        let uid = PodUid::parse(&format!("{pod:032x}")).unwrap();
        Arc::new(CgroupIdentity {
            path: format!("/kubepods/pod{pod}/{container}").into(),
            kind: CgroupKind::Container {
                pod: Some((uid, Qos::Guaranteed)),
                id: ContainerId::parse(&format!("{container:064x}")).unwrap(),
                runtime: RuntimeKind::Containerd,
            },
        })
    }

    fn process(owner: ProcessOwner, memory: Reading<Bytes>) -> GpuProcess {
        GpuProcess {
            pid: 1,
            key: None,
            command: "python".into(),
            owner,
            kind: GpuProcessKind::Compute,
            mig: None,
            memory_used: memory,
            sm: Reading::Measured(Percent(10.0), Monotonic(5)),
            encoder: Reading::NOT_YET,
            decoder: Reading::NOT_YET,
        }
    }

    fn mib(value: u64) -> Reading<Bytes> {
        Reading::Measured(Bytes(value << 20), Monotonic(5))
    }

    fn gpu() -> GpuUuid {
        GpuUuid::parse("GPU-1").unwrap()
    }

    fn used(value: u64) -> GpuSample {
        GpuSample { memory_used: mib(value), ..GpuSample::default() }
    }

    #[test]
    fn a_host_process_belongs_to_no_pod_and_its_memory_is_unattributed() {
        let list = [process(ProcessOwner::Cgroup(identity(1, 1)), mib(100)), process(ProcessOwner::Host, mib(30))];
        let shares = shares(&gpu(), &list, |_| true);
        assert_eq!(shares.strangers, 1);
        assert_eq!(shares.strangers_sm.get(), Some(Percent(10.0)));
        assert_eq!(unattributed_memory(MemoryKind::Own, &used(150), &shares), mib(50));
        assert_eq!(unattributed_memory(MemoryKind::Host, &used(150), &shares), mib(50));
        let with_reserved = unattributed_memory(MemoryKind::OwnWithReserved, &used(150), &shares);
        assert_eq!(with_reserved, Reading::Absent(Absence::NotInThisDriver), "a part of it is reserved");
    }

    #[test]
    fn the_memory_of_a_pod_is_absent_if_that_of_one_of_its_processes_is() {
        let list = [
            process(ProcessOwner::Cgroup(identity(1, 1)), mib(100)),
            process(ProcessOwner::Cgroup(identity(1, 1)), Reading::Absent(Absence::NotSupported)),
        ];
        let shares = shares(&gpu(), &list, |_| true);
        let share = shares.holders.values().next().unwrap();
        assert_eq!(share.processes, 2);
        assert_eq!(share.memory_used, Reading::Absent(Absence::NotSupported));
        assert_eq!(unattributed_memory(MemoryKind::Own, &used(150), &shares), Reading::Absent(Absence::NotSupported));
    }

    #[test]
    fn listed_memory_leaves_out_processes_of_unknown_owners_and_is_absent_where_no_owner_is_known() {
        let absent = Reading::Absent(Absence::NotSupported);
        let own = || process(ProcessOwner::Cgroup(identity(1, 1)), mib(100));
        let unknown = |memory| process(ProcessOwner::Unknown, memory);
        assert_eq!(listed_memory(mib(150), &[], 0), mib(150));
        assert_eq!(listed_memory(mib(150), &[own(), process(ProcessOwner::Host, absent)], 0), mib(150));
        assert_eq!(listed_memory(mib(150), &[own(), unknown(mib(20))], 0), mib(130));
        assert_eq!(listed_memory(mib(90), &[own()], 0), mib(100), "the driver left some of it out");
        assert_eq!(listed_memory(mib(150), &[own(), unknown(absent)], 0), absent);
        assert_eq!(listed_memory(mib(150), &[unknown(mib(20))], 0), Reading::Absent(Absence::ProcessesHidden));
        assert_eq!(listed_memory(mib(150), &[own()], 1), Reading::Absent(Absence::NotAttributable));
        assert_eq!(listed_memory(absent, &[own()], 0), absent);
    }

    #[test]
    fn a_pod_that_is_gone_holds_nothing() {
        let list = [process(ProcessOwner::Cgroup(identity(1, 1)), mib(100))];
        let shares = shares(&gpu(), &list, |_| false);
        assert!(shares.holders.is_empty());
        assert_eq!(shares.strangers, 1);
    }

    proptest! {
        /// Promise 6 in docs/specification.md.
        /// Pods and remainder together equal what the GPU reports, unless the list claims more than that.
        #[test]
        fn pods_and_remainder_add_up_to_the_memory_of_the_gpu(
            list in prop::collection::vec((0u8..4, 0u8..3, 0u64..1000), 0..40), extra in 0u64..1000,
        ) {
            let processes: Vec<_> = list.iter().map(|&(pod, container, memory)| {
                let owner = if pod == 0 { ProcessOwner::Host } else { ProcessOwner::Cgroup(identity(pod, pod * 8 + container)) };
                process(owner, mib(memory))
            }).collect();
            let total = list.iter().map(|p| p.2).sum::<u64>() + extra;
            let shares = shares(&gpu(), &processes, |_| true);
            let pods: u64 = shares.holders.values().map(|s| s.memory_used.get().unwrap().0).sum();
            let rest = unattributed_memory(MemoryKind::Own, &used(total), &shares).get().unwrap();
            prop_assert_eq!(pods + rest.0, total << 20);
            let merged = merge(shares.holders.into_values().collect());
            prop_assert!(merged.len() <= 1);
            prop_assert_eq!(merged.iter().map(|s| s.memory_used.get().unwrap().0).sum::<u64>(), pods);
        }
    }
}
