//! The servers, each as a task that must not end.

use super::latch::Progress;
use effects::http;
use model::view::NodeView;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a usage socket that cannot be opened is left alone before the next attempt.
const AGAIN: Duration = Duration::from_secs(30);

/// Between two attempts while the agent before us has it.
const FOLLOWS: Duration = Duration::from_millis(200);
/// So long after our turn has come it may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What every server shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The newest view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Whether we are ready.
    pub ready: http::Readiness,
    /// The end.
    pub stop: CancellationToken,
}

/// `:9410`. New settings mean a new server on the same listener; the old one ends its requests in its own time, so no
/// connection is refused and none is cut.
///
/// # Errors
/// When the listener cannot be used.
pub(crate) async fn http(
    listener: TcpListener,
    mut settings: watch::Receiver<http::Settings>,
    shown: Shown,
) -> std::io::Result<()> {
    loop {
        let now = settings.borrow_and_update().clone();
        let generation = shown.stop.child_token();
        let serving =
            http::serve(listener.try_clone()?, now, shown.view.clone(), shown.ready.clone(), generation.clone());
        let mut serving = tokio::spawn(serving);
        tokio::select! {
            ended = &mut serving => return ended.map_err(std::io::Error::other)?,
            Ok(()) = settings.changed() => generation.cancel(),
        }
    }
}

/// The usage socket. Metrics matter more: where it cannot be opened (a read-only root, a full disk) that is an error
/// line and a reason at `/readyz`, and it is tried again. While it is the socket of the agent before us, that is waited for.
///
/// # Errors
/// When an open socket cannot be used any more.
pub(crate) async fn usage(
    path: PathBuf,
    broken: watch::Sender<Option<Arc<str>>>,
    progress: watch::Receiver<Progress>,
    shown: Shown,
) -> std::io::Result<()> {
    let (mut followed, mut said) = (None, false);
    loop {
        if *progress.borrow() != Progress::Shares {
            followed = Some(Instant::now());
        }
        let follows = followed.is_some_and(|at| at.elapsed() < ENDS_WITHIN);
        let pause = match open_usage(&path) {
            Ok(listener) => {
                broken.send_replace(None);
                return effects::usage::serve(listener, shown.view, shown.stop).await;
            }
            Err(error) if follows && error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut said, true) {
                    tracing::info!(
                        "the usage socket {} is served by the agent before this one: waiting for its end",
                        path.display()
                    );
                }
                FOLLOWS
            }
            Err(error) => {
                let advice =
                    "usage is not served there; make the directory writable or choose another with --usage-socket";
                tracing::error!(path = %path.display(), %error, advice, "cannot open the usage socket");
                broken.send_replace(Some(format!("usage socket {}: {error}", path.display()).into()));
                AGAIN
            }
        };
        tokio::select! {
            () = shown.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn open_usage(path: &std::path::Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    effects::usage::bind(path)
}
