//! Releases the memory of the program's own code that does not run any more.
//!
//! The kernel maps 64 KiB around every page of code that runs for the first time, and keeps them mapped. The code of
//! settings, TLS and first readings runs once, and starts of pods come in bursts. Code that runs again later is mapped
//! again from the page cache. With 8 simulated GPUs (profile of the tests) this reduced the mapped file pages from
//! 14.1 MiB to 11.0 MiB, at the cost of 145 soft faults in the 15 s after it.
//!
//! What must never happen here: the release of a mapping that may have been written to. Its private pages would be
//! lost.

use model::view::NodeView;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The time from the start of the agent to the first release. By then every loop of the agent has run at least twice
/// (the slowest every 5 s), and no code of the start runs any more. Until then the agent holds 2 MiB more than later
/// (25.2 MiB instead of 23.1 MiB with 8 GPUs and 100 pods).
const SETTLED: Duration = Duration::from_secs(12);
/// A burst of starts is over when none has come for this time.
const QUIET: Duration = Duration::from_secs(10);
/// The time between two releases without a burst, because requests and rare errors run code as well. After a burst the
/// release is immediate.
const EACH: Duration = Duration::from_secs(60);
/// Largest list of mappings that is read, in bytes. A process has some hundred lines.
const MAX_MAPS: usize = 1 << 20;

/// Releases code after the start of the agent, and then again and again. It releases nothing while containers start: if
/// the kernel drops unmapped pages from its cache, the next start would read them from the disk.
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

/// The state of the last check.
struct Last {
    starts: u64,
    /// The time of the last release, and the number of starts until then.
    given: Option<(Instant, u64)>,
}

impl Last {
    /// Whether a release is due now, after `starts` starts.
    fn is_due(&mut self, starts: u64, now: Instant) -> bool {
        let quiet = std::mem::replace(&mut self.starts, starts) == starts;
        let due = quiet && self.given.is_none_or(|(at, of)| of != starts || now.duration_since(at) >= EACH);
        if due {
            self.given = Some((now, starts));
        }
        due
    }
}

/// The number of kubelet's calls for containers so far.
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
        // SAFETY: the range is one mapping of this process, as the kernel has just listed it: code of the program's own
        // file, which no instruction can write to, so every page of it is in the file. The range stays mapped; the
        // kernel reads a page that runs again from the file.
        #[expect(unsafe_code, reason = "madvise has no safe form")]
        let done = unsafe { libc::madvise(begin as *mut libc::c_void, len, libc::MADV_DONTNEED) };
        if done != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the code of the start stays in memory");
        }
    }
}

/// Address and length of a line of `/proc/self/maps`, if it is code of the program.
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
