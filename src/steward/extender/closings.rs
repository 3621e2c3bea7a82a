//! Tells which nodes take no new claims, and why: a line in the log of each extender, an event on the Node by the leader, and a
//! message to the agent of the node.

use super::events::PodEvents;
use super::live_callers::LiveCallers;
use super::owner::ClusterOwner;
use decide::cluster::ClosingChange;

/// Tells the changes since the last call.
pub(super) fn tell(owner: &ClusterOwner, (events, live): (&PodEvents, &LiveCallers), leads: bool) {
    for ClosingChange { node, uid, closed } in owner.take_closings() {
        match &closed {
            Some(why) => tracing::warn!(%node, reason = why.word(), "node {node} takes no new GPU pods: {why}"),
            None => tracing::info!(%node, "node {node} takes GPU pods again"),
        }
        live.look(&node);
        if let Some(uid) = uid.filter(|_| leads) {
            events.send_closing(&uid, &node, closed.as_ref());
        }
    }
}
