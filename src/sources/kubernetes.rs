//! The Kubernetes API server: how it is found, and which pods this node has.
//!
//! ```text
//!   flag, KUBECONFIG, service account, ~/.kube/config ── connect ──▶ Client, for whoever reads or writes there
//!   GET pods of this node, then watch ──ask──▶ wire::watch ──follow──▶ store ──▶ Pods, PodWatch
//! ```
//!
//! The list is told whole, whenever it differs from the one before. While the server is away, what it said stays.
//!
//! What must never happen here: a write, an answer without a bound in size and time, a pod taken for gone because the
//! server was.

pub mod connect;
pub mod own_node;
pub mod versions;
mod pods_client;
mod store;
mod follow;

pub use connect::{ApiConnection, NotConnected, connect};
pub use pods_client::PodsClient;

use crate::backoff::{Backoff, SourceName};
use crate::report::Reporter;
use follow::Follower;
use model::observation::ErrorCounter;
use tokio_util::sync::CancellationToken;

/// Follows the pods of a node until `stop` is cancelled; never fails, reports what it can.
pub async fn follow_pods(asker: PodsClient, reporter: Reporter, stop: CancellationToken) {
    let spell = Backoff::of(SourceName {
        what: "watch of pods at the API server",
        lost: "pods that start now get their names from the container runtime or the kubelet's log links",
        advice: "check that the API server runs and that this account may list and watch pods",
        trouble: Some(ErrorCounter::PodWatchFailed),
        wanted: true,
    });
    let follower = Follower::of(asker, reporter, spell);
    tokio::select! {
        () = stop.cancelled() => {}
        () = Box::pin(follower.run()) => {}
    }
}
