//! Readiness: the agent is ready when the first readings have arrived and nothing is known to be broken.
//!
//! ```text
//!   first pass over cgroups ─┐
//!   first answer about GPUs ─┤
//!   first list of pods       ┴─▶ opened ──▶ ready, unless GPUs or their events hang or fail, the node has no CDI, or
//!                                           the usage socket cannot be opened
//! ```

use model::observation::{Fact, GpuSourceState, Observation, Sample};
use model::plugin::CdiState;
use std::sync::Arc;

/// The progress of an agent's start of sharing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The start has begun. It is not known yet whether another agent shares the GPUs of this node.
    Begins,
    /// Another agent shares the GPUs. This agent waits until the other agent ends.
    Follows {
        /// Whether this agent has prepared everything, so that the other agent may end.
        prepared: bool,
    },
    /// The agent shares the GPUs, or runs without sharing.
    #[default]
    Shares,
}

/// The first readings that have arrived, and the known failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    cgroups: bool,
    gpus: bool,
    /// Whether the list has arrived; `None` if readiness does not wait for it.
    pods: Option<bool>,
    hanging: bool,
    events_hang: bool,
    events_fail: bool,
    /// Why CDI is not supported, so that no GPU is offered; `None` while pods of an earlier release still run without
    /// CDI.
    without_cdi: Option<Arc<str>>,
    /// The reason why the usage socket is not served; `None` if it is served.
    pub usage: Option<Arc<str>>,
    /// An agent that is prepared to take over from another agent is ready: an upgrade then ends the other agent.
    pub progress: Progress,
}

impl Readiness {
    /// The state before the first observation. In a cluster readiness also waits for the first list of pods: an agent
    /// that cannot read pods must not be ready there.
    pub(crate) fn new(in_cluster: bool) -> Readiness {
        Readiness { pods: in_cluster.then_some(false), ..Readiness::default() }
    }

    /// Takes one observation into account, before the node state does.
    pub(crate) fn observe(&mut self, observation: &Observation) {
        match observation {
            Observation::Sample(Sample::Cgroups(_)) => self.cgroups = true,
            Observation::Fact(Fact::GpuSource(state)) => {
                self.hanging = matches!(state, GpuSourceState::Hanging);
                self.gpus |= !matches!(state, GpuSourceState::Starting);
            }
            Observation::Fact(Fact::GpuEventsHang(hang)) => self.events_hang = *hang,
            Observation::Fact(Fact::GpuEventsFail(fail)) => self.events_fail = *fail,
            Observation::Fact(Fact::Plugin(plugin)) => {
                self.without_cdi = match &plugin.cdi {
                    CdiState::Missing { why, earlier_pods: 0 } => Some(Arc::clone(why)),
                    CdiState::Missing { .. } | CdiState::Unknown | CdiState::Works => None,
                };
            }
            Observation::Fact(Fact::Pods(_)) => {
                self.pods.replace(true);
            }
            _ => {}
        }
    }

    /// Whether the first readings have arrived.
    pub(crate) fn opened(&self) -> bool {
        self.cgroups && self.gpus && self.pods != Some(false)
    }

    /// The answer of `/readyz`.
    pub(crate) fn check(&self) -> Result<(), Arc<str>> {
        if self.hanging {
            return Err("all calls to the GPU driver hang; CPU and memory are still sampled".into());
        }
        let conditions = [
            (
                self.progress != Progress::Follows { prepared: false },
                "the preparations to follow the agent that shares GPUs here",
            ),
            (self.cgroups, "the first pass over cgroups"),
            (self.gpus, "the first answer about GPUs"),
            (self.pods != Some(false), "the API server's first list of pods"),
        ];
        let waiting: Vec<&str> = conditions.into_iter().filter_map(|(seen, what)| (!seen).then_some(what)).collect();
        if !waiting.is_empty() {
            return Err(format!("starting: waiting for {}", waiting.join(" and ")).into());
        }
        if self.events_hang {
            return Err("the wait for the GPU driver's events hangs; XIDs come from the kernel log only".into());
        }
        if self.events_fail {
            return Err("the wait for the GPU driver's events fails; XIDs come from the kernel log only".into());
        }
        if let Some(why) = &self.without_cdi {
            return Err(format!("no GPU is offered: {why}").into());
        }
        self.usage.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::histogram::Histogram;
    use model::observation::CgroupPass;
    use model::plugin::{PluginView, RegistrationState};
    use model::pod::{PodList, PodWatchState};
    use model::reading::Absence;

    #[test]
    fn the_agent_is_ready_when_the_first_readings_have_arrived_and_nothing_is_broken() {
        let mut readiness = Readiness::default();
        assert!(readiness.check().is_err_and(|why| why.contains("cgroups and the first answer")));
        readiness.observe(&Observation::Fact(Fact::GpuSource(GpuSourceState::Starting)));
        readiness.observe(&Observation::Sample(Sample::Cgroups(CgroupPass::default())));
        assert!(readiness.check().is_err_and(|why| why.ends_with("waiting for the first answer about GPUs")));
        let missing = GpuSourceState::Missing { why: Absence::LibraryNotFound, advice: "".into() };
        readiness.observe(&Observation::Fact(Fact::GpuSource(missing)));
        assert_eq!(readiness.check(), Ok(()), "a node without a driver is ready");
        readiness.observe(&Observation::Fact(Fact::GpuSource(GpuSourceState::Hanging)));
        assert!(readiness.check().is_err_and(|why| why.contains("hang")));
        readiness.observe(&Observation::Fact(Fact::GpuSource(GpuSourceState::SwitchedOff)));
        readiness.observe(&Observation::Fact(Fact::GpuEventsHang(true)));
        assert!(readiness.check().is_err_and(|why| why.contains("events hangs")));
        readiness.observe(&Observation::Fact(Fact::GpuEventsHang(false)));
        readiness.observe(&Observation::Fact(Fact::GpuEventsFail(true)));
        assert!(readiness.check().is_err_and(|why| why.contains("events fails")));
        readiness.observe(&Observation::Fact(Fact::GpuEventsFail(false)));
        readiness.usage = Some("socket".into());
        assert_eq!(readiness.check(), Err("socket".into()));
        readiness.usage = None;
        readiness.progress = Progress::Follows { prepared: false };
        assert!(readiness.check().is_err_and(|why| why.contains("follow the agent")));
        readiness.progress = Progress::Follows { prepared: true };
        assert_eq!(readiness.check(), Ok(()), "an upgrade waits for this before it ends the other");
    }

    /// An upgrade of the agents must not stop at a node where pods of the earlier release still run without CDI.
    #[test]
    fn a_node_without_cdi_is_ready_only_while_pods_of_an_earlier_release_run_there() {
        let (mut readiness, mut view) = (Readiness::default(), plugin());
        readiness.observe(&Observation::Fact(Fact::GpuSource(GpuSourceState::SwitchedOff)));
        readiness.observe(&Observation::Sample(Sample::Cgroups(CgroupPass::default())));
        for (earlier_pods, ready) in [(0, false), (2, true), (0, false)] {
            view.cdi = CdiState::Missing { why: "set enable_cdi".into(), earlier_pods };
            readiness.observe(&Observation::Fact(Fact::Plugin(Arc::new(view.clone()))));
            assert_eq!(readiness.check().is_ok(), ready);
        }
        assert!(readiness.check().is_err_and(|why| why.contains("no GPU is offered: set enable_cdi")));
        view.cdi = CdiState::Works;
        readiness.observe(&Observation::Fact(Fact::Plugin(Arc::new(view))));
        assert_eq!(readiness.check(), Ok(()));
    }

    fn plugin() -> PluginView {
        PluginView {
            resource: "nvidia.com/gpu".into(),
            registration: RegistrationState::Registered,
            registrations: 1,
            slots: Arc::default(),
            claims: Arc::default(),
            allocations: 0,
            starts: Vec::new(),
            waited: Vec::new(),
            differing: 0,
            without_gpu: 0,
            withheld: Arc::default(),
            moved: 0,
            files: Arc::default(),
            cdi: CdiState::Unknown,
            lacks: None,
            guards: Vec::new(),
            allocate: Histogram::default(),
            start: Histogram::default(),
        }
    }

    #[test]
    fn in_a_cluster_readiness_waits_for_the_first_pod_list_and_not_for_later_ones() {
        let mut readiness = Readiness::new(true);
        readiness.observe(&Observation::Fact(Fact::GpuSource(GpuSourceState::SwitchedOff)));
        readiness.observe(&Observation::Sample(Sample::Cgroups(CgroupPass::default())));
        assert!(!readiness.opened() && readiness.check().is_err_and(|why| why.ends_with("first list of pods")));
        readiness.observe(&Observation::Fact(Fact::Pods(PodList::default())));
        assert!(readiness.opened());
        let broken = PodWatchState { last_received: None, broken: Some("away".into()) };
        readiness.observe(&Observation::Fact(Fact::PodWatch(broken)));
        assert_eq!(readiness.check(), Ok(()));
    }
}
