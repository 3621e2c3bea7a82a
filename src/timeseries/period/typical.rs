//! The typical cycle: quartiles by phase.

use super::{Period, Quartiles};
use crate::series::Series;

/// Phases at most: more than a picture has columns.
const MOST_PHASES: usize = 4096;

/// A distance of starts beyond this many lengths contains a pause.
const PAUSE_FROM: f64 = 1.5;

/// The typical cycle: for each of `phases` phases (at most 4,096) the quartiles of the values there; `None` where there is no
/// value. Pauses between cycles are left out.
#[must_use]
pub fn fold(series: &Series, period: &Period, phases: usize) -> Vec<Option<Quartiles>> {
    let phases = phases.min(MOST_PHASES);
    let length = period.length.as_secs_f64() / series.step().as_secs_f64();
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); phases];
    for (index, start) in period.starts.iter().enumerate() {
        let to_next = period.starts.get(index + 1).map_or(length, |next| next - start);
        let own = if to_next > PAUSE_FROM * length { length } else { to_next };
        let first = start.ceil().max(0.0) as usize;
        let end = ((start + own).ceil().max(0.0) as usize).min(series.len());
        for place in first..end {
            let phase = ((place as f64 - start) / own * phases as f64) as usize;
            if let (Some(value), Some(there)) = (series.get(place), values.get_mut(phase)) {
                there.push(value);
            }
        }
    }
    values.iter_mut().map(|values| quartiles(values)).collect()
}

fn quartiles(values: &mut [f64]) -> Option<Quartiles> {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let quantile = |share: f64| {
        let place = share * last as f64;
        let below = place as usize;
        let above = (below + 1).min(last);
        values[below] + (values[above] - values[below]) * place.fract()
    };
    Some(Quartiles { lower: quantile(0.25), median: quantile(0.5), upper: quantile(0.75) })
}
