//! The order in which the GPUs of a node are tried for one container.

use super::device::{Candidate, PlacementNode};
use model::placement::{GpuOrder, GpuPolicy};
use std::cmp::Reverse;

/// Orders the candidates: the preferred candidate first. GPUs that are equal by the policy are tried in the order of
/// their index and UUID, so that the same state always gives the same claim.
pub(super) fn sort(candidates: &mut [Candidate<'_>], policy: &GpuPolicy, numa_first: bool) {
    candidates.sort_by(|one, other| {
        let numa = one.device.numa.cmp(&other.device.numa);
        let mut by = if numa_first { numa } else { std::cmp::Ordering::Equal };
        by = by.then_with(|| one.lacks_memory.cmp(&other.lacks_memory));
        for key in &policy.order {
            by = by.then_with(|| match key {
                GpuOrder::Binpack => Reverse(one.fill).cmp(&Reverse(other.fill)),
                GpuOrder::Spread => one.fill.cmp(&other.fill),
                GpuOrder::Numa => numa,
            });
        }
        let index = |candidate: &Candidate<'_>| candidate.device.index;
        by.then_with(|| index(one).cmp(&index(other))).then_with(|| one.device.uuid.cmp(&other.device.uuid))
    });
}

/// The `count` best connected candidates. The candidates are in order of preference, and there are at least `count` of
/// them. If `count` is 1, the worst connected candidate is chosen, so that well connected GPUs stay together.
///
/// There are 12,870 sets of 8 GPUs out of 16, too many to compare all. Instead, a set is grown from each candidate in
/// turn: each step adds the GPU with the best connections to the set. That takes two thousand steps, and finds the
/// groups that NVLink and PCIe switches make.
pub(super) fn best_connected(candidates: &[Candidate<'_>], node: &PlacementNode, count: usize) -> Vec<usize> {
    let link = |one: usize, other: usize| node.link(one, other);
    let sum = |of: usize, to: &mut dyn Iterator<Item = usize>| to.map(|other| link(of, other)).sum::<u64>();
    let places: Vec<usize> = candidates.iter().map(|candidate| candidate.place).collect();
    if count == 1 {
        let loneliest = places.iter().min_by_key(|place| sum(**place, &mut places.iter().copied()));
        return loneliest.into_iter().copied().collect();
    }
    let mut best: Option<(u64, Vec<usize>)> = None;
    for start in &places {
        let (mut set, mut total) = (vec![*start], 0);
        while set.len() < count {
            let rest = places.iter().filter(|place| !set.contains(place));
            // Among equally connected GPUs take the first, because the policy prefers it.
            let Some((gain, next)) = rest
                .map(|place| (sum(*place, &mut set.iter().copied()), *place))
                .reduce(|best, other| if other.0 > best.0 { other } else { best })
            else {
                break;
            };
            total += gain;
            set.push(next);
        }
        if best.as_ref().is_none_or(|(most, _)| total > *most) {
            best = Some((total, set));
        }
    }
    best.map(|(_, set)| set).unwrap_or_default()
}
