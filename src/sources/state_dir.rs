//! Reads the records that an earlier agent process left in the state directory.
//!
//! What must never happen here: a file is written or removed; a damaged record hides another record; a record in the
//! folder of one pod or ticket is used for another pod or ticket.

use crate::bounded_file;
use model::cdi_support::CdiSupport;
use model::id::{PodUid, Ticket};
use model::limits::ContainerLimits;
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use wire::decode_error::DecodeError;
use wire::started_pods::StartedPods;
use wire::ticket_journal::TicketJournalText;
use wire::{binding_file, issued_ticket, limits, started_pods, ticket_journal};

/// Maximum number of tickets that are read: twice as many as are kept in memory.
const MAX_TICKETS: usize = 16_384;
/// Maximum number of folders that are read of one pod: far more containers than any pod has.
const MAX_CONTAINERS: usize = 256;
/// Maximum number of limits files that are read: more than ten times as many as on the largest node.
const MAX_LIMITS: usize = 65_536;

/// All issued tickets that have a folder. A record that cannot be read is left out and logged.
#[must_use]
pub fn issued_tickets(state: &Path) -> Vec<IssuedTicket> {
    let entries = fs::read_dir(state.join(issued_ticket::FOLDER)).into_iter().flatten().take(MAX_TICKETS).flatten();
    let folders = entries.filter_map(|entry| Some((Ticket::parse(entry.file_name().to_str()?).ok()?, entry.path())));
    let read = |(ticket, folder): (Ticket, PathBuf)| {
        let path = folder.join(issued_ticket::FILE_NAME);
        let issued = record(&path, issued_ticket::MAX_BYTES, issued_ticket::decode).inspect_err(
            |why| tracing::warn!(file = %path.display(), error = %why, "record of a ticket cannot be read"),
        );
        let own = issued.ok()?;
        if own.ticket != ticket {
            tracing::warn!(file = %path.display(), "record of another ticket is in this folder");
        }
        Some(own).filter(|own| own.ticket == ticket)
    };
    folders.filter_map(read).collect()
}

/// The ticket journal. Lines that cannot be read are left out and logged; so is an unreadable journal.
#[must_use]
pub fn journal(state: &Path) -> TicketJournalText {
    let path = state.join(ticket_journal::FILE);
    let journal = ticket_journal::decode(&lines(&path, ticket_journal::MAX_BYTES, "ticket journal cannot be read"));
    if let Some((count, error)) = &journal.unreadable {
        tracing::warn!(file = %path.display(), lines = count, %error, "lines of the ticket journal cannot be read");
    }
    journal
}

/// The pods for which an earlier agent process answered a container start. A line that cannot be read is left out; an
/// unreadable file is logged.
#[must_use]
pub fn started_pods(state: &Path) -> StartedPods {
    let path = state.join(started_pods::FILE);
    started_pods::decode(&lines(&path, started_pods::MAX_BYTES, "file of started pods cannot be read"))
}

/// The limits files of the containers of these pods. A file that cannot be read is left out and logged.
#[must_use]
pub fn container_limits(state: &Path, pods: &BTreeSet<PodUid>) -> Vec<ContainerLimits> {
    let root = state.join(limits::PODS);
    let folders = pods.iter().flat_map(|pod| {
        let entries = fs::read_dir(root.join(pod.as_str())).into_iter().flatten();
        entries.take(MAX_CONTAINERS).flatten().map(move |entry| (pod, entry.path().join(limits::FILE_NAME)))
    });
    let read = |(pod, path): (&PodUid, PathBuf)| match record(&path, limits::MAX_BYTES, limits::decode) {
        Ok(found) => Some(found).filter(|found| found.holder.pod == *pod),
        // The agent was ended before it wrote the file.
        Err(Unread::NoFile) => None,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "limits file of a container cannot be read");
            None
        }
    };
    folders.filter_map(read).take(MAX_LIMITS).collect()
}

/// The last result of the check for CDI, and the container runtime that was checked; `None` if there is no result.
/// Blocks while the file system reads.
#[must_use]
pub fn cdi_support(state: &Path) -> Option<(CdiSupport, String)> {
    let bytes = bounded_file::read(&state.join(binding_file::FILE), binding_file::MAX_BYTES).ok()?;
    binding_file::decode(&bytes).ok()
}

/// Why a record is left out.
#[derive(Debug)]
enum Unread {
    NoFile,
    Because(String),
}

impl Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unread::NoFile => f.write_str("no such file"),
            Unread::Because(why) => f.write_str(why),
        }
    }
}

fn record<T>(path: &Path, max_bytes: usize, decode: fn(&[u8]) -> Result<T, DecodeError>) -> Result<T, Unread> {
    let bytes = bounded_file::read(path, max_bytes).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Unread::NoFile,
        _ => Unread::Because(error.to_string()),
    })?;
    decode(&bytes).map_err(|fault| Unread::Because(fault.to_string()))
}

/// A file of lines; empty if there is no file.
fn lines(path: &Path, max_bytes: usize, unread: &str) -> Vec<u8> {
    match bounded_file::read_start(path, max_bytes) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "{unread}");
            }
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{ContainerKey, PodRef};
    use std::sync::Arc;

    fn uid(n: u8) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

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

    fn example_limits(n: u8) -> ContainerLimits {
        ContainerLimits {
            holder: ContainerKey { pod: uid(n), container: "main".into() },
            pod: PodRef { namespace: "ml".into(), name: "train".into() },
            devices: Vec::new(),
            priority: None,
        }
    }

    fn put(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn record_of(state: &Path, folder: u8) -> PathBuf {
        state.join(issued_ticket::FOLDER).join(issued(folder).ticket.as_str()).join(issued_ticket::FILE_NAME)
    }

    fn limits_of(state: &Path, pod: u8) -> PathBuf {
        state.join(limits::PODS).join(uid(pod).as_str()).join("main").join(limits::FILE_NAME)
    }

    /// The contents that a power loss may leave of a file that was not synced.
    fn torn(whole: &str) -> [Vec<u8>; 5] {
        let half = whole.as_bytes()[..whole.len() / 2].to_vec();
        [Vec::new(), vec![0; 4096], half, [whole.as_bytes(), &[0; 10]].concat(), vec![b' '; 1 << 20]]
    }

    #[test]
    fn an_unusable_ticket_record_hides_no_other_record() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        assert_eq!(issued_tickets(state), []);
        for n in [1, 2] {
            put(&record_of(state, n), issued_ticket::encode(&issued(n)).unwrap().as_bytes());
        }
        put(&record_of(state, 3), issued_ticket::encode(&issued(4)).unwrap().as_bytes());
        fs::create_dir(state.join("tickets/strange")).unwrap();
        fs::create_dir(state.join("tickets").join(issued(5).ticket.as_str())).unwrap();
        for leftover in torn(&issued_ticket::encode(&issued(2)).unwrap()) {
            assert_eq!(issued_tickets(state).len(), 2);
            fs::write(record_of(state, 2), leftover).unwrap();
            assert_eq!(issued_tickets(state), [issued(1)]);
            put(&record_of(state, 2), issued_ticket::encode(&issued(2)).unwrap().as_bytes());
        }
    }

    #[test]
    fn only_limits_of_the_given_pods_are_read_and_a_torn_file_hides_no_other() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let pods = BTreeSet::from([1, 2, 3].map(uid));
        assert_eq!(container_limits(state, &pods), []);
        for n in [1, 2, 4] {
            put(&limits_of(state, n), limits::encode(&example_limits(n)).unwrap().as_bytes());
        }
        put(&limits_of(state, 3), limits::encode(&example_limits(4)).unwrap().as_bytes());
        fs::create_dir_all(state.join("pods").join(uid(1).as_str()).join("unwritten")).unwrap();
        assert_eq!(
            container_limits(state, &pods),
            [example_limits(1), example_limits(2)],
            "not a file in the folder of another pod"
        );
        for leftover in torn(&limits::encode(&example_limits(1)).unwrap()) {
            fs::write(limits_of(state, 1), leftover).unwrap();
            assert_eq!(container_limits(state, &pods), [example_limits(2)]);
        }
    }

    #[test]
    fn files_of_lines_are_read_up_to_their_limit() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        assert_eq!((started_pods(state), journal(state)), (StartedPods::default(), TicketJournalText::default()));
        let ids: Vec<Arc<str>> = vec!["GPU-a-1".into()];
        let line = ticket_journal::line(&issued(1).ticket, &ids).unwrap();
        let long = |line: &str| line.repeat((1 << 20) / line.len() + 1).into_bytes();
        put(&state.join(started_pods::FILE), &long(&started_pods::line(&uid(1))));
        put(&state.join(ticket_journal::FILE), &long(&line));
        assert_eq!(started_pods(state).pods, BTreeSet::from([uid(1)]));
        assert_eq!(started_pods(state).bytes, started_pods::MAX_BYTES as u64);
        let found = journal(state);
        assert_eq!(
            (found.bytes, found.unreadable.map(|(count, _)| count)),
            (ticket_journal::MAX_BYTES as u64, Some(1))
        );
    }

    #[test]
    fn cdi_support_is_read_only_from_a_complete_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(binding_file::FILE);
        assert_eq!(cdi_support(folder.path()), None);
        let whole = binding_file::encode(CdiSupport::Disproved, "containerd://2.1.4");
        fs::write(&path, &whole).unwrap();
        assert_eq!(cdi_support(folder.path()), Some((CdiSupport::Disproved, "containerd://2.1.4".into())));
        for leftover in [Vec::new(), vec![0; 4096], whole.as_bytes()[..5].to_vec(), whole.repeat(100).into_bytes()] {
            fs::write(&path, &leftover).unwrap();
            assert_eq!(cdi_support(folder.path()), None, "{leftover:?}");
        }
    }
}
