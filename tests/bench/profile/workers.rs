//! Two threads share a list of series. The results are in the order of the list, so they do not depend on the threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Threads at most: the bench is made for two cores.
const THREADS: usize = 2;

/// Applies a function to each item.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS);
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done: Vec<(usize, R)> = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            match items.get(index) {
                Some(item) => done.push((index, work(item))),
                None => return done,
            }
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a worker has panicked")).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn the_results_are_in_the_order_of_the_items() {
    let items: Vec<usize> = (0..1000).collect();
    assert_eq!(map(&items, |item| item * 2), (0..1000).map(|item| item * 2).collect::<Vec<_>>());
}
