//! Pods as sharing sees them. Each is read once for as long as it stays what it is: while a node fills, one of sixty has changed,
//! and starts wait behind the look at all of them.

use model::id::NodeName;
use model::pod::{Pod, PodList};
use model::share::Tenant;
use std::sync::Arc;
use wire::resource::Rules;
use wire::tenant;

/// What was read of the pods of the last look, in the order of their UIDs; nothing of those that ask for no GPU.
#[derive(Debug, Default)]
pub(crate) struct Tenants(Vec<(Arc<Pod>, Option<Arc<Tenant>>)>);

impl Tenants {
    /// Those of these pods that ask for GPUs.
    pub(super) fn of(&mut self, pods: &PodList, rules: &Rules, node: &NodeName) -> Vec<Tenant> {
        let before = std::mem::take(&mut self.0);
        let known = |pod: &Arc<Pod>| {
            let at = before.binary_search_by(|(known, _)| known.uid.cmp(&pod.uid)).ok()?;
            before.get(at).filter(|(known, _)| Arc::ptr_eq(known, pod))
        };
        let read = |pod: &Arc<Pod>| tenant::of(pod, rules, node).map(Arc::new);
        let look = |pod: &Arc<Pod>| match known(pod) {
            Some((_, tenant)) => tenant.clone(),
            None => read(pod),
        };
        self.0 = pods.pods.iter().map(|pod| (Arc::clone(pod), look(pod))).collect();
        self.0.iter().filter_map(|(_, tenant)| tenant.as_deref().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: u32, gpus: &str) -> Arc<Pod> {
        let text = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": format!("{uid:032x}") },
            "spec": { "containers": [{ "name": "main", "resources": { "limits": { "nvidia.com/gpu": gpus } } }] },
            "status": { "phase": "Pending" },
        });
        Arc::new(wire::pod::decode(text.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn what_is_known_of_a_pod_is_what_would_be_read_of_it_now() {
        let (rules, node) = (Rules::default(), NodeName::parse("node-1").unwrap());
        let (plain, kept) = (pod(1, "0"), pod(3, "1"));
        let mut tenants = Tenants::default();
        for pods in [
            vec![Arc::clone(&plain), Arc::clone(&kept)],
            vec![plain, pod(2, "2"), Arc::clone(&kept)],
            // The second says something else, and a pod with the first one's UID asks now.
            vec![pod(1, "3"), pod(2, "1"), Arc::clone(&kept)],
            vec![kept],
            vec![],
        ] {
            let list = PodList { pods, ..PodList::default() };
            let fresh: Vec<Tenant> = list.pods.iter().filter_map(|pod| tenant::of(pod, &rules, &node)).collect();
            assert_eq!(tenants.of(&list, &rules, &node), fresh);
            assert_eq!(tenants.0.len(), list.pods.len(), "nothing is kept of those that are gone");
        }
    }
}
