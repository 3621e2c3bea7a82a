//! Workload profiles for the tests of this crate, of the small view.

use super::{mig_uuid, pod_uid, uuid};
use model::id::PodRef;
use model::time::{Monotonic, WallTime};
use model::workload_profile::{
    CyclePeriod, CycleVerdict, GpuJob, JobKind, ProfiledForecast, ProfiledQuantity, ProfiledSubject, ProfiledTrend,
    RecorderState, TrendDirection, VerdictKind, WorkloadProfile, WorkloadProfiles,
};
use std::time::Duration;

/// Every verdict and every kind of answer. The last pod is gone from the view.
#[expect(clippy::too_many_lines, reason = "a list of values")]
pub(crate) fn small() -> WorkloadProfiles {
    let gpu = |index| ProfiledSubject::Gpu(uuid(index));
    let instance = || ProfiledSubject::Gpu(mig_uuid(0));
    let train = ("ml", "train-0");
    WorkloadProfiles {
        profiles: vec![
            WorkloadProfile {
                cycles: Some(periodic(6.0)),
                trend: Some(ProfiledTrend {
                    per_hour: 0.5,
                    low: 0.25,
                    high: 1.25,
                    direction: Some(TrendDirection::Rising),
                }),
                forecasts: vec![
                    forecast(30, [80.0, 10.0, 95.0]),
                    forecast(300, [75.0, 5.0, 95.0]),
                    forecast(3600, [70.0, 2.5, 97.5]),
                ],
                next_hour_maximum: Some(99.0),
                recent: vec![Some(95.0), Some(95.0), None, Some(5.0)],
                ..empty(gpu(0), ProfiledQuantity::Utilization)
            },
            WorkloadProfile {
                cycles: Some(verdict(VerdictKind::Aperiodic, "the best candidate is not alike enough")),
                ..empty(gpu(0), ProfiledQuantity::MemoryCopy)
            },
            WorkloadProfile {
                leak_per_hour: Some(bytes(1)),
                forecasts: vec![forecast(30, [bytes(40), bytes(39), bytes(41)])],
                next_hour_maximum: Some(bytes(48)),
                ..empty(gpu(0), ProfiledQuantity::GpuMemory)
            },
            WorkloadProfile {
                forecasts: vec![forecast(30, [512.5, 500.0, 525.0])],
                next_hour_maximum: Some(650.0),
                ..empty(gpu(0), ProfiledQuantity::Power)
            },
            WorkloadProfile {
                cycles: Some(verdict(VerdictKind::Unknown, "there are too few values")),
                ..empty(gpu(1), ProfiledQuantity::Utilization)
            },
            WorkloadProfile { next_hour_maximum: Some(bytes(79)), ..empty(gpu(2), ProfiledQuantity::GpuMemory) },
            WorkloadProfile {
                cycles: Some(verdict(VerdictKind::Unobservable, "the counter is too slow")),
                ..empty(instance(), ProfiledQuantity::Utilization)
            },
            WorkloadProfile {
                cycles: Some(periodic(40.0)),
                forecasts: vec![forecast(30, [50.0, 40.0, 60.0])],
                next_hour_maximum: Some(65.0),
                ..empty(instance(), ProfiledQuantity::MemoryCopy)
            },
            WorkloadProfile {
                forecasts: vec![forecast(30, [bytes(8), bytes(7), bytes(9)])],
                next_hour_maximum: Some(bytes(10)),
                ..empty(instance(), ProfiledQuantity::GpuMemory)
            },
            WorkloadProfile { cycles: Some(periodic(6.5)), ..of_pod(1, train, ProfiledQuantity::Cpu) },
            WorkloadProfile {
                cycles: Some(periodic(60.0)),
                forecasts: vec![forecast(30, [bytes(4), bytes(3), bytes(5)])],
                next_hour_maximum: Some(bytes(6)),
                ..of_pod(1, train, ProfiledQuantity::Memory)
            },
            WorkloadProfile { cycles: Some(periodic(9.0)), ..of_pod(0x77, ("ml", "gone"), ProfiledQuantity::Cpu) },
        ],
        jobs: vec![GpuJob {
            gpu: uuid(0),
            period: Some(Duration::from_secs(6)),
            memory_copy_maximum: Some(40.0),
            utilization_maximum: Some(99.0),
            kind: JobKind::Dlt,
        }],
        recorder: RecorderState {
            series: 12,
            left_out: 3,
            memory: 4 << 20,
            file: Some(2 << 20),
            not_kept: None,
            missed: 5,
            analyses: 77,
            analysis_time: Duration::from_millis(1250),
            busiest_second: Duration::from_millis(13),
        },
    }
}

fn empty(subject: ProfiledSubject, quantity: ProfiledQuantity) -> WorkloadProfile {
    WorkloadProfile {
        subject,
        pod: None,
        quantity,
        cycles: None,
        analyzed_at: Monotonic(90_000_000_000),
        hour_analyzed_at: Some(Monotonic(80_000_000_000)),
        trend: None,
        leak_per_hour: None,
        forecasts: Vec::new(),
        next_hour_maximum: None,
        recent: Vec::new(),
        recent_step: Duration::from_secs(1),
    }
}

fn of_pod(number: u32, (namespace, name): (&str, &str), quantity: ProfiledQuantity) -> WorkloadProfile {
    let pod = PodRef { namespace: namespace.into(), name: name.into() };
    WorkloadProfile { pod: Some(pod), ..empty(ProfiledSubject::Pod(pod_uid(number)), quantity) }
}

fn periodic(seconds: f64) -> CycleVerdict {
    let period = CyclePeriod {
        length: Duration::from_secs_f64(seconds),
        shortest: Duration::from_secs_f64(seconds - 0.5),
        longest: Duration::from_secs_f64(seconds + 0.5),
        score: 0.75,
        cycles: 20,
    };
    CycleVerdict { period: Some(period), ..verdict(VerdictKind::Periodic, "the cycles are alike") }
}

fn verdict(kind: VerdictKind, reason: &str) -> CycleVerdict {
    CycleVerdict { kind, reason: reason.into(), period: None, since: WallTime(1_799_999_000_000_000) }
}

/// A forecast with its value and its interval.
fn forecast(seconds: u64, [value, low, high]: [f64; 3]) -> ProfiledForecast {
    ProfiledForecast { horizon: Duration::from_secs(seconds), value, low, high }
}

/// GiB as bytes.
fn bytes(gib: u32) -> f64 {
    f64::from(gib) * f64::from(1_u32 << 30)
}
