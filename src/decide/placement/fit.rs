//! Places one pod on one node.

use super::device::{Candidate, DeviceFitness, DeviceKind, PlacementDevice, PlacementNode};
use super::order;
use super::reality::MemoryBasis;
use super::reason::{NearestMiss, NodeRefusal, RefusalReason};
use super::rules::{CheckResult, CountedClaims, Placement, PlacementRules};
use super::score::{Capacity, FillTerms};
use crate::ledger::{ALL_CORES, DeviceDemand};
use model::claim::{Claim, DeviceShare};
use model::id::GpuUuid;
use model::placement::{GpuSelection, PlacementRequest, ScoreWeights};
use model::realtime::CheckMode;
use model::request::{ContainerRequest, ContainerRole, MemoryRequest};
use model::unit::{Bytes, CorePercent};
use std::sync::Arc;

/// A pod with more GPU containers than this is first tried with its largest requests. Hardly any pod has so many.
const FEW: usize = 4;

/// What the containers placed so far take of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Sidecars that have started.
    sidecars: DeviceDemand,
    /// Sidecars and app containers.
    together: DeviceDemand,
    /// The most at any moment so far.
    most: DeviceDemand,
}

/// Places a pod on a node.
///
/// # Errors
/// [`NodeRefusal`] for the first container that finds too few GPUs; for a pod of many containers, the largest request if it finds
/// too few.
pub fn place(
    request: &PlacementRequest,
    node: &PlacementNode,
    rules: &PlacementRules,
    counted: CountedClaims,
) -> Result<Placement, NodeRefusal> {
    let mut attempt = Attempt {
        request,
        node,
        rules,
        counted,
        weights: rules.weights(&request.preference),
        check: rules.check.mode(node.check, request.realtime),
        found: CheckResult::Unchecked,
        barred: all_barred(&node.devices, &request.selection),
        taken: vec![Taken::default(); node.devices.len()],
    };
    attempt.largest_containers()?;
    let containers: Result<Vec<Vec<DeviceShare>>, NodeRefusal> =
        request.requests.iter().map(|container| attempt.container(container)).collect();
    let claim = Claim(containers?);
    let terms = attempt.terms();
    Ok(Placement { claim, terms, fill: terms.fill(attempt.weights), check: attempt.found })
}

/// Number of comparisons with a product that take as long as a search in a list of UUIDs.
const UUIDS: usize = 4;

/// Which devices of a node a pod accepts. They are mostly of one kind, which is judged once: a pod may name 64 products.
#[derive(Debug)]
pub(crate) struct AcceptedDevices<'a> {
    selection: &'a GpuSelection,
    /// The kind of the last device, and whether the pod accepts it.
    last: Option<(&'a Arc<DeviceKind>, bool)>,
    /// Number of comparisons with products and UUIDs.
    compared: usize,
}

impl<'a> AcceptedDevices<'a> {
    pub(crate) fn of(selection: &'a GpuSelection) -> AcceptedDevices<'a> {
        AcceptedDevices { selection, last: None, compared: 0 }
    }

    /// Whether the pod accepts this device, if enough of it is free.
    pub(crate) fn has(&mut self, device: &'a PlacementDevice) -> bool {
        self.barred(device).is_none()
    }

    /// Number of comparisons with products so far. A search in a list of UUIDs counts as [`UUIDS`] comparisons.
    pub(crate) fn compared(&self) -> usize {
        self.compared
    }

    /// The test at which the device fails for every container of the pod, whatever the container requests.
    fn barred(&mut self, device: &'a PlacementDevice) -> Option<RefusalReason> {
        let GpuSelection { use_types, avoid_types, use_uuids, avoid_uuids, .. } = self.selection;
        let accepted = match self.last {
            Some((kind, accepted)) if Arc::ptr_eq(kind, &device.kind) => accepted,
            _ => {
                self.compared += use_types.len() + avoid_types.len();
                accepts_kind(self.selection, &device.kind)
            }
        };
        self.compared += UUIDS * [use_uuids, avoid_uuids].iter().filter(|uuids| !uuids.is_empty()).count();
        self.last = Some((&device.kind, accepted));
        barred(device, self.selection, accepted)
    }
}

/// For each device, the test at which it fails for every container of the pod, whatever the container requests.
fn all_barred(devices: &[PlacementDevice], selection: &GpuSelection) -> Vec<Option<RefusalReason>> {
    let mut accepted = AcceptedDevices::of(selection);
    devices.iter().map(|device| accepted.barred(device)).collect()
}

fn barred(device: &PlacementDevice, selection: &GpuSelection, accepts_kind: bool) -> Option<RefusalReason> {
    match device.fitness {
        DeviceFitness::Fit => {}
        DeviceFitness::Unhealthy => return Some(RefusalReason::CardNotHealth),
        DeviceFitness::Cordoned => return Some(RefusalReason::CardCordoned),
        DeviceFitness::InUse => return Some(RefusalReason::CardInUse),
    }
    if !accepts_kind {
        return Some(RefusalReason::CardTypeMismatch);
    }
    let GpuSelection { use_uuids, avoid_uuids, .. } = selection;
    let named = |uuids: &[GpuUuid]| uuids.binary_search(&device.uuid).is_ok();
    let barred = (!use_uuids.is_empty() && !named(use_uuids)) || named(avoid_uuids);
    barred.then_some(RefusalReason::CardUuidMismatch)
}

/// Whether the pod accepts this product and this sharing mode.
pub(crate) fn accepts_kind(selection: &GpuSelection, kind: &DeviceKind) -> bool {
    let GpuSelection { use_types, avoid_types, modes, .. } = selection;
    let named = |types: &[Arc<str>]| types.iter().any(|part| kind.product.contains(&**part));
    (use_types.is_empty() || named(use_types))
        && !named(avoid_types)
        && modes.as_ref().is_none_or(|modes| modes.contains(&*kind.mode))
}

struct Attempt<'a> {
    request: &'a PlacementRequest,
    node: &'a PlacementNode,
    rules: &'a PlacementRules,
    counted: CountedClaims,
    weights: ScoreWeights,
    check: Option<CheckMode>,
    /// What the real-time check has found on the GPUs chosen so far.
    found: CheckResult,
    barred: Vec<Option<RefusalReason>>,
    taken: Vec<Taken>,
}

impl<'a> Attempt<'a> {
    /// Whether, of many containers, the largest requests fit, each without the others. If one does not fit, the others need not be
    /// placed: a pod whose last container fits nowhere would otherwise multiply the cost of a filter call by the number of its
    /// containers.
    fn largest_containers(&mut self) -> Result<(), NodeRefusal> {
        let (request, node) = (self.request, self.node);
        let asking = || request.requests.iter().filter(|container| container.slots > 0);
        let Some(device) = node.devices.first().filter(|_| asking().nth(FEW).is_some()) else { return Ok(()) };
        let memory = |container: &&ContainerRequest| requested(container, device.capacity).0;
        let cores = |container: &&ContainerRequest| container.cores.map_or(0, |cores| cores.0);
        let slots = |container: &&ContainerRequest| container.slots;
        let largest = [asking().max_by_key(memory), asking().max_by_key(cores), asking().max_by_key(slots)];
        for container in largest.into_iter().flatten() {
            let found = self.found;
            self.container(container)?;
            self.taken.fill(Taken::default());
            self.found = found;
        }
        Ok(())
    }

    /// The device shares of the next container.
    fn container(&mut self, container: &ContainerRequest) -> Result<Vec<DeviceShare>, NodeRefusal> {
        let count = usize::try_from(container.slots).unwrap_or(usize::MAX);
        if count == 0 {
            return Ok(Vec::new());
        }
        let gpus = u16::try_from(self.node.devices.len()).unwrap_or(u16::MAX);
        let mut refusal = NodeRefusal::of(gpus);
        if count > self.node.devices.len() {
            refusal.count(RefusalReason::NodeInsufficientDevice);
            refusal.missed(NearestMiss::Devices { requested: container.slots, there: gpus.into() });
            return Err(refusal);
        }
        let mut candidates = Vec::with_capacity(self.node.devices.len());
        for (place, device) in self.node.devices.iter().enumerate() {
            match self.test(container, place, device) {
                Ok(candidate) => candidates.push(candidate),
                Err((reason, miss)) => {
                    if is_too_small(container, device.capacity) {
                        refusal.count_too_small(reason);
                    } else {
                        refusal.count(reason);
                    }
                    miss.into_iter().for_each(|miss| refusal.missed(miss));
                }
            }
        }
        let policy = self.rules.gpu_policy(&self.request.preference);
        order::sort(&mut candidates, policy, self.request.selection.numa_bind);
        let chosen = self.choose(&candidates, count, policy.topology);
        if chosen.len() < count {
            let reason = if candidates.len() >= count {
                RefusalReason::NumaNotFit
            } else {
                RefusalReason::AllocatedCardsInsufficientRequest
            };
            if !candidates.is_empty() {
                candidates.iter().for_each(|_| refusal.count(reason));
                let fitting = u32::try_from(chosen.len().max(candidates.len().min(count - 1))).unwrap_or(u32::MAX);
                refusal.missed(NearestMiss::Count { requested: container.slots, fitting });
            }
            return Err(refusal);
        }
        Ok(chosen.into_iter().map(|candidate| self.take(container.role, candidate)).collect())
    }

    /// The devices among the candidates, in order; fewer than `count` if not enough fit together. A device whose memory does not
    /// really suffice is taken only if the others are too few.
    fn choose(&self, candidates: &[Candidate<'a>], count: usize, topology: bool) -> Vec<Candidate<'a>> {
        if candidates.iter().any(|candidate| candidate.lacks_memory) {
            let roomy: Vec<Candidate<'a>> = candidates.iter().filter(|one| !one.lacks_memory).copied().collect();
            let chosen = self.choose_among(&roomy, count, topology);
            if chosen.len() >= count {
                return chosen;
            }
        }
        self.choose_among(candidates, count, topology)
    }

    fn choose_among(&self, candidates: &[Candidate<'a>], count: usize, topology: bool) -> Vec<Candidate<'a>> {
        let pick = |candidates: &[Candidate<'a>]| -> Vec<Candidate<'a>> {
            // Without links all GPUs are equally well connected.
            if !topology || candidates.len() <= count || self.node.links.is_empty() {
                return candidates.iter().take(count).copied().collect();
            }
            let places = order::best_connected(candidates, self.node, count);
            candidates.iter().filter(|candidate| places.contains(&candidate.place)).copied().collect()
        };
        if !self.request.selection.numa_bind {
            return pick(candidates);
        }
        // The candidates are in order of preference, and candidates of one NUMA node are next to each other.
        let groups = candidates.chunk_by(|one, next| one.device.numa == next.device.numa);
        groups.into_iter().find(|group| group.len() >= count).map(pick).unwrap_or_default()
    }

    /// The tests of HAMi 2.10.0 in its order; the first that fails is the reason.
    fn test(
        &self,
        container: &ContainerRequest,
        place: usize,
        device: &'a PlacementDevice,
    ) -> Result<Candidate<'a>, (RefusalReason, Option<NearestMiss>)> {
        if let Some(Some(reason)) = self.barred.get(place) {
            return Err((*reason, None));
        }
        let taken = self.taken.get(place).copied().unwrap_or_default();
        let mut used = device.claimed;
        used.add(match container.role {
            ContainerRole::Init => taken.sidecars,
            ContainerRole::Sidecar | ContainerRole::App => taken.together,
        });
        let mut counted = used;
        counted.add(device.proposed);
        let used = match self.counted {
            CountedClaims::Claims => used,
            CountedClaims::ClaimsAndProposals => counted,
        };
        let Capacity { slots, cores, memory } = device.capacity;
        let share = amounts(container, device.capacity);
        let (Bytes(own_memory), CorePercent(own_cores)) = share;
        if used.containers >= slots {
            return Err((RefusalReason::CardTimeSlicingExhausted, None));
        }
        if self.rules.gpu_policy(&self.request.preference).idle_only && used.containers > 0 {
            return Err((RefusalReason::ExclusiveDeviceAllocateConflict, None));
        }
        let free = Bytes(memory.saturating_sub(used.memory));
        let really_free = self.check.map(|_| free.less(device.beyond.taken));
        let lacks_memory = really_free.is_some_and(|free| own_memory > free.0);
        if own_memory > free.0 || lacks_memory && self.check == Some(CheckMode::Strict) {
            let (asked, index) = (container.memory, device.index);
            let miss =
                NearestMiss::Memory { asked, requested: share.0, free, really_free, total: Bytes(memory), index };
            return Err((RefusalReason::CardInsufficientMemory, Some(miss)));
        }
        let free = cores.saturating_sub(used.cores);
        if u64::from(own_cores) > free {
            let free = CorePercent(u32::try_from(free).unwrap_or(u32::MAX));
            let miss = NearestMiss::Cores { requested: share.1, free, index: device.index };
            return Err((RefusalReason::CardInsufficientCore, Some(miss)));
        }
        let scaled = cores != u64::from(ALL_CORES);
        if own_cores >= ALL_CORES && used.containers > 0 && !scaled {
            return Err((RefusalReason::ExclusiveDeviceAllocateConflict, None));
        }
        if own_cores == 0 && cores > 0 && used.cores >= cores {
            return Err((RefusalReason::CardComputeUnitsExhausted, None));
        }
        counted.add(demand(share));
        let fill = FillTerms::of(counted, device.capacity).fill(self.weights);
        Ok(Candidate { device, place, fill, share, lacks_memory })
    }

    fn take(&mut self, role: ContainerRole, candidate: Candidate<'_>) -> DeviceShare {
        self.found = match (self.check, self.found) {
            (None, _) => CheckResult::Unchecked,
            (Some(_), CheckResult::Warned) => CheckResult::Warned,
            (Some(_), _) if candidate.lacks_memory => CheckResult::Warned,
            (Some(_), CheckResult::Fallback) => CheckResult::Fallback,
            (Some(_), _) if candidate.device.beyond.basis != MemoryBasis::Processes => CheckResult::Fallback,
            (Some(_), _) => CheckResult::Passed,
        };
        let own = demand(candidate.share);
        if let Some(taken) = self.taken.get_mut(candidate.place) {
            let moment = match role {
                ContainerRole::Init => {
                    let mut moment = taken.sidecars;
                    moment.add(own);
                    moment
                }
                ContainerRole::Sidecar => {
                    taken.sidecars.add(own);
                    taken.together.add(own);
                    taken.together
                }
                ContainerRole::App => {
                    taken.together.add(own);
                    taken.together
                }
            };
            taken.most = taken.most.max(moment);
        }
        DeviceShare {
            device: candidate.device.uuid.clone(),
            memory: Some(candidate.share.0),
            cores: Some(candidate.share.1).filter(|cores| cores.0 > 0),
        }
    }

    /// How full the node is with this pod.
    fn terms(&self) -> FillTerms {
        let (mut used, mut capacity) = (DeviceDemand::default(), Capacity::default());
        for (device, taken) in self.node.devices.iter().zip(&self.taken) {
            used.add(device.claimed);
            used.add(device.proposed);
            used.add(taken.most);
            capacity.add(device.capacity);
        }
        FillTerms::of(used, capacity)
    }
}

/// The memory that a container takes of a device with this capacity.
pub(crate) fn requested(container: &ContainerRequest, capacity: Capacity) -> Bytes {
    amounts(container, capacity).0
}

/// Memory and SM time that the container takes of each device.
fn amounts(container: &ContainerRequest, capacity: Capacity) -> (Bytes, CorePercent) {
    let memory = container.memory.unwrap_or(MemoryRequest::WHOLE).of(Bytes(capacity.memory));
    (memory.bytes(), container.cores.unwrap_or(CorePercent(0)))
}

/// Whether the container requests more of a GPU than the GPU has without any claim.
fn is_too_small(container: &ContainerRequest, capacity: Capacity) -> bool {
    let (memory, cores) = amounts(container, capacity);
    memory.0 > capacity.memory || u64::from(cores.0) > capacity.cores
}

fn demand((memory, cores): (Bytes, CorePercent)) -> DeviceDemand {
    DeviceDemand { memory: memory.0, cores: cores.0.into(), containers: 1, exclusive: u64::from(cores.0 >= ALL_CORES) }
}
