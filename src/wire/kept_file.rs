//! JSON files that the agent writes and reads again: bounded, with a version, and with a newline at the end.

use crate::decode_error::DecodeError;
use serde::{Deserialize, Serialize};

/// The format of one kept file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptFile {
    /// Name of the file in errors.
    pub(crate) key: &'static str,
    /// The version that `encode` writes and the only version that `decode` accepts.
    pub(crate) version: u32,
    /// Maximum size; the agent never writes a longer file.
    pub(crate) max_bytes: usize,
}

/// A document with a version.
pub(crate) trait Versioned {
    fn version(&self) -> u32;
}

impl KeptFile {
    /// The document as JSON, with a newline at the end.
    pub(crate) fn encode(&self, document: &impl Serialize) -> Result<String, DecodeError> {
        let text = serde_json::to_string(document).map_err(|error| self.fault(error.to_string()))?;
        Ok(text + "\n")
    }

    /// The document, if it has the version of this format.
    pub(crate) fn decode<'a, D: Deserialize<'a> + Versioned>(&self, bytes: &'a [u8]) -> Result<D, DecodeError> {
        if bytes.len() > self.max_bytes {
            return Err(DecodeError::too_long(self.key, bytes.len(), self.max_bytes));
        }
        let document: D = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(self.key, bytes, &error))?;
        if document.version() != self.version {
            let (found, read) = (document.version(), self.version);
            return Err(self.fault(format!("has version {found}; only version {read} can be read")));
        }
        Ok(document)
    }

    /// An error about the whole file.
    pub(crate) fn fault(&self, what: impl Into<String>) -> DecodeError {
        DecodeError::new(self.key, 0, what)
    }

    /// More items of this kind than `decode` accepts.
    pub(crate) fn too_many(&self, kind: &str, allowed: usize) -> DecodeError {
        DecodeError::too_many(self.key, 0, kind, allowed)
    }
}
