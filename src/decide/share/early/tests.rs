//! Early binding, one case at a time.

use crate::share::tests::{ask, card, device, filled, ids, portion, refused, row, single, tenant, uid};
use crate::share::{Card, Refusal, Share, Verdict, Waiting, WithoutClaim};
use model::id::Ticket;
use model::share::{Assignment, Held, MemoryAsk, Portion, Role, Slot, Tenant};
use model::time::Arrival;
use model::unit::Mib;

pub(super) fn early(tenants: Vec<Tenant>) -> Share {
    let mut share = Share::new(WithoutClaim::Refuse, true);
    share.bind_early(true);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    share.tenants_are(tenants);
    share
}

/// Allocates and issues; the row as kubelet would write it for `pod`.
fn allocate(share: &mut Share, (pod, container): (u32, &str), slots: &[(u32, u16)], n: u8, books: &[Held]) -> Held {
    let meant = share.allocate(&ids(slots), Some(books), true).expect("somebody waits");
    share.issue(Ticket::of_random([n; 16]), &ids(slots), Some(meant));
    Held { early: true, ..row(pod, container, slots, n) }
}

#[test]
fn who_was_meant_does_not_matter_where_the_numbers_are_the_same() {
    let mut share = early(vec![single(1, portion(0, 8, 30)), single(2, portion(1, 8, 30))]);
    // The first pod was expected and the second came.
    let mut books = vec![allocate(&mut share, (2, "main"), &[(0, 3)], 7, &[])];
    books.push(allocate(&mut share, (1, "main"), &[(0, 4)], 8, &books));
    let second = filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    let first = filled(share.start(&ids(&[(0, 4)]), Some(&books)));
    assert_eq!((second[0].holder.pod.clone(), second[0].portions.clone()), (uid(2), vec![portion(0, 8, 30)]));
    assert_eq!((first[0].holder.pod.clone(), first[0].portions.clone()), (uid(1), vec![portion(1, 8, 30)]));
    let changes = share.take_changes();
    assert_eq!((changes.exchanged, changes.claims.len()), (1, 2), "both claims are written anew");
}

#[test]
fn pods_are_meant_in_the_order_in_which_they_came_and_not_by_their_uids() {
    let came = |place: u64, pod: Tenant| Tenant { arrival: Some(Arrival(place)), ..pod };
    let mut share = early(vec![
        came(7, single(1, portion(0, 8, 30))),
        came(5, single(2, portion(1, 9, 30))),
        came(6, single(3, portion(0, 10, 30))),
    ]);
    let mut books = Vec::new();
    for (n, pod) in [(1, 2), (2, 3), (3, 1)] {
        let slot = [(0, u16::from(n))];
        let meant = share.allocate(&ids(&slot), Some(&books), true).expect("somebody waits");
        assert_eq!(meant.holder.pod, uid(pod));
        share.issue(Ticket::of_random([n; 16]), &ids(&slot), Some(meant));
        books.push(Held { early: true, ..row(pod, "main", &slot, n) });
    }
}

#[test]
fn pods_that_run_are_not_meant_though_lost_books_hold_them_no_more() {
    let two = || vec![ask("warm", Role::Init, 1), ask("main", Role::App, 1)];
    let claim = |gib: u64| Assignment::Given(vec![vec![portion(0, gib, 1)], vec![portion(0, gib, 1)]]);
    let mut share = early(vec![tenant(1, two(), claim(8))]);
    let mut books = Vec::new();
    for (n, container) in [(7, "warm"), (8, "main")] {
        books.push(allocate(&mut share, (1, container), &[(0, 3)], n, &books));
    }
    filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    share.tenants_are(vec![Tenant { started: true, ..tenant(1, two(), claim(8)) }, tenant(2, two(), claim(9))]);
    // The books that were last read ended before the newest row, and now there are none.
    share.books_are(&books[..1]);
    let mut books: Option<Vec<Held>> = None;
    for (n, container) in [(9, "warm"), (10, "main")] {
        let meant = share.allocate(&ids(&[(0, 3)]), books.as_deref(), true).expect("somebody waits");
        assert_eq!((meant.holder.pod.clone(), &*meant.holder.container), (uid(2), container));
        share.issue(Ticket::of_random([n; 16]), &ids(&[(0, 3)]), Some(meant));
        books.get_or_insert_default().push(Held { early: true, ..row(2, container, &[(0, 3)], n) });
    }
}

#[test]
fn one_with_other_numbers_does_not_start_and_the_next_is_right_again() {
    let mut share =
        early(vec![single(1, portion(0, 8, 30)), single(2, portion(0, 9, 30)), single(3, portion(0, 9, 30))]);
    let mut books = vec![allocate(&mut share, (2, "main"), &[(0, 3)], 7, &[])];
    books.push(allocate(&mut share, (1, "main"), &[(0, 4)], 8, &books));
    books.push(allocate(&mut share, (3, "main"), &[(0, 5)], 9, &books));
    let why = refused(share.start(&ids(&[(0, 3)]), Some(&books)));
    assert_eq!(why, Refusal::Mistaken { what: "memory or SM time" });
    assert!(why.for_good());
    filled(share.start(&ids(&[(0, 4)]), Some(&books)));
    filled(share.start(&ids(&[(0, 5)]), Some(&books)));
    assert_eq!(share.take_changes().claims, []);
}

#[test]
fn containers_of_a_pod_come_in_order_and_before_those_of_the_next() {
    let asks = || {
        vec![ask("warm", Role::Init, 1), ask("none", Role::App, 0), ask("both", Role::App, 2), ask("one", Role::App, 1)]
    };
    let claim = |gib: u64| {
        let two = vec![portion(0, gib + 1, 1), portion(1, gib + 2, 1)];
        Assignment::Given(vec![vec![portion(0, gib, 1)], vec![], two, vec![portion(1, gib + 3, 1)]])
    };
    let mut share = early(vec![tenant(1, asks(), claim(10)), tenant(2, asks(), claim(20))]);
    let mut books = Vec::new();
    let mut next = |share: &mut Share, slots: &[(u32, u16)], holder: (u32, &str)| {
        let n = u8::try_from(books.len()).unwrap() + 1;
        let meant = share.allocate(&ids(slots), Some(&books), true).expect("somebody waits");
        assert_eq!((meant.holder.pod.clone(), &*meant.holder.container), (uid(holder.0), holder.1));
        share.issue(Ticket::of_random([n; 16]), &ids(slots), Some(meant));
        books.push(Held { early: true, ..row(holder.0, holder.1, slots, n) });
    };
    for pod in 1..3 {
        let first = u16::try_from(pod).unwrap() * 3 - 3;
        next(&mut share, &[(0, first)], (pod, "warm"));
        next(&mut share, &[(0, first), (1, first)], (pod, "both"));
        next(&mut share, &[(0, first + 1)], (pod, "one"));
    }
    assert_eq!(share.allocate(&ids(&[(0, 9)]), Some(&books), true), None, "nobody is left");
}

#[test]
fn a_start_without_the_ticket_that_was_given_is_refused() {
    let mut share = early(vec![single(1, portion(0, 8, 30))]);
    let row = Held { early: true, ..row(1, "main", &[(0, 3)], 7) };
    let why = refused(share.start(&ids(&[(0, 3)]), Some(&[row])));
    assert!(why == Refusal::Forgotten && why.for_good());
}

#[test]
fn a_pod_that_nobody_placed_gets_the_devices_of_its_ids() {
    let mut free = tenant(1, vec![ask("main", Role::App, 1)], Assignment::None);
    free.asks[0].memory = Some(MemoryAsk::Percent(33));
    let mut share = Share::new(WithoutClaim::Share, false);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    share.tenants_are(vec![free.clone()]);
    let books = [allocate(&mut share, (1, "main"), &[(1, 3)], 7, &[])];
    match share.start(&ids(&[(1, 3)]), Some(&books)) {
        Verdict::Fill { bound, shared: true } => {
            let own = Portion { device: device(1), memory: Some(Mib(27_033).bytes()), cores: None };
            assert_eq!(bound[0].portions, [own], "33 % of 80 GiB, in whole MiB as it is written");
            free.assignment = Assignment::Given(vec![bound[0].portions.clone()]);
        }
        other => panic!("{other:?}"),
    }
    // It comes back as it was written, so nothing is to be written anew.
    let _ = share.take_changes();
    share.tenants_are(vec![free]);
    filled(share.start(&ids(&[(1, 3)]), Some(&books)));
    assert_eq!(share.take_changes().claims, []);
}

/// Two of its containers ask; neither is given anything, and both are told why.
#[test]
fn a_pod_that_is_not_to_start_gets_nothing_and_is_told_so_at_its_start() {
    let unreadable = Assignment::Unreadable("x".into());
    for (assignment, expect) in [(Assignment::None, "NotPlaced"), (unreadable, "UnreadableClaim")] {
        let asks = vec![ask("warm", Role::Init, 1), ask("main", Role::App, 1)];
        let mut share = early(vec![tenant(1, asks, assignment), single(2, portion(0, 8, 30))]);
        // Another is expected first, and nobody is given up before it had time to be seen.
        let mut books = vec![allocate(&mut share, (2, "main"), &[(0, 1)], 1, &[])];
        for (n, container, slot) in [(2, "warm", [(0, 2)]), (3, "main", [(0, 3)])] {
            if container == "warm" {
                assert_eq!(share.allocate(&ids(&slot), Some(&books), true), None);
            }
            let meant = share.allocate(&ids(&slot), Some(&books), false).expect("it waits");
            assert_eq!((&meant.holder.pod, &*meant.holder.container), (&uid(1), container));
            assert_eq!(meant.portions, []);
            share.issue(Ticket::of_random([n; 16]), &ids(&slot), Some(meant));
            books.push(Held { early: true, ..row(1, container, &slot, n) });
        }
        let why = refused(share.start(&ids(&[(0, 2)]), Some(&books)));
        assert!(why.code() == expect && !why.for_good(), "{why:?}");
        filled(share.start(&ids(&[(0, 1)]), Some(&books)));
    }
}

#[test]
fn kubelet_is_advised_to_take_the_ids_of_the_pod_that_it_admits() {
    let mut share = early(vec![single(1, portion(1, 8, 30)), single(2, portion(0, 9, 30))]);
    let all: Vec<Slot> = (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number })).collect();
    assert_eq!(share.prefer(&all, &[], 1)[0].device, device(1));
    let books = [allocate(&mut share, (1, "main"), &[(1, 0)], 7, &[])];
    assert!(share.start(&ids(&[(1, 9)]), Some(&books)) == Verdict::Wait(Waiting::Books));
    assert_eq!(share.prefer(&all, &[], 1)[0].device, device(0));
}

#[test]
fn devices_are_those_of_kubelets_topology_where_the_claim_fits_there() {
    let mut share = early(vec![single(1, portion(0, 8, 30)), single(2, portion(1, 70, 30))]);
    share.cards_are((0..2).map(|n| Card { numa: Some(n), ..card(n, 10) }).collect());
    share.follow_topology(true);
    let mut books = vec![allocate(&mut share, (1, "main"), &[(1, 3)], 7, &[])];
    assert_eq!(filled(share.start(&ids(&[(1, 3)]), Some(&books)))[0].portions[0].device, device(1));
    assert_eq!(share.take_changes().reseated, 1);
    books.push(allocate(&mut share, (2, "main"), &[(1, 4)], 8, &books));
    assert_eq!(filled(share.start(&ids(&[(1, 4)]), Some(&books)))[0].portions[0].device, device(1));
}
