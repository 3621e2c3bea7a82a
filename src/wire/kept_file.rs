//! JSON files that the agent writes and reads again: bounded, with a version, and a line end behind them.

use crate::decode_error::DecodeError;
use serde::{Deserialize, Serialize};

/// One such format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptFile {
    /// What faults call the file.
    pub(crate) key: &'static str,
    /// The version that is written, and the only one that is read.
    pub(crate) version: u32,
    /// A longer file is not ours.
    pub(crate) max_bytes: usize,
}

/// A document that says of which version it is.
pub(crate) trait Versioned {
    fn version(&self) -> u32;
}

impl KeptFile {
    /// The text, with a line end.
    pub(crate) fn encode(&self, document: &impl Serialize) -> Result<String, DecodeError> {
        let text = serde_json::to_string(document).map_err(|error| self.fault(error.to_string()))?;
        Ok(text + "\n")
    }

    /// The document, of our version.
    pub(crate) fn decode<'a, D: Deserialize<'a> + Versioned>(&self, bytes: &'a [u8]) -> Result<D, DecodeError> {
        if bytes.len() > self.max_bytes {
            return Err(DecodeError::too_long(self.key, bytes.len(), self.max_bytes));
        }
        let document: D = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(self.key, bytes, &error))?;
        if document.version() != self.version {
            let (found, read) = (document.version(), self.version);
            return Err(self.fault(format!("is of version {found}, and {read} is read")));
        }
        Ok(document)
    }

    /// What is wrong with the whole of it.
    pub(crate) fn fault(&self, what: impl Into<String>) -> DecodeError {
        DecodeError::new(self.key, 0, what)
    }

    /// More things than are ever read back.
    pub(crate) fn too_many(&self, kind: &str, allowed: usize) -> DecodeError {
        DecodeError::too_many(self.key, 0, kind, allowed)
    }
}
