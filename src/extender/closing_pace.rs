//! Limits how often a node is reported as closed, and as open again: each at most once a minute for each node, and the newest
//! state is always reported in the end. A hostile agent or the owner of a pod can change the state each second.

use decide::cluster::ClosingChange;
use model::id::NodeName;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two reports that a node is closed, and between two reports that it is open.
const AGAIN: Duration = Duration::from_secs(60);

/// What was reported of each node in the last minute.
#[derive(Debug, Default)]
pub(super) struct ClosingPace {
    /// Entries are removed one minute after their last change, so the map holds at most one per node.
    told: HashMap<NodeName, ToldNews>,
}

#[derive(Debug, Default)]
struct ToldNews {
    /// When the node was last reported as open, and as closed.
    at: [Option<Instant>; 2],
    /// The last report.
    closed: bool,
    /// The change that is reported when its minute is over.
    waits: Option<ClosingChange>,
}

impl ToldNews {
    fn is_due(&self, closed: bool, now: Instant) -> bool {
        self.at[usize::from(closed)].is_none_or(|at| now.duration_since(at) >= AGAIN)
    }

    fn tell(&mut self, change: ClosingChange, now: Instant) -> ClosingChange {
        self.closed = change.closed.is_some();
        self.at[usize::from(self.closed)] = Some(now);
        change
    }
}

impl ClosingPace {
    /// The changes to report now: changes in `changes` that are due, and earlier changes whose minute is over.
    pub(super) fn due(&mut self, changes: &[ClosingChange], now: Instant) -> Vec<ClosingChange> {
        let mut due = Vec::new();
        for change in changes {
            let told = self.told.entry(change.node.clone()).or_default();
            told.waits = None;
            if told.is_due(change.closed.is_some(), now) {
                due.push(told.tell(change.clone(), now));
            } else {
                told.waits = Some(change.clone());
            }
        }
        self.told.retain(|_, told| {
            let is_due = told.waits.as_ref().is_some_and(|change| told.is_due(change.closed.is_some(), now));
            // Do not report a node as opened if it was already open.
            if let Some(change) = told.waits.take_if(|_| is_due)
                && (change.closed.is_some() || told.closed)
            {
                due.push(told.tell(change, now));
            }
            told.waits.is_some() || !told.is_due(told.closed, now)
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::cluster::{ClosedReason, Closing};

    #[test]
    fn a_node_that_changes_each_second_is_told_twice_a_minute_and_the_newest_state_last() {
        let (mut pace, start) = (ClosingPace::default(), Instant::now());
        let change = |closed: bool| ClosingChange {
            node: NodeName::parse("n1").unwrap(),
            uid: None,
            closed: closed.then_some(Closing { reason: ClosedReason::Gone, pod: None }),
        };
        let mut told = Vec::new();
        for second in 0..=130 {
            // It is closed in each even second of the first two minutes, and stays open then.
            let changes: Vec<ClosingChange> = (second < 120).then(|| change(second % 2 == 0)).into_iter().collect();
            let due = pace.due(&changes, start + Duration::from_secs(second));
            told.extend(due.into_iter().map(|change| (second, change.closed.is_some())));
        }
        assert_eq!(told, [(0, true), (1, false), (60, true), (61, false)]);
        let due = pace.due(&[], start + Duration::from_secs(200));
        assert_eq!((due.len(), pace.told.len()), (0, 0), "nothing is kept of a node without news");
        // A delayed change is reported although nothing else changes.
        let all = [change(true), change(false), change(true)];
        let seconds = |second: u64| start + Duration::from_secs(300 + second);
        assert_eq!(pace.due(&all, seconds(0)), [change(true), change(false)]);
        assert_eq!(pace.due(&[], seconds(59)), []);
        assert_eq!(pace.due(&[], seconds(60)), [change(true)]);
    }
}
