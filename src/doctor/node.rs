//! `doctor node`: this machine as an agent needs it. It runs on the node, as the user and in the container that the agent uses.
//!
//! ```text
//!   NVML, /proc, /dev, sockets, CDI folders ──look──┐
//!   API server: Node, its time ─────────────────────┴──▶ facts ──judge (pure)──▶ findings
//! ```

mod look;
mod judge;

pub(crate) use look::{NodePlaces, look};

use crate::finding::Report;
use look::NodeFacts;

/// The diagnosis.
pub(crate) fn report(facts: &NodeFacts) -> Report {
    Report::new("doctor node", format!("node {}", facts.name), judge::judged(facts), Vec::new())
}
