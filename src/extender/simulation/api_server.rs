//! The simulated API servers: two servers before one etcd, each with its own caches.
//!
//! ```text
//!   request ──way──▶ carried out: etcd, or a cache that lags ──way──▶ answer, or none (Fate)
//!   watch   ◀─pieces─ changes up to the version of the server's cache
//! ```

use super::etcd::{Change, Content, Did, Etcd, Kind, Snapshot, Stored};
use super::network::{Answer, Outgoing, Pieces, PiecesSender};
use super::object::SimPod;
use super::random::Random;
use super::weather::{Fate, SECOND, Weather};
use hyper::body::Bytes;
use hyper::{Method, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Number of API servers.
pub(super) const SERVERS: usize = 2;
/// An idle watch gets a bookmark this often.
const BOOKMARK: u64 = 60 * SECOND;

/// One server's cache of one kind of objects.
#[derive(Clone, Debug, Default)]
struct Cache {
    version: u64,
    objects: BTreeMap<String, Arc<Stored>>,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Flight {
    /// The number of the process that sent the request.
    pub(super) process: u64,
    pub(super) server: usize,
    pub(super) request: Outgoing,
    pub(super) fate: Fate,
    pub(super) reply: Option<Reply>,
    /// When the request's connection died silently, if it has.
    pub(super) died: Option<u64>,
}

/// What a server answers.
#[derive(Debug)]
pub(super) enum Reply {
    Whole(u16, String),
    Watch(Pieces),
}

/// A watch under way.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) process: u64,
    server: usize,
    kind: Kind,
    /// The version up to which changes are in `unsent` or sent.
    version: u64,
    unsent: Vec<u8>,
    sender: PiecesSender,
    /// When the watch ends by itself.
    pub(super) ends: u64,
    /// When something was sent last.
    sent: u64,
    /// When the watch's connection died silently, if it has.
    pub(super) died: Option<u64>,
}

impl Watch {
    /// Whether the client has given the watch up.
    pub(super) fn is_given_up(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A binding that was carried out.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) pod: Arc<SimPod>,
    pub(super) version: u64,
    pub(super) epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct ApiServers {
    pub(super) etcd: Etcd,
    pub(super) etcd_snapshots: Vec<Snapshot>,
    /// Objects to which RBAC, a webhook or an admission policy forbids all writes, with the code of the refusal.
    pub(super) forbidden: BTreeMap<String, u16>,
    caches: [[Cache; 2]; SERVERS],
    pub(super) watches: BTreeMap<u64, Watch>,
    watched: u64,
    /// Lists with pages that were not read yet, by their `continue` tokens.
    pages: BTreeMap<String, (u64, Vec<Arc<Stored>>)>,
    /// The last binding that was carried out, until the invariants have seen it.
    pub(super) bound: Option<Bound>,
    /// Holder and version of the last written Lease, until the invariants have seen the write.
    pub(super) lease_written: Option<(String, u64)>,
}

impl ApiServers {
    /// Lets a cache of a server take over the next changes, all of them or some.
    pub(super) fn cache(&mut self, server: usize, kind: Kind, random: &mut Random) {
        let cache = &mut self.caches[server][kind as usize];
        if cache.version < self.etcd.restored {
            (cache.version, cache.objects) = (self.etcd.version, self.etcd.objects(kind).clone());
            return;
        }
        let changes = self.etcd.after(kind, cache.version);
        let some = if random.chance(700) { changes.len() } else { random.place(changes.len() + 1) };
        for change in &changes[..some] {
            let name = match &change.object.content {
                Content::Pod(pod) => &pod.name,
                Content::Node(node) => &node.name,
                Content::Lease(_) => continue,
            };
            if change.did == Did::Delete {
                cache.objects.remove(name);
            } else {
                cache.objects.insert(name.clone(), Arc::clone(&change.object));
            }
            cache.version = change.version;
        }
        if some == changes.len() {
            cache.version = self.etcd.version;
        }
    }

    /// Carries a request out.
    pub(super) fn carry_out(&mut self, flight: &Flight, at: u64, random: &mut Random, weather: &Weather) -> Reply {
        let Outgoing { method, path, query, body, .. } = &flight.request;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let forbidden = path.iter().find_map(|name| self.forbidden.get(*name));
        if let Some(code) = forbidden.filter(|_| method != Method::GET) {
            return refusal(*code, "admission webhook denied the request");
        }
        match (method, path.as_slice()) {
            (&Method::GET, ["api", "v1", kind @ ("pods" | "nodes")]) => {
                let kind = if *kind == "pods" { Kind::Pods } else { Kind::Nodes };
                match query.get("watch") {
                    Some(_) => self.watch(flight, kind, at, (random, weather)),
                    None => self.list(flight.server, kind, query, random),
                }
            }
            (&Method::GET, ["api", "v1", "namespaces", _, "pods", name]) => self.read(flight, Kind::Pods, name),
            (&Method::GET, ["api", "v1", "nodes", name]) => self.read(flight, Kind::Nodes, name),
            (&Method::POST, ["api", "v1", "namespaces", _, "pods", name, "binding"]) => self.bind(name, body),
            (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", name]) => self.annotate(name, body),
            (&Method::POST, ["api", "v1", "namespaces", _, "pods", name, "eviction"]) => {
                self.evict(name, &body["deleteOptions"]["preconditions"]["uid"], random)
            }
            (&Method::GET, ["apis", _, _, "namespaces", _, "leases", name]) => self.read(flight, Kind::Leases, name),
            (&Method::POST, ["apis", _, _, "namespaces", _, "leases"]) => self.write_lease(None, body),
            (&Method::PUT, ["apis", _, _, "namespaces", _, "leases", name]) => self.write_lease(Some(name), body),
            (&Method::POST, ["apis", _, _, "namespaces", _, "events"]) => Reply::Whole(201, "{}".to_owned()),
            other => panic!("the simulated API server does not know {other:?}"),
        }
    }

    fn read(&self, flight: &Flight, kind: Kind, name: &str) -> Reply {
        let cached = flight.request.query.contains_key("resourceVersion");
        let found = if cached && kind != Kind::Leases {
            self.caches[flight.server][kind as usize].objects.get(name)
        } else {
            self.etcd.get(kind, name)
        };
        found.map_or_else(|| refusal(404, "not found"), |found| Reply::Whole(200, found.text.clone()))
    }

    fn list(&mut self, server: usize, kind: Kind, query: &BTreeMap<String, String>, random: &mut Random) -> Reply {
        let (version, objects) = if let Some(token) = query.get("continue") {
            let Some(page) = self.pages.remove(token).filter(|(version, _)| *version >= self.etcd.compacted) else {
                return refusal(410, "the provided continue parameter is too old");
            };
            page
        } else if query.contains_key("resourceVersion") {
            let cache = &self.caches[server][kind as usize];
            (cache.version, cache.objects.values().cloned().collect())
        } else {
            (self.etcd.version, self.etcd.objects(kind).values().cloned().collect())
        };
        // A server may send fewer objects than the limit.
        let mut page = objects;
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if query.contains_key("limit") && page.len() > 1 && random.chance(200) {
            let rest = page.split_off(1 + random.place(page.len() - 1));
            let token = format!("page{}", random.number());
            metadata["continue"] = token.as_str().into();
            self.pages.insert(token, (version, rest));
        }
        let items: Vec<&str> = page.iter().map(|object| object.text.as_str()).collect();
        Reply::Whole(200, format!(r#"{{"metadata":{metadata},"items":[{}]}}"#, items.join(",")))
    }

    fn bind(&mut self, name: &str, binding: &Value) -> Reply {
        let Some(pod) = self.etcd.pod(name) else { return refusal(404, "pods not found") };
        if binding["metadata"]["uid"] != pod.uid.as_str() {
            return refusal(409, "Precondition failed: UID in precondition differs");
        }
        let version = self.etcd.get(Kind::Pods, name).map(|stored| stored.version.to_string());
        if binding["metadata"]["resourceVersion"].as_str().is_some_and(|asked| Some(asked) != version.as_deref()) {
            return refusal(409, "Precondition failed: ResourceVersion in precondition differs");
        }
        if pod.deleted {
            return refusal(409, "pod is being deleted, cannot be assigned to a host");
        }
        if let Some(node) = &pod.node {
            return refusal(409, &format!("pod is already assigned to node {node}"));
        }
        if pod.gated {
            return refusal(409, "pod has non-empty .spec.schedulingGates");
        }
        let mut pod = SimPod::clone(pod);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        pod.node = Some(text(&binding["target"]["name"]));
        for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            pod.annotations.insert(key.clone(), text(value));
        }
        let epoch = pod.annotations.get(wire::annotation_keys::EPOCH).and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        self.etcd.put_pod(pod.clone());
        self.bound = Some(Bound { pod: Arc::new(pod), version: self.etcd.version, epoch });
        Reply::Whole(201, r#"{"kind":"Status","status":"Success","code":201}"#.to_owned())
    }

    /// kube-scheduler itself binds a pod.
    pub(super) fn bind_by_scheduler(&mut self, name: &str, uid: &str, node: &str) {
        self.bind(name, &json!({ "metadata": { "uid": uid }, "target": { "name": node } }));
        self.bound = None;
    }

    /// Carries out a merge patch of a pod's annotations. A patch that changes nothing makes no new version.
    fn annotate(&mut self, name: &str, patch: &Value) -> Reply {
        let Some(stored) = self.etcd.get(Kind::Pods, name) else { return refusal(404, "pods not found") };
        let (mut pod, mut text) = (SimPod::clone(stored.pod()), stored.text.clone());
        if patch["metadata"]["uid"] != pod.uid.as_str() {
            return refusal(409, "Precondition failed: UID in precondition differs");
        }
        let before = pod.annotations.clone();
        for (key, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
            pod.annotations.insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
        }
        if pod.annotations != before {
            self.etcd.put_pod(pod);
            text = self.etcd.get(Kind::Pods, name).map(|stored| stored.text.clone()).unwrap_or_default();
        }
        Reply::Whole(200, text)
    }

    fn evict(&mut self, name: &str, uid: &Value, random: &mut Random) -> Reply {
        let Some(pod) = self.etcd.pod(name) else { return refusal(404, "pods not found") };
        if *uid != pod.uid.as_str() {
            return refusal(409, "Precondition failed: UID in precondition differs");
        }
        if random.chance(100) {
            return refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.");
        }
        self.delete_pod(name);
        Reply::Whole(201, r#"{"kind":"Status","status":"Success","code":201}"#.to_owned())
    }

    /// Deletes a pod with its grace period: a pod on a node stays until its kubelet has ended it.
    pub(super) fn delete_pod(&mut self, name: &str) {
        let Some(pod) = self.etcd.pod(name) else { return };
        if pod.node.is_none() || pod.ended() {
            self.etcd.delete(Kind::Pods, name);
        } else if !pod.deleted {
            let deleted = SimPod { deleted: true, ..SimPod::clone(pod) };
            self.etcd.put_pod(deleted);
        }
    }

    fn write_lease(&mut self, name: Option<&str>, lease: &Value) -> Reply {
        let name_of = lease["metadata"]["name"].as_str().unwrap_or_default();
        let now = self.etcd.get(Kind::Leases, name.unwrap_or(name_of)).map(|now| now.version.to_string());
        match (name, now) {
            (None, Some(_)) => return refusal(409, "leases already exists"),
            (Some(_), None) => return refusal(404, "leases not found"),
            (Some(_), Some(now)) if lease["metadata"]["resourceVersion"] != now.as_str() => {
                return refusal(409, "the object has been modified");
            }
            _ => {}
        }
        let stored = self.etcd.put(Kind::Leases, name_of, Content::Lease(lease.clone()));
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        self.lease_written = Some((holder, stored.version));
        Reply::Whole(if name.is_some() { 200 } else { 201 }, stored.text.clone())
    }

    fn watch(&mut self, flight: &Flight, kind: Kind, at: u64, (random, weather): (&mut Random, &Weather)) -> Reply {
        let number = |key: &str| flight.request.query.get(key).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let version = number("resourceVersion");
        if version < self.etcd.compacted && random.chance(500) {
            return refusal(410, "too old resource version");
        }
        let (sender, pieces) = Pieces::new();
        let mut watch = Watch {
            process: flight.process,
            server: flight.server,
            kind,
            version,
            unsent: Vec::new(),
            sender,
            ends: at + number("timeoutSeconds") * 1_000_000_000,
            sent: at,
            died: flight.died,
        };
        if version < self.etcd.compacted {
            let gone = json!({ "kind": "Status", "code": 410, "message": "too old resource version" });
            watch.unsent.extend(format!("{}\n", json!({ "type": "ERROR", "object": gone })).into_bytes());
            // This error is the last event of the watch.
            watch.version = u64::MAX;
        } else if random.chance(weather.repeated) {
            // The watch repeats the newest change that the client has already seen.
            let again =
                self.etcd.after(kind, self.etcd.compacted).iter().rev().find(|change| change.version <= version);
            watch.unsent.extend(again.map(line).unwrap_or_default());
        }
        self.watched += 1;
        self.watches.insert(self.watched, watch);
        Reply::Watch(pieces)
    }

    /// Sends a part of what a watch has to send. Returns whether the watch goes on.
    pub(super) fn deliver(&mut self, number: u64, at: u64, random: &mut Random) -> bool {
        let Some(watch) = self.watches.get_mut(&number) else { return false };
        if watch.version < self.etcd.restored {
            // etcd was restored: the server starts anew.
            self.watches.remove(&number);
            return false;
        }
        let upto = self.caches[watch.server][watch.kind as usize].version;
        let changes = self.etcd.after(watch.kind, watch.version);
        let some = if random.chance(700) { changes.len() } else { random.place(changes.len() + 1) };
        for change in changes[..some].iter().take_while(|change| change.version <= upto) {
            watch.unsent.extend(line(change));
            watch.version = change.version;
        }
        let behind = changes.get(some).map_or(upto, |next| upto.min(next.version - 1));
        let is_due = watch.version != u64::MAX && at >= watch.sent + BOOKMARK;
        if is_due || random.chance(20) && watch.version < behind {
            watch.version = watch.version.max(behind);
            let object = json!({ "kind": "Pod", "metadata": { "resourceVersion": watch.version.to_string() } });
            watch.unsent.extend(format!("{}\n", json!({ "type": "BOOKMARK", "object": object })).into_bytes());
        }
        let piece = if random.chance(800) { watch.unsent.len() } else { random.place(watch.unsent.len() + 1) };
        let piece: Vec<u8> = watch.unsent.drain(..piece).collect();
        if !piece.is_empty() {
            watch.sent = at;
        }
        let open = piece.is_empty() || watch.sender.send(Ok(Bytes::from(piece))).is_ok();
        if !open || watch.sender.is_closed() {
            self.watches.remove(&number);
            return false;
        }
        true
    }

    /// Ends a watch, in order or with a broken connection.
    pub(super) fn end_watch(&mut self, number: u64, broken: bool) {
        // The end does not arrive.
        if self.watches.get(&number).is_some_and(|watch| watch.died.is_some()) {
            return;
        }
        let Some(watch) = self.watches.remove(&number) else { return };
        if broken {
            let _ = watch.sender.send(Err(io::Error::other("connection reset by peer")));
        }
    }

    /// The connections of a process die silently.
    pub(super) fn watches_die(&mut self, process: u64, at: u64) {
        for watch in self.watches.values_mut().filter(|watch| watch.process == process) {
            watch.died.get_or_insert(at);
        }
    }

    /// The number of the newest watch.
    pub(super) fn newest_watch(&self) -> u64 {
        self.watched
    }

    /// The kind, process and version of a watch, for the trace.
    pub(super) fn watch_is(&self, number: u64) -> Option<(Kind, u64, u64)> {
        self.watches.get(&number).map(|watch| (watch.kind, watch.process, watch.version))
    }
}

fn line(change: &Change) -> Vec<u8> {
    let kind = match change.did {
        Did::Create => "ADDED",
        Did::Change => "MODIFIED",
        Did::Delete => "DELETED",
    };
    format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", change.object.text).into_bytes()
}

/// A refusal by the API server itself.
pub(super) fn refusal(code: u16, message: &str) -> Reply {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message });
    Reply::Whole(code, status.to_string())
}

/// The answer of a reply, which comes in one piece.
pub(super) fn answer(reply: Reply) -> Answer {
    let (code, pieces) = match reply {
        Reply::Watch(pieces) => (200, pieces),
        Reply::Whole(code, text) => {
            let (sender, pieces) = Pieces::new();
            let _ = sender.send(Ok(Bytes::from(text)));
            (code, pieces)
        }
    };
    let mut answer = Response::builder().status(code);
    if code == 429 {
        answer = answer.header("retry-after", "1");
    }
    answer.body(pieces).map_err(io::Error::other)
}
