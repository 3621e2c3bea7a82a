//! Thousands of agents in a process of their own, so that what they cost is not counted: each one opens its stream, reports,
//! and finds the leader again as the real agent does (`decide::leader_search`).
//!
//! ```text
//!   bench ──one command a line──▶ this program ──TLS, one connection each──▶ extenders
//!         ◀──one JSON a line─────
//! ```

mod mode;
mod counts;
mod handle;
mod link;
mod child;

pub(crate) use child::run;
pub(crate) use handle::{Agents, PlannedAgent};
