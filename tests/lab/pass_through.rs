//! A scheduler extender that decides nothing: it decodes each filter call, and encodes an answer of the same shape and
//! size as a real extender. Its cost is the lowest possible cost of an extender, so benches compare with it.
//!
//! The nodes of a bench have a number at the end of their names. A node whose last digit is below the number of tenths is
//! full: the answer contains it with a reason.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::io::{Error, Result, Write};
use std::net::Ipv4Addr;

/// The reason in the answers.
pub const REASON: &str = "CardInsufficientMemory";
/// Threads of the runtime, the same number as in the extender.
const WORKERS: usize = 4;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PassedCall {
    #[expect(dead_code, reason = "decoded because a real extender needs it")]
    pod: Value,
    #[serde(rename = "Nodes")]
    _nodes: Option<IgnoredAny>,
    node_names: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PassedAnswer<'a> {
    nodes: Option<()>,
    node_names: Vec<&'a str>,
    #[serde(serialize_with = "with_reason")]
    failed_nodes: Vec<&'a str>,
    failed_and_unresolvable_nodes: Option<()>,
    error: &'static str,
}

fn with_reason<S: Serializer>(names: &[&str], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_map(names.iter().map(|name| (name, REASON)))
}

/// Whether the node is full.
#[must_use]
pub fn is_full(name: &str, tenths: u8) -> bool {
    name.bytes().last().is_some_and(|digit| digit < b'0' + tenths)
}

/// Decodes a filter call, and encodes the answer.
///
/// # Errors
/// If the body is not a filter call.
pub fn answer(body: &[u8], tenths: u8) -> serde_json::Result<Vec<u8>> {
    let call: PassedCall = serde_json::from_slice(body)?;
    let (failed_nodes, node_names) = call.node_names.iter().map(String::as_str).partition(|name| is_full(name, tenths));
    serde_json::to_vec(&PassedAnswer {
        nodes: None,
        node_names,
        failed_nodes,
        failed_and_unresolvable_nodes: None,
        error: "",
    })
}

/// Prints a line with the address on standard output, then serves `/filter` until the process is killed.
///
/// # Errors
/// If the port or the runtime cannot be made.
pub fn serve(tenths: u8) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", listener.local_addr()?)?;
        out.flush()?;
        let filter = |State(tenths): State<u8>, body: Bytes| async move {
            let text = answer(&body, tenths).unwrap_or_else(|error| error.to_string().into_bytes());
            ([(CONTENT_TYPE, "application/json")], text)
        };
        let router =
            Router::new().route("/filter", post(filter)).layer(DefaultBodyLimit::max(32 << 20)).with_state(tenths);
        axum::serve(listener, router).await.map_err(Error::other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn full_nodes_have_a_reason_and_the_others_are_named() {
        let call = json!({ "Pod": { "metadata": {} }, "Nodes": null, "NodeNames": ["node-0", "node-1", "node-9"] });
        let text = answer(call.to_string().as_bytes(), 1).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&text).unwrap(),
            json!({
                "Nodes": null, "NodeNames": ["node-1", "node-9"], "FailedNodes": { "node-0": REASON },
                "FailedAndUnresolvableNodes": null, "Error": "",
            })
        );
        assert!(answer(b"{", 1).is_err());
    }
}
