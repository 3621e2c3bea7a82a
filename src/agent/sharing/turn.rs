//! Lets one agent at a time share the GPUs of a node. An upgrade starts the next agent before the previous agent has
//! ended, and the next agent waits here. Otherwise the kubelet would replace one plugin with the other, and when the
//! kubelet ends the older registration, the newer registration ends too.
//!
//! ```text
//!   previous agent   shares-gpus: exclusive ── stop ─▶ shared ── the kubelet's calls answered, all closed ─▶ free
//!   next agent       next-shares-gpus: exclusive, prepares ─▶ shared: ready ─────────────▶ shares-gpus: exclusive
//! ```
//!
//! The agents use file locks on two empty files in the state directory. A lock ends with its process, however the
//! process ends. An agent of an older release that knows only the first file can still be the previous or the next
//! agent.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The file that the sharing agent keeps locked.
const FILE: &str = "shares-gpus";
/// The file that the next agent keeps locked.
const NEXT: &str = "next-shares-gpus";
/// Pause between two attempts to lock while the other agent keeps running.
const POLL: Duration = Duration::from_millis(50);
/// Pause between two attempts to lock while the other agent is about to end. It is short, because the kubelet fails
/// every GPU pod that arrives while no agent has the lock.
const POLL_OFTEN: Duration = Duration::from_millis(2);
/// How long this agent waits until the next agent is ready to take over. The next agent usually registers within some
/// tens of milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// The place of an agent when it starts.
#[derive(Debug)]
pub(super) enum AgentPlace {
    /// No other agent shares the GPUs.
    First(AgentTurn),
    /// Another agent shares the GPUs.
    Behind(AgentQueue),
}

/// The turn of this agent; it ends when this value is dropped.
#[derive(Debug)]
pub(super) struct AgentTurn {
    file: File,
    next: PathBuf,
}

/// The place of an agent that waits for its turn.
#[derive(Debug)]
pub(super) struct AgentQueue {
    shares: AgentTurn,
    next: File,
}

/// How the wait for the previous agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PredecessorEnd {
    /// The previous agent is about to close.
    Closes,
    /// The previous agent is gone.
    Gone,
}

/// Takes a place among the agents with this state directory.
///
/// # Errors
/// When a file cannot be opened or locked.
pub(super) fn enter(state_dir: &Path) -> io::Result<AgentPlace> {
    let next = state_dir.join(NEXT);
    let shares = AgentTurn { file: open(&state_dir.join(FILE))?, next: next.clone() };
    if lock(&shares.file, File::try_lock)? {
        return Ok(AgentPlace::First(shares));
    }
    Ok(AgentPlace::Behind(AgentQueue { shares, next: open(&next)? }))
}

impl AgentQueue {
    /// Waits until this agent is the next agent, and the previous agent is about to end or has ended.
    ///
    /// # Errors
    /// When a file cannot be locked.
    pub(super) async fn wait(&self) -> io::Result<PredecessorEnd> {
        loop {
            if lock(&self.next, File::try_lock)? {
                if lock(&self.shares.file, File::try_lock)? {
                    return Ok(PredecessorEnd::Gone);
                }
                if lock(&self.shares.file, File::try_lock_shared)? {
                    self.shares.file.unlock()?;
                    return Ok(PredecessorEnd::Closes);
                }
            }
            sleep(POLL).await;
        }
    }

    /// Tells the previous agent that this agent is ready to take over.
    ///
    /// # Errors
    /// When the file cannot be locked.
    pub(super) fn ready(&self) -> io::Result<()> {
        lock(&self.next, File::try_lock_shared).map(drop)
    }

    /// Waits until the previous agent is gone, and takes the turn.
    ///
    /// # Errors
    /// When the file cannot be locked.
    pub(super) async fn turn(self) -> io::Result<AgentTurn> {
        while !lock(&self.shares.file, File::try_lock)? {
            sleep(POLL_OFTEN).await;
        }
        Ok(self.shares)
    }
}

impl AgentTurn {
    /// Tells the next agent, if there is one, that this agent is about to close, and waits until the next agent is
    /// ready or `READY_WITHIN` is over. Returns whether there is a next agent.
    pub(super) async fn hand_over(&self) -> bool {
        let Ok(next) = open(&self.next) else { return false };
        let is_free = || lock(&next, File::try_lock_shared).unwrap_or(true);
        if is_free() {
            return false;
        }
        let until = Instant::now() + READY_WITHIN;
        let announced = lock(&self.file, File::try_lock_shared);
        while announced.is_ok() && !is_free() && Instant::now() < until {
            sleep(POLL_OFTEN).await;
        }
        true
    }
}

fn open(path: &Path) -> io::Result<File> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    File::options().create(true).append(true).open(path).map_err(named)
}

/// Tries to lock the file with `how`; returns whether the lock is held now.
fn lock(file: &File, how: impl Fn(&File) -> Result<(), TryLockError>) -> io::Result<bool> {
    match how(file) {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(TryLockError::Error(error)) => {
            Err(io::Error::new(error.kind(), format!("a lock in the state directory (--state-dir): {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(state: &Path) -> AgentQueue {
        match enter(state).unwrap() {
            AgentPlace::Behind(queue) => queue,
            AgentPlace::First(_) => panic!("another agent has its turn"),
        }
    }

    #[tokio::test]
    async fn agents_take_turns_and_the_previous_one_waits_until_the_next_one_is_ready() {
        let state = tempfile::tempdir().unwrap();
        let AgentPlace::First(first) = enter(state.path()).unwrap() else { panic!("no other agent runs") };
        assert!(!first.hand_over().await, "no agent follows");
        let second = behind(state.path());
        let waits = tokio::time::timeout(POLL * 4, second.wait()).await;
        assert!(waits.is_err(), "the first agent keeps running");
        let third = behind(state.path());
        assert!(tokio::time::timeout(POLL * 4, third.wait()).await.is_err(), "the second agent is next");
        let (handed, ()) = tokio::join!(first.hand_over(), async {
            assert_eq!(second.wait().await.unwrap(), PredecessorEnd::Closes);
            second.ready().unwrap();
        });
        assert!(handed);
        assert!(tokio::time::timeout(POLL * 4, third.wait()).await.is_err(), "the second agent is still next");
        drop(first);
        let second = second.turn().await.unwrap();
        drop(second);
        assert_eq!(third.wait().await.unwrap(), PredecessorEnd::Gone);
    }

    #[tokio::test]
    async fn the_previous_agent_ends_even_if_the_next_one_is_never_ready() {
        let state = tempfile::tempdir().unwrap();
        let AgentPlace::First(first) = enter(state.path()).unwrap() else { panic!("no other agent runs") };
        let second = behind(state.path());
        let _ = tokio::time::timeout(POLL * 4, second.wait()).await;
        let handed = tokio::time::timeout(READY_WITHIN * 10, first.hand_over()).await;
        assert_eq!(handed, Ok(true));
    }
}
