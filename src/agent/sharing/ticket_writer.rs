//! Writes tickets to their folders on one thread, in the order of the changes. So an older state of a ticket never
//! replaces a newer one, and the kubelet and the owner wait for the disk only where something depends on the write.

use effects::delivery::{DeliveryError, TicketFolders};
use effects::plugin::TicketJournal;
use model::ticket::IssuedTicket;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

/// Writes that wait for the disk. Senders wait while the queue is full.
const QUEUE: usize = 256;

/// The queue of the writer thread. The thread writes everything, and ends when the queue is closed.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// The tickets that have no folder yet.
    pub journal: Arc<TicketJournal>,
    queue: mpsc::Sender<Writing>,
    noted: Vec<IssuedTicket>,
    writes: JoinHandle<()>,
}

#[derive(Debug)]
struct Writing {
    known: Vec<IssuedTicket>,
    /// Gets the result, if the sender waits for it.
    done: Option<oneshot::Sender<Result<(), String>>>,
}

impl Keeper {
    /// Starts the writer thread.
    pub(crate) fn start(tickets: TicketFolders, journal: TicketJournal) -> Keeper {
        let journal = Arc::new(journal);
        let noted_there = Arc::clone(&journal);
        let (sender, mut queue) = mpsc::channel::<Writing>(QUEUE);
        let writes = spawn_blocking(move || {
            while let Some(Writing { known, done }) = queue.blocking_recv() {
                let keep = |issued: &IssuedTicket| {
                    tickets.keep(issued)?;
                    effects::failpoint!("ticket-kept");
                    noted_there.kept(&issued.ticket);
                    Ok::<(), DeliveryError>(())
                };
                // A ticket that cannot be written does not stop the others.
                let mut kept = Ok(());
                for failed in known.iter().map(keep).filter_map(Result::err) {
                    kept = kept.and(Err(failed.to_string()));
                }
                match (done, kept) {
                    // The receiver may be gone by now.
                    (Some(done), kept) => drop(done.send(kept)),
                    (None, Err(why)) => tracing::warn!(why, "cannot write a ticket to the state directory"),
                    (None, Ok(())) => {}
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

    /// Queues what was noted; the thread writes it soon.
    pub(super) async fn keep(&mut self) {
        if !self.noted.is_empty() {
            let known = std::mem::take(&mut self.noted);
            // The send cannot fail: the thread runs until the queue is closed.
            let _ = self.queue.send(Writing { known, done: None }).await;
        }
    }

    /// Writes a ticket and returns when it is written, for callers that depend on it.
    ///
    /// # Errors
    /// A sentence on what could not be written.
    pub(super) async fn keep_now(&self, issued: IssuedTicket) -> Result<(), String> {
        self.keep_first(issued).await.await
    }

    /// The same in two steps: queues the ticket, and returns a future that waits until it is written.
    pub(super) async fn keep_first(&self, issued: IssuedTicket) -> impl Future<Output = Result<(), String>> + use<> {
        let gone = || "the thread that writes tickets has ended".to_owned();
        let (done, kept) = oneshot::channel();
        let sent = self.queue.send(Writing { known: vec![issued], done: Some(done) }).await;
        async move {
            sent.map_err(|_| gone())?;
            kept.await.map_err(|_| gone())?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Ticket;
    use sources::state_dir;

    #[tokio::test]
    async fn the_last_state_of_a_ticket_is_on_disk_and_keep_now_reports_a_failed_write() {
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
        assert_eq!(keeper.keep_now(issued(100)).await, Ok(()));
        assert_eq!(state_dir::issued_tickets(folder.path()), [issued(100)]);
        std::fs::remove_dir_all(folder.path().join("tickets")).unwrap();
        std::fs::write(folder.path().join("tickets"), "").unwrap();
        assert!(keeper.keep_now(issued(101)).await.is_err_and(|why| why.contains("tickets")));
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
        assert_eq!(keeper.keep_now(issued(4)).await, Ok(()));
        let kept: Vec<u64> = state_dir::issued_tickets(folder.path()).into_iter().map(|issued| issued.order).collect();
        assert_eq!(std::collections::BTreeSet::from_iter(kept), [1, 3, 4].into());
        let open: Vec<Ticket> = state_dir::journal(folder.path()).lines.into_iter().map(|line| line.ticket).collect();
        assert!(open.contains(&issued(2).ticket), "the journal still has it");
    }
}
