//! The streams of the agents: what a report changes in the ledger and in whether a node takes new claims.
//!
//! ```text
//!   first message ──▶ agent_reports ─┐              ┌─▶ claims that have started, claims of pods that have ended
//!   change        ──▶ agent_changes ─┼─▶ AgentLink ─┤
//!   the end       ──▶ agent_closed ──┘   of a node  ├─▶ closed: registers, leaves, is not back in time
//!                                                   └─▶ GPUs that are in use by pods that hold nothing
//! ```
//!
//! An agent without a stream changes nothing: its node is judged by the API server alone.
//!
//! A leader has never seen a pod that ended before it won, or that a restore of etcd took away before. If processes of such a pod
//! are left, the report of its node is the only sign of them. It names no amounts that could be counted as a claim, so the GPU
//! takes no new claims until a list of its processes shows none of them.
//!
//! What must never happen here: a report that releases a claim of a pod which the API server shows as running, or of one whose
//! processes it does not know; a stream that ends the stream of a newer one.

use super::agent_link::{AgentLink, LinkState, StreamId};
use super::node::NodeClaims;
use super::state::ClusterState;
use model::agent_stream::{AgentReport, LeaderView, MAX_REPORTED_PODS, ReportChange, ReportTooLarge};
use model::id::{GpuUuid, NodeName, PodUid};
use model::time::Monotonic;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the stream of an agent may be closed before nothing more is bound to its node. An agent connects again within
/// this time, unless it has ended; a pod that is bound while the agent is away fails at the kubelet's door.
pub const STREAM_BACK_WITHIN: Duration = Duration::from_secs(2);

/// Why a message of a stream is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportRefusal {
    /// A newer stream of the same node speaks for it.
    #[error("a newer stream of this node has begun")]
    Replaced,
    /// The report grows beyond its bounds.
    #[error(transparent)]
    TooLarge(#[from] ReportTooLarge),
}

impl ClusterState {
    /// An agent has reported everything: at the begin of its stream, or again. An older stream of the node ends.
    ///
    /// # Errors
    /// [`ReportRefusal::Replaced`].
    pub fn agent_reports(
        &mut self,
        stream: StreamId,
        report: AgentReport,
        now: Monotonic,
    ) -> Result<(), ReportRefusal> {
        let name = report.node.clone();
        let node = self.node_entry(&name);
        if node.agent().is_some_and(|link| link.stream > stream) {
            return Err(ReportRefusal::Replaced);
        }
        node.set_agent(Some(AgentLink::new(stream, report.compact(), now)));
        self.closing.remove(&name);
        self.touch(&name);
        self.take_evidence(&name);
        Ok(())
    }

    /// An agent has reported changes.
    ///
    /// # Errors
    /// [`ReportRefusal`]; nothing is taken over then.
    pub fn agent_changes(
        &mut self,
        name: &NodeName,
        stream: StreamId,
        change: ReportChange,
        now: Monotonic,
    ) -> Result<(), ReportRefusal> {
        let node = self.nodes.get_mut(name).ok_or(ReportRefusal::Replaced)?;
        let before = node.closed();
        let link = node.agent_mut().filter(|link| link.stream == stream).ok_or(ReportRefusal::Replaced)?;
        link.change(change, now)?;
        if node.closed() != before {
            node.is_changed();
        }
        self.touch(name);
        self.take_evidence(name);
        Ok(())
    }

    /// An agent has sent a beat.
    ///
    /// # Errors
    /// [`ReportRefusal::Replaced`].
    pub fn agent_beats(&mut self, name: &NodeName, stream: StreamId, now: Monotonic) -> Result<(), ReportRefusal> {
        let link = self.nodes.get_mut(name).and_then(NodeClaims::agent_mut);
        let link = link.filter(|link| link.stream == stream).ok_or(ReportRefusal::Replaced)?;
        link.heard = now;
        Ok(())
    }

    /// A stream has ended.
    pub fn agent_closed(&mut self, name: &NodeName, stream: StreamId, now: Monotonic) {
        let link = self.nodes.get_mut(name).and_then(NodeClaims::agent_mut);
        if let Some(link) = link.filter(|link| link.stream == stream && link.state == LinkState::Open) {
            link.state = LinkState::Closed(now);
            self.closing.insert(name.clone(), now);
        }
    }

    /// Closes the nodes whose streams have not come back in time. Called before each decision.
    pub fn agents_at(&mut self, now: Monotonic) {
        let late = |since: &Monotonic| now.since(*since) >= STREAM_BACK_WITHIN;
        // Usually empty; after a failure of the network as long as the list of nodes, and once for each of them.
        if !self.closing.values().any(late) {
            return;
        }
        let (nodes, touched) = (&mut self.nodes, &mut self.touched);
        self.closing.retain(|name, since| {
            let away = late(since);
            if away
                && let Some(node) = nodes.get_mut(name)
                && let Some(link) = node.agent_mut()
            {
                link.state = LinkState::Away;
                node.is_changed();
                touched.insert(name.clone());
            }
            !away
        });
    }

    /// Forgets all streams: this process leads no longer, and the agents report to another one. Claims of pods that have
    /// ended are released, because the next leader decides about them: by the same reports, which show their processes.
    pub fn forget_agents(&mut self) {
        self.closing.clear();
        let mut ended: Vec<(NodeName, PodUid)> = Vec::new();
        for node in self.nodes.values_mut() {
            node.set_agent(None);
            ended.extend(node.ending().map(|uid| (node.name().clone(), uid.clone())));
        }
        for (name, uid) in ended {
            self.release_at(&name, &uid);
        }
    }

    /// What the agent of this node gets to know.
    #[must_use]
    pub fn leader_view(&self, name: &NodeName) -> LeaderView {
        let node = self.nodes.get(name);
        let link = node.and_then(NodeClaims::agent);
        let leaving = link.is_some_and(AgentLink::is_leaving);
        let awaited = match (node, link) {
            (Some(node), Some(_)) if leaving => {
                let names = node.awaited().map(|uid| node.static_pods().name(uid));
                names.take(MAX_REPORTED_PODS).cloned().collect()
            }
            _ => Vec::new(),
        };
        LeaderView {
            epoch: self.epoch,
            leader: None,
            closed: node.and_then(NodeClaims::closed).map(|why| why.to_string().into()),
            leaving,
            awaited,
        }
    }

    /// What the agent of this node has reported, and when it was heard last; `None` without an open stream.
    #[must_use]
    pub fn agent_report(&self, name: &NodeName) -> Option<(&AgentReport, Monotonic)> {
        let link = self.nodes.get(name)?.agent()?;
        (link.state == LinkState::Open).then_some((&link.report, link.heard))
    }

    /// Whether a pod that has ended or is gone still holds its GPUs, because its agent sees processes of it or cannot say whether
    /// there are any. Its claim is then released by the report that shows none.
    pub(super) fn holds_after_end(&mut self, uid: &PodUid) -> bool {
        let node = self.locations.get(uid).and_then(|location| self.nodes.get_mut(&location.node));
        node.is_some_and(|node| {
            let holds = node.ledger().get(uid).is_some() && node.may_run(uid);
            if holds {
                node.ends(uid);
            }
            holds
        })
    }

    /// Takes over what the newest report proves: which claims have started, which pods that have ended hold nothing any more,
    /// and which GPUs are in use by others.
    pub(super) fn take_evidence(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.agent().is_none() {
            return;
        }
        node.take_started();
        let free: Vec<PodUid> = node.ending().filter(|uid| !node.may_run(uid)).cloned().collect();
        for uid in free {
            self.release_at(name, &uid);
        }
        self.find_used_gpus(name);
    }

    /// Looks anew which GPUs of a node are in use by pods that hold nothing there, by the newest report of its agent.
    pub(super) fn find_used_gpus(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else { return };
        let Some(link) = node.agent() else { return };
        let others =
            link.report.pods.iter().filter(|(named, pod)| pod.processes() > 0 && !self.is_explained(node, named));
        let uses = others.flat_map(|(_, pod)| pod.uses.iter());
        let used: BTreeSet<GpuUuid> =
            uses.filter(|(_, used)| used.processes > 0).map(|(device, _)| device.clone()).collect();
        if let Some(node) = self.nodes.get_mut(name) {
            node.are_in_use(&used);
        }
    }

    /// The same after a pod of the node became known, which can only explain processes.
    pub(super) fn may_explain(&mut self, name: &NodeName) {
        if self.nodes.get(name).is_some_and(NodeClaims::is_in_use) {
            self.find_used_gpus(name);
        }
    }

    /// Whether the API server explains the processes of a pod that a report names: the pod holds GPUs of the node, or it runs
    /// there and requests none. One that requests none counts as little as a process of the host does.
    fn is_explained(&self, node: &NodeClaims, named: &PodUid) -> bool {
        node.static_pods().meant(named).any(|uid| {
            let location = self.locations.get(uid).map(|location| &location.node);
            location.or_else(|| self.pods_without_gpus.get(uid)) == Some(node.name())
        })
    }
}

#[cfg(test)]
mod tests;
