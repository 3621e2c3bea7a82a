//! Whether kubelet has admitted a pod whole: from then on a scheduler need not hold the node for it, though its images may take
//! minutes to come.

use super::start::bind;
use super::state::Share;
use model::id::PodUid;
use model::share::{Assignment, ContainerKey, Held};

impl Share {
    /// Takes over kubelet's books between calls, and whose the tickets are that were given out early.
    pub fn look_at_books(&mut self, books: &[Held]) {
        self.books_are(books);
        self.settle(books);
    }

    /// Whether each container that asks stands in kubelet's books, and nothing that is known by now will refuse its start.
    #[must_use]
    pub fn admitted(&self, uid: &PodUid) -> bool {
        let Some(tenant) = self.tenants.get(uid).filter(|tenant| !tenant.finished) else { return false };
        let Assignment::Given(claim) = self.assignment(tenant) else { return false };
        let row = |container| {
            let key = ContainerKey { pod: uid.clone(), container };
            self.held.get(&key).filter(|row| row.ticket.is_some())
        };
        let asking = tenant.asks.iter().filter(|ask| ask.slots > 0);
        let rows: Option<Vec<&Held>> = asking.map(|ask| row(ask.container.clone())).collect();
        let Some(rows) = rows.filter(|rows| !rows.is_empty()) else { return false };
        let Ok(bound) = bind(tenant, &claim, &rows) else { return false };
        let its_own = bound.iter().filter(|bound| bound.early).all(|bound| {
            self.tickets.get(&bound.ticket).is_some_and(|issued| issued.holder.as_ref() == Some(&bound.holder))
        });
        its_own && self.fits(tenant, &claim).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::share::tests::{ask, ids, portion, row, share, tenant, uid};
    use model::id::Ticket;
    use model::share::{Assignment, Role, Tenant};

    fn two(n: u32, gib: u64) -> Tenant {
        let asks = vec![ask("warm", Role::Init, 1), ask("plain", Role::App, 0), ask("main", Role::App, 1)];
        let claim = vec![vec![portion(0, gib, 10)], vec![], vec![portion(1, gib, 10)]];
        tenant(n, asks, Assignment::Given(claim))
    }

    #[test]
    fn a_pod_is_admitted_with_the_last_container_that_asks_and_before_any_starts() {
        let mut share = share(vec![two(1, 8), two(2, 8)]);
        let books = [row(1, "warm", &[(0, 1)], 1), row(2, "warm", &[(0, 2)], 2), row(1, "main", &[(1, 1)], 3)];
        share.look_at_books(&books[..2]);
        assert_eq!([share.admitted(&uid(1)), share.admitted(&uid(2))], [false, false]);
        share.look_at_books(&books);
        assert_eq!([share.admitted(&uid(1)), share.admitted(&uid(2)), share.admitted(&uid(3))], [true, false, false]);
    }

    #[test]
    fn what_is_known_to_be_refused_is_not_admitted() {
        let books = [row(1, "warm", &[(0, 1)], 1), row(1, "main", &[(1, 1)], 2)];
        let other = Tenant { finished: true, ..two(1, 8) };
        let unreadable = Tenant { assignment: Assignment::Unreadable("torn".into()), ..two(1, 8) };
        for (bad, why) in [(other, "finished"), (unreadable, "unreadable"), (two(1, 8000), "more than there is")] {
            let mut share = share(vec![bad]);
            share.look_at_books(&books);
            assert!(!share.admitted(&uid(1)), "{why}");
        }
        let mut foreign = books.clone();
        foreign[0].ticket = None;
        let mut short = books.clone();
        short[1].ids = ids(&[(1, 1), (1, 2)]);
        for (books, why) in [(foreign, "of an earlier plugin"), (short, "another number of devices")] {
            let mut share = share(vec![two(1, 8)]);
            share.look_at_books(&books);
            assert!(!share.admitted(&uid(1)), "{why}");
        }
    }

    #[test]
    fn early_a_pod_is_admitted_only_with_what_is_its_own() {
        for (meant, expected) in [(1, true), (2, false)] {
            let one = |n| {
                let claim = vec![vec![portion(0, if n == 1 { 8 } else { 9 }, 10)]];
                tenant(n, vec![ask("main", Role::App, 1)], Assignment::Given(claim))
            };
            let mut share = share(if meant == 1 { vec![one(1)] } else { vec![one(2)] });
            share.bind_early(true);
            let slots = [(0, 1)];
            let given = share.allocate(&ids(&slots), Some(&[]), false).unwrap();
            share.issue(Ticket::of_random([7; 16]), &ids(&slots), Some(given));
            share.tenants_are(vec![one(1), one(2)]);
            let mut row = row(1, "main", &slots, 7);
            row.early = true;
            share.look_at_books(&[row]);
            assert_eq!(share.admitted(&uid(1)), expected);
        }
    }
}
