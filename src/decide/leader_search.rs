//! How an agent finds the leading extender: which address it tries next, and after which pause.
//!
//! ```text
//!   the Service ──▶ an extender: serves, or names the leader ──▶ that one, at once
//!        ▲                                                         │
//!        └──────────── a pause that grows while nothing works ◀────┘
//! ```
//!
//! What must never happen here: a try right after a failure, by thousands of agents at once; two extenders that name
//! each other and keep an agent busy.

use model::backoff::Backoff;
use std::sync::Arc;
use std::time::Duration;

/// The first pause. It is short, because two seconds after a stream has ended the leader stops binding pods to the
/// node.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause. 5,000 agents that cannot connect cause 170 tries a second.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a try has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// The extender does not lead, and has named the extender that does.
    Named(Arc<str>),
    /// A stream was open, and has broken.
    Broken,
    /// No stream could be opened.
    Failed,
}

/// The search of one agent.
#[derive(Clone, Debug)]
pub struct LeaderSearch {
    service: Arc<str>,
    named: Option<Arc<str>>,
    backoff: Backoff,
}

impl LeaderSearch {
    /// A search that begins at the Service of the extenders.
    #[must_use]
    pub fn new(service: Arc<str>) -> LeaderSearch {
        LeaderSearch { service, named: None, backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    /// The address to try now.
    #[must_use]
    pub fn address(&self) -> &Arc<str> {
        self.named.as_ref().unwrap_or(&self.service)
    }

    /// Takes in how the try at [`LeaderSearch::address`] has ended. Returns the pause before the next try; `chance`,
    /// from 0 to 999, spreads the agents.
    #[must_use]
    pub fn ended(&mut self, end: SearchEnd, chance: u32) -> Duration {
        match (self.named.take(), end) {
            // A named leader is tried once. If it names another leader, the Service is tried next: by then, the
            // extenders agree.
            (None, SearchEnd::Named(leader)) => {
                self.named = Some(leader);
                return Duration::ZERO;
            }
            (_, SearchEnd::Broken) => self.backoff.reset(),
            (_, SearchEnd::Named(_) | SearchEnd::Failed) => {}
        }
        let pause = self.backoff.pause();
        pause / 2 + pause / 2 * chance.min(999) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SearchEnd::{Broken, Failed, Named};

    #[test]
    fn the_leader_that_is_named_is_asked_at_once_and_the_service_after_it() {
        let mut search = LeaderSearch::new("service".into());
        let asked = |search: &LeaderSearch| search.address().to_string();
        assert_eq!(asked(&search), "service");
        assert_eq!((search.ended(Named("a".into()), 999), asked(&search)), (Duration::ZERO, "a".into()));
        assert!(search.ended(Broken, 0) >= FIRST_PAUSE / 2);
        assert_eq!(asked(&search), "service");
        let _ = search.ended(Named("a".into()), 0);
        let pause = search.ended(Named("b".into()), 0);
        assert_eq!((asked(&search), pause), ("service".into(), FIRST_PAUSE), "they name different leaders");
    }

    #[test]
    fn pauses_grow_until_a_stream_has_worked_and_are_spread_over_their_second_half() {
        let mut search = LeaderSearch::new("service".into());
        let pauses: Vec<u128> = (0..8).map(|_| search.ended(Failed, 0).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000]);
        let mut search = LeaderSearch::new("service".into());
        for chance in [0, 500, 999, u32::MAX] {
            let pause = search.ended(Broken, chance);
            assert!((FIRST_PAUSE / 2..=FIRST_PAUSE).contains(&pause), "{chance}: {pause:?}");
        }
        // Two tries fit into the time until the leader stops binding pods to the node.
        assert!(FIRST_PAUSE + FIRST_PAUSE * 2 < crate::cluster::STREAM_BACK_WITHIN);
    }
}
