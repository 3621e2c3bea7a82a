//! The owner: one loop that takes calls, views and pods, and answers.

use super::arrival::{self, Arrived};
use super::binding::Way;
use super::counts::Counts;
use super::health::Watched;
use super::host::Host;
use super::listing::Listing;
use super::tell::{self, Teller};
use super::waiting::Allocation;
use super::{cards, promise};
use decide::share::{Binding, Bound, Share, Verdict, Waiting};
use effects::delivery::{Delivery, Tickets};
use effects::plugin::{Call, Device, Refused};
use model::id::{GpuUuid, NodeName, PodRef, PodUid, Ticket};
use model::observation::{ContainerDevices, Observation, Trouble};
use model::plugin::Outcome;
use model::pod::PodList;
use model::promise::PodPromise;
use model::share::{Held, Role, Slot, Tenant};
use model::view::NodeView;
use sources::kubelet::Books;
use sources::report::Reporter;
use sources::roots::HostRoots;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;
use wire::tenant;

/// kubelet gives a start 30 s and then tries it again; what is not known after this long is told with its reason.
const PATIENCE: Duration = Duration::from_secs(25);
/// A row that does not stand in a checkpoint that can be read after this long cannot be read itself.
const UNREADABLE: Duration = Duration::from_secs(1);
/// How often a start that waits is judged again: kubelet writes its books within milliseconds of `Allocate`.
const AGAIN: Duration = Duration::from_millis(20);
/// How often files of pods that are gone are looked for, beside every change of the pods.
const SWEEP: Duration = Duration::from_secs(60);
/// How often what was counted is reported, if it changed: as often as the view is made.
const REPORT: Duration = Duration::from_secs(1);
/// Calls judged against one reading of the books.
const BATCH: usize = 64;
/// Starts that wait at a time. kubelet has at most one start under way for each pod of the node.
const MAX_WAITING: usize = 1024;

/// The owner.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The state.
    pub share: Share,
    /// This node.
    pub node: NodeName,
    /// How GPUs are cut.
    pub config: DeviceConfig,
    /// Another number of slots for models of these names.
    pub split_counts: Vec<(String, u32)>,
    /// The file that says that a scheduler has placed pods here.
    pub served: std::path::PathBuf,
    /// Where device nodes lie.
    pub devices: cards::Devices,
    /// Writes for containers.
    pub delivery: Arc<Delivery>,
    /// What is counted.
    pub counts: Counts,
    /// To whoever shows it.
    pub reporter: Reporter,
    /// What was given out.
    pub tickets: Tickets,
    /// kubelet's books.
    pub books: Books,
    /// kubelet's other word on who holds what.
    pub listing: Listing,
    /// When containers get their devices, once that is known.
    pub way: watch::Receiver<Option<Way>>,
    /// To change it.
    pub say_way: watch::Sender<Option<Way>>,
    /// The first container that was given something late, when it has been looked at.
    pub arrived: (mpsc::Sender<Arrived>, mpsc::Receiver<Arrived>),
    /// Whether such a container is being looked at, or was.
    pub looked: bool,
    /// Whether it was told that something cannot be given early.
    pub told_lost: bool,
    /// Calls of `Allocate` that wait.
    pub allocations: Vec<Allocation>,
    /// The state directory.
    pub state_dir: std::path::PathBuf,
    /// Where the host's `/proc` and cgroups are.
    pub roots: HostRoots,
    /// From kubelet.
    pub calls: mpsc::Receiver<Call>,
    /// What is seen of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// GPUs that an operator keeps from new containers.
    pub cordoned: watch::Receiver<Arc<BTreeSet<GpuUuid>>>,
    /// What the host brings along.
    pub host: watch::Receiver<Host>,
    /// Pods of this node; `None` before the first list.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
    /// The health of GPUs, as it was told last.
    pub watched: Watched,
    /// To people and schedulers.
    pub teller: Teller,
    /// Whether pods that use more than they were promised are evicted.
    pub evicts: bool,
    /// The promises that were reported last.
    pub promises: Arc<[PodPromise]>,
    /// From the threads that write for containers.
    pub undelivered: (mpsc::Sender<Undelivered>, mpsc::Receiver<Undelivered>),
    /// To kubelet.
    pub list: watch::Sender<Arc<[Device]>>,
}

/// A container that could not be given what it was promised.
#[derive(Debug)]
pub(crate) struct Undelivered {
    uid: PodUid,
    pod: PodRef,
    why: String,
}

/// A start that kubelet waits for.
#[derive(Debug)]
struct Start {
    ids: Vec<Arc<str>>,
    since: Instant,
    /// Whether it was judged before and had to wait.
    waited: bool,
    reply: oneshot::Sender<Result<(), Refused>>,
}

impl Sharing {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut waiting: Vec<Start> = Vec::new();
        let mut batch = Vec::with_capacity(BATCH);
        let mut again = Instant::now();
        let mut sweep = Instant::now() + SWEEP;
        let mut report = Instant::now();
        self.look_at_everything().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.way.changed() => {
                    self.look_at_way();
                    self.allocate().await;
                }
                Some(listed) = self.listing.answers.recv() => {
                    if let Some(listed) = self.listing.take(listed) {
                        self.compare(&listed).await;
                        self.judge(&mut waiting).await;
                    }
                }
                Some(arrived) = self.arrived.1.recv() => self.look_at_arrival(&arrived),
                count = self.calls.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for call in batch.drain(..) {
                        self.take(call, &mut waiting);
                    }
                    self.answer(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                Some(Undelivered { uid, pod, why }) = self.undelivered.1.recv() => {
                    self.teller.undelivered(&uid, &pod, why);
                }
                () = sleep_until(again), if !waiting.is_empty() || !self.allocations.is_empty() => {
                    self.answer(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                Ok(()) = self.view.changed() => self.look_at_cards(),
                Ok(()) = self.cordoned.changed() => self.look_at_cards(),
                Ok(()) = self.host.changed() => self.look_at_cards(),
                Ok(()) = self.pods.changed() => {
                    self.look_at_pods();
                    self.answer(&mut waiting).await;
                    sweep = sweep.min(Instant::now() + Duration::from_secs(1));
                }
                () = sleep_until(report) => {
                    self.report();
                    report = Instant::now() + REPORT;
                }
                () = sleep_until(sweep) => {
                    self.sweep().await;
                    sweep = Instant::now() + SWEEP;
                }
            }
        }
    }

    async fn look_at_everything(&mut self) {
        // Before the first list is told: a sick device takes away the ids of those that use it.
        if let Ok(rows) = self.read_books().await {
            self.share.books_are(&rows);
        }
        self.look_at_way();
        self.look_at_cards();
        self.look_at_pods();
    }

    /// Answers every call that can be answered by now.
    async fn answer(&mut self, waiting: &mut Vec<Start>) {
        self.allocate().await;
        self.judge(waiting).await;
    }

    fn look_at_cards(&mut self) {
        let view = Arc::clone(&self.view.borrow_and_update());
        let cards = cards::of(&view, &self.config, &self.split_counts);
        let host = self.host.borrow_and_update().clone();
        if let Some(kit) = self.devices.kit(&view, &self.config, &host) {
            self.delivery = Arc::new(self.delivery.with(kit));
        }
        let cordoned = cards::cordoned(&view, &self.cordoned.borrow_and_update());
        let changed = self.share.cards_are(cards);
        if self.share.cordoned_are(cordoned) || changed {
            self.tell_list();
        }
        for news in self.watched.look(&view, &tell::now()) {
            let holders = self.share.holders(&news.devices);
            self.teller.health(news, holders);
        }
        let pods = self.pods.borrow().clone();
        self.teller.over_uses(&view, pods.as_deref(), self.evicts);
        self.report_promises();
    }

    /// What use is held against. A report that did not fit is made again with the next view.
    fn report_promises(&mut self) {
        let promises = self.share.promises();
        if promises != self.promises && self.reporter.report(Observation::Promises(Arc::clone(&promises))) {
            self.promises = promises;
        }
    }

    fn tell_list(&mut self) {
        let devices: Arc<[Device]> = self
            .share
            .list()
            .into_iter()
            .map(|listed| Device { id: listed.slot.to_string().into(), healthy: listed.healthy, numa: listed.numa })
            .collect();
        self.counts.slots_are(self.share.tally(), self.share.claims());
        self.list.send_if_modified(|now| {
            let changed = *now != devices;
            *now = devices;
            changed
        });
    }

    fn report(&mut self) {
        if let Some(view) = self.counts.changed()
            && !self.reporter.report(Observation::Plugin(view))
        {
            self.counts.untold();
        }
    }

    fn look_at_pods(&mut self) {
        let Some(pods) = self.pods.borrow_and_update().clone() else { return };
        self.teller.forget(&pods);
        let tenants: Vec<Tenant> =
            pods.pods.iter().filter_map(|pod| tenant::of(pod, &self.config.rules, &self.node)).collect();
        let served = self.share.served_by_scheduler();
        self.share.tenants_are(tenants);
        if self.share.served_by_scheduler() && !served {
            tracing::info!(
                "a scheduler that knows GPUs places pods here: pods without its claim are refused from now on, unless --without-claim=share"
            );
            if let Err(error) = std::fs::write(&self.served, b"") {
                tracing::warn!(file = %self.served.display(), %error, "cannot keep this for the next start");
            }
        }
        self.tell_list();
    }

    fn take(&mut self, call: Call, waiting: &mut Vec<Start>) {
        match call {
            Call::Prefer { available, must, size, reply } => {
                let slots = |ids: &[Arc<str>]| -> Vec<Slot> { ids.iter().filter_map(|id| Slot::parse(id)).collect() };
                let chosen = self.share.prefer(&slots(&available), &slots(&must), size);
                let _ = reply.send(chosen.into_iter().map(|slot| slot.to_string().into()).collect());
            }
            Call::Allocate { ids, reply } => {
                self.counts.allocated();
                self.asks_for(ids, reply);
            }
            Call::Start { reply, .. } if waiting.len() >= MAX_WAITING => {
                self.counts.ended(Outcome::Refused("TooManyWait"));
                let _ = reply.send(Err(Refused(format!("{MAX_WAITING} starts wait already"))));
            }
            Call::Start { ids, reply } => waiting.push(Start { ids, since: Instant::now(), waited: false, reply }),
        }
    }

    /// Judges every start that waits, against one reading of kubelet's books.
    async fn judge(&mut self, waiting: &mut Vec<Start>) {
        if waiting.is_empty() {
            return;
        }
        let books = self.read_books().await;
        let rows: Option<&[Held]> = books.as_deref().ok();
        for mut start in std::mem::take(waiting) {
            // kubelet has given up on it.
            if start.reply.is_closed() {
                continue;
            }
            let mut verdict = self.share.start(&start.ids, rows);
            if verdict == Verdict::Wait(Waiting::Books)
                && (rows.is_none() || start.since.elapsed() > UNREADABLE)
                && let Some(listed) = self.listing.since(start.since)
            {
                verdict = self.share.start_by_listing(&start.ids, &listed);
            }
            match verdict {
                Verdict::Fill { bound, shared } => self.fill(start, &bound, shared),
                Verdict::Foreign => {
                    tracing::info!(ids = ?start.ids, "a container of an earlier plugin starts; it keeps what it was given");
                    self.counts.ended(Outcome::Foreign);
                    let _ = start.reply.send(Ok(()));
                }
                Verdict::Refuse { uid, pod: name, why } => {
                    self.counts.ended(Outcome::Refused(why.code()));
                    if self.teller.refused(&uid, &name, &why) && why.for_good() {
                        self.reporter.trouble(Trouble::StartMistaken);
                    }
                    tracing::warn!(pod = %name, reason = why.code(), "a container may not start: {why}");
                    let _ = start.reply.send(Err(Refused(format!("{name}: {why}"))));
                }
                Verdict::Wait(what) if start.since.elapsed() < PATIENCE => {
                    tracing::trace!(?what, "a start waits");
                    if !std::mem::replace(&mut start.waited, true) {
                        self.counts.waits(what.code());
                    }
                    waiting.push(start);
                }
                Verdict::Wait(what) => {
                    let why = late(what, &books, &start.ids);
                    self.counts.ended(Outcome::Late(what.code()));
                    tracing::warn!("{why}");
                    let _ = start.reply.send(Err(Refused(why)));
                }
            }
        }
        self.keep_changes().await;
        self.tell_list();
    }

    /// kubelet's two words on who holds what.
    async fn compare(&mut self, listed: &[ContainerDevices]) {
        // A look at the checkpoint that is younger than the list: what the list has and it has not is a contradiction.
        let Ok(rows) = self.read_books().await else { return };
        self.share.books_are(&rows);
        for one in self.listing.disagree(self.share.disagreements(listed)) {
            self.reporter.trouble(Trouble::HoldersDisagree);
            tracing::warn!(
                checkpoint = %one.books, pod_resources = %one.listed, ids = ?one.ids,
                "kubelet's checkpoint and its PodResources name different pods; the checkpoint holds, the ticket stands in it"
            );
        }
    }

    /// What the first container that was given something late really has.
    fn look_at_arrival(&mut self, arrived: &Arrived) {
        let Arrived { key, pod, has } = arrived;
        match has {
            Some(true) => {
                tracing::info!(%pod, container = &*key.container, "a container has what its CDI device stands for: CDI works here");
            }
            None => {
                tracing::info!(%pod, container = &*key.container, "whether CDI works here could not be seen");
                self.looked = false;
            }
            Some(false) => {
                self.reporter.trouble(Trouble::EditsNotApplied);
                let way = self.way.borrow().clone().filter(|way| way.auto);
                tracing::error!(
                    %pod, container = &*key.container, over = way.is_some(),
                    "a container runs without its limits: the runtime takes CDI devices from kubelet and does nothing with them \
                     (enable_cdi of containerd?)"
                );
                self.teller.not_applied(&key.pod, pod);
                match way {
                    Some(way) => {
                        tracing::warn!("containers that come now get their devices from Allocate (--binding=early)");
                        let state = self.state_dir.clone();
                        self.goes_over_to_early(&way, &state);
                    }
                    None => self.looked = false,
                }
            }
        }
    }

    /// Has the first container that is given something late looked at.
    fn look_whether_it_arrives(&mut self, bound: &[Bound]) {
        let late = self.way.borrow().as_ref().is_some_and(|way| way.binding == Binding::Late);
        // An init container may be over before anybody looks.
        let stays = |bound: &&Bound| {
            let asks = self.share.tenant(&bound.holder.pod).map_or(&[][..], |tenant| &tenant.asks);
            asks.iter().any(|ask| ask.container == bound.holder.container && ask.role != Role::Init)
        };
        let Some(one) = bound.iter().filter(|_| late && !self.looked).find(stays) else { return };
        let about = (one.holder.clone(), one.pod.clone());
        self.looked = true;
        let seen = (self.view.clone(), self.pods.clone());
        tokio::spawn(arrival::watch(about, self.roots.clone(), seen, self.arrived.0.clone()));
    }

    /// Writes what the containers get, then lets them start. The next start need not wait for the disk.
    fn fill(&mut self, start: Start, bound: &[Bound], shared: bool) {
        self.look_whether_it_arrives(bound);
        self.listing.compare_now_and_then();
        let tickets = self.tickets.clone();
        let delivery = Arc::clone(&self.delivery);
        let promises: Vec<_> = bound.iter().map(|bound| (bound.clone(), promise::of(bound, &self.share))).collect();
        for bound in bound {
            if bound.differs {
                self.counts.differs();
            }
            let devices: Vec<&str> = bound.portions.iter().map(|portion| portion.device.as_str()).collect();
            let waited_ms = u64::try_from(start.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(
                pod = %bound.pod, container = &*bound.holder.container, uid = %bound.holder.pod, ?devices, shared,
                differs = bound.differs, waited_ms, "a container gets its GPUs"
            );
        }
        if let Some(holder) = bound.first().map(|bound| &bound.holder.pod) {
            let pods = self.pods.borrow().clone();
            let pod = pods.as_ref().and_then(|pods| pods.pods.iter().find(|pod| pod.cgroup_uid() == holder));
            if let Some(pod) = pod {
                self.teller.filled(pod);
            }
            if let Some(tenant) = self.share.tenant(holder).filter(|_| shared) {
                self.teller.shared(tenant, bound);
            }
        }
        let written = self.counts.writing();
        let undelivered = self.undelivered.0.clone();
        spawn_blocking(move || {
            let result = promises.iter().try_for_each(|(bound, promise)| {
                let delivered = match bound.early {
                    true => delivery.deliver_early(&tickets.folder(&bound.ticket), promise),
                    false => delivery.deliver(&bound.ticket, promise),
                };
                delivered.map_err(|error| {
                    tracing::error!(pod = %promise.pod, container = &*promise.container, %error, "a container cannot get its GPUs");
                    let why = format!("container {} cannot get its GPUs: {error}", promise.container);
                    // Whoever tells it has enough to tell already if there is no room.
                    let _ = undelivered.try_send(Undelivered { uid: promise.uid.clone(), pod: promise.pod.clone(), why: why.clone() });
                    Refused(format!("{}: {why}", promise.pod))
                })
            });
            written.with(result.is_ok());
            let _ = start.reply.send(result);
        });
    }

    pub(super) async fn read_books(&mut self) -> Result<Arc<[Held]>, String> {
        let mut books = self.books.clone();
        match spawn_blocking(move || (books.read(), books)).await {
            Ok((rows, books)) => {
                self.books = books;
                rows
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes away files of pods that are gone. Only with both lists in hand: a missing list is not an empty one.
    async fn sweep(&mut self) {
        let Some(pods) = self.pods.borrow().clone() else { return };
        let Ok(rows) = self.read_books().await else { return };
        let uids: BTreeSet<PodUid> = pods.pods.iter().map(|pod| pod.cgroup_uid().clone()).collect();
        // kubelet forgets a pod's row only when it needs its ids; the pod itself is gone long before.
        let here = |row: &&Held| uids.contains(&row.holder.pod);
        let tickets: BTreeSet<Ticket> = rows.iter().filter(here).filter_map(|row| row.ticket.clone()).collect();
        let (delivery, given_out) = (Arc::clone(&self.delivery), self.tickets.clone());
        let swept = spawn_blocking(move || (delivery.sweep(&uids, &tickets), given_out.sweep(&tickets))).await;
        if let Ok(((pods, specs), gone)) = swept
            && pods + specs + gone.len() > 0
        {
            tracing::debug!(pods, specs, tickets = gone.len(), "files of pods that are gone were taken away");
            self.share.forget_tickets(&gone);
        }
    }
}

fn late(what: Waiting, books: &Result<Arc<[Held]>, String>, ids: &[Arc<str>]) -> String {
    let seconds = PATIENCE.as_secs();
    match (what, books) {
        (Waiting::Books, Err(why)) => format!("after {seconds} s it is not known whose {ids:?} are: {why}"),
        (Waiting::Books, Ok(_)) => format!("after {seconds} s kubelet's checkpoint does not say whose {ids:?} are"),
        (Waiting::Pod, _) => {
            format!(
                "after {seconds} s the API server has not shown the pod that holds {ids:?}: is it reachable from this node?"
            )
        }
    }
}
