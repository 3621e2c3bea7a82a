//! kubelet's memory of which container holds which devices (`kubelet_internal_checkpoint`).
//!
//! ```text
//!   {"Data":{"PodDeviceEntries":[{"PodUID":"…","ContainerName":"main","ResourceName":"nvidia.com/gpu",
//!            "DeviceIDs":{"-1":["GPU-…-3"]},"AllocResp":"<base64 of the plugin's own answer>"}],
//!            "RegisteredDevices":{"nvidia.com/gpu":["GPU-…-0", …]}},"Checksum":123}
//! ```
//!
//! The plugin's answer stands in it as it was given, and with it the ticket: so a ticket leads to the pod's UID and the
//! container's name. `DeviceIDs` is a list by NUMA node (`-1`, in 1.20 `0`, where there is none), before 1.20 a plain list.
//! The checksum is kubelet's own affair: how it is made has changed and is no interface.
//!
//! What must never happen here: one entry that cannot be read hiding the others. Other plugins' answers are theirs.

use crate::base64;
use crate::decode_error::{DecodeError, shown};
use crate::protobuf::{Field, fields};
use crate::ticket;
use model::id::{PodUid, Ticket};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A longer file is not kubelet's: 65,536 devices of 63 characters, twice, are 9 MiB, and answers are small.
pub const MAX_BYTES: usize = 32 << 20;
/// Device ids of all containers: 16 GPUs in 100 slots each, forty times over for other plugins' devices.
const MAX_IDS: usize = 65_536;
/// What faults call the file.
const KEY: &str = "kubelet_internal_checkpoint";

/// What one container holds of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRow {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: Arc<str>,
    /// The resource: `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Device ids as the plugin named them, in order, each once.
    pub ids: Vec<Arc<str>>,
    /// CDI devices in the plugin's answer.
    pub cdi_devices: Vec<Arc<str>>,
    /// The ticket that stands in the plugin's answer beside devices, where the runtime has no CDI.
    pub ticket: Option<Ticket>,
    /// The ticket's record beside it, as it was written ([`crate::issued`]).
    pub record: Option<Arc<str>>,
    /// Whether the plugin's answer has something in it and nothing of it is a ticket of ours, not even a broken one.
    pub foreign: bool,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// What containers hold, in the file's order.
    pub allocations: Vec<CheckpointRow>,
    /// Devices that kubelet knows and takes for healthy, by resource.
    pub registered: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Entries that could not be read; the others are above.
    pub unreadable: Vec<UnreadableRow>,
}

/// An entry that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// The resource: another plugin's entries are its own affair.
    pub resource: Arc<str>,
    /// Which entry, and why.
    pub fault: DecodeError,
}

impl Checkpoint {
    /// Who holds a ticket of a CDI device. None also where two containers do, which no ticket may: then nobody can be sure.
    #[must_use]
    pub fn holder(&self, ticket: &Ticket) -> Option<&CheckpointRow> {
        let name = ticket::qualified(ticket);
        let mut holders =
            self.allocations.iter().filter(|held| held.cdi_devices.iter().any(|device| **device == *name));
        match (holders.next(), holders.next()) {
            (Some(holder), None) => Some(holder),
            _ => None,
        }
    }
}

/// Lists by name; kubelet writes `null` for an empty one.
type Lists<'a> = BTreeMap<Cow<'a, str>, Option<Vec<Cow<'a, str>>>>;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, rename = "Data")]
    data: Data<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry<'a>>>,
    #[serde(borrow, rename = "RegisteredDevices")]
    registered: Option<Lists<'a>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow, rename = "PodUID")]
    pod: Cow<'a, str>,
    #[serde(borrow, rename = "ContainerName")]
    container: Cow<'a, str>,
    #[serde(borrow, rename = "ResourceName")]
    resource: Cow<'a, str>,
    #[serde(borrow, rename = "DeviceIDs")]
    ids: Option<Ids<'a>>,
    #[serde(borrow, rename = "AllocResp")]
    answer: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids<'a> {
    ByNuma(#[serde(borrow)] Lists<'a>),
    Plain(#[serde(borrow)] Vec<Cow<'a, str>>),
}

/// Reads the file.
///
/// # Errors
/// [`DecodeError`] where it is no checkpoint or larger than any. A single entry that cannot be read is told in
/// [`Checkpoint::unreadable`].
pub fn parse(bytes: &[u8]) -> Result<Checkpoint, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::too_long(KEY, bytes.len(), MAX_BYTES));
    }
    let file: File<'_> = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(KEY, bytes, &error))?;
    let mut checkpoint = Checkpoint::default();
    let mut left = MAX_IDS;
    for (number, entry) in file.data.entries.unwrap_or_default().into_iter().enumerate() {
        match allocation(&entry) {
            Ok(allocation) => {
                left = left
                    .checked_sub(allocation.ids.len().max(1))
                    .ok_or_else(|| DecodeError::too_many(KEY, 0, "devices in use", MAX_IDS))?;
                checkpoint.allocations.push(allocation);
            }
            Err(what) => checkpoint.unreadable.push(UnreadableRow {
                resource: entry.resource.as_ref().into(),
                fault: DecodeError::new(KEY, 0, format!("entry {number} cannot be read: {what}")),
            }),
        }
    }
    // Of a resource with too many of them a part is known: that other plugins have that many is no reason to read nothing.
    let mut left = MAX_IDS;
    for (resource, ids) in file.data.registered.unwrap_or_default() {
        let ids: Vec<Arc<str>> = ids.unwrap_or_default().into_iter().take(left).map(Arc::from).collect();
        left -= ids.len();
        checkpoint.registered.insert(resource.into(), ids);
    }
    Ok(checkpoint)
}

fn allocation(entry: &Entry<'_>) -> Result<CheckpointRow, String> {
    let mut ids: Vec<Arc<str>> = match &entry.ids {
        None => Vec::new(),
        Some(Ids::Plain(ids)) => ids.iter().map(|id| Arc::from(id.as_ref())).collect(),
        Some(Ids::ByNuma(nodes)) => nodes.values().flatten().flatten().map(|id| Arc::from(id.as_ref())).collect(),
    };
    ids.sort();
    ids.dedup();
    let who = || format!("{}, {}", shown(&entry.container), shown(&entry.resource));
    let told = match &entry.answer {
        None => Told::default(),
        Some(answer) => told(answer).ok_or_else(|| format!("not an answer of a plugin ({})", who()))?,
    };
    Ok(CheckpointRow {
        pod: PodUid::parse(&entry.pod).map_err(|error| error.to_string())?,
        container: entry.container.as_ref().into(),
        resource: entry.resource.as_ref().into(),
        ids,
        cdi_devices: told.cdi_devices,
        ticket: told.ticket,
        record: told.record,
        foreign: told.something && !told.ours,
    })
}

/// What of a plugin's answer is wanted.
#[derive(Default)]
struct Told {
    cdi_devices: Vec<Arc<str>>,
    ticket: Option<Ticket>,
    record: Option<Arc<str>>,
    /// Whether there is anything at all.
    something: bool,
    /// Whether there is what only we write.
    ours: bool,
}

/// The names of the CDI devices (field 5, each a message with its name in field 1), the ticket and its record among the annotations
/// (field 4, each a message of key and value) in a plugin's answer.
fn told(answer: &str) -> Option<Told> {
    let bytes = base64::decode(answer)?;
    let mut told = Told::default();
    for (number, field) in fields(&bytes)? {
        told.something = true;
        match (number, field) {
            (5, Field::Bytes(device)) => {
                if let Some(name) = text(device, 1)? {
                    told.ours |= name.starts_with(ticket::KIND);
                    told.cdi_devices.push(name.into());
                }
            }
            (4, Field::Bytes(annotation)) => match text(annotation, 1)? {
                Some(ticket::ANNOTATION) => {
                    told.ours = true;
                    told.ticket = text(annotation, 2)?.and_then(|value| Ticket::parse(value).ok());
                }
                Some(ticket::RECORD) => told.record = text(annotation, 2)?.map(Arc::from),
                _ => {}
            },
            _ => {}
        }
    }
    Some(told)
}

/// The last text of this number in a message, which is the one that counts. `None` where it is no message or no text.
fn text(message: &[u8], wanted: u64) -> Option<Option<&str>> {
    let mut found = None;
    for (number, field) in fields(message)? {
        if let (true, Field::Bytes(bytes)) = (number == wanted, field) {
            found = Some(std::str::from_utf8(bytes).ok()?);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
