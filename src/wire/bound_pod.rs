//! A pod that is bound to a node, as the scheduler counts it.

use crate::gpu_pod;
use crate::resource::RequestRules;
use model::gpu_pod::{BoundPod, GpuPod};
use model::pod::Pod;

/// The bound pod; `None` for a pod without a node. Its UID is the API server's, because no user can choose that UID.
/// The hash of a static pod identifies the pod only on its own node.
#[must_use]
pub fn of(pod: &Pod, rules: &RequestRules) -> Option<BoundPod> {
    let node = pod.node.clone()?;
    let gpu_pod = gpu_pod::of(pod, rules, &node).map(|gpu_pod| GpuPod { uid: pod.uid.clone(), ..gpu_pod });
    Some(BoundPod { node, gpu_pod, ended: pod.ended(), hash: pod.mirror_of.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation_keys::ALLOCATED;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn a_static_pod_has_the_uid_of_the_api_server_and_its_hash_beside_it() {
        let (uid, hash) = ("0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11", "a".repeat(32));
        let read = |annotations: Value, phase: &str| {
            let limits = json!({ "nvidia.com/gpu": "1" });
            let pod = json!({
                "metadata": {
                    "name": "a", "namespace": "b", "uid": uid, "annotations": annotations,
                    "ownerReferences": [
                        { "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n", "controller": true },
                    ],
                },
                "spec": { "nodeName": "n1", "containers": [{ "name": "c", "resources": { "limits": limits } }] },
                "status": { "phase": phase },
            });
            let pod = crate::pod::decode(pod.to_string().as_bytes()).unwrap();
            of(&pod, &RequestRules::default()).unwrap()
        };
        let mirror = json!({ "kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash });
        for (annotations, expected) in [(mirror, Some(hash.clone())), (json!({}), None)] {
            let bound = read(annotations.clone(), "Running");
            assert_eq!(bound.gpu_pod.unwrap().uid.as_str(), uid);
            assert_eq!((bound.hash.map(|hash| hash.to_string()), bound.ended), (expected, false));
            assert!(read(annotations, "Failed").ended);
        }
    }

    proptest! {
        #[test]
        fn no_pod_causes_a_panic(claim in "\\PC{0,60}", gpus in "\\PC{0,8}", phase in "(Running|Failed|x)?") {
            let annotations = json!({ ALLOCATED: claim });
            let limits = json!({ "nvidia.com/gpu": gpus });
            let pod = json!({
                "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations },
                "spec": { "nodeName": "n1", "containers": [{ "name": "c", "resources": { "limits": limits } }] },
                "status": { "phase": phase },
            });
            if let Ok(pod) = crate::pod::decode(pod.to_string().as_bytes()) {
                let bound = of(&pod, &RequestRules::default()).unwrap();
                prop_assert!(bound.gpu_pod.is_none_or(|gpu_pod| gpu_pod.uid == pod.uid));
            }
        }
    }
}
