//! The ticket journal: one short line for each issued ticket that has no folder yet. The line is written before the
//! kubelet gets the answer. So the answer waits only for a line and not for a folder, and if the agent is killed right
//! after the answer, the next agent process still knows the ticket.
//!
//! Compaction removes the lines of tickets that now have a folder: it rewrites the file with the open tickets. The
//! journal compacts when no ticket is open, when the file is large and at least half of it is unused, and when one more
//! line would not fit.

use model::id::Ticket;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::ticket_journal::{self, FILE, TicketJournalText};

/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = ticket_journal::MAX_BYTES as u64;
/// The journal is compacted at this size in bytes if at least half of it is unused: about 500 lines, 60 kB to write.
const COMPACT_AT: u64 = 64 << 10;

/// The ticket journal. The gRPC task adds lines and the writer thread removes them; a mutex is held for one line or one
/// compaction.
#[derive(Debug)]
pub struct TicketJournal {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    /// Tickets without a folder and their lines, in the order of issue. The size of the file limits their number.
    open: Vec<(Ticket, String)>,
    length: u64,
}

impl State {
    fn bytes_of_open(&self) -> u64 {
        self.open.iter().map(|(_, line)| line.len() as u64).sum()
    }

    /// Writes the file with the open tickets only. The rename makes it appear whole or not at all.
    fn compact(&mut self, path: &Path) -> io::Result<()> {
        let hidden = path.with_file_name(format!(".{FILE}.new"));
        let _ = fs::remove_file(&hidden);
        let mut file = fs::OpenOptions::new().append(true).create_new(true).mode(0o600).open(&hidden)?;
        for (_, line) in &self.open {
            file.write_all(line.as_bytes())?;
        }
        fs::rename(&hidden, path)?;
        // The file that is open has been replaced, so later lines go to the new file.
        (self.file, self.length) = (Some(file), self.bytes_of_open());
        Ok(())
    }
}

impl TicketJournal {
    /// The journal in this state directory.
    #[must_use]
    pub fn new(state: &Path) -> TicketJournal {
        TicketJournal { path: state.join(FILE), state: Mutex::default() }
    }

    /// Continues the journal of an earlier agent process; `earlier` is its content. Its tickets stay in the journal
    /// until [`TicketJournal::kept`].
    pub fn continues(&self, earlier: TicketJournalText) {
        let mut state = self.state.lock();
        state.open.extend(earlier.lines.into_iter().map(|line| (line.ticket, line.text)));
        state.length = earlier.bytes;
    }

    /// Adds a ticket before it is issued.
    ///
    /// # Errors
    /// If the line cannot be written: the journal is full, or the disk is full or gone.
    pub fn note(&self, ticket: &Ticket, ids: &[Arc<str>]) -> io::Result<()> {
        let line = ticket_journal::line(ticket, ids).map_err(|fault| io::Error::other(fault.to_string()))?;
        let mut state = self.state.lock();
        let length = line.len() as u64;
        if state.length + length > MAX_BYTES {
            if state.bytes_of_open() + length > MAX_BYTES {
                return Err(io::Error::other(format!("{} is full: check if the disk is slow", self.path.display())));
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

    /// Removes a ticket that now has its own folder.
    pub fn kept(&self, ticket: &Ticket) {
        let mut state = self.state.lock();
        state.open.retain(|(open, _)| open != ticket);
        if state.open.is_empty() && state.length > 0 {
            // If this fails, the next call tries again.
            if fs::OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0)).is_ok() {
                state.length = 0;
            }
        } else if state.length >= COMPACT_AT
            && state.bytes_of_open() * 2 <= state.length
            && let Err(error) = state.compact(&self.path)
        {
            tracing::debug!(file = %self.path.display(), %error, "cannot compact the ticket journal");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Known = Vec<(Ticket, Vec<Arc<str>>)>;

    /// The journal of the next agent process, and the tickets that it knows.
    fn next(folder: &Path) -> (TicketJournal, Known) {
        let journal = TicketJournal::new(folder);
        let earlier = ticket_journal::decode(&fs::read(folder.join(FILE)).unwrap_or_default());
        let known = earlier.lines.iter().map(|line| (line.ticket.clone(), line.ids.clone())).collect();
        journal.continues(earlier);
        (journal, known)
    }

    fn recall(folder: &Path) -> Known {
        next(folder).1
    }

    fn ticket(n: u8) -> Ticket {
        Ticket::of_random([n; 16])
    }

    #[test]
    fn an_issued_ticket_is_known_until_it_has_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let given = |n: u8| (ticket(n), ids.clone());
        let (journal, known) = next(folder.path());
        assert_eq!(known, []);
        for n in [3, 1, 2] {
            journal.note(&ticket(n), &ids).unwrap();
        }
        // The next agent process, after a line that was cut off.
        fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join(FILE))
            .unwrap()
            .write_all(b"{\"version\":1,")
            .unwrap();
        let (journal, known) = next(folder.path());
        assert_eq!(known, [given(3), given(1), given(2)]);
        journal.note(&ticket(5), &ids).unwrap();
        journal.kept(&ticket(3));
        journal.kept(&ticket(1));
        assert_eq!(recall(folder.path()), [given(3), given(1), given(2), given(5)]);
        journal.kept(&ticket(2));
        journal.kept(&ticket(5));
        assert_eq!(recall(folder.path()), []);
        journal.note(&ticket(4), &ids).unwrap();
        assert_eq!(recall(folder.path()), [given(4)]);
    }

    #[test]
    fn one_open_ticket_does_not_fill_the_journal() {
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
        assert!(most <= COMPACT_AT + 4 * line, "{most}");
        let recalled = recall(folder.path());
        assert_eq!(recalled.first(), Some(&(ticket(1), ids.clone())), "the oldest is first");
        // The next agent process continues the file.
        let (journal, known) = next(folder.path());
        let before = known.len();
        journal.note(&ticket(2), &ids).unwrap();
        assert_eq!(recall(folder.path()).len(), before + 1);
    }

    /// The file is full before any ticket is marked as kept.
    #[test]
    fn a_full_journal_is_compacted_if_that_frees_space() {
        let folder = tempfile::tempdir().unwrap();
        let journal = TicketJournal::new(folder.path());
        let ids: Vec<Arc<str>> = (0..500).map(|n| format!("GPU-{n}-{}", "x".repeat(50)).into()).collect();
        let full = (0..100).find(|n| journal.note(&ticket(*n), &ids).is_err()).unwrap();
        assert!(full > 2);
        // This is less than half of the file, so compaction does not start because of the size.
        journal.kept(&ticket(1));
        assert!(journal.note(&ticket(full), &ids).is_ok(), "it fits now");
        assert!(journal.note(&ticket(full + 1), &ids).is_err(), "no other line fits");
        let left: Vec<Ticket> = recall(folder.path()).into_iter().map(|(ticket, _)| ticket).collect();
        assert_eq!(left, (0..=full).filter(|n| *n != 1).map(ticket).collect::<Vec<_>>());
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= MAX_BYTES);
    }

    /// Damage that a power loss may cause: an empty file, a cut line, or zeros in blocks that were not written.
    #[test]
    fn a_damaged_journal_loses_only_the_damaged_lines() {
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
            let (journal, found) = next(folder.path());
            assert_eq!(found.len(), known, "{left:?}");
            journal.note(&ticket(2), &ids).unwrap();
            assert_eq!(recall(folder.path()).len(), known + 1);
        }
    }

    #[test]
    fn a_full_journal_refuses_a_ticket_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let journal = TicketJournal::new(folder.path());
        let ids: Vec<Arc<str>> = (0..500).map(|n| format!("GPU-{n}-{}", "x".repeat(50)).into()).collect();
        let refused = (0..100).map(|n| journal.note(&ticket(n), &ids)).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.to_string().contains("full")));
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= MAX_BYTES);
        assert!(journal.note(&ticket(200), &["GPU-a-1".into()]).is_ok(), "a shorter one fits");
    }
}
