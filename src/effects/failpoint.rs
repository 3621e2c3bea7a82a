//! Failpoints: places between two steps where a test ends the process or holds it.
//!
//! `FAILPOINTS='spec-written=1*return(kill)'` sends SIGKILL to the process the first time it comes to `spec-written`.
//! `return(hold)` logs a line and blocks the thread for a while. `docs/testing.md` lists all of them.
//!
//! They exist only with the cargo feature `failpoints`, which the tests of `steward` turn on. Without it [`crate::failpoint!`]
//! is empty: the program that is shipped holds neither the code nor the names.
//!
//! What must never happen here: a release build that has failpoints.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for test builds: a release build must not have the feature `failpoints`");

/// Names a place, or the place where this file is about to be renamed; nothing at all without the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($($of:tt)*) => {{}};
}

/// Names a place, or the place where this file is about to be renamed.
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

    /// Long enough for a test to see the line and to send a signal, shorter than kubelet's patience with any call.
    const HOLD: Duration = Duration::from_secs(3);

    /// The program has come to this place.
    pub fn reached(name: &str) {
        static READ: Once = Once::new();
        // `FAILPOINTS` holds for the life of the process, so its guard is never dropped.
        READ.call_once(|| std::mem::forget(fail::FailScenario::setup()));
        fail::fail_point!(name, |action| act(name, action.as_deref()));
    }

    /// The program has written this file and is about to rename it. Only files that are a step of every start have a place there.
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
