//! What the front door tells the server.

use crate::caller::AllowedHosts;
use model::time::Now;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sets of metric names that `/metrics` carries beside our own.
    pub sets: MetricSets,
    /// Token that every caller needs for `/api/v1`; without one callers from elsewhere are refused.
    pub api_token: Option<Arc<str>>,
    /// Names under which `/api/v1` may be asked for.
    pub hosts: AllowedHosts,
    /// Both clocks: ages are counted from the moment of an answer.
    pub clock: fn() -> Now,
}

/// Which foreign names are served at `/metrics` itself. Each set has a path of its own in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSets {
    /// dcgm-exporter's.
    pub dcgm: bool,
    /// The new names that DCGM 4.6 has for some of them, wherever those are.
    pub dcgm_renamed: bool,
    /// HAMi monitor's.
    pub hami: bool,
    /// cAdvisor's.
    pub cadvisor: bool,
}

/// Whether the program is ready, and why not.
pub type Readiness = watch::Receiver<Result<(), Arc<str>>>;

/// How much of everything, and for how long. One value for all but the tests, which wait less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once. A node's port has a handful of scrapers, `top` and kubelet's probes; 256 idle connections
    /// are about 5 MiB at worst.
    pub(super) connections: usize,
    /// Time for a request's headers, and so also for silence between two requests. Above Prometheus's usual 15 s
    /// interval, so that it can keep its connection; who holds many connections is handled by [`super::room`].
    pub(super) header_time: Duration,
    /// Time to take the rest of an answer once the socket's own buffer is full: Prometheus's default scrape timeout.
    pub(super) patience: Duration,
    /// The same while a caller of another address waits for an answer: all eight answers are free again within this time, so
    /// the last of the common line comes to its turn within two seconds and the time that four times eight answers take to
    /// write. In half a second a network of 100 Mbit/s takes 6 MB, and a compressed answer for 5,000 containers has less than 1.
    pub(super) haste: Duration,
    /// Answers with a large body under way at once. One scraper and one `top` are usual; with 5,000 containers an answer
    /// has some 15 MB, so eight stalled readers cost at most 120 MB for the ten seconds until they are cut.
    pub(super) answers: usize,
    /// Of those for callers from one address, so that two scrapers behind one address go side by side. Four addresses can
    /// hold all answers: their readers are then cut after `haste`.
    pub(super) answers_per_peer: usize,
    /// Requests that may wait for an answer that others hold. An address has at most `answers_per_peer` of them and of the
    /// answers together, so it takes 20 addresses to fill both.
    pub(super) waiting: usize,
    /// Requests that may wait for an answer that their own address holds. Where this line is full, an address is refused what
    /// it asks beyond `answers_per_peer`, and nothing else. With the answers and the other line far below the number of
    /// connections, so that one is always idle and makes way for a health check.
    pub(super) waiting_for_peers: usize,
    /// Of those for callers from one address; the sets of names scraped by one Prometheus are four requests.
    pub(super) waiting_per_peer: usize,
    /// How long a request waits; below Prometheus's 10 s.
    pub(super) wait: Duration,
    /// How long requests in flight may take to end after `stop`; the whole program has 5 s.
    pub(super) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            header_time: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            haste: Duration::from_millis(500),
            answers: 8,
            answers_per_peer: 2,
            waiting: 32,
            waiting_for_peers: 64,
            waiting_per_peer: 8,
            wait: Duration::from_secs(5),
            drain: Duration::from_secs(2),
        }
    }
}
