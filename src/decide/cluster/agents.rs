//! The streams of the agents: how a report changes the ledger, and whether a node takes new claims.
//!
//! ```text
//!   first message ──▶ agent_reports ─┐              ┌─▶ claims that have started, claims of pods that have ended
//!   change        ──▶ agent_changes ─┼─▶ AgentLink ─┤
//!   the end       ──▶ agent_closed ──┘   of a node  ├─▶ closed: registers, leaves, has not come back in time
//!                                                   └─▶ GPUs that pods without a claim use
//! ```
//!
//! If the agent of a node has no stream, the leader judges the node by the API server alone: by its register and the age of its
//! handshake ([`super::handshake_age`]).
//!
//! A new leader does not know the pods that ended, or that an etcd restore removed, before it won the election. If processes or
//! containers of such a pod are left, only the report of its node shows them. The report names no amounts that could be counted as a
//! claim, so the GPU takes no new claims until a report shows no process of that pod.
//!
//! What must never happen here: a report releases the claim of a pod that runs according to the API server, or whose processes the
//! report does not know; the end of an old stream ends a newer stream.

use super::agent_link::{AgentLink, LinkState, StreamId};
use super::node::NodeClaims;
use super::state::ClusterState;
use model::agent_stream::{
    AgentReport, LeaderView, MAX_REPORTED_PODS, PodStage, ReportChange, ReportTooLarge, ReportedPod,
};
use model::id::{GpuUuid, NodeName, PodUid};
use model::time::Monotonic;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the stream of an agent may be closed before the leader stops binding pods to its node. An agent connects again
/// within this time, unless it has ended. The kubelet rejects a pod that is bound while the agent is away.
pub const STREAM_BACK_WITHIN: Duration = Duration::from_secs(2);

/// How long an agent may send nothing before its report no longer counts for the memory in use. It sends a heartbeat every ten
/// seconds, so two are missing.
const SILENT_AFTER: Duration = Duration::from_secs(25);
/// How often the leader looks for silent agents. A look at 5,000 nodes takes some microseconds.
const LOOK_FOR_SILENT: Duration = Duration::from_secs(1);

/// Why a message of a stream is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportRefusal {
    /// A newer stream of the same node has replaced this stream.
    #[error("a newer stream of this node has begun")]
    Replaced,
    /// The change makes the report larger than its bounds.
    #[error(transparent)]
    TooLarge(#[from] ReportTooLarge),
}

impl ClusterState {
    /// An agent has sent a full report, at the start of its stream or later. An older stream of the node ends.
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
        if let Some(node) = self.nodes.get(&name) {
            let devices = node.devices().devices.iter().map(|device| &device.uuid);
            self.usage_changes.add(node.usage(devices));
        }
        self.look_for_unknown_device(&name);
        self.closing.remove(&name);
        self.touch(&name);
        self.take_evidence(&name);
        Ok(())
    }

    /// An agent has reported changes.
    ///
    /// # Errors
    /// [`ReportRefusal`]; then nothing changes.
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
        let shown: Vec<GpuUuid> = change.gpus.keys().cloned().collect();
        link.change(change, now)?;
        link.is_silent = false;
        if node.closed() != before {
            node.is_changed();
        }
        node.find_memory_in_use();
        self.usage_changes.add(node.usage(shown.iter()));
        self.look_for_unknown_device(name);
        self.touch(name);
        self.take_evidence(name);
        Ok(())
    }

    /// An agent has sent a heartbeat.
    ///
    /// # Errors
    /// [`ReportRefusal::Replaced`].
    pub fn agent_beats(&mut self, name: &NodeName, stream: StreamId, now: Monotonic) -> Result<(), ReportRefusal> {
        let node = self.nodes.get_mut(name).ok_or(ReportRefusal::Replaced)?;
        let link = node.agent_mut().filter(|link| link.stream == stream).ok_or(ReportRefusal::Replaced)?;
        link.heard = now;
        if std::mem::take(&mut link.is_silent) {
            node.find_memory_in_use();
        }
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

    /// Finds the agents from which nothing has come for [`SILENT_AFTER`]: on their nodes, only the claims count. Also finds the
    /// nodes whose handshakes have become stale.
    fn find_silent(&mut self, now: Monotonic) {
        if now.since(self.looked_for_silent) < LOOK_FOR_SILENT {
            return;
        }
        self.looked_for_silent = now;
        let watched = self.unwatched_since.is_none();
        for node in self.nodes.values_mut() {
            if watched && node.handshake_gets_stale(now) {
                self.touched.insert(node.name().clone());
            }
            let silent = |link: &AgentLink| link.state == LinkState::Open && now.since(link.heard) >= SILENT_AFTER;
            let found = node.agent().is_some_and(|link| !link.is_silent && silent(link));
            if found && let Some(link) = node.agent_mut() {
                link.is_silent = true;
                node.find_memory_in_use();
            }
        }
    }

    /// Closes the nodes whose agents have not opened another stream in time. Called before each decision.
    pub fn agents_at(&mut self, now: Monotonic) {
        self.find_silent(now);
        let late = |since: &Monotonic| now.since(*since) >= STREAM_BACK_WITHIN;
        // `closing` is usually empty. After a network failure it may hold each node once.
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
                node.find_memory_in_use();
                touched.insert(name.clone());
            }
            !away
        });
    }

    /// Whether the watch of Nodes runs. While it does not, a new handshake would not be seen, so that no handshake gets older.
    pub fn nodes_are_watched(&mut self, watched: bool, now: Monotonic) {
        if !watched {
            self.unwatched_since.get_or_insert(now);
        } else if let Some(since) = self.unwatched_since.take() {
            let unwatched = now.since(since);
            self.nodes.values_mut().for_each(|node| node.was_unwatched(unwatched));
        }
    }

    /// Forgets all streams, because this process no longer leads and the agents report to another leader. Claims of ended pods
    /// are released: the next leader gets the same reports, which show the processes of these pods, and decides.
    pub fn forget_agents(&mut self) {
        self.closing.clear();
        self.forget_wakes();
        let mut ended: Vec<(NodeName, PodUid)> = Vec::new();
        for node in self.nodes.values_mut() {
            node.set_agent(None);
            ended.extend(node.ending().map(|uid| (node.name().clone(), uid.clone())));
        }
        for (name, uid) in ended {
            self.release_at(&name, &uid);
        }
        let names: Vec<NodeName> = self.nodes.values().map(|node| node.name().clone()).collect();
        names.iter().for_each(|name| self.look_for_unknown_device(name));
    }

    /// The answer to the agent of this node.
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
            closed: self.closing(name.as_str()).map(|why| why.to_string().into()),
            leaving,
            awaited,
        }
    }

    /// The newest report of this node's agent, and when its last message arrived; `None` without an open stream.
    #[must_use]
    pub fn agent_report(&self, name: &NodeName) -> Option<(&AgentReport, Monotonic)> {
        let link = self.nodes.get(name)?.agent()?;
        (link.state == LinkState::Open).then_some((&link.report, link.heard))
    }

    /// Whether a pod that has ended or is gone still holds its GPUs, because its agent sees processes or containers of the pod, or
    /// does not know whether there are processes. Its claim is released when a report shows neither processes nor containers. After
    /// `kubectl delete --force` the containers run on for the grace period of the pod.
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

    /// Applies the evidence in the newest report: which claims have started, which ended pods no longer hold GPUs, and which
    /// GPUs are used by other pods.
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

    /// The pods that use GPUs of a node or may do so, and have no claim there, by the newest report of its agent.
    pub(super) fn unclaimed_users<'a>(
        &'a self,
        node: &'a NodeClaims,
    ) -> impl Iterator<Item = (&'a PodUid, &'a ReportedPod)> {
        let pods = node.agent().into_iter().flat_map(|link| link.report.pods.iter());
        pods.filter(move |(named, pod)| (pod.processes() > 0 || may_use(pod)) && !self.is_explained(node, named))
    }

    /// Finds the GPUs of a node that pods without a claim there use, by the newest report of its agent.
    pub(super) fn find_used_gpus(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name).filter(|node| node.agent().is_some()) else { return };
        let uses = self.unclaimed_users(node).flat_map(|(_, pod)| {
            let holds = may_use(pod);
            pod.uses.iter().filter(move |(_, used)| used.processes > 0 || holds)
        });
        let used: BTreeSet<GpuUuid> = uses.map(|(device, _)| device.clone()).collect();
        if let Some(node) = self.nodes.get_mut(name) {
            node.are_in_use(&used);
        }
    }

    /// Like [`ClusterState::find_used_gpus`], after a pod of the node became known. A new pod can only be the owner of processes
    /// without an owner, so this does nothing if no GPU has such processes.
    pub(super) fn may_explain(&mut self, name: &NodeName) {
        if self.nodes.get(name).is_some_and(NodeClaims::is_in_use) {
            self.find_used_gpus(name);
        }
    }

    /// Whether the API server shows why the pod that a report names may have processes on GPUs: the pod holds GPUs of the node, or
    /// it runs there and requests no GPU. A running pod that requests no GPU is treated like a host process.
    fn is_explained(&self, node: &NodeClaims, named: &PodUid) -> bool {
        node.static_pods().meant(named).any(|uid| {
            let location = self.locations.get(uid).map(|location| &location.node);
            location.or_else(|| self.pods_without_gpus.get(uid)) == Some(node.name())
        })
    }
}

/// Whether containers of a pod that is gone exist: they may use each device that the pod claimed.
fn may_use(pod: &ReportedPod) -> bool {
    pod.stage == PodStage::Ended && pod.has_containers
}

#[cfg(test)]
mod tests;
