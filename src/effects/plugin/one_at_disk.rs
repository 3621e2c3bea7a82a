//! Of the runtime's two threads one at most waits for a disk.
//!
//! A line that is written into the kernel's memory takes microseconds, and a disk that hangs can make it take for ever. To hand
//! a thread's other tasks over to another thread before each line ([`block_in_place`]) costs turns at the processor, which are
//! milliseconds each on a busy node. So the first who writes just writes, and whoever comes meanwhile hands over first.
//!
//! What must never happen here: both threads wait for the disk.

use parking_lot::Mutex;
use tokio::task::block_in_place;

/// The turn at the disk.
#[derive(Debug, Default)]
pub struct OneAtDisk(Mutex<()>);

impl OneAtDisk {
    /// Writes on this thread; where another does so now, with this thread's other tasks handed over. From a runtime of many
    /// threads.
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
    async fn while_the_disk_hangs_for_two_others_are_served() {
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
