//! The admin port: profiles of this process, the log level, and commands of an operator about GPUs. It listens on
//! loopback by default.
//!
//! ```text
//!   connection ─▶ connection permit ─▶ TLS, if certificates are set ─▶ guard: Host, token
//!              ─▶ /loglevel, /incidents, /nvml/release, /debug/pprof/
//! ```

pub mod connections;
pub mod certificate;
mod guard;
pub mod level;
pub mod incident;
pub mod release;
#[cfg(test)]
mod served_tests;

pub use certificate::Tls;
pub use incident::ClearIncident;
pub use level::LogLevel;
pub use release::DriverControl;

use crate::caller::AllowedHosts;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get};
use axum_server::accept::Accept;
use axum_server::tls_rustls::RustlsAcceptor;
use hyper_util::rt::TokioTimer;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// Most connections at once. An operator, a browser and a script need a handful.
const MAX_CONNECTIONS: usize = 64;

/// Longest wait for a request's headers, and for the next request on an open connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of hyper's buffer, and so of the largest request header.
const MAX_HEADER: usize = 16 << 10;

/// Largest request body.
const MAX_BODY: usize = 256 << 10;

/// How long open requests may continue after a stop. A profile that is not complete by then is dropped.
const DRAIN: Duration = Duration::from_secs(1);

/// Settings of the admin server.
#[derive(Clone)]
pub struct Settings {
    /// Whether `/debug/pprof/` is served.
    pub profiling: bool,
    /// Certificates for HTTPS; plain HTTP without.
    pub tls: Option<Tls>,
    /// Accepted `Host` names.
    pub hosts: AllowedHosts,
    /// Token that every request needs; with `None` no request needs one.
    pub token: Option<Arc<str>>,
    /// Token for the operator paths; `None` where the port asks for a token or a client certificate anyway.
    pub operator: Option<Arc<str>>,
    /// A notification makes the server read the certificates again at once.
    pub reload: Arc<Notify>,
    /// Shows and sets the log level (`/loglevel`).
    pub level: Arc<dyn LogLevel>,
    /// Queue to the task that clears GPU incidents (`DELETE /incidents/UUID`); `None` where there are no GPUs.
    pub incidents: Option<mpsc::Sender<ClearIncident>>,
    /// The GPU driver (`PUT /nvml/release`); `None` where it is not used.
    pub driver: Option<Arc<dyn DriverControl>>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("profiling", &self.profiling).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// When the listener or the certificates cannot be used.
pub async fn serve(listener: TcpListener, settings: Settings, stop: CancellationToken) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let routes = routes(&settings);
    let door = connections::ConnectionSemaphore::new(MAX_CONNECTIONS);
    let Some(tls) = settings.tls else {
        return run(listener, door, routes, stop).await;
    };
    let certificates = certificate::load(&tls)?;
    let acceptor = RustlsAcceptor::new(certificates.clone()).handshake_timeout(HEADER_TIMEOUT).acceptor(door);
    tokio::select! {
        ended = run(listener, acceptor, routes, stop) => ended,
        never = certificate::keep_fresh(&certificates, &tls, &settings.reload) => match never {},
    }
}

fn routes(settings: &Settings) -> Router {
    let profiles = if settings.profiling {
        pprof::router()
    } else {
        Router::new()
            .route("/debug/pprof", any(profiling_is_off))
            .route("/debug/pprof/", any(profiling_is_off))
            .route("/debug/pprof/{*rest}", any(profiling_is_off))
    };
    Router::new()
        .route("/", get(async || Html("<!doctype html><title>gpu-steward</title><ul><li><a href=\"/loglevel\">/loglevel</a><li><a href=\"/debug/pprof/\">/debug/pprof/</a></ul>\n")))
        .merge(level::router(Arc::clone(&settings.level)))
        .merge(operators(settings))
        .merge(profiles)
        .fallback(async || (StatusCode::NOT_FOUND, "no such path; / lists the paths\n"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn_with_state(guard::Guard::new(settings.hosts.clone(), settings.token.clone()), guard::check))
}

/// The paths for operators only: `/incidents` and `/nvml/release`.
fn operators(settings: &Settings) -> Router {
    let guard = || axum::middleware::from_fn_with_state(settings.operator.clone(), guard::operator);
    let incidents = settings.incidents.clone().map(|clears| incident::router(clears).route_layer(guard()));
    let driver = settings.driver.clone().map(|driver| release::router(driver).route_layer(guard()));
    incidents.into_iter().chain(driver).fold(Router::new(), Router::merge)
}

async fn profiling_is_off() -> Response {
    let why = "profiling is off; start the program with --profiling to have /debug/pprof/\n";
    (StatusCode::FORBIDDEN, [("x-go-pprof", "1")], why).into_response()
}

async fn run<A>(listener: TcpListener, acceptor: A, routes: Router, stop: CancellationToken) -> std::io::Result<()>
where
    A: Accept<tokio::net::TcpStream, Router> + Clone + Send + Sync + 'static,
    A::Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    A::Service: axum_server::service::SendService<axum::http::Request<hyper::body::Incoming>> + Send,
    A::Future: Send,
{
    let handle = axum_server::Handle::<SocketAddr>::new();
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle.clone()).http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADER);
    let serving = server.serve(routes.into_make_service());
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended,
        () = stop.cancelled() => handle.graceful_shutdown(Some(DRAIN)),
    }
    serving.await
}
