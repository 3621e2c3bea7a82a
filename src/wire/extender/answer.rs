//! The answers to the verbs filter, prioritize and bind.

use super::candidates::CandidateNodes;
use serde_json::{Value, json};
use std::fmt::Write;

/// A node that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedNode<'a> {
    /// The node's place among the nodes of the call.
    pub place: usize,
    /// The reason; kube-scheduler counts equal texts.
    pub reason: &'a str,
    /// Whether no eviction of pods can help, so that kube-scheduler need not try.
    pub unresolvable: bool,
}

/// Writes the answer to a filter call. `fit` lists the nodes that fit by their places in the call. Like the call, the
/// answer has their names or the whole Nodes. A place that the call does not have is left out.
#[must_use]
pub fn encode_filter(nodes: &CandidateNodes<'_>, fit: &[usize], failed: &[FailedNode<'_>]) -> String {
    let mut text = String::with_capacity(length(nodes, fit, failed));
    text.push_str(r#"{"Nodes":"#);
    let by_name = matches!(nodes, CandidateNodes::Names(_));
    if by_name || fit.is_empty() {
        text.push_str("null");
    } else {
        text.push_str(r#"{"metadata":{},"items":["#);
        list(&mut text, fit.iter().filter_map(|place| nodes.object(*place)), |text, object| {
            text.push_str(object.get())
        });
        text.push_str("]}");
    }
    text.push_str(r#","NodeNames":"#);
    if by_name && !fit.is_empty() {
        text.push('[');
        names(&mut text, nodes, fit);
        text.push(']');
    } else {
        text.push_str("null");
    }
    for (field, unresolvable) in [("FailedNodes", false), ("FailedAndUnresolvableNodes", true)] {
        text.push_str(",\"");
        text.push_str(field);
        text.push_str("\":");
        reasons(&mut text, nodes, failed, unresolvable);
    }
    text.push_str(r#","Error":""}"#);
    text
}

/// Writes the names of the nodes at these places. Usually most of thousands of nodes fit, and neighbours in the answer
/// are also neighbours in the call, so the names of a run of neighbours are copied together.
fn names(text: &mut String, nodes: &CandidateNodes<'_>, places: &[usize]) {
    let (mut rest, mut first) = (places.iter().copied().filter(|place| *place < nodes.len()).peekable(), true);
    while let Some(place) = rest.next() {
        let mut last = place;
        while let Some(next) = rest.next_if(|next| *next == last + 1) {
            last = next;
        }
        if !first {
            text.push(',');
        }
        first = false;
        match nodes.written(place, last) {
            Some(written) => text.push_str(written),
            None => list(text, (place..=last).filter_map(|place| nodes.name(place)), quote),
        }
    }
}

/// The reasons by node, of the nodes that are `unresolvable` or of the other nodes; `null` without such nodes.
fn reasons(text: &mut String, nodes: &CandidateNodes<'_>, failed: &[FailedNode<'_>], unresolvable: bool) {
    let of_kind = failed.iter().filter(|node| node.unresolvable == unresolvable);
    let mut named = of_kind.filter_map(|node| Some((node.place, nodes.name(node.place)?, node.reason))).peekable();
    if named.peek().is_none() {
        text.push_str("null");
        return;
    }
    text.push('{');
    // Most nodes share one reason, which is the same text in memory. So its JSON is reused for the next node.
    let mut last: Option<(&str, String)> = None;
    list(text, named, |text, (place, name, reason)| {
        match nodes.written(place, place) {
            Some(written) => text.push_str(written),
            None => quote(text, name),
        }
        let (_, quoted) = match &mut last {
            Some(kept) if std::ptr::eq(kept.0, reason) => kept,
            other => {
                let mut quoted = ":".to_owned();
                quote(&mut quoted, reason);
                other.insert((reason, quoted))
            }
        };
        text.push_str(quoted);
    });
    text.push('}');
}

/// Writes the answer to a filter call that cannot be decided. kube-scheduler shows the text to users and tries the pod
/// again soon, so a pod that fits no node is not an error.
#[must_use]
pub fn encode_filter_error(error: &str) -> String {
    json!({
        "Nodes": null, "NodeNames": null, "FailedNodes": null, "FailedAndUnresolvableNodes": null, "Error": error,
    })
    .to_string()
}

/// Writes the answer to a prioritize call: the scores of its nodes, in the order of the call.
#[must_use]
pub fn encode_scores(nodes: &CandidateNodes<'_>, scores: &[i64]) -> String {
    // A name, the names of the two fields, a number.
    let mut text = String::with_capacity(nodes.names().map(|name| name.len() + 24 + 8).sum::<usize>() + 2);
    text.push('[');
    list(&mut text, nodes.names().zip(scores), |text, (name, score)| {
        text.push_str(r#"{"Host":"#);
        quote(text, name);
        text.push_str(r#","Score":"#);
        // Writing into a text does not fail.
        let _ = write!(text, "{score}");
        text.push('}');
    });
    text.push(']');
    text
}

/// Writes the answer to a bind call; an empty text if the pod is bound.
#[must_use]
pub fn encode_binding_error(error: &str) -> String {
    json!({ "Error": error }).to_string()
}

/// Writes the items with commas between them.
fn list<T>(text: &mut String, items: impl Iterator<Item = T>, mut write: impl FnMut(&mut String, T)) {
    for (number, item) in items.enumerate() {
        if number > 0 {
            text.push(',');
        }
        write(text, item);
    }
}

/// Writes a JSON string. Names of nodes have nothing to escape.
fn quote(text: &mut String, string: &str) {
    if string.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        text.push_str(&Value::from(string).to_string());
    }
}

/// The length of the answer to a filter call if no text needs escapes.
fn length(nodes: &CandidateNodes<'_>, fit: &[usize], failed: &[FailedNode<'_>]) -> usize {
    const EMPTY: usize = 128;
    let name = |place: usize| nodes.name(place).map_or(0, str::len);
    let of_fit = |place: &usize| nodes.object(*place).map_or_else(|| name(*place) + 2, |object| object.get().len()) + 1;
    let of_failed = |node: &FailedNode<'_>| name(node.place) + node.reason.len() + 6;
    EMPTY + fit.iter().map(of_fit).sum::<usize>() + failed.iter().map(of_failed).sum::<usize>()
}
