//! What must hold of the streams of agents in every moment.
//!
//! | moment | what must hold |
//! |---|---|
//! | an extender has taken over a message | it still knows each claim that it knew, unless the pod has ended or is gone |
//! | the same | it keeps the claim of a pod that has ended as long as processes of it run, also where the agent cannot list them |
//! | a binding is sent | the extender has not told the agent of the node that it knows that the agent leaves; or the pod was awaited |
//! | the same | the stream of the node was not closed for longer than `STREAM_BACK_WITHIN` |
//!
//! An extender that does not decide has forgotten all streams, so these checks begin anew with each term.

use super::etcd::{Etcd, Kind};
use super::object::SimPod;
use super::process::Process;
use super::weather::SECOND;
use decide::cluster::STREAM_BACK_WITHIN;
use model::agent_stream::{AgentMessage, PodStage};
use model::id::{NodeName, PodUid};
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet};

/// After this number of looks at a process, it has taken over what has reached it before.
const TAKEN: u32 = 12;
/// How long after a restore of etcd older events may still be on their way.
const RESTORED: u64 = 60 * SECOND;

/// How long an extender may not see that a claim was put back by hand: within this time it gives up a watch that has died.
const TAMPERED: u64 = 180 * SECOND;

/// A process, and a node whose agent has a stream to it.
type StreamKey = (u64, String);

/// A stream that was closed.
#[derive(Clone, Copy, Debug, Default)]
struct ClosedStream {
    /// Number of looks at the process since the stream was closed.
    looks: u32,
    /// When the process noticed the end of the stream, by its own clock.
    noticed: Option<Monotonic>,
    /// Number of looks at the process since the agent is late.
    late: u32,
}

/// The memory of the checks.
#[derive(Debug, Default)]
pub(super) struct StreamChecks {
    opened: u64,
    /// The newest stream of each node that has reported to a process, and the UID of the Node.
    newest: BTreeMap<StreamKey, (u64, String)>,
    /// The pods that a process has named to an agent that leaves.
    awaited: BTreeMap<StreamKey, BTreeSet<PodUid>>,
    closed: BTreeMap<StreamKey, ClosedStream>,
    /// Pods with processes, by the newest message that has reached an extender process, and its clock at that moment.
    running: BTreeMap<StreamKey, (BTreeSet<PodUid>, Monotonic)>,
    /// The pods in `running` whose claims the process knew after it had taken over the message.
    held: BTreeMap<StreamKey, BTreeSet<PodUid>>,
    /// Pods whose claims were overwritten by hand. Their nodes are closed until the claims can be read, and then no claim is kept
    /// that could not be read last.
    tampered: BTreeSet<PodUid>,
    /// Number of looks at a process until it has taken over what has reached it.
    unread: BTreeMap<u64, u32>,
    /// The claims that a process knew.
    knew: BTreeMap<u64, BTreeSet<PodUid>>,
    /// A process, and a pod without a claim whose start is refused by a message that has reached it: it holds nothing. A pod is known
    /// by the hash of its manifest only on its own node.
    refused: BTreeSet<(StreamKey, PodUid)>,
    /// Whether the agent refuses all pods without a claim, and how far its pods have come, by the messages that have reached a
    /// process.
    refusing: BTreeMap<StreamKey, (bool, BTreeMap<PodUid, PodStage>)>,
    restored: Option<u64>,
}

impl StreamChecks {
    /// The first message of a stream reaches a process. Returns the number of the stream.
    pub(super) fn opens(&mut self, process: u64, node: &str, uid: &str) -> u64 {
        let key = (process, node.to_owned());
        self.forget(&|one| *one == key);
        self.opened += 1;
        self.newest.insert(key, (self.opened, uid.to_owned()));
        self.opened
    }

    /// A message that says that these pods have processes reaches a process.
    pub(super) fn reaches(&mut self, process: &Process, node: &str, stream: u64, running: &BTreeSet<PodUid>) {
        let key = (process.number, node.to_owned());
        self.unread.insert(process.number, TAKEN);
        if self.is_newest(&key, stream) {
            self.held.entry(key.clone()).or_default().retain(|uid| running.contains(uid));
            self.running.insert(key, (running.clone(), process.monotonic()));
        }
    }

    /// A message by which the agent refuses the start of these pods reaches a process.
    pub(super) fn refuses(&mut self, process: u64, node: &str, message: &AgentMessage) {
        let key = (process, node.to_owned());
        let (pods, refuses, whole) = match message {
            AgentMessage::Full(report) => (&report.pods, report.refuses_unclaimed, true),
            AgentMessage::Change(change) => (&change.pods, change.refuses_unclaimed, false),
            AgentMessage::Beat => return,
        };
        let refused = pods.iter().filter(|(_, pod)| pod.stage == PodStage::Refused);
        self.refused.extend(refused.map(|(uid, _)| (key.clone(), uid.clone())));
        let (all, stages) = self.refusing.entry(key).or_default();
        *all = refuses;
        if whole {
            stages.clear();
        }
        stages.extend(pods.iter().map(|(uid, pod)| (uid.clone(), pod.stage)));
    }

    /// Whether a process knows by such messages that this pod without a claim holds nothing: its start is refused, or will be.
    pub(super) fn knows_refusal(&self, process: u64, pod: &SimPod) -> bool {
        let key = (process, pod.node.clone().unwrap_or_default());
        let waits = |stages: &BTreeMap<PodUid, PodStage>| {
            stages.get(pod.local_uid()).is_none_or(|stage| matches!(stage, PodStage::Waiting | PodStage::Refused))
        };
        let refuses_all = self.refusing.get(&key).is_some_and(|(all, stages)| *all && waits(stages));
        let never_ran = !pod.started() && !pod.is_unreadable();
        (refuses_all && never_ran) || self.refused.contains(&(key, pod.local_uid().clone()))
    }

    /// A process has confirmed to an agent that the agent leaves, and has named these pods.
    pub(super) fn awaits(&mut self, process: u64, node: &str, stream: u64, pods: &[PodUid]) {
        let key = (process, node.to_owned());
        if self.is_newest(&key, stream) {
            self.awaited.entry(key).or_default().extend(pods.iter().cloned());
        }
    }

    /// The end of a stream that a process has answered reaches it.
    pub(super) fn closes(&mut self, process: u64, node: &str, stream: u64) {
        let key = (process, node.to_owned());
        if self.is_newest(&key, stream) {
            self.closed.insert(key, ClosedStream::default());
        }
    }

    /// Somebody has overwritten the claim of a pod.
    pub(super) fn tampers(&mut self, uid: &PodUid) {
        self.tampered.insert(uid.clone());
    }

    /// etcd was restored.
    pub(super) fn restored(&mut self, at: u64) {
        let (refused, tampered) = (std::mem::take(&mut self.refused), std::mem::take(&mut self.tampered));
        *self = StreamChecks { opened: self.opened, refused, tampered, restored: Some(at), ..StreamChecks::default() };
    }

    /// A process has run.
    pub(super) fn ran(&mut self, process: &Process, decides: bool, etcd: &Etcd) -> Result<(), String> {
        let number = process.number;
        if !decides {
            self.forget(&|(one, _)| *one == number);
            self.unread.remove(&number);
            self.knew.remove(&number);
            return Ok(());
        }
        for (_, closed) in self.closed.iter_mut().filter(|((one, _), _)| *one == number) {
            closed.looks += 1;
            match closed.noticed {
                None if closed.looks == TAKEN => closed.noticed = Some(process.monotonic()),
                Some(at) if process.monotonic() >= at.after(STREAM_BACK_WITHIN) => closed.late += 1,
                _ => {}
            }
        }
        let Some(left) = self.unread.get_mut(&number) else { return Ok(()) };
        *left -= 1;
        let taken = *left == 0;
        if taken {
            self.unread.remove(&number);
        }
        let restored = self.restored.is_some_and(|at| etcd.now < at + RESTORED);
        if restored { Ok(()) } else { self.keeps_claims(process, taken, etcd) }
    }

    /// Checks that a process has forgotten only claims that are evidently over.
    fn keeps_claims(&mut self, process: &Process, taken: bool, etcd: &Etcd) -> Result<(), String> {
        let number = process.number;
        let known: BTreeSet<PodUid> = process.believes(|cluster| {
            cluster.nodes().flat_map(|node| node.ledger().claims().map(|(uid, _)| uid.clone())).collect()
        });
        let knew = self.knew.entry(number).or_default();
        let lives = |uid: &&PodUid| {
            let tampered = |pod: &SimPod| pod.tampered > 0 && etcd.now < pod.tampered + TAMPERED;
            let holds = |pod: &SimPod| pod.node.is_some() && !pod.ended() && pod.claim().is_some() && !tampered(pod);
            etcd.pods().any(|pod| pod.uid == **uid && holds(pod))
        };
        if let Some(uid) = knew.difference(&known).find(lives) {
            return Err(format!("extender-{number} has released the claim of {uid}, which is bound and has not ended"));
        }
        knew.clone_from(&known);
        // When a Node is gone, the reports of its agent are gone too.
        let gone = |(node, uid): (&str, &str)| etcd.get(Kind::Nodes, node).is_none_or(|now| now.node().uid != uid);
        let newest = self.newest.iter().filter(|((one, node), (_, uid))| *one == number && gone((node, uid)));
        let lost: Vec<StreamKey> = newest.map(|(key, _)| key.clone()).collect();
        self.forget(&|key| lost.contains(key));
        for ((_, node), held) in self.held.iter().filter(|((one, _), _)| *one == number) {
            if let Some(uid) = held.difference(&known).find(|uid| !self.tampered.contains(*uid)) {
                return Err(format!(
                    "extender-{number} has released the claim of {uid}, which has processes on {node}"
                ));
            }
        }
        if taken {
            for (key, (running, at)) in self.running.iter().filter(|((one, _), _)| *one == number) {
                // The process may have ended the stream, which the agent does not know yet.
                let heard = process.believes(|cluster| {
                    cluster.agent_report(&NodeName::parse(&key.1).unwrap()).map(|(_, heard)| heard)
                });
                if heard.is_some_and(|heard| heard > *at) {
                    self.held.insert(key.clone(), running.intersection(&known).cloned().collect());
                }
            }
        }
        Ok(())
    }

    /// A process sends a binding of this pod.
    pub(super) fn sends(&self, process: u64, node: &str, uid: &PodUid, etcd: &Etcd) -> Result<(), String> {
        let key = (process, node.to_owned());
        // Another Node of this name is another machine.
        let same = |(_, uid): &(u64, String)| etcd.get(Kind::Nodes, node).is_some_and(|now| now.node().uid == *uid);
        if !self.newest.get(&key).is_some_and(same) {
            return Ok(());
        }
        let unbound = || etcd.pods().any(|pod| pod.uid == *uid && pod.node.is_none());
        if self.awaited.get(&key).is_some_and(|awaited| !awaited.contains(uid)) && unbound() {
            return Err(format!(
                "extender-{process} binds {uid} to {node} after it has told its agent that it may leave"
            ));
        }
        match self.closed.get(&key) {
            Some(closed) if closed.late > TAKEN => {
                Err(format!("extender-{process} binds {uid} to {node}, whose agent has been away for too long"))
            }
            _ => Ok(()),
        }
    }

    fn is_newest(&self, key: &StreamKey, stream: u64) -> bool {
        self.newest.get(key).is_some_and(|(newest, _)| *newest == stream)
    }

    fn forget(&mut self, which: &dyn Fn(&StreamKey) -> bool) {
        self.newest.retain(|key, _| !which(key));
        self.awaited.retain(|key, _| !which(key));
        self.closed.retain(|key, _| !which(key));
        self.running.retain(|key, _| !which(key));
        self.held.retain(|key, _| !which(key));
    }
}
