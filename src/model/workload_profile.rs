//! What the agent says about the load of a GPU or a pod: whether it repeats, where it goes, what it will need. The agent's thread
//! `profile` makes it; metrics, API, `top` and the annotations of the Node show it.
//!
//! What must never happen here: a number that the history does not support. A missing answer is `None`, and a verdict has its reason.

use crate::id::{GpuUuid, PodRef, PodUid};
use crate::time::{Monotonic, WallTime};
use std::sync::Arc;
use std::time::Duration;

/// Number of values in [`WorkloadProfile::recent`]: a sparkline of this many characters fits into half a terminal line.
pub const MAX_RECENT: usize = 40;
/// Upper bound on the points of one [`HistoryAnswer`]: a month in steps of a quarter of an hour has 2,976.
pub const MAX_HISTORY_POINTS: usize = 4096;

/// The thing that a profile is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfiledSubject {
    /// A GPU, or an instance of a divided GPU by its own UUID.
    Gpu(GpuUuid),
    /// A pod, by the UID that its cgroups carry.
    Pod(PodUid),
}

/// The quantity that a profile is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfiledQuantity {
    /// Percentage of time in which a GPU ran a kernel.
    Utilization,
    /// Percentage of time in which a GPU's memory was read or written.
    MemoryCopy,
    /// Memory of the GPU in use, in bytes; of a pod, what its processes hold on all GPUs.
    GpuMemory,
    /// Power draw of a GPU in watts.
    Power,
    /// Use of processors by a pod, in cores.
    Cpu,
    /// Working set of a pod, in bytes.
    Memory,
    /// SM use of a pod in percent, summed over its GPUs.
    SmUse,
}

impl ProfiledQuantity {
    /// All quantities of a GPU.
    pub const OF_GPU: [ProfiledQuantity; 4] = [Self::Utilization, Self::MemoryCopy, Self::GpuMemory, Self::Power];
    /// All quantities of a pod.
    pub const OF_POD: [ProfiledQuantity; 4] = [Self::Cpu, Self::Memory, Self::GpuMemory, Self::SmUse];

    /// A stable short name, for label values, JSON and queries.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Utilization => "utilization",
            Self::MemoryCopy => "memory_copy",
            Self::GpuMemory => "gpu_memory",
            Self::Power => "power",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::SmUse => "sm_use",
        }
    }

    /// The quantity with this code.
    #[must_use]
    pub fn of_code(code: &str) -> Option<Self> {
        Self::OF_GPU.into_iter().chain(Self::OF_POD).find(|quantity| quantity.code() == code)
    }

    /// The unit of the values in this module: `percent`, `bytes`, `watts` or `cores`.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Utilization | Self::MemoryCopy | Self::SmUse => "percent",
            Self::GpuMemory | Self::Memory => "bytes",
            Self::Power => "watts",
            Self::Cpu => "cores",
        }
    }

    /// The unit of [`ProfiledQuantity::in_base_units`], as it stands in JSON and in the names of metrics: `ratio`, `bytes`,
    /// `watts` or `cores`.
    #[must_use]
    pub fn base_unit(self) -> &'static str {
        match self {
            Self::Utilization | Self::MemoryCopy | Self::SmUse => "ratio",
            Self::GpuMemory | Self::Memory | Self::Power | Self::Cpu => self.unit(),
        }
    }

    /// A value of this quantity in base units: a percentage becomes a ratio from 0 to 1.
    #[must_use]
    pub fn in_base_units(self, value: f64) -> f64 {
        match self {
            Self::Utilization | Self::MemoryCopy | Self::SmUse => value / 100.0,
            Self::GpuMemory | Self::Memory | Self::Power | Self::Cpu => value,
        }
    }
}

/// All profiles of a node at one moment. The thread `profile` makes a new one after each analysis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadProfiles {
    /// Ordered by subject and quantity.
    pub profiles: Vec<WorkloadProfile>,
    /// What Alnair's annotations say of each GPU, ordered by UUID.
    pub jobs: Vec<GpuJob>,
    /// The state of the recorder.
    pub recorder: RecorderState,
}

/// The profile of one quantity of one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadProfile {
    /// What it is about.
    pub subject: ProfiledSubject,
    /// Namespace and name of a pod, if they are known.
    pub pod: Option<PodRef>,
    /// The quantity.
    pub quantity: ProfiledQuantity,
    /// The published verdict on cycles; `None` until two analyses have agreed.
    pub cycles: Option<CycleVerdict>,
    /// When the history in memory was last analysed. Forecasts of less than an hour count from here.
    pub analyzed_at: Monotonic,
    /// When the minutes of the last day were last analysed. The forecast of an hour and the maximum of the next hour count from here;
    /// `None` without either.
    pub hour_analyzed_at: Option<Monotonic>,
    /// Change per hour with its 90 % interval; `None` where the history is too short.
    pub trend: Option<ProfiledTrend>,
    /// By how much the maxima of the cycles rise per hour, if they rise for certain.
    pub leak_per_hour: Option<f64>,
    /// Forecasts, ordered by horizon; only those that the history is long enough for.
    pub forecasts: Vec<ProfiledForecast>,
    /// A value that the maximum of the next hour exceeds in about one of ten hours.
    pub next_hour_maximum: Option<f64>,
    /// The last values, oldest first, at most [`MAX_RECENT`]; a gap is `None`.
    pub recent: Vec<Option<f32>>,
    /// The time between two values of `recent`.
    pub recent_step: Duration,
}

/// Whether a load repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct CycleVerdict {
    /// The kind of answer.
    pub kind: VerdictKind,
    /// One sentence that gives the reason.
    pub reason: Arc<str>,
    /// The period, if the load is periodic.
    pub period: Option<CyclePeriod>,
    /// Since when this verdict is published.
    pub since: WallTime,
}

/// The kinds of verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// The load repeats.
    Periodic,
    /// The load does not repeat.
    Aperiodic,
    /// The history does not decide it.
    Unknown,
    /// The counter is too slow to show it.
    Unobservable,
}

impl VerdictKind {
    /// All kinds.
    pub const ALL: [VerdictKind; 4] = [Self::Periodic, Self::Aperiodic, Self::Unknown, Self::Unobservable];

    /// A stable short code, for label values and JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Periodic => "periodic",
            Self::Aperiodic => "aperiodic",
            Self::Unknown => "unknown",
            Self::Unobservable => "unobservable",
        }
    }
}

/// A period with its 90 % interval.
#[derive(Clone, Debug, PartialEq)]
pub struct CyclePeriod {
    /// Mean length of a cycle.
    pub length: Duration,
    /// Lower end of the 90 % interval.
    pub shortest: Duration,
    /// Upper end of the 90 % interval.
    pub longest: Duration,
    /// How alike the cycles are, from 0 to 1.
    pub score: f64,
    /// Number of cycles seen.
    pub cycles: u32,
}

/// A change per hour with its 90 % interval, in the unit of the quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfiledTrend {
    /// The slope.
    pub per_hour: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Where it goes, if that is certain.
    pub direction: Option<TrendDirection>,
}

/// Where a load goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrendDirection {
    /// Up.
    Rising,
    /// Down.
    Falling,
}

impl TrendDirection {
    /// A stable short code, for JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Rising => "rising",
            Self::Falling => "falling",
        }
    }
}

/// A forecast with its 90 % interval, in the unit of the quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfiledForecast {
    /// How far ahead.
    pub horizon: Duration,
    /// The expected value.
    pub value: f64,
    /// Lower end of the interval (quantile 0.05).
    pub low: f64,
    /// Upper end of the interval (quantile 0.95).
    pub high: f64,
}

/// What Alnair's annotations say of one GPU, from the last two minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuJob {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The period, if the load of the last two minutes is periodic.
    pub period: Option<Duration>,
    /// Highest memory-copy utilisation in percent.
    pub memory_copy_maximum: Option<f64>,
    /// Highest utilisation in percent.
    pub utilization_maximum: Option<f64>,
    /// The kind of job.
    pub kind: JobKind,
}

/// Alnair's kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// The load is cyclic, as that of deep-learning training.
    Dlt,
    /// The memory of the GPU was not read or written in the last two minutes.
    Empty,
    /// Any other load.
    Others,
}

impl JobKind {
    /// The value of Alnair's annotation.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Dlt => "DLT",
            Self::Empty => "Empty",
            Self::Others => "Others",
        }
    }
}

/// The state of the recorder of histories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecorderState {
    /// Number of series that it keeps.
    pub series: u32,
    /// Number of series beyond its bound.
    pub left_out: u32,
    /// Bytes of history in memory.
    pub memory: u64,
    /// Bytes of the file of histories; `None` if there is no file.
    pub file: Option<u64>,
    /// The reason why histories are not kept on disk.
    pub not_kept: Option<Arc<str>>,
    /// Samples that were missed because the thread was late.
    pub missed: u64,
    /// Analyses since the start.
    pub analyses: u64,
    /// Time of this thread's processor that they took since the start.
    pub analysis_time: Duration,
    /// The most of it that one second took.
    pub busiest_second: Duration,
}

/// A question about the history of one quantity of one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryQuery {
    /// What it is about.
    pub subject: ProfiledSubject,
    /// The quantity.
    pub quantity: ProfiledQuantity,
    /// Begin; `None` for the oldest value that the step allows.
    pub from: Option<WallTime>,
    /// The wanted step; `None` for the finest step that is kept as far back as `from`. The answer is coarser where nothing so fine
    /// is kept.
    pub step: Option<Duration>,
}

/// The answer to a [`HistoryQuery`], oldest point first, at most [`MAX_HISTORY_POINTS`].
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryAnswer {
    /// The time between two points.
    pub step: Duration,
    /// The points. A time without a value has no point.
    pub points: Vec<HistoryPoint>,
}

/// Mean and maximum over one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryPoint {
    /// Begin of the step.
    pub at: WallTime,
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub maximum: f64,
}
