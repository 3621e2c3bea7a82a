//! Writes tickets to their folders on one thread, in the order of the changes. This way an older state of a ticket
//! never replaces a newer state, and neither the kubelet nor the sharing task waits for the disk.

use effects::delivery::{DeliveryError, TicketFolders};
use effects::plugin::TicketJournal;
use model::ticket::IssuedTicket;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Maximum number of writes that wait for the disk. Senders wait while the queue is full.
const QUEUE: usize = 256;

/// The queue of the writer thread. The thread writes everything, and ends when the queue is closed.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// The tickets that have no folder yet.
    pub journal: Arc<TicketJournal>,
    queue: mpsc::Sender<Vec<IssuedTicket>>,
    noted: Vec<IssuedTicket>,
    writes: JoinHandle<()>,
}

impl Keeper {
    /// Starts the writer thread.
    pub(crate) fn start(tickets: TicketFolders, journal: TicketJournal) -> Keeper {
        let journal = Arc::new(journal);
        let noted_there = Arc::clone(&journal);
        let (sender, mut queue) = mpsc::channel::<Vec<IssuedTicket>>(QUEUE);
        let writes = spawn_blocking(move || {
            while let Some(known) = queue.blocking_recv() {
                let keep = |issued: &IssuedTicket| {
                    tickets.keep(issued)?;
                    effects::failpoint!("ticket-kept");
                    noted_there.kept(&issued.ticket);
                    Ok::<(), DeliveryError>(())
                };
                // A ticket that cannot be written does not stop the others.
                if let Some(why) =
                    known.iter().map(keep).filter_map(Result::err).fold(None, |first, why| first.or(Some(why)))
                {
                    tracing::warn!(%why, "cannot write a ticket to the state directory");
                }
            }
        });
        Keeper { journal, queue: sender, noted: Vec::new(), writes }
    }

    /// Returns when everything is written.
    pub(super) async fn end(mut self) {
        self.keep().await;
        drop(self.queue);
        let _ = self.writes.await;
    }

    /// Buffers a ticket; the next call of `keep` queues it for the disk.
    pub(super) fn note(&mut self, issued: IssuedTicket) {
        self.noted.push(issued);
    }

    /// Queues the buffered tickets; the thread writes them soon.
    pub(super) async fn keep(&mut self) {
        if !self.noted.is_empty() {
            let known = std::mem::take(&mut self.noted);
            // The send cannot fail: the thread runs until the queue is closed.
            let _ = self.queue.send(known).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Ticket;
    use sources::state_dir;

    #[tokio::test]
    async fn the_last_state_of_a_ticket_is_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::start(TicketFolders::new(folder.path()), TicketJournal::new(folder.path()));
        let issued = |order: u64| IssuedTicket {
            ticket: Ticket::of_random([7; 16]),
            order,
            ids: vec!["GPU-a-1".into()],
            expected: None,
            holder: None,
            given: None,
        };
        for order in 1..100 {
            keeper.note(issued(order));
            keeper.keep().await;
        }
        keeper.end().await;
        assert_eq!(state_dir::issued_tickets(folder.path()), [issued(99)]);
    }

    #[tokio::test]
    async fn a_ticket_that_cannot_be_written_does_not_stop_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let tickets = TicketFolders::new(folder.path());
        let issued = |n: u8| IssuedTicket {
            ticket: Ticket::of_random([n; 16]),
            order: u64::from(n),
            ids: vec!["GPU-a-1".into()],
            expected: None,
            holder: None,
            given: None,
        };
        std::fs::create_dir(folder.path().join("tickets")).unwrap();
        std::fs::write(tickets.folder(&issued(2).ticket), "in the way").unwrap();
        let journal = TicketJournal::new(folder.path());
        for n in 1..=3 {
            journal.note(&issued(n).ticket, &issued(n).ids).unwrap();
        }
        let mut keeper = Keeper::start(tickets.clone(), journal);
        (1..=3).for_each(|n| keeper.note(issued(n)));
        keeper.keep().await;
        // Written in order, after the batch.
        keeper.note(issued(4));
        keeper.end().await;
        let kept: Vec<u64> = state_dir::issued_tickets(folder.path()).into_iter().map(|issued| issued.order).collect();
        assert_eq!(std::collections::BTreeSet::from_iter(kept), [1, 3, 4].into());
        let open: Vec<Ticket> = state_dir::journal(folder.path()).lines.into_iter().map(|line| line.ticket).collect();
        assert!(open.contains(&issued(2).ticket), "the journal still has it");
    }
}
