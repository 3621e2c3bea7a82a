//! Limits the number of open connections. When the limit is reached, the server closes an idle connection of the
//! address that has most connections: the one that has been idle longest.
//!
//! So a client with a thousand connections costs no more memory than the limit allows, never keeps a health check out,
//! and never closes the connection that another address keeps open.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The open connections. Only the accept loop owns this.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    places: usize,
    taken: Vec<Arc<Place>>,
}

#[derive(Debug)]
struct Place {
    peer: IpAddr,
    state: Mutex<State>,
    leave: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle(Instant),
    Busy,
    Gone,
}

/// A new connection was let in.
#[derive(Debug)]
pub(super) struct Admission {
    /// The permit of the new connection.
    pub(super) permit: ConnectionPermit,
    /// How many idle connections were closed for it.
    pub(super) made_way: u64,
}

/// The permit of one connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Place>);

/// A request is being answered. When this is dropped, the connection is idle again.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl ConnectionLimit {
    /// A limit of `places` connections, all free.
    pub(super) fn new(places: usize) -> ConnectionLimit {
        ConnectionLimit { places, taken: Vec::new() }
    }

    /// A permit for a connection from this address, or `None` when all connections are busy.
    pub(super) fn enter(&mut self, peer: IpAddr) -> Option<Admission> {
        let mut made_way = 0;
        if self.taken.len() >= self.places {
            self.taken.retain(|place| *place.state.lock() != State::Gone);
        }
        if self.taken.len() >= self.places {
            let idle = self.taken.iter().enumerate().filter_map(|(number, place)| match *place.state.lock() {
                State::Idle(since) => Some((Reverse(self.of(place.peer)), since, number)),
                State::Busy | State::Gone => None,
            });
            let (_, _, number) = idle.min()?;
            self.taken.remove(number).leave.cancel();
            made_way = 1;
        }
        let (state, leave) = (Mutex::new(State::Idle(Instant::now())), CancellationToken::new());
        let place = Arc::new(Place { peer, state, leave });
        self.taken.push(Arc::clone(&place));
        Some(Admission { permit: ConnectionPermit(place), made_way })
    }

    /// Number of connections from this address. A scan is cheap: there are some hundred connections.
    fn of(&self, peer: IpAddr) -> usize {
        self.taken.iter().filter(|place| place.peer == peer).count()
    }
}

impl ConnectionPermit {
    /// Returns when a newer connection needs this place.
    pub(super) async fn asked_to_leave(&self) {
        self.0.leave.cancelled().await;
    }

    /// Marks the connection as busy until the guard, and so the answer's body, is dropped.
    pub(super) fn busy(&self) -> Busy {
        *self.0.state.lock() = State::Busy;
        Busy(Arc::clone(&self.0))
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
        if *state == State::Busy {
            *state = State::Idle(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 8;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[tokio::test]
    async fn the_longest_idle_makes_way_and_the_busy_stay() {
        let mut room = ConnectionLimit::new(PLACES);
        let permits: Vec<ConnectionPermit> = (0..PLACES).map(|_| room.enter(address(1)).unwrap().permit).collect();
        let busy: Vec<Busy> = permits.iter().skip(1).map(ConnectionPermit::busy).collect();
        assert_eq!(room.enter(address(1)).map(|admission| admission.made_way), Some(1));
        permits[0].asked_to_leave().await;
        let last = room.enter(address(1));
        assert!(last.is_some(), "the one that just came in is idle and gone already");
        let _held = last.map(|admission| (admission.permit.busy(), admission.permit));
        assert!(room.enter(address(1)).is_none(), "all are busy");
        drop(busy);
        assert!(room.enter(address(1)).is_some());
        assert!(room.taken.len() <= PLACES);
    }

    #[tokio::test]
    async fn an_address_with_many_connections_costs_another_one_none() {
        let mut room = ConnectionLimit::new(PLACES);
        let kept = room.enter(address(2)).unwrap().permit;
        let mut many = Vec::new();
        for _ in 0..10 * PLACES {
            many.push(room.enter(address(1)).unwrap().permit);
        }
        assert!(!kept.0.leave.is_cancelled(), "the oldest of all, and idle");
        assert_eq!(many.iter().filter(|permit| !permit.0.leave.is_cancelled()).count(), PLACES - 1);
    }
}
