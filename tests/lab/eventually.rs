//! Waiting for a condition with a deadline, so that no test sleeps for a guessed time.

use std::time::{Duration, Instant};

/// Between the first looks: nobody notices.
const FIRST: Duration = Duration::from_millis(20);
/// Between the last ones. A look may be a program that runs, `kubectl` for one, and who waits for minutes must not keep a
/// processor busy with looking.
const LAST: Duration = Duration::from_millis(500);

/// Looks again and again until `look` gives something.
///
/// # Panics
/// When `within` has passed; the text names `what` was waited for.
#[track_caller]
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = began.elapsed();
        assert!(waited < within, "waited {within:?} in vain for {what}");
        // So a wait takes at most a tenth longer than what is waited for.
        std::thread::sleep((waited / 10).clamp(FIRST, LAST));
    }
}
