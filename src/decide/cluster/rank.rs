//! The order of the nodes that fit a pod, the best of them, and their scores for kube-scheduler.

use crate::placement::Fill;
use model::placement::NodePolicy;

/// How well a node suits a pod: larger is better. It is one number, because a call sorts thousands of them. The highest
/// bit says whether the memory that the pod requests is really free. The next bit says whether the pod also fits if all
/// pods that the filter expects on the node are bound there. The other bits say how full or empty the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Suitability(u64);

/// The highest bit: the memory that the pod requests is really free.
const REALLY_FREE: u64 = 1 << 63;
/// The next bit: the pod also fits if all pods that the filter expects on the node are bound there.
const BESIDE_PROPOSALS: u64 = 1 << 62;
/// An odd number with random bits: the golden ratio times 2^64.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
/// The largest fill; larger fills count as equal. It is millions of times the fill of a real node.
const MOST: u64 = BESIDE_PROPOSALS - 1;

impl Suitability {
    pub(super) fn new(really_free: bool, beside_proposals: bool, fill: Fill, policy: NodePolicy) -> Suitability {
        let fill = fill.0.min(MOST);
        let by_policy = match policy {
            NodePolicy::Binpack => fill,
            NodePolicy::Spread => MOST - fill,
        };
        let bit = |is: bool, bit: u64| if is { bit } else { 0 };
        Suitability(by_policy | bit(beside_proposals, BESIDE_PROPOSALS) | bit(really_free, REALLY_FREE))
    }

    /// Whether the pod also fits if all pods that the filter expects on the node are bound there.
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

/// Selects the `most` best nodes by these suitabilities. If nodes tie for the last places, they take turns: `turn` is
/// the number of the call. Returns a function that says whether a node is selected; call it once for each node, in the
/// same order.
pub(super) fn best(suitability: &[Suitability], most: usize, turn: u64) -> impl FnMut(Suitability) -> bool + use<> {
    let (mut last, mut first, mut ties, mut places) = (None, 0, 0, 0);
    if most < suitability.len() && most > 0 {
        let mut order = suitability.to_vec();
        let (better, of_last, _) = order.select_nth_unstable_by(most - 1, |one, other| other.cmp(one));
        let of_last = *of_last;
        places = most - better.iter().filter(|one| **one > of_last).count();
        ties = suitability.iter().filter(|one| **one == of_last).count();
        first = turns(turn, ties);
        last = Some(of_last);
    }
    let mut at = 0;
    move |one| match last {
        None => true,
        Some(last) if one == last => {
            // The node's place in the circle of the tied nodes, counted from the node at which this turn begins.
            let place = (at + ties - first) % ties;
            at += 1;
            place < places
        }
        Some(last) => one > last,
    }
}

/// The place among `nodes` nodes at which this turn begins. Consecutive turns begin far apart. So do every second turn,
/// every third turn and so on, so that two kinds of pods that alternate do not always get the same nodes.
fn turns(turn: u64, nodes: usize) -> usize {
    let part = u128::from(turn.wrapping_mul(GOLDEN_RATIO)) * nodes as u128;
    usize::try_from(part >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(nodes: &[u64], most: usize, turn: u64) -> Vec<usize> {
        let suits: Vec<_> =
            nodes.iter().map(|fill| Suitability::new(true, true, Fill(*fill), NodePolicy::Binpack)).collect();
        let mut is_named = best(&suits, most, turn);
        suits.iter().enumerate().filter(|(_, one)| is_named(**one)).map(|(place, _)| place).collect()
    }

    #[test]
    fn the_best_nodes_are_named_in_their_order() {
        let nodes = [3, 9, 1, 7, 5];
        assert_eq!(named(&nodes, 2, 0), [1, 3]);
        assert_eq!(named(&nodes, 3, 1), [1, 3, 4]);
        for most in [5, 6, usize::MAX] {
            assert_eq!(named(&nodes, most, 2), [0, 1, 2, 3, 4]);
        }
        assert_eq!(named(&[], 3, 0), Vec::<usize>::new());
    }

    /// Two nodes are better than the others, which tie for the last three of five places.
    #[test]
    fn nodes_that_tie_for_the_last_places_take_turns_also_where_other_pods_come_between() {
        let mut nodes = vec![5; 40];
        (nodes[7], nodes[20]) = (9, 8);
        nodes.push(4);
        for every in 1..=10 {
            let mut times = vec![0; nodes.len()];
            for turn in 0..400 {
                let named = named(&nodes, 5, turn * every);
                assert!(named.len() == 5 && named.contains(&7) && named.contains(&20), "{named:?}");
                named.iter().for_each(|place| times[*place] += 1);
            }
            assert_eq!(times.pop(), Some(0), "it is behind all others");
            // On average 400 x 3 / 38.
            let ties: Vec<i32> = times.into_iter().filter(|times| *times < 400).collect();
            assert!(ties.len() == 38 && ties.iter().all(|times| (26..=38).contains(times)), "{every}: {ties:?}");
        }
    }

    #[test]
    fn nodes_that_suit_equally_have_equal_scores_and_others_differ_by_at_least_one_step() {
        let of = |beside, fill| Suitability::new(true, beside, Fill(fill), NodePolicy::Binpack);
        let nodes = [of(true, 500), of(true, 900), of(false, 999), of(true, 500), of(false, 1)];
        assert_eq!(scores(&nodes, 121), [242, 363, 121, 242, 0]);
        let of = |fill| Suitability::new(true, true, Fill(fill), NodePolicy::Spread);
        assert_eq!(scores(&[of(0), of(10), of(5)], 10), [20, 0, 10]);
        assert_eq!(scores(&[], 10), Vec::<i64>::new());
    }
}
