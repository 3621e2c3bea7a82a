//! The bind phase of a pod (`hami.io/bind-phase`).

use crate::annotation_keys::BIND_PHASE;
use crate::decode_error::{DecodeError, shown};
use model::claim::BindPhase;

/// Reads a phase.
///
/// # Errors
/// [`DecodeError`] for a word that is not one of the three phases.
pub fn decode_phase(text: &str) -> Result<BindPhase, DecodeError> {
    match text {
        "allocating" => Ok(BindPhase::Allocating),
        "success" => Ok(BindPhase::Success),
        "failed" => Ok(BindPhase::Failed),
        other => {
            Err(DecodeError::new(BIND_PHASE, 0, format!("is not allocating, success or failed: {}", shown(other))))
        }
    }
}

/// Writes a phase.
#[must_use]
pub fn encode_phase(phase: BindPhase) -> &'static str {
    match phase {
        BindPhase::Allocating => "allocating",
        BindPhase::Success => "success",
        BindPhase::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_phases_are_read_and_written() {
        for phase in [BindPhase::Allocating, BindPhase::Success, BindPhase::Failed] {
            assert_eq!(decode_phase(encode_phase(phase)), Ok(phase));
        }
        let fault = decode_phase("Success").unwrap_err();
        assert_eq!(fault.to_string(), "hami.io/bind-phase: is not allocating, success or failed: \"Success\"");
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,60}") {
            let _ = decode_phase(&text);
        }
    }
}
