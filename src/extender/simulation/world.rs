//! The simulated cluster: everything that happens is a step in one queue, ordered by simulated time.
//!
//! ```text
//!   Run ──requests──▶ CarryOut ──▶ Answer ─▶ process       Cache ─▶ Deliver ─▶ process
//!   Machine, Agent, Scheduler, Users, Trouble: each does one thing and comes again after a while
//! ```

use super::api_server::{self, ApiServers, Flight, Reply, SERVERS, refusal};
use super::etcd::{Etcd, Kind};
use super::invariants::{self, Invariants};
use super::kube_scheduler::{Asked, KubeScheduler};
use super::machine::Machine;
use super::object::{NAMESPACE, SimPod};
use super::process::{MachineClock, Process};
use super::random::Random;
use super::reporter::{Reporter, Surroundings};
use super::strangers::StrangerChecks;
use super::stream_checks::StreamChecks;
use super::trouble::Troubles;
use super::weather::{Fate, MS, SECOND, Weather};
use decide::election::ElectionTimes;
use model::id::{PodRef, PodUid};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::time::Duration;
use wire::annotation_keys::WAKE;

/// How long a request without an answer stays open.
const HANGS: u64 = 60 * SECOND;
/// An extender gives up a connection that died silently within this time: it waits 75 s for a watch that is quiet, and may be
/// paused in that time.
const NOTICES: u64 = 180 * SECOND;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The process at this place does some of its work, if it still has this number.
    Run(usize, u64),
    CarryOut(u64),
    Answer(u64),
    Cache(usize, bool),
    Deliver(u64),
    EndWatch(u64),
    Machine(usize),
    /// The agent of this machine goes on with its streams.
    Agent(usize),
    Scheduler,
    Users,
    Trouble,
    /// A process starts at a place without a process.
    Start(usize),
    /// A process that was stopped has ended.
    End(usize, u64),
    /// A paused process goes on.
    Resume(usize, u64),
    Boot(usize),
    /// The network of a process works again.
    Join(usize),
}

/// A place where an extender runs.
pub(super) struct Place {
    pub(super) process: Option<Process>,
    pub(super) paused: bool,
    /// No packet comes through.
    pub(super) cut: bool,
    pub(super) clock: MachineClock,
    /// How busy the place's machine is: the longest time between two runs.
    pub(super) busy: u64,
}

/// The cluster.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Step)>>,
    ordered: u64,
    pub(super) events: u64,
    pub(super) api: ApiServers,
    pub(super) flights: BTreeMap<u64, Flight>,
    flown: u64,
    pub(super) places: Vec<Place>,
    started: u64,
    pub(super) machines: Vec<Machine>,
    /// The streams of the agent of each machine.
    pub(super) reporters: Vec<Reporter>,
    pub(super) scheduler: KubeScheduler,
    pub(super) weather: Weather,
    pub(super) troubles: Troubles,
    pub(super) calm: bool,
    /// Watches show nothing.
    pub(super) held: bool,
    /// Extenders run in pods, and can mark them.
    in_pods: bool,
    pub(super) times: ElectionTimes,
    pub(super) checks: Invariants,
    pub(super) stream_checks: StreamChecks,
    stranger_checks: StrangerChecks,
    pub(super) trace: u64,
    pub(super) made: u64,
    pub(super) failed: Option<String>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let short = ElectionTimes {
            lease: Duration::from_secs(3),
            renew_deadline: Duration::from_secs(2),
            retry: Duration::from_millis(500),
        };
        let times = if random.chance(800) { short } else { ElectionTimes::default() };
        let in_pods = random.chance(500);
        let (weather, troubles) = (Weather::of(&mut random), Troubles::of(&mut random));
        let (gpus, count) = (1 + random.place(2), random.place(3));
        let manifest = random.one_of(&[None, Some(0), Some(1)]);
        let mut machine = |number| Machine::new(number, gpus, manifest.filter(|_| random.chance(500)));
        let machines: Vec<Machine> = (0..1 + count).map(&mut machine).collect();
        let place = |random: &mut Random| Place {
            process: None,
            paused: false,
            cut: false,
            clock: MachineClock {
                boot: random.below(1000) * SECOND,
                wall: 1_795_000_000 * SECOND + random.below(600) * SECOND,
                drift: random.below(3) * 10_000,
            },
            busy: 5 * MS,
        };
        let places = (0..2).map(|_| place(&mut random)).collect();
        let mut world = World {
            random,
            now: SECOND,
            queue: BinaryHeap::new(),
            ordered: 0,
            events: 0,
            api: ApiServers::default(),
            flights: BTreeMap::new(),
            flown: 0,
            places,
            started: 0,
            reporters: machines.iter().map(|_| Reporter::default()).collect(),
            machines,
            scheduler: KubeScheduler::default(),
            weather,
            troubles,
            calm: false,
            held: false,
            in_pods,
            times,
            checks: Invariants::default(),
            stream_checks: StreamChecks::default(),
            stranger_checks: StrangerChecks::default(),
            trace: seed,
            made: 0,
            failed: None,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for place in 0..self.places.len() {
            self.after(place as u64 * 100 * MS, Step::Start(place));
        }
        for server in 0..SERVERS {
            self.after(0, Step::Cache(server, true));
            self.after(0, Step::Cache(server, false));
        }
        for machine in 0..self.machines.len() {
            self.after(0, Step::Boot(machine));
            self.after(MS, Step::Machine(machine));
            self.after(MS, Step::Agent(machine));
        }
        for step in [Step::Scheduler, Step::Users, Step::Trouble] {
            self.after(SECOND, step);
        }
    }

    /// Adds a step after this time.
    pub(super) fn after(&mut self, nanos: u64, step: Step) {
        self.ordered += 1;
        self.queue.push(Reverse((self.now + nanos, self.ordered, step)));
    }

    /// Does steps until this moment, or until something fails.
    pub(super) fn run_until(&mut self, end: u64) {
        while self.failed.is_none() && self.now < end {
            let Some(Reverse((at, _, step))) = self.queue.pop() else { return };
            (self.now, self.api.etcd.now) = (at, at);
            self.events += 1;
            // Two runs of one seed have the same trace.
            let mixed = self.trace ^ at ^ (self.api.etcd.version << 20) ^ (self.flown << 40);
            self.trace = mixed.wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
            if let Err(why) = self.step(step) {
                self.failed = Some(why);
            }
        }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Run(place, number) => return self.run(place, number),
            Step::CarryOut(flight) => return self.carry_out(flight),
            Step::Answer(flight) => return self.answer(flight),
            Step::Cache(server, pods) => {
                let kind = if pods { Kind::Pods } else { Kind::Nodes };
                self.api.cache(server, kind, &mut self.random);
                let pause = match self.calm {
                    true => 60 * MS,
                    false if self.random.chance(self.weather.stale) => self.random.between(SECOND, 15 * SECOND),
                    false => 3 * self.weather.way(&mut self.random),
                };
                self.after(pause, step);
            }
            Step::Deliver(watch) => return self.deliver(watch),
            Step::EndWatch(watch) => self.api.end_watch(watch, false),
            Step::Machine(number) => {
                let started = self.machines[number].step(&mut self.api, &mut self.random);
                if started.is_some() {
                    invariants::started(&self.machines[number])?;
                }
                let pause = self.random.between(MS, if self.calm { 150 * MS } else { 40 * MS });
                self.after(pause, step);
            }
            Step::Agent(number) => {
                let (reporter, machine, mut around) = self.agent_of(number);
                reporter.step(machine, &mut around);
                let pause = self.random.between(5 * MS, if self.calm { 200 * MS } else { 60 * MS });
                self.after(pause, step);
            }
            Step::Scheduler => return self.schedule(),
            Step::Users => self.users(),
            Step::Trouble => self.trouble(),
            Step::Start(place) => self.start(place),
            Step::End(place, number) => {
                if self.places[place].process.as_ref().is_some_and(|process| process.number == number) {
                    (self.places[place].process, self.places[place].paused) = (None, false);
                }
                self.start(place);
            }
            Step::Resume(place, number) => self.resume(place, number),
            Step::Boot(number) => {
                let machine = &mut self.machines[number];
                if !machine.up {
                    machine.boots(&mut self.api, &mut self.random);
                }
            }
            Step::Join(place) => self.places[place].cut = false,
        }
        Ok(())
    }

    /// The streams of an agent, its machine, and what it meets.
    pub(super) fn agent_of(&mut self, number: usize) -> (&mut Reporter, &mut Machine, Surroundings<'_>) {
        let around = Surroundings {
            now: self.now,
            calm: self.calm,
            api: &mut self.api,
            extenders: self.places.iter().filter_map(|place| Some((place.process.as_ref()?, !place.cut))).collect(),
            weather: &self.weather,
            random: &mut self.random,
            checks: &mut self.stream_checks,
        };
        (&mut self.reporters[number], &mut self.machines[number], around)
    }

    /// Starts a process at a place without a process.
    pub(super) fn start(&mut self, place: usize) {
        if self.places[place].process.is_some() {
            return;
        }
        self.started += 1;
        let (number, seed) = (self.started, self.random.number());
        self.api.etcd.note(|| format!("extender-{number} starts at place {place}"));
        let pod = self.in_pods.then(|| self.pod_of(place));
        let process = Process::start((number, pod), self.now, self.times, self.places[place].clock, seed);
        self.places[place].process = Some(process);
        self.after(0, Step::Run(place, number));
    }

    /// The pod of a place, which a Deployment makes again when it is gone.
    fn pod_of(&mut self, place: usize) -> (PodUid, PodRef) {
        let uid = PodUid::parse(&format!("e0000000-0000-4000-8000-{:012x}", self.started)).unwrap();
        let pod = SimPod::of_extender(uid, place, self.now);
        let name = pod.name.clone();
        if self.api.etcd.pod(&name).is_none() {
            self.api.etcd.put_pod(pod);
        }
        let uid = self.api.etcd.pod(&name).unwrap().uid.clone();
        (uid, PodRef { namespace: NAMESPACE.into(), name: name.into() })
    }

    pub(super) fn resume(&mut self, place: usize, number: u64) {
        if self.places[place].process.as_ref().is_some_and(|process| process.number == number) {
            self.places[place].paused = false;
            self.after(0, Step::Run(place, number));
        }
    }

    fn run(&mut self, place: usize, number: u64) -> Result<(), String> {
        let steps = self.random.between(1, 24);
        // The place is gone if the process was started only to compare its state with the leader's.
        let Some(at) = self.places.get_mut(place) else { return Ok(()) };
        let busy = at.busy;
        let Some(process) = at.process.as_mut().filter(|process| process.number == number && !at.paused) else {
            return Ok(());
        };
        process.run(self.now, steps)?;
        let sent: Vec<_> = std::mem::take(&mut *process.outbox.lock());
        let decides = self.checks.ran(process, self.times.renew_deadline, &self.api.etcd)?;
        self.stream_checks.ran(process, decides && !process.lapsed, &self.api.etcd)?;
        self.stranger_checks.ran(process, decides && !process.lapsed);
        for request in sent {
            self.send(place, number, request)?;
        }
        let pause = self.random.between(MS / 5, if self.calm { 60 * MS } else { busy });
        self.after(pause, Step::Run(place, number));
        Ok(())
    }

    fn send(&mut self, place: usize, process: u64, request: super::network::Outgoing) -> Result<(), String> {
        let binding = request.path.last().is_some_and(|last| last == "binding");
        let fate = match self.places[place].cut {
            true => Fate::NoAnswer,
            false => Fate::of(&self.weather, binding, &mut self.random),
        };
        self.flown += 1;
        let (number, path) = (self.flown, request.path.last().cloned().unwrap_or_default());
        self.api.etcd.note(|| {
            let (method, query, body) = (&request.method, &request.query, &request.body["metadata"]["uid"]);
            format!("extender-{process} sends {number}: {method} {path} {query:?} {body} ({fate:?})")
        });
        if binding {
            let arrives = !matches!(fate, Fate::LostRequest | Fate::NoAnswer | Fate::Refused(_));
            let sent = self.checks.sends((process, self.flown), &request, arrives, &self.api.etcd)?;
            if let Some((uid, node)) = sent {
                self.stream_checks.sends(process, &node, &uid, &self.api.etcd)?;
                if let Some(sender) = &self.places[place].process {
                    self.stranger_checks.sends(sender, &node, &uid)?;
                }
            }
        }
        if !request.body["metadata"]["annotations"][WAKE].is_null() {
            self.checks.wakes(process, &request)?;
        }
        let server = self.random.place(SERVERS);
        self.flights.insert(self.flown, Flight { process, server, request, fate, reply: None, died: None });
        let way = match fate {
            Fate::Late => self.random.below(HANGS),
            _ => self.weather.way(&mut self.random),
        };
        self.after(way, Step::CarryOut(self.flown));
        Ok(())
    }

    fn carry_out(&mut self, number: u64) -> Result<(), String> {
        let Some(mut flight) = self.flights.remove(&number) else { return Ok(()) };
        let mut wait = self.weather.way(&mut self.random);
        if flight.died.is_some() && self.random.chance(500) {
            flight.fate = Fate::NoAnswer;
        }
        flight.reply = match flight.fate {
            Fate::LostRequest => None,
            Fate::NoAnswer => {
                wait = HANGS;
                None
            }
            Fate::Refused(503) => Some(Reply::Whole(503, "upstream connect error".to_owned())),
            Fate::Refused(code) => Some(refusal(code, "the simulation refuses")),
            Fate::Answered | Fate::Denied(_) | Fate::LostAnswer | Fate::Late => {
                let reply = self.api.carry_out(&flight, self.now, &mut self.random, &self.weather);
                self.api.etcd.note(|| format!("{number} is carried out: {reply:.60?}"));
                self.carried_out(number, &flight, &reply)?;
                match flight.fate {
                    Fate::Answered => Some(reply),
                    Fate::Denied(code) => Some(refusal(code, "etcdserver: request timed out")),
                    Fate::Late => {
                        wait = HANGS;
                        None
                    }
                    _ => None,
                }
            }
        };
        if let Some(Reply::Watch(_)) = &flight.reply {
            let watch = self.api.newest_watch();
            let ends = self.api.watches.get(&watch).map_or(0, |watch| watch.ends.saturating_sub(self.now));
            self.after(wait, Step::Deliver(watch));
            self.after(ends, Step::EndWatch(watch));
        }
        self.flights.insert(number, flight);
        self.after(wait, Step::Answer(number));
        Ok(())
    }

    fn carried_out(&mut self, number: u64, flight: &Flight, reply: &Reply) -> Result<(), String> {
        if let Some((holder, version)) = self.api.lease_written.take() {
            self.checks.lease(&holder, version, self.now);
        }
        if let Some(bound) = self.api.bound.take() {
            self.checks.bound((flight.process, number), &bound, &self.api.etcd, &self.machines)?;
            let node = bound.pod.node.as_deref();
            let up = self.machines.iter().any(|machine| Some(machine.name.as_str()) == node && machine.up);
            if up && bound.pod.slots() > 0 {
                let streams = &self.stream_checks;
                self.checks.holders_are_known((flight.process, number), &bound, &self.api.etcd, streams)?;
            }
        } else if matches!(reply, Reply::Whole(400.., _))
            && flight.request.path.last().is_some_and(|last| last == "binding")
        {
            self.checks.refused(flight.process, number, &flight.request);
        }
        Ok(())
    }

    fn answer(&mut self, number: u64) -> Result<(), String> {
        let Some(flight) = self.flights.remove(&number) else { return Ok(()) };
        if let Some(died) = flight.died {
            return match flight.request.answer.is_closed() {
                true => Ok(()),
                false => {
                    let process = flight.process;
                    self.flights.insert(number, flight);
                    self.is_silent(process, died, Step::Answer(number))
                }
            };
        }
        let Flight { process, request, reply, .. } = flight;
        if let Some(place) =
            self.places.iter().find(|place| place.process.as_ref().is_some_and(|one| one.number == process))
            && place.cut
        {
            return Ok(());
        }
        let lease = request.body["kind"] == "Lease" && request.body["spec"]["holderIdentity"] != "";
        if lease && matches!(reply, Some(Reply::Whole(200 | 201, _))) {
            self.checks.renewed(process, request.sent);
        }
        let lost = || Err(io::Error::other("connection reset by peer"));
        let _ = request.answer.send(reply.map_or_else(lost, api_server::answer));
        Ok(())
    }

    /// Something died silently with its connection; checks later whether the process has given it up.
    fn is_silent(&mut self, process: u64, died: u64, again: Step) -> Result<(), String> {
        self.after(SECOND, again);
        match self.now < died + NOTICES {
            true => Ok(()),
            false => Err(format!("extender-{process} still waits on a connection that has died")),
        }
    }

    fn deliver(&mut self, watch: u64) -> Result<(), String> {
        let Some((_, process, _)) = self.api.watch_is(watch) else { return Ok(()) };
        if let Some((died, given_up)) =
            self.api.watches.get(&watch).and_then(|one| Some((one.died?, one.is_given_up())))
        {
            if given_up {
                self.api.watches.remove(&watch);
                return Ok(());
            }
            return self.is_silent(process, died, Step::Deliver(watch));
        }
        let mut places =
            self.places.iter().filter(|place| place.process.as_ref().is_some_and(|one| one.number == process));
        let Some(place) = places.next() else {
            self.api.end_watch(watch, true);
            return Ok(());
        };
        let pause = if self.calm { 60 * MS } else { 2 * self.weather.way(&mut self.random) };
        if place.cut || self.held || self.api.deliver(watch, self.now, &mut self.random) {
            if self.random.chance(self.weather.broken_watch) && self.random.chance(100) {
                let broken = self.random.chance(500);
                self.api.end_watch(watch, broken);
                return Ok(());
            }
            self.after(pause, Step::Deliver(watch));
        }
        Ok(())
    }

    fn schedule(&mut self) -> Result<(), String> {
        match self.scheduler.step(self.now, &self.api, &self.machines, (&self.weather, &mut self.random)) {
            Some(Asked::Question(question)) => {
                let answers = self.scheduler.answers.clone();
                let place = &self.places[self.scheduler.asks % self.places.len()];
                match &place.process {
                    Some(process) => {
                        let (number, verb) = (process.number, question.verb);
                        self.scheduler.asked_old_leader = self.checks.newest_leader() != Some(number);
                        self.api
                            .etcd
                            .note(|| format!("kube-scheduler asks extender-{number} {verb:?} {:.1500}", question.body));
                        process.ask(question.number, question.verb, question.body, &answers);
                    }
                    None => answers.lock().push((question.number, Err("connection refused".to_owned()))),
                }
            }
            Some(Asked::Bound(uid, node)) => self.checks.answered(&uid, &node, &self.api.etcd)?,
            Some(Asked::Preempts { uid, node, victims }) => self.preempts(&uid, node, &victims),
            Some(Asked::Binds { uid, name, node }) => self.api.bind_by_scheduler(&name, uid.as_str(), &node),
            None => {}
        }
        let pause = self.random.between(MS, if self.calm { 60 * MS } else { 15 * MS });
        self.after(pause, Step::Scheduler);
        Ok(())
    }

    /// kube-scheduler deletes pods, and notes their node on the pod for which it deletes them.
    fn preempts(&mut self, uid: &PodUid, node: Option<String>, victims: &[PodUid]) {
        let named = |etcd: &Etcd, uid: &PodUid| etcd.pods().find(|pod| pod.uid == *uid).cloned();
        let victims: Vec<_> = victims.iter().filter_map(|victim| named(&self.api.etcd, victim)).collect();
        for victim in victims {
            self.api.etcd.note(|| format!("kube-scheduler evicts {} for {uid}", victim.name));
            self.api.delete_pod(&victim.name);
        }
        if let Some(pod) = named(&self.api.etcd, uid) {
            self.api.etcd.put_pod(SimPod { nominated: node, ..SimPod::clone(&pod) });
        }
    }

    /// A cluster without troubles and without users.
    pub(super) fn quiet(seed: u64) -> World {
        let mut world = World::new(seed);
        (world.calm, world.weather) = (true, Weather::default());
        world
    }

    /// Goes on until this is so.
    pub(super) fn until(&mut self, what: &str, mut is: impl FnMut(&mut World) -> bool) {
        let end = self.now + 60 * SECOND;
        while !is(self) {
            let next = self.now + 10 * MS;
            self.run_until(next);
            assert_eq!(self.failed, None);
            assert!(self.now < end, "not within a minute: {what}");
        }
    }

    /// Whether some extender decides.
    pub(super) fn led(&mut self) -> bool {
        self.places.iter_mut().any(|place| place.process.as_mut().is_some_and(Process::decides))
    }
}
