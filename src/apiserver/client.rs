//! Calls to the API server, each with a limit in time and size.
//!
//! ```text
//!   get                    one object, from a cache or from etcd
//!   list, watch            a kind of objects, by page; the changes after a version
//!   patch, create, delete  writes
//!   bind, evict            writes to a pod's subresources
//!   pod_log                the end of a container's log
//! ```
//!
//! A call is never repeated here: the caller decides whether to try again. After a call without an answer, the next call gets a
//! new connection ([`ApiConnection`]).

use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::{NodeName, ObjectUid, PodRef, PodUid};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use wire::watch::{ApiRefusal, MAX_LINE, refusal};

/// Time limit for a call about one object: a server that takes longer counts as hanging. The API server's own limit is a minute,
/// and during the call the kubelet waits for the agent.
const WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the start of a list or watch: with ten thousand nodes, a list from the server's cache takes seconds.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// Time limit for a whole page of a list: enough for the largest page at 3 Mbit/s.
const PAGE_WITHIN: Duration = Duration::from_secs(120);
/// Maximum size of an answer about one object, in bytes: the same as in a watch.
const MAX_OBJECT: usize = MAX_LINE;
/// Maximum size of a page of a list, in bytes: 500 pods of twice their usual size. The largest object fits, so every list can be
/// read to its end, whatever the size of its objects. Two pages may be in memory at once.
pub(crate) const MAX_PAGE: usize = 16 << 20;
/// Maximum size of a list in one piece, in bytes: the 1,000 pods of a full node with twice their usual size.
const MAX_LIST: usize = 32 << 20;
/// Maximum size of a refusal's text that is read, in bytes.
const MAX_REFUSAL: usize = 64 << 10;

/// How old the answer to a read may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAge {
    /// As old as the answering server's cache. A list from etcd would make the server read every object of the cluster.
    Any,
    /// At least as new as this version. A server whose cache does not reach it within seconds answers 504.
    NotOlderThan(String),
    /// The state in etcd now, agreed by a quorum.
    Newest,
    /// The next page of an earlier list.
    Continued(String),
}

/// The form of the objects in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectForm {
    /// All fields.
    Whole,
    /// The metadata only: a Node's status lists all images of the node.
    Metadata,
}

/// The objects of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSelection {
    /// The kind.
    pub resource: ApiResource,
    /// The namespace; `None` for all namespaces, and for objects without a namespace.
    pub namespace: Option<String>,
    /// A field selector; `None` for all objects.
    pub fields: Option<String>,
    /// A label selector; `None` for all objects.
    pub labels: Option<String>,
    /// The form.
    pub form: ObjectForm,
}

/// The kind of a patch and its content.
#[derive(Clone, Debug)]
pub enum ApiPatch<'a> {
    /// A merge patch (RFC 7396).
    Merge(&'a Value),
    /// A JSON patch (RFC 6902).
    Json(&'a Value),
}

/// An answer whose body is still being received.
#[derive(Debug)]
pub struct ApiAnswer {
    call: ApiCall,
    server: Arc<str>,
    /// When the server answered, by its own clock.
    date: Option<String>,
    body: Body,
}

/// A client of the API server. Clones are cheap and share its connections.
#[derive(Clone, Debug)]
pub struct ApiClient {
    connection: ApiConnection,
}

/// The content of a request.
struct Content<'a> {
    method: http::Method,
    accept: &'static str,
    body: Option<(&'static str, &'a Value)>,
}

// === impl ApiClient ===

impl ApiClient {
    /// A client that uses this connection.
    #[must_use]
    pub fn new(connection: ApiConnection) -> ApiClient {
        ApiClient { connection }
    }

    /// Its connection.
    #[must_use]
    pub fn connection(&self) -> &ApiConnection {
        &self.connection
    }

    /// Reads a pod.
    ///
    /// # Errors
    /// [`ApiError`]; code 404 if no pod has this name.
    pub async fn get_pod(&self, pod: &PodRef, age: &ReadAge) -> Result<Vec<u8>, ApiError> {
        let call = ApiCall::new(ApiVerb::Get, ApiResource::Pods, format!("pod {pod}"));
        self.get(call, ApiPath::pod(pod, &[]), age, ObjectForm::Whole).await
    }

    /// Reads a Node.
    ///
    /// # Errors
    /// [`ApiError`]; code 404 if no Node has this name.
    pub async fn get_node(&self, node: &NodeName, age: &ReadAge, form: ObjectForm) -> Result<Vec<u8>, ApiError> {
        let call = ApiCall::new(ApiVerb::Get, ApiResource::Nodes, format!("node {node}"));
        self.get(call, ApiPath::node(node), age, form).await
    }

    /// Reads the keys with which the API server signs the tokens of service accounts (JWKS).
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn token_keys(&self) -> Result<Vec<u8>, ApiError> {
        // The server answers 406 to a client that accepts JSON only.
        self.get_path("keys of tokens", "/openid/v1/jwks", "application/jwk-set+json, application/json").await
    }

    /// Reads the configuration of the issuer of these tokens.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn token_issuer(&self) -> Result<Vec<u8>, ApiError> {
        self.get_path("issuer of tokens", "/.well-known/openid-configuration", "application/json").await
    }

    /// The date of an answer of the API server, as its header has it; every identity may ask for the version.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn date(&self) -> Result<String, ApiError> {
        let call = ApiCall::new(ApiVerb::Get, ApiResource::Version, "date of an answer");
        let content = Content { method: http::Method::GET, accept: "application/json", body: None };
        let answer = self
            .within(WITHIN, call.clone(), self.send(call.clone(), ApiPath::of("/version", &[]), content, WITHIN))
            .await?;
        answer.date.ok_or_else(|| self.error(call, ApiFailure::Unreadable("the answer has no date".to_owned())))
    }

    async fn get_path(&self, what: &'static str, path: &str, accept: &'static str) -> Result<Vec<u8>, ApiError> {
        let content = Content { method: http::Method::GET, accept, body: None };
        self.answered(ApiCall::new(ApiVerb::Get, ApiResource::TokenKeys, what), ApiPath::of(path, &[]), content).await
    }

    pub(crate) async fn get(
        &self,
        call: ApiCall,
        path: ApiPath,
        age: &ReadAge,
        form: ObjectForm,
    ) -> Result<Vec<u8>, ApiError> {
        let content = Content { method: http::Method::GET, accept: one(form), body: None };
        self.answered(call, aged(path, age), content).await
    }

    /// Reads one page of a list, of at most `limit` objects.
    ///
    /// # Errors
    /// [`ApiError`]; code 504 if the server's cache does not reach the requested version, 410 if a continued list has
    /// expired. A page that is too large can be read again with a smaller limit.
    pub async fn list(&self, of: &ApiSelection, age: &ReadAge, limit: Option<u32>) -> Result<Vec<u8>, ApiError> {
        let mut path = aged(of.path(), age);
        if let Some(limit) = limit {
            path = path.with("limit", &limit.to_string());
        }
        let accept = match of.form {
            ObjectForm::Whole => "application/json",
            ObjectForm::Metadata => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        };
        let content = Content { method: http::Method::GET, accept, body: None };
        let call = ApiCall::new(ApiVerb::List, of.resource, of.resource.plural());
        let most = if limit.is_some() { MAX_PAGE } else { MAX_LIST };
        let read = async { self.send(call.clone(), path, content, SILENCE).await?.whole(most).await };
        self.within(PAGE_WITHIN, call.clone(), read).await
    }

    /// Reads the last lines of a container's log, and keeps their last `most` bytes. Also returns the number of bytes before the
    /// kept bytes. The kubelet's own limit (`limitBytes`) would cut off the newest lines.
    ///
    /// # Errors
    /// [`ApiError`]; code 400 while the container has not started.
    pub async fn pod_log(
        &self,
        pod: &PodRef,
        container: &str,
        (lines, most): (u32, usize),
    ) -> Result<(Vec<u8>, usize), ApiError> {
        let call =
            ApiCall::new(ApiVerb::Get, ApiResource::PodLogs, format!("log of container {container} of pod {pod}"));
        let path = ApiPath::pod(pod, &["log"]).with("container", container).with("tailLines", &lines.to_string());
        let content = Content { method: http::Method::GET, accept: "*/*", body: None };
        let read = async { self.send(call.clone(), path, content, WITHIN).await?.end(most).await };
        self.within(WITHIN, call.clone(), read).await
    }

    /// Watches for changes after `version`, for `seconds`.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn watch(&self, of: &ApiSelection, version: &str, seconds: u32) -> Result<ApiAnswer, ApiError> {
        let path = of.path().with("watch", "true").with("resourceVersion", version);
        let path = path.with("allowWatchBookmarks", "true").with("timeoutSeconds", &seconds.to_string());
        let content = Content { method: http::Method::GET, accept: one(of.form), body: None };
        let call = ApiCall::new(ApiVerb::Watch, of.resource, of.resource.plural());
        self.send(call, path, content, SILENCE).await
    }

    /// Changes parts of an object.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn patch(&self, call: ApiCall, path: ApiPath, patch: ApiPatch<'_>) -> Result<(), ApiError> {
        let body = match patch {
            ApiPatch::Merge(patch) => ("application/merge-patch+json", patch),
            ApiPatch::Json(patch) => ("application/json-patch+json", patch),
        };
        self.write(http::Method::PATCH, call, path, body).await
    }

    /// Makes an object, or posts to a subresource of an object.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if it exists.
    pub(crate) async fn create(&self, call: ApiCall, path: ApiPath, object: &Value) -> Result<(), ApiError> {
        self.write(http::Method::POST, call, path, ("application/json", object)).await
    }

    /// Deletes a pod of this UID.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another pod, 404 if it does not exist.
    pub async fn delete_pod(&self, uid: &PodUid, pod: &PodRef) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Delete, ApiResource::Pods, format!("pod {pod}"));
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid.as_str() } });
        self.write(http::Method::DELETE, call, ApiPath::pod(pod, &[]), ("application/json", &options)).await
    }

    /// Changes an annotation of a pod of this UID.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another pod, 404 if it does not exist.
    pub async fn mark_pod(&self, uid: &PodUid, pod: &PodRef, (key, value): (&str, &str)) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Pods, format!("annotation {key} of pod {pod}"));
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": { key: value } } });
        self.patch(call, ApiPath::pod(pod, &[]), ApiPatch::Merge(&patch)).await
    }

    /// Sets an annotation of the Node of this UID, or removes it, for the field manager `manager`.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another Node, 404 if it does not exist.
    pub async fn mark_node(
        &self,
        uid: &ObjectUid,
        node: &NodeName,
        (key, value): (&str, Option<&str>),
        manager: &str,
    ) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Nodes, format!("annotation {key} of node {node}"));
        let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": { key: value } } });
        self.patch(call, ApiPath::node(node).with("fieldManager", manager), ApiPatch::Merge(&patch)).await
    }

    /// Binds a pod to a Node, as a scheduler does. The Binding names the pod's UID, its version if that is known, and the
    /// annotations that the pod gets in the same write.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the pod is bound already, has another version by now, or the name now belongs to
    /// another pod; 404 if it does not exist.
    pub async fn bind_pod(&self, pod: &PodRef, node: &NodeName, binding: &Value) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Create, ApiResource::PodBindings, format!("binding of pod {pod} to {node}"));
        self.create(call, ApiPath::pod(pod, &["binding"]), binding).await
    }

    /// Evicts a pod of this UID: it ends with its grace period, unless a disruption budget forbids it.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if the name now belongs to another pod, 429 if a budget forbids it now.
    pub async fn evict_pod(&self, uid: &PodUid, pod: &PodRef) -> Result<(), ApiError> {
        let call = ApiCall::new(ApiVerb::Create, ApiResource::PodEvictions, format!("eviction of pod {pod}"));
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": &*pod.name, "namespace": &*pod.namespace },
            "deleteOptions": { "preconditions": { "uid": uid.as_str() } },
        });
        self.create(call, ApiPath::pod(pod, &["eviction"]), &body).await
    }

    /// Creates or replaces an object, and reads how it is stored.
    ///
    /// # Errors
    /// [`ApiError`]; if there was no answer, or an unreadable answer, the object may have been written all the same.
    pub(crate) async fn store(&self, call: ApiCall, path: ApiPath, object: &Value) -> Result<Vec<u8>, ApiError> {
        let method = if call.verb == ApiVerb::Create { http::Method::POST } else { http::Method::PUT };
        let content = Content { method, accept: "application/json", body: Some(("application/json", object)) };
        self.answered(call, path, content).await
    }

    async fn write(
        &self,
        method: http::Method,
        call: ApiCall,
        path: ApiPath,
        body: (&'static str, &Value),
    ) -> Result<(), ApiError> {
        let content = Content { method, accept: "application/json", body: Some(body) };
        let sent_call = call.clone();
        // The body of a success is not read: a finished write must not count as failed because its body cannot be read.
        let request = async { self.send(sent_call, path, content, WITHIN).await.map(drop) };
        self.within(WITHIN, call, request).await
    }

    /// Carries out a call within this time. If it gets no answer, the next call gets new connections.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        call: ApiCall,
        request: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let generation = self.connection.generation();
        let result = timeout(time, request).await.unwrap_or_else(|_| Err(self.error(call, ApiFailure::Slow(time))));
        if result.as_ref().is_err_and(|why| matches!(why.failure, ApiFailure::Slow(_))) {
            self.connection.is_silent(generation);
        }
        result
    }

    /// Sends a request, and reads the whole answer within [`WITHIN`].
    async fn answered(&self, call: ApiCall, path: ApiPath, content: Content<'_>) -> Result<Vec<u8>, ApiError> {
        let sent_call = call.clone();
        let request = async { self.send(sent_call, path, content, WITHIN).await?.whole(MAX_OBJECT).await };
        self.within(WITHIN, call, request).await
    }

    async fn send(
        &self,
        call: ApiCall,
        path: ApiPath,
        content: Content<'_>,
        within: Duration,
    ) -> Result<ApiAnswer, ApiError> {
        let mut request =
            http::Request::builder().method(content.method).uri(path.as_str()).header("accept", content.accept);
        let mut body = Body::empty();
        if let Some((kind, value)) = content.body {
            request = request.header("content-type", kind);
            body = Body::from(value.to_string().into_bytes());
        }
        let request = match request.body(body) {
            Ok(request) => request,
            Err(why) => return Err(self.error(call, ApiFailure::Broken(with_causes(&why)))),
        };
        let sent = async {
            let sent = self.connection.client().send(request).await;
            sent.map_err(|why| self.error(call.clone(), ApiFailure::Broken(with_causes(&why))))
        };
        let response = self.within(within, call.clone(), sent).await?;
        if response.status().is_success() {
            return Ok(self.answer(call, response));
        }
        Err(self.refused(call, response).await)
    }

    fn answer(&self, call: ApiCall, response: http::Response<Body>) -> ApiAnswer {
        let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        ApiAnswer { call, server: Arc::clone(&self.connection.server), date, body: response.into_body() }
    }

    /// The error for a response that is a refusal.
    pub(crate) async fn refused(&self, call: ApiCall, response: http::Response<Body>) -> ApiError {
        let status = response.status();
        let wait =
            response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = self.answer(call.clone(), response).whole(MAX_REFUSAL).await.unwrap_or_default();
        let refusal = refusal(status.as_u16(), &text);
        self.error(call, ApiFailure::Refused { refusal, wait: wait.map(Duration::from_secs) })
    }

    /// The error of a call at this server.
    pub(crate) fn error(&self, call: ApiCall, failure: ApiFailure) -> ApiError {
        ApiError { call, server: Arc::clone(&self.connection.server), failure }
    }
}

// === impl ApiSelection ===

impl ApiSelection {
    /// All objects of a kind.
    #[must_use]
    pub fn all(resource: ApiResource, form: ObjectForm) -> ApiSelection {
        ApiSelection { resource, namespace: None, fields: None, labels: None, form }
    }

    fn path(&self) -> ApiPath {
        let mut path = match &self.namespace {
            Some(namespace) => ApiPath::of("/api/v1/namespaces", &[namespace, self.resource.plural()]),
            None => ApiPath::of("/api/v1", &[self.resource.plural()]),
        };
        for (key, selector) in [("fieldSelector", &self.fields), ("labelSelector", &self.labels)] {
            if let Some(selector) = selector {
                path = path.with(key, selector);
            }
        }
        path
    }
}

/// The media type of one object in this form.
fn one(form: ObjectForm) -> &'static str {
    match form {
        ObjectForm::Whole => "application/json",
        ObjectForm::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    }
}

fn aged(path: ApiPath, age: &ReadAge) -> ApiPath {
    match age {
        ReadAge::Any => path.with("resourceVersion", "0"),
        ReadAge::NotOlderThan(version) => {
            path.with("resourceVersion", version).with("resourceVersionMatch", "NotOlderThan")
        }
        ReadAge::Newest => path,
        ReadAge::Continued(token) => path.with("continue", token),
    }
}

// === impl ApiAnswer ===

impl ApiAnswer {
    /// The next part of the body; `None` at its end.
    ///
    /// # Errors
    /// [`ApiError`] if the connection breaks.
    pub async fn piece(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, ApiError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Some(Err(why)) => return Err(self.failed(ApiFailure::Broken(with_causes(&why)))),
            }
        }
    }

    /// The whole body, if it is not larger than `most`.
    async fn whole(mut self, most: usize) -> Result<Vec<u8>, ApiError> {
        let mut all = Vec::new();
        loop {
            match timeout(SILENCE, self.piece()).await {
                Ok(Ok(Some(piece))) if all.len() + piece.as_ref().len() <= most => {
                    all.extend_from_slice(piece.as_ref())
                }
                Ok(Ok(Some(_))) => return Err(self.failed(ApiFailure::TooLarge(most))),
                Ok(Ok(None)) => return Ok(all),
                Ok(Err(why)) => return Err(why),
                Err(_) => return Err(self.failed(ApiFailure::Slow(SILENCE))),
            }
        }
    }

    /// The last `most` bytes of the body, and the number of bytes before them.
    async fn end(mut self, most: usize) -> Result<(Vec<u8>, usize), ApiError> {
        let (mut kept, mut before) = (Vec::new(), 0);
        while let Some(piece) = self.piece().await? {
            kept.extend_from_slice(piece.as_ref());
            // Cut at twice the size only, so that not each piece moves all bytes.
            if kept.len() >= most.saturating_mul(2) {
                before += cut_to_end(&mut kept, most);
            }
        }
        before += cut_to_end(&mut kept, most);
        Ok((kept, before))
    }

    /// This failure, as the error of the call to which `self` is the answer.
    pub(crate) fn failed(&self, failure: ApiFailure) -> ApiError {
        ApiError { call: self.call.clone(), server: Arc::clone(&self.server), failure }
    }

    /// The error for a watch that the server ended with this refusal.
    pub(crate) fn refused(&self, refusal: ApiRefusal) -> ApiError {
        self.failed(ApiFailure::Refused { refusal, wait: None })
    }
}

/// Keeps the last `most` bytes. Returns the number of bytes that are gone.
fn cut_to_end(bytes: &mut Vec<u8>, most: usize) -> usize {
    let gone = bytes.len().saturating_sub(most);
    bytes.drain(..gone);
    gone
}

/// An error and its causes in one line: most of these errors mean little without their causes.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            let _ = write!(text, "{}{cause}", if text.is_empty() { "" } else { ": " });
        }
        next = error.source();
    }
    text
}
