//! The owner: one loop that takes calls, views and pods, and answers.

use super::counts::Counts;
use super::health::Watched;
use super::tell::{self, Teller};
use super::{cards, promise};
use decide::share::{Share, Verdict, Waiting};
use effects::delivery::Delivery;
use effects::plugin::{Answer, Call, Device, Refused};
use model::id::{GpuUuid, NodeName, PodUid, Ticket};
use model::observation::Observation;
use model::plugin::Outcome;
use model::pod::PodList;
use model::share::{Held, Slot, Tenant};
use model::view::NodeView;
use sources::kubelet::Books;
use sources::report::Reporter;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;
use wire::{tenant, ticket};

/// kubelet gives a start 30 s and then tries it again; what is not known after this long is told with its reason.
const PATIENCE: Duration = Duration::from_secs(25);
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
    /// kubelet's books.
    pub books: Books,
    /// From kubelet.
    pub calls: mpsc::Receiver<Call>,
    /// What is seen of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// GPUs that an operator keeps from new containers.
    pub cordoned: watch::Receiver<Arc<BTreeSet<GpuUuid>>>,
    /// Pods of this node; `None` before the first list.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
    /// The health of GPUs, as it was told last.
    pub watched: Watched,
    /// To people and schedulers.
    pub teller: Teller,
    /// To kubelet.
    pub list: watch::Sender<Arc<[Device]>>,
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
        // Before the first list is told: a sick device takes away the ids of those that use it.
        if let Ok(rows) = self.read_books().await {
            self.share.books_are(&rows);
        }
        let mut report = Instant::now();
        self.look_at_cards();
        self.look_at_pods();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                count = self.calls.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for call in batch.drain(..) {
                        self.take(call, &mut waiting);
                    }
                    self.judge(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                () = sleep_until(again), if !waiting.is_empty() => {
                    self.judge(&mut waiting).await;
                    again = Instant::now() + AGAIN;
                }
                Ok(()) = self.view.changed() => self.look_at_cards(),
                Ok(()) = self.cordoned.changed() => self.look_at_cards(),
                Ok(()) = self.pods.changed() => {
                    self.look_at_pods();
                    self.judge(&mut waiting).await;
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

    fn look_at_cards(&mut self) {
        let view = Arc::clone(&self.view.borrow_and_update());
        let cards = cards::of(&view, &self.config, &self.split_counts);
        if let Some(kit) = self.devices.kit(&view, &self.config) {
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
    }

    fn tell_list(&mut self) {
        let devices: Arc<[Device]> = self
            .share
            .list()
            .into_iter()
            .map(|listed| Device { id: listed.slot.to_string().into(), healthy: listed.healthy, numa: listed.numa })
            .collect();
        self.counts.slots_are(self.share.tally());
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
                let _ = reply.send(issue(&ids));
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
            match self.share.start(&start.ids, rows) {
                Verdict::Fill { bound, shared } => self.fill(start, &bound, shared),
                Verdict::Foreign => {
                    tracing::info!(ids = ?start.ids, "a container of an earlier plugin starts; it keeps what it was given");
                    self.counts.ended(Outcome::Foreign);
                    let _ = start.reply.send(Ok(()));
                }
                Verdict::Refuse { uid, pod: name, why } => {
                    self.counts.ended(Outcome::Refused(why.code()));
                    self.teller.refused(&uid, &name, &why);
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
        self.tell_list();
    }

    /// Writes what the containers get, then lets them start. The next start need not wait for the disk.
    fn fill(&mut self, start: Start, bound: &[decide::share::Bound], shared: bool) {
        let delivery = Arc::clone(&self.delivery);
        let view = Arc::clone(&self.view.borrow());
        let promises: Vec<_> =
            bound.iter().map(|bound| (bound.ticket.clone(), promise::of(bound, &self.share, &view))).collect();
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
        spawn_blocking(move || {
            let result = promises.iter().try_for_each(|(ticket, promise)| delivery.deliver(ticket, promise));
            written.with(result.is_ok());
            if let Err(error) = &result {
                tracing::error!(%error, "a container cannot get its GPUs");
            }
            let _ = start.reply.send(result.map_err(|error| Refused(error.to_string())));
        });
    }

    async fn read_books(&mut self) -> Result<Arc<[Held]>, String> {
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
        let delivery = Arc::clone(&self.delivery);
        if let Ok((pods, specs)) = spawn_blocking(move || delivery.sweep(&uids, &tickets)).await
            && pods + specs > 0
        {
            tracing::debug!(pods, specs, "files of pods that are gone were taken away");
        }
    }
}

/// The answer to `Allocate`: a ticket, and nothing that could be wrong.
fn issue(ids: &[Arc<str>]) -> Result<Answer, Refused> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        return Err(Refused(format!("the kernel gave no random bytes for a ticket: {filled:?}")));
    }
    let ticket = Ticket::of_random(bytes);
    tracing::debug!(?ids, %ticket, "kubelet allocates");
    Ok(Answer { cdi: vec![ticket::qualified(&ticket)], fields: Vec::new() })
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
