//! Limits the number of open connections. When the limit is reached, the server closes an idle connection of the
//! address that has most connections: the one that has been idle longest.
//!
//! So a client with a thousand connections costs no more memory than the limit allows, never keeps a health check out,
//! and never closes the connection that another address keeps open.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The open connections. Only the accept loop owns this.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    max_connections: usize,
    taken: Vec<Arc<Slot>>,
}

#[derive(Debug)]
struct Slot {
    peer: IpAddr,
    state: Mutex<State>,
    close: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No request is being answered, since this moment.
    Idle(Instant),
    /// So many requests are being answered; HTTP/2 has several at once.
    Busy(usize),
    Gone,
}

/// A new connection was accepted.
#[derive(Debug)]
pub(super) struct Admission {
    /// The permit of the new connection.
    pub(super) permit: ConnectionPermit,
    /// How many idle connections were closed for it.
    pub(super) closed_idle: u64,
}

/// The permit of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Slot>);

/// A request is being answered. When the last one of a connection is dropped, the connection is idle again.
#[derive(Debug)]
pub(super) struct Busy(Arc<Slot>);

impl ConnectionLimit {
    /// A limit of `max_connections` connections; none is open.
    pub(super) fn new(max_connections: usize) -> ConnectionLimit {
        ConnectionLimit { max_connections, taken: Vec::new() }
    }

    /// A permit for a connection from this address, or `None` when all connections are busy.
    pub(super) fn enter(&mut self, peer: IpAddr) -> Option<Admission> {
        let mut closed_idle = 0;
        if self.taken.len() >= self.max_connections {
            self.taken.retain(|slot| *slot.state.lock() != State::Gone);
        }
        if self.taken.len() >= self.max_connections {
            // Both scans are linear: a port may have thousands of connections, and a client may open more all the time.
            let mut of_peer = HashMap::<IpAddr, usize>::new();
            for slot in &self.taken {
                *of_peer.entry(slot.peer).or_default() += 1;
            }
            let idle = self.taken.iter().enumerate().filter_map(|(number, slot)| match *slot.state.lock() {
                State::Idle(since) => Some((Reverse(of_peer.get(&slot.peer).copied()), since, number)),
                State::Busy(_) | State::Gone => None,
            });
            let (_, _, number) = idle.min()?;
            self.taken.remove(number).close.cancel();
            closed_idle = 1;
        }
        let (state, close) = (Mutex::new(State::Idle(Instant::now())), CancellationToken::new());
        let slot = Arc::new(Slot { peer, state, close });
        self.taken.push(Arc::clone(&slot));
        Some(Admission { permit: ConnectionPermit(slot), closed_idle })
    }
}

impl ConnectionPermit {
    /// Returns when a newer connection needs this slot.
    pub(super) async fn must_close(&self) {
        self.0.close.cancelled().await;
    }

    /// Marks the connection as busy until the guard, and so the answer's body, is dropped.
    pub(super) fn busy(&self) -> Busy {
        let mut state = self.0.state.lock();
        *state = match *state {
            State::Busy(requests) => State::Busy(requests + 1),
            State::Idle(_) | State::Gone => State::Busy(1),
        };
        Busy(Arc::clone(&self.0))
    }

    /// Returns when no request has been answered for this long.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let left = match *self.0.state.lock() {
                State::Idle(since) => limit.saturating_sub(since.elapsed()),
                State::Busy(_) | State::Gone => limit,
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
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
        let mut state = self.0.state.lock();
        *state = match *state {
            State::Busy(requests) if requests > 1 => State::Busy(requests - 1),
            State::Busy(_) => State::Idle(Instant::now()),
            other @ (State::Idle(_) | State::Gone) => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 8;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_and_busy_ones_stay() {
        let mut limit = ConnectionLimit::new(SLOTS);
        let permits: Vec<ConnectionPermit> = (0..SLOTS).map(|_| limit.enter(address(1)).unwrap().permit).collect();
        let busy: Vec<Busy> = permits.iter().skip(1).map(ConnectionPermit::busy).collect();
        assert_eq!(limit.enter(address(1)).map(|admission| admission.closed_idle), Some(1));
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
        let mut limit = ConnectionLimit::new(1);
        let permit = limit.enter(address(1)).unwrap().permit;
        let (first, second) = (permit.busy(), permit.busy());
        drop(first);
        assert!(limit.enter(address(1)).is_none(), "the second request is still being answered");
        let pause = Duration::from_millis(20);
        assert!(tokio::time::timeout(5 * pause, permit.idle_for(pause)).await.is_err());
        let since = Instant::now();
        drop(second);
        permit.idle_for(pause).await;
        assert!(since.elapsed() >= pause);
        assert!(limit.enter(address(1)).is_some(), "the idle one is closed");
    }

    #[tokio::test]
    async fn an_address_with_many_connections_does_not_close_those_of_another_address() {
        let mut limit = ConnectionLimit::new(SLOTS);
        let kept = limit.enter(address(2)).unwrap().permit;
        let mut many = Vec::new();
        for _ in 0..10 * SLOTS {
            many.push(limit.enter(address(1)).unwrap().permit);
        }
        assert!(!kept.0.close.is_cancelled(), "the oldest of all, and idle");
        assert_eq!(many.iter().filter(|permit| !permit.0.close.is_cancelled()).count(), SLOTS - 1);
    }
}
