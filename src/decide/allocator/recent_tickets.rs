//! The age of issued tickets by the monotonic clock: which tickets may still appear in the kubelet's checkpoint.
//!
//! What must never happen here: a ticket counts as old because the wall clock jumped.

use super::tickets::MAX_ISSUED;
use model::id::Ticket;
use model::time::Monotonic;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// A ticket of this age whose holder is not known will never have a holder. The kubelet writes its checkpoint within
/// milliseconds of an answer, and the agent's pod watch shows the pod within seconds.
const SETTLED: Duration = Duration::from_secs(300);

/// The tickets that were issued lately.
#[derive(Debug)]
pub struct RecentTickets {
    began: Monotonic,
    issued: VecDeque<(Monotonic, Ticket)>,
}

impl RecentTickets {
    /// The empty list of an agent that starts now.
    #[must_use]
    pub fn new(now: Monotonic) -> RecentTickets {
        RecentTickets { began: now, issued: VecDeque::new() }
    }

    /// Adds a ticket that the agent issues now.
    pub fn issued(&mut self, ticket: Ticket, now: Monotonic) {
        // The ticket table has the same bound.
        if self.issued.len() == MAX_ISSUED {
            self.issued.pop_front();
        }
        self.issued.push_back((now, ticket));
    }

    /// The tickets that may still get a holder. `None` if any ticket may: soon after its start, the agent does not know
    /// when the process before it issued its tickets.
    pub fn young(&mut self, now: Monotonic) -> Option<BTreeSet<Ticket>> {
        while self.issued.front().is_some_and(|(at, _)| now.since(*at) > SETTLED) {
            self.issued.pop_front();
        }
        (now.since(self.began) > SETTLED).then(|| self.issued.iter().map(|(_, ticket)| ticket.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(n: u8) -> Ticket {
        Ticket::of_random([n; 16])
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    #[test]
    fn a_ticket_is_young_while_a_container_may_still_turn_out_to_hold_it() {
        let mut ages = RecentTickets::new(at(1000));
        ages.issued(ticket(1), at(1010));
        for now in [at(1010), at(1300)] {
            assert_eq!(ages.young(now), None, "recalled tickets may be as young as the agent");
        }
        ages.issued(ticket(2), at(1305));
        assert_eq!(ages.young(at(1310)), Some(BTreeSet::from([ticket(1), ticket(2)])));
        assert_eq!(ages.young(at(1311)), Some(BTreeSet::from([ticket(2)])));
        assert_eq!(ages.young(at(1606)), Some(BTreeSet::new()));
    }

    #[test]
    fn the_number_of_recent_tickets_is_bounded() {
        let mut ages = RecentTickets::new(at(0));
        for _ in 0..MAX_ISSUED + 10 {
            ages.issued(ticket(1), at(500));
        }
        assert_eq!(ages.issued.len(), MAX_ISSUED);
    }
}
