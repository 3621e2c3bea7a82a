//! Exit codes: the numbers of sysexits.h, because service managers and scripts know them.

use std::process::ExitCode;

/// How the program ends. `--help` lists the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well; also after SIGTERM or SIGINT.
    Ok,
    /// Something that must not end has ended.
    Failure,
    /// A flag, environment variable or line of the configuration file is wrong.
    Usage,
    /// What is needed is not to be had: an address in use, no agent listening.
    Unavailable,
    /// The driver's library in this process is out of date for good; a new process has the new one.
    DriverReplaced,
    /// The operating system refuses.
    NoPermission,
}

impl Exit {
    /// The number the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failure => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::DriverReplaced => 75,
            Exit::NoPermission => 77,
        }
    }

    /// What an error of the operating system means for the one who started the program.
    pub(crate) fn from_io(error: &std::io::Error) -> Self {
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

/// The section of `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  well (also after SIGTERM or SIGINT)
    1  a part that must not end has ended; the last error line says which
   64  a flag, an environment variable or the configuration file is wrong
   69  unavailable: an address is in use, another plugin serves GPUs here, or no agent listens
   75  the NVIDIA driver was updated under the agent, which must be started anew
   77  no permission
  130, 143  ended at once by a second SIGINT or SIGTERM";
