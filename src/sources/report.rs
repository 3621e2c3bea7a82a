//! The way out of every eye: one bounded queue to the node's owner task.

use model::observation::{Observation, Trouble};
use tokio::sync::mpsc;

/// How many observations may wait. The owner takes them in within microseconds; sixteen GPUs report two each a second
/// and the sampler four, so 256 is some seven seconds of a stalled owner before the oldest kind of loss begins: a
/// report that does not fit is dropped and counted, because the next one carries newer truth anyway.
pub const QUEUE: usize = 256;

/// Where observations go.
#[derive(Clone, Debug)]
pub struct Reporter {
    queue: mpsc::Sender<Observation>,
}

impl Reporter {
    /// A queue of [`QUEUE`] observations and its two ends.
    #[must_use]
    pub fn channel() -> (Reporter, mpsc::Receiver<Observation>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        (Reporter { queue }, receiver)
    }

    /// Hands an observation over without waiting. `false` when it was dropped: the queue is full or its owner is gone.
    pub fn report(&self, observation: Observation) -> bool {
        self.queue.try_send(observation).is_ok()
    }

    /// Counts a trouble that was logged where it happened.
    pub fn trouble(&self, trouble: Trouble) {
        self.report(Observation::Trouble(trouble));
    }
}
