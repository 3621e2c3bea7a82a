//! The simulated kube-scheduler: one pod at a time through filter and prioritize, then a bind beside the next pod, with the
//! timeouts of the printed configuration. It counts `nvidia.com/gpu` itself, with a cache of pods that it expects to be
//! bound. A restart forgets that cache and every question.

use super::super::measures::Verb;
use super::api_server::ApiServers;
use super::etcd::{Did, Kind};
use super::machine::Machine;
use super::object::{NAMESPACE, SimPod};
use super::process::{Answers, VerbAnswer};
use super::random::Random;
use super::weather::SECOND;
use model::id::PodUid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `httpTimeout` of the printed configuration.
const TIMEOUT: u64 = 5 * SECOND;

/// A pod without a node.
#[derive(Clone, Debug)]
struct QueuedPod {
    pod: Arc<SimPod>,
    text: String,
    not_before: u64,
    pause: u64,
}

/// The pod that is being placed.
#[derive(Clone, Debug)]
struct Cycle {
    uid: PodUid,
    question: u64,
    until: u64,
    /// The nodes that the filter answered, once it has.
    fit: Option<Vec<String>>,
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
}

/// kube-scheduler.
#[derive(Debug, Default)]
pub(super) struct KubeScheduler {
    version: u64,
    listed: bool,
    queue: BTreeMap<PodUid, QueuedPod>,
    /// The node and the slots of each pod that is bound.
    bound: BTreeMap<PodUid, (String, u64)>,
    assumed: BTreeMap<PodUid, (String, u64)>,
    cycle: Option<Cycle>,
    binds: BTreeMap<u64, OpenBind>,
    pub(super) answers: Answers,
    questions: u64,
    /// The extender that is asked now.
    pub(super) asks: usize,
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
        random: &mut Random,
    ) -> Option<Asked> {
        self.watch(api, random);
        let answered = self.answers.lock().pop();
        if let Some(answered) = answered {
            return self.answered(answered, at, machines, random);
        }
        self.give_up(at);
        if self.cycle.is_none() { self.begin(at, machines, random) } else { None }
    }

    fn watch(&mut self, api: &ApiServers, random: &mut Random) {
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
            } else {
                self.pod_is(pod, &change.object.text);
            }
            self.version = change.version;
        }
    }

    fn pod_is(&mut self, pod: &Arc<SimPod>, text: &str) {
        match &pod.node {
            Some(node) => {
                self.queue.remove(&pod.uid);
                self.assumed.remove(&pod.uid);
                if pod.ended() {
                    self.bound.remove(&pod.uid);
                } else {
                    self.bound.insert(pod.uid.clone(), (node.clone(), pod.slots()));
                }
            }
            None if pod.deleted => drop(self.queue.remove(&pod.uid)),
            None => {
                self.bound.remove(&pod.uid);
                let entry = self.queue.entry(pod.uid.clone()).or_insert_with(|| QueuedPod {
                    pod: Arc::clone(pod),
                    text: String::new(),
                    not_before: 0,
                    pause: SECOND,
                });
                (entry.pod, entry.text) = (Arc::clone(pod), text.to_owned());
            }
        }
    }

    fn begin(&mut self, at: u64, machines: &[Machine], random: &mut Random) -> Option<Asked> {
        let ready = |(uid, one): &(&PodUid, &QueuedPod)| one.not_before <= at && !self.assumed.contains_key(*uid);
        let ready: Vec<&PodUid> = self.queue.iter().filter(ready).map(|(uid, _)| uid).collect();
        let uid = (*ready.get(random.place(ready.len()))?).clone();
        let one = self.queue.get(&uid)?;
        let nodes: Vec<&str> =
            machines.iter().filter(|node| self.fits(node, one.pod.slots())).map(|node| &*node.name).collect();
        if nodes.is_empty() {
            self.later(&uid, at);
            return None;
        }
        let body = format!(r#"{{"Pod":{},"Nodes":null,"NodeNames":{}}}"#, one.text, json!(nodes));
        let number = self.number();
        self.cycle = Some(Cycle { uid, question: number, until: at + TIMEOUT, fit: None });
        Some(Asked::Question(Question { number, verb: Verb::Filter, body }))
    }

    fn fits(&self, machine: &Machine, slots: u64) -> bool {
        let there = |held: &BTreeMap<PodUid, (String, u64)>| {
            held.values().filter(|(node, _)| *node == machine.name).map(|(_, slots)| slots).sum::<u64>()
        };
        there(&self.bound) + there(&self.assumed) + slots <= machine.allocatable()
    }

    fn answered(
        &mut self,
        (number, answer): (u64, VerbAnswer),
        at: u64,
        machines: &[Machine],
        random: &mut Random,
    ) -> Option<Asked> {
        if let Some(OpenBind { uid, node, .. }) = self.binds.remove(&number) {
            let done = answer.as_ref().is_ok_and(|text| parsed(text)["Error"].as_str().unwrap_or_default().is_empty());
            if done {
                return Some(Asked::Bound(uid, node));
            }
            if answer.is_err() {
                self.asks += 1;
            }
            self.assumed.remove(&uid);
            self.later(&uid, at);
            return None;
        }
        let cycle = self.cycle.take_if(|cycle| cycle.question == number)?;
        let Ok(text) = answer else {
            // It does not lead, or has just won.
            self.asks += 1;
            self.later(&cycle.uid, at);
            return None;
        };
        let one = self.queue.get(&cycle.uid).cloned()?;
        let Some(fit) = cycle.fit else {
            let fit: Vec<String> = serde_json::from_value(parsed(&text)["NodeNames"].take()).unwrap_or_default();
            if fit.is_empty() {
                self.later(&cycle.uid, at);
                return None;
            }
            let body = format!(r#"{{"Pod":{},"Nodes":null,"NodeNames":{}}}"#, one.text, json!(fit));
            let number = self.number();
            self.cycle = Some(Cycle { question: number, until: at + TIMEOUT, fit: Some(fit), ..cycle });
            return Some(Asked::Question(Question { number, verb: Verb::Prioritize, body }));
        };
        let scores = parsed(&text);
        let score = |node: &str| {
            let all = scores.as_array().into_iter().flatten();
            all.filter(|one| one["Host"] == node).filter_map(|one| one["Score"].as_i64()).next().unwrap_or(0)
        };
        let best = fit.iter().map(|node| score(node)).max().unwrap_or(0);
        let best: Vec<&String> = fit.iter().filter(|node| score(node) == best).collect();
        let node = best[random.place(best.len())].clone();
        if !machines.iter().any(|machine| machine.name == node && self.fits(machine, one.pod.slots())) {
            self.later(&cycle.uid, at);
            return None;
        }
        let (uid, number) = (cycle.uid, self.number());
        self.assumed.insert(uid.clone(), (node.clone(), one.pod.slots()));
        let body = json!({
            "PodName": one.pod.name, "PodNamespace": NAMESPACE, "PodUID": uid.as_str(), "Node": node,
        });
        self.binds.insert(number, OpenBind { uid, node, until: at + TIMEOUT });
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
            self.assumed.remove(&bind.uid);
            self.later(&bind.uid, at);
        }
    }

    fn later(&mut self, uid: &PodUid, at: u64) {
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

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("the extender answered no JSON: {why}: {text}"))
}
