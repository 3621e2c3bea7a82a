//! How the simulated kube-scheduler evicts pods of lower priority if no node fits, and what the extender's answer must fulfil.
//!
//! What must never happen here: the check of an answer uses the product's own placement, which is under test.

use super::super::measures::Verb;
use super::kube_scheduler::{Asked, CycleQuestion, KubeScheduler, parsed};
use super::machine::Machine;
use super::object::SimPod;
use super::random::Random;
use decide::cluster::{ClusterState, NodeClaims};
use decide::placement::DeviceFitness;
use model::id::{NodeName, PodUid};
use model::time::Monotonic;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

impl KubeScheduler {
    /// No node fits: asks which evictions make room. No eviction helps on the unresolvable nodes.
    pub(super) fn preempt(
        &mut self,
        uid: &PodUid,
        unresolvable: &BTreeSet<String>,
        at: u64,
        (machines, random): (&[Machine], &mut Random),
    ) -> Option<Asked> {
        self.is_refused(uid, at);
        let one = self.queue.get(uid)?.clone();
        let pod = &one.pod;
        // It waits for the end of the pods that it has evicted.
        let ends = |other: &Arc<SimPod>| {
            let there = other.node == pod.nominated && pod.nominated.is_some();
            there && other.deleted && other.priority < pod.priority
        };
        if pod.nominated.as_ref().is_some_and(|node| !unresolvable.contains(node)) && self.bound.values().any(ends) {
            return None;
        }
        let mut victims = BTreeMap::new();
        for machine in machines.iter().filter(|machine| machine.up && !unresolvable.contains(&machine.name)) {
            let evicted = self.victims(machine, pod, random);
            if !evicted.is_empty() {
                let evicted: Vec<Value> = evicted.iter().map(|uid| json!({ "UID": uid.as_str() })).collect();
                victims.insert(&machine.name, json!({ "Pods": evicted, "NumPDBViolations": 0 }));
            }
        }
        if victims.is_empty() {
            return no_room(uid, pod);
        }
        let victims = json!(victims);
        let body = format!(r#"{{"Pod":{},"NodeNameToVictims":null,"NodeNameToMetaVictims":{victims}}}"#, one.text);
        Some(self.asked(uid, body, (Verb::Preempt, CycleQuestion::Preempt), at))
    }

    /// Pods of lower priority without which a pod fits a machine; no pods if it does not fit without all of them. Some victims
    /// have CPU time or memory that the pod needs, which is not simulated.
    fn victims(&self, machine: &Machine, pod: &SimPod, random: &mut Random) -> Vec<PodUid> {
        let lower = |one: &Arc<SimPod>| one.node.as_ref() == Some(&machine.name) && one.priority < pod.priority;
        let mut victims: Vec<PodUid> =
            self.bound.iter().filter(|(_, one)| lower(one)).map(|(uid, _)| uid.clone()).collect();
        if !self.fits(machine, pod, &victims) {
            return Vec::new();
        }
        for _ in 1..victims.len() {
            let kept = victims.swap_remove(random.place(victims.len()));
            if random.chance(300) || !self.fits(machine, pod, &victims) {
                victims.push(kept);
            }
        }
        victims
    }

    /// The extender has answered on which nodes evictions make room.
    pub(super) fn preempts(&mut self, uid: PodUid, answer: &Value, at: u64, random: &mut Random) -> Option<Asked> {
        self.is_refused(&uid, at);
        let nodes: Vec<(&String, &Value)> = answer["NodeNameToMetaVictims"].as_object().into_iter().flatten().collect();
        // Where an extender leaves no node, kube-scheduler keeps an earlier nomination (preemption.go, `Preempt`, after
        // `callExtenders`).
        if nodes.is_empty() {
            return None;
        }
        let (node, victims) = nodes[random.place(nodes.len())];
        Some(Asked::Preempts { uid, node: Some(node.clone()), victims: uids(victims) })
    }
}

/// Nothing makes room for a pod, so that an earlier nomination is over.
fn no_room(uid: &PodUid, pod: &SimPod) -> Option<Asked> {
    pod.nominated.is_some().then(|| Asked::Preempts { uid: uid.clone(), node: None, victims: Vec::new() })
}

fn uids(victims: &Value) -> Vec<PodUid> {
    let uids = victims["Pods"].as_array().into_iter().flatten().filter_map(|pod| pod["UID"].as_str());
    uids.map(|uid| PodUid::parse(uid).unwrap()).collect()
}

/// Checks an answer: it evicts only pods that kube-scheduler has named, and only if the pods that stay leave room, as the extender
/// itself believes.
pub(super) fn check(cluster: &ClusterState, question: &str, answer: &str) -> Result<(), String> {
    let (question, answer) = (parsed(question), parsed(answer));
    let uid = question["Pod"]["metadata"]["uid"].as_str().unwrap_or_default();
    let pod = PodUid::parse(uid).map_err(|why| why.to_string())?;
    for (name, victims) in answer["NodeNameToMetaVictims"].as_object().into_iter().flatten() {
        let named = uids(&question["NodeNameToMetaVictims"][name]);
        let mut gone = uids(victims);
        if gone.is_empty() || !gone.iter().all(|victim| named.contains(victim)) {
            return Err(format!("evicts {gone:?} from {name} for {uid}, and kube-scheduler has named {named:?}"));
        }
        if cluster.claim_of(&pod).is_some_and(|(at, _)| at.as_str() != name) {
            return Err(format!("evicts {gone:?} from {name} for {uid}, which may be bound to another node"));
        }
        gone.push(pod.clone());
        let node = NodeName::parse(name).ok().and_then(|name| cluster.node(&name));
        if !node.is_some_and(|node| has_room(node, &question["Pod"]["spec"], &gone)) {
            return Err(format!("evicts {gone:?} from {name} for {uid}, and the pods that stay leave no room for it"));
        }
    }
    Ok(())
}

/// Since when each pod waits for the end of pods on its nominated node, as its extender believes.
pub(super) type Waits = BTreeMap<PodUid, (String, Monotonic)>;

/// How long a pod waits for the processes of its victims to end.
const WAITS: Duration = Duration::from_secs(60);

/// Checks that no eviction is offered while the pod's nominated node will have a whole free GPU for each requested GPU once the
/// pods there that are being deleted or linger have ended. That room may be kept for another nominated pod.
pub(super) fn check_wait(
    cluster: &ClusterState,
    question: &str,
    answer: &str,
    (waits, now): (&mut Waits, Monotonic),
) -> Result<(), String> {
    let (question, answer) = (parsed(question), parsed(answer));
    let uid = question["Pod"]["metadata"]["uid"].as_str().unwrap_or_default();
    let pod = PodUid::parse(uid).map_err(|why| why.to_string())?;
    let nominated = question["Pod"]["status"]["nominatedNodeName"].as_str().unwrap_or_default();
    let node = NodeName::parse(nominated).ok().and_then(|name| cluster.node(&name));
    let waits_for = |node: &&NodeClaims| {
        !cluster.keeps_room_for_another(&pod, node.name()) && becomes_free(cluster, node, &question["Pod"]["spec"])
    };
    let Some(node) = node.filter(waits_for) else {
        waits.remove(&pod);
        return Ok(());
    };
    let since = waits.entry(pod).or_insert_with(|| (nominated.to_owned(), now));
    if since.0 != nominated {
        *since = (nominated.to_owned(), now);
    }
    let offers = answer["NodeNameToMetaVictims"].as_object().is_some_and(|nodes| !nodes.is_empty());
    match offers && now.since(since.1) < WAITS {
        true => Err(format!("offers evictions for {uid}, and pods on {} end and make room for it", node.name())),
        false => Ok(()),
    }
}

/// Whether enough GPUs of a node have only claims of pods that end, and no strangers.
fn becomes_free(cluster: &ClusterState, node: &NodeClaims, spec: &Value) -> bool {
    let ends = |uid: &PodUid| node.is_ending(uid) || cluster.is_being_deleted(uid);
    let claims = || node.ledger().claims();
    let containers = ["initContainers", "containers"].into_iter().flat_map(|list| spec[list].as_array()).flatten();
    let amounts = containers.map(|container| {
        let amount = |name: &str| {
            let text = container["resources"]["limits"][name].as_str().unwrap_or("0");
            text.parse::<u64>().unwrap_or(u64::MAX)
        };
        (amount("nvidia.com/gpu"), amount("nvidia.com/gpumem") << 20)
    });
    let (gpus, most) =
        amounts.fold((0_u64, 0), |(gpus, most), (own, bytes)| (gpus.saturating_add(own), bytes.max(most)));
    let free = node.devices().devices.iter().filter(|device| {
        let stays = claims().any(|(uid, claim)| !ends(uid) && claim.demand(&device.uuid).containers > 0);
        let reported = cluster.agent_report(node.name()).and_then(|(report, _)| report.gpus.get(&device.uuid));
        // Between two streams the last report counts, which is not shown here.
        let has_none = reported.is_some_and(|gpu| gpu.memory_used.get().is_none_or(|used| used.0 == 0));
        device.fitness == DeviceFitness::Fit && device.capacity.memory >= most && !stays && has_none
    });
    gpus > 0 && claims().any(|(uid, _)| ends(uid)) && free.count() as u64 >= gpus
}

/// Whether a node that takes claims has GPUs for each container alone, without these pods.
fn has_room(node: &NodeClaims, spec: &Value, gone: &[PodUid]) -> bool {
    let stays: Vec<_> = node.ledger().claims().filter(|(uid, _)| !gone.contains(uid)).map(|(_, claim)| claim).collect();
    let amount = |container: &Value, name: &str| {
        let text = container["resources"]["limits"][name].as_str().unwrap_or("0");
        text.parse::<u64>().unwrap_or(0)
    };
    let mut containers = ["initContainers", "containers"].into_iter().flat_map(|list| spec[list].as_array()).flatten();
    node.closed().is_none()
        && containers.all(|container| {
            let bytes = amount(container, "nvidia.com/gpumem") << 20;
            let free = node.devices().devices.iter().filter(|device| {
                let taken: u64 = stays.iter().map(|claim| claim.demand(&device.uuid).memory).sum();
                taken + bytes <= device.capacity.memory
            });
            free.count() as u64 >= amount(container, "nvidia.com/gpu")
        })
}
