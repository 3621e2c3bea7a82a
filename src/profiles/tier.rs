//! A ring of equal steps with the mean and the maximum of each, as 16-bit numbers with a common exponent.
//!
//! What must never happen here: a step without a measurement that has a value; a step that counts a value twice; more memory than
//! the ring of its span.

use model::quantised::{EXPONENTS, LARGEST, NO_MEASUREMENT, can_be_kept, exponent_of, number_of, value_of};
use model::stored_history::StepValue;
use model::time::Monotonic;
use std::collections::VecDeque;
use std::time::Duration;

/// One step: the numbers of its mean and its maximum.
#[derive(Clone, Copy, Debug)]
struct Slot {
    mean: u16,
    maximum: u16,
}

/// The values of the newest step so far.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    sum: f64,
    count: u32,
    maximum: f64,
}

/// The ring. A value belongs to the step of its time; values may come a little late.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Nanoseconds of a step; at least 1.
    step: u64,
    /// Largest number of steps.
    capacity: usize,
    /// When step 0 begins: half a step before the first value, so that a reading that is repeated each step falls into the middle
    /// of its step, and a late reading does not leave one step empty and another with two values.
    origin: u64,
    /// The number of the first step in the ring.
    begin: u64,
    slots: VecDeque<Slot>,
    open: Open,
    exponent: i8,
    /// The value of the number 1.
    unit: f64,
    /// Steps until the exponent is fitted to what is in the ring.
    until_fit: usize,
}

/// Equal steps of a tier; a step without a measurement is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct TierWindow {
    /// When the first step begins.
    pub begin: Monotonic,
    /// The length of a step.
    pub step: Duration,
    /// The means.
    pub means: Vec<Option<f64>>,
}

impl Tier {
    /// An empty ring for this span.
    #[must_use]
    pub fn new(step: Duration, span: Duration) -> Tier {
        let step = nanos(step).max(1);
        let capacity = usize::try_from(nanos(span).div_ceil(step)).unwrap_or(1).max(1);
        Tier {
            step,
            capacity,
            origin: 0,
            begin: 0,
            slots: VecDeque::new(),
            open: Open::default(),
            exponent: *EXPONENTS.start(),
            unit: value_of(1, *EXPONENTS.start()),
            until_fit: capacity,
        }
    }

    /// The length of a step.
    #[must_use]
    pub fn step(&self) -> Duration {
        Duration::from_nanos(self.step)
    }

    /// Adds a value to the step of its time. A value that is older than the newest step, negative or not a number is left out.
    pub fn add(&mut self, at: Monotonic, value: f64) {
        if !can_be_kept(value) {
            return;
        }
        let Some(index) = self.reach(at) else { return };
        if index + 1 != self.end() {
            return;
        }
        let sum = self.open.sum + value;
        let count = self.open.count + 1;
        self.open = Open { sum, count, maximum: self.open.maximum.max(value) };
        self.put(index, StepValue { mean: sum / f64::from(count), maximum: self.open.maximum });
    }

    /// Replaces the values of a step by better ones, which may come late. A step that has left the ring is left out.
    pub fn replace(&mut self, at: Monotonic, value: StepValue) {
        if !can_be_kept(value.mean) || !can_be_kept(value.maximum) {
            return;
        }
        let Some(index) = self.reach(at) else { return };
        if index + 1 == self.end() {
            self.open = Open { sum: value.mean, count: 1, maximum: value.maximum };
        }
        self.put(index, value);
    }

    /// When the step of this time begins; `None` before the first value.
    #[must_use]
    pub fn begin_of_step(&self, at: Monotonic) -> Option<Monotonic> {
        if self.slots.is_empty() {
            return None;
        }
        Some(self.time_of(at.0.checked_sub(self.origin)? / self.step))
    }

    /// The steps that are over by `now`, from the first measured one, at most the newest `most`. Up to `late` steps without a
    /// measurement at the end are left out, because their readings may be under way. `None` if there is no measurement.
    #[must_use]
    pub fn window(&self, now: Monotonic, most: usize, late: usize) -> Option<TierWindow> {
        let over = now.0.checked_sub(self.origin)? / self.step;
        let last = self.slots.iter().rposition(|slot| slot.mean != NO_MEASUREMENT)?;
        let last_measured = self.begin + last as u64 + 1;
        let end = if over.saturating_sub(last_measured) <= late as u64 { over.min(last_measured) } else { over };
        let from = self.begin.max(end.saturating_sub(most.min(self.capacity) as u64));
        let means = (from..end).map(|index| self.at(index).map(|value| value.mean)).skip_while(Option::is_none);
        let means: Vec<Option<f64>> = means.collect();
        let begin = self.time_of(end - means.len() as u64);
        (!means.is_empty()).then_some(TierWindow { begin, step: self.step(), means })
    }

    /// Mean and maximum over the steps that begin in this time; `None` without a measurement.
    #[must_use]
    pub fn over(&self, from: Monotonic, to: Monotonic) -> Option<StepValue> {
        let first = from.0.saturating_sub(self.origin).div_ceil(self.step).max(self.begin);
        let end = to.0.saturating_sub(self.origin).div_ceil(self.step).min(self.end());
        let (mut sum, mut count, mut maximum) = (0.0, 0_u32, 0.0_f64);
        for value in (first..end).filter_map(|index| self.at(index)) {
            sum += value.mean;
            count += 1;
            maximum = maximum.max(value.maximum);
        }
        (count > 0).then(|| StepValue { mean: sum / f64::from(count), maximum })
    }

    /// All measured steps, oldest first, each with its begin.
    pub fn steps(&self) -> impl Iterator<Item = (Monotonic, StepValue)> + '_ {
        (self.begin..self.end()).filter_map(move |index| Some((self.time_of(index), self.at(index)?)))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    fn end(&self) -> u64 {
        self.begin + self.slots.len() as u64
    }

    fn time_of(&self, index: u64) -> Monotonic {
        Monotonic(self.origin.saturating_add(index.saturating_mul(self.step)))
    }

    fn at(&self, index: u64) -> Option<StepValue> {
        let place = usize::try_from(index.checked_sub(self.begin)?).ok()?;
        let slot = self.slots.get(place).filter(|slot| slot.mean != NO_MEASUREMENT)?;
        Some(StepValue { mean: f64::from(slot.mean) * self.unit, maximum: f64::from(slot.maximum) * self.unit })
    }

    /// Makes room up to the step of this time, and returns its number; `None` if that step has left the ring.
    fn reach(&mut self, at: Monotonic) -> Option<u64> {
        if self.slots.is_empty() {
            (self.origin, self.begin) = (at.0.saturating_sub(self.step / 2), 0);
        }
        let index = at.0.checked_sub(self.origin)? / self.step;
        if index < self.begin {
            return None;
        }
        if index.saturating_sub(self.end()) >= self.capacity as u64 {
            // Everything in the ring is too old. The next readings may come at another place of their steps.
            self.slots.clear();
            (self.origin, self.begin) = (at.0.saturating_sub(self.step / 2), 0);
            self.push();
            return Some(0);
        }
        while self.end() <= index {
            self.push();
        }
        Some(index)
    }

    /// Adds a step without a measurement, and drops the oldest one if the ring is full.
    fn push(&mut self) {
        if self.slots.len() >= self.capacity {
            self.slots.pop_front();
            self.begin += 1;
        }
        self.slots.push_back(Slot { mean: NO_MEASUREMENT, maximum: NO_MEASUREMENT });
        self.open = Open::default();
        self.until_fit -= 1;
        if self.until_fit == 0 {
            self.until_fit = self.capacity;
            self.fit();
        }
    }

    fn put(&mut self, index: u64, value: StepValue) {
        let maximum = value.maximum.max(value.mean);
        if maximum > value_of(LARGEST, self.exponent) {
            self.set_exponent(exponent_of(maximum));
        }
        let slot = Slot { mean: number_of(value.mean, self.exponent), maximum: number_of(maximum, self.exponent) };
        let place = index.checked_sub(self.begin).and_then(|place| usize::try_from(place).ok());
        if let Some(kept) = place.and_then(|place| self.slots.get_mut(place)) {
            *kept = slot;
        }
    }

    /// Chooses the smallest exponent for what is in the ring: a large value that has left it costs no precision any more.
    fn fit(&mut self) {
        let measured = self.slots.iter().filter(|slot| slot.mean != NO_MEASUREMENT);
        let Some(largest) = measured.map(|slot| slot.maximum).max() else { return };
        self.set_exponent(exponent_of(value_of(largest, self.exponent)));
    }

    fn set_exponent(&mut self, exponent: i8) {
        let before = std::mem::replace(&mut self.exponent, exponent);
        self.unit = value_of(1, exponent);
        if before == exponent {
            return;
        }
        let again = |number: u16| number_of(value_of(number, before), exponent);
        for slot in self.slots.iter_mut().filter(|slot| slot.mean != NO_MEASUREMENT) {
            *slot = Slot { mean: again(slot.mean), maximum: again(slot.maximum) };
        }
    }
}

/// Whole nanoseconds, at most the largest number.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Monotonic {
        Monotonic((100_000 + millis) * 1_000_000)
    }

    fn means(tier: &Tier, now: u64) -> Vec<Option<f64>> {
        tier.window(at(now), usize::MAX, 2).map(|window| window.means).unwrap_or_default()
    }

    #[test]
    fn values_of_one_step_are_averaged_and_a_step_without_a_value_is_a_gap() {
        let mut tier = Tier::new(SECOND, SECOND * 10);
        for (millis, value) in [(0, 10.0), (300, 30.0), (1000, 50.0), (3000, 70.0)] {
            tier.add(at(millis), value);
        }
        assert_eq!(means(&tier, 3000), [Some(20.0), Some(50.0), None], "the step of 3000 is not over");
        assert_eq!(means(&tier, 3600), [Some(20.0), Some(50.0), None, Some(70.0)]);
        assert_eq!(means(&tier, 5600).len(), 4, "two late steps may still come");
        assert_eq!(means(&tier, 8600).len(), 9, "later ones are gaps");
        assert_eq!(tier.over(at(0), at(2000)).map(|value| (value.mean, value.maximum)), Some((50.0, 50.0)));
        assert_eq!(tier.steps().count(), 3);
    }

    #[test]
    fn a_reading_that_wavers_around_its_second_leaves_no_gap() {
        let mut tier = Tier::new(SECOND, SECOND * 100);
        for second in 0..60_u64 {
            tier.add(at(second * 1000 + (second * 7919) % 400), 1.0);
        }
        assert!(means(&tier, 60_500).iter().all(Option::is_some));
    }

    #[test]
    fn the_oldest_steps_leave_the_ring_and_a_long_pause_empties_it() {
        let mut tier = Tier::new(SECOND, SECOND * 5);
        (0..20_u32).for_each(|second| tier.add(at(u64::from(second) * 1000), f64::from(second)));
        assert_eq!(means(&tier, 19_600), (15..20).map(|second| Some(f64::from(second))).collect::<Vec<_>>());
        let kept = tier.bytes();
        tier.add(at(3_600_000), 7.0);
        assert_eq!(means(&tier, 3_600_600), [Some(7.0)]);
        assert!(tier.bytes() <= kept);
        tier.add(at(0), 1.0);
        assert_eq!(means(&tier, 3_600_600), [Some(7.0)], "a value from before the ring is left out");
    }

    #[test]
    fn better_values_replace_those_of_a_step_also_of_a_past_one() {
        let mut tier = Tier::new(SECOND, SECOND * 10);
        (0..5_u64).for_each(|second| tier.add(at(second * 1000), 100.0));
        tier.replace(at(2100), StepValue { mean: 40.0, maximum: 90.0 });
        assert_eq!(means(&tier, 4600), [100.0, 100.0, 40.0, 100.0, 100.0].map(Some));
        assert_eq!(tier.over(at(0), at(5000)).map(|value| value.maximum), Some(100.0));
    }

    #[test]
    fn a_peak_that_has_left_the_ring_costs_no_precision() {
        let mut tier = Tier::new(SECOND, SECOND * 10);
        tier.add(at(0), 1e12);
        (1..40_u64).for_each(|second| tier.add(at(second * 1000), 123.0));
        assert_eq!(means(&tier, 39_600).last(), Some(&Some(123.0)));
    }

    proptest! {
        #[test]
        fn a_value_is_found_in_its_step_within_a_sixty_thousandth_of_the_largest(
            values in prop::collection::vec(prop::option::of(0.0_f64..1e11), 1..60),
        ) {
            let mut tier = Tier::new(SECOND, SECOND * 60);
            for (second, value) in values.iter().enumerate() {
                if let Some(value) = value {
                    tier.add(at(second as u64 * 1000), *value);
                }
            }
            let measured: Vec<f64> = values.iter().flatten().copied().collect();
            let largest = measured.iter().copied().fold(0.0, f64::max);
            let kept: Vec<f64> = tier.steps().map(|(_, value)| value.mean).collect();
            prop_assert_eq!(kept.len(), measured.len(), "absent is not zero");
            for (was, is) in measured.iter().zip(&kept) {
                prop_assert!((was - is).abs() <= largest / 30_000.0 + 1e-4, "{} {}", was, is);
            }
        }
    }
}
