//! The verb preempt. The call names the pods that kube-scheduler would evict on each node. The answer names the nodes
//! on which the evictions make room for the pod.

use super::args::{MAX_EXTENDER_ARGS, json, pod_of, text_of};
use super::candidates::Text;
use super::field_names::AnyCase;
use crate::decode_error::DecodeError;
use crate::pod::OrNull;
use model::followed_node::MAX_CLUSTER_NODES;
use model::id::PodUid;
use model::pod::{MAX_POD_OBJECTS, Pod};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt;

const PREEMPTION: &str = "ExtenderPreemptionArgs";

/// The content of a preempt call.
#[derive(Clone, Debug)]
pub struct ExtenderPreemptionArgs<'a> {
    /// The pod to place.
    pub pod: Pod,
    /// The pods that kube-scheduler would evict on each node, at most [`MAX_CLUSTER_NODES`], in the order of the call.
    pub nodes: Vec<NodeVictims<'a>>,
}

/// The pods to evict on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVictims<'a> {
    /// The node.
    pub node: Cow<'a, str>,
    /// The UIDs of the pods, at most [`MAX_POD_OBJECTS`].
    pub pods: Vec<PodUid>,
    /// Number of these pods whose eviction violates a PodDisruptionBudget.
    pub pdb_violations: i64,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "the object ExtenderPreemptionArgs", rename_all = "PascalCase", default)]
struct RawPreemption<'a> {
    #[serde(borrow)]
    pod: Option<&'a RawValue>,
    #[serde(borrow)]
    node_name_to_victims: OrNull<VictimMap<'a, WholePod<'a>>>,
    #[serde(borrow)]
    node_name_to_meta_victims: OrNull<VictimMap<'a, AnyCase<MetaPod<'a>>>>,
}

/// The victims of one node. `P` is the JSON form of a victim: the whole pod, or only its UID.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default, bound(deserialize = "P: Deserialize<'de>"))]
struct RawVictims<P> {
    pods: OrNull<Vec<P>>,
    #[serde(rename = "NumPDBViolations")]
    pdb_violations: OrNull<i64>,
}

impl<P> Default for RawVictims<P> {
    fn default() -> Self {
        RawVictims { pods: OrNull(Vec::new()), pdb_violations: OrNull(0) }
    }
}

#[derive(Deserialize)]
struct MetaPod<'a> {
    #[serde(borrow, rename = "UID")]
    uid: Cow<'a, str>,
}

#[derive(Deserialize)]
struct WholePod<'a> {
    #[serde(borrow)]
    metadata: PodMetadata<'a>,
}

#[derive(Deserialize)]
struct PodMetadata<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
}

/// A pod whose UID is read.
trait Victim {
    fn uid(&self) -> &str;
}

impl Victim for AnyCase<MetaPod<'_>> {
    fn uid(&self) -> &str {
        &self.0.uid
    }
}

impl Victim for WholePod<'_> {
    fn uid(&self) -> &str {
        &self.metadata.uid
    }
}

/// A map from node to victims, in the order of the JSON.
struct VictimMap<'a, P> {
    nodes: Vec<NodeVictims<'a>>,
    pods: std::marker::PhantomData<P>,
}

impl<P> Default for VictimMap<'_, P> {
    fn default() -> Self {
        VictimMap { nodes: Vec::new(), pods: std::marker::PhantomData }
    }
}

impl<'de: 'a, 'a, P: Deserialize<'de> + Victim> Deserialize<'de> for VictimMap<'a, P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(VictimMap::default())
    }
}

impl<'de: 'a, 'a, P: Deserialize<'de> + Victim> Visitor<'de> for VictimMap<'a, P> {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map from node to victims")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(Text(node)) = map.next_key::<Text<'a>>()? {
            if self.nodes.len() == MAX_CLUSTER_NODES {
                return Err(A::Error::custom(format_args!("has more than {MAX_CLUSTER_NODES} nodes")));
            }
            let victims: Option<AnyCase<RawVictims<P>>> = map.next_value()?;
            let RawVictims { pods, pdb_violations } = victims.map(|victims| victims.0).unwrap_or_default();
            // Users can make so many pods. One such node must not keep kube-scheduler from preempting on the others.
            if pods.0.len() > MAX_POD_OBJECTS {
                continue;
            }
            let pods: Result<_, _> = pods.0.iter().map(|pod| PodUid::parse(pod.uid())).collect();
            let pods = pods.map_err(A::Error::custom)?;
            self.nodes.push(NodeVictims { node, pods, pdb_violations: pdb_violations.0 });
        }
        Ok(self)
    }
}

/// Reads the body of a preempt call, with the victims as UIDs or as whole pods.
///
/// # Errors
/// [`DecodeError`] with the byte of the body at which the fault is.
pub fn decode_preemption(body: &[u8]) -> Result<ExtenderPreemptionArgs<'_>, DecodeError> {
    let text = text_of(PREEMPTION, body, MAX_EXTENDER_ARGS)?;
    let RawPreemption { pod, node_name_to_victims, node_name_to_meta_victims } = json(PREEMPTION, text)?;
    let (whole, meta) = (node_name_to_victims.0.nodes, node_name_to_meta_victims.0.nodes);
    let nodes = match (whole.is_empty(), meta.is_empty()) {
        (true, _) => meta,
        (false, true) => whole,
        (false, false) => {
            let what = "has both NodeNameToVictims and NodeNameToMetaVictims; only one is expected";
            return Err(DecodeError::new(PREEMPTION, 0, what));
        }
    };
    Ok(ExtenderPreemptionArgs { pod: pod_of(PREEMPTION, text, pod)?, nodes })
}

/// Writes the answer to a preempt call: the nodes on which the evictions make room for the pod. kube-scheduler accepts
/// only nodes with at least one victim, each of them a pod on that node.
#[must_use]
pub fn encode_preemption(nodes: &[NodeVictims<'_>]) -> String {
    let victims = |node: &NodeVictims<'_>| {
        let pods: Vec<Value> = node.pods.iter().map(|uid| json!({ "UID": uid.as_str() })).collect();
        (node.node.to_string(), json!({ "Pods": pods, "NumPDBViolations": node.pdb_violations }))
    };
    let nodes: Map<String, Value> = nodes.iter().map(victims).collect();
    json!({ "NodeNameToMetaVictims": nodes }).to_string()
}
