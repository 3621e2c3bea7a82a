//! The counts of the agents.

use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// The counts since the last mark.
#[derive(Debug)]
pub(super) struct Counts(Mutex<Marked>);

#[derive(Debug)]
struct Marked {
    since: Instant,
    /// Streams on which a leader has answered.
    up: usize,
    /// The number of streams that were answered, and the time of the last one.
    ups: usize,
    last_up: u128,
    /// Tries of each agent.
    tries: BTreeMap<usize, usize>,
    /// Tries in each second, by address.
    by_second: BTreeMap<String, BTreeMap<u64, usize>>,
    /// The failed tries, by error.
    failures: BTreeMap<String, usize>,
    /// The time at which the chosen agent has sent a change, in microseconds since 1970.
    sent: u64,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts(Mutex::new(Marked {
            since: Instant::now(),
            up: 0,
            ups: 0,
            last_up: 0,
            tries: BTreeMap::new(),
            by_second: BTreeMap::new(),
            failures: BTreeMap::new(),
            sent: 0,
        }))
    }

    /// Resets the counts; open streams stay open.
    pub(super) fn mark(&self) {
        let mut counts = self.0.lock();
        let up = counts.up;
        let Counts(fresh) = Counts::new();
        *counts = Marked { up, ..fresh.into_inner() };
    }

    pub(super) fn tries(&self, agent: usize, address: &str) {
        let mut counts = self.0.lock();
        let second = counts.since.elapsed().as_secs();
        *counts.tries.entry(agent).or_default() += 1;
        *counts.by_second.entry(address.to_owned()).or_default().entry(second).or_default() += 1;
    }

    pub(super) fn failed(&self, why: String) {
        *self.0.lock().failures.entry(why).or_default() += 1;
    }

    pub(super) fn up(&self) {
        let mut counts = self.0.lock();
        counts.up += 1;
        counts.ups += 1;
        counts.last_up = counts.since.elapsed().as_millis();
    }

    pub(super) fn down(&self) {
        self.0.lock().up -= 1;
    }

    pub(super) fn sent(&self, at: u64) {
        self.0.lock().sent = at;
    }

    pub(super) fn report(&self) -> Value {
        let counts = self.0.lock();
        let tries: usize = counts.tries.values().sum();
        json!({
            "up": counts.up, "ups": counts.ups, "last_up_ms": u64::try_from(counts.last_up).unwrap_or(u64::MAX), "tries": tries,
            "most_tries": counts.tries.values().max(), "by_second": counts.by_second, "failures": counts.failures,
            "sent": counts.sent,
        })
    }
}
