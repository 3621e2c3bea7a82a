//! Evidence of a reset of a GPU since an incident: counters that start again at 0.
//!
//! A driver that reports no recovery action does not report when a GPU has recovered. The damage is gone once the
//! driver has initialized the GPU again. The counters since the initialization (energy, volatile ECC errors) are then
//! lower than before.
//!
//! What must never happen here: a single wrong reading counts as a reset.

use model::gpu::GpuSample;
use model::incident::CounterMarks;
use model::physical_range::MOST_WATTS;
use model::reading::Reading;
use model::time::Monotonic;

/// A reset is proven by this many readings in a row below the mark, none smaller than the previous reading. One or two
/// such readings can be wrong answers of a driver in trouble.
const READINGS: u32 = 3;
/// Upper bound on the power of a GPU, in millijoules per second. A reading by which energy grew faster is wrong.
const MOST_POWER: u64 = MOST_WATTS * 1000;

/// The last readings of a GPU's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    energy: Option<(u64, Monotonic)>,
    uncorrected: Option<u64>,
    /// Persistence mode: whether the driver keeps the GPU initialized while no program uses it.
    persists: bool,
}

/// The search for evidence of a reset after an incident.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResetSearch {
    marks: CounterMarks,
    energy: Run,
    uncorrected: Run,
}

/// A run of readings below a mark.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    last: u64,
    at: Monotonic,
    count: u32,
}

impl Counters {
    /// Takes in a sample.
    pub(crate) fn read(&mut self, sample: &GpuSample) {
        self.persists = sample.persistence.get().unwrap_or(self.persists);
        if let Reading::Measured(energy, at) = sample.energy {
            let plausible = self.energy.is_none_or(|(before, then)| {
                let most = at.since(then).as_secs().saturating_add(1).saturating_mul(MOST_POWER);
                energy.0 <= before.saturating_add(most)
            });
            if plausible {
                self.energy = Some((energy.0, at));
            }
        }
        self.uncorrected = sample.ecc_volatile.uncorrected.get().map(|count| count.0).or(self.uncorrected);
    }

    /// The current counters as marks. They are empty if the driver releases the GPU when its last user ends, because
    /// the counters then start again without a reset.
    pub(crate) fn marks(&self) -> CounterMarks {
        if self.persists {
            CounterMarks { energy: self.energy.map(|(energy, _)| energy), uncorrected: self.uncorrected }
        } else {
            CounterMarks::default()
        }
    }
}

impl ResetSearch {
    /// Starts the search with these marks.
    pub(crate) fn after(marks: CounterMarks) -> ResetSearch {
        ResetSearch { marks, ..ResetSearch::default() }
    }

    /// Fills in marks that were not known at the incident: an error may come before the first reading.
    pub(crate) fn complete(&mut self, now: CounterMarks) {
        self.marks.energy = self.marks.energy.or(now.energy);
        self.marks.uncorrected = self.marks.uncorrected.or(now.uncorrected);
    }

    /// The marks.
    pub(crate) fn marks(&self) -> CounterMarks {
        self.marks
    }

    /// Whether this sample and the samples before it show a reset.
    pub(crate) fn reset(&mut self, sample: &GpuSample) -> bool {
        let energy = self.energy.below(self.marks.energy, sample.energy.map(|energy| energy.0));
        let errors = sample.ecc_volatile.uncorrected.map(|count| count.0);
        self.uncorrected.below(self.marks.uncorrected, errors) || energy
    }
}

impl Run {
    fn below(&mut self, mark: Option<u64>, reading: Reading<u64>) -> bool {
        let (Some(mark), Reading::Measured(value, at)) = (mark, reading) else { return false };
        if at <= self.at {
            return false;
        }
        let goes_on = self.count == 0 || value >= self.last;
        self.count = match (value < mark, goes_on) {
            (false, _) => 0,
            (true, true) => self.count + 1,
            (true, false) => 1,
        };
        (self.last, self.at) = (value, at);
        self.count >= READINGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::unit::{Count, Millijoules};

    const SECOND: u64 = 1_000_000_000;

    fn read(second: u64, energy: u64, errors: u64) -> GpuSample {
        let at = Monotonic(second * SECOND);
        let mut sample = GpuSample {
            energy: Reading::Measured(Millijoules(energy), at),
            persistence: Reading::Measured(true, at),
            ..GpuSample::default()
        };
        sample.ecc_volatile.uncorrected = Reading::Measured(Count(errors), at);
        sample
    }

    fn marked(energy: u64, errors: u64) -> ResetSearch {
        ResetSearch::after(CounterMarks { energy: Some(energy), uncorrected: Some(errors) })
    }

    /// The index of the reading that shows a reset; `None` if no reading shows one.
    fn seen(search: &mut ResetSearch, energies: &[u64]) -> Option<usize> {
        (1..).zip(energies).position(|(second, energy)| search.reset(&read(second, *energy, 9)))
    }

    #[test]
    fn three_growing_readings_below_the_mark_show_a_reset() {
        assert_eq!(seen(&mut marked(1000, 0), &[1000, 1100, 1200]), None);
        assert_eq!(seen(&mut marked(1000, 0), &[0, 100, 200]), Some(2));
        assert_eq!(seen(&mut marked(1000, 0), &[1100, 0, 0, 0]), Some(3));
        let mut errors = marked(1, 3);
        let shown = (1..5).map(|second| errors.reset(&read(second, 2, 1))).collect::<Vec<_>>();
        assert_eq!(shown, [false, false, true, true], "volatile ECC errors as well");
    }

    #[test]
    fn an_incident_before_the_first_reading_takes_its_marks_from_that_reading() {
        let mut search = ResetSearch::after(CounterMarks::default());
        let mut counters = Counters::default();
        let mut reset = |second, energy| {
            let sample = read(second, energy, 0);
            counters.read(&sample);
            search.complete(counters.marks());
            search.reset(&sample)
        };
        let seen: Vec<bool> =
            (1..).zip([1000, 1100, 0, 10, 20]).map(|(second, energy)| reset(second, energy)).collect();
        assert_eq!(seen, [false, false, false, false, true]);
    }

    #[test]
    fn a_wrong_reading_does_not_show_a_reset() {
        assert_eq!(seen(&mut marked(1000, 0), &[0, 1100, 0, 1200, 0, 0, 1300]), None);
        assert_eq!(seen(&mut marked(1000, 0), &[900, 500, 100, 1100]), None, "a counter does not fall");
        let mut search = marked(1000, 0);
        let same = (0..9).any(|_| search.reset(&read(1, 0, 0)));
        assert!(!same, "one reading that is read again and again");
    }

    #[test]
    fn a_mark_is_what_was_read_before_and_can_be() {
        let mut counters = Counters::default();
        assert_eq!(counters.marks(), CounterMarks::default());
        counters.read(&read(1, 5_000, 2));
        counters.read(&read(2, u64::MAX, 2));
        assert_eq!(counters.marks(), CounterMarks { energy: Some(5_000), uncorrected: Some(2) });
        counters.read(&read(3, 9_000, 2));
        assert_eq!(counters.marks().energy, Some(9_000));
        let off = GpuSample { persistence: Reading::Measured(false, Monotonic(4)), ..read(4, 9_100, 2) };
        counters.read(&off);
        assert_eq!(
            counters.marks(),
            CounterMarks::default(),
            "the counters start again whenever the last program ends"
        );
    }
}
