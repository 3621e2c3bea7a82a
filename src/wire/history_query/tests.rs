//! Tests of the names of series and of questions about histories.

use super::*;
use proptest::prelude::*;

/// 2026-11-28T10:00:00Z.
const NOW: WallTime = WallTime(1_795_860_000_000_000);
const HOUR: u64 = 3_600_000_000;

fn question(series: &str, from: Option<&str>, step: Option<&str>) -> Result<HistoryQuestion, BadHistoryQuery> {
    HistoryQuestion::parse(series, from, step, NOW)
}

#[test]
fn a_series_is_named_by_index_uuid_pod_or_uid() {
    for (text, quantity) in [
        ("gpu/0/utilization", ProfiledQuantity::Utilization),
        ("gpu/GPU-00000001-1111-2222-3333-444444444444/memory_copy", ProfiledQuantity::MemoryCopy),
        ("gpu/MIG-GPU-1/13/10/gpu_memory", ProfiledQuantity::GpuMemory),
        ("gpu/7/power", ProfiledQuantity::Power),
        ("pod/ml/train-0/memory", ProfiledQuantity::Memory),
        ("pod/ml/train-0.x/cpu", ProfiledQuantity::Cpu),
        ("pod/0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11/sm_use", ProfiledQuantity::SmUse),
    ] {
        let series = SeriesName::parse(text).unwrap();
        assert_eq!((series.quantity, series.to_string().as_str()), (quantity, text));
    }
    let pod = PodRef { namespace: "ml".into(), name: "train-0".into() };
    assert_eq!(SubjectName::parse("pod/ml/train-0"), Ok(SubjectName::Pod(pod)));
    assert_eq!(SubjectName::parse("gpu/3"), Ok(SubjectName::GpuIndex(3)));
}

#[test]
fn other_names_are_refused_with_the_forms_that_there_are() {
    for text in ["", "gpu", "gpu/0", "cpu/0/utilization", "gpu//power", "pod/x/cpu", "pod/a/b/c/cpu", "pod/A/b/cpu"] {
        let why = SeriesName::parse(text).unwrap_err().to_string();
        assert!(why.contains("write gpu/INDEX, gpu/UUID, pod/NAMESPACE/NAME or pod/UID"), "{text}: {why}");
    }
    for (text, why) in [
        ("gpu/0/sm_use", "a GPU has no quantity \"sm_use\": use utilization, memory_copy, gpu_memory, power"),
        ("pod/ml/a/power", "a pod has no quantity \"power\": use cpu, memory, gpu_memory, sm_use"),
    ] {
        assert_eq!(SeriesName::parse(text).unwrap_err().to_string(), why);
    }
}

#[test]
fn a_filter_names_a_kind_or_one_subject() {
    assert_eq!(SubjectFilter::parse(None), Ok(SubjectFilter::All));
    assert_eq!(SubjectFilter::parse(Some("gpu")), Ok(SubjectFilter::Gpus));
    assert_eq!(SubjectFilter::parse(Some("pod")), Ok(SubjectFilter::Pods));
    assert_eq!(SubjectFilter::parse(Some("gpu/1")), Ok(SubjectFilter::One(SubjectName::GpuIndex(1))));
    assert!(SubjectFilter::parse(Some("")).is_err());
}

#[test]
fn the_begin_is_a_time_or_a_span_before_now() {
    let from = |text: &str| question("gpu/0/power", Some(text), None).map(|question| question.from.unwrap().0);
    assert_eq!(from("-2h"), Ok(NOW.0 - 2 * HOUR));
    assert_eq!(from("2026-11-28T09:00:00Z"), Ok(NOW.0 - HOUR));
    assert_eq!(from("2026-11-28T10:00:00+01:00"), Ok(NOW.0 - HOUR));
    assert_eq!(from("-36d"), Ok(NOW.0 - 36 * 24 * HOUR));
    for text in ["", "-", "yesterday", "2h", "2026-11-28", "-2", "2026-11-28T10:00:00 01:00", "--2h"] {
        assert!(matches!(from(text), Err(BadHistoryQuery::From(_))), "{text}: {:?}", from(text));
    }
    for text in ["-37d", "1970-01-01T00:00:00Z", "-99999999999999d"] {
        assert_eq!(from(text), Err(BadHistoryQuery::TooOld), "{text}");
    }
    let why = from("2026-11-28T10:00:01Z").unwrap_err().to_string();
    assert_eq!(why, "from is in the future: name a time before 2026-11-28T10:00:00Z");
}

#[test]
fn a_step_that_gives_too_many_points_is_refused_with_the_shortest_one() {
    let asked = |from: &str, step: &str| question("gpu/0/power", Some(from), Some(step));
    let points = |from: &str, step: &str| asked(from, step).map(|_| ());
    assert_eq!(points("-35d", "15m"), Ok(()));
    assert_eq!(points("-4096s", "1s"), Ok(()));
    assert_eq!(points("-4097s", "1s"), Err(BadHistoryQuery::TooManyPoints { points: 4097, least_seconds: 2 }));
    let refused = asked("-35d", "1ms").unwrap_err();
    let BadHistoryQuery::TooManyPoints { least_seconds, .. } = refused else { panic!("{refused}") };
    assert_eq!(points("-35d", &format!("{least_seconds}s")), Ok(()));
    assert!(points("-35d", &format!("{}s", least_seconds - 1)).is_err());
    for (step, why) in [
        ("0s", "step is \"0s\": name a step above zero and of at most 36 days"),
        ("37d", "step is \"37d\": name a step above zero and of at most 36 days"),
        ("1", "step is \"1\": a time needs a unit: ms, s, m, h or d"),
    ] {
        assert_eq!(points("-1h", step).unwrap_err().to_string(), why);
    }
    assert!(question("gpu/0/power", None, Some("1ms")).is_ok(), "without a begin the agent takes the newest points");
}

proptest! {
    /// Promise 18 in docs/specification.md.
    #[test]
    fn no_query_causes_a_panic(series in "\\PC{0,60}", from in "\\PC{0,30}", step in "\\PC{0,30}", now: u64) {
        let _ = SubjectFilter::parse(Some(&series));
        let _ = HistoryQuestion::parse(&series, Some(&from), Some(&step), WallTime(now));
    }

    #[test]
    fn a_question_that_is_accepted_has_few_enough_points(
        series in "(gpu|pod)/[a-zA-Z0-9/.-]{0,12}/(power|cpu|memory|gpu_memory)", from in "-?[0-9]{1,4}(ms|s|m|h|d)?",
        step in "[0-9]{1,3}(ms|s|m|h|d)?", now: u64,
    ) {
        let now = WallTime(now);
        if let Ok(question) = HistoryQuestion::parse(&series, Some(&from), Some(&step), now) {
            let (from, step) = (question.from.unwrap(), question.step.unwrap());
            prop_assert!(now.since(from).as_nanos() <= step.as_nanos() * MAX_HISTORY_POINTS as u128);
            prop_assert_eq!(SeriesName::parse(&question.series.to_string()), Ok(question.series));
        }
    }
}
