//! The health of the watches of pods and Nodes: since when a watch has not run, and how many objects are left out.
//!
//! A leader decides by what its watches show. While a watch does not run, the state gets old: pods are bound by others, claims end,
//! Nodes change. A short break costs nothing, because the API server refuses a second binding of a pod. After [`BLIND_AFTER`] the
//! leader is blind and binds no pod that requests GPUs. The same holds while pods that may hold GPUs are left out.

use apiserver::ApiError;
use model::backoff::Backoff;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The first of the growing pauses after failures of a list or a watch.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause. It is short, because the state of a leader without a watch gets old.
const LONGEST: Duration = Duration::from_secs(15);
/// A leader is blind when a watch has not run for this time. A new list of the largest cluster, or a restart of the API server,
/// takes less time.
const BLIND_AFTER: Duration = Duration::from_secs(60);

/// The state of one watch, for decisions, readiness and metrics.
#[derive(Debug)]
pub(super) struct WatchHealth {
    what: &'static str,
    state: Mutex<WatchState>,
    /// Versions of objects that could not be read.
    unreadable: AtomicU64,
    /// Objects beyond the bound.
    left_out: AtomicU32,
    /// The objects in `left_out` that may hold GPUs.
    holders_left_out: AtomicU32,
}

#[derive(Clone, Debug)]
struct WatchState {
    heard: Option<Instant>,
    broken: Option<Arc<str>>,
    /// Since when no watch has run; `None` while a watch runs.
    stopped: Option<Instant>,
    /// Whether the log already has a line that the watch has not run for too long.
    warned: bool,
    backoff: Backoff,
}

impl WatchHealth {
    pub(super) fn new(what: &'static str) -> Arc<WatchHealth> {
        let backoff = Backoff::new(FIRST, LONGEST);
        let state = WatchState { heard: None, broken: None, stopped: None, warned: false, backoff };
        Arc::new(WatchHealth {
            what,
            state: Mutex::new(state),
            unreadable: AtomicU64::new(0),
            left_out: AtomicU32::new(0),
            holders_left_out: AtomicU32::new(0),
        })
    }

    /// The kind of the objects.
    pub(super) fn what(&self) -> &'static str {
        self.what
    }

    /// Time since the server sent anything; `None` before the first message.
    pub(super) fn age(&self) -> Option<Duration> {
        self.state.lock().heard.map(|heard| heard.elapsed())
    }

    /// Why the server cannot be reached now; `None` if it can be reached.
    pub(super) fn broken(&self) -> Option<Arc<str>> {
        self.state.lock().broken.clone()
    }

    /// Why the state that this watch has shown is too old for the decisions of a leader; `None` if it is not.
    pub(super) fn blind(&self) -> Option<String> {
        let mut state = self.state.lock();
        let lasts = state.stopped?.elapsed();
        if lasts < BLIND_AFTER {
            return None;
        }
        let (what, seconds) = (self.what, lasts.as_secs());
        let sentence = format!(
            "the watch of {what} has not worked for {seconds} s, so it is not known which GPUs are free, and this extender binds \
             no pod that requests GPUs until the watch works again"
        );
        if !std::mem::replace(&mut state.warned, true) {
            tracing::warn!("{sentence}");
        }
        Some(sentence)
    }

    /// Number of versions of objects that could not be read.
    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Number of objects beyond the bound.
    pub(super) fn left_out(&self) -> u32 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// The server has sent something.
    pub(super) fn heard(&self) {
        self.state.lock().heard = Some(Instant::now());
    }

    /// The version of an object could not be read.
    pub(super) fn found_unreadable(&self) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
    }

    /// Why this watch does not show which GPUs are free, if there are more pods that may hold GPUs than are followed.
    pub(super) fn lacks_holders(&self) -> Option<String> {
        let pods = self.holders_left_out.load(Ordering::Relaxed);
        (pods > 0).then(|| {
            format!(
                "{pods} pods that may hold GPUs are not followed because there are too many, so it is not known which GPUs are free, \
                 and this extender binds no pod that requests GPUs until there are fewer"
            )
        })
    }

    /// Sets the number of objects beyond the bound, and how many of these may hold GPUs.
    pub(super) fn leaves_out(&self, objects: u32, holders: u32) {
        if self.holders_left_out.swap(holders, Ordering::Relaxed) == 0
            && let Some(why) = self.lacks_holders()
        {
            tracing::warn!("{why}");
        }
        if self.left_out.swap(objects, Ordering::Relaxed) == 0 && objects > 0 {
            let what = self.what;
            let first = if what == "pods" {
                "; those that hold no GPU are left out first, then those without a claim of which no container has run"
            } else {
                ""
            };
            tracing::warn!(objects, "there are more {what} than are followed{first}");
        }
    }

    /// No watch runs from now on.
    pub(super) fn stopped(&self) {
        self.state.lock().stopped.get_or_insert_with(Instant::now);
    }

    /// A list or watch failed. Returns the pause before the next try.
    pub(super) fn failed(&self, why: &ApiError) -> Duration {
        let pause = {
            let mut state = self.state.lock();
            if state.broken.replace(why.to_string().into()).is_none() {
                let what = self.what;
                tracing::warn!(error = %why, "the watch of {what} failed: {why}; decisions rest on what was seen before");
            }
            state.backoff.pause()
        };
        // `blind` logs a warning if the watch has been stopped for too long.
        let _ = self.blind();
        pause
    }

    /// The watch works.
    pub(super) fn works(&self) {
        let mut state = self.state.lock();
        state.backoff.reset();
        (state.stopped, state.warned) = (None, false);
        if state.broken.take().is_some() {
            let what = self.what;
            tracing::info!("the watch of {what} works again");
        }
    }
}

/// Why the state that the watches have shown is too old for the decisions of a leader, or has gaps; `None` if it is good.
pub(super) fn blind(watches: &[Arc<WatchHealth>]) -> Option<String> {
    watches.iter().find_map(|watch| watch.blind().or_else(|| watch.lacks_holders()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_not_run_for_a_minute_makes_a_leader_blind_until_it_works() {
        let watches = [WatchHealth::new("pods"), WatchHealth::new("nodes")];
        assert_eq!(blind(&watches), None, "a follower that has not begun is not a leader");
        watches[1].stopped();
        advance(Duration::from_secs(59)).await;
        watches[1].stopped();
        assert_eq!(blind(&watches), None);
        advance(Duration::from_secs(1)).await;
        let why = blind(&watches).unwrap();
        assert!(why.starts_with("the watch of nodes has not worked for 60 s, so it is not known"), "{why}");
        watches[1].works();
        assert_eq!(blind(&watches), None);
        advance(Duration::from_secs(600)).await;
        assert_eq!(blind(&watches), None, "a quiet watch works");
    }

    #[test]
    fn a_leader_is_blind_while_pods_that_may_hold_gpus_are_left_out() {
        let watches = [WatchHealth::new("nodes"), WatchHealth::new("pods")];
        watches[1].leaves_out(7, 0);
        assert_eq!((blind(&watches), watches[1].left_out()), (None, 7));
        watches[1].leaves_out(9, 2);
        let why = blind(&watches).unwrap();
        assert!(why.starts_with("2 pods that may hold GPUs are not followed") && watches[1].blind().is_none(), "{why}");
        watches[1].leaves_out(7, 0);
        assert_eq!(blind(&watches), None);
    }
}
