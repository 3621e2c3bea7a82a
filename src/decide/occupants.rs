//! Who is on a GPU as far as names are concerned: which pod may stand beside what is measured of all of it.
//!
//! ```text
//!   process list ──▶ occupants (without servers) ──┐
//!   kubelet's devices, claims (pods) ──────────────┼──▶ whose: the GPU's, or each GPU instance's only pod
//!   living cgroups ────────────────────────────────┘
//! ```
//!
//! A series changes its identity with its labels, and an alert begins anew with it, so a name goes only for a reason that lasts:
//! the list that was read last stands while there is none, a process that cannot be identified for one list keeps its owner (a new one
//! has none yet), and the servers that others are served by are nobody's competitors.
//!
//! What must never happen here: the name of one pod beside what another pod or a program of the host has a part in.

use model::cgroup::CgroupIdentity;
use model::gpu::Gpu;
use model::id::{ContainerId, GpuUuid, PodUid};
use model::process::{GpuProcess, GpuProcessKind, ProcessOwner};
use model::view::{PodView, SoleHolder, SoleHolders};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The first 15 bytes of `nvidia-cuda-mps-server`, which are all that the kernel keeps of a name.
const MPS_SERVER: &str = "nvidia-cuda-mps";
/// What draws the host's screen. Another graphics program of the host takes a part of the GPU like any program does.
const DISPLAY_SERVERS: [&str; 8] =
    ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "weston", "sway"];

/// The processes of one GPU that have a part in it. At most [`model::process::MAX_GPU_PROCESSES`].
#[derive(Debug, Default)]
pub struct Occupants {
    /// A list was read already.
    listed: bool,
    list: Vec<Occupant>,
    /// There were processes beyond the bound: whose they are is not known.
    left_out: bool,
}

#[derive(Debug)]
struct Occupant {
    pid: u32,
    mig: Option<GpuUuid>,
    who: Who,
}

#[derive(Clone, Debug)]
enum Who {
    /// A container's or pod's.
    In(Arc<CgroupIdentity>),
    /// That one's in the list before, and not identified in this one.
    Lately(Arc<CgroupIdentity>),
    /// Not identified in this list, and not in the list before.
    New,
    /// The host's, or not identified for longer.
    Other,
}

/// A pod's claim to a device, by one of its containers; `None` for somebody who is no pod.
type Claim<'a> = Option<(&'a PodUid, Option<&'a ContainerId>)>;

impl Occupants {
    /// A list was read.
    pub fn told(&mut self, processes: &[GpuProcess], left_out: u32) {
        let clients = processes.iter().any(|process| process.kind == GpuProcessKind::Mps);
        let before: BTreeMap<u32, &Who> = self.list.iter().map(|occupant| (occupant.pid, &occupant.who)).collect();
        let who = |process: &GpuProcess| match (&process.owner, before.get(&process.pid)) {
            (ProcessOwner::Cgroup(identity), _) => Who::In(Arc::clone(identity)),
            (ProcessOwner::Unknown, Some(Who::In(identity))) => Who::Lately(Arc::clone(identity)),
            (ProcessOwner::Unknown, None) if self.listed => Who::New,
            (ProcessOwner::Unknown | ProcessOwner::Host, _) => Who::Other,
        };
        let list = processes
            .iter()
            .filter(|process| !serves(process, clients))
            .map(|process| Occupant { pid: process.pid, mig: process.mig.clone(), who: who(process) })
            .collect();
        *self = Occupants { listed: true, list, left_out: left_out > 0 };
    }

    /// Who has the GPU, or each of its GPU instances, to itself. `living` says which cgroups are there now: what is gone has
    /// no part in anything.
    pub fn whose(&self, gpu: &Gpu, pods: &[PodView], living: impl Fn(&CgroupIdentity) -> bool) -> SoleHolders {
        if self.left_out {
            return SoleHolders::default();
        }
        if !gpu.divided() {
            let claims = self.claims(|_| true, &living).chain(held(pods, |device| *device == gpu.uuid));
            return SoleHolders { card: sole(claims, pods), instances: Vec::new() };
        }
        let instances = gpu.gpu_instances().filter_map(|inside| {
            let here = |device: &GpuUuid| inside.iter().any(|instance| instance.uuid == *device);
            let claims = self.claims(|mig| mig.is_some_and(here), &living).chain(held(pods, here));
            Some((inside.first()?.gpu_instance, sole(claims, pods)?))
        });
        SoleHolders { card: None, instances: instances.collect() }
    }

    fn claims<'a>(
        &'a self,
        here: impl Fn(Option<&GpuUuid>) -> bool + 'a,
        living: &'a impl Fn(&CgroupIdentity) -> bool,
    ) -> impl Iterator<Item = Claim<'a>> {
        let inside = self.list.iter().filter(move |occupant| here(occupant.mig.as_ref()));
        inside.filter_map(|occupant| match &occupant.who {
            Who::New => None,
            Who::Other => Some(None),
            Who::In(identity) | Who::Lately(identity) => {
                living(identity).then(|| identity.pod().map(|pod| (pod, identity.container())))
            }
        })
    }
}

/// Whether a process is there for others only. An MPS server may be a container's as well; whoever gives its own process that name
/// gains nothing by it unless others on this GPU are served by MPS.
fn serves(process: &GpuProcess, clients: bool) -> bool {
    let host = process.owner == ProcessOwner::Host;
    match process.kind {
        GpuProcessKind::Compute => &*process.command == MPS_SERVER && (host || clients),
        GpuProcessKind::Graphics => host && DISPLAY_SERVERS.contains(&&*process.command),
        GpuProcessKind::Mps => false,
    }
}

/// The containers that hold such a device, whether they use it or not.
fn held<'a>(pods: &'a [PodView], device: impl Fn(&GpuUuid) -> bool + Copy + 'a) -> impl Iterator<Item = Claim<'a>> {
    pods.iter().flat_map(move |pod| {
        let holding = pod.containers.iter().filter(move |container| container.holds.iter().any(device));
        holding.map(|container| Some((&pod.uid, Some(&container.id))))
    })
}

/// The only pod among the claims, if there is one and nobody else.
fn sole<'a>(claims: impl Iterator<Item = Claim<'a>>, pods: &[PodView]) -> Option<SoleHolder> {
    let mut only: Option<&PodUid> = None;
    let mut containers = BTreeSet::new();
    for claim in claims {
        let (pod, container) = claim?;
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
