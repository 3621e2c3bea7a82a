//! The newest values in order of size.
//!
//! What must never happen here: a value that is not a number.

use std::collections::VecDeque;

/// At most `capacity` values; a new one replaces the oldest. Each change moves at most `capacity` values in memory.
#[derive(Debug)]
pub(super) struct SortedWindow {
    capacity: usize,
    newest: VecDeque<f64>,
    sorted: Vec<f64>,
}

impl SortedWindow {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), newest: VecDeque::new(), sorted: Vec::new() }
    }

    /// Adds a value. Leaves out one that is not finite.
    pub(super) fn push(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.newest.len() == self.capacity
            && let Some(oldest) = self.newest.pop_front()
            && let Ok(place) = self.sorted.binary_search_by(|other| other.total_cmp(&oldest))
        {
            self.sorted.remove(place);
        }
        let place = self.sorted.partition_point(|other| other.total_cmp(&value).is_lt());
        self.sorted.insert(place, value);
        self.newest.push_back(value);
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The middle value, or the mean of the two middle values.
    pub(super) fn median(&self) -> Option<f64> {
        let upper = *self.sorted.get(self.sorted.len() / 2)?;
        let lower = *self.sorted.get((self.sorted.len() - 1) / 2)?;
        Some(lower / 2.0 + upper / 2.0)
    }

    /// The smallest value that at least the share `level` of the values do not exceed.
    pub(super) fn upper_quantile(&self, level: f64) -> Option<f64> {
        self.sorted.get(rank(level, self.sorted.len())).copied()
    }

    /// The largest value that at most the share `level` of the values are smaller than.
    pub(super) fn lower_quantile(&self, level: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        self.sorted.get(last - rank(1.0 - level, self.sorted.len())).copied()
    }
}

/// The place of the quantile among `count` values in order.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and the result is limited to the number of values"
)]
fn rank(level: f64, count: usize) -> usize {
    let position = (level * count as f64).ceil() as usize;
    position.saturating_sub(1).min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_value_leaves_and_the_order_stays() {
        let mut window = SortedWindow::new(3);
        assert_eq!((window.median(), window.upper_quantile(0.5), window.lower_quantile(0.5)), (None, None, None));
        for value in [5.0, 1.0, f64::NAN, 1.0, 9.0] {
            window.push(value);
        }
        assert_eq!(window.sorted, [1.0, 1.0, 9.0]);
        window.push(4.0);
        assert_eq!(window.sorted, [1.0, 4.0, 9.0]);
    }

    #[test]
    fn quantiles_are_values_of_the_window() {
        let mut window = SortedWindow::new(10);
        (1..=10).for_each(|value| window.push(f64::from(value)));
        assert_eq!(window.median(), Some(5.5));
        let upper = [0.0, 0.1, 0.11, 0.9, 0.91, 1.0, 7.0].map(|level| window.upper_quantile(level));
        assert_eq!(upper, [1.0, 1.0, 2.0, 9.0, 10.0, 10.0, 10.0].map(Some));
        let lower = [-1.0, 0.0, 0.1, 0.5, 1.0].map(|level| window.lower_quantile(level));
        assert_eq!(lower, [1.0, 1.0, 2.0, 6.0, 10.0].map(Some));
    }
}
