//! `/api/v1/profile`: whether the load of each GPU and pod repeats, where it goes, and what it will need.
//!
//! ```text
//!   {"view": …, "recorder": …, "profiles": [{"series": "gpu/GPU-…/utilization", "unit": "ratio", "cycles": …}]}
//! ```
//!
//! What must never happen here: a number for an answer that does not exist. It is `null`, or the item is missing.

use super::head::ViewHeadJson;
use super::pods::Each;
use super::reading::ReadingAges;
use crate::history_query::{SeriesName, SubjectName};
use crate::timestamp;
use model::workload_profile::{
    CyclePeriod, CycleVerdict, GpuJob, ProfiledQuantity, ProfiledSubject, RecorderState, WorkloadProfile,
};
use serde::{Deserialize, Serialize, Serializer};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilesJson {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// The state of the recorder of histories.
    pub recorder: RecorderJson,
    /// The requested profiles, ordered by subject and quantity.
    pub profiles: Vec<ProfileJson>,
    /// What Alnair's annotations say of each requested GPU.
    pub jobs: Vec<GpuJobJson>,
}

/// Writes the same JSON as [`ProfilesJson`], and converts one profile at a time.
#[derive(Debug)]
pub struct ProfilesListing<'a> {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// The state of the recorder of histories.
    pub recorder: RecorderJson,
    /// The requested profiles.
    pub profiles: Vec<&'a WorkloadProfile>,
    /// What Alnair's annotations say of each requested GPU.
    pub jobs: Vec<GpuJobJson>,
    /// The time of the answer, for the ages.
    pub ages: ReadingAges,
}

/// The profile of one quantity of one subject. The values are in the unit `unit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileJson {
    /// The name of the series, for `/api/v1/history`.
    pub series: String,
    /// UUID of the GPU or MIG instance; `None` for a pod.
    pub gpu: Option<String>,
    /// UID of the pod; `None` for a GPU.
    pub pod_uid: Option<String>,
    /// Namespace of the pod, once it is known.
    pub namespace: Option<String>,
    /// Name of the pod, once it is known.
    pub pod: Option<String>,
    /// `utilization`, `memory_copy`, `gpu_memory`, `power`, `cpu`, `memory` or `sm_use`.
    pub quantity: String,
    /// `ratio`, `bytes`, `watts` or `cores`.
    pub unit: String,
    /// Seconds since the analysis of the history in memory, from which forecasts of less than an hour count.
    pub age_seconds: f64,
    /// Seconds since the analysis of the minutes of the last day, from which the forecast of an hour and the maximum of the next hour
    /// count; `None` without either.
    pub hour_age_seconds: Option<f64>,
    /// Whether the load repeats; `None` until two analyses have agreed.
    pub cycles: Option<CyclesJson>,
    /// The change per hour; `None` where the history is too short.
    pub trend: Option<TrendJson>,
    /// By how much the maxima of the cycles rise per hour, if they rise for certain.
    pub leak_per_hour: Option<f64>,
    /// Forecasts, ordered by horizon.
    pub forecasts: Vec<ForecastJson>,
    /// A value that the maximum of the next hour exceeds in about one of ten hours.
    pub next_hour_maximum: Option<f64>,
    /// The last values, oldest first; a gap is `null`.
    pub recent: Vec<Option<f64>>,
    /// The time between two values of `recent`.
    pub recent_step_seconds: f64,
}

/// Whether a load repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CyclesJson {
    /// `periodic`, `aperiodic`, `unknown` or `unobservable`.
    pub verdict: String,
    /// The reason, as a sentence.
    pub reason: String,
    /// When this verdict was published, in RFC 3339.
    pub since: String,
    /// The period of a periodic load.
    pub period: Option<PeriodJson>,
}

/// A period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodJson {
    /// Mean length of a cycle.
    pub seconds: f64,
    /// Lower end of the 90 % interval.
    pub low_seconds: f64,
    /// Upper end of the 90 % interval.
    pub high_seconds: f64,
    /// How alike the cycles are, from 0 to 1.
    pub score: f64,
    /// Number of cycles seen.
    pub cycles: u32,
}

/// A change per hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrendJson {
    /// The slope.
    pub per_hour: f64,
    /// Lower end of the 90 % interval.
    pub low: f64,
    /// Upper end of the 90 % interval.
    pub high: f64,
    /// `rising` or `falling`, if that is certain.
    pub direction: Option<String>,
}

/// A forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastJson {
    /// How far ahead.
    pub horizon_seconds: f64,
    /// The expected value.
    pub value: f64,
    /// Lower end of the 90 % interval.
    pub low: f64,
    /// Upper end of the 90 % interval.
    pub high: f64,
}

/// What Alnair's annotations say of one GPU, from the last two minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuJobJson {
    /// UUID of the GPU.
    pub gpu: String,
    /// `DLT`, `Empty` or `Others`.
    pub job_type: String,
    /// The period, if the load is cyclic.
    pub period_seconds: Option<f64>,
    /// Highest memory-copy utilisation.
    pub memory_copy_maximum_ratio: Option<f64>,
    /// Highest utilisation.
    pub utilization_maximum_ratio: Option<f64>,
}

/// The state of the recorder of histories.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecorderJson {
    /// Number of series that it keeps.
    pub series: u32,
    /// Number of series beyond its bound.
    pub left_out: u32,
    /// Bytes of history in memory.
    pub memory_bytes: u64,
    /// Bytes of the file of histories; `None` if there is no file.
    pub file_bytes: Option<u64>,
    /// Why histories are not kept over a restart; `None` if they are.
    pub not_kept: Option<String>,
    /// Samples that were missed because the recorder was late.
    pub missed_samples: u64,
    /// Analyses since the start.
    pub analyses: u64,
    /// Processor time of all analyses since the start.
    pub analysis_seconds: f64,
    /// The most of it that one second took.
    pub busiest_second_seconds: f64,
}

// === conversions ===

impl Serialize for ProfilesListing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut document = serializer.serialize_struct("Document", 4)?;
        document.serialize_field("view", &self.view)?;
        document.serialize_field("recorder", &self.recorder)?;
        let each = Each(&self.profiles, |profile: &WorkloadProfile| ProfileJson::of(profile, self.ages));
        document.serialize_field("profiles", &each)?;
        document.serialize_field("jobs", &self.jobs)?;
        document.end()
    }
}

impl ProfileJson {
    /// One profile.
    #[must_use]
    pub fn of(profile: &WorkloadProfile, ages: ReadingAges) -> ProfileJson {
        let quantity = profile.quantity;
        let plain = |value: f64| plain(quantity, value);
        let (gpu, pod_uid) = match &profile.subject {
            ProfiledSubject::Gpu(uuid) => (Some(uuid.to_string()), None),
            ProfiledSubject::Pod(uid) => (None, Some(uid.to_string())),
        };
        let trend = profile.trend.and_then(|trend| {
            Some(TrendJson {
                per_hour: plain(trend.per_hour)?,
                low: plain(trend.low)?,
                high: plain(trend.high)?,
                direction: trend.direction.map(|direction| direction.code().to_owned()),
            })
        });
        let forecasts = profile.forecasts.iter().filter_map(|forecast| {
            Some(ForecastJson {
                horizon_seconds: forecast.horizon.as_secs_f64(),
                value: plain(forecast.value)?,
                low: plain(forecast.low)?,
                high: plain(forecast.high)?,
            })
        });
        ProfileJson {
            series: series_of(profile).to_string(),
            gpu,
            pod_uid,
            namespace: profile.pod.as_ref().map(|pod| pod.namespace.to_string()),
            pod: profile.pod.as_ref().map(|pod| pod.name.to_string()),
            quantity: quantity.code().to_owned(),
            unit: quantity.base_unit().to_owned(),
            age_seconds: ages.since(profile.analyzed_at),
            hour_age_seconds: profile.hour_analyzed_at.map(|at| ages.since(at)),
            cycles: profile.cycles.as_ref().map(CyclesJson::of),
            trend,
            leak_per_hour: profile.leak_per_hour.and_then(plain),
            forecasts: forecasts.collect(),
            next_hour_maximum: profile.next_hour_maximum.and_then(plain),
            recent: profile.recent.iter().map(|value| value.and_then(|value| plain(f64::from(value)))).collect(),
            recent_step_seconds: profile.recent_step.as_secs_f64(),
        }
    }

    /// The period of a periodic load.
    #[must_use]
    pub fn period(&self) -> Option<&PeriodJson> {
        self.cycles.as_ref()?.period.as_ref()
    }
}

/// The series of a profile. A pod is named by its UID while its name is not known.
#[must_use]
pub fn series_of(profile: &WorkloadProfile) -> SeriesName {
    let subject = match (&profile.subject, &profile.pod) {
        (ProfiledSubject::Gpu(uuid), _) => SubjectName::Gpu(uuid.clone()),
        (ProfiledSubject::Pod(_), Some(pod)) => SubjectName::Pod(pod.clone()),
        (ProfiledSubject::Pod(uid), None) => SubjectName::PodUid(uid.clone()),
    };
    SeriesName { subject, quantity: profile.quantity }
}

/// The value in base units; `None` for infinity and not-a-number, which JSON cannot hold.
fn plain(quantity: ProfiledQuantity, value: f64) -> Option<f64> {
    Some(quantity.in_base_units(value)).filter(|value| value.is_finite())
}

impl CyclesJson {
    fn of(cycles: &CycleVerdict) -> CyclesJson {
        CyclesJson {
            verdict: cycles.kind.code().to_owned(),
            reason: cycles.reason.to_string(),
            since: timestamp::to_rfc3339(cycles.since),
            period: cycles.period.as_ref().map(PeriodJson::of),
        }
    }
}

impl PeriodJson {
    fn of(period: &CyclePeriod) -> PeriodJson {
        PeriodJson {
            seconds: period.length.as_secs_f64(),
            low_seconds: period.shortest.as_secs_f64(),
            high_seconds: period.longest.as_secs_f64(),
            score: if period.score.is_finite() { period.score } else { 0.0 },
            cycles: period.cycles,
        }
    }
}

impl GpuJobJson {
    /// What the annotations say of one GPU.
    #[must_use]
    pub fn of(job: &GpuJob) -> GpuJobJson {
        let ratio = |percent: Option<f64>| percent.and_then(|percent| plain(ProfiledQuantity::Utilization, percent));
        GpuJobJson {
            gpu: job.gpu.to_string(),
            job_type: job.kind.code().to_owned(),
            period_seconds: job.period.map(|period| period.as_secs_f64()),
            memory_copy_maximum_ratio: ratio(job.memory_copy_maximum),
            utilization_maximum_ratio: ratio(job.utilization_maximum),
        }
    }
}

impl RecorderJson {
    /// The state of the recorder.
    #[must_use]
    pub fn of(recorder: &RecorderState) -> RecorderJson {
        RecorderJson {
            series: recorder.series,
            left_out: recorder.left_out,
            memory_bytes: recorder.memory,
            file_bytes: recorder.file,
            not_kept: recorder.not_kept.as_ref().map(ToString::to_string),
            missed_samples: recorder.missed,
            analyses: recorder.analyses,
            analysis_seconds: recorder.analysis_time.as_secs_f64(),
            busiest_second_seconds: recorder.busiest_second.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{GpuUuid, PodRef, PodUid};
    use model::time::{Monotonic, WallTime};
    use model::workload_profile::{ProfiledForecast, VerdictKind};
    use std::time::Duration;

    fn profile(subject: ProfiledSubject, pod: Option<PodRef>, quantity: ProfiledQuantity) -> WorkloadProfile {
        WorkloadProfile {
            subject,
            pod,
            quantity,
            cycles: None,
            analyzed_at: Monotonic(1_000_000_000),
            hour_analyzed_at: None,
            trend: None,
            leak_per_hour: None,
            forecasts: Vec::new(),
            next_hour_maximum: None,
            recent: Vec::new(),
            recent_step: Duration::from_secs(1),
        }
    }

    #[test]
    fn percentages_become_ratios_and_what_is_not_finite_is_left_out() {
        let forecast = |value| ProfiledForecast { horizon: Duration::from_secs(30), value, low: 0.0, high: 100.0 };
        let uuid = GpuUuid::parse("GPU-1").unwrap();
        let cycles = CycleVerdict {
            kind: VerdictKind::Periodic,
            reason: "it repeats".into(),
            period: None,
            since: WallTime(1_795_256_507_000_000),
        };
        let json = ProfileJson::of(
            &WorkloadProfile {
                forecasts: vec![forecast(50.0), forecast(f64::NAN)],
                next_hour_maximum: Some(f64::INFINITY),
                recent: vec![Some(25.0), None, Some(f32::NAN)],
                cycles: Some(cycles),
                ..profile(ProfiledSubject::Gpu(uuid), None, ProfiledQuantity::Utilization)
            },
            ReadingAges(Monotonic(3_500_000_000)),
        );
        assert_eq!((json.series.as_str(), json.unit.as_str()), ("gpu/GPU-1/utilization", "ratio"));
        assert_eq!(json.forecasts.len(), 1);
        assert_eq!((json.forecasts[0].value, json.forecasts[0].high), (0.5, 1.0));
        assert_eq!((json.next_hour_maximum, json.recent.clone()), (None, vec![Some(0.25), None, None]));
        assert_eq!(json.cycles.as_ref().map(|cycles| cycles.since.as_str()), Some("2026-11-21T10:21:47Z"));
        assert_eq!(json.age_seconds, 2.5);
        let text = serde_json::to_vec(&json).unwrap();
        assert_eq!(serde_json::from_slice::<ProfileJson>(&text).unwrap(), json);
    }

    #[test]
    fn a_series_can_be_asked_for_by_the_name_that_it_is_shown_with() {
        let uid = PodUid::parse("0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11").unwrap();
        let pod = PodRef { namespace: "ml".into(), name: "train-0".into() };
        for (profile, text) in [
            (profile(ProfiledSubject::Pod(uid.clone()), Some(pod), ProfiledQuantity::Memory), "pod/ml/train-0/memory"),
            (
                profile(ProfiledSubject::Pod(uid), None, ProfiledQuantity::Cpu),
                "pod/0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11/cpu",
            ),
        ] {
            let series = series_of(&profile);
            assert_eq!(series.to_string(), text);
            assert_eq!(SeriesName::parse(text), Ok(series));
        }
    }
}
