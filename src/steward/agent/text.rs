//! The program's own code in memory: what is not run any more is given back.
//!
//! The kernel maps 64 KiB around every page of code that is run for the first time, and keeps them mapped. Settings, TLS and
//! first looks are run once, and starts of pods come in bursts; what is needed later is mapped again from the page cache. With
//! 8 made-up GPUs (tests' profile) this made 14.1 MiB of file pages 11.0 MiB, for 145 soft faults in the 15 s after it.
//!
//! What must never happen here: a mapping that can have been written to. Its private pages would be lost.

use model::view::NodeView;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// By then every loop of the agent has run twice at least (the slowest each 5 s), and nothing of the start runs any more. Before it the
/// agent holds 2 MiB more than at any later time (25.2 beside 23.1 with 8 GPUs and 100 pods).
const SETTLED: Duration = Duration::from_secs(12);
/// A burst of starts is over when none came for so long.
const QUIET: Duration = Duration::from_secs(10);
/// After a burst code is given back at once, and else so often: requests and rare errors run code as well.
const EACH: Duration = Duration::from_secs(60);
/// The mappings of a process are some hundred lines.
const MAX_MAPS: usize = 1 << 20;

/// Waits until the start is over, gives its code back, and goes on so. While containers are started nothing is given back: where the
/// kernel takes unmapped pages out of its cache, the next start would read them from the disk.
pub(super) async fn give_back(view: watch::Receiver<Arc<NodeView>>) {
    sleep(SETTLED).await;
    let mut last = Last { starts: starts(&view.borrow()), given: None };
    loop {
        if last.is_due(starts(&view.borrow()), Instant::now()) {
            once();
        }
        sleep(QUIET).await;
    }
}

/// What was seen at the last look.
struct Last {
    starts: u64,
    /// When code was given back, and how many starts there had been.
    given: Option<(Instant, u64)>,
}

impl Last {
    /// Whether code is given back now, at `starts`.
    fn is_due(&mut self, starts: u64, now: Instant) -> bool {
        let quiet = std::mem::replace(&mut self.starts, starts) == starts;
        let due = quiet && self.given.is_none_or(|(at, of)| of != starts || now.duration_since(at) >= EACH);
        if due {
            self.given = Some((now, starts));
        }
        due
    }
}

/// Calls of kubelet for containers, all that there have been.
fn starts(view: &NodeView) -> u64 {
    view.plugin.as_ref().map_or(0, |plugin| plugin.allocate.count() + plugin.start.count())
}

fn once() {
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    if maps.len() > MAX_MAPS {
        return;
    }
    for (begin, len) in maps.lines().filter_map(|line| code_of(line, &program)) {
        // SAFETY: the range is one mapping of this process, as the kernel has just told it: code of the program's own file,
        // which no instruction can write to, so that every page of it is in the file. It stays mapped; a page that is run
        // again is read from there.
        #[expect(unsafe_code, reason = "madvise has no safe form")]
        let done = unsafe { libc::madvise(begin as *mut libc::c_void, len, libc::MADV_DONTNEED) };
        if done != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the code of the start stays in memory");
        }
    }
}

/// Where a line of `/proc/self/maps` has code of the program, and how much.
fn code_of(line: &str, program: &Path) -> Option<(usize, usize)> {
    let of = wire::proc_line::mapping(line)?;
    (of.rights == "r-xp" && Path::new(of.path?) == program).then_some((of.begin, of.len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_given_back_after_a_burst_and_each_minute_and_never_within_a_burst() {
        let began = Instant::now();
        let mut last = Last { starts: 0, given: None };
        let mut due = |starts, looks| last.is_due(starts, began + QUIET * looks);
        assert!(due(0, 0), "the start of the agent is over");
        assert!(!due(0, 1));
        assert!(!due(7, 2) && !due(30, 3), "containers start");
        assert!(due(30, 4), "the burst is over");
        assert!((5..10).all(|looks| !due(30, looks)));
        assert!(due(30, 10), "a minute later");
    }

    #[test]
    fn only_code_of_the_program_itself_is_given_back() {
        let program = Path::new("/usr/bin/gpu-steward");
        let of = |line| code_of(line, program);
        assert_eq!(of("1000-3000 r-xp 00400000 fd:00 12 /usr/bin/gpu-steward"), Some((0x1000, 0x2000)));
        for other in [
            "1000-3000 r--p 00400000 fd:00 12 /usr/bin/gpu-steward",
            "1000-3000 rwxp 00400000 fd:00 12 /usr/bin/gpu-steward",
            "1000-3000 r-xp 00400000 fd:00 12 /usr/lib/libc.so.6",
            "1000-3000 r-xp 00000000 00:00 0",
            "3000-1000 r-xp 00400000 fd:00 12 /usr/bin/gpu-steward",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
