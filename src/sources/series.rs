//! Lossless series of samples, for a subscriber inside the agent such as a profiler.
//!
//! ```text
//!   source's thread ──▶ Reporter::sample ──▶ Series ──▶ a ring for each Subscription ──take──▶ subscriber
//!                              └──▶ the queue of samples, which may drop some ──▶ node task
//! ```
//!
//! A subscriber gets every sample in the order of the reports, whatever the agent's node task does. If a subscriber
//! takes no samples for too long, only the newest samples are kept, and it gets the number of samples that it missed.
//!
//! What must never happen here: a source or another subscriber waits for a subscriber; a part lacks a sample that
//! `missed` does not count; a source makes samples without a subscriber.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of subscriptions to one series at a time: a profiler, its replacement, and two for a diagnosis. All
/// subscriptions share the samples, so each costs only a list of pointers.
pub const MAX_SUBSCRIPTIONS: usize = 4;

/// One series: the samples of one kind, in the order in which they are reported.
#[derive(Debug)]
pub(crate) struct Series<T> {
    /// The number of subscriptions. A source reads it without the lock, and makes no sample while it is 0.
    open: AtomicUsize,
    /// Each use holds the lock for a few moves of pointers; samples are made and dropped outside.
    rings: Mutex<[Option<Ring<T>>; MAX_SUBSCRIPTIONS]>,
    /// The total size of the samples that one ring may keep.
    most: usize,
}

/// The samples that one subscriber has not taken yet.
#[derive(Debug)]
struct Ring<T> {
    kept: VecDeque<(Arc<T>, usize)>,
    size: usize,
    missed: u64,
}

/// A subscription to one series. Dropping it frees the samples that it has not taken.
#[derive(Debug)]
pub struct Subscription<T> {
    series: Arc<Series<T>>,
    place: usize,
}

/// The samples that a subscriber takes at once.
#[derive(Debug)]
pub struct SeriesPart<T> {
    /// The samples since the last part, in the order in which they were reported.
    pub samples: Vec<Arc<T>>,
    /// Number of samples that were dropped since the last part, because the subscriber took no samples for too long.
    /// They are older than all samples of this part.
    pub missed: u64,
}

impl<T> Series<T> {
    /// A series. Each subscription keeps samples up to this total size, and always the newest sample.
    pub(crate) fn new(most: usize) -> Arc<Series<T>> {
        Arc::new(Series { open: AtomicUsize::new(0), rings: Mutex::default(), most })
    }

    /// Starts a subscription; it gets all samples that are reported from now on. `None` while there are
    /// [`MAX_SUBSCRIPTIONS`].
    pub(crate) fn subscribe(self: &Arc<Self>) -> Option<Subscription<T>> {
        let mut rings = self.rings.lock();
        let place = rings.iter().position(Option::is_none)?;
        rings[place] = Some(Ring { kept: VecDeque::new(), size: 0, missed: 0 });
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Subscription { series: Arc::clone(self), place })
    }

    /// Adds a sample of this size to each subscription. Without a subscription the sample is not made.
    pub(crate) fn record(&self, size: usize, sample: impl FnOnce() -> T) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let sample = Arc::new(sample());
        let mut pushed_out = Vec::new();
        let mut rings = self.rings.lock();
        for ring in rings.iter_mut().flatten() {
            ring.kept.push_back((Arc::clone(&sample), size));
            ring.size += size;
            while ring.size > self.most && ring.kept.len() > 1 {
                let Some(oldest) = ring.kept.pop_front() else { break };
                ring.size -= oldest.1;
                ring.missed += 1;
                pushed_out.push(oldest);
            }
        }
        drop(rings);
    }
}

impl<T> Subscription<T> {
    /// Takes all samples since the last call. Never waits for a source.
    #[must_use]
    pub fn take(&self) -> SeriesPart<T> {
        let mut rings = self.series.rings.lock();
        let (kept, missed) = rings[self.place].as_mut().map_or_else(Default::default, |ring| {
            ring.size = 0;
            (std::mem::take(&mut ring.kept), std::mem::take(&mut ring.missed))
        });
        drop(rings);
        SeriesPart { samples: kept.into_iter().map(|(sample, _)| sample).collect(), missed }
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        let mut rings = self.series.rings.lock();
        let ring = rings[self.place].take();
        self.series.open.fetch_sub(1, Ordering::Relaxed);
        drop(rings);
        drop(ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn values(part: &SeriesPart<u32>) -> Vec<u32> {
        part.samples.iter().map(|value| **value).collect()
    }

    #[test]
    fn a_subscriber_that_stalls_gets_the_newest_samples_and_the_number_that_it_missed() {
        let series = Series::new(10);
        let (stalls, reads) = (series.subscribe().unwrap(), series.subscribe().unwrap());
        let mut read = Vec::new();
        for value in 0..1000 {
            series.record(1, || value);
            read.extend(values(&reads.take()));
        }
        assert_eq!(read, (0..1000).collect::<Vec<_>>(), "a stalled subscriber costs the other one nothing");
        let part = stalls.take();
        assert_eq!((values(&part), part.missed), ((990..1000).collect(), 990));
        series.record(1, || 1000);
        let part = stalls.take();
        assert_eq!((values(&part), part.missed), (vec![1000], 0), "each part counts from the last one");
    }

    #[test]
    fn large_samples_push_out_as_much_as_they_need_and_the_newest_is_always_kept() {
        let series = Series::new(10);
        let subscription = series.subscribe().unwrap();
        for (value, size) in [(1, 4), (2, 4), (3, 1), (4, 5)] {
            series.record(size, || value);
        }
        let part = subscription.take();
        assert_eq!((values(&part), part.missed), (vec![2, 3, 4], 1));
        series.record(1, || 5);
        series.record(100, || 6);
        let part = subscription.take();
        assert_eq!((values(&part), part.missed), (vec![6], 1));
        series.record(10, || 7);
        assert_eq!(values(&subscription.take()), [7], "samples that were taken use no room");
    }

    #[test]
    fn the_end_of_a_subscription_frees_its_samples_and_its_place() {
        let series = Series::new(10);
        series.record(1, || unreachable!("no sample is made while there is no subscription"));
        let mut all: Vec<_> = std::iter::from_fn(|| series.subscribe()).collect();
        assert_eq!(all.len(), MAX_SUBSCRIPTIONS);
        series.record(1, || 1);
        let kept = all[0].take().samples.pop().unwrap();
        assert_eq!(Arc::strong_count(&kept), MAX_SUBSCRIPTIONS, "all share one sample");
        all.remove(1);
        assert_eq!(Arc::strong_count(&kept), MAX_SUBSCRIPTIONS - 1);
        let again = series.subscribe().expect("a place is free again");
        assert!(again.take().samples.is_empty(), "it begins with the next sample");
        drop((again, all));
        assert_eq!(Arc::strong_count(&kept), 1);
        series.record(1, || unreachable!("no sample is made after the last subscription"));
    }

    #[test]
    fn under_many_threads_each_sample_is_taken_once_in_order_or_counted() {
        const THREADS: u32 = 4;
        const EACH: u32 = 5000;
        let all = u64::from(THREADS * EACH);
        let series = Series::new(64);
        let (subscription, stalls) = (series.subscribe().unwrap(), series.subscribe().unwrap());
        let ended = AtomicBool::new(false);
        let (taken, missed) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut taken, mut missed) = (Vec::new(), 0);
                loop {
                    let last = ended.load(Ordering::Acquire);
                    let part = subscription.take();
                    taken.extend(part.samples);
                    missed += part.missed;
                    if last {
                        return (taken, missed);
                    }
                    std::thread::yield_now();
                }
            });
            let series = &series;
            let writers = (0..THREADS)
                .map(|thread| scope.spawn(move || (0..EACH).for_each(|n| series.record(1, || (thread, n)))));
            // Subscriptions that come and go meanwhile change nothing for the others.
            let writers: Vec<_> = writers.collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                drop(series.subscribe());
            }
            ended.store(true, Ordering::Release);
            reader.join().unwrap()
        });
        assert_eq!(u64::try_from(taken.len()).unwrap() + missed, all);
        for thread in 0..THREADS {
            let of_one = || taken.iter().filter(|sample| sample.0 == thread).map(|sample| sample.1);
            assert!(of_one().zip(of_one().skip(1)).all(|(before, after)| before < after), "thread {thread}");
        }
        let part = stalls.take();
        assert_eq!((part.samples.len(), part.missed), (64, all - 64), "it never read");
    }
}
