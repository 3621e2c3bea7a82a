//! A stranger whose memory changes as in recorded training jobs, and pods that come meanwhile: none is bound into memory that has been
//! gone for two seconds.

use super::tests::{STREAM, cluster_with, mib, mode, report};
use crate::cluster::tests::{NOW, bound, name, names, slice};
use crate::cluster::{BindOutcome, ClusterState};
use model::agent_stream::ReportChange;
use model::claim::PodClaim;
use model::placement::PlacementRequest;
use model::realtime::CheckMode;
use model::time::Monotonic;
use std::time::Duration;

/// The memory of the GPU, in MiB.
const TOTAL: u64 = 48 * 1024;
/// Length of a step.
const STEP: Duration = Duration::from_millis(50);
/// Steps of one series: 57 s.
const STEPS: usize = 1140;
/// Steps between two reports: one second.
const REPORT: usize = 20;
/// Steps of two seconds.
const GONE: usize = 40;
/// Steps that a pod lives: one and a half seconds.
const LIVES: usize = 30;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// The memory of the stranger in MiB at each step: plateaus with jumps between them and ripples, like the memory of training jobs.
fn series(seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let mut memory = Vec::with_capacity(STEPS);
    while memory.len() < STEPS {
        let (level, length) = (numbers.below(44 * 1024), 4 + numbers.below(100));
        memory.extend((0..length).map(|_| level + numbers.below(128)));
    }
    memory
}

/// One pod that comes: whether it is bound.
fn comes(cluster: &mut ClusterState, request: &PlacementRequest, now: Monotonic) -> bool {
    if cluster.filter(request.clone(), names(1), now).fit.is_empty() {
        return false;
    }
    let Ok(order) = cluster.bind(&request.uid, &name(0)) else { return false };
    cluster.bind_ended(&request.uid, BindOutcome::Written);
    cluster.pod_is(&request.uid, Some(&bound(request, &name(0), PodClaim::Given(order.claim))));
    true
}

/// Pods that were bound into memory that the stranger had used for two seconds, and all pods that were bound.
fn replay(check: CheckMode, seed: u64) -> (usize, usize) {
    let (memory, mut numbers) = (series(seed), Numbers(seed + 1000));
    let mut cluster = cluster_with(mode(check), 1, TOTAL);
    let (mut wrong, mut all) = (0, 0);
    let mut running: Vec<(usize, PlacementRequest)> = Vec::new();
    for (step, used) in memory.iter().take(STEPS).enumerate() {
        let now = NOW.after(STEP * u32::try_from(step).unwrap());
        let ended: Vec<_> = running.extract_if(.., |(since, _)| step - *since >= LIVES).collect();
        ended.iter().for_each(|(_, pod)| cluster.pod_gone(&pod.uid));
        let mut shown = report(mib(*used), mib(*used), &[]);
        shown.gpus.values_mut().for_each(|gpu| gpu.memory_total = mib(TOTAL));
        if step == 0 {
            cluster.agent_reports(STREAM, shown, now).unwrap();
        } else if step % REPORT == 0 {
            let change = ReportChange { phase: shown.phase, gpus: shown.gpus, ..ReportChange::default() };
            cluster.agent_changes(&name(0), STREAM, change, now).unwrap();
        }
        let asked = 8 * 1024 + numbers.below(16 * 1024);
        let claimed: u64 = cluster.node(&name(0)).unwrap().devices().devices[0].claimed.memory >> 20;
        let request = slice(u32::try_from(step).unwrap() + 1, asked);
        if comes(&mut cluster, &request, now) {
            let gone = memory[step.saturating_sub(GONE)..=step].iter().min().unwrap();
            all += 1;
            wrong += usize::from(gone + claimed + asked > TOTAL);
            running.push((step, request));
        }
    }
    (wrong, all)
}

#[test]
fn no_pod_is_bound_into_memory_that_has_been_gone_for_two_seconds() {
    let mut unchecked = 0;
    for seed in 0..20 {
        let (wrong, all) = replay(CheckMode::Strict, seed);
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(all > 10, "seed {seed}: only {all} pods were bound");
        unchecked += replay(CheckMode::Disabled, seed).0;
    }
    assert!(unchecked > 100, "{unchecked}");
}
