//! One connection of the kubelet, counted while it is open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::server::Connected;

/// The number of open connections, and of all connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) open: usize,
    pub(super) ever: u64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    lines: watch::Sender<Lines>,
}

impl Line {
    pub(super) fn new(stream: UnixStream, lines: &watch::Sender<Lines>) -> Line {
        lines.send_modify(|lines| {
            lines.open += 1;
            lines.ever += 1;
        });
        Line { stream, lines: lines.clone() }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.send_modify(|lines| lines.open = lines.open.saturating_sub(1));
    }
}

impl Connected for Line {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
