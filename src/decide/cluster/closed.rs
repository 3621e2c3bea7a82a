//! Why a node takes no new claims.
//!
//! A node is closed while it is not known which of its GPUs are taken. It opens by itself as soon as that is known: the agent names
//! the GPUs of a pod or refuses its start, the pod ends, a newer version of an object can be read. Anyone who may create pods can
//! name a node in them. So a pod without a claim does not close the node of an agent that refuses all such pods.
//!
//! If there are too many pods, pods that only request GPUs are left out first. Such a pod may then start on any node, so all nodes
//! whose agents do not refuse such pods are closed until no pod is left out.

use super::handshake_age::STALE_AFTER;
use model::claim::ClaimOrigin;
use model::id::{GpuUuid, NodeName, ObjectUid, PodRef, PodUid};
use model::time::WallTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Why a node takes no new claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClosedReason {
    /// The Node is not at the API server, but pods on it still have claims.
    Gone,
    /// The register cannot be read.
    Unreadable(Arc<str>),
    /// A pod on the node holds GPUs, and its claim cannot be read.
    UnknownClaim(PodUid),
    /// A pod on the node cannot be read at all, so it may hold GPUs.
    UnreadablePod(PodUid),
    /// A pod on the node claims a device that neither the register of the node nor the report of its agent has.
    UnknownDevice(PodUid, GpuUuid),
    /// Another scheduler of GPUs has placed this pod here since this scheduler began to use the node.
    TwoSchedulers(PodUid),
    /// Extenders of gpu-steward with this other Lease have placed this pod here since this scheduler began to use the
    /// node.
    TwoLeases(PodUid, Arc<str>),
    /// Some pods that request GPUs without a claim are left out, because there are too many. The agent does not say that it refuses
    /// such pods, so a pod that is left out may start here.
    UnprovenLeftOut,
    /// The stream of the agent has ended, and the agent has not opened another in time.
    AgentAway,
    /// The agent has no stream, and its handshake on the Node has not changed for too long.
    HandshakeStale,
    /// The agent is not registered with the kubelet, or finds no CDI on its node.
    AgentStarting,
    /// The agent is of an earlier release and gives devices at `Allocate`, because the runtime has no CDI.
    AgentWithoutCdi,
    /// The agent is about to stop.
    AgentLeaving,
}

impl ClosedReason {
    /// Whether the reason is reported in the log and as an event. A Node that is gone is not reported, nor are the reasons that each
    /// start and upgrade of an agent causes for a moment, nor a reason that many nodes have at once.
    pub(super) fn is_news(&self) -> bool {
        !matches!(
            self,
            ClosedReason::Gone
                | ClosedReason::UnprovenLeftOut
                | ClosedReason::AgentStarting
                | ClosedReason::AgentLeaving
        )
    }

    /// The pod that closes the node; `None` if the reason is not a pod.
    pub(super) fn pod(&self) -> Option<&PodUid> {
        match self {
            ClosedReason::UnknownClaim(pod)
            | ClosedReason::UnreadablePod(pod)
            | ClosedReason::UnknownDevice(pod, _)
            | ClosedReason::TwoSchedulers(pod)
            | ClosedReason::TwoLeases(pod, _) => Some(pod),
            _ => None,
        }
    }

    /// The code for logs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            ClosedReason::Gone => "gone",
            ClosedReason::Unreadable(_) => "unreadable_register",
            ClosedReason::UnknownClaim(_) => "unknown_claim",
            ClosedReason::UnreadablePod(_) => "unreadable_pod",
            ClosedReason::UnknownDevice(..) => "unknown_device",
            ClosedReason::TwoSchedulers(_) => "two_schedulers",
            ClosedReason::TwoLeases(..) => "two_leases",
            ClosedReason::UnprovenLeftOut => "unproven_left_out",
            ClosedReason::AgentAway => "agent_away",
            ClosedReason::HandshakeStale => "handshake_stale",
            ClosedReason::AgentStarting => "agent_starting",
            ClosedReason::AgentWithoutCdi => "agent_without_cdi",
            ClosedReason::AgentLeaving => "agent_leaving",
        }
    }
}

/// Why a node is closed, with the name of the pod that closes it, if a pod does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The reason.
    pub reason: ClosedReason,
    /// Namespace and name of the pod; `None` if no pod closes the node, or its name is not known.
    pub pod: Option<PodRef>,
}

impl Closing {
    /// The reason for the owners of a namespace: the name of a pod in another namespace is left out.
    #[must_use]
    pub fn told_in(&self, namespace: &str) -> String {
        match &self.pod {
            Some(pod) if *pod.namespace != *namespace => self.text("a pod of another namespace"),
            _ => self.to_string(),
        }
    }

    fn text(&self, pod: &str) -> String {
        match &self.reason {
            ClosedReason::Gone => "the Node is gone and pods on it still have claims".to_owned(),
            ClosedReason::Unreadable(why) => format!("the register of the node cannot be read: {why}"),
            ClosedReason::UnknownClaim(_) => format!(
                "{pod} holds GPUs of this node, but it is not known which; see that the node's agent runs, which names them, or \
                 delete that pod"
            ),
            ClosedReason::UnreadablePod(_) => {
                format!("{pod} on this node cannot be read; it may hold GPUs; correct or delete that pod")
            }
            ClosedReason::UnknownDevice(_, device) => format!(
                "{pod} on this node claims {device}, and neither the node's register nor its agent knows such a GPU, so the pod may \
                 hold any GPU of the node; delete that pod, or wait until it ends"
            ),
            ClosedReason::TwoSchedulers(_) => format!(
                "another GPU scheduler has placed {pod} on this node after this one began to use it; let only one of them use \
                 the node"
            ),
            ClosedReason::TwoLeases(_, lease) => format!(
                "extenders with another Lease, {lease}, have placed {pod} on this node after the extenders with this Lease \
                 began to use it; let only one of the two installations use the node"
            ),
            ClosedReason::UnprovenLeftOut => {
                "there are too many pods to follow all that request GPUs without a claim, and one of them may start on this node, \
                 because its agent does not report that it refuses them; delete such pods"
                    .to_owned()
            }
            ClosedReason::AgentAway => {
                "the node's agent has lost its connection and has not connected again; see whether it runs".to_owned()
            }
            ClosedReason::HandshakeStale => format!(
                "the node's agent has no stream to this extender, and its handshake on the Node (hami.io/node-handshake) has been \
                 the same for {} s; see whether it runs",
                STALE_AFTER.as_secs()
            ),
            ClosedReason::AgentStarting => {
                "the node's agent is not registered with the kubelet, or finds no CDI there; its /readyz says which".to_owned()
            }
            ClosedReason::AgentWithoutCdi => {
                "the node's agent is of an earlier release and finds no CDI in the container runtime; turn CDI on there, and \
                 upgrade the agent"
                    .to_owned()
            }
            ClosedReason::AgentLeaving => "the node's agent is about to stop".to_owned(),
        }
    }
}

/// The reason for the log, the event on the Node and operators.
impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = match (&self.pod, self.reason.pod()) {
            (Some(pod), _) => format!("the pod {pod}"),
            (None, Some(uid)) => format!("the pod with the UID {uid}"),
            (None, None) => String::new(),
        };
        f.write_str(&self.text(&pod))
    }
}

/// A node that has been closed, or is closed for another reason, or is open again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingChange {
    /// The node.
    pub node: NodeName,
    /// The UID of the Node; `None` if the Node is not known.
    pub uid: Option<ObjectUid>,
    /// Why the node is closed; `None` if it is open again.
    pub closed: Option<Closing>,
}

/// What is known about a pod with an unknown claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownClaim {
    /// The pod has no claim, or its request cannot be read, and none of its containers has run. It holds no GPU if its agent
    /// refuses to start it.
    NotStarted,
    /// The pod may hold GPUs, even if its agent refuses new pods.
    Other,
}

/// The pods that may keep a node from taking new claims, and the reason that was reported last.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockingPods {
    /// Pods that hold GPUs of the node and whose claim is not known. Anyone who may create pods can create very many, so copies of a
    /// node share them.
    unknown: Arc<BTreeMap<PodUid, UnknownClaim>>,
    /// The pods in `unknown` that are [`UnknownClaim::Other`]. Only the kubelet and agents can cause this.
    others: BTreeSet<PodUid>,
    /// Pods that cannot be read at all, by their UID at the API server.
    pub(super) unreadable: BTreeSet<PodUid>,
    /// The schedulers of the pods' claims. Claims that the agent made are not among them.
    origins: BTreeMap<PodUid, ClaimOrigin>,
    /// The reason with the newest pod of another scheduler, if it was placed after the oldest pod of this scheduler.
    intruder: Option<ClosedReason>,
    /// The reason that was reported last.
    pub(super) last_reported: Option<ClosedReason>,
}

impl BlockingPods {
    pub(super) fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.unreadable.is_empty()
    }

    /// The pods that hold GPUs of the node and whose claim is not known.
    pub(super) fn unknown(&self) -> &BTreeMap<PodUid, UnknownClaim> {
        &self.unknown
    }

    /// Sets what is known of a pod whose claim is not known; `None` if the claim is known or the pod has no claim. Returns whether
    /// that changes anything.
    pub(super) fn unknown_is(&mut self, uid: &PodUid, claim: Option<UnknownClaim>) -> bool {
        if self.unknown.get(uid).copied() == claim {
            return false;
        }
        match claim {
            Some(claim) => Arc::make_mut(&mut self.unknown).insert(uid.clone(), claim),
            None => Arc::make_mut(&mut self.unknown).remove(uid),
        };
        match claim {
            Some(UnknownClaim::Other) => self.others.insert(uid.clone()),
            Some(UnknownClaim::NotStarted) | None => self.others.remove(uid),
        };
        true
    }

    /// The first reason why the node is closed. A pod without a readable claim is a reason, unless it `holds_none` of the GPUs.
    /// `reported`: the only pods that may hold GPUs without having started; `None`: all may.
    pub(super) fn first<'a>(
        &'a self,
        reported: Option<impl Iterator<Item = &'a PodUid>>,
        holds_none: impl Fn(&PodUid, UnknownClaim) -> bool,
    ) -> Option<ClosedReason> {
        let unreadable = || self.unreadable.first().cloned().map(ClosedReason::UnreadablePod);
        let holds = |uid: &&PodUid| self.unknown.get(*uid).is_some_and(|claim| !holds_none(uid, *claim));
        let unknown = match reported {
            Some(reported) => self.others.iter().chain(reported).filter(holds).min(),
            None => self.unknown.keys().find(holds),
        };
        let unknown = unknown.map(|uid| ClosedReason::UnknownClaim(uid.clone()));
        unknown.or_else(unreadable).or_else(|| self.intruder.clone())
    }

    /// The scheduler of a pod's claim.
    pub(super) fn origin(&self, uid: &PodUid) -> Option<&ClaimOrigin> {
        self.origins.get(uid)
    }

    /// Sets the scheduler that made the claim of a pod; `None` if no scheduler made it, or the pod is gone.
    pub(super) fn origin_is(&mut self, uid: &PodUid, origin: Option<ClaimOrigin>) {
        match origin {
            Some(origin) => self.origins.insert(uid.clone(), origin),
            None => self.origins.remove(uid),
        };
        self.intruder = intruder(&self.origins);
    }
}

/// The newest pod of another scheduler, if this scheduler had placed a pod here before: both place pods here. If two schedulers
/// place pods on one node, at least one of them closes it. Pods that were there when this scheduler took over are older and do not
/// close the node, even under a former name of its Lease. If a time cannot be read, the node is closed, because nothing shows which
/// pod is older.
fn intruder(origins: &BTreeMap<PodUid, ClaimOrigin>) -> Option<ClosedReason> {
    let own = |origin: &ClaimOrigin| match origin {
        ClaimOrigin::Own(at) => Some(at.unwrap_or(WallTime(0))),
        ClaimOrigin::OtherLease(..) | ClaimOrigin::Other(_) => None,
    };
    let other = |(uid, origin): (&PodUid, &ClaimOrigin)| {
        let (at, reason) = match origin {
            ClaimOrigin::Own(_) => return None,
            ClaimOrigin::OtherLease(at, lease) => (at, ClosedReason::TwoLeases(uid.clone(), Arc::clone(lease))),
            ClaimOrigin::Other(at) => (at, ClosedReason::TwoSchedulers(uid.clone())),
        };
        Some((at.unwrap_or(WallTime(u64::MAX)), reason))
    };
    let oldest = origins.values().filter_map(own).min()?;
    let (newest, reason) = origins.iter().filter_map(other).max_by_key(|(at, _)| *at)?;
    (newest >= oldest).then_some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Anyone who may create pods can let thousands of pods name a node, and each report and each filter call asks for this.
    #[test]
    fn of_the_pods_that_have_not_started_only_those_are_looked_at_that_may_hold_gpus() {
        let uid = |n: u32| PodUid::parse(&format!("{n:032x}")).unwrap();
        let (mut pods, other) = (BlockingPods::default(), uid(9000));
        (0..1000).for_each(|n| assert!(pods.unknown_is(&uid(n), Some(UnknownClaim::NotStarted))));
        assert!(pods.unknown_is(&other, Some(UnknownClaim::Other)));
        assert!(!pods.unknown_is(&uid(7), Some(UnknownClaim::NotStarted)), "as before");
        let (reported, looked) = ([uid(8000), uid(8), uid(7)], Cell::new(0));
        let first = |pods: &BlockingPods, holding: &[&PodUid]| {
            looked.set(0);
            pods.first(Some(reported.iter()), |uid, _| {
                looked.set(looked.get() + 1);
                !holding.contains(&uid)
            })
        };
        assert_eq!((first(&pods, &[]), looked.get()), (None, 3));
        let because = |uid: &PodUid| Some(ClosedReason::UnknownClaim(uid.clone()));
        assert_eq!((first(&pods, &[&uid(8), &uid(7)]), looked.get()), (because(&uid(7)), 3));
        assert_eq!(first(&pods, &[&other]), because(&other));
        assert!(Arc::ptr_eq(&pods.unknown, &pods.clone().unknown), "a copy of the node shares them");
        // The container of one pod has run, and another pod's container turns out not to have.
        assert!(pods.unknown_is(&uid(1), Some(UnknownClaim::Other)));
        assert!(pods.unknown_is(&other, Some(UnknownClaim::NotStarted)));
        assert_eq!(first(&pods, &[&uid(1), &other]), because(&uid(1)));
        assert_eq!(first(&pods, &[&other]), None);
        assert!(pods.unknown_is(&uid(1), None) && !pods.unknown_is(&uid(1), None));
        assert_eq!(first(&pods, &[&uid(1)]), None);
    }

    #[test]
    fn a_closing_names_its_pod_and_hides_it_from_other_namespaces() {
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let pod = PodRef { namespace: "ml".into(), name: "train-0".into() };
        for reason in [
            ClosedReason::UnknownClaim(uid.clone()),
            ClosedReason::UnreadablePod(uid.clone()),
            ClosedReason::UnknownDevice(uid.clone(), GpuUuid::parse("GPU-1").unwrap()),
            ClosedReason::TwoSchedulers(uid.clone()),
            ClosedReason::TwoLeases(uid.clone(), "gpu/other".into()),
        ] {
            let closing = Closing { reason: reason.clone(), pod: Some(pod.clone()) };
            for text in [closing.to_string(), closing.told_in("ml")] {
                assert!(text.contains("the pod ml/train-0") && !text.contains(uid.as_str()), "{text}");
            }
            let hidden = closing.told_in("web");
            assert!(hidden.contains("a pod of another namespace") && !hidden.contains("train-0"), "{hidden}");
            let nameless = Closing { reason, pod: None }.to_string();
            assert!(nameless.contains("the pod with the UID 1111"), "{nameless}");
        }
        for reason in [ClosedReason::AgentAway, ClosedReason::HandshakeStale] {
            let away = Closing { reason, pod: None };
            assert_eq!(away.told_in("web"), away.to_string());
        }
    }
}
