//! What the leader believes about the nodes, for `GET /api/v1/nodes`.

use super::locked_cluster::LockedCluster;
use decide::cluster::{AgentBelief, NodeClaims};
use decide::placement::{DeviceFitness, MemoryBasis, PlacementDevice};
use model::agent_stream::AgentPhase;
use model::time::Monotonic;
use wire::api::believed_nodes::{AgentStreamJson, BelievedDeviceJson, BelievedNodeJson, BelievedNodesJson};

/// What is believed about this node, or about all nodes without their devices: 5,000 nodes of 8 GPUs take 1.5 MB instead of 15 MB.
///
/// # Errors
/// A sentence, if there is no such node.
pub(super) fn of(cluster: &LockedCluster, node: Option<&str>) -> Result<BelievedNodesJson, String> {
    let now = clock::monotonic();
    let mut nodes = Vec::new();
    cluster.walk(|cluster, claims| {
        let name = claims.name().as_str();
        if node.is_none_or(|node| node == name) {
            let closed = cluster.closing(name).map(|why| why.to_string());
            nodes.push(BelievedNodeJson { closed, ..belief(claims, node.is_some(), now) });
        }
    });
    match node {
        Some(name) if nodes.is_empty() => {
            let name: String = name.chars().take(MAX_SHOWN).collect();
            Err(format!("no Node {name:?} is known here"))
        }
        _ => {
            nodes.sort_by(|one, other| one.node.cmp(&other.node));
            Ok(BelievedNodesJson { nodes })
        }
    }
}

/// Maximum number of characters of a node's name in an answer: Kubernetes' limit.
const MAX_SHOWN: usize = 253;

fn belief(node: &NodeClaims, with_devices: bool, now: Monotonic) -> BelievedNodeJson {
    let devices = &node.devices().devices;
    let sum = |of: &dyn Fn(&PlacementDevice) -> u64| devices.iter().map(of).sum();
    BelievedNodeJson {
        node: node.name().to_string(),
        closed: None,
        gpus: devices.len(),
        gpus_fit: devices.iter().filter(|device| device.fitness == DeviceFitness::Fit).count(),
        slots: sum(&|device| device.capacity.slots),
        slots_claimed: sum(&|device| device.claimed.containers),
        memory_bytes: sum(&|device| device.capacity.memory),
        memory_claimed_bytes: sum(&|device| device.claimed.memory),
        claims: node.ledger().claims().count(),
        stream: node.agent_belief(now).map(stream),
        devices: if with_devices { devices.iter().map(|one| device(node, one)).collect() } else { Vec::new() },
    }
}

fn stream(belief: AgentBelief) -> AgentStreamJson {
    let phase = match belief.phase {
        AgentPhase::Starting => "starting",
        AgentPhase::Serving => "serving",
        AgentPhase::ServingEarly => "serving_early",
        AgentPhase::Leaving => "leaving",
    };
    AgentStreamJson { state: belief.state.to_owned(), age_seconds: belief.age.as_secs_f64(), phase: phase.to_owned() }
}

fn device(node: &NodeClaims, device: &PlacementDevice) -> BelievedDeviceJson {
    let fitness = match device.fitness {
        DeviceFitness::Fit => "fit",
        DeviceFitness::Unhealthy => "unhealthy",
        DeviceFitness::Cordoned => "cordoned",
        DeviceFitness::InUse => "in_use",
    };
    let free = device.capacity.memory.saturating_sub(device.claimed.memory);
    BelievedDeviceJson {
        uuid: device.uuid.to_string(),
        index: device.index,
        product: device.kind.product.to_string(),
        fitness: fitness.to_owned(),
        slots: device.capacity.slots,
        slots_claimed: device.claimed.containers,
        cores: device.capacity.cores,
        cores_claimed: device.claimed.cores,
        memory_bytes: device.capacity.memory,
        memory_claimed_bytes: device.claimed.memory,
        memory_used_bytes: node.memory_used(&device.uuid).map(|used| used.0),
        memory_really_free_bytes: (device.beyond.basis != MemoryBasis::Claims)
            .then(|| free.saturating_sub(device.beyond.taken.0)),
    }
}
