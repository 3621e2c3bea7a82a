//! The ticket journal: one line for each issued ticket that has no folder yet.
//!
//! A line is an issued ticket ([`crate::issued_ticket`]) with only its ids. It starts with a line feed, because the
//! line before it may be cut off. After a power loss, a file system may show zero bytes in place of data.

use crate::decode_error::DecodeError;
use crate::issued_ticket;
use model::id::Ticket;
use model::ticket::IssuedTicket;
use std::sync::Arc;

/// Name of the file in the state directory, next to the folders of the tickets.
pub const FILE: &str = "given-out";
/// Maximum size in bytes: far more than the tickets of a full node whose disk hangs.
pub const MAX_BYTES: usize = 1 << 20;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLine {
    /// The ticket.
    pub ticket: Ticket,
    /// The slot ids that the ticket stands for.
    pub ids: Vec<Arc<str>>,
    /// The line as it is in the file.
    pub text: String,
}

/// The content of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketJournalText {
    /// The lines that can be read, in the order of issue.
    pub lines: Vec<JournalLine>,
    /// The number of lines that cannot be read, and the fault of the first such line.
    pub unreadable: Option<(usize, DecodeError)>,
    /// The length of the file.
    pub bytes: u64,
}

/// The line of a ticket.
///
/// # Errors
/// [`DecodeError`] for more ids than [`issued_ticket::decode`] accepts.
pub fn line(ticket: &Ticket, ids: &[Arc<str>]) -> Result<String, DecodeError> {
    let issued =
        IssuedTicket { ticket: ticket.clone(), order: 0, ids: ids.to_vec(), expected: None, holder: None, given: None };
    issued_ticket::encode(&issued).map(|text| format!("\n{text}"))
}

/// Reads the journal. A line that cannot be read is counted and skipped.
#[must_use]
pub fn decode(bytes: &[u8]) -> TicketJournalText {
    let mut journal = TicketJournalText { bytes: bytes.len() as u64, ..TicketJournalText::default() };
    for line in bytes.split(|byte| matches!(byte, b'\n' | 0)).filter(|line| !line.is_empty()) {
        match issued_ticket::decode(line) {
            Ok(IssuedTicket { ticket, ids, .. }) => {
                let text = format!("\n{}", String::from_utf8_lossy(line));
                journal.lines.push(JournalLine { ticket, ids, text });
            }
            Err(fault) => journal.unreadable.get_or_insert((0, fault)).0 += 1,
        }
    }
    journal
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_damaged_line_does_not_affect_the_others() {
        let (one, two) = (Ticket::of_random([1; 16]), Ticket::of_random([2; 16]));
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let line = |ticket: &Ticket| line(ticket, &ids).unwrap();
        let zeros = "\0".repeat(100);
        let text = format!("{zeros}{}{{\"version\":1,{}{zeros}\nx", line(&one), line(&two));
        let journal = decode(text.as_bytes());
        let found: Vec<&Ticket> = journal.lines.iter().map(|line| &line.ticket).collect();
        assert_eq!(found, [&one, &two]);
        assert!(journal.lines.iter().all(|line| line.ids == ids));
        assert_eq!((journal.unreadable.map(|(count, _)| count), journal.bytes), (Some(2), text.len() as u64));
        let again: String = journal.lines.into_iter().map(|line| line.text).collect();
        assert_eq!(decode(again.as_bytes()).lines.len(), 2, "the lines make a journal again");
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(tickets in prop::collection::vec((any::<[u8; 16]>(), "\\PC{0,12}"), 0..5)) {
            let tickets: Vec<(Ticket, Vec<Arc<str>>)> =
                tickets.into_iter().map(|(bytes, id)| (Ticket::of_random(bytes), vec![id.into()])).collect();
            let text: String = tickets.iter().map(|(ticket, ids)| line(ticket, ids).unwrap()).collect();
            let read: Vec<_> = decode(text.as_bytes()).lines.into_iter().map(|line| (line.ticket, line.ids)).collect();
            prop_assert_eq!(read, tickets);
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
