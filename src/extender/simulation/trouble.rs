//! The troubles that occur, and the actions of users.

use super::etcd::{Content, Kind};
use super::machine::MIB;
use super::object::{ContainerShape, SimNode, SimPod};
use super::random::Random;
use super::weather::{MS, SECOND};
use super::world::{Step, World};
use model::id::PodUid;
use model::request::ContainerRole;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::annotation_keys::REGISTER;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Crash,
    Pause,
    Sleep,
    Stop,
    Cut,
    Outage,
    BusyMachine,
    WallJump,
    EndWatches,
    Compact,
    Restore,
    LeaseDeleted,
    MachineDies,
    OtherGpus,
    Sickness,
    /// Processes that belong to no pod use memory of a GPU, or free it again.
    Stranger,
    AgentEnds,
    AgentLeaves,
    AgentIsSilent,
    StreamBreaks,
    StreamIsRenewed,
    SchedulerRestarts,
    /// A person overwrites a claim by hand, or puts it back.
    ClaimTampered,
    /// A person overwrites the register of a Node.
    RegisterTampered,
    /// A policy or a webhook forbids all writes of one object, until it is changed.
    Forbidden,
    /// All connections of an extender die silently.
    ConnectionsDie,
}

const ALL: [Trouble; 26] = [
    Trouble::Crash,
    Trouble::Pause,
    Trouble::Sleep,
    Trouble::Stop,
    Trouble::Cut,
    Trouble::Outage,
    Trouble::BusyMachine,
    Trouble::WallJump,
    Trouble::EndWatches,
    Trouble::Compact,
    Trouble::Restore,
    Trouble::LeaseDeleted,
    Trouble::MachineDies,
    Trouble::OtherGpus,
    Trouble::Sickness,
    Trouble::Stranger,
    Trouble::AgentEnds,
    Trouble::AgentLeaves,
    Trouble::AgentIsSilent,
    Trouble::StreamBreaks,
    Trouble::StreamIsRenewed,
    Trouble::SchedulerRestarts,
    Trouble::ClaimTampered,
    Trouble::RegisterTampered,
    Trouble::Forbidden,
    Trouble::ConnectionsDie,
];

/// The troubles of a while.
#[derive(Clone, Debug)]
pub(super) struct Troubles {
    kinds: Vec<Trouble>,
    /// The longest time between two troubles.
    pace: u64,
    /// Maximum number of pods for each GPU.
    pods: usize,
    /// The priorities of pods.
    priorities: &'static [i32],
    /// How many of a thousand pods request no GPU, and how many have scheduling gates.
    plain: u64,
    gates: u64,
}

impl Troubles {
    /// Chooses some kinds of trouble, because some errors show only if no other trouble disturbs.
    pub(super) fn of(random: &mut Random) -> Troubles {
        let rare = [Trouble::Restore, Trouble::MachineDies, Trouble::OtherGpus, Trouble::ConnectionsDie];
        let kinds = ALL.into_iter().filter(|kind| random.chance(if rare.contains(kind) { 150 } else { 400 })).collect();
        Troubles {
            kinds,
            pace: random.one_of(&[2, 5, 10, 20]) * SECOND,
            pods: 2 + random.place(6),
            priorities: if random.chance(500) { &[0, 0, 0, 10, 20] } else { &[0] },
            plain: random.one_of(&[0, 50, 200]),
            gates: random.one_of(&[0, 50, 200]),
        }
    }
}

impl World {
    /// Makes one trouble.
    pub(super) fn trouble(&mut self) {
        if self.calm {
            return;
        }
        let next = self.random.between(100 * MS, self.troubles.pace);
        self.after(next, Step::Trouble);
        if self.troubles.kinds.is_empty() {
            return;
        }
        let kind = self.troubles.kinds[self.random.place(self.troubles.kinds.len())];
        let place = self.random.place(self.places.len());
        let machine = self.random.place(self.machines.len());
        let while_ = self.random.between(SECOND / 10, 30 * SECOND);
        self.api.etcd.note(|| format!("trouble: {kind:?} place {place} machine {machine} {while_}"));
        match kind {
            Trouble::Compact => {
                let version =
                    self.api.etcd.version - self.random.below(self.api.etcd.version - self.api.etcd.compacted + 1);
                self.api.etcd.compact(version);
            }
            Trouble::Restore if self.random.chance(200) => self.restore(),
            Trouble::Restore => {}
            Trouble::LeaseDeleted => self.lease_is_deleted(while_ < 10 * SECOND),
            Trouble::EndWatches => {
                for watch in self.api.watches.keys().copied().collect::<Vec<_>>() {
                    let broken = self.random.chance(500);
                    self.api.end_watch(watch, broken);
                }
            }
            Trouble::MachineDies | Trouble::OtherGpus | Trouble::Sickness | Trouble::Stranger | Trouble::AgentEnds => {
                self.machine_trouble(kind, machine, while_);
            }
            Trouble::AgentLeaves => self.reporters[machine].leaves(self.now),
            Trouble::AgentIsSilent => self.reporters[machine].is_silent(self.now + while_),
            Trouble::StreamIsRenewed => self.reporters[machine].renews(self.now),
            Trouble::StreamBreaks => {
                let (reporter, _, mut around) = self.agent_of(machine);
                reporter.breaks(&mut around);
            }
            Trouble::SchedulerRestarts => self.scheduler.restarts(),
            Trouble::ClaimTampered | Trouble::RegisterTampered | Trouble::Forbidden => {
                self.object_trouble(kind, machine)
            }
            Trouble::ConnectionsDie => self.connections_die(place),
            Trouble::Crash
            | Trouble::Pause
            | Trouble::Sleep
            | Trouble::Stop
            | Trouble::Cut
            | Trouble::Outage
            | Trouble::BusyMachine
            | Trouble::WallJump => self.process_trouble(kind, place, while_),
        }
    }

    /// A person changes an object by hand, or forbids or allows its writes.
    fn object_trouble(&mut self, kind: Trouble, machine: usize) {
        let random = &mut self.random;
        let pods: Vec<Arc<SimPod>> = self.api.etcd.pods().cloned().collect();
        let pod = pods.get(random.place(pods.len()));
        match kind {
            Trouble::ClaimTampered => {
                let claimed: Vec<_> = pods.iter().filter(|pod| pod.claim().is_some() || pod.is_unreadable()).collect();
                if let Some(pod) = claimed.get(random.place(claimed.len())) {
                    self.stream_checks.tampers(&pod.uid);
                    self.api.etcd.put_pod(pod.tampered(self.now, random.one_of(&["x", "", "?;GPU-0"])));
                }
            }
            Trouble::RegisterTampered => {
                let name = &self.machines[machine].name;
                if let Some(node) = self.api.etcd.get(Kind::Nodes, name).map(|stored| SimNode::clone(stored.node())) {
                    let annotations = BTreeMap::from([(REGISTER.to_owned(), "x".to_owned())]);
                    let node = SimNode { annotations, ..node };
                    self.api.etcd.put(Kind::Nodes, name, Content::Node(Arc::new(node)));
                }
            }
            _ => {
                let lease = "gpu-steward";
                let name = pod.filter(|_| random.chance(950)).map_or(lease, |pod| pod.name.as_str()).to_owned();
                let code = random.one_of(&[403, 422]);
                if self.api.forbidden.remove(&name).is_none() {
                    self.api.forbidden.insert(name, code);
                }
                if self.api.forbidden.len() > 3 {
                    self.api.forbidden.clear();
                }
            }
        }
    }

    /// All connections of an extender die silently: what is on its way gets no answer, and nothing ends. New connections work.
    fn connections_die(&mut self, place: usize) {
        let Some(process) = &self.places[place].process else { return };
        let number = process.number;
        for flight in self.flights.values_mut().filter(|flight| flight.process == number) {
            flight.died.get_or_insert(self.now);
        }
        self.api.watches_die(number, self.now);
        for reporter in &mut self.reporters {
            reporter.dies(number);
        }
    }

    /// The Lease is deleted; with `anew` a person installs the extenders anew.
    fn lease_is_deleted(&mut self, anew: bool) {
        self.api.etcd.delete(Kind::Leases, "gpu-steward");
        for place in (0..self.places.len()).filter(|_| anew) {
            (self.places[place].process, self.places[place].paused) = (None, false);
            self.after(MS, Step::Start(place));
        }
    }

    fn machine_trouble(&mut self, kind: Trouble, number: usize, while_: u64) {
        let machine = &mut self.machines[number];
        match kind {
            Trouble::AgentEnds => machine.agent_ends(self.now + if self.random.chance(500) { 0 } else { while_ / 3 }),
            Trouble::Sickness => {
                let gpu = self.random.place(machine.gpus.len());
                machine.gpus[gpu].healthy = !machine.gpus[gpu].healthy;
                // The driver may hang at the same time.
                if let Some(agent) = machine.agent.as_mut().filter(|_| self.random.chance(500)) {
                    agent.lists_at = self.now + while_ / 2;
                }
            }
            Trouble::Stranger => {
                let gpu = machine.gpus[self.random.place(machine.gpus.len())].uuid.clone();
                // A little, such as a context of the driver, keeps no pod away.
                machine.strangers.insert(gpu, self.random.one_of(&[0, 0, 50, 1000, 5000, 9000]));
            }
            _ if machine.up => {
                machine.dies(&mut self.api);
                if kind == Trouble::OtherGpus {
                    machine.replace_gpus(number, machine.gpus.len());
                }
                self.after(while_, Step::Boot(number));
            }
            _ => {}
        }
    }

    fn process_trouble(&mut self, kind: Trouble, at: usize, while_: u64) {
        let random = &mut self.random;
        let place = &mut self.places[at];
        match (kind, &mut place.process) {
            (Trouble::Cut, _) => {
                place.cut = true;
                self.after(while_, Step::Join(at));
            }
            (Trouble::Outage, _) => {
                for at in 0..self.places.len() {
                    self.places[at].cut = true;
                    self.after(while_, Step::Join(at));
                }
            }
            (Trouble::BusyMachine, _) => place.busy = random.one_of(&[5 * MS, 20 * MS, 200 * MS, 2 * SECOND]),
            (_, None) => {}
            (Trouble::Crash, process) => {
                *process = None;
                place.paused = false;
                self.after(while_ / 4, Step::Start(at));
            }
            (Trouble::Pause, Some(process)) => {
                let number = process.number;
                place.paused = true;
                self.after(while_ / 2, Step::Resume(at, number));
            }
            (Trouble::Sleep, Some(process)) => process.sleeps(while_),
            (Trouble::WallJump, Some(process)) => process.wall_jumps(random.below(2_000_000_000) * 1_000_000),
            // The process ends once its Lease is released; here it is dropped a while later.
            (_, Some(process)) => {
                let number = process.number;
                process.stop();
                self.after(while_ / 2, Step::End(at, number));
            }
        }
    }

    /// etcd goes back to an older state.
    pub(super) fn restore(&mut self) {
        if self.api.etcd_snapshots.is_empty() {
            return;
        }
        let snapshot = self.random.place(self.api.etcd_snapshots.len());
        let snapshot = self.api.etcd_snapshots.swap_remove(snapshot);
        self.api.etcd.restore(snapshot);
        self.api.etcd_snapshots.clear();
        self.checks.restored(self.now);
        self.stream_checks.restored(self.now);
    }

    /// Users and controllers do one thing.
    pub(super) fn users(&mut self) {
        let pause = self.random.between(5 * MS, if self.calm { SECOND } else { 250 * MS });
        self.after(pause, Step::Users);
        self.collect_garbage();
        if self.calm {
            return;
        }
        let pods: Vec<Arc<SimPod>> = self.api.etcd.pods().cloned().collect();
        let any = pods.get(self.random.place(pods.len())).cloned();
        let gpus: usize = self.machines.iter().map(|machine| machine.gpus.len()).sum();
        match self.random.below(100) {
            0..50 if pods.len() < self.troubles.pods * gpus => self.create(),
            50..58 => any.iter().for_each(|pod| self.api.delete_pod(&pod.name)),
            // With a grace period of zero.
            58..60 => any.iter().for_each(|pod| self.api.etcd.delete(Kind::Pods, &pod.name)),
            60..75 => any.iter().for_each(|pod| self.touch(pod)),
            75..90 => {
                let machine = self.random.place(self.machines.len());
                self.machines[machine].end_one(self.now, &mut self.random);
            }
            90..93 => {
                let snapshot = self.api.etcd.snapshot();
                self.api.etcd_snapshots.push(snapshot);
                if self.api.etcd_snapshots.len() > 4 {
                    self.api.etcd_snapshots.remove(0);
                }
            }
            _ => any.iter().filter(|pod| pod.ended()).for_each(|pod| self.api.delete_pod(&pod.name)),
        }
    }

    /// Pods of Nodes that are gone are deleted after a while.
    fn collect_garbage(&mut self) {
        for machine in self.machines.iter().filter(|machine| !machine.up) {
            self.api.etcd.delete(Kind::Nodes, &machine.name);
        }
        let etcd = &self.api.etcd;
        let lost = |pod: &&Arc<SimPod>| {
            !pod.is_extender() && pod.node.as_ref().is_some_and(|node| etcd.get(Kind::Nodes, node).is_none())
        };
        let lost = etcd.pods().find(lost).map(|pod| pod.name.clone());
        if let Some(name) = lost.filter(|_| self.random.chance(if self.calm { 1000 } else { 20 })) {
            self.api.etcd.delete(Kind::Pods, &name);
        }
    }

    /// Something unimportant about the pod changes, or its gates are removed.
    fn touch(&mut self, pod: &SimPod) {
        let mut pod = SimPod { gated: false, ..pod.clone() };
        pod.annotations.insert("gpu-steward.io/note".to_owned(), self.now.to_string());
        self.api.etcd.put_pod(pod);
    }

    fn create(&mut self) {
        let random = &mut self.random;
        let container = |random: &mut Random, name: &str, role| {
            let gpus = random.one_of(&[1, 1, 1, 1, 2]);
            let mib = random.one_of(&[1000, 2500, 4000, 5000, 6000, MIB]);
            ContainerShape { name: name.to_owned(), role, gpus, mib, cores: random.one_of(&[0, 0, 30, 50, 100]) }
        };
        let mut shape = Vec::new();
        if random.chance(350) {
            shape.push(container(random, "warm", ContainerRole::Init));
        }
        if random.chance(100) {
            let side = container(random, "side", ContainerRole::Sidecar);
            shape.push(ContainerShape { gpus: random.one_of(&[0, side.gpus]), ..side });
        }
        shape.push(container(random, "main", ContainerRole::App));
        if random.chance(100) {
            shape.push(container(random, "second", ContainerRole::App));
        }
        // One that requests no GPU may name memory of GPUs, by mistake.
        if random.chance(self.troubles.plain) {
            let mib = random.one_of(&[0, 4000]);
            shape = vec![ContainerShape { gpus: 0, mib, ..container(random, "main", ContainerRole::App) }];
        }
        // A user, or another scheduler, chooses the node.
        let node = random.chance(15).then(|| format!("node-{}", random.place(self.machines.len())));
        let gated = node.is_none() && random.chance(self.troubles.gates);
        let priority = random.one_of(self.troubles.priorities);
        self.create_pod(shape, |pod| SimPod { node, gated, priority, ..pod });
    }

    pub(super) fn create_pod(&mut self, shape: Vec<ContainerShape>, with: impl FnOnce(SimPod) -> SimPod) {
        self.made += 1;
        // Names are used again.
        let name = format!("pod-{}", self.made % 40);
        if self.api.etcd.pod(&name).is_some() {
            return;
        }
        let uid =
            PodUid::parse(&format!("{:08x}-0000-4000-8000-{:012x}", self.made, self.random.below(1 << 40))).unwrap();
        self.api.etcd.put_pod(with(SimPod::new(uid, name, shape, self.now)));
    }
}
