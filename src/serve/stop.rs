//! Turns signals into values. The first SIGTERM or SIGINT requests a shutdown. The second signal ends the process
//! inside the signal handler, so it works even when every thread hangs.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// SIGTERM or SIGINT: drain and end.
    Stop(&'static str),
    /// SIGHUP: read the configuration file again.
    Reload,
    /// SIGUSR1: more detail in the log.
    More,
    /// SIGUSR2: less detail in the log.
    Less,
    /// SIGRTMIN: each mode defines what it does.
    Realtime,
}

/// Maximum number of queued requests; further requests of a burst are dropped. A person sends one at a time.
const QUEUE: usize = 8;

/// One stop request may come as two signals: `timeout` of coreutils sends a signal to its child and another to the
/// whole group. Signals within this time are the same request. A person needs far longer to press a key again.
const SAME: Duration = Duration::from_millis(100);

/// Starts the thread `signals`, which sends a value for each signal.
///
/// # Errors
/// If the operating system refuses a signal handler or the thread.
pub fn listen() -> std::io::Result<mpsc::Receiver<StopRequest>> {
    let armed = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_shutdown(signal, 128 + signal, armed.clone())?;
    }
    let realtime = libc::SIGRTMIN();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, realtime])?;
    let (requests, receiver) = mpsc::channel(QUEUE);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let request = match signal {
                SIGTERM => StopRequest::Stop("SIGTERM"),
                SIGINT => StopRequest::Stop("SIGINT"),
                SIGHUP => StopRequest::Reload,
                SIGUSR1 => StopRequest::More,
                signal if signal == realtime => StopRequest::Realtime,
                _ => StopRequest::Less,
            };
            let sent = requests.try_send(request);
            if matches!(request, StopRequest::Stop(_)) {
                // Arm the second signal before the send below, which may block: it must work even if nothing receives.
                std::thread::sleep(SAME);
                armed.store(true, Ordering::Relaxed);
                if let Err(TrySendError::Full(request)) = sent {
                    let _ = requests.blocking_send(request);
                }
            }
        }
    })?;
    Ok(receiver)
}
