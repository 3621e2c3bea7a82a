//! The counts of a scrape. Anyone who can reach the port may request them again and again, and with 50,000 claims a
//! count takes milliseconds. So one count, on a thread for blocking work, serves all requests that arrived before it
//! began.

use super::locked_cluster::{ClusterCounts, LockedCluster};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// The newest counts, and the moment at which that count began. Locked during a count.
type NewestCounts = Arc<Mutex<Option<(Instant, ClusterCounts)>>>;

/// Counts what is in the state of the cluster.
#[derive(Debug, Default)]
pub(super) struct ScrapeCounts(NewestCounts);

impl ScrapeCounts {
    /// The result of a count that began after this call.
    pub(super) async fn of(&self, cluster: &Arc<LockedCluster>) -> ClusterCounts {
        let asked = Instant::now();
        let mut newest = Arc::clone(&self.0).lock_owned().await;
        if let Some((begun, counts)) = &*newest
            && *begun >= asked
        {
            return counts.clone();
        }
        let cluster = Arc::clone(cluster);
        // The count goes on if this caller goes away, so that at most one count is ever in progress.
        let counting = spawn_blocking(move || {
            let begun = Instant::now();
            let counts = cluster.counts();
            *newest = Some((begun, counts.clone()));
            counts
        });
        counting.await.unwrap_or_default()
    }
}
