//! Decodes the GPU pods of the pod list. Container starts wait for this pass, so the result for a pod is kept until the
//! pod changes: while a node fills up, only one pod in sixty has changed since the last pass.

use model::gpu_pod::GpuPod;
use model::id::NodeName;
use model::pod::{Pod, PodList};
use std::sync::Arc;
use wire::gpu_pod;
use wire::resource::RequestRules;

/// The decoded pods of the last pod list, in the order of UIDs; `None` for a pod that requests no GPU.
#[derive(Debug, Default)]
pub(crate) struct GpuPodReader(Vec<(Arc<Pod>, Option<Arc<GpuPod>>)>);

impl GpuPodReader {
    /// The GPU pods among these pods.
    pub(super) fn of(&mut self, pods: &PodList, rules: &RequestRules, node: &NodeName) -> Vec<GpuPod> {
        let before = std::mem::take(&mut self.0);
        let known = |pod: &Arc<Pod>| {
            let at = before.binary_search_by(|(known, _)| known.uid.cmp(&pod.uid)).ok()?;
            before.get(at).filter(|(known, _)| Arc::ptr_eq(known, pod))
        };
        let read = |pod: &Arc<Pod>| gpu_pod::of(pod, rules, node).map(Arc::new);
        let gpu_pod = |pod: &Arc<Pod>| match known(pod) {
            Some((_, gpu_pod)) => gpu_pod.clone(),
            None => read(pod),
        };
        self.0 = pods.pods.iter().map(|pod| (Arc::clone(pod), gpu_pod(pod))).collect();
        self.0.iter().filter_map(|(_, gpu_pod)| gpu_pod.as_deref().cloned()).collect()
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
    fn a_pod_that_was_kept_is_the_same_as_one_that_is_read_again() {
        let (rules, node) = (RequestRules::default(), NodeName::parse("node-1").unwrap());
        let (plain, kept) = (pod(1, "0"), pod(3, "1"));
        let mut gpu_pods = GpuPodReader::default();
        for pods in [
            vec![Arc::clone(&plain), Arc::clone(&kept)],
            vec![plain, pod(2, "2"), Arc::clone(&kept)],
            // The second pod has a different request, and the pod with the first pod's UID now has a request.
            vec![pod(1, "3"), pod(2, "1"), Arc::clone(&kept)],
            vec![kept],
            vec![],
        ] {
            let list = PodList { pods, ..PodList::default() };
            let fresh: Vec<GpuPod> = list.pods.iter().filter_map(|pod| gpu_pod::of(pod, &rules, &node)).collect();
            assert_eq!(gpu_pods.of(&list, &rules, &node), fresh);
            assert_eq!(gpu_pods.0.len(), list.pods.len(), "pods that are gone are not kept");
        }
    }
}
