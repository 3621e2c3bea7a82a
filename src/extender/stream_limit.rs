//! Limits how many connections for streams the agent of one Node may have, how often it may open a stream, and how
//! often it may send a message. A connection may last for 24 seconds before its first message and after the end of its
//! stream, so without a limit one agent could use up all connections. The rates apply to a Node and not to a stream,
//! because otherwise an agent could avoid them by opening a new stream for every few messages.

use decide::message_rate::MessageRate;
use model::id::NodeName;
use model::time::Monotonic;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of streams of one Node at once, including streams that are opening or closing. An agent has one
/// stream, and for a moment two when it renews its token or is replaced. Each may leave behind another stream that is
/// closing: four streams. Eight leave a reserve.
pub(super) const MOST_STREAMS: u32 = 8;
/// Up to this number of Nodes, the rates of idle Nodes are kept too; they take about 10 KiB.
const LEAST_KEPT: usize = 64;

/// Counts the streams of each Node.
#[derive(Debug, Default)]
pub(super) struct StreamLimit(Mutex<HashMap<NodeName, u32>>);

/// Counts as one stream of the Node until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    limit: Arc<StreamLimit>,
    node: NodeName,
}

/// An action of an agent with a limited rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentAct {
    /// Opens a stream. This includes the first message, the complete report, even if the message never arrives or is
    /// invalid.
    Opening,
    /// Sends a further message. Messages and openings are counted separately: if a stalled network delivers messages of
    /// an earlier stream late, they must not use up the rate that the agent needs to open its next stream.
    Message,
}

/// The remaining rate of each Node's agent.
#[derive(Debug, Default)]
pub(super) struct NodeRates(Mutex<KeptRates>);

#[derive(Debug, Default)]
struct KeptRates {
    nodes: HashMap<NodeName, NodeRate>,
    /// When this many Nodes are kept, `make_room` searches again for Nodes that need not be kept.
    next_look: usize,
}

#[derive(Debug)]
struct NodeRate {
    openings: MessageRate,
    messages: MessageRate,
}

impl StreamLimit {
    /// A permit for one more stream of this Node; `None` if the Node has too many.
    pub(super) fn enter(self: &Arc<Self>, node: &NodeName) -> Option<StreamPermit> {
        let mut counts = self.0.lock();
        let count = counts.entry(node.clone()).or_default();
        if *count >= MOST_STREAMS {
            return None;
        }
        *count += 1;
        Some(StreamPermit { limit: Arc::clone(self), node: node.clone() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.limit.0.lock();
        if let Some(count) = counts.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.node);
            }
        }
    }
}

impl NodeRates {
    /// Whether the agent of this Node may do this now. If so, counts it.
    pub(super) fn allows(&self, node: &NodeName, act: AgentAct, now: Monotonic) -> bool {
        let mut kept = self.0.lock();
        if !kept.nodes.contains_key(node) {
            kept.make_room(now);
        }
        let new = || NodeRate { openings: MessageRate::new(now), messages: MessageRate::new(now) };
        let rate = kept.nodes.entry(node.clone()).or_insert_with(new);
        match act {
            AgentAct::Opening => rate.openings.allows(now),
            AgentAct::Message => rate.messages.allows(now),
        }
    }
}

impl KeptRates {
    /// Called before a Node is added. Removes the Nodes that have their full rate again, but searches for them only
    /// when there are twice as many Nodes as after the last search.
    fn make_room(&mut self, now: Monotonic) {
        if self.nodes.len() >= self.next_look.max(LEAST_KEPT) {
            self.nodes.retain(|_, rate| !(rate.openings.is_full(now) && rate.messages.is_full(now)));
            self.next_look = 2 * self.nodes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AgentAct::{Message, Opening};
    use decide::leader_search::{LeaderSearch, SearchEnd};
    use std::time::Duration;

    fn node(name: &str) -> NodeName {
        NodeName::parse(name).unwrap()
    }

    #[test]
    fn a_node_has_so_many_places_and_leaves_those_of_others() {
        let limit = Arc::<StreamLimit>::default();
        let [one, other] = ["n1", "n2"].map(node);
        let mut taken: Vec<StreamPermit> = (0..MOST_STREAMS).map(|_| limit.enter(&one).unwrap()).collect();
        assert!(limit.enter(&one).is_none());
        assert!(limit.enter(&other).is_some());
        taken.pop();
        assert!(limit.enter(&one).is_some());
        drop(taken);
        assert!(limit.0.lock().is_empty(), "nothing is kept of Nodes without a stream");
    }

    #[test]
    fn an_agent_that_opens_streams_again_and_again_has_one_rate_and_leaves_those_of_others() {
        let rates = NodeRates::default();
        let [one, other] = ["n1", "n2"].map(node);
        let in_ten_seconds = |act| (0..10_000).filter(|ms| rates.allows(&one, act, Monotonic(ms * 1_000_000))).count();
        // The burst, and one more every half second.
        assert_eq!((in_ten_seconds(Opening), in_ten_seconds(Message)), (32 + 19, 32 + 19));
        assert!(rates.allows(&other, Opening, Monotonic(9_999_000_000)));
    }

    #[test]
    fn an_agent_whose_streams_break_right_after_their_begin_waits_and_is_not_refused() {
        let (rates, node) = (NodeRates::default(), node("n1"));
        let mut search = LeaderSearch::new("service".into());
        let (mut now, mut longest) = (Monotonic(0), Duration::ZERO);
        for _ in 0..2000 {
            let asked = now;
            while !rates.allows(&node, Opening, now) {
                now = now.after(Duration::from_millis(250));
            }
            longest = longest.max(now.since(asked));
            // The shortest possible pause, because the stream has worked.
            now = now.after(search.ended(SearchEnd::Broken, 0));
        }
        let expected = Duration::from_millis(250)..=Duration::from_millis(500);
        assert!(expected.contains(&longest), "{longest:?} of the four seconds that a stream waits");
    }

    #[test]
    fn rates_are_kept_as_long_as_they_matter() {
        let rates = NodeRates::default();
        let second = |second: u64| Monotonic(second * 1_000_000_000);
        for number in 0..10_000 {
            assert!(rates.allows(&node(&format!("n{number}")), Opening, second(number)));
            assert!(rates.0.lock().nodes.len() <= LEAST_KEPT);
        }
        // A Node that has used up its rate is kept, however many other Nodes there are.
        let busy = node("busy");
        assert_eq!((0..100).filter(|_| rates.allows(&busy, Message, second(20_000))).count(), 32);
        for number in 0..1000 {
            assert!(rates.allows(&node(&format!("m{number}")), Opening, second(20_000)));
        }
        assert!(!rates.allows(&busy, Message, second(20_000)));
        assert!(rates.0.lock().nodes.len() > 1000);
        for number in 0..1000 {
            assert!(rates.allows(&node(&format!("o{number}")), Opening, second(30_000)));
        }
        assert_eq!(rates.0.lock().nodes.len(), 1000, "the others are gone");
    }
}
