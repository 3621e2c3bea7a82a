//! The profiles of the test node: a periodic GPU, a periodic MIG instance, and a GPU whose load does not repeat.

use super::{NOW, uuid};
use model::time::{Monotonic, WallTime};
use model::workload_profile::{
    CyclePeriod, CycleVerdict, MAX_RECENT, ProfiledQuantity, ProfiledSubject, VerdictKind, WorkloadProfile,
};
use std::time::Duration;
use wire::api::ViewHeadJson;
use wire::api::profile::{ProfilesJson, ProfilesListing, RecorderJson};
use wire::api::reading::ReadingAges;

fn utilization(device: &str, kind: VerdictKind, period: Option<u64>, recent: Vec<Option<f32>>) -> WorkloadProfile {
    let period = period.map(|seconds| CyclePeriod {
        length: Duration::from_secs(seconds),
        shortest: Duration::from_secs(seconds - 1),
        longest: Duration::from_secs(seconds + 1),
        score: 0.95,
        cycles: 20,
    });
    let cycles =
        CycleVerdict { kind, reason: "as the test needs it".into(), period, since: WallTime(1_760_000_000_000_000) };
    WorkloadProfile {
        subject: ProfiledSubject::Gpu(uuid(device)),
        pod: None,
        quantity: ProfiledQuantity::Utilization,
        cycles: Some(cycles),
        analyzed_at: Monotonic(1_000_000_000_000),
        hour_analyzed_at: None,
        trend: None,
        leak_per_hour: None,
        forecasts: Vec::new(),
        next_hour_maximum: None,
        recent,
        recent_step: Duration::from_secs(1),
    }
}

/// The answer of the test node's agent about GPUs.
pub(super) fn profiles(view: ViewHeadJson) -> ProfilesJson {
    let cycle = (0..MAX_RECENT).map(|second| Some(if second % 6 < 4 { 93.0 } else { 5.0 })).collect();
    let flat = vec![Some(35.0), Some(35.0), None, Some(50.0)];
    let profiles = [
        utilization("GPU-0", VerdictKind::Periodic, Some(6), cycle),
        utilization("GPU-1", VerdictKind::Aperiodic, None, flat),
        utilization("MIG-1", VerdictKind::Periodic, Some(60), Vec::new()),
    ];
    let listing = ProfilesListing {
        view,
        recorder: RecorderJson::default(),
        profiles: profiles.iter().collect(),
        jobs: Vec::new(),
        ages: ReadingAges(NOW.monotonic),
    };
    serde_json::from_value(serde_json::to_value(listing).unwrap()).unwrap()
}
