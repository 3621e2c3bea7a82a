//! What is known about a waiting pod, and where each fact was looked up.

use crate::cluster::{ClusterReader, TimeSeen};
use crate::finding::{Seen, Unread};
use crate::leader::{Leader, LeaderPlace};
use crate::pod::reasons;
use model::id::{NodeName, PodRef};
use model::placement::PlacementRequest;
use model::request::MemoryRequest;
use model::time::WallTime;
use wire::api::believed_nodes::BelievedNodeJson;
use wire::api::decisions::{DecisionJson, DecisionVerb};
use wire::described_event::DescribedEvent;
use wire::described_node::DescribedNode;
use wire::described_pod::DescribedPod;
use wire::resource::RequestRules;
use wire::{placement, pod, timestamp};

/// Maximum number of refused nodes that are looked at. Each costs a call, and one or two nodes explain a refusal.
const MAX_NODES: usize = 4;

/// The last step of a pod on its way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Option<WallTime>,
    pub(crate) outcome: Outcome,
    /// The sentence of the event or the decision.
    pub(crate) text: String,
    /// The refused nodes that a decision names, each with its reasons.
    pub(crate) refused: Vec<(String, String)>,
}

/// How the step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No node fits.
    FilteringFailed,
    /// A node fits.
    FilteringSucceed,
    /// The pod could not be bound.
    BindingFailed,
    /// The pod was bound.
    BindingSucceed,
}

impl Outcome {
    /// The reason of the event.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Outcome::FilteringFailed => "FilteringFailed",
            Outcome::FilteringSucceed => "FilteringSucceed",
            Outcome::BindingFailed => "BindingFailed",
            Outcome::BindingSucceed => "BindingSucceed",
        }
    }

    const ALL: [Outcome; 4] =
        [Outcome::FilteringFailed, Outcome::FilteringSucceed, Outcome::BindingFailed, Outcome::BindingSucceed];
}

/// The pod at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSeen {
    pub(crate) described: DescribedPod,
    /// The GPUs that the pod requests, in words; `None` for none. The error says why the request cannot be read.
    pub(crate) request: Result<Option<String>, String>,
}

/// Everything that is known.
#[derive(Clone, Debug)]
pub(crate) struct PodFacts {
    /// Namespace and name.
    pub(crate) name: String,
    /// `Err(None)` if there is no such pod.
    pub(crate) pod: Result<PodSeen, Option<Unread>>,
    /// The events about the pod, the newest first.
    pub(crate) events: Seen<Vec<DescribedEvent>>,
    /// The name of the scheduler that asks the extender.
    pub(crate) scheduler: String,
    pub(crate) extenders: Seen<Vec<DescribedPod>>,
    /// Whether the leader has answered: then it runs, even if its pods are not seen.
    pub(crate) leader: Seen<String>,
    /// The leader's decisions about the pod of this UID, the newest first.
    pub(crate) decisions: Seen<Vec<DecisionJson>>,
    /// What the leader believes of nodes that refused the pod, with their devices.
    pub(crate) believed: Vec<BelievedNodeJson>,
    /// The refused Nodes at the API server, or all Nodes if no refused node is named.
    pub(crate) nodes: Seen<Vec<DescribedNode>>,
    pub(crate) time: TimeSeen,
}

impl PodFacts {
    /// Looks at the cluster.
    pub(crate) async fn look(
        (pod, scheduler): (&PodRef, &str),
        cluster: &Seen<ClusterReader>,
        place: &LeaderPlace,
        extenders: Seen<Vec<DescribedPod>>,
    ) -> PodFacts {
        let reader = cluster.as_ref().map_err(Clone::clone);
        let seen = match &reader {
            Ok(cluster) => cluster.pod(pod).await.map(|(described, json)| seen(described, &json)),
            Err(unread) => Err(Some(unread.clone())),
        };
        let events = match (&reader, &seen) {
            (Ok(cluster), Ok(seen)) => cluster.events_about(&pod.namespace, &seen.described.uid).await,
            (Err(unread), _) | (_, Err(Some(unread))) => Err(unread.clone()),
            (_, Err(None)) => Ok(Vec::new()),
        };
        let mut leader = Leader::find(place, reader.clone(), &extenders).await;
        let decisions = match &mut leader {
            Ok(leader) => {
                let found = leader.decisions(&pod.to_string()).await;
                found.map(|found| of_this_pod(found.decisions, seen.as_ref().ok()))
            }
            Err(unread) => Err(unread.clone()),
        };
        let mut facts = PodFacts {
            name: pod.to_string(),
            pod: seen,
            events,
            scheduler: scheduler.to_owned(),
            extenders,
            leader: leader.as_ref().map(|leader| leader.name.clone()).map_err(Clone::clone),
            decisions,
            believed: Vec::new(),
            nodes: Ok(Vec::new()),
            time: TimeSeen::look(reader.clone()).await,
        };
        facts.look_at_nodes(reader, leader.as_mut().ok()).await;
        facts
    }

    /// Looks at the nodes that refused it.
    async fn look_at_nodes(&mut self, cluster: Seen<&ClusterReader>, leader: Option<&mut Leader>) {
        let Some(step) = self.last_step().filter(|step| step.outcome == Outcome::FilteringFailed) else { return };
        let refused: Vec<String> = step.refused.iter().map(|(node, _)| node.clone()).take(MAX_NODES).collect();
        if let Some(leader) = leader {
            for node in &refused {
                // The text of the refusal is there in any case.
                self.believed.extend(leader.nodes(Some(node)).await.map(|found| found.nodes).unwrap_or_default());
            }
        }
        // The Nodes themselves say more only about refusals of whole nodes.
        if !reasons::named(&step.text).iter().any(|reason| reason.is_of_node()) {
            return;
        }
        self.nodes = match cluster {
            Err(unread) => Err(unread),
            Ok(cluster) if refused.is_empty() => cluster.nodes().await,
            Ok(cluster) => {
                let mut nodes = Ok(Vec::new());
                for name in refused.iter().filter_map(|name| NodeName::parse(name).ok()) {
                    let node = cluster.node(&name).await;
                    nodes = nodes.and_then(|mut all: Vec<DescribedNode>| {
                        all.push(node?);
                        Ok(all)
                    });
                }
                nodes
            }
        };
    }

    /// The newest step that an event or a decision shows. Within one second, a decision counts before an event, because it says more,
    /// and of two decisions the newer: the bind call often follows the filter call within milliseconds.
    pub(crate) fn last_step(&self) -> Option<Step> {
        // Both are listed with the newest first. Among equal steps, `max_by_key` takes the last.
        let events = self.events.iter().flatten().rev().filter_map(of_event);
        let decisions = self.decisions.iter().flatten().rev().filter_map(of_decision);
        // The time of an event is read in whole seconds.
        events.chain(decisions).max_by_key(|step| step.at.map(|at| at.0 / 1_000_000))
    }
}

/// The decisions about this pod. The leader also remembers decisions about an earlier pod of the same name.
fn of_this_pod(mut decisions: Vec<DecisionJson>, pod: Option<&PodSeen>) -> Vec<DecisionJson> {
    if let Some(pod) = pod {
        decisions.retain(|decision| decision.uid == pod.described.uid);
    }
    decisions
}

fn of_event(event: &DescribedEvent) -> Option<Step> {
    let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.word() == event.reason)?;
    Some(Step { at: event.at, outcome, text: event.note.clone(), refused: Vec::new() })
}

fn of_decision(decision: &DecisionJson) -> Option<Step> {
    let outcome = match decision.verb {
        DecisionVerb::Filter if decision.scores.is_empty() => Outcome::FilteringFailed,
        DecisionVerb::Filter => Outcome::FilteringSucceed,
        DecisionVerb::Bind if decision.result.starts_with("bound") => Outcome::BindingSucceed,
        DecisionVerb::Bind => Outcome::BindingFailed,
        DecisionVerb::Preempt => return None,
    };
    let refused = decision.detail.iter().flat_map(|detail| &detail.refused).map(|node| {
        let closed = node.closed.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let memory: String = node.memory.iter().map(|line| format!("; {line}")).collect();
        (node.node.clone(), format!("{}{closed}{memory}", node.why))
    });
    Some(Step {
        at: timestamp::rfc3339(&decision.at),
        outcome,
        text: decision.result.clone(),
        refused: refused.collect(),
    })
}

/// The pod with its request.
fn seen(described: DescribedPod, json: &[u8]) -> PodSeen {
    let request = match pod::decode(json) {
        Ok(pod) => placement::of(&pod, &RequestRules::default()).map_err(|why| why.to_string()),
        Err(why) => Err(why.to_string()),
    };
    PodSeen { described, request: request.map(|request| request.as_ref().map(words)) }
}

/// The request in words.
fn words(request: &PlacementRequest) -> String {
    let one = |of: &model::request::ContainerRequest| {
        let memory = match of.memory {
            Some(MemoryRequest::Amount(amount)) => format!("{} MiB of memory", amount.0),
            Some(MemoryRequest::Percent(share)) => format!("{share} % of the memory"),
            None => "all memory".to_owned(),
        };
        let cores = of.cores.filter(|cores| cores.0 > 0).map(|cores| format!(" and {} % of the SM time", cores.0));
        format!("container {} requests {} GPU(s) with {memory}{}", of.container, of.slots, cores.unwrap_or_default())
    };
    request.requests.iter().filter(|of| of.slots > 0).map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_is_said_in_words_and_one_that_cannot_be_read_with_its_reason() {
        let request = |limits: serde_json::Value| {
            let pod = json!({
                "metadata": { "namespace": "ml", "name": "a", "uid": "00000000-0000-4000-8000-000000000001" },
                "spec": { "containers": [{ "name": "c", "resources": { "limits": limits } }] },
            });
            seen(DescribedPod::default(), pod.to_string().as_bytes()).request
        };
        let words = "container c requests 2 GPU(s) with 3000 MiB of memory and 30 % of the SM time";
        assert_eq!(
            request(json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30" })),
            Ok(Some(words.to_owned()))
        );
        assert_eq!(request(json!({ "cpu": "2" })), Ok(None));
        let why = request(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "8Gi" })).unwrap_err();
        assert!(why.contains("nvidia.com/gpumem"), "{why}");
    }
}
