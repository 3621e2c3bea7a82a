//! Waits for a condition with a deadline, so that no test sleeps for a guessed time.

use std::time::{Duration, Instant};

/// Shortest pause between two checks.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two checks. A check may run a program, such as `kubectl`, and a wait of minutes must not keep
/// a core busy.
const LAST: Duration = Duration::from_millis(500);

/// Calls `check` again and again until it returns a value.
///
/// # Panics
/// If `within` has passed; the text contains `what`, the thing that was waited for.
#[track_caller]
pub fn eventually<T>(what: &str, within: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        let waited = began.elapsed();
        assert!(waited < within, "timed out after {within:?} while waiting for {what}");
        // With this pause the wait takes at most a tenth longer than needed.
        std::thread::sleep((waited / 10).clamp(FIRST, LAST));
    }
}
