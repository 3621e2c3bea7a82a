//! The error of all decoders: the format, the place, and the reason.

/// Maximum number of characters of quoted input in an error, so that a log line stays one line.
const MAX_SHOWN: usize = 60;

/// Why an input cannot be decoded: the annotation or file, the byte at which decoding stopped, and the fault there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}{}: {what}", place(*at))]
pub struct DecodeError {
    /// The key of the annotation, or the kind of file.
    pub key: &'static str,
    /// Number of bytes before the fault.
    pub at: usize,
    /// The fault.
    pub what: String,
}

/// The place of a fault. The first byte is not named: a fault there is a fault of the whole value.
fn place(at: usize) -> String {
    if at == 0 { String::new() } else { format!(", byte {at}") }
}

impl DecodeError {
    /// A fault in `key` at byte `at`.
    pub(crate) fn new(key: &'static str, at: usize, what: impl Into<String>) -> DecodeError {
        DecodeError { key, at, what: what.into() }
    }

    /// An input of `length` bytes, of which at most `allowed` may be read.
    pub(crate) fn too_long(key: &'static str, length: usize, allowed: usize) -> DecodeError {
        DecodeError::new(key, allowed, format!("is {length} bytes long, more than the {allowed} that are read"))
    }

    /// An input with more than `allowed` items of this kind.
    pub(crate) fn too_many(key: &'static str, at: usize, kind: &str, allowed: usize) -> DecodeError {
        DecodeError::new(key, at, format!("has more than {allowed} {kind}"))
    }

    /// serde's error about JSON, with its line and column as a byte position.
    pub(crate) fn json(key: &'static str, bytes: &[u8], error: &serde_json::Error) -> DecodeError {
        let before: usize =
            bytes.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = before.saturating_add(error.column()).min(bytes.len());
        DecodeError::new(key, at, format!("is not the JSON that is expected: {error}"))
    }
}

/// Input text for a message: quoted, cut, and with unprintable characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(MAX_SHOWN).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_json_is_reported_with_its_byte() {
        let text = b"[\n  {\"id\": 1},\n  x\n]";
        let error = serde_json::from_slice::<serde_json::Value>(text).unwrap_err();
        let fault = DecodeError::json("key", text, &error);
        assert_eq!(&text[fault.at - 1..fault.at], b"x");
        assert!(fault.to_string().starts_with("key, byte 18: is not the JSON"), "{fault}");
    }

    #[test]
    fn quoted_input_is_short_and_printable() {
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
        assert!(shown(&"ä".repeat(1000)).chars().count() <= MAX_SHOWN + 3);
    }
}
