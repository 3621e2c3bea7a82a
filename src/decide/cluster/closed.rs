//! Why a node takes no new claims.
//!
//! A node is closed while it is not known which of its GPUs are taken. It opens by itself as soon as that is known: the
//! agent names the GPUs of a pod or refuses its start, the pod ends, a newer version of an object can be read.

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
    UnknownDevice(PodRef, GpuUuid),
    /// Another scheduler of GPUs has placed this pod here since this scheduler uses the node.
    TwoSchedulers(PodUid),
    /// Extenders of gpu-steward that lead by this other Lease have placed this pod here since this scheduler uses the node.
    TwoLeases(PodUid, Arc<str>),
    /// The stream of the agent has ended, and the agent has not opened another in time.
    AgentAway,
    /// The agent is not registered with the kubelet, or finds no CDI on its node.
    AgentStarting,
    /// The agent is of an earlier release and gives devices at `Allocate`, because the runtime has no CDI.
    AgentWithoutCdi,
    /// The agent is about to stop.
    AgentLeaving,
}

impl ClosedReason {
    /// Whether the reason is reported in the log and as an event. A Node that is gone is not reported, nor are the reasons that
    /// each start and upgrade of an agent causes for a moment.
    pub(super) fn is_news(&self) -> bool {
        !matches!(self, ClosedReason::Gone | ClosedReason::AgentStarting | ClosedReason::AgentLeaving)
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
            ClosedReason::AgentAway => "agent_away",
            ClosedReason::AgentStarting => "agent_starting",
            ClosedReason::AgentWithoutCdi => "agent_without_cdi",
            ClosedReason::AgentLeaving => "agent_leaving",
        }
    }
}

impl fmt::Display for ClosedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClosedReason::Gone => f.write_str("the Node is gone and pods on it still have claims"),
            ClosedReason::Unreadable(why) => write!(f, "the register of the node cannot be read: {why}"),
            ClosedReason::UnknownClaim(pod) => {
                write!(f, "the pod {pod} on this node holds GPUs, but it is not known which")
            }
            ClosedReason::UnreadablePod(pod) => {
                write!(f, "the pod {pod} on this node cannot be read; it may hold GPUs")
            }
            ClosedReason::UnknownDevice(pod, device) => write!(
                f,
                "the pod {pod} on this node claims {device}, and neither the node's register nor its agent knows such a GPU, so \
                 the pod may hold any GPU of the node; delete the pod, or wait until it ends"
            ),
            ClosedReason::TwoSchedulers(pod) => write!(
                f,
                "another GPU scheduler has placed the pod {pod} on this node after this one began to use it; let only one of \
                 them use the node"
            ),
            ClosedReason::TwoLeases(pod, lease) => write!(
                f,
                "extenders with another Lease, {lease}, have placed the pod {pod} on this node after the extenders with this \
                 Lease began to use it; let only one of the two installations use the node"
            ),
            ClosedReason::AgentAway => f.write_str("the node's agent has lost its connection and has not connected again"),
            ClosedReason::AgentStarting => {
                f.write_str("the node's agent is not registered with the kubelet, or finds no CDI there")
            }
            ClosedReason::AgentWithoutCdi => f.write_str(
                "the node's agent is of an earlier release and finds no CDI in the container runtime; turn CDI on there, and \
                 upgrade the agent",
            ),
            ClosedReason::AgentLeaving => f.write_str("the node's agent is about to stop"),
        }
    }
}

/// A node that has been closed, or is closed for another reason, or is open again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingChange {
    /// The node.
    pub node: NodeName,
    /// The UID of its Node; `None` where the Node is not known.
    pub uid: Option<ObjectUid>,
    /// Why it is closed; `None` where it is open again.
    pub closed: Option<ClosedReason>,
}

/// The pods that may keep a node from taking new claims, and the reason that was reported last.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockingPods {
    /// Pods that hold GPUs of the node and whose claim cannot be read.
    pub(super) unknown: BTreeSet<PodUid>,
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

    /// The first reason why the node is closed. A pod without a readable claim is a reason, unless it `holds_none` of the GPUs.
    pub(super) fn first(&self, holds_none: impl Fn(&PodUid) -> bool) -> Option<ClosedReason> {
        let unreadable = || self.unreadable.first().cloned().map(ClosedReason::UnreadablePod);
        let unknown = self.unknown.iter().find(|uid| !holds_none(uid)).cloned().map(ClosedReason::UnknownClaim);
        unknown.or_else(unreadable).or_else(|| self.intruder.clone())
    }

    /// The scheduler of a pod's claim.
    pub(super) fn origin(&self, uid: &PodUid) -> Option<&ClaimOrigin> {
        self.origins.get(uid)
    }

    /// The claim of a pod is from this scheduler; `None` where none made it, or the pod is gone.
    pub(super) fn origin_is(&mut self, uid: &PodUid, origin: Option<ClaimOrigin>) {
        match origin {
            Some(origin) => self.origins.insert(uid.clone(), origin),
            None => self.origins.remove(uid),
        };
        self.intruder = intruder(&self.origins);
    }
}

/// The newest pod of another scheduler, unless it is older than all pods of this scheduler: it shows that both place pods
/// here. Pods that were there when this scheduler took over are older, also those under a former name of its Lease. If two
/// schedulers place pods on one node, at least one of them closes it. A time that cannot be read counts as the time that
/// closes the node, because it proves nothing.
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
