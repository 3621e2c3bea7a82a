//! The power of an A100 whose load goes on and off faster than the driver refreshes the value, which is every 0.1 s: the samples show
//! a slow beat, which is not a period of the load. Where a recording holds four beats, no detector can tell them from a period.

use crate::competitors::{Autoperiod, alnair};
use crate::data::{Table, recording};
use crate::options::{Options, Size};
use crate::random::Random;
use crate::table::Row;
use std::time::Duration;
use timeseries::{Sample, Series, Verdict, find_period};

/// The verdict on a recording of 13 s, and in a report that on one of 200 s, which has no mark.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let recorded = |name: &str| Table::read(&recording(&options.data()?.join("nvidia-smi"), name));
    let table = match options.size {
        Size::Full => recorded("5050_A100.gpudata")?,
        Size::Quick | Size::Cut => Table::cut("nvidia-smi-a100.csv")?,
    };
    let mut rows = vec![short(options, &table)?];
    if options.size == Size::Full {
        let verdict = find_period(&power(&samples_of(&recorded("updatefreq_A100")?)?)?);
        rows.push(
            Row::new("power of an A100 for 200 s, likewise: a beat, which cannot be told from a period", "")
                .result(format!("{}: {}", verdict.name(), verdict.reason())),
        );
    }
    Ok(rows)
}

fn short(options: &Options, table: &Table) -> Result<Row, String> {
    let samples = samples_of(table)?;
    let series = power(&samples)?;
    let verdict = find_period(&series);
    let step = series.step().as_secs_f64();
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let answer =
        |period: Option<f64>| period.map_or("no period".to_owned(), |samples| format!("{:.1} s", samples * step));
    let autoperiod =
        Autoperiod::new(values.len()).period(&values, &mut Random::of("permutations", &[options.seeds.start]));
    let names_refresh = verdict.reason().contains("refresh");
    let is_met = !matches!(verdict, Verdict::Periodic(_)) && names_refresh;
    let row = Row::new(
        "power of an A100, period 0.104 s, refreshed every 0.1 s",
        "not periodic; the reason names the refresh",
    );
    let row = row.result(format!("{}: {}", verdict.name(), verdict.reason()));
    Ok(row.beside(answer(alnair(&values)), answer(autoperiod)).met(is_met))
}

fn power(samples: &[Sample]) -> Result<Series, String> {
    Series::resampled(samples, None).map_err(|error| format!("power of an A100: {error}"))
}

/// The power in this table, with seconds since its first row.
fn samples_of(table: &Table) -> Result<Vec<Sample>, String> {
    let (times, watts) = (table.seconds("timestamp")?, table.numbers("power.draw")?);
    let first = times.first().copied().flatten().unwrap_or(0.0);
    let both = times.into_iter().zip(watts);
    Ok(both
        .filter_map(|(time, value)| {
            Some(Sample { at: Duration::try_from_secs_f64(time? - first).ok()?, value: value? })
        })
        .collect())
}
