//! A socket that cuts a client that stops reading, and leaves nothing in the kernel.
//!
//! The kernel goes on to send what a closed socket still holds, for minutes if the client takes nothing, and charges it to the
//! container, while the connection no longer counts here. So a connection that is cut loses what the kernel holds, and one that ends
//! regularly ends only when the client's kernel has everything.
//!
//! Once the socket's send buffer is full, the client must take the rest of the answer within a time limit. The limit
//! counts from the first stall and not from the last byte, so a client that reads one byte a second is cut too. The
//! limit is shorter while the application reports that requests wait (`is_waited_for`).

use super::application::{ConnectionLimits, HttpApplication, HttpServer};
use rustix::net::sockopt::set_socket_linger;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Time between two looks at what the client's kernel has not confirmed yet. It usually confirms within a round trip.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The socket of one connection.
#[derive(Debug)]
pub(super) struct TimedWrites<A> {
    stream: TcpStream,
    /// Defines how long a client may stall, and whether requests wait for its answer to end.
    server: Arc<HttpServer<A>>,
    stalled: Option<Stall>,
    /// Whether the end of the answers was written.
    ended: bool,
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
        // When the socket is closed, the kernel drops what it holds.
        let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        TimedWrites { stream, server, stalled: None, ended: false }
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

    /// Ends the answers, and waits until the client's kernel has confirmed everything, at most as long as for a stalled write.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            (self.ended, self.stalled) = (true, None);
        }
        if unconfirmed(&self.stream)? == 0 {
            // Nothing is left to drop, so the socket is closed without a reset.
            return Poll::Ready(set_socket_linger(&self.stream, None).map_err(io::Error::from));
        }
        self.wait_for_confirmation(cx)
    }
}

/// The request for the unsent and unconfirmed bytes of a socket: `SIOCOUTQ`, the same number as `TIOCOUTQ` (tcp(7)).
const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Number of bytes, with the end of the stream as one, that the client's kernel has not confirmed.
fn unconfirmed(stream: &TcpStream) -> io::Result<u32> {
    #[expect(unsafe_code, reason = "rustix has no safe call for SIOCOUTQ")]
    // SAFETY: SIOCOUTQ writes one int.
    let bytes = unsafe { rustix::ioctl::ioctl(stream, rustix::ioctl::Getter::<SIOCOUTQ, libc::c_int>::new()) }?;
    Ok(u32::try_from(bytes).unwrap_or(0))
}

impl<A: HttpApplication> TimedWrites<A> {
    fn wait_for_confirmation(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let write_timeout = self.server.limits.write_timeout;
        let wait = self.stalled.get_or_insert_with(|| Stall {
            since: Instant::now(),
            next_check: Box::pin(tokio::time::sleep(LOOK_EVERY)),
        });
        while wait.next_check.as_mut().poll(cx).is_ready() {
            // After a reset, the kernel still counts what it holds.
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            if unconfirmed(&self.stream)? == 0 {
                return Poll::Ready(set_socket_linger(&self.stream, None).map_err(io::Error::from));
            }
            if wait.since.elapsed() >= write_timeout {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            // A client that is slow for long is looked at less often.
            wait.next_check.as_mut().reset(Instant::now() + LOOK_EVERY.max(wait.since.elapsed() / 4));
        }
        Poll::Pending
    }

    /// A partial write does not stop the clock.
    fn still_in_time<T>(&mut self, cx: &mut Context<'_>, result: io::Result<T>) -> Poll<io::Result<T>> {
        if self.has_run_out(cx) { self.wait(cx) } else { Poll::Ready(result) }
    }
}
