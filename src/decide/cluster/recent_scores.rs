//! The scores of the newest filter calls, for the prioritize calls that follow them within milliseconds.
//!
//! kube-scheduler places one pod after the other, and asks for the scores of nodes that the filter has just named. If
//! the scores of a pod are forgotten, its prioritize call gives all nodes the same score. The bind always checks the
//! chosen node again.

use foldhash::fast::RandomState;
use model::id::PodUid;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Number of pods whose scores are kept: more than the kube-schedulers that call at the same time. The scores of one
/// pod take up to half a MiB if all of 5,000 nodes are named.
const MOST: usize = 8;

/// The nodes that one filter call named, with their scores.
pub(super) type NamedScores = Arc<[(Box<str>, i64)]>;

/// The scores by pod, oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentScores(VecDeque<(PodUid, NamedScores)>);

impl RecentScores {
    /// Keeps the scores of this pod's newest call.
    pub(super) fn keep(&mut self, uid: &PodUid, scores: NamedScores) {
        self.forget(uid);
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((uid.clone(), scores));
    }

    /// Forgets the scores of this pod: it is bound, gone, or filtered again.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.0.retain(|(of, _)| of != uid);
    }

    /// The scores of this pod.
    pub(super) fn of(&self, uid: &PodUid) -> Option<NamedScores> {
        self.0.iter().find(|(of, _)| of == uid).map(|(_, scores)| Arc::clone(scores))
    }
}

/// The scores of these nodes, in their order; 0 for a node without a score.
pub(super) fn in_order(scores: &[(Box<str>, i64)], nodes: &[&str]) -> Vec<i64> {
    let by_name: HashMap<&str, i64, RandomState> = scores.iter().map(|(name, score)| (&**name, *score)).collect();
    nodes.iter().map(|name| by_name.get(name).copied().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scores_of_the_newest_calls_are_kept_until_they_are_forgotten() {
        let uid = |number: usize| PodUid::parse(&format!("{number:032x}")).unwrap();
        let score = |number: usize| i64::try_from(number).unwrap();
        let mut recent = RecentScores::default();
        for number in 0..=MOST {
            recent.keep(&uid(number), Arc::from([("n1".into(), score(number))]));
        }
        assert!(recent.of(&uid(0)).is_none() && recent.of(&uid(1)).is_some());
        recent.keep(&uid(1), Arc::from([("n1".into(), 70)]));
        assert_eq!((recent.0.len(), &recent.of(&uid(1)).unwrap()[..]), (MOST, &[("n1".into(), 70)][..]));
        recent.forget(&uid(1));
        assert!(recent.of(&uid(1)).is_none() && recent.of(&uid(MOST)).is_some());
    }

    #[test]
    fn a_node_without_a_score_has_none_of_its_own() {
        let scores = [("n1".into(), 5), ("n2".into(), 7)];
        assert_eq!(in_order(&scores, &["n3", "n2", "n1"]), [0, 7, 5]);
        assert_eq!(in_order(&[], &["n1"]), [0]);
    }
}
