//! Binds pods: writes the orders of the leader at the API server until the outcome of each is known.
//!
//! ```text
//!   /bind ──▶ LockedCluster::bind reserves ──▶ task of the order ──POST──▶ written | refused ──▶ answer
//!                                                  ▲      │ no answer
//!                                                  └─pause┘   kube-scheduler gets an error after ANSWER_WITHIN
//! ```
//!
//! Each POST names the version of the pod, and the API server refuses it for any other ([`OpenWrites`]). An order that must
//! not be written any more, because other pods have its GPUs by now, is given up by a change of the pod: after that no older
//! POST can be carried out. A pod that somebody else has changed is bound in its new version only if it still asks the same.
//!
//! What must never happen here: a POST by a process that does not lead at that moment; a reservation that is released
//! while an older POST of the same order may still be carried out.

use super::events::{PodEventReason, PodEvents};
use super::leadership::Leadership;
use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use apiserver::ApiError;
use apiserver::client::{ApiClient, ReadAge};
use decide::cluster::{BindOutcome, OpenWrites};
use decide::ledger::ClaimState;
use model::backoff::Backoff;
use model::claim::{BindOrder, Claim};
use model::id::{NodeName, PodRef, PodUid};
use model::placement::PlacementRequest;
use model::pod::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::annotation_keys::FENCE;
use wire::extender::ExtenderBindingArgs;
use wire::{binding, placement};

/// How long kube-scheduler waits for an answer, less a second for the way: the printed configuration has 5 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Orders whose outcome is not known. kube-scheduler binds some hundred pods at once at most; more wait only while the API
/// server does not answer, and then no more should be added.
const MOST: usize = 2_000;
/// Pauses between two POSTs of an order.
const FIRST: Duration = Duration::from_millis(100);
/// See [`FIRST`].
const LONGEST: Duration = Duration::from_secs(5);

/// Versions of a pod for which its order is written before kube-scheduler gets it back. A pod that waits seldom changes more
/// than once between its filter call and its bind.
const MOST_VERSIONS: usize = 5;

/// How long the pod watch may need to show a binding before the pod is read. A watch that works needs less than a second,
/// and a new list some seconds.
const UNSEEN: Duration = Duration::from_secs(20);
/// Longest pause between two such reads, of which only one must be answered.
const LONGEST_UNSEEN: Duration = Duration::from_secs(30);

/// Why an order is not written again.
const GIVEN_UP: &str =
    "this extender leads no longer, or the node takes no new pods, or other pods have the GPUs by now";

/// Why a pod that was changed is not bound: its GPUs were chosen for what it asked before.
const CHANGED: &str = "the pod was changed after the filter: it is placed again";

/// Why the outcome of a write is not known that the end of the term has cut.
const TERM_ENDED: &str = "the term of this extender ended before the API server answered";

/// The result of an order: `None` while it is not known.
type BindResult = Option<Result<(), Arc<str>>>;

/// Writes orders.
#[derive(Debug)]
pub(super) struct Binder {
    pub(super) client: ApiClient,
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) events: Arc<PodEvents>,
    /// The orders under way.
    pub(super) orders: Mutex<HashMap<PodUid, watch::Receiver<BindResult>>>,
    pub(super) tasks: TaskTracker,
    /// Cancelled when no order may be begun or repeated any more.
    pub(super) stop: CancellationToken,
}

/// What a POST, or a read after it, has shown.
enum Shown {
    /// The pod is bound as ordered.
    Bound,
    /// The pod is not bound by this order and never will be.
    Never(String),
    /// It is not bound, no write for it can be carried out any more, and it is in another version now: this one.
    Changed(Box<Pod>),
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
    Unbound(Box<Pod>),
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
        let claim = self.cluster.claim_of(uid);
        if claim.is_none()
            && let Some(plain) = self.cluster.plain_pod(uid)
        {
            // On the heap, so that the future of each other bind has no room for it.
            return Box::pin(self.bind_plain(args, plain.version)).await;
        }
        let bound = |(at, state): (NodeName, ClaimState)| {
            at == *node && (state != ClaimState::Assumed || self.cluster.binding_is_written(uid))
        };
        // kube-scheduler asks again for a pod that is bound after a lost answer, or after a restore of etcd, which takes
        // the node away again. One read tells the two apart.
        if claim.is_some_and(bound) {
            match self.look(uid, pod, node).await {
                Looked::Bound => return Ok(()),
                Looked::Unbound(read) if read.deleted_at.is_some() => return Err("the pod is being deleted".into()),
                Looked::Unbound(_) => {
                    self.is_taken_back(uid);
                    return Err("etcd was restored to an older state; all pods are read anew, try again".into());
                }
                Looked::Never(why) | Looked::Nothing(why) => return Err(why.into()),
            }
        }
        let until = Instant::now() + ANSWER_WITHIN;
        let mut result = match self.begin(uid, node) {
            Ok(result) => result,
            Err(why) => {
                self.events.send(uid, pod, PodEventReason::BindingFailed, why.clone());
                return Err(why.into());
            }
        };
        let known = timeout_at(until, result.wait_for(Option::is_some)).await;
        match known {
            Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
            Ok(Err(_)) => Err("the extender is stopping".into()),
            Err(_) => {
                if planted(PlantedMistake::ReleaseAtDeadline) {
                    self.cluster.bind_ended(uid, BindOutcome::Refused);
                }
                Err("the API server has not answered yet; the binding is written again until its outcome is known"
                    .into())
            }
        }
    }

    /// The result of this order, which is begun if it is not under way.
    fn begin(self: &Arc<Self>, uid: &PodUid, node: &NodeName) -> Result<watch::Receiver<BindResult>, String> {
        let mut orders = self.orders.lock();
        if !orders.contains_key(uid) && orders.len() >= MOST {
            let why = format!("{MOST} bindings wait for the API server; try again later");
            return Err(why);
        }
        // The same order again if one is under way, and an error if it is for another node.
        let (order, asked) = self.cluster.bind(uid, node).map_err(|why| why.to_string())?;
        if let Some(result) = orders.get(uid) {
            return Ok(result.clone());
        }
        let (sender, receiver) = watch::channel(None);
        orders.insert(uid.clone(), receiver.clone());
        let (binder, open) = (Arc::clone(self), self.leadership.binding_begins());
        self.tasks.spawn(async move {
            let settled = binder.carry_out(&order, asked.as_ref()).await;
            let result = match settled {
                Some(result) => {
                    open.settle();
                    result
                }
                None => Err("the extender is stopping, and the outcome is not known".into()),
            };
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

    /// Binds a pod that requests no GPU. Nothing is reserved for it, so nothing has to be known of its binding once kube-scheduler
    /// has an answer: it places the pod again, and the API server binds it once, as if kube-scheduler had written both bindings.
    async fn bind_plain(&self, args: &ExtenderBindingArgs, version: Option<u64>) -> Result<(), Arc<str>> {
        let ExtenderBindingArgs { uid, pod, node } = args.clone();
        let order = BindOrder {
            uid: uid.clone(),
            pod: pod.clone(),
            node: node.clone(),
            claim: Claim::default(),
            epoch: 0,
            version,
        };
        let written = timeout_at(Instant::now() + ANSWER_WITHIN, self.write_plain(order)).await;
        let bound = written.unwrap_or_else(|_| Err("the API server has not answered yet".into()));
        match &bound {
            Ok(()) => tracing::info!(%pod, %node, "bound {pod} to {node}: it requests no GPU"),
            Err(why) => {
                tracing::warn!(%pod, %node, why = &**why, "cannot bind {pod} to {node}: {why}");
                self.events.send(&uid, &pod, PodEventReason::BindingFailed, format!("not bound to {node}: {why}"));
            }
        }
        bound
    }

    /// Writes the order of a pod that requests no GPU until its outcome is known.
    async fn write_plain(&self, mut order: BindOrder) -> Result<(), Arc<str>> {
        let (mut open, mut backoff, mut versions) = (OpenWrites::default(), Backoff::new(FIRST, LONGEST), 0);
        loop {
            if !self.leadership.decides() || self.stop.is_cancelled() {
                return Err("this extender leads no longer".into());
            }
            match self.post(&order, &mut open).await {
                Shown::Bound => return Ok(()),
                Shown::Never(why) => return Err(why.into()),
                Shown::Changed(pod) => {
                    versions += 1;
                    let asks_nothing = matches!(placement::of(&pod, self.cluster.rules()), Ok(None));
                    if let Some(why) = outdated(asks_nothing, versions) {
                        return Err(why.into());
                    }
                    order.version = pod.version;
                }
                Shown::Unknown(_) => sleep(backoff.pause()).await,
            }
        }
    }

    /// Writes the order until its outcome is known; `None` where the extender stops before. `asked`: what the pod asked when the
    /// order was made.
    async fn carry_out(&self, order: &BindOrder, asked: Option<&PlacementRequest>) -> Option<Result<(), Arc<str>>> {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let (mut open, mut version, mut versions) = (OpenWrites::default(), order.version, 0);
        let (mut begun, mut told) = (false, false);
        loop {
            let writes = self.leadership.decides() && !self.stop.is_cancelled();
            // An order is written again with the epoch of the present term, and only where the claims that another leader has
            // written meanwhile leave it room.
            let next = if begun { self.cluster.order_again(&order.uid) } else { Some(order.clone()) };
            let shown = match next.filter(|_| writes) {
                Some(next) => {
                    begun = true;
                    self.post(&BindOrder { version, ..next }, &mut open).await
                }
                None if open.is_empty() => Shown::Never(GIVEN_UP.to_owned()),
                None if writes => self.fence(order, &mut open).await,
                None => self.only_look(order, &mut open).await,
            };
            match shown {
                Shown::Bound => {
                    self.cluster.bind_ended(&order.uid, BindOutcome::Written);
                    return Some(Ok(()));
                }
                Shown::Changed(pod) => {
                    versions += 1;
                    if let Some(why) = outdated(self.asks_the_same(&pod, asked), versions) {
                        return Some(self.refused(order, why));
                    }
                    version = pod.version;
                    continue;
                }
                Shown::Never(why) => return Some(self.refused(order, &why)),
                Shown::Unknown(why) => {
                    if !std::mem::replace(&mut told, true) {
                        let (pod, node) = (&order.pod, &order.node);
                        tracing::warn!(%pod, %node, why, "the outcome of a binding is not known: {why}; it is written again");
                    }
                    self.cluster.bind_ended(&order.uid, BindOutcome::Unknown);
                }
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                () = sleep(backoff.pause()) => {}
            }
            if let Some(result) = self.seen(order) {
                return Some(result);
            }
        }
    }

    /// The order is not carried out, and never will be.
    fn refused(&self, order: &BindOrder, why: &str) -> Result<(), Arc<str>> {
        self.cluster.bind_ended(&order.uid, BindOutcome::Refused);
        Err(why.into())
    }

    /// Whether a pod asks in this version what it asked when its order was made. Where that is not known, it may not.
    fn asks_the_same(&self, pod: &Pod, asked: Option<&PlacementRequest>) -> bool {
        let now = placement::of(pod, self.cluster.rules()).ok().flatten();
        asked.zip(now).is_some_and(|(asked, now)| asked.asks_the_same(&now))
    }

    /// What the pod watch has shown of the pod meanwhile, if that settles the order.
    fn seen(&self, order: &BindOrder) -> Option<Result<(), Arc<str>>> {
        match self.cluster.claim_of(&order.uid) {
            Some((node, ClaimState::Assumed)) if node == order.node => None,
            Some((node, _)) if node == order.node => Some(Ok(())),
            Some((node, _)) => Some(Err(format!("the pod is bound to {node}").into())),
            None => Some(Err("the pod is gone, has ended, or is bound without this claim".into())),
        }
    }

    /// Writes the order once, beside earlier writes that are open. The call ends with the term: it may first have to connect, and
    /// must not begin to write after that.
    async fn post(&self, order: &BindOrder, open: &mut OpenWrites) -> Shown {
        let binding = match binding::encode(order, self.cluster.lease(), clock::now().wall) {
            Ok(binding) => binding,
            Err(why) if open.is_empty() => return Shown::Never(why),
            Err(why) => return Shown::Unknown(why),
        };
        let Some(left) = self.leadership.term_left() else { return Shown::Unknown(TERM_ENDED.to_owned()) };
        let written = tokio::select! {
            biased;
            () = sleep(left) => {
                open.unanswered(order.version);
                return Shown::Unknown(TERM_ENDED.to_owned());
            }
            written = self.client.bind_pod(&order.pod, &order.node, &binding) => written,
        };
        let Err(error) = written else { return Shown::Bound };
        let refused = error.refusal().filter(|refusal| refusal.is_status).map(|refusal| refusal.code);
        match refused {
            Some(404 | 409) => self.read(order, open, &error).await,
            Some(400..=499) if open.is_empty() => Shown::Never(error.to_string()),
            Some(400..=499) => Shown::Unknown(error.to_string()),
            _ if planted(PlantedMistake::LostAnswerIsRefusal) => Shown::Never(error.to_string()),
            _ => {
                open.unanswered(order.version);
                if planted(PlantedMistake::UnboundReadIsEvidence) {
                    return self.only_look(order, open).await;
                }
                Shown::Unknown(error.to_string())
            }
        }
    }

    /// Reads the pod after its binding was refused: it may be bound already, by this order or another, be gone, or have
    /// another version than the question of kube-scheduler.
    async fn read(&self, order: &BindOrder, open: &mut OpenWrites, refused: &ApiError) -> Shown {
        match self.look(&order.uid, &order.pod, &order.node).await {
            Looked::Bound => Shown::Bound,
            Looked::Never(why) => Shown::Never(why),
            // A pod that is being deleted is never bound any more, also not by an older write.
            Looked::Unbound(pod) if pod.deleted_at.is_some() => Shown::Never(refused.to_string()),
            Looked::Unbound(pod) if !nothing_is_open(open, pod.version) => Shown::Unknown(refused.to_string()),
            Looked::Unbound(pod) if order.version.zip(pod.version).is_some_and(|(before, now)| before != now) => {
                Shown::Changed(pod)
            }
            Looked::Unbound(_) => Shown::Never(refused.to_string()),
            Looked::Nothing(why) => {
                // It may have been refused because an earlier write for this version was carried out.
                open.unanswered(order.version);
                Shown::Unknown(why)
            }
        }
    }

    /// Gives the order up: changes the pod, so that no open write can be carried out any more, and reads it. Where the writes
    /// name no version, or the change is not answered, nothing is certain yet.
    async fn fence(&self, order: &BindOrder, open: &mut OpenWrites) -> Shown {
        if let Some(version) = open.version() {
            let mark = (FENCE, &*version.to_string());
            if let Err(error) = self.client.mark_pod(&order.uid, &order.pod, mark).await {
                tracing::debug!(pod = %order.pod, %error, "an earlier binding is not made void yet: {error}");
            }
        }
        self.only_look(order, open).await
    }

    /// Reads the pod where nothing is written for the order.
    async fn only_look(&self, order: &BindOrder, open: &mut OpenWrites) -> Shown {
        match self.look(&order.uid, &order.pod, &order.node).await {
            Looked::Bound => Shown::Bound,
            Looked::Never(why) => Shown::Never(why),
            Looked::Unbound(pod) if pod.deleted_at.is_some() => Shown::Never("the pod is being deleted".to_owned()),
            Looked::Unbound(pod) if nothing_is_open(open, pod.version) => Shown::Never(GIVEN_UP.to_owned()),
            Looked::Unbound(_) => Shown::Unknown(GIVEN_UP.to_owned()),
            Looked::Nothing(why) => Shown::Unknown(why),
        }
    }

    /// Reads the pod as it is in etcd now, and takes over what it shows.
    async fn look(&self, uid: &PodUid, name: &PodRef, node: &NodeName) -> Looked {
        let pod = match self.client.get_pod(name, &ReadAge::Newest).await {
            Ok(bytes) => wire::pod::decode(&bytes).map_err(|why| why.to_string()),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => {
                self.cluster.pod_gone(uid);
                return Looked::Never("the pod is gone".to_owned());
            }
            Err(error) => Err(error.to_string()),
        };
        let pod: Pod = match pod {
            Ok(pod) => pod,
            Err(why) => return Looked::Nothing(why),
        };
        if pod.uid != *uid {
            self.cluster.pod_gone(uid);
            return Looked::Never("the pod is gone; another pod has its name".to_owned());
        }
        let Some(at) = pod.node.clone() else { return Looked::Unbound(Box::new(pod)) };
        self.cluster.pod_was_read(&pod);
        if at == *node { Looked::Bound } else { Looked::Never(format!("the pod is bound to {at}")) }
    }

    /// Waits until the pod watch has shown the pod bound or gone. A watch that broke may never show a pod that was gone before
    /// the next list, so the pod is read where that takes long.
    async fn confirm(&self, order: &BindOrder) {
        let mut backoff = Backoff::new(UNSEEN, LONGEST_UNSEEN);
        while self.cluster.claim_is_unshown(&order.uid) {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = sleep(backoff.pause()) => {}
            }
            if !self.cluster.claim_is_unshown(&order.uid) {
                return;
            }
            let looked = self.look(&order.uid, &order.pod, &order.node).await;
            if matches!(looked, Looked::Unbound(_)) {
                self.is_taken_back(&order.uid);
            }
        }
    }

    /// A pod whose binding was written has no node: etcd was restored. Another order for it may be under way by now.
    fn is_taken_back(&self, uid: &PodUid) {
        let orders = self.orders.lock();
        if !orders.contains_key(uid) {
            self.cluster.bind_ended(uid, BindOutcome::Refused);
            self.cluster.pod_is_unbound(uid);
        }
        drop(orders);
        self.leadership.etcd_was_restored();
    }
}

/// Why a binding is not written for its pod in a new version, the one of this number; `None` where it is.
fn outdated(asks_the_same: bool, versions: usize) -> Option<&'static str> {
    if !asks_the_same {
        return Some(CHANGED);
    }
    (versions > MOST_VERSIONS).then_some("the pod changes faster than it can be bound")
}

/// Whether no write can be carried out any more, now that the pod was read in this version and has no node.
fn nothing_is_open(open: &mut OpenWrites, version: Option<u64>) -> bool {
    open.read_unbound(version);
    open.is_empty() || planted(PlantedMistake::UnboundReadIsEvidence)
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
