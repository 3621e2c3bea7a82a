//! The newest verdict about each node for each kind of request, so that a filter call judges anew only the nodes that have
//! changed since.
//!
//! Pods of one Deployment or Job ask the same of every node. A verdict depends on that and on the node alone, so it holds
//! until the node changes: a claim or a proposal on it, its register, or that it is closed. The number of a node
//! and the count of its changes say whether a verdict still holds, so nothing has to be removed when a node changes, and the
//! lookup reads no more of a node than these two.
//!
//! What must never happen here: a verdict for a request that differs in anything that placement reads.

use super::rank::Suitability;
use crate::placement::{FillTerms, NodeRefusal};
use model::placement::{GpuSelection, PlacementPreference, PlacementRequest};
use model::request::{ContainerRole, MemoryRequest};
use model::unit::CorePercent;

/// Kinds of requests whose verdicts are kept; the one that was used longest ago is replaced. Each takes 100 bytes for a
/// node, half a MiB for 5,000 nodes. kube-scheduler tries the pods of a burst one by one, so the kinds of requests that
/// alternate are those of the Deployments and Jobs that grow at the same time.
pub(super) const MOST: usize = 16;

/// What placement reads of a request: all but the names.
#[derive(Clone, Debug, PartialEq)]
struct Signature {
    containers: Vec<(ContainerRole, u32, Option<MemoryRequest>, Option<CorePercent>)>,
    selection: GpuSelection,
    preference: PlacementPreference,
}

/// What is known of a node that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) suitability: Suitability,
    pub(super) terms: FillTerms,
}

/// The verdict about one node: how well it suits, or why it does not fit.
pub(super) type Verdict = Result<Judged, NodeRefusal>;

/// The verdicts for one kind of request, by the place of the node. Each has the version of the node that it is about.
#[derive(Debug)]
pub(super) struct Verdicts {
    signature: Signature,
    /// When it was used last, in calls.
    used: u64,
    by_place: Vec<Option<((u64, u64), Verdict)>>,
}

/// The verdicts for the kinds of requests that came last.
#[derive(Debug, Default)]
pub(super) struct VerdictCache {
    kinds: Vec<Verdicts>,
    calls: u64,
}

impl Signature {
    fn of(request: &PlacementRequest) -> Signature {
        let containers = request.requests.iter();
        Signature {
            containers: containers.map(|one| (one.role, one.slots, one.memory, one.cores)).collect(),
            selection: request.selection.clone(),
            preference: request.preference.clone(),
        }
    }
}

impl VerdictCache {
    /// Takes the verdicts for requests of this kind out; [`VerdictCache::put_back`] puts them in again.
    pub(super) fn take(&mut self, request: &PlacementRequest) -> Verdicts {
        self.calls += 1;
        let signature = Signature::of(request);
        match self.kinds.iter().position(|kind| kind.signature == signature) {
            Some(place) => Verdicts { used: self.calls, ..self.kinds.swap_remove(place) },
            None => Verdicts { signature, used: self.calls, by_place: Vec::new() },
        }
    }

    /// Puts verdicts in again.
    pub(super) fn put_back(&mut self, verdicts: Verdicts) {
        if self.kinds.len() >= MOST {
            let oldest = self.kinds.iter().enumerate().min_by_key(|(_, kind)| kind.used).map(|(place, _)| place);
            oldest.map(|place| self.kinds.swap_remove(place));
        }
        self.kinds.push(verdicts);
    }

    /// Number of kinds of requests.
    #[cfg(test)]
    pub(super) fn kinds(&self) -> usize {
        self.kinds.len()
    }
}

impl Verdicts {
    /// The verdict about the node at this place in this version; `judge` makes it where none is kept.
    pub(super) fn of(&mut self, place: usize, version: (u64, u64), judge: impl FnOnce() -> Verdict) -> Verdict {
        if let Some(Some((of, verdict))) = self.by_place.get(place)
            && *of == version
        {
            return verdict.clone();
        }
        let verdict = judge();
        if self.by_place.len() <= place {
            self.by_place.resize(place + 1, None);
        }
        if let Some(kept) = self.by_place.get_mut(place) {
            *kept = Some((version, verdict.clone()));
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::RefusalReason;
    use crate::placement::tests::{container, pod};

    fn asks(number: u32, mib: u64) -> PlacementRequest {
        pod(number, vec![container(ContainerRole::App, 1, mib, 0)])
    }

    #[test]
    fn a_node_is_judged_once_for_each_kind_of_request_and_each_version() {
        let mut cache = VerdictCache::default();
        let mut judged = |request: &PlacementRequest, place, version| {
            let (mut kept, mut anew) = (cache.take(request), false);
            let verdict = kept.of(place, version, || {
                anew = true;
                Err(NodeRefusal::whole(RefusalReason::NodeClosed))
            });
            cache.put_back(kept);
            assert_eq!(verdict, Err(NodeRefusal::whole(RefusalReason::NodeClosed)));
            anew
        };
        let (first, same, other) = (asks(1, 1000), asks(2, 1000), asks(3, 2000));
        assert!(judged(&first, 7, (1, 0)) && !judged(&same, 7, (1, 0)), "the pods differ in their names alone");
        assert!(judged(&other, 7, (1, 0)), "another amount");
        assert!(judged(&first, 8, (2, 0)) && judged(&first, 7, (1, 1)), "another node, and a change of the first");
        assert!(judged(&first, 7, (3, 1)), "another node has its place");
        let mut selective = asks(1, 1000);
        selective.selection.avoid_types = vec!["t4".into()];
        assert!(judged(&selective, 7, (3, 1)));
        selective.preference.node_policy = Some(model::placement::NodePolicy::Spread);
        assert!(judged(&selective, 7, (3, 1)));
    }

    #[test]
    fn the_kind_that_was_used_longest_ago_is_replaced() {
        let mut cache = VerdictCache::default();
        let mut ask = |mib| {
            let kept = cache.take(&asks(1, mib));
            let known = !kept.by_place.is_empty();
            let mut kept = kept;
            let _ = kept.of(0, (1, 0), || Err(NodeRefusal::default()));
            cache.put_back(kept);
            (known, cache.kinds())
        };
        for mib in 1..=16 {
            ask(mib);
        }
        assert_eq!(ask(1), (true, MOST));
        assert_eq!(ask(17), (false, MOST));
        assert_eq!((ask(1), ask(3), ask(2)), ((true, MOST), (true, MOST), (false, MOST)));
    }
}
