//! `/api/v1/history`: the values of one series, as JSON or as CSV.
//!
//! ```text
//!   time,mean_ratio,maximum_ratio
//!   2026-11-28T10:00:00.000000Z,0.42,0.97
//! ```
//!
//! A time without a value has no point and no line. `gpu-steward profile csv` reads this CSV.

use super::head::ViewHeadJson;
use crate::history_query::SeriesName;
use crate::timestamp;
use model::time::WallTime;
use model::workload_profile::{HistoryAnswer, HistoryPoint};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryJson {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// The series, as it was asked for.
    pub series: String,
    /// `ratio`, `bytes`, `watts` or `cores`.
    pub unit: String,
    /// The time between two points.
    pub step_seconds: f64,
    /// The points, oldest first.
    pub points: Vec<HistoryPointJson>,
}

/// Mean and maximum over one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryPointJson {
    /// Begin of the step, in RFC 3339 with microseconds.
    pub time: String,
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub maximum: f64,
}

impl HistoryJson {
    /// The answer about `series`. A point whose values are not finite is left out, because JSON cannot hold them.
    #[must_use]
    pub fn of(view: ViewHeadJson, series: &SeriesName, answer: &HistoryAnswer) -> HistoryJson {
        let quantity = series.quantity;
        let point = |point: &HistoryPoint| {
            let (mean, maximum) = (quantity.in_base_units(point.mean), quantity.in_base_units(point.maximum));
            let time = timestamp::to_rfc3339_micros(point.at);
            (mean.is_finite() && maximum.is_finite()).then_some(HistoryPointJson { time, mean, maximum })
        };
        HistoryJson {
            view,
            series: series.to_string(),
            unit: quantity.base_unit().to_owned(),
            step_seconds: answer.step.as_secs_f64(),
            points: answer.points.iter().filter_map(point).collect(),
        }
    }

    /// The points as CSV, with a line of headings. The headings have the unit.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = format!("time,mean_{unit},maximum_{unit}\n", unit = field(&self.unit));
        for point in &self.points {
            // Writing into a String does not fail.
            let _ = writeln!(text, "{},{},{}", field(&point.time), point.mean, point.maximum);
        }
        text
    }
}

impl HistoryPointJson {
    /// The begin of the step; `None` if the text is not a time.
    #[must_use]
    pub fn at(&self) -> Option<WallTime> {
        timestamp::rfc3339_micros(&self.time)
    }
}

/// The text as one CSV field. Only a document that another program wrote has a text with other characters.
fn field(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !matches!(c, ',' | '"')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn head() -> ViewHeadJson {
        ViewHeadJson { node: "n".into(), sequence: 1, time_seconds: 1.5, age_seconds: 0.25, simulated: false }
    }

    #[test]
    fn a_history_is_written_as_csv_in_base_units() {
        let point = |seconds: u64, mean| HistoryPoint { at: WallTime(seconds * 1_000_000), mean, maximum: 100.0 };
        let answer = HistoryAnswer {
            step: Duration::from_millis(1_500),
            points: vec![point(1_795_860_000, 50.0), point(1_795_860_003, 25.0), point(1_795_860_005, f64::NAN)],
        };
        let json = HistoryJson::of(head(), &SeriesName::parse("gpu/0/utilization").unwrap(), &answer);
        assert_eq!((json.series.as_str(), json.step_seconds), ("gpu/0/utilization", 1.5));
        assert_eq!(
            json.csv(),
            "time,mean_ratio,maximum_ratio\n\
             2026-11-28T10:00:00.000000Z,0.5,1\n\
             2026-11-28T10:00:03.000000Z,0.25,1\n"
        );
        assert_eq!(json.points[0].at(), Some(WallTime(1_795_860_000_000_000)));
        let text = serde_json::to_vec(&json).unwrap();
        assert_eq!(serde_json::from_slice::<HistoryJson>(&text).unwrap(), json);
    }

    proptest::proptest! {
        #[test]
        fn any_document_gives_one_line_of_three_fields_for_each_point(unit: String, time: String, mean: f64) {
            let point = HistoryPointJson { time, mean, maximum: mean };
            let json = HistoryJson { view: head(), series: String::new(), unit, step_seconds: 1.0, points: vec![point; 3] };
            let text = json.csv();
            proptest::prop_assert_eq!(text.lines().count(), 4);
            proptest::prop_assert!(text.lines().all(|line| line.split(',').count() == 3), "{}", text);
        }
    }
}
