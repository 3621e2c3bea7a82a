//! Whether the agent holds the GPU driver open. While any process does, nobody can reset a GPU or load the driver anew.

use crate::time::Monotonic;

/// How the agent stands with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverHold {
    /// It holds the driver, or would if there were one.
    Held {
        /// Why it did not let go when it was last asked to, if it did not.
        refused: Option<&'static str>,
    },
    /// It was asked to let go until then, and has not yet.
    LettingGo {
        /// Until when.
        until: Monotonic,
    },
    /// No thread of it is in the driver's library, and none of the driver's files is open.
    Released {
        /// Until when; then it is opened again.
        until: Monotonic,
    },
}

impl Default for DriverHold {
    fn default() -> Self {
        DriverHold::Held { refused: None }
    }
}

impl DriverHold {
    /// Until when the driver is asked for, if that is not over.
    #[must_use]
    pub fn wanted(self, now: Monotonic) -> Option<Monotonic> {
        match self {
            DriverHold::LettingGo { until } | DriverHold::Released { until } if now < until => Some(until),
            _ => None,
        }
    }
}
