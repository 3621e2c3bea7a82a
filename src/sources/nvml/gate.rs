//! The driver gate holds whether the NVML library may be open. An operator requests that the agent closes the library.
//! The poller closes it and records that here.
//!
//! ```text
//!   Held ──release──▶ LettingGo ──the poller has closed the library──▶ Released
//!    ▲ ▲                │    │                                            │
//!    │ └─cannot close───┘    │                                            │
//!    └──take_back, expire────┴────────────────────────────────────────────┘
//! ```
//!
//! If the poller cannot close the library, `Held` has the reason. In the states `LettingGo` and `Released`, `release`
//! only sets a new end time. Without a driver the state is `Held` too: the agent opens the library as soon as there is
//! a driver.

use model::driver_hold::DriverHold;
use model::time::Monotonic;
use std::sync::Arc;
use tokio::sync::watch;

/// The switch that operators, the supervisor and the pollers share.
#[derive(Clone, Debug, Default)]
pub struct DriverGate(Arc<watch::Sender<DriverHold>>);

impl DriverGate {
    /// Requests that the library is closed until this time. If the library is closed already, this sets a new end time.
    pub fn release(&self, until: Monotonic) {
        self.0.send_modify(|hold| {
            *hold = match *hold {
                DriverHold::Released { .. } => DriverHold::Released { until },
                DriverHold::Held { .. } | DriverHold::LettingGo { .. } => DriverHold::LettingGo { until },
            }
        });
    }

    /// Allows the library to be opened again.
    pub fn take_back(&self) {
        self.0.send_replace(DriverHold::default());
    }

    /// The current state, and every change of it.
    #[must_use]
    pub fn seen(&self) -> watch::Receiver<DriverHold> {
        self.0.subscribe()
    }

    /// The time until which the library must be closed; `None` if it may be open.
    pub(super) fn closed(&self, now: Monotonic) -> Option<Monotonic> {
        self.0.borrow().requested_until(now)
    }

    /// Records that the library is closed. Returns the time until which it stays closed; `None` if that time is over,
    /// or the request was taken back.
    pub(super) fn released(&self, now: Monotonic) -> Option<Monotonic> {
        self.0.send_if_modified(|hold| match hold.requested_until(now) {
            Some(until) if *hold != (DriverHold::Released { until }) => {
                *hold = DriverHold::Released { until };
                true
            }
            _ => false,
        });
        self.closed(now)
    }

    /// Records that the library cannot be closed.
    pub(super) fn refuse(&self, why: &'static str) {
        self.0.send_replace(DriverHold::Held { refused: Some(why) });
    }

    /// Ends the hold if its time is over.
    pub(super) fn expire(&self, now: Monotonic) {
        self.0.send_if_modified(|hold| {
            let over = !matches!(hold, DriverHold::Held { .. }) && hold.requested_until(now).is_none();
            if over {
                *hold = DriverHold::default();
            }
            over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_closed_from_a_release_until_its_time_is_over_or_it_is_taken_back() {
        let gate = DriverGate::default();
        let at = Monotonic;
        assert_eq!((gate.closed(at(0)), gate.released(at(0))), (None, None), "there is no request");
        gate.release(at(10));
        assert_eq!(*gate.seen().borrow(), DriverHold::LettingGo { until: at(10) });
        assert_eq!((gate.closed(at(9)), gate.closed(at(10))), (Some(at(10)), None));
        assert_eq!(gate.released(at(5)), Some(at(10)));
        assert_eq!(*gate.seen().borrow(), DriverHold::Released { until: at(10) });
        gate.release(at(20));
        assert_eq!(*gate.seen().borrow(), DriverHold::Released { until: at(20) }, "longer");
        gate.expire(at(19));
        assert_eq!(gate.closed(at(19)), Some(at(20)));
        gate.expire(at(20));
        assert_eq!(*gate.seen().borrow(), DriverHold::default());
        gate.release(at(30));
        gate.take_back();
        assert_eq!((gate.closed(at(21)), gate.released(at(21))), (None, None), "taken back meanwhile");
        gate.release(at(30));
        gate.refuse("a call hangs");
        gate.expire(at(99));
        assert_eq!(*gate.seen().borrow(), DriverHold::Held { refused: Some("a call hangs") });
        gate.release(at(30));
        assert_eq!(*gate.seen().borrow(), DriverHold::LettingGo { until: at(30) }, "requested again");
    }
}
