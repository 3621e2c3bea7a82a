//! The handshake of a node (`hami.io/node-handshake`): the time at which its agent was last alive, or a request or mark
//! of a scheduler.
//!
//! ```text
//!   1795256507                                       the form that the agent writes; scripts compute its age
//!   Reported 2024-01-23 04:30:04.43 +0000 UTC m=+…   HAMi's plugin up to 2.7.1
//!   Requesting_2026-11-21 10:21:12                   a request of HAMi's scheduler; up to 2.4 the date has points
//!   Deleted_2026-11-21 10:21:12                      HAMi's scheduler up to 2.9 has removed the node
//! ```
//!
//! As in HAMi, only the word in the text decides, so that a new form with a known word is still read. The times after
//! the words have no time zone: they are the scheduler's local time, which HAMi before 2.9 read as UTC. The agent
//! therefore measures the age of a request from when it first saw it. It uses the time in the request only if the two
//! ages differ by less than half a minute.

use crate::timestamp;
use model::time::WallTime;

/// The meaning of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The agent was alive at this time.
    At(WallTime),
    /// HAMi's plugin reported the node, in a form whose time is not read.
    Reported,
    /// A scheduler requests a new handshake, to see whether the agent is alive.
    Requesting {
        /// The time in the request, read as UTC, if it has one.
        stated: Option<WallTime>,
    },
    /// A scheduler has removed the node.
    Deleted,
    /// Any other text.
    Other,
}

/// Maximum size in bytes; a longer text has no known form.
const MAX: usize = 256;

/// Reads the annotation's value.
#[must_use]
pub fn decode(text: &str) -> Handshake {
    let text = text.trim();
    if text.len() > MAX {
        Handshake::Other
    } else if text.contains("Requesting") {
        let time = text.split_once("Requesting_").map(|(_, time)| time);
        Handshake::Requesting { stated: time.and_then(timestamp::zoneless) }
    } else if text.contains("Deleted") {
        Handshake::Deleted
    } else if text.contains("Reported") {
        Handshake::Reported
    } else {
        timestamp::unix_seconds(text).map_or(Handshake::Other, Handshake::At)
    }
}

/// Writes Unix seconds.
#[must_use]
pub fn encode(at: WallTime) -> String {
    timestamp::to_unix_seconds(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_historic_form_is_understood() {
        let stated = Some(WallTime(1_795_256_472_000_000));
        for (text, expected) in [
            ("1795256472", Handshake::At(WallTime(1_795_256_472_000_000))),
            (" 1795256472\n", Handshake::At(WallTime(1_795_256_472_000_000))),
            ("Requesting_2026-11-21 10:21:12", Handshake::Requesting { stated }),
            ("Requesting_2026.11.21 10:21:12", Handshake::Requesting { stated }),
            ("Requesting_yesterday", Handshake::Requesting { stated: None }),
            ("Requesting", Handshake::Requesting { stated: None }),
            ("Deleted_2026-11-21 10:21:12", Handshake::Deleted),
            ("Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895", Handshake::Reported),
            ("Reported_2026.11.21 10:21:12", Handshake::Reported),
            ("", Handshake::Other),
            ("soon", Handshake::Other),
            ("-5", Handshake::Other),
        ] {
            assert_eq!(decode(text), expected, "{text}");
        }
        assert_eq!(decode(&"Requesting".repeat(100)), Handshake::Other);
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,300}") {
            let _ = decode(&text);
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(seconds in 0..253_402_300_800_u64) {
            let at = WallTime(seconds * 1_000_000);
            prop_assert_eq!(decode(&encode(at)), Handshake::At(at));
        }
    }
}
