//! `:9410`: metrics, API and health.
//!
//! ```text
//!   server (connections, TLS, callers) ──▶ route
//!   route: health at once; metrics and API wait in a queue (bounded for each address), render into a pooled buffer
//! ```
//!
//! Bounds: connections and their times as in [`serve::server`], and answers in progress. This application never reads
//! a request body: it answers a request that has a body and closes the connection.
//!
//! What must never happen here: an endless wait, a buffer per connection that outlives its answer, a health check
//! that fails because of other connections.

mod settings;
mod footprint;
mod route;

use settings::Limits;
pub use settings::{MetricSets, Readiness, Settings};

use crate::api::history::ProfileSource;
use model::view::NodeView;
use route::Routes;
use serve::server::HttpServer;
use std::net::TcpListener;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the server shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The newest view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The profiles of loads; `None` if they are off.
    pub profiles: Option<ProfileSource>,
    /// The answer of `/readyz`.
    pub ready: Readiness,
}

/// Serves until `stop` is cancelled, then waits for the requests in flight.
///
/// # Errors
/// If the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    settings: Settings,
    shown: Shown,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let certificates = settings.certificates.clone();
    let application = Routes::new(settings, shown, Limits::default());
    let limits = Limits::default().connections;
    let counts = Arc::clone(&application.own.connections);
    HttpServer { application, limits, certificates, counts }.serve(listener, stop).await
}

#[cfg(test)]
mod tests;
