//! Reports the pods of this node from the API server, as observations.
//!
//! Each report holds the whole list, and is sent whenever the list changes. While the server cannot be reached, the
//! last list stays valid.

use crate::report::Reporter;
use crate::source_failures::{FailureSeverity, SourceFailures, SourceName};
use apiserver::follow::{FollowListener, Follower};
use apiserver::kind::PodsOfNode;
use apiserver::store::{Delta, Store};
use apiserver::{ApiConnection, ApiError};
use model::id::PodUid;
use model::observation::{ErrorCounter, Fact};
use model::pod::{Pod, PodWatchState};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use wire::watch::UnreadableObject;

/// Reports the changes that the follower finds.
#[derive(Debug)]
struct PodReporter {
    reporter: Reporter,
    failures: SourceFailures,
    watch: PodWatchState,
}

/// Follows the pods of a node until `stop` is cancelled. It never fails; it reports what it can read.
pub async fn follow_pods(connection: ApiConnection, pods: PodsOfNode, reporter: Reporter, stop: CancellationToken) {
    let failures = SourceFailures::of(SourceName {
        what: "watch of pods at the API server",
        lost: "pods that start now get their names from the container runtime or the kubelet's log links",
        advice: "check that the API server runs and that this account may list and watch pods",
        counter: Some(ErrorCounter::PodWatchFailed),
        required: true,
    });
    let listener = PodReporter { reporter, failures, watch: PodWatchState::default() };
    let follower = Follower::new(connection, pods, listener);
    tokio::select! {
        () = stop.cancelled() => {}
        () = Box::pin(follower.run()) => {}
    }
}

impl FollowListener<PodsOfNode> for PodReporter {
    fn received(&mut self) {
        self.watch.last_received = Some(clock::monotonic());
    }

    fn changed(&mut self, _: Vec<Delta<Pod>>, held: Option<&Store<PodsOfNode>>) {
        if let Some(pods) = held {
            self.reporter.fact(Fact::Pods(pods.list()));
        }
        self.reporter.fact(Fact::PodWatch(self.watch.clone()));
    }

    fn unreadable(&mut self, bad: &UnreadableObject<PodUid>) {
        let lost = "its name comes from another source, and its other fields are unknown";
        tracing::warn!(pod = bad.name.as_deref().unwrap_or_default(), error = %bad.why, lost, "a pod cannot be read");
        self.reporter.trouble(ErrorCounter::PodUnreadable);
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        let (counter, pause) = self.failures.failed(FailureSeverity::Broken, why);
        counter.inspect(|counter| self.reporter.trouble(*counter));
        self.watch.broken = Some(why.to_string().into());
        pause
    }

    fn works(&mut self) {
        self.failures.worked();
        self.watch.broken = None;
    }
}
