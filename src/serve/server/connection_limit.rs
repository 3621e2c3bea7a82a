//! Limits the number of open connections. When the limit is reached, the server closes a connection of the address with the
//! most connections: the connection that has been idle longest or, if all are busy, the connection that has waited longest
//! for its client to take an answer.
//!
//! So a client with a thousand connections costs no more memory than the limit allows, never keeps a health check out,
//! and never closes the connection that another address keeps open. A client that makes requests and reads no answers
//! gains nothing: its connections count as waiting for their client.
//!
//! A port whose clients must show who they are has a second, lower limit. It counts newcomers: connections whose client has
//! not shown who it is yet. When this limit is reached, the address with the most newcomers loses its oldest newcomer, busy
//! or not. So clients that show nothing close only each other's connections.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A newcomer stays for this long even if other connections wait. Thousands of agents may connect at the same moment. The
/// extender makes a handshake and checks its token in 0.28 ms, so 512 newcomers take 0.15 s.
const NEWCOMER_STAYS: Duration = Duration::from_millis(200);
/// The newcomers of an address get no such time if there are more than this. Agents behind one relay may share an address,
/// but thousands of connections from one address would otherwise make all other clients wait.
const NEWCOMERS_OF_ADDRESS: usize = 64;

/// The open connections. Only the accept loop owns this.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    max_connections: usize,
    /// `None` if the port has no newcomers.
    max_newcomers: Option<usize>,
    taken: Vec<Arc<Slot>>,
    /// The newcomers, the oldest first. Some may be gone or identified: they are sorted out when the limit is reached.
    newcomers: Vec<Arc<Slot>>,
}

#[derive(Debug)]
struct Slot {
    peer: IpAddr,
    opened: Instant,
    /// Whether the client has shown who it is.
    identified: AtomicBool,
    state: Mutex<State>,
    close: CancellationToken,
}

#[derive(Debug)]
enum State {
    /// No request is in progress; the connection has been idle since this moment.
    Idle(Instant),
    Busy(Requests),
    Gone,
}

/// The requests that are being answered on a connection.
#[derive(Debug)]
struct Requests {
    /// Number of requests: HTTP/2 has several at once.
    count: usize,
    /// For each answer with a part that waits for the client to take it: the start of that wait.
    untaken: Vec<Instant>,
}

/// Why the time of a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeOver {
    /// No request has arrived for too long.
    Idle,
    /// The client has not taken the next part of an answer for too long.
    Untaken,
}

/// A new connection was accepted.
#[derive(Debug)]
pub(super) struct Admission {
    /// The permit of the new connection.
    pub(super) permit: ConnectionPermit,
    /// How many other connections were closed for the new connection.
    pub(super) closed: u64,
}

/// The permit of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Slot>);

/// A connection whose client has not shown yet who it is. The server adds it to each request of a port with
/// [`super::ConnectionLimits::newcomers`].
#[derive(Clone, Debug)]
pub struct Newcomer(Arc<Slot>);

/// A request is being answered. When the last such value of a connection is dropped, the connection is idle again.
#[derive(Debug)]
pub(super) struct Busy {
    slot: Arc<Slot>,
    /// The start of the wait, while a part of the answer waits for the client to take it.
    untaken: Option<Instant>,
}

impl ConnectionLimit {
    /// A limit of `max_connections` connections, of which at most `max_newcomers` are newcomers; no connection is open yet.
    pub(super) fn new(max_connections: usize, max_newcomers: Option<usize>) -> ConnectionLimit {
        ConnectionLimit { max_connections, max_newcomers, taken: Vec::new(), newcomers: Vec::new() }
    }

    /// Whether the next connection has to wait before it is accepted: there are as many newcomers as allowed, and the first
    /// to be closed may stay for a moment. So no client loses its handshake because many others connect too.
    pub(super) fn is_crowded(&mut self) -> bool {
        self.is_full_of_newcomers()
            && self.next_newcomer_to_close().is_some_and(|(number, of_address)| {
                of_address <= NEWCOMERS_OF_ADDRESS
                    && self.newcomers.get(number).is_some_and(|slot| slot.opened.elapsed() < NEWCOMER_STAYS)
            })
    }

    /// The place of the oldest newcomer of the address with the most newcomers, and the number of that address's newcomers.
    fn next_newcomer_to_close(&self) -> Option<(usize, usize)> {
        let of_peer = of_peer(&self.newcomers);
        let newcomers = self.newcomers.iter().enumerate();
        let counted = newcomers.map(|(number, slot)| (Reverse(of_peer.get(&slot.peer).copied().unwrap_or(0)), number));
        counted.min().map(|(Reverse(of_address), number)| (number, of_address))
    }

    /// A permit for a connection from this address, or `None` when the application is busy with all connections.
    pub(super) fn enter(&mut self, peer: IpAddr) -> Option<Admission> {
        let mut closed = 0;
        if self.is_full_of_newcomers() {
            let (number, _) = self.next_newcomer_to_close()?;
            self.newcomers.remove(number).close.cancel();
            closed += 1;
        }
        if self.open() >= self.max_connections {
            self.sort_out();
            self.taken.retain(|slot| !slot.is_gone());
        }
        if self.open() >= self.max_connections {
            // Both scans are linear: a port may have thousands of connections, and a client may open more all the time.
            let of_peer = of_peer(&self.taken);
            let closable = self.taken.iter().enumerate().filter_map(|(number, slot)| {
                let (waits, since) = slot.state.lock().closable()?;
                Some((Reverse(of_peer.get(&slot.peer)), waits, since, number))
            });
            let (_, _, _, number) = closable.min()?;
            self.taken.remove(number).close.cancel();
            closed += 1;
        }
        let (state, close) = (Mutex::new(State::Idle(Instant::now())), CancellationToken::new());
        let slot = Arc::new(Slot { peer, opened: Instant::now(), identified: AtomicBool::new(false), state, close });
        let slots = if self.max_newcomers.is_some() { &mut self.newcomers } else { &mut self.taken };
        slots.push(Arc::clone(&slot));
        Some(Admission { permit: ConnectionPermit(slot), closed })
    }

    fn open(&self) -> usize {
        self.taken.len() + self.newcomers.len()
    }

    /// Whether there are as many newcomers as allowed.
    fn is_full_of_newcomers(&mut self) -> bool {
        let Some(most) = self.max_newcomers else { return false };
        if self.newcomers.len() >= most {
            self.sort_out();
        }
        self.newcomers.len() >= most
    }

    /// Moves newcomers that are gone or identified to the other connections.
    fn sort_out(&mut self) {
        let others = self.newcomers.extract_if(.., |slot| slot.identified.load(Ordering::Relaxed) || slot.is_gone());
        self.taken.extend(others);
    }
}

/// The number of connections of each address.
fn of_peer(slots: &[Arc<Slot>]) -> HashMap<IpAddr, usize> {
    let mut of_peer = HashMap::<IpAddr, usize>::new();
    for slot in slots {
        *of_peer.entry(slot.peer).or_default() += 1;
    }
    of_peer
}

impl Slot {
    fn is_gone(&self) -> bool {
        matches!(*self.state.lock(), State::Gone)
    }
}

impl Newcomer {
    /// The client has shown who it is: its connection is no newcomer any more.
    pub fn identified(&self) {
        self.0.identified.store(true, Ordering::Relaxed);
    }
}

impl State {
    /// Whether the connection only waits for its client to take answers (`true`) or is idle (`false`), and since when;
    /// `None` if it may not be closed for another connection.
    fn closable(&self) -> Option<(bool, Instant)> {
        match self {
            State::Idle(since) => Some((false, *since)),
            State::Busy(requests) if requests.untaken.len() < requests.count => None,
            State::Busy(requests) => requests.untaken.iter().min().map(|since| (true, *since)),
            State::Gone => None,
        }
    }

    /// What ends the connection next, and the time left until then: it may be idle for `idle`, and a part of an answer
    /// may wait for `untaken`.
    fn left(&self, now: Instant, (idle, untaken): (Duration, Duration)) -> (TimeOver, Duration) {
        let left = |limit: Duration, since: &Instant| limit.saturating_sub(now.saturating_duration_since(*since));
        match self {
            State::Idle(since) => (TimeOver::Idle, left(idle, since)),
            // The oldest wait counts: a client that takes other answers gains nothing.
            State::Busy(requests) => {
                (TimeOver::Untaken, requests.untaken.iter().min().map_or(Duration::MAX, |since| left(untaken, since)))
            }
            State::Gone => (TimeOver::Idle, Duration::MAX),
        }
    }
}

impl Requests {
    /// The client has taken the part that waited since this moment. If several waits started at that moment, any of
    /// them may be removed.
    fn taken(&mut self, since: Option<Instant>) {
        if let Some(place) = self.untaken.iter().position(|one| Some(*one) == since) {
            self.untaken.swap_remove(place);
        }
    }
}

impl ConnectionPermit {
    /// Returns when a newer connection needs this slot.
    pub(super) async fn must_close(&self) {
        self.0.close.cancelled().await;
    }

    /// The value with which the application says that the client has shown who it is.
    pub(super) fn newcomer(&self) -> Newcomer {
        Newcomer(Arc::clone(&self.0))
    }

    /// Marks the connection as busy until the guard, and so the answer's body, is dropped.
    pub(super) fn busy(&self) -> Busy {
        let mut state = self.0.state.lock();
        if let State::Busy(requests) = &mut *state {
            requests.count += 1;
        } else {
            *state = State::Busy(Requests { count: 1, untaken: Vec::new() });
        }
        Busy { slot: Arc::clone(&self.0), untaken: None }
    }

    /// Returns when the connection has been idle for the time `idle`, or when a part of an answer has waited for the
    /// client for the time `untaken`.
    pub(super) async fn time_is_over(&self, idle: Duration, untaken: Duration) -> TimeOver {
        loop {
            let (over, left) = self.0.state.lock().left(Instant::now(), (idle, untaken));
            if left.is_zero() {
                return over;
            }
            // The connection may become idle, or an answer may begin to wait, during the sleep. The sleep is not longer
            // than either limit, so it ends in time, and the loop then computes the time left again.
            tokio::time::sleep(left.min(idle).min(untaken)).await;
        }
    }
}

impl Busy {
    /// A part of the answer is ready. From now on the client has to take it.
    pub(super) fn offers(&mut self) {
        self.wait(Some(Instant::now()));
    }

    /// The client has taken all that is ready. The application has to make the next part.
    pub(super) fn is_taken(&mut self) {
        self.wait(None);
    }

    fn wait(&mut self, since: Option<Instant>) {
        if let State::Busy(requests) = &mut *self.slot.state.lock() {
            requests.taken(self.untaken);
            requests.untaken.extend(since);
            self.untaken = since;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Gone;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        let State::Busy(requests) = &mut *state else { return };
        requests.taken(self.untaken);
        requests.count = requests.count.saturating_sub(1);
        if requests.count == 0 {
            *state = State::Idle(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const SLOTS: usize = 8;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_and_busy_ones_stay() {
        let mut limit = ConnectionLimit::new(SLOTS, None);
        let permits: Vec<ConnectionPermit> = (0..SLOTS).map(|_| limit.enter(address(1)).unwrap().permit).collect();
        let busy: Vec<Busy> = permits.iter().skip(1).map(ConnectionPermit::busy).collect();
        assert_eq!(limit.enter(address(1)).map(|admission| admission.closed), Some(1));
        permits[0].must_close().await;
        let last = limit.enter(address(1));
        assert!(last.is_some(), "the newest connection is idle, and is closed for this one");
        let _held = last.map(|admission| (admission.permit.busy(), admission.permit));
        assert!(limit.enter(address(1)).is_none(), "all are busy");
        drop(busy);
        assert!(limit.enter(address(1)).is_some());
        assert!(limit.taken.len() <= SLOTS);
    }

    #[tokio::test]
    async fn a_connection_is_idle_when_the_last_of_its_requests_is_answered() {
        let mut limit = ConnectionLimit::new(1, None);
        let permit = limit.enter(address(1)).unwrap().permit;
        let (first, second) = (permit.busy(), permit.busy());
        drop(first);
        assert!(limit.enter(address(1)).is_none(), "the second request is still being answered");
        let pause = Duration::from_millis(20);
        assert!(tokio::time::timeout(5 * pause, permit.time_is_over(pause, pause)).await.is_err());
        let since = Instant::now();
        drop(second);
        assert_eq!(permit.time_is_over(pause, pause).await, TimeOver::Idle);
        assert!(since.elapsed() >= pause);
        assert!(limit.enter(address(1)).is_some(), "the idle one is closed");
    }

    #[tokio::test]
    async fn an_address_with_many_connections_does_not_close_those_of_another_address() {
        let mut limit = ConnectionLimit::new(SLOTS, None);
        let kept = limit.enter(address(2)).unwrap().permit;
        let mut many = Vec::new();
        for _ in 0..10 * SLOTS {
            many.push(limit.enter(address(1)).unwrap().permit);
        }
        assert!(!kept.0.close.is_cancelled(), "the oldest of all, and idle");
        assert_eq!(many.iter().filter(|permit| !permit.0.close.is_cancelled()).count(), SLOTS - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_the_most_newcomers_loses_its_oldest_one_and_identified_clients_stay() {
        let mut limit = ConnectionLimit::new(SLOTS, Some(3));
        let identified = limit.enter(address(1)).unwrap().permit;
        identified.newcomer().identified();
        let other = limit.enter(address(2)).unwrap().permit;
        let many: Vec<ConnectionPermit> = (0..2).map(|_| limit.enter(address(1)).unwrap().permit).collect();
        let _busy: Vec<Busy> = many.iter().map(ConnectionPermit::busy).collect();
        assert!(limit.is_crowded(), "each newcomer may stay for a moment");
        advance(NEWCOMER_STAYS).await;
        assert!(!limit.is_crowded());
        let admission = limit.enter(address(3)).unwrap();
        let is_closed = |permit: &ConnectionPermit| permit.0.close.is_cancelled();
        assert_eq!((admission.closed, is_closed(&many[0]), is_closed(&many[1])), (1, true, false));
        let last = limit.enter(address(3)).unwrap();
        assert_eq!((last.closed, is_closed(&other), is_closed(&many[1])), (1, true, false), "each had one");
        assert!(!is_closed(&identified) && !is_closed(&admission.permit));
        drop(many);
        assert_eq!(limit.enter(address(4)).map(|admission| admission.closed), Some(0), "one is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_newcomers_makes_no_other_client_wait() {
        let most = 2 * NEWCOMERS_OF_ADDRESS;
        let mut limit = ConnectionLimit::new(10 * most, Some(most));
        let different: Vec<ConnectionPermit> =
            (0..most).map(|number| limit.enter(address(u8::try_from(number).unwrap())).unwrap().permit).collect();
        assert!(limit.is_crowded(), "clients of different addresses are waited for");
        drop(different);
        let flood: Vec<ConnectionPermit> = (0..most).map(|_| limit.enter(address(1)).unwrap().permit).collect();
        assert!(!limit.is_crowded());
        let agent = limit.enter(address(2)).unwrap();
        assert_eq!((agent.closed, flood[0].0.close.is_cancelled()), (1, true));
        let _more: Vec<Admission> = (0..10 * most).map(|_| limit.enter(address(1)).unwrap()).collect();
        assert!(!agent.permit.0.close.is_cancelled());
    }

    #[test]
    fn a_connection_that_only_waits_for_its_client_is_closed_for_a_newer_one() {
        let mut limit = ConnectionLimit::new(1, None);
        let permit = limit.enter(address(1)).unwrap().permit;
        let (mut first, mut second) = (permit.busy(), permit.busy());
        first.offers();
        assert!(limit.enter(address(2)).is_none(), "the application works for the second request");
        second.offers();
        first.is_taken();
        assert!(limit.enter(address(2)).is_none(), "the application makes the next part of the first answer");
        first.offers();
        first.offers();
        assert_eq!(limit.enter(address(2)).map(|admission| admission.closed), Some(1));
        assert!(permit.0.close.is_cancelled());
    }

    #[test]
    fn an_address_that_takes_no_answers_does_not_close_the_idle_connection_of_another_address() {
        let mut limit = ConnectionLimit::new(SLOTS, None);
        let kept = limit.enter(address(2)).unwrap().permit;
        let permits: Vec<ConnectionPermit> = (1..SLOTS).map(|_| limit.enter(address(1)).unwrap().permit).collect();
        let mut answers: Vec<Busy> = permits.iter().map(ConnectionPermit::busy).collect();
        answers.iter_mut().for_each(Busy::offers);
        assert!(limit.enter(address(3)).is_some());
        assert!(!kept.0.close.is_cancelled());
        assert!(permits[0].0.close.is_cancelled(), "it has waited longest");
    }

    #[test]
    fn the_time_to_take_an_answer_begins_anew_with_each_part_and_stands_still_without_one() {
        let mut limit = ConnectionLimit::new(1, None);
        let permit = limit.enter(address(1)).unwrap().permit;
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let left = |at: u64| permit.0.state.lock().left(begun + seconds(at), (seconds(30), seconds(10)));
        let (mut first, mut second) = (permit.busy(), permit.busy());
        assert_eq!(left(3600), (TimeOver::Untaken, Duration::MAX), "the application may take its time");
        for part in 0..100 {
            first.wait(Some(begun + seconds(9 * part)));
            assert_eq!(left(9 * part + 9), (TimeOver::Untaken, seconds(1)));
        }
        first.is_taken();
        assert_eq!(left(3600).1, Duration::MAX, "and also in the middle of an answer");
        second.wait(Some(begun + seconds(1000)));
        for part in 0..5 {
            first.wait(Some(begun + seconds(1000 + 2 * part)));
        }
        assert_eq!(left(1008).1, seconds(2), "the first answer is taken, and the second one is not");
        assert_eq!(left(1010).1, Duration::ZERO);
        drop((first, second));
        let idle = permit.0.state.lock().left(Instant::now(), (seconds(30), seconds(10)));
        assert!(idle.0 == TimeOver::Idle && idle.1 > seconds(20), "{idle:?}");
    }
}
