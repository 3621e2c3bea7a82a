//! One connection of the kubelet, counted while it is open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::server::Connected;

/// One connection.
#[derive(Debug)]
pub(super) struct KubeletConnection {
    stream: UnixStream,
    /// The number of open connections.
    open: watch::Sender<usize>,
}

impl KubeletConnection {
    pub(super) fn new(stream: UnixStream, open: &watch::Sender<usize>) -> KubeletConnection {
        open.send_modify(|open| *open += 1);
        KubeletConnection { stream, open: open.clone() }
    }
}

impl Drop for KubeletConnection {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl Connected for KubeletConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for KubeletConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for KubeletConnection {
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
