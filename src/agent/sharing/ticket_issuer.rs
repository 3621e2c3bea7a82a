//! Issues tickets for the kubelet, passes them to the ticket writer, and starts the prefetch of their containers'
//! files.

use super::prefetch::{BackgroundResult, SpecPrefetcher};
use super::ticket_writer::Keeper;
use decide::allocator::{NodeAllocator, RecentTickets};
use effects::plugin::TicketJournal;
use model::id::Ticket;
use model::ticket::IssuedTicket;
use std::collections::BTreeSet;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Issues tickets.
#[derive(Debug)]
pub(super) struct TicketIssuer {
    keeper: Keeper,
    recent: RecentTickets,
    prefetcher: SpecPrefetcher,
}

/// What the prefetch needs from the sharing task.
#[derive(Debug)]
pub(super) enum PrefetchEvent {
    /// The checkpoint must be read.
    ReadDue,
    /// Work in the background has ended.
    Done(BackgroundResult),
}

impl TicketIssuer {
    /// Writes tickets through this keeper.
    pub(super) fn new(keeper: Keeper) -> TicketIssuer {
        let recent = RecentTickets::new(clock::monotonic());
        TicketIssuer { keeper, recent, prefetcher: SpecPrefetcher::default() }
    }

    /// Registers a ticket that the kubelet has received, and prepares for the start of its container.
    pub(super) fn give(&mut self, allocator: &mut NodeAllocator, ticket: &Ticket, ids: &[Arc<str>]) -> IssuedTicket {
        self.prefetcher.given(ticket, Instant::now());
        self.issue(allocator, ticket, ids)
    }

    fn issue(&mut self, allocator: &mut NodeAllocator, ticket: &Ticket, ids: &[Arc<str>]) -> IssuedTicket {
        self.recent.issued(ticket.clone(), clock::monotonic());
        allocator.issue(ticket.clone(), ids)
    }

    /// Takes over the tickets that the previous agent issued but had no time to write to their folders.
    pub(super) fn recall(&mut self, allocator: &mut NodeAllocator, state_dir: &Path) {
        let journal = sources::state_dir::journal(state_dir);
        for line in &journal.lines {
            let issued = match allocator.issued(&line.ticket) {
                Some(known) => known.clone(),
                None => self.issue(allocator, &line.ticket, &line.ids),
            };
            self.keeper.note(issued);
        }
        self.keeper.journal.continues(journal);
    }

    /// The tickets that may still get a holder; `None` while every ticket may still get a holder.
    pub(super) fn young(&mut self) -> Option<BTreeSet<Ticket>> {
        self.recent.young(clock::monotonic())
    }

    /// The tickets that have no folder yet.
    pub(super) fn journal(&self) -> Arc<TicketJournal> {
        Arc::clone(&self.keeper.journal)
    }

    /// Buffers a ticket; the next call of `keep` queues it for the disk.
    pub(super) fn note(&mut self, issued: IssuedTicket) {
        self.keeper.note(issued);
    }

    /// Queues the buffered tickets, which are written soon.
    pub(super) async fn keep(&mut self) {
        self.keeper.keep().await;
    }

    /// The keeper, which still has tickets to write.
    pub(super) fn into_keeper(self) -> Keeper {
        self.keeper
    }

    /// Waits until the prefetch needs the sharing task.
    pub(super) async fn next(&mut self) -> PrefetchEvent {
        let due = self.prefetcher.due();
        tokio::select! {
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => PrefetchEvent::ReadDue,
            Some(done) = self.prefetcher.ended() => PrefetchEvent::Done(done),
            else => pending().await,
        }
    }

    /// The prefetched files.
    pub(super) fn prefetched(&self) -> &SpecPrefetcher {
        &self.prefetcher
    }

    /// The prefetch.
    pub(super) fn prefetcher(&mut self) -> &mut SpecPrefetcher {
        &mut self.prefetcher
    }
}
