//! `Allocate`: answers with a ticket, and with early binding also with the devices, mounts and variables.

use super::binding_mode::BindingModeResult;
use super::container_limits;
use super::owner::{DeliveryResult, Sharing};
use super::pod_status::{self, RetryPolicy};
use super::waiting::WaitingAllocate;
use decide::allocator::{BindingMode, BoundContainer, MatchedRequest};
use effects::plugin::{AllocateAnswer, CallRefused, ContainerField, new_ticket};
use model::id::Ticket;
use model::ticket::IssuedTicket;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use wire::issued_ticket;

/// How long an `Allocate` waits: as long as our pod watch may lag behind the kubelet's. The kubelet never retries a
/// failed `Allocate`, so the pod fails; a slow one holds up every other pod.
const PATIENCE: Duration = Duration::from_secs(4);
/// How much of that time the agent waits for pods that the kubelet has admitted and our pod watch has not shown.
const FOR_STRANGERS: Duration = Duration::from_secs(1);
/// The most calls that wait at a time; the kubelet makes one after the other.
const MAX_WAITING: usize = 64;

impl Sharing {
    /// Queues a call that cannot be answered at once.
    pub(super) fn asks_for(&mut self, ids: Vec<Arc<str>>, reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>) {
        if self.allocations.len() >= MAX_WAITING {
            let _ = reply.send(Err(CallRefused(format!("{MAX_WAITING} allocations wait already"))));
        } else {
            let now = Instant::now();
            self.allocations.push(WaitingAllocate { ids, since: now, after: now, reply });
        }
    }

    /// Answers every call that can be answered.
    pub(super) async fn allocate(&mut self) {
        let mut given = None;
        for mut call in std::mem::take(&mut self.allocations) {
            // A checkpoint that was read before an answer does not contain that answer.
            call.after = given.map_or(call.after, |given| call.after.max(given));
            // The kubelet has given up on this call.
            if call.reply.is_closed() {
                continue;
            }
            let binding = self.way.borrow().as_ref().map(|way| way.binding);
            let patient = call.since.elapsed() < PATIENCE;
            match binding {
                Some(BindingMode::Late) => {
                    let answer = self.give_ticket(&call.ids).await;
                    let _ = call.reply.send(answer);
                }
                Some(BindingMode::Early) => match self.closed() {
                    Some(refused) => drop(call.reply.send(Err(refused))),
                    None => given = self.allocate_early(call, patient).await.or(given),
                },
                None if patient => self.allocations.push(call),
                None => {
                    let _ = call.reply.send(Err(CallRefused("it is not known yet whether the runtime has CDI".into())));
                }
            }
        }
    }

    /// Answers a call with everything that its container gets. A checkpoint that was read since the call came says
    /// which container that must be; it is read in the background, so starts are answered meanwhile. Returns when
    /// something was given.
    async fn allocate_early(&mut self, mut call: WaitingAllocate, patient: bool) -> Option<Instant> {
        // A container may hold something although it is missing in a checkpoint that can only be read in part.
        let certain = match self.ahead.checkpoint_after(call.after, &self.checkpoint) {
            None if patient => {
                self.allocations.push(call);
                return None;
            }
            read => read.flatten(),
        };
        let for_strangers = call.since.elapsed() < FOR_STRANGERS;
        let mut given = None;
        match self.allocator.allocate(&call.ids, certain.as_deref(), for_strangers) {
            Some(meant) => {
                self.give(call, meant).await;
                given = Some(Instant::now());
            }
            None if patient => {
                call.after = Instant::now();
                self.allocations.push(call);
            }
            None => {
                let why = nobody(&call.ids);
                tracing::warn!("{why}");
                let _ = call.reply.send(Err(CallRefused(why)));
            }
        }
        self.keep_changes().await;
        given
    }

    /// Answers with a ticket and nothing that could be wrong. For calls that came before late binding was known to be
    /// the mode.
    async fn give_ticket(&mut self, ids: &[Arc<str>]) -> Result<AllocateAnswer, CallRefused> {
        let ticket = new_ticket()?;
        let issued = self.has_given(&ticket, ids);
        // The folder of the ticket is only needed if the kubelet's checkpoint is lost later.
        if let Err(why) = self.keeper.keep_now(issued).await {
            tracing::warn!(why, "cannot write a ticket to the state directory");
        }
        Ok(AllocateAnswer::of_ticket(&ticket))
    }

    /// The kubelet has got this ticket, which is in the journal, or gets it now.
    pub(super) fn has_given(&mut self, ticket: &Ticket, ids: &[Arc<str>]) -> IssuedTicket {
        tracing::debug!(?ids, %ticket, "kubelet allocates");
        self.ahead.given(ticket, Instant::now());
        self.issue(ticket, ids, None)
    }

    /// Takes over the tickets that the previous agent issued and had no time to write to their folders.
    pub(super) fn recall_given_out(&mut self) {
        let journal = sources::state_dir::journal(&self.state_dir);
        for line in &journal.lines {
            let issued = match self.allocator.issued(&line.ticket) {
                Some(known) => known.clone(),
                None => self.issue(&line.ticket, &line.ids, None),
            };
            self.keeper.note(issued);
        }
        self.keeper.journal.continues(journal);
    }

    /// Takes over what the previous agent gave at `Allocate` and a power loss removed from the state directory: the
    /// kubelet's checkpoint still has it.
    pub(super) async fn recall_given_early(&mut self) {
        let mut checkpoint = self.checkpoint.clone();
        let Ok(Ok(entries)) = spawn_blocking(move || checkpoint.read()).await else { return };
        for record in entries.records.iter() {
            match issued_ticket::decode(record.as_bytes()) {
                Ok(issued) if self.allocator.issued(&issued.ticket).is_some() => {}
                Ok(issued) => {
                    tracing::info!(ticket = %issued.ticket, "what was given with this ticket is known from the kubelet's checkpoint only");
                    self.allocator.recall_tickets(vec![issued.clone()]);
                    self.keeper.note(issued);
                }
                Err(fault) => tracing::warn!(%fault, "a ticket's record in the kubelet's checkpoint cannot be read"),
            }
        }
    }

    /// Gives a container everything at once. After a restart the agent must know what it gave, so the kubelet gets the
    /// answer only when the ticket is on disk.
    async fn give(&mut self, call: WaitingAllocate, meant: MatchedRequest) {
        let ticket = match new_ticket() {
            Ok(ticket) => ticket,
            Err(why) => return drop(call.reply.send(Err(why))),
        };
        let WaitingAllocate { ids, reply, .. } = call;
        let bound = BoundContainer {
            holder: meant.holder.clone(),
            pod: meant.pod.clone(),
            ticket: ticket.clone(),
            device_shares: meant.device_shares.clone(),
            differs: false,
            early: true,
        };
        let promised = container_limits::of(&bound, &self.allocator);
        let (mut fields, lost) = self.delivery.answer(&ticket, &promised, &self.tickets.folder(&ticket));
        if !lost.is_empty() && !std::mem::replace(&mut self.told_lost, true) {
            tracing::warn!(?lost, "containers of this node do without these: an answer to Allocate cannot carry them");
        }
        let devices: Vec<&str> = meant.device_shares.iter().map(|device_share| device_share.device.as_str()).collect();
        tracing::info!(pod = %meant.pod, container = &*meant.holder.container, ?devices, ?ids, %ticket, "kubelet allocates");
        self.ahead.given(&ticket, Instant::now());
        let issued = self.issue(&ticket, &ids, Some(meant.clone()));
        if let Ok(record) = issued_ticket::encode(&issued) {
            fields.push(ContainerField::Annotation(wire::ticket::RECORD.into(), record));
        }
        let kept = self.keeper.keep_first(issued).await;
        let told = self.delivered.0.clone();
        tokio::spawn(async move {
            let Err(why) = kept.await else {
                effects::failpoint!("allocate-early-kept");
                let _ = reply.send(Ok(AllocateAnswer { cdi: Vec::new(), fields }));
                return;
            };
            let (pod, container) = (meant.pod, meant.holder.container);
            let why = pod_status::not_delivered(&container, &why, RetryPolicy::NoMore);
            tracing::error!(%pod, container = &*container, "{why}");
            let _ = reply.send(Err(CallRefused(format!("{pod}: {why}"))));
            // The receiver is gone only when the program ends.
            let (uid, result) = (meant.holder.pod, Err(why));
            let _ = told.send(DeliveryResult { uid, pod, container, result, void: Some(ticket) }).await;
        });
    }

    /// Registers a ticket that is about to be issued.
    fn issue(&mut self, ticket: &Ticket, ids: &[Arc<str>], early: Option<MatchedRequest>) -> IssuedTicket {
        self.ages.issued(ticket.clone(), sources::clock::monotonic());
        self.allocator.issue(ticket.clone(), ids, early)
    }

    /// Writes what has changed to the state directory and to pods.
    pub(super) async fn keep_changes(&mut self) {
        let changes = self.allocator.take_changes();
        self.counts.moved(changes.exchanged, changes.reseated);
        for (gpu_pod, claim) in &changes.claims {
            let devices: Vec<&str> = claim.iter().flatten().map(|device_share| device_share.device.as_str()).collect();
            tracing::info!(pod = %gpu_pod.pod, ?devices, "a claim has moved: it is written anew");
            self.teller.moved(gpu_pod, claim);
        }
        for (gpu_pod, share) in &changes.shares {
            tracing::info!(pod = %gpu_pod.pod, "what this pod was given is not written on it yet: it is written now");
            self.teller.shared(gpu_pod, share);
        }
        changes.tickets.into_iter().for_each(|issued| self.keeper.note(issued));
        self.keeper.keep().await;
    }

    /// Applies the binding mode when it has been found or has changed.
    pub(super) fn look_at_way(&mut self) {
        let (binding, lost) = self.way.borrow_and_update().as_ref().map(|way| (way.binding, way.lost)).unzip();
        if binding == Some(BindingMode::Late) && self.asked.tickets.borrow().is_none() {
            self.arrivals.begin();
        }
        self.asked.tickets.send_replace((binding == Some(BindingMode::Late)).then(|| Arc::clone(&self.keeper.journal)));
        self.allocator.bind_early(binding == Some(BindingMode::Early));
        self.allocator.tickets_are_lost(lost == Some(true));
        if self.look_at_isolation() {
            self.tell_list();
        }
        self.look_at_all_by_ticket();
    }

    /// The runtime ignored the CDI edits: changes to early binding.
    pub(super) fn goes_over_to_early(&mut self, way: &BindingModeResult, state: &std::path::Path) {
        self.say_way.send_replace(Some(way.disproved(state)));
        self.look_at_way();
    }

    /// A container has what its CDI device stands for, after others seemed to show that the runtime ignores CDI
    /// devices. Changes back to late binding where that is possible, and returns whether it did.
    pub(super) fn goes_back_to_late(&mut self) -> bool {
        let way = self.way.borrow().as_ref().and_then(|way| way.taken_back(&self.state_dir));
        let goes_back = way.is_some();
        if goes_back {
            self.say_way.send_replace(way);
            self.look_at_way();
        }
        goes_back
    }
}

fn nobody(ids: &[Arc<str>]) -> String {
    format!(
        "after {} s no pod is known on this node that waits for {} GPUs: check that the API server is reachable from \
         here, and that a scheduler has written the pod's claim, if the pod needs one",
        PATIENCE.as_secs(),
        ids.len()
    )
}
