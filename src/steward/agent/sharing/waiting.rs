//! A call of `Allocate` that waits for its answer.

use effects::plugin::{Answer, Refused};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The call.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// The ids.
    pub ids: Vec<Arc<str>>,
    /// Since when.
    pub since: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Answer, Refused>>,
}
