//! `PreStartContainer`: finds in the kubelet's checkpoint which container starts, and gives it what it claims.
//!
//! ```text
//!   start ──checkpoint──▶ verdict ──▶ fill      files first, then the answer to the kubelet
//!                                 ──▶ refuse    with an event on the pod that says why
//!                                 ──▶ wait      for what is not known yet; refused when `PATIENCE` is over
//! ```
//!
//! What must never happen here: the kubelet is told to go on before the files of the container are there.

use super::cdi_check::{self, Arrived};
use super::container_limits;
use super::counts::Written;
use super::late;
use super::owner::{DeliveryResult, Sharing};
use super::pod_status::{self, RetryPolicy};
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

/// How long a start waits before it is refused with a reason. The kubelet gives a start 30 s and then tries it again.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long before that the agent asks PodResources which pod holds the ids.
const ASK: Duration = Duration::from_secs(2);
/// If a readable checkpoint lacks the row of a start for this long, the row itself cannot be read.
const UNREADABLE: Duration = Duration::from_secs(1);

/// A start that may go on, and what is left to do for it.
struct Filled {
    bound: Vec<BoundContainer>,
    shared: bool,
    waited: Duration,
    /// Where the answer goes, if the files were prefetched.
    reply: Option<oneshot::Sender<Result<(), CallRefused>>>,
    /// Whether the files were prefetched.
    prepared: bool,
    /// The result that a scheduler waits for, if it does.
    report: Option<DeliveryResult>,
}

impl Sharing {
    /// Judges every waiting start against one reading of the kubelet's checkpoint.
    pub(super) async fn judge(&mut self, waiting: &mut Vec<WaitingStart>) {
        if waiting.is_empty() {
            return;
        }
        // A pod without a claim gets a share only until a GPU scheduler is known to place pods here, so the newest pods
        // are needed.
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
            // The kubelet has given up on this call.
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
        // All answers go out after the last line of the loop is written: on this thread an earlier answer would wait
        // for it.
        for reply in filled.iter_mut().filter_map(|filled| filled.reply.take()) {
            let _ = reply.send(Ok(()));
        }
        // The answered calls go on first: what is left to do here takes longer than a whole answer.
        yield_now().await;
        if !filled.is_empty() {
            effects::failpoint!("start-answered");
        }
        filled.into_iter().for_each(|filled| self.has_filled(filled));
        self.keep_changes().await;
        self.tell_list();
    }

    /// The verdict on a start, by this checkpoint.
    fn verdict(&mut self, start: &WaitingStart, rows: Option<&[CheckpointEntry]>) -> StartVerdict {
        let mut verdict = self.allocator.start(&start.ids, rows);
        // A start whose pod is known need not wait for a pass over the other pods.
        if !matches!(verdict, StartVerdict::Fill { .. }) && self.look_at_new_pods() {
            verdict = self.allocator.start(&start.ids, rows);
        }
        if matches!(verdict, StartVerdict::Wait(_)) && start.since.elapsed() + ASK >= PATIENCE {
            // This asks for the pod's name, in case the start must be refused as too late.
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

    /// The holder of these ids, as far as it is known.
    fn holder(&self, ids: &[Arc<str>], rows: Option<&[CheckpointEntry]>) -> Option<late::TicketHolder> {
        let listed = self.listing.last();
        let pods = self.pods.borrow().clone();
        late::holder(ids, rows.unwrap_or_default(), listed.as_deref().unwrap_or_default(), pods.as_deref())
    }

    /// Writes what the containers get, if it was not prefetched, then lets them start. The next start does not wait
    /// for the disk.
    fn fill(&mut self, start: WaitingStart, bound: Vec<BoundContainer>, shared: bool) -> Filled {
        let promises: Vec<_> =
            bound.iter().map(|bound| (bound.clone(), container_limits::of(bound, &self.allocator))).collect();
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

    /// Writes the files on another thread, and answers the call from there.
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
                    // If there is no room, the owner has enough failures to report already.
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
                // The receiver is gone only when the program ends.
                let _ = told.blocking_send(report(promise, Ok(())));
            }
        });
    }

    /// Whether a scheduler waits for the pod of these containers.
    fn is_awaited(&self, bound: &[BoundContainer]) -> bool {
        let pod = bound.first().and_then(|bound| self.pod(&bound.holder.pod));
        pod.is_some_and(|pod| self.teller.is_awaited(&pod))
    }

    /// Does what is left for a start that no longer waits for the owner.
    fn has_filled(&mut self, Filled { bound, shared, waited, prepared, report, .. }: Filled) {
        self.look_whether_it_arrives(&bound);
        self.listing.compare_now_and_then();
        for bound in &bound {
            if bound.differs {
                self.counts.differs();
            }
            // Otherwise the thread that writes the files logs this.
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

    /// Notes on disk that this pod starts. Without the note another pod that claims the same memory could start after a
    /// restart of the agent, until the API server shows this one running.
    fn note_start(&mut self, pod: &PodUid) {
        if let Err(error) = self.asked.disk.write(|| self.starts.note(pod)) {
            tracing::warn!(%error, "cannot save that a pod has started; an agent that restarts now would not know it");
        }
    }

    /// With late binding, starts a check of the first containers: do they have their devices?
    fn look_whether_it_arrives(&mut self, bound: &[BoundContainer]) {
        let late = self.way.borrow().as_ref().is_some_and(|way| way.binding == BindingMode::Late);
        // An init container may end before the check.
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

    /// If it is known that the runtime ignores tickets, checks every container that may have started with one.
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
        tokio::spawn(cdi_check::watch(about, self.roots.clone(), seen, self.arrived.0.clone()));
    }

    /// Handles the result of a check: what a container with late binding really has.
    pub(super) fn look_at_arrival(&mut self, arrived: &Arrived) {
        let Arrived { key, pod, has } = arrived;
        self.arrivals.ended(key, has.is_some());
        match has {
            // Also where a container was seen with its devices before, for example before the runtime changed.
            Some(true) if self.goes_back_to_late() => {
                // The change of mode has cleared `arrivals`. This container is recorded again as seen with its devices.
                // From then on, containers without devices do not change the mode to early again.
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
                tracing::debug!(%pod, container = &*key.container, "a container has what its CDI device stands for")
            }
            None => {
                tracing::info!(%pod, container = &*key.container, "whether CDI works here could not be seen");
            }
            Some(false) => self.has_lost(key, pod),
        }
    }

    /// A container runs without what its ticket stands for. Once containers of two namespaces do, the agent changes to
    /// early binding, so that no other container comes to that, and checks all that have started with a ticket. It
    /// keeps the mode if `--binding` sets it or the runtime says that its CDI is on.
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

/// Logs that the runtime finds everything that this container claims.
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
