//! What a scrape is made of.

use super::counts::{Footprint, Own};
use model::time::Now;
use model::view::NodeView;

/// The view, the moment, and the program that tells it.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// What is believed.
    pub view: &'a NodeView,
    /// When it is told.
    pub now: Now,
    /// The program itself.
    pub own: &'a Own,
    /// What it costs.
    pub footprint: Footprint,
}
