//! One file: its devices, and what they mean for a container.

use super::edits::{CdiEdits, null_is_empty};
use super::version::CdiVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpec {
    /// What the file says that it needs. [`super::encode`] writes the lowest that fits, and looks at this only where there are edits
    /// that are not known here.
    pub cdi_version: CdiVersion,
    /// Vendor and class: `nvidia.com/gpu`.
    pub kind: String,
    /// Notes.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub devices: Vec<CdiSpecDevice>,
    /// Edits for every container that gets any of the devices.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "CdiEdits::is_empty")]
    pub container_edits: CdiEdits,
    /// What is not known here.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpecDevice {
    /// Its name; with the kind before it, how it is asked for.
    pub name: String,
    /// Notes.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits for a container that gets it.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub container_edits: CdiEdits,
    /// What is not known here.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl CdiSpec {
    /// A file with one device. `carried` is the version of the file that edits which are not known here came from.
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

    /// A device by its name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&CdiSpecDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}
