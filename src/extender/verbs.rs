//! The verbs of kube-scheduler: reads the call, asks the cluster's state, writes the answer. Filter, bind and preempt are
//! recorded.

use super::binder::Binder;
use super::decisions::{Decision, Decisions, NODES};
use super::events::{PodEventReason, PodEvents};
use super::explain::{self, FilterDetail, KeptRefusal, NodeScore, ReasonTexts};
use super::locked_cluster::LockedCluster;
use super::measures::Measures;
use super::pod_steps;
use super::realtime;
use decide::cluster::{FilterVerdict, PreemptVerdict, RefusalSummary, RefusedNode};
use decide::placement::{CheckResult, RefusalReason};
use model::id::PodUid;
use model::placement::PlacementRequest;
use model::pod::Pod;
use std::sync::Arc;
use wire::api::decisions::DecisionVerb;
use wire::extender::{self, ExtenderArgs, ExtenderPreemptionArgs, FailedNode, NodeVictims};
use wire::{misspelt_key, placement};

/// Maximum number of refused nodes of one call that `-v 4` shows with a line each, and a line for each GPU that fails the real-time
/// check; further nodes are counted. This shows the kinds of reasons, and at 100 calls a second the log takes no more lines.
const LOGGED: usize = 100;
/// Why a pod with gates has no node.
const GATED: &str = "the pod has scheduling gates: no GPU is kept for it before they are removed";

/// Maximum number of refused nodes of one decision whose memory in use is explained by GPU.
const MEMORY_NODES: usize = 5;

/// Answers the verbs of the leader.
#[derive(Debug)]
pub(super) struct Verbs {
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) binder: Arc<Binder>,
    pub(super) events: Arc<PodEvents>,
    pub(super) decisions: Decisions,
    pub(super) measures: Arc<Measures>,
}

/// What a pod requests.
enum Asked {
    /// No GPU.
    Nothing,
    /// These GPUs.
    Gpus(Box<PlacementRequest>),
    /// The pod fits no node as it is now: its request cannot be read, or it has scheduling gates.
    Refused(String),
}

/// A decision as a sentence, and its details.
type Outcome = (String, Option<Box<FilterDetail>>);

/// What is wrong with the body of a call, as a sentence.
pub(super) type BadQuestion = String;

impl Verbs {
    /// `/filter`: which nodes fit, and why the others do not.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(super) fn filter(&self, body: &[u8]) -> Result<String, BadQuestion> {
        let ExtenderArgs { pod, nodes } = extender::decode_args(body).map_err(|why| why.to_string())?;
        let request = match self.asked(&pod) {
            Asked::Nothing => {
                self.cluster.plain_pod_is_filtered(&pod);
                pod_steps::log(&pod.name, format_args!("filter: it requests no GPU, so every node fits"));
                let all: Vec<usize> = (0..nodes.len()).collect();
                return Ok(extender::encode_filter(&nodes, &all, &[]));
            }
            Asked::Refused(why) => {
                self.cluster.is_refused(&pod);
                let failed: Vec<FailedNode<'_>> =
                    (0..nodes.len()).map(|place| FailedNode { place, reason: &why, unresolvable: true }).collect();
                self.measures.refused_pod();
                let text = joined(std::iter::once(why.clone()).chain(Verbs::misspelt_keys(&pod)));
                self.tell(&pod, PodEventReason::FilteringFailed, &text);
                self.record(&pod, DecisionVerb::Filter, (text, None));
                return Ok(extender::encode_filter(&nodes, &[], &failed));
            }
            Asked::Gpus(request) => *request,
        };
        let names: Vec<&str> = nodes.names().collect();
        pod_steps::log(&pod.name, format_args!("filter: kube-scheduler asks about {} nodes", names.len()));
        let asked = request.clone();
        let verdict = self.cluster.filter(request, pod.nominated.as_ref(), &names);
        let reasons = ReasonTexts::of(&verdict.refused);
        let nominated = pod.nominated.as_ref().and_then(|node| names.iter().position(|name| *name == node.as_str()));
        let failed: Vec<FailedNode<'_>> = reasons.failed(&verdict.refused, nominated);
        let answer = extender::encode_filter(&nodes, &verdict.fit, &failed);
        self.filtered(&pod, &names, &verdict, asked);
        Ok(answer)
    }

    /// A sentence for each annotation key of the pod that its owner has probably misspelt.
    fn misspelt_keys(pod: &Pod) -> impl Iterator<Item = String> {
        misspelt_key::of(pod).map(|(key, meant)| format!("annotation {key} is not known: did you mean {meant}?"))
    }

    /// Events, log lines and the record of a filter decision.
    fn filtered(&self, pod: &Pod, names: &[&str], verdict: &FilterVerdict, asked: PlacementRequest) {
        let name = |place: usize| names.get(place).copied().unwrap_or_default();
        Verbs::log_refused(pod, names, &verdict.refused);
        let shown = if tracing::enabled!(tracing::Level::DEBUG) { usize::MAX } else { NODES };
        let scores = explain::best(verdict, names, shown);
        if tracing::enabled!(tracing::Level::DEBUG) {
            for NodeScore { node, score, explained } in &scores {
                let how = explained.sentence(&verdict.scoring);
                tracing::debug!(pod = %pod.name, node, score, "score of node {node} for pod {}: {score}; {how}", pod.name);
            }
        }
        let summary = RefusalSummary::of(&verdict.refused, names);
        self.measures.refused(&summary);
        self.measures.checked(&verdict.checks);
        let failed = self.failed_checks(pod, names, verdict, &asked);
        let (reason, text) = self.decided(pod, names, verdict, (&asked, &summary));
        self.tell(pod, reason, &text);
        let closed = |node: &RefusedNode| {
            let is_closed = node.why.reasons().any(|(reason, _)| reason == RefusalReason::NodeClosed);
            is_closed.then(|| self.cluster.closed(name(node.place))).flatten()
        };
        let refused = verdict.refused.iter().take(NODES).map(|node| KeptRefusal {
            node: name(node.place).into(),
            why: node.why.clone(),
            closed: closed(node),
            memory: failed.iter().filter(|(place, _)| *place == node.place).map(|(_, text)| text.clone()).collect(),
        });
        let detail = FilterDetail {
            requests: asked.requests,
            scores: scores.iter().take(NODES).map(|best| (best.node.into(), best.score, best.explained)).collect(),
            scoring: verdict.scoring,
            refused: refused.collect(),
            proposed: verdict.proposed.map(|place| name(place).into()),
        };
        let expected = detail.proposed.as_deref().unwrap_or("no node");
        pod_steps::log(&pod.name, format_args!("filter: answered; the pod is expected on {expected}"));
        self.record(pod, DecisionVerb::Filter, (text, Some(Box::new(detail))));
    }

    /// Logs GPUs on which the real-time check fails: one GPU for each decision, more at `-v 4`. Returns the place of the node and a
    /// sentence for each GPU.
    fn failed_checks(
        &self,
        pod: &Pod,
        names: &[&str],
        verdict: &FilterVerdict,
        asked: &PlacementRequest,
    ) -> Vec<(usize, String)> {
        let warned = warned(verdict);
        let places = failing(verdict, tracing::enabled!(tracing::Level::TRACE));
        let mut sentences = Vec::new();
        for (number, place) in places.into_iter().enumerate() {
            let Some(name) = names.get(place) else { continue };
            for (nth, check) in self.cluster.failed_checks(asked, name).iter().enumerate() {
                let line = realtime::failed(&pod.name, check);
                let first = number == 0 && nth == 0;
                match first && self.cluster.findings().may_say_failed(clock::monotonic()) {
                    true if warned.is_some() => tracing::warn!("{line}"),
                    true => tracing::info!("{line}"),
                    false => tracing::trace!("{line}"),
                }
                sentences.push((place, check.to_string()));
            }
        }
        sentences
    }

    /// Logs a line for each refused node, at `-v 4`.
    fn log_refused(pod: &Pod, names: &[&str], refused: &[RefusedNode]) {
        if !tracing::enabled!(tracing::Level::TRACE) {
            return;
        }
        for refusal in refused.iter().take(LOGGED) {
            let node = names.get(refusal.place).copied().unwrap_or_default();
            tracing::trace!(pod = %pod.name, node, "{}", explain::filtered_out(node, &refusal.why, &pod.name));
        }
        let more = refused.len().saturating_sub(LOGGED);
        if more > 0 {
            tracing::trace!(pod = %pod.name, "{more} more nodes filtered out; pod {}", pod.name);
        }
    }

    /// A log line and an event of a filter decision. The line has the reason of the event, so that a search for it finds both.
    fn tell(&self, pod: &Pod, reason: PodEventReason, text: &str) {
        let (word, name) = (reason.word(), &pod.name);
        match reason {
            PodEventReason::FilteringFailed => tracing::debug!(pod = %name, "{word}: pod {name}: {text}"),
            _ => tracing::trace!(pod = %name, "{word}: pod {name}: {text}"),
        }
        self.events.send(&pod.uid, name, reason, text.to_owned());
    }

    /// A filter decision as a sentence.
    fn decided(
        &self,
        pod: &Pod,
        names: &[&str],
        verdict: &FilterVerdict,
        (asked, summary): (&PlacementRequest, &RefusalSummary),
    ) -> (PodEventReason, String) {
        let misspelt = Verbs::misspelt_keys(pod);
        if verdict.fit.is_empty() {
            let details = self.cluster.refusal_details(asked, &verdict.refused, names);
            let why = std::iter::once(format!("no node fits: {summary}"));
            // The note of an event is cut at its end.
            return (PodEventReason::FilteringFailed, joined(why.chain(misspelt).chain(details)));
        }
        let proposed = verdict.proposed.and_then(|place| names.get(place)).copied();
        let best = proposed.or(explain::best(verdict, names, 1).first().map(|best| best.node)).unwrap_or_default();
        let (named, more, refused) = (verdict.fit.len(), verdict.more, verdict.refused.len());
        let asked = named + more + refused;
        let text = match more {
            0 => format!("{named} of {asked} nodes fit, {best} best"),
            _ => format!("{named} of {asked} nodes are named, {best} best; {more} more nodes fit"),
        };
        let summary = (refused > 0).then(|| summary.to_string());
        (PodEventReason::FilteringSucceed, joined(std::iter::once(text).chain(summary).chain(misspelt)))
    }

    /// `/prioritize`: the scores of the nodes, as the filter has just made them.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(super) fn prioritize(&self, body: &[u8]) -> Result<String, BadQuestion> {
        let ExtenderArgs { pod, nodes } = extender::decode_args(body).map_err(|why| why.to_string())?;
        let names: Vec<&str> = nodes.names().collect();
        pod_steps::log(&pod.name, format_args!("prioritize: the scores of {} nodes", names.len()));
        Ok(extender::encode_scores(&nodes, &self.cluster.score(&pod.uid, &names)))
    }

    /// `/preempt`: selects the nodes on which the evictions that kube-scheduler plans make room for the pod.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(super) fn preempt(&self, body: &[u8]) -> Result<String, BadQuestion> {
        let question = extender::decode_preemption(body).map_err(|why| why.to_string())?;
        let ExtenderPreemptionArgs { pod, nodes } = question;
        let (kept, text): (Vec<NodeVictims<'_>>, String) = match (self.asked(&pod), self.binder.blind()) {
            // Pods would be evicted for a pod that is not bound.
            (Asked::Gpus(_), Some(why)) => (Vec::new(), why),
            (Asked::Nothing, _) => (nodes, "no GPU is requested: kube-scheduler decides alone".to_owned()),
            (Asked::Refused(why), _) => (Vec::new(), why),
            (Asked::Gpus(request), None) => {
                let victims: Vec<(&str, &[PodUid])> = nodes.iter().map(|node| (&*node.node, &node.pods[..])).collect();
                match self.cluster.preempt(&request, pod.nominated.as_ref(), &victims) {
                    PreemptVerdict::Waits(node) => {
                        (Vec::new(), format!("no eviction: pods on {node} are ending and make room there"))
                    }
                    PreemptVerdict::Offers(places) => {
                        let kept: Vec<NodeVictims<'_>> =
                            places.iter().filter_map(|place| nodes.get(*place)).cloned().collect();
                        let text = format!("evictions make room on {} nodes", kept.len());
                        (kept, text)
                    }
                }
            }
        };
        pod_steps::log(&pod.name, format_args!("preempt: {text}"));
        self.record(&pod, DecisionVerb::Preempt, (text, None));
        Ok(extender::encode_preemption(&kept))
    }

    /// `/bind`: binds the pod, and answers once the outcome is known.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(super) async fn bind(&self, body: &[u8]) -> Result<String, BadQuestion> {
        let args = extender::decode_binding(body).map_err(|why| why.to_string())?;
        pod_steps::log(&args.pod, format_args!("bind: kube-scheduler has chosen {}", args.node));
        let bound = self.binder.bind(&args).await;
        let why: Arc<str> = bound.err().unwrap_or_default();
        let result = if why.is_empty() {
            format!("bound to {}", args.node)
        } else {
            format!("not bound to {}: {why}", args.node)
        };
        pod_steps::log(&args.pod, format_args!("bind: answered: {result}"));
        self.decisions.add(Decision {
            at: clock::now().wall,
            uid: args.uid,
            pod: args.pod,
            verb: DecisionVerb::Bind,
            result,
            detail: None,
        });
        Ok(extender::encode_binding_error(&why))
    }

    fn asked(&self, pod: &Pod) -> Asked {
        match placement::of(pod, self.cluster.rules()) {
            Ok(None) => Asked::Nothing,
            // Kueue and others hold pods back with gates. kube-scheduler does not call the extender for such a pod, and the
            // API server would refuse its binding.
            Ok(Some(_)) if pod.gated => Asked::Refused(GATED.to_owned()),
            Ok(Some(request)) => match self.cluster.too_large(&pod.uid) {
                Some(why) => Asked::Refused(why.to_string()),
                None => Asked::Gpus(Box::new(request)),
            },
            Err(why) => Asked::Refused(why.to_string()),
        }
    }

    fn record(&self, pod: &Pod, verb: DecisionVerb, (result, detail): Outcome) {
        let (uid, pod): (PodUid, _) = (pod.uid.clone(), pod.name.clone());
        self.decisions.add(Decision { at: clock::now().wall, uid, pod, verb, result, detail });
    }
}

/// The best node, if it is named although less memory is really free there.
fn warned(verdict: &FilterVerdict) -> Option<usize> {
    let best = verdict.fit.iter().position(|place| Some(*place) == verdict.proposed)?;
    let is_warned = verdict.explained.get(best)?.check == CheckResult::Warned;
    verdict.proposed.filter(|_| is_warned)
}

/// The nodes whose failed checks are explained: the best node if it is named all the same, and the first refused nodes. With `-v 4`
/// (`is_verbose`) there are more.
fn failing(verdict: &FilterVerdict, is_verbose: bool) -> Vec<usize> {
    let refused = verdict.refused.iter().filter(|node| node.why.check == CheckResult::Refused);
    let most = if is_verbose { LOGGED } else { MEMORY_NODES };
    warned(verdict).into_iter().chain(refused.map(|node| node.place)).take(most).collect()
}

fn joined(sentences: impl Iterator<Item = String>) -> String {
    sentences.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::cluster::ExplainedScore;
    use decide::placement::NodeRefusal;

    /// Otherwise one call about 5,000 nodes of eight GPUs would write 40,000 lines.
    #[test]
    fn failed_checks_are_explained_for_some_nodes_of_a_call() {
        let refused = |place: usize| {
            let mut why = NodeRefusal::whole(RefusalReason::CardInsufficientMemory);
            why.check = if place.is_multiple_of(2) { CheckResult::Unchecked } else { CheckResult::Refused };
            RefusedNode { place, why }
        };
        let warned = ExplainedScore { check: CheckResult::Warned, ..ExplainedScore::default() };
        let mut verdict = FilterVerdict {
            fit: vec![7000, 8000],
            explained: vec![ExplainedScore::default(), warned],
            proposed: Some(8000),
            refused: (0..5000).map(refused).collect(),
            ..FilterVerdict::default()
        };
        assert_eq!(failing(&verdict, false), [8000, 1, 3, 5, 7]);
        assert_eq!(failing(&verdict, true).len(), LOGGED);
        verdict.proposed = Some(7000);
        assert_eq!(failing(&verdict, false), [1, 3, 5, 7, 9], "its memory is really free");
    }
}
