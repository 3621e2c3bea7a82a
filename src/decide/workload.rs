//! Pods, containers and processes with their rates, from the last two readings of each counter.

use model::cgroup::{CgroupIdentity, CgroupKind, CgroupReport, NetworkSample};
use model::id::ProcessKey;
use model::observation::CgroupPass;
use model::process::{MAX_PROCESSES, ProcessPass};
use model::reading::Reading;
use model::unit::{Bytes, BytesPerSecond, Cores, Nanos};
use model::usage::Rated;
use model::view::{ContainerRates, ProcessView};
use std::collections::HashMap;
use std::sync::Arc;

/// The counters of one cgroup, each with its rate.
#[derive(Clone, Copy, Debug, Default)]
struct CgroupRates {
    cpu: Rated<Nanos>,
    io_read: Rated<Bytes>,
    io_write: Rated<Bytes>,
    net_rx: Rated<Bytes>,
    net_tx: Rated<Bytes>,
}

impl CgroupRates {
    fn update(&mut self, report: &CgroupReport) {
        let network = |pick: fn(&NetworkSample) -> Bytes| match &report.network {
            Reading::Measured(network, at) => Reading::Measured(pick(network), *at),
            Reading::Absent(why) => Reading::Absent(*why),
        };
        self.cpu.update(report.sample.cpu_total, |nanos| nanos.0);
        self.io_read.update(report.sample.io_read, |bytes| bytes.0);
        self.io_write.update(report.sample.io_write, |bytes| bytes.0);
        self.net_rx.update(network(|n| n.rx_bytes), |bytes| bytes.0);
        self.net_tx.update(network(|n| n.tx_bytes), |bytes| bytes.0);
    }

    fn rates(&self) -> ContainerRates {
        ContainerRates {
            cpu: cores(&self.cpu),
            io_read: self.io_read.rate().map(BytesPerSecond),
            io_write: self.io_write.rate().map(BytesPerSecond),
            net_rx: self.net_rx.rate().map(BytesPerSecond),
            net_tx: self.net_tx.rate().map(BytesPerSecond),
        }
    }
}

fn cores(time: &Rated<Nanos>) -> Reading<Cores> {
    time.rate().map(|nanos_a_second| Cores(nanos_a_second / 1e9))
}

/// The pods, containers and host processes of the last passes.
#[derive(Debug)]
pub struct Workload {
    reports: Vec<CgroupReport>,
    rates: HashMap<Arc<CgroupIdentity>, CgroupRates>,
    passes: u64,
    left_out: u32,
    took_us: u64,
    missed: u64,
    processes: Arc<[ProcessView]>,
    process_rates: HashMap<ProcessKey, Rated<Nanos>>,
    processes_total: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Workload {
            reports: Vec::new(),
            rates: HashMap::new(),
            passes: 0,
            left_out: 0,
            took_us: 0,
            missed: 0,
            processes: Arc::from([]),
            process_rates: HashMap::new(),
            processes_total: 0,
        }
    }
}

impl Workload {
    /// Takes in a whole pass over cgroups. A cgroup that is not in the pass is gone, and its rates are dropped.
    pub fn passed(&mut self, pass: CgroupPass) {
        let mut rates = HashMap::with_capacity(pass.reports.len());
        for report in &pass.reports {
            let mut known = self.rates.remove(&report.identity).unwrap_or_default();
            known.update(report);
            rates.insert(Arc::clone(&report.identity), known);
        }
        self.rates = rates;
        self.reports = pass.reports;
        self.left_out = pass.left_out;
        self.took_us = pass.took_us;
        self.missed += u64::from(pass.missed);
        self.passes += 1;
    }

    /// Takes in a whole pass over the host's processes.
    pub fn processes_passed(&mut self, mut pass: ProcessPass) {
        pass.processes.truncate(MAX_PROCESSES);
        let mut rates = HashMap::with_capacity(pass.processes.len());
        let mut views = Vec::with_capacity(pass.processes.len());
        for process in pass.processes {
            let mut known = self.process_rates.remove(&process.key).unwrap_or_default();
            let spent = Nanos(process.cpu_user.0.saturating_add(process.cpu_system.0));
            known.update(Reading::Measured(spent, process.at), |nanos| nanos.0);
            rates.insert(process.key, known);
            views.push(ProcessView { cpu: cores(&known), process });
        }
        let busy = |view: &ProcessView| view.cpu.get().map_or(0.0, |cores| cores.0);
        views.sort_by(|a, b| {
            busy(b)
                .total_cmp(&busy(a))
                .then(b.process.rss.0.cmp(&a.process.rss.0))
                .then(a.process.key.cmp(&b.process.key))
        });
        self.process_rates = rates;
        self.processes = views.into();
        self.processes_total = pass.total;
    }

    /// The cgroups with their rates, in the order of the pass.
    pub fn reports(&self) -> impl Iterator<Item = (&CgroupReport, ContainerRates)> {
        self.reports
            .iter()
            .map(|report| (report, self.rates.get(&report.identity).map(CgroupRates::rates).unwrap_or_default()))
    }

    /// Whether this cgroup was in the last pass. Before the first pass this is not known, so every cgroup counts as
    /// living. A container that may have been left out of the pass lives as long as its pod.
    #[must_use]
    pub fn living(&self, identity: &CgroupIdentity) -> bool {
        self.passes == 0 || self.rates.contains_key(identity) || (self.left_out > 0 && self.has_pod_of(identity))
    }

    /// Whether the cgroup of a container's pod was in the last pass.
    fn has_pod_of(&self, identity: &CgroupIdentity) -> bool {
        let CgroupKind::Container { pod: Some((uid, qos)), .. } = &identity.kind else { return false };
        let above = identity.path.rsplit_once('/').map(|(above, _)| Arc::from(above));
        let kind = CgroupKind::Pod { uid: uid.clone(), qos: *qos };
        above.is_some_and(|path| self.rates.contains_key(&CgroupIdentity { path, kind }))
    }

    /// The host's processes, busiest first.
    #[must_use]
    pub fn processes(&self) -> Arc<[ProcessView]> {
        Arc::clone(&self.processes)
    }

    /// Number of processes that are not in the list.
    #[must_use]
    pub fn processes_left_out(&self) -> u32 {
        self.processes_total.saturating_sub(u32::try_from(self.processes.len()).unwrap_or(u32::MAX))
    }

    /// Number of cgroups that are not in the pass.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// How long the last pass took, in microseconds.
    #[must_use]
    pub fn took_us(&self) -> u64 {
        self.took_us
    }

    /// Number of sampling deadlines missed since the agent's start.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::cgroup::{Qos, RuntimeKind};
    use model::id::{ContainerId, PodUid};

    fn uid() -> PodUid {
        PodUid::parse(&"1".repeat(32)).unwrap()
    }

    fn pod() -> CgroupIdentity {
        CgroupIdentity { path: "/kubepods/pod1".into(), kind: CgroupKind::Pod { uid: uid(), qos: Qos::Burstable } }
    }

    fn container(pod: Option<(PodUid, Qos)>) -> CgroupIdentity {
        let id = ContainerId::parse(&"a".repeat(64)).unwrap();
        let kind = CgroupKind::Container { pod, id, runtime: RuntimeKind::Unnamed };
        CgroupIdentity { path: "/kubepods/pod1/a".into(), kind }
    }

    /// Otherwise the processes of a pod would count as strangers as soon as another pod has very many containers.
    #[test]
    fn a_container_that_may_be_left_out_lives_as_long_as_its_pod() {
        let own = container(Some((uid(), Qos::Burstable)));
        for (has_pod, left_out, lives) in [(true, 0, false), (true, 1, true), (false, 1, false)] {
            let reports = has_pod.then(|| CgroupReport::unread(Arc::new(pod())));
            let mut workload = Workload::default();
            assert!(workload.living(&own), "there was no pass");
            workload.passed(CgroupPass { reports: reports.into_iter().collect(), left_out, ..CgroupPass::default() });
            assert_eq!(workload.living(&own), lives, "{has_pod} {left_out}");
            assert!(!workload.living(&container(None)));
        }
    }
}
