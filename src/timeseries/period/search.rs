//! Folds the candidates and chooses one.
//!
//! What must never happen here: a multiple of the period, or a part of it, in its place.

use super::candidates::Candidate;
use super::score::Scorer;
use super::signal::Signal;
use super::track::{Rule, Start, Tracker};

/// Points of a cycle when candidates are compared: at least so many, and less than twice as many. More cost time, fewer do not
/// show the shape.
const COARSE: f64 = 16.0;

/// A shorter length wins over a better one if its score is at least this share of the best.
const NEARLY_AS_GOOD: f64 = 0.88;

/// Cycles from which on the mean over one length is taken off: a slow drift then has more variance than the cycle.
const LONG: f64 = 24.0;

/// A fold that skips pauses may skip at this share of the steps.
const MOST_PAUSES: f64 = 0.3;

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
    pub(super) way: Way,
}

/// Ways to fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Cycle after cycle.
    Plain,
    /// Pauses are skipped.
    Pauses,
    /// Without the moving mean over one length.
    Level,
}

/// The state of a search in one signal.
#[derive(Debug)]
pub(super) struct Search<'a> {
    signal: &'a Signal,
    tracker: Tracker,
    scorer: Scorer,
    flat: Vec<f32>,
}

/// The score that so many cycles need. Few cycles look alike by chance more often.
pub(super) fn needed_score(cycles: usize) -> f64 {
    let cycles = cycles.max(1) as f64;
    0.30 + 0.30 * (6.0 / cycles).min(1.0).sqrt()
}

impl<'a> Search<'a> {
    pub(super) fn new(signal: &'a Signal) -> Self {
        Self { signal, tracker: Tracker::default(), scorer: Scorer::default(), flat: Vec::new() }
    }

    /// All folds of the candidates that have enough cycles, the chosen one first.
    pub(super) fn choose(&mut self, candidates: &[Candidate]) -> Vec<Fold> {
        let mut folds: Vec<Fold> = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let fold = self.best_fold(candidate.length);
            if fold.cycles >= FEWEST_CYCLES {
                folds.push(fold);
            }
        }
        let margin = |fold: &Fold| fold.score - needed_score(fold.cycles);
        let Some(best) = folds.iter().max_by(|one, other| margin(one).total_cmp(&margin(other))).cloned() else {
            return folds;
        };
        let nearly = |fold: &&Fold| fold.score >= NEARLY_AS_GOOD * best.score;
        let mut chosen = folds
            .iter()
            .filter(nearly)
            .min_by(|one, other| one.length.total_cmp(&other.length))
            .cloned()
            .unwrap_or(best);
        for part in [3.0, 2.0] {
            let fold = self.best_fold(chosen.length / part);
            if chosen.length / part >= 4.0 && fold.score >= NEARLY_AS_GOOD * chosen.score {
                chosen = fold;
                break;
            }
        }
        folds.sort_by(|one, other| other.score.total_cmp(&one.score));
        folds.retain(|fold| *fold != chosen);
        folds.insert(0, chosen);
        folds
    }

    fn best_fold(&mut self, length: f64) -> Fold {
        let plain = self.fold(length, Way::Plain);
        if plain.score >= needed_score(plain.cycles) {
            return plain;
        }
        let mut best = plain;
        let expected = self.signal.finest().len() as f64 / length;
        let others = [(Way::Pauses, 8.0), (Way::Level, LONG)];
        for (way, from) in others {
            if expected >= from {
                let fold = self.fold(length, way);
                if fold.score > best.score {
                    best = fold;
                }
            }
        }
        best
    }

    /// Folds with one length; the starts stay in the tracker.
    fn fold(&mut self, length: f64, way: Way) -> Fold {
        let level = self.signal.level_for(length, COARSE);
        let scale = (1_u64 << level) as f64;
        let coarse = length / scale;
        let mut points = self.signal.level(level);
        if way == Way::Level {
            without_mean(points, coarse, &mut self.flat);
            points = &self.flat;
        }
        self.tracker.follow(points, Rule { length: coarse, pauses: way == Way::Pauses });
        let starts = &self.tracker.starts;
        let pauses = starts.iter().filter(|start| start.after_pause).count();
        let mut fold = Fold { length, score: 0.0, cycles: starts.len(), way };
        let Some(mean) = self.tracker.mean_length() else { return fold };
        fold.length = mean * scale;
        if pauses as f64 <= MOST_PAUSES * starts.len() as f64 {
            fold.score = self.scorer.score(points, starts, mean);
        }
        fold
    }

    /// The starts of the cycles of a fold, in samples.
    pub(super) fn starts(&mut self, fold: &Fold) -> Vec<Start> {
        let level = self.signal.level_for(fold.length, COARSE);
        let scale = (1_u64 << level) as f64;
        self.fold(fold.length, fold.way);
        let center = (scale - 1.0) / 2.0;
        self.tracker.starts.iter().map(|start| Start { at: start.at * scale + center, ..*start }).collect()
    }
}

/// The points without the mean of the length around each.
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
}
