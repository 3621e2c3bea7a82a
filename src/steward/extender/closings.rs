//! Tells which nodes take no new claims, and why: a line in the log of each extender, and an event on the Node by the leader.

use super::events::PodEvents;
use super::owner::ClusterOwner;
use decide::cluster::ClosingChange;

/// Tells the changes since the last call.
pub(super) fn tell(owner: &ClusterOwner, events: &PodEvents, leads: bool) {
    for ClosingChange { node, uid, closed } in owner.take_closings() {
        match &closed {
            Some(why) => tracing::warn!(%node, reason = why.word(), "node {node} takes no new GPU pods: {why}"),
            None => tracing::info!(%node, "node {node} takes GPU pods again"),
        }
        if let Some(uid) = uid.filter(|_| leads) {
            events.send_closing(&uid, &node, closed.as_ref());
        }
    }
}
