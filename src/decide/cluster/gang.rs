//! Gangs: groups of pods of which kube-scheduler binds all or none. The members pass the filter one after the other, and
//! wait for each other at Permit before any member is bound. If the filter counted only claims, two members would pass for
//! one free GPU. One would be bound and hold the GPU, but only wait for the other. So for a member the expected places of
//! the other members of its gang count like claims; for other pods they do not count.
//!
//! What must never happen here: the proposals of a gang keep pods of others away from a GPU.

use super::node::NodeClaims;
use super::state::ClusterState;
use crate::placement::PlacementNode;
use model::id::{NodeName, PodUid};
use model::placement::PlacementRequest;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The expected pods of each gang, by its name with its namespace. Bounded like the expected pods.
#[derive(Debug, Default)]
pub(super) struct Gangs(HashMap<Arc<str>, BTreeSet<PodUid>>);

impl Gangs {
    /// A member of a gang is expected on a node.
    pub(super) fn add(&mut self, request: &PlacementRequest) {
        if let Some(gang) = &request.gang {
            self.0.entry(Arc::clone(gang)).or_default().insert(request.uid.clone());
        }
    }

    /// The member is no longer expected.
    pub(super) fn remove(&mut self, request: &PlacementRequest) {
        let Some(gang) = &request.gang else { return };
        if let Some(members) = self.0.get_mut(gang) {
            members.remove(&request.uid);
            if members.is_empty() {
                self.0.remove(gang);
            }
        }
    }

    /// The expected members of the gang of this pod.
    pub(super) fn of(&self, request: &PlacementRequest) -> Option<&BTreeSet<PodUid>> {
        self.0.get(request.gang.as_ref()?)
    }
}

impl ClusterState {
    /// The devices of a node, on which the expected members of the pod's gang count like claims; `None` without such
    /// members.
    pub(super) fn devices_beside_gang(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<PlacementNode> {
        node.devices_with(self.gangs.of(request)?)
    }

    /// The nodes on which members of the pod's gang are expected.
    pub(super) fn gang_nodes(&self, request: &PlacementRequest) -> BTreeSet<NodeName> {
        let members = self.gangs.of(request).into_iter().flatten();
        members.filter_map(|uid| self.pending.get(uid)?.proposed.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::{NOW, cluster, name, names, slice};
    use crate::cluster::{ClusterRules, NodeChoice};
    use crate::placement::RefusalReason;

    const WHOLE: u64 = 80 * 1024;

    fn member(n: u32, gang: &str) -> PlacementRequest {
        PlacementRequest { gang: Some(gang.into()), ..slice(n, WHOLE) }
    }

    /// The places of the nodes that fit the pod.
    fn fit(cluster: &mut ClusterState, request: PlacementRequest, nodes: usize) -> Vec<usize> {
        cluster.filter(request, names(nodes), NOW).fit
    }

    #[test]
    fn no_more_members_pass_the_filter_than_there_are_gpus() {
        let mut cluster = cluster(1, 1);
        assert_eq!(fit(&mut cluster, member(1, "ml/train"), 1), [0]);
        let second = cluster.filter(member(2, "ml/train"), names(1), NOW);
        assert_eq!(second.fit, [0_usize; 0]);
        let reasons: Vec<RefusalReason> = second.refused[0].why.reasons().map(|(reason, _)| reason).collect();
        assert_eq!(reasons, [RefusalReason::CardInsufficientMemory]);
        assert!(!second.refused[0].why.is_lasting(), "the first member may not come");
        // The proposal counts for no other pod: not for one without a gang, of another gang, or of another namespace.
        for other in [slice(3, WHOLE), member(4, "ml/other"), member(5, "web/train")] {
            assert_eq!(fit(&mut cluster, other.clone(), 1), [0]);
            cluster.is_not_pending(&other.uid);
        }
        // The first member is tried again: its own proposal does not count for it.
        assert_eq!(fit(&mut cluster, member(1, "ml/train"), 1), [0]);
        // It gives up, so the other one gets its place.
        cluster.pod_gone(&member(1, "").uid);
        assert_eq!(fit(&mut cluster, member(2, "ml/train"), 1), [0]);
        assert!(cluster.bind(&member(2, "").uid, &name(0)).is_ok());
        assert!(cluster.gangs.0.is_empty(), "a bound member has a claim");
    }

    #[test]
    fn each_member_gets_a_gpu_of_its_own_where_there_are_enough() {
        let mut cluster = cluster(2, 2);
        let passed: Vec<bool> = (0..6).map(|n| !fit(&mut cluster, member(n, "ml/train"), 2).is_empty()).collect();
        assert_eq!(passed, [true, true, true, true, false, false]);
        for n in 0..4 {
            let proposed = cluster.pending[&member(n, "").uid].proposed.clone().unwrap();
            let order = cluster.bind(&member(n, "").uid, &proposed).unwrap();
            assert_eq!(order.claim.shares().count(), 1, "member {n} is bound where it is expected");
        }
        assert_eq!(fit(&mut cluster, member(4, "ml/train"), 2), [0_usize; 0]);
    }

    #[test]
    fn members_of_any_size_share_gpus_and_a_single_answer_leaves_room_too() {
        let rules = ClusterRules { node_choice: NodeChoice::Extender, ..ClusterRules::default() };
        for rules in [rules, ClusterRules::default()] {
            let mut cluster = cluster(1, 1);
            cluster.rules = rules;
            let member = |n| PlacementRequest { gang: Some("ml/train".into()), ..slice(n, 30 * 1024) };
            let passed: Vec<bool> = (0..3).map(|n| !fit(&mut cluster, member(n), 1).is_empty()).collect();
            assert_eq!(passed, [true, true, false]);
        }
    }

    #[test]
    fn an_eviction_makes_room_beside_the_members_that_are_expected() {
        let mut cluster = cluster(1, 1);
        assert_eq!(fit(&mut cluster, member(1, "ml/train"), 1), [0]);
        assert!(cluster.fits_without(&slice(2, WHOLE), "node-0", &[]));
        assert!(!cluster.fits_without(&member(2, "ml/train"), "node-0", &[]), "it would be evicted in vain");
    }

    #[test]
    fn nothing_is_kept_of_gangs_that_are_not_expected() {
        let mut cluster = cluster(1, 1);
        fit(&mut cluster, member(1, "ml/train"), 1);
        fit(&mut cluster, slice(2, 1000), 1);
        assert_eq!(cluster.gangs.0.len(), 1);
        cluster.forget_pending(model::time::Monotonic(NOW.0 + 1));
        assert!(cluster.gangs.0.is_empty());
    }
}
