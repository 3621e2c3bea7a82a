//! Early binding against a simulated kubelet, which admits pods one at a time in its own order. Whatever container the
//! agent expects at `Allocate`, no container starts with another container's devices.

use super::tests::early;
use crate::allocator::tests::{GIB, device, device_share, gpu_pod, ids, request, uid};
use crate::allocator::{NodeAllocator, Refusal, StartVerdict, WaitReason};
use crate::ledger::demand_of;
use model::checkpoint::CheckpointEntry;
use model::claim::{Claim, DeviceShare, PodClaim};
use model::gpu_pod::GpuPod;
use model::id::{ContainerKey, Ticket};
use model::request::ContainerRole;
use model::ticket::IssuedTicket;
use model::time::Arrival;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A simulated kubelet, disk and API server, with the allocator under test. It has one field for each part of the
/// simulation, and one for each result that the simulation checks at its end.
struct World {
    allocator: NodeAllocator,
    pods: Vec<GpuPod>,
    /// The claims as the scheduler wrote them.
    claims: Vec<Claim>,
    /// The claims in the annotations of the pods now.
    written: Vec<Claim>,
    /// Pods that the agent's watch has shown, with their places in the order of arrival.
    seen: BTreeMap<usize, u64>,
    gone: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    checkpoint: Vec<CheckpointEntry>,
    /// The answers that the kubelet has cached: a container gets its answer, whatever happens later.
    given: BTreeMap<Ticket, Vec<DeviceShare>>,
    disk: BTreeMap<Ticket, IssuedTicket>,
    started: BTreeSet<usize>,
    mistaken: BTreeSet<usize>,
    tickets: u128,
    patches_land: bool,
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

impl World {
    fn new(pods: Vec<GpuPod>) -> World {
        let claim = |pod: &GpuPod| match &pod.claim {
            PodClaim::Given(claim) => claim.clone(),
            other => panic!("{other:?}"),
        };
        let claims: Vec<_> = pods.iter().map(claim).collect();
        World {
            allocator: early(vec![]),
            written: claims.clone(),
            claims,
            pods,
            seen: BTreeMap::new(),
            gone: BTreeSet::new(),
            failed: BTreeSet::new(),
            checkpoint: Vec::new(),
            given: BTreeMap::new(),
            disk: BTreeMap::new(),
            started: BTreeSet::new(),
            mistaken: BTreeSet::new(),
            tickets: 0,
            patches_land: true,
        }
    }

    fn gpu_pod(&self, n: usize) -> GpuPod {
        let mut pod = self.pods[n].clone();
        pod.claim = PodClaim::Given(self.written[n].clone());
        pod.finished = self.failed.contains(&n);
        pod.arrival = self.seen.get(&n).map(|place| Arrival(*place));
        pod
    }

    /// The agent's watch shows pods, in this order.
    fn see(&mut self, pods: impl IntoIterator<Item = usize>) {
        for n in pods {
            let last = self.seen.values().max().copied().unwrap_or_default();
            self.seen.entry(n).or_insert(last + 1);
        }
        self.show_pods();
    }

    /// Gives the allocator the whole list of pods, as the agent's watch has it.
    fn show_pods(&mut self) {
        let list = self.seen.keys().filter(|n| !self.gone.contains(n)).map(|n| self.gpu_pod(*n)).collect();
        self.allocator.set_gpu_pods(list);
    }

    fn keep(&mut self) {
        let changes = self.allocator.take_changes();
        for issued in changes.tickets {
            self.disk.insert(issued.ticket.clone(), issued);
        }
        for (gpu_pod, claim) in changes.claims {
            if let Some(n) = self.pods.iter().position(|pod| pod.uid == gpu_pod.uid).filter(|_| self.patches_land) {
                self.written[n] = claim;
            }
        }
    }

    fn restart(&mut self) {
        self.allocator = early(vec![]);
        self.allocator.recall(self.started.iter().map(|n| uid(number(*n))).collect());
        self.allocator.recall_tickets(self.disk.values().cloned().collect());
        self.show_pods();
    }

    fn ids_for(&self, n: usize, at: usize) -> Vec<Arc<str>> {
        let size = self.pods[n].requests[at].slots as usize;
        let of = |row: &CheckpointEntry| row.ids.clone();
        let role = |row: &CheckpointEntry| {
            self.pods[n]
                .requests
                .iter()
                .find(|request| request.container == row.holder.container)
                .map(|request| request.role)
        };
        // App containers take over the slots of init containers.
        let own = self.checkpoint.iter().filter(|row| row.holder.pod == uid(number(n)));
        let mut reuse: Vec<Arc<str>> =
            own.clone().filter(|row| role(row) == Some(ContainerRole::Init)).flat_map(of).collect();
        let kept: Vec<Arc<str>> = own.filter(|row| role(row) != Some(ContainerRole::Init)).flat_map(of).collect();
        reuse.retain(|id| !kept.contains(id));
        let used: BTreeSet<Arc<str>> = self.checkpoint.iter().flat_map(of).collect();
        let all = (0..2).flat_map(|gpu| (0..10).map(move |slot| (gpu, slot)));
        let free = all.map(|slot| ids(&[slot])[0].clone()).filter(|id| !used.contains(id));
        reuse.sort();
        reuse.dedup();
        let mut chosen: Vec<Arc<str>> = reuse.into_iter().chain(free).take(size).collect();
        chosen.sort();
        chosen
    }

    /// The kubelet admits a pod. `dies` is the container at whose `Allocate` the agent is killed, before the kubelet
    /// gets the answer.
    fn admit(&mut self, n: usize, dies: Option<usize>) {
        for at in 0..self.pods[n].requests.len() {
            if self.pods[n].requests[at].slots == 0 {
                continue;
            }
            let ids = self.ids_for(n, at);
            if ids.len() < self.pods[n].requests[at].slots as usize {
                self.failed.insert(n);
                return;
            }
            let mut matched = self.allocator.allocate(&ids, Some(&self.checkpoint), true);
            self.keep();
            if matched.is_none() {
                // The agent's watch catches up while the kubelet waits.
                let admitted = |n: &usize| self.checkpoint.iter().any(|row| row.holder.pod == uid(number(*n)));
                let caught_up: Vec<usize> =
                    (0..self.pods.len()).filter(|other| *other == n || admitted(other)).collect();
                self.see(caught_up);
                matched = self.allocator.allocate(&ids, Some(&self.checkpoint), false);
                self.keep();
            }
            let Some(matched) = matched else {
                self.failed.insert(n);
                return;
            };
            self.tickets += 1;
            let ticket = Ticket::of_random(self.tickets.to_be_bytes());
            let device_shares = matched.device_shares.clone();
            let issued = self.allocator.issue(ticket.clone(), &ids, Some(matched));
            self.disk.insert(ticket.clone(), issued);
            if dies == Some(at) {
                self.failed.insert(n);
                self.restart();
                return;
            }
            self.given.insert(ticket.clone(), device_shares);
            let holder = ContainerKey { pod: uid(number(n)), container: self.pods[n].requests[at].container.clone() };
            self.checkpoint.push(CheckpointEntry { holder, ids, ticket: Some(ticket), foreign: false, early: true });
        }
    }

    fn start(&mut self, n: usize) -> Result<(), TestCaseError> {
        let own: Vec<CheckpointEntry> =
            self.checkpoint.iter().filter(|row| row.holder.pod == uid(number(n))).cloned().collect();
        for row in own {
            let verdict = self.allocator.start(&row.ids, Some(&self.checkpoint));
            self.keep();
            match verdict {
                StartVerdict::Fill { bound, shared } => {
                    prop_assert!(!shared);
                    for bound in &bound {
                        prop_assert_eq!(&bound.holder.pod, &uid(number(n)), "of the pod that starts");
                        let truth = self.checkpoint.iter().find(|row| row.ticket.as_ref() == Some(&bound.ticket));
                        prop_assert_eq!(truth.map(|row| &row.holder), Some(&bound.holder));
                        prop_assert_eq!(
                            self.given.get(&bound.ticket),
                            Some(&bound.device_shares),
                            "what it got is what it reads"
                        );
                        let at = self.pods[n]
                            .requests
                            .iter()
                            .position(|request| request.container == bound.holder.container)
                            .unwrap();
                        let numbers = |of: &[DeviceShare]| of.iter().map(|p| (p.memory, p.cores)).collect::<Vec<_>>();
                        prop_assert_eq!(
                            numbers(&bound.device_shares),
                            numbers(&self.claims[n][at]),
                            "by its own numbers"
                        );
                    }
                    self.started.insert(n);
                }
                StartVerdict::Refuse { why: Refusal::Mistaken { .. }, .. } => {
                    self.mistaken.insert(n);
                    return Ok(());
                }
                StartVerdict::Refuse { why: Refusal::DoesNotFit { .. } | Refusal::Finished, .. }
                | StartVerdict::Wait(WaitReason::Pod | WaitReason::Checkpoint) => return Ok(()),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        self.no_gpu_is_overcommitted()
    }

    /// Checks each GPU by what the containers were given, not by the allocator's state.
    fn no_gpu_is_overcommitted(&self) -> Result<(), TestCaseError> {
        for gpu in 0..2 {
            let (mut memory, mut cores) = (0, 0);
            for n in &self.started {
                let own = |request: &model::request::ContainerRequest| {
                    let key = ContainerKey { pod: uid(number(*n)), container: request.container.clone() };
                    let ticket =
                        self.checkpoint.iter().find(|row| row.holder == key).and_then(|row| row.ticket.as_ref());
                    ticket.and_then(|ticket| self.given.get(ticket)).cloned().unwrap_or_default()
                };
                let given: Claim = self.pods[*n].requests.iter().map(own).collect();
                let claimed = demand_of(&self.pods[*n], &given, &device(gpu));
                memory += claimed.memory;
                cores += claimed.cores;
            }
            prop_assert!(memory <= 80 * GIB && cores <= 100, "{} bytes and {} % of {}", memory, cores, gpu);
        }
        Ok(())
    }

    fn leave(&mut self, n: usize) {
        self.gone.insert(n);
        self.started.remove(&n);
        self.checkpoint.retain(|row| row.holder.pod != uid(number(n)));
        self.show_pods();
    }
}

/// Pods that fit together on two GPUs. A shape has: whether the pod has an init container, whether its app container
/// has two GPUs, which GPU it has otherwise, and how much memory.
fn pods(shapes: &[(bool, bool, u32, u64)]) -> Vec<GpuPod> {
    let mut made: Vec<GpuPod> = Vec::new();
    for (n, (init, two, gpu, shape)) in shapes.iter().enumerate() {
        let own = |gpu: u32| device_share(gpu, 8 + 8 * shape, 5);
        let mut requests = vec![request("main", ContainerRole::App, if *two { 2 } else { 1 })];
        let mut claim = vec![if *two { vec![own(0), own(1)] } else { vec![own(*gpu)] }];
        if *init {
            requests.insert(0, request("warm", ContainerRole::Init, 1));
            claim.insert(0, vec![own(1 - *gpu)]);
        }
        made.push(gpu_pod(number(n), requests, PodClaim::Given(claim.clone().into())));
        let sum = |gpu: u32| {
            let of = |pod: &GpuPod| match &pod.claim {
                PodClaim::Given(claim) => demand_of(pod, claim, &device(gpu)).memory,
                _ => 0,
            };
            made.iter().map(of).sum::<u64>()
        };
        if sum(0) > 80 * GIB || sum(1) > 80 * GIB {
            made.pop();
            break;
        }
    }
    made
}

#[derive(Clone, Debug)]
enum Step {
    See(usize),
    Admit(usize, Option<usize>),
    Start(usize),
    Leave(usize),
    Fail,
    Restart,
    Patches(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = 0_usize..10;
    let step = prop_oneof![
        4 => n.clone().prop_map(Step::See),
        5 => n.clone().prop_map(|n| Step::Admit(n, None)),
        1 => (n.clone(), 0_usize..2).prop_map(|(n, at)| Step::Admit(n, Some(at))),
        5 => n.clone().prop_map(Step::Start),
        1 => n.prop_map(Step::Leave),
        1 => Just(Step::Fail),
        1 => Just(Step::Restart),
        1 => any::<bool>().prop_map(Step::Patches),
    ];
    prop::collection::vec(step, 1..80)
}

fn play(world: &mut World, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut admitted = BTreeSet::new();
    let mut admissions: VecDeque<usize> = VecDeque::new();
    for step in steps {
        match step {
            Step::See(n) if *n < world.pods.len() => {
                world.see([*n]);
            }
            Step::Admit(n, dies) if *n < world.pods.len() && !world.gone.contains(n) && admitted.insert(*n) => {
                world.admit(*n, *dies);
                admissions.push_back(*n);
            }
            Step::Start(n) if admitted.contains(n) && !world.failed.contains(n) && !world.gone.contains(n) => {
                world.start(*n)?;
            }
            Step::Leave(n) if *n < world.pods.len() => world.leave(*n),
            // The kubelet reports late that it has failed a pod.
            Step::Fail => {
                while let Some(n) = admissions.pop_front() {
                    if world.failed.contains(&n) {
                        world.show_pods();
                    }
                }
            }
            Step::Restart => world.restart(),
            Step::Patches(land) => world.patches_land = *land,
            _ => {}
        }
        prop_assert_eq!(&world.allocator.ledger, &world.allocator.ledger_from_nothing(), "after {:?}", step);
    }
    Ok(())
}

proptest! {
    /// Promise 28 in docs/specification.md, without CDI.
    #[test]
    fn in_every_sequence_no_container_starts_with_anothers_devices(
        shapes in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u32..2, 0_u64..3), 1..10),
        steps in steps(),
    ) {
        let mut world = World::new(pods(&shapes));
        play(&mut world, &steps)?;
        // In the end the watch has shown every pod, and each admitted pod starts or is refused with a reason.
        world.see(0..world.pods.len());
        for n in 0..world.pods.len() {
            if !world.gone.contains(&n) && !world.failed.contains(&n) {
                world.start(n)?;
            }
        }
    }

    /// The kubelet admits pods in the order in which its watch shows them. If the agent's watch shows them in time, the
    /// agent always expects the right pod, whatever UIDs the pods have.
    #[test]
    fn the_agent_expects_the_right_pod_if_the_kubelet_admits_in_the_order_of_arrival(
        shapes in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u32..2, 0_u64..3), 1..10),
        order in Just((0_usize..9).collect::<Vec<_>>()).prop_shuffle(),
        together in 1_usize..10,
        restarts in prop::collection::vec(any::<bool>(), 9),
    ) {
        let mut world = World::new(pods(&shapes));
        let order: Vec<usize> = order.into_iter().filter(|n| *n < world.pods.len()).collect();
        for update in order.chunks(together) {
            world.see(update.iter().copied());
            for n in update {
                world.admit(*n, None);
                // The kubelet may have failed the pod, because there were not enough slots.
                world.show_pods();
                if restarts[*n] {
                    world.restart();
                }
            }
        }
        for n in order.iter().filter(|n| !world.failed.contains(n)).copied().collect::<Vec<_>>() {
            world.start(n)?;
            prop_assert!(world.started.contains(&n), "{n} does not start");
        }
        prop_assert_eq!((&world.mistaken, &world.written), (&BTreeSet::new(), &world.claims), "as the scheduler wrote it");
    }

    /// Claims with the same amounts are exchanged, and no pod is refused.
    #[test]
    fn pods_with_equal_requests_all_start_in_any_order(
        gpus in prop::collection::vec(0_u32..2, 1..9),
        order in Just((0_usize..9).collect::<Vec<_>>()).prop_shuffle(),
        seen in prop::collection::vec(any::<bool>(), 9),
        restarts in prop::collection::vec(any::<bool>(), 9),
    ) {
        let mut world = World::new(pods(&gpus.iter().map(|gpu| (false, false, *gpu, 1)).collect::<Vec<_>>()));
        let first: Vec<usize> = (0..world.pods.len()).filter(|n| seen[*n]).collect();
        world.see(first);
        let order: Vec<usize> = order.into_iter().filter(|n| *n < world.pods.len()).collect();
        for n in &order {
            world.admit(*n, None);
            if restarts[*n] {
                world.restart();
            }
        }
        world.see(0..world.pods.len());
        for n in &order {
            world.start(*n)?;
        }
        prop_assert_eq!(&world.failed, &BTreeSet::new());
        prop_assert_eq!(world.started.len(), world.pods.len(), "mistaken: {:?}", world.mistaken);
        let per_gpu = |claims: &[Claim]| {
            let mut all: Vec<_> = claims.iter().flatten().flatten().map(|device_share| device_share.device.clone()).collect();
            all.sort();
            all
        };
        prop_assert_eq!(per_gpu(&world.written), per_gpu(&world.claims), "the scheduler's sums stay what they were");
    }
}
