//! How many connections the agent of one Node may have for streams, and how often it may open one and send a message. A
//! connection may last for 24 seconds before its first message and after its end, so one agent could otherwise use up the
//! connections of all others. The rates apply to a Node and not to a stream: an agent that opens a new stream for every few
//! messages would otherwise escape them.

use decide::message_rate::MessageRate;
use model::id::NodeName;
use model::time::Monotonic;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most streams of one Node at once, also those that are opening or closing. An agent has one, and for a moment two when it
/// renews its token or is replaced; each may leave one behind that is closing.
pub(super) const MOST_STREAMS: u32 = 8;
/// Number of Nodes up to which the rates of all Nodes are kept, also of idle Nodes; they take about 10 KiB.
const LEAST_KEPT: usize = 64;

/// Counts the streams of each Node.
#[derive(Debug, Default)]
pub(super) struct StreamLimit(Mutex<HashMap<NodeName, u32>>);

/// A place for one stream, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    limit: Arc<StreamLimit>,
    node: NodeName,
}

/// An action of an agent with a limited rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentAct {
    /// Opens a stream. This also counts its first message, the complete report, even if that never arrives or is invalid.
    Opening,
    /// Sends a further message. Messages are counted separately from openings: messages of an earlier stream that a stalled
    /// network delivers late must not keep out the stream that the agent has opened meanwhile.
    Message,
}

/// What the agents of all Nodes may still do.
#[derive(Debug, Default)]
pub(super) struct NodeRates(Mutex<KeptRates>);

#[derive(Debug, Default)]
struct KeptRates {
    nodes: HashMap<NodeName, NodeRate>,
    /// Number of Nodes at which the next search for Nodes that need not be kept is due.
    next_look: usize,
}

#[derive(Debug)]
struct NodeRate {
    openings: MessageRate,
    messages: MessageRate,
}

impl StreamLimit {
    /// A place for a stream of this Node; `None` if it has too many.
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
    /// Whether the agent of this Node may act once more now. If it may, the act is counted.
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
    /// Before a Node is added: drops the Nodes that have their full allowance again, once there are twice as many as after
    /// the last time.
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
            // The shortest pause there is: the stream has worked.
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
        // A Node that has used its allowance is remembered beside any number of others.
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
