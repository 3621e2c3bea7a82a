//! A stranger's memory changes as in training jobs, while pods come and grow: no pod is bound into memory that has been gone for
//! two seconds. A row of a recording, which is a minute, is played in five seconds.
//!
//! The agent lists processes every fifth second and at each jump of memory, and sends readings that differ by their dead band or
//! more. The replay does not list less often while memory jumps all the time, as the agent does.

use super::tests::{STREAM, cluster_with, mib, mode, report};
use crate::cluster::tests::{NOW, bound, name, names, slice};
use crate::cluster::{BindOutcome, ClusterState};
use crate::placement::tests::uuid;
use crate::report_pace::ReportPace;
use model::agent_stream::{AgentMessage, AgentReport, MEMORY_DEAD_BAND, PodStage, ReportedPod, ReportedUse};
use model::claim::PodClaim;
use model::id::PodUid;
use model::placement::PlacementRequest;
use model::realtime::{CheckMode, CheckRules};
use model::time::Monotonic;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The memory of the GPU, in MiB.
const TOTAL: u64 = 48 * 1024;
/// Length of a step.
const STEP: Duration = Duration::from_millis(250);
/// Number of steps of one row of a series: five seconds.
const ROW: usize = 20;
/// Number of steps between two looks of the agent: one second.
const LOOK: usize = 4;
/// Number of steps in two seconds: memory that was free for so long is gone.
const GONE: usize = 8;
/// Number of looks between two lists of processes.
const LIST: u32 = 5;
/// A change of memory since the last list that causes a list at once, in MiB.
const JUMP: u64 = 32;
/// Number of pods that come during a series.
const PODS: usize = 100;
/// Number of steps that a pod lives: a minute. In the first half its memory grows.
const LIVES: usize = 240;
/// Number of rows of a series that looks like a recording.
const ROWS: usize = 200;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A pod that is bound.
struct RunningPod {
    request: PlacementRequest,
    since: usize,
    /// The memory that the pod uses in the end, in MiB.
    most: u64,
}

impl RunningPod {
    /// The memory that the pod uses at this step, in MiB.
    fn uses(&self, step: usize) -> u64 {
        let half = u64::try_from(LIVES / 2).unwrap();
        let age = u64::try_from(step - self.since).unwrap();
        self.most.min(self.most * age / half)
    }
}

/// What the agent knows.
#[derive(Default)]
struct ReplayedAgent {
    pace: ReportPace,
    /// The memory in use when the newest list was made, and how much each pod used, in MiB.
    listed: Option<u64>,
    own: BTreeMap<PodUid, u64>,
    /// Number of looks since the newest list.
    looks: u32,
}

impl ReplayedAgent {
    /// The agent looks again. Returns its report.
    fn look(&mut self, stranger: u64, running: &[RunningPod], step: usize) -> AgentReport {
        let own: BTreeMap<PodUid, u64> = running.iter().map(|one| (one.request.uid.clone(), one.uses(step))).collect();
        let used = stranger + own.values().sum::<u64>();
        self.looks += 1;
        if self.looks >= LIST || self.listed.is_none_or(|listed| listed.abs_diff(used) >= JUMP) {
            (self.listed, self.own, self.looks) = (Some(used), own, 0);
        }
        let mut shown = report(mib(used), mib(self.listed.unwrap_or(used)), &[]);
        shown.gpus.values_mut().for_each(|gpu| gpu.memory_total = mib(TOTAL));
        let pod = |(uid, used): (&PodUid, &u64)| {
            let used = ReportedUse { processes: 1, memory_used: mib(*used) };
            let uses = [(uuid(0), used)].into_iter().collect();
            (uid.clone(), ReportedPod { stage: PodStage::Started, has_containers: false, uses })
        };
        shown.pods = self.own.iter().map(pod).collect();
        shown
    }
}

/// The memory of a stranger in MiB, row by row: plateaus that grow slowly, with jumps between them and ripples, like the memory of
/// training jobs.
fn look_alike(seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let mut memory = Vec::with_capacity(ROWS);
    while memory.len() < ROWS {
        let (level, length, growth) = (numbers.below(44 * 1024), 1 + numbers.below(20), numbers.below(40));
        memory.extend((0..length).map(|row| level + growth * row + numbers.below(64)));
    }
    memory.truncate(ROWS);
    memory
}

/// The memory of each pod of GenTD26 in MiB, row by row.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "only this test reads a file, which gzip unpacks"
)]
fn recordings() -> Vec<Vec<u64>> {
    let folder = std::env::var_os("FAKE_NVML_TRACES").expect("FAKE_NVML_TRACES names the folder of the recordings");
    let path = Path::new(&folder).join("gentd26/pod_gpu_memory_used_bytes_anon.csv.gz");
    // This crate imports no crate that unpacks files.
    let unpacked = std::process::Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip can be run");
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let text = String::from_utf8(unpacked.stdout).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<&str>>());
    let titles = rows.next().expect("a row of titles");
    let place = |title: &str| titles.iter().position(|one| *one == title).expect("the column");
    let (time, value, pod) = (place("timestamp_anon"), place("value"), place("container_ip"));
    let whole = |cell: &str| cell.split('.').next().and_then(|whole| whole.parse::<u64>().ok()).expect("a number");
    let mut pods: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for row in rows {
        pods.entry(row[pod]).or_default().insert(whole(row[time]), whole(row[value]) >> 20);
    }
    pods.into_values().map(|series| series.into_values().collect()).collect()
}

/// The leader gets a message of the agent.
fn hears(cluster: &mut ClusterState, message: Option<AgentMessage>, now: Monotonic) {
    match message {
        Some(AgentMessage::Full(report)) => cluster.agent_reports(STREAM, report, now).unwrap(),
        Some(AgentMessage::Change(change)) => cluster.agent_changes(&name(0), STREAM, change, now).unwrap(),
        Some(AgentMessage::Beat) => cluster.agent_beats(&name(0), STREAM, now).unwrap(),
        None => {}
    }
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

/// The claims on the GPU, in MiB.
fn claimed(cluster: &ClusterState) -> u64 {
    cluster.node(&name(0)).unwrap().devices().devices[0].claimed.memory >> 20
}

/// Pods that were bound into memory that the stranger had used for two seconds, and all pods that were bound.
fn replay(check: CheckMode, series: &[u64], seed: u64) -> (usize, usize) {
    // A stranger of this size may count as nothing: the margin, and the changes that cause neither a message nor a list.
    let small = (CheckRules::default().margin.0 >> 20) + (MEMORY_DEAD_BAND.0 >> 20) + JUMP;
    let mut numbers = Numbers(seed + 1000);
    let mut cluster = cluster_with(mode(check), 1, TOTAL);
    let (mut agent, mut running) = (ReplayedAgent::default(), Vec::<RunningPod>::new());
    let (mut wrong, mut all) = (0, 0);
    let steps = series.len() * ROW;
    let every = (steps / PODS).max(1);
    for step in 0..steps {
        let now = NOW.after(STEP * u32::try_from(step).unwrap());
        let ended: Vec<RunningPod> = running.extract_if(.., |one| step - one.since >= LIVES).collect();
        ended.iter().for_each(|one| cluster.pod_gone(&one.request.uid));
        // Each row begins between two looks.
        if step % LOOK == LOOK - 1 {
            let shown = agent.look(series[step / ROW], &running, step);
            hears(&mut cluster, agent.pace.due(now, &shown), now);
        }
        if step < LOOK || step % every != 0 {
            continue;
        }
        let asked = 8 * 1024 + numbers.below(16 * 1024);
        let most = [asked, asked / 2, 300][usize::try_from(numbers.below(3)).unwrap()];
        let request = slice(u32::try_from(step).unwrap() + 1, asked);
        let before = claimed(&cluster);
        if comes(&mut cluster, &request, now) {
            let gone = (step.saturating_sub(GONE)..=step).map(|step| series[step / ROW]).min().unwrap();
            all += 1;
            wrong += usize::from(gone > small && gone + before + asked > TOTAL);
            running.push(RunningPod { request, since: step, most });
        }
    }
    (wrong, all)
}

#[test]
fn no_pod_is_bound_into_memory_that_has_been_gone_for_two_seconds() {
    let mut unchecked = 0;
    for seed in 0..20 {
        let series = look_alike(seed);
        let (wrong, all) = replay(CheckMode::Strict, &series, seed);
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(all > 10, "seed {seed}: only {all} pods were bound");
        unchecked += replay(CheckMode::Disabled, &series, seed).0;
    }
    assert!(unchecked > 100, "{unchecked}");
}

#[test]
#[ignore = "needs recordings: tests/run --long"]
fn no_pod_is_bound_into_the_memory_of_recorded_training_jobs() {
    let (mut unchecked, mut all) = (0, 0);
    for (seed, series) in (0..).zip(recordings()) {
        let (wrong, placed) = replay(CheckMode::Strict, &series, seed);
        assert_eq!(wrong, 0, "series {seed}");
        all += placed;
        unchecked += replay(CheckMode::Disabled, &series, seed).0;
    }
    assert!(unchecked > 0 && all > 1000, "{unchecked} of unchecked pods are wrong, and {all} were bound");
    println!("{all} pods were bound, none into memory in use; without the check {unchecked} were");
}
