//! Container Device Interface (CDI): the changes that a named device makes to a container.
//!
//! ```text
//!   {"cdiVersion":"0.5.0","kind":"gpu-steward.io/gpu",
//!    "devices":[{"name":"t0123…",
//!                "containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],"deviceNodes":[{"path":"/dev/nvidia0"}]}}],
//!    "containerEdits":{"hooks":[…],"mounts":[…]}}          for every device of the spec
//! ```
//!
//! This file reads the CDI spec of nvidia-ctk, so that the agent can copy its edits into the CDI specs of tickets,
//! which this file writes. A spec in YAML arrives as a [`serde_json::Value`], made by a crate that has a YAML parser.
//! Fields that this file does not know are kept word for word, with the version of the spec that they came from: no
//! edit may be lost.
//!
//! ```text
//!   edits     the changes that a runtime makes to a container, and the merging of two sets of them
//!   version   versions of CDI
//!   spec      one CDI spec
//!   host      the edits for one GPU in the host's own CDI spec
//!   lowest    the lowest version that a spec needs: a runtime refuses a spec newer than itself
//!   validate  the checks that every runtime makes
//! ```

pub mod edits;
pub mod version;
pub mod spec;
pub mod host;
mod lowest;
mod validate;

pub use edits::{CdiDeviceNode, CdiEdits, CdiHook, CdiMount};
pub use spec::{CdiSpec, CdiSpecDevice};
pub use version::CdiVersion;

use crate::decode_error::DecodeError;
use serde_json::Value;

/// Maximum size of a CDI spec in bytes: nvidia-ctk writes about 30 KiB for 8 GPUs.
pub const MAX_BYTES: usize = 4 << 20;
/// Name of the file in errors.
const KEY: &str = "CDI spec";

/// Reads a CDI spec in JSON.
///
/// # Errors
/// [`DecodeError`] if the text is not a CDI spec, or no runtime would accept it.
pub fn decode(bytes: &[u8]) -> Result<CdiSpec, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::too_long(KEY, bytes.len(), MAX_BYTES));
    }
    let spec = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(KEY, bytes, &error))?;
    validate(&spec).map(|()| spec)
}

/// Reads a CDI spec that the caller has parsed. The caller bounds the length of its text by [`MAX_BYTES`].
///
/// # Errors
/// As [`decode`].
pub fn of_value(value: Value) -> Result<CdiSpec, DecodeError> {
    let spec = serde_json::from_value(value).map_err(|error| DecodeError::new(KEY, 0, error.to_string()))?;
    validate(&spec).map(|()| spec)
}

/// Writes a CDI spec in JSON, with the lowest version that it needs, for a runtime that reads versions up to `newest`;
/// `None`: any version.
///
/// # Errors
/// [`DecodeError`] for a spec that no runtime, or not this runtime, would accept.
pub fn encode(spec: &CdiSpec, newest: Option<CdiVersion>) -> Result<String, DecodeError> {
    validate(spec)?;
    let written = CdiSpec { cdi_version: lowest::version(spec), ..spec.clone() };
    if let Some(newest) = newest.filter(|newest| written.cdi_version > *newest) {
        let what = format!("needs CDI {}, and the container runtime reads CDI up to {newest}", written.cdi_version);
        return Err(DecodeError::new(KEY, 0, what));
    }
    let text = serde_json::to_string(&written).map_err(|error| DecodeError::new(KEY, 0, error.to_string()))?;
    if text.len() >= MAX_BYTES {
        return Err(DecodeError::too_long(KEY, text.len(), MAX_BYTES));
    }
    Ok(text + "\n")
}

fn validate(spec: &CdiSpec) -> Result<(), DecodeError> {
    validate::check(spec).map_err(|what| DecodeError::new(KEY, 0, what))
}

#[cfg(test)]
mod tests;
