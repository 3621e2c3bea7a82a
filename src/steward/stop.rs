//! Signals, turned into values. The first SIGTERM or SIGINT asks for an end, the second one ends the process from
//! inside the signal handler: it works even when every thread hangs.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// SIGTERM or SIGINT: drain and end.
    Stop(&'static str),
    /// SIGHUP: read the configuration file again.
    Reload,
    /// SIGUSR1: more detail in the log.
    More,
    /// SIGUSR2: less.
    Less,
    /// SIGRTMIN: let go of the GPU driver for a while.
    LetGo,
}

/// As many asks as may wait: a person sends one at a time, and of a burst the last few are enough.
const QUEUE: usize = 8;

/// One request to stop may come as two signals: coreutils' `timeout` sends one to its child and one to the whole group.
/// What comes within this time is the same request; it is far below what a person needs to press a key again.
const SAME: Duration = Duration::from_millis(100);

/// Starts the thread `signals`. From now on signals are values.
///
/// # Errors
/// When the operating system refuses a handler or a thread.
pub(crate) fn listen() -> std::io::Result<mpsc::Receiver<StopRequest>> {
    let impatient = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_shutdown(signal, 128 + signal, impatient.clone())?;
    }
    let let_go = libc::SIGRTMIN();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, let_go])?;
    let (asks, receiver) = mpsc::channel(QUEUE);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let ask = match signal {
                SIGTERM => StopRequest::Stop("SIGTERM"),
                SIGINT => StopRequest::Stop("SIGINT"),
                SIGHUP => StopRequest::Reload,
                SIGUSR1 => StopRequest::More,
                signal if signal == let_go => StopRequest::LetGo,
                _ => StopRequest::Less,
            };
            let heard = asks.try_send(ask);
            if matches!(ask, StopRequest::Stop(_)) {
                // Before waiting for anybody to listen, so that the second signal works in any case.
                std::thread::sleep(SAME);
                impatient.store(true, Ordering::Relaxed);
                if let Err(TrySendError::Full(ask)) = heard {
                    let _ = asks.blocking_send(ask);
                }
            }
        }
    })?;
    Ok(receiver)
}
