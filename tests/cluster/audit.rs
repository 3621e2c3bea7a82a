//! Reads the writes of an agent or an extender from the API server's audit log, which has one line for each request.

use crate::bed::Bed;
use crate::chart::{AGENT, EXTENDER, NAMESPACE};
use jiff::Timestamp;
use lab::cluster::Cluster;
use serde_json::Value;
use std::io::{Read, Seek, SeekFrom};

/// One write.
#[derive(Debug)]
pub(crate) struct Write {
    verb: String,
    object: Value,
    ended: Timestamp,
}

impl Write {
    /// The resource that was written.
    pub(crate) fn resource(&self) -> &str {
        self.object["resource"].as_str().unwrap_or_default()
    }

    /// Namespace and name of the object.
    pub(crate) fn name(&self) -> (&str, &str) {
        let text = |key: &str| self.object[key].as_str().unwrap_or_default();
        (text("namespace"), text("name"))
    }

    /// When the API server had answered.
    pub(crate) fn ended(&self) -> Timestamp {
        self.ended
    }

    /// Verb and subresource: `patch`, `create eviction`.
    pub(crate) fn verb_and_subresource(&self) -> String {
        format!("{} {}", self.verb, self.object["subresource"].as_str().unwrap_or_default()).trim_end().to_owned()
    }
}

/// The present end of the log.
pub(crate) fn end(cluster: &Cluster) -> u64 {
    std::fs::metadata(&cluster.status().audit).expect("the audit log").len()
}

/// The writes of the node's agent since that position.
pub(crate) fn writes_since(bed: &Bed, from: u64) -> Vec<Write> {
    let node = |entry: &Value| entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0] == *bed.node();
    writes_of(&bed.cluster, AGENT, &node, from)
}

/// The pods that anyone has created since that position.
pub(crate) fn created_pods(cluster: &Cluster, from: u64) -> Vec<Write> {
    let created = |entry: &Value| {
        let object = &entry["objectRef"];
        entry["verb"] == "create" && object["resource"] == "pods" && object["subresource"].is_null()
    };
    writes(cluster, &created, from)
}

/// The writes of extenders since that position. A kube-scheduler with the same account does not count.
pub(crate) fn writes_of_extenders(cluster: &Cluster, from: u64) -> Vec<Write> {
    let own = |entry: &Value| entry["userAgent"].as_str().is_some_and(|name| name.starts_with("gpu-steward/"));
    writes_of(cluster, EXTENDER, &own, from)
}

fn writes_of(cluster: &Cluster, account: &str, is_ours: &dyn Fn(&Value) -> bool, from: u64) -> Vec<Write> {
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    let ours = |entry: &Value| {
        entry["user"]["username"] == *user
            && is_ours(entry)
            // A self review stores nothing. Tests of tokens send it with tokens of this account.
            && entry["objectRef"]["resource"] != "selfsubjectreviews"
    };
    writes(cluster, &ours, from)
}

/// The writes that are chosen. The API server judges a dry run and does not make it.
fn writes(cluster: &Cluster, chosen: &dyn Fn(&Value) -> bool, from: u64) -> Vec<Write> {
    let mut file = std::fs::File::open(&cluster.status().audit).expect("the audit log");
    file.seek(SeekFrom::Start(from)).expect("a place in it");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("text");
    text.lines()
        // The last line may be half written.
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| !["get", "list", "watch"].iter().any(|verb| entry["verb"] == *verb))
        .filter(|entry| chosen(entry))
        .filter(|entry| !entry["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All")))
        .map(|entry| Write {
            verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
            object: entry["objectRef"].clone(),
            ended: entry["stageTimestamp"].as_str().and_then(|at| at.parse().ok()).expect("a time"),
        })
        .collect()
}
