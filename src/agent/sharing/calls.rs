//! Receives the kubelet's calls from the gRPC task, and keeps the calls that wait for an answer.

use decide::call_wait::{AllocateWait, StartWait};
use effects::plugin::{AllocateAnswer, CallRefused, OneAtDisk, PluginCall, PluginCallReceiver, TicketJournal};
use model::time::Monotonic;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The most calls that are taken from the queue at once and judged against one reading of the checkpoint.
pub(super) const BATCH: usize = 64;
/// The most calls of `Allocate` that wait at a time; the kubelet makes one after the other.
const MAX_ALLOCATIONS: usize = 64;
/// The most starts that wait at a time. The kubelet has at most one start under way for each pod of the node.
const MAX_STARTS: usize = 1024;

/// A call of `Allocate`.
#[derive(Debug)]
pub(super) struct WaitingAllocate {
    /// The ids of the slots.
    pub ids: Vec<Arc<str>>,
    /// For how long it waits.
    pub wait: AllocateWait,
    /// A checkpoint that was read before this time does not count: the kubelet has written since, or it had no answer.
    pub after: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>,
}

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
    allocations: Vec<WaitingAllocate>,
    starts: Vec<WaitingStart>,
}

impl KubeletCalls {
    /// No call waits yet.
    pub(super) fn new(queue: PluginCallReceiver) -> KubeletCalls {
        KubeletCalls { queue, allocations: Vec::new(), starts: Vec::new() }
    }

    /// Waits for calls, and puts at most [`BATCH`] into `batch`. Returns how many came: none when there is no caller any
    /// more.
    pub(super) async fn receive(&mut self, batch: &mut Vec<PluginCall>) -> usize {
        self.queue.calls.recv_many(batch, BATCH).await
    }

    /// Queues an `Allocate`; refuses it if too many wait.
    pub(super) fn allocate(
        &mut self,
        ids: Vec<Arc<str>>,
        reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>,
        now: Monotonic,
    ) {
        if self.allocations.len() >= MAX_ALLOCATIONS {
            let _ = reply.send(Err(CallRefused(format!("{MAX_ALLOCATIONS} allocations wait already"))));
        } else {
            let wait = AllocateWait::new(now);
            self.allocations.push(WaitingAllocate { ids, wait, after: Instant::now(), reply });
        }
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

    /// Whether a call of either kind waits.
    pub(super) fn any_wait(&self) -> bool {
        !self.starts.is_empty() || !self.allocations.is_empty()
    }

    /// Whether an `Allocate` waits.
    pub(super) fn allocations_wait(&self) -> bool {
        !self.allocations.is_empty()
    }

    /// Takes the waiting calls of `Allocate`; [`KubeletCalls::allocate_waits`] returns each that waits on.
    pub(super) fn take_allocations(&mut self) -> Vec<WaitingAllocate> {
        std::mem::take(&mut self.allocations)
    }

    /// This `Allocate` waits on.
    pub(super) fn allocate_waits(&mut self, call: WaitingAllocate) {
        self.allocations.push(call);
    }

    /// Takes the waiting starts; [`KubeletCalls::start_waits`] returns each that waits on.
    pub(super) fn take_starts(&mut self) -> Vec<WaitingStart> {
        std::mem::take(&mut self.starts)
    }

    /// This start waits on.
    pub(super) fn start_waits(&mut self, start: WaitingStart) {
        self.starts.push(start);
    }

    /// Makes the gRPC task answer each `Allocate` with a ticket at once and write that to this journal, or pass the call
    /// to the owner. Returns whether it answered with tickets before.
    pub(super) fn answer_with_tickets(&self, journal: Option<Arc<TicketJournal>>) -> bool {
        self.queue.tickets.send_replace(journal).is_some()
    }

    /// The lock that lets only one worker write to the disk; the gRPC task and the owner share it.
    pub(super) fn disk(&self) -> &OneAtDisk {
        &self.queue.disk
    }
}
