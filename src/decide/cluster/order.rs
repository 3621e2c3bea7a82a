//! The stages of one order: what the extender does next to bind the pod, and what follows from each answer of the API
//! server.
//!
//! ```text
//!   write ──Post──▶ bound ─────────────────────────────────────────────▶ ended: bound
//!     ▲     │ ▲     refused for good, no write is open ────────────────▶ ended: refused
//!     │     │ └──── conflict ──Read──▶ the pod has a new version and the same request
//!     │     └────── no answer ──▶ wait ──pause──▶ write
//!     └─ must not be written any more ──Fence, Read──▶ no write is open ──▶ ended: refused
//! ```
//!
//! Each Binding names the version of the pod, and the API server refuses it for any other version ([`OpenWrites`]). An
//! order may have to be given up, for example because other pods have taken its GPUs. The extender then changes the pod
//! (the fence), so that the API server refuses every older Binding. If another program has changed the pod, the
//! extender writes the order for the new version, but only if the pod still has the same request.
//!
//! What must never happen here: the GPUs of an order are released while the API server may still carry out one of its
//! Bindings.

use super::bind::BindOutcome;
use super::open_writes::OpenWrites;
use super::planted::{PlantedMistake, planted};
use super::state::ClusterState;
use crate::ledger::ClaimState;
use model::backoff::Backoff;
use model::claim::BindOrder;
use model::id::NodeName;
use model::placement::PlacementRequest;
use model::pod_memory::MAX_WAITING_REQUEST_BYTES;
use model::time::Monotonic;
use std::sync::Arc;
use std::time::Duration;

/// First pause between two writes of an order; each further pause is twice as long.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause between two writes of an order.
const LONGEST: Duration = Duration::from_secs(5);
/// Maximum number of changes of the pod; after more changes, kube-scheduler gets it back. A waiting pod seldom changes
/// more than once between its filter call and its bind.
const MOST_VERSIONS: usize = 5;
/// How long the pod watch may take to show a binding before the pod is read. A working watch needs less than a second,
/// and a new list some seconds.
const UNSEEN: Duration = Duration::from_secs(20);
/// Longest pause between two reads of a pod whose binding the watch does not show. One answered read is enough.
const LONGEST_UNSEEN: Duration = Duration::from_secs(30);

/// Why an order is not written again.
const GIVEN_UP: &str =
    "this extender is no longer the leader, or the node takes no new pods, or other pods have the GPUs by now";
/// Why a changed pod is not bound: its GPUs were chosen for its earlier request.
const CHANGED: &str = "the pod was changed after the filter: it is placed again";
/// Why the outcome of a write is unknown if the term ended before the answer.
const TERM_ENDED: &str = "the term of this extender ended before the API server answered";

/// The result of an order: the pod is bound, or why it is not.
pub type BindResult = Result<(), Arc<str>>;

/// What the extender does next for an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindStep {
    /// Write the Binding, and report the answer to [`OrderStages::posted`].
    Post(BindOrder),
    /// Write this version into the pod's fence annotation. The write gives the pod a new version, so that no earlier
    /// Binding can be carried out. The read that follows shows whether the write succeeded.
    Fence(u64),
    /// Read the pod from etcd, and report it to [`OrderStages::read`].
    Read,
    /// Call [`OrderStages::next`] again after the pause.
    Wait {
        /// The pause.
        pause: Duration,
        /// Why the outcome of the last write is unknown, for the log; `None` if it was reported before.
        unknown: Option<String>,
    },
    /// The order has ended.
    Ended {
        /// How.
        result: BindResult,
        /// The outcome to report to the cluster's state; `None` if the pod watch has already shown it.
        outcome: Option<BindOutcome>,
    },
}

/// The answer to the write of a Binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostAnswer {
    /// The API server has bound the pod as ordered.
    Bound,
    /// Nothing was sent, because no Binding can hold the claim.
    Unwritable(String),
    /// Nothing was sent, because the term had ended.
    TermOver,
    /// The term ended before the API server answered.
    TermEnded,
    /// The API server has refused the Binding with this HTTP status.
    Refused(u16, String),
    /// There was no answer, or the answer was not from the API server itself.
    NoAnswer(String),
}

/// The answer to a read of a pod from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// The pod.
    Pod(Box<ReadPod>),
    /// The pod is certainly gone; the text says how.
    Gone(&'static str),
    /// There was no answer, or the pod in it cannot be read.
    NoAnswer(String),
}

/// What a read shows of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPod {
    /// The pod's node.
    pub node: Option<NodeName>,
    /// The pod's version.
    pub version: Option<u64>,
    /// Whether the pod is being deleted. The API server then never binds it any more, not even for an older write.
    pub is_being_deleted: bool,
    /// What the pod requests.
    pub requests: ReadRequest,
}

/// The request of a pod that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRequest {
    /// No GPU.
    Nothing,
    /// These GPUs.
    Gpus(Box<PlacementRequest>),
    /// Something that cannot be read.
    Unreadable,
}

/// The answer when kube-scheduler repeats the bind of a pod whose binding is known, from a read of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatedBind {
    /// The pod is bound as ordered: the earlier answer to kube-scheduler was lost.
    Bound,
    /// Why the pod is not bound, or not known to be bound.
    Refused(Arc<str>),
    /// The pod has lost its node: etcd was restored to an older state.
    TakenBack,
}

impl ReadAnswer {
    /// The answer to a repeated bind of the pod to this node, from this read.
    #[must_use]
    pub fn repeated(&self, node: &NodeName) -> RepeatedBind {
        match self.about(node) {
            Shown::Bound => RepeatedBind::Bound,
            Shown::Never(why) | Shown::Nothing(why) => RepeatedBind::Refused(why.into()),
            Shown::Unbound(pod) if pod.is_being_deleted => RepeatedBind::Refused("the pod is being deleted".into()),
            Shown::Unbound(_) => RepeatedBind::TakenBack,
        }
    }

    /// Whether this read shows a pod without a node.
    #[must_use]
    pub fn has_no_node(&self) -> bool {
        matches!(self, ReadAnswer::Pod(pod) if pod.node.is_none())
    }

    /// What this read shows about an order for this node.
    fn about(&self, node: &NodeName) -> Shown<'_> {
        match self {
            ReadAnswer::Pod(pod) => match &pod.node {
                None => Shown::Unbound(pod),
                Some(at) if at == node => Shown::Bound,
                Some(at) => Shown::Never(format!("the pod is bound to {at}")),
            },
            ReadAnswer::Gone(why) => Shown::Never((*why).to_owned()),
            ReadAnswer::NoAnswer(why) => Shown::Nothing(why.clone()),
        }
    }
}

/// What a read shows about an order.
enum Shown<'a> {
    /// The pod is bound as ordered.
    Bound,
    /// The pod is not bound by this order and never will be; the text says why.
    Never(String),
    /// The pod has no node.
    Unbound(&'a ReadPod),
    /// The read shows nothing about the order; the text says why.
    Nothing(String),
}

/// The kind of pod that an order is for.
#[derive(Clone, Debug)]
enum Purpose {
    /// A pod whose GPUs are reserved, with its request when they were chosen; `None` if an earlier bind call reserved
    /// them, or the request is too large to be kept.
    Gpus(Option<Box<PlacementRequest>>),
    /// A pod that requests no GPU. Nothing is reserved for it, so the outcome of a write need not be known:
    /// kube-scheduler places the pod again, and the API server binds it only once.
    NoGpu,
}

/// The stage of an order.
#[derive(Clone, Debug)]
enum Stage {
    /// The order is written next, or given up if it must not be written.
    Write,
    /// The API server has refused the Binding with this text, because of the state of the pod. The pod is read next.
    Conflict(String),
    /// The order is not written now. The pod is read next, to see whether an earlier write was or can still be carried
    /// out.
    GiveUp,
    /// The outcome is unknown, and nothing is done before this moment.
    Wait(Monotonic),
    /// The order has ended.
    Ended(BindResult, Option<BindOutcome>),
}

/// The state of one order.
#[derive(Clone, Debug)]
pub struct OrderStages {
    order: BindOrder,
    purpose: Purpose,
    stage: Stage,
    /// Whether the order was ever written.
    begun: bool,
    /// The version of the pod that the next write names.
    version: Option<u64>,
    /// How often the pod was read in a new version.
    changes: usize,
    open: OpenWrites,
    backoff: Backoff,
    /// Whether the outcome of a write was ever unknown.
    was_unknown: bool,
    /// Why the outcome is unknown, until the next step reports it for the log.
    unreported: Option<String>,
}

impl OrderStages {
    /// An order for which GPUs are reserved. `asked` is the pod's request when they were chosen; `None` if an earlier
    /// bind call reserved them. A large request is not kept: while the API server does not answer, thousands of orders are open.
    #[must_use]
    pub fn new(order: BindOrder, asked: Option<PlacementRequest>) -> OrderStages {
        let asked = asked.filter(|asked| asked.memory() <= MAX_WAITING_REQUEST_BYTES);
        OrderStages::of(order, Purpose::Gpus(asked.map(Box::new)))
    }

    /// An order for a pod that requests no GPU.
    #[must_use]
    pub fn without_gpus(order: BindOrder) -> OrderStages {
        OrderStages::of(order, Purpose::NoGpu)
    }

    fn of(order: BindOrder, purpose: Purpose) -> OrderStages {
        let version = order.version;
        OrderStages {
            order,
            purpose,
            stage: Stage::Write,
            begun: false,
            version,
            changes: 0,
            open: OpenWrites::default(),
            backoff: Backoff::new(FIRST, LONGEST),
            was_unknown: false,
            unreported: None,
        }
    }

    /// The order as it was made.
    #[must_use]
    pub fn order(&self) -> &BindOrder {
        &self.order
    }

    /// The next step. `may_write`: whether this process leads and is not stopping.
    pub fn next(&mut self, now: Monotonic, state: &mut ClusterState, may_write: bool) -> BindStep {
        if let Stage::Wait(until) = self.stage {
            if now < until {
                return BindStep::Wait { pause: until.since(now), unknown: self.unreported.take() };
            }
            self.stage = self.shown_by_watch(state).map_or(Stage::Write, |result| Stage::Ended(result, None));
        }
        if let Stage::Write = self.stage
            && let Some(step) = self.write(now, state, may_write)
        {
            return step;
        }
        match &self.stage {
            Stage::Ended(result, outcome) => BindStep::Ended { result: result.clone(), outcome: *outcome },
            Stage::Write | Stage::Conflict(_) | Stage::GiveUp | Stage::Wait(_) => BindStep::Read,
        }
    }

    /// The step of an order in [`Stage::Write`]; `None` if the step follows from the stage that this call sets.
    fn write(&mut self, now: Monotonic, state: &mut ClusterState, may_write: bool) -> Option<BindStep> {
        let order = match self.purpose {
            Purpose::NoGpu if !may_write => {
                self.never("this extender is no longer the leader");
                return None;
            }
            // A repeated write has the epoch of the current term. It happens only if the claims that another leader has
            // written since leave room for the order.
            Purpose::Gpus(_) if self.begun => {
                state.agents_at(now);
                state.order_again(&self.order.uid)
            }
            Purpose::NoGpu | Purpose::Gpus(_) => Some(self.order.clone()),
        };
        if let Some(order) = order.filter(|_| may_write) {
            self.begun = true;
            return Some(BindStep::Post(BindOrder { version: self.version, ..order }));
        }
        if self.open.is_empty() {
            self.never(GIVEN_UP);
            return None;
        }
        self.stage = Stage::GiveUp;
        // A fence does not stop a write that names no version.
        self.open.version().filter(|_| may_write).map(BindStep::Fence)
    }

    /// The result of the order, if the pod watch has shown it during a pause.
    fn shown_by_watch(&self, state: &ClusterState) -> Option<BindResult> {
        if let Purpose::NoGpu = self.purpose {
            return None;
        }
        match state.claim_of(&self.order.uid) {
            Some((node, ClaimState::Assumed)) if *node == self.order.node => None,
            Some((node, _)) if *node == self.order.node => Some(Ok(())),
            Some((node, _)) => Some(Err(format!("the pod is bound to {node}").into())),
            None => Some(Err("the pod is gone, has ended, or is bound without this claim".into())),
        }
    }

    /// Takes in the answer to [`BindStep::Post`].
    pub fn posted(&mut self, now: Monotonic, answer: PostAnswer) {
        match answer {
            PostAnswer::Bound => self.bound(),
            PostAnswer::TermOver => self.unknown(now, TERM_ENDED.to_owned()),
            PostAnswer::TermEnded => {
                self.open.unanswered(self.version);
                self.unknown(now, TERM_ENDED.to_owned());
            }
            PostAnswer::Refused(404 | 409, why) => self.stage = Stage::Conflict(why),
            PostAnswer::Unwritable(why) | PostAnswer::Refused(400..=499, why) if self.open.is_empty() => {
                self.never(&why);
            }
            PostAnswer::Unwritable(why) | PostAnswer::Refused(400..=499, why) => self.unknown(now, why),
            PostAnswer::Refused(_, why) | PostAnswer::NoAnswer(why) => {
                if planted(PlantedMistake::LostAnswerIsRefusal) {
                    return self.never(&why);
                }
                self.open.unanswered(self.version);
                if planted(PlantedMistake::UnboundReadIsEvidence) {
                    self.stage = Stage::GiveUp;
                    return;
                }
                self.unknown(now, why);
            }
        }
    }

    /// Takes in the answer to [`BindStep::Read`].
    pub fn read(&mut self, now: Monotonic, answer: &ReadAnswer) {
        let refused = match &self.stage {
            Stage::Conflict(why) => Some(why.clone()),
            _ => None,
        };
        let pod = match answer.about(&self.order.node) {
            Shown::Bound => return self.bound(),
            Shown::Never(why) => return self.never(&why),
            Shown::Nothing(why) => {
                if refused.is_some() {
                    // The API server may have refused this write because it had already carried out an earlier write
                    // for the same version.
                    self.open.unanswered(self.version);
                }
                return self.unknown(now, why);
            }
            Shown::Unbound(pod) => pod,
        };
        let void = pod.is_being_deleted || self.nothing_is_open(pod.version);
        match refused {
            Some(why) if !void => self.unknown(now, why),
            None if !void => self.unknown(now, GIVEN_UP.to_owned()),
            None if pod.is_being_deleted => self.never("the pod is being deleted"),
            None => self.never(GIVEN_UP),
            Some(why) if pod.is_being_deleted => self.never(&why),
            Some(_) if self.version.zip(pod.version).is_some_and(|(before, now)| before != now) => self.changed(pod),
            Some(why) => self.never(&why),
        }
    }

    /// Records that the pod was read with this version and without a node. Returns whether no write can be carried out
    /// any more.
    fn nothing_is_open(&mut self, version: Option<u64>) -> bool {
        self.open.read_unbound(version);
        self.open.is_empty() || planted(PlantedMistake::UnboundReadIsEvidence)
    }

    /// Continues the order after the pod has got another version. The pod is not bound, and no earlier write can be
    /// carried out any more.
    fn changed(&mut self, pod: &ReadPod) {
        self.changes += 1;
        let same = match (&self.purpose, &pod.requests) {
            (Purpose::NoGpu, ReadRequest::Nothing) => true,
            // If it is not known what the pod requested before, its request may have changed.
            (Purpose::Gpus(Some(asked)), ReadRequest::Gpus(now)) => asked.asks_the_same(now),
            (Purpose::NoGpu | Purpose::Gpus(_), _) => false,
        };
        if !same {
            self.never(CHANGED);
        } else if self.changes > MOST_VERSIONS {
            self.never("the pod changes faster than it can be bound");
        } else {
            self.version = pod.version;
            self.stage = Stage::Write;
        }
    }

    fn bound(&mut self) {
        self.stage = Stage::Ended(Ok(()), Some(BindOutcome::Written));
    }

    /// Ends the order: it has not bound the pod, and never will.
    fn never(&mut self, why: &str) {
        self.stage = Stage::Ended(Err(why.into()), Some(BindOutcome::Refused));
    }

    /// The outcome is unknown: the order continues after a pause.
    fn unknown(&mut self, now: Monotonic, why: String) {
        if !std::mem::replace(&mut self.was_unknown, true) {
            self.unreported = Some(why);
        }
        self.stage = Stage::Wait(now.after(self.backoff.pause()));
    }
}

/// What the extender does after an order has ended, until the pod watch shows that the pod is bound or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmStep {
    /// Nothing more: the watch has shown it.
    Confirmed,
    /// Call [`Confirmation::next`] again after this pause.
    Wait(Duration),
    /// Read the pod from etcd. If the pod was deleted while the watch was broken, the watch may never show it.
    Read,
}

/// Waits for the pod watch to show the outcome of an order.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation {
    backoff: Backoff,
    until: Monotonic,
}

impl Confirmation {
    /// The wait for an order that has ended now.
    #[must_use]
    pub fn new(now: Monotonic) -> Confirmation {
        let mut backoff = Backoff::new(UNSEEN, LONGEST_UNSEEN);
        let until = now.after(backoff.pause());
        Confirmation { backoff, until }
    }

    /// The next step. `unshown`: whether the pod has a claim that the pod watch has not shown.
    #[must_use]
    pub fn next(&mut self, now: Monotonic, unshown: bool) -> ConfirmStep {
        if !unshown {
            return ConfirmStep::Confirmed;
        }
        if now < self.until {
            return ConfirmStep::Wait(self.until.since(now));
        }
        self.until = now.after(self.backoff.pause());
        ConfirmStep::Read
    }
}

#[cfg(test)]
mod tests;
