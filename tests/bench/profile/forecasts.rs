//! The rows of forecasts: errors, intervals, and the next hour's maximum, on the GPU duty and memory of pods.

use crate::gentd26::{self, Kind, STEP};
use crate::options::{Options, Size};
use crate::table::{Rate, Row};
use crate::workers;
use timeseries::{Member, Series, replay, replay_maximum};

/// Horizons of the marks, in steps.
const HORIZONS: [usize; 2] = [5, 30];
/// An hour in steps of the recording.
const HOUR: usize = 63;
const QUANTILE: f64 = 0.9;
/// Series with fewer forecasts say nothing of their own coverage.
const LEAST_JUDGED: usize = 100;
/// How far the choice may be behind the best fixed member.
const BEHIND: f64 = 0.03;

/// The largest error of the choice over the last value's.
fn mark(kind: Kind, horizon: usize) -> f64 {
    match (kind, horizon) {
        (Kind::Duty, _) => 0.77,
        (Kind::Memory, 5) => 0.92,
        (Kind::Memory, _) => 0.86,
    }
}

/// Sums over the forecasts of a series.
#[derive(Debug, Clone, Default)]
struct Sums {
    chosen: f64,
    members: [f64; 5],
    covered: Rate,
}

/// Sums over the bounds of a series.
#[derive(Debug, Clone, Default)]
struct Bounds {
    exceeded: Rate,
    /// What the bounds reserve beyond what is in use, and what the maximum of the series would reserve.
    reserved: f64,
    reserved_at_maximum: f64,
    /// The bounds over the maximum of the series.
    shares: f64,
}

/// All rows of forecasts.
pub(crate) fn rows(options: &Options) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for kind in [Kind::Duty, Kind::Memory] {
        let series = series(options, kind)?;
        for horizon in HORIZONS {
            let sums = workers::map(&series, |series| replayed(series, horizon));
            rows.push(errors(options, kind, horizon, &sums));
            rows.push(intervals(options, kind, horizon, &sums));
        }
        rows.push(maxima(options, kind, &workers::map(&series, bounds)));
    }
    Ok(rows)
}

fn series(options: &Options, kind: Kind) -> Result<Vec<Series>, String> {
    let pods = gentd26::pods(options, kind)?;
    pods.into_iter().map(|pod| Series::regular(STEP, pod).map_err(|error| error.to_string())).collect()
}

fn replayed(series: &Series, horizon: usize) -> Sums {
    let mut sums = Sums::default();
    for made in replay(series, horizon, None) {
        let Some(value) = series.get(made.at + horizon) else { continue };
        sums.chosen += (made.forecast.value - value).abs();
        for (sum, member) in sums.members.iter_mut().zip(made.members) {
            *sum += member.map_or(f64::INFINITY, |forecast| (forecast - value).abs());
        }
        let (lower, upper) = made.forecast.interval;
        sums.covered.add(lower <= value && value <= upper);
    }
    sums
}

fn errors(options: &Options, kind: Kind, horizon: usize, sums: &[Sums]) -> Row {
    let pooled = |error: &dyn Fn(&Sums) -> f64| sums.iter().map(error).sum::<f64>();
    let last = pooled(&|sums| sums.members[0]);
    let chosen = pooled(&|sums| sums.chosen) / last;
    let fixed =
        Member::ALL.iter().enumerate().map(|(place, member)| (pooled(&|sums| sums.members[place]) / last, member));
    let (best, member) = fixed.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((1.0, &Member::LastValue));
    let mark = mark(kind, horizon);
    // Look-alikes are easier or harder to forecast than the recording: only the distance to the best member is the same.
    let met = chosen <= best + BEHIND && (chosen <= mark || options.size != Size::Full);
    Row::new(
        format!("`gentd26` {}, {horizon} steps: error over last value's", kind.name()),
        format!("≤ {mark}, ≤ best fixed member + {BEHIND}"),
    )
    .result(format!("{chosen:.3} (best fixed: {}, {best:.3})", member.name()))
    .met(met)
}

fn intervals(options: &Options, kind: Kind, horizon: usize, sums: &[Sums]) -> Row {
    let mut pooled = Rate::default();
    let mut enough = Rate::default();
    for Sums { covered, .. } in sums {
        pooled.hits += covered.hits;
        pooled.of += covered.of;
        if covered.of >= LEAST_JUDGED {
            enough.add(covered.share() >= 0.8);
        }
    }
    Row::new(
        format!("`gentd26` {}, {horizon} steps: 90 % intervals", kind.name()),
        "cover 0.87–0.95, ≥ 0.80 in 95 % of series",
    )
    .result(format!("{:.3}; {} of {} series", pooled.share(), enough.hits, enough.of))
    .met(match options.size {
        Size::Full => (0.87..=0.95).contains(&pooled.share()) && enough.share() >= 0.95,
        Size::Quick | Size::Cut => (0.8..=0.97).contains(&pooled.share()),
    })
}

fn bounds(series: &Series) -> Bounds {
    let mut sums = Bounds::default();
    let largest = series.iter().flatten().fold(0.0, f64::max);
    for (at, bound) in replay_maximum(series, HOUR, QUANTILE) {
        let Some(used) = series.get(at) else { continue };
        let next: Vec<f64> = (at + 1..=at + HOUR).filter_map(|at| series.get(at)).collect();
        if at + HOUR >= series.len() || next.len() * 5 < HOUR * 4 {
            continue;
        }
        sums.exceeded.add(next.into_iter().any(|value| value > bound));
        sums.reserved += bound - used;
        sums.reserved_at_maximum += largest - used;
        sums.shares += if largest > 0.0 { bound / largest } else { 1.0 };
    }
    sums
}

fn maxima(options: &Options, kind: Kind, sums: &[Bounds]) -> Row {
    let mut exceeded = Rate::default();
    for sums in sums {
        exceeded.hits += sums.exceeded.hits;
        exceeded.of += sums.exceeded.of;
    }
    let total = |sum: &dyn Fn(&Bounds) -> f64| sums.iter().map(sum).sum::<f64>();
    let reserve = total(&|sums| sums.reserved) / total(&|sums| sums.reserved_at_maximum);
    let share = total(&|sums| sums.shares) / exceeded.of as f64;
    let mark = match kind {
        Kind::Duty => 0.90,
        Kind::Memory => 0.75,
    };
    // The maxima of look-alikes are not those of the recording, so there only too many exceeded bounds are a failure.
    let met = match options.size {
        Size::Full => (0.08..=0.12).contains(&exceeded.share()) && reserve <= mark,
        Size::Quick | Size::Cut => exceeded.share() <= 0.16,
    };
    Row::new(
        format!("`gentd26` {}: next hour's maximum, q {QUANTILE}", kind.name()),
        format!(
            "exceeded 8–12 %; reserve beyond what is in use ≤ {mark:.2} of that of a reservation at the own maximum"
        ),
    )
    .result(format!("{} %; {reserve:.3} (the bound is {share:.3} of the own maximum)", exceeded.percent()))
    .met(met)
}
