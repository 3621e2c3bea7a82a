//! Judges the start of a container: finds the container that holds the ids, and the device shares that it gets.

use super::effective_claim::EffectiveClaim;
use super::refusal::{Refusal, ScarceResource};
use super::state::{NodeAllocator, WithoutClaim};
use crate::ledger::demand_of;
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid, Ticket};
use model::limits::{ContainerLimits, DeviceLimits};
use model::request::ContainerRequest;
use model::slot::Slot;
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One container with all that it gets. The kubelet's call does not show which of several containers with the same ids
/// starts, so all of these containers are answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundContainer {
    /// The ticket to fill.
    pub ticket: Ticket,
    /// The container and its devices, in the order of the claim.
    pub limits: ContainerLimits,
    /// Whether the kubelet's slots are on other devices than the claim names.
    pub differs: bool,
    /// Whether an earlier release gave the container its devices in the answer to `Allocate`.
    pub early: bool,
}

/// The decision on a start.
#[derive(Clone, Debug, PartialEq)]
pub enum StartVerdict {
    /// The agent fills these tickets; then the container may start.
    Fill {
        /// The containers, in the order of the kubelet's checkpoint.
        bound: Vec<BoundContainer>,
        /// Whether the agent must write the claim on the pod: no scheduler made a claim, so the allocator made it, and
        /// it is complete now.
        shared: bool,
    },
    /// The ids are ids of a plugin that ran on this node before. The container gets that plugin's answer, and the agent
    /// does nothing. If they look like this agent's ids, the answer in the checkpoint shows that they are not.
    Foreign,
    /// Not decided yet: the agent judges again when the checkpoint or the pods have changed.
    Wait(WaitReason),
    /// The container must not start.
    Refuse {
        /// The UID of the pod.
        uid: PodUid,
        /// Namespace and name of the pod.
        pod: PodRef,
        /// The container. If several containers share the ids and the reason concerns the pod, the names of all of
        /// them.
        container: Arc<str>,
        /// The reason.
        why: Refusal,
    },
}

/// The information that a start waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The kubelet's checkpoint does not name the ids yet.
    Checkpoint,
    /// The agent's pod watch has not shown the pod yet.
    Pod,
}

impl WaitReason {
    /// The code for metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            WaitReason::Checkpoint => "Checkpoint",
            WaitReason::Pod => "Pod",
        }
    }
}

impl NodeAllocator {
    /// Judges a start of the container that holds `ids`, by the kubelet's checkpoint as it is now. `None` means that
    /// the checkpoint cannot be read. It does not mean an empty checkpoint: the entries that were read before stay.
    pub fn start(&mut self, ids: &[Arc<str>], checkpoint: Option<&[CheckpointEntry]>) -> StartVerdict {
        let Some(checkpoint) = checkpoint else { return StartVerdict::Wait(WaitReason::Checkpoint) };
        self.set_checkpoint(checkpoint);
        self.judge(ids, checkpoint)
    }

    /// Judges a start by entries that need not be the whole checkpoint.
    pub(super) fn judge(&mut self, ids: &[Arc<str>], checkpoint: &[CheckpointEntry]) -> StartVerdict {
        let id_set: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
        // For most rows the first comparison decides.
        let its = |row: &&CheckpointEntry| {
            row.ids.iter().all(|id| id_set.contains(&**id))
                && id_set.iter().all(|id| row.ids.iter().any(|own| **own == **id))
        };
        let rows: Vec<&CheckpointEntry> = checkpoint.iter().filter(its).collect();
        let Some(uid) = self.pod_of(&rows) else { return StartVerdict::Wait(WaitReason::Checkpoint) };
        let rows: Vec<&CheckpointEntry> = rows.into_iter().filter(|row| row.holder.pod == uid).collect();
        if rows.iter().all(|row| row.is_foreign()) {
            return StartVerdict::Foreign;
        }
        let Some(gpu_pod) = self.pods.by_uid.get(&uid).cloned() else { return StartVerdict::Wait(WaitReason::Pod) };
        let refuse_of = |container: &Arc<str>, why| StartVerdict::Refuse {
            uid: uid.clone(),
            pod: gpu_pod.pod.clone(),
            container: container.clone(),
            why,
        };
        let refuse = |why| {
            let names: Vec<&str> = rows.iter().map(|row| &*row.holder.container).collect();
            refuse_of(&names.join(", ").into(), why)
        };
        if gpu_pod.finished {
            return refuse(Refusal::Finished);
        }
        if let Some(row) = rows.iter().find(|row| row.ticket.is_none() && !row.is_foreign()) {
            return refuse_of(&row.holder.container, Refusal::AnswerLost);
        }
        self.follow_kubelet(&gpu_pod, &rows);
        let (claim, shared) = match self.granted(&gpu_pod, checkpoint) {
            Ok(granted) => granted,
            Err(why) => return refuse(why),
        };
        let bound = self.bind(&gpu_pod, &claim, &rows).and_then(|bound| self.distinct(bound));
        let bound = match bound.and_then(|bound| self.confirmed(bound)) {
            Ok(bound) => bound,
            Err((container, why)) => return refuse_of(&container, why),
        };
        if let Err(why) = self.fits(&gpu_pod, &claim) {
            return refuse(why);
        }
        for bound in &bound {
            self.store_holder(bound);
        }
        self.keep(&gpu_pod, &claim, &|name| bound.iter().any(|bound| *bound.limits.holder.container == *name));
        if self.claims.moved.contains_key(&uid) {
            self.due.rewritten.insert(uid.clone());
        }
        if shared {
            self.claims.unwritten.insert(uid.clone());
        }
        // A start may be judged again before the agent has acted on the first verdict.
        let shared = self.claims.unwritten.contains(&uid);
        self.pods.started.insert(uid.clone());
        self.enter(&uid);
        StartVerdict::Fill { bound, shared }
    }

    /// The agent writes the claim on this pod now, so later verdicts do not request it again.
    pub fn claim_is_written(&mut self, uid: &PodUid) {
        self.claims.unwritten.remove(uid);
    }

    /// The claim that holds for a pod, and whether the allocator made it and it is complete now.
    fn granted(&self, gpu_pod: &GpuPod, checkpoint: &[CheckpointEntry]) -> Result<(Claim, bool), Refusal> {
        match self.effective_claim(gpu_pod) {
            EffectiveClaim::Given(claim) => Ok((claim.clone(), false)),
            EffectiveClaim::Unreadable(why) => Err(Refusal::Unreadable(why.clone())),
            EffectiveClaim::BadRequest(why) => Err(Refusal::BadRequest(why.clone())),
            EffectiveClaim::None if !self.shares(&gpu_pod.uid) => Err(Refusal::NotPlaced),
            EffectiveClaim::None => {
                let claim = self.claim_of_slots(gpu_pod, checkpoint)?;
                let whole = gpu_pod.is_whole(&claim);
                Ok((claim, whole))
            }
        }
    }

    /// Checks that a ticket can reach its container, and that devices which an earlier release gave at `Allocate` are
    /// the devices of the container's claim.
    fn confirmed(&self, bound: Vec<BoundContainer>) -> Result<Vec<BoundContainer>, (Arc<str>, Refusal)> {
        let refused = |bound: &BoundContainer| match bound.early {
            false if self.policy.tickets_lost => Some(Refusal::WithoutCdi),
            false => self.policy.unreadable_specs.clone().map(Refusal::RuntimeTooOld),
            true => (!self.was_given_its_claim(bound)).then_some(Refusal::Forgotten),
        };
        match bound.iter().find_map(|bound| Some((Arc::clone(&bound.limits.holder.container), refused(bound)?))) {
            Some(refused) => Err(refused),
            None => Ok(bound),
        }
    }

    /// Whether an earlier release gave this container the devices of its claim at `Allocate`, a call that does not name
    /// the container. Once that release knew the container, it compared the devices with the claim, and noted the
    /// holder if they were the same.
    pub(super) fn was_given_its_claim(&self, bound: &BoundContainer) -> bool {
        self.tickets.get(&bound.ticket).is_some_and(|issued| match &issued.holder {
            Some(holder) => *holder == bound.limits.holder,
            None => issued.given.as_deref() == Some(&bound.limits.device_shares()[..]),
        })
    }

    /// Stores the container that holds a ticket, for times when the checkpoint cannot be read.
    fn store_holder(&mut self, bound: &BoundContainer) {
        let Some(issued) = self.tickets.get(&bound.ticket).filter(|issued| issued.holder.is_none()).cloned() else {
            return;
        };
        let known = IssuedTicket { holder: Some(bound.limits.holder.clone()), ..issued };
        self.tickets.keep(known.clone());
        self.due.tickets.insert(known.ticket.clone(), known);
    }

    /// Joins each row with the device shares that the claim has for its container.
    pub(super) fn bind(
        &self,
        gpu_pod: &GpuPod,
        claim: &Claim,
        rows: &[&CheckpointEntry],
    ) -> Result<Vec<BoundContainer>, (Arc<str>, Refusal)> {
        let one = |row: &&CheckpointEntry| {
            let ticket = row.ticket.clone()?;
            let bound = self.limits(gpu_pod, claim, row).map(|limits| BoundContainer {
                ticket,
                differs: differs(&row.ids, &limits.devices),
                limits,
                early: row.early,
            });
            Some(bound.map_err(|why| (row.holder.container.clone(), why)))
        };
        rows.iter().filter_map(one).collect()
    }

    /// The limits of the container that holds a row: the numbers of its claim, and what the node knows of each device.
    fn limits(&self, gpu_pod: &GpuPod, claim: &Claim, row: &CheckpointEntry) -> Result<ContainerLimits, Refusal> {
        let at = gpu_pod.requests.iter().position(|request| request.container == row.holder.container);
        let own = at.and_then(|at| claim.get(at)).map_or(&[][..], Vec::as_slice);
        if own.len() != row.ids.len() {
            return Err(Refusal::Count { claimed: own.len(), given: row.ids.len() });
        }
        let device = |share: &DeviceShare| {
            let gpu = self.devices.get(&share.device).ok_or_else(|| Refusal::NoSuchDevice(share.device.clone()))?;
            Ok(DeviceLimits {
                uuid: share.device.clone(),
                index: gpu.index,
                model: gpu.model.clone(),
                memory: share.memory.unwrap_or(gpu.memory),
                unlimited: share.memory.is_none(),
                cores: share.cores,
            })
        };
        Ok(ContainerLimits {
            holder: row.holder.clone(),
            pod: gpu_pod.pod.clone(),
            devices: own.iter().map(device).collect::<Result<_, _>>()?,
            priority: at.and_then(|at| gpu_pod.requests[at].priority),
        })
    }

    /// The pod that holds these rows. Two pods can hold them only while the kubelet has not yet forgotten a finished
    /// pod.
    fn pod_of(&self, rows: &[&CheckpointEntry]) -> Option<PodUid> {
        let pods: BTreeSet<&PodUid> = rows.iter().map(|row| &row.holder.pod).collect();
        let live = |uid: &&&PodUid| self.pods.by_uid.get(**uid).is_some_and(|gpu_pod| !gpu_pod.finished);
        match pods.len() {
            0 => None,
            1 => pods.first().map(|uid| (*uid).clone()),
            _ => {
                let mut alive = pods.iter().filter(live);
                match (alive.next(), alive.next()) {
                    (Some(one), None) => Some((*one).clone()),
                    _ => None,
                }
            }
        }
    }

    /// Whether pods without a claim get devices.
    #[must_use]
    pub fn may_share(&self) -> bool {
        match self.policy.without_claim {
            WithoutClaim::Share => true,
            WithoutClaim::Refuse => false,
            WithoutClaim::Auto => !self.pods.served_by_scheduler,
        }
    }

    /// Whether a pod without a claim gets devices. If one of its containers has got devices, the others get theirs too.
    pub(super) fn shares(&self, uid: &PodUid) -> bool {
        self.may_share() || self.claims.given.contains_key(uid)
    }

    /// Makes a claim for a pod without a claim: the devices of the slots that the kubelet chose, limited only if the pod
    /// itself names a limit. A container whose slots are not known yet has no device share in it.
    fn claim_of_slots(&self, gpu_pod: &GpuPod, checkpoint: &[CheckpointEntry]) -> Result<Claim, Refusal> {
        let before = self.claims.given.get(&gpu_pod.uid);
        let requests = gpu_pod.requests.iter().enumerate();
        let own = requests.map(|(at, request)| {
            if let Some(own) = before.and_then(|before| before.get(at)).filter(|own| !own.is_empty()) {
                return Ok(own.clone());
            }
            let key = ContainerKey { pod: gpu_pod.uid.clone(), container: request.container.clone() };
            let row = checkpoint.iter().find(|row| row.holder == key).or_else(|| self.held.get(&key));
            let ids = row.map(|row| &row.ids).or_else(|| self.tickets.held_by(&key).map(|issued| &issued.ids));
            ids.map_or(Ok(Vec::new()), |ids| self.share_of(request, ids))
        });
        own.collect()
    }

    /// The device shares that one container of such a pod gets for its slots.
    pub(super) fn share_of(&self, request: &ContainerRequest, ids: &[Arc<str>]) -> Result<Vec<DeviceShare>, Refusal> {
        let share = |slot: Slot| {
            let gpu = self.devices.get(&slot.device).ok_or_else(|| Refusal::NoSuchDevice(slot.device.clone()))?;
            let memory = request.memory.map(|memory| memory.of(gpu.memory).bytes());
            Ok(DeviceShare { device: slot.device, memory, cores: request.cores })
        };
        ids.iter().filter_map(|id| Slot::parse(id)).map(share).collect()
    }

    /// Whether the claim fits alongside the claims of started pods. A started pod keeps what it holds: only the excess
    /// is judged again.
    pub(super) fn fits(&self, gpu_pod: &GpuPod, claim: &Claim) -> Result<(), Refusal> {
        let devices: BTreeSet<&GpuUuid> = claim.iter().flatten().map(|share| &share.device).collect();
        for device in devices {
            let gpu = self.devices.get(device).ok_or_else(|| Refusal::NoSuchDevice(device.clone()))?;
            let (mut requested, others) =
                (demand_of(gpu_pod, claim, device), self.ledger.started_beside(device, &gpu_pod.uid));
            let kept = self.claims.given.get(&gpu_pod.uid).unwrap_or(const { &Claim(Vec::new()) });
            let held = demand_of(gpu_pod, kept, device);
            if let Some(holder) = self.taken_from(&gpu_pod.uid, device)
                && held.containers == 0
            {
                return Err(Refusal::HeldByOther { device: device.clone(), holder: holder.clone() });
            }
            // A container that has lost its limit demands the whole device.
            if lost(kept, claim, device, |share| share.memory.is_some()) {
                requested.memory = gpu.memory.0;
            }
            if lost(kept, claim, device, |share| share.cores.is_some()) {
                requested.cores = u64::from(gpu.cores);
            }
            for (what, requested, held, claimed, total) in [
                (ScarceResource::Memory, requested.memory, held.memory, others.memory, gpu.memory.0),
                (ScarceResource::Cores, requested.cores, held.cores, others.cores, u64::from(gpu.cores)),
                (ScarceResource::Slots, requested.containers, held.containers, others.containers, u64::from(gpu.slots)),
            ] {
                if requested > held && claimed.saturating_add(requested) > total {
                    return Err(Refusal::DoesNotFit { device: device.clone(), what, total, claimed, requested });
                }
            }
            if requested.clashes_with(others, gpu.cores) && !held.clashes_with(others, gpu.cores) {
                return Err(Refusal::NotAlone { device: device.clone(), own: requested.exclusive > 0 });
            }
        }
        Ok(())
    }
}

/// Whether a container that had a limit on `device` has no limit in the present claim.
fn lost(kept: &Claim, now: &Claim, device: &GpuUuid, limited: fn(&DeviceShare) -> bool) -> bool {
    kept.iter().zip(now).any(|(kept, now)| {
        let had = kept.iter().any(|share| share.device == *device && limited(share));
        had && now.iter().any(|share| share.device == *device && !limited(share))
    })
}

/// Whether the kubelet's slots are on other devices than the container gets.
fn differs(ids: &[Arc<str>], devices: &[DeviceLimits]) -> bool {
    let mut counted: Vec<GpuUuid> = ids.iter().filter_map(|id| Slot::parse(id)).map(|slot| slot.device).collect();
    let mut claimed: Vec<GpuUuid> = devices.iter().map(|device| device.uuid.clone()).collect();
    counted.sort();
    claimed.sort();
    counted != claimed
}
