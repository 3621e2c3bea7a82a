//! Whether the agent holds the GPU driver open. While any process holds it, an operator can neither reset a GPU nor
//! reload the driver.

use crate::time::Monotonic;

/// Whether the agent holds the driver, closes it now, or has closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverHold {
    /// The agent holds the driver open, or would if a driver were loaded.
    Held {
        /// The reason why the agent did not release the driver at the last request; `None` if it did.
        refused: Option<&'static str>,
    },
    /// An operator has requested the release, and the agent has not released the driver yet.
    LettingGo {
        /// The end of the requested release.
        until: Monotonic,
    },
    /// No thread of the agent is in the driver's library, and the agent has none of the driver's files open.
    Released {
        /// The end of the release; then the agent opens the driver again.
        until: Monotonic,
    },
}

impl Default for DriverHold {
    fn default() -> Self {
        DriverHold::Held { refused: None }
    }
}

impl DriverHold {
    /// The end of the requested release, while it is not over.
    #[must_use]
    pub fn requested_until(self, now: Monotonic) -> Option<Monotonic> {
        match self {
            DriverHold::LettingGo { until } | DriverHold::Released { until } if now < until => Some(until),
            _ => None,
        }
    }
}
