//! The Binding that binds a pod to a node, with the annotations of its claim.

use crate::annotation_keys::{
    ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, CLAIM_VERSION, EPOCH, LEASE, TO_ALLOCATE,
};
use crate::claim::MAX_CLAIM_IN_BINDING;
use crate::{bind, claim, claim_version, timestamp};
use model::claim::{BindOrder, BindPhase};
use model::lease::LeaseName;
use model::time::WallTime;
use serde_json::{Value, json};

/// The Binding of an order by the leader of this Lease, with the annotations that the pod gets in the same write. If the claim
/// of the order has no device shares, the pod requests no GPU and gets no annotations.
///
/// # Errors
/// Why the claim cannot be written. The reason depends only on the claim, so all writes of an order fail with it, or no write.
pub fn encode(order: &BindOrder, lease: &LeaseName, now: WallTime) -> Result<Value, String> {
    let BindOrder { uid, pod, node, claim, epoch: _, version } = order;
    let mut metadata = json!({ "name": &*pod.name, "namespace": &*pod.namespace, "uid": uid.as_str() });
    if claim.shares().next().is_some() {
        metadata["annotations"] = annotations(order, lease, now)?;
    }
    if let Some(version) = version {
        metadata["resourceVersion"] = version.to_string().into();
    }
    let target = json!({ "apiVersion": "v1", "kind": "Node", "name": node.as_str() });
    Ok(json!({ "apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target }))
}

/// The annotations of a Binding. A claim that is too long for readers is not written, because it would close its node.
fn annotations(order: &BindOrder, lease: &LeaseName, now: WallTime) -> Result<Value, String> {
    let all = claim::encode(ALLOCATED, &order.claim).map_err(|why| why.to_string())?;
    if all.len() > MAX_CLAIM_IN_BINDING {
        let (length, most) = (all.len(), MAX_CLAIM_IN_BINDING);
        return Err(format!("its claim is {length} bytes long, and the annotations of a pod have room for {most}"));
    }
    let seconds = timestamp::to_unix_seconds(now);
    Ok(json!({
        ALLOCATED: all, TO_ALLOCATE: all, ASSIGNED_NODE: order.node.as_str(), ASSIGNED_TIME: seconds, BIND_TIME: seconds,
        BIND_PHASE: bind::encode_phase(BindPhase::Allocating), EPOCH: order.epoch.to_string(),
        CLAIM_VERSION: claim_version::encode(), LEASE: lease.as_str(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation_keys::{EVICT, FENCE, PLACED_BY, PLACED_BY_AGENT, ROOM, WAKE};
    use crate::bound_pod;
    use crate::resource::RequestRules;
    use model::claim::{Claim, DeviceShare, PodClaim};
    use model::id::{GpuUuid, NodeName, PodRef, PodUid};
    use model::unit::{CorePercent, Mib};

    fn lease() -> LeaseName {
        LeaseName::new("gpu", "gpu-steward-extender")
    }

    fn order(claim: Claim) -> BindOrder {
        BindOrder {
            uid: PodUid::parse(&"1".repeat(32)).unwrap(),
            pod: PodRef { namespace: "ml".into(), name: "train".into() },
            node: NodeName::parse("node-1").unwrap(),
            claim,
            epoch: 7,
            version: Some(41),
        }
    }

    #[test]
    fn the_binding_of_a_pod_without_gpus_names_its_uid_and_version_and_writes_no_annotation() {
        let expected = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": "train", "namespace": "ml", "uid": "1".repeat(32), "resourceVersion": "41" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "node-1" },
        });
        assert_eq!(encode(&order(Claim::default()), &lease(), WallTime(0)).unwrap(), expected);
    }

    /// One GPU for each device share. In addition to its UUID, a share takes 12 bytes in the claim, and the container
    /// one byte.
    fn claim_of(bytes: usize) -> Claim {
        let share =
            |name: usize| DeviceShare { device: GpuUuid::parse(&"x".repeat(name)).unwrap(), memory: None, cores: None };
        let mut shares = vec![share(96); (bytes - 1) / 108];
        shares.push(share((bytes - 1) % 108 - 12));
        Claim(vec![shares])
    }

    #[test]
    fn the_longest_claim_that_is_written_is_read_again_and_a_longer_one_is_not_written() {
        let long = BindOrder {
            node: NodeName::parse(&"n".repeat(253)).unwrap(),
            epoch: u64::MAX,
            ..order(claim_of(MAX_CLAIM_IN_BINDING))
        };
        let lease = LeaseName::new(&"s".repeat(63), &"l".repeat(253));
        let mut annotations =
            encode(&long, &lease, WallTime(1_795_256_507_000_000)).unwrap()["metadata"]["annotations"].take();
        // What agents and extenders may add, and what the owner of the pod may have written.
        annotations[EVICT] = "x".repeat(100).into();
        annotations[PLACED_BY] = PLACED_BY_AGENT.into();
        annotations[FENCE] = u64::MAX.to_string().into();
        annotations[WAKE] = format!("{}/{}", u64::MAX, u64::MAX).into();
        let written = annotations.as_object().unwrap().iter();
        let written: usize = written.map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
        assert!(written <= ROOM, "{written}");
        annotations["gpu-steward.io/a"] = "x".repeat(10_000).into();
        let gpus = long.claim.shares().count();
        let container = json!({ "name": "main", "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } } });
        let pod = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": "1".repeat(32), "annotations": annotations },
            "spec": { "nodeName": long.node.as_str(), "containers": [container] },
        });
        let pod = crate::pod::decode(pod.to_string().as_bytes()).unwrap();
        assert_eq!(pod.system_keys_left_out, 0);
        let read = bound_pod::of(&pod, &RequestRules::default()).unwrap().gpu_pod.unwrap();
        assert_eq!(read.claim, PodClaim::Given(long.claim));
        let why = encode(&order(claim_of(MAX_CLAIM_IN_BINDING + 1)), &lease, WallTime(0)).unwrap_err();
        assert_eq!(why, "its claim is 7169 bytes long, and the annotations of a pod have room for 7168");
    }

    #[test]
    fn a_binding_has_the_annotations_of_the_newest_version_of_a_claim() {
        let share = |gpu: &str, mib, cores: u32| DeviceShare {
            device: GpuUuid::parse(gpu).unwrap(),
            memory: Some(Mib(mib).bytes()),
            cores: Some(CorePercent(cores)).filter(|cores| cores.0 > 0),
        };
        let own = vec![share("GPU-a", 3000, 30)];
        let order = order(Claim(vec![vec![], own, vec![share("GPU-b", 81_920, 0), share("GPU-c", 81_920, 0)]]));
        let written = encode(&order, &lease(), WallTime(1_795_256_507_000_000)).unwrap();
        let newest = include_str!("../../tests/golden/claims/version-1.json");
        assert_eq!(written["metadata"]["annotations"], serde_json::from_str::<Value>(newest).unwrap());
        assert_eq!(
            written["metadata"]["resourceVersion"], "41",
            "the API server refuses it for another version of the pod"
        );
        let unknown = encode(&BindOrder { version: None, ..order }, &lease(), WallTime(0)).unwrap();
        assert_eq!(unknown["metadata"].get("resourceVersion"), None);
    }
}
