//! The simulated kube-scheduler: one pod at a time through filter and prioritize, then a bind in parallel with the next pods, with
//! the timeouts of the printed configuration. It counts `nvidia.com/gpu` itself, with a cache of pods that it expects to be bound. A
//! restart forgets that cache and every question.
//!
//! ```text
//!   filter, one likely node ──▶ filter, all nodes ──▶ prioritize ──▶ Permit: held, maybe refused ──▶ bind
//!                                      └─ no node fits ──▶ preempt ──▶ victims are deleted
//! ```
//!
//! A refused pod is tried again after an event, as in kube-scheduler's queue (`backend/queue/scheduling_queue.go`). An event that may
//! make room brings back all refused pods, and a change of a pod brings back this pod. An event that comes while a pod is being
//! placed counts too. The timer that brings a pod back after five minutes is left out, because it would hide a lost wake. A pod whose
//! call has failed needs no event.
//!
//! A pod has a likely node after an eviction there, or if kube-scheduler has just found that node for a similar pod. While a Permit
//! plugin holds pods, others are filtered; a plugin for gangs lets several pods go on at the same moment.

use super::super::measures::Verb;
use super::api_server::ApiServers;
use super::etcd::{Did, Kind};
use super::machine::Machine;
use super::object::{NAMESPACE, SimPod};
use super::process::{Answers, VerbAnswer};
use super::random::Random;
use super::weather::{SECOND, Weather};
use model::id::PodUid;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// `httpTimeout` of the printed configuration.
const TIMEOUT: u64 = 5 * SECOND;

/// Permit plugins of gangs release pods at multiples of this time.
const GATE: u64 = 2 * SECOND;

/// A pod without a node.
#[derive(Clone, Debug)]
pub(super) struct QueuedPod {
    pub(super) pod: Arc<SimPod>,
    pub(super) text: String,
    not_before: u64,
    pause: u64,
    /// No node fitted the pod, and no event has come since.
    waits: bool,
    /// The number of the newest event when the pod was tried last.
    tried: u64,
    /// The number of the newest change of the pod itself.
    changed: u64,
}

/// The pod that is being placed.
#[derive(Clone, Debug)]
struct Cycle {
    uid: PodUid,
    question: u64,
    until: u64,
    asks: CycleQuestion,
}

/// What is asked about a pod that is being placed.
#[derive(Clone, Debug)]
pub(super) enum CycleQuestion {
    /// The filter, for one node. If this node does not fit, the filter is asked for all nodes.
    Likely,
    /// The filter, for all nodes.
    Filter,
    /// The scores of these nodes, which fit.
    Prioritize(Vec<String>),
    /// Which evictions make room.
    Preempt,
}

/// A pod that a Permit plugin holds.
#[derive(Clone, Debug)]
struct HeldPod {
    node: String,
    until: u64,
    /// Whether the plugin lets the pod go on at `until`.
    goes_on: bool,
}

/// A bind under way.
#[derive(Clone, Debug)]
struct OpenBind {
    uid: PodUid,
    node: String,
    until: u64,
}

/// A question to an extender.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) verb: Verb,
    pub(super) body: String,
}

/// What a step has led to.
#[derive(Debug)]
pub(super) enum Asked {
    Question(Question),
    /// An extender has said that this pod is bound to this node.
    Bound(PodUid, String),
    /// A pod is bound to this node without the extender.
    Binds {
        uid: PodUid,
        name: String,
        node: String,
    },
    /// Pods are evicted to make room for this pod on this node; without a node nothing makes room for it.
    Preempts {
        uid: PodUid,
        node: Option<String>,
        victims: Vec<PodUid>,
    },
}

/// kube-scheduler.
#[derive(Debug, Default)]
pub(super) struct KubeScheduler {
    version: u64,
    /// The newest version of Nodes that the scheduler has seen.
    nodes: u64,
    listed: bool,
    /// The number of devices of each machine.
    allocatable: Vec<u64>,
    /// Number of events, and the number of the newest event that brings back all pods.
    events: u64,
    newest: u64,
    pub(super) queue: BTreeMap<PodUid, QueuedPod>,
    /// The pods that are bound and have not ended.
    pub(super) bound: BTreeMap<PodUid, Arc<SimPod>>,
    /// The node and the slots of each pod that the scheduler expects to be bound.
    assumed: BTreeMap<PodUid, (String, u64)>,
    cycle: Option<Cycle>,
    held: BTreeMap<PodUid, HeldPod>,
    binds: BTreeMap<u64, OpenBind>,
    pub(super) answers: Answers,
    questions: u64,
    /// The extender that is asked now.
    pub(super) asks: usize,
    /// The extender that was asked last no longer has the Lease, and does not know it.
    pub(super) asked_old_leader: bool,
}

impl KubeScheduler {
    /// A restart.
    pub(super) fn restarts(&mut self) {
        *self = KubeScheduler { questions: self.questions, asks: self.asks, ..KubeScheduler::default() };
    }

    /// Does one thing.
    pub(super) fn step(
        &mut self,
        at: u64,
        api: &ApiServers,
        machines: &[Machine],
        (weather, random): (&Weather, &mut Random),
    ) -> Option<Asked> {
        self.watch(api, machines, random);
        let answered = self.answers.lock().pop();
        if let Some((number, answer)) = answered {
            return match self.binds.remove(&number) {
                Some(bind) => self.bind_answered(bind, &answer, at),
                None => self.cycle_answered((number, answer), at, machines, (weather, random)),
            };
        }
        self.give_up(at);
        if let Some(due) = self.held.iter().find(|(_, held)| held.until <= at).map(|(uid, _)| uid.clone()) {
            return self.leaves_permit(due, at);
        }
        if self.cycle.is_none() { self.begin(at, machines, (weather, random)) } else { None }
    }

    fn watch(&mut self, api: &ApiServers, machines: &[Machine], random: &mut Random) {
        // The kubelets write it to the status of their Nodes.
        let allocatable: Vec<u64> = machines.iter().map(Machine::allocatable).collect();
        let nodes = api.etcd.newest(Kind::Nodes);
        if allocatable != self.allocatable || nodes != self.nodes {
            (self.allocatable, self.nodes) = (allocatable, nodes);
            self.may_make_room();
        }
        if !self.listed || self.version < api.etcd.compacted {
            (self.queue, self.bound) = Default::default();
            for stored in api.etcd.objects(Kind::Pods).values() {
                self.pod_is(stored.pod(), &stored.text);
            }
            (self.version, self.listed) = (api.etcd.version, true);
            return;
        }
        let changes = api.etcd.after(Kind::Pods, self.version);
        let some = if random.chance(600) { changes.len() } else { random.place(changes.len() + 1) };
        for change in &changes[..some] {
            let pod = change.object.pod();
            if change.did == Did::Delete {
                self.queue.remove(&pod.uid);
                self.bound.remove(&pod.uid);
                self.assumed.remove(&pod.uid);
                self.held.remove(&pod.uid);
                self.may_make_room();
            } else {
                self.pod_is(pod, &change.object.text);
            }
            self.version = change.version;
        }
    }

    fn pod_is(&mut self, pod: &Arc<SimPod>, text: &str) {
        match &pod.node {
            Some(node) => {
                // Room was made for it elsewhere.
                let queued = self.queue.remove(&pod.uid);
                if queued.is_some_and(|one| one.pod.nominated.as_ref().is_some_and(|nominated| nominated != node)) {
                    self.may_make_room();
                }
                self.assumed.remove(&pod.uid);
                self.held.remove(&pod.uid);
                if pod.ended() {
                    if self.bound.remove(&pod.uid).is_some() {
                        self.may_make_room();
                    }
                } else {
                    self.bound.insert(pod.uid.clone(), Arc::clone(pod));
                }
            }
            None if pod.deleted || pod.gated => drop(self.queue.remove(&pod.uid)),
            None => {
                self.bound.remove(&pod.uid);
                self.events += 1;
                let entry = self.queue.entry(pod.uid.clone()).or_insert_with(|| QueuedPod {
                    pod: Arc::clone(pod),
                    text: String::new(),
                    not_before: 0,
                    pause: SECOND,
                    waits: false,
                    tried: 0,
                    changed: 0,
                });
                let gives_up = entry.pod.nominated.is_some() && entry.pod.nominated != pod.nominated;
                (entry.pod, entry.text) = (Arc::clone(pod), text.to_owned());
                (entry.waits, entry.changed) = (false, self.events);
                if gives_up {
                    self.may_make_room();
                }
            }
        }
    }

    /// An event brings back all pods that were refused.
    fn may_make_room(&mut self) {
        self.events += 1;
        self.newest = self.events;
        self.queue.values_mut().for_each(|one| one.waits = false);
    }

    /// No node fits a pod: it waits for an event, unless one has come while it was being placed. While a Lease was deleted and taken
    /// by another extender, the former leader still answers. No other leader learns its answer about a new pod, so such a pod waits
    /// for the timer of five minutes; here it is tried after a pause.
    pub(super) fn is_refused(&mut self, uid: &PodUid, at: u64) {
        self.later(uid, at);
        let newest = self.newest;
        if let Some(one) = self.queue.get_mut(uid) {
            one.waits = !self.asked_old_leader && one.tried >= newest.max(one.changed);
        }
    }

    fn begin(&mut self, at: u64, machines: &[Machine], (weather, random): (&Weather, &mut Random)) -> Option<Asked> {
        let ready =
            |(uid, one): &(&PodUid, &QueuedPod)| one.not_before <= at && !one.waits && !self.assumed.contains_key(*uid);
        let ready: Vec<&PodUid> = self.queue.iter().filter(ready).map(|(uid, _)| uid).collect();
        let uid = (*ready.get(random.place(ready.len()))?).clone();
        self.queue.get_mut(&uid)?.tried = self.events;
        let nodes = self.fitting(&uid, machines);
        if nodes.is_empty() {
            return self.preempt(&uid, &BTreeSet::new(), at, (machines, random));
        }
        let pod = Arc::clone(&self.queue.get(&uid)?.pod);
        if !pod.is_managed() {
            self.later(&uid, at);
            let (name, node) = (pod.name.clone(), nodes[random.place(nodes.len())].clone());
            return Some(Asked::Binds { uid, name, node });
        }
        let nominated = pod.nominated.clone();
        let likely = nominated.filter(|node| nodes.contains(node));
        let likely =
            likely.or_else(|| Some(nodes[random.place(nodes.len())].clone()).filter(|_| random.chance(weather.hints)));
        match likely {
            Some(node) => self.ask(&uid, &[node], (Verb::Filter, CycleQuestion::Likely), at),
            None => self.ask(&uid, &nodes, (Verb::Filter, CycleQuestion::Filter), at),
        }
    }

    /// The machines that have enough slots for a pod.
    fn fitting(&self, uid: &PodUid, machines: &[Machine]) -> Vec<String> {
        let Some(one) = self.queue.get(uid) else { return Vec::new() };
        let fits = |machine: &&Machine| self.fits(machine, &one.pod, &[]);
        machines.iter().filter(fits).map(|machine| machine.name.clone()).collect()
    }

    /// Asks about these nodes.
    fn ask(&mut self, uid: &PodUid, nodes: &[String], (verb, asks): (Verb, CycleQuestion), at: u64) -> Option<Asked> {
        let body = format!(r#"{{"Pod":{},"Nodes":null,"NodeNames":{}}}"#, self.queue.get(uid)?.text, json!(nodes));
        Some(self.asked(uid, body, (verb, asks), at))
    }

    /// A question about the pod that is being placed.
    pub(super) fn asked(&mut self, uid: &PodUid, body: String, (verb, asks): (Verb, CycleQuestion), at: u64) -> Asked {
        let number = self.number();
        self.cycle = Some(Cycle { uid: uid.clone(), question: number, until: at + TIMEOUT, asks });
        Asked::Question(Question { number, verb, body })
    }

    /// Whether a machine has enough slots for a pod once these pods are gone from it. Pods for which room was made there count if
    /// their priority is not lower.
    pub(super) fn fits(&self, machine: &Machine, pod: &SimPod, gone: &[PodUid]) -> bool {
        let here = |node: Option<&String>| node == Some(&machine.name);
        let bound = self.bound.iter().filter(|(uid, one)| here(one.node.as_ref()) && !gone.contains(uid));
        let bound: u64 = bound.map(|(_, one)| one.slots()).sum();
        let assumed: u64 = self.assumed.values().filter(|(node, _)| here(Some(node))).map(|(_, slots)| slots).sum();
        let nominated = self.queue.values().map(|one| &one.pod).filter(|one| {
            let other = one.uid != pod.uid && !self.assumed.contains_key(&one.uid);
            other && one.priority >= pod.priority && here(one.nominated.as_ref())
        });
        let nominated: u64 = nominated.map(|one| one.slots()).sum();
        // A pod that requests no slots fits even if too many slots are taken.
        machine.up && (pod.slots() == 0 || bound + assumed + nominated + pod.slots() <= machine.allocatable())
    }

    fn bind_answered(&mut self, bind: OpenBind, answer: &VerbAnswer, at: u64) -> Option<Asked> {
        let OpenBind { uid, node, .. } = bind;
        let done = answer.as_ref().is_ok_and(|text| parsed(text)["Error"].as_str().unwrap_or_default().is_empty());
        if done {
            return Some(Asked::Bound(uid, node));
        }
        if answer.is_err() {
            self.asks += 1;
        }
        self.is_forgotten(&uid, at);
        None
    }

    /// A pod that was to be bound is not bound: it is tried again, and leaves room for others.
    fn is_forgotten(&mut self, uid: &PodUid, at: u64) {
        self.assumed.remove(uid);
        self.may_make_room();
        self.later(uid, at);
    }

    fn cycle_answered(
        &mut self,
        (number, answer): (u64, VerbAnswer),
        at: u64,
        machines: &[Machine],
        (weather, random): (&Weather, &mut Random),
    ) -> Option<Asked> {
        let Cycle { uid, asks, .. } = self.cycle.take_if(|cycle| cycle.question == number)?;
        let Ok(text) = answer else {
            // It does not lead, or has just won.
            self.asks += 1;
            self.later(&uid, at);
            return None;
        };
        let answer = parsed(&text);
        match asks {
            CycleQuestion::Likely | CycleQuestion::Filter => {
                let fit: Vec<String> = serde_json::from_value(answer["NodeNames"].clone()).unwrap_or_default();
                match (fit.as_slice(), asks) {
                    ([], CycleQuestion::Likely) => {
                        let nodes = self.fitting(&uid, machines);
                        self.ask(&uid, &nodes, (Verb::Filter, CycleQuestion::Filter), at)
                    }
                    ([], _) => {
                        let unresolvable = answer["FailedAndUnresolvableNodes"].as_object().into_iter().flatten();
                        let unresolvable = unresolvable.map(|(node, _)| node.clone()).collect();
                        self.preempt(&uid, &unresolvable, at, (machines, random))
                    }
                    // One node needs no scores.
                    ([node], _) => self.is_placed((&uid, node.as_str()), at, machines, (weather, random)),
                    _ => self.ask(&uid, &fit, (Verb::Prioritize, CycleQuestion::Prioritize(fit.clone())), at),
                }
            }
            CycleQuestion::Prioritize(fit) => {
                let node = best(&fit, &answer, random).clone();
                self.is_placed((&uid, node.as_str()), at, machines, (weather, random))
            }
            CycleQuestion::Preempt => self.preempts(uid, &answer, at, random),
        }
    }

    /// A node is chosen for a pod. The pod is bound, or a Permit plugin holds it first.
    fn is_placed(
        &mut self,
        (uid, node): (&PodUid, &str),
        at: u64,
        machines: &[Machine],
        (weather, random): (&Weather, &mut Random),
    ) -> Option<Asked> {
        let pod = Arc::clone(&self.queue.get(uid)?.pod);
        if !machines.iter().any(|machine| machine.name == node && self.fits(machine, &pod, &[])) {
            self.later(uid, at);
            return None;
        }
        self.assumed.insert(uid.clone(), (node.to_owned(), pod.slots()));
        if random.chance(weather.permits) {
            let until = (at / GATE + random.between(1, 4)) * GATE;
            let held = HeldPod { node: node.to_owned(), until, goes_on: random.chance(800) };
            self.held.insert(uid.clone(), held);
            return None;
        }
        self.bind(uid, node, at)
    }

    /// A Permit plugin lets a pod go on, or refuses it.
    fn leaves_permit(&mut self, uid: PodUid, at: u64) -> Option<Asked> {
        let HeldPod { node, goes_on, .. } = self.held.remove(&uid)?;
        if goes_on && self.queue.contains_key(&uid) {
            return self.bind(&uid, &node, at);
        }
        self.is_forgotten(&uid, at);
        None
    }

    fn bind(&mut self, uid: &PodUid, node: &str, at: u64) -> Option<Asked> {
        let name = self.queue.get(uid)?.pod.name.clone();
        let number = self.number();
        let body = json!({ "PodName": name, "PodNamespace": NAMESPACE, "PodUID": uid.as_str(), "Node": node });
        self.binds.insert(number, OpenBind { uid: uid.clone(), node: node.to_owned(), until: at + TIMEOUT });
        Some(Asked::Question(Question { number, verb: Verb::Bind, body: body.to_string() }))
    }

    /// Questions that had no answer in time.
    fn give_up(&mut self, at: u64) {
        if let Some(cycle) = self.cycle.take_if(|cycle| cycle.until <= at) {
            self.asks += 1;
            self.later(&cycle.uid, at);
        }
        let late: Vec<u64> =
            self.binds.iter().filter(|(_, bind)| bind.until <= at).map(|(number, _)| *number).collect();
        for bind in late.iter().filter_map(|number| self.binds.remove(number)).collect::<Vec<_>>() {
            self.is_forgotten(&bind.uid, at);
        }
    }

    /// The pod is tried again after a pause.
    pub(super) fn later(&mut self, uid: &PodUid, at: u64) {
        if let Some(one) = self.queue.get_mut(uid) {
            one.not_before = at + one.pause;
            one.pause = (one.pause * 2).min(10 * SECOND);
        }
    }

    fn number(&mut self) -> u64 {
        self.questions += 1;
        self.questions
    }
}

/// One of the best of these nodes, by their scores.
fn best<'a>(nodes: &'a [String], scores: &Value, random: &mut Random) -> &'a String {
    let score = |node: &str| {
        let all = scores.as_array().into_iter().flatten();
        all.filter(|one| one["Host"] == node).filter_map(|one| one["Score"].as_i64()).next().unwrap_or(0)
    };
    let best = nodes.iter().map(|node| score(node)).max().unwrap_or(0);
    let best: Vec<&String> = nodes.iter().filter(|node| score(node) == best).collect();
    best[random.place(best.len())]
}

/// The JSON of an answer of an extender.
pub(super) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("the extender answered no JSON: {why}: {text}"))
}
