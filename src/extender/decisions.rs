//! The last decisions, for `GET /api/v1/decisions`.

use super::explain::FilterDetail;
use model::id::{PodRef, PodUid};
use model::time::WallTime;
use parking_lot::Mutex;
use std::collections::VecDeque;
use wire::api::decisions::{DecisionJson, DecisionVerb, DecisionsJson};

/// Maximum number of kept decisions: a few minutes' decisions. A decision with 20 nodes that fit and 20 that do not takes
/// about 5 KiB.
const KEPT: usize = 1_000;
/// Maximum number of fitting nodes, and of refused nodes, that are kept by name. A decision about 5,000 nodes would take
/// half a MiB.
pub(super) const NODES: usize = 20;
/// Maximum number of characters of a pod's namespace and name in an answer.
const SHOWN: usize = 320;

/// One decision.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) at: WallTime,
    pub(super) uid: PodUid,
    pub(super) pod: PodRef,
    /// The call that the decision answers.
    pub(super) verb: DecisionVerb,
    /// The result in one sentence.
    pub(super) result: String,
    /// For a filter decision: what the pod requested, and how the nodes compare.
    pub(super) detail: Option<Box<FilterDetail>>,
}

/// The last decisions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    kept: Mutex<VecDeque<Decision>>,
}

impl Decisions {
    /// Keeps a decision, and forgets the oldest decision beyond the bound.
    pub(super) fn add(&self, decision: Decision) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(decision);
    }

    /// The decisions about this pod (`namespace/name` or UID), or all; the newest first.
    ///
    /// # Errors
    /// A sentence, if no decision about this pod is kept.
    pub(super) fn about(&self, pod: Option<&str>) -> Result<DecisionsJson, String> {
        let kept = self.kept.lock();
        let asked = |decision: &&Decision| {
            pod.is_none_or(|pod| decision.uid.as_str() == pod || decision.pod.to_string() == pod)
        };
        let decisions: Vec<DecisionJson> = kept.iter().rev().filter(asked).map(Decision::json).collect();
        match pod {
            Some(pod) if decisions.is_empty() => {
                let pod: String = pod.chars().take(SHOWN).collect();
                Err(format!(
                    "of the last {} decisions none is about {pod:?}: name the pod as NAMESPACE/NAME or by its UID; \
                     kube-scheduler asks about a pod only if it has this scheduler's name in spec.schedulerName and requests \
                     GPUs",
                    kept.len()
                ))
            }
            _ => Ok(DecisionsJson { kept: kept.len(), decisions }),
        }
    }
}

impl Decision {
    fn json(&self) -> DecisionJson {
        let detail = self.detail.as_deref();
        DecisionJson {
            at: wire::timestamp::to_rfc3339_micros(self.at),
            pod: self.pod.to_string(),
            uid: self.uid.to_string(),
            verb: self.verb,
            result: self.result.clone(),
            scores: detail.map(FilterDetail::scores).unwrap_or_default(),
            detail: detail.map(FilterDetail::json),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::{Explained, KeptRefusal};
    use decide::cluster::{ExplainedScore, Scoring};
    use decide::placement::{FillTerms, NodeRefusal, RefusalReason};
    use model::placement::{NodePolicy, ScoreWeights};
    use model::request::{ContainerRequest, ContainerRole, MemoryRequest};
    use model::unit::{CorePercent, Mib};
    use serde_json::Value;

    fn decision(n: usize) -> Decision {
        Decision {
            at: WallTime(0),
            uid: PodUid::parse(&format!("{n:032x}")).unwrap(),
            pod: PodRef { namespace: "ml".into(), name: format!("p{n}").into() },
            verb: DecisionVerb::Filter,
            result: String::new(),
            detail: Some(Box::default()),
        }
    }

    /// A filter decision that names one node and refuses two, and what followed from it.
    fn filter_and_bind() -> Decisions {
        let request = |container: &str, memory| ContainerRequest {
            container: container.into(),
            role: ContainerRole::App,
            slots: 1,
            memory,
            cores: Some(CorePercent(30)).filter(|_| memory.is_some()),
            priority: None,
        };
        let explained = |beside_proposals| {
            let terms = FillTerms { slots: 200_000, cores: 0, memory: 333_333 };
            Explained(ExplainedScore { beside_proposals, terms, ..ExplainedScore::default() })
        };
        let refused = |node: &str, reason, closed: Option<&str>| KeptRefusal {
            node: node.into(),
            why: NodeRefusal::whole(reason),
            closed: closed.map(str::to_owned),
            memory: Vec::new(),
        };
        let memory = "GPU 3: 8192 MiB requested, claims leave 10240 MiB, 2048 MiB are really free; 8092 MiB are used without a claim, \
                      most by process 4021 python (8000 MiB)";
        let in_use = KeptRefusal {
            memory: vec![memory.to_owned()],
            ..refused("n5", RefusalReason::CardInsufficientMemory, None)
        };
        let detail = FilterDetail {
            requests: vec![
                request("a", Some(MemoryRequest::Amount(Mib(3000)))),
                request("b", Some(MemoryRequest::Percent(50))),
                request("c", None),
            ],
            scores: vec![("n1".into(), 24_200, explained(true)), ("n2".into(), -121, explained(false))],
            scoring: Scoring {
                policy: NodePolicy::Spread,
                weights: ScoreWeights { slots: 1, cores: 1, memory: 2 },
                step: 121,
            },
            refused: vec![
                refused("n3", RefusalReason::CardInUse, None),
                refused("n4", RefusalReason::NodeClosed, Some("the node's agent is about to stop")),
                in_use,
            ],
            proposed: Some("n1".into()),
        };
        let decisions = Decisions::default();
        let filter =
            Decision { detail: Some(Box::new(detail)), result: "2 of 4 nodes fit, n1 best".into(), ..decision(1) };
        decisions.add(filter);
        decisions.add(Decision { verb: DecisionVerb::Bind, result: "bound to n1".into(), detail: None, ..decision(1) });
        decisions
    }

    /// `UPDATE_GOLDEN=1` writes the file anew.
    #[test]
    fn decisions_are_shown_as_they_always_were() {
        let shown = serde_json::to_value(filter_and_bind().about(None).unwrap()).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/api/decisions.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, format!("{shown:#}\n")).unwrap();
        }
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(shown, golden);
    }

    #[test]
    fn the_last_decisions_are_kept_and_found_by_pod() {
        let decisions = Decisions::default();
        (0..KEPT + 5).for_each(|n| decisions.add(decision(n)));
        let all = decisions.about(None).unwrap();
        assert_eq!((all.kept, all.decisions.len()), (KEPT, KEPT));
        assert_eq!(all.decisions[0].pod, format!("ml/p{}", KEPT + 4));
        for pod in ["ml/p9", &format!("{:032x}", 9)] {
            let found = decisions.about(Some(pod)).unwrap();
            assert_eq!((found.decisions.len(), &*found.decisions[0].pod), (1, "ml/p9"));
        }
        let why = decisions.about(Some("ml/p1")).unwrap_err();
        assert!(
            why.starts_with("of the last 1000 decisions none is about \"ml/p1\": name the pod as"),
            "forgotten: {why}"
        );
        let empty = Decisions::default().about(None).unwrap();
        assert_eq!((empty.kept, empty.decisions.len()), (0, 0), "a list of all is empty without a fault");
    }
}
