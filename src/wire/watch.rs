//! What the API server answers to a list and to a watch of pods.
//!
//! ```text
//!   list    one object: its version, where it goes on, the pods
//!   watch   lines without end ──Stream::feed──▶ events, each with the version that it leads to
//! ```
//!
//! A pod that cannot be read is an error of its own and costs no other one.

use crate::pod::{self, NotAPod};
use model::pod::{LabelKeys, Pod};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Longest line of a watch. etcd takes objects of 1.5 MiB, and JSON may write a byte as six.
pub const MAX_LINE: usize = 12 << 20;
/// Longest text of the server's that is kept.
const MAX_MESSAGE: usize = 300;

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPage {
    /// From where a watch goes on.
    pub version: String,
    /// What to ask for the next page, if there is one.
    pub next: Option<String>,
    /// The pods, and those that could not be read.
    pub pods: Vec<Result<Pod, UnreadablePod>>,
}

/// A pod that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {}: {why}", name.as_deref().unwrap_or("of unknown name"))]
pub struct UnreadablePod {
    /// Its UID, where at least that could be read.
    pub uid: Option<model::id::PodUid>,
    /// Namespace and name, where at least these could be read.
    pub name: Option<String>,
    /// Why.
    pub why: NotAPod,
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A pod came or changed.
    Applied(Box<Result<Pod, UnreadablePod>>),
    /// A pod is gone: its UID, where that can be read.
    Deleted(Option<model::id::PodUid>),
    /// Nothing happened up to here.
    Bookmark,
    /// The server ends the watch.
    Error(ApiRefusal),
}

/// What the server says where it does not do what it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRefusal {
    /// HTTP's number.
    pub code: u16,
    /// Its words, cut to a line.
    pub message: String,
}

/// An event, and the version it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchLine {
    /// What happened.
    pub event: WatchEvent,
    /// From where a watch goes on after it; `None` where it does not say.
    pub version: Option<String>,
}

/// Why an answer is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWatchAnswer {
    /// Not a list.
    #[error("not a list of pods: {0}")]
    List(String),
    /// Not an event.
    #[error("not an event of a watch: {0}")]
    Event(String),
    /// A line that does not end.
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

/// What can be read of an object that else cannot.
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

/// Reads one page of a list; of each pod the labels of these keys are kept.
///
/// # Errors
/// [`BadWatchAnswer::List`]
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

/// Reads what the server says where it refuses; what is no `Status` is quoted.
#[must_use]
pub fn refusal(code: u16, body: &[u8]) -> ApiRefusal {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let text = status.message.or(status.reason).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    ApiRefusal { code: status.code.unwrap_or(code), message: cut(&text) }
}

/// One line, short, fit to be shown.
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

/// The lines of a watch, put together from pieces.
#[derive(Debug, Default)]
pub struct WatchLines {
    begun: Vec<u8>,
    label_keys: LabelKeys,
}

impl WatchLines {
    /// A new one; of each pod the labels of these keys are kept.
    #[must_use]
    pub fn new(label_keys: LabelKeys) -> WatchLines {
        WatchLines { begun: Vec::new(), label_keys }
    }

    /// Takes the next piece in; gives the events that it completes.
    ///
    /// # Errors
    /// [`BadWatchAnswer`]; nothing more can be read after it.
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

/// One line; an empty one says nothing.
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
