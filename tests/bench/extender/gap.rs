//! A kube-scheduler that calls all the time, and the longest time in which it got no answer.

use crate::cluster::calls;
use crate::served::Connection;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(20);
/// Kinds of pods that alternate.
const KINDS: usize = 8;

/// Sends calls in a thread.
pub(crate) struct Asker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Asked>,
}

/// The results of the calls.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Answers with a decision, and other answers.
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    /// Longest time between two decisions.
    pub(crate) gap: Duration,
    /// Longest time of one call, whatever the answer.
    pub(crate) slowest: Duration,
}

impl Asker {
    /// Calls the extender at this address about this many nodes.
    pub(crate) fn start(address: SocketAddr, nodes: usize) -> Asker {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || asked(address, nodes, &stopped));
        Asker { stop, thread }
    }

    /// Stops, and returns the results.
    pub(crate) fn end(self) -> Asked {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn asked(address: SocketAddr, nodes: usize, stop: &AtomicBool) -> Asked {
    let bodies = calls(nodes, KINDS, |number| 1000 + u64::try_from(number).unwrap_or(0));
    let (mut asked, mut last, mut connection) = (Asked::default(), None::<Instant>, None::<Connection>);
    for body in bodies.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        if connection.is_none() {
            connection = Connection::open(address).ok();
        }
        let status =
            connection.as_mut().and_then(|open| open.send("POST", "/filter", body).ok()).map(|answer| answer.status);
        let now = Instant::now();
        asked.slowest = asked.slowest.max(now - begun);
        if status == Some(200) {
            asked.answered += 1;
            asked.gap = asked.gap.max(last.map_or(Duration::ZERO, |last| now - last));
            last = Some(now);
        } else {
            asked.refused += 1;
            // A refusal closes the connection, because the call was not read.
            connection = None;
        }
    }
    asked
}
