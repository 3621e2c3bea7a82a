//! One request at a time to a gRPC service on a Unix socket, with limits in time and size.

use crate::report::Reporter;
use crate::source_failures::{FailureSeverity, SourceFailures};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Time limit for an answer of a local service. The kubelet and runtimes answer within milliseconds, or about a second
/// on a machine that swaps.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// Maximum bytes of a response: the limit that the kubelet sets for its runtime, about 8,000 containers of 2 KiB each.
pub(super) const MAX_RESPONSE: usize = 16 << 20;

/// Why a request failed; the texts name the request and the socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// There is no socket at the path.
    #[error("tried {paths}")]
    Absent {
        /// Every path that was tried.
        paths: String,
    },
    /// No process accepts the connection.
    #[error("connect to {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The service does not answer in time.
    #[error("{call} on {}: no answer within {} s", path.display(), LIMIT.as_secs())]
    Slow {
        /// The request.
        call: &'static str,
        /// The socket.
        path: PathBuf,
    },
    /// The service answers with an error, or not in gRPC.
    #[error("{call} on {}: {:?}: {}", path.display(), status.code(), status.message())]
    Refused {
        /// The request.
        call: &'static str,
        /// The socket.
        path: PathBuf,
        /// The response.
        status: Box<Status>,
    },
}

impl RequestError {
    fn failure(&self) -> FailureSeverity {
        match self {
            RequestError::Absent { .. } => FailureSeverity::Absent,
            RequestError::Connect { .. } | RequestError::Slow { .. } | RequestError::Refused { .. } => {
                FailureSeverity::Broken
            }
        }
    }
}

/// A source that is polled.
pub(super) trait PolledSource {
    /// Time between two requests while they succeed.
    const PERIOD: Duration;
    /// Sends one request and reports the response.
    fn poll(&mut self) -> impl Future<Output = Result<(), RequestError>> + Send;
}

/// Polls the source until the task is cancelled.
pub(super) async fn poll_forever(mut source: impl PolledSource, mut failures: SourceFailures, reporter: Reporter) {
    loop {
        let pause = match source.poll().await {
            Ok(()) => {
                failures.worked();
                pause_of(&source)
            }
            Err(error) => {
                let (counter, pause) = failures.failed(error.failure(), &error);
                if let Some(counter) = counter {
                    reporter.trouble(counter);
                }
                pause
            }
        };
        sleep(pause).await;
    }
}

fn pause_of<A: PolledSource>(_: &A) -> Duration {
    A::PERIOD
}

/// Connects. A broken channel is not repaired: the caller drops it and connects again.
pub(super) async fn connect(path: &Path) -> Result<Channel, RequestError> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => RequestError::Absent { paths: path.display().to_string() },
        _ => RequestError::Connect { path: path.to_owned(), source },
    };
    let mut stream = Some(TokioIo::new(UnixStream::connect(path).await.map_err(failed)?));
    let once = tower::service_fn(move |_| {
        let taken = stream.take().ok_or_else(|| std::io::Error::from(ErrorKind::NotConnected));
        std::future::ready(taken)
    });
    // This name goes into `:authority`, where HTTP/2 does not allow the path of a socket.
    let endpoint = Endpoint::from_static("http://localhost");
    match timeout(LIMIT, endpoint.connect_with_connector(once)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(RequestError::Refused {
            call: "connect",
            path: path.to_owned(),
            status: Box::new(Status::from_error(error.into())),
        }),
        Err(_) => Err(RequestError::Slow { call: "connect", path: path.to_owned() }),
    }
}

/// Waits for the response to one request, at most [`LIMIT`].
pub(super) async fn response<T>(
    call: &'static str,
    path: &Path,
    request: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, RequestError> {
    match timeout(LIMIT, request).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RequestError::Refused { call, path: path.to_owned(), status: Box::new(status) }),
        Err(_) => Err(RequestError::Slow { call, path: path.to_owned() }),
    }
}
