//! The sharing task: one loop that takes the kubelet's calls, node views and pod lists, and answers the calls.

use super::calls::{BATCH, KubeletCalls};
use super::container_files::{ContainerFiles, DeliveryResult, FilesEvent};
use super::counts::Counts;
use super::devices::{self, ReadableEdits};
use super::file_counter::Counted;
use super::holders::HolderSources;
use super::listing::Listed;
use super::node_pods::NodePods;
use super::offer::{DeviceOffer, Offered};
use super::pod_status::PodStatusWriter;
use super::prefetch::BackgroundResult;
use super::runtime_cdi::{CdiEvent, RuntimeCdi};
use super::ticket_issuer::{PrefetchEvent, TicketIssuer};
use super::ticket_writer::Keeper;
use crate::event_log::{PodEvent, log_pod_event};
use decide::agent_report::SharingStages;
use decide::allocator::NodeAllocator;
use decide::gone_pods::{GonePods, ListedPod, PodHolds};
use effects::plugin::PluginCall;
use model::checkpoint::CheckpointEntry;
use model::id::{PodUid, Ticket};
use model::observation::ContainerDevices;
use model::plugin::{PodFiles, StartOutcome};
use model::pod::{Pod, PodList};
use model::slot::Slot;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;

/// How often the task checks whether a waiting call can be judged again: the kubelet writes its checkpoint within
/// milliseconds of `Allocate`.
const AGAIN: Duration = Duration::from_millis(20);
/// How often changed counts are reported: once for each view.
const REPORT: Duration = Duration::from_secs(1);
/// How often the agent looks for GPUs that pods got from other plugins, or by the names of other resources. It also looks before
/// each container starts.
const OTHERS: Duration = Duration::from_secs(5);
/// How often the checkpoint is read for the extender while a pod waits for its start: an agent that is about to stop waits
/// until the kubelet has called `Allocate` for all bound pods.
const STAGES: Duration = Duration::from_millis(200);

/// The task, which holds the node's sharing state. Each part has one job and hides its details; the task passes the results
/// of one part to the others.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Decides which container gets which devices.
    pub(super) allocator: NodeAllocator,
    /// Whether containers get their devices by CDI.
    pub(super) cdi: RuntimeCdi,
    /// Which container holds which ids, according to the kubelet.
    pub(super) holders: HolderSources,
    /// The tickets that the kubelet gets.
    pub(super) tickets: TicketIssuer,
    /// The files of containers.
    pub(super) files: ContainerFiles,
    /// The kubelet's calls.
    pub(super) calls: KubeletCalls,
    /// The pods of this node.
    pub(super) pods: NodePods,
    /// The device list for the kubelet.
    pub(super) offer: DeviceOffer,
    /// The devices of pods that are gone, until their containers are gone too.
    pub(super) gone: GonePods,
    /// Writes events and annotations on pods, for people and schedulers.
    pub(super) status: PodStatusWriter,
    /// The plugin's counts, and reports to the node state.
    pub(super) counts: Counts,
}

impl Sharing {
    /// The device configuration.
    pub(crate) fn config(&self) -> &DeviceConfig {
        self.offer.config()
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> &Path {
        self.cdi.state_dir()
    }

    /// Reports the counts, if they have changed.
    pub(super) fn report(&mut self) {
        self.counts.report();
    }

    /// Takes over the claims, limits and tickets of the previous agent. Call it only in this agent's own turn, because the
    /// previous agent may issue tickets until its last moment.
    pub(super) fn recall_all(&mut self) {
        let state_dir = self.cdi.state_dir();
        let given = self.files.recall(&mut self.allocator, state_dir);
        self.gone.recall(given);
        self.tickets.recall(&mut self.allocator, state_dir);
    }

    /// Waits until everything is known that is needed to make a device list and to answer the kubelet's calls.
    pub(super) async fn is_prepared(&self) {
        self.cdi.is_known().await;
        self.offer.is_known().await;
        self.pods.is_known().await;
    }

    /// Makes the future device list before this agent's turn. It decides on a copy of the state, and neither keeps nor
    /// reports anything.
    pub(super) async fn preview(&mut self) {
        let mut allocator = self.allocator.clone();
        if let Ok(rows) = self.holders.read().await {
            allocator.set_checkpoint(&rows);
        }
        self.offer.preview(&mut allocator);
        allocator.close(!self.cdi.works());
        if let Some(pods) = self.pods.latest() {
            allocator.set_gpu_pods(self.pods.gpu_pods(&pods));
            let others = self.holders.others(&pods, &allocator);
            allocator.set_other_holdings(others);
        }
        self.offer.publish_again(&allocator);
    }

    /// Runs until `stop` is cancelled. Returns the keeper, which still has tickets to write.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Keeper {
        let mut batch = Vec::with_capacity(BATCH);
        let mut again = Instant::now();
        let mut report = Instant::now();
        let mut stages = Instant::now();
        let mut others = Instant::now() + OTHERS;
        self.look_at_everything().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.tickets.into_keeper(),
                () = self.status.turn() => {}
                Some(event) = self.cdi.next() => self.handle_cdi(event),
                Some(listed) = self.holders.answered() => self.handle_listed(listed).await,
                count = self.calls.receive(&mut batch) => {
                    if count == 0 {
                        return self.tickets.into_keeper();
                    }
                    batch.drain(..).for_each(|call| self.take(call));
                    self.answer().await;
                    again = Instant::now() + AGAIN;
                }
                event = self.files.next() => self.handle_files(event).await,
                event = self.tickets.next() => self.handle_prefetch(event).await,
                () = sleep_until(again), if self.looks_again() => {
                    self.look_again().await;
                    again = Instant::now() + AGAIN;
                }
                () = self.offer.changed() => self.handle_gpus().await,
                () = self.pods.changed() => {
                    self.handle_pods().await;
                    self.pods.rest();
                }
                () = sleep_until(report) => {
                    self.report();
                    report = Instant::now() + REPORT;
                }
                () = sleep_until(others) => {
                    self.read_other_owners().await;
                    others = Instant::now() + OTHERS;
                }
                () = sleep_until(stages), if self.counts.stages_are_read() => {
                    self.publish_stages().await;
                    stages = Instant::now() + if self.allocator.any_waits() { STAGES } else { REPORT };
                }
            }
        }
    }

    fn handle_cdi(&mut self, event: CdiEvent) {
        match event {
            CdiEvent::Known => self.apply_cdi(),
            CdiEvent::Checked(result) => self.handle_cdi_check(&result),
        }
    }

    async fn handle_listed(&mut self, listed: Listed) {
        if let Some(listed) = self.holders.take(listed) {
            self.compare(&listed).await;
            self.look_at_other_owners();
            self.judge().await;
        }
    }

    async fn handle_files(&mut self, event: FilesEvent) {
        match event {
            FilesEvent::Delivered(delivered) => self.handle_delivered(delivered),
            FilesEvent::Counted(files) => self.handle_counted(files),
            FilesEvent::SweepDue => {
                // Before this, a pod of a new list looks as if it had never started, and its note would be removed.
                if self.pods.has_new() {
                    self.handle_pods().await;
                }
                let listed = self.sweep().await;
                self.files.has_swept(listed);
            }
        }
    }

    async fn handle_prefetch(&mut self, event: PrefetchEvent) {
        match event {
            PrefetchEvent::ReadDue => self.tickets.prefetcher().read(self.holders.reader()),
            PrefetchEvent::Done(done) => {
                self.handle_background(done);
                self.answer().await;
            }
        }
    }

    async fn handle_gpus(&mut self) {
        self.look_at_gpus();
        self.keep_changes().await;
    }

    async fn handle_pods(&mut self) {
        self.look_at_pods();
        self.answer().await;
        self.look_for_admitted().await;
    }

    async fn look_at_everything(&mut self) {
        // The first list needs the checkpoint: for an unhealthy device, the slots of its containers are marked first.
        if let Ok(rows) = self.holders.read().await {
            self.allocator.set_checkpoint(&rows);
        }
        self.apply_cdi();
        self.look_at_gpus();
        self.look_at_pods();
        self.keep_changes().await;
        // From now on `Allocate` is answered with tickets, because the sharing task can register them now.
        self.calls.answer_with_tickets(self.tickets.journal());
    }

    /// Answers every call that can be answered now.
    async fn answer(&mut self) {
        self.judge().await;
        self.keep_changes().await;
    }

    /// Takes a new pod list at once, because the pod of a call may have appeared a moment ago. Returns whether there was a
    /// new list.
    pub(super) fn look_at_new_pods(&mut self) -> bool {
        let new = self.pods.has_new();
        if new {
            self.look_at_pods();
        }
        new
    }

    fn looks_again(&self) -> bool {
        self.calls.any_wait() || self.status.looks_for_admitted()
    }

    async fn look_again(&mut self) {
        // New pods, prefetched files and PodResources lists wake the loop by themselves.
        if self.holders.must_judge_again().await {
            self.answer().await;
            self.look_for_admitted().await;
        }
    }

    /// Tells HAMi's scheduler which pods the kubelet has admitted with all their containers. The scheduler places no other
    /// pod on this node until it knows this. Waiting for the first container could take minutes, until its image is pulled.
    async fn look_for_admitted(&mut self) {
        let Some(pods) = self.pods.latest() else { return };
        let awaited = self.status.awaited(&pods);
        if awaited.is_empty() {
            return;
        }
        let Ok(checkpoint) = self.holders.read().await else { return };
        self.allocator.set_checkpoint(&checkpoint);
        for pod in awaited {
            if self.allocator.admitted(pod.cgroup_uid()) {
                self.status.filled(pod);
            }
        }
        self.keep_changes().await;
    }

    /// Gives the stream to the extender the stages of the pods.
    async fn publish_stages(&mut self) {
        if self.allocator.any_waits()
            && let Ok(checkpoint) = self.holders.read().await
        {
            self.allocator.set_checkpoint(&checkpoint);
        }
        self.counts.stages_are(SharingStages {
            serves: self.counts.serves(),
            refuses_unclaimed: !self.allocator.may_share(),
            pods: self.allocator.stages(),
            starting: self.gone.starting(),
            gone: self.gone.gone(),
            without_gpus: self.gone.without_gpus(),
            withdrawn: self.allocator.withdrawn(),
        });
    }

    fn handle_background(&mut self, done: BackgroundResult) {
        match done {
            BackgroundResult::Files(written) => self.tickets.prefetcher().has_written(written, Instant::now()),
            BackgroundResult::Checkpoint(began, read, checkpoint) => {
                let rows = self.holders.has_read(read, checkpoint);
                self.tickets.prefetcher().has_read(began, rows.as_ref(), Instant::now());
            }
        }
        self.tickets.prefetcher().prepare(&self.allocator, self.files.delivery(), Instant::now());
    }

    pub(super) fn handle_delivered(&mut self, delivered: DeliveryResult) {
        let DeliveryResult { uid, pod, container, result } = delivered;
        match result {
            Err(why) => self.status.undelivered((&uid, &pod), &container, why),
            Ok(()) => {
                if let Some(pod) = self.pods.pod(&uid) {
                    self.status.filled(&pod);
                }
            }
        }
    }

    fn look_at_gpus(&mut self) {
        let runtime = self.cdi.finding().map(|finding| Arc::clone(&finding.runtime));
        let Offered { view, devices, cordoned, withheld, node_edits, lacks } = self.offer.take(runtime);
        self.counts.withheld_are(withheld);
        if let Some(ReadableEdits { edits, unreadable }) = node_edits {
            self.files.set_node_edits(edits);
            self.allocator.set_unreadable_specs(unreadable);
        }
        let unreadable = self.allocator.unreadable_specs();
        self.counts
            .host_lacks(unreadable.map(|why| format!("no container with a GPU can start: {why}").into()).or(lacks));
        let closes = !self.cdi.works() || self.allocator.unreadable_specs().is_some();
        let mut changed = self.allocator.close(closes);
        changed |= self.allocator.whole_gpus_are(devices::whole(&view));
        changed |= self.allocator.set_devices(devices);
        self.holders.note_taken(&self.allocator);
        if self.allocator.set_cordoned(cordoned) || changed {
            self.publish_list();
        }
        let without_gpu = self.status.gpus_are(&view, &self.allocator);
        self.counts.without_gpu(without_gpu);
        self.status.over_uses(&view, self.pods.latest().as_deref());
        if self.gone.seen(&view) {
            self.files.sweep_soon();
        }
        if let Some(pods) = self.pods.latest() {
            self.gone.are_left_out(&view, &pods, !self.allocator.may_share());
            self.holders.foreign_pods().for_each(|uid| self.gone.holds_others(uid));
        }
        self.counts.memory_claims_are(self.allocator.memory_claims());
    }

    /// Reads which devices pods got from other plugins or under other resources; no call announces these.
    async fn read_other_owners(&mut self) {
        if let Ok(rows) = self.holders.read().await
            && self.allocator.set_checkpoint(&rows)
        {
            self.publish_list();
        }
        self.holders.ask_if_unreadable();
        self.look_at_other_owners();
        if let Some(pods) = self.pods.latest() {
            self.note_holds(&pods);
        }
    }

    /// Finds which devices other owners hold.
    pub(super) fn look_at_other_owners(&mut self) {
        let Some(pods) = self.pods.latest() else { return };
        let others = self.holders.others(&pods, &self.allocator);
        let changed = self.allocator.set_other_holdings(others);
        self.holders.note_taken(&self.allocator);
        if changed {
            self.publish_list();
        }
    }

    /// Notes what the pods hold, for the time when a pod is gone but its containers are not.
    fn note_holds(&mut self, pods: &PodList) {
        let listed = |pod: &Arc<Pod>| {
            let uid = pod.cgroup_uid().clone();
            let devices = self.allocator.devices_of_started(&uid);
            let holds = devices.map_or(PodHolds::Nothing, PodHolds::Devices);
            ListedPod { uid, is_static: pod.mirror_of.is_some(), holds }
        };
        let alive = pods.pods.iter().filter(|pod| !pod.ended());
        self.gone.listed(alive.map(listed), clock::monotonic());
        self.holders.foreign_pods().for_each(|uid| self.gone.holds_others(uid));
        self.holders.others(pods, &self.allocator).iter().for_each(|other| self.gone.holds_others(&other.uid));
    }

    pub(super) fn publish_list(&mut self) {
        self.count_cdi();
        self.counts.slots_are(self.allocator.tally(), self.allocator.claims());
        self.offer.publish(&self.allocator);
    }

    fn look_at_pods(&mut self) {
        let Some(pods) = self.pods.take() else { return };
        self.status.pods_are(&pods);
        self.cdi.forget(&pods.pods.iter().map(|pod| pod.cgroup_uid()).collect());
        let gpu_pods = self.pods.gpu_pods(&pods);
        let served = self.allocator.served_by_scheduler();
        if self.allocator.set_gpu_pods(gpu_pods) {
            self.files.sweep_soon();
        }
        if self.allocator.served_by_scheduler() && !served {
            self.pods.are_served();
        }
        self.look_at_other_owners();
        self.note_holds(&pods);
        self.publish_list();
        self.check_all_by_ticket();
    }

    fn take(&mut self, call: PluginCall) {
        match call {
            PluginCall::Prefer { available, must, size, reply } => {
                let slots = |ids: &[Arc<str>]| -> Vec<Slot> { ids.iter().filter_map(|id| Slot::parse(id)).collect() };
                let chosen = self.allocator.prefer(&slots(&available), &slots(&must), size);
                let _ = reply.send(chosen.into_iter().map(|slot| slot.to_string().into()).collect());
            }
            PluginCall::Allocated { ids, ticket } => {
                self.counts.allocated();
                self.status.allocates();
                tracing::debug!(?ids, %ticket, "kubelet allocates");
                let issued = self.tickets.give(&mut self.allocator, &ticket, &ids);
                self.tickets.note(issued);
            }
            PluginCall::Start { ids, reply } => {
                if !self.calls.start(ids, reply, clock::monotonic()) {
                    self.counts.ended(StartOutcome::Refused("TooManyWait"));
                }
            }
        }
    }

    /// Writes changes to the state directory and to pods.
    pub(super) async fn keep_changes(&mut self) {
        let changes = self.allocator.take_changes();
        self.counts.moved(changes.moved);
        for (gpu_pod, claim) in &changes.claims {
            log_pod_event(&gpu_pod.pod, &PodEvent::ClaimMoved(claim));
            self.status.moved(gpu_pod, claim);
        }
        for (gpu_pod, share) in &changes.shares {
            log_pod_event(&gpu_pod.pod, &PodEvent::ClaimUnwritten);
            self.status.shared(gpu_pod, share);
        }
        changes.tickets.into_iter().for_each(|issued| self.tickets.note(issued));
        self.tickets.keep().await;
    }

    /// Checks that PodResources and the checkpoint name the same pods for the same ids.
    async fn compare(&mut self, listed: &[ContainerDevices]) {
        // The checkpoint is read after the list was made, so an entry that only the list has is a contradiction.
        let Ok(rows) = self.holders.read().await else { return };
        self.allocator.set_checkpoint(&rows);
        self.holders.disagree(self.allocator.disagreements(listed));
    }

    /// Starts a count of the files that pods have written into the limiter's folders, if a count is due.
    fn count_files(&mut self) {
        if !self.files.count_is_due() {
            return;
        }
        let Some(pods) = self.pods.latest() else { return };
        let early = self.allocator.early_tickets();
        let of = |pod: &Arc<Pod>| -> Counted {
            let own = early.iter().filter(|(uid, _)| *uid == pod.cgroup_uid()).map(|(_, ticket)| (*ticket).clone());
            (pod.cgroup_uid().clone(), pod.name.clone(), own.collect())
        };
        let mut counted: Vec<Counted> =
            pods.pods.iter().filter(|pod| self.allocator.gpu_pod(pod.cgroup_uid()).is_some()).map(of).collect();
        counted.sort();
        self.files.count(counted);
    }

    fn handle_counted(&mut self, files: Vec<PodFiles>) {
        for over in files.iter().filter(|files| files.over) {
            if let Some(pod) = self.pods.pod(&over.uid).filter(|pod| pod.deleted_at.is_none()) {
                self.status.has_written_too_much(&pod, over, self.files.limit());
            }
        }
        self.counts.files_are(files);
    }

    /// Starts the removal of the files of pods that are gone. It needs both the pod list and the checkpoint: a missing list
    /// is not an empty list. Returns whether there was a pod list.
    async fn sweep(&mut self) -> bool {
        self.count_files();
        let Some(pods) = self.pods.latest() else { return false };
        let Ok(rows) = self.holders.read().await else { return true };
        // An entry that cannot be read may belong to a pod that still exists.
        if !self.holders.is_whole() {
            return true;
        }
        let listed: BTreeSet<PodUid> = pods.pods.iter().map(|pod| pod.cgroup_uid().clone()).collect();
        // The kubelet removes a pod's entries only when it needs their ids, long after the pod itself is gone.
        let here = |row: &&CheckpointEntry| listed.contains(&row.holder.pod);
        let tickets: BTreeSet<Ticket> = rows.iter().filter(here).filter_map(|row| row.ticket.clone()).collect();
        // The agent's pod watch may lag behind the kubelet's, so the holder of a recent ticket may not be known yet.
        let kept = self.tickets.young().map(|young| young.union(&tickets).cloned().collect());
        // A finished pod stays at the API server for a while, but never starts again.
        let runs = |uid: &&PodUid| self.allocator.gpu_pod(uid).is_some_and(|pod| !pod.finished);
        // After a forced deletion, the containers of a pod keep its devices, also across a restart of the agent.
        let run_on = self.gone.that_run_on();
        self.files.keep_started(&listed.iter().filter(runs).chain(&run_on).cloned().collect());
        let gone = self.files.sweep((listed, run_on), tickets, kept).await;
        self.allocator.forget_tickets(&gone);
        true
    }
}
