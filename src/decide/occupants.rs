//! Finds the sole holder of a GPU: the pod that the metrics of the whole GPU name in their labels.
//!
//! ```text
//!   process list ──▶ occupants (without servers) ──┐
//!   kubelet's devices, claims (pods) ──────────────┼──▶ sole holder of the GPU, or of each GPU instance
//!   living cgroups ────────────────────────────────┘
//! ```
//!
//! If the pod label of a metric changes, a new series begins, and alerts on it start again. So a name disappears only
//! for a lasting reason. While no process list can be read, the last list counts. A process that cannot be identified
//! keeps its owner for one list; a process that is new in this list has no owner yet, and does not count. Servers that
//! work for other programs (MPS, display) do not count either.
//!
//! What must never happen here: values carry the name of one pod although another pod or a host program contributes to
//! them.

use model::cgroup::CgroupIdentity;
use model::gpu::Gpu;
use model::id::{ContainerId, GpuUuid, PodUid};
use model::nvidia::MPS_SERVER;
use model::process::{GpuProcess, GpuProcessKind, ProcessOwner};
use model::view::{PodView, SoleHolder, SoleHolders};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Programs that draw the host's screen. Any other graphics program of the host counts as a user of the GPU.
const DISPLAY_SERVERS: [&str; 8] =
    ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "weston", "sway"];

/// The processes of one GPU that count as its users. At most [`model::process::MAX_GPU_PROCESSES`].
#[derive(Debug, Default)]
pub struct Occupants {
    /// Whether a list was read already.
    listed: bool,
    list: Vec<Occupant>,
    /// Whether there were processes beyond the bound, whose owners are not known.
    left_out: bool,
}

#[derive(Debug)]
struct Occupant {
    pid: u32,
    mig: Option<GpuUuid>,
    owner: OccupantOwner,
}

#[derive(Clone, Debug)]
enum OccupantOwner {
    /// A process of this container or pod.
    Known(Arc<CgroupIdentity>),
    /// A process that is not identified in this list, and that belonged to this container or pod in the list before.
    KnownBefore(Arc<CgroupIdentity>),
    /// A process that is not identified in this list and was not in the list before.
    New,
    /// A host process, or a process that was not identified for longer than one list.
    NoPod,
}

/// A user or holder of a device: a pod and, if known, its container; `None` for a user that is not a pod.
type DeviceUser<'a> = Option<(&'a PodUid, Option<&'a ContainerId>)>;

impl Occupants {
    /// Takes in a process list.
    pub fn replace(&mut self, processes: &[GpuProcess], left_out: u32) {
        let clients = processes.iter().any(|process| process.kind == GpuProcessKind::Mps);
        let before: BTreeMap<u32, &OccupantOwner> =
            self.list.iter().map(|occupant| (occupant.pid, &occupant.owner)).collect();
        let owner = |process: &GpuProcess| match (&process.owner, before.get(&process.pid)) {
            (ProcessOwner::Cgroup(identity), _) => OccupantOwner::Known(Arc::clone(identity)),
            (ProcessOwner::Unknown, Some(OccupantOwner::Known(identity))) => {
                OccupantOwner::KnownBefore(Arc::clone(identity))
            }
            (ProcessOwner::Unknown, None) if self.listed => OccupantOwner::New,
            (ProcessOwner::Unknown | ProcessOwner::Host, _) => OccupantOwner::NoPod,
        };
        let list = processes
            .iter()
            .filter(|process| !serves(process, clients))
            .map(|process| Occupant { pid: process.pid, mig: process.mig.clone(), owner: owner(process) })
            .collect();
        *self = Occupants { listed: true, list, left_out: left_out > 0 };
    }

    /// The sole holder of the GPU, or of each of its GPU instances. `living` is whether a cgroup exists now: a cgroup
    /// that is gone does not count.
    pub fn sole_holders(&self, gpu: &Gpu, pods: &[PodView], living: impl Fn(&CgroupIdentity) -> bool) -> SoleHolders {
        if self.left_out {
            return SoleHolders::default();
        }
        if !gpu.divided() {
            let users = self.users(|_| true, &living).chain(held(pods, |device| *device == gpu.uuid));
            return SoleHolders { gpu: sole(users, pods), instances: Vec::new() };
        }
        let instances = gpu.gpu_instances().filter_map(|inside| {
            let here = |device: &GpuUuid| inside.iter().any(|instance| instance.uuid == *device);
            let users = self.users(|mig| mig.is_some_and(here), &living).chain(held(pods, here));
            Some((inside.first()?.gpu_instance, sole(users, pods)?))
        });
        SoleHolders { gpu: None, instances: instances.collect() }
    }

    fn users<'a>(
        &'a self,
        here: impl Fn(Option<&GpuUuid>) -> bool + 'a,
        living: &'a impl Fn(&CgroupIdentity) -> bool,
    ) -> impl Iterator<Item = DeviceUser<'a>> {
        let inside = self.list.iter().filter(move |occupant| here(occupant.mig.as_ref()));
        inside.filter_map(|occupant| match &occupant.owner {
            OccupantOwner::New => None,
            OccupantOwner::NoPod => Some(None),
            OccupantOwner::Known(identity) | OccupantOwner::KnownBefore(identity) => {
                living(identity).then(|| identity.pod().map(|pod| (pod, identity.container())))
            }
        })
    }
}

/// Whether a process only serves other programs. An MPS server may also run in a container. But a container can hide
/// its process behind that name only if MPS serves other processes on this GPU.
fn serves(process: &GpuProcess, clients: bool) -> bool {
    let host = process.owner == ProcessOwner::Host;
    match process.kind {
        GpuProcessKind::Compute => &*process.command == MPS_SERVER && (host || clients),
        GpuProcessKind::Graphics => host && DISPLAY_SERVERS.contains(&&*process.command),
        GpuProcessKind::Mps => false,
    }
}

/// The containers that hold a device which `device` accepts, whether or not they use it.
fn held<'a>(
    pods: &'a [PodView],
    device: impl Fn(&GpuUuid) -> bool + Copy + 'a,
) -> impl Iterator<Item = DeviceUser<'a>> {
    pods.iter().flat_map(move |pod| {
        let holding = pod.containers.iter().filter(move |container| container.holds.iter().any(device));
        holding.map(|container| Some((&pod.uid, Some(&container.id))))
    })
}

/// The sole holder: the pod that all users belong to.
fn sole<'a>(users: impl Iterator<Item = DeviceUser<'a>>, pods: &[PodView]) -> Option<SoleHolder> {
    let mut only: Option<&PodUid> = None;
    let mut containers = BTreeSet::new();
    for user in users {
        let (pod, container) = user?;
        if only.get_or_insert(pod) != &pod {
            return None;
        }
        containers.extend(container);
    }
    let pod = pods.iter().find(|pod| Some(&pod.uid) == only)?;
    let mut holding = pod.containers.iter().filter(|container| containers.contains(&container.id));
    let container = match (holding.next(), holding.next()) {
        (Some(only), None) => only.name.clone(),
        _ => None,
    };
    Some(SoleHolder { pod: pod.uid.clone(), container })
}

#[cfg(test)]
mod tests;
