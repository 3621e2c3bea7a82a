//! How alike tracked cycles are: the one-way intraclass correlation ICC(1) of Shrout and Fleiss (1979), with the phases of the
//! cycle as targets and the cycles as raters.

use super::track::Start;

/// Phases of the grid on which cycles are compared.
const MOST_PHASES: usize = 24;
/// Fewer phases do not show a shape.
const FEWEST_PHASES: usize = 4;

/// One cycle in this many is left out when the score is checked: those with the highest energy. A single peak, or a step, makes
/// a few cycles look alike only together.
const GUARD_SHARE: usize = 8;

/// Buffers that are used again for each candidate.
#[derive(Debug, Default)]
pub(super) struct Scorer {
    /// One row of phases for each cycle.
    cycles: Vec<f32>,
    sums: Vec<f64>,
    energies: Vec<(f32, usize)>,
}

impl Scorer {
    /// The score of cycles: of all, or without the eighth with the highest energy, whichever is lower.
    pub(super) fn score(&mut self, points: &[f32], starts: &[Start], length: f64) -> f64 {
        let phases = (length.round().max(0.0) as usize).clamp(FEWEST_PHASES, MOST_PHASES);
        let count = starts.len();
        if count < 2 {
            return 0.0;
        }
        self.resample(points, starts, length, phases);
        self.sums.clear();
        self.sums.resize(phases, 0.0);
        self.energies.clear();
        let mut squares = 0.0;
        for (index, cycle) in self.cycles.chunks_exact(phases).enumerate() {
            let mut energy = 0.0;
            for (sum, point) in self.sums.iter_mut().zip(cycle) {
                *sum += f64::from(*point);
                energy += point * point;
            }
            squares += f64::from(energy);
            self.energies.push((energy, index));
        }
        let all = intraclass(&self.sums, squares, count);
        let dropped = count.div_ceil(GUARD_SHARE);
        if count - dropped < 2 {
            return all;
        }
        self.energies.select_nth_unstable_by(dropped - 1, |one, other| other.0.total_cmp(&one.0));
        for (energy, index) in &self.energies[..dropped] {
            squares -= f64::from(*energy);
            let cycle = &self.cycles[index * phases..][..phases];
            self.sums.iter_mut().zip(cycle).for_each(|(sum, point)| *sum -= f64::from(*point));
        }
        all.min(intraclass(&self.sums, squares, count - dropped))
    }

    /// The cycles on a common grid of phases, each stretched to its own length.
    fn resample(&mut self, points: &[f32], starts: &[Start], length: f64, phases: usize) {
        self.cycles.clear();
        for (index, start) in starts.iter().enumerate() {
            let next = starts.get(index + 1).filter(|next| !next.after_pause);
            let step = next.map_or(length, |next| next.at - start.at) / phases as f64;
            let mut at = start.at;
            for _ in 0..phases {
                self.cycles.push(interpolated(points, at));
                at += step;
            }
        }
    }
}

/// The value between two points; beyond the last point, the last one.
fn interpolated(points: &[f32], at: f64) -> f32 {
    let place = at as usize;
    match points.get(place..place + 2) {
        Some(pair) => pair[0] + (pair[1] - pair[0]) * (at - place as f64) as f32,
        None => points.last().copied().unwrap_or(0.0),
    }
}

/// ICC(1) from the sums over the cycles of each phase and the sum of all squares.
fn intraclass(sums: &[f64], squares: f64, cycles: usize) -> f64 {
    let (phases, cycles) = (sums.len() as f64, cycles as f64);
    let total: f64 = sums.iter().sum();
    let mean_square = total * total / (phases * cycles);
    let between = sums.iter().map(|sum| sum * sum).sum::<f64>() / cycles - mean_square;
    let within = squares - mean_square - between;
    let between = between / (phases - 1.0);
    let within = within / (phases * (cycles - 1.0));
    let score = (between - within) / (between + (cycles - 1.0) * within);
    if score.is_finite() { score.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(values: impl Fn(usize) -> f32) -> f64 {
        let points: Vec<f32> = (0..200).map(values).collect();
        let starts: Vec<Start> =
            (0..10).map(|cycle| Start { at: f64::from(cycle) * 20.0, after_pause: false }).collect();
        Scorer::default().score(&points, &starts, 20.0)
    }

    #[test]
    fn equal_cycles_score_one_and_unlike_ones_zero() {
        assert!(score(|place| if place % 20 < 7 { 1.0 } else { -1.0 }) > 0.999);
        assert!(score(|place| if place * place % 31 < 15 { 1.0 } else { -1.0 }) < 0.2);
    }

    #[test]
    fn one_cycle_with_a_peak_does_not_make_cycles_alike() {
        assert!(score(|place| if place == 65 { 50.0 } else { 0.0 }) < 0.01);
    }
}
