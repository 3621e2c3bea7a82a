//! The parts of a port: an application, its limits and its certificates.

use super::certificate::Certificates;
use crate::caller::{Access, Ends};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Request, Response, Uri};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections at once.
    pub connections: usize,
    /// Maximum number of connections whose client has not shown who it is ([`super::Newcomer`]). `None` if the
    /// application does not ask its clients.
    pub newcomers: Option<usize>,
    /// Time for the TLS handshake, for a request's headers, and so also the longest pause between two requests.
    pub header_timeout: Duration,
    /// Time limit for a client to read the rest of an answer once the socket's buffer is full, or to open its HTTP/2
    /// flow control window for the next part of an answer.
    pub write_timeout: Duration,
    /// Replaces `write_timeout` for a full socket buffer while [`HttpApplication::is_waited_for`].
    pub busy_write_timeout: Duration,
    /// How long requests in flight may take after a stop.
    pub drain: Duration,
}

/// Answers the requests of one port.
pub trait HttpApplication: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static;

    /// Who may make a request to this address. The server checks it before it calls [`HttpApplication::answer`] and
    /// before it reads the body.
    fn access(&self, uri: &Uri) -> &Access;

    /// Answers one request of a caller that may make it.
    fn answer(&self, request: Request<Incoming>, ends: Ends) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Returns when the next connection may be accepted; until then, new connections wait in the kernel's queue. The
    /// wait must have an end.
    fn admits(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Whether requests wait for a resource that other requests hold. If so, a client that stops reading is cut
    /// earlier.
    fn is_waited_for(&self) -> bool {
        false
    }
}

/// An application that two ports share.
impl<A: HttpApplication> HttpApplication for Arc<A> {
    type Body = A::Body;

    fn access(&self, uri: &Uri) -> &Access {
        A::access(self, uri)
    }

    fn answer(&self, request: Request<Incoming>, ends: Ends) -> impl Future<Output = Response<Self::Body>> + Send {
        A::answer(self, request, ends)
    }

    fn admits(&self) -> impl Future<Output = ()> + Send {
        A::admits(self)
    }

    fn is_waited_for(&self) -> bool {
        A::is_waited_for(self)
    }
}

/// Counts the connections of one port.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    /// Connections that are open.
    pub open: AtomicU64,
    /// Number of connections closed for newer connections or answers, refused because all were busy, or closed because the
    /// client kept its HTTP/2 flow control window closed for an answer.
    pub cut: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub failed_handshakes: AtomicU64,
}

/// An open connection; it counts as open until this is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<ConnectionCounts>);

impl OpenConnection {
    /// Counts an open connection.
    pub(super) fn count(counts: &Arc<ConnectionCounts>) -> OpenConnection {
        counts.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(counts))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One port: its application, limits and certificates.
#[derive(Debug)]
pub struct HttpServer<A> {
    /// Answers the requests.
    pub application: A,
    /// Limits of the connections.
    pub limits: ConnectionLimits,
    /// Certificates for HTTPS; `None` serves plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
    /// Counts the connections.
    pub counts: Arc<ConnectionCounts>,
}
