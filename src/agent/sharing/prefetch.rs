//! The prefetch: writes the CDI spec and the limits file of a container before `PreStartContainer` asks for them. After
//! `Allocate` the kubelet makes a sandbox, which takes a second; the prefetch uses that time, because a start that
//! waits for a full disk holds up its pod.
//!
//! ```text
//!   Allocate ──▶ unseen ──checkpoint──▶ seen ──guess──▶ preparing ──files──▶ prepared ──▶ PreStartContainer
//! ```
//!
//! Other threads read the checkpoint and write the files, so the sharing task does not wait. A start is decided in the same way
//! as without a prefetch: by a recent checkpoint that contains its ticket. Prefetched files are used only if they are exactly the
//! files of that decision; otherwise they are written again.
//!
//! What must never happen here: a container starts with the guess of a prefetch; two threads write one file.

use decide::allocator::{BoundContainer, NodeAllocator, StartVerdict};
use effects::delivery::DeviceDelivery;
use model::checkpoint::CheckpointEntry;
use model::id::Ticket;
use model::limits::ContainerLimits;
use sources::checkpoint::{CheckpointEntries, CheckpointReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Pause between two readings of the checkpoint while it lacks a ticket: the kubelet writes it within milliseconds of
/// `Allocate`.
const SOON: Duration = Duration::from_millis(20);
/// Pause between two readings while starts are expected.
const LATER: Duration = Duration::from_millis(500);
/// A checkpoint that was read at most this long ago is as good as a new reading, because the kubelet has long written the
/// container of a start.
const FRESH: Duration = Duration::from_secs(2);
/// How long after `Allocate` a start is expected. The files of a later start, after a long image pull, are written at that
/// start.
const EXPECTED: Duration = Duration::from_secs(60);
/// Maximum number of expected starts: all containers of a full node. The files of further containers are written when they start.
const MAX_EXPECTED: usize = 1024;
/// Pause between two prefetches of CDI specs. After each prefetch the runtime rereads all specs of its folder, which takes 0.2 ms
/// for each spec. With one prefetch for each ticket of sixty pods, this took a twelfth of the CPU time in a test. If a start
/// comes before its prefetch, its files are written at the start.
const APART: Duration = Duration::from_secs(1);
/// Maximum number of starts in one prefetch. The kubelet admits sixty pods within seconds and starts them in its own order, so
/// the files of all of them should be written in the first seconds. With a maximum of 16, a quarter of the starts came before
/// their files were written. A start whose files are being written waits for the whole prefetch, 0.2 ms for each start.
const MAX_AT_ONCE: usize = 64;
/// Maximum number of pending background results: one reading and one prefetch.
const UNDER_WAY: usize = 2;

/// The expected starts, and the stage of each.
#[derive(Debug)]
pub(super) struct SpecPrefetcher {
    rows: Option<(Arc<[CheckpointEntry]>, Instant)>,
    expected: BTreeMap<Ticket, (Instant, Stage)>,
    reading: bool,
    writing: bool,
    /// Before this time no CDI spec is prefetched.
    not_before: Option<Instant>,
    due: Instant,
    ends: (mpsc::Sender<BackgroundResult>, mpsc::Receiver<BackgroundResult>),
}

#[derive(Debug)]
enum Stage {
    Unseen,
    Seen,
    Preparing,
    Prepared(PrefetchedSpec),
    /// Nothing could be prefetched with the last checkpoint.
    Open,
    /// Nothing could be prefetched with an earlier checkpoint; the newest checkpoint may allow it.
    Again,
}

/// The limits that were written, and the delivery that wrote them.
#[derive(Debug)]
pub(super) struct PrefetchedSpec {
    limits: ContainerLimits,
    by: Arc<DeviceDelivery>,
}

/// The result of work in the background.
#[derive(Debug)]
pub(super) enum BackgroundResult {
    /// A reading of the checkpoint that began at this time.
    Checkpoint(Instant, Result<CheckpointEntries, String>, CheckpointReader),
    /// Prefetched files.
    Files(PrefetchResult),
}

/// The limits that were written for each ticket, and whether any CDI spec is new.
#[derive(Debug)]
pub(super) struct PrefetchResult {
    new_specs: bool,
    files: BTreeMap<Ticket, Option<PrefetchedSpec>>,
}

impl Default for SpecPrefetcher {
    fn default() -> SpecPrefetcher {
        SpecPrefetcher {
            rows: None,
            expected: BTreeMap::new(),
            reading: false,
            writing: false,
            not_before: None,
            due: Instant::now(),
            ends: mpsc::channel(UNDER_WAY),
        }
    }
}

impl SpecPrefetcher {
    /// Records that a ticket is issued, whose start is now expected.
    pub(super) fn given(&mut self, ticket: &Ticket, now: Instant) {
        if self.expected.len() < MAX_EXPECTED {
            self.expected.insert(ticket.clone(), (now, Stage::Unseen));
            self.due = self.due.min(now + SOON);
        }
    }

    /// Waits for the next background result.
    pub(super) async fn ended(&mut self) -> Option<BackgroundResult> {
        self.ends.1.recv().await
    }

    /// When the checkpoint must be read next; `None` while no start is expected or a reading runs.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.reading && !self.expected.is_empty()).then_some(self.due)
    }

    /// Reads the checkpoint in the background.
    pub(super) fn read(&mut self, mut checkpoint: CheckpointReader) {
        self.reading = true;
        let results = self.ends.0.clone();
        spawn_blocking(move || {
            let began = Instant::now();
            let read = checkpoint.read();
            // The receiver is gone only when the program ends.
            let _ = results.blocking_send(BackgroundResult::Checkpoint(began, read, checkpoint));
        });
    }

    /// Takes the result of a background reading of the checkpoint; `rows` is `None` if not all entries could be read.
    pub(super) fn has_read(&mut self, began: Instant, rows: Option<&Arc<[CheckpointEntry]>>, now: Instant) {
        self.reading = false;
        self.expected.retain(|_, (since, stage)| matches!(stage, Stage::Preparing) || now - *since < EXPECTED);
        for row in rows.into_iter().flat_map(|rows| rows.iter()) {
            let ticket = row.ticket.as_ref();
            if let Some((_, stage)) = ticket.and_then(|ticket| self.expected.get_mut(ticket)) {
                match stage {
                    Stage::Unseen => {
                        effects::failpoint!("allocate-in-checkpoint");
                        *stage = Stage::Seen;
                    }
                    Stage::Open => *stage = Stage::Again,
                    _ => {}
                }
            }
        }
        let unseen = self.expected.values().any(|(_, stage)| matches!(stage, Stage::Unseen));
        self.due = now + if unseen { SOON } else { LATER };
        self.rows = rows.map(|rows| (Arc::clone(rows), began));
    }

    /// The last checkpoint, if it was read a moment ago and contains the newest ticket of each of these starts. It must also
    /// contain every other expected ticket that shares an id with them. Such a checkpoint was read after `Allocate`, so no other
    /// container holds one of these ids in it.
    pub(super) fn rows<'a>(
        &self,
        allocator: &NodeAllocator,
        starts: impl Iterator<Item = &'a [Arc<str>]>,
        now: Instant,
    ) -> Option<Arc<[CheckpointEntry]>> {
        let (rows, _) = self.rows.as_ref().filter(|(_, began)| now - *began <= FRESH)?;
        let written: BTreeSet<&Ticket> = rows.iter().filter_map(|row| row.ticket.as_ref()).collect();
        let mut requested: BTreeSet<&Arc<str>> = BTreeSet::new();
        for ids in starts {
            allocator.newest_ticket(ids).filter(|ticket| written.contains(ticket))?;
            requested.extend(ids);
        }
        let unseen = self.expected.iter().filter(|(_, (_, stage))| matches!(stage, Stage::Unseen));
        let of_others = |ticket: &Ticket| {
            allocator.issued(ticket).is_some_and(|it| it.ids.iter().all(|id| !requested.contains(id)))
        };
        unseen.map(|(ticket, _)| ticket).all(of_others).then(|| Arc::clone(rows))
    }

    /// Writes the files that the next expected containers would get if they started now, decided on a copy of the state. The
    /// containers that have waited longest come first; containers for which an earlier try failed come last. Call this again when
    /// the files are written.
    pub(super) fn prepare(&mut self, allocator: &NodeAllocator, delivery: &Arc<DeviceDelivery>, now: Instant) {
        let Some((rows, _)) = self.rows.as_ref().filter(|_| !self.writing) else { return };
        let seen = |row: &CheckpointEntry| match self.expected.get(row.ticket.as_ref()?) {
            Some((since, Stage::Seen)) => Some(((false, *since), row.clone())),
            Some((since, Stage::Again)) => Some(((true, *since), row.clone())),
            _ => None,
        };
        let mut due: Vec<((bool, Instant), CheckpointEntry)> = rows.iter().filter_map(seen).collect();
        if due.is_empty() {
            return;
        }
        if let Some(not_before) = self.not_before.filter(|time| now < *time) {
            // The prefetch runs at that time, with the newest checkpoint.
            self.due = self.due.min(not_before);
            return;
        }
        due.sort_by_key(|(order, _)| *order);
        let due: Vec<CheckpointEntry> = due.into_iter().take(MAX_AT_ONCE).map(|(_, row)| row).collect();
        for ticket in due.iter().filter_map(|row| row.ticket.as_ref()) {
            if let Some((_, stage)) = self.expected.get_mut(ticket) {
                *stage = Stage::Preparing;
            }
        }
        self.writing = true;
        let (guess, rows, results) = (allocator.clone(), Arc::clone(rows), self.ends.0.clone());
        let delivery = Arc::clone(delivery);
        spawn_blocking(move || {
            let _ = results.blocking_send(BackgroundResult::Files(write(guess, &rows, &due, &delivery)));
        });
    }

    /// Takes the result of a prefetch that has ended.
    pub(super) fn has_written(&mut self, PrefetchResult { new_specs, files }: PrefetchResult, now: Instant) {
        self.writing = false;
        if new_specs {
            self.not_before = Some(now + APART);
        }
        for (ticket, made) in files {
            if let Some((_, stage)) = self.expected.get_mut(&ticket) {
                *stage = made.map_or(Stage::Open, Stage::Prepared);
            }
        }
    }

    /// Whether files of one of these containers are being written: they are ready in a moment, and no other thread may
    /// write them.
    pub(super) fn is_preparing(&self, bound: &[BoundContainer]) -> bool {
        bound.iter().any(|bound| matches!(self.expected.get(&bound.ticket), Some((_, Stage::Preparing))))
    }

    /// Called when these containers start. Returns whether all their files exist and match the decision exactly. The same
    /// files can be used again while the start is expected, because an init container and the app container after it are
    /// both filled at each start.
    pub(super) fn started(&mut self, bound: &[BoundContainer], delivery: &Arc<DeviceDelivery>) -> bool {
        let matches = |bound: &BoundContainer| match self.expected.get(&bound.ticket) {
            Some((_, Stage::Prepared(made))) => made.limits == bound.limits && Arc::ptr_eq(&made.by, delivery),
            _ => false,
        };
        let there = !bound.is_empty() && bound.iter().all(matches);
        if !there {
            bound.iter().for_each(|bound| drop(self.expected.remove(&bound.ticket)));
        }
        there
    }
}

/// Writes the files; blocks until they are on disk.
fn write(
    mut guess: NodeAllocator,
    rows: &[CheckpointEntry],
    due: &[CheckpointEntry],
    delivery: &Arc<DeviceDelivery>,
) -> PrefetchResult {
    let mut made: BTreeMap<Ticket, Option<PrefetchedSpec>> =
        due.iter().filter_map(|row| row.ticket.clone()).map(|ticket| (ticket, None)).collect();
    // A write that fails is reported when the container starts.
    let mut specs: Vec<(Ticket, ContainerLimits)> = Vec::new();
    for row in due {
        let StartVerdict::Fill { bound, .. } = guess.start(&row.ids, Some(rows)) else { continue };
        for bound in bound {
            if made.contains_key(&bound.ticket) && specs.iter().all(|(ticket, _)| *ticket != bound.ticket) {
                specs.push((bound.ticket, bound.limits));
            }
        }
    }
    let delivered: BTreeSet<Ticket> = delivery.deliver_all(&specs).into_iter().cloned().collect();
    let new_specs = !delivered.is_empty();
    for (ticket, limits) in specs.into_iter().filter(|(ticket, _)| delivered.contains(ticket)) {
        made.insert(ticket, Some(PrefetchedSpec { limits, by: Arc::clone(delivery) }));
    }
    PrefetchResult { new_specs, files: made }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::allocator::{SharedDevice, WithoutClaim};
    use effects::delivery::NodeEdits;
    use model::claim::{DeviceShare, PodClaim};
    use model::gpu_pod::GpuPod;
    use model::id::{ContainerKey, GpuUuid, PodRef, PodUid};
    use model::request::{ContainerRequest, ContainerRole};
    use model::unit::Bytes;
    use std::path::Path;

    const IDS: [&str; 1] = ["GPU-a-0"];

    fn ids() -> Vec<Arc<str>> {
        IDS.map(Arc::from).to_vec()
    }

    fn key() -> ContainerKey {
        ContainerKey { pod: PodUid::parse(&"1".repeat(32)).unwrap(), container: "main".into() }
    }

    fn ticket(n: u8) -> Ticket {
        Ticket::of_random([n; 16])
    }

    fn row(n: u8) -> CheckpointEntry {
        CheckpointEntry { holder: key(), ids: ids(), ticket: Some(ticket(n)), foreign: false, early: false }
    }

    /// One GPU, and one pod with a claim on this much of its memory.
    fn allocator(memory: u64) -> NodeAllocator {
        let device = GpuUuid::parse("GPU-a").unwrap();
        let mut allocator = NodeAllocator::new(WithoutClaim::Refuse, true);
        allocator.set_devices(vec![SharedDevice {
            device: device.clone(),
            parent: None,
            index: 0,
            minor: Some(0),
            model: "H100".into(),
            slots: 10,
            memory: Bytes(80 << 30),
            cores: 100,
            numa: None,
            healthy: true,
        }]);
        allocator.set_gpu_pods(vec![gpu_pod(&device, memory)]);
        allocator
    }

    fn gpu_pod(device: &GpuUuid, memory: u64) -> GpuPod {
        let request = ContainerRequest {
            container: "main".into(),
            role: ContainerRole::App,
            slots: 1,
            memory: None,
            cores: None,
            priority: None,
        };
        GpuPod {
            uid: key().pod,
            pod: PodRef { namespace: "ml".into(), name: "train".into() },
            arrival: None,
            requests: vec![request],
            claim: PodClaim::Given(
                vec![vec![DeviceShare { device: device.clone(), memory: Some(Bytes(memory)), cores: None }]].into(),
            ),
            chooses_gpus: false,
            placed_here: false,
            started: false,
            finished: false,
        }
    }

    fn delivery(folder: &Path) -> Arc<DeviceDelivery> {
        Arc::new(DeviceDelivery::new(&folder.join("state"), &folder.join("cdi"), NodeEdits::default()).unwrap())
    }

    /// The decision when the container starts.
    fn decided(allocator: &mut NodeAllocator, rows: &[CheckpointEntry]) -> Vec<BoundContainer> {
        let StartVerdict::Fill { bound, .. } = allocator.start(&ids(), Some(rows)) else { panic!("it may start") };
        bound
    }

    /// A prefetcher that has done all that it can before the start.
    async fn prepared(allocator: &NodeAllocator, delivery: &Arc<DeviceDelivery>) -> SpecPrefetcher {
        let mut prefetcher = SpecPrefetcher::default();
        let now = Instant::now();
        prefetcher.given(&ticket(1), now);
        assert!(prefetcher.due().is_some());
        prefetcher.has_read(now, Some(&Arc::from([row(1)])), now);
        prefetcher.prepare(allocator, delivery, now);
        let Some(BackgroundResult::Files(written)) = prefetcher.ended().await else { panic!("files are written") };
        prefetcher.has_written(written, now);
        prefetcher
    }

    #[tokio::test]
    async fn prefetched_files_count_only_if_they_are_those_that_the_start_needs() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        for (memory, other, expected) in [(4, false, true), (5, false, false), (4, true, false)] {
            let mut allocator = allocator(4);
            allocator.issue(ticket(1), &ids());
            let mut prefetcher = prepared(&allocator, &delivery).await;
            assert_eq!(std::fs::read_dir(folder.path().join("cdi")).unwrap().count(), 1, "written before the start");
            allocator.set_gpu_pods(vec![gpu_pod(&GpuUuid::parse("GPU-a").unwrap(), memory)]);
            let bound = decided(&mut allocator, &[row(1)]);
            let by = if other { Arc::new(delivery.with(NodeEdits::default())) } else { Arc::clone(&delivery) };
            assert_eq!(prefetcher.started(&bound, &by), expected, "{memory} {other}");
            assert_eq!(prefetcher.started(&bound, &by), expected, "the same for the app after its init container");
            prefetcher.has_read(Instant::now(), None, Instant::now() + EXPECTED);
            assert!(
                !prefetcher.started(&bound, &by),
                "the files of a container that starts again later are written again"
            );
        }
    }

    #[tokio::test]
    async fn no_other_task_writes_during_a_prefetch() {
        let folder = tempfile::tempdir().unwrap();
        let (delivery, mut allocator, mut prefetcher) =
            (delivery(folder.path()), allocator(4), SpecPrefetcher::default());
        allocator.issue(ticket(1), &ids());
        let now = Instant::now();
        prefetcher.given(&ticket(1), now);
        prefetcher.has_read(now, Some(&Arc::from([row(1)])), now);
        prefetcher.prepare(&allocator, &delivery, now);
        let bound = decided(&mut allocator, &[row(1)]);
        assert!(prefetcher.is_preparing(&bound));
        let Some(BackgroundResult::Files(written)) = prefetcher.ended().await else { panic!("files are written") };
        prefetcher.has_written(written, now);
        assert!(!prefetcher.is_preparing(&bound));
    }

    #[tokio::test]
    async fn a_prefetch_takes_the_longest_expected_first_and_tries_again_only_with_another_checkpoint() {
        const FULL: u8 = 64;
        const ALL: u8 = FULL + 2;
        const LATE: u8 = 200;
        assert_eq!(usize::from(FULL), MAX_AT_ONCE);
        let folder = tempfile::tempdir().unwrap();
        let (delivery, mut allocator, mut prefetcher) =
            (delivery(folder.path()), allocator(4), SpecPrefetcher::default());
        let now = Instant::now();
        let slot = |n: u8| -> Vec<Arc<str>> { vec![format!("GPU-a-{n}").into()] };
        // Only the first ticket belongs to a known pod; the checkpoint has the tickets in reverse order.
        for n in 0..ALL {
            allocator.issue(ticket(n), &slot(n));
            prefetcher.given(&ticket(n), now + Duration::from_millis(n.into()));
        }
        let other =
            |n: u8| ContainerKey { pod: PodUid::parse(&format!("{n:032x}")).unwrap(), container: "main".into() };
        let holder = |n: u8| if n == 0 { key() } else { other(n) };
        let rows: Arc<[CheckpointEntry]> =
            (0..ALL).rev().map(|n| CheckpointEntry { holder: holder(n), ids: slot(n), ..row(n) }).collect();
        prefetcher.has_read(now, Some(&rows), now);
        for (turn, expected) in [(now, 0..FULL), (now + APART, FULL..ALL)] {
            prefetcher.prepare(&allocator, &delivery, turn - Duration::from_millis(u64::from(turn > now)));
            assert!(
                turn == now || !prefetcher.writing && prefetcher.due <= turn,
                "the pause after the last prefetch is not over"
            );
            prefetcher.prepare(&allocator, &delivery, turn);
            let Some(BackgroundResult::Files(written)) = prefetcher.ended().await else { panic!("files are written") };
            let files = &written.files;
            let batch: BTreeSet<Ticket> = expected.map(ticket).collect();
            assert!(files.keys().eq(&batch), "{files:?}");
            assert!(files.iter().all(|(of, made)| made.is_some() == (*of == ticket(0))), "{files:?}");
            assert_eq!(written.new_specs, turn == now);
            prefetcher.has_written(written, turn);
        }
        prefetcher.prepare(&allocator, &delivery, now + 2 * APART);
        assert!(!prefetcher.writing, "nothing is tried again with the same checkpoint");
        prefetcher.has_read(now, Some(&rows), now);
        prefetcher.prepare(&allocator, &delivery, now + 2 * APART);
        let Some(BackgroundResult::Files(written)) = prefetcher.ended().await else { panic!("files are written") };
        assert_eq!(written.files.len(), MAX_AT_ONCE);
        assert!(!written.files.contains_key(&ticket(0)), "its files exist");
        prefetcher.has_written(written, now + 2 * APART);
        // The two tickets that were left, and before them one that was not tried yet.
        allocator.issue(ticket(LATE), &slot(LATE));
        prefetcher.given(&ticket(LATE), now + APART);
        let rows: Arc<[CheckpointEntry]> =
            (0..ALL).chain([LATE]).map(|n| CheckpointEntry { holder: other(n), ids: slot(n), ..row(n) }).collect();
        prefetcher.has_read(now, Some(&rows), now);
        prefetcher.prepare(&allocator, &delivery, now + 2 * APART);
        let Some(BackgroundResult::Files(written)) = prefetcher.ended().await else { panic!("files are written") };
        assert!(written.files.len() == MAX_AT_ONCE && written.files.contains_key(&ticket(LATE)), "{written:?}");
    }

    #[test]
    fn an_earlier_checkpoint_counts_only_if_it_is_fresh_and_has_the_newest_ticket() {
        let (mut allocator, mut prefetcher, ids) = (allocator(4), SpecPrefetcher::default(), ids());
        let (now, starts) = (Instant::now(), || std::iter::once(&*ids));
        let checkpoint = |n: &[u8]| -> Arc<[CheckpointEntry]> { n.iter().map(|n| row(*n)).collect() };
        allocator.issue(ticket(1), &ids);
        prefetcher.given(&ticket(1), now);
        prefetcher.has_read(now, Some(&checkpoint(&[])), now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now), None, "kubelet has not written the ticket yet");
        prefetcher.has_read(now, Some(&checkpoint(&[1])), now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now), Some(checkpoint(&[1])));
        allocator.issue(ticket(2), &ids);
        assert_eq!(
            prefetcher.rows(&allocator, starts(), now),
            None,
            "the ids have been given to another container since"
        );
        prefetcher.given(&ticket(2), now);
        prefetcher.has_read(now, Some(&checkpoint(&[2])), now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now + FRESH), Some(checkpoint(&[2])));
        allocator.issue(ticket(3), &["GPU-a-7".into()]);
        prefetcher.given(&ticket(3), now);
        assert_eq!(
            prefetcher.rows(&allocator, starts(), now),
            Some(checkpoint(&[2])),
            "other ids do not concern this start"
        );
        allocator.issue(ticket(4), &["GPU-a-8".into(), IDS[0].into()]);
        prefetcher.given(&ticket(4), now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now), None, "one of these ids concerns it");
        prefetcher.has_read(now, Some(&checkpoint(&[2, 4])), now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now + FRESH + SOON), None, "the checkpoint is too old");
        prefetcher.has_read(now, None, now);
        assert_eq!(prefetcher.rows(&allocator, starts(), now), None, "the checkpoint cannot be read");
        assert!(prefetcher.due().is_some());
        prefetcher.has_read(now, None, now + EXPECTED);
        assert!(prefetcher.due().is_none(), "nothing is expected any more");
    }
}
