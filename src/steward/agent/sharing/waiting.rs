//! Calls of the kubelet that wait for their answers.

use effects::plugin::{AllocateAnswer, CallRefused};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A call of `Allocate`.
#[derive(Debug)]
pub(crate) struct WaitingAllocate {
    /// The ids of the slots.
    pub ids: Vec<Arc<str>>,
    /// The time of the call.
    pub since: Instant,
    /// A checkpoint that was read before this time does not count: the kubelet has written since, or it had no answer.
    pub after: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>,
}

/// A call of `PreStartContainer`.
#[derive(Debug)]
pub(crate) struct WaitingStart {
    /// The ids of the slots.
    pub ids: Vec<Arc<str>>,
    /// The time of the call.
    pub since: Instant,
    /// Whether it was judged before and had to wait.
    pub waited: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<(), CallRefused>>,
}
