//! A pod as `doctor` describes it: its scheduler, its conditions, and the states of its containers. What agents and extenders need of
//! a pod is in [`crate::pod`].
//!
//! Environments, volumes and arguments are not read, so no report can contain a secret of theirs.

use crate::decode_error::DecodeError;
use crate::described_event::cut;
use crate::object_list::ObjectList;
use crate::pod::OrNull;
use model::id::PodRef;
use serde::{Deserialize, Serialize};

/// Maximum number of containers of a pod that are kept: more than a person reads.
const MAX_CONTAINERS: usize = 64;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DescribedPod {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID at the API server.
    pub uid: String,
    /// The service account that the pod runs under.
    pub account: String,
    /// The scheduler that is to place the pod.
    pub scheduler: String,
    /// The node that the pod is bound to; empty without a node.
    pub node: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// Why the pod is in this phase, if the API server says so: `OutOfcpu`, `UnexpectedAdmissionError`.
    pub reason: String,
    /// The reason as a sentence.
    pub message: String,
    /// Whether the pod's deletion was requested.
    pub deleting: bool,
    /// The names of the pod's scheduling gates.
    pub gates: Vec<String>,
    /// What kube-scheduler says about a pod that it has not placed: the condition `PodScheduled` with the status `False`.
    pub unscheduled: Option<(String, String)>,
    /// Whether the kubelet reports the pod as ready.
    pub ready: bool,
    /// The pod's containers, init containers first.
    pub containers: Vec<DescribedContainer>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DescribedContainer {
    /// The name.
    pub name: String,
    /// The image as its author wrote it.
    pub image: String,
    /// The container's named ports.
    pub ports: Vec<(String, u16)>,
    /// How often the container was started again.
    pub restarts: u32,
    /// Whether the container is ready.
    pub ready: bool,
    /// Why the container waits: reason and message.
    pub waits: Option<(String, String)>,
}

impl DescribedPod {
    /// The pod's namespace and name.
    #[must_use]
    pub fn reference(&self) -> PodRef {
        PodRef { namespace: self.namespace.as_str().into(), name: self.name.as_str().into() }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: OrNull<Metadata>,
    spec: OrNull<Spec>,
    status: OrNull<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    service_account_name: OrNull<String>,
    scheduler_name: OrNull<String>,
    node_name: OrNull<String>,
    scheduling_gates: OrNull<Vec<Gate>>,
    init_containers: OrNull<Vec<Container>>,
    containers: OrNull<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Gate {
    name: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    image: OrNull<String>,
    ports: OrNull<Vec<Port>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: OrNull<String>,
    container_port: OrNull<u16>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: OrNull<String>,
    reason: OrNull<String>,
    message: OrNull<String>,
    conditions: OrNull<Vec<Condition>>,
    init_container_statuses: OrNull<Vec<ContainerStatus>>,
    container_statuses: OrNull<Vec<ContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: OrNull<String>,
    message: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    ready: OrNull<bool>,
    restart_count: OrNull<u32>,
    state: OrNull<State>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: OrNull<String>,
    message: OrNull<String>,
}

impl From<Object> for DescribedPod {
    fn from(object: Object) -> DescribedPod {
        let (metadata, spec, status) = (object.metadata.0, object.spec.0, object.status.0);
        let is = |kind: &str, value: &str| {
            status.conditions.0.iter().find(|condition| condition.kind == kind && condition.status == value)
        };
        let statuses: Vec<&ContainerStatus> =
            status.init_container_statuses.0.iter().chain(&status.container_statuses.0).collect();
        let container = |container: &Container| {
            let state = statuses.iter().find(|state| state.name == container.name);
            let waits = state.and_then(|state| state.state.0.waiting.as_ref());
            let port = |port: &Port| (cut(&port.name.0), port.container_port.0);
            DescribedContainer {
                name: cut(&container.name),
                image: cut(&container.image.0),
                ports: container.ports.0.iter().take(MAX_CONTAINERS).map(port).collect(),
                restarts: state.map_or(0, |state| state.restart_count.0),
                ready: state.is_some_and(|state| state.ready.0),
                waits: waits.map(|waits| (cut(&waits.reason.0), cut(&waits.message.0))),
            }
        };
        let containers = spec.init_containers.0.iter().chain(&spec.containers.0).take(MAX_CONTAINERS);
        DescribedPod {
            namespace: cut(&metadata.namespace),
            name: cut(&metadata.name),
            uid: cut(&metadata.uid),
            account: cut(&spec.service_account_name.0),
            scheduler: cut(&spec.scheduler_name.0),
            node: cut(&spec.node_name.0),
            phase: cut(&status.phase.0),
            reason: cut(&status.reason.0),
            message: cut(&status.message.0),
            deleting: metadata.deletion_timestamp.is_some(),
            gates: spec.scheduling_gates.0.iter().take(MAX_CONTAINERS).map(|gate| cut(&gate.name.0)).collect(),
            unscheduled: is("PodScheduled", "False").map(|why| (cut(&why.reason.0), cut(&why.message.0))),
            ready: is("Ready", "True").is_some(),
            containers: containers.map(container).collect(),
        }
    }
}

/// Reads a pod.
///
/// # Errors
/// [`DecodeError`] if the text is not the JSON of a pod.
pub fn decode(json: &[u8]) -> Result<DescribedPod, DecodeError> {
    serde_json::from_slice::<Object>(json)
        .map(DescribedPod::from)
        .map_err(|error| DecodeError::json("pod", json, &error))
}

/// Reads a list of pods.
///
/// # Errors
/// [`DecodeError`] if the text is not a list of pods.
pub fn decode_list(json: &[u8]) -> Result<Vec<DescribedPod>, DecodeError> {
    let list: ObjectList<Object> =
        serde_json::from_slice(json).map_err(|error| DecodeError::json("list of pods", json, &error))?;
    Ok(list.into_parts().0.into_iter().map(DescribedPod::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_pod_has_its_scheduler_its_conditions_and_the_states_of_its_containers() {
        let text = json!({
            "metadata": { "namespace": "ml", "name": "train-0", "uid": "u", "deletionTimestamp": "2026-11-21T10:00:00Z" },
            "spec": {
                "serviceAccountName": "sa", "schedulerName": "gpu-steward", "nodeName": "n1", "schedulingGates": [{ "name": "kueue" }],
                "initContainers": [{ "name": "i", "image": "a:1", "env": [{ "name": "PASSWORD", "value": "hidden" }] }],
                "containers": [{ "name": "c", "ports": [{ "name": "metrics", "containerPort": 9444 }] }],
            },
            "status": {
                "phase": "Pending", "reason": "OutOfcpu", "message": "Pod was rejected",
                "conditions": [
                    { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes" },
                    { "type": "Ready", "status": "True" },
                ],
                "containerStatuses": [{
                    "name": "c", "ready": true, "restartCount": 2,
                    "state": { "waiting": { "reason": "CreateContainerError", "message": "no CDI" } },
                }],
            },
        });
        let pod = decode(text.to_string().as_bytes()).unwrap();
        assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid, pod.deleting), ("ml", "train-0", "u", true));
        assert_eq!((&*pod.account, &*pod.scheduler, &*pod.node), ("sa", "gpu-steward", "n1"));
        let state = (&*pod.phase, &*pod.reason, &*pod.message, pod.ready);
        assert_eq!(state, ("Pending", "OutOfcpu", "Pod was rejected", true));
        assert_eq!(
            (&pod.gates[..], &pod.unscheduled),
            (&["kueue".to_owned()][..], &Some(("Unschedulable".into(), "0/3 nodes".into())))
        );
        assert_eq!(
            (&*pod.containers[0].image, &pod.containers[1].ports[..]),
            ("a:1", &[("metrics".to_owned(), 9444)][..])
        );
        assert_eq!((pod.containers[1].restarts, pod.containers[1].ready), (2, true));
        assert_eq!(pod.containers[1].waits, Some(("CreateContainerError".into(), "no CDI".into())));
        assert!(!format!("{pod:?}").contains("hidden"));
        let list = json!({ "items": [text, {}] });
        assert_eq!(decode_list(list.to_string().as_bytes()).unwrap(), [pod, DescribedPod::default()]);
        assert!(decode(b"7").is_err() && decode_list(b"7").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (decode(&bytes), decode_list(&bytes));
        }

        #[test]
        fn no_similar_text_causes_a_panic(inner in "[\\[\\]{}:,\"a-z0-9. ]{0,120}") {
            let _ = decode(format!(r#"{{"status":{{"conditions":[{inner}],"containerStatuses":[{inner}]}}}}"#).as_bytes());
        }
    }
}
