//! Tests of the election: single steps, and two processes over a store that delays and loses answers.

use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Now {
    Now { monotonic: Monotonic(seconds * SECOND), wall: WallTime(seconds * 1_000_000) }
}

fn elector(name: &str) -> Elector {
    Elector::new(name.into(), ElectionTimes::default())
}

fn stored(version: u64, record: &LeaseRecord) -> StoredLease {
    StoredLease { version: version.to_string().into(), record: record.clone() }
}

/// An elector that has created the Lease at this second.
fn leader(name: &str, second: u64) -> (Elector, StoredLease) {
    let mut elector = elector(name);
    assert_eq!(elector.next(at(second)), ElectionStep::Read);
    let (ElectionStep::Create(record), None) = elector.found(None, at(second)) else { panic!("no Lease exists") };
    let lease = stored(1, &record);
    let now = at(second).monotonic;
    assert_eq!(elector.written(lease.clone(), now, now), Some(ElectionChange::Won));
    (elector, lease)
}

fn record(step: ElectionStep) -> LeaseRecord {
    match step {
        ElectionStep::Replace(lease) => lease.record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_process_creates_the_lease_and_renews_it_without_reading() {
    let (mut elector, lease) = leader("a", 0);
    assert_eq!((lease.record.transitions, lease.record.epoch, elector.epoch()), (0, Some(1), Some(1)));
    let ElectionStep::Replace(renewal) = elector.next(at(2)) else { panic!("a leader renews") };
    assert_eq!((&renewal.version, renewal.record.acquired), (&lease.version, Some(WallTime(0))));
    assert_eq!(renewal.record.renewed, Some(WallTime(2_000_000)));
    assert_eq!(elector.written(stored(2, &renewal.record), at(2).monotonic, at(3).monotonic), None);
    assert_eq!(elector.leads_until(), Some(at(12).monotonic), "counted from when the write was sent");
    assert!(elector.leads(at(11).monotonic) && !elector.leads(at(12).monotonic));
    assert_eq!(elector.tick(at(11).monotonic), None);
    assert_eq!(elector.tick(at(12).monotonic), Some(ElectionChange::Lost));
    assert_eq!(elector.next(at(12)), ElectionStep::Read);
}

#[test]
fn a_leader_that_finds_its_lease_as_it_was_before_knows_of_a_restore() {
    let (mut elector, first) = leader("a", 0);
    let renewal = stored(2, &record(elector.next(at(2))));
    assert_eq!(elector.written(renewal.clone(), at(2).monotonic, at(2).monotonic), None);
    elector.failed();
    assert_eq!(elector.found(Some(renewal), at(3)).1, None, "its write was refused for another reason");
    assert_eq!(elector.found(Some(first), at(4)).1, Some(ElectionChange::Restored));
    assert!(elector.leads(at(4).monotonic));
}

#[test]
fn another_process_waits_for_the_duration_after_the_last_change_that_it_saw() {
    let (_, lease) = leader("a", 0);
    let mut other = elector("b");
    // It sees the Lease late, and the times in the record do not count.
    assert_eq!(other.found(Some(lease.clone()), at(100)), (ElectionStep::Wait, None));
    assert_eq!(other.holder().map(|holder| &**holder), Some("a"));
    assert_eq!(other.found(Some(lease.clone()), at(114)), (ElectionStep::Wait, None));
    let renewed = LeaseRecord { renewed: Some(WallTime(9)), ..lease.record };
    assert_eq!(other.found(Some(stored(2, &renewed)), at(114)), (ElectionStep::Wait, None));
    assert_eq!(other.found(Some(stored(2, &renewed)), at(128)), (ElectionStep::Wait, None));
    let (step, _) = other.found(Some(stored(2, &renewed)), at(129));
    let taken = record(step);
    assert_eq!((taken.holder.as_deref(), taken.transitions, taken.epoch), (Some("b"), 1, Some(2)));
    assert_eq!(taken.acquired, Some(at(129).wall));
    // It leads only after the write has succeeded.
    assert!(!other.leads(at(129).monotonic));
    assert_eq!(other.written(stored(3, &taken), at(129).monotonic, at(130).monotonic), Some(ElectionChange::Won));
}

#[test]
fn a_released_lease_is_free_at_once_and_the_epoch_still_rises() {
    let (mut first, _) = leader("a", 0);
    let released = first.release(at(1)).unwrap();
    assert_eq!((released.record.holder.as_ref(), released.record.duration), (None, Duration::from_secs(1)));
    assert!(!first.leads(at(1).monotonic) && first.release(at(1)).is_none());
    let taken = record(elector("b").found(Some(stored(2, &released.record)), at(1)).0);
    assert_eq!((taken.holder.as_deref(), taken.transitions, taken.epoch), (Some("b"), 1, Some(2)));
}

#[test]
fn a_leader_that_finds_another_holder_or_no_lease_leads_no_longer() {
    for gone in [false, true] {
        let (mut elector, lease) = leader("a", 0);
        elector.failed();
        assert_eq!(elector.next(at(2)), ElectionStep::Read, "after a conflict it reads");
        let other = LeaseRecord { holder: Some("b".into()), ..lease.record };
        let (step, change) = elector.found((!gone).then(|| stored(7, &other)), at(2));
        assert_eq!(change, Some(ElectionChange::Lost));
        assert_eq!(matches!(step, ElectionStep::Create(_)), gone);
        assert!(!elector.leads(at(2).monotonic));
    }
}

#[test]
fn the_epoch_is_newer_than_every_epoch_that_was_ever_seen() {
    let mut elector = elector("a");
    elector.epoch_is_used(40);
    let (ElectionStep::Create(record), _) = elector.found(None, at(0)) else { panic!("no Lease exists") };
    assert_eq!(record.epoch, Some(41), "the deletion of the Lease takes nothing back");
    let now = at(0).monotonic;
    elector.written(stored(1, &record), now, now);
    elector.epoch_is_used(41);
    assert_eq!(elector.epoch(), Some(41), "its own claims");
    elector.epoch_is_used(50);
    assert_eq!(elector.epoch(), Some(51));
    let ElectionStep::Replace(renewal) = elector.next(at(2)) else { panic!("a leader renews") };
    assert_eq!(renewal.record.epoch, Some(51));
    // Its next term is a new epoch too, although the holder of the Lease did not change.
    elector.tick(at(60).monotonic);
    let (ElectionStep::Replace(again), None) = elector.found(Some(stored(1, &record)), at(60)) else { panic!("own") };
    assert_eq!((again.record.epoch, again.record.transitions), (Some(52), 0));
}

#[test]
fn a_write_that_takes_longer_than_the_renew_deadline_gives_no_term() {
    let mut elector = elector("a");
    let (ElectionStep::Create(record), _) = elector.found(None, at(0)) else { panic!("no Lease exists") };
    assert_eq!(elector.written(stored(1, &record), at(0).monotonic, at(10).monotonic), None);
    assert!(!elector.leads(at(10).monotonic));
}

#[test]
fn times_that_would_let_two_processes_lead_are_refused() {
    let times = |lease, renew_deadline, retry| ElectionTimes {
        lease: Duration::from_millis(lease),
        renew_deadline: Duration::from_millis(renew_deadline),
        retry: Duration::from_millis(retry),
    };
    assert!(ElectionTimes::default().check().is_ok() && times(3_000, 2_000, 500).check().is_ok());
    for (lease, deadline, retry) in [(2_000, 2_000, 500), (3_500, 2_000, 500), (3_000, 600, 500), (3_000, 2_000, 0)] {
        assert!(times(lease, deadline, retry).check().is_err(), "{lease} {deadline} {retry}");
    }
    let pauses = [0, 50, 99, 1000].map(|chance| ElectionTimes::default().pause(chance).as_millis());
    assert_eq!(pauses, [2_000, 2_200, 2_396, 2_396]);
}

/// One process with its own clock, and the request that it waits for.
struct Process {
    elector: Elector,
    /// The rate of the process's clock, in percent.
    rate: u64,
    waits: Option<Waits>,
    next_try: Monotonic,
}

/// A request under way.
struct Waits {
    sent: Monotonic,
    /// Real steps until the server carries it out; `None` after that.
    until_done: Option<u8>,
    until_answer: u8,
    /// Whether the answer gets lost; the process gives up after a time.
    lost: bool,
    request: ElectionStep,
    answer: Option<Result<Option<StoredLease>, ()>>,
}

#[derive(Default)]
struct Server {
    version: u64,
    lease: Option<StoredLease>,
    /// Requests that the process no longer waits for but that the server may still carry out, with the steps left.
    late: Vec<(u8, ElectionStep)>,
}

impl Server {
    fn carry_out_late(&mut self) {
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.late).into_iter().partition(|(left, _)| *left == 0);
        self.late = rest.into_iter().map(|(left, request)| (left - 1, request)).collect();
        for (_, request) in due {
            let _ = self.carry_out(&request);
        }
    }

    fn carry_out(&mut self, request: &ElectionStep) -> Result<Option<StoredLease>, ()> {
        let record = match (request, &self.lease) {
            (ElectionStep::Read, lease) => return Ok(lease.clone()),
            (ElectionStep::Create(record), None) => record,
            (ElectionStep::Replace(new), Some(old)) if new.version == old.version => &new.record,
            _ => return Err(()),
        };
        self.version += 1;
        self.lease = Some(stored(self.version, record));
        Ok(self.lease.clone())
    }
}

/// A quarter of a second of real time.
const STEP: u64 = SECOND / 4;

impl Process {
    fn now(&self, step: u64) -> Now {
        let monotonic = Monotonic(step * STEP / 100 * self.rate);
        Now { monotonic, wall: WallTime(monotonic.0 / 1000) }
    }

    fn send(&mut self, request: ElectionStep, now: Now, (delay, lost): (u8, bool)) {
        let (until_done, until_answer) = (Some(delay % 16), delay / 16);
        self.waits = Some(Waits { sent: now.monotonic, until_done, until_answer, lost, request, answer: None });
    }

    /// One step of real time. A process that does not run still has its requests carried out.
    fn step(&mut self, server: &mut Server, step: u64, runs: bool, luck: (u8, bool)) {
        let now = self.now(step);
        if let Some(waits) = &mut self.waits {
            match &mut waits.until_done {
                Some(0) => {
                    waits.answer = Some(server.carry_out(&waits.request));
                    waits.until_done = None;
                }
                Some(left) => *left -= 1,
                None => waits.until_answer = waits.until_answer.saturating_sub(1),
            }
        }
        if !runs {
            return;
        }
        self.elector.tick(now.monotonic);
        match self.waits.take() {
            None if now.monotonic >= self.next_try => {
                let step = self.elector.next(now);
                self.send(step, now, luck);
            }
            None => {}
            // The process gives up after two seconds, whether or not the server carries the request out later.
            Some(waits) if waits.lost || waits.until_done.is_some() || waits.until_answer > 0 => {
                if now.monotonic.since(waits.sent) > Duration::from_secs(2) {
                    self.elector.failed();
                    self.next_try = now.monotonic.after(Duration::from_secs(2));
                    if waits.until_done.is_some() {
                        // The write is still on its way, and this process may send the next one behind it.
                        server.late.push((waits.until_done.unwrap_or(0), waits.request));
                    }
                } else {
                    self.waits = Some(waits);
                }
            }
            Some(waits) => self.answered(waits, now, luck),
        }
    }

    fn answered(&mut self, waits: Waits, now: Now, luck: (u8, bool)) {
        self.next_try = now.monotonic.after(Duration::from_secs(2));
        match (waits.request, waits.answer) {
            (ElectionStep::Read, Some(Ok(found))) => {
                let (step, _) = self.elector.found(found, now);
                if step != ElectionStep::Wait {
                    self.send(step, now, luck);
                }
            }
            (_, Some(Ok(Some(lease)))) => drop(self.elector.written(lease, waits.sent, now.monotonic)),
            _ => self.elector.failed(),
        }
    }
}

/// For each process: whether it runs, the delays of its request, and whether the answer gets lost.
type Moment = [(bool, u8, bool); 2];

proptest! {
    #[test]
    fn two_processes_never_lead_at_once_whatever_is_delayed_lost_or_paused(
        rates in [90_u64..=110, 90_u64..=110],
        script in prop::collection::vec(any::<(u8, u8)>(), 100..600),
    ) {
        let of = |(what, delay): (u8, u8)| -> Moment {
            [(what % 8 > 0, delay, what % 5 == 0), (what / 8 % 8 > 0, delay.rotate_left(3), what % 7 == 0)]
        };
        let mut server = Server::default();
        let mut processes = ["a", "b"].map(elector).map(|elector| Process {
            elector, rate: 100, waits: None, next_try: Monotonic(0),
        });
        processes.iter_mut().zip(rates).for_each(|(process, rate)| process.rate = rate);
        let (mut terms, mut epochs) = ([false; 2], Vec::new());
        for (step, moment) in (0_u64..).zip(script.into_iter().map(of)) {
            server.carry_out_late();
            for (process, (runs, delay, lost)) in processes.iter_mut().zip(moment) {
                process.step(&mut server, step, runs, (delay, lost));
            }
            let leads = [0, 1].map(|n| processes[n].elector.leads(processes[n].now(step).monotonic));
            prop_assert!(leads != [true, true], "step {step}");
            for n in 0..2 {
                if leads[n] && !terms[n] {
                    epochs.push(processes[n].elector.epoch().unwrap_or(0));
                }
            }
            terms = leads;
        }
        // If a pause interrupts a term, the same process may lead again with the same epoch, so neighbours may be
        // equal.
        prop_assert!(epochs.windows(2).all(|pair| pair[0] <= pair[1]), "{epochs:?}");
    }
}
