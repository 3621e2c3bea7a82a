//! The power of an A100 whose load goes on and off every 0.104 s, while the driver refreshes the value every 0.1 s: the samples
//! show a slow beat, which is not a period of the load.

use crate::competitors::{Autoperiod, alnair};
use crate::data::{Table, recording};
use crate::options::{Options, Size};
use crate::random::Random;
use crate::table::Row;
use std::time::Duration;
use timeseries::{Sample, Series, Verdict, find_period};

/// One row: the verdict for the whole recording.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let table = match options.size {
        Size::Full => Table::read(&recording(&options.data()?.join("nvidia-smi"), "5050_A100.gpudata"))?,
        Size::Quick | Size::Cut => Table::cut("nvidia-smi-a100.csv")?,
    };
    let (times, watts) = (table.seconds("timestamp")?, table.numbers("power.draw")?);
    let first = times.first().copied().flatten().unwrap_or(0.0);
    let samples: Vec<Sample> = times
        .into_iter()
        .zip(watts)
        .filter_map(|(time, value)| {
            Some(Sample { at: Duration::try_from_secs_f64(time? - first).ok()?, value: value? })
        })
        .collect();
    let series = Series::resampled(&samples, None).map_err(|error| format!("5050_A100: {error}"))?;
    let verdict = find_period(&series);
    let step = series.step().as_secs_f64();
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let answer =
        |period: Option<f64>| period.map_or("no period".to_owned(), |samples| format!("{:.1} s", samples * step));
    let autoperiod =
        Autoperiod::new(values.len()).period(&values, &mut Random::of("permutations", &[options.seeds.start]));
    let names_refresh = verdict.reason().contains("refresh");
    let is_met = !matches!(verdict, Verdict::Periodic(_)) && names_refresh;
    Ok(vec![
        Row::new(
            "power of an A100, period 0.104 s, refreshed every 0.1 s",
            "not periodic; the reason names the refresh",
        )
        .result(format!("{}: {}", verdict.name(), verdict.reason()))
        .beside(answer(alnair(&values)), answer(autoperiod))
        .met(is_met),
    ])
}
