//! How often a series without a trend or a step has one, for the families that make both by chance. Without marks: a walk has
//! stretches that rise, and jumps.

use crate::detectors::seconds;
use crate::generators::Null;
use crate::nulls;
use crate::options::Options;
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::{Counter, Direction, Series, steps, trend};

/// Lengths of the series, and how many there are of each family in a report.
const LENGTHS: [usize; 2] = [120, 600];
const SERIES: usize = 1000;

/// A row for the trends of each family, and one for the steps of a walk.
pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let families = [Null::Autoregressive(70), Null::Autoregressive(95), Null::Walk, Null::Pink];
    let mut rows: Vec<Row> = families
        .into_iter()
        .map(|family| {
            let goes = |series: &Series| trend(series).is_some_and(|trend| trend.direction != Direction::None);
            row(options, family, "a direction", goes)
        })
        .collect();
    rows.push(row(options, Null::Walk, "a step", |series| !steps(series).is_empty()));
    rows
}

fn row(options: &Options, family: Null, what: &str, has: impl Fn(&Series) -> bool + Sync) -> Row {
    let shares = LENGTHS.map(|n| {
        let mut rate = Rate::default();
        let found = workers::map(&options.draws(SERIES), |draw| {
            has(&seconds(&nulls::series(family, n, *draw), Counter::default()))
        });
        found.into_iter().for_each(|hit| rate.add(hit));
        rate.percent()
    });
    Row::new(format!("{} with {what}, n = 120 / 600", family.name()), "").result(format!("{} %", shares.join(" / ")))
}
