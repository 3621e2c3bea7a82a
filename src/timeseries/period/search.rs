//! Folds the candidates and chooses one.
//!
//! What must never happen here: a multiple of the period, or a part of it, in its place.

use std::ops::RangeInclusive;

use super::candidates::Candidate;
use super::score::Scorer;
use super::signal::{Signal, samples_per_point};
use super::track::{Rule, Start, Tracker};

/// Points of a cycle when candidates are compared: at least so many, and less than twice as many. More cost time, fewer do not
/// show the shape.
const COARSE: f64 = 16.0;

/// A shorter length wins over a better one if its score is at least this share of the best: a multiple of the period shows the same
/// cycles, and its score differs by chance only. With the noise of the bench (6 dB) a period scores 0.80. The standard error of such
/// a correlation over five to ten cycles of 24 phases is 0.05, and twice that is 12 % of the score.
const NEARLY_AS_GOOD: f64 = 0.88;

/// Cycles from which on the mean over one length is taken off: a slow drift then has more variance than the cycle.
const LONG: f64 = 24.0;

/// Cycles from which on pauses are looked for: with fewer, two gaps between random bursts look like one.
const SOME: f64 = 8.0;

/// Samples of the shortest cycle that is looked for beside pauses: a shorter one that is long by chance looks like a pause.
const SHORTEST_BESIDE_PAUSES: f64 = 8.0;

/// Cycles that are as much alike have no pauses between them.
const ALIKE: f64 = 0.8;

/// A fold that skips pauses must score so much higher, because it has more freedom.
const CLEARLY_BETTER: f64 = 0.1;

/// A fold that skips pauses may skip at this share of the steps: where a pause follows one cycle in ten, 99 % of the series with ten
/// cycles have three pauses at most.
const MOST_PAUSES: f64 = 0.3;

/// Cycles between pauses must cover this share of the series: pauses of 2.5 cycles on average leave 80 % to them if they follow one
/// cycle in ten, and 67 % if they follow one in five.
const LEAST_COVERED: f64 = 0.6;

/// Fewer cycles are no evidence.
pub(super) const FEWEST_CYCLES: usize = 4;

/// A length and how well the series folds with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fold {
    /// Mean length of the tracked cycles in samples.
    pub(super) length: f64,
    /// See `score.rs`.
    pub(super) score: f64,
    /// Number of cycles.
    pub(super) cycles: usize,
    /// How it was folded.
    way: Way,
    /// The length that it was folded with.
    expected: f64,
}

/// Ways to fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Cycle after cycle.
    Plain,
    /// Pauses are skipped.
    Pauses,
    /// Without the moving mean over one length.
    Drift,
}

/// The state of a search in one signal.
#[derive(Debug)]
pub(super) struct Search<'a> {
    signal: &'a Signal,
    tracker: Tracker,
    scorer: Scorer,
    flat: Vec<f32>,
}

/// The score that so many cycles need: 0.66 for four, 0.30 for a hundred. Few cycles look alike by chance more often; the best scores
/// of series without a cycle fall about like this.
pub(super) fn needed_score(cycles: usize) -> f64 {
    let cycles = cycles.max(1) as f64;
    0.60 * (6.0 / cycles).sqrt().sqrt()
}

impl<'a> Search<'a> {
    pub(super) fn new(signal: &'a Signal) -> Self {
        Self { signal, tracker: Tracker::default(), scorer: Scorer::default(), flat: Vec::new() }
    }

    /// The folds of the candidates whose length is one of `lengths`, the chosen one first.
    pub(super) fn choose(&mut self, candidates: &[Candidate], lengths: &RangeInclusive<f64>) -> Vec<Fold> {
        let mut folds: Vec<Fold> = Vec::with_capacity(candidates.len());
        for candidate in candidates.iter().filter(|candidate| lengths.contains(&candidate.length)) {
            let fold = self.best_fold(candidate.length);
            if fold.cycles >= FEWEST_CYCLES && fold.length >= *lengths.start() {
                folds.push(fold);
            }
        }
        let margin = |fold: &Fold| fold.score - needed_score(fold.cycles);
        let Some(best) = folds.iter().max_by(|one, other| margin(one).total_cmp(&margin(other))).cloned() else {
            return folds;
        };
        let nearly =
            |fold: &&Fold| fold.score >= NEARLY_AS_GOOD * best.score && (margin(fold) >= 0.0 || margin(&best) < 0.0);
        let chosen = folds
            .iter()
            .filter(nearly)
            .min_by(|one, other| one.length.total_cmp(&other.length))
            .cloned()
            .unwrap_or_else(|| best.clone());
        folds.sort_by(|one, other| other.score.total_cmp(&one.score));
        folds.retain(|fold| *fold != chosen);
        folds.insert(0, chosen);
        folds
    }

    /// The fold of one length in the way that suits the series.
    fn best_fold(&mut self, length: f64) -> Fold {
        let mut best = self.fold(length, Way::Plain);
        let expected = self.signal.finest().len() as f64 / length;
        if expected >= SOME && length >= SHORTEST_BESIDE_PAUSES && best.score < ALIKE {
            let other = self.fold(length, Way::Pauses);
            if other.score > best.score + CLEARLY_BETTER {
                best = other;
            }
        }
        if expected >= LONG && best.score < needed_score(best.cycles) {
            let other = self.fold(length, Way::Drift);
            if other.score > best.score {
                best = other;
            }
        }
        best
    }

    /// Folds with one length; the starts stay in the tracker.
    fn fold(&mut self, length: f64, way: Way) -> Fold {
        let level = self.signal.level_for(length, COARSE);
        let scale = samples_per_point(level);
        let coarse = length / scale;
        let mut points = self.signal.level(level);
        if way == Way::Drift {
            without_mean(points, coarse, &mut self.flat);
            points = &self.flat;
        }
        self.tracker.follow(points, Rule { length: coarse, pauses: way == Way::Pauses });
        let starts = &self.tracker.starts;
        let pauses = starts.iter().filter(|start| start.after_pause).count();
        let mut fold = Fold { length, score: 0.0, cycles: starts.len(), way, expected: length };
        let Some(mean) = self.tracker.mean_length() else { return fold };
        fold.length = mean * scale;
        let covered = starts.len() as f64 * mean >= LEAST_COVERED * points.len() as f64;
        if pauses == 0 || (covered && pauses as f64 <= MOST_PAUSES * starts.len() as f64) {
            fold.score = self.scorer.score(points, starts, mean);
        }
        fold
    }

    /// The starts of the cycles of a fold, in samples.
    pub(super) fn starts(&mut self, fold: &Fold) -> Vec<Start> {
        let level = self.signal.level_for(fold.expected, COARSE);
        let scale = samples_per_point(level);
        self.fold(fold.expected, fold.way);
        let center = ((scale - 1.0) / 2.0).max(0.0);
        self.tracker.starts.iter().map(|start| Start { at: start.at * scale + center, ..*start }).collect()
    }
}

/// The points without the mean of the length around each, scaled to variance 1 again.
fn without_mean(points: &[f32], length: f64, flat: &mut Vec<f32>) {
    let half = (length / 2.0).round().max(1.0) as usize;
    let width = 2 * half;
    flat.clear();
    if points.len() <= width {
        flat.extend_from_slice(points);
        return;
    }
    let mut sum: f64 = points[..width].iter().map(|point| f64::from(*point)).sum();
    let share = 1.0 / width as f64;
    let first = (sum * share) as f32;
    flat.extend(points[..half].iter().map(|point| point - first));
    for place in half..points.len() - half {
        flat.push(points[place] - (sum * share) as f32);
        sum += f64::from(points[place + half]) - f64::from(points[place - half]);
    }
    let last = (sum * share) as f32;
    flat.extend(points[points.len() - half..].iter().map(|point| point - last));
    let squares: f64 = flat.iter().map(|point| f64::from(*point) * f64::from(*point)).sum();
    let scale = (flat.len() as f64 / squares.max(f64::MIN_POSITIVE)).sqrt() as f32;
    flat.iter_mut().for_each(|point| *point *= scale);
}
