//! What a scrape is made of.

use super::counts::{ProcessFootprint, ServerCounts};
use model::time::Now;
use model::view::NodeView;

/// The view, the moment, and the program that tells it.
#[derive(Clone, Copy, Debug)]
pub struct MetricsInput<'a> {
    /// What is believed.
    pub view: &'a NodeView,
    /// When it is told.
    pub now: Now,
    /// The program itself.
    pub own: &'a ServerCounts,
    /// What it costs.
    pub footprint: ProcessFootprint,
}
