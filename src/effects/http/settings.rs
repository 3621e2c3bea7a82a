//! Settings and limits of the metrics server.

use model::time::Now;
use serve::answer_queue::AnswerLimits;
use serve::caller::AllowedHosts;
use serve::server::ConnectionLimits;
use serve::server::certificate::Certificates;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Settings of the metrics server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sets of metric names that `/metrics` has in addition to our own.
    pub sets: MetricSets,
    /// Token that every client needs for `/api/v1`; with `None` only clients on this machine get an answer.
    pub api_token: Option<Arc<str>>,
    /// Accepted `Host` names for `/api/v1`.
    pub hosts: AllowedHosts,
    /// Certificates for HTTPS; `None` means plain HTTP. Clients need no certificate, because the kubelet's probes
    /// have none.
    pub certificates: Option<Arc<Certificates>>,
    /// Reads both clocks: ages are computed at the time of the answer.
    pub clock: fn() -> Now,
}

/// The foreign metric names that `/metrics` itself has. Each set also has its own path, independent of these
/// settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSets {
    /// The names of dcgm-exporter.
    pub dcgm: bool,
    /// The names that DCGM 4.6 has changed, at each path that has dcgm-exporter's names.
    pub dcgm_renamed: bool,
    /// The names of HAMi's monitor.
    pub hami: bool,
    /// The names of cAdvisor.
    pub cadvisor: bool,
}

/// Whether the program is ready; if it is not, the error has the reason.
pub type Readiness = watch::Receiver<Result<(), Arc<str>>>;

/// The limits of the server. The program uses the default; tests use shorter waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The limits of connections.
    pub(super) connections: ConnectionLimits,
    /// The limits of answers in progress.
    pub(super) answers: AnswerLimits,
}

/// The limits of connections.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    // The port of a node has a handful of scrapers, `top` and the kubelet's probes. 256 idle connections take about
    // 5 MiB at worst.
    connections: 256,
    newcomers: None,
    // Above Prometheus's usual interval of 15 s, so that Prometheus can keep its connection. A client with many idle
    // connections loses some when another client connects.
    header_timeout: Duration::from_secs(30),
    // Prometheus's default scrape timeout.
    write_timeout: Duration::from_secs(10),
    // While a request waits in the common queue, a client that does not read keeps one of the eight answers for at most
    // this time. So the last of 32 waiting requests gets its turn within two seconds, plus the time to write 32
    // answers. In half a second a network of 100 Mbit/s takes 6 MB; a compressed answer for 5,000 containers has less
    // than 1 MB.
    busy_write_timeout: Duration::from_millis(500),
    // The whole program has 5 s to stop.
    drain: Duration::from_secs(2),
};

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: CONNECTIONS, answers: AnswerLimits::default() }
    }
}
