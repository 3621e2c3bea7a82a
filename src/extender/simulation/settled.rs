//! What must hold once all faults are over and nothing changes any more: no claim has leaked, each pod is bound or waits for a
//! reason, and a process that has just started believes the same as the leader.

use super::etcd::{Etcd, Kind, Stored};
use super::invariants::{claims_on, fits, node_name};
use super::machine::Machine;
use super::process::Process;
use super::strangers;
use decide::cluster::{ClosedReason, ClusterState, NodeClaims};
use decide::ledger::ClaimState;
use model::id::PodUid;
use std::collections::BTreeMap;
use wire::resource::RequestRules;

/// A pod's node, the state of its claim, and the claim.
type Claims = BTreeMap<PodUid, (String, ClaimState, String)>;

/// Checks the settled cluster: `fresh` is a process that has just started.
pub(super) fn check(etcd: &Etcd, machines: &[Machine], leader: &Process, others: &[&Process]) -> Result<(), String> {
    for machine in machines {
        for gpu in &machine.gpus {
            fits(&gpu.uuid, claims_on(etcd, &machine.name).map(|(pod, claim)| pod.takes(&claim)))
                .map_err(|why| format!("{} of {} {why}, and no pod loses", gpu.uuid, machine.name))?;
        }
    }
    let truth = truth(etcd);
    for process in std::iter::once(leader).chain(others.iter().copied()) {
        let mut believed = process.believes(claims);
        // An order of an earlier term whose outcome is not known does not count. An extender that does not lead keeps
        // it until it leads again, or the pod is bound or gone. The leader has no such order: it has written it again,
        // or made it void.
        believed.retain(|uid, _| process.number == leader.number || !open_order(etcd, process, uid));
        if believed != truth {
            return Err(format!("extender-{} believes {}", process.number, difference(&believed, &truth)));
        }
    }
    for machine in machines {
        let unknown = leader.believes(|cluster| {
            let closed = cluster.node(&node_name(&machine.name)).and_then(NodeClaims::closed);
            closed.filter(|why| matches!(why, ClosedReason::UnknownClaim(_)))
        });
        if let Some(why) = unknown {
            return Err(format!("{} is closed, and its agent refuses pods without a claim: {why:?}", machine.name));
        }
    }
    for other in others {
        let open = |process: &Process, machine: &Machine| {
            let names = |uid: &PodUid| process_claims(process, uid).is_some_and(|node| node == machine.name);
            etcd.pods().any(|pod| open_order(etcd, process, &pod.uid) && names(&pod.uid))
        };
        let clear = |machine: &&Machine| !open(other, machine) && !open(leader, machine);
        for machine in machines.iter().filter(clear) {
            let of = |process: &Process| process.believes(|cluster| node(cluster, &machine.name));
            if of(leader) != of(other) {
                let (live, anew) = (of(leader), of(other));
                return Err(format!(
                    "of {} the leader believes {live}, and extender-{} {anew}",
                    machine.name, other.number
                ));
            }
        }
    }
    strangers::are_known(machines, leader)?;
    all_placed(etcd, machines, leader)
}

/// Whether each pod runs, or waits for a reason.
pub(super) fn all_placed(etcd: &Etcd, machines: &[Machine], leader: &Process) -> Result<(), String> {
    etcd.objects(Kind::Pods).values().try_for_each(|stored| placed(stored, etcd, machines, leader))
}

/// Whether a pod runs, or waits for a reason.
fn placed(stored: &Stored, etcd: &Etcd, machines: &[Machine], leader: &Process) -> Result<(), String> {
    let (pod, text) = (stored.pod(), &stored.text);
    if pod.ended() {
        return Ok(());
    }
    if let Some(node) = &pod.node {
        // A pod that a user put there by hand waits for a claim that never comes.
        return match pod.started() || pod.claim().is_none() {
            true => Ok(()),
            false => Err(format!("{} is bound to {node} and never starts", pod.name)),
        };
    }
    let read = wire::pod::decode(text.as_bytes()).map_err(|why| why.to_string())?;
    if pod.gated {
        return Ok(());
    }
    let Some(request) = wire::placement::of(&read, &RequestRules::default()).map_err(|why| why.to_string())? else {
        return Err(format!("{} is not bound, and requests no GPU", pod.name));
    };
    let waits = |machine: &Machine| {
        // kube-scheduler leaves room for pods that are nominated to a node, as long as they wait.
        let nominated = etcd.pods().filter(|other| {
            let waits = other.node.is_none() && !other.ended() && other.uid != pod.uid;
            waits && other.priority >= pod.priority && other.nominated.as_ref() == Some(&machine.name)
        });
        let used: u64 = slots_on(machine) + nominated.map(|other| other.slots()).sum::<u64>();
        leader.believes(|cluster| cluster.fits_without(&request, &machine.name, &[]))
            && used + pod.slots() <= machine.allocatable()
    };
    match machines.iter().find(|machine| waits(machine)) {
        None => Ok(()),
        Some(machine) => Err(format!("{} is not bound, and fits {}", pod.name, machine.name)),
    }
}

/// The node of a pod's claim, as this process believes.
fn process_claims(process: &Process, uid: &PodUid) -> Option<String> {
    process.believes(|cluster| cluster.claim_of(uid).map(|(node, _)| node.to_string()))
}

/// Whether the process has a reservation for a pod that has no node yet.
fn open_order(etcd: &Etcd, process: &Process, uid: &PodUid) -> bool {
    let assumed =
        process.believes(|cluster| cluster.claim_of(uid).is_some_and(|(_, state)| state == ClaimState::Assumed));
    assumed && etcd.pods().any(|pod| pod.uid == *uid && pod.node.is_none())
}

/// The slots that pods of a machine hold.
fn slots_on(machine: &Machine) -> u64 {
    machine.admitted.values().filter(|one| !one.pod.ended()).map(|one| one.pod.slots()).sum()
}

/// The claims that stand at the API server.
fn truth(etcd: &Etcd) -> Claims {
    let nodes = etcd.pods().filter_map(|pod| Some((pod, pod.node.as_deref()?, pod.claim()?)));
    let live = nodes.filter(|(pod, ..)| !pod.ended());
    live.map(|(pod, node, claim)| {
        let state = if pod.started() { ClaimState::Started } else { ClaimState::Bound };
        (pod.uid.clone(), (node.to_owned(), state, format!("{claim:?}")))
    })
    .collect()
}

/// The claims in which an extender believes.
fn claims(cluster: &ClusterState) -> Claims {
    let mut all = Claims::new();
    for node in cluster.nodes() {
        for (uid, claim) in node.ledger().claims() {
            all.insert(uid.clone(), (node.name().to_string(), claim.state, format!("{:?}", claim.claim)));
        }
    }
    all
}

/// A node as an extender sees it. Only to the leader, agents report refused pods without a claim, which close no node.
fn node(cluster: &ClusterState, name: &str) -> String {
    let Some(node) = cluster.node(&node_name(name)) else { return "nothing".to_owned() };
    let devices = node
        .devices()
        .devices
        .iter()
        .map(|device| format!("{} {:?} {:?}", device.uuid, device.fitness, device.claimed));
    // The leader may have seen the register list a device that was removed before the other process started.
    let hearsay = |why: &ClosedReason| matches!(why, ClosedReason::UnknownClaim(_) | ClosedReason::UnknownDevice(..));
    let closed = node.closed().filter(|why| !hearsay(why));
    format!("{closed:?} {:?}", devices.collect::<Vec<_>>())
}

fn difference(believed: &Claims, truth: &Claims) -> String {
    let wrong = believed.iter().filter(|(uid, claim)| truth.get(*uid) != Some(claim));
    let wrong: Vec<String> =
        wrong.map(|(uid, claim)| format!("{uid} {claim:?} where the API server has {:?}", truth.get(uid))).collect();
    let missing: Vec<String> = truth
        .iter()
        .filter(|(uid, _)| !believed.contains_key(*uid))
        .map(|(uid, claim)| format!("{uid} {claim:?}"))
        .collect();
    format!("{wrong:?} and does not know {missing:?}")
}
