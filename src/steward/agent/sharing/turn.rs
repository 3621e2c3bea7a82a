//! One agent shares the GPUs of a node. A second one, which an upgrade starts before the first has ended, waits here: two
//! plugins of one resource take it from each other, and kubelet's end of the older registration takes the newer with it.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;

/// Held by the one whose turn it is, as long as its process lives; nothing is written into it.
const FILE: &str = "shares-gpus";
/// Between two looks. kubelet starts no GPU pod meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// Waits for our turn on this state directory, and keeps it as long as the file is open.
///
/// # Errors
/// When the file cannot be opened or locked.
pub(super) async fn wait_for(state_dir: &Path) -> io::Result<File> {
    let path = state_dir.join(FILE);
    let told = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = File::options().create(true).append(true).open(&path).map_err(told)?;
    let mut said = false;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) if !said => {
                said = true;
                tracing::warn!(lock = %path.display(), "another agent shares the GPUs of this node: waiting for its end");
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(told(error.into())),
        }
        sleep(LOOK).await;
    }
    if said {
        tracing::info!("the other agent has ended: sharing from here on");
    }
    Ok(file)
}
