//! Writes to the API server: annotations and labels of the agent's own Node, annotations of GPU pods, events, and
//! evictions.
//!
//! Each write is one call with a time limit. A write to a pod always carries the pod's UID, so that a write for a pod
//! that is gone never changes a later pod of the same name.
//!
//! What must never happen here: a write that no caller asked for; a retry (the caller decides whether to write again);
//! a body that has more than the keys that change.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use model::id::{NodeName, PodRef, PodUid};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// A write that takes longer is given up. The API server's own limit is a minute, and the kubelet waits for the agent
/// meanwhile.
const WITHIN: Duration = Duration::from_secs(10);
/// Limit of the refusal's text that is kept for the log.
const MAX_REFUSAL: usize = 4 * 1024;
/// The API server's limit of an event's note.
const MAX_NOTE: usize = 1024;

/// The field manager of the labels that the agent writes.
pub const LABELLER: &str = "gpu-steward-labels";
/// The field manager of the annotations that the agent writes on Nodes.
pub const ANNOTATOR: &str = "gpu-steward-annotations";

/// Annotations to write: a key without a value is removed.
pub type AnnotationPatch<'a> = &'a [(&'a str, Option<&'a str>)];

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    /// No answer within the time limit.
    #[error("{what}: no answer within {} s", WITHIN.as_secs())]
    Slow {
        /// The thing to write.
        what: String,
    },
    /// There was no connection, or it broke: the thing to write and the error.
    #[error("{0}: {1}")]
    Broken(String, String),
    /// The API server refused the write.
    #[error("{what}: {code} {text}")]
    Refused {
        /// The thing to write.
        what: String,
        /// HTTP status.
        code: u16,
        /// The API server's message.
        text: String,
    },
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// For information.
    Normal,
    /// A person should look at it.
    Warning,
}

/// A Kubernetes event about a pod or the Node, which `kubectl describe` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Its type.
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
    const RUN: &str = "dryRun=All";
}

/// One call to the API server.
struct Call<'a> {
    method: &'a str,
    path: String,
    content: &'a str,
    /// The thing to write, for the log.
    what: String,
}

/// Writes to the API server with the agent's identity.
#[derive(Clone)]
pub struct ApiServer {
    client: Client,
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
    pub fn new(client: Client, node: NodeName) -> ApiServer {
        ApiServer { client, node }
    }

    /// Changes annotations of the agent's own Node. The field manager [`ANNOTATOR`] marks them as the agent's.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn annotate_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = format!("/api/v1/nodes/{}?fieldManager={ANNOTATOR}", self.node);
        self.patch(path, format!("annotations of node {}", self.node), &patch).await
    }

    /// Removes these annotations and labels from the Node, unless the Node has changed since this version.
    ///
    /// # Errors
    /// [`NotWritten`]; code 409 if the Node has changed, 404 if it does not exist.
    pub async fn clean_node(&self, (annotations, labels): (&[&str], &[&str]), version: &str) -> Result<(), NotWritten> {
        let none =
            |keys: &[&str]| -> Map<String, Value> { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
        let metadata = json!({ "resourceVersion": version, "annotations": none(annotations), "labels": none(labels) });
        let what = format!("annotations and labels of gpu-steward on node {}", self.node);
        self.patch(format!("/api/v1/nodes/{}", self.node), what, &json!({ "metadata": metadata })).await
    }

    /// Changes labels of the agent's own Node. The field manager [`LABELLER`] marks them as the agent's.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn label_node(&self, labels: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "labels": object(labels) } });
        let path = format!("/api/v1/nodes/{}?fieldManager={LABELLER}", self.node);
        self.patch(path, format!("labels of node {}", self.node), &patch).await
    }

    /// Removes an annotation of the agent's own Node if it still has this value.
    ///
    /// # Errors
    /// [`NotWritten`]; code 422 if it has another value by now.
    pub async fn release_node(&self, key: &str, value: &str) -> Result<(), NotWritten> {
        let at = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        let patch = json!([{ "op": "test", "path": at, "value": value }, { "op": "remove", "path": at }]);
        let what = format!("annotation {key} of node {}", self.node);
        let path = format!("/api/v1/nodes/{}", self.node);
        self.send(Call { method: "PATCH", path, content: "application/json-patch+json", what }, &patch).await
    }

    /// Changes annotations of a pod.
    ///
    /// # Errors
    /// [`NotWritten`]; code 409 if the pod of that name is another one by now, 404 if it does not exist.
    pub async fn annotate_pod(
        &self,
        uid: &PodUid,
        pod: &PodRef,
        annotations: AnnotationPatch<'_>,
    ) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": object(annotations) } });
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        self.patch(path, format!("annotations of pod {pod}"), &patch).await
    }

    /// Tries whether the API server would accept these annotations of the agent's own Node; a dry run, nothing changes.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn try_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = format!("/api/v1/nodes/{}?{}", self.node, DryRun::RUN);
        self.patch(path, format!("annotations of node {}, tried only", self.node), &patch).await
    }

    /// Tries whether the API server would accept these annotations of a pod; a dry run, nothing changes.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn try_pod(
        &self,
        uid: &PodUid,
        pod: &PodRef,
        annotations: AnnotationPatch<'_>,
    ) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": object(annotations) } });
        let path = format!("/api/v1/namespaces/{}/pods/{}?{}", pod.namespace, pod.name, DryRun::RUN);
        self.patch(path, format!("annotations of pod {pod}, tried only"), &patch).await
    }

    /// Tries whether the API server would let the agent evict [`DryRun::NO_POD`]; a dry run.
    ///
    /// # Errors
    /// [`NotWritten`]; code 404 if it would, because the pod does not exist.
    pub async fn try_eviction(&self, namespace: &str) -> Result<(), NotWritten> {
        let metadata = json!({ "name": DryRun::NO_POD, "namespace": namespace });
        let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}/eviction?{}", DryRun::NO_POD, DryRun::RUN);
        let what = format!("eviction of pod {}, tried only", DryRun::NO_POD);
        self.send(Call { method: "POST", path, content: "application/json", what }, &body).await
    }

    /// Evicts a pod: it ends with its grace period, unless a disruption budget forbids it.
    ///
    /// # Errors
    /// [`NotWritten`]; code 409 if the pod of that name is another one by now, 429 if a budget forbids it now.
    pub async fn evict_pod(&self, uid: &PodUid, pod: &PodRef) -> Result<(), NotWritten> {
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": &*pod.name, "namespace": &*pod.namespace },
            "deleteOptions": { "preconditions": { "uid": uid.as_str() } },
        });
        let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
        let what = format!("eviction of pod {pod}");
        self.send(Call { method: "POST", path, content: "application/json", what }, &body).await
    }

    /// Writes an event about a pod.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn pod_event(&self, uid: &PodUid, pod: &PodRef, event: &ObjectEvent) -> Result<(), NotWritten> {
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
    /// [`NotWritten`].
    pub async fn node_event(&self, uid: &str, event: &ObjectEvent) -> Result<(), NotWritten> {
        let node = self.node.as_str();
        let regarding = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid });
        self.event(("default", node), regarding, event, format!("event {} of node {node}", event.reason)).await
    }

    async fn event(
        &self,
        (namespace, name): (&str, &str),
        regarding: Value,
        event: &ObjectEvent,
        what: String,
    ) -> Result<(), NotWritten> {
        let kind = if event.weight == EventType::Warning { "Warning" } else { "Normal" };
        let note: String = event.note.chars().take(MAX_NOTE).collect();
        let body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "generateName": format!("{name:.200}-"), "namespace": namespace },
            "regarding": regarding, "type": kind, "reason": event.reason, "note": note, "action": event.action,
            "reportingController": "gpu-steward", "reportingInstance": self.node.as_str(), "eventTime": event.at,
        });
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        self.send(Call { method: "POST", path, content: "application/json", what }, &body).await
    }

    async fn patch(&self, path: String, what: String, patch: &Value) -> Result<(), NotWritten> {
        self.send(Call { method: "PATCH", path, content: "application/merge-patch+json", what }, patch).await
    }

    async fn send(&self, call: Call<'_>, body: &Value) -> Result<(), NotWritten> {
        let Call { method, path, content, what } = call;
        let broken = |error: &dyn std::fmt::Display| NotWritten::Broken(what.clone(), error.to_string());
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(|error| broken(&error))?;
        let ask = async {
            let answer = self.client.send(request).await.map_err(|error| broken(&error))?;
            let code = answer.status().as_u16();
            if answer.status().is_success() {
                return Ok(());
            }
            let body = http_body_util::Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
            let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let text = serde_json::from_slice::<Value>(&bytes)
                .ok()
                .and_then(|status| status["message"].as_str().map(str::to_owned))
                .unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned());
            Err(NotWritten::Refused { what: what.clone(), code, text })
        };
        timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(NotWritten::Slow { what: what.clone() }))
    }
}

fn object(annotations: AnnotationPatch<'_>) -> Map<String, Value> {
    annotations.iter().map(|(key, value)| ((*key).to_owned(), value.map_or(Value::Null, Value::from))).collect()
}
