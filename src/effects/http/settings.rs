//! What the front door tells the server.

use model::time::Now;
use std::sync::Arc;
use tokio::sync::watch;

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sets of metric names that `/metrics` carries beside our own.
    pub sets: Sets,
    /// Token that callers from elsewhere need for `/api/v1`; `None` refuses them.
    pub api_token: Option<Arc<str>>,
    /// Both clocks: ages are counted from the moment of an answer.
    pub clock: fn() -> Now,
}

/// Which foreign names are served at `/metrics` itself. Each set has a path of its own in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sets {
    /// dcgm-exporter's.
    pub dcgm: bool,
    /// HAMi monitor's.
    pub hami: bool,
    /// cAdvisor's.
    pub cadvisor: bool,
}

/// Whether the program is ready, and why not.
pub type Readiness = watch::Receiver<Result<(), Arc<str>>>;
