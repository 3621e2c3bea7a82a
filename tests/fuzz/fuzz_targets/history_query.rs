//! Questions about histories: the bytes are lines with series, begin and step. An accepted question has a bounded answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::time::WallTime;
use model::workload_profile::MAX_HISTORY_POINTS;
use wire::history_query::{HistoryQuestion, SeriesName, SubjectFilter};

/// 2026-11-28T10:00:00Z.
const NOW: WallTime = WallTime(1_795_860_000_000_000);

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let (series, from, step) = (lines.next().unwrap_or_default(), lines.next(), lines.next());
    let _ = (SubjectFilter::parse(Some(series)), wire::time_span::parse(series));
    if let Ok(question) = HistoryQuestion::parse(series, from, step, NOW) {
        if let (Some(from), Some(step)) = (question.from, question.step) {
            assert!(NOW.since(from).as_nanos() <= step.as_nanos() * MAX_HISTORY_POINTS as u128);
        }
        assert_eq!(SeriesName::parse(&question.series.to_string()), Ok(question.series));
    }
});
