//! One process: its `stat`, its name, its namespaces.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use model::Absence;
use model::id::ProcessKey;
use std::sync::Arc;
use wire::cgroup_file::MalformedCgroupFile;
use wire::proc_file::{self, ProcStat};

/// Why something under `/proc` could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcError {
    /// The file could not be read.
    #[error("{0}")]
    File(#[from] ReadFailure),
    /// Its text could not be parsed.
    #[error("{0}")]
    Text(#[from] MalformedCgroupFile),
}

impl ProcError {
    /// The reason for an absent reading from this file.
    #[must_use]
    pub fn absence(self) -> Absence {
        match self {
            ProcError::File(failure) => failure.absence(),
            ProcError::Text(_) => Absence::Unreadable,
        }
    }
}

/// Reads `/proc/<pid>/stat` now.
///
/// # Errors
/// [`ProcError`].
pub fn stat<'r>(reader: &'r mut KernelFileReader, procfs: &[u8], pid: u32) -> Result<ProcStat<'r>, ProcError> {
    let text = reader.read_piece(&[procfs, b"/", KernelFileReader::decimal(pid, &mut [0; 10]), b"/stat"])?;
    Ok(proc_file::stat(text)?)
}

/// PID and start time.
#[must_use]
pub fn key(stat: &ProcStat<'_>) -> ProcessKey {
    ProcessKey { pid: stat.pid, start_ticks: stat.start_ticks }
}

/// A process's name, with replacement characters for bytes that are not UTF-8 and for control characters, which would
/// break the lines that show it.
#[must_use]
pub fn command(stat: &ProcStat<'_>) -> Arc<str> {
    match std::str::from_utf8(stat.command) {
        Ok(name) if !name.contains(char::is_control) => Arc::from(name),
        _ => String::from_utf8_lossy(stat.command).replace(char::is_control, "\u{fffd}").into(),
    }
}

/// The number of a process's namespace of this kind (`net`, `cgroup`).
///
/// # Errors
/// [`ReadFailure`]; reading it for another user's process needs `CAP_SYS_PTRACE`.
pub fn namespace(reader: &mut KernelFileReader, procfs: &[u8], process: &[u8], kind: &str) -> Result<u64, ReadFailure> {
    let link = reader.link(&[procfs, b"/", process, b"/ns/", kind.as_bytes()])?;
    wire::proc_line::namespace(link, kind).ok_or(ReadFailure::NotAFile)
}
