//! The placement request of a pod: the requests of its containers, which GPUs it accepts, and which it prefers.
//!
//! ```text
//!   nvidia.com/use-gputype: A100,H100      nvidia.com/nouse-gputype: T4        parts of the product name
//!   nvidia.com/use-gpuuuid: GPU-a,GPU-b    nvidia.com/nouse-gpuuuid: GPU-c
//!   nvidia.com/numa-bind: true             nvidia.com/vgpu-mode: hami-core,mig
//!   hami.io/node-scheduler-policy: binpack | spread
//!   hami.io/gpu-scheduler-policy: binpack | spread | topology-aware | mutex | numa, or a list of them
//!   hami.io/device-scoring-weights: slot=1,core=1,memory=2
//!   hami.io/enable-realtime-check: true
//! ```
//!
//! The annotations are HAMi's, and users write them by hand: white space and empty items are skipped, and a blank value is the same
//! as no value. HAMi ignores most values that it does not know. Here they are errors, so that a pod with a typing error does not get
//! a GPU that its owner wanted to avoid.

use crate::annotation_keys::{
    AVOID_TYPES, AVOID_UUIDS, GPU_POLICY, MAX_ANNOTATION, NODE_POLICY, NUMA_BIND, REALTIME_CHECK, ROOM, SCORE_WEIGHTS,
    SHARING_MODES, USE_TYPES, USE_UUIDS,
};
use crate::claim::most_gpus;
use crate::decode_error::{DecodeError, shown};
use crate::gpu_pod;
use crate::pod::MAX_POD;
use crate::resource::RequestRules;
use model::id::GpuUuid;
use model::placement::{
    GpuOrder, GpuPolicy, GpuSelection, NodePolicy, PlacementPreference, PlacementRequest, ScoreWeights,
};
use model::pod::{ANNOTATION_BYTES, MAX_ANNOTATIONS, Pod};
use std::sync::Arc;

/// Maximum number of products in one list: NVIDIA sells fewer for data centres, and the filter compares each product
/// with each kind of GPU of the cluster.
const MAX_TYPES: usize = 64;
/// Maximum number of UUIDs in one list: the GPUs of 32 nodes. The filter looks up each GPU of the cluster in the list.
const MAX_UUIDS: usize = 256;
/// Maximum length of the names of sharing modes: there are three modes, and each comparison with a GPU searches the whole text.
const MAX_MODES_BYTES: usize = 64;

/// Maximum number of containers of a pod that request GPUs. The filter places each container on each node: with 5,000 nodes that
/// takes 4 ms for each container, and its callers wait for each other. Hardly any pod has more than a few.
const MOST_GPU_CONTAINERS: usize = 32;

/// Why a pod cannot be placed on any node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlacementRequest {
    /// A container requests something that no GPU has, or its request is not fully known.
    #[error("the request for GPUs cannot be read: {0}")]
    Amount(String),
    /// An annotation has a value that is not allowed.
    #[error("the request for GPUs cannot be read: annotation {}: {}", .0.key, .0.what)]
    Annotation(#[from] DecodeError),
    /// The pod's claim could be longer than an annotation that readers keep. A pod whose claim cannot be read closes its node to new
    /// claims.
    #[error(
        "the pod cannot be placed: its containers request {gpus} GPUs together, and the annotations of a pod have room for a claim of {most}; split it \
         into several pods"
    )]
    ManyGpus {
        /// Sum of the GPUs that the pod's containers request.
        gpus: u64,
        /// Maximum number of GPUs.
        most: u64,
    },
    /// Finding GPUs for so many containers on each node would take so long that other pods would wait.
    #[error(
        "the pod cannot be placed: {containers} of its containers request GPUs, and more than {MOST_GPU_CONTAINERS} would keep other pods \
         waiting; split it into several pods"
    )]
    ManyContainers {
        /// Number of the pod's containers that request GPUs.
        containers: usize,
    },
    /// The pod's annotations have no room for its claim and for later writes: the API server would refuse every write to the bound
    /// pod.
    #[error(
        "the pod cannot be placed: its annotations have {bytes} bytes, and more than {most} leave no room for its claim: \
         Kubernetes allows {MAX_ANNOTATION} bytes in all; make them shorter"
    )]
    NoRoom {
        /// Bytes of the pod's annotations.
        bytes: u32,
        /// Maximum number of bytes.
        most: usize,
    },
    /// The pod's object has no room for later writes.
    #[error(
        "the pod cannot be placed: it has {} KiB and its status may need {} KiB more, and with more than {} KiB together its \
         status may not fit into what etcd stores; use fewer containers, and shorter texts, image names, mount paths, and variables \
         in subPathExpr and commands",
        .bytes >> 10, .status_bytes >> 10, MAX_POD >> 10
    )]
    LargeObject {
        /// Bytes of the object.
        bytes: u32,
        /// Bytes that the pod's status may need.
        status_bytes: u32,
    },
    /// Some annotations were not read, and may contain a condition of the pod.
    #[error(
        "the request for GPUs cannot be read: {left_out} of its annotations are not read: together they are longer than \
         {MAX_ANNOTATIONS} bytes, where each counts {ANNOTATION_BYTES} bytes more"
    )]
    TooLarge {
        /// Number of the annotations that were not read.
        left_out: u32,
    },
}

/// Why a pod cannot be placed, if its object has no room for later writes. kube-scheduler leaves `managedFields` out of its calls, so
/// only a pod that was read from the API server shows its whole size.
#[must_use]
pub fn too_large(pod: &Pod) -> Option<BadPlacementRequest> {
    let (bytes, status_bytes) = (pod.bytes, pod.status_bytes);
    let together = usize::try_from(bytes.saturating_add(status_bytes)).unwrap_or(usize::MAX);
    (together > MAX_POD).then_some(BadPlacementRequest::LargeObject { bytes, status_bytes })
}

/// The placement request of a pod; `None` for a pod that requests no GPU.
///
/// # Errors
/// [`BadPlacementRequest`].
pub fn of(pod: &Pod, rules: &RequestRules) -> Result<Option<PlacementRequest>, BadPlacementRequest> {
    let (requests, fault) = gpu_pod::requests(pod, rules);
    if let Some(why) = fault {
        return Err(BadPlacementRequest::Amount(why));
    }
    if requests.iter().all(|request| request.slots == 0) {
        return Ok(None);
    }
    let gpus: u64 = requests.iter().map(|request| u64::from(request.slots)).sum();
    let most = most_gpus(requests.len());
    if gpus > most {
        return Err(BadPlacementRequest::ManyGpus { gpus, most });
    }
    let containers = requests.iter().filter(|request| request.slots > 0).count();
    if containers > MOST_GPU_CONTAINERS {
        return Err(BadPlacementRequest::ManyContainers { containers });
    }
    if let Some(why) = too_large(pod) {
        return Err(why);
    }
    let most = MAX_ANNOTATION - ROOM;
    if usize::try_from(pod.annotation_bytes).unwrap_or(usize::MAX) > most {
        return Err(BadPlacementRequest::NoRoom { bytes: pod.annotation_bytes, most });
    }
    // System-owned annotations are not conditions of the pod's owner.
    let left_out = pod.annotations_left_out.saturating_sub(pod.system_keys_left_out);
    if left_out > 0 {
        return Err(BadPlacementRequest::TooLarge { left_out });
    }
    Ok(Some(PlacementRequest {
        uid: pod.uid.clone(),
        pod: pod.name.clone(),
        version: pod.version,
        created: pod.created_at,
        requests,
        selection: selection(pod)?,
        preference: preference(pod)?,
        priority: pod.priority.unwrap_or_default(),
        gang: pod.gang.as_ref().map(|gang| format!("{}/{gang}", pod.name.namespace).into()),
        realtime: match value(pod, REALTIME_CHECK) {
            Some(text) => Some(flag(REALTIME_CHECK, text)?),
            None => None,
        },
        prefers_nodes: pod.prefers_nodes,
    }))
}

fn selection(pod: &Pod) -> Result<GpuSelection, DecodeError> {
    Ok(GpuSelection {
        use_types: types(pod, USE_TYPES)?,
        avoid_types: types(pod, AVOID_TYPES)?,
        use_uuids: uuids(pod, USE_UUIDS)?,
        avoid_uuids: uuids(pod, AVOID_UUIDS)?,
        modes: value(pod, SHARING_MODES).map(modes).transpose()?,
        numa_bind: match value(pod, NUMA_BIND) {
            Some(text) => flag(NUMA_BIND, text)?,
            None => false,
        },
    })
}

/// Names of sharing modes, which are looked for in the whole text.
fn modes(text: &str) -> Result<Arc<str>, DecodeError> {
    let text = text.trim();
    if text.len() > MAX_MODES_BYTES {
        return Err(fault(
            SHARING_MODES,
            format!("longer than {MAX_MODES_BYTES} bytes; write modes such as hami-core,mig"),
        ));
    }
    Ok(text.into())
}

fn preference(pod: &Pod) -> Result<PlacementPreference, DecodeError> {
    Ok(PlacementPreference {
        node_policy: value(pod, NODE_POLICY).map(node_policy).transpose()?,
        gpu_policy: value(pod, GPU_POLICY).map(gpu_policy).transpose()?,
        weights: value(pod, SCORE_WEIGHTS).map(weights).transpose()?,
    })
}

// === values ===

/// The value of an annotation, unless it is blank.
fn value<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.annotation(key).filter(|text| !text.trim().is_empty())
}

/// The error about a value that a person wrote. The text quotes the word, which says more than its place.
fn fault(key: &'static str, what: String) -> DecodeError {
    DecodeError::new(key, 0, what)
}

/// The items of a list that are not empty.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// The words of a list, in lower case and in order, without duplicates.
fn types(pod: &Pod, key: &'static str) -> Result<Vec<Arc<str>>, DecodeError> {
    list(pod, key, ("products", MAX_TYPES), |item| Ok(item.to_lowercase().into()))
}

fn uuids(pod: &Pod, key: &'static str) -> Result<Vec<GpuUuid>, DecodeError> {
    list(pod, key, ("UUIDs", MAX_UUIDS), |item| {
        let write = "write UUIDs as nvidia-smi -L lists them, separated by commas";
        GpuUuid::parse(item).map_err(|error| fault(key, format!("{error}; {write}")))
    })
}

fn list<T: Ord>(
    pod: &Pod,
    key: &'static str,
    (kind, most): (&str, usize),
    read: impl Fn(&str) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut found = Vec::new();
    for item in items(value(pod, key).unwrap_or_default()) {
        if found.len() == most {
            return Err(DecodeError::too_many(key, 0, kind, most));
        }
        found.push(read(item)?);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// A truth value as Go's `strconv.ParseBool` reads it.
fn flag(key: &'static str, text: &str) -> Result<bool, DecodeError> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(fault(key, format!("write true or false instead of {}", shown(text)))),
    }
}

/// Reads `binpack` or `spread`.
///
/// # Errors
/// [`DecodeError`] for any other word.
pub fn node_policy(text: &str) -> Result<NodePolicy, DecodeError> {
    match text.trim() {
        "binpack" => Ok(NodePolicy::Binpack),
        "spread" => Ok(NodePolicy::Spread),
        _ => Err(fault(NODE_POLICY, format!("write binpack or spread instead of {}", shown(text)))),
    }
}

/// Reads one word or a list of words. Without `binpack`, `spread` and `numa`, the emptiest GPU comes first.
///
/// # Errors
/// [`DecodeError`] for an unknown word.
pub fn gpu_policy(text: &str) -> Result<GpuPolicy, DecodeError> {
    let mut policy = GpuPolicy { order: Vec::new(), idle_only: false, topology: false };
    for word in items(text) {
        let key = match word {
            "binpack" => GpuOrder::Binpack,
            "spread" => GpuOrder::Spread,
            "numa" => GpuOrder::Numa,
            "mutex" => {
                policy.idle_only = true;
                continue;
            }
            "topology-aware" => {
                policy.topology = true;
                continue;
            }
            other => {
                let allowed = "binpack, spread, topology-aware, mutex, numa";
                return Err(fault(GPU_POLICY, format!("write one or more of {allowed} instead of {}", shown(other))));
            }
        };
        if !policy.order.contains(&key) {
            policy.order.push(key);
        }
    }
    if policy.order.is_empty() {
        policy.order.push(GpuOrder::Spread);
    }
    Ok(policy)
}

/// Reads `slot=1,core=1,memory=2`, in any order.
///
/// # Errors
/// [`DecodeError`] unless each weight is there once and is a whole number, and one of them is above 0.
pub fn weights(text: &str) -> Result<ScoreWeights, DecodeError> {
    let fault = |what: String| {
        let write = "write slot=N,core=N,memory=N with whole numbers, at least one of them above 0";
        fault(SCORE_WEIGHTS, format!("{what}; {write}"))
    };
    let (mut slots, mut cores, mut memory) = (None, None, None);
    for item in items(text) {
        let (name, number) = item.split_once('=').unwrap_or((item, ""));
        let weight = match name.trim() {
            "slot" => &mut slots,
            "core" => &mut cores,
            "memory" => &mut memory,
            other => return Err(fault(format!("{} is not slot, core or memory", shown(other)))),
        };
        // A sign is not read: HAMi's form has digits only.
        let digits = number.trim();
        let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let number: Option<u32> = number.and_then(|digits| digits.parse().ok());
        let number = number.ok_or_else(|| fault(format!("{} is not a whole number", shown(digits))))?;
        if weight.replace(number).is_some() {
            return Err(fault(format!("{} appears twice", shown(name))));
        }
    }
    match (slots, cores, memory) {
        (Some(0), Some(0), Some(0)) => Err(fault("all weights are 0".into())),
        (Some(slots), Some(cores), Some(memory)) => Ok(ScoreWeights { slots, cores, memory }),
        _ => Err(fault(format!("{} does not have all three weights", shown(text)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::decode;
    use model::request::{ContainerRole, MemoryRequest};
    use model::unit::Mib;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

    fn pod(annotations: &Value, limits: &Value) -> Pod {
        let text = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": UID, "annotations": annotations },
            "spec": {
                "initContainers": [{ "name": "warm" }],
                "containers": [{ "name": "main", "resources": { "limits": limits } }],
            },
        });
        decode(text.to_string().as_bytes()).unwrap()
    }

    fn with(annotations: &Value) -> Result<PlacementRequest, BadPlacementRequest> {
        of(&pod(annotations, &json!({ "nvidia.com/gpu": "1" })), &RequestRules::default()).map(Option::unwrap)
    }

    fn one(key: &str, value: &str) -> Result<PlacementRequest, BadPlacementRequest> {
        with(&json!({ key: value }))
    }

    fn words(list: &[Arc<str>]) -> Vec<&str> {
        list.iter().map(AsRef::as_ref).collect()
    }

    #[test]
    fn a_long_text_of_sharing_modes_is_refused() {
        assert!(one(SHARING_MODES, &"m".repeat(MAX_MODES_BYTES)).is_ok());
        let why = one(SHARING_MODES, &"m".repeat(MAX_MODES_BYTES + 1)).unwrap_err().to_string();
        assert!(why.contains("longer than 64 bytes"), "{why}");
    }

    /// The leader reads a pod before it is bound, the agent after: both must agree.
    #[test]
    fn a_request_and_its_bound_pod_agree_on_whether_it_chooses_gpus() {
        let node = model::id::NodeName::parse("node-1").unwrap();
        for (key, value, chooses) in [
            (USE_TYPES, "A100", true),
            (AVOID_TYPES, "T4", true),
            (USE_UUIDS, "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11", true),
            (AVOID_UUIDS, "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11", true),
            (NUMA_BIND, "true", true),
            (SHARING_MODES, "mig", true),
            (GPU_POLICY, "mutex", true),
            (GPU_POLICY, "binpack", false),
            (NODE_POLICY, "spread", false),
        ] {
            let pod = pod(&json!({ key: value }), &json!({ "nvidia.com/gpu": "1" }));
            let bound = gpu_pod::of(&pod, &RequestRules::default(), &node).unwrap();
            assert_eq!(
                (one(key, value).unwrap().chooses_gpus(), bound.chooses_gpus),
                (chooses, chooses),
                "{key} {value}"
            );
        }
    }

    #[test]
    fn a_pod_without_annotations_accepts_every_gpu_and_prefers_none() {
        let limits = json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30" });
        let request = of(&pod(&json!({}), &limits), &RequestRules::default()).unwrap().unwrap();
        assert_eq!((request.uid.as_str(), request.pod.to_string()), (UID, "ml/train".into()));
        assert_eq!(request.selection, GpuSelection::default());
        assert_eq!(request.preference, PlacementPreference::default());
        let shapes: Vec<_> =
            request.requests.iter().map(|request| (&*request.container, request.role, request.slots)).collect();
        assert_eq!(shapes, [("warm", ContainerRole::Init, 0), ("main", ContainerRole::App, 2)]);
        assert_eq!(request.requests[1].memory, Some(MemoryRequest::Amount(Mib(3000))));
    }

    #[test]
    fn a_pod_that_asks_for_no_gpu_has_no_placement_request() {
        let annotations = json!({ NODE_POLICY: "nonsense", "nvidia.com/x": "y".repeat(20 << 10) });
        for limits in [json!({}), json!({ "cpu": "1", "nvidia.com/gpu": "0", "nvidia.com/gpumem": "1k" })] {
            assert_eq!(of(&pod(&annotations, &limits), &RequestRules::default()), Ok(None));
        }
    }

    #[test]
    fn a_request_that_is_not_fully_known_is_refused() {
        let refused = |annotations, limits| of(&pod(&annotations, &limits), &RequestRules::default()).unwrap_err();
        let why = refused(json!({}), json!({ "nvidia.com/gpu": "1.5" })).to_string();
        assert_eq!(
            why,
            "the request for GPUs cannot be read: container main: nvidia.com/gpu counts GPUs: write a whole number from 0 to \
             2147483647 instead of \"1.5\""
        );
        let long = json!({ "nvidia.com/nouse-gputype": "x".repeat(20 << 10) });
        let why = refused(long, json!({ "nvidia.com/gpu": "1" }));
        assert_eq!(why, BadPlacementRequest::TooLarge { left_out: 1 });
        let words = "the request for GPUs cannot be read: 1 of its annotations are not read: together they are longer than \
                     16384 bytes, where each counts 64 bytes more";
        assert_eq!(why.to_string(), words);
        // A claim from an earlier attempt is not a condition of the pod's owner.
        assert!(with(&json!({ "hami.io/vgpu-devices-allocated": "x".repeat(20 << 10) })).is_ok());
    }

    /// Claims of such pods were once written, and readers dropped them.
    #[test]
    fn a_pod_whose_claim_could_be_too_long_is_refused() {
        let asks = |gpus: u32| {
            let limits = json!({ "nvidia.com/gpu": gpus.to_string(), "nvidia.com/gpumem": "1" });
            of(&pod(&json!({}), &limits), &RequestRules::default())
        };
        assert_eq!(asks(98).unwrap().unwrap().requests[1].slots, 98);
        let why = asks(99).unwrap_err();
        assert_eq!(why, BadPlacementRequest::ManyGpus { gpus: 99, most: 98 });
        let words = "the pod cannot be placed: its containers request 99 GPUs together, and the annotations of a pod have room \
                     for a claim of 98; split it into several pods";
        assert_eq!(why.to_string(), words);
        assert_eq!(asks(u32::MAX >> 1).unwrap_err(), BadPlacementRequest::ManyGpus { gpus: 2_147_483_647, most: 98 });
        let refused = of(&with_init_containers(40, "8"), &RequestRules::default()).unwrap_err();
        assert_eq!(refused, BadPlacementRequest::ManyGpus { gpus: 320, most: 97 });
    }

    /// Its init containers run one after the other, so any number of them finds room on each node.
    #[test]
    fn a_pod_with_too_many_containers_that_request_gpus_is_refused() {
        let asks = |containers| of(&with_init_containers(containers, "1"), &RequestRules::default());
        assert_eq!(asks(32).unwrap().unwrap().requests.len(), 32);
        let why = asks(33).unwrap_err();
        assert_eq!(why, BadPlacementRequest::ManyContainers { containers: 33 });
        let words = "the pod cannot be placed: 33 of its containers request GPUs, and more than 32 would keep other pods waiting; \
                     split it into several pods";
        assert_eq!(why.to_string(), words);
        let without = of(&with_init_containers(60, "0"), &RequestRules::default());
        assert_eq!(without, Ok(None), "the other containers do not count");
    }

    /// A pod with this number of init containers, each with this number of GPUs.
    fn with_init_containers(containers: usize, gpus: &str) -> Pod {
        let limits = json!({ "nvidia.com/gpu": gpus, "nvidia.com/gpumem": "1" });
        let init = |n: usize| json!({ "name": format!("c{n}"), "resources": { "limits": limits } });
        let init: Vec<Value> = (0..containers).map(init).collect();
        let text =
            json!({ "metadata": { "name": "a", "namespace": "b", "uid": UID }, "spec": { "initContainers": init } });
        decode(text.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn lists_of_products_and_uuids_are_read_without_white_space_and_empty_items() {
        let selection = with(&json!({
            USE_TYPES: " H100 , a100,,A100,", AVOID_TYPES: "T4", USE_UUIDS: "GPU-b, GPU-a", AVOID_UUIDS: "MIG-c,",
            SHARING_MODES: " hami-core,mig ", NUMA_BIND: " True ",
        }))
        .unwrap()
        .selection;
        assert_eq!((words(&selection.use_types), words(&selection.avoid_types)), (vec!["a100", "h100"], vec!["t4"]));
        let uuids = |list: &[GpuUuid]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (uuids(&selection.use_uuids), uuids(&selection.avoid_uuids)),
            (vec!["GPU-a".into(), "GPU-b".into()], vec!["MIG-c".into()])
        );
        assert_eq!((selection.modes.as_deref(), selection.numa_bind), (Some("hami-core,mig"), true));
        for key in [
            USE_TYPES,
            AVOID_TYPES,
            USE_UUIDS,
            AVOID_UUIDS,
            SHARING_MODES,
            NUMA_BIND,
            NODE_POLICY,
            GPU_POLICY,
            SCORE_WEIGHTS,
            REALTIME_CHECK,
        ] {
            let request = one(key, " ").unwrap();
            let none = (request.selection, request.preference, request.realtime);
            assert_eq!(none, (GpuSelection::default(), PlacementPreference::default(), None), "{key}");
        }
    }

    #[test]
    fn truth_values_are_read_as_go_reads_them() {
        for (text, expected) in [("1", true), ("t", true), ("TRUE", true), ("0", false), ("F", false), ("False", false)]
        {
            assert_eq!(one(NUMA_BIND, text).unwrap().selection.numa_bind, expected, "{text}");
            assert_eq!(one(REALTIME_CHECK, text).unwrap().realtime, Some(expected), "{text}");
        }
    }

    #[test]
    fn policies_are_one_word_or_a_list() {
        use GpuOrder::{Binpack, Numa, Spread};
        for (text, order, idle_only, topology) in [
            ("binpack", vec![Binpack], false, false),
            ("spread", vec![Spread], false, false),
            ("numa", vec![Numa], false, false),
            ("mutex", vec![Spread], true, false),
            ("topology-aware", vec![Spread], false, true),
            ("numa, binpack,numa", vec![Numa, Binpack], false, false),
            ("mutex,topology-aware,binpack,", vec![Binpack], true, true),
            (",", vec![Spread], false, false),
        ] {
            let policy = GpuPolicy { order, idle_only, topology };
            assert_eq!(one(GPU_POLICY, text).unwrap().preference.gpu_policy, Some(policy), "{text}");
        }
        assert_eq!(one(NODE_POLICY, "binpack").unwrap().preference.node_policy, Some(NodePolicy::Binpack));
        assert_eq!(one(NODE_POLICY, " spread").unwrap().preference.node_policy, Some(NodePolicy::Spread));
    }

    #[test]
    fn weights_are_read_in_any_order() {
        for text in ["slot=0,core=2,memory=3", " memory = 3 , slot=0,core=2,"] {
            let expected = ScoreWeights { slots: 0, cores: 2, memory: 3 };
            assert_eq!(one(SCORE_WEIGHTS, text).unwrap().preference.weights, Some(expected), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_not_allowed_is_named_with_what_is_allowed() {
        let all = "write slot=N,core=N,memory=N with whole numbers, at least one of them above 0";
        let uuids = "write UUIDs as nvidia-smi -L lists them, separated by commas";
        for (key, value, what) in [
            (USE_UUIDS, "GPU-a, GPU b", format!("not a GPU UUID: \"GPU b\"; {uuids}")),
            (NUMA_BIND, "yes", "write true or false instead of \"yes\"".into()),
            (REALTIME_CHECK, "strict", "write true or false instead of \"strict\"".into()),
            (NODE_POLICY, "pack", "write binpack or spread instead of \"pack\"".into()),
            (NODE_POLICY, "binpack,spread", "write binpack or spread instead of \"binpack,spread\"".into()),
            (
                GPU_POLICY,
                "numa,Spread",
                "write one or more of binpack, spread, topology-aware, mutex, numa instead of \"Spread\"".into(),
            ),
            (SCORE_WEIGHTS, "slot=1,core=1", format!("\"slot=1,core=1\" does not have all three weights; {all}")),
            (SCORE_WEIGHTS, "slot=0,core=0,memory=0", format!("all weights are 0; {all}")),
            (SCORE_WEIGHTS, "slot=1,core=-1,memory=1", format!("\"-1\" is not a whole number; {all}")),
            (SCORE_WEIGHTS, "slot=1,core=+1,memory=1", format!("\"+1\" is not a whole number; {all}")),
            (SCORE_WEIGHTS, "slot=1,core,memory=1", format!("\"\" is not a whole number; {all}")),
            (SCORE_WEIGHTS, "slot=1,slot=1,core=1", format!("\"slot\" appears twice; {all}")),
            (SCORE_WEIGHTS, "slot=1,disk=1", format!("\"disk\" is not slot, core or memory; {all}")),
            (SCORE_WEIGHTS, "slot=4294967296,core=1,memory=1", format!("\"4294967296\" is not a whole number; {all}")),
        ] {
            let why = one(key, value).unwrap_err().to_string();
            assert_eq!(why, format!("the request for GPUs cannot be read: annotation {key}: {what}"));
        }
    }

    #[test]
    fn lists_are_bounded() {
        for (key, item, most, kind) in
            [(USE_TYPES, "a", MAX_TYPES, "products"), (AVOID_UUIDS, "GPU-a", MAX_UUIDS, "UUIDs")]
        {
            assert!(one(key, &vec![item; most].join(",")).is_ok());
            let why = one(key, &vec![item; most + 1].join(",")).unwrap_err().to_string();
            assert!(why.ends_with(&format!("has more than {most} {kind}")), "{why}");
        }
    }

    #[test]
    fn a_pod_is_placed_only_if_its_annotations_have_room_for_its_claim() {
        // `é` and `\n` count as many bytes as in Go, whatever JSON makes of them.
        let sized = |bytes: usize| with(&json!({ "a/b": "é\n".repeat(100), "c": "x".repeat(bytes - 300 - 4) }));
        assert!(sized(MAX_ANNOTATION - ROOM).is_ok());
        let why = sized(MAX_ANNOTATION - ROOM + 1).unwrap_err();
        assert_eq!(why, BadPlacementRequest::NoRoom { bytes: 245_761, most: 245_760 });
        assert!(why.to_string().contains("its annotations have 245761 bytes, and more than 245760 leave no room"));
        let together = |bytes: u32, status_bytes: u32| {
            let large = Pod { bytes, status_bytes, ..pod(&json!({}), &json!({ "nvidia.com/gpu": "1" })) };
            of(&large, &RequestRules::default())
        };
        assert!(together(948_576, 100_000).is_ok());
        let why = together(948_577, 100_000).unwrap_err();
        let words = "it has 926 KiB and its status may need 97 KiB more, and with more than 1024 KiB together";
        assert!(why.to_string().contains(words), "{why}");
        assert!(together(u32::MAX, u32::MAX).is_err());
        let plain = pod(&json!({ "a": "x".repeat(262_100) }), &json!({ "cpu": "1" }));
        assert_eq!(of(&plain, &RequestRules::default()), Ok(None), "nothing is written on a pod without GPUs");
    }

    proptest! {
        #[test]
        fn no_value_panics(values in prop::collection::vec("\\PC{0,40}", 10), gpus in "\\PC{0,8}") {
            let keys = [USE_TYPES, AVOID_TYPES, USE_UUIDS, AVOID_UUIDS, SHARING_MODES, NUMA_BIND, NODE_POLICY, GPU_POLICY, SCORE_WEIGHTS, REALTIME_CHECK];
            let annotations: serde_json::Map<String, Value> =
                keys.iter().zip(&values).map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
            let _ = with(&annotations.clone().into());
            let _ = of(&pod(&annotations.into(), &json!({ "nvidia.com/gpu": gpus })), &RequestRules::default());
        }

        #[test]
        fn no_value_near_an_allowed_one_panics(
            policy in "(binpack|spread|numa|mutex|topology-aware|[, ]){0,6}",
            weights in "((slot|core|memory|x)?=?[0-9+-]{0,11}[, ]?){0,5}",
        ) {
            if let Ok(request) = with(&json!({ GPU_POLICY: policy, SCORE_WEIGHTS: weights })) {
                let PlacementPreference { gpu_policy, weights, .. } = request.preference;
                prop_assert!(gpu_policy.is_none_or(|policy| (1..=3).contains(&policy.order.len())));
                prop_assert!(weights.is_none_or(|weights| weights.slots.max(weights.cores).max(weights.memory) > 0));
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            types in prop::collection::btree_set("[a-z0-9 -]{0,3}[a-z0-9]{1,4}", 0..5),
            uuids in prop::collection::btree_set("GPU-[0-9a-f]{1,8}", 0..5),
            slots: u32, cores: u32, memory in 1..u32::MAX, spread: bool,
        ) {
            let types: std::collections::BTreeSet<&str> = types.iter().map(|word| word.trim()).collect();
            let join = |words: Vec<&str>| words.join(" ,");
            let request = with(&json!({
                AVOID_TYPES: join(types.iter().copied().collect()), USE_UUIDS: join(uuids.iter().map(String::as_str).collect()),
                SCORE_WEIGHTS: format!("core={cores},memory={memory},slot={slots}"),
                NODE_POLICY: if spread { "spread" } else { "binpack" },
            }))
            .unwrap();
            prop_assert_eq!(words(&request.selection.avoid_types), types.into_iter().collect::<Vec<_>>());
            let found: Vec<&str> = request.selection.use_uuids.iter().map(GpuUuid::as_str).collect();
            prop_assert_eq!(found, uuids.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(request.preference.weights, Some(ScoreWeights { slots, cores, memory }));
            prop_assert_eq!(request.preference.node_policy == Some(NodePolicy::Spread), spread);
        }
    }
}
