//! Who may stay connected. When the room is full, the connection that has been idle longest makes way for the new one, so
//! a thousand open connections cost as much as the places there are and never keep a health check out.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The places. Owned by the accept loop alone.
#[derive(Debug)]
pub(super) struct Room {
    places: usize,
    taken: Vec<Arc<Place>>,
}

#[derive(Debug)]
struct Place {
    state: Mutex<State>,
    leave: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle(Instant),
    Busy,
    Gone,
}

/// Someone came in.
#[derive(Debug)]
pub(super) struct Entrance {
    /// The place.
    pub(super) seat: Seat,
    /// How many idle connections were asked to leave for it.
    pub(super) made_way: u64,
}

/// One connection's place; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<Place>);

/// A request is being answered; idle again when it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Room {
    /// An empty room.
    pub(super) fn new(places: usize) -> Room {
        Room { places, taken: Vec::new() }
    }

    /// A place, or `None` when all are busy.
    pub(super) fn enter(&mut self) -> Option<Entrance> {
        let mut made_way = 0;
        if self.taken.len() >= self.places {
            self.taken.retain(|place| *place.state.lock() != State::Gone);
        }
        if self.taken.len() >= self.places {
            let idle = self.taken.iter().enumerate().filter_map(|(number, place)| match *place.state.lock() {
                State::Idle(since) => Some((since, number)),
                State::Busy | State::Gone => None,
            });
            let (_, number) = idle.min()?;
            self.taken.remove(number).leave.cancel();
            made_way = 1;
        }
        let place = Arc::new(Place { state: Mutex::new(State::Idle(Instant::now())), leave: CancellationToken::new() });
        self.taken.push(Arc::clone(&place));
        Some(Entrance { seat: Seat(place), made_way })
    }
}

impl Seat {
    /// Ends when a newer connection needs the place.
    pub(super) async fn asked_to_leave(&self) {
        self.0.leave.cancelled().await;
    }

    /// Until the answer's body is dropped, this connection is not idle.
    pub(super) fn busy(&self) -> Busy {
        *self.0.state.lock() = State::Busy;
        Busy(Arc::clone(&self.0))
    }
}

impl Drop for Seat {
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

    #[tokio::test]
    async fn the_longest_idle_makes_way_and_the_busy_stay() {
        let mut room = Room::new(PLACES);
        let seats: Vec<Seat> = (0..PLACES).map(|_| room.enter().unwrap().seat).collect();
        let busy: Vec<Busy> = seats.iter().skip(1).map(Seat::busy).collect();
        assert_eq!(room.enter().map(|entrance| entrance.made_way), Some(1));
        seats[0].asked_to_leave().await;
        let last = room.enter();
        assert!(last.is_some(), "the one that just came in is idle and gone already");
        let _held = last.map(|entrance| (entrance.seat.busy(), entrance.seat));
        assert!(room.enter().is_none(), "all are busy");
        drop(busy);
        assert!(room.enter().is_some());
        assert!(room.taken.len() <= PLACES);
    }
}
