//! Series of the Numenta Anomaly Benchmark whose period is known, or which have none.

use crate::competitors::{Autoperiod, alnair};
use crate::data::{Table, recording};
use crate::options::{Options, Size};
use crate::random::Random;
use crate::table::Row;
use std::time::Duration;
use timeseries::{Sample, Series, find_period};

/// Largest error of an answer, as a share of the period.
const WITHIN: f64 = 0.03;

/// What a file should be answered with.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// A period between two numbers of samples.
    Between(f64, f64),
    /// A multiple of this number of samples, up to another.
    MultipleOf(f64, f64),
    Silence,
}

impl Expected {
    fn is_met_by(self, answer: Option<f64>) -> bool {
        let near = |answer: f64, low: f64, high: f64| (low * (1.0 - WITHIN)..=high * (1.0 + WITHIN)).contains(&answer);
        match (self, answer) {
            (Expected::Silence, answer) => answer.is_none(),
            (_, None) => false,
            (Expected::Between(low, high), Some(answer)) => near(answer, low, high),
            (Expected::MultipleOf(base, most), Some(answer)) => {
                let multiple = base * (answer / base).round().clamp(1.0, most / base);
                near(answer, multiple, multiple)
            }
        }
    }
}

const FILES: [(&str, Expected); 14] = [
    ("art_daily_no_noise", Expected::Between(288.0, 288.0)),
    ("art_daily_small_noise", Expected::Between(288.0, 288.0)),
    ("art_daily_perfect_square_wave", Expected::Between(288.0, 288.0)),
    ("art_daily_flatmiddle", Expected::Between(288.0, 288.0)),
    ("art_daily_jumpsdown", Expected::Between(288.0, 288.0)),
    ("art_increase_spike_density", Expected::Between(100.0, 100.0)),
    ("ambient_temperature_system_failure", Expected::Between(23.0, 24.0)),
    ("cpu_utilization_asg_misconfiguration", Expected::MultipleOf(12.0, 288.0)),
    ("art_flatline", Expected::Silence),
    ("art_noisy", Expected::Silence),
    ("ec2_cpu_utilization_825cc2", Expected::Silence),
    ("rogue_agent_key_updown", Expected::Silence),
    ("rds_cpu_utilization_cc0c53", Expected::Silence),
    ("grok_asg_anomaly", Expected::Silence),
];

/// A row for the periodic files and one for the silent files.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let mut periodic = Counted::default();
    let mut silent = Counted::default();
    for (name, expected) in FILES {
        let Some(series) = series(options, name)? else { continue };
        let counted = if matches!(expected, Expected::Silence) { &mut silent } else { &mut periodic };
        counted.add(options, (name, expected), &series);
    }
    Ok(vec![
        periodic.row("periodic files of NAB, answers within 3 %", "all right"),
        silent.row("files of NAB without a period, no answer", "all silent"),
    ])
}

#[derive(Debug, Default)]
struct Counted {
    right: [usize; 3],
    of: usize,
    wrong: Vec<String>,
}

impl Counted {
    fn add(&mut self, options: &Options, (name, expected): (&str, Expected), series: &Series) {
        let verdict = find_period(series);
        let samples = verdict.period().map(|period| period.length.as_secs_f64() / series.step().as_secs_f64());
        let values = filled(series);
        let others = [
            alnair(&values),
            Autoperiod::new(values.len()).period(&values, &mut Random::of("permutations", &[options.seeds.start])),
        ];
        for (right, answer) in self.right.iter_mut().zip([samples, others[0], others[1]]) {
            *right += usize::from(expected.is_met_by(answer));
        }
        self.of += 1;
        if !expected.is_met_by(samples) {
            self.wrong
                .push(format!("{name}: {}", samples.map_or("none".to_owned(), |samples| format!("{samples:.1}"))));
        }
        if options.show {
            println!("{name}: {}", verdict.reason());
        }
    }

    fn row(&self, measure: &str, mark: &str) -> Row {
        let share = |detector: usize| format!("{} of {}", self.right[detector], self.of);
        let wrong = if self.wrong.is_empty() { String::new() } else { format!(" ({})", self.wrong.join(", ")) };
        Row::new(measure, mark).result(share(0) + &wrong).beside(share(1), share(2)).met(self.right[0] == self.of)
    }
}

/// The series of a file: the whole file in a report, else its cut, if there is one.
fn series(options: &Options, name: &str) -> Result<Option<Series>, String> {
    let (times, values) = if options.size == Size::Full {
        let table = Table::read(&recording(&options.data()?.join("nab"), name))?;
        (table.seconds("timestamp")?, table.numbers("value")?)
    } else {
        let table = Table::cut("nab-three-series.csv")?;
        let Ok(values) = table.numbers(name) else { return Ok(None) };
        (table.numbers("minute")?.into_iter().map(|minute| minute.map(|minute| minute * 60.0)).collect(), values)
    };
    let first = times.first().copied().flatten().unwrap_or(0.0);
    let samples: Vec<Sample> = times
        .into_iter()
        .zip(values)
        .filter_map(|(time, value)| {
            Some(Sample { at: Duration::try_from_secs_f64(time? - first).ok()?, value: value? })
        })
        .collect();
    Series::resampled(&samples, None).map(Some).map_err(|error| format!("{name}: {error}"))
}

/// The values with the last one in place of a gap, for detectors that know no gaps.
fn filled(series: &Series) -> Vec<f64> {
    let mut last = series.iter().flatten().next().unwrap_or(0.0);
    series
        .iter()
        .map(|value| {
            last = value.unwrap_or(last);
            last
        })
        .collect()
}

#[test]
fn an_answer_may_be_three_percent_off() {
    assert!(
        Expected::Between(288.0, 288.0).is_met_by(Some(280.0))
            && !Expected::Between(288.0, 288.0).is_met_by(Some(144.0))
    );
    assert!(
        Expected::MultipleOf(12.0, 288.0).is_met_by(Some(24.2))
            && !Expected::MultipleOf(12.0, 288.0).is_met_by(Some(18.0))
    );
    assert!(!Expected::MultipleOf(12.0, 288.0).is_met_by(Some(576.0)) && Expected::Silence.is_met_by(None));
}
