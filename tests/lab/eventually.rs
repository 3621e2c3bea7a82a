//! Waiting for a condition with a deadline, so that no test sleeps for a guessed time.

use std::time::{Duration, Instant};

/// Between two looks. Short enough that nobody notices, long enough that a waiting test leaves the machine alone.
const STEP: Duration = Duration::from_millis(20);

/// Looks again and again until `look` gives something.
///
/// # Panics
/// When `within` has passed; the text names `what` was waited for.
#[track_caller]
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {within:?} in vain for {what}");
        std::thread::sleep(STEP);
    }
}
