//! A container is about to start: whose ids are these, and what was promised?

use super::effective_claim::EffectiveClaim;
use super::refusal::{Refusal, ScarceResource};
use super::state::{NodeAllocator, WithoutClaim};
use crate::ledger::demand_of;
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid, Ticket};
use model::request::ContainerRequest;
use model::slot::Slot;
use model::ticket::IssuedTicket;
use model::unit::{Bytes, Mib};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One container with all that it gets. All containers that share a set of ids are answered together: kubelet's call does
/// not say which of them starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundContainer {
    /// Who.
    pub holder: ContainerKey,
    /// Names of the pod.
    pub pod: PodRef,
    /// The ticket that is to be filled.
    pub ticket: Ticket,
    /// What it may use, in the order of the claim.
    pub device_shares: Vec<DeviceShare>,
    /// Whether kubelet counts other devices than those of the claim.
    pub differs: bool,
    /// Whether its devices were given already, at `Allocate`.
    pub early: bool,
}

/// What to do about a start.
#[derive(Clone, Debug, PartialEq)]
pub enum StartVerdict {
    /// Fill these tickets; then the container may start.
    Fill {
        /// The containers, in the order of the kubelet's checkpoint.
        bound: Vec<BoundContainer>,
        /// Whether the pod was placed by nobody and its claim, which was made up here, is whole now: it must be written on
        /// the pod.
        shared: bool,
    },
    /// Ids of a plugin that ran here before us: its answer is what the container gets, and nothing is to be done. Its ids may
    /// look like ours; then its answer does not.
    Foreign,
    /// Not known yet: look again when checkpoint or pods have changed.
    Wait(WaitReason),
    /// It must not start.
    Refuse {
        /// The pod.
        uid: PodUid,
        /// Its names.
        pod: PodRef,
        /// The container; where several share the ids and the cause is not that of one of them, all of these.
        container: Arc<str>,
        /// Why.
        why: Refusal,
    },
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// the kubelet's checkpoint do not name the ids yet.
    Checkpoint,
    /// The pod has not been seen yet.
    Pod,
}

impl WaitReason {
    /// One word for metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            WaitReason::Checkpoint => "Books",
            WaitReason::Pod => "Pod",
        }
    }
}

impl NodeAllocator {
    /// Judges a start of the container that holds `ids`, by the kubelet's checkpoint as they are now; `None` where they cannot be
    /// read, which is not the same as empty: what was read before stays.
    pub fn start(&mut self, ids: &[Arc<str>], checkpoint: Option<&[CheckpointEntry]>) -> StartVerdict {
        let Some(checkpoint) = checkpoint else { return StartVerdict::Wait(WaitReason::Checkpoint) };
        self.checkpoint_is(checkpoint);
        self.judge(ids, checkpoint)
    }

    /// The same by rows that need not be all of the checkpoint.
    pub(super) fn judge(&mut self, ids: &[Arc<str>], checkpoint: &[CheckpointEntry]) -> StartVerdict {
        let asked: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
        // Most rows end at their first id.
        let its = |row: &&CheckpointEntry| {
            row.ids.iter().all(|id| asked.contains(&**id))
                && asked.iter().all(|id| row.ids.iter().any(|own| **own == **id))
        };
        let rows: Vec<&CheckpointEntry> = checkpoint.iter().filter(its).collect();
        let Some(uid) = self.whose(&rows) else { return StartVerdict::Wait(WaitReason::Checkpoint) };
        let rows: Vec<&CheckpointEntry> = rows.into_iter().filter(|row| row.holder.pod == uid).collect();
        if rows.iter().all(|row| foreign(row)) {
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
        if let Some(row) = rows.iter().find(|row| row.ticket.is_none() && !foreign(row)) {
            return refuse_of(&row.holder.container, Refusal::AnswerLost);
        }
        self.settle(checkpoint);
        self.follow_kubelet(&gpu_pod, &rows);
        let (device_shares, shared) = match self.granted(&gpu_pod, checkpoint) {
            Ok(granted) => granted,
            Err(why) => return refuse(why),
        };
        let bound = bind(&gpu_pod, &device_shares, &rows).and_then(|bound| self.distinct(bound));
        let bound = match bound.and_then(|bound| self.confirmed(bound)) {
            Ok(bound) => bound,
            Err((container, why)) => return refuse_of(&container, why),
        };
        if let Err(why) = self.fits(&gpu_pod, &device_shares) {
            return refuse(why);
        }
        for bound in &bound {
            self.known_now(bound);
        }
        self.keep(&gpu_pod, &device_shares, &|name| bound.iter().any(|bound| *bound.holder.container == *name));
        if self.claims.moved.contains_key(&uid) {
            self.due.rewritten.insert(uid.clone());
        }
        if shared {
            self.claims.unwritten.insert(uid.clone());
        }
        // A start may be judged again before anything is done about it.
        let shared = self.claims.unwritten.contains(&uid);
        self.pods.started.insert(uid.clone());
        self.enter(&uid);
        StartVerdict::Fill { bound, shared }
    }

    /// What this pod was given is being written on it: no later start has to say so.
    pub fn share_is_written(&mut self, uid: &PodUid) {
        self.claims.unwritten.remove(uid);
    }

    /// The claim that holds of a pod, and whether it was made up here and is whole now.
    fn granted(&self, gpu_pod: &GpuPod, checkpoint: &[CheckpointEntry]) -> Result<(Claim, bool), Refusal> {
        match self.effective_claim(gpu_pod) {
            EffectiveClaim::Given(claim) => Ok((claim.clone(), false)),
            EffectiveClaim::Unreadable(why) => Err(Refusal::Unreadable(why.clone())),
            EffectiveClaim::BadRequest(why) => Err(Refusal::BadRequest(why.clone())),
            EffectiveClaim::None if !self.shares(&gpu_pod.uid) => Err(Refusal::NotPlaced),
            EffectiveClaim::None => {
                let device_shares = self.share_out(gpu_pod, checkpoint)?;
                let whole = gpu_pod.is_whole(&device_shares);
                Ok((device_shares, whole))
            }
        }
    }

    /// Whether what was given early is its holder's, and what is to come late can come.
    fn confirmed(&self, bound: Vec<BoundContainer>) -> Result<Vec<BoundContainer>, (Arc<str>, Refusal)> {
        if let Some(late) = bound.iter().find(|bound| !bound.early && self.policy.tickets_lost) {
            return Err((late.holder.container.clone(), Refusal::WithoutCdi));
        }
        for bound in bound.iter().filter(|bound| bound.early) {
            let why = match self.tickets.get(&bound.ticket) {
                None => Refusal::Forgotten,
                Some(issued) if issued.holder.as_ref() == Some(&bound.holder) => continue,
                Some(issued) => Refusal::Mistaken { what: self.mistaken(issued, &bound.device_shares) },
            };
            return Err((bound.holder.container.clone(), why));
        }
        Ok(bound)
    }

    /// Where kubelet keeps to a topology of its own, a claim that has not started yet moves to the NUMA node that kubelet
    /// chose, if all promises can be kept there.
    fn follow_kubelet(&mut self, gpu_pod: &GpuPod, rows: &[&CheckpointEntry]) {
        if !self.policy.follows_kubelet {
            return;
        }
        for row in rows.iter().filter(|row| !row.early) {
            let new = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
            let Some(issued) = new.filter(|issued| issued.holder.is_none()).cloned() else { continue };
            let Some(at) = gpu_pod.requests.iter().position(|request| request.container == row.holder.container) else {
                continue;
            };
            let own = self.claim(&gpu_pod.uid).and_then(|claim| claim.get(at).cloned());
            let moved = own.and_then(|own| self.where_kubelet_is(&own, &row.ids));
            let Some(moved) = moved.filter(|moved| self.could_sit(&gpu_pod.uid, at, moved)) else { continue };
            if self.seat((&gpu_pod.uid, at), &moved, None).is_some() {
                self.due.reseated += 1;
                let kept = IssuedTicket { holder: Some(row.holder.clone()), given: Some(moved), ..issued };
                self.tickets.keep(kept.clone());
                self.due.tickets.insert(kept.ticket.clone(), kept);
            }
        }
    }

    /// Keeps whose a ticket is, for the time when the checkpoint cannot say it.
    fn known_now(&mut self, bound: &BoundContainer) {
        let Some(issued) = self.tickets.get(&bound.ticket).filter(|issued| issued.holder.is_none()).cloned() else {
            return;
        };
        let known = IssuedTicket { holder: Some(bound.holder.clone()), ..issued };
        self.tickets.keep(known.clone());
        self.due.tickets.insert(known.ticket.clone(), known);
    }

    /// The pod that holds these rows. Two pods can stand there only while kubelet has not yet forgotten a finished one.
    fn whose(&self, rows: &[&CheckpointEntry]) -> Option<PodUid> {
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

    pub(super) fn may_share(&self) -> bool {
        match self.policy.without_claim {
            WithoutClaim::Share => true,
            WithoutClaim::Refuse => false,
            WithoutClaim::Auto => !self.pods.served_by_scheduler,
        }
    }

    /// Whether a pod that nobody placed gets something: one that has got something gets the rest too.
    pub(super) fn shares(&self, uid: &PodUid) -> bool {
        self.may_share() || self.claims.given.contains_key(uid)
    }

    /// What a pod that nobody placed gets: the devices of the slots that kubelet chose, limited only where the pod itself
    /// names a limit. A container of which it is not known what it holds has nothing in it yet.
    fn share_out(&self, gpu_pod: &GpuPod, checkpoint: &[CheckpointEntry]) -> Result<Claim, Refusal> {
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

    /// The same for one container of it.
    pub(super) fn share_of(&self, request: &ContainerRequest, ids: &[Arc<str>]) -> Result<Vec<DeviceShare>, Refusal> {
        let device_share = |slot: Slot| {
            let gpu = self.devices.get(&slot.device).ok_or_else(|| Refusal::NoSuchDevice(slot.device.clone()))?;
            let memory = request.memory.map(|memory| memory.of(gpu.memory));
            // In the unit of what is written on the pod, and as it is read back.
            let memory = memory.map(|memory| Mib::within(memory).bytes()).filter(|memory| *memory > Bytes(0));
            Ok(DeviceShare { device: slot.device, memory, cores: request.cores })
        };
        ids.iter().filter_map(|id| Slot::parse(id)).map(device_share).collect()
    }

    /// Whether the claim fits beside what has started. What a pod that has started holds it holds: only what is more than
    /// that is judged again.
    pub(super) fn fits(&self, gpu_pod: &GpuPod, device_shares: &Claim) -> Result<(), Refusal> {
        let devices: BTreeSet<&GpuUuid> =
            device_shares.iter().flatten().map(|device_share| &device_share.device).collect();
        for device in devices {
            let gpu = self.devices.get(device).ok_or_else(|| Refusal::NoSuchDevice(device.clone()))?;
            let (mut wanted, others) =
                (demand_of(gpu_pod, device_shares, device), self.ledger.started_beside(device, &gpu_pod.uid));
            let kept = self.claims.given.get(&gpu_pod.uid).unwrap_or(const { &Claim(Vec::new()) });
            let held = demand_of(gpu_pod, kept, device);
            // Without a limit that it had it wants all there is.
            if lost(kept, device_shares, device, |device_share| device_share.memory.is_some()) {
                wanted.memory = gpu.memory.0;
            }
            if lost(kept, device_shares, device, |device_share| device_share.cores.is_some()) {
                wanted.cores = u64::from(gpu.cores);
            }
            for (what, wanted, held, promised, total) in [
                (ScarceResource::Memory, wanted.memory, held.memory, others.memory, gpu.memory.0),
                (ScarceResource::Cores, wanted.cores, held.cores, others.cores, u64::from(gpu.cores)),
                (ScarceResource::Slots, wanted.containers, held.containers, others.containers, u64::from(gpu.slots)),
            ] {
                if wanted > held && promised.saturating_add(wanted) > total {
                    return Err(Refusal::DoesNotFit { device: device.clone(), what, total, promised, wanted });
                }
            }
            if wanted.clashes_with(others, gpu.cores) && !held.clashes_with(others, gpu.cores) {
                return Err(Refusal::NotAlone { device: device.clone(), own: wanted.exclusive > 0 });
            }
        }
        Ok(())
    }
}

/// Whether a container that had a limit of `device` has none by its claim as it is now.
fn lost(kept: &Claim, now: &Claim, device: &GpuUuid, limited: fn(&DeviceShare) -> bool) -> bool {
    kept.iter().zip(now).any(|(kept, now)| {
        let had = kept.iter().any(|device_share| device_share.device == *device && limited(device_share));
        had && now.iter().any(|device_share| device_share.device == *device && !limited(device_share))
    })
}

/// Whether a row is another plugin's.
fn foreign(row: &CheckpointEntry) -> bool {
    row.ticket.is_none() && (row.foreign || row.ids.iter().any(|id| Slot::parse(id).is_none()))
}

/// Ties each row to the part of the claim that is its container's.
pub(super) fn bind(
    gpu_pod: &GpuPod,
    device_shares: &Claim,
    rows: &[&CheckpointEntry],
) -> Result<Vec<BoundContainer>, (Arc<str>, Refusal)> {
    let mut bound = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(ticket) = row.ticket.clone() else { continue };
        let at = gpu_pod.requests.iter().position(|request| request.container == row.holder.container);
        let own = at.and_then(|at| device_shares.get(at)).cloned().unwrap_or_default();
        if own.len() != row.ids.len() {
            let why = Refusal::Count { claimed: own.len(), given: row.ids.len() };
            return Err((row.holder.container.clone(), why));
        }
        let mut counted: Vec<GpuUuid> =
            row.ids.iter().filter_map(|id| Slot::parse(id)).map(|slot| slot.device).collect();
        let mut claimed: Vec<GpuUuid> = own.iter().map(|device_share| device_share.device.clone()).collect();
        counted.sort();
        claimed.sort();
        bound.push(BoundContainer {
            holder: row.holder.clone(),
            pod: gpu_pod.pod.clone(),
            ticket,
            device_shares: own,
            differs: counted != claimed,
            early: row.early,
        });
    }
    Ok(bound)
}
