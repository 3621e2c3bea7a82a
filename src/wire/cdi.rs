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
//!   edits     what is done to a container, and putting two sets of it together
//!   version   versions of CDI
//!   spec      one file
//!   host      what the host's own file says of one GPU
//!   lowest    which version a file needs: a runtime refuses what is newer than itself
//!   sound     what every runtime refuses
//! ```

pub mod edits;
pub mod version;
pub mod spec;
pub mod host;
mod lowest;
mod sound;

pub use edits::{CdiDeviceNode, CdiEdits, CdiHook, CdiMount};
pub use spec::{CdiSpec, CdiSpecDevice};
pub use version::CdiVersion;

use crate::decode_error::DecodeError;
use serde_json::Value;

/// A longer file is none: nvidia-ctk writes some 30 KiB for 8 GPUs.
pub const MAX_BYTES: usize = 4 << 20;
/// What faults call the file.
const KEY: &str = "CDI spec";

/// Reads a file in JSON.
///
/// # Errors
/// [`DecodeError`] where it is none, or says what no runtime would take.
pub fn decode(bytes: &[u8]) -> Result<CdiSpec, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::too_long(KEY, bytes.len(), MAX_BYTES));
    }
    let spec = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(KEY, bytes, &error))?;
    sound(&spec).map(|()| spec)
}

/// Reads a file that another room has made a value of; that room bounds its length by [`MAX_BYTES`].
///
/// # Errors
/// As [`decode`].
pub fn of_value(value: Value) -> Result<CdiSpec, DecodeError> {
    let spec = serde_json::from_value(value).map_err(|error| DecodeError::new(KEY, 0, error.to_string()))?;
    sound(&spec).map(|()| spec)
}

/// Writes a file in JSON, with the lowest version that fits.
///
/// # Errors
/// [`DecodeError`] for what no runtime would take.
pub fn encode(spec: &CdiSpec) -> Result<String, DecodeError> {
    sound(spec)?;
    let written = CdiSpec { cdi_version: lowest::version(spec), ..spec.clone() };
    let text = serde_json::to_string(&written).map_err(|error| DecodeError::new(KEY, 0, error.to_string()))?;
    if text.len() >= MAX_BYTES {
        return Err(DecodeError::too_long(KEY, text.len(), MAX_BYTES));
    }
    Ok(text + "\n")
}

fn sound(spec: &CdiSpec) -> Result<(), DecodeError> {
    sound::check(spec).map_err(|what| DecodeError::new(KEY, 0, what))
}

#[cfg(test)]
mod tests;
