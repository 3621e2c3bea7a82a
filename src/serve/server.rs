//! Serves HTTP on a TCP port. Every TCP port of the program is served here. The owner of a port brings an
//! [`HttpApplication`], which answers requests and defines which callers may make them.
//!
//! ```text
//!   accept ──▶ connection limit (when it is reached, one that is idle or waits for its client is closed;
//!              clients that have not shown who they are have a lower limit of their own)
//!          ──▶ one task each
//!   one task: write timeout (cuts a client that stops reading) · TLS, if there are certificates · HTTP/1, or HTTP/2
//!             if the port offers it · access (Host, address, token) · the application
//! ```
//!
//! Bounds: connections, requests at once on an HTTP/2 connection, time of the TLS handshake, header bytes and time,
//! idle time, time that a client may take to read an answer or to open its HTTP/2 flow control window for the answer,
//! time of the drain.
//! [`body::read`] bounds a request body in bytes and time; an application that does not call it reads no body. When an
//! application has taken over a connection for another protocol ([`TakenConnection`]), only the number of connections
//! and stalled writes are bounded here.
//!
//! What must never happen here: a wait without an end; a client is refused while another connection has no request or
//! only waits for its client; a request reaches an application before its caller is checked; code for a path, a token
//! or another rule of an application.

pub mod body;
pub mod certificate;
mod application;
mod connection_limit;
mod write_timeout;
mod connection;
#[cfg(test)]
mod tests;

pub use application::{ConnectionCounts, ConnectionLimits, HttpApplication, HttpServer};

pub use connection::TakenConnection;
pub use connection_limit::Newcomer;

use connection::Connection;
use connection_limit::ConnectionLimit;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of connections that wait to be accepted. After a leader change 5,000 agents connect within half a
/// second, and an agent that finds the queue full tries again only after a second or more. Most kernels allow 4,096.
const QUEUE: i32 = 4096;
/// Pause after a failed accept, for example when no file descriptor is left, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between two checks of whether the next connection may be accepted, while the newest connections still show who
/// they are. The extender checks 18 tokens in this time (0.28 ms each).
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
/// The errors of a process, or of a machine, that has reached its limit of open files.
const FILE_LIMITS: [Errno; 2] = [Errno::MFILE, Errno::NFILE];
/// Time between two log lines about this limit: each accept fails until files are closed.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The answer to a connection over the limit when no other connection may be closed for it. If clients expect TLS, the
/// connection is closed without an answer.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
Content-Length: 50\r\nConnection: close\r\nRetry-After: 5\r\n\r\nall connections are busy; try again in 5 seconds.\n";

/// Opens a port. This is separate from [`HttpServer::serve`], so that a port in use is an error before the program
/// announces anything.
///
/// # Errors
/// The error of the operating system.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // Listening again only makes the queue longer: the standard library sets 128.
    rustix::net::listen(&listener, QUEUE)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl<A: HttpApplication> HttpServer<A> {
    /// Serves until `stop` is cancelled, then waits for the requests in flight. The listener must come from [`bind`].
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Arc::new(self);
        let connections = TaskTracker::new();
        let mut limit = ConnectionLimit::new(server.limits.connections, server.limits.newcomers);
        let mut told = None;
        loop {
            let admitted = async {
                server.application.admits().await;
                while limit.is_crowded() {
                    tokio::time::sleep(CROWDED_PAUSE).await;
                }
                listener.accept().await
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = admitted => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The connection was reset before the accept, or no file descriptor is left. Neither ends the
                    // server.
                    let out_of_files = Errno::from_io_error(&error).is_some_and(|errno| FILE_LIMITS.contains(&errno));
                    if out_of_files && told.is_none_or(|at: Instant| at.elapsed() >= TELL_EVERY) {
                        told = Some(Instant::now());
                        tracing::warn!(%error, "no connection can be accepted: raise the limit of open files (LimitNOFILE=)");
                    } else {
                        tracing::debug!(%error, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match limit.enter(host(peer.ip())) {
                Some(admission) => {
                    server.counts.cut.fetch_add(admission.closed, Ordering::Relaxed);
                    let server = Arc::clone(&server);
                    let connection = Connection::new(peer, admission.permit, server, connections.token());
                    tokio::spawn(connection.run(stream, stop.clone()));
                }
                None => server.refuse(&stream),
            }
        }
        connections.close();
        if tokio::time::timeout(server.limits.drain, connections.wait()).await.is_err() {
            tracing::info!(open = connections.len(), "connections did not end in time and are closed");
        }
        Ok(())
    }

    /// All connections are busy: the new connection gets the answer at once, without a task.
    fn refuse(&self, stream: &TcpStream) {
        self.counts.cut.fetch_add(1, Ordering::Relaxed);
        // The kernel keeps nothing for a client that does not confirm it.
        let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        if self.certificates.is_none() {
            let _ = stream.try_write(BUSY);
        }
    }
}

/// The address that represents one host. For IPv6 these are the first 64 bits, because a host may use all the others.
#[must_use]
pub fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}
