//! `doctor pod`: why a pod waits for its GPUs, and what to do.
//!
//! ```text
//!   API server: pod, events, extender pods ──┐
//!   leader: decisions, live use of memory ───┴──▶ facts ──tree (pure)──▶ findings
//! ```

mod reasons;
mod facts;
mod tree;
#[cfg(test)]
mod tree_tests;

use crate::cluster::ClusterReader;
use crate::finding::{Report, Seen};
use crate::leader::LeaderPlace;
use facts::PodFacts;
use model::id::PodRef;
use wire::described_pod::DescribedPod;

/// Looks at the pod. `scheduler` is the name of the scheduler that asks the extender.
pub(crate) async fn look(
    (pod, scheduler): (&PodRef, &str),
    cluster: &Seen<ClusterReader>,
    place: &LeaderPlace,
    extenders: Seen<Vec<DescribedPod>>,
) -> Report {
    let facts = PodFacts::look((pod, scheduler), cluster, place, extenders).await;
    Report::new("doctor pod", format!("pod {pod}"), tree::diagnose(&facts), Vec::new())
}
