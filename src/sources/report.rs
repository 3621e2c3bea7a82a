//! Carries observations from every source to the owner of the node's state.
//!
//! ```text
//!   facts   ──▶ a list; a newer fact removes the older one ─────────┐
//!   events  ──▶ the same list, up to a bound ───────────────────────┼──▶ Observations ──▶ owner
//!   samples ─┬▶ a bounded queue; what does not fit is dropped ──────┘
//!            └▶ a series for each subscriber (`series`)
//! ```
//!
//! Facts and events are delivered before samples, in the order in which they were reported. A fact is reported only
//! when it changes, so a lost fact would stay unknown until the agent is restarted. Dropped samples and events are
//! counted, and the owner gets the count first of all.
//!
//! What must never happen here: a fact is lost; a source waits for the owner; a list or queue without a bound.

use crate::series::{Series, Subscription};
use model::cgroup::{CgroupReport, MAX_CGROUPS, MAX_POD_CGROUPS};
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::observation::{CgroupPass, ErrorCounter, Fact, Observation, Sample, SourceEvent};
use model::utilization::{UtilizationSample, UtilizationSamples};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{Notify, mpsc};

/// Maximum number of samples that may wait. The owner takes a sample within microseconds. Sixteen GPUs report two
/// samples each a second and the sampler four, so 256 are about seven seconds of a stalled owner. After that a new
/// sample is dropped and counted; the next sample is newer anyway.
pub const QUEUE: usize = 256;
/// Maximum number of events that may wait. A GPU that fails reports some tens of errors, so this is every GPU of a
/// machine failing twice while the owner is stalled. The list also holds one fact of each kind, GPU and source.
const MAX_EVENTS: usize = 4096;
/// Maximum number of samples of GPUs that wait for one subscriber: sixteen GPUs, once a second, for a minute.
const GPU_SAMPLES: usize = 16 * 60;
/// Maximum number of readings of cgroups that wait for one subscriber: a node of 110 pods (the kubelet's default) with
/// two containers each has 330 cgroups, once a second for half a minute. It is also more than one pass over the largest
/// node.
const CGROUP_READINGS: usize = 330 * 30;
const _: () = assert!(CGROUP_READINGS >= MAX_CGROUPS + MAX_POD_CGROUPS, "a whole pass has room");
/// Maximum number of NVML's own samples of utilisation that wait for one subscriber: sixteen GPUs, six a second, for a minute.
const UTILIZATION_SAMPLES: usize = 16 * 6 * 60;
/// These bounds in bytes, without the data behind the readings' pointers: a subscriber that never reads must not double
/// the memory of the agent.
const _: () = assert!(CGROUP_READINGS * size_of::<CgroupReport>() <= 8 << 20);
const _: () = assert!(GPU_SAMPLES * size_of::<GpuSample>() <= 4 << 20);
const _: () = assert!(UTILIZATION_SAMPLES * size_of::<UtilizationSample>() <= 1 << 20);

/// The sending end: sources report here. No call waits.
#[derive(Clone, Debug)]
pub struct Reporter {
    samples: mpsc::Sender<Sample>,
    kept: Arc<Kept>,
    gpus: Arc<Series<(GpuUuid, GpuSample)>>,
    utilization: Arc<Series<UtilizationSamples>>,
    cgroups: Arc<Series<CgroupPass>>,
}

/// The receiving end, for the owner.
#[derive(Debug)]
pub struct Observations {
    samples: mpsc::Receiver<Sample>,
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
    waiting: VecDeque<Waiting>,
    /// The number of events in the queue.
    events: usize,
    /// Samples and events that were dropped since the owner got their number.
    dropped: u64,
}

/// An entry of the list.
#[derive(Debug)]
enum Waiting {
    Fact(Fact),
    Event(SourceEvent),
}

impl Kept {
    fn take(&self) -> Option<Observation> {
        let mut list = self.list.lock();
        match std::mem::take(&mut list.dropped) {
            0 => {}
            number => return Some(SourceEvent::Dropped(number).into()),
        }
        Some(match list.waiting.pop_front()? {
            Waiting::Fact(fact) => fact.into(),
            Waiting::Event(event) => {
                list.events -= 1;
                event.into()
            }
        })
    }

    fn put_fact(&self, fact: Fact) {
        let mut list = self.list.lock();
        list.waiting.retain(|older| !matches!(older, Waiting::Fact(older) if fact.replaces(older)));
        list.waiting.push_back(Waiting::Fact(fact));
        drop(list);
        self.arrived.notify_one();
    }

    fn put_event(&self, event: SourceEvent) {
        let mut list = self.list.lock();
        if list.events < MAX_EVENTS {
            list.events += 1;
            list.waiting.push_back(Waiting::Event(event));
        } else {
            list.dropped += 1;
        }
        drop(list);
        self.arrived.notify_one();
    }

    fn count_dropped(&self) {
        self.list.lock().dropped += 1;
        self.arrived.notify_one();
    }
}

impl Reporter {
    /// Makes both ends.
    #[must_use]
    pub fn channel() -> (Reporter, Observations) {
        let (samples, receiver) = mpsc::channel(QUEUE);
        let kept = Arc::<Kept>::default();
        let (gpus, utilization) = (Series::new(GPU_SAMPLES), Series::new(UTILIZATION_SAMPLES));
        let cgroups = Series::new(CGROUP_READINGS);
        let reporter = Reporter { samples, kept: Arc::clone(&kept), gpus, utilization, cgroups };
        (reporter, Observations { samples: receiver, kept })
    }

    /// Reports a state that has changed. It is never dropped.
    pub fn fact(&self, fact: Fact) {
        self.kept.put_fact(fact);
    }

    /// Reports something that happened. It is dropped and counted if too many events wait.
    pub fn event(&self, event: SourceEvent) {
        self.kept.put_event(event);
    }

    /// Reports a reading. It is dropped and counted if too many samples wait.
    pub fn sample(&self, sample: Sample) {
        match &sample {
            Sample::Gpu(gpu, sample) => self.gpus.record(1, || (gpu.clone(), GpuSample::clone(sample))),
            Sample::Cgroups(pass) => self.cgroups.record(pass.reports.len().max(1), || pass.clone()),
            Sample::GpuProcesses(_) | Sample::Host(_) | Sample::Processes(_) => {}
        }
        // Without an owner the agent ends, so there is nothing to count.
        if let Err(TrySendError::Full(_)) = self.samples.try_send(sample) {
            self.kept.count_dropped();
        }
    }

    /// Reports `count` of NVML's own samples of utilisation. Only subscribers get them; without one they are not made.
    pub fn utilization(&self, count: usize, samples: impl FnOnce() -> UtilizationSamples) {
        self.utilization.record(count.max(1), samples);
    }

    /// Subscribes to NVML's own samples of utilisation of all GPUs. `None` while [`crate::series::MAX_SUBSCRIPTIONS`] exist.
    #[must_use]
    pub fn utilization_series(&self) -> Option<Subscription<UtilizationSamples>> {
        self.utilization.subscribe()
    }

    /// Subscribes to the samples of all GPUs. `None` while [`crate::series::MAX_SUBSCRIPTIONS`] exist.
    #[must_use]
    pub fn gpu_series(&self) -> Option<Subscription<(GpuUuid, GpuSample)>> {
        self.gpus.subscribe()
    }

    /// Subscribes to the passes over pods and containers. `None` while [`crate::series::MAX_SUBSCRIPTIONS`] exist.
    #[must_use]
    pub fn cgroup_series(&self) -> Option<Subscription<CgroupPass>> {
        self.cgroups.subscribe()
    }

    /// Counts an error that was logged where it happened.
    pub fn trouble(&self, trouble: ErrorCounter) {
        self.event(SourceEvent::Trouble(trouble));
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
                sample = self.samples.recv() => return sample.map(Observation::from).or_else(|| self.kept.take()),
            }
        }
    }

    /// Waits for one observation and takes up to `most`. Returns how many, or 0 if [`Observations::recv`] returns
    /// `None`. A cancelled call loses nothing.
    pub async fn recv_many(&mut self, taken: &mut Vec<Observation>, most: usize) -> usize {
        let Some(first) = self.recv().await else { return 0 };
        taken.push(first);
        let rest = std::iter::from_fn(|| self.try_recv().ok()).take(most.saturating_sub(1));
        let before = taken.len();
        taken.extend(rest);
        1 + taken.len() - before
    }

    /// The next observation, if an observation waits.
    ///
    /// # Errors
    /// When no observation waits, or no more will come.
    pub fn try_recv(&mut self) -> Result<Observation, TryRecvError> {
        match self.kept.take() {
            Some(observation) => Ok(observation),
            None => self.samples.try_recv().map(Observation::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Reading;
    use model::cgroup::NameSource;
    use model::id::GpuUuid;
    use model::observation::GpuSourceState;
    use model::time::Monotonic;
    use model::unit::Count;

    fn sample() -> Sample {
        Sample::Gpu(GpuUuid::parse("GPU-1").unwrap(), Box::default())
    }

    fn names(source: NameSource) -> Fact {
        Fact::Names { source, names: Vec::new() }
    }

    async fn next(observations: &mut Observations) -> Observation {
        observations.recv().await.unwrap()
    }

    /// Regression: sixteen GPUs whose calls all failed filled the queue, and the next list of GPUs was lost.
    #[tokio::test]
    async fn facts_and_events_reach_an_owner_that_has_no_time_for_samples() {
        let (reporter, mut observations) = Reporter::channel();
        (0..QUEUE * 2).for_each(|_| reporter.sample(sample()));
        reporter.fact(Fact::Gpus(Vec::new()));
        reporter.fact(Fact::GpuEventsHang(true));
        reporter.trouble(ErrorCounter::NvmlFailed);
        let Observation::Event(SourceEvent::Dropped(dropped)) = next(&mut observations).await else { panic!() };
        assert_eq!(dropped, 256, "samples may be dropped, and are counted");
        assert!(matches!(next(&mut observations).await, Observation::Fact(Fact::Gpus(_))));
        assert!(matches!(next(&mut observations).await, Observation::Fact(Fact::GpuEventsHang(true))));
        assert!(matches!(next(&mut observations).await, Observation::Event(SourceEvent::Trouble(_))));
        assert!(matches!(next(&mut observations).await, Observation::Sample(Sample::Gpu(..))));
    }

    #[tokio::test]
    async fn a_newer_fact_takes_the_place_of_the_older_of_its_kind_and_source() {
        let (reporter, mut observations) = Reporter::channel();
        for fact in [
            Fact::GpuSource(GpuSourceState::Starting),
            names(NameSource::Cri),
            names(NameSource::LogLinks),
            Fact::GpuEventsFail(true),
            Fact::GpuSource(GpuSourceState::Hanging),
            names(NameSource::Cri),
        ] {
            reporter.fact(fact);
        }
        drop(reporter);
        let mut taken = Vec::new();
        assert_eq!(observations.recv_many(&mut taken, 100).await, 4);
        assert!(matches!(taken[2], Observation::Fact(Fact::GpuSource(GpuSourceState::Hanging))), "{taken:?}");
        assert!(matches!(taken[3], Observation::Fact(Fact::Names { source: NameSource::Cri, .. })), "{taken:?}");
        assert!(observations.recv().await.is_none(), "nobody reports any more");
    }

    #[tokio::test]
    async fn events_are_all_kept_in_order_up_to_a_bound_and_counted_beyond_it() {
        let (reporter, mut observations) = Reporter::channel();
        (0..MAX_EVENTS + 10).for_each(|_| reporter.trouble(ErrorCounter::NvmlFailed));
        reporter.fact(Fact::Gpus(Vec::new()));
        let mut taken = Vec::new();
        assert_eq!(observations.recv_many(&mut taken, usize::MAX).await, MAX_EVENTS + 2);
        assert!(matches!(taken[0], Observation::Event(SourceEvent::Dropped(10))));
        assert!(matches!(taken.last(), Some(Observation::Fact(Fact::Gpus(_)))), "a fact has room all the same");
        reporter.trouble(ErrorCounter::NvmlFailed);
        assert!(matches!(next(&mut observations).await, Observation::Event(SourceEvent::Trouble(_))), "there is room");
    }

    #[tokio::test]
    async fn a_waiting_thread_is_woken_by_a_fact_an_event_and_a_sample() {
        let (reporter, mut observations) = Reporter::channel();
        let reports: [fn(&Reporter); 3] = [
            |reporter| reporter.fact(Fact::Gpus(Vec::new())),
            |reporter| reporter.trouble(ErrorCounter::NvmlFailed),
            |reporter| reporter.sample(sample()),
        ];
        for report in reports {
            let waits = async { observations.recv().await };
            let (taken, ()) = tokio::join!(waits, async {
                tokio::task::yield_now().await;
                report(&reporter);
            });
            assert!(taken.is_some());
        }
    }

    #[tokio::test]
    async fn a_subscriber_gets_every_sample_of_each_gpu_while_the_owner_loses_some() {
        let (reporter, mut observations) = Reporter::channel();
        reporter.sample(sample());
        let series = reporter.gpu_series().unwrap();
        let gpus = ["GPU-1", "GPU-2"].map(|gpu| GpuUuid::parse(gpu).unwrap());
        let numbered = |number| {
            Box::new(GpuSample { pcie_replays: Reading::Measured(Count(number), Monotonic(1)), ..GpuSample::default() })
        };
        for number in 0..u64::try_from(QUEUE).unwrap() {
            gpus.iter().for_each(|gpu| reporter.sample(Sample::Gpu(gpu.clone(), numbered(number))));
        }
        let part = series.take();
        for gpu in &gpus {
            let of_gpu = part.samples.iter().filter(|sample| sample.0 == *gpu);
            let numbers: Vec<u64> = of_gpu.map(|sample| sample.1.pcie_replays.get().unwrap().0).collect();
            assert_eq!(numbers, (0..u64::try_from(QUEUE).unwrap()).collect::<Vec<_>>(), "{gpu}");
        }
        assert_eq!((part.samples.len(), part.missed), (2 * QUEUE, 0));
        let dropped = u64::try_from(QUEUE).unwrap() + 1;
        let first = next(&mut observations).await;
        assert!(matches!(first, Observation::Event(SourceEvent::Dropped(number)) if number == dropped), "{first:?}");
    }

    #[tokio::test]
    async fn own_samples_of_the_driver_are_made_only_for_a_subscriber() {
        let (reporter, _observations) = Reporter::channel();
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        reporter.utilization(6, || unreachable!("there is no subscriber"));
        let subscription = reporter.utilization_series().unwrap();
        let part = UtilizationSamples { gpu, read_at: Monotonic(1), samples: Vec::new() };
        (0..UTILIZATION_SAMPLES / 6 + 10).for_each(|_| reporter.utilization(6, || part.clone()));
        let taken = subscription.take();
        assert_eq!((taken.samples.len(), taken.missed), (UTILIZATION_SAMPLES / 6, 10));
    }
}
