//! The kubelet's checkpoint (`kubelet_internal_checkpoint`): the file in which its device manager stores which
//! container holds which devices.
//!
//! ```text
//!   {"Data":{"PodDeviceEntries":[{"PodUID":"…","ContainerName":"main","ResourceName":"nvidia.com/gpu",
//!            "DeviceIDs":{"-1":["GPU-…-3"]},"AllocResp":"<base64 of the answer to `Allocate`>"}],
//!            "RegisteredDevices":{"nvidia.com/gpu":["GPU-…-0", …]}},"Checksum":123}
//! ```
//!
//! `AllocResp` is the plugin's answer to `Allocate`, unchanged, and contains the ticket. Through the ticket the agent
//! finds the UID of the pod and the name of the container. `DeviceIDs` is a list for each NUMA node (`-1` for no NUMA
//! node). The checksum is not checked: its computation is internal to the kubelet and has changed.
//!
//! The answer of another plugin shows which GPUs the container has, whatever ids the kubelet counts: HAMi's plugin may
//! give other GPUs than the ids name.
//!
//! What must never happen here: one unreadable entry hides the others; the answer of another plugin is taken for an
//! answer of the agent.

use crate::cdi::host::gpu_of_path;
use crate::decode_error::{DecodeError, shown};
use crate::ticket;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::gpu_id;
use model::id::{PodUid, Ticket};
use model::nvidia;
use prost::Message;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum size in bytes: 65,536 devices of 63 characters, twice, are 9 MiB, and answers to `Allocate` are small.
pub const MAX_BYTES: usize = 32 << 20;
/// Maximum number of device ids of all containers: 16 GPUs with 100 slots each, forty times over for other plugins'
/// devices.
const MAX_IDS: usize = 65_536;
/// Name of the file in errors.
const KEY: &str = "kubelet_internal_checkpoint";

/// One entry of the checkpoint: the devices of one resource that one container holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRow {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: Arc<str>,
    /// The resource: `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Device ids of the plugin, ordered, each once.
    pub ids: Vec<Arc<str>>,
    /// CDI devices in the plugin's answer to `Allocate`.
    pub cdi_devices: Vec<Arc<str>>,
    /// The ticket in an annotation of the answer, next to device nodes: earlier releases issued such tickets if the
    /// runtime had no CDI.
    pub ticket: Option<Ticket>,
    /// Whether the answer came from another plugin: it is not empty, and has no ticket of the agent, not even an
    /// unreadable ticket.
    pub foreign: bool,
    /// The UUIDs of GPUs and MIG instances in another plugin's answer, ordered, each once.
    pub answered: Vec<Arc<str>>,
    /// The minor numbers of the GPUs whose device nodes are in another plugin's answer, ordered, each once.
    pub nodes: Vec<u32>,
}

/// The checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Entries that can be read, in the order of the file.
    pub allocations: Vec<CheckpointRow>,
    /// Devices that kubelet knows and regards as healthy, by resource.
    pub registered: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Entries that cannot be read.
    pub unreadable: Vec<UnreadableRow>,
}

/// An entry that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// The resource, so that a caller can ignore entries of other plugins.
    pub resource: Arc<str>,
    /// The number of the entry, and the reason.
    pub fault: DecodeError,
}

impl Checkpoint {
    /// The entry of the container that holds a ticket as a CDI device. Also `None` if two containers hold it, which
    /// must not happen: then neither entry can be trusted.
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

/// Lists by name; kubelet writes `null` for an empty list.
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
    ids: Option<Lists<'a>>,
    #[serde(borrow, rename = "AllocResp")]
    answer: Option<Cow<'a, str>>,
}

/// Reads the file.
///
/// # Errors
/// [`DecodeError`] if the file is not a checkpoint, or larger than [`MAX_BYTES`]. A single entry that cannot be read
/// is in [`Checkpoint::unreadable`].
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
    // Beyond the limit the lists are cut: the devices of other plugins must not make the whole checkpoint unreadable.
    let mut left = MAX_IDS;
    for (resource, ids) in file.data.registered.unwrap_or_default() {
        let ids: Vec<Arc<str>> = ids.unwrap_or_default().into_iter().take(left).map(Arc::from).collect();
        left -= ids.len();
        checkpoint.registered.insert(resource.into(), ids);
    }
    Ok(checkpoint)
}

fn allocation(entry: &Entry<'_>) -> Result<CheckpointRow, String> {
    let mut ids: Vec<Arc<str>> =
        entry.ids.iter().flat_map(BTreeMap::values).flatten().flatten().map(|id| Arc::from(&**id)).collect();
    ids.sort();
    ids.dedup();
    let place = || format!("{}, {}", shown(&entry.container), shown(&entry.resource));
    let answer = match &entry.answer {
        None => AnswerParts::default(),
        Some(text) => answer_parts(text).ok_or_else(|| format!("not a plugin's answer to Allocate ({})", place()))?,
    };
    Ok(CheckpointRow {
        pod: PodUid::parse(&entry.pod).map_err(|error| error.to_string())?,
        container: entry.container.as_ref().into(),
        resource: entry.resource.as_ref().into(),
        ids,
        cdi_devices: answer.cdi_devices,
        ticket: answer.ticket,
        foreign: answer.is_not_empty && !answer.ours,
        answered: answer.gpus,
        nodes: answer.nodes,
    })
}

/// The parts of a plugin's answer that are used.
#[derive(Default)]
struct AnswerParts {
    cdi_devices: Vec<Arc<str>>,
    ticket: Option<Ticket>,
    /// Whether the answer has any field.
    is_not_empty: bool,
    /// Whether the answer has something that only the agent writes.
    ours: bool,
    /// The UUIDs of GPUs and MIG instances, if the answer is another plugin's.
    gpus: Vec<Arc<str>>,
    /// The minor numbers of the GPUs whose device nodes are in the answer, if another plugin gave it.
    nodes: Vec<u32>,
}

/// The fields that are read of a plugin's answer to `Allocate`: `ContainerAllocateResponse` in the kubelet's
/// `deviceplugin/v1beta1/api.proto`.
#[derive(Clone, PartialEq, Message)]
struct AllocateResponse {
    /// The values are bytes, because other plugins' values may be anything.
    #[prost(btree_map = "string, bytes", tag = "1")]
    envs: BTreeMap<String, Vec<u8>>,
    #[prost(message, repeated, tag = "2")]
    mounts: Vec<NamedMount>,
    #[prost(message, repeated, tag = "3")]
    devices: Vec<NamedNode>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(message, repeated, tag = "5")]
    cdi_devices: Vec<NamedCdiDevice>,
}

/// `Mount` of the same file.
#[derive(Clone, PartialEq, Message)]
struct NamedMount {
    /// Bytes, for the same reason.
    #[prost(bytes = "vec", tag = "1")]
    container_path: Vec<u8>,
}

/// `DeviceSpec` of the same file.
#[derive(Clone, PartialEq, Message)]
struct NamedNode {
    /// Bytes, for the same reason.
    #[prost(bytes = "vec", tag = "2")]
    host_path: Vec<u8>,
}

/// `CDIDevice` of the same file.
#[derive(Clone, PartialEq, Message)]
struct NamedCdiDevice {
    #[prost(string, tag = "1")]
    name: String,
}

/// The names of the CDI devices, and the ticket in the annotations of a plugin's answer. `None` if the
/// text is not an answer.
fn answer_parts(answer: &str) -> Option<AnswerParts> {
    let bytes = STANDARD.decode(answer).ok()?;
    let answer = AllocateResponse::decode(&*bytes).ok()?;
    let names = answer.cdi_devices.into_iter().map(|device| device.name).filter(|name| !name.is_empty());
    let cdi_devices: Vec<Arc<str>> = names.map(Arc::from).collect();
    let written = answer.annotations.get(ticket::ANNOTATION).map(|value| std::str::from_utf8(value).ok());
    let ours = written.is_some() || cdi_devices.iter().any(|name| name.starts_with(ticket::KIND));
    let (mut gpus, mut nodes) = (Vec::new(), Vec::new());
    if !ours {
        gpus = named_gpus(&answer.envs, &answer.mounts, &answer.annotations, &cdi_devices);
        nodes = gpus_of_nodes(&answer.devices);
    }
    Some(AnswerParts {
        ours,
        gpus,
        nodes,
        cdi_devices,
        ticket: written.flatten().and_then(|value| Ticket::parse(value).ok()),
        is_not_empty: !bytes.is_empty(),
    })
}

/// Prefix of the annotations that name CDI devices, for runtimes that read no CDI devices from the kubelet.
const CDI_ANNOTATION: &str = "cdi.k8s.io/";
/// Maximum number of GPUs in one answer: the number of MIG instances of the largest node.
const MAX_ANSWERED: usize = 512;

/// The UUIDs of GPUs in an answer, wherever a plugin may write them. An index or `all` names no GPU: the ids do.
fn named_gpus(
    envs: &BTreeMap<String, Vec<u8>>,
    mounts: &[NamedMount],
    annotations: &BTreeMap<String, Vec<u8>>,
    cdi_devices: &[Arc<str>],
) -> Vec<Arc<str>> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let visible = envs.get(nvidia::VISIBLE_DEVICES).map(text);
    let mounted = mounts.iter().map(|mount| text(&mount.container_path));
    let mounted = mounted.filter_map(|path| path.strip_prefix(nvidia::VOLUME_MOUNTS).map(str::to_owned));
    let annotated = annotations.iter().filter(|(key, _)| key.starts_with(CDI_ANNOTATION)).map(|(_, value)| text(value));
    let cdi = cdi_devices.iter().map(|name| name.to_string());
    let texts: Vec<String> = visible.into_iter().chain(mounted).chain(annotated).chain(cdi).collect();
    // A CDI device is `vendor/class=name`.
    let names = texts.iter().flat_map(|text| text.split(',')).map(|name| name.rsplit('=').next().unwrap_or_default());
    let mut gpus: Vec<Arc<str>> =
        names.map(str::trim).filter(|name| gpu_id::is_of_gpu(name)).take(MAX_ANSWERED).map(Arc::from).collect();
    gpus.sort();
    gpus.dedup();
    gpus
}

/// The minor numbers of the GPUs whose device nodes a container gets.
fn gpus_of_nodes(devices: &[NamedNode]) -> Vec<u32> {
    let numbers = devices.iter().filter_map(|node| gpu_of_path(&String::from_utf8_lossy(&node.host_path)));
    let numbers: BTreeSet<u32> = numbers.take(MAX_ANSWERED).collect();
    numbers.into_iter().collect()
}

#[cfg(test)]
mod tests;
