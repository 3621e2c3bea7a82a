//! Turns objects of the API server into what the cluster's state takes over.

use decide::cluster::{BindOrder, BoundPod, NodeFacts};
use model::claim::{BindPhase, PodClaim};
use model::followed_node::FollowedNode;
use model::id::{GpuUuid, NodeName};
use model::placement::{GpuSelection, PlacementPreference, PlacementRequest};
use model::pod::Pod;
use model::registered::RegisteredGpu;
use model::time::WallTime;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::annotation_keys::{
    ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, CORDON, EPOCH, REGISTER, TO_ALLOCATE,
};
use wire::resource::RequestRules;
use wire::{cordon, gpu_pod, register};

/// The pod as one that is bound; `None` for a pod without a node.
pub(super) fn bound_pod(pod: &Pod, rules: &RequestRules) -> Option<BoundPod> {
    let node = pod.node.clone()?;
    let gpu_pod = gpu_pod::of(pod, rules, &node);
    Some(BoundPod { node, gpu_pod })
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
    NodeFacts { uid: node.uid.clone(), name: node.name.clone(), register, cordoned, links: BTreeMap::new() }
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

/// What a pod without a node asks of the GPUs; `None` where it asks for none.
///
/// # Errors
/// What cannot be read.
pub(super) fn request(pod: &Pod, rules: &RequestRules) -> Result<Option<PlacementRequest>, String> {
    let nowhere = NodeName::parse("none").map_err(|error| error.to_string())?;
    let Some(gpu_pod) = gpu_pod::of(pod, rules, &nowhere) else { return Ok(None) };
    if let PodClaim::BadRequest(why) = &gpu_pod.claim {
        return Err(why.to_string());
    }
    Ok(Some(PlacementRequest {
        uid: gpu_pod.uid,
        pod: gpu_pod.pod,
        requests: gpu_pod.requests,
        selection: GpuSelection::default(),
        preference: PlacementPreference::default(),
        gang: false,
    }))
}

/// The Binding of an order, with the annotations that the pod gets in the same write.
pub(super) fn binding(order: &BindOrder, now: WallTime) -> Result<Value, String> {
    let BindOrder { uid, pod, node, claim, epoch } = order;
    let all = wire::claim::encode(ALLOCATED, claim).map_err(|why| why.to_string())?;
    let seconds = wire::timestamp::to_unix_seconds(now);
    Ok(json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {
            "name": &*pod.name, "namespace": &*pod.namespace, "uid": uid.as_str(),
            "annotations": {
                ALLOCATED: all, TO_ALLOCATE: all, ASSIGNED_NODE: node.as_str(), ASSIGNED_TIME: seconds,
                BIND_TIME: seconds, BIND_PHASE: wire::bind::encode_phase(BindPhase::Allocating), EPOCH: epoch.to_string(),
            },
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node.as_str() },
    }))
}
