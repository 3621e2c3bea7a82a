//! The names of series in `/api/v1/profile` and `/api/v1/history`, and the query for a history.
//!
//! ```text
//!   subject    gpu/0   gpu/GPU-…   pod/NAMESPACE/NAME   pod/UID
//!   series     SUBJECT/QUANTITY, for example gpu/0/utilization or pod/ml/train-0/memory
//!   from       2026-11-28T10:00:00Z   -2h
//!   step       15m
//! ```
//!
//! What must never happen here: a question whose answer has more than [`MAX_HISTORY_POINTS`] points.

use crate::decode_error::shown;
use crate::{time_span, timestamp};
use model::id::{GpuUuid, PodRef, PodUid};
use model::time::WallTime;
use model::workload_profile::{MAX_HISTORY_POINTS, ProfiledQuantity};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest time back that a question may name. The agent keeps 35 days. One more day lets a client compute the begin
/// itself, with a clock that is not exact.
const LONGEST: Duration = Duration::from_secs(36 * 86_400);
/// The words for a subject of a series.
const GPU: &str = "gpu";
const POD: &str = "pod";
/// Upper bound on a namespace and on the name of a pod: the API server's.
const MAX_NAME: usize = 253;

/// A GPU or a pod, as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// The GPU with this index.
    GpuIndex(u32),
    /// The GPU or MIG instance with this UUID.
    Gpu(GpuUuid),
    /// The pod with this namespace and name.
    Pod(PodRef),
    /// The pod with this UID.
    PodUid(PodUid),
}

/// One quantity of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesName {
    /// The subject.
    pub subject: SubjectName,
    /// The quantity, which a subject of this kind has.
    pub quantity: ProfiledQuantity,
}

/// The subjects of which somebody wants to see the profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubjectFilter {
    /// All subjects.
    #[default]
    All,
    /// All GPUs and MIG instances.
    Gpus,
    /// All pods.
    Pods,
    /// One subject.
    One(SubjectName),
}

/// A question about a history. Its answer has at most [`MAX_HISTORY_POINTS`] points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuestion {
    /// The series.
    pub series: SeriesName,
    /// Begin; `None` for the oldest value that the step allows.
    pub from: Option<WallTime>,
    /// The wanted step; `None` for the finest step that is kept as far back as `from`.
    pub step: Option<Duration>,
}

/// Why a text is not a question about a history, as a sentence for the person who asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHistoryQuery {
    /// The text names no subject.
    #[error(
        "{0} names no GPU and no pod: write gpu/INDEX, gpu/UUID, pod/NAMESPACE/NAME or pod/UID, and a series as in gpu/0/utilization"
    )]
    Subject(String),
    /// A subject of this kind does not have the quantity.
    #[error("a {kind} has no quantity {text}: use {known}")]
    Quantity {
        /// `GPU` or `pod`.
        kind: &'static str,
        /// The text.
        text: String,
        /// The quantities that there are.
        known: String,
    },
    /// The begin is not a time.
    #[error("from is {0}: expected a time such as 2026-11-28T10:00:00Z (write + as %2B), or -2h for two hours ago")]
    From(String),
    /// The begin is later than now.
    #[error("from is in the future: name a time before {now}")]
    Future {
        /// The time of the question.
        now: String,
    },
    /// The begin is earlier than any history.
    #[error("from is more than {} days ago, and histories of 35 days are kept: name a later time", LONGEST.as_secs() / 86_400)]
    TooOld,
    /// The step is not a span of time.
    #[error("step is {text}: {why}")]
    Step {
        /// The text.
        text: String,
        /// What is expected.
        why: &'static str,
    },
    /// The step is zero, or longer than any history.
    #[error("step is {text}: name a step above zero and of at most {} days", LONGEST.as_secs() / 86_400)]
    StepOutOfRange {
        /// The text.
        text: String,
    },
    /// There are too many points between the begin and now.
    #[error(
        "there are {points} steps between from and now, and an answer has at most {}: name a step of at least {least_seconds}s, or a later from",
        MAX_HISTORY_POINTS
    )]
    TooManyPoints {
        /// The number of steps.
        points: u128,
        /// The shortest step, in whole seconds.
        least_seconds: u64,
    },
}

// === impl SubjectName ===

impl SubjectName {
    /// Reads a subject.
    ///
    /// # Errors
    /// [`BadHistoryQuery`]
    pub fn parse(text: &str) -> Result<SubjectName, BadHistoryQuery> {
        let bad = || BadHistoryQuery::Subject(shown(text));
        match text.split_once('/') {
            Some((GPU, name)) => match name.parse() {
                Ok(index) => Ok(SubjectName::GpuIndex(index)),
                Err(_) => GpuUuid::parse(name).map(SubjectName::Gpu).map_err(|_| bad()),
            },
            Some((POD, name)) => match name.split_once('/') {
                Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                    Ok(SubjectName::Pod(PodRef { namespace: Arc::from(namespace), name: Arc::from(name) }))
                }
                Some(_) => Err(bad()),
                None => PodUid::parse(name).map(SubjectName::PodUid).map_err(|_| bad()),
            },
            _ => Err(bad()),
        }
    }

    fn quantities(&self) -> (&'static str, [ProfiledQuantity; 4]) {
        match self {
            SubjectName::GpuIndex(_) | SubjectName::Gpu(_) => ("GPU", ProfiledQuantity::OF_GPU),
            SubjectName::Pod(_) | SubjectName::PodUid(_) => ("pod", ProfiledQuantity::OF_POD),
        }
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubjectName::GpuIndex(index) => write!(f, "{GPU}/{index}"),
            SubjectName::Gpu(uuid) => write!(f, "{GPU}/{uuid}"),
            SubjectName::Pod(pod) => write!(f, "{POD}/{pod}"),
            SubjectName::PodUid(uid) => write!(f, "{POD}/{uid}"),
        }
    }
}

/// The characters of Kubernetes' names: lower-case letters, digits, `-` and `.`.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(fits)
}

// === impl SeriesName ===

impl SeriesName {
    /// Reads a subject and a quantity.
    ///
    /// # Errors
    /// [`BadHistoryQuery`]
    pub fn parse(text: &str) -> Result<SeriesName, BadHistoryQuery> {
        // The UUID of a MIG instance may contain slashes.
        let (subject, quantity) = text.rsplit_once('/').ok_or_else(|| BadHistoryQuery::Subject(shown(text)))?;
        let subject = SubjectName::parse(subject).map_err(|_| BadHistoryQuery::Subject(shown(text)))?;
        let (kind, known) = subject.quantities();
        let found = known.into_iter().find(|known| known.code() == quantity);
        let quantity = found.ok_or_else(|| BadHistoryQuery::Quantity {
            kind,
            text: shown(quantity),
            known: known.map(ProfiledQuantity::code).join(", "),
        })?;
        Ok(SeriesName { subject, quantity })
    }
}

impl fmt::Display for SeriesName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.subject, self.quantity.code())
    }
}

// === impl SubjectFilter ===

impl SubjectFilter {
    /// Reads `gpu`, `pod` or a subject; `None` stands for all subjects.
    ///
    /// # Errors
    /// [`BadHistoryQuery`]
    pub fn parse(text: Option<&str>) -> Result<SubjectFilter, BadHistoryQuery> {
        Ok(match text {
            None => SubjectFilter::All,
            Some(GPU) => SubjectFilter::Gpus,
            Some(POD) => SubjectFilter::Pods,
            Some(text) => SubjectFilter::One(SubjectName::parse(text)?),
        })
    }
}

// === impl HistoryQuestion ===

impl HistoryQuestion {
    /// Reads a question that is asked at `now`.
    ///
    /// # Errors
    /// [`BadHistoryQuery`]
    pub fn parse(
        series: &str,
        from: Option<&str>,
        step: Option<&str>,
        now: WallTime,
    ) -> Result<HistoryQuestion, BadHistoryQuery> {
        let series = SeriesName::parse(series)?;
        let from = from.map(|text| begin(text, now)).transpose()?;
        let step = step.map(width).transpose()?;
        if let (Some(from), Some(step)) = (from, step) {
            let range = now.since(from);
            let points = range.as_nanos().div_ceil(step.as_nanos().max(1));
            if points > MAX_HISTORY_POINTS as u128 {
                let least = range.as_nanos().div_ceil(MAX_HISTORY_POINTS as u128).div_ceil(1_000_000_000);
                let least_seconds = u64::try_from(least).unwrap_or(u64::MAX);
                return Err(BadHistoryQuery::TooManyPoints { points, least_seconds });
            }
        }
        Ok(HistoryQuestion { series, from, step })
    }
}

/// The begin of a history.
fn begin(text: &str, now: WallTime) -> Result<WallTime, BadHistoryQuery> {
    let bad = || BadHistoryQuery::From(shown(text));
    let at = match text.strip_prefix('-') {
        Some(span) => {
            let span = time_span::parse(span).map_err(|_| bad())?;
            let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
            now.0.checked_sub(micros).map(WallTime).ok_or(BadHistoryQuery::TooOld)?
        }
        None => timestamp::rfc3339_micros(text).ok_or_else(bad)?,
    };
    if at > now {
        return Err(BadHistoryQuery::Future { now: timestamp::to_rfc3339(now) });
    }
    if now.since(at) > LONGEST { Err(BadHistoryQuery::TooOld) } else { Ok(at) }
}

/// The step of a history.
fn width(text: &str) -> Result<Duration, BadHistoryQuery> {
    let step = time_span::parse(text).map_err(|why| BadHistoryQuery::Step { text: shown(text), why })?;
    if step.is_zero() || step > LONGEST {
        return Err(BadHistoryQuery::StepOutOfRange { text: shown(text) });
    }
    Ok(step)
}

#[cfg(test)]
mod tests;
