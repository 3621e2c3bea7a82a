//! Reads the API server's answers to a list and to a watch of pods.
//!
//! ```text
//!   list    one object: its version, the token for the next page, the pods
//!   watch   endless lines ──WatchLines::feed──▶ events, each with the version that it leads to
//! ```
//!
//! A pod that cannot be read is an error for that pod only; all other pods are read.

use crate::pod::{self, NotAPod};
use model::pod::{LabelKeys, Pod};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Longest line of a watch: etcd accepts objects of 1.5 MiB, and JSON may need six bytes for one.
pub const MAX_LINE: usize = 12 << 20;
/// Most characters that are kept of a message from the server. The reason of a refusal comes after the name of the
/// object, which has up to 253.
const MAX_MESSAGE: usize = 1000;

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPage {
    /// The resource version from which a watch continues.
    pub version: String,
    /// The `continue` token for the next page, if there is one.
    pub next: Option<String>,
    /// The pods, with an error for each pod that cannot be read.
    pub pods: Vec<Result<Pod, UnreadablePod>>,
}

/// A pod that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {}: {why}", name.as_deref().unwrap_or("of unknown name"))]
pub struct UnreadablePod {
    /// UID, where at least it can be read.
    pub uid: Option<model::id::PodUid>,
    /// Namespace and name, where at least these can be read.
    pub name: Option<String>,
    /// The reason.
    pub why: NotAPod,
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A pod came or changed.
    Applied(Box<Result<Pod, UnreadablePod>>),
    /// A pod was deleted: its UID, where it can be read.
    Deleted(Option<model::id::PodUid>),
    /// No further event up to this version.
    Bookmark,
    /// The server ends the watch.
    Error(ApiRefusal),
}

/// The message of the API server when it refuses a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRefusal {
    /// HTTP status code.
    pub code: u16,
    /// Its text, cut to one line.
    pub message: String,
}

/// An event, and the resource version that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchLine {
    /// The event.
    pub event: WatchEvent,
    /// The resource version from which a watch continues after it; `None` where the line has none.
    pub version: Option<String>,
}

/// Why an answer of the API server cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWatchAnswer {
    /// Not a list.
    #[error("not a list of pods: {0}")]
    List(String),
    /// Not an event.
    #[error("not an event of a watch: {0}")]
    Event(String),
    /// A line that is longer than [`MAX_LINE`].
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
}

#[derive(Deserialize)]
struct RawList<'a> {
    metadata: ListMetadata,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(default)]
    r#continue: Option<String>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The fields that are read also from an object that is not a valid pod.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Skeleton {
    metadata: Bones,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bones {
    uid: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
}

/// Reads one page of a list, and keeps the labels of each pod with these keys.
///
/// # Errors
/// [`BadWatchAnswer::List`] where the text is not a list.
pub fn page(json: &[u8], label_keys: &[Arc<str>]) -> Result<PodPage, BadWatchAnswer> {
    let raw: RawList<'_> = serde_json::from_slice(json).map_err(|error| BadWatchAnswer::List(error.to_string()))?;
    let ListMetadata { resource_version, r#continue } = raw.metadata;
    let items = raw.items.unwrap_or_default();
    Ok(PodPage {
        version: resource_version,
        next: r#continue.filter(|next| !next.is_empty()),
        pods: items.into_iter().map(|item| one(item, &skeleton(item), label_keys)).collect(),
    })
}

/// Reads the answer with which the server refuses a request. An answer that is not a `Status` is quoted.
#[must_use]
pub fn refusal(code: u16, body: &[u8]) -> ApiRefusal {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let text = status.message.or(status.reason).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    ApiRefusal { code: status.code.unwrap_or(code), message: cut(&text) }
}

/// The text as one short line without control characters.
fn cut(text: &str) -> String {
    text.trim().chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn skeleton(object: &RawValue) -> Bones {
    serde_json::from_str::<Skeleton>(object.get()).unwrap_or_default().metadata
}

fn one(object: &RawValue, bones: &Bones, label_keys: &[Arc<str>]) -> Result<Pod, UnreadablePod> {
    pod::decode_with(object.get().as_bytes(), label_keys).map_err(|why| {
        let name = match (&bones.namespace, &bones.name) {
            (Some(namespace), Some(name)) => Some(cut(&format!("{namespace}/{name}"))),
            _ => None,
        };
        UnreadablePod { uid: uid(bones), name, why }
    })
}

fn uid(bones: &Bones) -> Option<model::id::PodUid> {
    model::id::PodUid::parse(bones.uid.as_deref()?).ok()
}

/// Joins the pieces of a watch into lines.
#[derive(Debug, Default)]
pub struct WatchLines {
    begun: Vec<u8>,
    label_keys: LabelKeys,
}

impl WatchLines {
    /// A new watch, which keeps the labels of each pod with these keys.
    #[must_use]
    pub fn new(label_keys: LabelKeys) -> WatchLines {
        WatchLines { begun: Vec::new(), label_keys }
    }

    /// Adds the next piece, and gives the events that it completes.
    ///
    /// # Errors
    /// [`BadWatchAnswer`]; after it the watch cannot be read further.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<WatchLine>, BadWatchAnswer> {
        let mut lines = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.begun.is_empty() {
                lines.extend(event(line, &self.label_keys)?);
            } else {
                let mut whole = std::mem::take(&mut self.begun);
                whole.extend_from_slice(line);
                lines.extend(event(&whole, &self.label_keys)?);
            }
        }
        if self.begun.len() + bytes.len() > MAX_LINE {
            return Err(BadWatchAnswer::TooLong);
        }
        self.begun.extend_from_slice(bytes);
        Ok(lines)
    }
}

/// The event of one line; `None` for an empty line.
fn event(line: &[u8], label_keys: &[Arc<str>]) -> Result<Option<WatchLine>, BadWatchAnswer> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    if line.len() > MAX_LINE {
        return Err(BadWatchAnswer::TooLong);
    }
    let raw: RawEvent<'_> = serde_json::from_slice(line).map_err(|error| BadWatchAnswer::Event(error.to_string()))?;
    let bones = skeleton(raw.object);
    let event = match raw.kind.as_str() {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(Box::new(one(raw.object, &bones, label_keys))),
        "DELETED" => WatchEvent::Deleted(uid(&bones)),
        "BOOKMARK" => WatchEvent::Bookmark,
        "ERROR" => WatchEvent::Error(refusal(500, raw.object.get().as_bytes())),
        other => return Err(BadWatchAnswer::Event(format!("unknown type {:?}", cut(other)))),
    };
    Ok(Some(WatchLine { event, version: bones.resource_version.filter(|version| !version.is_empty()) }))
}

#[cfg(test)]
mod tests;
