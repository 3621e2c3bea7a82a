//! The owner task: one loop that takes the kubelet's calls, node views and pod lists, and answers the calls.

use super::binding_mode::BindingModeResult;
use super::cdi_check::{Arrivals, Arrived};
use super::counts::Counts;
use super::devices;
use super::emptier::Emptier;
use super::file_counter::{Counted, FileCounter};
use super::gpu_pods::GpuPodReader;
use super::health::Watched;
use super::host::HostFindings;
use super::listing::{Listed, Listing};
use super::pod_status::{self, PodStatusWriter};
use super::prefetch::{BackgroundResult, SpecPrefetcher};
use super::ticket_writer::Keeper;
use super::waiting::{WaitingAllocate, WaitingStart};
use decide::allocator::{NodeAllocator, RecentTickets};
use effects::delivery::{DeviceDelivery, StartedPodsFile, TicketFolders};
use effects::plugin::{CallRefused, PluginCall, PluginCallReceiver, PluginDevice};
use model::checkpoint::CheckpointEntry;
use model::file_stamp::FileStamp;
use model::id::{GpuUuid, NodeName, PodRef, PodUid, Ticket};
use model::limits::PodMemoryClaim;
use model::observation::{ContainerDevices, ErrorCounter, GpuSourceState, Observation};
use model::plugin::{PodFiles, StartOutcome};
use model::pod::{Pod, PodList};
use model::slot::Slot;
use model::view::NodeView;
use sources::checkpoint::{CheckpointEntries, CheckpointReader};
use sources::report::Reporter;
use sources::roots::HostRoots;
use sources::state_dir;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;

/// How often the owner checks whether a waiting call can be judged again: the kubelet writes its checkpoint within
/// milliseconds of `Allocate`.
const AGAIN: Duration = Duration::from_millis(20);
/// How often waiting calls are judged again although the checkpoint has not changed: a call that has waited for too
/// long is refused with a reason.
const ANYWAY: Duration = Duration::from_millis(500);
/// For this long after an `Allocate` the owner looks in the kubelet's checkpoint for a pod that is admitted with all
/// its containers: the kubelet writes the checkpoint within milliseconds, and asks for the pod's next container at
/// once.
const ADMITS: Duration = Duration::from_secs(2);
/// Interval of the sweep for files of pods that are gone.
const SWEEP: Duration = Duration::from_secs(60);
/// Time until the sweep after a pod has gone, and until the next try while there is no pod list yet.
const SWEEP_SOON: Duration = Duration::from_secs(1);
/// Pause between two passes over the pod list that no call waits for: a node that fills has a hundred changes a second.
const REST: Duration = Duration::from_millis(50);
/// How often changed counts are reported: as often as the view is made.
const REPORT: Duration = Duration::from_secs(1);
/// The most calls that are taken from the queue at once and judged against one reading of the checkpoint.
const BATCH: usize = 64;
/// The most starts that wait at a time. The kubelet has at most one start under way for each pod of the node.
const MAX_WAITING: usize = 1024;

/// The owner of the node's sharing state.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The state.
    pub allocator: NodeAllocator,
    /// This node.
    pub node: NodeName,
    /// The device configuration: how GPUs are divided.
    pub config: DeviceConfig,
    /// Numbers of slots for GPU models of these names, where they differ from the configuration's.
    pub split_counts: Vec<(String, u32)>,
    /// The file that says that a scheduler has placed pods here.
    pub served: std::path::PathBuf,
    /// The folder of the device nodes.
    pub devices: devices::SharedDevices,
    /// Writes the files of containers.
    pub delivery: Arc<DeviceDelivery>,
    /// The pods of which a start was answered.
    pub starts: StartedPodsFile,
    /// The plugin's counts.
    pub counts: Counts,
    /// Reports observations to the node state.
    pub reporter: Reporter,
    /// The folders of issued tickets.
    pub tickets: TicketFolders,
    /// Writes tickets to their folders.
    pub keeper: Keeper,
    /// Writes CDI specs and limits files before `PreStartContainer` asks for them.
    pub ahead: SpecPrefetcher,
    /// The tickets that were issued recently.
    pub ages: RecentTickets,
    /// The kubelet's checkpoint.
    pub checkpoint: CheckpointReader,
    /// The checkpoint entries that could not be read the last time.
    pub unreadable: Arc<[Arc<str>]>,
    /// The checkpoint's stamp when the agent last tried to answer the waiting calls, and the time of that try.
    pub looked: (Option<FileStamp>, Instant),
    /// The kubelet's PodResources, the second source for which container holds which ids.
    pub listing: Listing,
    /// The binding mode, once it is known.
    pub way: watch::Receiver<Option<BindingModeResult>>,
    /// Changes the binding mode.
    pub say_way: watch::Sender<Option<BindingModeResult>>,
    /// Results of the tasks that check whether containers got their devices with late binding.
    pub arrived: (mpsc::Sender<Arrived>, mpsc::Receiver<Arrived>),
    /// The containers that were checked, and those that are being checked.
    pub arrivals: Arrivals,
    /// Whether the log has said that some CDI edits cannot be given with early binding.
    pub told_lost: bool,
    /// Calls of `Allocate` that wait for their answers.
    pub allocations: Vec<WaitingAllocate>,
    /// The state directory.
    pub state_dir: std::path::PathBuf,
    /// The paths of the host's `/proc` and cgroups.
    pub roots: HostRoots,
    /// The kubelet's calls, and the standing order to the gRPC task to answer `Allocate` with a ticket at once.
    pub asked: PluginCallReceiver,
    /// The node view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// GPUs that an operator keeps from new containers.
    pub cordoned: watch::Receiver<Arc<BTreeSet<GpuUuid>>>,
    /// What the host provides: the toolkit's CDI spec, the setup of the container runtime, the limiter.
    pub host: watch::Receiver<HostFindings>,
    /// Reads GPU pods from the pod list.
    pub gpu_pods: GpuPodReader,
    /// The pods of this node; `None` before the first list.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
    /// The health of the GPUs at the last view.
    pub watched: Watched,
    /// The time of the next sweep for files of pods that are gone.
    pub sweep_at: Instant,
    /// Empties the trash, into which the sweep moves them.
    pub emptier: Emptier,
    /// Counts what pods write into their folders.
    pub file_counter: FileCounter,
    /// Writes events and annotations on pods, for people and schedulers.
    pub teller: PodStatusWriter,
    /// Until this time the owner looks in the checkpoint for pods that a scheduler waits for.
    pub admits_until: Instant,
    /// Whether GPUs are shared even where nothing keeps a pod from the GPUs of others.
    pub allow_unisolated: bool,
    /// Whether pods that use more memory than they claim, or write too many files, are evicted.
    pub evicts: bool,
    /// The memory claims that were reported last.
    pub promises: Arc<[PodMemoryClaim]>,
    /// Results from the threads that write files of containers.
    pub delivered: (mpsc::Sender<DeliveryResult>, mpsc::Receiver<DeliveryResult>),
    /// The device list for the kubelet.
    pub list: watch::Sender<Arc<[PluginDevice]>>,
}

/// The result of a device delivery: a failure, or, where a scheduler waits for the pod, also a success.
#[derive(Debug)]
pub(crate) struct DeliveryResult {
    pub uid: PodUid,
    pub pod: PodRef,
    pub container: Arc<str>,
    pub result: Result<(), String>,
    /// A ticket that the kubelet did not get after all.
    pub void: Option<Ticket>,
}

impl Sharing {
    /// Takes over what the previous agent has given out. Only in this agent's own turn, because the previous agent may
    /// give something out until its last moment.
    pub(super) fn recall_all(&mut self) {
        let started = state_dir::started_pods(&self.state_dir);
        let pods = started.pods.clone();
        self.starts.continues(started);
        self.allocator.recall_promises(state_dir::container_limits(&self.state_dir, &pods));
        self.allocator.recall(pods);
        self.allocator.recall_tickets(state_dir::issued_tickets(&self.state_dir));
        self.recall_given_out();
    }

    /// Waits until everything is known that a device list for the kubelet, and an answer to it, need.
    pub(super) async fn is_prepared(&self) {
        let (mut way, mut view, mut pods) = (self.way.clone(), self.view.clone(), self.pods.clone());
        // None of these channels closes before the owner ends.
        let _ = way.wait_for(Option::is_some).await.is_ok();
        let _ = view.wait_for(|view| view.gpu_source != GpuSourceState::Starting).await.is_ok();
        let _ = pods.wait_for(Option::is_some).await.is_ok();
    }

    /// Makes the device list as it will be, before this agent's turn. It decides on a copy of the state, and keeps and
    /// tells nothing.
    pub(super) async fn preview(&mut self) {
        let mut allocator = self.allocator.clone();
        if let Ok(rows) = self.read_checkpoint().await {
            allocator.checkpoint_is(&rows);
        }
        let view = Arc::clone(&self.view.borrow());
        allocator.devices_are(devices::of(&view, &self.config, &self.split_counts));
        allocator.cordoned_are(devices::cordoned(&view, &self.cordoned.borrow()));
        if let Some(pods) = self.pods.borrow().clone() {
            allocator.gpu_pods_are(self.gpu_pods.of(&pods, &self.config.rules, &self.node));
        }
        self.list.send_replace(devices(&allocator));
    }

    /// Runs until `stop` is cancelled. Returns the keeper, which still has tickets to write.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Keeper {
        let mut waiting: Vec<WaitingStart> = Vec::new();
        let mut batch = Vec::with_capacity(BATCH);
        let mut again = Instant::now();
        let (mut rest, mut resting) = (Instant::now(), false);
        let mut report = Instant::now();
        self.look_at_everything().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.keeper,
                () = self.teller.turn() => {}
                Ok(()) = self.way.changed() => {
                    self.look_at_way();
                    self.allocate().await;
                }
                Some(listed) = self.listing.answers.recv() => self.has_listed(listed, &mut waiting).await,
                Some(arrived) = self.arrived.1.recv() => self.look_at_arrival(&arrived),
                count = self.asked.calls.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return self.keeper;
                    }
                    for call in batch.drain(..) {
                        self.take(call, &mut waiting);
                    }
                    self.answer(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                Some(delivered) = self.delivered.1.recv() => self.has_delivered(delivered),
                () = sleep_until(self.ahead.due().unwrap_or(again)), if self.ahead.due().is_some() => {
                    self.ahead.read(self.checkpoint.clone());
                }
                Some(done) = self.ahead.ended() => {
                    self.has_done(done);
                    self.answer(&mut waiting).await;
                }
                () = sleep_until(again), if self.looks_again(&waiting) => {
                    self.look_again(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                Ok(()) = self.view.changed() => self.has_cards().await,
                Ok(()) = self.cordoned.changed() => self.look_at_cards(),
                Ok(()) = self.host.changed() => self.look_at_cards(),
                () = sleep_until(rest), if resting => resting = false,
                Ok(()) = self.pods.changed(), if !resting => {
                    self.has_pods(&mut waiting).await;
                    (rest, resting) = (Instant::now() + REST, true);
                }
                () = sleep_until(report) => {
                    self.report();
                    report = Instant::now() + REPORT;
                }
                Some(files) = self.file_counter.ended() => self.has_counted(files),
                () = sleep_until(self.sweep_at) => {
                    let swept = self.sweep().await;
                    self.sweep_at = Instant::now() + if swept { SWEEP } else { SWEEP_SOON };
                }
            }
        }
    }

    async fn has_listed(&mut self, listed: Listed, waiting: &mut Vec<WaitingStart>) {
        if let Some(listed) = self.listing.take(listed) {
            self.compare(&listed).await;
            self.judge(waiting).await;
        }
    }

    async fn has_cards(&mut self) {
        self.look_at_cards();
        self.keep_changes().await;
    }

    async fn has_pods(&mut self, waiting: &mut Vec<WaitingStart>) {
        self.look_at_pods();
        self.answer(waiting).await;
        self.look_for_admitted().await;
    }

    async fn look_at_everything(&mut self) {
        // Before the first list: an unhealthy device makes first the ids of its containers unhealthy.
        if let Ok(rows) = self.read_checkpoint().await {
            self.allocator.checkpoint_is(&rows);
        }
        self.look_at_way();
        self.look_at_cards();
        self.look_at_pods();
        self.keep_changes().await;
    }

    /// Answers every call that can be answered by now.
    async fn answer(&mut self, waiting: &mut Vec<WaitingStart>) {
        if !self.allocations.is_empty() {
            self.look_at_new_pods();
        }
        self.allocate().await;
        self.judge(waiting).await;
        self.keep_changes().await;
    }

    /// Takes in a new pod list at once, because the pod of a call may have appeared a moment ago. Returns whether there
    /// was a new list.
    pub(super) fn look_at_new_pods(&mut self) -> bool {
        let new = self.pods.has_changed().unwrap_or(false);
        if new {
            self.look_at_pods();
        }
        new
    }

    fn looks_again(&self, waiting: &[WaitingStart]) -> bool {
        !waiting.is_empty() || !self.allocations.is_empty() || Instant::now() < self.admits_until
    }

    async fn look_again(&mut self, waiting: &mut Vec<WaitingStart>) {
        if self.is_worth_a_look().await {
            self.answer(waiting).await;
            self.look_for_admitted().await;
        }
    }

    /// Whether the waiting calls must be judged again; each time costs a pass over all slots. New pods, prefetched
    /// files and PodResources lists wake the loop by themselves.
    async fn is_worth_a_look(&mut self) -> bool {
        // In the pause after a pod list a new one does not wake the loop, and an `Allocate` holds up every other pod.
        if !self.allocations.is_empty() && self.pods.has_changed().unwrap_or(false) {
            return true;
        }
        let checkpoint = self.checkpoint.clone();
        let stamp = spawn_blocking(move || checkpoint.stamp()).await.ok().flatten();
        let (seen, at) = self.looked;
        let worth = seen != stamp || at.elapsed() >= ANYWAY;
        if worth {
            self.looked = (stamp, Instant::now());
        }
        worth
    }

    /// Tells HAMi's scheduler which pods the kubelet has admitted with all their containers. The scheduler places no
    /// other pod on this node before it knows that, and the first container may start minutes later, when its image is
    /// there.
    async fn look_for_admitted(&mut self) {
        let Some(pods) = self.pods.borrow().clone() else { return };
        let awaited: Vec<&Pod> =
            pods.pods.iter().map(AsRef::as_ref).filter(|pod| self.teller.is_awaited(pod)).collect();
        if awaited.is_empty() {
            self.admits_until = Instant::now();
            return;
        }
        let Ok(checkpoint) = self.read_checkpoint().await else { return };
        self.allocator.look_at_checkpoint(&checkpoint);
        for pod in awaited {
            if self.allocator.admitted(pod.cgroup_uid()) {
                self.teller.filled(pod);
            }
        }
        self.keep_changes().await;
    }

    fn has_done(&mut self, done: BackgroundResult) {
        match done {
            BackgroundResult::Files(written) => self.ahead.has_written(written, Instant::now()),
            BackgroundResult::Checkpoint(began, read, checkpoint) => {
                self.checkpoint = checkpoint;
                let rows = read.ok().and_then(|CheckpointEntries { held, unreadable, .. }| {
                    self.some_are_unreadable(unreadable);
                    self.unreadable.is_empty().then_some(held)
                });
                self.ahead.has_read(began, rows.as_ref(), Instant::now());
            }
        }
        self.ahead.prepare(&self.allocator, (&self.delivery, &self.tickets), Instant::now());
    }

    pub(super) fn has_delivered(&mut self, delivered: DeliveryResult) {
        let DeliveryResult { uid, pod, container, result, void } = delivered;
        self.allocator.forget_tickets(void.as_slice());
        void.iter().for_each(|ticket| self.ahead.forget(ticket));
        match result {
            Err(why) => self.teller.undelivered((&uid, &pod), &container, why),
            Ok(()) => {
                if let Some(pod) = self.pod(&uid) {
                    self.teller.filled(&pod);
                }
            }
        }
    }

    /// A pod of this node as the API server showed it last.
    pub(super) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let pods = self.pods.borrow();
        pods.iter().flat_map(|pods| &pods.pods).find(|pod| pod.cgroup_uid() == uid).cloned()
    }

    fn look_at_cards(&mut self) {
        let view = Arc::clone(&self.view.borrow_and_update());
        let cards = devices::of(&view, &self.config, &self.split_counts);
        let host = self.host.borrow_and_update().clone();
        if let Some(kit) = self.devices.kit(&view, &self.config, &host) {
            self.delivery = Arc::new(self.delivery.with(kit));
        }
        let cordoned = devices::cordoned(&view, &self.cordoned.borrow_and_update());
        let changed = self.allocator.devices_are(cards);
        let changed = self.look_at_isolation() || changed;
        if self.allocator.cordoned_are(cordoned) || changed {
            self.tell_list();
        }
        for news in self.watched.look(&view, &pod_status::now()) {
            let holders = self.allocator.holders(&news.devices);
            self.teller.health(news, holders);
        }
        for error in self.watched.errors(&view) {
            if let Some(name) = view.pod(&error.pod).and_then(|pod| pod.name.as_ref()) {
                self.teller.driver_error((&error.pod, name), error.code, error.note);
            }
        }
        self.look_for_missing(&view);
        let pods = self.pods.borrow().clone();
        self.teller.over_uses(&view, pods.as_deref(), self.evicts);
        self.report_promises();
    }

    /// Counts the pods that run without their GPUs, and writes an event on each of them once.
    fn look_for_missing(&mut self, view: &NodeView) {
        let missing = self.watched.missing.look(view, |there| self.allocator.without_device(there));
        let pods: BTreeSet<&PodUid> = missing.iter().map(|(uid, ..)| uid).collect();
        self.counts.without_gpu(pods.len());
        for (uid, pod, device) in &missing {
            self.teller.without_gpu((uid, pod), device);
        }
    }

    /// Reports the memory claims that the use of pods is compared with, if they have changed.
    fn report_promises(&mut self) {
        let promises = self.allocator.memory_claims();
        if promises != self.promises {
            self.reporter.report(Observation::Promises(Arc::clone(&promises)));
            self.promises = promises;
        }
    }

    pub(super) fn tell_list(&mut self) {
        let devices = devices(&self.allocator);
        self.counts.slots_are(self.allocator.tally(), self.allocator.claims());
        self.list.send_if_modified(|now| {
            let changed = *now != devices;
            *now = devices;
            changed
        });
    }

    pub(super) fn report(&mut self) {
        if let Some(view) = self.counts.changed() {
            self.reporter.report(Observation::Plugin(view));
        }
    }

    fn look_at_pods(&mut self) {
        let Some(pods) = self.pods.borrow_and_update().clone() else { return };
        if pods.pods.iter().any(|pod| self.teller.is_awaited(pod)) {
            self.admits_until = Instant::now() + ADMITS;
        }
        self.teller.pods_are(&pods);
        self.arrivals.forget(&pods.pods.iter().map(|pod| pod.cgroup_uid()).collect());
        let gpu_pods = self.gpu_pods.of(&pods, &self.config.rules, &self.node);
        let served = self.allocator.served_by_scheduler();
        if self.allocator.gpu_pods_are(gpu_pods) {
            self.sweep_at = self.sweep_at.min(Instant::now() + SWEEP_SOON);
        }
        if self.allocator.served_by_scheduler() && !served {
            tracing::info!(
                "a scheduler that knows GPUs places pods here: pods without its claim are refused from now on, unless --without-claim=share"
            );
            if let Err(error) = std::fs::write(&self.served, b"") {
                tracing::warn!(file = %self.served.display(), %error, "cannot save this for the agent's next start");
            }
        }
        self.tell_list();
        self.look_at_all_by_ticket();
    }

    fn take(&mut self, call: PluginCall, waiting: &mut Vec<WaitingStart>) {
        match call {
            PluginCall::Prefer { available, must, size, reply } => {
                let slots = |ids: &[Arc<str>]| -> Vec<Slot> { ids.iter().filter_map(|id| Slot::parse(id)).collect() };
                let chosen = self.allocator.prefer(&slots(&available), &slots(&must), size);
                let _ = reply.send(chosen.into_iter().map(|slot| slot.to_string().into()).collect());
            }
            PluginCall::Allocate { ids, reply } => {
                self.counts.allocated();
                self.admits_until = Instant::now() + ADMITS;
                self.asks_for(ids, reply);
            }
            PluginCall::Allocated { ids, ticket } => {
                self.counts.allocated();
                self.admits_until = Instant::now() + ADMITS;
                let issued = self.has_given(&ticket, &ids);
                self.keeper.note(issued);
            }
            PluginCall::Start { reply, .. } if waiting.len() >= MAX_WAITING => {
                self.counts.ended(StartOutcome::Refused("TooManyWait"));
                let _ = reply.send(Err(CallRefused(format!("{MAX_WAITING} starts wait already"))));
            }
            PluginCall::Start { ids, reply } => {
                waiting.push(WaitingStart { ids, since: Instant::now(), waited: false, reply })
            }
        }
    }

    /// Compares PodResources with the checkpoint: do they name the same pods for the same ids?
    async fn compare(&mut self, listed: &[ContainerDevices]) {
        // The checkpoint is read after the list was made, so what only the list has is a contradiction.
        let Ok(rows) = self.read_checkpoint().await else { return };
        self.allocator.checkpoint_is(&rows);
        for one in self.listing.disagree(self.allocator.disagreements(listed)) {
            self.reporter.trouble(ErrorCounter::HoldersDisagree);
            tracing::warn!(
                checkpoint = %one.checkpoint, pod_resources = %one.listed, ids = ?one.ids,
                "kubelet's checkpoint and PodResources name different pods; the agent follows the checkpoint"
            );
        }
    }

    pub(super) async fn read_checkpoint(&mut self) -> Result<Arc<[CheckpointEntry]>, String> {
        let mut checkpoint = self.checkpoint.clone();
        match spawn_blocking(move || (checkpoint.read(), checkpoint)).await {
            Ok((entries, checkpoint)) => {
                self.checkpoint = checkpoint;
                let CheckpointEntries { held, unreadable, .. } = entries?;
                self.some_are_unreadable(unreadable);
                Ok(held)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Notes the entries of the kubelet's checkpoint that cannot be read: each change is counted, and the log says when
    /// there are some for the first time, and when all can be read again.
    fn some_are_unreadable(&mut self, unreadable: Arc<[Arc<str>]>) {
        if unreadable == self.unreadable {
            return;
        }
        match (unreadable.first(), self.unreadable.is_empty()) {
            (Some(first), true) => {
                let count = unreadable.len();
                tracing::warn!(count, %first, "part of kubelet's checkpoint cannot be read: no files of pods are \
                     removed, and PodResources is asked which container holds which ids");
            }
            (Some(_), false) => {}
            (None, _) => tracing::info!("all of kubelet's checkpoint can be read again"),
        }
        if !unreadable.is_empty() {
            self.reporter.trouble(ErrorCounter::CheckpointUnreadable);
        }
        self.unreadable = unreadable;
    }

    /// Starts a count of what pods have written into the folders that the limiter gives them, if one is due.
    fn count_files(&mut self) {
        if !self.file_counter.is_due(Instant::now()) {
            return;
        }
        let Some(pods) = self.pods.borrow().clone() else { return };
        let early = self.allocator.early_tickets();
        let of = |pod: &Arc<Pod>| -> Counted {
            let own = early.iter().filter(|(uid, _)| *uid == pod.cgroup_uid()).map(|(_, ticket)| (*ticket).clone());
            (pod.cgroup_uid().clone(), pod.name.clone(), own.collect())
        };
        let mut counted: Vec<Counted> =
            pods.pods.iter().filter(|pod| self.allocator.gpu_pod(pod.cgroup_uid()).is_some()).map(of).collect();
        counted.sort();
        self.file_counter.start(counted, &self.delivery, &self.tickets);
    }

    fn has_counted(&mut self, files: Vec<PodFiles>) {
        for over in files.iter().filter(|files| files.over) {
            if let Some(pod) = self.pod(&over.uid).filter(|pod| pod.deleted_at.is_none()) {
                self.teller.has_written_too_much(&pod, over, (self.file_counter.limit, self.evicts));
            }
        }
        self.counts.files_are(files);
    }

    /// Moves files of pods that are gone into the trash, and starts the emptier. Needs both the pod list and the
    /// checkpoint: a missing list is not an empty one. Returns whether the pod list was there.
    async fn sweep(&mut self) -> bool {
        self.count_files();
        let Some(pods) = self.pods.borrow().clone() else { return false };
        let Ok(rows) = self.read_checkpoint().await else { return true };
        // An entry that cannot be read may be of a pod that is still there.
        if !self.unreadable.is_empty() {
            return true;
        }
        let uids: BTreeSet<PodUid> = pods.pods.iter().map(|pod| pod.cgroup_uid().clone()).collect();
        if let Err(error) = block_in_place(|| self.starts.keep_only(&uids)) {
            tracing::debug!(%error, "cannot remove pods that are gone from the file of started pods");
        }
        // The kubelet removes a pod's row only when it needs the ids, long after the pod itself is gone.
        let here = |row: &&CheckpointEntry| uids.contains(&row.holder.pod);
        let tickets: BTreeSet<Ticket> = rows.iter().filter(here).filter_map(|row| row.ticket.clone()).collect();
        // Our pod watch may lag behind the kubelet's: the holder of a recent ticket may not be known yet.
        let kept = self.ages.young(sources::clock::monotonic()).map(|young| young.union(&tickets).cloned().collect());
        let (delivery, given_out) = (Arc::clone(&self.delivery), self.tickets.clone());
        let sweep = move || {
            let trash = delivery.trash();
            let gone = kept.map(|kept: BTreeSet<Ticket>| given_out.sweep(&kept, trash)).unwrap_or_default();
            (delivery.sweep(&uids, &tickets), gone, (trash.is_empty(), trash.not_taken()))
        };
        let Ok(((pods, specs), gone, (is_empty, not_taken))) = spawn_blocking(sweep).await else { return true };
        if not_taken > 0 {
            self.reporter.trouble(ErrorCounter::NotRemoved);
        }
        if pods + specs + gone.len() > 0 {
            tracing::debug!(pods, specs, tickets = gone.len(), "files of pods that are gone are put into the trash");
            self.allocator.forget_tickets(&gone);
        }
        if !is_empty {
            self.emptier.start(&self.delivery, pods + gone.len() > 0, Instant::now());
        }
        true
    }
}

fn devices(allocator: &NodeAllocator) -> Arc<[PluginDevice]> {
    let device = |listed: decide::allocator::ListedSlot| PluginDevice {
        id: listed.slot.to_string().into(),
        healthy: listed.healthy,
        numa: listed.numa,
    };
    allocator.list().into_iter().map(device).collect()
}
