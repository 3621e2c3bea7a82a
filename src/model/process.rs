//! Processes: those on a GPU as the driver lists them, and those of the host as `/proc` shows them.

use crate::cgroup::CgroupIdentity;
use crate::id::{GpuUuid, ProcessKey};
use crate::reading::Reading;
use crate::time::{Monotonic, WallTime};
use crate::unit::{Bytes, Count, Nanos, Percent};
use std::sync::Arc;

/// At most this many processes of one GPU are kept by name (NVML lists a few hundred at most under MPS); the rest are
/// counted and summed as unattributed.
pub const MAX_GPU_PROCESSES: usize = 1024;
/// At most this many host processes are kept in the view, those with the most CPU and memory first. 4096 entries are
/// about 1 MiB; a machine with more processes is shown with `processes_left_out` counting the rest.
pub const MAX_PROCESSES: usize = 4096;

/// What a process does on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuProcessKind {
    /// CUDA.
    Compute,
    /// Graphics.
    Graphics,
    /// CUDA through the MPS server.
    Mps,
}

/// Whose a process is, decided where both sides of the check were read: see [`GpuProcess::owner`].
#[derive(Clone, Debug, PartialEq)]
pub enum ProcessOwner {
    /// Start time and cgroup agreed before and after NVML's list, and the start precedes NVML's stamp.
    Cgroup(Arc<CgroupIdentity>),
    /// A process of the host, in no container.
    Host,
    /// It could not be said: the number vanished, was used again, or is hidden from us (no hostPID).
    Unknown,
}

/// At most this many jobs of Slurm on one GPU: with sharding some share it, more than its processes there are not.
pub const MAX_JOBS: usize = 64;

/// A job of Slurm, by the cgroup of its processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlurmJob {
    /// Its number.
    pub job: u64,
    /// The step: a number, `batch`, `extern`, `interactive`.
    pub step: Option<Arc<str>>,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProcess {
    /// The PID as the driver told it (host namespace).
    pub pid: u32,
    /// Number and start time, where `/proc` showed the process.
    pub key: Option<ProcessKey>,
    /// `comm`, at most 15 bytes, with replacement characters for what is not UTF-8.
    pub command: Arc<str>,
    /// Whose it is.
    pub owner: ProcessOwner,
    /// What it does there.
    pub kind: GpuProcessKind,
    /// MIG instance it runs on.
    pub mig: Option<GpuUuid>,
    /// Device memory it holds.
    pub memory_used: Reading<Bytes>,
    /// SM use: mean over the time since the last list, weighted by time, and with that of the GPU's other processes no more
    /// than the GPU says of itself. An idle process has 0 here (measured: the driver keeps no sample of a process that did
    /// nothing); one of which the driver told only garbage has none.
    pub sm: Reading<Percent>,
    /// Encoder.
    pub encoder: Reading<Percent>,
    /// Decoder.
    pub decoder: Reading<Percent>,
}

/// NVML's list of one GPU at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProcesses {
    /// Which GPU.
    pub gpu: GpuUuid,
    /// The list, or why there is none.
    pub list: Reading<Vec<GpuProcess>>,
    /// NVML's stamp of the newest utilisation sample that was used.
    pub stamp: Option<WallTime>,
    /// Processes beyond [`MAX_GPU_PROCESSES`].
    pub left_out: u32,
}

/// A process of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostProcess {
    /// Who.
    pub key: ProcessKey,
    /// `comm`.
    pub command: Arc<str>,
    /// Whose it is.
    pub owner: ProcessOwner,
    /// User time since its start.
    pub cpu_user: Nanos,
    /// System time since its start.
    pub cpu_system: Nanos,
    /// Resident memory.
    pub rss: Bytes,
    /// Threads.
    pub threads: Count,
    /// Bytes it caused to be read from storage.
    pub read_bytes: Reading<Bytes>,
    /// Bytes it caused to be written to storage.
    pub write_bytes: Reading<Bytes>,
    /// When this was read.
    pub at: Monotonic,
}

/// One pass over the host's processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessPass {
    /// At most [`MAX_PROCESSES`].
    pub processes: Vec<HostProcess>,
    /// How many there are in all.
    pub total: u32,
    /// When the pass ended.
    pub at: Monotonic,
}
