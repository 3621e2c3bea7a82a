//! `PreStartContainer`: finds in the kubelet's checkpoint which container starts, and gives the container its claim.
//!
//! ```text
//!   start ──checkpoint──▶ verdict ──▶ fill      files first, then the answer to the kubelet
//!                                 ──▶ refuse    with an event on the pod that says why
//!                                 ──▶ wait      for what is not known yet; refused after a time limit
//! ```
//!
//! What must never happen here: the kubelet gets the answer before the files of the container exist.

use super::calls::WaitingStart;
use super::container_files::{DeliveryResult, UnwrittenStart, log_delivered, report};
use super::late;
use super::sharing_task::Sharing;
use crate::event_log::{PodEvent, log_pod_event};
use decide::allocator::{BoundContainer, Refusal, StartVerdict, WaitReason};
use decide::call_wait::{ListingUse, START_WITHIN, StartStep};
use effects::plugin::CallRefused;
use model::checkpoint::CheckpointEntry;
use model::id::{PodRef, PodUid};
use model::plugin::StartOutcome;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;
use wire::annotation_keys::EPOCH;

/// A start that may proceed, and the work that is left for it.
struct Filled {
    bound: Vec<BoundContainer>,
    shared: bool,
    waited: Duration,
    /// Sends the answer to the gRPC task, if the files were prefetched.
    reply: Option<oneshot::Sender<Result<(), CallRefused>>>,
    /// Whether the files were prefetched.
    prepared: bool,
    /// The result, if a scheduler waits for it.
    report: Option<DeliveryResult>,
}

impl Sharing {
    /// Judges every waiting start against one reading of the kubelet's checkpoint.
    pub(super) async fn judge(&mut self) {
        let starts = self.calls.take_starts();
        if starts.is_empty() {
            return;
        }
        // A pod without a claim gets a share only as long as no GPU scheduler is known to place pods here, so this needs
        // the newest pods.
        if !self.allocator.served_by_scheduler() {
            self.look_at_new_pods();
        }
        let all_ids = starts.iter().map(|start| &*start.ids);
        let checkpoint = match self.tickets.prefetched().rows(&self.allocator, all_ids, Instant::now()) {
            Some(rows) => Ok(rows),
            None => self.holders.read().await,
        };
        self.look_at_other_owners();
        let rows: Option<&[CheckpointEntry]> = checkpoint.as_deref().ok();
        let mut filled = Vec::new();
        for mut start in starts {
            // The kubelet has given up on this call.
            if start.reply.is_closed() {
                continue;
            }
            match self.verdict(&start, rows) {
                StartVerdict::Fill { bound, .. } if self.tickets.prefetched().is_preparing(&bound) => {
                    self.calls.start_waits(start);
                }
                StartVerdict::Fill { bound, shared } => filled.push(self.fill(start, bound, shared)),
                StartVerdict::Foreign => {
                    tracing::info!(ids = ?start.ids, "a container of an earlier plugin starts; it keeps its devices");
                    self.counts.ended(StartOutcome::Foreign);
                    let _ = start.reply.send(Ok(()));
                }
                StartVerdict::Refuse { uid, pod: name, container, why } => {
                    self.refuse((&uid, &name), &container, &why);
                    let _ = start.reply.send(Err(CallRefused(format!("{name}, container {container}: {why}"))));
                }
                StartVerdict::Wait(what) => match start.wait.step(clock::monotonic()) {
                    StartStep::Waits { first } => {
                        tracing::trace!(?what, "a start waits");
                        if first {
                            self.counts.waits(what.code());
                        }
                        self.calls.start_waits(start);
                    }
                    StartStep::TooLate => self.is_too_late(start, what, rows, checkpoint.as_ref().map(drop)),
                },
            }
        }
        // The answers are sent after the whole loop: on this thread, an answer that is sent earlier would wait for the
        // end of the loop anyway.
        for reply in filled.iter_mut().filter_map(|filled| filled.reply.take()) {
            let _ = reply.send(Ok(()));
        }
        // The answered calls proceed first, because the work that is left here takes longer than a whole answer.
        yield_now().await;
        if !filled.is_empty() {
            effects::failpoint!("start-answered");
        }
        filled.into_iter().for_each(|filled| self.finish_start(filled));
        self.keep_changes().await;
        self.publish_list();
    }

    /// The verdict on a start, by this checkpoint.
    fn verdict(&mut self, start: &WaitingStart, rows: Option<&[CheckpointEntry]>) -> StartVerdict {
        let mut verdict = self.allocator.start(&start.ids, rows);
        // A start whose pod is known need not wait for a pass over the other pods.
        if !matches!(verdict, StartVerdict::Fill { .. }) && self.look_at_new_pods() {
            verdict = self.allocator.start(&start.ids, rows);
        }
        if let StartVerdict::Wait(what) = verdict {
            let use_of_listing = start.wait.listing_use(what, rows.is_some(), clock::monotonic());
            let listed = match use_of_listing {
                ListingUse::Unused => None,
                ListingUse::Name | ListingUse::Holder => self.holders.listed_since(start.wait.since()),
            };
            if let Some(listed) = listed.filter(|_| use_of_listing == ListingUse::Holder) {
                verdict = self.allocator.start_by_listing(&start.ids, &listed);
            }
        }
        verdict
    }

    fn refuse(&mut self, (uid, name): (&PodUid, &PodRef), container: &Arc<str>, why: &Refusal) {
        self.counts.ended(StartOutcome::Refused(why.code()));
        self.status.refused((uid, name), container, why);
        log_pod_event(name, &PodEvent::MayNotStart { container, why });
        if let Some(pod) = self.pods.pod(uid) {
            self.status.unfilled(&pod);
            if why.lacks_room() && pod.annotation(EPOCH).is_some() {
                self.status.finds_no_room((uid, name), why);
            }
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
        let read = (read.map_err(String::as_str), self.holders.unreadable());
        let why = late::sentence((what, START_WITHIN), &start.ids, read, holder.as_ref());
        self.counts.ended(StartOutcome::Late(what.code()));
        tracing::warn!("{why}");
        if let Some(late::TicketHolder { uid: Some(uid), pod: Some(pod), container }) = holder {
            self.status.late((&uid, &pod), &container, &why);
        }
        let _ = start.reply.send(Err(CallRefused(why)));
    }

    /// The holder of these ids, if it is known.
    fn holder(&self, ids: &[Arc<str>], rows: Option<&[CheckpointEntry]>) -> Option<late::TicketHolder> {
        let listed = self.holders.listed_last();
        let pods = self.pods.latest();
        late::holder(ids, rows.unwrap_or_default(), listed.as_deref().unwrap_or_default(), pods.as_deref())
    }

    /// Writes the files of the containers, if they were not prefetched, then lets the containers start. The next start
    /// does not wait for the disk.
    fn fill(&mut self, start: WaitingStart, bound: Vec<BoundContainer>, shared: bool) -> Filled {
        let prepared = self.tickets.prefetcher().started(&bound, self.files.delivery());
        let waited = start.wait.waited(clock::monotonic());
        let awaited = self.is_awaited(&bound);
        if let Some(first) = bound.first() {
            self.files.note_start(&first.limits.holder.pod, self.calls.disk());
            let (uid, devices) = (&first.limits.holder.pod, first.limits.devices.iter());
            self.gone.starts(uid, devices.map(|device| device.uuid.clone()), clock::monotonic());
        }
        effects::failpoint!("start-noted");
        let written = self.counts.writing();
        if !prepared {
            let start = UnwrittenStart { reply: start.reply, waited, bound: bound.clone(), shared, awaited };
            self.files.write(start, written);
            return Filled { bound, shared, waited, reply: None, prepared, report: None };
        }
        written.count(true);
        let report = bound.first().filter(|_| awaited).map(|first| report(&first.limits, Ok(())));
        Filled { bound, shared, waited, reply: Some(start.reply), prepared, report }
    }

    /// Whether a scheduler waits for the pod of these containers.
    fn is_awaited(&self, bound: &[BoundContainer]) -> bool {
        let pod = bound.first().and_then(|bound| self.pods.pod(&bound.limits.holder.pod));
        pod.is_some_and(|pod| self.status.is_awaited(&pod))
    }

    /// Does the remaining work for a start that no longer waits for this task.
    fn finish_start(&mut self, Filled { bound, shared, waited, prepared, report, .. }: Filled) {
        self.check_first_containers(&bound);
        self.holders.compare_now_and_then();
        for bound in &bound {
            if bound.differs {
                self.counts.differs();
            }
            // Otherwise the thread that writes the files logs this.
            if prepared {
                log_delivered(bound, shared, waited, prepared);
            }
        }
        if let Some((holder, name)) = bound.first().map(|bound| (&bound.limits.holder.pod, &bound.limits.pod)) {
            self.status.starts_after_all((holder, name), &Refusal::WithoutCdi);
            self.status.finds_room((holder, name));
            if let (Some(gpu_pod), Some(claim)) = (self.allocator.gpu_pod(holder), self.allocator.claim(holder))
                && shared
            {
                self.status.shared(gpu_pod, &claim);
                self.allocator.claim_is_written(holder);
            }
        }
        if let Some(report) = report {
            self.handle_delivered(report);
        }
    }
}
