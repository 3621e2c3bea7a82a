//! Binds pods: carries out the steps of each order ([`OrderStages`]) at the API server until its outcome is known.
//!
//! ```text
//!   /bind ──▶ LockedCluster::bind reserves ──▶ task of the order ──▶ OrderStages ──outcome──▶ answer
//!                                                   ▲                   │ Post, Fence, Read, Wait
//!                                                   └── API server ◀────┘   kube-scheduler gets an error after ANSWER_WITHIN
//! ```
//!
//! What must never happen here: a POST by a process that does not lead at that moment; an order by a leader whose watches
//! have not worked for a minute.

use super::events::{PodEventReason, PodEvents};
use super::leadership::Leadership;
use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use super::pod_steps;
use super::watch_health::{WatchHealth, blind};
use apiserver::client::{ApiClient, ReadAge};
use apiserver::error::ApiError;
use decide::cluster::{
    BindOutcome, BindResult, BindStep, ConfirmStep, Confirmation, OrderStages, PostAnswer, ReadAnswer, ReadPod,
    ReadRequest, RepeatedBind,
};
use decide::ledger::ClaimState;
use model::claim::{BindOrder, Claim};
use model::id::{NodeName, PodRef, PodUid};
use model::pod::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::annotation_keys::FENCE;
use wire::extender::ExtenderBindingArgs;
use wire::{binding, placement};

/// How long kube-scheduler waits for an answer, less a second for the network: the printed configuration has 5 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Maximum number of orders whose outcome is unknown. kube-scheduler binds at most several hundred pods at once. There are more
/// only while the API server does not answer, and then no order should be added.
const MOST: usize = 2_000;

/// Maximum number of pods that are read at the same time. The answer about one pod may have 6.5 MB, because its owner decides how large
/// it is, and all open orders may read at once after an API server that did not answer.
pub(super) const READS: usize = 8;

/// The result of an order as its task reports it: `None` while it is unknown.
type ReportedResult = Option<BindResult>;

/// Writes orders.
#[derive(Debug)]
pub(super) struct Binder {
    pub(super) client: ApiClient,
    /// The watches that show which GPUs are free.
    pub(super) watches: [Arc<WatchHealth>; 2],
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) events: Arc<PodEvents>,
    /// A permit for each pod that is being read.
    pub(super) reads: Semaphore,
    /// The orders in progress.
    pub(super) orders: Mutex<HashMap<PodUid, watch::Receiver<ReportedResult>>>,
    pub(super) tasks: TaskTracker,
    /// Cancelled when no order may be started or repeated any more.
    pub(super) stop: CancellationToken,
}

impl Binder {
    /// Binds a pod to a node. Returns once the outcome is known, or after [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// Why the pod is not bound, or not known to be bound.
    pub(super) async fn bind(self: &Arc<Self>, args: &ExtenderBindingArgs) -> Result<(), Arc<str>> {
        let ExtenderBindingArgs { uid, pod, node } = args;
        let claim = self.cluster.claim_of(uid);
        if claim.is_none()
            && let Some(plain) = self.cluster.plain_pod(uid)
        {
            // Box this future, so that the future of every other bind need not hold it.
            return Box::pin(self.bind_plain(args, plain.version)).await;
        }
        let bound = |(at, state): (NodeName, ClaimState)| {
            at == *node && (state != ClaimState::Assumed || self.cluster.binding_is_written(uid))
        };
        // kube-scheduler repeats the bind of a bound pod after a lost answer, or after a restore of etcd, which removes the
        // node from the pod. One read tells the two apart.
        if claim.is_some_and(bound) {
            return match self.look(uid, pod).await.repeated(node) {
                RepeatedBind::Bound => Ok(()),
                RepeatedBind::Refused(why) => Err(why),
                RepeatedBind::TakenBack => {
                    self.is_taken_back(uid);
                    Err("etcd was restored to an older state, and all pods are read again; try later".into())
                }
            };
        }
        let until = Instant::now() + ANSWER_WITHIN;
        if let Some(why) = self.is_too_large_now(uid, pod, until).await {
            return Err(self.not_begun(args, why));
        }
        let mut result = match self.begin(uid, node) {
            Ok(result) => result,
            Err(why) => return Err(self.not_begun(args, why)),
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

    /// Why this extender does not know which GPUs are free, if its watches do not work or show too few pods.
    pub(super) fn blind(&self) -> Option<String> {
        blind(&self.watches)
    }

    /// The result of this order; starts the order if it is not in progress.
    fn begin(self: &Arc<Self>, uid: &PodUid, node: &NodeName) -> Result<watch::Receiver<ReportedResult>, String> {
        let mut orders = self.orders.lock();
        // An order in progress was decided while the watches worked.
        if !orders.contains_key(uid)
            && let Some(why) = self.blind()
        {
            return Err(why);
        }
        if !orders.contains_key(uid) && orders.len() >= MOST {
            let why = format!("{MOST} bindings wait for the API server; try again later");
            return Err(why);
        }
        if !orders.contains_key(uid)
            && let Some(why) = self.cluster.too_large(uid)
        {
            return Err(why.to_string());
        }
        // Returns the same order if one is in progress, and an error if that order is for another node.
        let (order, asked) = self.cluster.bind(uid, node).map_err(|why| why.to_string())?;
        if let Some(result) = orders.get(uid) {
            return Ok(result.clone());
        }
        pod_steps::log(&order.pod, format_args!("bind: reserved on {node}: {}", sentence(&order.claim)));
        let (sender, receiver) = watch::channel(None);
        orders.insert(uid.clone(), receiver.clone());
        let (binder, open) = (Arc::clone(self), self.leadership.binding_begins());
        self.tasks.spawn(async move {
            let settled = binder.carry_out(OrderStages::new(order.clone(), asked)).await;
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

    /// No order was made for the pod: a log line with the reason of the event, and the event.
    fn not_begun(&self, args: &ExtenderBindingArgs, why: String) -> Arc<str> {
        let ExtenderBindingArgs { uid, pod, node } = args;
        let reason = PodEventReason::BindingFailed;
        tracing::debug!(%pod, %node, "{}: cannot bind {pod} to {node}: {why}", reason.word());
        self.events.send(uid, pod, reason, why.clone());
        why.into()
    }

    /// The binding of a pod was not written.
    fn failed(&self, order: &BindOrder, why: &str) {
        let (BindOrder { uid, pod, node, .. }, reason) = (order, PodEventReason::BindingFailed);
        tracing::warn!(%pod, %node, why, "{}: cannot bind {pod} to {node}: {why}", reason.word());
        self.events.send(uid, pod, reason, format!("not bound to {node}: {why}"));
    }

    fn ended(&self, order: &BindOrder, result: &BindResult) {
        self.orders.lock().remove(&order.uid);
        let BindOrder { uid, pod, node, claim, .. } = order;
        match result {
            Ok(()) => {
                let (shares, reason) = (sentence(claim), PodEventReason::BindingSucceed);
                tracing::info!(%pod, %node, "{}: bound {pod} to {node}: {shares}", reason.word());
                self.events.send(uid, pod, reason, format!("bound to {node}: {shares}"));
            }
            Err(why) => self.failed(order, why),
        }
    }

    /// Binds a pod that requests no GPU. Nothing is reserved for it, so the extender does not follow its binding after it has
    /// answered. After an error kube-scheduler places the pod again. The API server binds the pod only once, as if
    /// kube-scheduler itself had written both bindings.
    async fn bind_plain(&self, args: &ExtenderBindingArgs, version: Option<u64>) -> Result<(), Arc<str>> {
        let ExtenderBindingArgs { uid, pod, node } = args.clone();
        let (pod, node) = (&pod, &node);
        let order = BindOrder { uid, pod: pod.clone(), node: node.clone(), claim: Claim::default(), epoch: 0, version };
        let stages = OrderStages::without_gpus(order.clone());
        let written = timeout_at(Instant::now() + ANSWER_WITHIN, self.carry_out(stages)).await;
        let written = written.unwrap_or_else(|_| Some(Err("the API server has not answered yet".into())));
        let bound = written.unwrap_or_else(|| Err("this extender is no longer the leader".into()));
        match &bound {
            Ok(()) => {
                let word = PodEventReason::BindingSucceed.word();
                tracing::info!(%pod, %node, "{word}: bound {pod} to {node}: it requests no GPU");
            }
            Err(why) => self.failed(&order, why),
        }
        bound
    }

    /// Carries out the steps of an order until it has ended; `None` if the extender stops first.
    async fn carry_out(&self, mut stages: OrderStages) -> Option<BindResult> {
        let BindOrder { uid, pod, node, .. } = stages.order().clone();
        loop {
            let may_write = self.leadership.decides() && !self.stop.is_cancelled();
            match self.cluster.next_step(&mut stages, may_write) {
                BindStep::Post(order) => {
                    pod_steps::log(&pod, format_args!("bind: the binding to {node} is written at the API server"));
                    let answer = self.post(&order).await;
                    pod_steps::log(&pod, format_args!("bind: {}", told(&answer)));
                    stages.posted(clock::monotonic(), answer);
                }
                BindStep::Fence(version) => {
                    pod_steps::log(&pod, format_args!("bind: earlier bindings are made void (version {version})"));
                    let mark = (FENCE, &*version.to_string());
                    if let Err(error) = self.client.mark_pod(&uid, &pod, mark).await {
                        tracing::debug!(%pod, %error, "an earlier binding cannot be made void yet: {error}");
                    }
                }
                BindStep::Read => {
                    pod_steps::log(&pod, format_args!("bind: the pod is read, to see whether it is bound"));
                    let answer = self.look(&uid, &pod).await;
                    stages.read(clock::monotonic(), &answer);
                }
                BindStep::Wait { pause, unknown } => {
                    if let Some(why) = unknown {
                        tracing::warn!(%pod, %node, why, "the outcome of a binding is not known: {why}; it is written again");
                    }
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return None,
                        () = sleep(pause) => {}
                    }
                }
                BindStep::Ended { result, outcome } => {
                    if let Some(outcome) = outcome {
                        self.cluster.bind_ended(&uid, outcome);
                    }
                    return Some(result);
                }
            }
        }
    }

    /// Writes an order once. The call ends when the term ends: it may first have to connect, and must not write after the term.
    async fn post(&self, order: &BindOrder) -> PostAnswer {
        let binding = match binding::encode(order, self.cluster.lease(), clock::now().wall) {
            Ok(binding) => binding,
            Err(why) => return PostAnswer::Unwritable(why),
        };
        let Some(left) = self.leadership.term_left() else { return PostAnswer::TermOver };
        let written = tokio::select! {
            biased;
            () = sleep(left) => return PostAnswer::TermEnded,
            written = self.client.bind_pod(&order.pod, &order.node, &binding) => written,
        };
        let Err(error) = written else { return PostAnswer::Bound };
        match error.refusal().filter(|refusal| refusal.is_status) {
            Some(refusal) => PostAnswer::Refused(refusal.code, error.to_string()),
            None => PostAnswer::NoAnswer(error.to_string()),
        }
    }

    /// A pod as it is in etcd now, or why it cannot be decoded.
    async fn read(&self, name: &PodRef) -> Result<Result<Pod, String>, ApiError> {
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await;
        let bytes = self.client.get_pod(name, &ReadAge::Newest).await?;
        Ok(wire::pod::decode(&bytes).map_err(|error| error.to_string()))
    }

    /// Why a pod must not be bound, if the pod watch has not shown its size: then the pod is read. kube-scheduler has its own watch,
    /// which may be ahead of this process's watch.
    async fn is_too_large_now(&self, uid: &PodUid, name: &PodRef, until: Instant) -> Option<String> {
        let known = self.cluster.knows_size(uid) && self.watches.iter().all(|watch| watch.left_out() == 0);
        if known || self.orders.lock().contains_key(uid) {
            return None;
        }
        let read = match timeout_at(until, self.read(name)).await {
            Ok(read) => read.unwrap_or_else(|error| Err(error.to_string())),
            Err(_) => Err("the API server has not answered yet".into()),
        };
        match read {
            Ok(pod) => placement::too_large(&pod).filter(|_| pod.uid == *uid).map(|why| why.to_string()),
            Err(error) => Some(format!("it is not known whether the pod is too large: {error}")),
        }
    }

    /// Reads the pod as it is in etcd now, and takes it over.
    async fn look(&self, uid: &PodUid, name: &PodRef) -> ReadAnswer {
        let pod = match self.read(name).await {
            Ok(Ok(pod)) => pod,
            Ok(Err(why)) => return ReadAnswer::NoAnswer(why),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => {
                self.cluster.pod_gone(uid);
                return ReadAnswer::Gone("the pod is gone");
            }
            Err(error) => return ReadAnswer::NoAnswer(error.to_string()),
        };
        if pod.uid != *uid {
            self.cluster.pod_gone(uid);
            return ReadAnswer::Gone("the pod is gone; another pod has its name");
        }
        if pod.node.is_some() {
            self.cluster.pod_was_read(&pod);
        }
        let requests = match placement::of(&pod, self.cluster.rules()) {
            Ok(None) => ReadRequest::Nothing,
            Ok(Some(request)) => ReadRequest::Gpus(Box::new(request)),
            Err(_) => ReadRequest::Unreadable,
        };
        let is_being_deleted = pod.deleted_at.is_some();
        ReadAnswer::Pod(Box::new(ReadPod { node: pod.node, version: pod.version, is_being_deleted, requests }))
    }

    /// Waits until the pod watch has shown the pod bound or gone.
    async fn confirm(&self, order: &BindOrder) {
        let BindOrder { uid, pod, .. } = order;
        let mut confirmation = Confirmation::new(clock::monotonic());
        loop {
            match confirmation.next(clock::monotonic(), self.cluster.claim_is_unshown(uid)) {
                ConfirmStep::Confirmed => return,
                ConfirmStep::Wait(pause) => tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return,
                    () = sleep(pause) => {}
                },
                ConfirmStep::Read => {
                    if self.look(uid, pod).await.has_no_node() {
                        self.is_taken_back(uid);
                    }
                }
            }
        }
    }

    /// A pod whose binding was written has no node: etcd was restored. By now, another order for the pod may be in progress.
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

/// The API server's answer to a Binding, for people.
fn told(answer: &PostAnswer) -> String {
    match answer {
        PostAnswer::Bound => "the API server has bound the pod".to_owned(),
        PostAnswer::Unwritable(why) => format!("nothing was sent: {why}"),
        PostAnswer::TermOver => "nothing was sent: this extender no longer leads".to_owned(),
        PostAnswer::TermEnded => "this extender's term ended before the API server answered".to_owned(),
        PostAnswer::Refused(code, why) => format!("the API server has refused the binding with {code}: {why}"),
        PostAnswer::NoAnswer(why) => format!("the API server has not answered: {why}"),
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
