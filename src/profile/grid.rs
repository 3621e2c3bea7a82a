//! Which samples of a series are analysed, and with what step, so that a few rows with distant times take little memory.

use std::time::Duration;
use timeseries::{MAX_POINTS, Sample, Series, SeriesError, usual_distance};

/// Points for each sample that a series may have in any case. With more of them more than half are gaps, and no verdict is possible.
const POINTS_OF_A_SAMPLE: usize = 2;

/// The samples that are analysed.
#[derive(Debug)]
pub(crate) struct Grid<'s> {
    /// All samples, or the longest part without a hole.
    pub(crate) part: &'s [Sample],
    /// The distance of two points.
    pub(crate) step: Duration,
    /// Whether the step is longer than the usual distance of the samples, because there would be too many points.
    pub(crate) is_coarse: bool,
}

impl<'s> Grid<'s> {
    /// The grid of a series that shares [`MAX_POINTS`] with others: so much it may have, or a few points for each of its samples. If
    /// that is too little, it has only the longest part without a hole (the last one of equal ones), and if that is not enough either,
    /// a longer step. A hole is a distance for which all samples together do not suffice at their usual distance.
    ///
    /// # Errors
    /// If there are no two samples at different times.
    pub(crate) fn of(samples: &'s [Sample], step: Option<Duration>, share: usize) -> Result<Grid<'s>, SeriesError> {
        let usual = usual_distance(samples).ok_or(SeriesError::UnknownStep)?;
        let most = share.max(samples.len() * POINTS_OF_A_SAMPLE).min(MAX_POINTS);
        let whole = Grid { part: samples, step: step.unwrap_or(usual), is_coarse: false };
        if whole.points() <= most as u128 {
            return Ok(whole);
        }
        let hole = whole.step.max(usual).saturating_mul(u32::try_from(samples.len()).unwrap_or(u32::MAX));
        let parts = samples.chunk_by(|one, next| next.at.saturating_sub(one.at) <= hole);
        let part = parts.max_by_key(|part| part.len()).unwrap_or(samples);
        let step = step.or_else(|| usual_distance(part)).unwrap_or(usual);
        let grid = Grid { part, step, is_coarse: false };
        if grid.points() <= most as u128 {
            return Ok(grid);
        }
        // Half of the points leave room for the rounding of the step.
        let points = u32::try_from(most / 2).unwrap_or(u32::MAX).max(1);
        Ok(Grid { step: grid.span() / points, is_coarse: true, ..grid })
    }

    /// The samples on the grid.
    pub(crate) fn series(&self) -> Result<Series, SeriesError> {
        Series::resampled(self.part, Some(self.step))
    }

    /// Time from the first to the last sample.
    fn span(&self) -> Duration {
        let ends = self.part.first().zip(self.part.last());
        ends.map_or(Duration::ZERO, |(first, last)| last.at.saturating_sub(first.at))
    }

    /// Points of the series; a step of zero is refused later.
    fn points(&self) -> u128 {
        self.span().as_nanos().checked_div(self.step.as_nanos()).map_or(0, |steps| steps + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Samples at these seconds.
    fn samples(seconds: impl IntoIterator<Item = u64>) -> Vec<Sample> {
        seconds.into_iter().map(|at| Sample { at: Duration::from_secs(at), value: 1.0 }).collect()
    }

    #[test]
    fn samples_that_fit_stay_whole_whatever_holes_they_have() {
        let all = samples((0..30).chain(3600..3630));
        let grid = Grid::of(&all, None, MAX_POINTS).unwrap();
        assert_eq!((grid.part.len(), grid.step, grid.is_coarse), (60, SECOND, false));
        assert_eq!(grid.series().unwrap().len(), 3630);
    }

    #[test]
    fn a_hole_without_room_leaves_the_longest_and_of_equal_ones_the_last_part() {
        let all = samples((0..300).chain(1_000_000_000..1_000_000_300));
        let grid = Grid::of(&all, None, MAX_POINTS).unwrap();
        assert_eq!((grid.part[0].at.as_secs(), grid.part.len(), grid.is_coarse), (1_000_000_000, 300, false));
        let all = samples([0, 1, 2, 3, 1_000_000]);
        let grid = Grid::of(&all, None, MAX_POINTS / 200).unwrap();
        assert_eq!((grid.part.len(), grid.series().unwrap().len()), (4, 4));
    }

    #[test]
    fn times_that_are_far_apart_get_a_longer_step() {
        let all = samples((0..201).chain((1..200).map(|at| 200 + at * 100)));
        for (step, share) in [(None, 0), (Some(Duration::from_millis(1)), 5000)] {
            let grid = Grid::of(&all, step, share).unwrap();
            let points = grid.series().unwrap().len();
            assert!(grid.is_coarse && grid.part.len() == 400 && points <= share.max(800), "{points}: {grid:?}");
        }
    }

    #[test]
    fn no_step_and_no_share_give_more_points_than_allowed() {
        for seconds in [vec![0, 1], vec![0, u64::MAX / 4], vec![0, 1, 2, 1 << 60], vec![5, 5, 5]] {
            let all = samples(seconds);
            for step in [None, Some(Duration::from_nanos(1)), Some(Duration::MAX)] {
                if let Ok(grid) = Grid::of(&all, step, 256) {
                    assert!(grid.series().is_ok_and(|series| series.len() <= 256), "{step:?} {all:?}");
                }
            }
        }
    }
}
