//! The node state: takes in observations one at a time and makes the node view.
//!
//! ```text
//!   GPU source, lists, samples, processes, XIDs ──▶ gpus     ──┐
//!   passes over cgroups and processes           ──▶ workload ──┼─(pods)─▶ view
//!   names, devices, pods of the API server      ──▶ names    ──┤
//!   errors of NVSwitches                        ──▶ switches ──┤
//!   memory that pods claim                      ──▶ over_uses ─┤
//!   pods of the API server, their watch         ──▶ api_pods ──┘
//! ```
//!
//! One task owns a [`NodeState`]. Each pass or list replaces the previous one. So nothing stays longer than one pass
//! after it was last reported, and nothing here grows with time.

use crate::api_pods::ApiPods;
use crate::attribute::{self, Occupancy};
use crate::gpus::{GpuState, GpuStates};
use crate::health::HealthPolicy;
use crate::memory_sums;
use crate::names::NameTable;
use crate::node_event::NodeEvent;
use crate::overuse::OverUses;
use crate::pods::{self, Holdings};
use crate::switches::Switches;
use crate::tally::Tallies;
use crate::workload::Workload;
use model::cgroup::NetworkSample;
use model::gpu::Xid;
use model::host::{HostFacts, HostSample};
use model::id::{GpuUuid, NodeName, PodUid};
use model::incident::{GpuCondition, KeptIncidents};
use model::infiniband::InfinibandPort;
use model::observation::{ErrorCounter, Fact, Observation, Sample, SourceEvent};
use model::plugin::PluginView;
use model::process::ProcessOwner;
use model::reading::Reading;
use model::time::{Monotonic, Now};
use model::unit::{Bytes, BytesPerSecond, Cores, Nanos};
use model::usage::Rated;
use model::view::{GpuView, HostRates, NodeView, PodView, SoleHolders};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state of one node.
#[derive(Debug)]
pub struct NodeState {
    name: NodeName,
    sequence: u64,
    gpus: GpuStates,
    switches: Switches,
    events_hang: bool,
    workload: Workload,
    names: NameTable,
    api_pods: ApiPods,
    over_uses: OverUses,
    tallies: Tallies,
    facts: HostFacts,
    host: HostSample,
    infiniband: Arc<[InfinibandPort]>,
    busy: Rated<Nanos>,
    disk: [Rated<Bytes>; 2],
    net: [Rated<Bytes>; 2],
    troubles: BTreeMap<ErrorCounter, u64>,
    plugin: Option<Arc<PluginView>>,
}

impl NodeState {
    /// A state that knows only the incidents that an earlier run of the agent has saved.
    #[must_use]
    pub fn new(name: NodeName, policy: HealthPolicy, kept: &[KeptIncidents], now: Monotonic) -> Self {
        NodeState {
            name,
            sequence: 0,
            gpus: GpuStates::restored(policy, kept, now),
            switches: Switches::default(),
            events_hang: false,
            workload: Workload::default(),
            names: NameTable::default(),
            api_pods: ApiPods::default(),
            over_uses: OverUses::default(),
            tallies: Tallies::default(),
            facts: HostFacts::default(),
            host: HostSample::default(),
            infiniband: Arc::default(),
            busy: Rated::default(),
            disk: [Rated::default(); 2],
            net: [Rated::default(); 2],
            troubles: BTreeMap::new(),
            plugin: None,
        }
    }

    /// Takes in one observation; returns the events worth a log line.
    pub fn apply(&mut self, observation: impl Into<Observation>, now: Now) -> Vec<NodeEvent> {
        match observation.into() {
            Observation::Fact(fact) => self.fact(fact, now.monotonic),
            Observation::Event(event) => self.event(event, now.monotonic),
            Observation::Sample(sample) => self.sample(sample, now.monotonic),
        }
    }

    fn fact(&mut self, fact: Fact, now: Monotonic) -> Vec<NodeEvent> {
        match fact {
            Fact::GpuSource(state) => return self.gpus.source(state, now),
            // The node task of `agent` handles these.
            Fact::GpuDriverReplaced | Fact::GpuEventsFail(_) => {}
            Fact::GpuDriverLoaded(load) => self.gpus.driver_loaded(load),
            Fact::GpuEventsHang(hang) => self.events_hang = hang,
            Fact::Gpus(gpus) => return self.gpus.listed(gpus),
            Fact::GpusUnidentified(gpus) => self.gpus.set_unidentified(gpus),
            Fact::GpusMissing(gpus) => return self.gpus.set_missing(gpus),
            Fact::HostFacts(facts) => self.facts = facts,
            Fact::Infiniband(ports) => self.infiniband = ports,
            Fact::Names { source, names } => self.names.replace(source, names),
            Fact::Pods(list) => {
                let before = self.api_pods.left_out();
                self.names.replace_pods(&list.pods);
                self.api_pods.replace(list);
                return left_out("pods of the API server", before, self.api_pods.left_out());
            }
            Fact::PodWatch(watch) => self.api_pods.set_watch(watch),
            Fact::Plugin(plugin) => self.plugin = Some(plugin),
            Fact::Devices(devices) => self.names.replace_devices(devices),
            Fact::MemoryClaims(memory_claims) => self.over_uses.set_memory_claims(memory_claims),
        }
        Vec::new()
    }

    fn event(&mut self, event: SourceEvent, now: Monotonic) -> Vec<NodeEvent> {
        match event {
            SourceEvent::GpuStalled(uuid) => self.gpus.stalled(&uuid, now),
            SourceEvent::Xid(xid) => self.gpus.xid(self.with_pod(xid), now),
            SourceEvent::GpuFellOff(pci_bus_id) => self.gpus.fell_off(&pci_bus_id, now),
            SourceEvent::XidDetails(xid) => self.gpus.xid_details(self.with_pod(xid), now),
            SourceEvent::Sxid(sxid) => self.switches.sxid(sxid),
            SourceEvent::Trouble(trouble) => self.count(trouble, 1),
            SourceEvent::Dropped(number) => self.count(ErrorCounter::QueueFull, number),
        }
    }

    fn count(&mut self, trouble: ErrorCounter, number: u64) -> Vec<NodeEvent> {
        let count = self.troubles.entry(trouble).or_default();
        *count = count.saturating_add(number);
        Vec::new()
    }

    fn sample(&mut self, sample: Sample, now: Monotonic) -> Vec<NodeEvent> {
        match sample {
            Sample::Gpu(uuid, sample) => return self.gpus.read(&uuid, *sample, now),
            Sample::GpuProcesses(report) => self.gpus.processes(report),
            Sample::Host(sample) => self.host_read(sample),
            Sample::Cgroups(pass) => {
                let before = self.workload.left_out();
                self.workload.passed(pass);
                self.forget_names();
                return left_out("pods and containers", before, self.workload.left_out());
            }
            Sample::Processes(pass) => {
                let before = self.workload.processes_left_out();
                self.workload.processes_passed(pass);
                return left_out("processes", before, self.workload.processes_left_out());
            }
        }
        Vec::new()
    }

    /// Adds the pod of the process that a driver error names: from the process lists of the GPUs, otherwise from the
    /// host's list.
    fn with_pod(&self, xid: Xid) -> Xid {
        let pod = xid.pid.and_then(|pid| {
            let on_gpus = self.gpus.list.iter().filter_map(|state| state.processes.value());
            let on_gpus = on_gpus.flat_map(|list| list.iter()).map(|process| (process.pid, &process.owner));
            let all = self.workload.processes();
            let of_machine = all.iter().map(|seen| (seen.process.key.pid, &seen.process.owner));
            let mut owners = on_gpus.chain(of_machine).filter(|(other, _)| *other == pid).map(|(_, owner)| owner);
            owners.find_map(|owner| match owner {
                ProcessOwner::Cgroup(cgroup) => cgroup.pod().cloned(),
                ProcessOwner::Host | ProcessOwner::Unknown => None,
            })
        });
        Xid { pod, ..xid }
    }

    /// The GPU incidents to save for the next run of the agent, ordered by UUID.
    #[must_use]
    pub fn kept(&self) -> Vec<KeptIncidents> {
        self.gpus.kept()
    }

    /// An operator declares this GPU, or all GPUs, repaired. Returns each GPU with cleared incidents and its remaining
    /// condition, and the events worth a log line.
    pub fn clear_incidents(&mut self, which: Option<&GpuUuid>) -> (Vec<(GpuUuid, GpuCondition)>, Vec<NodeEvent>) {
        self.gpus.clear(which)
    }

    /// Drops the names that the API server no longer reports and whose cgroups are gone.
    fn forget_names(&mut self) {
        if self.names.has_names_of_gone_pods() {
            let living = || self.workload.reports().map(|(report, _)| &report.identity);
            let pods: BTreeSet<_> = living().filter_map(|identity| identity.pod()).collect();
            let containers: BTreeSet<_> = living().filter_map(|identity| identity.container()).collect();
            self.names.keep_living(|uid| pods.contains(uid), |id| containers.contains(id));
        }
    }

    fn host_read(&mut self, sample: HostSample) {
        let busy = attribute::sum(sample.cpu_user, sample.cpu_system, |a, b| Nanos(a.0.saturating_add(b.0)));
        self.busy.update(busy, |nanos| nanos.0);
        self.disk[0].update(sample.disk_read, |bytes| bytes.0);
        self.disk[1].update(sample.disk_write, |bytes| bytes.0);
        let network = |pick: fn(&NetworkSample) -> Bytes| match &sample.network {
            Reading::Measured(network, at) => Reading::Measured(pick(network), *at),
            Reading::Absent(why) => Reading::Absent(*why),
        };
        self.net[0].update(network(|network| network.rx_bytes), |bytes| bytes.0);
        self.net[1].update(network(|network| network.tx_bytes), |bytes| bytes.0);
        self.host = sample;
    }

    /// Makes the node view. Each view has a larger sequence number than the previous view.
    pub fn view(&mut self, now: Now) -> NodeView {
        self.sequence += 1;
        let shares: Vec<Occupancy> = self.gpus.list.iter().map(|state| self.shares(state)).collect();
        let (mut pods, containers) = pods::show(&self.workload, &self.names, Holdings::of(&shares));
        pods::hold(&mut pods, &self.gpus.list, self.plugin.as_deref());
        let gpus = self.gpus.list.iter().zip(&shares);
        let policy = &self.gpus.policy;
        let gpus: Vec<GpuView> = gpus
            .map(|(state, shares)| {
                let sole_holders =
                    state.occupants.sole_holders(&state.gpu, &pods, |identity| self.workload.living(identity));
                GpuView { sole_holders, ..gpu_view(state, policy, shares, &pods) }
            })
            .collect();
        let over_uses = self.over_uses.judge(&pods, &gpus);
        self.tallies.pass(&gpus, &pods, self.plugin.as_deref(), now.monotonic);
        NodeView {
            sequence: self.sequence,
            now,
            name: self.name.clone(),
            gpu_source: self.gpus.source.clone(),
            driver: self.gpus.driver.clone(),
            gpu_events_hang: self.events_hang,
            gpus,
            gpus_unidentified: self.gpus.unidentified.clone(),
            gpus_missing: self.gpus.missing.clone(),
            switches: self.switches.view(),
            facts: self.facts.clone(),
            host: self.host.clone(),
            host_rates: self.host_rates(),
            infiniband: Arc::clone(&self.infiniband),
            pods,
            containers,
            memory_claims: self.over_uses.memory_claims(),
            pod_owners: self.api_pods.owners(),
            pod_labels: self.api_pods.labels(),
            tallies: self.tallies.sums(),
            tallies_left_out: self.tallies.left_out(),
            over_uses,
            processes: self.workload.processes(),
            processes_left_out: self.workload.processes_left_out(),
            pod_watch: self.api_pods.view(),
            plugin: self.plugin.clone(),
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

    fn shares(&self, state: &GpuState) -> Occupancy {
        let list = state.processes.value().map_or(&[][..], |list| list);
        attribute::shares(&state.gpu.uuid, list, |identity| self.workload.living(identity))
    }
}

fn gpu_view(state: &GpuState, policy: &HealthPolicy, shares: &Occupancy, pods: &[PodView]) -> GpuView {
    let mut holders: BTreeSet<PodUid> = shares.holders.keys().filter_map(|(holder, _)| holder.pod().cloned()).collect();
    let of_gpu = |device: &GpuUuid| state.devices().any(|own| own == device);
    let holds = |pod: &&PodView| pod.containers.iter().any(|container| container.holds.iter().any(of_gpu));
    holders.extend(pods.iter().filter(holds).map(|pod| pod.uid.clone()));
    let unknown = state.processes.absence();
    let counted = state.xids.iter().map(|(code, count)| (*code, *count));
    let list = state.processes.value().map_or(&[][..], |list| list);
    let sample = memory_sums::consistent(&state.gpu, &state.sample, list);
    GpuView {
        gpu: Arc::clone(&state.gpu),
        health: state.record.health(&state.sample),
        condition: state.record.condition(policy),
        processes: state.processes.clone(),
        processes_left_out: state.left_out,
        holders: holders.into_iter().collect(),
        sole_holders: SoleHolders::default(),
        strangers: shares.strangers + state.left_out,
        memory_used_now: memory_sums::newest(&state.sample, &sample, state.listed_memory, list),
        listed_memory: attribute::listed_memory(state.listed_memory, list, state.left_out),
        unattributed_memory: match unknown {
            Some(why) => Reading::Absent(why),
            None => attribute::unattributed_memory(state.gpu.memory_kind, &sample, shares),
        },
        unattributed_sm: match (unknown, state.processes.at()) {
            (Some(why), _) => Reading::Absent(why),
            (None, Some(at)) if shares.strangers == 0 => Reading::Measured(model::unit::Percent(0.0), at),
            _ => shares.strangers_sm,
        },
        last_xid: state.last_xid.clone(),
        xids: policy
            .fatal
            .iter()
            .map(|code| (*code, 0))
            .chain(counted)
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect(),
        sample,
        xid_count: state.xid_count,
        implausible: state.implausible.iter().map(|(reading, count)| (*reading, *count)).collect(),
        nvlink_rate: state.nvlink.rate().map(BytesPerSecond),
    }
}

/// An event when a bound is first exceeded, not while it stays exceeded.
fn left_out(what: &'static str, before: u32, after: u32) -> Vec<NodeEvent> {
    if before == 0 && after > 0 { vec![NodeEvent::LeftOut { what, count: after }] } else { Vec::new() }
}

#[cfg(test)]
mod tests;
