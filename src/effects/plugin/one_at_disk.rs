//! At most one Tokio worker blocks on disk I/O.
//!
//! A line written to the page cache takes microseconds, but a disk that hangs can block the write forever.
//! [`block_in_place`] moves the other tasks of the thread to another thread. A call before each line would cost context
//! switches: milliseconds each on a busy node. So the first writer writes directly, and only a writer that arrives
//! during that write calls [`block_in_place`].
//!
//! What must never happen here: all Tokio workers wait for the disk.

use parking_lot::Mutex;
use tokio::task::block_in_place;

/// The lock of the worker that writes directly.
#[derive(Debug, Default)]
pub struct OneAtDisk(Mutex<()>);

impl OneAtDisk {
    /// Writes on this thread. If another thread is writing, the other tasks of this thread move to another thread
    /// first. Needs a multi-thread runtime.
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        match self.0.try_lock() {
            Some(_turn) => write(),
            None => block_in_place(write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_hanging_writes_do_not_block_other_tasks() {
        let disk = Arc::new(OneAtDisk::default());
        let (releases, writers): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (release, hangs) = mpsc::channel::<()>();
                let (disk, (begun, begins)) = (Arc::clone(&disk), mpsc::channel());
                let writer = tokio::spawn(async move {
                    disk.write(|| {
                        begun.send(()).unwrap();
                        hangs.recv()
                    })
                });
                begins.recv_timeout(Duration::from_secs(10)).unwrap();
                (release, writer)
            })
            .unzip();
        let (served, serves) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { served.send(()) });
        tokio::time::timeout(Duration::from_secs(10), serves).await.expect("both threads wait for the disk").unwrap();
        releases.iter().for_each(|release| release.send(()).unwrap());
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
    }
}
