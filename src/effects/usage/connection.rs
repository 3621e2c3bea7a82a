//! Connections of the usage socket. Their number is limited, a silent connection is cut, and each connection shows
//! whether the client has read the data sent to it.

use futures_core::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Maximum number of connections; a further connection is closed at once. The limit allows four connections for each
/// stream that may be open. An idle connection holds about 10 KiB, so all together stay below 3 MiB.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Time limit for the first byte. A gRPC client sends first and at once, so a peer that is silent for this long is not
/// a gRPC client.
const SILENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for example if no file descriptor is free. An immediate retry would only use CPU
/// time.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Requested size of the socket's send buffer in bytes; the kernel raises it to its minimum, 4.5 KiB. With a small
/// buffer, the agent notices a client that does not read ([`Peer::has_read`]), and the kernel keeps little data for it.
const SEND_BUFFER: usize = 1;

/// Accepts connections.
pub(super) struct Incoming {
    listener: UnixListener,
    slots: Arc<Semaphore>,
    pause: Option<Pin<Box<Sleep>>>,
}

/// One accepted connection.
pub(super) struct Connection {
    socket: Arc<UnixStream>,
    /// Runs until the first byte arrives.
    silence: Option<Pin<Box<Sleep>>>,
    _slot: OwnedSemaphorePermit,
}

/// The client's end of a connection, for request handlers. It does not keep the connection open.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer(Weak<UnixStream>);

// === impl Incoming ===

impl Incoming {
    pub(super) fn new(listener: UnixListener) -> Self {
        Incoming { listener, slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)), pause: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((socket, _)) => match Arc::clone(&self.slots).try_acquire_owned() {
                    Ok(slot) => return Poll::Ready(Some(Ok(Connection::new(socket, slot)))),
                    Err(_) => drop(socket),
                },
                Err(_) => self.pause = Some(Box::pin(sleep(AFTER_FAILURE))),
            }
        }
    }
}

// === impl Peer ===

impl Peer {
    /// Whether the client has read (nearly) everything sent to it. Linux reports a unix socket as writable while at
    /// most a quarter of its send buffer waits to be read; here, that quarter is one small packet. For a closed
    /// connection the answer is true.
    pub(super) fn has_read(&self) -> bool {
        let Some(socket) = self.0.upgrade() else { return true };
        let mut polled = [PollFd::new(&*socket, PollFlags::OUT)];
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(ready_count) => ready_count > 0,
            // Interrupted by a signal: the caller checks again.
            Err(_) => false,
        }
    }
}

// === impl Connection ===

impl Connection {
    fn new(socket: UnixStream, slot: OwnedSemaphorePermit) -> Self {
        // No known kernel refuses this. If a kernel refused it, a stalled client would only be noticed later.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        Connection { socket: Arc::new(socket), silence: Some(Box::pin(sleep(SILENCE))), _slot: slot }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer(Arc::downgrade(&self.socket))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(silence) = &mut self.silence
                && silence.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    self.silence = None;
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            match self.socket.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_detected_until_it_has_read() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let connection = Connection::new(UnixStream::from_std(ours).unwrap(), slot);
        let peer = connection.connect_info();
        assert!(peer.has_read(), "nothing was sent");

        connection.socket.writable().await.unwrap();
        connection.socket.try_write(&[7; 1000]).unwrap();
        assert!(!peer.has_read(), "1,000 bytes wait");
        let mut buffer = [0; 1000];
        theirs.read_exact(&mut buffer).unwrap();
        assert!(peer.has_read(), "they were read");

        while connection.socket.try_write(&[7; 1000]).is_ok() {}
        assert!(!peer.has_read());
        drop(connection);
        assert!(peer.has_read(), "a closed connection does not delay the stream");
    }
}
