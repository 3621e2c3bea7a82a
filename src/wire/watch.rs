//! Reads the API server's answers to a list and to a watch of one kind of objects.
//!
//! ```text
//!   list    one object: its version, the token for the next page, the objects
//!   watch   endless lines ──WatchLines::feed──▶ events, each with the version that it leads to
//! ```
//!
//! An object that cannot be read is an error for that object only; all others are read.

use crate::pod;
use model::id::{NodeName, PodUid};
use model::pod::{LabelKeys, Pod};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum bytes of a line of a watch: etcd accepts objects of 1.5 MiB, and JSON may need six bytes for a byte.
pub const MAX_LINE: usize = 12 << 20;
/// Maximum number of characters that are kept of a message from the server. In a refusal, the reason comes after the
/// name of the object, which has up to 253 characters.
const MAX_MESSAGE: usize = 1000;

/// A kind of objects that can be listed and watched.
pub trait WatchedKind {
    /// An object of this kind, with the fields that are kept.
    type Object;
    /// The UID of an object.
    type Uid;
    /// The kind for people, in lower case.
    const NAME: &'static str;

    /// Reads a UID; `None` if the text is not a UID.
    fn uid(text: &str) -> Option<Self::Uid>;

    /// Reads one object.
    ///
    /// # Errors
    /// The reason, for the log.
    fn decode(&self, json: &str) -> Result<Self::Object, String>;
}

/// The pods of one node, with the labels of these keys.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    /// The keys.
    pub label_keys: LabelKeys,
}

impl WatchedKind for NodePods {
    type Object = Pod;
    type Uid = PodUid;
    const NAME: &'static str = "pod";

    fn uid(text: &str) -> Option<PodUid> {
        PodUid::parse(text).ok()
    }

    fn decode(&self, json: &str) -> Result<Pod, String> {
        pod::decode_text(json, &self.label_keys).map_err(|why| why.to_string())
    }
}

/// An object, or why it cannot be read.
pub type ReadObject<K> = Result<<K as WatchedKind>::Object, UnreadableObject<<K as WatchedKind>::Uid>>;

/// A page of a list, whose objects are not decoded yet.
#[derive(Debug)]
pub struct ListPage<'a> {
    /// The resource version from which a watch continues.
    pub version: String,
    /// The `continue` token for the next page, if there is a next page.
    pub next: Option<String>,
    items: Vec<&'a RawValue>,
}

/// An object that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {}: {why}", name.as_deref().unwrap_or("of unknown name"))]
pub struct UnreadableObject<U> {
    /// The kind.
    pub kind: &'static str,
    /// UID, if it can be read.
    pub uid: Option<U>,
    /// Namespace and name, if they can be read.
    pub name: Option<String>,
    /// The node on which the object may hold devices: set for a pod that is bound and has not ended, if this can be
    /// read.
    pub node: Option<NodeName>,
    /// The reason.
    pub why: String,
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent<O, U> {
    /// An object was added or changed.
    Applied(Box<Result<O, UnreadableObject<U>>>),
    /// An object was deleted: its UID, if it can be read.
    Deleted(Option<U>),
    /// All events up to this version have been sent.
    Bookmark,
    /// The server ends the watch.
    Error(ApiRefusal),
}

/// The message of the API server when it refuses a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRefusal {
    /// HTTP status code.
    pub code: u16,
    /// The refusal's text, cut to one line.
    pub message: String,
    /// Whether the answer was a `Status` object. Only an API server sends them; a proxy in front of it does not.
    pub is_status: bool,
}

/// An event, and the resource version that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchLine<O, U> {
    /// The event.
    pub event: WatchEvent<O, U>,
    /// The resource version from which a watch continues after it; `None` if the line has no version.
    pub version: Option<String>,
}

/// Why an answer of the API server cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWatchAnswer {
    /// Not a list.
    #[error("not a list: {0}")]
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

/// The fields that are read even from an invalid object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialObject {
    metadata: ObjectMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectMetadata {
    uid: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    resource_version: Option<String>,
}

/// The parts of an object that has at least one invalid field. Its other fields are read one by one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectParts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

/// Some fields of one part of an object, as raw JSON.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fields<'a> {
    #[serde(borrow)]
    uid: Option<&'a RawValue>,
    #[serde(borrow)]
    namespace: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    resource_version: Option<&'a RawValue>,
    #[serde(borrow)]
    node_name: Option<&'a RawValue>,
    #[serde(borrow)]
    phase: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    kind: Option<String>,
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
}

/// Reads one page of a list. Its objects are decoded by [`ListPage::objects`], which takes longer.
///
/// # Errors
/// [`BadWatchAnswer::List`] if the text is not a list.
pub fn page(json: &[u8]) -> Result<ListPage<'_>, BadWatchAnswer> {
    let raw: RawList<'_> = serde_json::from_slice(json).map_err(|error| BadWatchAnswer::List(error.to_string()))?;
    let ListMetadata { resource_version, r#continue } = raw.metadata;
    Ok(ListPage {
        version: resource_version,
        next: r#continue.filter(|next| !next.is_empty()),
        items: raw.items.unwrap_or_default(),
    })
}

impl ListPage<'_> {
    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.items.len()
    }

    /// Decodes the objects, with an error for each object that cannot be read.
    pub fn objects<K: WatchedKind>(&self, kind: &K) -> impl Iterator<Item = ReadObject<K>> {
        self.items.iter().map(|item| one(item, kind))
    }
}

/// Reads the answer to a read of one object.
///
/// # Errors
/// [`UnreadableObject`].
pub fn object<K: WatchedKind>(json: &[u8], kind: &K) -> ReadObject<K> {
    let raw: Result<&RawValue, _> = serde_json::from_slice(json);
    match raw {
        Ok(raw) => one(raw, kind),
        Err(why) => Err(UnreadableObject { kind: K::NAME, uid: None, name: None, node: None, why: why.to_string() }),
    }
}

/// Reads the answer with which the server refuses a request. An answer that is not a `Status` is quoted.
#[must_use]
pub fn refusal(code: u16, body: &[u8]) -> ApiRefusal {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let is_status = status.kind.as_deref() == Some("Status");
    let text = status.message.or(status.reason).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    ApiRefusal { code: status.code.unwrap_or(code), message: cut(&text), is_status }
}

/// The text as one short line without control characters.
fn cut(text: &str) -> String {
    text.trim().chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn metadata_of(object: &RawValue) -> ObjectMetadata {
    match serde_json::from_str::<PartialObject>(object.get()) {
        Ok(object) => object.metadata,
        // One field is invalid; the others still identify the object.
        Err(_) => {
            let Fields { uid, namespace, name, resource_version, .. } = fields(parts(object).metadata);
            ObjectMetadata {
                uid: string(uid),
                namespace: string(namespace),
                name: string(name),
                resource_version: string(resource_version),
            }
        }
    }
}

/// The node of a pod that is bound and has not ended.
fn node_of(object: &RawValue) -> Option<NodeName> {
    let parts = parts(object);
    let (spec, status) = (fields(parts.spec), fields(parts.status));
    let ended = matches!(string(status.phase).as_deref(), Some("Succeeded" | "Failed"));
    NodeName::parse(&string(spec.node_name)?).ok().filter(|_| !ended)
}

fn parts(object: &RawValue) -> ObjectParts<'_> {
    serde_json::from_str(object.get()).unwrap_or_default()
}

/// The fields of one part; empty if it is not an object.
fn fields(part: Option<&RawValue>) -> Fields<'_> {
    part.and_then(|part| serde_json::from_str(part.get()).ok()).unwrap_or_default()
}

fn string(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

fn one<K: WatchedKind>(object: &RawValue, kind: &K) -> ReadObject<K> {
    kind.decode(object.get()).map_err(|why| {
        let metadata = metadata_of(object);
        let name = match (&metadata.namespace, &metadata.name) {
            (Some(namespace), Some(name)) => Some(cut(&format!("{namespace}/{name}"))),
            (None, Some(name)) => Some(cut(name)),
            _ => None,
        };
        UnreadableObject { kind: K::NAME, uid: uid::<K>(&metadata), name, node: node_of(object), why }
    })
}

fn uid<K: WatchedKind>(metadata: &ObjectMetadata) -> Option<K::Uid> {
    K::uid(metadata.uid.as_deref()?)
}

/// Joins the pieces of a watch into lines.
#[derive(Debug, Default)]
pub struct WatchLines<K> {
    begun: Vec<u8>,
    kind: K,
}

/// A line of the watch of a kind.
pub type WatchLineOf<K> = WatchLine<<K as WatchedKind>::Object, <K as WatchedKind>::Uid>;

impl<K: WatchedKind> WatchLines<K> {
    /// A new watch of this kind.
    #[must_use]
    pub fn new(kind: K) -> WatchLines<K> {
        WatchLines { begun: Vec::new(), kind }
    }

    /// Adds the next piece, and returns the events that it completes.
    ///
    /// # Errors
    /// [`BadWatchAnswer`]; after it the watch cannot be read further.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<WatchLineOf<K>>, BadWatchAnswer> {
        let mut lines = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.begun.is_empty() {
                lines.extend(event(line, &self.kind)?);
            } else {
                let mut whole = std::mem::take(&mut self.begun);
                whole.extend_from_slice(line);
                lines.extend(event(&whole, &self.kind)?);
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
fn event<K: WatchedKind>(line: &[u8], kind: &K) -> Result<Option<WatchLineOf<K>>, BadWatchAnswer> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    if line.len() > MAX_LINE {
        return Err(BadWatchAnswer::TooLong);
    }
    let raw: RawEvent<'_> = serde_json::from_slice(line).map_err(|error| BadWatchAnswer::Event(error.to_string()))?;
    let metadata = metadata_of(raw.object);
    let event = match raw.kind.as_str() {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(Box::new(one(raw.object, kind))),
        "DELETED" => WatchEvent::Deleted(uid::<K>(&metadata)),
        "BOOKMARK" => WatchEvent::Bookmark,
        "ERROR" => WatchEvent::Error(refusal(500, raw.object.get().as_bytes())),
        other => return Err(BadWatchAnswer::Event(format!("unknown type {:?}", cut(other)))),
    };
    Ok(Some(WatchLine { event, version: metadata.resource_version.filter(|version| !version.is_empty()) }))
}

#[cfg(test)]
mod tests;
