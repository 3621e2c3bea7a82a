//! The promise that everything else rests on, played through: nobody gets what is another's.

use super::*;
use model::id::{GpuUuid, PodRef, PodUid, Ticket};
use model::share::{Ask, Assignment, ContainerKey, Held, MemoryAsk, Portion, Role, Slot, Tenant};
use model::time::Arrival;
use model::unit::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const GIB: u64 = 1 << 30;

pub(super) fn device(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n:08x}-0000-4000-8000-000000000000")).unwrap()
}

pub(super) fn uid(n: u32) -> PodUid {
    PodUid::parse(&format!("{n:08x}-0000-4000-8000-000000000000")).unwrap()
}

pub(super) fn card(n: u32, slots: u16) -> Card {
    Card {
        device: device(n),
        index: n,
        model: "NVIDIA H100".into(),
        slots,
        memory: Bytes(80 * GIB),
        cores: 100,
        numa: Some(n / 2),
        healthy: true,
    }
}

pub(super) fn ask(container: &str, role: Role, slots: u32) -> Ask {
    Ask { container: container.into(), role, slots, memory: None, cores: None, priority: None }
}

pub(super) fn portion(n: u32, gib: u64, cores: u32) -> Portion {
    Portion { device: device(n), memory: Some(Bytes(gib * GIB)), cores: Some(cores) }
}

pub(super) fn tenant(n: u32, asks: Vec<Ask>, assignment: Assignment) -> Tenant {
    let pod = PodRef { namespace: "ml".into(), name: format!("pod-{n}").into() };
    let arrival = Some(Arrival(n.into()));
    Tenant { uid: uid(n), pod, arrival, asks, assignment, placed_here: false, started: false, finished: false }
}

/// A pod of one container `main` with one grant.
pub(super) fn single(n: u32, grant: Portion) -> Tenant {
    tenant(n, vec![ask("main", Role::App, 1)], Assignment::Given(vec![vec![grant]]))
}

pub(super) fn ids(slots: &[(u32, u16)]) -> Vec<Arc<str>> {
    slots.iter().map(|(n, number)| Slot { device: device(*n), number: *number }.to_string().into()).collect()
}

pub(super) fn row(pod: u32, container: &str, slots: &[(u32, u16)], ticket: u8) -> Held {
    Held {
        holder: ContainerKey { pod: uid(pod), container: container.into() },
        ids: ids(slots),
        ticket: (ticket != 0).then(|| Ticket::of_random([ticket; 16])),
        foreign: false,
        early: false,
    }
}

pub(super) fn share(tenants: Vec<Tenant>) -> Share {
    let mut share = Share::new(WithoutClaim::Auto, false);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    share.tenants_are(tenants);
    share
}

pub(super) fn filled(verdict: Verdict) -> Vec<Bound> {
    match verdict {
        Verdict::Fill { bound, .. } => bound,
        other => panic!("not filled: {other:?}"),
    }
}

pub(super) fn refused(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refuse { why, .. } => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_claim_wins_over_the_ids_that_kubelet_chose() {
    let mut share = share(vec![single(1, portion(1, 8, 30))]);
    let bound = filled(share.start(&ids(&[(0, 3)]), Some(&[row(1, "main", &[(0, 3)], 7)])));
    assert_eq!(bound.len(), 1);
    assert_eq!(bound[0].portions, vec![portion(1, 8, 30)]);
    assert_eq!(bound[0].ticket, Ticket::of_random([7; 16]));
    assert!(bound[0].differs);
}

#[test]
fn a_start_waits_for_books_and_pod_and_never_guesses() {
    let mut share = share(vec![]);
    let row = row(1, "main", &[(0, 3)], 7);
    assert_eq!(share.start(&ids(&[(0, 3)]), Some(&[])), Verdict::Wait(Waiting::Books));
    assert_eq!(share.start(&ids(&[(0, 3)]), Some(std::slice::from_ref(&row))), Verdict::Wait(Waiting::Pod));
    share.tenant_is(single(1, portion(0, 8, 30)));
    assert!(matches!(share.start(&ids(&[(0, 3)]), Some(&[row])), Verdict::Fill { .. }));
}

#[test]
fn books_that_cannot_be_read_are_not_empty_ones() {
    let mut share = share(vec![single(1, portion(1, 8, 30)), single(2, portion(0, 8, 30))]);
    let books = [row(1, "main", &[(0, 3)], 7)];
    filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    share.cards_are(vec![card(0, 10), Card { healthy: false, ..card(1, 10) }]);
    let before = share.list();
    assert!(before.iter().any(|listed| !listed.healthy && listed.slot.device == device(0)));
    for ids in [ids(&[(0, 3)]), ids(&[(0, 4)])] {
        assert_eq!(share.start(&ids, None), Verdict::Wait(Waiting::Books));
    }
    assert_eq!(share.list(), before, "who holds what is still known");
    filled(share.start(&ids(&[(0, 3)]), Some(&books)));
}

#[test]
fn all_containers_that_share_ids_are_filled_at_once_each_with_its_own_part() {
    let asks = vec![ask("warm", Role::Init, 1), ask("main", Role::App, 1)];
    let given = Assignment::Given(vec![vec![portion(0, 2, 10)], vec![portion(1, 8, 30)]]);
    let mut share = share(vec![tenant(1, asks, given)]);
    let books = [row(1, "main", &[(0, 3)], 8), row(1, "warm", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 9)];
    let bound = filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    let got: Vec<_> = bound.iter().map(|b| (&*b.holder.container, b.portions[0].device.clone())).collect();
    assert_eq!(got, [("main", device(1)), ("warm", device(0))]);
}

#[test]
fn a_second_pod_that_does_not_fit_beside_the_first_does_not_start_and_the_first_may_restart() {
    let mut share = share(vec![single(1, portion(0, 50, 30)), single(2, portion(0, 50, 30))]);
    let books = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    filled(share.start(&ids(&[(0, 0)]), Some(&books)));
    let why = refused(share.start(&ids(&[(0, 1)]), Some(&books)));
    assert_eq!(
        why,
        Refusal::DoesNotFit {
            device: device(0),
            what: Scarce::Memory,
            total: 80 * GIB,
            promised: 50 * GIB,
            wanted: 50 * GIB
        }
    );
    filled(share.start(&ids(&[(0, 0)]), Some(&books)));
    share.tenant_gone(&uid(1));
    filled(share.start(&ids(&[(0, 1)]), Some(&books)));
}

#[test]
fn a_running_pods_promise_stays_whatever_is_written_on_it() {
    let asks = || vec![ask("main", Role::App, 1), ask("late", Role::App, 1)];
    let first = vec![vec![portion(0, 40, 10)], vec![portion(0, 10, 10)]];
    let pod = |assignment| tenant(1, asks(), assignment);
    let books = [row(1, "main", &[(0, 0)], 1), row(1, "late", &[(0, 1)], 2), row(2, "main", &[(0, 2)], 3)];
    let start = |share: &mut Share, slot| share.start(&ids(&[(0, slot)]), Some(&books));
    let second = |share: &mut Share| refused(start(share, 2));
    let mut share = share(vec![pod(Assignment::Given(first.clone())), single(2, portion(0, 50, 30))]);
    filled(start(&mut share, 0));
    let larger = vec![vec![portion(0, 79, 10)], vec![portion(0, 10, 10)]];
    let smaller = vec![vec![portion(0, 5, 10)], vec![portion(0, 5, 10)]];
    let elsewhere = vec![vec![portion(1, 40, 10)], vec![portion(0, 10, 10)]];
    let torn = Assignment::Unreadable("torn".into());
    let given = Assignment::Given;
    for written in
        [torn.clone(), Assignment::None, given(larger.clone()), given(smaller.clone()), given(elsewhere.clone())]
    {
        share.tenants_are(vec![pod(written.clone()), single(2, portion(0, 50, 30))]);
        match second(&mut share) {
            Refusal::DoesNotFit { promised, .. } => assert_eq!(promised, 50 * GIB, "{written:?}"),
            other => panic!("{written:?}: {other}"),
        }
    }
    // Without a claim that can be read a container gets again what it had.
    share.tenants_are(vec![pod(torn), single(2, portion(0, 20, 30))]);
    assert_eq!(filled(start(&mut share, 0))[0].portions, first[0]);
    filled(start(&mut share, 2));
    // More than it had is judged beside those that run; less is its own, container by container.
    share.tenant_is(pod(given(larger)));
    assert!(matches!(refused(start(&mut share, 0)), Refusal::DoesNotFit { promised, .. } if promised == 20 * GIB));
    let unlimited = vec![vec![Portion { memory: None, ..portion(0, 0, 10) }], vec![portion(0, 10, 10)]];
    share.tenant_is(pod(given(unlimited)));
    assert!(matches!(refused(start(&mut share, 0)), Refusal::DoesNotFit { wanted, .. } if wanted == 80 * GIB));
    share.tenant_is(pod(given(smaller)));
    filled(start(&mut share, 0));
    assert_eq!(share.promised(&device(0), &uid(2)).memory, 15 * GIB);
    filled(start(&mut share, 1));
    assert_eq!(share.promised(&device(0), &uid(2)).memory, 10 * GIB);
}

#[test]
fn a_claim_of_all_sm_time_has_its_device_to_itself() {
    let free = |n| Portion { cores: None, ..portion(n, 8, 0) };
    let books = [row(1, "main", &[(0, 0)], 1), row(2, "main", &[(0, 1)], 2)];
    for (first, second, refuses) in [
        (portion(0, 8, 100), free(0), Some(false)),
        (free(0), portion(0, 8, 100), Some(true)),
        (portion(0, 8, 100), free(1), None),
        (portion(0, 8, 99), free(0), None),
    ] {
        let mut share = share(vec![single(1, first.clone()), single(2, second)]);
        filled(share.start(&ids(&[(0, 0)]), Some(&books)));
        let verdict = share.start(&ids(&[(0, 1)]), Some(&books));
        match refuses {
            Some(own) => assert_eq!(refused(verdict), Refusal::NotAlone { device: device(0), own }),
            None => drop(filled(verdict)),
        }
        filled(share.start(&ids(&[(0, 0)]), Some(&books)));
    }
    // Where more SM time can be promised than there is, nobody is alone.
    let mut share = share(vec![single(1, portion(0, 8, 100)), single(2, free(0))]);
    share.cards_are(vec![Card { cores: 200, ..card(0, 10) }]);
    filled(share.start(&ids(&[(0, 0)]), Some(&books)));
    filled(share.start(&ids(&[(0, 1)]), Some(&books)));
}

#[test]
fn init_containers_take_turns_and_sidecars_do_not() {
    let asks = vec![
        ask("side", Role::Sidecar, 1),
        ask("a", Role::Init, 1),
        ask("b", Role::Init, 1),
        ask("main", Role::App, 1),
    ];
    let given = [10, 40, 50, 20].map(|gib| vec![portion(0, gib, 0)]).to_vec();
    let pod = tenant(1, asks, Assignment::Given(given.clone()));
    // Beside the sidecar the larger of the two init containers, later the sidecar and the app: 60 beats 30.
    assert_eq!(ledger::of_pod(&pod, &given, &device(0)).memory, 60 * GIB);
    assert_eq!(ledger::of_pod(&pod, &given, &device(1)), ledger::Promised::default());
}

#[test]
fn a_pod_that_nobody_placed_shares_only_where_no_scheduler_ever_served() {
    let asks = vec![Ask { memory: Some(MemoryAsk::Percent(50)), ..ask("main", Role::App, 1) }];
    let books = [row(1, "main", &[(0, 3)], 7)];
    let free = tenant(1, asks, Assignment::None);
    let mut share = self::share(vec![free.clone()]);
    match share.start(&ids(&[(0, 3)]), Some(&books)) {
        Verdict::Fill { bound, shared: true } => {
            assert_eq!(
                bound[0].portions,
                vec![Portion { device: device(0), memory: Some(Bytes(40 * GIB)), cores: None }]
            );
        }
        other => panic!("{other:?}"),
    }
    let torn = tenant(3, vec![ask("main", Role::App, 1)], Assignment::Unreadable("torn".into()));
    let mut share = self::share(vec![free.clone(), torn]);
    assert!(!share.served_by_scheduler(), "anybody can write what cannot be read");
    assert!(matches!(share.start(&ids(&[(0, 3)]), Some(&books)), Verdict::Fill { shared: true, .. }));
    let mut share = self::share(vec![free.clone(), single(2, portion(0, 8, 30))]);
    assert_eq!(refused(share.start(&ids(&[(0, 3)]), Some(&books))), Refusal::NotPlaced);
    let mut share = Share::new(WithoutClaim::Share, true);
    share.cards_are(vec![card(0, 10)]);
    share.tenants_are(vec![free]);
    assert!(matches!(share.start(&ids(&[(0, 3)]), Some(&books)), Verdict::Fill { shared: true, .. }));
}

/// A start that cannot be answered yet, because its files are being prepared, is judged again.
#[test]
fn a_share_is_to_be_written_until_it_is_however_often_its_start_is_judged() {
    let books = [row(1, "main", &[(0, 3)], 7)];
    let mut share = self::share(vec![tenant(1, vec![ask("main", Role::App, 1)], Assignment::None)]);
    for _ in 0..3 {
        assert!(matches!(share.start(&ids(&[(0, 3)]), Some(&books)), Verdict::Fill { shared: true, .. }));
    }
    share.share_is_written(&uid(1));
    assert!(matches!(share.start(&ids(&[(0, 3)]), Some(&books)), Verdict::Fill { shared: false, .. }));
}

#[test]
fn every_container_of_a_pod_that_nobody_placed_gets_its_own_and_may_restart() {
    let asks = || {
        vec![
            ask("side", Role::Sidecar, 1),
            ask("none", Role::App, 0),
            ask("one", Role::App, 1),
            ask("two", Role::App, 2),
        ]
    };
    let free = |n| Portion { device: device(n), memory: None, cores: None };
    let claim = vec![vec![free(0)], vec![], vec![free(1)], vec![free(0), free(1)]];
    let slots: [(&str, &[(u32, u16)]); 3] = [("side", &[(0, 0)]), ("one", &[(1, 0)]), ("two", &[(0, 1), (1, 1)])];
    let books: Vec<Held> = (1..).zip(&slots).map(|(n, (container, slots))| row(1, container, slots, n)).collect();
    let mut share = share(vec![tenant(1, asks(), Assignment::None)]);
    let mut written = Vec::new();
    let mut start = |share: &mut Share, slots: &[(u32, u16)]| match share.start(&ids(slots), Some(&books)) {
        Verdict::Fill { bound, shared } => {
            if shared {
                written.push(share.claim(&uid(1)).unwrap());
                share.share_is_written(&uid(1));
            }
            bound
        }
        other => panic!("{slots:?}: {other:?}"),
    };
    for (container, slots) in slots.iter().chain(&slots) {
        let bound = start(&mut share, slots);
        assert_eq!((bound.len(), &*bound[0].holder.container, bound[0].portions.len()), (1, *container, slots.len()));
        assert!(!bound[0].differs);
    }
    // What comes back with the pod is what was written; a scheduler's first pod changes nothing of it.
    share.tenants_are(vec![tenant(1, asks(), Assignment::Given(claim.clone())), single(2, portion(1, 8, 30))]);
    for (_, slots) in slots {
        start(&mut share, slots);
    }
    assert_eq!(written, [claim], "once, and whole");
}

#[test]
fn what_cannot_be_right_is_refused_with_its_reason() {
    let one = |assignment| tenant(1, vec![ask("main", Role::App, 1)], assignment);
    let given = |portions| one(Assignment::Given(vec![portions]));
    let books = [row(1, "main", &[(0, 3)], 7)];
    for (tenant, refusal, word) in [
        (given(vec![portion(7, 8, 30)]), Refusal::NoSuchDevice(device(7)), "this node has no such GPU"),
        (one(Assignment::Unreadable("torn".into())), Refusal::Unreadable("torn".into()), "torn"),
        (one(Assignment::BadRequest("150".into())), Refusal::BadRequest("150".into()), "150"),
        (
            given(vec![]),
            Refusal::Count { claimed: 0, given: 1 },
            "names 0 GPUs for this container, and the kubelet allocated 1",
        ),
        (Tenant { finished: true, ..given(vec![portion(0, 8, 30)]) }, Refusal::Finished, "finished"),
    ] {
        let pod = tenant.pod.clone();
        let verdict = share(vec![tenant]).start(&ids(&[(0, 3)]), Some(&books));
        assert!(refusal.to_string().contains(word), "{refusal}");
        assert_eq!(verdict, Verdict::Refuse { uid: uid(1), pod, container: "main".into(), why: refusal });
    }
    // Where two share the ids and the cause is the pod's, both are named.
    let asks = vec![ask("warm", Role::Init, 1), ask("main", Role::App, 1)];
    let mut share = share(vec![tenant(1, asks, Assignment::Unreadable("torn".into()))]);
    let books = [row(1, "warm", &[(0, 3)], 7), row(1, "main", &[(0, 3)], 8)];
    let verdict = share.start(&ids(&[(0, 3)]), Some(&books));
    assert!(matches!(&verdict, Verdict::Refuse { container, .. } if **container == *"warm, main"), "{verdict:?}");
}

#[test]
fn ids_of_an_earlier_plugin_are_left_alone() {
    let mut share = share(vec![single(1, portion(0, 8, 30))]);
    let old = Held { ids: vec!["GPU-old::3".into()], ..row(1, "main", &[], 0) };
    assert_eq!(share.start(&["GPU-old::3".into()], Some(&[old])), Verdict::Foreign);
    // Ids may look like ours, answers do not.
    let alike = Held { foreign: true, ..row(1, "main", &[(0, 3)], 0) };
    assert_eq!(share.start(&ids(&[(0, 3)]), Some(&[alike])), Verdict::Foreign);
}

#[test]
fn a_ticket_alone_starts_nobody_where_it_is_known_to_come_to_nothing() {
    let mut share = share(vec![single(1, portion(0, 8, 30)), single(2, portion(0, 8, 30))]);
    let books = [row(1, "main", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 8)];
    filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    share.tickets_are_lost(true);
    for slot in [3, 4] {
        assert_eq!(refused(share.start(&ids(&[(0, slot)]), Some(&books))), Refusal::WithoutCdi);
    }
    assert!(Refusal::WithoutCdi.for_good(), "kubelet does not ask for these ids again");
    let ran: Vec<ContainerKey> = share.started_by_ticket().into_iter().map(|(key, _)| key).collect();
    assert_eq!(ran, [books[0].holder.clone()], "who waits has nothing that could be missing");
    share.tickets_are_lost(false);
    filled(share.start(&ids(&[(0, 4)]), Some(&books)));
}

#[test]
fn an_answer_that_is_lost_is_not_another_plugins() {
    let asks = vec![ask("warm", Role::Init, 1), ask("main", Role::App, 1)];
    let claim = vec![vec![portion(0, 2, 10)], vec![portion(0, 8, 30)]];
    let mut share = share(vec![tenant(1, asks, Assignment::Given(claim))]);
    // Which of the two starts is not known.
    for (warm, main, lost) in [(0, 7, "warm"), (7, 0, "main"), (0, 0, "warm")] {
        let books = [row(1, "warm", &[(0, 3)], warm), row(1, "main", &[(0, 3)], main)];
        match share.start(&ids(&[(0, 3)]), Some(&books)) {
            Verdict::Refuse { container, why, .. } => assert_eq!((&*container, why), (lost, Refusal::AnswerLost)),
            other => panic!("{other:?}"),
        }
    }
    assert!(Refusal::AnswerLost.for_good(), "kubelet does not ask twice");
}

#[test]
fn claims_are_those_of_pods_that_have_not_ended_with_and_without_a_scheduler() {
    let asks = vec![ask("none", Role::App, 0), ask("main", Role::App, 1)];
    let two = tenant(2, asks, Assignment::Given(vec![vec![], vec![portion(1, 8, 30)]]));
    let over = Tenant { finished: true, ..single(3, portion(0, 8, 30)) };
    let mut share = share(vec![two, single(1, portion(0, 24, 50)), over]);
    let shown = |share: &Share| -> Vec<(PodUid, String, Vec<Portion>)> {
        let claims = share.claims().into_iter();
        claims.map(|claim| (claim.holder.pod, claim.holder.container.to_string(), claim.portions)).collect()
    };
    let main = |n, portions| (uid(n), "main".to_owned(), portions);
    assert_eq!(shown(&share), [main(1, vec![portion(0, 24, 50)]), main(2, vec![portion(1, 8, 30)])]);
    share.tenant_gone(&uid(1));
    assert_eq!(shown(&share), [main(2, vec![portion(1, 8, 30)])]);

    // Nobody placed it: what it was given at its start is its claim, without a limit that it did not ask for.
    let mut alone = Share::new(WithoutClaim::Share, false);
    alone.cards_are(vec![card(0, 10)]);
    alone.tenants_are(vec![tenant(4, vec![ask("main", Role::App, 1)], Assignment::None)]);
    assert_eq!(shown(&alone), []);
    filled(alone.start(&ids(&[(0, 3)]), Some(&[row(4, "main", &[(0, 3)], 7)])));
    assert_eq!(shown(&alone), [main(4, vec![Portion { device: device(0), memory: None, cores: None }])]);
}

#[test]
fn a_sick_card_takes_as_many_slots_as_it_has_and_by_the_true_map() {
    let mut share = share(vec![single(1, portion(1, 8, 30))]);
    // Its claim is on card 1, kubelet counts it as slot 3 of card 0.
    let books = [row(1, "main", &[(0, 3)], 7)];
    filled(share.start(&ids(&[(0, 3)]), Some(&books)));
    share.cards_are(vec![card(0, 10), Card { healthy: false, ..card(1, 10) }]);
    let sick: Vec<String> =
        share.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot.to_string()).collect();
    assert_eq!(sick.len(), 10);
    assert!(sick.contains(&format!("{}-3", device(0))), "the id that stands for a claim on it");
    assert_eq!(sick.iter().filter(|id| id.starts_with(device(1).as_str())).count(), 9);
    assert!(share.cards_are(vec![card(0, 10), card(1, 10)]), "it is well again, and kubelet is told");
    assert!(share.list().iter().all(|listed| listed.healthy));
}

#[test]
fn books_that_say_the_same_again_change_nothing_and_others_do() {
    let mut share = share(vec![single(1, portion(1, 8, 30))]);
    share.cordoned_are([device(1)].into());
    let books = |slot| [row(1, "main", &[(1, slot)], 7)];
    assert!(share.books_are(&books(3)), "the slot that it uses is not taken from it");
    let list = share.list();
    assert!(!share.books_are(&books(3)));
    assert_eq!(share.list(), list);
    assert!(share.books_are(&books(4)), "it uses another one");
    assert!(share.books_are(&[]));
}

#[test]
fn a_start_is_of_the_row_with_just_its_ids_in_any_order() {
    let two = vec![vec![portion(0, 8, 30), portion(1, 8, 30)]];
    let mut share =
        share(vec![tenant(1, vec![ask("main", Role::App, 2)], Assignment::Given(two)), single(2, portion(0, 8, 30))]);
    let books = [row(2, "main", &[(0, 2)], 8), row(1, "main", &[(0, 1), (1, 1)], 7)];
    let whose = |share: &mut Share, asked: &[(u32, u16)]| match share.start(&ids(asked), Some(&books)) {
        Verdict::Fill { bound, .. } => bound.first().map(|bound| bound.holder.pod.clone()),
        _ => None,
    };
    assert_eq!(whose(&mut share, &[(1, 1), (0, 1)]), Some(uid(1)));
    assert_eq!(whose(&mut share, &[(0, 2)]), Some(uid(2)));
    for asked in [&[(0, 1)][..], &[(0, 1), (1, 1), (0, 2)], &[]] {
        assert_eq!(whose(&mut share, asked), None, "{asked:?}");
    }
}

#[test]
fn a_cordoned_card_offers_none_of_its_places_and_keeps_what_runs_on_it() {
    let mut share = share(vec![single(1, portion(1, 8, 30)), single(2, portion(0, 8, 30))]);
    // The claim of pod 1 is on card 1 and counted as slot 3 of card 0; pod 2 is where it is counted. Pod 9 is gone.
    let books = [row(1, "main", &[(0, 3)], 7), row(2, "main", &[(0, 4)], 8), row(9, "main", &[(1, 0)], 9)];
    share.books_are(&books);
    assert!(share.cordoned_are([device(1), device(7)].into()), "kubelet is told");
    let marked = |share: &Share| -> Vec<String> {
        share.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot.to_string()).collect()
    };
    let now = marked(&share);
    assert_eq!(now.len(), 9, "one of ten is in use: {now:?}");
    assert!(now.iter().all(|id| id.starts_with(device(1).as_str())), "{now:?}");
    let tally: Vec<_> =
        share.tally().into_iter().map(|one| (one.free, one.used, one.unhealthy, one.cordoned)).collect();
    assert_eq!(tally, [(8, 2, 0, false), (1, 0, 9, true)]);
    // Sick as well: then what runs on it is told too.
    share.cards_are(vec![card(0, 10), Card { healthy: false, ..card(1, 10) }]);
    assert_eq!(marked(&share).len(), 10);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    assert!(share.cordoned_are(BTreeSet::new()) && marked(&share).is_empty());
    // Where no device gets new containers, it is so of all of them, and none is called cordoned.
    assert!(share.close(true) && share.is_closed() && !share.close(true));
    let tally: Vec<_> =
        share.tally().into_iter().map(|one| (one.free, one.used, one.unhealthy, one.cordoned)).collect();
    assert_eq!((marked(&share).len(), tally), (18, vec![(0, 2, 8, false), (0, 0, 10, false)]));
    assert!(share.close(false) && marked(&share).is_empty());
}

#[test]
fn preferred_ids_are_those_of_the_waiting_claim_else_of_the_emptiest_cards() {
    let all: Vec<Slot> = (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number })).collect();
    let share = share(vec![single(1, portion(1, 8, 30))]);
    assert_eq!(share.prefer(&all, &[], 1)[0].device, device(1));
    let two = self::share(vec![]).prefer(&all[1..], &[], 2);
    assert_eq!(two.iter().map(|slot| slot.device.clone()).collect::<Vec<_>>(), [device(1), device(0)]);
    let must = [all[0].clone()];
    assert_eq!(self::share(vec![]).prefer(&all, &must, 1), must);
    assert_eq!(self::share(vec![]).prefer(&all[..1], &[], 3).len(), 1);
}

/// kubelet's ids of a container and its claim may be of two cards. Both count, and no card that is promised whole is advised
/// while another has room.
#[test]
fn preferred_ids_are_of_cards_that_can_keep_what_is_asked() {
    let mut share = Share::new(WithoutClaim::Share, false);
    share.cards_are(vec![card(0, 10), card(1, 10)]);
    let whole = single(1, portion(0, 80, 100));
    let half = Ask { memory: Some(MemoryAsk::Percent(50)), ..ask("main", Role::App, 1) };
    share.tenants_are(vec![whole, tenant(2, vec![half.clone()], Assignment::None)]);
    // The claim is card 0, kubelet took a slot of card 1, so that more ids of card 0 are free.
    let books = [row(1, "main", &[(1, 0)], 7)];
    filled(share.start(&ids(&[(1, 0)]), Some(&books)));
    let left: Vec<Slot> = (0..2)
        .flat_map(|n| (0..10).map(move |number| Slot { device: device(n), number }))
        .filter(|slot| *slot != Slot { device: device(1), number: 0 })
        .collect();
    assert_eq!(share.prefer(&left, &[], 1)[0].device, device(1));
    // The same while the pod has not been seen.
    share.tenant_gone(&uid(2));
    assert_eq!(share.prefer(&left, &[], 1)[0].device, device(1));
    // Where one card has 60 of 80 GiB promised and the other more containers, the request decides.
    let runs = |n, portion| Tenant { started: true, ..single(n, portion) };
    let many: Vec<Tenant> = (3..6).map(|n| runs(n, portion(0, 1, 0))).chain([runs(1, portion(1, 60, 0))]).collect();
    for (memory, advised) in [(MemoryAsk::Percent(50), 0), (MemoryAsk::Bytes(Bytes(GIB)), 1)] {
        let ask = Ask { memory: Some(memory), ..half.clone() };
        let next = tenant(2, vec![ask], Assignment::None);
        let mut share = Share::new(WithoutClaim::Share, false);
        share.cards_are(vec![card(0, 10), card(1, 10)]);
        share.tenants_are(many.iter().cloned().chain([next]).collect());
        assert_eq!(share.prefer(&left, &[], 1)[0].device, device(advised), "{memory:?}");
    }
}

#[test]
fn preferred_ids_reckon_with_tickets_that_kubelets_books_do_not_have_yet() {
    let slots = || (0..2).flat_map(|n| (0..4).map(move |number| Slot { device: device(n), number }));
    let mut share =
        share(vec![single(1, portion(1, 8, 30)), single(2, portion(0, 8, 30)), single(3, portion(1, 8, 30))]);
    // kubelet asks for pod 2 before it has written down what pod 1 got: those ids are not on offer any more.
    share.issue(Ticket::of_random([7; 16]), &ids(&[(1, 0)]), None);
    let left: Vec<Slot> = slots().filter(|slot| *slot != Slot { device: device(1), number: 0 }).collect();
    assert_eq!(share.prefer(&left, &[], 1)[0].device, device(0));
    // Books that have it change nothing.
    share.books_are(&[row(1, "main", &[(1, 0)], 7)]);
    assert_eq!(share.prefer(&left, &[], 1)[0].device, device(0));
    // What kubelet offers again it does not hold, whatever was given out for it once.
    share.books_are(&[]);
    let all: Vec<Slot> = slots().collect();
    assert_eq!(share.prefer(&all, &[], 1)[0].device, device(1));
    // Where kubelet took other ids than those of the claim, the first that waits has got them.
    share.issue(Ticket::of_random([8; 16]), &ids(&[(0, 3)]), None);
    share.issue(Ticket::of_random([9; 16]), &ids(&[(0, 2)]), None);
    let left: Vec<Slot> = all.into_iter().filter(|slot| slot.device == device(1) || slot.number < 2).collect();
    assert_eq!(share.next_claim(&left, 1), [device(1)], "pods 1 and 2 are served");
}

proptest! {
    /// Promise 33 in docs/specification.md: whatever ids kubelet chose, a sick card takes as many slots as it has, a cordoned
    /// one as many as it has free, and no id that a pod on a well card holds is marked.
    #[test]
    fn sick_and_cordoned_cards_take_their_slots_and_no_neighbours(
        pods in prop::collection::vec((0_u32..3, 0_u32..3), 0..12),
        sick in 0_u32..4,
        cordoned in 0_u32..4,
    ) {
        let cards = |sick: u32| (0..3).map(|n| Card { healthy: n != sick, ..card(n, 8) }).collect::<Vec<Card>>();
        let mut share = Share::new(WithoutClaim::Refuse, true);
        share.cards_are(cards(9));
        let number = |n: usize| u32::try_from(n).unwrap();
        // A scheduler that knows slots places at most eight on a card.
        let fits = |n: usize| pods[..n].iter().filter(|(claim, _)| *claim == pods[n].0).count() < 8;
        let kept: Vec<usize> = (0..pods.len()).filter(|n| fits(*n)).collect();
        share.tenants_are(kept.iter().map(|n| single(number(*n), portion(pods[*n].0, 1, 1))).collect());
        let mut next = [0_u16; 3];
        let mut books = Vec::new();
        for n in &kept {
            let counted = (0..3).map(|turn| (pods[*n].1 + turn) % 3).find(|gpu| next[*gpu as usize] < 8).unwrap();
            books.push(row(number(*n), "main", &[(counted, next[counted as usize])], 1));
            next[counted as usize] += 1;
        }
        share.books_are(&books);
        share.cards_are(cards(sick));
        share.cordoned_are([device(cordoned)].into());
        let marked: BTreeSet<Slot> =
            share.list().into_iter().filter(|listed| !listed.healthy).map(|listed| listed.slot).collect();
        let on = |gpu: u32| kept.iter().filter(|n| pods[**n].0 == gpu).count();
        let of_sick = if sick < 3 { 8 } else { 0 };
        let of_cordoned = if cordoned < 3 && cordoned != sick { 8 - on(cordoned) } else { 0 };
        prop_assert_eq!(marked.len(), of_sick + of_cordoned);
        for (n, row) in kept.iter().zip(&books) {
            let slot = Slot::parse(&row.ids[0]).unwrap();
            prop_assert_eq!(marked.contains(&slot), pods[*n].0 == sick, "{}", slot);
        }
    }

    /// Promise 28 in docs/specification.md: whatever order pods, books and starts come in, each ticket is filled from the
    /// claim of the pod in whose row it stands, and what has started never exceeds a card.
    #[test]
    fn no_order_of_calls_gives_a_container_what_is_anothers(
        pods in prop::collection::vec((0_u32..3, 1_u64..60, 0_u32..60), 1..12),
        order in prop::collection::vec((0_u8..12, any::<bool>()), 1..60),
    ) {
        let mut share = Share::new(WithoutClaim::Refuse, true);
        share.cards_are(vec![card(0, 4), card(1, 10)]);
        share.tenants_are(vec![]);
        let number = |n: u8| u32::from(n);
        let count = u8::try_from(pods.len()).unwrap();
        let of = |n: u8| pods[usize::from(n)];
        let books: Vec<Held> =
            (0..count).map(|n| row(number(n), "main", &[(number(n) % 2, u16::from(n))], n + 1)).collect();
        let mut running: BTreeSet<u8> = BTreeSet::new();
        for (n, leaves) in order {
            let n = n % count;
            let (gpu, gib, cores) = of(n);
            if leaves {
                share.tenant_gone(&uid(number(n)));
                running.remove(&n);
                continue;
            }
            let own = &books[usize::from(n)];
            share.tenant_is(single(number(n), portion(gpu, gib, cores)));
            match share.start(&own.ids, Some(&books)) {
                Verdict::Fill { bound, .. } => {
                    prop_assert_eq!(bound.len(), 1);
                    prop_assert_eq!(&bound[0].holder.pod, &uid(number(n)));
                    prop_assert_eq!(Some(&bound[0].ticket), own.ticket.as_ref());
                    prop_assert_eq!(&bound[0].portions, &vec![portion(gpu, gib, cores)]);
                    running.insert(n);
                }
                Verdict::Refuse { .. } => {}
                other => prop_assert!(false, "{:?}", other),
            }
            for gpu in 0..2 {
                let on: Vec<u8> = running.iter().copied().filter(|n| of(*n).0 == gpu).collect();
                let (memory, cores) = on.iter().fold((0, 0), |sum, n| (sum.0 + of(*n).1, sum.1 + of(*n).2));
                prop_assert!(memory <= 80 && cores <= 100);
                prop_assert!(gpu != 0 || on.len() <= 4);
            }
        }
    }
}

/// What use is held against: the pod's containers together, where all of them are limited, from the first start to the end.
#[test]
fn promises_are_those_of_pods_that_have_started_and_are_limited() {
    let asks = vec![ask("side", Role::Sidecar, 1), ask("warm", Role::Init, 1), ask("main", Role::App, 2)];
    let given = vec![vec![portion(0, 1, 0)], vec![portion(0, 9, 0)], vec![portion(0, 4, 0), portion(1, 2, 0)]];
    let free = Portion { memory: None, ..portion(1, 0, 0) };
    let mut share = share(vec![
        Tenant { started: true, ..tenant(1, asks, Assignment::Given(given)) },
        Tenant { started: true, ..single(2, free) },
        single(3, portion(0, 8, 30)),
        Tenant { started: true, finished: true, ..single(4, portion(0, 8, 30)) },
    ]);
    let told = |share: &Share| -> Vec<(PodUid, GpuUuid, u64)> {
        share.promises().iter().map(|one| (one.pod.clone(), one.device.clone(), one.memory.0 / GIB)).collect()
    };
    assert_eq!(told(&share), [(uid(1), device(0), 10), (uid(1), device(1), 2)]);
    share.tenant_gone(&uid(1));
    assert_eq!(told(&share), []);
}

/// An agent that ended before it could write where a claim had moved.
#[test]
fn what_has_moved_is_to_be_written_in_the_next_life_before_anything_starts() {
    let one = [(0, 3)];
    let cards = || vec![Card { numa: Some(0), ..card(0, 10) }, Card { numa: Some(1), ..card(1, 10) }];
    let mut before = share(vec![single(1, portion(1, 8, 30))]);
    before.cards_are(cards());
    before.follow_topology(true);
    before.issue(model::id::Ticket::of_random([7; 16]), &ids(&one), None);
    filled(before.start(&ids(&one), Some(&[row(1, "main", &one, 7)])));
    let mut share = Share::new(WithoutClaim::Refuse, true);
    share.cards_are(cards());
    share.recall_tickets(before.take_changes().tickets);
    for due in [1, 0] {
        share.tenants_are(vec![single(1, portion(1, 8, 30))]);
        let claims = share.take_changes().claims;
        assert_eq!(claims.len(), due);
        assert!(claims.iter().all(|(_, claim)| claim[0][0].device == device(0)));
    }
}
