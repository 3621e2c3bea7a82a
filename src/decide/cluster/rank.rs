//! The order of the nodes that fit a pod, and their scores for kube-scheduler.

use crate::placement::Fill;
use model::placement::NodePolicy;

/// How well a node suits a pod: a larger one is better. One number, because a call sorts thousands of them. Its highest bit
/// says whether the pod fits also beside the pods that the filter expects there; the others how full or how empty it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Suitability(u64);

/// The highest bit.
const BESIDE_PROPOSALS: u64 = 1 << 63;
/// The largest fill that is told from larger ones: millions of times what a node has.
const MOST: u64 = BESIDE_PROPOSALS - 1;

impl Suitability {
    pub(super) fn new(beside_proposals: bool, fill: Fill, policy: NodePolicy) -> Suitability {
        let fill = fill.0.min(MOST);
        let by_policy = match policy {
            NodePolicy::Binpack => fill,
            NodePolicy::Spread => MOST - fill,
        };
        Suitability(if beside_proposals { by_policy | BESIDE_PROPOSALS } else { by_policy })
    }

    /// Whether the pod fits also beside the pods that the filter expects there.
    pub(super) fn beside_proposals(self) -> bool {
        self.0 & BESIDE_PROPOSALS != 0
    }
}

/// The score of each node: its place in the order times `step`. Nodes that suit equally have the same score.
pub(super) fn scores(suitability: &[Suitability], step: i64) -> Vec<i64> {
    let mut order: Vec<Suitability> = suitability.to_vec();
    order.sort_unstable();
    order.dedup();
    let score = |one: &Suitability| {
        let place = order.binary_search(one).unwrap_or_else(|place| place);
        i64::try_from(place).unwrap_or(i64::MAX).saturating_mul(step)
    };
    suitability.iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_suit_equally_have_equal_scores_and_others_differ_by_at_least_one_step() {
        let of = |beside, fill| Suitability::new(beside, Fill(fill), NodePolicy::Binpack);
        let nodes = [of(true, 500), of(true, 900), of(false, 999), of(true, 500), of(false, 1)];
        assert_eq!(scores(&nodes, 121), [242, 363, 121, 242, 0]);
        let of = |fill| Suitability::new(true, Fill(fill), NodePolicy::Spread);
        assert_eq!(scores(&[of(0), of(10), of(5)], 10), [20, 0, 10]);
        assert_eq!(scores(&[], 10), Vec::<i64>::new());
    }
}
