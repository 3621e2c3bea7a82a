//! The newest verdict about each node for each kind of request, so that a filter call judges again only the nodes that
//! have changed since.
//!
//! Pods of one Deployment or Job have the same request. A verdict depends only on the request and on the node, so it
//! holds until the node changes: a claim or a proposal on it, its register, or whether it is closed. The number of a
//! node and the count of its changes show whether a verdict still holds. So nothing has to be removed when a node
//! changes, and the lookup reads only these two numbers of a node.
//!
//! A call gets a snapshot of the verdicts of its kind, and reads it while other calls add verdicts. The verdicts are in
//! parts: adding to a part that a call still reads copies only that part.
//!
//! What must never happen here: a verdict is used for a request that differs in anything that placement reads.

use super::rank::Suitability;
use super::version::VersionNumbers;
use crate::placement::{CheckResult, FillTerms, NodeRefusal};
use model::placement::{GpuSelection, PlacementPreference, PlacementRequest};
use model::request::{ContainerRole, MemoryRequest};
use std::sync::Arc;

/// Number of kinds of requests whose verdicts are kept; the least recently used kind is replaced. A kind takes 120
/// bytes for each node, 0.6 MiB for 5,000 nodes. kube-scheduler tries the pods of a burst one by one, so the calls
/// alternate among the kinds of the Deployments and Jobs that grow at the same time.
pub(super) const MOST: usize = 32;
/// Number of nodes in one part. A part takes 8 KiB and is copied in less than a microsecond.
const PART: usize = 64;

/// What a container requests: its role, GPUs, memory, and percent of SM time.
type Requested = (ContainerRole, u32, Option<MemoryRequest>, Option<u32>);

/// All that placement reads of a request: everything except the names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Signature {
    containers: Vec<Requested>,
    pub(super) selection: GpuSelection,
    preference: PlacementPreference,
    realtime: Option<bool>,
}

/// How well a fitting node suits, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) suitability: Suitability,
    pub(super) terms: FillTerms,
    pub(super) check: CheckResult,
}

/// The verdict about one node: how well it suits, or why it does not fit.
pub(super) type Verdict = Result<Judged, NodeRefusal>;

/// The verdict about the node at one place, with the version of the node that it is about.
type Kept = Option<(VersionNumbers, Verdict)>;

/// The verdicts for one kind of request, by the place of the node. A copy shares all parts.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptVerdicts(Vec<Arc<[Kept; PART]>>);

/// The verdicts for one kind of request.
#[derive(Debug)]
struct OfKind {
    signature: Signature,
    /// The number of the call that used these verdicts last.
    used: u64,
    verdicts: KeptVerdicts,
}

/// A verdict that was just made.
#[derive(Clone, Debug)]
pub(super) struct MadeVerdict {
    /// The place and the version of the node; `None` if the verdict need not be kept, because no node has this name or
    /// the verdict is already kept.
    pub(super) about: Option<(usize, VersionNumbers)>,
    pub(super) verdict: Verdict,
}

/// The verdicts for the kinds of requests that were used last.
#[derive(Debug, Default)]
pub(super) struct VerdictCache {
    kinds: Vec<OfKind>,
    calls: u64,
}

impl Signature {
    pub(super) fn of(request: &PlacementRequest) -> Signature {
        let containers = request.requests.iter();
        Signature {
            containers: containers
                .map(|one| (one.role, one.slots, one.memory, one.cores.map(|cores| cores.0)))
                .collect(),
            selection: request.selection.clone(),
            preference: request.preference.clone(),
            realtime: request.realtime,
        }
    }
}

impl VerdictCache {
    /// The verdicts for requests of this kind.
    pub(super) fn of(&mut self, signature: &Signature) -> KeptVerdicts {
        self.calls += 1;
        let calls = self.calls;
        let kind = self.kinds.iter_mut().find(|kind| kind.signature == *signature);
        kind.map(|kind| {
            kind.used = calls;
            kind.verdicts.clone()
        })
        .unwrap_or_default()
    }

    /// Keeps verdicts for requests of this kind.
    pub(super) fn keep(&mut self, signature: &Signature, made: &[MadeVerdict]) {
        if made.is_empty() {
            return;
        }
        let at = self.kinds.iter().position(|kind| kind.signature == *signature);
        let mut kind = match at {
            Some(at) => self.kinds.swap_remove(at),
            None => OfKind { signature: signature.clone(), used: self.calls, verdicts: KeptVerdicts::default() },
        };
        made.iter().for_each(|made| kind.verdicts.keep(made));
        if self.kinds.len() >= MOST {
            let oldest = self.kinds.iter().enumerate().min_by_key(|(_, kind)| kind.used).map(|(place, _)| place);
            oldest.map(|place| self.kinds.swap_remove(place));
        }
        self.kinds.push(kind);
    }

    /// Number of kinds of requests.
    #[cfg(test)]
    pub(super) fn kinds(&self) -> usize {
        self.kinds.len()
    }
}

impl KeptVerdicts {
    /// The verdict about the node at this place in this version, if it is kept.
    pub(super) fn of(&self, place: usize, version: VersionNumbers) -> Option<&Verdict> {
        let (about, verdict) = self.0.get(place / PART)?.get(place % PART)?.as_ref()?;
        (*about == version).then_some(verdict)
    }

    fn keep(&mut self, made: &MadeVerdict) {
        let Some((place, version)) = made.about else { return };
        let part = place / PART;
        if self.0.len() <= part {
            self.0.resize_with(part + 1, || Arc::new([const { None }; PART]));
        }
        if let Some(kept) = self.0.get_mut(part).and_then(|part| Arc::make_mut(part).get_mut(place % PART)) {
            *kept = Some((version, made.verdict.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::RefusalReason;
    use crate::placement::tests::{container, pod};

    fn asks(number: u32, mib: u64) -> Signature {
        Signature::of(&pod(number, vec![container(ContainerRole::App, 1, mib, 0)]))
    }

    fn made(place: usize, version: VersionNumbers) -> MadeVerdict {
        MadeVerdict { about: Some((place, version)), verdict: Err(NodeRefusal::whole(RefusalReason::NodeClosed)) }
    }

    #[test]
    fn a_node_is_judged_once_for_each_kind_of_request_and_each_version() {
        let mut cache = VerdictCache::default();
        let mut judged = |asked: &Signature, place, version| {
            let known = cache.of(asked).of(place, version).cloned();
            assert!(known.as_ref().is_none_or(|verdict| *verdict == made(place, version).verdict));
            cache.keep(asked, &[made(place, version)]);
            known.is_none()
        };
        let (first, same, other) = (asks(1, 1000), asks(2, 1000), asks(3, 2000));
        assert!(judged(&first, 7, (1, 0)) && !judged(&same, 7, (1, 0)), "the pods differ only in their names");
        assert!(judged(&other, 7, (1, 0)), "another amount");
        assert!(judged(&first, 8, (2, 0)) && judged(&first, 7, (1, 1)), "another node, and a change of the first");
        assert!(judged(&first, 7, (3, 1)), "another node has its place");
        let mut request = pod(1, vec![container(ContainerRole::App, 1, 1000, 0)]);
        request.selection.avoid_types = vec!["t4".into()];
        assert!(judged(&Signature::of(&request), 7, (3, 1)));
        request.preference.node_policy = Some(model::placement::NodePolicy::Spread);
        assert!(judged(&Signature::of(&request), 7, (3, 1)));
    }

    #[test]
    fn what_a_call_reads_stays_while_others_add_to_it() {
        let (mut cache, asked) = (VerdictCache::default(), asks(1, 1000));
        cache.keep(&asked, &[made(0, (1, 0)), made(PART, (2, 0))]);
        let read = cache.of(&asked);
        cache.keep(&asked, &[made(0, (1, 1)), made(5 * PART, (3, 0))]);
        assert!(read.of(0, (1, 0)).is_some() && read.of(0, (1, 1)).is_none() && read.of(5 * PART, (3, 0)).is_none());
        let later = cache.of(&asked);
        assert!(later.of(0, (1, 0)).is_none() && later.of(0, (1, 1)).is_some() && later.of(5 * PART, (3, 0)).is_some());
        assert!(Arc::ptr_eq(&read.0[1], &later.0[1]), "a part without a change is not copied");
    }

    #[test]
    fn the_kind_that_was_used_longest_ago_is_replaced() {
        let mut cache = VerdictCache::default();
        let mut ask = |mib| {
            let known = cache.of(&asks(1, mib)).of(0, (1, 0)).is_some();
            cache.keep(&asks(1, mib), &[made(0, (1, 0))]);
            (known, cache.kinds())
        };
        let most = u64::try_from(MOST).unwrap();
        for mib in 1..=most {
            ask(mib);
        }
        assert_eq!(ask(1), (true, MOST));
        assert_eq!(ask(most + 1), (false, MOST));
        assert_eq!((ask(1), ask(3), ask(2)), ((true, MOST), (true, MOST), (false, MOST)));
    }
}
