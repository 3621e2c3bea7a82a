//! The servers, each as a task that must not end.

use super::latch::Progress;
use crate::agent::listeners::Listeners;
use effects::http;
use model::view::NodeView;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a usage socket that cannot be opened is left alone before the next attempt.
const AGAIN: Duration = Duration::from_secs(30);

/// Between two attempts while the agent before us has it.
const FOLLOWS: Duration = Duration::from_millis(200);
/// So long after our turn has come it may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Threads for blocking work of the ports: names are looked up and profiles are taken on threads of their own.
const BLOCKING: usize = 2;
/// Stack of the ports' thread, as of the other runtime's.
const STACK: usize = 1024 * 1024;

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

/// The ports, on one thread with a runtime of its own: whoever keeps it busy, with scrapes, handshakes or nonsense, takes
/// nothing from kubelet's calls, the owner of the state and the watchdog.
///
/// # Errors
/// When the thread cannot be started, or a port cannot be used.
pub(crate) async fn ports(
    (doors, settings): (Listeners, watch::Receiver<http::Settings>),
    admin: effects::admin::Settings,
    shown: Shown,
) -> std::io::Result<()> {
    let (ended, end) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(BLOCKING).enable_all().build()?;
    let stop = shown.stop.clone();
    let serving = async move {
        let open = http(doors.http, settings, shown);
        let admin = async {
            match doors.admin {
                Some(listener) => effects::admin::serve(listener, admin, stop).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(open, admin).map(|_| ())
    };
    std::thread::Builder::new().name("ports".into()).stack_size(STACK).spawn(move || {
        // Nobody waits any more where the program has ended.
        let _ = ended.send(runtime.block_on(serving));
    })?;
    end.await.unwrap_or_else(|_| Err(std::io::Error::other("the thread of the ports panicked")))
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
    (path, mut opened): (PathBuf, std::io::Result<UnixListener>),
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
        let pause = match opened {
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
                tracing::error!(path = %path.display(), %error, advice, "cannot open the usage socket: {error}; {advice}");
                broken.send_replace(Some(format!("usage socket {}: {error}", path.display()).into()));
                AGAIN
            }
        };
        tokio::select! {
            () = shown.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        opened = effects::usage::bind(&path);
    }
}
