//! The Kubernetes API server: how the agent connects to it, and which pods this node has.
//!
//! ```text
//!   flag, KUBECONFIG, service account, ~/.kube/config ── connect ──▶ Client, for all code that calls the API server
//!   list of this node's pods, then watch ── pods_client ──▶ wire::watch ── follow ──▶ store ──▶ Pods, PodWatch
//! ```
//!
//! Each report holds the whole list, and is sent whenever the list changes. While the server cannot be reached, the
//! last list stays valid.
//!
//! What must never happen here: a write, an answer without a limit in size and time, a pod that counts as gone because
//! the server cannot be reached.

pub mod connect;
pub mod own_node;
pub mod versions;
mod pods_client;
mod store;
mod follow;

pub use connect::{ApiConnection, NotConnected, connect};
pub use pods_client::PodsClient;

use crate::report::Reporter;
use crate::source_failures::{SourceFailures, SourceName};
use follow::Follower;
use model::observation::ErrorCounter;
use tokio_util::sync::CancellationToken;

/// Follows the pods of a node until `stop` is cancelled. It never fails; it reports what it can read.
pub async fn follow_pods(asker: PodsClient, reporter: Reporter, stop: CancellationToken) {
    let failures = SourceFailures::of(SourceName {
        what: "watch of pods at the API server",
        lost: "pods that start now get their names from the container runtime or the kubelet's log links",
        advice: "check that the API server runs and that this account may list and watch pods",
        trouble: Some(ErrorCounter::PodWatchFailed),
        wanted: true,
    });
    let follower = Follower::of(asker, reporter, failures);
    tokio::select! {
        () = stop.cancelled() => {}
        () = Box::pin(follower.run()) => {}
    }
}
