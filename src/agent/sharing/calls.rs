//! Receives the kubelet's calls from the gRPC task, and keeps the calls that wait for an answer.

use decide::call_wait::StartWait;
use effects::plugin::{CallRefused, OneAtDisk, PluginCall, PluginCallReceiver, TicketJournal};
use model::time::Monotonic;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The most calls that are taken from the queue at once and judged against one reading of the checkpoint.
pub(super) const BATCH: usize = 64;
/// The most starts that wait at a time. The kubelet has at most one start under way for each pod of the node.
const MAX_STARTS: usize = 1024;

/// A call of `PreStartContainer`.
#[derive(Debug)]
pub(super) struct WaitingStart {
    /// The ids of the slots.
    pub ids: Vec<Arc<str>>,
    /// For how long it waits.
    pub wait: StartWait,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<(), CallRefused>>,
}

/// The queue of calls, and the calls that wait.
#[derive(Debug)]
pub(super) struct KubeletCalls {
    queue: PluginCallReceiver,
    starts: Vec<WaitingStart>,
}

impl KubeletCalls {
    /// No call waits yet.
    pub(super) fn new(queue: PluginCallReceiver) -> KubeletCalls {
        KubeletCalls { queue, starts: Vec::new() }
    }

    /// Waits for calls, and puts at most [`BATCH`] into `batch`. Returns how many came: none when there is no caller any
    /// more.
    pub(super) async fn receive(&mut self, batch: &mut Vec<PluginCall>) -> usize {
        self.queue.calls.recv_many(batch, BATCH).await
    }

    /// Queues a start; refuses it if too many wait. Returns whether it is queued.
    pub(super) fn start(
        &mut self,
        ids: Vec<Arc<str>>,
        reply: oneshot::Sender<Result<(), CallRefused>>,
        now: Monotonic,
    ) -> bool {
        let queued = self.starts.len() < MAX_STARTS;
        if queued {
            self.starts.push(WaitingStart { ids, wait: StartWait::new(now), reply });
        } else {
            let _ = reply.send(Err(CallRefused(format!("{MAX_STARTS} starts wait already"))));
        }
        queued
    }

    /// Whether a start waits.
    pub(super) fn any_wait(&self) -> bool {
        !self.starts.is_empty()
    }

    /// Takes the waiting starts; [`KubeletCalls::start_waits`] returns each that waits on.
    pub(super) fn take_starts(&mut self) -> Vec<WaitingStart> {
        std::mem::take(&mut self.starts)
    }

    /// This start waits on.
    pub(super) fn start_waits(&mut self, start: WaitingStart) {
        self.starts.push(start);
    }

    /// Makes the gRPC task answer each `Allocate` with a ticket, which it writes to this journal.
    pub(super) fn answer_with_tickets(&self, journal: Arc<TicketJournal>) {
        self.queue.tickets.send_replace(Some(journal));
    }

    /// The lock that lets only one worker write to the disk; the gRPC task and the owner share it.
    pub(super) fn disk(&self) -> &OneAtDisk {
        &self.queue.disk
    }
}
