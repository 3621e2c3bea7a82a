//! `Allocate`: answers with a ticket, and with early binding also with the devices, mounts and variables.

use super::calls::WaitingAllocate;
use super::container_files::DeliveryResult;
use super::container_limits;
use super::event_notes::{self, RetryPolicy};
use super::sharing_task::Sharing;
use crate::event_log::{PodEvent, log_pod_event};
use decide::allocator::{BindingMode, BoundContainer, MatchedRequest};
use decide::call_wait::{ALLOCATE_WITHIN, AllocateStage};
use effects::plugin::{AllocateAnswer, CallRefused, ContainerField, new_ticket};
use model::id::Ticket;
use model::ticket::IssuedTicket;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use wire::issued_ticket;

impl Sharing {
    /// Answers every call that can be answered.
    pub(super) async fn allocate(&mut self) {
        let mut given = None;
        for mut call in self.calls.take_allocations() {
            // A checkpoint that was read before an answer does not contain that answer.
            call.after = given.map_or(call.after, |given| call.after.max(given));
            // The kubelet has given up on this call.
            if call.reply.is_closed() {
                continue;
            }
            let stage = call.wait.stage(clock::monotonic());
            match self.binding.mode() {
                Some(BindingMode::Late) => {
                    let answer = self.give_ticket(&call.ids).await;
                    let _ = call.reply.send(answer);
                }
                Some(BindingMode::Early) => match self.closed() {
                    Some(refused) => drop(call.reply.send(Err(refused))),
                    None => given = self.allocate_early(call, stage).await.or(given),
                },
                None if stage < AllocateStage::Over => self.calls.allocate_waits(call),
                None => {
                    let _ = call.reply.send(Err(CallRefused("it is not known yet whether the runtime has CDI".into())));
                }
            }
        }
    }

    /// Answers a call with everything that its container gets. A checkpoint that was read since the call came shows
    /// which container that must be; it is read in the background, so starts are answered meanwhile. Returns the time
    /// at which the call was answered with devices.
    async fn allocate_early(&mut self, mut call: WaitingAllocate, stage: AllocateStage) -> Option<Instant> {
        // A container may hold something although it is missing in a checkpoint that can only be read in part.
        let checkpoint = match self.tickets.prefetcher().checkpoint_after(call.after, || self.holders.reader()) {
            None if stage < AllocateStage::Over => {
                self.calls.allocate_waits(call);
                return None;
            }
            read => read.flatten(),
        };
        let mut given = None;
        match self.allocator.allocate(&call.ids, checkpoint.as_deref(), stage == AllocateStage::UnknownPods) {
            Some(matched) => {
                self.answer_early(call, matched).await;
                given = Some(Instant::now());
            }
            None if stage < AllocateStage::Over => {
                call.after = Instant::now();
                self.calls.allocate_waits(call);
            }
            None => {
                let why = no_pod_waits(&call.ids);
                tracing::warn!("{why}");
                let _ = call.reply.send(Err(CallRefused(why)));
            }
        }
        self.keep_changes().await;
        given
    }

    /// Answers with a ticket only, which is right for any container. For calls that came before the mode was known to
    /// be late binding.
    async fn give_ticket(&mut self, ids: &[Arc<str>]) -> Result<AllocateAnswer, CallRefused> {
        let ticket = new_ticket()?;
        let issued = self.has_given(&ticket, ids);
        // The folder of the ticket is only needed if the kubelet's checkpoint is lost later.
        if let Err(why) = self.tickets.keep_now(issued).await {
            tracing::warn!(why, "cannot write a ticket to the state directory");
        }
        Ok(AllocateAnswer::of_ticket(&ticket))
    }

    /// Registers a ticket that the kubelet has got, so that it is in the journal, or gets now.
    pub(super) fn has_given(&mut self, ticket: &Ticket, ids: &[Arc<str>]) -> IssuedTicket {
        tracing::debug!(?ids, %ticket, "kubelet allocates");
        self.tickets.give(&mut self.allocator, ticket, ids, None)
    }

    /// Takes over what the previous agent gave at `Allocate` and a power loss removed from the state directory: the
    /// kubelet's checkpoint still has it.
    pub(super) async fn recall_given_early(&mut self) {
        let mut checkpoint = self.holders.reader();
        let Ok(Ok(entries)) = spawn_blocking(move || checkpoint.read()).await else { return };
        for record in entries.records.iter() {
            match issued_ticket::decode(record.as_bytes()) {
                Ok(issued) if self.allocator.issued(&issued.ticket).is_some() => {}
                Ok(issued) => {
                    tracing::info!(ticket = %issued.ticket, "this ticket is in the kubelet's checkpoint only, and is taken over from there");
                    self.allocator.recall_tickets(vec![issued.clone()]);
                    self.tickets.note(issued);
                }
                Err(fault) => tracing::warn!(%fault, "a ticket's record in the kubelet's checkpoint cannot be read"),
            }
        }
    }

    /// Answers with everything that a container gets. After a restart the agent must know what it gave, so the kubelet gets the
    /// answer only when the ticket is on disk.
    async fn answer_early(&mut self, call: WaitingAllocate, matched: MatchedRequest) {
        let ticket = match new_ticket() {
            Ok(ticket) => ticket,
            Err(why) => return drop(call.reply.send(Err(why))),
        };
        let WaitingAllocate { ids, reply, .. } = call;
        let bound = BoundContainer {
            holder: matched.holder.clone(),
            pod: matched.pod.clone(),
            ticket: ticket.clone(),
            device_shares: matched.device_shares.clone(),
            differs: false,
            early: true,
        };
        let limits = container_limits::of(&bound, &self.allocator);
        let mut fields = self.files.answer(&ticket, &limits);
        let devices: Vec<&str> =
            matched.device_shares.iter().map(|device_share| device_share.device.as_str()).collect();
        tracing::info!(pod = %matched.pod, container = &*matched.holder.container, ?devices, ?ids, %ticket, "kubelet allocates");
        let issued = self.tickets.give(&mut self.allocator, &ticket, &ids, Some(matched.clone()));
        if let Ok(record) = issued_ticket::encode(&issued) {
            fields.push(ContainerField::Annotation(wire::ticket::RECORD.into(), record));
        }
        let kept = self.tickets.keep_first(issued).await;
        let results = self.files.results();
        tokio::spawn(async move {
            let Err(why) = kept.await else {
                effects::failpoint!("allocate-early-kept");
                let _ = reply.send(Ok(AllocateAnswer { cdi: Vec::new(), fields }));
                return;
            };
            let (pod, container) = (matched.pod, matched.holder.container);
            let why = event_notes::not_delivered(&container, &why, RetryPolicy::NoMore);
            tracing::error!(%pod, container = &*container, "{why}");
            let _ = reply.send(Err(CallRefused(format!("{pod}: {why}"))));
            // The receiver is gone only when the program ends.
            let (uid, result) = (matched.holder.pod, Err(why));
            let _ = results.send(DeliveryResult { uid, pod, container, result, void: Some(ticket) }).await;
        });
    }

    /// Writes what has changed to the state directory and to pods.
    pub(super) async fn keep_changes(&mut self) {
        let changes = self.allocator.take_changes();
        self.counts.moved(changes.exchanged, changes.reassigned);
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

    /// Applies the binding mode when it has been found or has changed.
    pub(super) fn apply_binding_mode(&mut self) {
        let (mode, lost) = self.binding.take_mode();
        let late = mode == Some(BindingMode::Late);
        let gave_tickets = self.calls.answer_with_tickets(late.then(|| self.tickets.journal()));
        if late && !gave_tickets {
            self.binding.tickets_begin();
        }
        self.allocator.set_early_binding(mode == Some(BindingMode::Early));
        self.allocator.set_tickets_lost(lost);
        if self.update_isolation() {
            self.publish_list();
        }
        self.check_all_by_ticket();
    }
}

fn no_pod_waits(ids: &[Arc<str>]) -> String {
    format!(
        "after {} s no pod is known on this node that waits for {} GPUs: check that the API server is reachable from \
         here, and that a scheduler has written the pod's claim, if the pod needs one",
        ALLOCATE_WITHIN.as_secs(),
        ids.len()
    )
}
