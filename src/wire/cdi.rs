//! Container Device Interface: what a named device means for a container.
//!
//! ```text
//!   {"cdiVersion":"0.5.0","kind":"gpu-steward.io/gpu",
//!    "devices":[{"name":"t0123…","containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],"deviceNodes":[{"path":"/dev/nvidia0"}]}}],
//!    "containerEdits":{"hooks":[…],"mounts":[…]}}          for every device of the file
//! ```
//!
//! nvidia-ctk's file is read, from JSON or from YAML (a room that has YAML makes a [`serde_json::Value`] of it), so that what
//! it says of all GPUs can stand in the files of tickets; those are written. Edits that are not known here are carried along
//! word for word, under the version of the file that they came from: an edit must never be lost on the way.
//!
//! ```text
//!   edits     the edits, and putting two sets of them together
//!   version   which version of CDI a file needs: a runtime refuses what is newer than itself
//!   sound     what every runtime refuses
//! ```

pub mod edits;
pub mod version;
mod sound;

pub use edits::{DeviceNode, Edits, Hook, Mount};
pub use version::Version;

use crate::fault::Fault;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A longer file is none: nvidia-ctk writes some 30 KiB for 8 GPUs.
pub const MAX_BYTES: usize = 4 << 20;
/// What faults call the file.
const KEY: &str = "CDI spec";

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// What the file says that it needs. [`encode`] writes the lowest that fits, and looks at this only where there are edits
    /// that are not known here.
    pub cdi_version: Version,
    /// Vendor and class: `nvidia.com/gpu`.
    pub kind: String,
    /// Notes.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub devices: Vec<Device>,
    /// Edits for every container that gets any of the devices.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
    /// What is not known here.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name; with the kind before it, how it is asked for.
    pub name: String,
    /// Notes.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits for a container that gets it.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub container_edits: Edits,
    /// What is not known here.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Go writes `null` for a list or mapping that was never made.
fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Spec {
    /// A file with one device. `carried` is the version of the file that edits which are not known here came from.
    #[must_use]
    pub fn of_device(kind: &str, name: &str, container_edits: Edits, carried: Version) -> Spec {
        Spec {
            cdi_version: carried,
            kind: kind.to_owned(),
            annotations: BTreeMap::new(),
            devices: vec![Device {
                name: name.to_owned(),
                annotations: BTreeMap::new(),
                container_edits,
                other: Map::new(),
            }],
            container_edits: Edits::default(),
            other: Map::new(),
        }
    }

    /// A device by its name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

/// Reads a file in JSON.
///
/// # Errors
/// [`Fault`] where it is none, or says what no runtime would take.
pub fn decode(bytes: &[u8]) -> Result<Spec, Fault> {
    if bytes.len() > MAX_BYTES {
        return Err(Fault::too_long(KEY, bytes.len(), MAX_BYTES));
    }
    let spec = serde_json::from_slice(bytes).map_err(|error| Fault::json(KEY, bytes, &error))?;
    sound::check(&spec).map(|()| spec)
}

/// Reads a file that another room has made a value of; that room bounds its length by [`MAX_BYTES`].
///
/// # Errors
/// As [`decode`].
pub fn of_value(value: Value) -> Result<Spec, Fault> {
    let spec = serde_json::from_value(value).map_err(|error| Fault::new(KEY, 0, error.to_string()))?;
    sound::check(&spec).map(|()| spec)
}

/// Writes a file in JSON, with the lowest version that fits.
///
/// # Errors
/// [`Fault`] for what no runtime would take.
pub fn encode(spec: &Spec) -> Result<String, Fault> {
    sound::check(spec)?;
    let written = Spec { cdi_version: version::needed(spec), ..spec.clone() };
    let text = serde_json::to_string(&written).map_err(|error| Fault::new(KEY, 0, error.to_string()))?;
    if text.len() >= MAX_BYTES {
        return Err(Fault::too_long(KEY, text.len(), MAX_BYTES));
    }
    Ok(text + "\n")
}

#[cfg(test)]
mod tests;
