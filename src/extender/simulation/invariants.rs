//! What must hold in every moment, and what must hold when everything has settled.
//!
//! | moment | what must hold |
//! |---|---|
//! | a container starts | the claims of started pods are not more than a GPU has |
//! | a binding is carried out | the claims of bound pods are not more than a GPU has, unless another term's leader has written beside this one |
//! | a binding is sent | the sender leads by its own clock; its older writes for the pod that can still be carried out say the same; only a pod that requests no GPU has no claim |
//! | a wake is sent | the sender leads by its own clock, and has not woken the pod shortly before |
//! | an extender begins to decide | it knows every claim that was written before it won, and its epoch is larger than theirs |
//! | kube-scheduler hears "bound" | the API server has bound the pod so |
//! | everything has settled | see `settled.rs` |

use super::api_server::Bound;
use super::etcd::{Etcd, Kind};
use super::machine::{MIB, Machine, SLOTS};
use super::network::Outgoing;
use super::object::{SimPod, Taken};
use super::process::Process;
use super::stream_checks::StreamChecks;
use super::weather::SECOND;
use model::claim::Claim;
use model::id::{GpuUuid, NodeName, PodUid};
use model::time::Monotonic;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wire::annotation_keys::{ALLOCATED, EPOCH};

/// Number of looks at a process after the end of its term, by its own clock, until it has sent every request that it
/// began in the term.
const GRACE: u32 = 12;

/// The least time between two wakes of a pod: ten seconds, less the time that a busy process may take to send the first wake.
const AGAIN: Duration = Duration::from_secs(5);

/// How long an answer may be on its way.
const ON_THE_WAY: u64 = 15 * SECOND;

/// What is remembered of a bound pod.
#[derive(Clone, Debug)]
struct Written {
    process: u64,
    /// The number of the binding that was carried out.
    number: u64,
    version: u64,
    epoch: u64,
    node: String,
}

/// A binding that was sent.
#[derive(Clone, Debug)]
struct SentOrder {
    /// Node and claim.
    order: (String, String),
    /// The version of the pod that the order is for.
    version: String,
}

/// The memory of the checks.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    /// The terms: the process that won, and the version of the Lease then.
    terms: Vec<(u64, u64)>,
    /// The simulated time of each of these versions.
    won_at: BTreeMap<u64, u64>,
    bound: BTreeMap<PodUid, Written>,
    /// Each write of a process for a pod that was carried out or may still be.
    orders: BTreeMap<(u64, PodUid), BTreeMap<u64, SentOrder>>,
    /// For each binding, the version of the Lease with which its sender had won.
    sent: BTreeMap<u64, u64>,
    /// When the last Lease that a process knows to be written was sent, by its own clock.
    renewed: BTreeMap<u64, Monotonic>,
    /// Looks at a process since its term was over.
    over: BTreeMap<u64, u32>,
    /// When a process last woke a pod, by the process's own clock.
    woken: BTreeMap<(u64, String), Monotonic>,
    deciding: BTreeMap<u64, bool>,
    /// When etcd was restored last.
    restored: Option<u64>,
}

impl Invariants {
    /// A Lease is written.
    pub(super) fn lease(&mut self, holder: &str, version: u64, at: u64) {
        let process = holder.strip_prefix("extender-").and_then(|number| number.parse().ok()).unwrap_or(0);
        if self.terms.last().is_none_or(|(last, _)| *last != process) {
            self.terms.push((process, version));
            self.won_at.insert(version, at);
        }
    }

    /// The process that has taken the Lease last.
    pub(super) fn newest_leader(&self) -> Option<u64> {
        self.terms.last().map(|(process, _)| *process)
    }

    /// A process hears that its Lease is written.
    pub(super) fn renewed(&mut self, process: u64, sent: Monotonic) {
        let newest = self.renewed.entry(process).or_insert(sent);
        *newest = sent.max(*newest);
    }

    /// A process has run. Returns whether it decides.
    pub(super) fn ran(&mut self, process: &mut Process, deadline: Duration, etcd: &Etcd) -> Result<bool, String> {
        let number = process.number;
        let leads = self.renewed.get(&number).is_some_and(|sent| process.monotonic() < sent.after(deadline));
        *self.over.entry(number).or_default() += 1;
        if leads {
            self.over.insert(number, 0);
        }
        let decides = process.decides();
        if decides && !self.deciding.insert(number, decides).unwrap_or(false) {
            self.begins(process, etcd)?;
        }
        self.deciding.insert(number, decides);
        Ok(decides)
    }

    /// A process begins to decide.
    fn begins(&mut self, process: &Process, etcd: &Etcd) -> Result<(), String> {
        let number = process.number;
        let Some((_, won)) = self.terms.iter().rev().find(|(one, _)| *one == number).copied() else {
            // Its Lease may have been written before a restore of etcd.
            let restored = self.restored.is_some_and(|at| etcd.now < at + ON_THE_WAY);
            return if restored {
                Ok(())
            } else {
                Err(format!("extender-{number} decides and has never held the Lease"))
            };
        };
        // A claim that was put back by hand later need not be known.
        let at = self.won_at.get(&won).copied().unwrap_or(0);
        for pod in etcd.pods().filter(|pod| !pod.ended() && pod.claim().is_some() && pod.tampered < at.max(1)) {
            let Some(written) = self.bound.get(&pod.uid).filter(|written| written.version <= won) else { continue };
            let known = process.believes(|cluster| cluster.claim_of(&pod.uid).map(|(node, _)| node.to_string()));
            if known.as_deref() != Some(&written.node) {
                return Err(format!(
                    "extender-{number} decides and does not know that {} is bound to {} since version {}; it won at {won}",
                    pod.name, written.node, written.version
                ));
            }
        }
        Ok(())
    }

    /// A process sends the binding with this number. `arrives`: it will be carried out. Returns the pod and the node, if the pod gets
    /// GPUs.
    pub(super) fn sends(
        &mut self,
        (process, number): (u64, u64),
        request: &Outgoing,
        arrives: bool,
        etcd: &Etcd,
    ) -> Result<Option<(PodUid, String)>, String> {
        let (uid, body) = (binding_of(request)?, &request.body);
        let annotation = |key: &str| body["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        if self.over.get(&process).is_none_or(|looks| *looks > GRACE) {
            return Err(format!("extender-{process} sends a binding of {uid} and does not lead by its own clock"));
        }
        let order = (body["target"]["name"].as_str().unwrap_or_default().to_owned(), annotation(ALLOCATED));
        let version = body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if version.is_empty() {
            return Err(format!("extender-{process} writes {order:?} for {uid} in any version"));
        }
        let stored = etcd.objects(Kind::Pods).values().find(|stored| stored.pod().uid == uid);
        if order.1.is_empty() {
            // It is placed again after a lost answer, and the API server binds it once.
            return match stored.map_or(0, |stored| stored.pod().slots()) {
                0 => Ok(None),
                _ => Err(format!("extender-{process} binds {uid} without a claim")),
            };
        }
        let bound = self.bound.get(&uid).map(|written| written.number);
        // It was carried out, or may be: the API server refuses a write for another version than the pod has.
        let open = |(number, sent): &(&u64, &SentOrder)| {
            stored.is_some_and(|stored| stored.version.to_string() == sent.version || bound == Some(**number))
        };
        let before = self.orders.entry((process, uid.clone())).or_default();
        if let Some((_, before)) = before.iter().filter(open).find(|(_, before)| before.order != order) {
            return Err(format!("extender-{process} has written {before:?} for {uid} and now writes {order:?}"));
        }
        let node = order.0.clone();
        if arrives {
            before.insert(number, SentOrder { order, version });
            self.sent
                .insert(number, self.terms.iter().rev().find(|(one, _)| *one == process).map_or(0, |(_, won)| *won));
        }
        annotation(EPOCH).parse::<u64>().map(|_| Some((uid, node))).map_err(|_| "a binding without an epoch".to_owned())
    }

    /// A process sends a wake.
    pub(super) fn wakes(&mut self, process: u64, request: &Outgoing) -> Result<(), String> {
        let pod = request.body["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if self.over.get(&process).is_none_or(|looks| *looks > GRACE) {
            return Err(format!("extender-{process} wakes {pod} and does not lead by its own clock"));
        }
        let before = self.woken.insert((process, pod.clone()), request.sent);
        match before.filter(|before| request.sent.since(*before) < AGAIN) {
            None => Ok(()),
            Some(before) => Err(format!("extender-{process} wakes {pod} again after {:?}", request.sent.since(before))),
        }
    }

    /// The API server has refused this binding.
    pub(super) fn refused(&mut self, process: u64, number: u64, request: &Outgoing) {
        if let Ok(uid) = binding_of(request)
            && let Some(orders) = self.orders.get_mut(&(process, uid))
        {
            orders.remove(&number);
        }
    }

    /// etcd was restored: forgets all earlier writes.
    pub(super) fn restored(&mut self, at: u64) {
        self.restored = Some(at);
        self.orders.clear();
        self.bound.clear();
        self.terms.clear();
        self.won_at.clear();
    }

    /// A binding is carried out. Checks that the sender can know the GPUs of each pod on the node: the pod has a claim,
    /// or the agent has reported that it refuses the start.
    pub(super) fn holders_are_known(
        &self,
        (process, number): (u64, u64),
        bound: &Bound,
        etcd: &Etcd,
        streams: &StreamChecks,
    ) -> Result<(), String> {
        let sent = self.sent.get(&number).copied().unwrap_or(0);
        let Some(won) = self.won_at.get(&sent) else { return Ok(()) };
        // After a restore of etcd the next renewal of the same leader looks as if it had won; it reads everything soon.
        if self.restored.is_some_and(|at| etcd.now < at + ON_THE_WAY) {
            return Ok(());
        }
        // Only pods that were there a while before the process won.
        let unknown = |pod: &&Arc<SimPod>| {
            let here = pod.node == bound.pod.node && !pod.ended() && pod.slots() > 0;
            here && pod.claim().is_none() && pod.tampered.max(pod.created * SECOND) + 2 * SECOND < *won
        };
        match etcd.pods().filter(unknown).find(|pod| !streams.knows_refusal(process, pod)) {
            None => Ok(()),
            Some(pod) => Err(format!(
                "extender-{process} binds {} to {}, where {} holds GPUs and nobody knows which",
                bound.pod.name,
                bound.pod.node.as_deref().unwrap_or_default(),
                pod.name
            )),
        }
    }

    /// The binding with this number is carried out.
    pub(super) fn bound(
        &mut self,
        (process, number): (u64, u64),
        bound: &Bound,
        etcd: &Etcd,
        machines: &[Machine],
    ) -> Result<(), String> {
        let node = bound.pod.node.clone().unwrap_or_default();
        let written = Written { process, number, version: bound.version, epoch: bound.epoch, node: node.clone() };
        self.bound.insert(bound.pod.uid.clone(), written);
        if bound.pod.slots() == 0 {
            return Ok(());
        }
        let sent = self.sent.get(&number).copied().unwrap_or(0);
        self.epoch_is_new(process, sent, bound, etcd)?;
        let Some(claim) = bound.pod.claim() else {
            return Err(format!("{} is bound to {node} with a claim that cannot be read", bound.pod.name));
        };
        let Some(machine) = machines.iter().find(|machine| machine.name == node && machine.up) else { return Ok(()) };
        // The term in which the binding was sent; `None` if another term has begun since.
        let current = self.terms.last().filter(|(_, won)| *won == sent);
        for gpu in claim.shares().map(|share| &share.device) {
            if !machine.gpus.iter().any(|one| one.uuid == *gpu) {
                continue;
            }
            let Err(why) = fits(gpu, claims_on(etcd, &node).map(|(pod, claim)| pod.takes(&claim))) else { continue };
            // A binding has no fence: it may be carried out after another leader has won.
            let beside = |pod: &SimPod| self.bound.get(&pod.uid).filter(|beside| beside.process != process);
            // After a restore of etcd there are claims again that the leader has seen end; it reads them soon.
            let restored = self.restored.is_some_and(|at| etcd.now < at + ON_THE_WAY);
            let late = restored
                || current.is_none_or(|(_, won)| {
                    let others =
                        claims_on(etcd, &node).filter(|(_, claim)| claim.shares().any(|share| share.device == *gpu));
                    others.into_iter().any(|(pod, _)| beside(pod).is_some_and(|beside| beside.version > *won))
                });
            if !late {
                return Err(format!(
                    "extender-{process} binds {} to {node} with epoch {}: {gpu} {why}",
                    bound.pod.name, bound.epoch
                ));
            }
        }
        Ok(())
    }

    /// The epoch is larger than the epochs of all claims that other processes had written before this process won.
    fn epoch_is_new(&self, process: u64, won: u64, bound: &Bound, etcd: &Etcd) -> Result<(), String> {
        for pod in etcd.pods() {
            let Some(other) = self.bound.get(&pod.uid).filter(|other| other.process != process) else { continue };
            if other.version <= won && other.epoch >= bound.epoch {
                return Err(format!(
                    "extender-{process} writes epoch {} and extender-{} had written {} on {} before",
                    bound.epoch, other.process, other.epoch, pod.name
                ));
            }
        }
        Ok(())
    }

    /// kube-scheduler hears that a pod is bound.
    pub(super) fn answered(&self, uid: &PodUid, node: &str, etcd: &Etcd) -> Result<(), String> {
        // The binding may have existed before the restore.
        if self.restored.is_some_and(|at| etcd.now < at + ON_THE_WAY) {
            return Ok(());
        }
        let bound = self.bound.get(uid).is_some_and(|written| written.node == node);
        let stored = etcd.pods().any(|pod| pod.uid == *uid && pod.node.as_deref() == Some(node));
        match bound || stored {
            true => Ok(()),
            false => Err(format!(
                "kube-scheduler was told that {uid} is bound to {node}, and the API server has no such binding"
            )),
        }
    }
}

/// The UID of the pod that a request binds.
fn binding_of(request: &Outgoing) -> Result<PodUid, String> {
    let uid = request.body["metadata"]["uid"].as_str().unwrap_or_default();
    PodUid::parse(uid).map_err(|why| format!("a binding of no pod: {why}"))
}

/// The pods on a node that hold something, with their claims.
pub(super) fn claims_on<'a>(etcd: &'a Etcd, node: &'a str) -> impl Iterator<Item = (&'a SimPod, Claim)> {
    let there = etcd.pods().filter(move |pod| pod.node.as_deref() == Some(node) && !pod.ended());
    there.filter_map(|pod| Some((&**pod, pod.claim()?)))
}

/// Checks that these pods take no more of a GPU than it has.
pub(super) fn fits(gpu: &GpuUuid, pods: impl Iterator<Item = BTreeMap<GpuUuid, Taken>>) -> Result<(), String> {
    let all: Vec<Taken> = pods.filter_map(|takes| takes.get(gpu).copied()).collect();
    let sum = all.iter().fold(Taken::default(), |sum, one| sum.plus(*one));
    let alone = all.iter().all(|one| one.whole == 0) || all.len() == 1;
    if sum.mib <= MIB && sum.cores <= 100 && sum.containers <= u64::from(SLOTS) && alone {
        return Ok(());
    }
    Err(format!("is claimed more than once: {all:?}"))
}

/// Checks that the running pods of a machine take no more than its GPUs have.
pub(super) fn started(machine: &Machine) -> Result<(), String> {
    for gpu in &machine.gpus {
        let running = machine.admitted.values().filter(|one| one.runs()).map(|one| one.holds.clone());
        fits(&gpu.uuid, running).map_err(|why| format!("on {} {} {why} by started pods", machine.name, gpu.uuid))?;
    }
    Ok(())
}

/// The name as the product spells it.
pub(super) fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}
