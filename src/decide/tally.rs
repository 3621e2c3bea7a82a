//! Tallies: GPU time and energy of pods, added up from one view to the next.
//!
//! ```text
//!   time of a GPU since the last view   ──by claim──▶ pods
//!   energy of a GPU since the last view ──by SM use; by claim where no process is busy or the use is not known──▶ pods
//! ```
//!
//! "By claim" means: by claimed SM time if every holder claims SM time; otherwise by claimed memory if every holder
//! claims memory (a MIG instance claims its own memory); otherwise in equal parts. The part of processes without a pod
//! is added to no pod.
//!
//! The sums begin at 0 when the agent starts: `increase()` and `rate()` of Prometheus take that into account.
//!
//! What must never happen here: a sum falls; a sum includes the time or energy of a span without a view.

use model::id::{GpuUuid, PodUid};
use model::plugin::PluginView;
use model::reading::Reading;
use model::tally::{GpuTally, MAX_TALLIES};
use model::time::Monotonic;
use model::unit::{Millijoules, Nanos};
use model::view::{GpuView, PodView};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest span between two views that counts. Views are a second apart; a longer span (the machine slept) is added to
/// no pod.
const LONGEST: Duration = Duration::from_secs(60);
/// How long the sums of a pod are kept after it was last seen, so that its counters do not start again if it was only
/// unreadable for a while.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The sums.
#[derive(Debug, Default)]
pub struct Tallies {
    sums: BTreeMap<(PodUid, GpuUuid), Sum>,
    gpus_before: BTreeMap<GpuUuid, Seen>,
    left_out: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    held: u64,
    energy: u64,
    seen: Monotonic,
}

/// A GPU in the previous view.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Monotonic,
    energy: Option<u64>,
}

impl Tallies {
    /// The current sums.
    #[must_use]
    pub fn sums(&self) -> Arc<[GpuTally]> {
        let tally = |((pod, gpu), sum): (&(PodUid, GpuUuid), &Sum)| GpuTally {
            pod: pod.clone(),
            gpu: gpu.clone(),
            held: Nanos(sum.held),
            energy: Millijoules(sum.energy),
        };
        self.sums.iter().map(tally).collect()
    }

    /// Number of pairs of pod and GPU beyond the bound in the last view.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// Adds the time and energy since the last view.
    pub fn pass(&mut self, gpus: &[GpuView], pods: &[PodView], plugin: Option<&PluginView>, now: Monotonic) {
        self.left_out = 0;
        self.forget(pods, now);
        for gpu in gpus {
            let (at, energy) = (now, gpu.sample.energy.get().map(|energy| energy.0));
            let before = self.gpus_before.insert(gpu.gpu.uuid.clone(), Seen { at, energy });
            let Some(before) = before.filter(|before| now.since(before.at) <= LONGEST) else { continue };
            let passed = u64::try_from(now.since(before.at).as_nanos()).unwrap_or(0);
            // A counter that is lower than before was reset with the driver.
            let drawn = energy.zip(before.energy).and_then(|(now, before)| now.checked_sub(before)).unwrap_or(0);
            let holders: Vec<&PodUid> = gpu.holders.iter().collect();
            let held = by_claims(gpu, &holders, plugin);
            let used = by_use(gpu, &holders, pods).unwrap_or_else(|| held.clone());
            for (place, pod) in holders.into_iter().enumerate() {
                let (held, drawn) = (part(passed, &held, place), part(drawn, &used, place));
                if let Some(sum) = self.sum(pod, &gpu.gpu.uuid, now) {
                    sum.held = sum.held.saturating_add(held);
                    sum.energy = sum.energy.saturating_add(drawn);
                }
            }
        }
        self.gpus_before.retain(|uuid, _| gpus.iter().any(|gpu| gpu.gpu.uuid == *uuid));
    }

    fn forget(&mut self, pods: &[PodView], now: Monotonic) {
        let living: BTreeSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        self.sums.retain(|(pod, _), sum| {
            if living.contains(pod) {
                sum.seen = now;
            }
            now.since(sum.seen) <= REMEMBERED
        });
    }

    fn sum(&mut self, pod: &PodUid, gpu: &GpuUuid, now: Monotonic) -> Option<&mut Sum> {
        let key = (pod.clone(), gpu.clone());
        if self.sums.len() >= MAX_TALLIES && !self.sums.contains_key(&key) {
            self.left_out += 1;
            return None;
        }
        let sum = self.sums.entry(key).or_default();
        sum.seen = sum.seen.max(now);
        Some(sum)
    }
}

/// The weights of the holders, in their order, and their total. The total may include the weight of processes without a
/// pod.
#[derive(Clone, Debug)]
struct Weights {
    each: Vec<u64>,
    sum: u64,
}

/// The part for one index. The remainder of the rounding is added to no pod.
fn part(whole: u64, weights: &Weights, place: usize) -> u64 {
    let weight = weights.each.get(place).copied().unwrap_or(0);
    let part = u128::from(whole) * u128::from(weight) / u128::from(weights.sum.max(1));
    u64::try_from(part).unwrap_or(whole)
}

fn by_claims(gpu: &GpuView, holders: &[&PodUid], plugin: Option<&PluginView>) -> Weights {
    let claimed: Vec<Claimed> = holders.iter().map(|pod| claimed(gpu, pod, plugin)).collect();
    let each: Vec<u64> = if claimed.iter().all(|own| own.cores > 0) {
        claimed.iter().map(|own| own.cores).collect()
    } else if claimed.iter().all(|own| own.memory > 0) {
        claimed.iter().map(|own| own.memory).collect()
    } else {
        vec![1; holders.len()]
    };
    let sum = each.iter().fold(0u64, |sum, weight| sum.saturating_add(*weight));
    Weights { each, sum }
}

/// How much a pod claims of a GPU; 0 if one of its containers claims no amount.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    /// Percent of the GPU's SM time.
    cores: u64,
    /// Bytes of the GPU's memory.
    memory: u64,
}

fn claimed(gpu: &GpuView, pod: &PodUid, plugin: Option<&PluginView>) -> Claimed {
    let claims = plugin.into_iter().flat_map(|plugin| plugin.claims.iter()).filter(|claim| claim.holder.pod == *pod);
    let mut all = Claimed { cores: 0, memory: 0 };
    let (mut every_core, mut every_byte) = (true, true);
    for share in claims.flat_map(|claim| &claim.device_shares) {
        let instance = gpu.gpu.instances().iter().find(|instance| instance.uuid == share.device);
        if instance.is_none() && share.device != gpu.gpu.uuid {
            continue;
        }
        let own = instance.and_then(|instance| instance.memory_total.get());
        let memory = share.memory.or(own).map(|memory| memory.0);
        // Percent of an instance is not percent of the GPU.
        let cores = share.cores.filter(|_| instance.is_none()).map(|cores| u64::from(cores.0));
        (every_core, every_byte) = (every_core && cores.is_some(), every_byte && memory.is_some());
        all.cores = all.cores.saturating_add(cores.unwrap_or(0));
        all.memory = all.memory.saturating_add(memory.unwrap_or(0));
    }
    Claimed { cores: if every_core { all.cores } else { 0 }, memory: if every_byte { all.memory } else { 0 } }
}

/// Weights by SM use, in thousandths of a percent; `None` if the use of a holder or of the processes without a pod is
/// not known, or no process is busy.
fn by_use(gpu: &GpuView, holders: &[&PodUid], pods: &[PodView]) -> Option<Weights> {
    let of = |uid: &PodUid| {
        let pod = pods.iter().find(|pod| pod.uid == *uid)?;
        let mut shares = pod.gpus.iter().filter(|share| share.gpu == gpu.gpu.uuid);
        shares.try_fold(0, |sum: u64, share| Some(sum.saturating_add(thousandths(share.sm.get()?.0))))
    };
    let each: Vec<u64> = holders.iter().map(|uid| of(uid)).collect::<Option<_>>()?;
    let strangers = match gpu.unattributed_sm {
        Reading::Measured(use_of, _) => thousandths(use_of.0),
        Reading::Absent(_) if gpu.strangers == 0 => 0,
        Reading::Absent(_) => return None,
    };
    let sum = each.iter().fold(strangers, |sum, weight| sum.saturating_add(*weight));
    (sum > 0).then_some(Weights { each, sum })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, which is intended")]
fn thousandths(percent: f64) -> u64 {
    (percent * 1000.0) as u64
}

#[cfg(test)]
mod tests;
