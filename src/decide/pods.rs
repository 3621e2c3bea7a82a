//! Builds the pods and containers of a view: the last sample of each, with the names and the GPU use that are known
//! then.
//!
//! ```text
//!   workload   reports, rates ──┐
//!   names      names, devices ──┼──▶ pods with their containers; containers without a pod
//!   Holdings   use of the GPUs ─┘
//! ```

use crate::attribute::{self, Occupancy, PossibleHolder};
use crate::gpus::GpuState;
use crate::names::{NameTable, device_is_of};
use crate::workload::Workload;
use model::cgroup::{CgroupKind, CgroupReport, CgroupSample};
use model::id::{ContainerId, GpuUuid, PodRef, PodUid};
use model::plugin::PluginView;
use model::reading::{Absence, Reading};
use model::view::{ContainerRates, ContainerView, GpuUse, PodView};
use std::collections::BTreeMap;
use std::sync::Arc;

/// GPU use by container and by pod, collected over all GPUs.
#[derive(Debug, Default)]
pub struct Holdings {
    containers: BTreeMap<ContainerId, Vec<GpuUse>>,
    pods: BTreeMap<PodUid, Vec<GpuUse>>,
}

impl Holdings {
    /// Collects the use of each GPU.
    #[must_use]
    pub fn of(gpus: &[Occupancy]) -> Self {
        let mut holdings = Holdings::default();
        for ((holder, _), share) in gpus.iter().flat_map(|gpu| &gpu.holders) {
            if let Some(pod) = holder.pod() {
                holdings.pods.entry(pod.clone()).or_default().push(share.clone());
            }
            if let PossibleHolder::PodContainer(_, container) | PossibleHolder::Container(container) = holder {
                holdings.containers.entry(container.clone()).or_default().push(share.clone());
            }
        }
        holdings
    }
}

/// The pods ordered by name, pods without a name last; and the containers that belong to no pod.
#[must_use]
pub fn show(workload: &Workload, names: &NameTable, mut holdings: Holdings) -> (Vec<PodView>, Vec<ContainerView>) {
    let mut pods: BTreeMap<PodUid, PodView> = BTreeMap::new();
    let mut alone = Vec::new();
    for (report, rates) in workload.reports() {
        match &report.identity.kind {
            CgroupKind::Pod { uid, .. } => {
                fill(pods.entry(uid.clone()).or_insert_with(|| bare(uid)), report, rates);
            }
            CgroupKind::Container { pod, id, .. } => {
                let shares = holdings.containers.remove(id).unwrap_or_default();
                let container = container(id, names, report, rates, attribute::merge(shares));
                match pod {
                    None => alone.push(container),
                    Some((uid, qos)) => {
                        let pod = pods.entry(uid.clone()).or_insert_with(|| bare(uid));
                        pod.qos = Some(*qos);
                        if pod.name.is_none() {
                            let by_container = || names.of(id).map(|name| &name.pod);
                            pod.name = names.pod(uid).or_else(by_container).cloned();
                        }
                        pod.containers.push(container);
                    }
                }
            }
        }
    }
    for (uid, shares) in holdings.pods {
        pods.entry(uid.clone()).or_insert_with(|| bare(&uid)).gpus = attribute::merge(shares);
    }
    let mut pods: Vec<PodView> = pods.into_values().map(|pod| finish(pod, names)).collect();
    pods.sort_by(|a, b| (a.name.is_none(), &a.name, &a.uid).cmp(&(b.name.is_none(), &b.name, &b.uid)));
    alone.sort_by(|a, b| a.id.cmp(&b.id));
    (pods, alone)
}

/// A pod with nothing known but its UID.
pub(crate) fn bare(uid: &PodUid) -> PodView {
    PodView {
        uid: uid.clone(),
        name: None::<PodRef>,
        qos: None,
        cgroup: None,
        sample: CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::Absent(Absence::NotYet),
        containers: Vec::new(),
        gpus: Vec::new(),
    }
}

fn fill(pod: &mut PodView, report: &CgroupReport, rates: ContainerRates) {
    pod.qos = report.identity.qos();
    pod.cgroup = Some(Arc::clone(&report.identity));
    pod.sample = report.sample.clone();
    pod.rates = rates;
    pod.network = report.network.clone();
}

fn container(
    id: &ContainerId,
    names: &NameTable,
    report: &CgroupReport,
    rates: ContainerRates,
    gpus: Vec<GpuUse>,
) -> ContainerView {
    let named = names.of(id);
    ContainerView {
        id: id.clone(),
        cgroup: Arc::clone(&report.identity),
        name: named.and_then(|name| name.container.clone()),
        sandbox: named.is_some_and(|name| name.container.is_none()),
        image: names.image(id),
        sample: report.sample.clone(),
        rates,
        network: report.network.clone(),
        gpus,
        devices: Vec::new(),
        holds: Vec::new(),
    }
}

/// Sets the GPUs and MIG instances that each container holds. If it has a claim, these are the devices of the claim,
/// whatever ids the kubelet counts for it.
pub fn hold(pods: &mut [PodView], gpus: &[GpuState], plugin: Option<&PluginView>) {
    let devices: Vec<&GpuUuid> = gpus.iter().flat_map(GpuState::devices).collect();
    for pod in pods {
        for container in &mut pod.containers {
            let claim = plugin.zip(container.name.as_ref()).and_then(|(plugin, name)| plugin.claim(&pod.uid, name));
            container.holds = match claim {
                Some(claim) => claim.device_shares.iter().map(|share| share.device.clone()).collect(),
                None => {
                    let counted =
                        |device: &&&GpuUuid| container.devices.iter().any(|id| device_is_of(id, device.as_str()));
                    devices.iter().filter(counted).map(|device| (*device).clone()).collect()
                }
            };
        }
    }
}

/// Orders the containers of a pod, and sets the devices of each from the kubelet's list, which has the pod's name as
/// its key.
fn finish(mut pod: PodView, names: &NameTable) -> PodView {
    if pod.name.is_none() {
        pod.name = names.pod(&pod.uid).cloned();
    }
    if let Some(name) = &pod.name {
        for container in &mut pod.containers {
            if let Some(called) = &container.name {
                container.devices = names.devices(name, called);
            }
        }
    }
    pod.containers.sort_by(|a, b| (a.name.is_none(), &a.name, &a.id).cmp(&(b.name.is_none(), &b.name, &b.id)));
    pod
}
