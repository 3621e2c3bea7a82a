//! Calls of kubelet that wait for their answers.

use effects::plugin::{Answer, Refused};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A call of `Allocate`.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// The ids.
    pub ids: Vec<Arc<str>>,
    /// Since when.
    pub since: Instant,
    /// Books that were read before this do not count: kubelet has written since, or they were looked at in vain.
    pub after: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Answer, Refused>>,
}

/// A call of `PreStartContainer`.
#[derive(Debug)]
pub(crate) struct Start {
    /// The ids.
    pub ids: Vec<Arc<str>>,
    /// Since when.
    pub since: Instant,
    /// Whether it was judged before and had to wait.
    pub waited: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<(), Refused>>,
}
