//! The state of one node: takes observations in one at a time, shows what one believes.
//!
//! ```text
//!   GPU source, lists, samples, processes, XIDs ──▶ cards    ──┐
//!   passes over cgroups and processes           ──▶ workload ──┼─(pods)─▶ view
//!   names, devices                              ──▶ names    ──┘
//! ```
//!
//! One task owns a `Node`. A pass or list replaces the one before it, so nothing outlives its last mention by more than
//! one pass, and nothing here grows with time.

use crate::attribute::{self, Shares};
use crate::cards::{Card, Cards};
use crate::health;
use crate::names::{Names, device_is_of};
use crate::pods::{self, Holdings};
use crate::remark::Remark;
use crate::workload::Workload;
use model::host::{HostFacts, HostSample};
use model::id::{NodeName, PodUid};
use model::observation::{Observation, Trouble};
use model::reading::Reading;
use model::time::Now;
use model::unit::{Bytes, BytesPerSecond, Cores, Nanos};
use model::usage::Rated;
use model::view::{GpuView, HostRates, NodeView, PodView};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One node.
#[derive(Debug)]
pub struct Node {
    name: NodeName,
    sequence: u64,
    cards: Cards,
    events_hang: bool,
    workload: Workload,
    names: Names,
    facts: HostFacts,
    host: HostSample,
    busy: Rated<Nanos>,
    disk: [Rated<Bytes>; 2],
    net: [Rated<Bytes>; 2],
    troubles: BTreeMap<Trouble, u64>,
}

impl Node {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(name: NodeName) -> Self {
        Node {
            name,
            sequence: 0,
            cards: Cards::default(),
            events_hang: false,
            workload: Workload::default(),
            names: Names::default(),
            facts: HostFacts::default(),
            host: HostSample::default(),
            busy: Rated::default(),
            disk: [Rated::default(); 2],
            net: [Rated::default(); 2],
            troubles: BTreeMap::new(),
        }
    }

    /// Takes one observation in; returns what is worth a log line.
    pub fn apply(&mut self, observation: Observation, _now: Now) -> Vec<Remark> {
        match observation {
            Observation::GpuSource(state) => return self.cards.source(state),
            Observation::GpuEventsHang(hang) => self.events_hang = hang,
            Observation::Gpus(gpus) => return self.cards.listed(gpus),
            Observation::GpusUnidentified(gpus) => self.cards.nameless(gpus),
            Observation::GpuSample(uuid, sample) => return self.cards.read(&uuid, *sample),
            Observation::GpuProcesses(told) => self.cards.processes(told),
            Observation::Xid(xid) => return self.cards.xid(xid),
            Observation::HostFacts(facts) => self.facts = facts,
            Observation::Host(sample) => self.host_read(sample),
            Observation::Cgroups(pass) => {
                let before = self.workload.left_out();
                self.workload.passed(pass);
                return left_out("pods and containers", before, self.workload.left_out());
            }
            Observation::Processes(pass) => {
                let before = self.workload.processes_left_out();
                self.workload.processes_passed(pass);
                return left_out("processes", before, self.workload.processes_left_out());
            }
            Observation::Names { source, names } => self.names.told(source, names),
            Observation::Devices(devices) => self.names.devices_told(devices),
            Observation::Trouble(trouble) => *self.troubles.entry(trouble).or_default() += 1,
        }
        Vec::new()
    }

    fn host_read(&mut self, sample: HostSample) {
        let busy = attribute::sum(sample.cpu_user, sample.cpu_system, |a, b| Nanos(a.0.saturating_add(b.0)));
        self.busy.update(busy, |nanos| nanos.0);
        self.disk[0].update(sample.disk_read, |bytes| bytes.0);
        self.disk[1].update(sample.disk_write, |bytes| bytes.0);
        self.net[0].update(sample.net_rx, |bytes| bytes.0);
        self.net[1].update(sample.net_tx, |bytes| bytes.0);
        self.host = sample;
    }

    /// What one believes now. Each view has a larger sequence than the one before.
    pub fn view(&mut self, now: Now) -> NodeView {
        self.sequence += 1;
        let shares: Vec<Shares> = self.cards.cards.iter().map(|card| self.shares(card)).collect();
        let (pods, containers) = pods::show(&self.workload, &self.names, Holdings::of(&shares));
        let gpus = self.cards.cards.iter().zip(&shares).map(|(card, shares)| gpu_view(card, shares, &pods)).collect();
        NodeView {
            sequence: self.sequence,
            now,
            name: self.name.clone(),
            gpu_source: self.cards.source.clone(),
            gpu_events_hang: self.events_hang,
            gpus,
            gpus_unidentified: self.cards.unidentified.clone(),
            facts: self.facts.clone(),
            host: self.host.clone(),
            host_rates: self.host_rates(),
            pods,
            containers,
            processes: self.workload.processes(),
            processes_left_out: self.workload.processes_left_out(),
            cgroups_left_out: self.workload.left_out(),
            pass_us: self.workload.took_us(),
            deadlines_missed: self.workload.missed(),
            troubles: self.troubles.iter().map(|(trouble, count)| (*trouble, *count)).collect(),
        }
    }

    fn host_rates(&self) -> HostRates {
        HostRates {
            cpu: self.busy.rate().map(|nanos_a_second| Cores(nanos_a_second / 1e9)),
            disk_read: self.disk[0].rate().map(BytesPerSecond),
            disk_write: self.disk[1].rate().map(BytesPerSecond),
            net_rx: self.net[0].rate().map(BytesPerSecond),
            net_tx: self.net[1].rate().map(BytesPerSecond),
        }
    }

    fn shares(&self, card: &Card) -> Shares {
        let list = card.processes.value().map_or(&[][..], |list| list);
        attribute::shares(&card.gpu.uuid, list, |identity| self.workload.living(identity))
    }
}

fn gpu_view(card: &Card, shares: &Shares, pods: &[PodView]) -> GpuView {
    let mut holders: BTreeSet<PodUid> = shares.holders.keys().filter_map(|(holder, _)| holder.pod().cloned()).collect();
    let uuid = card.gpu.uuid.as_str();
    let given = |pod: &&PodView| pod.containers.iter().any(|c| c.devices.iter().any(|id| device_is_of(id, uuid)));
    holders.extend(pods.iter().filter(given).map(|pod| pod.uid.clone()));
    let unknown = card.processes.absence();
    GpuView {
        gpu: Arc::clone(&card.gpu),
        sample: Arc::clone(&card.sample),
        health: health::judge(&card.sample),
        processes: card.processes.clone(),
        processes_left_out: card.left_out,
        holders: holders.into_iter().collect(),
        strangers: shares.strangers + card.left_out,
        unattributed_memory: match unknown {
            Some(why) => Reading::Absent(why),
            None => attribute::unattributed_memory(&card.sample, shares),
        },
        unattributed_sm: match (unknown, card.processes.at()) {
            (Some(why), _) => Reading::Absent(why),
            (None, Some(at)) if shares.strangers == 0 => Reading::Measured(model::unit::Percent(0.0), at),
            _ => shares.strangers_sm,
        },
        last_xid: card.last_xid.clone(),
        xids: card.xids.clone(),
    }
}

/// Said when the bound begins to bite, not while it does.
fn left_out(what: &'static str, before: u32, after: u32) -> Vec<Remark> {
    if before == 0 && after > 0 { vec![Remark::LeftOut { what, count: after }] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::cgroup::{CgroupIdentity, CgroupKind, CgroupReport, ContainerName, NameSource, Qos, Runtime};
    use model::gpu::{Gpu, GpuSample};
    use model::id::{ContainerId, GpuUuid, PodRef};
    use model::observation::{CgroupPass, ContainerDevices};
    use model::process::{GpuProcess, GpuProcessKind, GpuProcesses, Owner, ProcessPass};
    use model::reading::Absence;
    use model::time::{Monotonic, WallTime};
    use model::unit::Percent;
    use proptest::prelude::*;

    fn now(seconds: u64) -> Now {
        Now {
            monotonic: Monotonic(seconds * 1_000_000_000),
            wall: WallTime(1_700_000_000_000_000 + seconds * 1_000_000),
        }
    }

    fn uid(number: u8) -> PodUid {
        PodUid::parse(&format!("{number:032x}")).unwrap()
    }

    fn container_id(number: u8) -> ContainerId {
        ContainerId::parse(&format!("{number:064x}")).unwrap()
    }

    fn pod_cgroup(pod: u8) -> Arc<CgroupIdentity> {
        let kind = CgroupKind::Pod { uid: uid(pod), qos: Qos::Burstable };
        Arc::new(CgroupIdentity { path: format!("/kubepods/burstable/pod{pod}").into(), kind })
    }

    fn cgroup(pod: u8, container: u8) -> Arc<CgroupIdentity> {
        let pod_of = (pod > 0).then(|| (uid(pod), Qos::Burstable));
        let kind = CgroupKind::Container { pod: pod_of, id: container_id(container), runtime: Runtime::Containerd };
        Arc::new(CgroupIdentity { path: format!("/kubepods/burstable/pod{pod}/{container}").into(), kind })
    }

    fn report(identity: Arc<CgroupIdentity>, cpu_seconds: u64, at: u64) -> CgroupReport {
        let mut report = CgroupReport::unread(identity);
        report.sample.cpu_total = Reading::Measured(Nanos(cpu_seconds * 1_000_000_000), now(at).monotonic);
        report
    }

    fn pass(reports: Vec<CgroupReport>) -> Observation {
        Observation::Cgroups(CgroupPass { reports, ..CgroupPass::default() })
    }

    fn gpu(number: u32) -> Gpu {
        Gpu {
            uuid: GpuUuid::parse(&format!("GPU-{number}")).unwrap(),
            index: number,
            minor: Reading::NOT_YET,
            model: "A100".into(),
            pci_bus_id: Reading::NOT_YET,
            numa_node: Reading::NOT_YET,
            architecture: Reading::NOT_YET,
            memory_total: Reading::NOT_YET,
            power_limit: Reading::NOT_YET,
            mig_mode: Reading::NOT_YET,
            mig: vec![],
            links: vec![],
            nvlinks_active: Reading::NOT_YET,
        }
    }

    fn on_gpu(owner: Owner, mib: u64) -> GpuProcess {
        GpuProcess {
            pid: 4,
            key: None,
            command: "train".into(),
            owner,
            kind: GpuProcessKind::Compute,
            mig: None,
            memory_used: Reading::Measured(Bytes(mib << 20), now(1).monotonic),
            sm: Reading::Measured(Percent(25.0), now(1).monotonic),
            encoder: Reading::NOT_YET,
            decoder: Reading::NOT_YET,
        }
    }

    fn processes(list: Vec<GpuProcess>) -> Observation {
        let gpu = gpu(0).uuid;
        Observation::GpuProcesses(GpuProcesses {
            gpu,
            list: Reading::Measured(list, now(1).monotonic),
            stamp: None,
            left_out: 0,
        })
    }

    fn name(container: u8, called: Option<&str>) -> ContainerName {
        ContainerName {
            id: container_id(container),
            uid: None,
            pod: PodRef { namespace: "ml".into(), name: "train-0".into() },
            container: called.map(Into::into),
            image: None,
        }
    }

    fn node(observations: Vec<Observation>) -> Node {
        let mut node = Node::new(NodeName::parse("n1").unwrap());
        for observation in observations {
            node.apply(observation, now(1));
        }
        node
    }

    #[test]
    fn containers_find_their_pod_their_names_and_their_rates() {
        let mut node = node(vec![
            Observation::Names { source: NameSource::Cri, names: vec![name(1, None), name(2, Some("main"))] },
            pass(vec![report(cgroup(1, 1), 0, 1), report(cgroup(1, 2), 10, 1), report(pod_cgroup(1), 10, 1)]),
            pass(vec![report(cgroup(1, 1), 0, 3), report(cgroup(1, 2), 13, 3), report(pod_cgroup(1), 13, 3)]),
        ]);
        let view = node.view(now(3));
        let [pod] = &view.pods[..] else { panic!("one pod: {:?}", view.pods) };
        assert_eq!(pod.name.as_ref().unwrap().to_string(), "ml/train-0");
        assert_eq!(pod.rates.cpu.get(), Some(Cores(1.5)));
        let called: Vec<_> = pod.containers.iter().map(|c| (c.name.as_deref(), c.sandbox)).collect();
        assert_eq!(called, [(Some("main"), false), (None, true)]);
        assert_eq!(pod.containers[0].rates.cpu.get(), Some(Cores(1.5)));
    }

    /// Promise 8 in docs/specification.md.
    #[test]
    fn a_pod_that_is_not_in_the_next_pass_is_gone_from_everything() {
        let mut node = node(vec![
            Observation::Gpus(vec![gpu(0)]),
            pass(vec![report(pod_cgroup(1), 1, 1), report(cgroup(1, 2), 1, 1)]),
            processes(vec![on_gpu(Owner::Cgroup(cgroup(1, 2)), 100)]),
        ]);
        let view = node.view(now(1));
        assert_eq!(view.pods[0].gpus[0].memory_used.get(), Some(Bytes(100 << 20)));
        assert_eq!(view.gpus[0].sole_holder(), Some(&uid(1)));
        node.apply(pass(vec![]), now(2));
        let view = node.view(now(2));
        assert!(view.pods.is_empty());
        assert_eq!((view.gpus[0].holders.len(), view.gpus[0].strangers), (0, 1));
    }

    #[test]
    fn a_card_with_a_stranger_has_no_sole_holder() {
        let mut node = node(vec![
            Observation::Gpus(vec![gpu(0)]),
            pass(vec![report(cgroup(1, 2), 1, 1)]),
            processes(vec![on_gpu(Owner::Cgroup(cgroup(1, 2)), 100), on_gpu(Owner::Host, 10)]),
        ]);
        let view = node.view(now(1));
        assert_eq!(view.gpus[0].holders, [uid(1)]);
        assert_eq!(view.gpus[0].sole_holder(), None);
    }

    #[test]
    fn a_pod_that_kubelet_gave_a_card_holds_it_before_it_computes() {
        let devices = ContainerDevices {
            namespace: "ml".into(),
            pod: "train-0".into(),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            ids: vec!["GPU-0".into()],
        };
        let mut node = node(vec![
            Observation::Gpus(vec![gpu(0), gpu(1)]),
            Observation::Names { source: NameSource::LogLinks, names: vec![name(2, Some("main"))] },
            Observation::Devices(vec![devices]),
            pass(vec![report(cgroup(1, 2), 1, 1)]),
        ]);
        let view = node.view(now(1));
        assert_eq!(view.gpus[0].holders, [uid(1)]);
        assert_eq!(view.gpus[1].holders, []);
        assert_eq!(view.pods[0].containers[0].devices, ["GPU-0".into()]);
    }

    #[test]
    fn containers_without_a_pod_stand_by_themselves() {
        let mut node = node(vec![pass(vec![report(cgroup(0, 7), 1, 1)])]);
        let view = node.view(now(1));
        assert_eq!((view.pods.len(), view.containers.len()), (0, 1));
    }

    fn any_observation() -> impl Strategy<Value = Observation> {
        let cgroups = prop::collection::vec((0u8..4, 0u8..6, 0u64..9), 0..12).prop_map(|list| {
            pass(list.into_iter().map(|(pod, container, cpu)| report(cgroup(pod, container), cpu, cpu)).collect())
        });
        let on_gpus = prop::collection::vec((0u8..4, 0u8..6, 0u64..99), 0..12).prop_map(|list| {
            processes(list.into_iter().map(|(pod, id, mib)| on_gpu(Owner::Cgroup(cgroup(pod, id)), mib)).collect())
        });
        prop_oneof![
            cgroups,
            on_gpus,
            prop::collection::vec(0u32..3, 0..4)
                .prop_map(|list| Observation::Gpus(list.into_iter().map(gpu).collect())),
            Just(Observation::Names { source: NameSource::Cri, names: vec![name(1, Some("a")), name(1, None)] }),
            Just(Observation::Processes(ProcessPass::default())),
            Just(Observation::GpuSample(gpu(0).uuid, Box::new(GpuSample::absent(Absence::GpuLost)))),
            Just(Observation::Trouble(Trouble::QueueFull)),
        ]
    }

    proptest! {
        /// Against a naive model: the pods of the view are those of the last pass (and, before any pass, of the GPU list),
        /// each GPU is there once, and every pod's share of a card is a holder of that card.
        #[test]
        fn the_view_agrees_with_the_last_word_of_each_source(events in prop::collection::vec(any_observation(), 0..20)) {
            let mut node = node(vec![]);
            let mut last_pass: Option<BTreeSet<PodUid>> = None;
            for event in events {
                if let Observation::Cgroups(pass) = &event {
                    last_pass = Some(pass.reports.iter().filter_map(|r| r.identity.pod().cloned()).collect());
                }
                node.apply(event, now(1));
                let view = node.view(now(1));
                let pods: BTreeSet<PodUid> = view.pods.iter().map(|pod| pod.uid.clone()).collect();
                prop_assert_eq!(pods.len(), view.pods.len());
                if let Some(expect) = &last_pass {
                    prop_assert_eq!(&pods, expect);
                }
                let mut uuids: Vec<_> = view.gpus.iter().map(|gpu| &gpu.gpu.uuid).collect();
                uuids.dedup();
                prop_assert_eq!(uuids.len(), view.gpus.len());
                for pod in &view.pods {
                    for share in &pod.gpus {
                        let card = view.gpus.iter().find(|gpu| gpu.gpu.uuid == share.gpu);
                        prop_assert!(card.is_some_and(|card| card.holders.contains(&pod.uid)));
                    }
                }
            }
        }
    }
}
