//! The version of the format of a claim (`gpu-steward.io/claim-version`), so that programs of different releases never
//! misread each other's claims.
//!
//! ```text
//!   no annotation   version 0: the annotations that HAMi writes, and gpu-steward before it wrote versions
//!   1/0             version 1; a reader of version 0 or later understands it
//!   7               version 7; a reader of version 7 or later understands it
//! ```
//!
//! Version 1 is version 0 with this annotation and `gpu-steward.io/lease`. A reader of version 0 does not know these
//! two and skips them, so readers of both versions understand both. A later version that only adds fields names, after
//! the slash, the oldest reader that understands it. A version that changes the meaning of existing fields names no
//! older reader: older programs then treat its claims as unreadable, and never misinterpret them.

use crate::annotation_keys::CLAIM_VERSION;
use crate::decode_error::{DecodeError, shown};

/// The version of the claims that this program writes, and the newest version that it knows.
pub const WRITTEN: u32 = 1;
/// The oldest reader that understands what this program writes.
const OLDEST_READER: u32 = 0;
/// Maximum size of a version's text in bytes: two numbers of 32 bits have ten digits each.
const MAX_LENGTH: usize = 21;

/// The value of the annotation on the claims that this program writes.
#[must_use]
pub fn encode() -> String {
    format!("{WRITTEN}/{OLDEST_READER}")
}

/// Whether a reader that knows the versions up to `known` understands claims with this annotation.
///
/// # Errors
/// [`DecodeError`] if the reader does not understand them, or the text is not a version.
pub fn check(text: &str, known: u32) -> Result<(), DecodeError> {
    let fault = |at: usize| {
        let what = format!("is not a version such as {WRITTEN}/{OLDEST_READER}: {}", shown(text));
        DecodeError::new(CLAIM_VERSION, at, what)
    };
    if text.len() > MAX_LENGTH {
        return Err(fault(MAX_LENGTH));
    }
    let (written, oldest) = match text.split_once('/') {
        Some((written, oldest)) => (number(written), number(oldest).ok_or_else(|| fault(written.len() + 1))?),
        None => (number(text), number(text).unwrap_or_default()),
    };
    let written = written.ok_or_else(|| fault(0))?;
    // If the reader knows the version, the version after the slash does not matter.
    if written <= known || oldest <= known {
        return Ok(());
    }
    let what = format!("the claim has format version {written}, and this program reads up to {known}; upgrade it");
    Err(DecodeError::new(CLAIM_VERSION, 0, what))
}

/// Digits only, as [`encode`] writes them: no sign.
fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_read_each_other_and_a_version_that_does_not_name_an_older_reader_is_refused() {
        // The text, the newest version that the reader knows, and whether the reader accepts the text.
        for (text, known, reads) in [
            ("1/0", 0, true),
            ("1/0", 1, true),
            ("1/0", 2, true),
            ("2/1", 1, true),
            ("2/1", 0, false),
            ("2", 1, false),
            ("2", 2, true),
            ("0", 1, true),
            ("7/2", 1, false),
            ("7/1", 1, true),
            ("1/7", 1, true),
        ] {
            assert_eq!(check(text, known).is_ok(), reads, "{text} by a reader of {known}");
        }
        assert_eq!(check(&encode(), WRITTEN), Ok(()));
        assert_eq!(check(&encode(), WRITTEN - 1), Ok(()), "the previous release reads it");
        let why = check("2", 1).unwrap_err().to_string();
        assert_eq!(
            why,
            "gpu-steward.io/claim-version: the claim has format version 2, and this program reads up to 1; upgrade it"
        );
    }

    #[test]
    fn a_text_that_is_no_version_is_named() {
        for (text, at) in
            [("", 0), ("x", 0), ("1/", 2), ("/1", 0), ("1/x", 2), ("+1", 0), ("-1/0", 0), ("4294967296", 0)]
        {
            let fault = check(text, WRITTEN).unwrap_err();
            assert!(fault.at == at && fault.what.starts_with("is not a version such as 1/0: "), "{text}: {fault}");
        }
        assert!(check(&"1".repeat(100_000), WRITTEN).unwrap_err().to_string().len() < 200);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}", known: u32) {
            let _ = check(&text, known);
        }

        #[test]
        fn a_version_is_read_by_exactly_those_that_know_it_or_are_named(written: u32, oldest: u32, known: u32) {
            prop_assert_eq!(check(&format!("{written}/{oldest}"), known).is_ok(), written <= known || oldest <= known);
            prop_assert_eq!(check(&written.to_string(), known).is_ok(), written <= known);
        }
    }
}
