//! `/api/v1/nodes` of the extender: what the leader believes about each node, and how old this knowledge is.

use serde::{Deserialize, Serialize};

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BelievedNodesJson {
    /// The nodes, ordered by name.
    pub nodes: Vec<BelievedNodeJson>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BelievedNodeJson {
    /// The name.
    pub node: String,
    /// Why the node takes no new claims; missing if it takes new claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Number of GPUs and MIG instances that the node registers.
    pub gpus: usize,
    /// Number of these GPUs and MIG instances that may get new containers.
    pub gpus_fit: usize,
    /// Sum of the slots of the node's devices.
    pub slots: u64,
    /// Sum of the claimed slots.
    pub slots_claimed: u64,
    /// Memory that pods may claim.
    pub memory_bytes: u64,
    /// Memory that pods have claimed.
    pub memory_claimed_bytes: u64,
    /// Number of pods with a claim.
    pub claims: usize,
    /// The stream of the node's agent; missing if the agent has never opened a stream to this leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<AgentStreamJson>,
    /// Each GPU and MIG instance, ordered by index; only in an answer about one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<BelievedDeviceJson>,
}

/// The stream of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentStreamJson {
    /// `open`, `closed` (the agent may soon open another) or `away`.
    pub state: String,
    /// Seconds since the agent's last message.
    pub age_seconds: f64,
    /// The phase in the agent's last message: `starting`, `serving`, `serving_early` (without CDI) or `leaving`.
    pub phase: String,
}

/// One GPU or MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BelievedDeviceJson {
    /// UUID.
    pub uuid: String,
    /// NVML's index of the GPU.
    pub index: u32,
    /// Product name in lower case.
    pub product: String,
    /// `fit`, `unhealthy`, `cordoned` or `in_use` (by processes of a pod without a claim).
    pub fitness: String,
    /// Containers that may share the device.
    pub slots: u64,
    /// Containers that share the device.
    pub slots_claimed: u64,
    /// Percent of the SM time that pods may claim.
    pub cores: u64,
    /// Percent of the SM time that pods have claimed.
    pub cores_claimed: u64,
    /// Memory that pods may claim.
    pub memory_bytes: u64,
    /// Memory that pods have claimed.
    pub memory_claimed_bytes: u64,
    /// Memory in use, as the agent last reported; missing if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Memory that is left for new pods by the claims and by what is really in use; missing if only the claims are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_really_free_bytes: Option<u64>,
}
