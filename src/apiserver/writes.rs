//! Writes to the API server: annotations and labels of the agent's own Node, annotations of GPU pods, events, and
//! evictions.
//!
//! Each write is one call with a time limit. A write to a pod always carries the pod's UID, so that a write for a pod
//! that is gone never changes a later pod of the same name.
//!
//! What must never happen here: a write that no caller requested; a retry (the caller decides whether to write again);
//! a body with more than the keys that change.

use crate::client::{ApiClient, ApiPatch};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use model::id::{NodeName, PodRef, PodUid};
use serde_json::{Map, Value, json};

/// The API server's limit for the length of an event's note.
const MAX_NOTE: usize = 1024;

/// The field manager of the labels that the agent writes.
pub const LABELLER: &str = "gpu-steward-labels";
/// The field manager of the annotations that the agent writes on Nodes.
pub const ANNOTATOR: &str = "gpu-steward-annotations";

/// The field manager of the annotation that the extender writes on Nodes.
pub const ASSUMER: &str = "gpu-steward-extender";

/// Annotations to write: a key without a value is removed.
pub type AnnotationPatch<'a> = &'a [(&'a str, Option<&'a str>)];

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// For information.
    Normal,
    /// A person should look at the event.
    Warning,
}

/// A Kubernetes event about a pod or the Node, which `kubectl describe` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The event's type.
    pub weight: EventType,
    /// The reason, one word in CamelCase.
    pub reason: &'static str,
    /// The action that the event is about, one word in CamelCase.
    pub action: &'static str,
    /// A sentence; cut to the API server's limit.
    pub note: String,
    /// The time: RFC 3339 with exactly six digits of the second, as the API server requires.
    pub at: String,
}

/// Constants of dry-run writes, which the API server checks and does not store.
#[derive(Debug)]
pub struct DryRun;

impl DryRun {
    /// The name of a pod that does not exist.
    pub const NO_POD: &str = "gpu-steward-guard-check";
    const RUN: (&str, &str) = ("dryRun", "All");
}

/// Writes to the API server with the agent's identity.
#[derive(Clone)]
pub struct ApiServer {
    client: ApiClient,
    node: NodeName,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// A writer for `node`.
    #[must_use]
    pub fn new(connection: ApiConnection, node: NodeName) -> ApiServer {
        ApiServer { client: ApiClient::new(connection), node }
    }

    /// Changes annotations of the agent's own Node. The field manager [`ANNOTATOR`] marks them as the agent's.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn annotate_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = ApiPath::node(&self.node).with("fieldManager", ANNOTATOR);
        self.patch_node("annotations", path, &patch).await
    }

    /// Removes these annotations and labels from the Node, unless the Node has changed since this version.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the Node has changed, 404 if it does not exist.
    pub async fn clean_node(&self, (annotations, labels): (&[&str], &[&str]), version: &str) -> Result<(), ApiError> {
        let none =
            |keys: &[&str]| -> Map<String, Value> { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
        let metadata = json!({ "resourceVersion": version, "annotations": none(annotations), "labels": none(labels) });
        let what = "annotations and labels of gpu-steward";
        self.patch_node(what, ApiPath::node(&self.node), &json!({ "metadata": metadata })).await
    }

    /// Changes labels of the agent's own Node. The field manager [`LABELLER`] marks them as the agent's.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn label_node(&self, labels: AnnotationPatch<'_>) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "labels": object(labels) } });
        self.patch_node("labels", ApiPath::node(&self.node).with("fieldManager", LABELLER), &patch).await
    }

    /// Removes an annotation of the agent's own Node if it still has this value.
    ///
    /// # Errors
    /// [`ApiError`]; code 422 if it has another value by now.
    pub async fn release_node(&self, key: &str, value: &str) -> Result<(), ApiError> {
        let at = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        let patch = json!([{ "op": "test", "path": at, "value": value }, { "op": "remove", "path": at }]);
        let what = format!("annotation {key} of node {}", self.node);
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Nodes, what);
        self.client.patch(call, ApiPath::node(&self.node), ApiPatch::Json(&patch)).await
    }

    /// Changes annotations of a pod.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another pod, 404 if there is no pod of that name.
    pub async fn annotate_pod(
        &self,
        uid: &PodUid,
        pod: &PodRef,
        annotations: AnnotationPatch<'_>,
    ) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": object(annotations) } });
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Pods, format!("annotations of pod {pod}"));
        self.client.patch(call, ApiPath::pod(pod, &[]), ApiPatch::Merge(&patch)).await
    }

    /// Tests whether the API server would accept these annotations of the agent's own Node; a dry run, nothing changes.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn try_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = ApiPath::node(&self.node).with(DryRun::RUN.0, DryRun::RUN.1);
        self.patch_node("annotations, as a dry run,", path, &patch).await
    }

    /// Tests whether the API server would accept these annotations of a pod; a dry run, nothing changes.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn try_pod(&self, uid: &PodUid, pod: &PodRef, annotations: AnnotationPatch<'_>) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": object(annotations) } });
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Pods, format!("annotations, as a dry run, of pod {pod}"));
        let path = ApiPath::pod(pod, &[]).with(DryRun::RUN.0, DryRun::RUN.1);
        self.client.patch(call, path, ApiPatch::Merge(&patch)).await
    }

    /// Tests whether the API server would let the agent evict [`DryRun::NO_POD`]; a dry run.
    ///
    /// # Errors
    /// [`ApiError`]; code 404 means that the server would allow it: only the pod does not exist.
    pub async fn try_eviction(&self, namespace: &str) -> Result<(), ApiError> {
        let metadata = json!({ "name": DryRun::NO_POD, "namespace": namespace });
        let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
        let pod = PodRef { namespace: namespace.into(), name: DryRun::NO_POD.into() };
        let what = format!("eviction, as a dry run, of pod {pod}");
        let call = ApiCall::new(ApiVerb::Create, ApiResource::PodEvictions, what);
        let path = ApiPath::pod(&pod, &["eviction"]).with(DryRun::RUN.0, DryRun::RUN.1);
        self.client.create(call, path, &body).await
    }

    /// Evicts a pod. The pod ends within its grace period, unless a disruption budget forbids the eviction.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another pod, 429 if a budget forbids it now.
    pub async fn evict_pod(&self, uid: &PodUid, pod: &PodRef) -> Result<(), ApiError> {
        self.client.evict_pod(uid, pod).await
    }

    /// Writes an event about a pod.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn pod_event(&self, uid: &PodUid, pod: &PodRef, event: &ObjectEvent) -> Result<(), ApiError> {
        let regarding = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": &*pod.namespace, "name": &*pod.name, "uid": uid.as_str(),
        });
        let what = format!("event {} of pod {pod}", event.reason);
        self.event((&pod.namespace, &pod.name), regarding, event, what).await
    }

    /// Writes an event about the agent's own Node, whose UID at the API server is `uid`. Nodes have no namespace; their
    /// events are in `default`, where `kubectl describe node` looks.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn node_event(&self, uid: &str, event: &ObjectEvent) -> Result<(), ApiError> {
        self.event_of_node(uid, &self.node, event).await
    }

    /// Writes an event about any Node, whose UID at the API server is `uid`.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn event_of_node(&self, uid: &str, node: &NodeName, event: &ObjectEvent) -> Result<(), ApiError> {
        let node = node.as_str();
        let regarding = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid });
        self.event(("default", node), regarding, event, format!("event {} of node {node}", event.reason)).await
    }

    async fn event(
        &self,
        (namespace, name): (&str, &str),
        regarding: Value,
        event: &ObjectEvent,
        what: String,
    ) -> Result<(), ApiError> {
        let kind = if event.weight == EventType::Warning { "Warning" } else { "Normal" };
        let note: String = event.note.chars().take(MAX_NOTE).collect();
        let body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "generateName": format!("{name:.200}-"), "namespace": namespace },
            "regarding": regarding, "type": kind, "reason": event.reason, "note": note, "action": event.action,
            "reportingController": "gpu-steward", "reportingInstance": self.node.as_str(), "eventTime": event.at,
        });
        let path = ApiPath::of("/apis/events.k8s.io/v1/namespaces", &[namespace, "events"]);
        self.client.create(ApiCall::new(ApiVerb::Create, ApiResource::Events, what), path, &body).await
    }

    async fn patch_node(&self, what: &str, path: ApiPath, patch: &Value) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Nodes, format!("{what} of node {}", self.node));
        self.client.patch(call, path, ApiPatch::Merge(patch)).await
    }
}

fn object(annotations: AnnotationPatch<'_>) -> Map<String, Value> {
    annotations.iter().map(|(key, value)| ((*key).to_owned(), value.map_or(Value::Null, Value::from))).collect()
}
