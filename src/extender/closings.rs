//! Reports which nodes take no new claims, and why: a line in the log of each extender, an event on the Node by the leader, and a
//! message to the agent of the node. The agent gets it at once; the log and the events are limited ([`super::closing_pace`]).

use super::events::PodEvents;
use super::leadership::Leadership;
use super::live_callers::LiveCallers;
use super::locked_cluster::LockedCluster;
use decide::cluster::ClosingChange;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

/// Time between two looks for changes that no watch event and no stream shows: an agent that does not come back, a handshake that gets
/// stale, a report that waits for its minute.
const LOOK: Duration = Duration::from_secs(1);

/// Looks for closed and opened nodes until `stop` is cancelled, and reports them. A look takes time only for nodes that may have
/// changed, and some microseconds for the handshakes of all others.
pub(super) async fn watch(
    cluster: Arc<LockedCluster>,
    (events, live): (Arc<PodEvents>, Arc<LiveCallers>),
    leadership: Arc<Leadership>,
    stop: CancellationToken,
) {
    let mut look = interval(LOOK);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = look.tick() => {}
        }
        cluster.close_late_agents();
        tell(&cluster, (&events, &live), leadership.decides());
    }
}

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
