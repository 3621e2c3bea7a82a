//! The door: so many connections and no more; one too many is closed at once.

use axum_server::accept::Accept;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets a bounded number in.
#[derive(Clone, Debug)]
pub struct Door {
    seats: Arc<Semaphore>,
}

impl Door {
    /// A door to so many seats.
    #[must_use]
    pub fn new(seats: usize) -> Self {
        Door { seats: Arc::new(Semaphore::new(seats)) }
    }
}

impl<I, S> Accept<I, S> for Door {
    type Stream = Seated<I>;
    type Service = S;
    type Future = Ready<io::Result<(Seated<I>, S)>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        ready(match Arc::clone(&self.seats).try_acquire_owned() {
            Ok(seat) => Ok((Seated { stream, _seat: seat }, service)),
            Err(_) => Err(io::Error::other("too many connections")),
        })
    }
}

/// A connection that holds its seat while it is open.
#[derive(Debug)]
pub struct Seated<I> {
    stream: I,
    _seat: OwnedSemaphorePermit,
}

impl<I: AsyncRead + Unpin> AsyncRead for Seated<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Seated<I> {
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
