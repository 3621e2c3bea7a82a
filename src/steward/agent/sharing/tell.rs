//! What others must learn of a start: the pod's owner why it does not start, HAMi's scheduler that it has, and everybody
//! what was given without a scheduler. Each once, beside kubelet's call and never in its way.

use super::health::News;
use super::overuse::Accused;
use decide::share::{Bound, Refusal};
use effects::apiserver::{ApiServer, Event, Weight};
use model::claim::{BindPhase, Grant, Slots};
use model::id::{NodeName, PodRef, PodUid};
use model::pod::{Pod, PodList};
use model::share::{Portion, Tenant};
use model::unit::{CorePercent, Mib};
use model::view::NodeView;
use sources::kubernetes::own_node::OwnNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{assignment, bind, key, node_lock};

/// Tells, and remembers what was told.
#[derive(Debug)]
pub(crate) struct Teller {
    api: ApiServer,
    own: OwnNode,
    node: NodeName,
    refused: BTreeMap<PodUid, &'static str>,
    served: BTreeSet<PodUid>,
    accused: Accused,
}

impl Teller {
    /// Tells at this server.
    pub(crate) fn new(api: ApiServer, own: OwnNode, node: NodeName) -> Teller {
        Teller { api, own, node, refused: BTreeMap::new(), served: BTreeSet::new(), accused: Accused::default() }
    }

    /// Forgets pods that are gone.
    pub(super) fn forget(&mut self, pods: &PodList) {
        let here: BTreeSet<&PodUid> = pods.pods.iter().map(|pod| pod.cgroup_uid()).collect();
        self.refused.retain(|uid, _| here.contains(uid));
        self.served.retain(|uid| here.contains(uid));
    }

    /// A container may not start. kubelet tries it again and again; the event is written when the reason is new, which is
    /// what this says. A pod that can never start here is marked for whoever may evict it.
    pub(super) fn refused(&mut self, uid: &PodUid, pod: &PodRef, why: &Refusal) -> bool {
        if !self.once(uid, pod, why.code(), why.to_string()) {
            return false;
        }
        if why.for_good() {
            let (api, uid, pod, code) = (self.api.clone(), uid.clone(), pod.clone(), why.code());
            tokio::spawn(async move {
                if let Err(error) = api.annotate_pod(&uid, &pod, &[(key::EVICT, Some(code))]).await {
                    tracing::warn!(%pod, %error, "cannot mark the pod for eviction: delete it by hand");
                }
            });
        }
        true
    }

    /// What a container was promised could not be put where the runtime finds it.
    pub(super) fn undelivered(&mut self, uid: &PodUid, pod: &PodRef, why: String) {
        self.once(uid, pod, "NotDelivered", why);
    }

    /// An event, if its reason is another than that of the last one on this pod; whether it is.
    fn once(&mut self, uid: &PodUid, pod: &PodRef, reason: &'static str, note: String) -> bool {
        if self.refused.insert(uid.clone(), reason) == Some(reason) {
            return false;
        }
        self.event(uid, pod, reason, note);
        true
    }

    /// A container runs without what the runtime was to give it.
    pub(super) fn not_applied(&self, uid: &PodUid, pod: &PodRef) {
        let note = "this container has neither its GPUs nor its limits: the container runtime did not make the edits of its CDI \
                    device (is CDI switched off there?); delete the pod";
        self.event(uid, pod, "LimitsNotApplied", note.into());
    }

    fn event(&self, uid: &PodUid, pod: &PodRef, reason: &'static str, note: String) {
        let (api, uid, pod) = (self.api.clone(), uid.clone(), pod.clone());
        let event = Event { weight: Weight::Warning, reason, action: "Allocate", note, at: now() };
        tokio::spawn(async move {
            if let Err(error) = api.pod_event(&uid, &pod, &event).await {
                tracing::warn!(%pod, reason, %error, "cannot write an event on the pod");
            }
        });
    }

    /// A claim is on other devices than stands on its pod.
    pub(super) fn moved(&self, tenant: &Tenant, claim: &[Vec<Portion>]) {
        let slots = Slots(claim.iter().map(|own| own.iter().map(grant).collect()).collect());
        let (api, uid, pod) = (self.api.clone(), tenant.uid.clone(), tenant.pod.clone());
        tokio::spawn(async move {
            let text = match assignment::encode(key::ALLOCATED, &slots) {
                Ok(text) => text,
                Err(fault) => {
                    return tracing::warn!(%pod, %fault, "where this claim has moved cannot be written on its pod");
                }
            };
            if let Err(error) = api.annotate_pod(&uid, &pod, &[(key::ALLOCATED, Some(text.as_str()))]).await {
                tracing::warn!(%pod, %error, "where this claim has moved cannot be written on its pod");
            }
        });
    }

    /// The health of a GPU has changed: its Node hears it, and every pod that was promised something of it.
    pub(super) fn health(&self, news: News, holders: Vec<(PodUid, PodRef)>) {
        let (api, own) = (self.api.clone(), self.own.clone());
        let News { event, .. } = news;
        tokio::spawn(async move {
            let told = match own.look().await {
                Ok(node) => api.node_event(&node.uid, &event).await.map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            if let Err(why) = told {
                tracing::warn!(reason = event.reason, why, "cannot write the event about a GPU's health on our Node");
            }
            for (uid, pod) in holders {
                if let Err(error) = api.pod_event(&uid, &pod, &event).await {
                    tracing::warn!(%pod, %error, "cannot write the event about a GPU's health on a pod that holds it");
                }
            }
        });
    }

    /// Pods that hold more than they were promised.
    pub(super) fn over_uses(&mut self, view: &NodeView, pods: Option<&PodList>, evicts: bool) {
        self.accused.act(&self.api, (view, &now()), pods, evicts);
    }

    /// Containers of a pod that HAMi's scheduler placed have got their devices: the scheduler waits for this, and holds
    /// the node's lock until then. All containers were admitted before the first one starts, so all are told at once.
    pub(super) fn filled(&mut self, pod: &Pod) {
        let allocating =
            pod.annotation(key::BIND_PHASE).is_some_and(|text| bind::decode_phase(text) == Ok(BindPhase::Allocating));
        if !allocating || !self.served.insert(pod.cgroup_uid().clone()) {
            return;
        }
        let left = pod.annotation(key::TO_ALLOCATE).map(blank).unwrap_or_default();
        let (api, own, uid, name) = (self.api.clone(), self.own.clone(), pod.uid.clone(), pod.name.clone());
        tokio::spawn(async move {
            let annotations = [
                (key::BIND_PHASE, Some(bind::encode_phase(BindPhase::Success))),
                (key::TO_ALLOCATE, Some(left.as_str())),
            ];
            if let Err(error) = api.annotate_pod(&uid, &name, &annotations).await {
                tracing::warn!(pod = %name, %error, "HAMi's scheduler does not learn that this pod has its GPUs");
            }
            if let Err(why) = release(&api, &own, &name).await {
                tracing::warn!(pod = %name, why, "the node's lock stays until HAMi's scheduler takes it for lost");
            }
        });
    }

    /// A pod that nobody placed got something: it is written where a scheduler would have written it, with a mark that it
    /// was us.
    pub(super) fn shared(&self, tenant: &Tenant, bound: &[Bound]) {
        let slots: Vec<Vec<Grant>> = tenant
            .asks
            .iter()
            .map(|ask| {
                let own = bound.iter().find(|bound| bound.holder.container == ask.container);
                own.iter().flat_map(|bound| bound.portions.iter()).map(grant).collect()
            })
            .collect();
        let (api, node) = (self.api.clone(), self.node.clone());
        let (uid, pod) = (tenant.uid.clone(), tenant.pod.clone());
        tokio::spawn(async move {
            let text = match assignment::encode(key::ALLOCATED, &Slots(slots)) {
                Ok(text) => text,
                Err(fault) => return tracing::warn!(%pod, %fault, "what this pod got cannot be written on it"),
            };
            let annotations = [
                (key::ALLOCATED, Some(text.as_str())),
                (key::ASSIGNED_NODE, Some(node.as_str())),
                (key::PLACED_BY, Some(key::PLACED_BY_AGENT)),
            ];
            if let Err(error) = api.annotate_pod(&uid, &pod, &annotations).await {
                tracing::warn!(%pod, %error, "what this pod got cannot be written on it: schedulers do not know of it");
            }
        });
    }
}

/// Now, as the API server wants the times of events.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn grant(portion: &Portion) -> Grant {
    Grant {
        uuid: portion.device.clone(),
        vendor: Arc::from(key::NVIDIA),
        // 0 is no promise.
        memory: portion.memory.map_or(Mib(0), Mib::within),
        cores: CorePercent(portion.cores.unwrap_or(0)),
    }
}

/// The same device string with every container served. One that cannot be read has nothing left to serve.
fn blank(text: &str) -> String {
    let Ok(mut slots) = assignment::decode(key::TO_ALLOCATE, text) else { return String::new() };
    for container in 0..slots.0.len() {
        slots.blank(container);
    }
    assignment::encode(key::TO_ALLOCATE, &slots).unwrap_or_default()
}

/// Takes the lock off our Node if it is this pod's, and only as it was read.
async fn release(api: &ApiServer, own: &OwnNode, pod: &PodRef) -> Result<(), String> {
    let seen = own.look().await?;
    let Some(text) = seen.annotation(key::NODE_LOCK) else { return Ok(()) };
    let lock = node_lock::decode(text).map_err(|fault| fault.to_string())?;
    if lock.owner.as_ref() != Some(pod) {
        return Ok(());
    }
    api.release_node(key::NODE_LOCK, text).await.map_err(|error| error.to_string())
}
