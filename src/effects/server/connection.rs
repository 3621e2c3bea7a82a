//! One connection: TLS handshake, requests, the checks of their callers, and the end.

use super::application::{HttpApplication, HttpServer, OpenConnection};
use super::connection_limit::{Busy, ConnectionPermit};
use super::write_timeout::TimedWrites;
use crate::caller::{Denial, Ends};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Largest request headers, in bytes. A Kubernetes bearer token has about 1 KiB; hyper's smallest buffer is 8 KiB.
const HEADER_BYTES: u32 = 16 * 1024;
/// How long a connection without a request so far stays open after a stop. A client sends its request within a round
/// trip.
const REQUEST_WITHIN: Duration = Duration::from_millis(250);
/// Most bytes of an HTTP/2 connection that a client may send before the application reads them, and most bytes of one
/// answer that wait for the client. It is the window that HTTP/2 begins with. Thousands of agents may each have a
/// connection, so the window is not the megabyte that hyper would choose.
const HTTP2_WINDOW: u32 = 64 * 1024;
/// Time between two pings of an HTTP/2 client. A client that does not answer within [`PING_TIMEOUT`] is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Time to answer a ping, see [`PING_EVERY`].
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection with its permit.
pub(super) struct Connection<A> {
    peer: SocketAddr,
    permit: ConnectionPermit,
    server: Arc<HttpServer<A>>,
}

impl<A: HttpApplication> Connection<A> {
    pub(super) fn new(peer: SocketAddr, permit: ConnectionPermit, server: Arc<HttpServer<A>>) -> Connection<A> {
        Connection { peer, permit, server }
    }

    /// Serves the connection until it ends. A stop lets a request in flight end.
    pub(super) async fn run(self, stream: TcpStream, stop: CancellationToken) {
        let _open = OpenConnection::count(&self.server.counts);
        let _ = stream.set_nodelay(true);
        // If the local address is unknown, a `Host` with an address counts as this node only if it is loopback or
        // allowed.
        let local = stream.local_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |local| local.ip());
        let ends = Ends { peer: self.peer.ip(), local };
        let stream = TimedWrites::new(stream, Arc::clone(&self.server));
        let Some(certificates) = &self.server.certificates else {
            return self.answer(stream, None, ends, stop).await;
        };
        let handshake = certificates.acceptor().accept(stream);
        let stopped = async {
            stop.cancelled().await;
            tokio::time::sleep(REQUEST_WITHIN).await;
        };
        let handshake_result = tokio::select! {
            biased;
            handshake_result = tokio::time::timeout(self.server.limits.header_timeout, handshake) => handshake_result,
            () = self.permit.must_close() => return,
            () = stopped => return,
        };
        match handshake_result {
            Ok(Ok(stream)) => {
                let streams = certificates.http2_streams(stream.get_ref().1.alpn_protocol());
                self.answer(stream, streams, ends, stop).await;
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
    }

    /// Answers the requests of the connection: over HTTP/2 with so many `streams` at once, or over HTTP/1.
    async fn answer(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        streams: Option<u32>,
        ends: Ends,
        stop: CancellationToken,
    ) {
        let request_received = CancellationToken::new();
        let answer = service_fn(|request: Request<Incoming>| {
            request_received.cancel();
            let (server, busy) = (Arc::clone(&self.server), self.permit.busy());
            async move {
                let response = server.response(request, ends).await;
                Ok::<_, std::convert::Infallible>(response.map(|inner| BusyBody { inner, _busy: busy }))
            }
        });
        let limits = self.server.limits;
        let builder = protocol(streams);
        let served = builder.serve_connection(TokioIo::new(stream), answer);
        tokio::pin!(served);
        tokio::select! {
            ended = &mut served => return self.log(ended),
            () = self.permit.must_close() => return,
            // No whole request has come, or no further one.
            () = self.permit.idle_for(limits.header_timeout) => {}
            () = stop.cancelled() => {
                // For hyper a new connection is idle, although its first request may be on the way: wait for it,
                // answer, close.
                tokio::select! {
                    // First what has arrived, and then the time.
                    biased;
                    ended = &mut served => return self.log(ended),
                    () = request_received.cancelled() => {}
                    () = tokio::time::sleep(REQUEST_WITHIN) => {}
                }
            }
        }
        served.as_mut().graceful_shutdown();
        // After the drain time the connection is dropped.
        if let Ok(ended) = tokio::time::timeout(limits.drain, served).await {
            self.log(ended);
        }
    }

    fn log(&self, ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
        if let Err(error) = ended {
            tracing::debug!(%error, peer = %self.peer, "connection ended early");
        }
    }
}

/// HTTP/2 with so many requests at once, or HTTP/1.
fn protocol(streams: Option<u32>) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let Some(streams) = streams else {
        // No timer: the connection itself ends one that is idle, in order, so that an HTTPS client is notified.
        builder.http1().max_buf_size(HEADER_BYTES as usize);
        return builder.http1_only();
    };
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
    http2.max_concurrent_streams(streams).max_header_list_size(HEADER_BYTES);
    http2.initial_stream_window_size(HTTP2_WINDOW).initial_connection_window_size(HTTP2_WINDOW);
    http2.max_send_buf_size(HTTP2_WINDOW as usize);
    builder.http2_only()
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

/// An answer's body that keeps its connection busy until it is dropped.
///
/// hyper drops the body after its last frame, when it has the frame in its own buffer.
struct BusyBody<B> {
    inner: B,
    _busy: Busy,
}

impl<B: Body + Unpin> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
