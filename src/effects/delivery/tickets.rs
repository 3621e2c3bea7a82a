//! Tickets on disk: each ticket has a folder with its record. An earlier release gave containers their devices at
//! `Allocate`, and put the files of the containers into the ticket folders, too.

use super::file::{DeliveryError, failed, make_folder, put};
use super::trash::Trash;
use model::id::Ticket;
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use wire::issued_ticket::{self, FILE_NAME, FOLDER};

/// Maximum number of tickets in one sweep: twice the number of tickets that are kept in memory.
const MAX_ENTRIES: usize = 16_384;

/// The folders of tickets.
#[derive(Clone, Debug)]
pub struct TicketFolders {
    root: PathBuf,
}

impl TicketFolders {
    /// The folders under this state directory.
    #[must_use]
    pub fn new(state: &Path) -> TicketFolders {
        TicketFolders { root: state.join(FOLDER) }
    }

    /// The folder of a ticket.
    #[must_use]
    pub fn folder(&self, ticket: &Ticket) -> PathBuf {
        self.root.join(ticket.as_str())
    }

    /// Writes the record of a ticket.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, issued: &IssuedTicket) -> Result<(), DeliveryError> {
        let folder = self.folder(&issued.ticket);
        make_folder(&folder)?;
        let path = folder.join(FILE_NAME);
        let text = issued_ticket::encode(issued)
            .map_err(|fault| failed("make the text of", &path)(io::Error::other(fault.to_string())))?;
        // Not synced: after a power loss the ticket is still in the kubelet's checkpoint.
        put(&path, text.as_bytes())
    }

    /// Moves the tickets that are not in `kept` into the trash, and returns them. The age of a folder is ignored,
    /// because the wall clock may jump.
    pub fn sweep(&self, kept: &BTreeSet<Ticket>, trash: &Trash) -> Vec<Ticket> {
        let gone = self.all().into_iter().filter(|(ticket, _)| !kept.contains(ticket));
        gone.filter(|(_, folder)| trash.take(folder).is_ok()).map(|(ticket, _)| ticket).collect()
    }

    fn all(&self) -> Vec<(Ticket, PathBuf)> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().take(MAX_ENTRIES).flatten();
        entries.filter_map(|entry| Some((Ticket::parse(entry.file_name().to_str()?).ok()?, entry.path()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn issued(n: u8) -> IssuedTicket {
        IssuedTicket {
            ticket: Ticket::of_random([n; 16]),
            order: u64::from(n),
            ids: vec!["GPU-a-1".into()],
            expected: None,
            holder: None,
            given: None,
        }
    }

    /// The record of a ticket as it is on the disk.
    fn record(tickets: &TicketFolders, n: u8) -> Option<IssuedTicket> {
        let bytes = fs::read(tickets.folder(&issued(n).ticket).join(FILE_NAME)).ok()?;
        issued_ticket::decode(&bytes).ok()
    }

    #[test]
    fn the_last_record_of_each_ticket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let tickets = TicketFolders::new(folder.path());
        for n in [1, 2, 3] {
            tickets.keep(&issued(n)).unwrap();
        }
        tickets.keep(&IssuedTicket { order: 9, ..issued(1) }).unwrap();
        assert_eq!(record(&tickets, 1), Some(IssuedTicket { order: 9, ..issued(1) }));
        assert_eq!(record(&tickets, 3), Some(issued(3)));
    }

    #[test]
    fn a_sweep_of_tickets_does_not_depend_on_file_times() {
        let folder = tempfile::tempdir().unwrap();
        let tickets = TicketFolders::new(folder.path());
        let hour = Duration::from_secs(3600);
        for (n, changed) in [(1, SystemTime::now() - hour), (2, SystemTime::now() + hour), (3, SystemTime::now())] {
            tickets.keep(&issued(n)).unwrap();
            fs::File::open(tickets.folder(&issued(n).ticket)).unwrap().set_modified(changed).unwrap();
        }
        let kept = BTreeSet::from([1, 2].map(|n| issued(n).ticket));
        let trash = Trash::new(folder.path()).unwrap();
        assert_eq!(tickets.sweep(&kept, &trash), [issued(3).ticket]);
        assert!(!trash.is_empty());
        assert_eq!([1, 2, 3].map(|n| record(&tickets, n).is_some()), [true, true, false]);
    }

    /// Damage that a power loss may cause to a file that was not synced.
    #[test]
    fn a_damaged_ticket_record_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let tickets = TicketFolders::new(folder.path());
        tickets.keep(&issued(1)).unwrap();
        tickets.keep(&IssuedTicket { given: Some(Vec::new()), ..issued(2) }).unwrap();
        let path = tickets.folder(&issued(1).ticket).join(FILE_NAME);
        let complete = fs::read(&path).unwrap();
        for left in [&[][..], &[0; 4096], &complete[..complete.len() / 2], &[&complete[..], &[0; 10]].concat()] {
            fs::remove_file(&path).unwrap();
            fs::write(&path, left).unwrap();
            assert_eq!(record(&tickets, 1), None, "{left:?}");
            tickets.keep(&issued(1)).unwrap();
            assert_eq!((record(&tickets, 1), record(&tickets, 2).is_some()), (Some(issued(1)), true));
        }
    }
}
