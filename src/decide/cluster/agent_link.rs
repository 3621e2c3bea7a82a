//! What the leader knows of the agent of one node: its stream, and what it has reported.

use crate::ledger::{ClaimState, Ledger};
use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportChange, ReportTooLarge};
use model::claim::Claim;
use model::id::PodUid;
use model::time::Monotonic;

/// Names one stream of an agent. A later stream has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Whether the stream is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It is open.
    Open,
    /// It was closed at this moment, and may be back soon.
    Closed(Monotonic),
    /// It was closed and is not back in time.
    Away,
}

/// The agent of one node.
#[derive(Clone, Debug)]
pub(super) struct AgentLink {
    pub(super) stream: StreamId,
    pub(super) state: LinkState,
    /// When the last message came.
    pub(super) heard: Monotonic,
    pub(super) report: AgentReport,
}

impl AgentLink {
    /// A stream whose first message has come.
    pub(super) fn new(stream: StreamId, report: AgentReport, now: Monotonic) -> AgentLink {
        AgentLink { stream, state: LinkState::Open, heard: now, report }
    }

    /// Takes over a change.
    pub(super) fn change(&mut self, change: ReportChange, now: Monotonic) -> Result<(), ReportTooLarge> {
        self.heard = now;
        self.report.apply(change)
    }

    /// How far the start of a pod has come, by the agent.
    pub(super) fn stage(&self, uid: &PodUid) -> Option<PodStage> {
        self.report.pods.get(uid).map(|pod| pod.stage)
    }

    /// Whether the agent has seen a container of the pod start.
    pub(super) fn has_started(&self, uid: &PodUid) -> bool {
        self.stage(uid) >= Some(PodStage::Started)
    }

    /// Whether there are processes of the pod on a GPU, by the newest report.
    pub(super) fn sees_processes(&self, uid: &PodUid) -> bool {
        self.report.pods.get(uid).is_some_and(|pod| pod.processes() > 0)
    }

    /// Whether the agent is about to stop.
    pub(super) fn is_leaving(&self) -> bool {
        self.report.phase == AgentPhase::Leaving
    }

    /// The pods with a claim for which the kubelet has not asked yet, as far as the agent has reported.
    pub(super) fn awaited<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = &'a PodUid> {
        let asked = |uid: &PodUid| self.stage(uid) >= Some(PodStage::Allocated);
        ledger
            .claims()
            .filter(move |(uid, claim)| claim.state != ClaimState::Started && !asked(uid))
            .map(|(uid, _)| uid)
    }

    /// A pod that is on its way to this node and that the agent could mistake for one with `claim`: with early binding
    /// the agent tells them apart only by the number of GPUs of their first container. Two pods whose first containers
    /// have the same amounts exchange devices, so they do no harm.
    pub(super) fn mistakable<'a>(&'a self, ledger: &'a Ledger, claim: &Claim) -> Option<&'a PodUid> {
        let first = |claim: &Claim| {
            let shares = claim.iter().find(|own| !own.is_empty());
            shares.map(|own| own.iter().map(|share| (share.memory, share.cores)).collect::<Vec<_>>())
        };
        if self.report.early != Some(true) {
            return None;
        }
        let own = first(claim)?;
        self.awaited(ledger).find(|uid| {
            let other = ledger.get(uid).and_then(|held| first(&held.claim));
            other.is_some_and(|other| other.len() == own.len() && other != own)
        })
    }
}
