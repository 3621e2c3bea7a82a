//! Failpoints: places between two steps at which a test kills the process or holds it.
//!
//! `FAILPOINTS='spec-written=1*return(kill)'` sends SIGKILL to the process the first time it reaches `spec-written`.
//! `return(hold)` logs a line and blocks the thread for a while. `docs/testing.md` lists all failpoints.
//!
//! They exist only with the cargo feature `failpoints`, which the tests of `steward` turn on. Without it
//! [`crate::failpoint!`] is empty: a release build has neither the code nor the names.
//!
//! What must never happen here: a release build that has failpoints.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for test builds: a release build must not have the feature `failpoints`");

/// Marks a failpoint, or the failpoint before the rename of this file; empty without the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($($of:tt)*) => {{}};
}

/// Marks a failpoint, or the failpoint before the rename of this file.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    (renames $path:expr) => {
        $crate::failpoint::written($path)
    };
    ($name:expr) => {
        $crate::failpoint::reached($name)
    };
}

#[cfg(feature = "failpoints")]
pub use armed::{reached, written};

#[cfg(feature = "failpoints")]
mod armed {
    use rustix::process::{Signal, getpid, kill_process};
    use std::path::Path;
    use std::sync::Once;
    use std::time::Duration;

    /// How long a failpoint waits: enough for a test to see the line and to send a signal, and less than any timeout of
    /// the kubelet's calls.
    const HOLD: Duration = Duration::from_secs(3);

    /// Called when the program reaches this failpoint.
    pub fn reached(name: &str) {
        static READ: Once = Once::new();
        // `FAILPOINTS` stays for the life of the process, so its guard is never dropped.
        READ.call_once(|| std::mem::forget(fail::FailScenario::setup()));
        fail::fail_point!(name, |action| act(name, action.as_deref()));
    }

    /// Called when the program has written this file and is about to rename it. Only the files that are written at
    /// every start of a container have a failpoint.
    pub fn written(path: &Path) {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("limits.json") => reached("limits-written"),
            Some("ticket.json") => reached("ticket-written"),
            Some(name) if name.starts_with("gpu-steward.io-") => reached("spec-written"),
            _ => {}
        }
    }

    fn act(name: &str, action: Option<&str>) {
        match action {
            Some("kill") => {
                let _ = kill_process(getpid(), Signal::KILL);
            }
            Some("hold") => {
                tracing::warn!(failpoint = name, "held at a failpoint");
                std::thread::sleep(HOLD);
            }
            other => panic!("failpoint {name}: return(kill) or return(hold), not {other:?}"),
        }
    }
}
