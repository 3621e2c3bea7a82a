//! One CDI spec: its devices, and the edits of each.

use super::edits::{CdiEdits, null_is_empty};
use super::version::CdiVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One CDI spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpec {
    /// The version that the spec declares. [`super::encode`] writes the lowest version that the spec needs, and uses
    /// this version only for fields that this crate does not know.
    pub cdi_version: CdiVersion,
    /// Vendor and class: `nvidia.com/gpu`.
    pub kind: String,
    /// Annotations; they do not change a container.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub devices: Vec<CdiSpecDevice>,
    /// Edits for every container that gets at least one of the devices.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "CdiEdits::is_empty")]
    pub container_edits: CdiEdits,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpecDevice {
    /// The device's name. A container requests the device as `kind=name`.
    pub name: String,
    /// Annotations; they do not change a container.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits for a container that gets the device.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub container_edits: CdiEdits,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl CdiSpec {
    /// A spec with one device. `carried` is the version of the spec from which the unknown fields in its edits came.
    #[must_use]
    pub fn of_device(kind: &str, name: &str, container_edits: CdiEdits, carried: CdiVersion) -> CdiSpec {
        CdiSpec {
            cdi_version: carried,
            kind: kind.to_owned(),
            annotations: BTreeMap::new(),
            devices: vec![CdiSpecDevice {
                name: name.to_owned(),
                annotations: BTreeMap::new(),
                container_edits,
                other: Map::new(),
            }],
            container_edits: CdiEdits::default(),
            other: Map::new(),
        }
    }

    /// The device with this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&CdiSpecDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}
