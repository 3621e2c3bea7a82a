//! The files of containers on this node: writes the files that a start needs, counts the files that pods write, and
//! removes the files of pods that are gone.

use super::counts::Written;
use super::emptier::Emptier;
use super::event_notes;
use super::file_counter::{Counted, FileCounter};
use crate::event_log::{PodEvent, log_pod_event};
use decide::allocator::{BoundContainer, NodeAllocator};
use effects::delivery::{DeliveryError, DeviceDelivery, NodeEdits, StartedPodsFile, TicketFolders};
use effects::plugin::{CallRefused, OneAtDisk};
use model::id::{GpuUuid, PodRef, PodUid, Ticket};
use model::limits::ContainerLimits;
use model::observation::ErrorCounter;
use model::plugin::PodFiles;
use model::unit::Bytes;
use sources::report::Reporter;
use sources::state_dir;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::{Instant, sleep_until};

/// Time between two sweeps for files of pods that are gone.
const SWEEP: Duration = Duration::from_secs(60);
/// Pause before a sweep when a pod is gone, and before the next try while there is no pod list yet.
const SWEEP_SOON: Duration = Duration::from_secs(1);
/// Maximum number of delivery results that wait for the sharing task: one for each pod of a node.
const MAX_UNREPORTED: usize = 128;

/// The result of a device delivery. Every failure is reported, and a success only if a scheduler waits for the pod.
#[derive(Debug)]
pub(super) struct DeliveryResult {
    pub uid: PodUid,
    pub pod: PodRef,
    pub container: Arc<str>,
    pub result: Result<(), String>,
}

/// A start whose files must be written.
#[derive(Debug)]
pub(super) struct UnwrittenStart {
    /// Sends the answer to the gRPC task.
    pub reply: oneshot::Sender<Result<(), CallRefused>>,
    /// How long the start has waited.
    pub waited: Duration,
    /// The containers that may be starting.
    pub bound: Vec<BoundContainer>,
    /// Whether the allocator made the claim.
    pub shared: bool,
    /// Whether a scheduler waits for the pod.
    pub awaited: bool,
}

/// An event for the sharing task.
#[derive(Debug)]
pub(super) enum FilesEvent {
    /// A delivery has ended.
    Delivered(DeliveryResult),
    /// A count of the files that pods have written has ended.
    Counted(Vec<PodFiles>),
    /// The sweep is due.
    SweepDue,
}

/// Writes, counts and removes the files of containers.
#[derive(Debug)]
pub(super) struct ContainerFiles {
    delivery: Arc<DeviceDelivery>,
    /// The folders of issued tickets.
    folders: TicketFolders,
    /// The file of pods with at least one answered start.
    starts: StartedPodsFile,
    /// Results from the threads that write files of containers.
    delivered: (mpsc::Sender<DeliveryResult>, mpsc::Receiver<DeliveryResult>),
    /// The time of the next sweep for files of pods that are gone.
    sweep_at: Instant,
    /// Empties the trash, into which the sweep moves the files of pods that are gone.
    emptier: Emptier,
    /// Counts the files that pods write into their folders.
    counter: FileCounter,
    reporter: Reporter,
}

impl ContainerFiles {
    /// Files are written through this delivery. Each pod may write at most `limit`.
    pub(super) fn new(
        delivery: DeviceDelivery,
        (folders, starts): (TicketFolders, StartedPodsFile),
        limit: Bytes,
        reporter: Reporter,
    ) -> ContainerFiles {
        ContainerFiles {
            delivery: Arc::new(delivery),
            folders,
            starts,
            delivered: mpsc::channel(MAX_UNREPORTED),
            sweep_at: Instant::now(),
            emptier: Emptier::new(reporter.clone()),
            counter: FileCounter::new(limit, reporter.clone()),
            reporter,
        }
    }

    /// Gives the allocator the claims, limits and tickets that the previous agent issued. Returns the devices that it gave to pods.
    pub(super) fn recall(
        &mut self,
        allocator: &mut NodeAllocator,
        state_dir: &Path,
    ) -> BTreeMap<PodUid, BTreeSet<GpuUuid>> {
        let started = state_dir::started_pods(state_dir);
        let pods = started.pods.clone();
        self.starts.continues(started);
        let limits = state_dir::container_limits(state_dir, &pods);
        let mut given: BTreeMap<PodUid, BTreeSet<GpuUuid>> = BTreeMap::new();
        for one in &limits {
            let devices = one.devices.iter().map(|device| device.uuid.clone());
            given.entry(one.holder.pod.clone()).or_default().extend(devices);
        }
        allocator.recall_limits(limits);
        allocator.recall(pods);
        allocator.recall_tickets(state_dir::issued_tickets(state_dir));
        given
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> FilesEvent {
        tokio::select! {
            Some(delivered) = self.delivered.1.recv() => FilesEvent::Delivered(delivered),
            Some(files) = self.counter.ended() => FilesEvent::Counted(files),
            () = sleep_until(self.sweep_at) => FilesEvent::SweepDue,
        }
    }

    /// Sets the edits that containers get from now on.
    pub(super) fn set_node_edits(&mut self, node_edits: NodeEdits) {
        self.delivery = Arc::new(self.delivery.with(node_edits));
    }

    /// The delivery that writes the files.
    pub(super) fn delivery(&self) -> &Arc<DeviceDelivery> {
        &self.delivery
    }

    /// The sender for results of deliveries.
    fn results(&self) -> mpsc::Sender<DeliveryResult> {
        self.delivered.0.clone()
    }

    /// Notes on disk that this pod starts. Without the note, if the agent restarts before the API server shows this pod
    /// as running, another pod that claims the same memory could start.
    pub(super) fn note_start(&mut self, pod: &PodUid, disk: &OneAtDisk) {
        if let Err(error) = disk.write(|| self.starts.note(pod)) {
            tracing::warn!(%error, "cannot save that a pod has started; if the agent restarts now, it does not know that the pod runs");
        }
    }

    /// Writes the files on another thread, and answers the call from there.
    pub(super) fn write(&self, start: UnwrittenStart, written: Arc<Written>) {
        let (folders, delivery, results) = (self.folders.clone(), Arc::clone(&self.delivery), self.results());
        spawn_blocking(move || {
            let UnwrittenStart { reply, waited, bound, shared, awaited } = start;
            let write = |BoundContainer { ticket, limits, early, .. }: &BoundContainer| {
                let delivered = match early {
                    true => delivery.deliver_early(&folders.folder(ticket), limits),
                    false => delivery.deliver(ticket, limits),
                };
                delivered.map_err(|error| failed(&error, limits, &results))
            };
            let result = bound.iter().try_for_each(write);
            written.count(result.is_ok());
            let succeeded = result.is_ok();
            let _ = reply.send(result);
            if succeeded {
                bound.iter().for_each(|bound| log_delivered(bound, shared, waited, false));
            }
            if let Some(first) = bound.first().filter(|_| awaited && succeeded) {
                // The receiver is gone only when the program ends.
                let _ = results.blocking_send(report(&first.limits, Ok(())));
            }
        });
    }

    /// Schedules a sweep soon, because a pod is gone.
    pub(super) fn sweep_soon(&mut self) {
        self.sweep_at = self.sweep_at.min(Instant::now() + SWEEP_SOON);
    }

    /// Call this when a sweep has ended. Schedules the next sweep: soon, if there was no pod list.
    pub(super) fn has_swept(&mut self, listed: bool) {
        self.sweep_at = Instant::now() + if listed { SWEEP } else { SWEEP_SOON };
    }

    /// Whether a count of the files that pods have written is due.
    pub(super) fn count_is_due(&self) -> bool {
        self.counter.is_due(Instant::now())
    }

    /// Starts a count of the files that these pods have written into the limiter's folders.
    pub(super) fn count(&mut self, pods: Vec<Counted>) {
        self.counter.start(pods, &self.delivery, &self.folders);
    }

    /// How much a pod may write.
    pub(super) fn limit(&self) -> Bytes {
        self.counter.limit
    }

    /// Notes on disk which pods have started and not ended, and which are gone while their containers run on.
    pub(super) fn keep_started(&mut self, pods: &BTreeSet<PodUid>) {
        if let Err(error) = block_in_place(|| self.starts.keep_only(pods)) {
            tracing::debug!(%error, "cannot remove pods that are gone from the file of started pods");
        }
    }

    /// Moves into the trash: the files of pods that are neither `listed` nor `run_on`; of pods that `run_on` and are not `listed`,
    /// the folders that their containers can write to; the files of tickets that are not in `tickets`; and, if `kept` is known, the
    /// folders of tickets that are not in `kept`. Starts the emptier. Returns the tickets whose folders are gone.
    pub(super) async fn sweep(
        &mut self,
        (listed, run_on): (BTreeSet<PodUid>, BTreeSet<PodUid>),
        tickets: BTreeSet<Ticket>,
        kept: Option<BTreeSet<Ticket>>,
    ) -> Vec<Ticket> {
        let (delivery, folders) = (Arc::clone(&self.delivery), self.folders.clone());
        let sweep = move || {
            let trash = delivery.trash();
            let gone = kept.map(|kept: BTreeSet<Ticket>| folders.sweep(&kept, trash)).unwrap_or_default();
            let stripped = delivery.strip(&(&run_on - &listed));
            let (pods, specs) = delivery.sweep(&(&listed | &run_on), &tickets);
            ((pods + stripped, specs), gone, (trash.is_empty(), trash.not_taken()))
        };
        let Ok(((pods, specs), gone, (is_empty, not_taken))) = spawn_blocking(sweep).await else { return Vec::new() };
        if not_taken > 0 {
            self.reporter.trouble(ErrorCounter::NotRemoved);
        }
        if pods + specs + gone.len() > 0 {
            tracing::debug!(pods, specs, tickets = gone.len(), "files of pods that are gone are put into the trash");
        }
        if !is_empty {
            self.emptier.start(&self.delivery, pods + gone.len() > 0, Instant::now());
        }
        gone
    }
}

/// Reports that a file of a container could not be written, and returns the refusal of its start.
fn failed(error: &DeliveryError, limits: &ContainerLimits, results: &mpsc::Sender<DeliveryResult>) -> CallRefused {
    log_pod_event(&limits.pod, &PodEvent::NotDelivered { container: &limits.holder.container, error });
    let why = event_notes::not_delivered(&limits.holder.container, error);
    // If the queue is full, the sharing task already has enough failures to report.
    let _ = results.try_send(report(limits, Err(why.clone())));
    CallRefused(format!("{}: {why}", limits.pod))
}

/// Logs that all files of this container's claim are written for the runtime.
pub(super) fn log_delivered(bound: &BoundContainer, shared: bool, waited: Duration, prepared: bool) {
    let ContainerLimits { holder, pod, devices, .. } = &bound.limits;
    let devices: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        %pod, container = &*holder.container, uid = %holder.pod, ?devices, shared,
        differs = bound.differs, waited_ms, prepared, "container devices delivered"
    );
}

/// The delivery result of this container.
pub(super) fn report(limits: &ContainerLimits, result: Result<(), String>) -> DeliveryResult {
    let (holder, pod) = (limits.holder.clone(), limits.pod.clone());
    DeliveryResult { uid: holder.pod, pod, container: holder.container, result }
}
