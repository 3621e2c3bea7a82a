//! Carries observations from every source to the owner of the node's state.
//!
//! ```text
//!   facts, events ──▶ a list; a newer fact takes the place of the older ──┐
//!                                                                         ├──▶ Observations ──▶ owner
//!   samples ──▶ a bounded queue; what does not fit is dropped ────────────┘
//! ```
//!
//! Facts and events are delivered before samples. A fact is reported only when it changes, so a lost one would stay
//! unknown until the agent is restarted.
//!
//! What must never happen here: a fact is lost; a source waits for the owner; a list or queue without a bound.

use model::observation::{DeliveryClass, ErrorCounter, Observation};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{Notify, mpsc};

/// Most samples that may wait. The owner takes one within microseconds. Sixteen GPUs report two samples each a second
/// and the sampler four, so 256 are about seven seconds of a stalled owner. After that a new sample is dropped and
/// counted; the next one is newer anyway.
pub const QUEUE: usize = 256;
/// Most events that may wait. A GPU that fails reports some tens of errors, so this is every GPU of a machine failing
/// twice while the owner is stalled. The list also holds one fact of each kind, GPU and source.
const MAX_EVENTS: usize = 4096;

/// The sending end: sources report here.
#[derive(Clone, Debug)]
pub struct Reporter {
    samples: mpsc::Sender<Observation>,
    kept: Arc<Kept>,
}

/// The receiving end, for the owner.
#[derive(Debug)]
pub struct Observations {
    samples: mpsc::Receiver<Observation>,
    kept: Arc<Kept>,
}

/// Facts and events in the order in which they were reported.
#[derive(Debug, Default)]
struct Kept {
    list: Mutex<List>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct List {
    waiting: VecDeque<Observation>,
    /// The number of events among them.
    events: usize,
}

impl Kept {
    fn take(&self) -> Option<Observation> {
        let mut list = self.list.lock();
        let first = list.waiting.pop_front()?;
        list.events -= usize::from(first.delivery() == DeliveryClass::Event);
        Some(first)
    }

    fn put_fact(&self, fact: Observation) {
        let mut list = self.list.lock();
        list.waiting.retain(|older| !fact.replaces(older));
        list.waiting.push_back(fact);
        drop(list);
        self.arrived.notify_one();
    }

    fn put_event(&self, event: Observation) -> bool {
        let mut list = self.list.lock();
        if list.events >= MAX_EVENTS {
            return false;
        }
        list.events += 1;
        list.waiting.push_back(event);
        drop(list);
        self.arrived.notify_one();
        true
    }
}

impl Reporter {
    /// Makes both ends.
    #[must_use]
    pub fn channel() -> (Reporter, Observations) {
        let (samples, receiver) = mpsc::channel(QUEUE);
        let kept = Arc::<Kept>::default();
        (Reporter { samples, kept: Arc::clone(&kept) }, Observations { samples: receiver, kept })
    }

    /// Reports an observation without waiting. Returns `false` if a sample or an event was dropped, because too many
    /// wait or the owner is gone. A fact is never dropped.
    pub fn report(&self, observation: Observation) -> bool {
        match observation.delivery() {
            DeliveryClass::Sample => self.samples.try_send(observation).is_ok(),
            DeliveryClass::Event => self.kept.put_event(observation),
            DeliveryClass::Fact => {
                self.kept.put_fact(observation);
                true
            }
        }
    }

    /// Counts an error that was logged where it happened.
    pub fn trouble(&self, trouble: ErrorCounter) {
        self.report(Observation::Trouble(trouble));
    }
}

impl Observations {
    /// The next observation; `None` when every [`Reporter`] is dropped and everything has been taken. A cancelled call
    /// loses nothing.
    pub async fn recv(&mut self) -> Option<Observation> {
        loop {
            if let Some(observation) = self.kept.take() {
                return Some(observation);
            }
            tokio::select! {
                biased;
                () = self.kept.arrived.notified() => {}
                // A fact may have been reported just before the last reporter was dropped.
                sample = self.samples.recv() => return sample.or_else(|| self.kept.take()),
            }
        }
    }

    /// Waits for one observation and takes up to `most`. Returns how many, or 0 where [`Observations::recv`] returns
    /// `None`. A cancelled call loses nothing.
    pub async fn recv_many(&mut self, taken: &mut Vec<Observation>, most: usize) -> usize {
        let Some(first) = self.recv().await else { return 0 };
        taken.push(first);
        let rest = std::iter::from_fn(|| self.try_recv().ok()).take(most.saturating_sub(1));
        let before = taken.len();
        taken.extend(rest);
        1 + taken.len() - before
    }

    /// The next observation, if there is one now.
    ///
    /// # Errors
    /// When there is none yet, or none will come.
    pub fn try_recv(&mut self) -> Result<Observation, TryRecvError> {
        match self.kept.take() {
            Some(observation) => Ok(observation),
            None => self.samples.try_recv(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::cgroup::NameSource;
    use model::id::GpuUuid;
    use model::observation::GpuSourceState;

    fn sample() -> Observation {
        Observation::GpuSample(GpuUuid::parse("GPU-1").unwrap(), Box::default())
    }

    fn names(source: NameSource) -> Observation {
        Observation::Names { source, names: Vec::new() }
    }

    /// Regression: sixteen GPUs whose calls all failed filled the queue, and the list of GPUs that followed was lost.
    #[tokio::test]
    async fn facts_and_events_reach_an_owner_that_has_no_time_for_samples() {
        let (reporter, mut observations) = Reporter::channel();
        let sent =
            std::iter::repeat_with(sample).take(QUEUE * 2).filter(|sample| reporter.report(sample.clone())).count();
        assert_eq!(sent, QUEUE, "samples may be dropped");
        assert!(reporter.report(Observation::Gpus(Vec::new())));
        assert!(reporter.report(Observation::GpuEventsHang(true)));
        reporter.trouble(ErrorCounter::NvmlFailed);
        assert!(matches!(observations.recv().await, Some(Observation::Gpus(_))));
        assert!(matches!(observations.recv().await, Some(Observation::GpuEventsHang(true))));
        assert!(matches!(observations.recv().await, Some(Observation::Trouble(_))));
        assert!(matches!(observations.recv().await, Some(Observation::GpuSample(..))));
    }

    #[tokio::test]
    async fn a_newer_fact_takes_the_place_of_the_older_of_its_kind_gpu_and_source() {
        let (reporter, mut observations) = Reporter::channel();
        let jobs = |gpu: &str| Observation::SlurmJobs(GpuUuid::parse(gpu).unwrap(), Vec::new());
        for fact in [
            Observation::GpuSource(GpuSourceState::Starting),
            names(NameSource::Cri),
            names(NameSource::LogLinks),
            jobs("GPU-1"),
            jobs("GPU-2"),
            Observation::GpuEventsFail(true),
            Observation::GpuSource(GpuSourceState::Hanging),
            names(NameSource::Cri),
            jobs("GPU-1"),
        ] {
            assert!(reporter.report(fact));
        }
        drop(reporter);
        let mut taken = Vec::new();
        assert_eq!(observations.recv_many(&mut taken, 100).await, 6);
        assert!(matches!(taken[3], Observation::GpuSource(GpuSourceState::Hanging)), "{taken:?}");
        assert!(matches!(taken[4], Observation::Names { source: NameSource::Cri, .. }), "{taken:?}");
        assert!(observations.recv().await.is_none(), "nobody reports any more");
    }

    #[tokio::test]
    async fn events_are_all_kept_in_order_up_to_a_bound() {
        let (reporter, mut observations) = Reporter::channel();
        let sent =
            (0..MAX_EVENTS + 10).filter(|_| reporter.report(Observation::Trouble(ErrorCounter::NvmlFailed))).count();
        assert_eq!(sent, MAX_EVENTS);
        assert!(reporter.report(Observation::Gpus(Vec::new())), "a fact has room all the same");
        let mut taken = Vec::new();
        assert_eq!(observations.recv_many(&mut taken, usize::MAX).await, MAX_EVENTS + 1);
        assert!(matches!(taken.last(), Some(Observation::Gpus(_))));
    }

    #[tokio::test]
    async fn a_waiting_thread_is_woken_by_a_fact_and_by_a_sample() {
        let (reporter, mut observations) = Reporter::channel();
        for observation in [Observation::Gpus(Vec::new()), sample()] {
            let waits = async { observations.recv().await };
            let (taken, ()) = tokio::join!(waits, async {
                tokio::task::yield_now().await;
                reporter.report(observation);
            });
            assert!(taken.is_some());
        }
    }
}
