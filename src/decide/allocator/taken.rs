//! Devices that another owner holds, so that they get no new containers until its pod has ended.
//!
//! ```text
//!   entries of other plugins or resources, in the ─┐
//!   kubelet's checkpoint or PodResources           ├─▶ taken   device ▶ pod
//!   claims on a GPU that is divided into instances ─┤
//!   claims on a device of which there is no record ─┘  and entries that name an unknown one, or none: every device
//! ```
//!
//! A pod with a claim that names only devices of this node holds the devices of its claim, whichever plugin gave them: the
//! ledger counts it, and other pods may share the devices.
//!
//! What must never happen here: a device that another plugin gave to a live pod counts as free.

use super::device::SharedDevice;
use super::state::NodeAllocator;
use model::gpu_id;
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The devices that a live pod got from another plugin, or under a resource other than the agent's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherHolding {
    /// The pod, by the UID that the kubelet uses.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: PodRef,
    /// Whether the kubelet counts the devices under the agent's resource. Then they are GPUs of the node, whatever
    /// their names.
    pub own_resource: bool,
    /// The names of the devices, as the other plugin spells them.
    pub devices: Vec<Arc<str>>,
    /// The minor numbers of the GPUs whose device nodes the pod got.
    pub nodes: Vec<u32>,
}

/// The holder of each taken device.
pub(super) type TakenDevices = BTreeMap<GpuUuid, (PodUid, PodRef)>;

/// The devices of this node that another plugin means by a name.
enum NamedDevice {
    /// These devices.
    Offered(Vec<GpuUuid>),
    /// A device that the node has or had and does not offer.
    Withdrawn,
    /// A device of which there is no record: it may be any device of the node.
    Unknown,
}

impl NodeAllocator {
    /// Sets the devices that live pods got from other plugins, or under other resources. Returns whether the kubelet's
    /// list of slots changes.
    pub fn set_other_holdings(&mut self, holdings: Vec<OtherHolding>) -> bool {
        if holdings == self.others {
            return false;
        }
        let before = self.list();
        self.others = holdings;
        self.count_as_started();
        self.find_taken();
        self.list() != before
    }

    /// Whether this agent, or an earlier process of it, may have given these ids to a container: there is a ticket for them,
    /// or a file of limits of the container. Ids of HAMi's plugin look the same, but have neither a ticket nor such a file.
    #[must_use]
    pub fn may_have_given(&self, holder: &ContainerKey, ids: &[Arc<str>]) -> bool {
        self.claims.in_limits_files.contains_key(holder)
            || self.held.get(holder).is_some_and(|row| row.ticket.is_some())
            || self.tickets.may_be_of(holder, ids)
    }

    /// The devices that another owner holds, with the pod that holds each.
    pub fn taken(&self) -> impl Iterator<Item = (&GpuUuid, &PodRef)> {
        self.taken.iter().map(|(device, (_, pod))| (device, pod))
    }

    /// Whether another owner than this pod holds the device.
    pub(super) fn taken_from(&self, uid: &PodUid, device: &GpuUuid) -> Option<&PodRef> {
        self.taken.get(device).filter(|(holder, _)| holder != uid).map(|(_, pod)| pod)
    }

    /// A pod with a claim that got its devices from another plugin has them, even if none of its containers runs yet.
    pub(super) fn count_as_started(&mut self) {
        let own = self.others.iter().filter(|holding| holding.own_resource);
        let pods = own.filter_map(|holding| self.pods.by_uid.get(&holding.uid)).filter(|gpu_pod| !gpu_pod.finished);
        let pods: Vec<GpuPod> = pods.filter(|gpu_pod| self.ledger.get(&gpu_pod.uid).is_some()).cloned().collect();
        for gpu_pod in pods {
            if self.pods.started.insert(gpu_pod.uid.clone()) {
                self.keep_started(&gpu_pod);
                self.enter(&gpu_pod.uid);
            }
        }
    }

    /// Finds the taken devices again. Called after a change of the devices, the pods or the other holdings.
    pub(super) fn find_taken(&mut self) {
        let mut taken = TakenDevices::new();
        let mut take = |device: GpuUuid, uid: &PodUid, pod: &PodRef| {
            taken.entry(device).or_insert_with(|| (uid.clone(), pod.clone()));
        };
        for holding in &self.others {
            self.devices_of(holding).into_iter().for_each(|device| take(device, &holding.uid, &holding.pod));
        }
        for (uid, device) in self.claims_elsewhere() {
            let Some(pod) = self.pods.by_uid.get(uid).map(|gpu_pod| &gpu_pod.pod) else { continue };
            let mut instances = self.instances_of(device).peekable();
            if instances.peek().is_some() {
                instances.for_each(|instance| take(instance.clone(), uid, pod));
            } else if !self.is_withdrawn(device) {
                self.devices.keys().for_each(|device| take(device.clone(), uid, pod));
            }
        }
        self.taken = taken;
    }

    /// The devices that this pod holds and does not claim.
    fn devices_of(&self, OtherHolding { uid, own_resource, devices, nodes, .. }: &OtherHolding) -> BTreeSet<GpuUuid> {
        let mut held: BTreeSet<GpuUuid> = BTreeSet::new();
        let mut unknown = devices.is_empty();
        for name in devices {
            match self.meaning(name) {
                NamedDevice::Offered(devices) => held.extend(devices),
                NamedDevice::Withdrawn => {}
                NamedDevice::Unknown => unknown = true,
            }
        }
        // Device nodes show the GPUs whatever their names are: each offered GPU has a device node.
        if unknown && nodes.is_empty() && *own_resource && !self.names_known_devices(uid) {
            return self.devices.keys().cloned().collect();
        }
        // A container with a MIG instance also has the device node of the whole GPU.
        let parent = |device: &GpuUuid| self.devices.get(device).and_then(|device| device.parent.as_ref());
        let divided: BTreeSet<&GpuUuid> = held.iter().filter_map(parent).collect();
        let has_node = |device: &&SharedDevice| {
            device.minor.is_some_and(|minor| nodes.contains(&minor))
                && device.parent.as_ref().is_none_or(|gpu| !divided.contains(gpu))
        };
        held.extend(self.devices.values().filter(has_node).map(|device| device.device.clone()));
        let claimed = self.ledger.get(uid).into_iter().flat_map(|claim| claim.claim.shares());
        for share in claimed {
            held.remove(&share.device);
        }
        held
    }

    /// The devices in the claims of started pods that are not offered.
    fn claims_elsewhere(&self) -> impl Iterator<Item = (&PodUid, &GpuUuid)> {
        let elsewhere = |device: &&GpuUuid| !self.devices.contains_key(*device);
        self.ledger.started().flat_map(move |(uid, claim)| {
            let devices: BTreeSet<&GpuUuid> =
                claim.claim.shares().map(|share| &share.device).filter(elsewhere).collect();
            devices.into_iter().map(move |device| (uid, device))
        })
    }

    /// Whether the pod has a claim that names only devices that the node offers or has withdrawn.
    fn names_known_devices(&self, uid: &PodUid) -> bool {
        let known = |device: &GpuUuid| self.devices.contains_key(device) || self.is_withdrawn(device);
        self.ledger.get(uid).is_some_and(|claim| claim.claim.shares().all(|share| known(&share.device)))
    }

    /// The devices that another plugin means by this name.
    fn meaning(&self, name: &str) -> NamedDevice {
        let meanings = gpu_id::meanings(name);
        for device in &meanings {
            if self.devices.contains_key(device) {
                return NamedDevice::Offered(vec![device.clone()]);
            }
            let instances: Vec<GpuUuid> = self.instances_of(device).cloned().collect();
            if !instances.is_empty() {
                return NamedDevice::Offered(instances);
            }
        }
        let is_withdrawn = |device: &GpuUuid| gpu_id::is_of_gpu(device.as_str()) && self.is_withdrawn(device);
        if meanings.iter().any(is_withdrawn) { NamedDevice::Withdrawn } else { NamedDevice::Unknown }
    }
}

#[cfg(test)]
mod tests;
