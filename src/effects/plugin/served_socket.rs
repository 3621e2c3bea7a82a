//! A unix socket on which the agent serves the kubelet, and the check whether its file is still the agent's own.

use super::connection::KubeletConnection;
use super::service::Service;
use crate::socket::{self, SocketFile};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

/// Maximum size of a request in bytes. `GetPreferredAllocation` has every free id: tens of thousands on a large node.
/// tonic's default limit is 4 MiB, which is also the kubelet's limit for answers.
pub(super) const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// How long the kubelet may take to close its connection; usually milliseconds after the end of the list.
const DISCONNECTS_WITHIN: Duration = Duration::from_millis(500);
/// Timeout for the end of the server, so that a client whose call hangs does not delay the next step.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// One served socket.
#[derive(Debug)]
pub(super) struct ServedSocket {
    path: PathBuf,
    file: SocketFile,
    service: Service,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    /// The number of open connections.
    connections: watch::Receiver<usize>,
    /// Ends the server after the registration has ended.
    end: CancellationToken,
}

impl ServedSocket {
    /// Listens on `path` and serves the routes.
    pub(super) fn open(path: &Path, service: Service, routes: Routes) -> io::Result<ServedSocket> {
        let listener = socket::bind("device plugin socket", path)?;
        let file = SocketFile::of(&listener)
            .ok_or_else(|| io::Error::other(format!("{} was removed while it was created", path.display())))?;
        let (counted, connections) = watch::channel(0);
        let incoming = UnixListenerStream::new(UnixListener::from_std(listener)?)
            .map(move |caller| caller.map(|caller| KubeletConnection::new(caller, &counted)));
        let end = CancellationToken::new();
        let ended = end.clone();
        let server = tokio::spawn(
            Server::builder()
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming, async move { ended.cancelled().await }),
        );
        Ok(ServedSocket { path: path.to_owned(), file, service, server, connections, end })
    }

    /// Whether the file is still the agent's own: the kubelet deletes the sockets in its folder when it starts.
    pub(super) fn still_ours(&self) -> bool {
        self.file.still_ours() && !self.server.is_finished()
    }

    /// The path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends every stream, then removes the file, then ends the server, so that the kubelet sees the end of the old
    /// registration before it can see a new registration. The kubelet closes its connections when it has removed the
    /// registration; until then its calls are answered.
    pub(super) async fn close(mut self) {
        self.service.end.cancel();
        let _ = timeout(DISCONNECTS_WITHIN, self.connections.wait_for(|open| *open == 0)).await;
        self.file.remove();
        self.end().await;
    }

    /// Removes the file and ends the server at once, because the kubelet has no registration to remove first.
    pub(super) async fn close_at_once(self) {
        self.file.remove();
        self.end().await;
    }

    async fn end(self) {
        self.end.cancel();
        let _ = timeout(ENDS_WITHIN, self.server).await;
    }
}
