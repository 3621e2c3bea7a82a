//! Binds pods: writes the orders of the leader at the API server until the outcome of each is known.
//!
//! ```text
//!   /bind ──▶ ClusterOwner::bind reserves ──▶ task of the order ──POST──▶ written | refused ──▶ answer
//!                                                  ▲      │ no answer
//!                                                  └─pause┘   kube-scheduler gets an error after ANSWER_WITHIN
//! ```
//!
//! What must never happen here: a POST by a process that does not lead at that moment; a reservation that is released
//! while an older POST of the same order may still be carried out.

use super::convert;
use super::events::{PodEventReason, PodEvents};
use super::leadership::Leadership;
use super::owner::ClusterOwner;
use super::planted::{PlantedMistake, planted};
use apiserver::ApiError;
use apiserver::client::{ApiClient, ReadAge};
use decide::cluster::{BindOrder, BindOutcome, BindRefusal};
use decide::ledger::ClaimState;
use model::backoff::Backoff;
use model::claim::Claim;
use model::id::{NodeName, PodRef, PodUid};
use model::pod::Pod;
use parking_lot::Mutex;
use sources::clock;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::extender::ExtenderBindingArgs;

/// How long kube-scheduler waits for an answer, less a second for the way: the printed configuration has 5 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Pause before the next look whether another pod has arrived: agents report once a second.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// Orders whose outcome is not known. kube-scheduler binds some hundred pods at once at most; more wait only while the API
/// server does not answer, and then no more should be added.
const MOST: usize = 2_000;
/// Pauses between two POSTs of an order.
const FIRST: Duration = Duration::from_millis(100);
/// See [`FIRST`].
const LONGEST: Duration = Duration::from_secs(5);

/// How long the pod watch may need to show a binding before the pod is read. A watch that works needs less than a second,
/// and a new list some seconds.
const UNSEEN: Duration = Duration::from_secs(20);
/// Longest pause between two such reads, of which only one must be answered.
const LONGEST_UNSEEN: Duration = Duration::from_secs(30);

/// The result of an order: `None` while it is not known.
type BindResult = Option<Result<(), Arc<str>>>;

/// Writes orders.
#[derive(Debug)]
pub(super) struct Binder {
    pub(super) client: ApiClient,
    pub(super) owner: Arc<ClusterOwner>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) events: Arc<PodEvents>,
    /// The orders under way.
    pub(super) orders: Mutex<HashMap<PodUid, watch::Receiver<BindResult>>>,
    pub(super) tasks: TaskTracker,
    /// Cancelled when no order may be begun or repeated any more.
    pub(super) stop: CancellationToken,
}

/// Why an order is not begun.
enum NotBegun {
    /// Another pod that is on its way must arrive first.
    InFlight(String),
    /// Anything else.
    Refused(String),
}

/// What a POST, or a read after it, has shown.
enum Shown {
    /// The pod is bound as ordered.
    Bound,
    /// The pod is not bound by this order and never will be.
    Never(String),
    /// Nothing certain.
    Unknown(String),
}

/// What a read of the pod has shown.
enum Looked {
    /// It is bound as ordered.
    Bound,
    /// It is not bound by the order and never will be.
    Never(String),
    /// It has no node.
    Unbound {
        /// It is being deleted.
        deleted: bool,
    },
    /// Nothing.
    Nothing(String),
}

impl Binder {
    /// Binds a pod to a node. Returns once that is known to have happened or to have failed, or after [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// Why the pod is not bound, or not known to be.
    pub(super) async fn bind(self: &Arc<Self>, args: &ExtenderBindingArgs) -> Result<(), Arc<str>> {
        let ExtenderBindingArgs { uid, pod, node } = args;
        let bound = |(at, state): (NodeName, ClaimState)| at == *node && state != ClaimState::Assumed;
        // kube-scheduler asks again for a pod that is bound after a lost answer, or after a restore of etcd, which takes
        // the node away again. One read tells the two apart.
        if self.owner.claim_of(uid).is_some_and(bound) {
            match self.look(uid, pod, node).await {
                Looked::Bound => return Ok(()),
                Looked::Unbound { deleted: false } => self.owner.pod_is_unbound(uid),
                Looked::Unbound { deleted: true } => return Err("the pod is being deleted".into()),
                Looked::Never(why) | Looked::Nothing(why) => return Err(why.into()),
            }
        }
        let until = Instant::now() + ANSWER_WITHIN;
        let mut result = loop {
            match self.begin(uid, node) {
                Ok(result) => break result,
                // Another pod is on its way to the node, and its agent could mistake one for the other.
                Err(NotBegun::InFlight(_)) if Instant::now() + IN_FLIGHT < until => sleep(IN_FLIGHT).await,
                Err(NotBegun::InFlight(why) | NotBegun::Refused(why)) => {
                    self.events.send(uid, pod, PodEventReason::BindingFailed, why.clone());
                    return Err(why.into());
                }
            }
        };
        let known = timeout_at(until, result.wait_for(Option::is_some)).await;
        match known {
            Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
            Ok(Err(_)) => Err("the extender is stopping".into()),
            Err(_) => {
                if planted(PlantedMistake::ReleaseAtDeadline) {
                    self.owner.bind_ended(uid, BindOutcome::Refused);
                }
                Err("the API server has not answered yet; the binding is written again until its outcome is known"
                    .into())
            }
        }
    }

    /// The result of this order, which is begun if it is not under way.
    fn begin(self: &Arc<Self>, uid: &PodUid, node: &NodeName) -> Result<watch::Receiver<BindResult>, NotBegun> {
        let mut orders = self.orders.lock();
        if !orders.contains_key(uid) && orders.len() >= MOST {
            let why = format!("{MOST} bindings wait for the API server; try again later");
            return Err(NotBegun::Refused(why));
        }
        // The same order again if one is under way, and an error if it is for another node.
        let order = self.owner.bind(uid, node).map_err(|why| match why {
            BindRefusal::InFlight { .. } => NotBegun::InFlight(why.to_string()),
            why => NotBegun::Refused(why.to_string()),
        })?;
        if let Some(result) = orders.get(uid) {
            return Ok(result.clone());
        }
        let (sender, receiver) = watch::channel(None);
        orders.insert(uid.clone(), receiver.clone());
        let binder = Arc::clone(self);
        self.tasks.spawn(async move {
            let result = binder.carry_out(&order).await;
            binder.ended(&order, &result);
            let _ = sender.send(Some(result));
            binder.confirm(&order).await;
        });
        Ok(receiver)
    }

    fn ended(&self, order: &BindOrder, result: &Result<(), Arc<str>>) {
        self.orders.lock().remove(&order.uid);
        let BindOrder { uid, pod, node, claim, .. } = order;
        match result {
            Ok(()) => {
                let shares = sentence(claim);
                tracing::info!(%pod, %node, "bound {pod} to {node}: {shares}");
                self.events.send(uid, pod, PodEventReason::BindingSucceed, format!("bound to {node}: {shares}"));
            }
            Err(why) => {
                tracing::warn!(%pod, %node, why = &**why, "cannot bind {pod} to {node}: {why}");
                self.events.send(uid, pod, PodEventReason::BindingFailed, format!("not bound to {node}: {why}"));
            }
        }
    }

    async fn carry_out(&self, order: &BindOrder) -> Result<(), Arc<str>> {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        // Whether an earlier POST may still be carried out.
        let mut open = false;
        loop {
            let writes = self.leadership.decides() && !self.stop.is_cancelled();
            // An order of an earlier term is written with the epoch of this one, and only where the claims that another
            // leader has written meanwhile leave it room.
            let again = if writes && open { self.owner.order_again(&order.uid) } else { None };
            let shown = if writes && !open {
                self.post(order, open).await
            } else if let Some(again) = again {
                self.post(&again, open).await
            } else if open {
                self.only_look(order).await
            } else {
                Shown::Never("this extender leads no longer; it has written nothing".to_owned())
            };
            match shown {
                Shown::Bound => {
                    self.owner.bind_ended(&order.uid, BindOutcome::Written);
                    return Ok(());
                }
                Shown::Never(why) => {
                    self.owner.bind_ended(&order.uid, BindOutcome::Refused);
                    return Err(why.into());
                }
                Shown::Unknown(why) => {
                    if !std::mem::replace(&mut open, true) {
                        let (pod, node) = (&order.pod, &order.node);
                        tracing::warn!(%pod, %node, why, "the outcome of a binding is not known: {why}; it is written again");
                    }
                    self.owner.bind_ended(&order.uid, BindOutcome::Unknown);
                }
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err("the extender is stopping, and the outcome is not known".into()),
                () = sleep(backoff.pause()) => {}
            }
            if let Some(result) = self.seen(order) {
                return result;
            }
        }
    }

    /// What the pod watch has shown of the pod meanwhile, if that settles the order.
    fn seen(&self, order: &BindOrder) -> Option<Result<(), Arc<str>>> {
        match self.owner.claim_of(&order.uid) {
            Some((node, ClaimState::Assumed)) if node == order.node => None,
            Some((node, _)) if node == order.node => Some(Ok(())),
            Some((node, _)) => Some(Err(format!("the pod is bound to {node}").into())),
            None => Some(Err("the pod is gone, has ended, or is bound without this claim".into())),
        }
    }

    /// Writes the order once. `open` says whether an earlier write may still be carried out.
    async fn post(&self, order: &BindOrder, open: bool) -> Shown {
        let binding = match convert::binding(order, self.owner.lease(), clock::now().wall) {
            Ok(binding) => binding,
            Err(why) => return Shown::Never(why),
        };
        let Err(error) = self.client.bind_pod(&order.pod, &order.node, &binding).await else { return Shown::Bound };
        let refused = error.refusal().filter(|refusal| refusal.is_status).map(|refusal| refusal.code);
        match refused {
            Some(404 | 409) => self.read(order, open, &error).await,
            Some(400..=499) if !open => Shown::Never(error.to_string()),
            _ if planted(PlantedMistake::LostAnswerIsRefusal) => Shown::Never(error.to_string()),
            _ => Shown::Unknown(error.to_string()),
        }
    }

    /// Reads the pod after its binding was refused: it may be bound already, by this order or another, or be gone.
    async fn read(&self, order: &BindOrder, open: bool, refused: &ApiError) -> Shown {
        match self.look(&order.uid, &order.pod, &order.node).await {
            Looked::Bound => Shown::Bound,
            Looked::Never(why) => Shown::Never(why),
            // A pod that is being deleted is never bound any more, also not by an older write.
            Looked::Unbound { deleted } if deleted || !open => Shown::Never(refused.to_string()),
            Looked::Unbound { .. } => Shown::Unknown(refused.to_string()),
            Looked::Nothing(why) => Shown::Unknown(why),
        }
    }

    /// Reads the pod while this process may not write.
    async fn only_look(&self, order: &BindOrder) -> Shown {
        match self.look(&order.uid, &order.pod, &order.node).await {
            Looked::Bound => Shown::Bound,
            Looked::Never(why) => Shown::Never(why),
            Looked::Unbound { deleted: true } => Shown::Never("the pod is being deleted".to_owned()),
            Looked::Unbound { .. } => {
                Shown::Unknown("this extender leads no longer, or other pods have the GPUs by now".to_owned())
            }
            Looked::Nothing(why) => Shown::Unknown(why),
        }
    }

    /// Reads the pod as it is in etcd now, and takes over what it shows.
    async fn look(&self, uid: &PodUid, name: &PodRef, node: &NodeName) -> Looked {
        let pod = match self.client.get_pod(name, &ReadAge::Newest).await {
            Ok(bytes) => wire::pod::decode(&bytes).map_err(|why| why.to_string()),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => {
                self.owner.pod_gone(uid);
                return Looked::Never("the pod is gone".to_owned());
            }
            Err(error) => Err(error.to_string()),
        };
        let pod: Pod = match pod {
            Ok(pod) => pod,
            Err(why) => return Looked::Nothing(why),
        };
        if pod.uid != *uid {
            self.owner.pod_gone(uid);
            return Looked::Never("the pod is gone; another pod has its name".to_owned());
        }
        match &pod.node {
            None => Looked::Unbound { deleted: pod.deleted_at.is_some() },
            Some(at) => {
                self.owner.pod_was_read(&pod);
                if at == node { Looked::Bound } else { Looked::Never(format!("the pod is bound to {at}")) }
            }
        }
    }

    /// Waits until the pod watch has shown the pod bound or gone. A watch that broke may never show a pod that was gone before
    /// the next list, so the pod is read where that takes long.
    async fn confirm(&self, order: &BindOrder) {
        let mut backoff = Backoff::new(UNSEEN, LONGEST_UNSEEN);
        while self.owner.claim_is_unshown(&order.uid) {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = sleep(backoff.pause()) => {}
            }
            if !self.owner.claim_is_unshown(&order.uid) {
                return;
            }
            let looked = self.look(&order.uid, &order.pod, &order.node).await;
            if matches!(looked, Looked::Unbound { .. }) {
                self.is_taken_back(order);
            }
        }
    }

    /// A pod whose binding was written has no node: etcd was restored. Another order for it may be under way by now.
    fn is_taken_back(&self, order: &BindOrder) {
        let orders = self.orders.lock();
        if !orders.contains_key(&order.uid) {
            self.owner.bind_ended(&order.uid, BindOutcome::Refused);
            self.owner.pod_is_unbound(&order.uid);
        }
    }
}

/// The device shares of a claim, for people.
fn sentence(claim: &Claim) -> String {
    let mut text = String::new();
    for share in claim.shares() {
        let _ = write!(text, "{}{}", if text.is_empty() { "" } else { ", " }, share.device);
        if let Some(memory) = share.memory {
            let _ = write!(text, " {} MiB", memory.0 >> 20);
        }
        if let Some(cores) = share.cores.filter(|cores| cores.0 > 0) {
            let _ = write!(text, " {} % of SM time", cores.0);
        }
    }
    text
}
