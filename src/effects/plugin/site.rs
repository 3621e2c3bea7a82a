//! One served socket, for as long as its file is the agent's.

use super::line::{Line, Lines};
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

/// The kubelet sends every free id with `GetPreferredAllocation`: tens of thousands on a large node. tonic's default
/// limit is 4 MiB, the kubelet's own limit for answers.
pub(super) const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// The kubelet closes its connection within milliseconds of the end of the list.
const HANGS_UP_WITHIN: Duration = Duration::from_millis(500);
/// A call whose client hangs must not delay the next step.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// One served socket.
#[derive(Debug)]
pub(super) struct Site {
    path: PathBuf,
    file: SocketFile,
    service: Service,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    lines: watch::Receiver<Lines>,
    /// Ends the server, after the registration has ended.
    end: CancellationToken,
}

impl Site {
    /// Listens on `path` and serves the routes.
    pub(super) fn open(path: &Path, service: Service, routes: Routes) -> io::Result<Site> {
        let listener = socket::bind("device plugin socket", path)?;
        let file = SocketFile::of(&listener)
            .ok_or_else(|| io::Error::other(format!("{} vanished as it was made", path.display())))?;
        let (counted, lines) = watch::channel(Lines::default());
        let incoming = UnixListenerStream::new(UnixListener::from_std(listener)?)
            .map(move |caller| caller.map(|caller| Line::new(caller, &counted)));
        let end = CancellationToken::new();
        let ended = end.clone();
        let server = tokio::spawn(
            Server::builder()
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming, async move { ended.cancelled().await }),
        );
        Ok(Site { path: path.to_owned(), file, service, server, lines, end })
    }

    /// Whether the file is still the agent's: the kubelet deletes the sockets in its folder when it starts.
    pub(super) fn stands(&self) -> bool {
        self.file.stands() && !self.server.is_finished()
    }

    /// The numbers of connections.
    pub(super) fn lines(&self) -> watch::Receiver<Lines> {
        self.lines.clone()
    }

    /// The path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends every stream, then removes the file, then ends the server, so that the kubelet sees the end of the old
    /// registration before it can see a new one. The kubelet closes its connections when it has removed the
    /// registration, and gets answers until then. The file stays if it is `left` to the next agent.
    pub(super) async fn close(mut self, left: bool) {
        self.service.end.cancel();
        let _ = timeout(HANGS_UP_WITHIN, self.lines.wait_for(|lines| lines.open == 0)).await;
        if !left {
            self.file.remove();
        }
        self.end().await;
    }

    /// Removes the file and ends the server at once: the kubelet has no registration that it must remove first.
    pub(super) async fn hang_up(self) {
        self.file.remove();
        self.end().await;
    }

    async fn end(self) {
        self.end.cancel();
        let _ = timeout(ENDS_WITHIN, self.server).await;
    }
}
