//! Releases the memory of code and constants, of the program and its libraries, that are not used any more.
//!
//! The kernel maps 64 KiB around every page of a file that is used for the first time, and keeps them mapped. The code of
//! settings, TLS and first readings runs once, and starts of pods come in bursts. What is used again later is mapped
//! again from the page cache (docs/decisions/0171 has the figures).
//!
//! What must never happen here: the release of a mapping that has been written to. Its private pages would be lost. The
//! kernel says of each mapping how much of it is not in its file (`Anonymous` and `Swap` in `/proc/self/smaps`): constants
//! that the loader has changed are such pages.

use model::view::NodeView;
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
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    if maps.len() > MAX_MAPS {
        return;
    }
    for (begin, len) in unwritten(&maps) {
        // SAFETY: the range is one mapping of this process, as the kernel has just listed it: a part of a file that no
        // instruction can write to and of which no page differs from the file. The range stays mapped; the kernel reads a
        // page that is used again from the file.
        #[expect(unsafe_code, reason = "madvise has no safe form")]
        let done = unsafe { libc::madvise(begin as *mut libc::c_void, len, libc::MADV_DONTNEED) };
        if done != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the code of the start stays in memory");
        }
    }
}

/// Address and length of each mapping that cannot be written to and whose pages are all in its file, from the text of
/// `/proc/self/smaps`.
fn unwritten(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    // Whether no page in memory differs from the file. `Swap` comes after `Anonymous`.
    let mut as_in_file = false;
    for line in smaps.lines() {
        if let Some(of) = wire::proc_line::mapping(line) {
            let of_a_file = of.path.is_some_and(|path| path.starts_with('/'));
            current = (matches!(of.rights, "r-xp" | "r--p") && of_a_file).then_some((of.begin, of.len));
            as_in_file = false;
        } else if line.starts_with("Anonymous:") {
            as_in_file = is_none_of(line);
        } else if line.starts_with("Swap:") && is_none_of(line) && as_in_file {
            found.extend(current.take());
        }
    }
    found
}

/// Whether a line of an amount says 0.
fn is_none_of(line: &str) -> bool {
    line.split_ascii_whitespace().skip(1).eq(["0", "kB"])
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
    fn only_what_is_as_in_its_file_is_given_back() {
        let of = |line: &str, anonymous: &str, swap: &str| {
            unwritten(&format!("{line}\nSize:  8 kB\nAnonymous:  {anonymous}\nLazyFree:  0 kB\nSwap:  {swap}\n"))
        };
        let program = "1000-3000 r-xp 00400000 fd:00 12 /usr/bin/gpu-steward";
        assert_eq!(of(program, "0 kB", "0 kB"), [(0x1000, 0x2000)]);
        assert_eq!(of("1000-3000 r--p 00400000 fd:00 12 /usr/lib/libc.so.6", "0 kB", "0 kB"), [(0x1000, 0x2000)]);
        for written in ["4 kB", "10 kB", ""] {
            assert_eq!(of(program, written, "0 kB"), [], "{written}");
            assert_eq!(of(program, "0 kB", written), [], "{written} in swap");
        }
        for other in [
            "1000-3000 rwxp 00400000 fd:00 12 /usr/bin/gpu-steward",
            "1000-3000 rw-p 00400000 fd:00 12 /usr/bin/gpu-steward",
            "1000-3000 r--s 00400000 fd:00 12 /usr/bin/gpu-steward",
            "1000-3000 r-xp 00000000 00:00 0",
            "1000-3000 r-xp 00000000 00:00 0 [vdso]",
            "3000-1000 r-xp 00400000 fd:00 12 /usr/bin/gpu-steward",
            "",
        ] {
            assert_eq!(of(other, "0 kB", "0 kB"), [], "{other}");
        }
        let none = "Anonymous:  0 kB\nSwap:  0 kB\n";
        let two = format!("{program}\n{none}4000-5000 rw-p 00000000 00:00 0 [heap]\n{none}");
        assert_eq!(unwritten(&two), [(0x1000, 0x2000)]);
        let swap_alone = format!("{program}\n{none}4000-5000 r--p 0 fd:00 12 /usr/bin/gpu-steward\nSwap:  0 kB\n");
        assert_eq!(unwritten(&swap_alone), [(0x1000, 0x2000)]);
    }

    /// What is released is really mapped by this process, and the program runs on.
    #[test]
    fn the_mappings_of_this_process_are_found_and_can_be_released() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let found = unwritten(&smaps);
        let code = (once as fn()) as usize;
        assert!(found.iter().any(|(begin, len)| (*begin..begin + len).contains(&code)), "{found:x?}, {code:x}");
        let constant = "text that the program reads again".as_ptr() as usize;
        assert!(found.iter().any(|(begin, len)| (*begin..begin + len).contains(&constant)), "{found:x?}, {constant:x}");
        once();
        assert_eq!(unwritten("").len(), 0, "code and constants are read again from the file");
    }
}
