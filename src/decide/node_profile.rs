//! What the annotations of a Node are to say about the load of its GPUs, and how much that differs from what they say.
//!
//! ```text
//!   NodeView, WorkloadProfiles ──describe──▶ NodeProfile ──compared with what the Node shows──▶ ProfileDifference
//! ```
//!
//! What must never happen here: a value that is not known as a difference, or the memory of a process as a change of meaning.

use model::id::GpuUuid;
use model::node_profile::{GpuProfile, GpuSnapshot, GpuStatic, MAX_LISTED, NodeProfile, ProfiledGpu, QuantityProfile};
use model::process::GpuProcess;
use model::reading::Absence;
use model::time::Now;
use model::unit::{Bytes, Mib};
use model::view::{GpuView, NodeView};
use model::workload_profile::{
    CyclePeriod, GpuJob, ProfiledQuantity, ProfiledSubject, WorkloadProfile, WorkloadProfiles,
};
use std::collections::BTreeMap;
use std::time::Duration;

const GIB: u64 = 1 << 30;
/// A maximum in percent means something else after it has moved by this much.
const MAXIMUM_MOVES: f64 = 5.0;
/// A period means something else after it has moved by more than this share and by more than its interval.
const PERIOD_MOVES: f64 = 0.05;

/// How much an annotation differs from what it is to say. A larger difference comes later in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProfileDifference {
    /// Nothing differs.
    #[default]
    None,
    /// The meaning is the same: memory, forecasts, the PCIe link of an idle GPU.
    Detail,
    /// A period or a maximum has moved.
    Moved,
    /// A verdict or the kind of job is another one, a process has started or ended, or the annotation is missing.
    Changed,
}

/// What the Node is to say.
#[must_use]
pub fn describe(view: &NodeView, profiles: &WorkloadProfiles, now: Now) -> NodeProfile {
    let simulated = view.gpu_source.simulated();
    let one = |seen: &GpuView| {
        let job = profiles.jobs.iter().find(|job| job.gpu == seen.gpu.uuid);
        ProfiledGpu {
            index: seen.gpu.index,
            snapshot: job.and_then(|job| snapshot(seen, job, simulated)),
            job: job.map(|job| job.kind),
            profile: profile(&seen.gpu.uuid, &profiles.profiles, (now, simulated)),
        }
    };
    let mut gpus: Vec<ProfiledGpu> = view.gpus.iter().map(one).collect();
    gpus.sort_by_key(|gpu| gpu.index);
    NodeProfile { facts: facts(view), gpus }
}

fn facts(view: &NodeView) -> Option<GpuStatic> {
    let first = view.gpus.first()?;
    let link = &first.sample.hardware;
    // The link is read a little later than the rest, and a second write would follow.
    let is_early = link.pcie_generation.absence() == Some(Absence::NotYet) && !view.gpu_source.simulated();
    if is_early {
        return None;
    }
    Some(GpuStatic {
        count: u32::try_from(view.gpus.len()).ok()?,
        model: first.gpu.model.clone(),
        memory_gib: first.gpu.memory_total.get()?.0.div_ceil(GIB),
        pcie: link.pcie_generation.get().zip(link.pcie_width.get()),
    })
}

fn snapshot(seen: &GpuView, job: &GpuJob, simulated: bool) -> Option<GpuSnapshot> {
    let total = seen.gpu.memory_total.get()?.0.div_ceil(GIB);
    let used = seen.memory_used_now.get().or_else(|| seen.sample.memory_used.get())?.0.div_ceil(GIB);
    let list = seen.processes.value();
    let count = list.and_then(|list| u32::try_from(list.len()).ok());
    Some(GpuSnapshot {
        memory_used_gib: used,
        memory_free_gib: total.saturating_sub(used),
        processes: count.map(|count| count.saturating_add(seen.processes_left_out)),
        listed: list.map(|list| listed(list)).unwrap_or_default(),
        period: job.period,
        memory_copy_maximum: job.memory_copy_maximum,
        utilization_maximum: job.utilization_maximum,
        simulated,
    })
}

/// The processes with the lowest numbers. The choice must not depend on their memory: it would change without a start or an end.
fn listed(processes: &[GpuProcess]) -> Vec<(u32, Mib)> {
    let mut memory: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for process in processes {
        let used = process.memory_used.get();
        // A process on several MIG instances is in the list once for each.
        let sum = memory.entry(process.pid).or_insert(Some(Bytes(0)));
        *sum = sum.zip(used).map(|(one, other)| one.plus(other));
    }
    let known = memory.into_iter().take(MAX_LISTED);
    known.filter_map(|(pid, used)| Some((pid, Mib(used?.0.div_ceil(Bytes::MIB))))).collect()
}

fn profile(gpu: &GpuUuid, all: &[WorkloadProfile], (now, simulated): (Now, bool)) -> Option<GpuProfile> {
    let load = |quantity: ProfiledQuantity| {
        all.iter()
            .find(|one| one.quantity == quantity && matches!(&one.subject, ProfiledSubject::Gpu(uuid) if uuid == gpu))
    };
    let is_known = |one: &&WorkloadProfile| one.cycles.is_some() || !one.forecasts.is_empty();
    let loads: Vec<&WorkloadProfile> = ProfiledQuantity::OF_GPU.into_iter().filter_map(load).filter(is_known).collect();
    // Forecasts count from their analyses: a look at an old one makes no new one.
    let analyzed_at = loads.iter().map(|one| one.analyzed_at).min()?;
    let hour_analyzed_at = loads.iter().filter_map(|one| one.hour_analyzed_at).min();
    let quantity = |one: &WorkloadProfile| QuantityProfile {
        quantity: one.quantity,
        verdict: one.cycles.as_ref().map(|verdict| verdict.kind),
        period: one.cycles.as_ref().and_then(|verdict| verdict.period.clone()),
        forecasts: one.forecasts.clone(),
        next_hour_maximum: one.next_hour_maximum,
    };
    Some(GpuProfile {
        gpu: gpu.clone(),
        at: now.wall_of(analyzed_at),
        hour_at: hour_analyzed_at.map(|at| now.wall_of(at)),
        simulated,
        quantities: loads.into_iter().map(quantity).collect(),
    })
}

/// The difference between what the GPUs are and what is shown.
#[must_use]
pub fn facts_differ(shown: &GpuStatic, wanted: &GpuStatic) -> ProfileDifference {
    let same_but_the_link = GpuStatic { pcie: wanted.pcie, ..shown.clone() } == *wanted;
    if same_but_the_link { ProfileDifference::Detail } else { ProfileDifference::Changed }
}

/// The difference between memory, processes and load of a GPU and what is shown.
#[must_use]
pub fn snapshot_differs(shown: &GpuSnapshot, wanted: &GpuSnapshot) -> ProfileDifference {
    let pids = |snapshot: &GpuSnapshot| snapshot.listed.iter().map(|(pid, _)| *pid).collect::<Vec<_>>();
    let is_cyclic = |snapshot: &GpuSnapshot| snapshot.period.is_some();
    if is_cyclic(shown) != is_cyclic(wanted)
        || shown.processes != wanted.processes
        || pids(shown) != pids(wanted)
        || shown.simulated != wanted.simulated
    {
        return ProfileDifference::Changed;
    }
    let period = match (shown.period, wanted.period) {
        (Some(shown), Some(wanted)) => period_moved(shown, wanted, Duration::ZERO),
        _ => false,
    };
    let maximum = maximum_moved(shown.memory_copy_maximum, wanted.memory_copy_maximum)
        || maximum_moved(shown.utilization_maximum, wanted.utilization_maximum);
    if period || maximum { ProfileDifference::Moved } else { ProfileDifference::Detail }
}

/// The difference between a maximum in percent and what is shown.
#[must_use]
pub fn maximum_differs(shown: f64, wanted: f64) -> ProfileDifference {
    if maximum_moved(Some(shown), Some(wanted)) { ProfileDifference::Moved } else { ProfileDifference::Detail }
}

/// The difference between verdicts and forecasts of a GPU and what is shown.
#[must_use]
pub fn profile_differs(shown: &GpuProfile, wanted: &GpuProfile) -> ProfileDifference {
    let verdict = |profile: &GpuProfile, quantity| of(profile, quantity).and_then(|one| one.verdict);
    let other = |quantity: &ProfiledQuantity| verdict(shown, *quantity) != verdict(wanted, *quantity);
    let is_other = (&shown.gpu, shown.simulated) != (&wanted.gpu, wanted.simulated);
    if is_other || ProfiledQuantity::OF_GPU.iter().any(other) {
        return ProfileDifference::Changed;
    }
    let moved = |quantity: &ProfiledQuantity| {
        let period = |profile| of(profile, *quantity).and_then(|one| one.period.as_ref());
        period(shown)
            .zip(period(wanted))
            .is_some_and(|(shown, wanted)| period_moved(shown.length, wanted.length, half_width(wanted)))
    };
    if ProfiledQuantity::OF_GPU.iter().any(moved) { ProfileDifference::Moved } else { ProfileDifference::Detail }
}

/// Whether `wanted` has a verdict for each quantity that has one in `shown`. An agent that has just started has none yet.
#[must_use]
pub fn covers(wanted: &GpuProfile, shown: &GpuProfile) -> bool {
    let judged = |profile: &GpuProfile, quantity| of(profile, quantity).is_some_and(|one| one.verdict.is_some());
    ProfiledQuantity::OF_GPU.into_iter().all(|quantity| !judged(shown, quantity) || judged(wanted, quantity))
}

fn of(profile: &GpuProfile, quantity: ProfiledQuantity) -> Option<&QuantityProfile> {
    profile.quantities.iter().find(|one| one.quantity == quantity)
}

fn half_width(period: &CyclePeriod) -> Duration {
    period.longest.saturating_sub(period.shortest) / 2
}

fn period_moved(shown: Duration, wanted: Duration, interval: Duration) -> bool {
    shown.abs_diff(wanted) > shown.mul_f64(PERIOD_MOVES).max(interval)
}

/// Whether a maximum has moved; also if it is no longer known, or has become known.
fn maximum_moved(shown: Option<f64>, wanted: Option<f64>) -> bool {
    match (shown, wanted) {
        (Some(shown), Some(wanted)) => (shown - wanted).abs() >= MAXIMUM_MOVES,
        (shown, wanted) => shown.is_some() != wanted.is_some(),
    }
}

#[cfg(test)]
mod tests;
