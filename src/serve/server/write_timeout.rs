//! A socket that cuts a client that stops reading.
//!
//! Once the socket's send buffer is full, the client must take the rest of the answer within a time limit. The limit
//! counts from the first stall and not from the last byte, so a client that reads one byte a second is cut too. The
//! limit is shorter while the application reports that requests wait (`is_waited_for`).

use super::application::{ConnectionLimits, HttpApplication, HttpServer};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// The socket of one connection.
#[derive(Debug)]
pub(super) struct TimedWrites<A> {
    stream: TcpStream,
    /// Defines how long a client may stall, and whether requests wait for its answer to end.
    server: Arc<HttpServer<A>>,
    stalled: Option<Stall>,
}

/// The moment since which the socket's send buffer is full.
#[derive(Debug)]
struct Stall {
    since: Instant,
    /// Ends at the next check.
    next_check: Pin<Box<Sleep>>,
}

impl<A: HttpApplication> TimedWrites<A> {
    pub(super) fn new(stream: TcpStream, server: Arc<HttpServer<A>>) -> TimedWrites<A> {
        TimedWrites { stream, server, stalled: None }
    }

    /// Starts the clock at the first stall; returns an error when the time has run out.
    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let busy_write_timeout = self.server.limits.busy_write_timeout.min(self.server.limits.write_timeout);
        self.stalled.get_or_insert_with(|| Stall {
            since: Instant::now(),
            next_check: Box::pin(tokio::time::sleep(busy_write_timeout)),
        });
        if self.has_run_out(cx) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the reader did not take the answer in time",
            )));
        }
        Poll::Pending
    }

    /// Whether the client's time has run out. If not, this task is woken for the next check.
    fn has_run_out(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(stall) = &mut self.stalled else { return false };
        let ConnectionLimits { busy_write_timeout, write_timeout, .. } = self.server.limits;
        while stall.next_check.as_mut().poll(cx).is_ready() {
            let left = write_timeout.saturating_sub(stall.since.elapsed());
            if left.is_zero() || self.server.application.is_waited_for() {
                return true;
            }
            stall.next_check.as_mut().reset(Instant::now() + busy_write_timeout.min(left));
        }
        false
    }
}

impl<A: HttpApplication> AsyncRead for TimedWrites<A> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<A: HttpApplication> AsyncWrite for TimedWrites<A> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.wait(cx),
            Poll::Ready(result) => self.still_in_time(cx, result),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, bytes) {
            Poll::Pending => self.wait(cx),
            Poll::Ready(result) => self.still_in_time(cx, result),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Stops the clock: hyper flushes once its own buffer is empty, so the system has the whole answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stalled = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<A: HttpApplication> TimedWrites<A> {
    /// A partial write does not stop the clock.
    fn still_in_time<T>(&mut self, cx: &mut Context<'_>, result: io::Result<T>) -> Poll<io::Result<T>> {
        if self.has_run_out(cx) { self.wait(cx) } else { Poll::Ready(result) }
    }
}
