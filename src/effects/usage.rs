//! The usage service on a unix socket, for programs on the same machine.
//!
//! ```text
//!   watch<Arc<NodeView>> ──convert──▶ NodeUsage ──┬──▶ Get:   the newest state, at once
//!                                                 └──▶ Watch: the newest state, if it differs and the client is ready
//!   json          the message as text, for a client that prints it
//!   connection    bounds the connections, and sees whether a client has read the last state
//! ```
//!
//! What must never happen here: a queue of states for a slow client (there is one state, the newest), a stream or
//! connection without a bound, a stream that continues after a stop.

mod connection;
mod convert;
pub mod json;
mod watch;

use self::connection::{Incoming, Peer};
use self::watch::{Pace, States, Watcher};
use crate::socket::{self, SocketFile};
use model::id::NodeName;
use model::view::NodeView;
use proto::usage::usage_client::UsageClient;
use proto::usage::usage_server::{Usage, UsageServer};
use proto::usage::{GetRequest, NodeUsage, WatchRequest};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch as latest};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

/// Maximum number of open `Watch` streams. A node has a handful of clients (a scheduler's plugin, a dashboard, people
/// with `usage --watch`). Each stream costs one conversion a second, so 64 streams stay below 1 % of a core.
pub const MAX_STREAMS: usize = 64;
/// Maximum number of HTTP/2 streams on one connection: all `Watch` streams, and the same number of `Get` calls.
const STREAMS_A_CONNECTION: u32 = 128;
/// Largest request message in bytes. `Get` and `Watch` requests are empty, so a larger message is something else.
const MAX_REQUEST: usize = 4096;
/// Time between pings. A client that does not answer a ping is gone or stopped; its connection is cut after
/// [`PING_EVERY`] plus [`PING_LIMIT`].
const PING_EVERY: Duration = Duration::from_secs(30);
/// Time limit for the answer to a ping, see [`PING_EVERY`].
const PING_LIMIT: Duration = Duration::from_secs(10);
/// How long [`serve`] waits for open connections after a stop. The streams have already ended.
const GRACE: Duration = Duration::from_millis(500);
/// Timeout for the answer of another agent. It takes milliseconds; on a machine that swaps it may take a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Opens the socket. A stale socket without a listener is replaced; a socket with a listener is an error. A missing
/// folder is created.
///
/// # Errors
/// The error of the operating system, `AddrInUse` if another program listens there, or `AlreadyExists` if the path is
/// not a socket; the message names the path.
pub fn bind(path: &Path) -> std::io::Result<UnixListener> {
    socket::bind("usage socket", path)
}

/// Whether an agent of this node answers on the socket.
pub async fn answers(path: &Path, node: &NodeName) -> bool {
    let asking = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).ok()?;
        let mut client = UsageClient::new(endpoint.connect().await.ok()?);
        Some(client.get(GetRequest {}).await.ok()?.into_inner().node)
    };
    timeout(ANSWERS_WITHIN, asking).await.ok().flatten().is_some_and(|name| name == node.as_str())
}

/// Serves `Usage.Get` and `Usage.Watch` until `stop` is cancelled. Then it ends the streams and removes the socket's
/// file.
///
/// # Errors
/// If the listener cannot be used.
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
