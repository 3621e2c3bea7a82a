//! The calls of kube-scheduler for the verbs filter, prioritize and bind.

use super::candidates::{AnyCaseNodeList, CandidateNames, CandidateNode, CandidateNodes, NodeItems, Text};
use super::field_names::AnyCase;
use crate::decode_error::DecodeError;
use crate::pod;
use model::id::{NodeName, PodRef, PodUid};
use model::pod::Pod;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Maximum size of a call with a pod and nodes, in bytes. The names of 15,000 nodes take up to 4 MiB, and a pod up to 9
/// MiB: etcd accepts 1.5 MiB, and JSON may need six bytes for a byte. The rest is room for some 2,000 whole Nodes of 16
/// KiB; a scheduler of a larger cluster sends names (`nodeCacheCapable`).
pub const MAX_EXTENDER_ARGS: usize = 32 << 20;
/// Maximum size of a bind call in bytes: three names of up to 253 characters and a UID, with room for future fields.
pub const MAX_BINDING_ARGS: usize = 64 << 10;

const ARGS: &str = "ExtenderArgs";
const BINDING: &str = "ExtenderBindingArgs";

/// The content of a filter or prioritize call.
#[derive(Clone, Debug)]
pub struct ExtenderArgs<'a> {
    /// The pod.
    pub pod: Pod,
    /// The candidate nodes.
    pub nodes: CandidateNodes<'a>,
}

/// The content of a bind call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtenderBindingArgs {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's namespace and name.
    pub pod: PodRef,
    /// The node to bind the pod to.
    pub node: NodeName,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "the object ExtenderArgs", rename_all = "PascalCase", default)]
struct RawArgs<'a> {
    #[serde(borrow)]
    pod: Option<&'a RawValue>,
    #[serde(borrow)]
    nodes: Option<AnyCaseNodeList<'a>>,
    #[serde(borrow)]
    node_names: Option<NodeItems<Text<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "the object ExtenderBindingArgs", rename_all = "PascalCase", default)]
struct RawBinding<'a> {
    #[serde(borrow)]
    pod_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pod_namespace: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "PodUID")]
    pod_uid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    node: Option<Cow<'a, str>>,
}

/// Reads the body of a filter or prioritize call. A call without nodes has an empty list of names.
///
/// # Errors
/// [`DecodeError`] with the byte of the body at which the fault is.
pub fn decode_args(body: &[u8]) -> Result<ExtenderArgs<'_>, DecodeError> {
    let text = text_of(ARGS, body, MAX_EXTENDER_ARGS)?;
    let RawArgs { pod, nodes, node_names } = json(ARGS, text)?;
    let objects = nodes.map(|AnyCase(list)| list.items.0.0).unwrap_or_default();
    let names = node_names.map(|names| names.0).unwrap_or_default();
    let nodes = match (names.is_empty(), objects.is_empty()) {
        (_, true) => {
            let names = names.into_iter().map(|name| name.0).collect();
            CandidateNodes::Names(CandidateNames { names, call: text })
        }
        (true, false) => CandidateNodes::Objects(read_objects(text, objects)?),
        (false, false) => return Err(DecodeError::new(ARGS, 0, "has both Nodes and NodeNames; only one is expected")),
    };
    Ok(ExtenderArgs { pod: pod_of(ARGS, text, pod)?, nodes })
}

fn read_objects<'a>(body: &str, objects: Vec<&'a RawValue>) -> Result<Vec<CandidateNode<'a>>, DecodeError> {
    let read = |object: &'a RawValue| {
        CandidateNode::read(object).map_err(|error| {
            let inner = DecodeError::json(ARGS, object.get().as_bytes(), &error);
            DecodeError { at: offset(body, object.get()) + inner.at, ..inner }
        })
    };
    objects.into_iter().map(read).collect()
}

/// Reads the body of a bind call.
///
/// # Errors
/// [`DecodeError`] with the byte of the body at which the fault is; 0 if a field is missing or not a valid name.
pub fn decode_binding(body: &[u8]) -> Result<ExtenderBindingArgs, DecodeError> {
    let text = text_of(BINDING, body, MAX_BINDING_ARGS)?;
    let RawBinding { pod_name, pod_namespace, pod_uid, node } = json(BINDING, text)?;
    let fault = |what: String| DecodeError::new(BINDING, 0, what);
    let name = |field: &str, text: Option<Cow<'_, str>>| {
        let text = text.unwrap_or_default();
        // The rules for names of nodes also hold for names of pods and namespaces.
        NodeName::parse(&text)
            .map(|_| text.as_ref().into())
            .map_err(|_| fault(format!("{field} is missing or not a valid name")))
    };
    Ok(ExtenderBindingArgs {
        uid: PodUid::parse(&pod_uid.unwrap_or_default()).map_err(|error| fault(format!("PodUID: {error}")))?,
        pod: PodRef { namespace: name("PodNamespace", pod_namespace)?, name: name("PodName", pod_name)? },
        node: NodeName::parse(&node.unwrap_or_default()).map_err(|error| fault(format!("Node: {error}")))?,
    })
}

// === for every call ===

/// The body as text, within its bound.
pub(super) fn text_of<'a>(key: &'static str, body: &'a [u8], most: usize) -> Result<&'a str, DecodeError> {
    if body.len() > most {
        return Err(DecodeError::too_long(key, body.len(), most));
    }
    std::str::from_utf8(body).map_err(|error| DecodeError::new(key, error.valid_up_to(), "is not UTF-8"))
}

/// Reads a struct from the text, with field names in upper or lower case.
pub(super) fn json<'a, T: Deserialize<'a>>(key: &'static str, text: &'a str) -> Result<T, DecodeError> {
    let read: Result<AnyCase<T>, _> = serde_json::from_str(text);
    read.map(|found| found.0).map_err(|error| DecodeError::json(key, text.as_bytes(), &error))
}

/// The pod of a call.
pub(super) fn pod_of(key: &'static str, body: &str, pod: Option<&RawValue>) -> Result<Pod, DecodeError> {
    let object = pod.ok_or_else(|| DecodeError::new(key, 0, "has no Pod"))?.get();
    pod::decode(object.as_bytes()).map_err(|error| DecodeError::new(key, offset(body, object), format!("Pod: {error}")))
}

/// The byte at which `part` begins in `body`.
fn offset(body: &str, part: &str) -> usize {
    part.as_ptr().addr().saturating_sub(body.as_ptr().addr())
}
