//! Turns objects of the API server into what the cluster's state takes over.

use super::planted::{PlantedMistake, planted};
use decide::cluster::{BindOrder, BoundPod, ClaimOrigin, NodeFacts};
use model::claim::{BindPhase, PodClaim};
use model::followed_node::FollowedNode;
use model::gpu_pod::GpuPod;
use model::id::GpuUuid;
use model::lease::LeaseName;
use model::placement::PlacementRequest;
use model::pod::Pod;
use model::registered::RegisteredGpu;
use model::request::ContainerRole;
use model::time::WallTime;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::annotation_keys::{
    ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, CLAIM_VERSION, CORDON, EPOCH, LEASE, NODE_LINKS,
    PLACED_BY, PLACED_BY_AGENT, REGISTER, TO_ALLOCATE,
};
use wire::claim::MAX_CLAIM_IN_BINDING;
use wire::placement::BadPlacementRequest;
use wire::resource::RequestRules;
use wire::{claim_version, cordon, gpu_pod, links, register};

/// Longest name of another installation's Lease that is kept: its namespace, a slash, its name.
const MAX_LEASE: usize = 63 + 1 + 253;

/// The pod as one that is bound; `None` for a pod without a node. It has the UID of the API server, which nobody can choose; the
/// hash of a static pod is a name on its own node only.
pub(super) fn bound_pod(pod: &Pod, rules: &RequestRules) -> Option<BoundPod> {
    let node = pod.node.clone()?;
    let mut gpu_pod = gpu_pod::of(pod, rules, &node).map(|gpu_pod| GpuPod { uid: pod.uid.clone(), ..gpu_pod });
    if planted(PlantedMistake::ForgottenInitContainer) {
        forget_init_containers(gpu_pod.as_mut());
    }
    if planted(PlantedMistake::UnknownClaimIgnored) {
        gpu_pod = gpu_pod.filter(|pod| matches!(pod.claim, PodClaim::Given(_)));
    }
    Some(BoundPod { node, gpu_pod, ended: pod.ended(), hash: pod.mirror_of.clone() })
}

/// The mistake of that name.
fn forget_init_containers(pod: Option<&mut GpuPod>) {
    let Some(GpuPod { requests, claim: PodClaim::Given(claim), .. }) = pod else { return };
    for (_, shares) in requests.iter().zip(claim).filter(|(request, _)| request.role == ContainerRole::Init) {
        shares.clear();
    }
}

/// Which scheduler wrote the pod's claim, for the extenders with the Lease `own`; `None` where it has none, or where the
/// agent made it. A claim of gpu-steward that names no Lease is from a release that wrote none, and counts as their own.
pub(super) fn origin(pod: &Pod, own: &LeaseName) -> Option<ClaimOrigin> {
    pod.annotation(ALLOCATED)?;
    if pod.annotation(PLACED_BY) == Some(PLACED_BY_AGENT) {
        return None;
    }
    let at = pod.annotation(ASSIGNED_TIME).and_then(wire::timestamp::unix_seconds);
    Some(match (pod.annotation(EPOCH), pod.annotation(LEASE)) {
        (None, None) => ClaimOrigin::Other(at),
        (_, Some(lease)) if lease != own.as_str() => {
            ClaimOrigin::OtherLease(at, lease.chars().take(MAX_LEASE).collect::<String>().into())
        }
        _ => ClaimOrigin::Own(at),
    })
}

/// The epoch of the leader that wrote the pod's claim.
pub(super) fn epoch(pod: &Pod) -> Option<u64> {
    pod.annotation(EPOCH)?.parse().ok()
}

/// The Node with what its agent registered. A cordon that cannot be read closes the node, as a register does: it may be
/// about any GPU.
pub(super) fn node_facts(node: &FollowedNode) -> NodeFacts {
    let (register, cordoned) = match (gpus(node), cordoned(node)) {
        (Ok(gpus), Ok(cordoned)) => (Ok(gpus), cordoned),
        (Err(why), _) | (_, Err(why)) => (Err(why), BTreeSet::new()),
    };
    // Without links any set of GPUs is as good as another, so an unreadable annotation harms no pod.
    let links = node.annotation(NODE_LINKS).and_then(|text| links::decode(text).ok()).unwrap_or_default();
    NodeFacts { uid: node.uid.clone(), name: node.name.clone(), register, cordoned, links }
}

fn gpus(node: &FollowedNode) -> Result<Vec<RegisteredGpu>, Arc<str>> {
    match node.annotation(REGISTER) {
        Some(text) => register::decode(text).map_err(|why| why.to_string().into()),
        None if node.annotations_left_out > 0 => {
            Err(format!("{} annotations are too large to be read", node.annotations_left_out).into())
        }
        None => Ok(Vec::new()),
    }
}

fn cordoned(node: &FollowedNode) -> Result<BTreeSet<GpuUuid>, Arc<str>> {
    node.annotation(CORDON)
        .map_or(Ok(BTreeSet::new()), |text| cordon::decode(text).map_err(|why| why.to_string().into()))
}

/// What a pod without a node requests of the GPUs; `None` where it requests none.
///
/// # Errors
/// A sentence with what cannot be read, or why no node is for the pod.
pub(super) fn request(pod: &Pod, rules: &RequestRules) -> Result<Option<PlacementRequest>, String> {
    wire::placement::of(pod, rules).map_err(|why| match why {
        BadPlacementRequest::ManyGpus { .. } => format!("the pod cannot be placed: {why}"),
        why => format!("the request for GPUs cannot be read: {why}"),
    })
}

/// The Binding of an order by the leader of this Lease, with the annotations that the pod gets in the same write. Where the
/// claim of the order has no device shares, the pod requests no GPU and gets no annotations.
///
/// # Errors
/// Why the claim cannot be written. That depends on the claim only, so it is so for each write of an order or for none.
pub(super) fn binding(order: &BindOrder, lease: &LeaseName, now: WallTime) -> Result<Value, String> {
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

/// The annotations of a Binding. A claim that no reader would keep is not written: its node would be closed.
fn annotations(order: &BindOrder, lease: &LeaseName, now: WallTime) -> Result<Value, String> {
    let all = wire::claim::encode(ALLOCATED, &order.claim).map_err(|why| why.to_string())?;
    if all.len() > MAX_CLAIM_IN_BINDING {
        let (length, most) = (all.len(), MAX_CLAIM_IN_BINDING);
        return Err(format!("its claim is {length} bytes long, and the annotations of a pod have room for {most}"));
    }
    let seconds = wire::timestamp::to_unix_seconds(now);
    Ok(json!({
        ALLOCATED: all, TO_ALLOCATE: all, ASSIGNED_NODE: order.node.as_str(), ASSIGNED_TIME: seconds, BIND_TIME: seconds,
        BIND_PHASE: wire::bind::encode_phase(BindPhase::Allocating), EPOCH: order.epoch.to_string(),
        CLAIM_VERSION: claim_version::encode(), LEASE: lease.as_str(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::claim::{Claim, DeviceShare};
    use model::id::{NodeName, PodRef, PodUid};
    use model::unit::{CorePercent, Mib};

    fn lease() -> LeaseName {
        LeaseName::new("gpu", "gpu-steward-extender")
    }

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
            let pod = wire::pod::decode(pod.to_string().as_bytes()).unwrap();
            bound_pod(&pod, &RequestRules::default()).unwrap()
        };
        let mirror = json!({ "kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash });
        for (annotations, expected) in [(mirror, Some(hash.clone())), (json!({}), None)] {
            let bound = read(annotations.clone(), "Running");
            assert_eq!(bound.gpu_pod.unwrap().uid.as_str(), uid);
            assert_eq!((bound.hash.map(|hash| hash.to_string()), bound.ended), (expected, false));
            assert!(read(annotations, "Failed").ended);
        }
    }

    #[test]
    fn a_claim_says_which_installation_wrote_it() {
        let at = Some(WallTime(1_795_256_507_000_000));
        let other = || ClaimOrigin::OtherLease(at, "b/gpu-steward-extender".into());
        let newest = include_str!("../../tests/golden/claims/version-1.json");
        let before = include_str!("../../tests/golden/claims/version-0.json");
        for (claim, changed, expected) in [
            (newest, json!({}), Some(ClaimOrigin::Own(at))),
            (newest, json!({ LEASE: "b/gpu-steward-extender" }), Some(other())),
            (newest, json!({ LEASE: "b/gpu-steward-extender", EPOCH: null }), Some(other())),
            // A release before wrote no Lease.
            (before, json!({}), Some(ClaimOrigin::Own(at))),
            (before, json!({ ASSIGNED_TIME: "soon" }), Some(ClaimOrigin::Own(None))),
            (before, json!({ EPOCH: null }), Some(ClaimOrigin::Other(at))),
            (newest, json!({ PLACED_BY: PLACED_BY_AGENT }), None),
            (newest, json!({ ALLOCATED: null }), None),
        ] {
            let mut annotations: Value = serde_json::from_str(claim).unwrap();
            for (key, value) in changed.as_object().unwrap() {
                annotations[key] = value.clone();
            }
            annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let pod = json!({ "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations } });
            let pod = wire::pod::decode(pod.to_string().as_bytes()).unwrap();
            assert_eq!(origin(&pod, &lease()), expected, "{annotations}");
        }
        let long = json!({ "metadata": {
            "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": { ALLOCATED: ";", LEASE: "é".repeat(5000) },
        } });
        let pod = wire::pod::decode(long.to_string().as_bytes()).unwrap();
        let Some(ClaimOrigin::OtherLease(None, name)) = origin(&pod, &lease()) else { panic!("{pod:?}") };
        assert_eq!(name.chars().count(), MAX_LEASE);
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
        assert_eq!(binding(&order(Claim::default()), &lease(), WallTime(0)).unwrap(), expected);
    }

    /// One GPU for each device share. Beside its name a share has 12 bytes in the claim, and the container one.
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
            binding(&long, &lease, WallTime(1_795_256_507_000_000)).unwrap()["metadata"]["annotations"].take();
        // What an agent may add, and what the owner of the pod may have written.
        annotations["gpu-steward.io/evict"] = "x".repeat(100).into();
        annotations["gpu-steward.io/a"] = "x".repeat(10_000).into();
        let gpus = long.claim.shares().count();
        let container = json!({ "name": "main", "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } } });
        let pod = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": "1".repeat(32), "annotations": annotations },
            "spec": { "nodeName": long.node.as_str(), "containers": [container] },
        });
        let pod = wire::pod::decode(pod.to_string().as_bytes()).unwrap();
        assert_eq!(pod.system_keys_left_out, 0);
        let read = bound_pod(&pod, &RequestRules::default()).unwrap().gpu_pod.unwrap();
        assert_eq!(read.claim, PodClaim::Given(long.claim));
        let why = binding(&order(claim_of(MAX_CLAIM_IN_BINDING + 1)), &lease, WallTime(0)).unwrap_err();
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
        let written = binding(&order, &lease(), WallTime(1_795_256_507_000_000)).unwrap();
        let newest = include_str!("../../tests/golden/claims/version-1.json");
        assert_eq!(written["metadata"]["annotations"], serde_json::from_str::<Value>(newest).unwrap());
        assert_eq!(
            written["metadata"]["resourceVersion"], "41",
            "the API server refuses it for another version of the pod"
        );
        let unknown = binding(&BindOrder { version: None, ..order }, &lease(), WallTime(0)).unwrap();
        assert_eq!(unknown["metadata"].get("resourceVersion"), None);
    }
}
