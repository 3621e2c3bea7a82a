//! What kubelet asks, as a message to the owner of the state.

use super::journal::TicketJournal;
use super::meter::CallMeter;
use super::one_at_disk::OneAtDisk;
use super::under_way::{Kind, UnderWay, Waited};
use model::id::Ticket;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use wire::ticket;

/// Calls that may wait for the owner. kubelet admits pods one at a time and starts containers in parallel; 110 pods of a
/// node, all starting at once, fit.
pub(super) const QUEUE: usize = 256;

/// One device of the list, as kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    /// `<uuid>-<number>`.
    pub id: Arc<str>,
    /// Whether kubelet may hand it out.
    pub healthy: bool,
    /// NUMA node, where the machine tells one.
    pub numa: Option<u32>,
}

/// What `Allocate` gives a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocateAnswer {
    /// Full names of CDI devices.
    pub cdi: Vec<String>,
    /// Everything else, where the runtime has no CDI.
    pub fields: Vec<ContainerField>,
}

impl AllocateAnswer {
    /// A ticket and nothing else.
    #[must_use]
    pub fn of_ticket(ticket: &Ticket) -> AllocateAnswer {
        AllocateAnswer { cdi: vec![ticket::qualified(ticket)], fields: Vec::new() }
    }
}

/// One thing that a container gets without CDI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerField {
    /// A variable.
    Env(String, String),
    /// A device node: path in the container, path on the host.
    Device(String, String),
    /// A file or folder: path in the container, path on the host, whether it is read-only.
    Mount(String, String, bool),
    /// An annotation of the container; runtimes drop it, kubelet's checkpoint keeps it.
    Annotation(String, String),
}

/// Why a call is refused: the sentence that kubelet writes into the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallRefused(pub String);

/// A call of kubelet.
#[derive(Debug)]
pub enum PluginCall {
    /// Which of these ids would be best?
    Prefer {
        /// Those that are free.
        available: Vec<Arc<str>>,
        /// Those that must be among them.
        must: Vec<Arc<str>>,
        /// How many in all.
        size: usize,
        /// The ids.
        reply: oneshot::Sender<Vec<Arc<str>>>,
    },
    /// A container of some pod gets these ids.
    Allocate {
        /// The ids.
        ids: Vec<Arc<str>>,
        /// What it gets.
        reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>,
    },
    /// A container of some pod has got these ids, and this ticket for them.
    Allocated {
        /// The ids.
        ids: Vec<Arc<str>>,
        /// What was answered.
        ticket: Ticket,
    },
    /// A container that holds these ids is about to start.
    Start {
        /// The ids.
        ids: Vec<Arc<str>>,
        /// Whether it may.
        reply: oneshot::Sender<Result<(), CallRefused>>,
    },
}

/// The way to the owner.
#[derive(Clone, Debug)]
pub struct PluginCallSender {
    queue: mpsc::Sender<PluginCall>,
    tickets: watch::Receiver<Option<Arc<TicketJournal>>>,
    meter: Arc<CallMeter>,
    disk: Arc<OneAtDisk>,
    under_way: UnderWay,
}

/// The owner's end.
#[derive(Debug)]
pub struct PluginCallReceiver {
    /// What kubelet asks, in its order.
    pub calls: mpsc::Receiver<PluginCall>,
    /// The owner's standing word that whoever allocates gets a ticket and nothing else, once it is noted there: while it holds,
    /// a call is answered at once and told to the owner before anything that follows it.
    pub tickets: watch::Sender<Option<Arc<TicketJournal>>>,
    /// The turn at the disk, shared with who answers at once.
    pub disk: Arc<OneAtDisk>,
}

impl PluginCallSender {
    /// The two ends.
    #[must_use]
    pub fn channel() -> (PluginCallSender, PluginCallReceiver) {
        let (queue, calls) = mpsc::channel(QUEUE);
        let (say, tickets) = watch::channel(None);
        let disk = Arc::<OneAtDisk>::default();
        let under_way = UnderWay::default();
        let calls_of = PluginCallSender { queue, tickets, meter: Arc::default(), disk: Arc::clone(&disk), under_way };
        (calls_of, PluginCallReceiver { calls, tickets: say, disk })
    }

    /// How long answers take.
    #[must_use]
    pub fn meter(&self) -> &Arc<CallMeter> {
        &self.meter
    }

    /// A call of kubelet has come: it is under way until this is dropped.
    pub(super) fn begin(&self, kind: Kind) -> Waited {
        self.under_way.begin(kind)
    }

    /// The calls that are under way.
    pub(super) fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// Asks and waits for the answer; `None` when the owner has gone.
    pub(super) async fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> PluginCall) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(call(reply)).await.ok()?;
        answer.await.ok()
    }

    /// What a container gets that is given these ids; `None` when the owner has gone.
    pub(super) async fn allocate(&self, ids: Vec<Arc<str>>) -> Option<Result<AllocateAnswer, CallRefused>> {
        let Some(journal) = self.tickets.borrow().clone() else {
            return self.ask(|reply| PluginCall::Allocate { ids, reply }).await;
        };
        let ticket = match new_ticket() {
            Ok(ticket) => ticket,
            Err(refused) => return Some(Err(refused)),
        };
        if let Err(error) = self.disk.write(|| journal.note(&ticket, &ids)) {
            tracing::warn!(%error, "a ticket is given out that an agent which ends now would not know");
        }
        crate::failpoint!("allocate-noted");
        let answer = AllocateAnswer::of_ticket(&ticket);
        self.queue.send(PluginCall::Allocated { ids, ticket }).await.ok()?;
        crate::failpoint!("allocate-told");
        Some(Ok(answer))
    }
}

/// A ticket that nobody has, nor can guess.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_ticket() -> Result<Ticket, CallRefused> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        return Err(CallRefused(format!("the kernel gave no random bytes for a ticket: {filled:?}")));
    }
    Ok(Ticket::of_random(bytes))
}
