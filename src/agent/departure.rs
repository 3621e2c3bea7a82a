//! How an agent that reports to an extender stops. It asks the leader to bind no more pods to this node, and keeps
//! running until every bound pod has passed `Allocate`. If a pod needs GPUs while no agent runs, the kubelet fails the
//! pod and does not retry.
//!
//! ```text
//!   SIGTERM ──▶ stream: phase "leaving" ──▶ leader ──awaited pods──▶ stream ── all have passed Allocate ──▶ drain
//!                                                        20 s at most ─────────────────────────────────────▶ drain
//! ```

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a stopping agent waits for bound pods. The kubelet calls `Allocate` within seconds of the binding. If it
/// takes longer, the pod is waiting for something else, such as a volume.
const STAYS: Duration = Duration::from_secs(20);

/// Whether the agent may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeaveState {
    /// No stream is open, so no leader can be asked.
    #[default]
    NoStream,
    /// No stream is open, but a stream was open a moment ago: the agent looks for the next leader.
    Between,
    /// This number of bound pods has not reached `Allocate` yet; `None` if the leader has not answered.
    Waits(Option<usize>),
    /// No more pods are bound here, and every bound pod has reached `Allocate`.
    MayLeave,
}

/// The stopping agent's half of the channels.
#[derive(Debug)]
pub(crate) struct Departure {
    asks: watch::Sender<bool>,
    state: watch::Receiver<LeaveState>,
}

/// The stream's half of the channels.
#[derive(Debug)]
pub(crate) struct DepartureSeen {
    /// Whether the agent is about to stop.
    pub(crate) leaving: watch::Receiver<bool>,
    /// Whether the agent may stop.
    pub(crate) state: watch::Sender<LeaveState>,
}

/// Makes both halves.
pub(crate) fn departure() -> (Departure, DepartureSeen) {
    let (asks, leaving) = watch::channel(false);
    let (state, seen) = watch::channel(LeaveState::NoStream);
    (Departure { asks, state: seen }, DepartureSeen { leaving, state })
}

impl Departure {
    /// Waits until the agent may leave, for at most [`STAYS`]. Without an extender it may leave at once.
    pub(crate) async fn wait(&mut self) {
        if *self.state.borrow() == LeaveState::NoStream {
            return;
        }
        self.asks.send_replace(true);
        tracing::info!("asked the extender to bind no more pods to this node; bound pods may still get their GPUs");
        // If the stream breaks, it may reopen within this time.
        if timeout(STAYS, self.state.wait_for(|state| *state == LeaveState::MayLeave)).await.is_ok() {
            tracing::info!("all pods that are bound to this node have asked for their GPUs");
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
            assert!(!*seen.leaving.borrow(), "no leader could be asked");
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
