//! The bind phase of a pod (`hami.io/bind-phase`) and the time of its binding (`hami.io/bind-time`).

use crate::annotation_keys::{BIND_PHASE, BIND_TIME};
use crate::decode_error::{DecodeError, shown};
use crate::timestamp;
use model::claim::BindPhase;
use model::time::WallTime;

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
            Err(DecodeError::new(BIND_PHASE, 0, format!("is none of allocating, success, failed: {}", shown(other))))
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

/// Reads the time: Unix seconds.
///
/// # Errors
/// [`DecodeError`] for anything else.
pub fn decode_time(text: &str) -> Result<WallTime, DecodeError> {
    timestamp::unix_seconds(text)
        .ok_or_else(|| DecodeError::new(BIND_TIME, 0, format!("is not a number of seconds: {}", shown(text))))
}

/// Writes the time.
#[must_use]
pub fn encode_time(at: WallTime) -> String {
    timestamp::to_unix_seconds(at)
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
        assert_eq!(
            fault.to_string(),
            "hami.io/bind-phase, byte 0: is none of allocating, success, failed: \"Success\""
        );
    }

    #[test]
    fn the_time_is_unix_seconds() {
        assert_eq!(decode_time("1795256507"), Ok(WallTime(1_795_256_507_000_000)));
        assert_eq!(encode_time(WallTime(1_795_256_507_000_001)), "1795256507");
        assert!(decode_time("2026-11-21T10:21:47Z").is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,60}") {
            let _ = (decode_phase(&text), decode_time(&text));
        }
    }
}
