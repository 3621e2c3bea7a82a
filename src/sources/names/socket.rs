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

/// A local service that takes longer than this to answer hangs. The kubelet and runtimes answer within milliseconds, or
/// about a second on a machine that swaps.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// Largest answer: the limit that the kubelet sets for its runtime, about 8,000 containers of 2 KiB each.
pub(super) const MAX_ANSWER: usize = 16 << 20;

/// Why there is no answer; the texts name the request and the socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// There is no socket at the path.
    #[error("tried {places}")]
    Absent {
        /// Every path that was tried.
        places: String,
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
        /// The answer.
        status: Box<Status>,
    },
}

impl Unanswered {
    fn failure(&self) -> FailureSeverity {
        match self {
            Unanswered::Absent { .. } => FailureSeverity::Absent,
            Unanswered::Connect { .. } | Unanswered::Slow { .. } | Unanswered::Refused { .. } => {
                FailureSeverity::Broken
            }
        }
    }
}

/// A source that is asked periodically.
pub(super) trait Ask {
    /// Time between two requests while they succeed.
    const PERIOD: Duration;
    /// Asks once and reports the answer.
    fn ask(&mut self) -> impl Future<Output = Result<(), Unanswered>> + Send;
}

/// Asks for ever.
pub(super) async fn keep_asking(mut source: impl Ask, mut failures: SourceFailures, reporter: Reporter) {
    loop {
        let pause = match source.ask().await {
            Ok(()) => {
                failures.worked();
                pause_of(&source)
            }
            Err(error) => {
                let (trouble, pause) = failures.failed(error.failure(), &error);
                if let Some(trouble) = trouble {
                    reporter.trouble(trouble);
                }
                pause
            }
        };
        sleep(pause).await;
    }
}

fn pause_of<A: Ask>(_: &A) -> Duration {
    A::PERIOD
}

/// Connects. A channel that breaks is not repaired: its holder drops it and dials again.
pub(super) async fn dial(path: &Path) -> Result<Channel, Unanswered> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => Unanswered::Absent { places: path.display().to_string() },
        _ => Unanswered::Connect { path: path.to_owned(), source },
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
        Ok(Err(error)) => Err(Unanswered::Refused {
            call: "connect",
            path: path.to_owned(),
            status: Box::new(Status::from_error(error.into())),
        }),
        Err(_) => Err(Unanswered::Slow { call: "connect", path: path.to_owned() }),
    }
}

/// Waits for one answer, not longer than [`LIMIT`].
pub(super) async fn answer<T>(
    call: &'static str,
    path: &Path,
    question: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Unanswered> {
    match timeout(LIMIT, question).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Unanswered::Refused { call, path: path.to_owned(), status: Box::new(status) }),
        Err(_) => Err(Unanswered::Slow { call, path: path.to_owned() }),
    }
}
