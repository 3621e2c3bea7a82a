//! One connection: TLS handshake, requests, the checks of their callers, and the end.

use super::application::{HttpApplication, HttpServer, OpenConnection};
use super::certificate::Certificates;
use super::connection_limit::{Busy, ConnectionPermit, TimeOver};
use super::write_timeout::TimedWrites;
use crate::caller::{Denial, Ends};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Maximum bytes of an answer that the kernel keeps until the client takes them; it charges the process for twice as
/// many. Without a limit it keeps megabytes for each client that reads nothing.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum bytes that the kernel keeps in each direction for a client of another machine or pod; it charges the process, and so the
/// memory limit of its container, for twice as many. The kernel lets a receive buffer without a limit grow to 6 MiB or more, and a
/// client that sends requests and reads no answers fills it. 512 such clients take 32 MiB. An answer of 8 MB still passes at
/// 30 MB/s over a round trip of 0.5 ms.
const FAR_BUFFER: usize = 16 * 1024;
/// Maximum bytes of request headers. A Kubernetes bearer token has about 1 KiB; hyper's smallest buffer is 8 KiB.
const HEADER_BYTES: u32 = 16 * 1024;
/// How long a connection without a request so far stays open after a stop. A client sends its request within a round
/// trip.
const REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// Maximum bytes that a client may send on an HTTP/2 connection before the application reads them, and maximum bytes of
/// one answer that wait for the client. This is HTTP/2's initial window; hyper's default is a megabyte, and a client
/// that reads nothing holds this much memory for each request.
const HTTP2_WINDOW: u32 = 64 * 1024;
/// Time between two pings of an HTTP/2 client. A client that does not answer within [`PING_TIMEOUT`] is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Time limit for the answer to a ping, see [`PING_EVERY`].
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection with its permit.
pub(super) struct Connection<A> {
    peer: SocketAddr,
    open: Arc<OpenPermit>,
    server: Arc<HttpServer<A>>,
}

/// The permit and the counters that an open connection holds.
#[derive(Debug)]
struct OpenPermit {
    permit: ConnectionPermit,
    _counted: OpenConnection,
    /// The server's stop waits for this token.
    _tracked: TaskTrackerToken,
}

/// Keeps a connection open and busy for the server after the application has taken it over for another protocol. The
/// server adds it to each request that asks for another protocol.
#[derive(Clone, Debug)]
pub struct TakenConnection {
    _open: Arc<OpenPermit>,
    _busy: Arc<Busy>,
}

/// Limits what the kernel keeps for a client that does not read, or sends what is not read. A client of this machine, such as
/// kube-scheduler with its calls of a megabyte, keeps the kernel's own receive buffer.
pub(super) fn limit_buffers(stream: &TcpStream, peer: IpAddr) {
    // A limit that the kernel refuses leaves its own limits in force.
    if peer.to_canonical().is_loopback() {
        let _ = set_socket_send_buffer_size(stream, SEND_BUFFER);
    } else {
        let _ = set_socket_send_buffer_size(stream, FAR_BUFFER);
        let _ = set_socket_recv_buffer_size(stream, FAR_BUFFER);
    }
}

impl<A: HttpApplication> Connection<A> {
    pub(super) fn new(
        peer: SocketAddr,
        permit: ConnectionPermit,
        server: Arc<HttpServer<A>>,
        tracked: TaskTrackerToken,
    ) -> Connection<A> {
        let counted = OpenConnection::count(&server.counts);
        Connection { peer, open: Arc::new(OpenPermit { permit, _counted: counted, _tracked: tracked }), server }
    }

    /// Serves the connection until it ends. A stop lets a request in flight end.
    pub(super) async fn run(self, stream: TcpStream, stop: CancellationToken) {
        let _ = stream.set_nodelay(true);
        limit_buffers(&stream, self.peer.ip());
        // If the local address is unknown, a `Host` with an address counts as this node only if it is loopback or
        // allowed.
        let local = stream.local_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |local| local.ip());
        let ends = Ends { peer: self.peer.ip(), local };
        let stream = TimedWrites::new(stream, Arc::clone(&self.server));
        let Some(certificates) = &self.server.certificates else {
            return self.answer(stream, None, ends, stop).await;
        };
        // Boxes keep the task small: a connection lives for hours, and its handshake and each request for a moment.
        let Some((stream, streams)) = Box::pin(self.handshake(certificates, stream, &stop)).await else { return };
        self.answer(stream, streams, ends, stop).await;
    }

    /// Makes the TLS handshake. Returns the connection, and how many requests at once it may have if it speaks HTTP/2.
    async fn handshake(
        &self,
        certificates: &Certificates,
        stream: TimedWrites<A>,
        stop: &CancellationToken,
    ) -> Option<(TlsStream<TimedWrites<A>>, Option<u32>)> {
        let handshake = certificates.acceptor().accept(stream);
        let stopped = async {
            stop.cancelled().await;
            tokio::time::sleep(REQUEST_WITHIN).await;
        };
        let handshake_result = tokio::select! {
            biased;
            handshake_result = tokio::time::timeout(self.server.limits.header_timeout, handshake) => handshake_result,
            () = self.open.permit.must_close() => return None,
            () = stopped => return None,
        };
        match handshake_result {
            Ok(Ok(stream)) => {
                let streams = certificates.http2_streams(stream.get_ref().1.alpn_protocol());
                return Some((stream, streams));
            }
            Ok(Err(error)) => {
                self.server.counts.failed_handshakes.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, peer = %self.peer, "TLS handshake failed");
            }
            Err(_) => {
                self.server.counts.failed_handshakes.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(peer = %self.peer, "TLS handshake took too long");
            }
        }
        None
    }

    /// Answers the requests of the connection: over HTTP/2 with at most `streams` requests at once, or over HTTP/1.
    fn answer(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        streams: Option<u32>,
        ends: Ends,
        stop: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let request_received = CancellationToken::new();
        let received = request_received.clone();
        let answer = service_fn(move |mut request: Request<Incoming>| {
            received.cancel();
            let (server, busy) = (Arc::clone(&self.server), self.open.permit.busy());
            if self.server.limits.newcomers.is_some() {
                request.extensions_mut().insert(self.open.permit.newcomer());
            }
            if request.headers().contains_key(header::UPGRADE) {
                let (open, busy) = (Arc::clone(&self.open), self.open.permit.busy());
                request.extensions_mut().insert(TakenConnection { _open: open, _busy: Arc::new(busy) });
            }
            // Box the response future: it may outlive the stack frame that built its first part.
            Box::pin(async move {
                let response = server.response(request, ends).await;
                Ok::<_, std::convert::Infallible>(response.map(|inner| BusyBody::new(inner, busy)))
            })
        });
        let stream = TokioIo::new(stream);
        let signals = (request_received, stop);
        match streams {
            None => {
                let served = Box::pin(http1().serve_connection(stream, answer).with_upgrades());
                Box::pin(self.until_end(served, http1::UpgradeableConnection::graceful_shutdown, signals))
            }
            Some(streams) => {
                let served = Box::pin(http2(streams).serve_connection(stream, answer));
                Box::pin(self.until_end(served, http2::Connection::graceful_shutdown, signals))
            }
        }
    }

    /// Waits until the connection ends, has no request for too long, or must end; `close` then ends it gracefully. A
    /// client that does not read its answer is cut: it would not read a graceful end either.
    async fn until_end<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut served: Pin<Box<C>>,
        close: fn(Pin<&mut C>),
        (request_received, stop): (CancellationToken, CancellationToken),
    ) {
        let limits = self.server.limits;
        tokio::select! {
            ended = &mut served => return self.log(ended),
            () = self.open.permit.must_close() => return,
            over = self.open.permit.time_is_over(limits.header_timeout, limits.write_timeout) => match over {
                // No complete request has arrived, or no further request.
                TimeOver::Idle => {}
                TimeOver::Untaken => {
                    self.server.counts.cut.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(peer = %self.peer, "the client did not take its answer in time");
                    return;
                }
            },
            () = stop.cancelled() => {
                // For hyper a new connection is idle, although its first request may be on the way: wait for it,
                // answer, close.
                tokio::select! {
                    // Handle what has arrived before the timeout.
                    biased;
                    ended = &mut served => return self.log(ended),
                    () = request_received.cancelled() => {}
                    () = tokio::time::sleep(REQUEST_WITHIN) => {}
                }
            }
        }
        close(served.as_mut());
        // After the drain time the connection is dropped.
        if let Ok(ended) = tokio::time::timeout(limits.drain, served).await {
            self.log(ended);
        }
    }

    fn log(&self, ended: hyper::Result<()>) {
        if let Err(error) = ended {
            tracing::debug!(%error, peer = %self.peer, "connection ended early");
        }
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // No timer: `until_end` closes an idle connection gracefully, so that an HTTPS client is notified.
    builder.max_buf_size(HEADER_BYTES as usize);
    builder
}

/// HTTP/2 with at most `streams` requests at once.
fn http2(streams: u32) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
    builder.max_concurrent_streams(streams).max_header_list_size(HEADER_BYTES);
    builder.initial_stream_window_size(HTTP2_WINDOW).initial_connection_window_size(HTTP2_WINDOW);
    builder.max_send_buf_size(HTTP2_WINDOW as usize);
    builder
}

impl<A: HttpApplication> HttpServer<A> {
    /// The application's answer, or the refusal of a caller that may not make this request.
    async fn response(&self, request: Request<Incoming>, ends: Ends) -> Response<Either<A::Body, Full<Bytes>>> {
        match self.application.access(request.uri()).check(request.uri(), request.headers(), ends) {
            Ok(()) => self.application.answer(request, ends).await.map(Either::Left),
            Err(denial) => refusal(denial, &request).map(Either::Right),
        }
    }
}

fn refusal(denial: Denial, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(denial.text + "\n"));
    *response.status_mut() = denial.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if denial.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // The body is not read, so the connection has no next request. HTTP/2 ends the stream only.
    if request.version() < Version::HTTP_2 && !request.body().is_end_stream() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An answer's body that keeps its connection busy until it is dropped, and knows whether it waits for the client.
///
/// hyper polls for a frame when it has passed on the previous frame, and drops the body after the last frame. It holds
/// a frame that does not fit into HTTP/2's flow control window. A client that keeps its window closed may wait for
/// ever, and the socket shows only silence.
struct BusyBody<B> {
    inner: B,
    busy: Busy,
}

impl<B: Body> BusyBody<B> {
    fn new(inner: B, mut busy: Busy) -> BusyBody<B> {
        // An answer without a body leaves the client nothing to read. Applications that take the connection over answer
        // so.
        if !inner.is_end_stream() {
            busy.offers();
        }
        BusyBody { inner, busy }
    }
}

impl<B: Body + Unpin> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.busy.offers(),
            // The application still makes the next part, or there is no next part.
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => self.busy.is_taken(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
