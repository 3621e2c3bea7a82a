//! The file of an issued ticket, which the agent keeps on disk so that a restart does not lose it.
//!
//! ```text
//!   {"version":1,"ticket":"t01…","order":7,"ids":["GPU-…-3"],
//!    "meant":{"pod":"<uid>","container":"main"},"holder":{…},
//!    "given":[{"uuid":"GPU-…","memory_bytes":3145728000,"core_percent":30}]}
//! ```
//!
//! `meant` is [`IssuedTicket::expected`]; tickets of earlier releases have it if the answer to `Allocate` had devices.
//! `holder` is present once kubelet's checkpoint names the container. `given` is present if the device shares of the
//! container cannot be derived from its claim alone.

use crate::decode_error::DecodeError;
use crate::kept_file::{KeptFile, Versioned};
use model::claim::DeviceShare;
use model::id::{ContainerKey, GpuUuid, PodUid, Ticket};
use model::ticket::IssuedTicket;
use model::unit::{Bytes, CorePercent};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// Folder in the state directory, with a folder for each ticket.
pub const FOLDER: &str = "tickets";
/// Name of the file in the folder of its ticket.
pub const FILE_NAME: &str = "ticket.json";
/// Maximum size in bytes: 512 ids and 512 device shares take less than 128 KiB; the rest is room to spare.
pub const MAX_BYTES: usize = 256 * 1024;
/// Maximum number of ids of one container: the GPUs and MIG instances of the largest node, with room to spare.
const MAX_IDS: usize = 512;
/// Name, version and size limit of the file.
const FILE: KeptFile = KeptFile { key: FILE_NAME, version: 1, max_bytes: MAX_BYTES };

#[derive(Serialize, Deserialize)]
struct Document<'a> {
    version: u32,
    #[serde(borrow)]
    ticket: Cow<'a, str>,
    order: u64,
    #[serde(borrow)]
    ids: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    meant: Option<Container<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    holder: Option<Container<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    given: Option<Vec<Device<'a>>>,
}

impl Versioned for Document<'_> {
    fn version(&self) -> u32 {
        self.version
    }
}

#[derive(Serialize, Deserialize)]
struct Container<'a> {
    #[serde(borrow)]
    pod: Cow<'a, str>,
    #[serde(borrow)]
    container: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct Device<'a> {
    #[serde(borrow)]
    uuid: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    core_percent: Option<u32>,
}

/// Writes an issued ticket, with a newline at the end.
///
/// # Errors
/// [`DecodeError`] for more ids or devices than [`decode`] accepts.
pub fn encode(issued: &IssuedTicket) -> Result<String, DecodeError> {
    let given = issued.given.as_deref().unwrap_or_default();
    if issued.ids.len() > MAX_IDS || given.len() > MAX_IDS {
        return Err(FILE.too_many("devices", MAX_IDS));
    }
    let container =
        |key: &ContainerKey| Container { pod: key.pod.to_string().into(), container: key.container.to_string().into() };
    let device = |share: &DeviceShare| Device {
        uuid: share.device.to_string().into(),
        memory_bytes: share.memory.map(|memory| memory.0),
        core_percent: share.cores.map(|cores| cores.0),
    };
    let document = Document {
        version: FILE.version,
        ticket: issued.ticket.as_str().into(),
        order: issued.order,
        ids: issued.ids.iter().map(|id| (&**id).into()).collect(),
        meant: issued.expected.as_ref().map(container),
        holder: issued.holder.as_ref().map(container),
        given: issued.given.as_ref().map(|given| given.iter().map(device).collect()),
    };
    FILE.encode(&document)
}

/// Reads an issued ticket.
///
/// # Errors
/// [`DecodeError`] for another version or another format.
pub fn decode(bytes: &[u8]) -> Result<IssuedTicket, DecodeError> {
    let document: Document<'_> = FILE.decode(bytes)?;
    let fault = |what: String| FILE.fault(what);
    if document.ids.len() > MAX_IDS || document.given.as_ref().is_some_and(|given| given.len() > MAX_IDS) {
        return Err(FILE.too_many("devices", MAX_IDS));
    }
    let container = |container: Container<'_>| {
        let pod = PodUid::parse(&container.pod).map_err(|error| fault(error.to_string()))?;
        Ok::<_, DecodeError>(ContainerKey { pod, container: container.container.into() })
    };
    let device = |device: &Device<'_>| {
        Ok::<_, DecodeError>(DeviceShare {
            device: GpuUuid::parse(&device.uuid).map_err(|error| fault(error.to_string()))?,
            memory: device.memory_bytes.map(Bytes),
            cores: device.core_percent.map(CorePercent),
        })
    };
    Ok(IssuedTicket {
        ticket: Ticket::parse(&document.ticket).map_err(|error| fault(error.to_string()))?,
        order: document.order,
        ids: document.ids.into_iter().map(Arc::from).collect(),
        expected: document.meant.map(container).transpose()?,
        holder: document.holder.map(container).transpose()?,
        given: document.given.map(|given| given.iter().map(device).collect()).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> ContainerKey {
        ContainerKey { pod: PodUid::parse(&format!("{n:032x}")).unwrap(), container: "main".into() }
    }

    #[test]
    fn another_version_or_name_is_refused() {
        let issued = IssuedTicket {
            ticket: Ticket::of_random([1; 16]),
            order: 3,
            ids: vec!["GPU-a-1".into()],
            expected: None,
            holder: None,
            given: None,
        };
        let text = encode(&issued).unwrap();
        assert_eq!(
            text,
            "{\"version\":1,\"ticket\":\"t01010101010101010101010101010101\",\"order\":3,\"ids\":[\"GPU-a-1\"]}\n"
        );
        for (from, to) in
            [("\"version\":1", "\"version\":2"), ("\"t01", "\"x01"), ("3", "-3"), ("[\"GPU", "[\"GPU\",7,\"")]
        {
            assert!(decode(text.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
        let many = IssuedTicket { ids: vec!["i".into(); MAX_IDS + 1], ..issued };
        assert!(encode(&many).is_err());
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(
            bytes: [u8; 16],
            order: u64,
            ids in prop::collection::vec("\\PC{0,12}", 0..4),
            expected in prop::option::of(0_u8..9),
            holder in prop::option::of(0_u8..9),
            given in prop::option::of(prop::collection::vec((0_u8..9, any::<Option<u64>>(), any::<Option<u32>>()), 0..4)),
        ) {
            let share = |(n, memory, cores): (u8, Option<u64>, Option<u32>)| DeviceShare {
                device: GpuUuid::parse(&format!("GPU-{n}")).unwrap(), memory: memory.map(Bytes), cores: cores.map(CorePercent),
            };
            let issued = IssuedTicket {
                ticket: Ticket::of_random(bytes), order, ids: ids.into_iter().map(Arc::from).collect(),
                expected: expected.map(key), holder: holder.map(key),
                given: given.map(|given| given.into_iter().map(share).collect()),
            };
            prop_assert_eq!(decode(encode(&issued).unwrap().as_bytes()), Ok(issued));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
