//! The state of one node: takes observations in one at a time, shows what one believes.

use crate::remark::Remark;
use model::id::NodeName;
use model::observation::Observation;
use model::time::Now;
use model::view::NodeView;

/// One node. One task owns it.
#[derive(Debug)]
pub struct Node {
    name: NodeName,
    sequence: u64,
}

impl Node {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(name: NodeName) -> Self {
        Node { name, sequence: 0 }
    }

    /// Takes one observation in; returns what is worth a log line.
    pub fn apply(&mut self, observation: Observation, now: Now) -> Vec<Remark> {
        let _ = (observation, now);
        Vec::new()
    }

    /// What one believes now. Each view has a larger sequence than the one before.
    pub fn view(&mut self, now: Now) -> NodeView {
        self.sequence += 1;
        NodeView { sequence: self.sequence, ..NodeView::empty(self.name.clone(), now) }
    }
}
