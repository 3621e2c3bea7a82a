//! Thousands of agents in their own process, so that their cost is not counted: each agent opens its stream, reports, and
//! finds the leader again like the real agent (`decide::leader_search`).
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
