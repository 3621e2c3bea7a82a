//! Processes: on a GPU as the driver lists them, and on the host as `/proc` shows them.

use crate::cgroup::CgroupIdentity;
use crate::id::{GpuUuid, ProcessKey};
use crate::reading::Reading;
use crate::time::{Monotonic, WallTime};
use crate::unit::{Bytes, Count, Nanos, Percent};
use std::sync::Arc;

/// Upper bound on the processes of one GPU that are listed one by one (NVML lists a few hundred at most under MPS). The
/// rest are counted, and their use counts as unattributed.
pub const MAX_GPU_PROCESSES: usize = 1024;
/// Upper bound on the host processes in the view; processes with the most CPU and memory come first. 4096 entries take
/// about 1 MiB; on a machine with more processes, `processes_left_out` counts the rest.
pub const MAX_PROCESSES: usize = 4096;

/// How a process uses a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuProcessKind {
    /// CUDA.
    Compute,
    /// Graphics.
    Graphics,
    /// CUDA through the MPS server.
    Mps,
}

/// The owner of a process, determined by the source that reads the process.
#[derive(Clone, Debug, PartialEq)]
pub enum ProcessOwner {
    /// The process belongs to this cgroup. For a process on a GPU, start time and cgroup were the same before and after
    /// the agent read NVML's list, and the process started before NVML's time stamp.
    Cgroup(Arc<CgroupIdentity>),
    /// A host process, in no container.
    Host,
    /// The owner could not be determined: the PID disappeared, was reused, or is hidden from the agent (no hostPID).
    Unknown,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProcess {
    /// The PID that the driver reports (host namespace).
    pub pid: u32,
    /// PID and start time, if `/proc` showed the process.
    pub key: Option<ProcessKey>,
    /// `comm`, at most 15 bytes; bytes that are not UTF-8 become replacement characters.
    pub command: Arc<str>,
    /// The owner.
    pub owner: ProcessOwner,
    /// How the process uses the GPU.
    pub kind: GpuProcessKind,
    /// The MIG instance that the process runs on.
    pub mig: Option<GpuUuid>,
    /// Device memory that the process holds.
    pub memory_used: Reading<Bytes>,
    /// SM use: the mean since the last list, weighted by time. The sum over the GPU's processes is at most what the GPU
    /// reports for itself. An idle process has 0, because the driver keeps no sample of a process that did nothing. If
    /// the driver reported only invalid samples of a process, the reading is absent.
    pub sm: Reading<Percent>,
    /// Encoder use.
    pub encoder: Reading<Percent>,
    /// Decoder use.
    pub decoder: Reading<Percent>,
}

/// NVML's list of the processes of one GPU at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProcesses {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The list, or the reason why there is no list.
    pub list: Reading<Vec<GpuProcess>>,
    /// Memory that was in use when the list was made, so that list and memory are of one moment.
    pub memory_used: Reading<Bytes>,
    /// NVML's time stamp of the newest utilisation sample that was used.
    pub stamp: Option<WallTime>,
    /// Processes beyond [`MAX_GPU_PROCESSES`].
    pub left_out: u32,
}

/// A process of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostProcess {
    /// The process.
    pub key: ProcessKey,
    /// `comm`.
    pub command: Arc<str>,
    /// The owner.
    pub owner: ProcessOwner,
    /// User time since the process started.
    pub cpu_user: Nanos,
    /// System time since the process started.
    pub cpu_system: Nanos,
    /// Resident memory.
    pub rss: Bytes,
    /// Threads.
    pub threads: Count,
    /// Bytes that the process read from storage.
    pub read_bytes: Reading<Bytes>,
    /// Bytes that the process wrote to storage.
    pub write_bytes: Reading<Bytes>,
    /// When the values were read.
    pub at: Monotonic,
}

/// One pass over the host's processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessPass {
    /// The processes, at most [`MAX_PROCESSES`].
    pub processes: Vec<HostProcess>,
    /// Number of processes on the host.
    pub total: u32,
    /// When the pass ended.
    pub at: Monotonic,
}
