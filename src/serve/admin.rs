//! The admin port: profiles of this process, the log level, and the operator commands that a mode adds. It listens on
//! loopback by default.
//!
//! ```text
//!   server (connections, TLS, callers) ─▶ whole request body, at most 256 KiB
//!              ─▶ /loglevel, /debug/pprof/, the paths of the mode for operators
//! ```

pub mod level;
#[cfg(test)]
mod served_tests;

pub use level::LogLevel;

use crate::caller::{Access, AllowedHosts, BearerToken, Condition, Ends};
use crate::server::body::{self, BodyLimits};
use crate::server::certificate::Certificates;
use crate::server::{ConnectionLimits, HttpApplication, HttpServer};
use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get};
use hyper::body::Incoming;
use hyper::{Request, Uri};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// The limits of connections.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    // An operator, a browser and a script need a handful.
    connections: 64,
    newcomers: None,
    header_timeout: Duration::from_secs(10),
    // Enough for a profile of some MB over a slow connection.
    write_timeout: Duration::from_secs(10),
    busy_write_timeout: Duration::from_secs(10),
    // A profile that is not complete by then is dropped.
    drain: Duration::from_secs(1),
};

/// The limits of a request body: enough for the addresses of a large profile, which `go tool pprof` sends to look up
/// their names.
const BODY: BodyLimits = BodyLimits { bytes: 256 << 10, time: Duration::from_secs(10) };

/// The page at `/`.
const INDEX: &str = "<!doctype html><title>gpu-steward</title><ul><li><a href=\"/loglevel\">/loglevel</a>\
                     <li>profiles are off: start the program with --profiling</ul>\n";
/// The page at `/` with `--profiling`.
const INDEX_WITH_PROFILES: &str = "<!doctype html><title>gpu-steward</title><ul><li><a href=\"/loglevel\">/loglevel</a>\
                                   <li><a href=\"/debug/pprof/\">/debug/pprof/</a></ul>\n";

/// Operator commands under one path. If the port requires neither a token nor a client certificate, these commands need
/// the token from the state directory: only callers that can read that directory may change what the mode does, and
/// other users of the host, and pods in the host network, may not.
#[derive(Clone, Debug)]
pub struct OperatorCommands {
    /// The path that all of the commands start with, such as `/incidents`.
    pub path: &'static str,
    /// The routes under this path.
    pub routes: Router,
}

/// Settings of the admin server.
#[derive(Clone)]
pub struct Settings {
    /// Whether `/debug/pprof/` is served.
    pub profiling: bool,
    /// Certificates for HTTPS; `None` serves plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
    /// Accepted `Host` names.
    pub hosts: AllowedHosts,
    /// Token that every request needs; with `None` no request needs a token.
    pub token: Option<Arc<str>>,
    /// Token for the operator paths; `None` if the port requires a token or a client certificate anyway.
    pub operator: Option<Arc<str>>,
    /// Shows and sets the log level (`/loglevel`).
    pub level: Arc<dyn LogLevel>,
    /// The commands of operators that the mode adds.
    pub commands: Vec<OperatorCommands>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("profiling", &self.profiling)
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(listener: TcpListener, settings: Settings, stop: CancellationToken) -> std::io::Result<()> {
    let application = AdminRoutes::new(&settings);
    let (limits, certificates) = (CONNECTIONS, settings.certificates);
    HttpServer { application, limits, certificates, counts: Arc::default() }.serve(listener, stop).await
}

/// The paths of the admin port, and which callers may use them.
struct AdminRoutes {
    routes: Router,
    /// Access to all paths except the paths in `commands`.
    callers: Access,
    operators: Access,
    /// The paths of the [`OperatorCommands`].
    commands: Vec<&'static str>,
}

impl AdminRoutes {
    fn new(settings: &Settings) -> AdminRoutes {
        let callers = |condition| Access::Callers(settings.hosts.clone(), condition);
        let token =
            |secret: &Arc<str>, opens, name| Condition::Token(BearerToken { secret: Arc::clone(secret), opens, name });
        let port = settings.token.as_ref().map_or(Condition::None, |secret| token(secret, "the admin port", "token"));
        let operator = settings.operator.as_ref();
        let operator =
            operator.map(|secret| token(secret, "this path", "operator_token of addresses.json in --state-dir"));
        let operators = callers(operator.unwrap_or_else(|| port.clone()));
        let commands = settings.commands.iter().map(|commands| commands.path).collect();
        AdminRoutes { routes: routes(settings), callers: callers(port), operators, commands }
    }
}

impl HttpApplication for AdminRoutes {
    type Body = Body;

    fn access(&self, uri: &Uri) -> &Access {
        let path = uri.path();
        let operators = self.commands.iter().filter_map(|start| path.strip_prefix(start));
        let mut operators = operators.filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if operators.next().is_some() { &self.operators } else { &self.callers }
    }

    async fn answer(&self, request: Request<Incoming>, _ends: Ends) -> Response {
        let (head, body) = request.into_parts();
        let body = match body::read(body, BODY).await {
            Ok(bytes) => Body::from(bytes),
            Err(error) => return (error.status(), format!("{error}\n")).into_response(),
        };
        match self.routes.clone().oneshot(Request::from_parts(head, body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
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
    let index = if settings.profiling { INDEX_WITH_PROFILES } else { INDEX };
    Router::new()
        .route("/", get(async move || Html(index)))
        .merge(level::router(Arc::clone(&settings.level)))
        .merge(operators(settings))
        .merge(profiles)
        .fallback(async || (StatusCode::NOT_FOUND, "no such path; / lists the paths\n"))
        .layer(DefaultBodyLimit::disable())
}

/// The paths for operators only.
fn operators(settings: &Settings) -> Router {
    let nested = settings.commands.iter().map(|commands| Router::new().nest(commands.path, commands.routes.clone()));
    nested.fold(Router::new(), Router::merge)
}

async fn profiling_is_off() -> Response {
    let why = "profiling is off; start the program with --profiling to have /debug/pprof/\n";
    (StatusCode::FORBIDDEN, [("x-go-pprof", "1")], why).into_response()
}
