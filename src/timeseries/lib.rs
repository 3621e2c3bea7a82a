//! Cycles, trends, steps and forecasts of a series of measurements, such as the utilisation of a GPU or a column of a CSV file.
//!
//! ```text
//!   samples, values ──▶ Series ──┬─▶ find_period ──▶ Verdict ──▶ PeriodWatch ──▶ what may be published
//!                                ├─▶ fold: the typical cycle
//!                                └─▶ trend, steps, leak, forecast, next_maximum
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `series.rs` | [`Series`]: equidistant values with gaps |
//! | `period.rs`, `period/` | [`find_period`]: whether a series repeats, and how fast |
//! | `period_watch.rs` | [`PeriodWatch`]: publishes a verdict after a second one on other data |
//! | `trend.rs`, `steps.rs`, `leak.rs` | [`trend()`], [`steps()`], [`leak()`]: where a series goes |
//! | `forecast.rs`, `forecast/` | [`forecast()`], [`next_maximum`]: what it will need |
//! | `span_text.rs` | [`span_text()`]: a time in the units that people use |
//!
//! What must never happen here: a clock, I/O, randomness, an invented value in place of a gap, an unbounded result.

#![cfg_attr(doctest, doc = include_str!("README.md"))]

mod forecast;
mod leak;
mod period;
mod period_watch;
mod series;
mod span_text;
mod steps;
mod trend;
#[cfg(test)]
mod noise;

pub use forecast::{Forecast, Maximum, Member, Replayed, forecast, next_maximum, replay, replay_maximum};
pub use leak::{Leak, leak};
pub use period::{Alternative, CounterLimit, Period, Quartiles, Reason, Verdict, find_period, fold};
pub use period_watch::{PeriodWatch, Published};
pub use series::{Counter, MAX_MAGNITUDE, MAX_POINTS, Sample, Series, SeriesError, usual_distance};
pub use span_text::span_text;
pub use steps::{Step, steps};
pub use trend::{Direction, Trend, trend};
