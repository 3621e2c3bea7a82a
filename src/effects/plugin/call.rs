//! The gRPC service passes the kubelet's calls as messages to the sharing task, the task that holds the node allocator.
//! It answers `Allocate` itself, with a ticket, and notifies the sharing task ([`PluginCall::Allocated`]).

use super::journal::TicketJournal;
use super::meter::CallMeter;
use super::one_at_disk::OneAtDisk;
use super::under_way::{CallInProgress, Kind, UnderWay};
use model::id::Ticket;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Maximum number of calls that wait for the sharing task. The kubelet admits pods one at a time and starts containers
/// in parallel; this is enough for the starts of 110 pods, the kubelet's usual limit.
pub(super) const QUEUE: usize = 256;

/// One device of the list that the kubelet gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    /// `<uuid>-<number>`.
    pub id: Arc<str>,
    /// Whether the kubelet may allocate the device.
    pub healthy: bool,
    /// The device's NUMA node, if the machine reports it.
    pub numa: Option<u32>,
}

/// The reason why a call is refused: the kubelet writes this sentence into the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRefused(pub String);

/// A call of the kubelet.
#[derive(Debug)]
pub enum PluginCall {
    /// `GetPreferredAllocation`: which of these ids suit the container best.
    Prefer {
        /// The free ids.
        available: Vec<Arc<str>>,
        /// The ids that the answer must contain.
        must: Vec<Arc<str>>,
        /// The number of ids in the answer.
        size: usize,
        /// Takes the chosen ids.
        reply: oneshot::Sender<Vec<Arc<str>>>,
    },
    /// `Allocate` is answered: a container gets these ids, and this ticket for the ids. The call does not name the pod.
    Allocated {
        /// The ids.
        ids: Vec<Arc<str>>,
        /// The ticket in the answer.
        ticket: Ticket,
    },
    /// `PreStartContainer`: a container that holds these ids is about to start.
    Start {
        /// The ids.
        ids: Vec<Arc<str>>,
        /// Takes the answer: whether the container may start.
        reply: oneshot::Sender<Result<(), CallRefused>>,
    },
}

/// The sending end: the gRPC service sends calls to the sharing task.
#[derive(Clone, Debug)]
pub struct PluginCallSender {
    queue: mpsc::Sender<PluginCall>,
    tickets: watch::Receiver<Option<Arc<TicketJournal>>>,
    meter: Arc<CallMeter>,
    disk: Arc<OneAtDisk>,
    under_way: UnderWay,
}

/// The receiving end, for the sharing task.
#[derive(Debug)]
pub struct PluginCallReceiver {
    /// The calls of the kubelet, in the order in which they arrive.
    pub calls: mpsc::Receiver<PluginCall>,
    /// As soon as this is set, the service answers `Allocate` with a ticket, and writes the ticket to this journal
    /// first; if the write fails, the service logs the error and still answers. The sharing task gets
    /// [`PluginCall::Allocated`] before every later call.
    pub tickets: watch::Sender<Option<Arc<TicketJournal>>>,
    /// Limits blocking writes to one Tokio worker; shared with the gRPC service.
    pub disk: Arc<OneAtDisk>,
}

impl PluginCallSender {
    /// Makes the two ends.
    #[must_use]
    pub fn channel() -> (PluginCallSender, PluginCallReceiver) {
        let (queue, calls) = mpsc::channel(QUEUE);
        let (allow_tickets, tickets) = watch::channel(None);
        let disk = Arc::<OneAtDisk>::default();
        let under_way = UnderWay::default();
        let sender = PluginCallSender { queue, tickets, meter: Arc::default(), disk: Arc::clone(&disk), under_way };
        (sender, PluginCallReceiver { calls, tickets: allow_tickets, disk })
    }

    /// Measures how long answers take.
    #[must_use]
    pub fn meter(&self) -> &Arc<CallMeter> {
        &self.meter
    }

    /// Counts a call of the kubelet as under way until the returned value is dropped.
    pub(super) fn begin(&self, kind: Kind) -> CallInProgress {
        self.under_way.begin(kind)
    }

    /// The calls that are under way.
    pub(super) fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// Sends a call and waits for the answer; `None` if the sharing task has ended.
    pub(super) async fn send<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> PluginCall) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(call(reply)).await.ok()?;
        answer.await.ok()
    }

    /// The ticket that answers an `Allocate` of these ids; `None` if the sharing task has ended. The call waits until
    /// the sharing task runs.
    pub(super) async fn allocate(&self, ids: Vec<Arc<str>>) -> Option<Result<Ticket, CallRefused>> {
        let journal = self.tickets.clone().wait_for(Option::is_some).await.ok()?.clone()?;
        let ticket = match new_ticket() {
            Ok(ticket) => ticket,
            Err(refused) => return Some(Err(refused)),
        };
        if let Err(error) = self.disk.write(|| journal.note(&ticket, &ids)) {
            tracing::warn!(%error, "ticket not written to the journal: an agent that restarts now does not know it");
        }
        crate::failpoint!("allocate-noted");
        self.queue.send(PluginCall::Allocated { ids, ticket: ticket.clone() }).await.ok()?;
        crate::failpoint!("allocate-reported");
        Some(Ok(ticket))
    }
}

/// A new random ticket, which is unique and cannot be guessed.
///
/// # Errors
/// If the kernel returns no random bytes.
fn new_ticket() -> Result<Ticket, CallRefused> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        return Err(CallRefused(format!("the kernel gave no random bytes for a ticket: {filled:?}")));
    }
    Ok(Ticket::of_random(bytes))
}
