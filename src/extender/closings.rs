//! Reports which nodes take no new claims, and why: a line in the log of each extender, an event on the Node by the leader, and a
//! message to the agent of the node. The agent gets it at once; the log and the events are limited ([`super::closing_pace`]).

use super::events::PodEvents;
use super::live_callers::LiveCallers;
use super::locked_cluster::LockedCluster;
use decide::cluster::ClosingChange;
use tokio::time::Instant;

/// Reports the changes since the last call.
pub(super) fn tell(cluster: &LockedCluster, (events, live): (&PodEvents, &LiveCallers), leads: bool) {
    let changes = cluster.take_closings();
    changes.iter().for_each(|change| live.look(&change.node));
    let due = events.closings.lock().due(&changes, Instant::now());
    for ClosingChange { node, uid, closed } in due {
        match &closed {
            Some(why) => tracing::warn!(%node, reason = why.reason.word(), "node {node} takes no new GPU pods: {why}"),
            None => tracing::info!(%node, "node {node} takes GPU pods again"),
        }
        if let Some(uid) = uid.filter(|_| leads) {
            events.send_closing(&uid, &node, closed.as_ref());
        }
    }
}
