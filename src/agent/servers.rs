//! The servers, each as a task that must not end.

use super::readiness::Progress;
use crate::listeners::Listeners;
use effects::api::history::ProfileSource;
use effects::http;
use model::view::NodeView;
use serve::server::certificate::Certificates;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pause between two attempts to open the usage socket after an error.
const AGAIN: Duration = Duration::from_secs(30);

/// Pause between two attempts while the previous agent still serves the socket.
const FOLLOWS: Duration = Duration::from_millis(200);
/// How long the previous agent may keep the socket after this agent's turn has come.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of threads for blocking work of the ports. Profiles and the lookup of symbols have their own.
const BLOCKING: usize = 2;
/// After this many steps of connections, the ports' thread looks for new connections and data. A step may write a whole answer,
/// which takes milliseconds, and a health check waits for two looks. Tokio's default is 61.
const LOOK_EVERY: u32 = 1;
/// Stack size of the ports' thread, the same as in the other runtime.
const STACK: usize = 1024 * 1024;

/// The inputs of every server.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The newest view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The profiles and the way to the histories; `None` with `--workload-profiles=off`.
    pub profiles: Option<ProfileSource>,
    /// The answer of `/readyz`.
    pub ready: http::Readiness,
    /// Cancelled when the agent ends.
    pub stop: CancellationToken,
}

/// Serves the HTTP port and the admin port on one thread with its own runtime. So clients that keep the ports busy with
/// scrapes, TLS handshakes or invalid requests do not slow down the kubelet's calls, the node task or the watchdog.
///
/// # Errors
/// If the thread cannot be started, or a port cannot be used.
pub(crate) async fn ports(
    (listeners, settings): (Listeners, watch::Receiver<http::Settings>),
    admin: serve::admin::Settings,
    shown: Shown,
) -> std::io::Result<()> {
    let (ended, end) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .event_interval(LOOK_EVERY)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()?;
    let stop = shown.stop.clone();
    let fresh = fresh([settings.borrow().certificates.clone(), admin.certificates.clone()]);
    let serving = async move {
        let open = http(listeners.http, settings, shown);
        let admin = async {
            match listeners.admin {
                Some(listener) => serve::admin::serve(listener, admin, stop).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            ended = async { tokio::try_join!(open, admin) } => ended.map(|_| ()),
            never = fresh => match never {},
        }
    };
    std::thread::Builder::new().name("ports".into()).stack_size(STACK).spawn(move || {
        // The receiver is gone if the agent has ended.
        let _ = ended.send(runtime.block_on(serving));
    })?;
    end.await.unwrap_or_else(|_| Err(std::io::Error::other("the thread of the ports panicked")))
}

/// Reloads the certificates of both ports, forever.
async fn fresh([http, admin]: [Option<Arc<Certificates>>; 2]) -> Infallible {
    let keep = async |certificates: Option<Arc<Certificates>>| match certificates {
        Some(certificates) => certificates.keep_fresh().await,
        None => std::future::pending().await,
    };
    tokio::join!(keep(http), keep(admin)).0
}

/// Serves `:9410`. For new settings it starts a new server on the same listener, and the old server finishes its
/// requests, so no connection is refused or cut.
///
/// # Errors
/// If the listener cannot be used.
pub(crate) async fn http(
    listener: TcpListener,
    mut settings: watch::Receiver<http::Settings>,
    shown: Shown,
) -> std::io::Result<()> {
    loop {
        let now = settings.borrow_and_update().clone();
        let generation = shown.stop.child_token();
        let (view, profiles, ready) = (shown.view.clone(), shown.profiles.clone(), shown.ready.clone());
        let open = http::Shown { view, profiles, ready };
        let mut serving = tokio::spawn(http::serve(listener.try_clone()?, now, open, generation.clone()));
        tokio::select! {
            ended = &mut serving => return ended.map_err(std::io::Error::other)?,
            Ok(()) = settings.changed() => generation.cancel(),
        }
    }
}

/// Serves the usage socket. If it cannot be opened (read-only root, full disk), the task logs an error, `/readyz`
/// gives the reason, and the task retries; metrics continue. While the previous agent serves the socket, the task
/// waits for it to end.
///
/// # Errors
/// If an open socket cannot be used any more.
pub(crate) async fn usage(
    (path, mut opened): (PathBuf, std::io::Result<UnixListener>),
    broken: watch::Sender<Option<Arc<str>>>,
    progress: watch::Receiver<Progress>,
    shown: Shown,
) -> std::io::Result<()> {
    let (mut follows_since, mut logged) = (None, false);
    loop {
        if *progress.borrow() != Progress::Shares {
            follows_since = Some(Instant::now());
        }
        let follows = follows_since.is_some_and(|at| at.elapsed() < ENDS_WITHIN);
        let pause = match opened {
            Ok(listener) => {
                broken.send_replace(None);
                return effects::usage::serve(listener, shown.view, shown.stop).await;
            }
            Err(error) if follows && error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut logged, true) {
                    tracing::info!(
                        "the previous agent serves the usage socket {}: waiting for its end",
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
