//! Histories of GPUs and pods, and what follows from them: cycles, trends, forecasts. The agent's thread `profile` feeds it.
//!
//! ```text
//!   readings ──▶ Recorder ─┬─▶ SeriesHistory: seconds in memory, minutes and quarters of an hour for the file
//!                          └─▶ analyses (crate `timeseries`) ──▶ WorkloadProfiles
//! ```
//!
//! ```text
//!   recorder subject     all histories of a node; one GPU or pod with its series
//!   history tier source_rate anchor
//!                        the history of one series: its tiers, NVML's own samples, times of both clocks
//!   schedule             when each series is analysed, and how much fits into a second
//!   analysis cycles job  what is analysed; which verdict is published; what Alnair's annotations say
//!   answer               answers to questions about a history
//! ```
//!
//! What must never happen here: use of a clock, file, socket, async or logger; a structure without a bound.

// A pure crate never panics on an input: an impossible case is an error value or excluded by a type.
#![deny(clippy::expect_used)]

pub mod tier;
pub mod source_rate;
pub mod anchor;
pub mod history;
pub mod cycles;
pub mod schedule;
pub mod analysis;
pub mod job;
mod subject;
pub mod recorder;
pub mod answer;
#[cfg(test)]
mod tests;

pub use recorder::{Recorder, RecorderEvent};
