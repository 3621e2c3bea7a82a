//! The input of a scrape.

use super::counts::{ProcessFootprint, ServerCounts};
use model::time::Now;
use model::view::NodeView;
use model::workload_profile::WorkloadProfiles;

/// The node view, the profiles, the time, and the counters of the program itself.
#[derive(Clone, Copy, Debug)]
pub struct MetricsInput<'a> {
    /// The node view.
    pub view: &'a NodeView,
    /// The profiles of loads; `None` if they are off.
    pub profiles: Option<&'a WorkloadProfiles>,
    /// The time of the scrape.
    pub now: Now,
    /// Counters of the server.
    pub own: &'a ServerCounts,
    /// Resource use of the program.
    pub footprint: ProcessFootprint,
}
