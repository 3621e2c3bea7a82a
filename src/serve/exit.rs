//! Exit codes, with the numbers of sysexits.h, which service managers and scripts know, and 1 and 2 as `grep` and `diff` use them.

use std::process::ExitCode;

/// The result of the program. `--help` lists the same numbers (`steward/args.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success, also after SIGTERM or SIGINT.
    Ok,
    /// A task or thread that must not end has ended; for `doctor`: something is wrong.
    Failure,
    /// `doctor` found nothing wrong, but could not look at everything that it needs for an answer.
    NotSeen,
    /// A flag, environment variable or line of the configuration file is wrong.
    Usage,
    /// The data of a file cannot be used.
    BadData,
    /// Something that the program needs is not available: an address is in use, or no agent listens.
    Unavailable,
    /// This process cannot continue, but a new process can: the supervisor must restart the program.
    Restart,
    /// The operating system refuses an operation for lack of permission.
    NoPermission,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failure => 1,
            Exit::NotSeen => 2,
            Exit::Usage => 64,
            Exit::BadData => 65,
            Exit::Unavailable => 69,
            Exit::Restart => 75,
            Exit::NoPermission => 77,
        }
    }

    /// The exit code for an error of the operating system.
    pub fn from_io(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::NoPermission,
            std::io::ErrorKind::InvalidInput => Exit::Usage,
            std::io::ErrorKind::AddrInUse | std::io::ErrorKind::AddrNotAvailable => Exit::Unavailable,
            _ => Exit::Failure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
