//! Explains a filter decision: how the score of a node was made, and the text of each refusal. A kept decision
//! becomes text only when it is requested.

use decide::cluster::{ExplainedScore, FilterVerdict, RefusalSummary, RefusedNode, Scoring};
use decide::placement::{CheckResult, NearestMiss, NodeRefusal, ScoreTerm};
use model::id::PodRef;
use model::placement::NodePolicy;
use model::request::ContainerRequest;
use std::fmt::Write;
use wire::api::decisions::{
    ContainerRequestJson, FilterDetailJson, NodeScoreJson, RefusedNodeJson, ScoreTermJson, ScoringJson,
};
use wire::extender::FailedNode;

/// Terms are counted in millionths.
const WHOLE: f64 = 1e6;

/// The score of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeScore<'a> {
    pub(super) node: &'a str,
    pub(super) score: i64,
    pub(super) explained: Explained,
}

/// How a score was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Explained(pub(super) ExplainedScore);

/// The best `most` nodes of a verdict, the best first; among equals the first by name.
pub(super) fn best<'a>(verdict: &FilterVerdict, names: &[&'a str], most: usize) -> Vec<NodeScore<'a>> {
    let all = verdict.fit.iter().zip(&verdict.scores).zip(&verdict.explained);
    let scores = all.map(|((place, score), explained)| NodeScore {
        node: names.get(*place).copied().unwrap_or_default(),
        score: *score,
        explained: Explained(*explained),
    });
    let order =
        |one: &NodeScore<'_>, other: &NodeScore<'_>| other.score.cmp(&one.score).then_with(|| one.node.cmp(other.node));
    if most >= verdict.fit.len() {
        let mut scores: Vec<NodeScore<'_>> = scores.collect();
        scores.sort_by(order);
        return scores;
    }
    // A call can have 15,000 nodes, of which 20 are shown: these are kept in order, and each further node is compared once.
    let mut best: Vec<NodeScore<'_>> = Vec::with_capacity(most + 1);
    for score in scores {
        if best.len() == most && best.last().is_none_or(|worst| order(&score, worst).is_ge()) {
            continue;
        }
        let place = best.partition_point(|kept| order(kept, &score).is_lt());
        best.insert(place, score);
        best.truncate(most);
    }
    best
}

/// What is kept of a filter decision.
#[derive(Clone, Debug, Default)]
pub(super) struct FilterDetail {
    /// What the containers request.
    pub(super) requests: Vec<ContainerRequest>,
    /// Nodes with their scores, the best nodes first.
    pub(super) scores: Vec<(Box<str>, i64, Explained)>,
    /// What the scores have in common.
    pub(super) scoring: Scoring,
    /// Nodes that do not fit.
    pub(super) refused: Vec<KeptRefusal>,
    /// The node that is expected to take the pod.
    pub(super) proposed: Option<Box<str>>,
}

/// A node that does not fit.
#[derive(Clone, Debug)]
pub(super) struct KeptRefusal {
    pub(super) node: Box<str>,
    pub(super) why: NodeRefusal,
    /// Why the node takes no new claims, if that is the reason.
    pub(super) closed: Option<String>,
    /// The node's GPUs whose claims leave room and that have too little memory that is really free.
    pub(super) memory: Vec<String>,
}

impl FilterDetail {
    /// The scores with their terms.
    pub(super) fn scores(&self) -> Vec<NodeScoreJson> {
        let one = |(node, score, explained): &(Box<str>, i64, Explained)| {
            NodeScore { node, score: *score, explained: *explained }.json(&self.scoring)
        };
        self.scores.iter().map(one).collect()
    }

    /// Everything but the scores.
    pub(super) fn json(&self) -> FilterDetailJson {
        FilterDetailJson {
            asks: self.requests.iter().map(ContainerRequestJson::of).collect(),
            scoring: ScoringJson { node_policy: policy(&self.scoring).to_owned(), score_step: self.scoring.step },
            proposed: self.proposed.as_deref().map(str::to_owned),
            refused: self.refused.iter().map(KeptRefusal::json).collect(),
        }
    }
}

impl KeptRefusal {
    fn json(&self) -> RefusedNodeJson {
        let node = RefusedNode { place: 0, why: self.why.clone() };
        let why = RefusalSummary::of(std::slice::from_ref(&node), &[&*self.node]).to_string();
        RefusedNodeJson { node: self.node.to_string(), why, closed: self.closed.clone(), memory: self.memory.clone() }
    }
}

fn policy(scoring: &Scoring) -> &'static str {
    match scoring.policy {
        NodePolicy::Binpack => "binpack",
        NodePolicy::Spread => "spread",
    }
}

impl NodeScore<'_> {
    /// The score with its terms.
    pub(super) fn json(&self, scoring: &Scoring) -> NodeScoreJson {
        let Explained(ExplainedScore { terms, beside_proposals, .. }) = self.explained;
        let term = |term: &ScoreTerm| ScoreTermJson {
            name: term.name.to_owned(),
            value: parts(term.value.into()),
            weight: term.weight,
            product: parts(term.product()),
        };
        NodeScoreJson {
            node: self.node.to_owned(),
            score: self.score,
            terms: terms.terms(scoring.weights).iter().map(term).collect(),
            fill: parts(terms.fill(scoring.weights).0.into()),
            beside_expected_pods: beside_proposals,
            arithmetic: self.explained.sentence(scoring),
        }
    }
}

/// A number of millionths as a fraction.
#[expect(clippy::cast_precision_loss, reason = "shares with six digits")]
fn parts(number: u128) -> f64 {
    number as f64 / WHOLE
}

impl Explained {
    /// The arithmetic as a sentence.
    pub(super) fn sentence(&self, scoring: &Scoring) -> String {
        let Explained(ExplainedScore { terms, beside_proposals, check }) = self;
        let mut text = "fill = (".to_owned();
        let mut weights = 0_u64;
        for (number, term) in terms.terms(scoring.weights).iter().enumerate() {
            weights += u64::from(term.weight);
            let plus = if number == 0 { "" } else { " + " };
            // Writing into a String does not fail.
            let _ = write!(text, "{plus}{} {:.6} x {}", term.name, parts(term.value.into()), term.weight);
        }
        let fill = parts(terms.fill(scoring.weights).0.into());
        let better = match scoring.policy {
            NodePolicy::Binpack => "the fullest",
            NodePolicy::Spread => "the emptiest",
        };
        let _ = write!(text, ") / {weights} = {fill:.6}; {} prefers {better} node", policy(scoring));
        if !beside_proposals {
            text.push_str("; behind all others, because it fits only if the expected pods do not come");
        }
        if *check == CheckResult::Warned {
            text.push_str("; behind all others, because less memory is really free than the pod requests");
        }
        text
    }
}

/// The log line of a node that does not fit a pod, in the words of HAMi's debugging guide: its reasons, and what was missing on the
/// GPU that came nearest to fitting.
pub(super) fn filtered_out(node: &str, why: &NodeRefusal, pod: &PodRef) -> String {
    let missing = match why.nearest {
        None => String::new(),
        Some(NearestMiss::Memory { requested, free, really_free, .. }) => {
            let available = really_free.map_or(free.0, |really| really.0.min(free.0));
            format!(", requested {}Mi but available {}Mi", requested.0.div_ceil(1 << 20), available >> 20)
        }
        Some(NearestMiss::Cores { requested, free, .. }) => {
            format!(", requested {} % of SM time but available {} %", requested.0, free.0)
        }
        Some(NearestMiss::Count { requested, fitting: there } | NearestMiss::Devices { requested, there }) => {
            format!(", requested {requested} GPUs but available {there}")
        }
    };
    format!("Node {node} filtered out: {why}{missing}; pod {pod}")
}

/// The text of each set of reasons, so that kube-scheduler can count nodes with the same text.
#[derive(Debug)]
pub(super) struct ReasonTexts {
    /// A few sets for all nodes of a call.
    texts: Vec<(u16, String)>,
}

impl ReasonTexts {
    pub(super) fn of(refused: &[RefusedNode]) -> ReasonTexts {
        let mut texts: Vec<(u16, String)> = Vec::new();
        for node in refused {
            let bits = node.why.bits();
            if !texts.iter().any(|(known, _)| *known == bits) {
                texts.push((bits, node.why.to_string()));
            }
        }
        ReasonTexts { texts }
    }

    /// The refused nodes with their texts. The node on which kube-scheduler has evicted pods for this pod is never unresolvable:
    /// kube-scheduler would evict pods on another node at once, while its victims here are still ending.
    pub(super) fn failed(&self, refused: &[RefusedNode], nominated: Option<usize>) -> Vec<FailedNode<'_>> {
        let one = |node: &RefusedNode| {
            let bits = node.why.bits();
            let text = self.texts.iter().find(|(known, _)| *known == bits);
            FailedNode {
                place: node.place,
                reason: text.map_or("", |(_, text)| text),
                unresolvable: node.why.is_lasting() && Some(node.place) != nominated,
            }
        };
        refused.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::placement::{FillTerms, RefusalReason};
    use model::placement::ScoreWeights;
    use model::unit::{Bytes, CorePercent};

    fn verdict(fills: &[u64]) -> FilterVerdict {
        let terms = |fill: &u64| FillTerms { slots: *fill, cores: 0, memory: 500_000 };
        FilterVerdict {
            fit: (0..fills.len()).collect(),
            scores: fills.iter().map(|fill| i64::try_from(*fill).unwrap()).collect(),
            explained: fills
                .iter()
                .map(|fill| ExplainedScore {
                    beside_proposals: *fill > 0,
                    terms: terms(fill),
                    ..ExplainedScore::default()
                })
                .collect(),
            scoring: Scoring {
                policy: NodePolicy::Spread,
                weights: ScoreWeights { slots: 1, cores: 1, memory: 2 },
                step: 121,
            },
            ..FilterVerdict::default()
        }
    }

    #[test]
    fn the_best_nodes_come_first_and_equal_ones_by_name() {
        let (verdict, names) = (verdict(&[5, 9, 9, 0, 7]), ["a", "c", "b", "d", "e"]);
        let best = |most| best(&verdict, &names, most).iter().map(|score| score.node).collect::<String>();
        assert_eq!((&*best(usize::MAX), &*best(3), &*best(1), &*best(5)), ("bcead", "bce", "b", "bcead"));
    }

    #[test]
    fn the_line_of_a_refused_node_says_what_was_asked_for_and_what_there_is() {
        let pod = PodRef { namespace: "ml".into(), name: "train-0".into() };
        let (mib, closed) = (|amount: u64| Bytes(amount << 20), NodeRefusal::whole(RefusalReason::NodeClosed));
        let line = |nearest| {
            let mut why = closed.clone();
            why.nearest = nearest;
            filtered_out("n1", &why, &pod)
        };
        let memory = |really_free| NearestMiss::Memory {
            asked: None,
            requested: mib(8192),
            free: mib(4096),
            really_free,
            total: mib(81_920),
            index: 0,
        };
        for (nearest, expected) in [
            (None, ""),
            (Some(memory(None)), ", requested 8192Mi but available 4096Mi"),
            (Some(memory(Some(mib(100)))), ", requested 8192Mi but available 100Mi"),
            (Some(memory(Some(mib(9000)))), ", requested 8192Mi but available 4096Mi"),
            (
                Some(NearestMiss::Cores { requested: CorePercent(50), free: CorePercent(20), index: 1 }),
                ", requested 50 % of SM time but available 20 %",
            ),
            (Some(NearestMiss::Count { requested: 4, fitting: 2 }), ", requested 4 GPUs but available 2"),
            (Some(NearestMiss::Devices { requested: 8, there: 4 }), ", requested 8 GPUs but available 4"),
        ] {
            let expected = format!("Node n1 filtered out: NodeUnfitPod: NodeClosed{expected}; pod ml/train-0");
            assert_eq!(line(nearest), expected);
        }
    }

    #[test]
    fn each_score_shows_its_terms_and_its_arithmetic() {
        let verdict = verdict(&[200_000, 0]);
        let scores = best(&verdict, &["n1", "n2"], 9);
        let shown = scores[0].json(&verdict.scoring);
        let term = |name: &str, value, weight, product| ScoreTermJson { name: name.to_owned(), value, weight, product };
        assert_eq!(shown.terms, [term("slots", 0.2, 1, 0.2), term("cores", 0.0, 1, 0.0), term("memory", 0.5, 2, 1.0)]);
        assert_eq!((&*shown.node, shown.score, shown.fill.to_string()), ("n1", 200_000, "0.3".to_owned()));
        let text = "fill = (slots 0.200000 x 1 + cores 0.000000 x 1 + memory 0.500000 x 2) / 4 = 0.300000; spread prefers the \
                    emptiest node";
        assert_eq!(shown.arithmetic, text);
        let behind = scores[1].json(&verdict.scoring).arithmetic;
        assert!(
            behind.ends_with("; behind all others, because it fits only if the expected pods do not come"),
            "{behind}"
        );
    }
}
