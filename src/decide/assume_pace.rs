//! Which Node gets a new `hami.io/node-nvidia-assume` next, and when: at most one write a second in the whole cluster, and no write
//! of what the Node already shows.
//!
//! ```text
//!   versions of all nodes ──changed since the last look──▶ candidates, the one that was tried longest ago first
//!       wanted text, shown text of a candidate ──▶ a write, or nothing
//!       outcome ──▶ the time of the next write
//! ```
//!
//! Each write to a Node is sent to every watcher of Nodes, and lets kube-scheduler try refused pods again.
//!
//! What must never happen here: one node that changes all the time keeps the others from their turn.

use crate::cluster::NodeNames;
use model::backoff::Backoff;
use model::id::NodeName;
use model::time::Monotonic;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two writes, and the first pause after a failure.
const EVERY: Duration = Duration::from_secs(1);
/// Longest pause after failures in a row, such as without the right to patch Nodes.
const LONGEST: Duration = Duration::from_secs(60);
/// How long the leader waits for the watch to show a written text before it may write the text again.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of nodes that one look covers, each for some microseconds. After a leader change all nodes are due.
const LOOKED_AT: usize = 1_000;

/// A version of a node, as [`NodeNames::versions`] has it.
pub type LookedVersion = (u64, u64);

/// A text for a Node; `None` removes the annotation.
pub type AssumedText = Option<Arc<str>>;

/// The state of the writes of one leader.
#[derive(Debug)]
pub struct AssumePace {
    not_before: Monotonic,
    backoff: Backoff,
    /// Bounded by the nodes of the cluster.
    known: HashMap<NodeName, KnownNode>,
}

/// What is known about one node.
#[derive(Debug, Default)]
struct KnownNode {
    /// The version that was looked at last, and needs no write.
    looked: Option<LookedVersion>,
    /// When a write was tried last.
    tried: Option<Monotonic>,
    /// What was written last, and when.
    written: Option<(Monotonic, AssumedText)>,
}

impl AssumePace {
    /// The state of a process that leads from now on. The leader before it may have written at this moment.
    #[must_use]
    pub fn new(now: Monotonic) -> AssumePace {
        let backoff = Backoff::new(EVERY, LONGEST);
        AssumePace { not_before: now.after(EVERY), backoff, known: HashMap::new() }
    }

    /// The nodes to look at now, in this order; no nodes before the next write is due.
    pub fn candidates(&mut self, nodes: &NodeNames, now: Monotonic) -> Vec<(NodeName, LookedVersion)> {
        if now < self.not_before {
            return Vec::new();
        }
        self.known.retain(|name, _| nodes.has(name));
        let looked = |name: &NodeName| self.known.get(name).and_then(|known| known.looked);
        let mut due: Vec<(NodeName, LookedVersion)> = nodes
            .versions()
            .filter(|(name, version)| looked(name) != Some(*version))
            .map(|(name, version)| (name.clone(), version))
            .collect();
        let tried = |name: &NodeName| self.known.get(name).and_then(|known| known.tried);
        due.sort_by(|(one, _), (other, _)| (tried(one), one).cmp(&(tried(other), other)));
        due.truncate(LOOKED_AT);
        due
    }

    /// Whether `wanted` must be written on a node that was looked at in this version, and whose Node has the text `shown`.
    pub fn looked(
        &mut self,
        (name, version): &(NodeName, LookedVersion),
        (wanted, shown): (&AssumedText, &AssumedText),
        now: Monotonic,
    ) -> bool {
        let known = self.known.entry(name.clone()).or_default();
        known.looked = Some(*version);
        let waits = known.written.as_ref().filter(|(at, _)| now.since(*at) < SHOWN_WITHIN);
        wanted != shown && waits.is_none_or(|(_, written)| written != wanted)
    }

    /// The text was written.
    pub fn written(&mut self, name: &NodeName, text: AssumedText, now: Monotonic) {
        self.backoff.reset();
        self.not_before = now.after(EVERY);
        let known = self.known.entry(name.clone()).or_default();
        (known.tried, known.written) = (Some(now), Some((now, text)));
    }

    /// The text was not written. The node has its next turn after all other nodes.
    pub fn failed(&mut self, name: &NodeName, now: Monotonic) {
        self.not_before = now.after(self.backoff.pause());
        let known = self.known.entry(name.clone()).or_default();
        (known.tried, known.looked) = (Some(now), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterRules, ClusterState};
    use model::followed_node::NodeFacts;
    use model::id::ObjectUid;
    use std::collections::BTreeMap;

    fn at(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    fn name(n: u32) -> NodeName {
        NodeName::parse(&format!("n{n}")).unwrap()
    }

    /// A Node of this version that shows this text.
    fn shows(cluster: &mut ClusterState, n: u32, version: u64, text: Option<&str>) {
        cluster.node_is(&NodeFacts {
            uid: ObjectUid::parse(&format!("u{n}")).unwrap(),
            name: name(n),
            // Each text is another reason, so that each version differs.
            register: Err(version.to_string().into()),
            cordoned: Default::default(),
            handshake: None,
            assumed: text.map(Arc::from),
            links: BTreeMap::new(),
        });
    }

    fn cluster(nodes: u32) -> ClusterState {
        let mut cluster = ClusterState::new(ClusterRules::default());
        (0..nodes).for_each(|n| shows(&mut cluster, n, 0, None));
        cluster
    }

    /// The node that is written at this moment, if each is to have this text.
    fn due(pace: &mut AssumePace, cluster: &ClusterState, now: Monotonic, wanted: Option<&str>) -> Option<NodeName> {
        let wanted = wanted.map(Arc::from);
        let all = pace.candidates(&cluster.node_names(), now);
        let shown = |name: &NodeName| cluster.node(name).unwrap().shown_assumed().cloned();
        all.into_iter().find(|one| pace.looked(one, (&wanted, &shown(&one.0)), now)).map(|(name, _)| name)
    }

    #[test]
    fn there_is_one_write_a_second_and_nodes_that_change_all_the_time_take_turns() {
        let (mut cluster, mut pace, mut written) = (cluster(3), AssumePace::new(at(0)), Vec::new());
        for ms in (0..12_050).step_by(50) {
            let text = ms.to_string();
            (0..3).for_each(|n| shows(&mut cluster, n, ms, Some("old")));
            if let Some(name) = due(&mut pace, &cluster, at(ms), Some(&text)) {
                pace.written(&name, Some(text.into()), at(ms));
                written.push((ms, name));
            }
        }
        let expected: Vec<(u64, NodeName)> = (0..12).map(|n| (1000 * u64::from(n + 1), name(n % 3))).collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn nothing_is_written_that_the_node_says_already_or_will_say_soon() {
        let (mut cluster, mut pace) = (cluster(1), AssumePace::new(at(0)));
        assert_eq!(due(&mut pace, &cluster, at(1000), None), None, "nothing is taken, and the Node says nothing");
        shows(&mut cluster, 0, 1, None);
        assert_eq!(due(&mut pace, &cluster, at(1000), Some("a")), Some(name(0)));
        pace.written(&name(0), Some("a".into()), at(1000));
        // The watch lags, and the node has changed in another way.
        shows(&mut cluster, 0, 2, None);
        assert_eq!(due(&mut pace, &cluster, at(5000), Some("a")), None);
        shows(&mut cluster, 0, 3, Some("a"));
        assert_eq!(due(&mut pace, &cluster, at(6000), Some("a")), None);
        assert!(pace.candidates(&cluster.node_names(), at(7000)).is_empty(), "it has not changed since the look");
        // Somebody has removed it.
        shows(&mut cluster, 0, 4, None);
        assert_eq!(due(&mut pace, &cluster, at(70_000), Some("a")), Some(name(0)));
        pace.written(&name(0), Some("a".into()), at(70_000));
        // The last claim has ended.
        shows(&mut cluster, 0, 5, Some("a"));
        assert_eq!(due(&mut pace, &cluster, at(80_000), None), Some(name(0)));
    }

    #[test]
    fn a_failed_write_waits_longer_each_time_and_lets_other_nodes_go_first() {
        let (mut cluster, mut pace, mut now, mut tried) = (cluster(2), AssumePace::new(at(0)), 1000, Vec::new());
        for pause in [1, 2, 4] {
            assert_eq!(due(&mut pace, &cluster, at(now - 1), Some("a")), None);
            let next = due(&mut pace, &cluster, at(now), Some("a")).unwrap();
            pace.failed(&next, at(now));
            tried.push(next);
            now += pause * 1000;
        }
        assert_eq!(tried, [name(0), name(1), name(0)]);
        let next = due(&mut pace, &cluster, at(now), Some("a")).unwrap();
        pace.written(&next, Some("a".into()), at(now));
        assert_eq!((next, due(&mut pace, &cluster, at(now + 1000), Some("a"))), (name(1), Some(name(0))));
        cluster.node_gone(&name(0), &ObjectUid::parse("u0").unwrap());
        assert!(pace.candidates(&cluster.node_names(), at(now + 1000)).is_empty());
        assert_eq!(pace.known.len(), 1, "a Node that is gone is forgotten");
    }
}
