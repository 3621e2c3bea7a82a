//! A socket that we serve on, for as long as its file is ours.

use super::service::Service;
use crate::socket::{self, SocketFile};
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

/// kubelet sends every free id with `GetPreferredAllocation`: tens of thousands on a large node, where tonic's own bound of
/// 4 MiB is what kubelet's side has for answers.
pub(super) const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// One served socket.
#[derive(Debug)]
pub(super) struct Site {
    path: PathBuf,
    file: SocketFile,
    service: Service,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    callers: watch::Receiver<u64>,
}

impl Site {
    /// Listens and serves.
    pub(super) fn open(path: &Path, service: Service, routes: Routes) -> io::Result<Site> {
        let listener = socket::bind("kubelet's way to us", path)?;
        let file = SocketFile::of(&listener)
            .ok_or_else(|| io::Error::other(format!("{} vanished as it was made", path.display())))?;
        let (called, callers) = watch::channel(0);
        let incoming = UnixListenerStream::new(UnixListener::from_std(listener)?).map(move |caller| {
            called.send_modify(|count| *count += 1);
            caller
        });
        let end = service.end.clone();
        let server = tokio::spawn(
            Server::builder()
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming, async move { end.cancelled().await }),
        );
        Ok(Site { path: path.to_owned(), file, service, server, callers })
    }

    /// Whether the file is still ours: kubelet deletes the sockets in its folder when it starts.
    pub(super) fn stands(&self) -> bool {
        self.file.stands() && !self.server.is_finished()
    }

    /// How many connections there have been.
    pub(super) fn callers(&self) -> watch::Receiver<u64> {
        self.callers.clone()
    }

    /// Where.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends every stream, then the server, then the file: in this order, so that kubelet sees the end of the old
    /// registration before it can see a new one.
    pub(super) async fn close(self) {
        self.service.end.cancel();
        self.file.remove();
        // A call that hangs in its client must not hold up what comes next.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), self.server).await;
    }
}
