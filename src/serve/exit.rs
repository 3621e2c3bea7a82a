//! Exit codes, with the numbers of sysexits.h, which service managers and scripts know.

use std::process::ExitCode;

/// The result of the program. `--help` lists the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success, also after SIGTERM or SIGINT.
    Ok,
    /// A task or thread that must not end has ended.
    Failure,
    /// A flag, environment variable or line of the configuration file is wrong.
    Usage,
    /// Something that the program needs is not available: an address is in use, or no agent listens.
    Unavailable,
    /// The NVIDIA driver was updated. This process keeps the old library; a new process loads the new one.
    DriverReplaced,
    /// The operating system refuses an operation for lack of permission.
    NoPermission,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failure => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::DriverReplaced => 75,
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

/// The section on exit codes in `--help`.
pub const HELP: &str = "\
Exit codes:
    0  success (also after SIGTERM or SIGINT)
    1  a task that must not end has ended; the last error line names it
   64  a flag, an environment variable or the configuration file is wrong
   69  unavailable: an address is in use, another plugin serves GPUs here, or no agent listens
   75  the NVIDIA driver was updated under the agent, which must be restarted
   77  no permission
  130, 143  ended at once by a second SIGINT or SIGTERM";
