//! The limits file, where a container reads its own limits (`/etc/gpu-steward/limits.json`, mounted read-only).
//!
//! ```text
//!   {"version":1,"pod":{"uid":"…","namespace":"ml","name":"train-0"},"container":"main","priority":0,
//!    "devices":[{"index":0,"uuid":"GPU-…","node_index":3,"model":"NVIDIA H100 80GB HBM3",
//!                "memory_bytes":3145728000,"core_percent":30}]}
//! ```
//!
//! `index` is the index of the device in the container, `node_index` NVML's index on the node. Without `core_percent`
//! there is no limit of SM time; without `priority` the pod requested no priority. If the claim does not limit the
//! memory, `memory_bytes` is the whole memory of the device and `"memory_unlimited":true` is set. New fields may be
//! added under the same version, and a reader skips unknown fields. A new version means that the meaning of a field has
//! changed.

use crate::decode_error::DecodeError;
use crate::kept_file::{KeptFile, Versioned};
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid};
use model::limits::{ContainerLimits, DeviceLimits};
use model::unit::{Bytes, CorePercent};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Path of the limits file in the container.
pub const PATH: &str = "/etc/gpu-steward/limits.json";
/// Folder in the state directory. It has a folder for each pod, named by its UID, with a folder for each container.
pub const PODS: &str = "pods";
/// Name of the file in the folder of its container.
pub const FILE_NAME: &str = "limits.json";
/// Maximum size in bytes: 512 devices of 300 bytes each take 150 KiB; the rest is room to spare.
pub const MAX_BYTES: usize = 256 * 1024;
/// Maximum number of devices of one container: the number of MIG instances of the largest node.
const MAX_DEVICES: usize = 512;
/// Name, version and size limit of the file.
const FILE: KeptFile = KeptFile { key: FILE_NAME, version: 1, max_bytes: MAX_BYTES };

#[derive(Serialize, Deserialize)]
struct Document<'a> {
    version: u32,
    #[serde(borrow)]
    pod: Pod<'a>,
    #[serde(borrow)]
    container: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(borrow)]
    devices: Vec<Device<'a>>,
}

impl Versioned for Document<'_> {
    fn version(&self) -> u32 {
        self.version
    }
}

#[derive(Serialize, Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct Device<'a> {
    index: usize,
    #[serde(borrow)]
    uuid: Cow<'a, str>,
    node_index: u32,
    #[serde(borrow)]
    model: Cow<'a, str>,
    memory_bytes: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    memory_unlimited: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    core_percent: Option<u32>,
}

/// Writes the limits, with a newline at the end. Equal limits give equal texts.
///
/// # Errors
/// [`DecodeError`] for more devices than [`decode`] accepts.
pub fn encode(limits: &ContainerLimits) -> Result<String, DecodeError> {
    if limits.devices.len() > MAX_DEVICES {
        return Err(FILE.too_many("devices", MAX_DEVICES));
    }
    let device = |(index, device): (usize, &DeviceLimits)| Device {
        index,
        uuid: device.uuid.to_string().into(),
        node_index: device.index,
        model: device.model.to_string().into(),
        memory_bytes: device.memory.0,
        memory_unlimited: device.unlimited,
        core_percent: device.cores.map(|cores| cores.0),
    };
    let document = Document {
        version: FILE.version,
        pod: Pod {
            uid: limits.holder.pod.as_str().into(),
            namespace: limits.pod.namespace.as_ref().into(),
            name: limits.pod.name.as_ref().into(),
        },
        container: limits.holder.container.as_ref().into(),
        priority: limits.priority,
        devices: limits.devices.iter().enumerate().map(device).collect(),
    };
    FILE.encode(&document)
}

/// Reads the limits.
///
/// # Errors
/// [`DecodeError`] for another version, another format, or devices whose indexes do not count up from 0.
pub fn decode(bytes: &[u8]) -> Result<ContainerLimits, DecodeError> {
    let document: Document<'_> = FILE.decode(bytes)?;
    let fault = |what: String| FILE.fault(what);
    if document.devices.len() > MAX_DEVICES {
        return Err(FILE.too_many("devices", MAX_DEVICES));
    }
    if let Some((place, _)) = document.devices.iter().enumerate().find(|(place, device)| device.index != *place) {
        return Err(fault(format!("device {place} has the wrong index")));
    }
    let device = |device: &Device<'_>| {
        Ok(DeviceLimits {
            uuid: GpuUuid::parse(&device.uuid).map_err(|error| fault(error.to_string()))?,
            index: device.node_index,
            model: device.model.as_ref().into(),
            memory: Bytes(device.memory_bytes),
            unlimited: device.memory_unlimited,
            cores: device.core_percent.map(CorePercent),
        })
    };
    Ok(ContainerLimits {
        holder: ContainerKey {
            pod: PodUid::parse(&document.pod.uid).map_err(|error| fault(error.to_string()))?,
            container: document.container.as_ref().into(),
        },
        pod: PodRef { namespace: document.pod.namespace.as_ref().into(), name: document.pod.name.as_ref().into() },
        devices: document.devices.iter().map(device).collect::<Result<_, DecodeError>>()?,
        priority: document.priority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits() -> ContainerLimits {
        ContainerLimits {
            holder: ContainerKey {
                pod: PodUid::parse("466d3e0f-28fd-4a4c-a28d-790ef2a79f8c").unwrap(),
                container: "main".into(),
            },
            pod: PodRef { namespace: "ml".into(), name: "train-0".into() },
            devices: vec![
                DeviceLimits {
                    uuid: GpuUuid::parse("GPU-b").unwrap(),
                    index: 3,
                    model: "NVIDIA H100 80GB HBM3".into(),
                    memory: Bytes(3000 << 20),
                    unlimited: false,
                    cores: Some(CorePercent(30)),
                },
                DeviceLimits {
                    uuid: GpuUuid::parse("GPU-a").unwrap(),
                    index: 0,
                    model: "Tesla T4".into(),
                    memory: Bytes(1),
                    unlimited: true,
                    cores: None,
                },
            ],
            priority: None,
        }
    }

    const TEXT: &str = concat!(
        r#"{"version":1,"pod":{"uid":"466d3e0f-28fd-4a4c-a28d-790ef2a79f8c","namespace":"ml","name":"train-0"},"#,
        r#""container":"main","devices":[{"index":0,"uuid":"GPU-b","node_index":3,"model":"NVIDIA H100 80GB HBM3","#,
        r#""memory_bytes":3145728000,"core_percent":30},{"index":1,"uuid":"GPU-a","node_index":0,"model":"Tesla T4","#,
        r#""memory_bytes":1,"memory_unlimited":true}]}"#,
        "\n"
    );

    #[test]
    fn the_limits_of_a_container_have_one_text_form() {
        assert_eq!(encode(&limits()).unwrap(), TEXT);
        assert_eq!(decode(TEXT.as_bytes()), Ok(limits()));
        let more = TEXT.replace("\"version\":1", "\"version\":1,\"later\":{\"a\":[1]}");
        assert_eq!(decode(more.as_bytes()), Ok(limits()));
    }

    #[test]
    fn other_documents_are_refused() {
        for (from, to, what) in [
            ("\"version\":1", "\"version\":2", "has version 2; only version 1 can be read"),
            ("\"version\":1,", "", "missing field `version`"),
            ("\"index\":1", "\"index\":2", "device 1 has the wrong index"),
            ("\"GPU-a\"", "\"GPU a\"", "not a GPU UUID"),
            ("466d3e0f", "x", "not a pod UID"),
            ("3145728000", "-1", "invalid value"),
        ] {
            let fault = decode(TEXT.replace(from, to).as_bytes()).unwrap_err();
            assert!(fault.what.contains(what), "{to}: {fault}");
        }
        assert!(decode(&vec![b' '; MAX_BYTES + 1]).unwrap_err().what.contains("bytes long"));
        let mut many = limits();
        many.devices = vec![many.devices[1].clone(); MAX_DEVICES + 1];
        assert!(encode(&many).unwrap_err().what.contains("more than 512 devices"));
        many.devices.pop();
        assert!(decode(encode(&many).unwrap().as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(
            devices in prop::collection::vec(("[!-~]{1,20}", any::<u32>(), "\\PC{0,20}", any::<(u64, bool)>(), any::<Option<u32>>()), 0..5),
            names in ("\\PC{0,10}", "\\PC{0,10}", "\\PC{0,10}"), priority: Option<u32>,
        ) {
            let device = |(uuid, index, model, memory, cores): (String, u32, String, (u64, bool), Option<u32>)| DeviceLimits {
                uuid: GpuUuid::parse(&uuid).unwrap(),
                index,
                model: model.into(),
                memory: Bytes(memory.0),
                unlimited: memory.1,
                cores: cores.map(CorePercent),
            };
            let expected = ContainerLimits {
                holder: ContainerKey { container: names.2.into(), ..limits().holder },
                pod: PodRef { namespace: names.0.into(), name: names.1.into() },
                devices: devices.into_iter().map(device).collect(),
                priority,
            };
            prop_assert_eq!(decode(encode(&expected).unwrap().as_bytes()), Ok(expected));
        }
    }
}
