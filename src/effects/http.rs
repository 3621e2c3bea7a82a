//! `:9410`: metrics, API and health.
//!
//! ```text
//!   accept ──▶ room (at most 256 connections; the one idle longest makes way) ──▶ one task each
//!   one task: patience (a reader that stalls is cut) · hyper, HTTP/1 only · route
//!   route: health at once; metrics and API wait for one of a few places, render into a pooled buffer
//! ```
//!
//! Bounds: connections, header bytes and time, answers under way, time to take an answer. Bodies are never read: a request
//! that has one is answered and the connection closed.
//!
//! What must never happen here: a wait without an end, a buffer per connection that outlives its answer, health that
//! depends on who else is connected.

mod settings;
mod negotiate;
mod footprint;
mod buffer;
mod patience;
mod room;
mod route;

pub use settings::{Readiness, Sets, Settings};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use model::view::NodeView;
use patience::Patient;
use room::{Room, Seat};
use route::Server;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time for a request's headers, and so also for silence between two requests. Above Prometheus's usual 15 s interval,
/// so that it can keep its connection; a slow client that fills all places is handled by [`room`], not by this.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// Bytes of a request's headers; a bearer token of Kubernetes has about 1 KiB. hyper's smallest is 8 KiB.
const HEADER_BYTES: usize = 16 * 1024;
/// How long requests in flight may take to end after `stop`; the whole program has 5 s.
const DRAIN: Duration = Duration::from_secs(2);
/// Pause after the system had no more files to give, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let server = Arc::new(Server::new(settings, view, ready));
    let connections = TaskTracker::new();
    let mut room = Room::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // A connection that was reset before it was taken, or no file left: neither ends the server.
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match room.enter() {
            Some(entrance) => {
                server.own.cut(entrance.made_way);
                let task = connection(stream, peer, Arc::clone(&server), entrance.seat, stop.clone());
                connections.spawn(task);
            }
            None => {
                // Nobody is idle: the newest is told at once, without a task.
                server.own.cut(1);
                let _ = stream.try_write(route::BUSY);
            }
        }
    }
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "connections did not end in time and are closed");
    }
    Ok(())
}

async fn connection(stream: TcpStream, peer: SocketAddr, server: Arc<Server>, seat: Seat, stop: CancellationToken) {
    let _open = server.own.open();
    let _ = stream.set_nodelay(true);
    let answer = service_fn(|request| {
        let (server, busy) = (Arc::clone(&server), seat.busy());
        async move {
            let response = server.answer(&request, peer.ip()).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| body.holding(busy)))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(HEADER_BYTES);
    let served = builder.serve_connection(TokioIo::new(Patient::new(stream)), answer);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = seat.asked_to_leave() => return,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            // The drain's end drops whoever is still here.
            tokio::time::timeout(DRAIN, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "connection ended early");
    }
}
