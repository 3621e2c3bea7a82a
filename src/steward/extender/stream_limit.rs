//! How many connections the agent of one Node may have for streams. Each may last for 20 seconds before its first message and after
//! its end, so one agent could otherwise take the places of all others.

use model::id::NodeName;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most streams of one Node at once, also those that begin or end. An agent has one, and a moment two when it renews its token or is
/// replaced; each may leave one behind that ends.
pub(super) const MOST_STREAMS: u32 = 8;

/// Counts the streams of each Node.
#[derive(Debug, Default)]
pub(super) struct StreamLimit(Mutex<HashMap<NodeName, u32>>);

/// A place for one stream, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    limit: Arc<StreamLimit>,
    node: NodeName,
}

impl StreamLimit {
    /// A place for a stream of this Node; `None` if it has too many.
    pub(super) fn enter(self: &Arc<Self>, node: &NodeName) -> Option<StreamPermit> {
        let mut counts = self.0.lock();
        let count = counts.entry(node.clone()).or_default();
        if *count >= MOST_STREAMS {
            return None;
        }
        *count += 1;
        Some(StreamPermit { limit: Arc::clone(self), node: node.clone() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.limit.0.lock();
        if let Some(count) = counts.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_places_and_leaves_those_of_others() {
        let limit = Arc::<StreamLimit>::default();
        let [one, other] = ["n1", "n2"].map(|name| NodeName::parse(name).unwrap());
        let mut taken: Vec<StreamPermit> = (0..MOST_STREAMS).map(|_| limit.enter(&one).unwrap()).collect();
        assert!(limit.enter(&one).is_none());
        assert!(limit.enter(&other).is_some());
        taken.pop();
        assert!(limit.enter(&one).is_some());
        drop(taken);
        assert!(limit.0.lock().is_empty(), "nothing is kept of Nodes without a stream");
    }
}
