//! Reads the calls of an agent or an extender from the API server's audit log, which has one line for each request.

use crate::bed::Bed;
use crate::chart::{AGENT, EXTENDER, NAMESPACE};
use jiff::Timestamp;
use lab::cluster::Cluster;
use serde_json::Value;
use std::io::{Read, Seek, SeekFrom};

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    verb: String,
    object: Value,
    ended: Timestamp,
    code: u64,
}

impl Call {
    /// The resource that was read or written.
    pub(crate) fn resource(&self) -> &str {
        self.object["resource"].as_str().unwrap_or_default()
    }

    /// Namespace and name of the object.
    pub(crate) fn name(&self) -> (&str, &str) {
        let text = |key: &str| self.object[key].as_str().unwrap_or_default();
        (text("namespace"), text("name"))
    }

    /// The time of the API server's answer.
    pub(crate) fn ended(&self) -> Timestamp {
        self.ended
    }

    /// Whether the API server did what it was asked for.
    pub(crate) fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Verb and subresource: `patch`, `create eviction`.
    pub(crate) fn verb_and_subresource(&self) -> String {
        format!("{} {}", self.verb, self.object["subresource"].as_str().unwrap_or_default()).trim_end().to_owned()
    }
}

/// The current end of the log.
pub(crate) fn end(cluster: &Cluster) -> u64 {
    std::fs::metadata(&cluster.status().audit).expect("the audit log").len()
}

/// The writes of the node's agent since that position.
pub(crate) fn writes_since(bed: &Bed, from: u64) -> Vec<Call> {
    let node = |entry: &Value| entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0] == *bed.node();
    writes_of(&bed.cluster, AGENT, &node, from)
}

/// The pods that any caller has created since that position.
pub(crate) fn created_pods(cluster: &Cluster, from: u64) -> Vec<Call> {
    let created = |entry: &Value| {
        let object = &entry["objectRef"];
        entry["verb"] == "create" && object["resource"] == "pods" && object["subresource"].is_null()
    };
    writes(cluster, &created, from)
}

/// The writes of extenders since that position. A kube-scheduler with the same account does not count.
pub(crate) fn writes_of_extenders(cluster: &Cluster, from: u64) -> Vec<Call> {
    writes_of(cluster, EXTENDER, &is_extender, from)
}

/// The calls of extenders since that position that are caused by pods, including reads. Calls that an extender makes without
/// any pod are left out: its Lease, its watches and the lists before them, the keys of tokens, and its certificate authority.
pub(crate) fn calls_for_pods_of_extenders(cluster: &Cluster, from: u64) -> Vec<Call> {
    let user = user(EXTENDER);
    let for_pods = |entry: &Value| {
        let object = &entry["objectRef"];
        let of_watch = entry["verb"] == "watch" || entry["verb"] == "list" && object["namespace"].is_null();
        let of_itself = ["leases", "secrets", "configmaps"].iter().any(|resource| object["resource"] == *resource);
        entry["user"]["username"] == *user && is_extender(entry) && object.is_object() && !of_watch && !of_itself
    };
    calls(cluster, &for_pods, from)
}

fn is_extender(entry: &Value) -> bool {
    entry["userAgent"].as_str().is_some_and(|name| name.starts_with("gpu-steward/"))
}

fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

fn writes_of(cluster: &Cluster, account: &str, is_ours: &dyn Fn(&Value) -> bool, from: u64) -> Vec<Call> {
    let user = user(account);
    let ours = |entry: &Value| {
        entry["user"]["username"] == *user
            && is_ours(entry)
            // A self review stores nothing. Tests of tokens send self reviews with tokens of this account.
            && entry["objectRef"]["resource"] != "selfsubjectreviews"
    };
    writes(cluster, &ours, from)
}

/// The chosen writes. The API server judges a dry run but does not store it.
fn writes(cluster: &Cluster, chosen: &dyn Fn(&Value) -> bool, from: u64) -> Vec<Call> {
    let writes = |entry: &Value| {
        let reads = ["get", "list", "watch"].iter().any(|verb| entry["verb"] == *verb);
        let dry = entry["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All"));
        !reads && !dry && chosen(entry)
    };
    calls(cluster, &writes, from)
}

/// The chosen calls.
fn calls(cluster: &Cluster, chosen: &dyn Fn(&Value) -> bool, from: u64) -> Vec<Call> {
    let mut file = std::fs::File::open(&cluster.status().audit).expect("the audit log");
    file.seek(SeekFrom::Start(from)).expect("a place in it");
    let size = file.metadata().expect("its size").len();
    assert!(size >= from, "the API server has begun another audit log: {size} bytes, fewer than {from}");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("text");
    text.lines()
        // The last line may be incomplete.
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| chosen(entry))
        .map(|entry| Call {
            verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
            object: entry["objectRef"].clone(),
            ended: entry["stageTimestamp"].as_str().and_then(|at| at.parse().ok()).expect("a time"),
            code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
        })
        .collect()
}
