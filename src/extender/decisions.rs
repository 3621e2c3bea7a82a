//! The last decisions, for `GET /api/v1/decisions`.

use super::explain::FilterDetail;
use model::id::{PodRef, PodUid};
use model::time::WallTime;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Decisions that are kept: those of some minutes. One with 20 nodes that fit and 20 that do not takes about 5 KiB.
const KEPT: usize = 1_000;
/// Nodes of one decision that are kept by name. A decision about 5,000 nodes would take half a MiB.
pub(super) const NODES: usize = 20;

/// One decision.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) at: WallTime,
    pub(super) uid: PodUid,
    pub(super) pod: PodRef,
    /// `filter`, `bind` or `preempt`.
    pub(super) verb: &'static str,
    /// One sentence.
    pub(super) result: String,
    /// Of a filter decision: what the pod asked, and how the nodes compare.
    pub(super) detail: Option<Box<FilterDetail>>,
}

/// The last decisions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    kept: Mutex<VecDeque<Decision>>,
}

impl Decisions {
    /// Keeps a decision, and forgets the oldest one beyond the bound.
    pub(super) fn add(&self, decision: Decision) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(decision);
    }

    /// The decisions about this pod (`namespace/name` or UID), or all; the newest first.
    pub(super) fn about(&self, pod: Option<&str>) -> Value {
        let kept = self.kept.lock();
        let asked = |decision: &&Decision| {
            pod.is_none_or(|pod| decision.uid.as_str() == pod || decision.pod.to_string() == pod)
        };
        let shown: Vec<Value> = kept.iter().rev().filter(asked).map(Decision::json).collect();
        json!({ "kept": kept.len(), "decisions": shown })
    }
}

impl Decision {
    fn json(&self) -> Value {
        let (scores, detail) = match &self.detail {
            Some(detail) => (detail.scores(), detail.json()),
            None => (Vec::new(), Value::Null),
        };
        json!({
            "at": wire::timestamp::to_rfc3339_micros(self.at), "pod": self.pod.to_string(), "uid": self.uid.as_str(),
            "verb": self.verb, "result": self.result, "scores": scores, "detail": detail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(n: usize) -> Decision {
        Decision {
            at: WallTime(0),
            uid: PodUid::parse(&format!("{n:032x}")).unwrap(),
            pod: PodRef { namespace: "ml".into(), name: format!("p{n}").into() },
            verb: "filter",
            result: String::new(),
            detail: Some(Box::default()),
        }
    }

    #[test]
    fn the_last_decisions_are_kept_and_found_by_pod() {
        let decisions = Decisions::default();
        (0..KEPT + 5).for_each(|n| decisions.add(decision(n)));
        let all = decisions.about(None);
        assert_eq!((&all["kept"], all["decisions"].as_array().unwrap().len()), (&json!(KEPT), KEPT));
        assert_eq!(all["decisions"][0]["pod"], format!("ml/p{}", KEPT + 4));
        for pod in ["ml/p9", &format!("{:032x}", 9)] {
            let found = decisions.about(Some(pod));
            assert_eq!(
                (found["decisions"].as_array().unwrap().len(), &found["decisions"][0]["pod"]),
                (1, &json!("ml/p9"))
            );
        }
        assert_eq!(decisions.about(Some("ml/p1"))["decisions"], json!([]), "forgotten");
    }
}
