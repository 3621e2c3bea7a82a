//! Receives the kubelet's calls from the gRPC task, and keeps the calls that wait for an answer.

use decide::call_wait::StartWait;
use effects::plugin::{CallRefused, OneAtDisk, PluginCall, PluginCallReceiver, TicketJournal};
use model::time::Monotonic;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of calls that are taken from the queue at once and decided with one reading of the checkpoint.
pub(super) const BATCH: usize = 64;
/// Maximum number of starts that wait at a time. The kubelet runs at most one start for each pod of the node.
const MAX_STARTS: usize = 1024;

/// A call of `PreStartContainer`.
#[derive(Debug)]
pub(super) struct WaitingStart {
    /// The ids of the container's slots.
    pub ids: Vec<Arc<str>>,
    /// How long the call has waited.
    pub wait: StartWait,
    /// Sends the answer to the gRPC task.
    pub reply: oneshot::Sender<Result<(), CallRefused>>,
}

/// The queue of calls, and the calls that wait.
#[derive(Debug)]
pub(super) struct KubeletCalls {
    queue: PluginCallReceiver,
    starts: Vec<WaitingStart>,
}

impl KubeletCalls {
    /// Starts without waiting calls.
    pub(super) fn new(queue: PluginCallReceiver) -> KubeletCalls {
        KubeletCalls { queue, starts: Vec::new() }
    }

    /// Waits for calls, and puts at most [`BATCH`] into `batch`. Returns their number: 0 once the gRPC task has ended.
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

    /// Takes all waiting starts. The caller returns each start that must keep waiting with
    /// [`KubeletCalls::start_waits`].
    pub(super) fn take_starts(&mut self) -> Vec<WaitingStart> {
        std::mem::take(&mut self.starts)
    }

    /// Takes back a start that must keep waiting.
    pub(super) fn start_waits(&mut self, start: WaitingStart) {
        self.starts.push(start);
    }

    /// Makes the gRPC task answer each `Allocate` with a ticket, which it writes to this journal.
    pub(super) fn answer_with_tickets(&self, journal: Arc<TicketJournal>) {
        self.queue.tickets.send_replace(Some(journal));
    }

    /// The lock that lets only one worker write to the disk. The gRPC task and the sharing task share it.
    pub(super) fn disk(&self) -> &OneAtDisk {
        &self.queue.disk
    }
}
