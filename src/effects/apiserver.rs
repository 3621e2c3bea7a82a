//! What we write at the API server: annotations of our own Node and of pods that we serve, events, and evictions.
//!
//! Each write is one call with a bound on its time. A pod is always named with its UID, so that a write meant for one that
//! is gone never lands on its successor of the same name.
//!
//! What must never happen here: a write that nothing asked for, a retry (who decided on the write decides on the next one),
//! a body that carries more than the keys that change.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use model::id::{NodeName, PodRef, PodUid};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// A write that takes longer is given up; the API server's own limit is a minute, and kubelet waits for us meanwhile.
const WITHIN: Duration = Duration::from_secs(10);
/// Text of a refusal that is kept for the log.
const MAX_REFUSAL: usize = 4 * 1024;
/// The API server's bound of an event's note.
const MAX_NOTE: usize = 1024;

/// The field manager of the labels that we write.
pub const LABELLER: &str = "gpu-steward-labels";
/// The field manager of the annotations that we write on Nodes.
pub const ANNOTATOR: &str = "gpu-steward-annotations";

/// Annotations to write: a key without a value is taken away.
pub type AnnotationPatch<'a> = &'a [(&'a str, Option<&'a str>)];

/// Why a write did not reach the server or was refused there.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    /// No answer in time.
    #[error("{what}: no answer within {} s", WITHIN.as_secs())]
    Slow {
        /// What was to be written.
        what: String,
    },
    /// No connection, or it broke.
    #[error("{0}: {1}")]
    Broken(String, String),
    /// The server says no.
    #[error("{what}: {code} {text}")]
    Refused {
        /// What was to be written.
        what: String,
        /// HTTP status.
        code: u16,
        /// The server's words.
        text: String,
    },
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Worth knowing.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something that happened, told where `kubectl describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// How much it matters.
    pub weight: EventType,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What was being done, in one word in CamelCase.
    pub action: &'static str,
    /// A sentence; cut to what the API server takes.
    pub note: String,
    /// When: RFC 3339 with exactly six digits of the second, as the API server wants it.
    pub at: String,
}

/// Words of writes that the API server judges and does not make.
#[derive(Debug)]
pub struct DryRun;

impl DryRun {
    /// The name of a pod that is not there.
    pub const NO_POD: &str = "gpu-steward-guard-check";
    const RUN: &str = "dryRun=All";
}

/// One call.
struct Call<'a> {
    method: &'a str,
    path: String,
    content: &'a str,
    /// What is written, for the log.
    what: String,
}

/// Writes with one identity.
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
    /// Writes for `node`.
    #[must_use]
    pub fn new(client: Client, node: NodeName) -> ApiServer {
        ApiServer { client, node }
    }

    /// Changes annotations of our own Node, under a name by which they are known as ours later.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn annotate_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = format!("/api/v1/nodes/{}?fieldManager={ANNOTATOR}", self.node);
        self.patch(path, format!("annotations of node {}", self.node), &patch).await
    }

    /// Takes these annotations and labels away from a Node, unless it has changed since it had this version.
    ///
    /// # Errors
    /// [`NotWritten`]; code 409 when it has changed, 404 when there is none.
    pub async fn clean_node(&self, (annotations, labels): (&[&str], &[&str]), version: &str) -> Result<(), NotWritten> {
        let none =
            |keys: &[&str]| -> Map<String, Value> { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
        let metadata = json!({ "resourceVersion": version, "annotations": none(annotations), "labels": none(labels) });
        let what = format!("what gpu-steward wrote on node {}", self.node);
        self.patch(format!("/api/v1/nodes/{}", self.node), what, &json!({ "metadata": metadata })).await
    }

    /// Changes labels of our own Node, under a name of their own, by which they are known as ours later.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn label_node(&self, labels: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "labels": object(labels) } });
        let path = format!("/api/v1/nodes/{}?fieldManager={LABELLER}", self.node);
        self.patch(path, format!("labels of node {}", self.node), &patch).await
    }

    /// Takes away an annotation of our own Node if it still has this value.
    ///
    /// # Errors
    /// [`NotWritten`]; code 422 when it has another value by now.
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
    /// [`NotWritten`]; code 409 when the pod of that name is another by now, 404 when there is none.
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

    /// Whether annotations of our own Node could be changed so; nothing is.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn try_node(&self, annotations: AnnotationPatch<'_>) -> Result<(), NotWritten> {
        let patch = json!({ "metadata": { "annotations": object(annotations) } });
        let path = format!("/api/v1/nodes/{}?{}", self.node, DryRun::RUN);
        self.patch(path, format!("annotations of node {}, tried only", self.node), &patch).await
    }

    /// Whether annotations of a pod could be changed so; nothing is.
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

    /// Whether [`DryRun::NO_POD`] could be evicted.
    ///
    /// # Errors
    /// [`NotWritten`]; code 404 when it could, since it is not there.
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
    /// [`NotWritten`]; code 409 when the pod of that name is another by now, 429 when a budget forbids it now.
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

    /// Tells something about a pod.
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

    /// Tells something about our own Node, whose identity at the API server is `uid`. Nodes stand in no namespace; their
    /// events stand in `default`, where `kubectl describe node` looks.
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
