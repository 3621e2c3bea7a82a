//! Finds another agent that listens on a socket that this agent is about to open.
//!
//! What must never happen here: a socket is removed; an endless check.

use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

/// How long a previous agent may take to close its sockets after it has released its state directory.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two checks of the sockets.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Another agent that listens on a socket that this agent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondAgent {
    socket: PathBuf,
    pid: Option<i32>,
}

impl std::fmt::Display for SecondAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "another agent already shares GPUs on this node: it listens at {}", self.socket.display())?;
        if let Some(pid) = self.pid {
            write!(f, " (process {pid})")?;
        }
        f.write_str("; stop it, or give both agents the same --state-dir so that this one takes over")
    }
}

impl From<SecondAgent> for std::io::Error {
    fn from(second: SecondAgent) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::AddrInUse, second.to_string())
    }
}

/// Returns another agent that still listens on one of these sockets after a previous agent had time to close them. An
/// agent that was killed does not listen any more.
pub async fn find_second(sockets: &[PathBuf]) -> Option<SecondAgent> {
    let until = Instant::now() + CLOSES_WITHIN;
    loop {
        let second = listening(sockets).await?;
        if Instant::now() >= until {
            return Some(second);
        }
        sleep(CHECK_EVERY).await;
    }
}

/// An agent that listens on one of these sockets now.
pub(super) async fn listening(sockets: &[PathBuf]) -> Option<SecondAgent> {
    for socket in sockets {
        if let Ok(stream) = UnixStream::connect(socket).await {
            let pid = stream.peer_cred().ok().and_then(|cred| cred.pid()).filter(|pid| *pid > 0);
            return Some(SecondAgent { socket: socket.clone(), pid });
        }
    }
    None
}
