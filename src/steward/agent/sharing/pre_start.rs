//! `PreStartContainer`: whose start it is, by the kubelet's checkpoint, and what that container gets.
//!
//! ```text
//!   start ──checkpoint──▶ verdict ──▶ fill      files first, then kubelet's answer
//!                            ──▶ refuse    told on the pod, and why
//!                            ──▶ wait      for what is not known yet; late, after some patience
//! ```
//!
//! What must never happen here: kubelet is told to go on before the files of the container are there.

use super::arrival::{self, Arrived};
use super::counts::Written;
use super::late;
use super::owner::{DeliveryResult, Sharing};
use super::pod_status::{self, RetryPolicy};
use super::promise;
use super::waiting::WaitingStart;
use decide::allocator::{BindingMode, BoundContainer, Refusal, StartVerdict, WaitReason};
use effects::plugin::CallRefused;
use model::checkpoint::CheckpointEntry;
use model::id::{ContainerKey, PodRef, PodUid};
use model::limits::ContainerLimits;
use model::observation::ErrorCounter;
use model::plugin::StartOutcome;
use model::request::ContainerRole;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::Instant;

/// kubelet gives a start 30 s and then tries it again; what is not known after this long is told with its reason.
const PATIENCE: Duration = Duration::from_secs(25);
/// So long before that PodResources is asked whose they are.
const ASK: Duration = Duration::from_secs(2);
/// A row that does not stand in a checkpoint that can be read after this long cannot be read itself.
const UNREADABLE: Duration = Duration::from_secs(1);

/// A start that may go on, and what is left to do about it.
struct Filled {
    bound: Vec<BoundContainer>,
    shared: bool,
    waited: Duration,
    /// Where the answer goes, if the files were there already.
    reply: Option<oneshot::Sender<Result<(), CallRefused>>>,
    /// Whether they were.
    prepared: bool,
    /// What a scheduler waits for then.
    report: Option<DeliveryResult>,
}

impl Sharing {
    /// Judges every start that waits, against one reading of the kubelet's checkpoint.
    pub(super) async fn judge(&mut self, waiting: &mut Vec<WaitingStart>) {
        if waiting.is_empty() {
            return;
        }
        // What nobody placed gets a share until somebody is known to place: that must not be missed.
        if !self.allocator.served_by_scheduler() {
            self.look_at_new_pods();
        }
        let ahead = self.ahead.rows(&self.allocator, waiting.iter().map(|start| &*start.ids), Instant::now());
        let checkpoint = match ahead {
            Some(rows) => Ok(rows),
            None => self.read_checkpoint().await,
        };
        let rows: Option<&[CheckpointEntry]> = checkpoint.as_deref().ok();
        let mut filled = Vec::new();
        for mut start in std::mem::take(waiting) {
            // kubelet has given up on it.
            if start.reply.is_closed() {
                continue;
            }
            match self.verdict(&start, rows) {
                StartVerdict::Fill { bound, .. } if self.ahead.is_preparing(&bound) => waiting.push(start),
                StartVerdict::Fill { bound, shared } => filled.push(self.fill(start, bound, shared)),
                StartVerdict::Foreign => {
                    tracing::info!(ids = ?start.ids, "a container of an earlier plugin starts; it keeps what it was given");
                    self.counts.ended(StartOutcome::Foreign);
                    let _ = start.reply.send(Ok(()));
                }
                StartVerdict::Refuse { uid, pod: name, container, why } => {
                    self.refuse((&uid, &name), &container, &why);
                    let _ = start.reply.send(Err(CallRefused(format!("{name}, container {container}: {why}"))));
                }
                StartVerdict::Wait(what) if start.since.elapsed() < PATIENCE => {
                    tracing::trace!(?what, "a start waits");
                    if !std::mem::replace(&mut start.waited, true) {
                        self.counts.waits(what.code());
                    }
                    waiting.push(start);
                }
                StartVerdict::Wait(what) => self.is_too_late(start, what, rows, checkpoint.as_ref().map(drop)),
            }
        }
        // Not before the last line is written: on this thread an answer would wait behind it.
        for reply in filled.iter_mut().filter_map(|filled| filled.reply.take()) {
            let _ = reply.send(Ok(()));
        }
        // Whoever was answered goes on before we do: what is left takes longer than all of an answer.
        yield_now().await;
        if !filled.is_empty() {
            effects::failpoint!("start-answered");
        }
        filled.into_iter().for_each(|filled| self.has_filled(filled));
        self.keep_changes().await;
        self.tell_list();
    }

    /// What is to be done about a start, by these checkpoint.
    fn verdict(&mut self, start: &WaitingStart, rows: Option<&[CheckpointEntry]>) -> StartVerdict {
        let mut verdict = self.allocator.start(&start.ids, rows);
        // Whose pod is known need not wait for a look at the others.
        if !matches!(verdict, StartVerdict::Fill { .. }) && self.look_at_new_pods() {
            verdict = self.allocator.start(&start.ids, rows);
        }
        if matches!(verdict, StartVerdict::Wait(_)) && start.since.elapsed() + ASK >= PATIENCE {
            // For the names of the pod, should it come to nothing.
            let _ = self.listing.since(start.since);
        }
        if verdict == StartVerdict::Wait(WaitReason::Checkpoint)
            && (rows.is_none() || start.since.elapsed() > UNREADABLE)
            && let Some(listed) = self.listing.since(start.since)
        {
            verdict = self.allocator.start_by_listing(&start.ids, &listed);
        }
        verdict
    }

    fn refuse(&mut self, (uid, name): (&PodUid, &PodRef), container: &Arc<str>, why: &Refusal) {
        self.counts.ended(StartOutcome::Refused(why.code()));
        if self.teller.refused((uid, name), container, why) && why.for_good() && *why != Refusal::WithoutCdi {
            self.reporter.trouble(ErrorCounter::StartMistaken);
        }
        tracing::warn!(pod = %name, container = &**container, reason = why.code(), "a container may not start: {why}");
        if let Some(pod) = self.pod(uid) {
            self.teller.unfilled(&pod);
        }
    }

    fn is_too_late(
        &mut self,
        start: WaitingStart,
        what: WaitReason,
        rows: Option<&[CheckpointEntry]>,
        read: Result<(), &String>,
    ) {
        let holder = self.holder(&start.ids, rows);
        let read = (read.map_err(String::as_str), &*self.unreadable);
        let why = late::sentence((what, PATIENCE), &start.ids, read, holder.as_ref());
        self.counts.ended(StartOutcome::Late(what.code()));
        tracing::warn!("{why}");
        if let Some(late::TicketHolder { uid: Some(uid), pod: Some(pod), container }) = holder {
            self.teller.late((&uid, &pod), &container, &why);
        }
        let _ = start.reply.send(Err(CallRefused(why)));
    }

    /// Who holds these ids, as far as it is known.
    fn holder(&self, ids: &[Arc<str>], rows: Option<&[CheckpointEntry]>) -> Option<late::TicketHolder> {
        let listed = self.listing.last();
        let pods = self.pods.borrow().clone();
        late::holder(ids, rows.unwrap_or_default(), listed.as_deref().unwrap_or_default(), pods.as_deref())
    }

    /// Writes what the containers get, if it is not there already, then lets them start. The next start need not wait for the
    /// disk.
    fn fill(&mut self, start: WaitingStart, bound: Vec<BoundContainer>, shared: bool) -> Filled {
        let promises: Vec<_> = bound.iter().map(|bound| (bound.clone(), promise::of(bound, &self.allocator))).collect();
        let prepared = self.ahead.started(&promises, &self.delivery);
        let waited = start.since.elapsed();
        let awaited = self.is_awaited(&bound);
        if let Some(first) = bound.first() {
            self.note_start(&first.holder.pod);
        }
        effects::failpoint!("start-noted");
        let written = self.counts.writing();
        if !prepared {
            self.write((start.reply, waited), (promises, shared), written, awaited);
            return Filled { bound, shared, waited, reply: None, prepared, report: None };
        }
        written.with(true);
        let report = promises.first().filter(|_| awaited).map(|(_, promise)| report(promise, Ok(())));
        Filled { bound, shared, waited, reply: Some(start.reply), prepared, report }
    }

    /// Beside the owner.
    fn write(
        &self,
        (reply, waited): (oneshot::Sender<Result<(), CallRefused>>, Duration),
        (promises, shared): (Vec<(BoundContainer, ContainerLimits)>, bool),
        written: Arc<Written>,
        awaited: bool,
    ) {
        let (tickets, delivery, told) = (self.tickets.clone(), Arc::clone(&self.delivery), self.delivered.0.clone());
        spawn_blocking(move || {
            let result = promises.iter().try_for_each(|(bound, promise)| {
                let delivered = match bound.early {
                    true => delivery.deliver_early(&tickets.folder(&bound.ticket), promise),
                    false => delivery.deliver(&bound.ticket, promise),
                };
                delivered.map_err(|error| {
                    tracing::error!(pod = %promise.pod, container = &*promise.container, %error, "a container cannot get its GPUs");
                    let why = pod_status::not_delivered(&promise.container, &error, RetryPolicy::Again);
                    // Whoever tells it has enough to tell already if there is no room.
                    let _ = told.try_send(report(promise, Err(why.clone())));
                    CallRefused(format!("{}: {why}", promise.pod))
                })
            });
            written.with(result.is_ok());
            let well = result.is_ok();
            let _ = reply.send(result);
            if well {
                promises.iter().for_each(|(bound, _)| is_delivered(bound, shared, waited, false));
            }
            if let Some((_, promise)) = promises.first().filter(|_| awaited && well) {
                // Only at the end of the program is nobody there to hear it.
                let _ = told.blocking_send(report(promise, Ok(())));
            }
        });
    }

    /// Whether a scheduler waits for the pod of these.
    fn is_awaited(&self, bound: &[BoundContainer]) -> bool {
        let pod = bound.first().and_then(|bound| self.pod(&bound.holder.pod));
        pod.is_some_and(|pod| self.teller.is_awaited(&pod))
    }

    /// What is left to do about a start that does not wait for us any more.
    fn has_filled(&mut self, Filled { bound, shared, waited, prepared, report, .. }: Filled) {
        self.look_whether_it_arrives(&bound);
        self.listing.compare_now_and_then();
        for bound in &bound {
            if bound.differs {
                self.counts.differs();
            }
            // Otherwise the thread that delivers says so.
            if prepared {
                is_delivered(bound, shared, waited, prepared);
            }
        }
        if let Some((holder, name)) = bound.first().map(|bound| (&bound.holder.pod, &bound.pod)) {
            self.teller.starts_after_all((holder, name), &Refusal::WithoutCdi);
            if let (Some(gpu_pod), Some(claim)) = (self.allocator.gpu_pod(holder), self.allocator.claim(holder))
                && shared
            {
                self.teller.shared(gpu_pod, &claim);
                self.allocator.share_is_written(holder);
            }
        }
        if let Some(report) = report {
            self.has_delivered(report);
        }
    }

    /// Without it a rival for the same memory could start after a restart of the agent, until the API server shows this one
    /// running.
    fn note_start(&mut self, pod: &PodUid) {
        if let Err(error) = self.asked.disk.write(|| self.starts.note(pod)) {
            tracing::warn!(%error, "a container starts that an agent which ends now would not know");
        }
    }

    /// Has the first containers that are given something late looked at.
    fn look_whether_it_arrives(&mut self, bound: &[BoundContainer]) {
        let late = self.way.borrow().as_ref().is_some_and(|way| way.binding == BindingMode::Late);
        // An init container may be over before anybody looks.
        let stays = |bound: &&BoundContainer| {
            let requests = self.allocator.gpu_pod(&bound.holder.pod).map_or(&[][..], |gpu_pod| &gpu_pod.requests);
            requests
                .iter()
                .any(|request| request.container == bound.holder.container && request.role != ContainerRole::Init)
        };
        let stays: Vec<&BoundContainer> = bound.iter().filter(|_| late).filter(stays).collect();
        for one in stays {
            if self.arrivals.looks_at_first(&one.holder) {
                self.look_at((one.holder.clone(), one.pod.clone()));
            }
        }
    }

    /// Where it is known that tickets come to nothing: at everybody who may have started with one.
    pub(super) fn look_at_all_by_ticket(&mut self) {
        if !self.way.borrow().as_ref().is_some_and(|way| way.lost) {
            return;
        }
        for about in self.allocator.started_by_ticket() {
            if self.arrivals.looks_at(&about.0) {
                self.look_at(about);
            }
        }
    }

    fn look_at(&self, about: (ContainerKey, PodRef)) {
        let seen = (self.view.clone(), self.pods.clone());
        tokio::spawn(arrival::watch(about, self.roots.clone(), seen, self.arrived.0.clone()));
    }

    /// What a container that was given something late really has.
    pub(super) fn look_at_arrival(&mut self, arrived: &Arrived) {
        let Arrived { key, pod, has } = arrived;
        self.arrivals.ended(key, has.is_some());
        match has {
            // What was disproved is taken back even where it was seen once: before the runtime changed, for instance.
            Some(true) if self.goes_back_to_late() => {
                // Going back forgets what was seen, and this was seen now: the next that lack theirs do not change it again.
                self.arrivals.has();
                tracing::warn!(
                    %pod, container = &*key.container,
                    "a container has what its CDI device stands for: CDI works here, and containers that come now get their \
                     devices late again (--binding=early keeps them early)"
                );
            }
            Some(true) if self.arrivals.has() => {
                super::binding_mode::proved(&self.state_dir);
                tracing::info!(%pod, container = &*key.container, "a container has what its CDI device stands for: CDI works here");
            }
            Some(true) => {
                tracing::debug!(%pod, container = &*key.container, "a container has what it was promised by CDI")
            }
            None => {
                tracing::info!(%pod, container = &*key.container, "whether CDI works here could not be seen");
            }
            Some(false) => self.has_lost(key, pod),
        }
    }

    /// A container runs without what its ticket stands for. Once containers of two namespaces do, all are looked at, and none
    /// is to come to that.
    fn has_lost(&mut self, key: &ContainerKey, pod: &PodRef) {
        let way = self.way.borrow().clone().filter(|way| way.auto && way.binding == BindingMode::Late);
        let speaks_for_all = self.arrivals.lacks(pod);
        let goes_over = way.filter(|way| speaks_for_all && !way.promised);
        if self.teller.not_applied(&key.pod, pod) {
            self.reporter.trouble(ErrorCounter::EditsNotApplied);
            tracing::error!(
                %pod, container = &*key.container, over = goes_over.is_some(),
                "a container runs without its limits: the runtime takes CDI devices from kubelet and does nothing with them \
                 (enable_cdi of containerd?)"
            );
        }
        if let Some(way) = goes_over {
            tracing::warn!("containers that come now get their devices from Allocate (--binding=early)");
            let state = self.state_dir.clone();
            self.goes_over_to_early(&way, &state);
        }
    }
}

/// The runtime finds everything that this container was promised.
fn is_delivered(bound: &BoundContainer, shared: bool, waited: Duration, prepared: bool) {
    let devices: Vec<&str> = bound.device_shares.iter().map(|device_share| device_share.device.as_str()).collect();
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        pod = %bound.pod, container = &*bound.holder.container, uid = %bound.holder.pod, ?devices, shared,
        differs = bound.differs, waited_ms, prepared, "container devices delivered"
    );
}

fn report(promise: &ContainerLimits, result: Result<(), String>) -> DeliveryResult {
    let (uid, pod, container) = (promise.uid.clone(), promise.pod.clone(), promise.container.clone());
    DeliveryResult { uid, pod, container, result, void: None }
}
