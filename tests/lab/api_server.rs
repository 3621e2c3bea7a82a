//! A fake Kubernetes API server with the features that a node agent needs: objects over HTTP on a real socket, lists,
//! watches with bookmarks, and the failures of a real API server.
//!
//! ```text
//!   FakeApiServer::start()   .put(object)  .remove(…)  .bookmark()      changes of the cluster
//!                            .fault(…)  .cut()  .forget()  .stop()      failures
//!                            .lose_bindings(…)  .answer_bindings()      bindings with an unknown outcome
//!                            .lag()                                     reads from the cache stay at the current state
//!                            .hide(…)                                   lists that do not show an object that exists
//!                            .forward(…)                                ports of a pod, for `kubectl port-forward`
//!                            .date(…)                                   another time than this machine's
//!                            .requests()  .object(…)                     the requests, and the objects
//! ```
//!
//! It also reads, patches, replaces, deletes, binds, evicts and creates objects by name: merge patches with preconditions,
//! JSON patches with tests, and a PUT that names the version. It signs tokens of service accounts and publishes its key.
//! The `managedFields` of an object keep the last writer of each label and annotation.
//!
//! Objects are JSON as kubectl shows it, kept by plural, namespace and name. Each change takes the next version, and a
//! watch sends the changes after its start version. New verbs are routes in `router`.

mod patch;
mod forward;

use crate::eventually::eventually;
use crate::tokens::{ISSUER, TokenMint};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Place, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::tls_rustls::RustlsConfig;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

/// Most bytes of the annotations of an object. A real server checks them at every write but a binding.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// The bearer token in its kubeconfig.
pub const TOKEN: &str = "lab-token";

/// The server.
#[derive(Debug)]
pub struct FakeApiServer {
    address: SocketAddr,
    /// Keeps the port while the server is stopped: another server that got it would answer this server's clients.
    _port: TcpSocket,
    shared: Arc<Shared>,
    certificate: Option<Certificate>,
    serving: Option<Runtime>,
}

/// Certificate and key of an HTTPS server. The certificate is self-signed.
#[derive(Clone, Debug)]
struct Certificate {
    chain: String,
    key: String,
}

/// How long [`ApiServerFault::SlowLists`] takes to refuse a list.
const GIVES_UP_AFTER: Duration = Duration::from_millis(5_200);

/// The fault in the server's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ApiServerFault {
    /// No fault.
    #[default]
    None,
    /// Answers with this status code, and a `Status` object with it.
    Refuse(u16),
    /// Refuses requests whose path contains this text with this status code, and answers all others.
    RefusePath(u16, &'static str),
    /// Refuses requests with exactly this path with this status code, and answers all others.
    RefuseExactly(u16, &'static str),
    /// Answers with 200 and a text that is not JSON.
    Garbage,
    /// Does not answer, and keeps the connection open.
    Hang,
    /// Hangs if the path contains this text, and answers all other requests.
    HangPath(&'static str),
    /// Refuses lists that ask for more objects than this at once, after the time in which a server gives up a page that is too much
    /// for it, and answers all other requests.
    SlowLists(u32),
    /// Answers lists, and ends each watch as soon as it has begun.
    EndAtOnce,
}

/// The fate of a binding that gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostBinding {
    /// The request is lost: nothing is bound.
    Request,
    /// The answer is lost: the pod is bound.
    Answer,
}

/// One request that the server has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The method, such as `GET`.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, decoded.
    pub query: BTreeMap<String, String>,
    /// The `Authorization` header, if there was one.
    pub authorization: Option<String>,
}

impl ReceivedRequest {
    /// Whether it was a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|value| value == "true")
    }

    /// The number of objects that a list asks for at once.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.query.get("limit")?.parse().ok()
    }
}

/// Plural, namespace (empty for objects without one), name.
type Key = (String, String, String);

/// A change: its version, its type, and the object after it, or the deleted object.
type Change = (u64, &'static str, Key, Value);

#[derive(Debug)]
struct Shared {
    cluster: Mutex<Cluster>,
    /// Changes with each change of an object, each cut, and each call of [`FakeApiServer::raw_bytes`].
    moved: watch::Sender<u64>,
    /// Signs the tokens of service accounts.
    mint: TokenMint,
}

#[derive(Debug, Default)]
struct Cluster {
    version: u64,
    objects: BTreeMap<Key, Value>,
    /// The version and the objects of the cache, if it lags behind. A read with `resourceVersion=0` shows them.
    cache: Option<(u64, BTreeMap<Key, Value>)>,
    changes: Vec<Change>,
    /// Objects that lists do not show.
    hidden: BTreeSet<Key>,
    /// Where the programs of pods listen, by namespace, name and port.
    ports: BTreeMap<(String, String, u16), SocketAddr>,
    /// Versions before this one are forgotten.
    oldest: u64,
    fault: ApiServerFault,
    /// The date of an answer about the version; `None` for this machine's time.
    date: Option<&'static str>,
    /// The next bindings that get no answer.
    lost_bindings: Vec<LostBinding>,
    requests: Vec<ReceivedRequest>,
    /// The number of cuts. A watch breaks off when there are more cuts than at its start.
    cuts: u64,
    /// Bytes to send to every running watch, with their version.
    raw_bytes: Vec<(u64, Vec<u8>)>,
}

impl FakeApiServer {
    /// Starts a server with an empty cluster on a port that the kernel chooses.
    ///
    /// # Panics
    /// If no port or thread is available.
    #[must_use]
    pub fn start() -> FakeApiServer {
        FakeApiServer::on_a_port(None)
    }

    /// Starts the same server with HTTPS and a certificate for 127.0.0.1.
    ///
    /// # Panics
    /// If no port, thread or certificate is available.
    #[must_use]
    pub fn start_tls() -> FakeApiServer {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        FakeApiServer::on_a_port(Some(Certificate { chain: made.cert.pem(), key: made.signing_key.serialize_pem() }))
    }

    fn on_a_port(certificate: Option<Certificate>) -> FakeApiServer {
        let cluster = Cluster { version: 1, ..Cluster::default() };
        let shared =
            Arc::new(Shared { cluster: Mutex::new(cluster), moved: watch::Sender::new(0), mint: TokenMint::new() });
        let port = TcpSocket::new_v4().expect("a socket");
        port.set_reuseaddr(true).expect("a port for two sockets");
        port.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let address = port.local_addr().expect("an address");
        let listener = TcpListener::bind(address).expect("the port");
        let mut server = FakeApiServer { address, _port: port, shared, certificate, serving: None };
        server.serve(listener);
        server
    }

    fn serve(&mut self, listener: TcpListener) {
        listener.set_nonblocking(true).expect("a socket that does not block");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let router = router(Arc::clone(&self.shared)).into_make_service();
        let certificate = self.certificate.clone();
        runtime.spawn(async move {
            match certificate {
                None => axum_server::from_tcp(listener)?.serve(router).await,
                Some(Certificate { chain, key }) => {
                    let config = RustlsConfig::from_pem(chain.into(), key.into()).await?;
                    axum_server::from_tcp_rustls(listener, config)?.serve(router).await
                }
            }
        });
        self.serving = Some(runtime);
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes a kubeconfig for this server into `directory`.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let path = directory.join("kubeconfig");
        let cluster = match &self.certificate {
            None => json!({"server": format!("http://{}", self.address)}),
            Some(_) => {
                self.authority(&directory.join("ca.crt"));
                json!({"server": format!("https://{}", self.address), "certificate-authority": "ca.crt"})
            }
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "lab", "user": {"token": TOKEN}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        });
        std::fs::write(&path, config.to_string()).expect("the kubeconfig is written");
        path
    }

    /// Writes the certificate authority of the server's certificate, which is the certificate itself.
    ///
    /// # Panics
    /// If the server has no TLS, or the file cannot be written.
    pub fn authority(&self, path: &Path) {
        let certificate = self.certificate.as_ref().expect("a server with TLS");
        std::fs::write(path, &certificate.chain).expect("the certificate is written");
    }

    /// A token with these claims, signed with the key that the server publishes.
    #[must_use]
    pub fn token(&self, claims: &Value) -> String {
        self.shared.mint.sign(claims)
    }

    /// Creates or changes an object, which its `metadata` must name. Returns the new version.
    pub fn put(&self, plural: &str, mut object: Value) -> u64 {
        let version = self.change(|cluster| {
            let key = key(plural, &object);
            let kind = if cluster.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
            object["metadata"]["resourceVersion"] = cluster.version.to_string().into();
            cluster.objects.insert(key.clone(), object.clone());
            cluster.changes.push((cluster.version, kind, key, object));
        });
        self.notify_watches();
        version
    }

    /// Removes an object. Does nothing if there is none of that name.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.change(|cluster| {
            if let Some(mut object) = cluster.objects.remove(&key) {
                object["metadata"]["resourceVersion"] = cluster.version.to_string().into();
                cluster.changes.push((cluster.version, "DELETED", key, object));
            }
        });
        self.notify_watches();
    }

    /// Sends a bookmark with the current version to every watch.
    pub fn bookmark(&self) {
        let version = self.shared.cluster.lock().version;
        let mark = json!({"type": "BOOKMARK", "object": {
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
            "spec": {"containers": null}, "status": {},
        }});
        self.raw_bytes(format!("{mark}\n").as_bytes());
    }

    /// Sends these bytes to every running watch.
    pub fn raw_bytes(&self, bytes: &[u8]) {
        self.change(|cluster| cluster.raw_bytes.push((cluster.version, bytes.to_vec())));
        self.notify_watches();
    }

    /// Sets the fault of all answers from now on.
    pub fn fault(&self, fault: ApiServerFault) {
        self.shared.cluster.lock().fault = fault;
    }

    /// Sets the `Date` header of answers about the version.
    pub fn date(&self, date: &'static str) {
        self.shared.cluster.lock().date = Some(date);
    }

    /// Lets the next bindings, one for each entry, end with a server error that does not show the outcome.
    pub fn lose_bindings(&self, lost: &[LostBinding]) {
        self.shared.cluster.lock().lost_bindings.extend(lost);
    }

    /// Lets all bindings from now on get their answers.
    pub fn answer_bindings(&self) {
        self.shared.cluster.lock().lost_bindings.clear();
    }

    /// Breaks off every running watch in the middle of a line.
    pub fn cut(&self) {
        self.shared.cluster.lock().cuts += 1;
        self.notify_watches();
    }

    /// Forgets every version before now: a watch from one of them gets 410.
    pub fn forget(&self) {
        self.change(|cluster| cluster.oldest = cluster.version);
        self.cut();
    }

    /// Closes the port and every connection.
    pub fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
        }
    }

    /// Opens the same port again, with the same objects.
    ///
    /// # Panics
    /// If the port is not free within half a minute.
    pub fn restart(&mut self) {
        self.stop();
        let bind = || TcpListener::bind(self.address).ok();
        let listener = eventually("the port again", Duration::from_secs(30), bind);
        self.serve(listener);
    }

    /// Stops the cache: from now on a read with `resourceVersion=0` shows the objects as they are now, whatever changes.
    pub fn lag(&self) {
        let mut cluster = self.shared.cluster.lock();
        cluster.cache = Some((cluster.version, cluster.objects.clone()));
    }

    /// Leaves an object out of every list from now on, like a cache that is older than the version that it reports. A read
    /// by name shows the object.
    pub fn hide(&self, plural: &str, namespace: &str, name: &str) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.shared.cluster.lock().hidden.insert(key);
    }

    /// Forwards connections to this port of a pod to an address.
    pub fn forward(&self, (namespace, name, port): (&str, &str, u16), to: SocketAddr) {
        self.shared.cluster.lock().ports.insert((namespace.to_owned(), name.to_owned(), port), to);
    }

    /// Lets the cache catch up.
    pub fn catch_up(&self) {
        self.shared.cluster.lock().cache = None;
    }

    /// The current state of an object.
    #[must_use]
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.shared.cluster.lock().objects.get(&key).cloned()
    }

    /// The current state of all objects of a kind.
    #[must_use]
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        let cluster = self.shared.cluster.lock();
        cluster.objects.iter().filter(|(key, _)| key.0 == plural).map(|(_, object)| object.clone()).collect()
    }

    /// Every request so far.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.cluster.lock().requests.clone()
    }

    fn change(&self, how: impl FnOnce(&mut Cluster)) -> u64 {
        let mut cluster = self.shared.cluster.lock();
        cluster.version += 1;
        how(&mut cluster);
        cluster.version
    }

    fn notify_watches(&self) {
        self.shared.moved.send_modify(|moved| *moved += 1);
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A running pod on `node` as a real server sends it, with containers of these names and ids. It has about 6 KiB, most of
/// which the agent does not need.
#[must_use]
pub fn pod(node: &str, namespace: &str, name: &str, uid: &str, containers: &[(&str, &str)]) -> Value {
    let spec = |(name, _): &(&str, &str)| {
        let environment: Vec<Value> =
            (0..20).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x".repeat(40)})).collect();
        json!({"name": name, "image": format!("registry.example/{name}:1"), "env": environment, "resources": {}})
    };
    let status = |(name, id): &(&str, &str)| {
        json!({
            "name": name, "containerID": format!("containerd://{id}"), "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-21T10:00:00Z"}}, "lastState": {},
        })
    };
    let managed: Vec<Value> =
        (0..30).map(|n| json!({"manager": "kubelet", "fieldsV1": {format!("f:status-{n}"): {".": {}}}})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-11-21T10:00:00Z",
            "managedFields": managed,
        },
        "spec": {"nodeName": node, "restartPolicy": "Always", "containers": containers.iter().map(spec).collect::<Vec<_>>()},
        "status": {"phase": "Running", "containerStatuses": containers.iter().map(status).collect::<Vec<_>>()},
    })
}

// === the server's side ===

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/api/v1/{plural}", get(list))
        .route("/api/v1/{plural}/{name}", get(read).patch(write))
        .route("/api/v1/namespaces/{namespace}/{plural}", get(list_in_namespace).post(create))
        .route(
            "/api/v1/namespaces/{namespace}/{plural}/{name}",
            get(read).patch(write).put(replace).delete(delete_object),
        )
        .route("/api/v1/namespaces/{namespace}/pods/{name}/portforward", get(forward::port))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/log", get(log))
        .route("/api/v1/namespaces/{namespace}/{plural}/{name}/{subresource}", post(act))
        .route("/apis/events.k8s.io/v1/namespaces/{namespace}/{plural}", post(create))
        .route("/apis/coordination.k8s.io/v1/namespaces/{namespace}/{plural}", post(create))
        .route("/apis/coordination.k8s.io/v1/namespaces/{namespace}/{plural}/{name}", get(read).put(replace))
        .route("/version", get(version))
        .route("/openid/v1/jwks", get(token_keys))
        .route("/.well-known/openid-configuration", get(token_issuer))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), record_and_apply_fault))
        .with_state(shared)
}

/// Handles each request first: records it, and applies the fault.
async fn record_and_apply_fault(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let query: BTreeMap<String, String> = Query::try_from_uri(&format!("/?{query}").parse().unwrap_or_default())
        .map(|Query(query)| query)
        .unwrap_or_default();
    let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let received = ReceivedRequest {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query,
        authorization: authorization.map(str::to_owned),
    };
    let fault = {
        let mut cluster = shared.cluster.lock();
        cluster.requests.push(received.clone());
        cluster.fault.clone()
    };
    match fault {
        ApiServerFault::None => next.run(request).await,
        ApiServerFault::Refuse(code) => status(code, "the lab refuses"),
        ApiServerFault::Garbage => "<html>this is not an API server</html>\n".into_response(),
        ApiServerFault::Hang => std::future::pending().await,
        ApiServerFault::EndAtOnce if received.is_watch() => StatusCode::OK.into_response(),
        ApiServerFault::RefusePath(code, part) if received.path.contains(part) => status(code, "the lab refuses"),
        ApiServerFault::RefuseExactly(code, path) if received.path == path => status(code, "the lab refuses"),
        ApiServerFault::HangPath(part) if received.path.contains(part) => std::future::pending().await,
        ApiServerFault::SlowLists(most) if received.limit().is_some_and(|limit| limit > most) => {
            tokio::time::sleep(GIVES_UP_AFTER).await;
            status(500, "the lab is too slow")
        }
        ApiServerFault::EndAtOnce
        | ApiServerFault::SlowLists(_)
        | ApiServerFault::RefusePath(..)
        | ApiServerFault::RefuseExactly(..)
        | ApiServerFault::HangPath(_) => next.run(request).await,
    }
}

fn status(code: u16, message: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code});
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [("content-type", "application/json")], status.to_string()).into_response()
}

/// An answer to a list. It borrows the objects: a list of a large cluster has tens of thousands.
#[derive(Serialize)]
struct ShownList<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: Value,
    items: Vec<&'a Value>,
}

/// The version. HTTP adds a date to an answer that has none.
async fn version(State(shared): State<Arc<Shared>>) -> Response {
    let date = shared.cluster.lock().date;
    match date {
        Some(date) => ([("date", date)], "{}").into_response(),
        None => "{}".into_response(),
    }
}

/// The log of a container: an annotation of its pod. Like a kubelet, it takes the last lines, and then their first bytes.
async fn log(
    State(shared): State<Arc<Shared>>,
    Place((namespace, name)): Place<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let cluster = shared.cluster.lock();
    let Some(pod) = cluster.objects.get(&("pods".to_owned(), namespace, name)) else { return status(404, "not found") };
    let all = pod["metadata"]["annotations"]["lab/log"].as_str().unwrap_or_default();
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok()).unwrap_or(usize::MAX);
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    let tail = lines.iter().skip(lines.len().saturating_sub(number("tailLines"))).copied();
    tail.collect::<String>().bytes().take(number("limitBytes")).collect::<Vec<u8>>().into_response()
}

/// A list of the objects of a namespace.
async fn list_in_namespace(
    state: State<Arc<Shared>>,
    Place((namespace, plural)): Place<(String, String)>,
    query: Query<HashMap<String, String>>,
) -> Response {
    listed(&state.0, (Some(namespace), plural), &query.0)
}

/// A list or a watch.
async fn list(
    State(shared): State<Arc<Shared>>,
    Place(plural): Place<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    listed(&shared, (None, plural), &query)
}

fn listed(
    shared: &Arc<Shared>,
    (namespace, plural): (Option<String>, String),
    query: &HashMap<String, String>,
) -> Response {
    let selected = |field: &str| {
        let value = query.get("fieldSelector").and_then(|selector| selector.strip_prefix(field));
        value.and_then(|value| value.strip_prefix('=')).map(str::to_owned)
    };
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let selection = Selection {
        plural,
        namespace,
        node: selected("spec.nodeName"),
        name: selected("metadata.name"),
        about: selected("involvedObject.uid"),
        labels: labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    };
    if query.get("watch").is_some_and(|value| value == "true") {
        let from = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or_default();
        return selection.watch_stream(Arc::clone(shared), from);
    }
    let cluster = shared.cluster.lock();
    // A list without a version comes from etcd; a list with a version comes from a cache that is at least that new.
    let at_least: Option<u64> = query.get("resourceVersion").and_then(|version| version.parse().ok());
    let (version, objects) = match (&cluster.cache, at_least) {
        (Some((cached, objects)), Some(at_least)) if *cached >= at_least => (*cached, objects),
        (Some((cached, _)), Some(at_least)) => {
            return status(504, &format!("Too large resource version: {at_least}, current: {cached}"));
        }
        _ => (cluster.version, &cluster.objects),
    };
    let shown = |key: &Key, object: &Value| selection.matches(key, object) && !cluster.hidden.contains(key);
    let items = objects.iter().filter(|(key, object)| shown(key, object)).map(|(_, object)| object);
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
    // The token of the next page is the number of objects before it.
    let (before, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let mut items = items.skip(before);
    let page: Vec<&Value> = items.by_ref().take(limit).collect();
    let next = if items.next().is_some() { (before + page.len()).to_string() } else { String::new() };
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    let list = ShownList { kind: "List", api_version: "v1", metadata, items: page };
    match serde_json::to_string(&list) {
        Ok(text) => ([("content-type", "application/json")], text).into_response(),
        Err(why) => status(500, &why.to_string()),
    }
}

/// Reads one object.
async fn read(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let cluster = shared.cluster.lock();
    let from_cache = query.get("resourceVersion").is_some_and(|version| version == "0");
    let cache = cluster.cache.as_ref().filter(|_| from_cache);
    let objects = cache.map_or(&cluster.objects, |(_, objects)| objects);
    match objects.get(&key_of_path(&place)) {
        Some(object) => ([("content-type", "application/json")], object.to_string()).into_response(),
        None => status(404, &format!("{} not found", place.get("name").map_or("", String::as_str))),
    }
}

/// Patches one object.
async fn write(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(change) = serde_json::from_slice::<Value>(&body) else { return status(400, "not JSON") };
    let content = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let manager = query.get("fieldManager").map_or("unknown", String::as_str);
    let answer = {
        let mut cluster = shared.cluster.lock();
        let key = key_of_path(&place);
        let Some(mut object) = cluster.objects.get(&key).cloned() else { return status(404, "not found") };
        if let Err((code, why)) = patch::apply(&mut object, &change, content) {
            return status(code, &why);
        }
        patch::written(&mut object, &change, manager);
        if annotation_bytes(&object) > MAX_ANNOTATIONS {
            return status(422, "metadata.annotations: Too long: may not be more than 262144 bytes");
        }
        if query.get("dryRun").is_some_and(|what| what == "All") {
            return ([("content-type", "application/json")], object.to_string()).into_response();
        }
        cluster.version += 1;
        object["metadata"]["resourceVersion"] = cluster.version.to_string().into();
        cluster.objects.insert(key.clone(), object.clone());
        let version = cluster.version;
        cluster.changes.push((version, "MODIFIED", key, object.clone()));
        object
    };
    shared.moved.send_modify(|moved| *moved += 1);
    ([("content-type", "application/json")], answer.to_string()).into_response()
}

/// Deletes one object, at once.
async fn delete_object(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    let options: Value = serde_json::from_slice(&body).unwrap_or_default();
    shared.delete(key_of_path(&place), &options["preconditions"]["uid"])
}

/// Posts to a subresource of one pod: its binding or its eviction.
async fn act(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else { return status(400, "not JSON") };
    let subresource = place.get("subresource").map_or("", String::as_str);
    match subresource {
        _ if query.contains_key("dryRun") => status(404, "not found"),
        "eviction" => shared.delete(key_of_path(&place), &body["deleteOptions"]["preconditions"]["uid"]),
        "binding" => {
            let lost = {
                let lost = &mut shared.cluster.lock().lost_bindings;
                (!lost.is_empty()).then(|| lost.remove(0))
            };
            let answer = (lost != Some(LostBinding::Request)).then(|| shared.bind(key_of_path(&place), &body));
            answer.filter(|_| lost.is_none()).unwrap_or_else(|| status(504, "request did not complete in time"))
        }
        _ => status(404, "no such subresource"),
    }
}

impl Shared {
    /// Removes an object if it has this UID; if the request names no UID, any UID matches.
    fn delete(&self, key: Key, uid: &Value) -> Response {
        {
            let mut cluster = self.cluster.lock();
            let Some(object) = cluster.objects.get(&key) else { return status(404, "not found") };
            if uid.is_string() && *uid != object["metadata"]["uid"] {
                return status(409, "Precondition failed: UID in precondition");
            }
            cluster.version += 1;
            let version = cluster.version;
            if let Some(mut object) = cluster.objects.remove(&key) {
                object["metadata"]["resourceVersion"] = version.to_string().into();
                cluster.changes.push((version, "DELETED", key, object));
            }
        }
        self.moved.send_modify(|moved| *moved += 1);
        status(200, "deleted")
    }

    /// Binds a pod to a Node, once.
    fn bind(&self, key: Key, binding: &Value) -> Response {
        {
            let mut cluster = self.cluster.lock();
            let version = cluster.version + 1;
            let Some(pod) = cluster.objects.get_mut(&key) else { return status(404, "not found") };
            if binding["metadata"]["uid"] != pod["metadata"]["uid"] {
                return status(409, "Precondition failed: UID in precondition");
            }
            let asked = &binding["metadata"]["resourceVersion"];
            if asked.is_string() && *asked != pod["metadata"]["resourceVersion"] {
                return status(409, "Precondition failed: ResourceVersion in precondition");
            }
            if pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()) {
                return status(409, "pod is already assigned to node");
            }
            pod["spec"]["nodeName"] = binding["target"]["name"].clone();
            // The annotations of a Binding are written on the pod in the same write.
            for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
                pod["metadata"]["annotations"][key] = value.clone();
            }
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            let pod = pod.clone();
            cluster.version = version;
            cluster.changes.push((version, "MODIFIED", key, pod));
        }
        self.moved.send_modify(|moved| *moved += 1);
        status(201, "bound")
    }
}

/// Replaces one object, if the new one names its version.
async fn replace(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    let Ok(mut object) = serde_json::from_slice::<Value>(&body) else { return status(400, "not JSON") };
    let mut cluster = shared.cluster.lock();
    let key = key_of_path(&place);
    let version = cluster.version + 1;
    let Some(stored) = cluster.objects.get_mut(&key) else { return status(404, "not found") };
    if object["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] {
        return status(409, "the object has been modified; please apply your changes to the latest version");
    }
    object["metadata"]["resourceVersion"] = version.to_string().into();
    *stored = object.clone();
    cluster.version = version;
    cluster.changes.push((version, "MODIFIED", key, object.clone()));
    ([("content-type", "application/json")], object.to_string()).into_response()
}

/// Creates an object, with its own name or one that the server chooses.
async fn create(
    State(shared): State<Arc<Shared>>,
    Place(place): Place<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    let Ok(mut object) = serde_json::from_slice::<Value>(&body) else { return status(400, "not JSON") };
    let mut cluster = shared.cluster.lock();
    cluster.version += 1;
    let begin = object["metadata"]["generateName"].as_str().map(str::to_owned);
    if let Some(begin) = begin {
        object["metadata"]["name"] = format!("{begin}{}", cluster.version).into();
    }
    object["metadata"]["resourceVersion"] = cluster.version.to_string().into();
    let (text, plural) = (object.to_string(), place.get("plural").cloned().unwrap_or_default());
    let key = key(&plural, &object);
    if cluster.objects.contains_key(&key) {
        return status(409, "already exists");
    }
    cluster.objects.insert(key, object);
    (StatusCode::CREATED, [("content-type", "application/json")], text).into_response()
}

/// The keys that sign tokens. Like a real server, it returns them only in their own media type.
async fn token_keys(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let accept = headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accept.contains("application/jwk-set+json") && !accept.contains("*/*") {
        return status(406, "Not Acceptable");
    }
    ([("content-type", "application/jwk-set+json")], shared.mint.keys().to_string()).into_response()
}

async fn token_issuer() -> Response {
    let text = json!({ "issuer": ISSUER, "jwks_uri": "https://lab.cluster/openid/v1/jwks" }).to_string();
    ([("content-type", "application/json")], text).into_response()
}

fn key_of_path(place: &HashMap<String, String>) -> Key {
    let text = |name: &str| place.get(name).cloned().unwrap_or_default();
    (text("plural"), text("namespace"), text("name"))
}

/// The selection of a list or watch.
struct Selection {
    plural: String,
    namespace: Option<String>,
    node: Option<String>,
    name: Option<String>,
    /// The UID of the object that an event is about.
    about: Option<String>,
    labels: Vec<(String, String)>,
}

impl Selection {
    fn matches(&self, key: &Key, object: &Value) -> bool {
        let here = self.node.as_ref().is_none_or(|node| object["spec"]["nodeName"] == node.as_str());
        let about = |uid: &String| {
            ["involvedObject", "regarding"].iter().any(|field| object[field]["uid"].as_str() == Some(uid.as_str()))
        };
        key.0 == self.plural
            && here
            && self.namespace.as_ref().is_none_or(|namespace| key.1 == *namespace)
            && self.name.as_ref().is_none_or(|name| key.2 == *name)
            && self.about.as_ref().is_none_or(about)
            && self.labels.iter().all(|(key, value)| object["metadata"]["labels"][key] == value.as_str())
    }

    /// Streams all changes after version `from`, until a cut or until the client disconnects.
    fn watch_stream(self, shared: Arc<Shared>, mut from: u64) -> Response {
        let (sender, body) = mpsc::channel::<Result<Vec<u8>, Error>>(64);
        let cuts = shared.cluster.lock().cuts;
        tokio::spawn(async move {
            let mut moved = shared.moved.subscribe();
            loop {
                let (lines, cut, forgotten) = {
                    let cluster = shared.cluster.lock();
                    let (cut, forgotten) = (cluster.cuts > cuts, from < cluster.oldest);
                    let mut lines = self.after(&cluster, from);
                    if cut {
                        lines.push(b"{\"type\":\"MODIF".to_vec());
                    }
                    from = cluster.version;
                    (lines, cut, forgotten)
                };
                for line in lines {
                    if sender.send(Ok(line)).await.is_err() {
                        return;
                    }
                }
                if cut {
                    let _ = sender.send(Err(Error::from(ErrorKind::ConnectionReset))).await;
                }
                if cut || forgotten {
                    return;
                }
                tokio::select! {
                    changed = moved.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        ([("content-type", "application/json")], Body::from_stream(ReceiverStream::new(body))).into_response()
    }

    fn after(&self, cluster: &Cluster, from: u64) -> Vec<Vec<u8>> {
        if from < cluster.oldest {
            let message = format!("too old resource version: {from} ({})", cluster.oldest);
            let gone =
                json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": message});
            return vec![format!("{}\n", json!({"type": "ERROR", "object": gone})).into_bytes()];
        }
        let event = |kind: &str, object: &Value| format!("{}\n", json!({"type": kind, "object": object})).into_bytes();
        // The changes are in the order of their versions, and in a large cluster there are very many.
        let new = cluster.changes.partition_point(|(version, ..)| *version <= from);
        let changes = cluster.changes.iter().skip(new).filter(|(_, _, key, object)| self.matches(key, object));
        let mut lines: Vec<(u64, Vec<u8>)> =
            changes.map(|(version, kind, _, object)| (*version, event(kind, object))).collect();
        lines.extend(cluster.raw_bytes.iter().filter(|(version, _)| *version > from).cloned());
        lines.sort_by_key(|(version, _)| *version);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

fn annotation_bytes(object: &Value) -> usize {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

fn key(plural: &str, object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (plural.to_owned(), text("namespace"), text("name"))
}
