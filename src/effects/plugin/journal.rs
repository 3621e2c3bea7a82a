//! Tickets that were given out and have no folder of their own yet: one short line each, written before kubelet gets its answer.
//! An answer waits for a line and not for a folder, and an agent that is killed right after it still knows what it gave out.

use model::id::Ticket;
use model::share::Issued;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::issued;

/// Beside the folders of the tickets.
const FILE: &str = "given-out";
/// Much more than the tickets of a full node whose disk hangs.
const MAX_BYTES: u64 = 1 << 20;

/// The file. Who gives out and who makes folders are two, so it locks itself, for as long as a line takes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    open: BTreeSet<Ticket>,
    length: u64,
}

impl Journal {
    /// Under the state directory.
    #[must_use]
    pub fn new(state: &Path) -> Journal {
        Journal { path: state.join(FILE), state: Mutex::default() }
    }

    /// Tickets of an earlier life with their ids, in the order in which they were given out. They stay until they are
    /// [`Journal::kept`]. What cannot be read is left out and told in the log.
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
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match issued::decode(line) {
                Ok(issued) => found.push((issued.ticket, issued.ids)),
                Err(error) => {
                    tracing::warn!(file = %self.path.display(), %error, "a ticket that was given out cannot be read")
                }
            }
        }
        let mut state = self.state.lock();
        state.open.extend(found.iter().map(|(ticket, _)| ticket.clone()));
        state.length = bytes.len() as u64;
        found
    }

    /// A ticket is about to be given out.
    ///
    /// # Errors
    /// It is not kept: the disk is full or gone.
    pub fn note(&self, ticket: &Ticket, ids: &[Arc<str>]) -> io::Result<()> {
        let issued =
            Issued { ticket: ticket.clone(), order: 0, ids: ids.to_vec(), meant: None, holder: None, given: None };
        // The end of the line before it may have been torn off.
        let text = issued::encode(&issued).map_err(|fault| io::Error::other(fault.to_string()))?;
        let line = format!("\n{text}");
        let mut state = self.state.lock();
        if state.length + line.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("{} is full: is the disk slow?", self.path.display())));
        }
        let mut file = match state.file.take() {
            Some(file) => file,
            None => fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?,
        };
        file.write_all(line.as_bytes())?;
        state.length += line.len() as u64;
        state.file = Some(file);
        state.open.insert(ticket.clone());
        Ok(())
    }

    /// It has a folder of its own now. After the last one nothing is left in the file.
    pub fn kept(&self, ticket: &Ticket) {
        let mut state = self.state.lock();
        state.open.remove(ticket);
        if state.open.is_empty() && state.length > 0 {
            // Where that fails it is tried again after the next.
            if fs::OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0)).is_ok() {
                state.length = 0;
            }
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
        let journal = Journal::new(folder.path());
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
        let journal = Journal::new(folder.path());
        assert_eq!(journal.recall(), [given(3), given(1), given(2)]);
        journal.note(&ticket(5), &ids).unwrap();
        journal.kept(&ticket(3));
        journal.kept(&ticket(1));
        assert_eq!(Journal::new(folder.path()).recall(), [given(3), given(1), given(2), given(5)]);
        journal.kept(&ticket(2));
        journal.kept(&ticket(5));
        assert_eq!(Journal::new(folder.path()).recall(), []);
        journal.note(&ticket(4), &ids).unwrap();
        assert_eq!(Journal::new(folder.path()).recall(), [given(4)]);
    }

    #[test]
    fn it_has_a_bound_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(folder.path());
        let ids: Vec<Arc<str>> = (0..500).map(|n| format!("GPU-{n}-{}", "x".repeat(50)).into()).collect();
        let refused = (0..100).map(|n| journal.note(&ticket(n), &ids)).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.to_string().contains("full")));
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= MAX_BYTES);
        assert!(journal.note(&ticket(200), &["GPU-a-1".into()]).is_ok(), "a shorter one fits");
    }
}
