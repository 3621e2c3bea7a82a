//! The usage stream on the unix socket: what programs on the same machine read.
//!
//! ```text
//!   watch<Arc<NodeView>> ──convert──▶ NodeUsage ──┬──▶ Get:   the newest, at once
//!                                                 └──▶ Watch: the newest, whenever it differs and the reader is ready
//!   connection    who is connected, how many, and whether they read what they were sent
//! ```
//!
//! What must never happen here: a queue of states for a slow reader (there is one state, the newest), a stream or
//! connection without a bound, a stream that outlives the word to stop.

mod connection;
mod convert;
mod watch;

use self::connection::{Incoming, Peer};
use self::watch::{Pace, States, Watcher};
use crate::socket::{self, SocketFile};
use model::view::NodeView;
use proto::usage::usage_server::{Usage, UsageServer};
use proto::usage::{GetRequest, NodeUsage, WatchRequest};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch as latest};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Open `Watch` streams at most. The readers of one node are a handful (a scheduler's plugin, a dashboard, people with
/// `usage --watch`); each costs one conversion a second, so 64 of them stay below 1 % of a core.
pub const MAX_STREAMS: usize = 64;
/// Streams of any kind on one connection: all watchers and as many `Get`s beside them.
const STREAMS_A_CONNECTION: u32 = 128;
/// Both requests are empty; what is larger is not one of them.
const MAX_REQUEST: usize = 4096;
/// A peer that answers no ping is gone or stopped, and is cut off after both times together.
const PING_EVERY: Duration = Duration::from_secs(30);
/// See [`PING_EVERY`].
const PING_LIMIT: Duration = Duration::from_secs(10);
/// After the word to stop: streams have ended by then, a peer that still holds its connection open is left behind.
const GRACE: Duration = Duration::from_millis(500);

/// Opens the socket; a stale one that nobody listens on is replaced, a living one is an error. A missing folder is made.
///
/// # Errors
/// As the operating system says, `AddrInUse` when another program listens there, or `AlreadyExists` when the path is
/// something else than a socket; the message names the path.
pub fn bind(path: &Path) -> std::io::Result<UnixListener> {
    socket::bind("usage socket", path)
}

/// Serves `Usage.Get` and `Usage.Watch` until `stop` is cancelled; streams end then, and the socket's file goes.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: UnixListener,
    view: latest::Receiver<Arc<NodeView>>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve_at(Pace::default(), listener, view, stop).await
}

async fn serve_at(
    pace: Pace,
    listener: UnixListener,
    view: latest::Receiver<Arc<NodeView>>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let file = SocketFile::of(&listener);
    let incoming = Incoming::new(tokio::net::UnixListener::from_std(listener)?);
    let service = Service { pace, view, stop: stop.clone(), streams: Arc::new(Semaphore::new(MAX_STREAMS)) };
    let serving = Server::builder()
        .max_concurrent_streams(STREAMS_A_CONNECTION)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(UsageServer::new(service).max_decoding_message_size(MAX_REQUEST))
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    let outcome = tokio::select! {
        outcome = serving => outcome.map_err(std::io::Error::other),
        () = async { stop.cancelled().await; tokio::time::sleep(GRACE).await } => Ok(()),
    };
    if let Some(file) = file {
        file.remove();
    }
    outcome
}

struct Service {
    pace: Pace,
    view: latest::Receiver<Arc<NodeView>>,
    stop: CancellationToken,
    streams: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Usage for Service {
    async fn get(&self, _request: Request<GetRequest>) -> Result<Response<NodeUsage>, Status> {
        let newest = self.view.borrow().clone();
        Ok(Response::new(convert::state(&newest)))
    }

    type WatchStream = States;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<States>, Status> {
        let Ok(slot) = Arc::clone(&self.streams).try_acquire_owned() else {
            return Err(Status::resource_exhausted(format!(
                "{MAX_STREAMS} streams are open already, which is the limit"
            )));
        };
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        let watcher = Watcher::new(self.pace, self.view.clone(), peer, self.stop.clone());
        Ok(Response::new(States::new(watcher, slot)))
    }
}

#[cfg(test)]
mod tests;
