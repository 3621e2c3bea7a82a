//! Counts the kubelet's calls that wait for an answer, so that the agent can answer them before it ends.
//!
//! The kubelet never retries a failed `Allocate` or `GetPreferredAllocation`: the pod fails. It retries a failed
//! `PreStartContainer`.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// How long the agent waits at its end for starts. Most take milliseconds; the kubelet retries the others.
const STARTS_WITHIN: Duration = Duration::from_secs(1);
/// How long the agent waits at its end for admission calls. An `Allocate` that arrived before this agent took over is
/// answered only after the takeover.
const ADMISSIONS_WITHIN: Duration = Duration::from_millis(4500);
/// The agent ends only if no new call arrives within this time after the last answer: the kubelet sends the call for
/// the next container of a pod right after the answer for the previous container.
const QUIET: Duration = Duration::from_millis(5);

/// The kind of a call: it determines what happens if the call is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The pod fails for good.
    Admission,
    /// The kubelet retries the call.
    Start,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    admissions: usize,
    starts: usize,
}

/// The number of calls under way, by kind.
#[derive(Clone, Debug)]
pub(super) struct UnderWay(Arc<watch::Sender<Counts>>);

impl Default for UnderWay {
    fn default() -> UnderWay {
        UnderWay(Arc::new(watch::channel(Counts::default()).0))
    }
}

/// Counts one call as under way while this value exists.
#[derive(Debug)]
pub(super) struct CallInProgress(UnderWay, Kind);

impl UnderWay {
    pub(super) fn begin(&self, kind: Kind) -> CallInProgress {
        self.0.send_modify(|counts| *counts.of(kind) += 1);
        CallInProgress(self.clone(), kind)
    }

    /// Waits until no call is under way, for a bounded time. Returns whether every admission was answered.
    pub(super) async fn answered(&self) -> bool {
        let began = Instant::now();
        let mut counts = self.0.subscribe();
        loop {
            let none = counts.wait_for(|counts| *counts == Counts::default());
            let late = timeout_at(began + STARTS_WITHIN, none).await.is_err();
            let admitted = counts.wait_for(|counts| counts.admissions == 0);
            if timeout_at(began + ADMISSIONS_WITHIN, admitted).await.is_err() {
                return false;
            }
            sleep(QUIET).await;
            let new_calls = counts.has_changed().unwrap_or(false);
            let admissions = counts.borrow_and_update().admissions;
            if admissions == 0 && (late || !new_calls) {
                return true;
            }
        }
    }
}

impl Counts {
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Admission => &mut self.admissions,
            Kind::Start => &mut self.starts,
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| {
            let count = counts.of(self.1);
            *count = count.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_stop_waits_for_admissions_and_only_briefly_for_starts() {
        let calls = UnderWay::default();
        assert!(calls.answered().await, "nothing is under way");
        let (admission, start) = (calls.begin(Kind::Admission), calls.begin(Kind::Start));
        let waits = tokio::spawn({
            let calls = calls.clone();
            async move { calls.answered().await }
        });
        sleep(STARTS_WITHIN * 2).await;
        assert!(!waits.is_finished(), "an admission is under way");
        drop(admission);
        assert!(waits.await.unwrap(), "the kubelet retries a start that waits");
        drop(start);
        let _never = calls.begin(Kind::Admission);
        let end = tokio::time::timeout(ADMISSIONS_WITHIN * 10, calls.answered());
        assert_eq!(end.await, Ok(false), "the wait is bounded");
    }
}
