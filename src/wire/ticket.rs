//! Tickets as CDI devices: `gpu-steward.io/gpu=t0123…`, with one CDI spec for each ticket.
//!
//! A runtime resolves the device name when it creates the container, long after kubelet got the name. Until then the
//! agent does not need to know the container.

use crate::decode_error::{DecodeError, shown};
use model::id::Ticket;

/// The CDI kind (vendor and class) of all tickets.
pub const KIND: &str = "gpu-steward.io/gpu";
/// The annotation in the answer to `Allocate` that holds a ticket if the answer has no CDI devices. Earlier releases
/// wrote it on nodes without CDI; kubelet's checkpoint keeps it.
pub const ANNOTATION: &str = "gpu-steward.io/ticket";
/// Start of the file name of every ticket: the kind, as the CDI specification proposes for file names.
const FILE_PREFIX: &str = "gpu-steward.io-gpu-";
const FILE_SUFFIX: &str = ".json";

/// The full CDI device name, which kubelet and the runtime get.
#[must_use]
pub fn qualified(ticket: &Ticket) -> String {
    format!("{KIND}={ticket}")
}

/// Reads the ticket from a full CDI device name.
///
/// # Errors
/// [`DecodeError`] for devices of other kinds and for names that are not tickets.
pub fn parse(name: &str) -> Result<Ticket, DecodeError> {
    let ticket = name
        .strip_prefix(KIND)
        .and_then(|rest| rest.strip_prefix('='))
        .ok_or_else(|| DecodeError::new(KIND, 0, format!("is a device of another kind: {}", shown(name))))?;
    Ticket::parse(ticket).map_err(|error| DecodeError::new(KIND, KIND.len() + 1, error.to_string()))
}

/// The name of the ticket's CDI spec in the folder that the runtime watches.
#[must_use]
pub fn file_name(ticket: &Ticket) -> String {
    format!("{FILE_PREFIX}{ticket}{FILE_SUFFIX}")
}

/// The ticket of a CDI spec, from its file name; `None` for files of other programs.
#[must_use]
pub fn of_file_name(name: &str) -> Option<Ticket> {
    Ticket::parse(name.strip_prefix(FILE_PREFIX)?.strip_suffix(FILE_SUFFIX)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ticket_is_a_device_and_a_file() {
        let ticket = Ticket::of_random([0xab; 16]);
        let name = qualified(&ticket);
        assert_eq!(name, "gpu-steward.io/gpu=tabababababababababababababababab");
        assert_eq!(file_name(&ticket), "gpu-steward.io-gpu-tabababababababababababababababab.json");
    }

    #[test]
    fn devices_and_files_of_others_are_no_tickets() {
        for name in ["", "nvidia.com/gpu=all", "gpu-steward.io/gpu", "gpu-steward.io/gpu=", "gpu-steward.io/gpu=all"] {
            assert!(parse(name).is_err(), "{name}");
        }
        for name in
            ["", "nvidia.yaml", "gpu-steward.io-gpu-.json", "gpu-steward.io-gpu-all.json", ".gpu-steward.io-gpu-t"]
        {
            assert_eq!(of_file_name(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,80}") {
            let _ = (parse(&text), of_file_name(&text));
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(bytes: [u8; 16]) {
            let ticket = Ticket::of_random(bytes);
            prop_assert_eq!(parse(&qualified(&ticket)), Ok(ticket.clone()));
            prop_assert_eq!(of_file_name(&file_name(&ticket)), Some(ticket));
        }
    }
}
