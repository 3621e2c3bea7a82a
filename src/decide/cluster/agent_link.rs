//! What the leader knows about the agent of one node: its stream and its newest report.

use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportChange, ReportTooLarge, ReportedPod};
use model::id::{GpuUuid, PodUid};
use model::time::Monotonic;

/// Names one stream of an agent. A later stream has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Whether the stream is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// The stream is open.
    Open,
    /// The stream was closed at this moment, and the agent may soon open another.
    Closed(Monotonic),
    /// The stream was closed, and the agent has not opened another in time.
    Away,
}

/// The agent of one node.
#[derive(Clone, Debug)]
pub(super) struct AgentLink {
    pub(super) stream: StreamId,
    pub(super) state: LinkState,
    /// When the last message came.
    pub(super) heard: Monotonic,
    /// Nothing has come for so long that the report counts as old.
    pub(super) is_silent: bool,
    pub(super) report: AgentReport,
}

impl AgentLink {
    /// A stream whose first message has arrived.
    pub(super) fn new(stream: StreamId, report: AgentReport, now: Monotonic) -> AgentLink {
        AgentLink { stream, state: LinkState::Open, heard: now, is_silent: false, report }
    }

    /// Applies a change.
    pub(super) fn change(&mut self, change: ReportChange, now: Monotonic) -> Result<(), ReportTooLarge> {
        self.heard = now;
        self.report.apply(change)
    }

    /// How far the start of the pod with this name has come, as the agent reports it. An agent that does not know the pod yet may
    /// see its first container, which says nothing about its start.
    pub(super) fn stage(&self, name: &PodUid) -> Option<PodStage> {
        let known = |pod: &&ReportedPod| pod.stage != PodStage::Ended || pod.processes() > 0;
        self.report.pods.get(name).filter(known).map(|pod| pod.stage)
    }

    /// Whether the newest report has processes on a GPU for the pod with this name.
    pub(super) fn sees_processes(&self, name: &PodUid) -> bool {
        self.report.pods.get(name).is_some_and(|pod| pod.processes() > 0)
    }

    /// Whether the pod with this name has processes on a GPU by the newest report, or may start a process at any moment.
    pub(super) fn runs(&self, name: &PodUid) -> bool {
        self.report.pods.get(name).is_some_and(|pod| pod.has_containers || pod.processes() > 0)
    }

    /// Whether the newest report has a list of the processes on a device; `None` if the report does not name the
    /// device.
    ///
    /// The reports of earlier releases name no MIG instance, so the leader does not know to which GPU an instance belongs. In
    /// that case, an instance counts as having a list only if all GPUs of the node have a list.
    pub(super) fn has_list(&self, device: &GpuUuid) -> Option<bool> {
        let gpus = &self.report.gpus;
        match gpus.get(device) {
            Some(gpu) => Some(gpu.processes.value().is_some()),
            None if gpus.is_empty() || !device.is_mig_instance() || gpus.keys().any(GpuUuid::is_mig_instance) => None,
            None => Some(gpus.values().all(|gpu| gpu.processes.value().is_some())),
        }
    }

    /// Whether the agent is about to stop.
    pub(super) fn is_leaving(&self) -> bool {
        self.report.phase == AgentPhase::Leaving
    }
}
