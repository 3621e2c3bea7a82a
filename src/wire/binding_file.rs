//! The file that records whether this node's container runtime supports CDI, as the agent found it last, and the
//! runtime's name and version.
//!
//! ```text
//!   late containerd://2.1.4
//! ```

use crate::decode_error::{DecodeError, shown};
use model::cdi_support::CdiSupport;

/// Maximum size in bytes: a word, and the name and version of a runtime.
pub const MAX_BYTES: usize = 1024;
/// Name of the file in the state directory, and in errors.
pub const FILE: &str = "binding";
/// The words before the runtime's name. Earlier releases wrote when a container got its devices: late (by CDI) or early
/// (without CDI).
const WORDS: [(CdiSupport, &str); 3] =
    [(CdiSupport::Works, "late"), (CdiSupport::Missing, "early"), (CdiSupport::Disproved, "disproved")];

/// Writes the file, with a newline at the end.
#[must_use]
pub fn encode(found: CdiSupport, runtime: &str) -> String {
    let word = WORDS.iter().find(|(known, _)| *known == found).map_or("", |(_, word)| word);
    format!("{word} {runtime}\n")
}

/// Reads the file.
///
/// # Errors
/// [`DecodeError`] if the file is incomplete: a power loss may leave it empty, cut or full of zeros.
pub fn decode(bytes: &[u8]) -> Result<(CdiSupport, String), DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::too_long(FILE, bytes.len(), MAX_BYTES));
    }
    let fault = |what: String| DecodeError::new(FILE, 0, what);
    let text = std::str::from_utf8(bytes).map_err(|error| fault(error.to_string()))?;
    let line = text.strip_suffix('\n').ok_or_else(|| fault("has no line end".into()))?;
    let (word, runtime) = line.split_once(' ').ok_or_else(|| fault("names no runtime".into()))?;
    let found = WORDS.iter().find(|(_, known)| *known == word);
    let (found, _) = found.ok_or_else(|| fault(format!("begins with an unknown word: {}", shown(word))))?;
    Ok((*found, runtime.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_file_is_one_line_and_an_incomplete_file_is_an_error() {
        let whole = encode(CdiSupport::Disproved, "containerd://2.1.4");
        assert_eq!(whole, "disproved containerd://2.1.4\n");
        assert_eq!(decode(whole.as_bytes()), Ok((CdiSupport::Disproved, "containerd://2.1.4".into())));
        let (cut, line) = (&whole.as_bytes()[..5], &whole.as_bytes()[..whole.len() - 2]);
        for left in [&[][..], &[0; 4096], &[0; 40], cut, line, b"late", b"maybe containerd://2.1.4\n", b"\xff\n"] {
            assert!(decode(left).is_err(), "{left:?}");
        }
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(word in 0_usize..3, runtime in "[!-~]{0,60}") {
            let found = WORDS[word].0;
            prop_assert_eq!(decode(encode(found, &runtime).as_bytes()), Ok((found, runtime)));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes);
        }
    }
}
