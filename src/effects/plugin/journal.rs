//! Tickets that were given out and have no folder of their own yet: one short line each, written before kubelet gets its answer.
//! An answer waits for a line and not for a folder, and an agent that is killed right after it still knows what it gave out.
//!
//! Lines of tickets that have a folder by now go when the file is written anew with the open ones: after the last of them, when the
//! file is large, and before one more line that would not fit.

use model::id::Ticket;
use model::ticket::IssuedTicket;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::issued_ticket;

/// Beside the folders of the tickets.
const FILE: &str = "given-out";
/// Much more than the tickets of a full node whose disk hangs.
const MAX_BYTES: u64 = 1 << 20;
/// The file is written anew when it is this large and at least half of it is of no use: some 500 lines, 60 kB to write.
const MUCH: u64 = 64 << 10;

/// The file. The gRPC task adds lines and the writer thread removes them: a mutex is held for one line, or for one writing anew.
#[derive(Debug)]
pub struct TicketJournal {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    /// In the order in which they were given out. At most as many as fit into the file.
    open: Vec<(Ticket, String)>,
    length: u64,
}

impl State {
    fn bytes_of_open(&self) -> u64 {
        self.open.iter().map(|(_, line)| line.len() as u64).sum()
    }

    /// Writes the file with the open tickets only: whole or not at all.
    fn compact(&mut self, path: &Path) -> io::Result<()> {
        let hidden = path.with_file_name(format!(".{FILE}.new"));
        let _ = fs::remove_file(&hidden);
        let mut file = fs::OpenOptions::new().append(true).create_new(true).mode(0o600).open(&hidden)?;
        for (_, line) in &self.open {
            file.write_all(line.as_bytes())?;
        }
        fs::rename(&hidden, path)?;
        // What was open has no name any more.
        (self.file, self.length) = (Some(file), self.bytes_of_open());
        Ok(())
    }
}

impl TicketJournal {
    /// Under the state directory.
    #[must_use]
    pub fn new(state: &Path) -> TicketJournal {
        TicketJournal { path: state.join(FILE), state: Mutex::default() }
    }

    /// Tickets of an earlier life with their ids, in the order in which they were given out. They stay until they are
    /// [`TicketJournal::kept`]. What cannot be read is left out and told in the log.
    #[must_use]
    pub fn recall(&self) -> Vec<(Ticket, Vec<Arc<str>>)> {
        let mut bytes = Vec::new();
        match File::open(&self.path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "tickets that were given out last cannot be read");
                return Vec::new();
            }
        }
        let mut found = Vec::new();
        let mut state = self.state.lock();
        // Zeros are what a disk had nothing for yet when its power went.
        for line in bytes.split(|byte| matches!(byte, b'\n' | 0)).filter(|line| !line.is_empty()) {
            match issued_ticket::decode(line) {
                Ok(issued) => {
                    state.open.push((issued.ticket.clone(), format!("\n{}", String::from_utf8_lossy(line))));
                    found.push((issued.ticket, issued.ids));
                }
                Err(error) => {
                    tracing::warn!(file = %self.path.display(), %error, "a ticket that was given out cannot be read");
                }
            }
        }
        state.length = bytes.len() as u64;
        found
    }

    /// A ticket is about to be given out.
    ///
    /// # Errors
    /// It is not kept: the disk is full or gone.
    pub fn note(&self, ticket: &Ticket, ids: &[Arc<str>]) -> io::Result<()> {
        let issued = IssuedTicket {
            ticket: ticket.clone(),
            order: 0,
            ids: ids.to_vec(),
            meant: None,
            holder: None,
            given: None,
        };
        // The end of the line before it may have been torn off.
        let text = issued_ticket::encode(&issued).map_err(|fault| io::Error::other(fault.to_string()))?;
        let line = format!("\n{text}");
        let mut state = self.state.lock();
        let length = line.len() as u64;
        if state.length + length > MAX_BYTES {
            if state.bytes_of_open() + length > MAX_BYTES {
                return Err(io::Error::other(format!("{} is full: is the disk slow?", self.path.display())));
            }
            state.compact(&self.path)?;
        }
        let mut file = match state.file.take() {
            Some(file) => file,
            None => fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?,
        };
        file.write_all(line.as_bytes())?;
        state.length += length;
        state.file = Some(file);
        state.open.push((ticket.clone(), line));
        Ok(())
    }

    /// It has a folder of its own now.
    pub fn kept(&self, ticket: &Ticket) {
        let mut state = self.state.lock();
        state.open.retain(|(open, _)| open != ticket);
        if state.open.is_empty() && state.length > 0 {
            // Where that fails it is tried again after the next.
            if fs::OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0)).is_ok() {
                state.length = 0;
            }
        } else if state.length >= MUCH
            && state.bytes_of_open() * 2 <= state.length
            && let Err(error) = state.compact(&self.path)
        {
            tracing::debug!(file = %self.path.display(), %error, "cannot write the file anew; it is tried again after the next ticket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(n: u8) -> Ticket {
        Ticket::of_random([n; 16])
    }

    #[test]
    fn what_was_given_out_is_known_until_it_is_kept_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let given = |n: u8| (ticket(n), ids.clone());
        let journal = TicketJournal::new(folder.path());
        assert_eq!(journal.recall(), []);
        for n in [3, 1, 2] {
            journal.note(&ticket(n), &ids).unwrap();
        }
        // The next life, after a line that was torn.
        fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join(FILE))
            .unwrap()
            .write_all(b"{\"version\":1,")
            .unwrap();
        let journal = TicketJournal::new(folder.path());
        assert_eq!(journal.recall(), [given(3), given(1), given(2)]);
        journal.note(&ticket(5), &ids).unwrap();
        journal.kept(&ticket(3));
        journal.kept(&ticket(1));
        assert_eq!(TicketJournal::new(folder.path()).recall(), [given(3), given(1), given(2), given(5)]);
        journal.kept(&ticket(2));
        journal.kept(&ticket(5));
        assert_eq!(TicketJournal::new(folder.path()).recall(), []);
        journal.note(&ticket(4), &ids).unwrap();
        assert_eq!(TicketJournal::new(folder.path()).recall(), [given(4)]);
    }

    #[test]
    fn one_ticket_that_stays_open_does_not_fill_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let many = |n: u32| Ticket::of_random((u128::from(n) + 1000).to_be_bytes());
        let journal = TicketJournal::new(folder.path());
        journal.note(&ticket(1), &ids).unwrap();
        let line = fs::metadata(&path).unwrap().len();
        let count = u32::try_from(3 * MAX_BYTES / line).unwrap();
        let mut most = 0;
        for n in 0..count {
            journal.note(&many(n), &ids).unwrap();
            if n % 2 == 0 && n > 0 {
                journal.kept(&many(n - 1));
                journal.kept(&many(n));
            }
            most = most.max(fs::metadata(&path).unwrap().len());
        }
        assert!(most <= MUCH + 4 * line, "{most}");
        let recalled = TicketJournal::new(folder.path()).recall();
        assert_eq!(recalled.first(), Some(&(ticket(1), ids.clone())), "the oldest is first");
        // The next life goes on with it.
        let journal = TicketJournal::new(folder.path());
        let before = journal.recall().len();
        journal.note(&ticket(2), &ids).unwrap();
        assert_eq!(TicketJournal::new(folder.path()).recall().len(), before + 1);
    }

    /// Nobody has noted that they were kept until the file is full.
    #[test]
    fn a_full_file_is_written_anew_where_that_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let journal = TicketJournal::new(folder.path());
        let ids: Vec<Arc<str>> = (0..500).map(|n| format!("GPU-{n}-{}", "x".repeat(50)).into()).collect();
        let full = (0..100).find(|n| journal.note(&ticket(*n), &ids).is_err()).unwrap();
        assert!(full > 2);
        // Less than half of it: it is not written anew for this alone.
        journal.kept(&ticket(1));
        assert!(journal.note(&ticket(full), &ids).is_ok(), "there is room for it now");
        assert!(journal.note(&ticket(full + 1), &ids).is_err(), "and for no other");
        let left: Vec<Ticket> =
            TicketJournal::new(folder.path()).recall().into_iter().map(|(ticket, _)| ticket).collect();
        assert_eq!(left, (0..=full).filter(|n| *n != 1).map(ticket).collect::<Vec<_>>());
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= MAX_BYTES);
    }

    /// As a power loss may leave it: empty, cut, or with zeros where the disk had nothing yet.
    #[test]
    fn what_a_power_loss_leaves_costs_only_the_lines_that_it_took() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let journal = TicketJournal::new(folder.path());
        journal.note(&ticket(1), &ids).unwrap();
        let line = fs::read(&path).unwrap();
        for (left, known) in [
            (Vec::new(), 0),
            (vec![0; 4096], 0),
            (line[..line.len() / 2].to_vec(), 0),
            ([&line[..], &[0; 4096]].concat(), 1),
            ([&vec![0; 100][..], &line[..]].concat(), 1),
        ] {
            fs::write(&path, &left).unwrap();
            let journal = TicketJournal::new(folder.path());
            assert_eq!(journal.recall().len(), known, "{left:?}");
            journal.note(&ticket(2), &ids).unwrap();
            assert_eq!(TicketJournal::new(folder.path()).recall().len(), known + 1);
        }
    }

    #[test]
    fn it_has_a_bound_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let journal = TicketJournal::new(folder.path());
        let ids: Vec<Arc<str>> = (0..500).map(|n| format!("GPU-{n}-{}", "x".repeat(50)).into()).collect();
        let refused = (0..100).map(|n| journal.note(&ticket(n), &ids)).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.to_string().contains("full")));
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= MAX_BYTES);
        assert!(journal.note(&ticket(200), &["GPU-a-1".into()]).is_ok(), "a shorter one fits");
    }
}
