//! Calls of kubelet that wait for their answers.

use effects::plugin::{AllocateAnswer, CallRefused};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A call of `Allocate`.
#[derive(Debug)]
pub(crate) struct WaitingAllocate {
    /// The ids.
    pub ids: Vec<Arc<str>>,
    /// Since when.
    pub since: Instant,
    /// The checkpoint that were read before this do not count: kubelet has written since, or they were looked at in vain.
    pub after: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<AllocateAnswer, CallRefused>>,
}

/// A call of `PreStartContainer`.
#[derive(Debug)]
pub(crate) struct WaitingStart {
    /// The ids.
    pub ids: Vec<Arc<str>>,
    /// Since when.
    pub since: Instant,
    /// Whether it was judged before and had to wait.
    pub waited: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<(), CallRefused>>,
}
