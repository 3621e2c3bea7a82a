//! What the agent of a machine reports: its phase, its GPUs, how far each pod has come, and which pods have processes.

use super::machine::Machine;
use model::agent_stream::{AgentPhase, AgentReport, PodStage, ReportedGpu, ReportedPod, ReportedUse, ReportedUses};
use model::id::{GpuUuid, NodeName, PodUid};
use model::registered::RegisteredGpu;
use model::reported_reading::ReportedReading;
use model::unit::{Bytes, Mib};
use std::collections::BTreeMap;

impl Machine {
    /// How far the start of each pod has come, as the agent sees it.
    pub(super) fn stages(&mut self) -> BTreeMap<PodUid, PodStage> {
        let Some(agent) = &mut self.agent else { return BTreeMap::new() };
        agent.allocator.set_checkpoint(&self.checkpoint);
        agent.allocator.stages()
    }

    /// The pods that run with GPUs, whether the agent sees their processes or not: their GPUs, and whether they are idle.
    pub(super) fn running(&mut self, now: u64) -> BTreeMap<PodUid, (Vec<GpuUuid>, bool)> {
        self.lingering.retain(|_, one| one.until > now);
        let running = self.admitted.iter().filter(|(_, one)| one.runs());
        let running = running.map(|(uid, one)| (uid, (one.gpus(), one.is_idle())));
        let lingering = self.lingering.iter().map(|(uid, one)| (uid, (one.gpus.clone(), one.idle)));
        let all = lingering.chain(running).filter(|(_, (gpus, _))| !gpus.is_empty());
        all.map(|(uid, one)| (uid.clone(), one)).collect()
    }

    /// How much memory of a GPU is used by processes that belong to no pod.
    pub(super) fn stranger(&self, gpu: &GpuUuid) -> Bytes {
        Mib(self.strangers.get(gpu).copied().unwrap_or(0)).bytes()
    }

    /// The report of the agent; `None` while no agent runs. While the driver does not list processes, the agent sees no
    /// processes. It always sees the containers. The processes of pods use no memory.
    pub(super) fn agent_report(&mut self, leaving: bool, now: u64) -> Option<AgentReport> {
        let agent = self.agent.as_ref()?;
        let (serves, lists) = (agent.listed, agent.lists_at <= now);
        let refuses_unclaimed = !agent.allocator.may_share();
        let running = self.running(now);
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
            memory_used: ReportedReading::Measured(self.stranger(&gpu.uuid), None),
            memory_listed: if lists {
                ReportedReading::Measured(self.stranger(&gpu.uuid), None)
            } else {
                ReportedReading::UNKNOWN
            },
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: if lists { ReportedReading::Measured(0, None) } else { ReportedReading::UNKNOWN },
            ..ReportedGpu::default()
        };
        report.gpus = self.gpus.iter().map(|one| (one.uuid.clone(), gpu(one))).collect();
        let pod = |(uid, stage)| (uid, ReportedPod { stage, has_containers: false, uses: ReportedUses::default() });
        report.pods = self.stages().into_iter().map(pod).collect();
        for (uid, (gpus, idle)) in running {
            let processes = u32::from(lists && !idle);
            let memory_used = ReportedReading::Measured(Bytes(0), None);
            let used = |gpu: GpuUuid| (gpu, ReportedUse { processes, memory_used });
            let ended = ReportedPod { stage: PodStage::Ended, has_containers: true, uses: ReportedUses::default() };
            let pod = report.pods.entry(uid).or_insert(ended);
            pod.has_containers = true;
            if processes > 0 || pod.stage == PodStage::Ended {
                pod.uses = gpus.into_iter().map(used).collect();
            }
        }
        Some(report)
    }
}
