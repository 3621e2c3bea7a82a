//! Limits the connections of the admin port: a connection over the limit is closed at once. Adds to each request the
//! local address of its connection, which the check of `Host` accepts.

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Layer;

/// Accepts a bounded number of connections.
#[derive(Clone, Debug)]
pub struct ConnectionSemaphore {
    permits: Arc<Semaphore>,
}

impl ConnectionSemaphore {
    /// A semaphore with this many connection permits.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        ConnectionSemaphore { permits: Arc::new(Semaphore::new(permits)) }
    }
}

/// The local address of a connection, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct LocalAddress(pub IpAddr);

impl<S> Accept<TcpStream, S> for ConnectionSemaphore {
    type Stream = PermittedConnection<TcpStream>;
    type Service = AddExtension<S, LocalAddress>;
    type Future = Ready<io::Result<(PermittedConnection<TcpStream>, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let enter = || {
            let permit = Arc::clone(&self.permits).try_acquire_owned();
            let permit = permit.map_err(|_| io::Error::other("too many connections"))?;
            let local = LocalAddress(stream.local_addr()?.ip());
            Ok((PermittedConnection { stream, _permit: permit }, Extension(local).layer(service)))
        };
        ready(enter())
    }
}

/// A connection that holds its permit while it is open.
#[derive(Debug)]
pub struct PermittedConnection<I> {
    stream: I,
    _permit: OwnedSemaphorePermit,
}

impl<I: AsyncRead + Unpin> AsyncRead for PermittedConnection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PermittedConnection<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
