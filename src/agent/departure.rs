//! The end of an agent that reports to an extender: it asks the leader to bind nothing more to this node, and stays until each
//! pod that is bound has passed `Allocate`. A pod that finds no agent fails at the kubelet's door, and is not tried again.
//!
//! ```text
//!   SIGTERM ──asks──▶ stream: phase "leaving" ──▶ leader ──awaited pods──▶ stream ── none has to ask any more ──▶ drain
//!                                                              20 s at most ─────────────────────────────────────▶ drain
//! ```

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long the agent stays for pods that are bound. The kubelet calls `Allocate` within seconds of the binding; a pod that
/// waits longer waits for something else, such as a volume.
const STAYS: Duration = Duration::from_secs(20);

/// Whether the agent may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeaveState {
    /// No stream is open, so no leader can be asked.
    #[default]
    NoStream,
    /// No stream is open, and one was a moment ago: the next leader is being looked for.
    Between,
    /// The leader has not answered, or pods have to ask yet: so many, once that is known.
    Waits(Option<usize>),
    /// Nothing more is bound here, and no pod has to ask.
    MayLeave,
}

/// The side of the agent's end.
#[derive(Debug)]
pub(crate) struct Departure {
    asks: watch::Sender<bool>,
    state: watch::Receiver<LeaveState>,
}

/// The side of the stream.
#[derive(Debug)]
pub(crate) struct DepartureSeen {
    /// Whether the agent is about to stop.
    pub(crate) leaving: watch::Receiver<bool>,
    /// Whether it may.
    pub(crate) state: watch::Sender<LeaveState>,
}

/// Both sides.
pub(crate) fn departure() -> (Departure, DepartureSeen) {
    let (asks, leaving) = watch::channel(false);
    let (state, seen) = watch::channel(LeaveState::NoStream);
    (Departure { asks, state: seen }, DepartureSeen { leaving, state })
}

impl Departure {
    /// Waits until the agent may leave, for at most [`STAYS`]. Where no extender is, it may leave at once.
    pub(crate) async fn wait(&mut self) {
        if *self.state.borrow() == LeaveState::NoStream {
            return;
        }
        self.asks.send_replace(true);
        tracing::info!("asked the extender to bind nothing more to this node; bound pods may still get their GPUs");
        // A stream that breaks may come back within the time.
        if timeout(STAYS, self.state.wait_for(|state| *state == LeaveState::MayLeave)).await.is_ok() {
            tracing::info!("no pod that is bound to this node has to ask for GPUs any more");
            return;
        }
        let seconds = STAYS.as_secs();
        match *self.state.borrow() {
            LeaveState::Waits(Some(pods)) => tracing::warn!(
                pods,
                "{pods} pods that are bound to this node have not asked for their GPUs within {seconds} s; those that ask \
                 before the next agent runs may fail with UnexpectedAdmissionError"
            ),
            _ => tracing::warn!("the extender has not answered within {seconds} s; the agent stops"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serve::lifecycle::run_once;
    use tokio::time::Instant;

    #[test]
    fn an_agent_without_a_stream_leaves_at_once_and_one_with_it_when_the_leader_says_so() {
        run_once(async {
            let (mut departure, seen) = departure();
            departure.wait().await;
            assert!(!*seen.leaving.borrow(), "nobody could be asked");
            seen.state.send_replace(LeaveState::Waits(None));
            let begun = Instant::now();
            let mut leaving = seen.leaving.clone();
            let leader = async {
                leaving.wait_for(|leaving| *leaving).await.unwrap();
                seen.state.send_replace(LeaveState::NoStream);
                seen.state.send_replace(LeaveState::Waits(Some(1)));
                tokio::time::sleep(Duration::from_millis(50)).await;
                seen.state.send_replace(LeaveState::MayLeave);
            };
            tokio::join!(departure.wait(), leader);
            assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < STAYS);
        })
        .unwrap();
    }
}
