//! What the agent of a machine reports: its phase, its GPUs, how far each pod has come, and which pods have processes.

use super::machine::Machine;
use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportedGpu, ReportedPod, ReportedUse, ReportedUses};
use model::id::{GpuUuid, NodeName, PodUid};
use model::registered::RegisteredGpu;
use model::reported_reading::ReportedReading;
use std::collections::BTreeMap;

impl Machine {
    /// How far the start of each pod has come, as the agent sees it.
    pub(super) fn stages(&mut self) -> BTreeMap<PodUid, PodStage> {
        let Some(agent) = &mut self.agent else { return BTreeMap::new() };
        agent.allocator.set_checkpoint(&self.checkpoint);
        agent.allocator.stages()
    }

    /// The pods with processes on GPUs, whether the agent sees them or not.
    pub(super) fn processes(&mut self, now: u64) -> BTreeMap<PodUid, Vec<GpuUuid>> {
        self.lingering.retain(|_, (_, until)| *until > now);
        let running = self.admitted.iter().filter(|(_, one)| one.runs());
        let running = running.map(|(uid, one)| (uid, one.gpus()));
        let lingering = self.lingering.iter().map(|(uid, (gpus, _))| (uid, gpus.clone()));
        lingering.chain(running).filter(|(_, gpus)| !gpus.is_empty()).map(|(uid, gpus)| (uid.clone(), gpus)).collect()
    }

    /// The report of the agent; `None` while no agent runs. While the driver does not list processes, the agent sees
    /// none.
    pub(super) fn agent_report(&mut self, leaving: bool, now: u64) -> Option<AgentReport> {
        let agent = self.agent.as_ref()?;
        let (serves, lists) = (agent.listed, agent.lists_at <= now);
        let refuses_unclaimed = !agent.allocator.may_share();
        let uses = if lists { self.processes(now) } else { BTreeMap::new() };
        let mut report = AgentReport::of(NodeName::parse(&self.name).ok()?);
        report.phase = match (leaving, serves) {
            (true, _) => AgentPhase::Leaving,
            (false, true) => AgentPhase::Serving,
            (false, false) => AgentPhase::Starting,
        };
        report.refuses_unclaimed = refuses_unclaimed;
        let gpu = |gpu: &RegisteredGpu| ReportedGpu {
            healthy: gpu.healthy,
            memory_total: ReportedReading::Measured(gpu.memory.bytes(), None),
            memory_used: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: if lists { ReportedReading::Measured(0, None) } else { ReportedReading::UNKNOWN },
        };
        report.gpus = self.gpus.iter().map(|one| (one.uuid.clone(), gpu(one))).collect();
        let pod = |(uid, stage)| (uid, ReportedPod { stage, uses: ReportedUses::default() });
        report.pods = self.stages().into_iter().map(pod).collect();
        for (uid, gpus) in uses {
            let used = |gpu: GpuUuid| (gpu, ReportedUse { processes: 1, memory_used: ReportedReading::UNKNOWN });
            let pod = report.pods.entry(uid);
            pod.or_insert(ReportedPod { stage: PodStage::Ended, uses: ReportedUses::default() }).uses =
                gpus.into_iter().map(used).collect();
        }
        Some(report)
    }
}
