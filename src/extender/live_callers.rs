//! Knows from this process's own watches which Nodes and which pods of agents and extenders exist. A token is refused
//! once its pod is gone, and a stream ends when its pod or its Node is gone.
//!
//! Only pods in the namespaces of agents and extenders are kept, because a cluster has many other pods.

use decide::cluster::StreamId;
use model::followed_node::FollowedNode;
use model::id::{NodeName, ObjectUid, PodUid};
use model::pod::{Pod, PodPhase};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The Nodes and pods that exist, and the open streams.
#[derive(Debug, Default)]
pub(super) struct LiveCallers {
    /// The namespaces of agents and extenders.
    namespaces: BTreeSet<Arc<str>>,
    known: Mutex<KnownCallers>,
}

#[derive(Debug, Default)]
struct KnownCallers {
    nodes: HashMap<NodeName, ObjectUid>,
    /// The Node of each pod.
    pods: HashMap<PodUid, NodeName>,
    /// The open stream of each Node, with its pod.
    streams: HashMap<NodeName, OpenStream>,
    /// The id of the stream that was opened last.
    last: u64,
}

#[derive(Debug)]
struct OpenStream {
    id: StreamId,
    pod: Option<PodUid>,
    signals: Arc<StreamSignals>,
}

/// The signals to an open stream.
#[derive(Debug, Default)]
pub(super) struct StreamSignals {
    /// Cancelled when the stream must end.
    pub(super) ends: CancellationToken,
    /// Notified when the stream's Node was closed or opened.
    pub(super) look: Notify,
}

/// Why a caller does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotLive {
    #[error("the Node of the token is gone or not known yet")]
    Node,
    #[error("the pod of the token is gone, has ended or is not known yet")]
    Pod,
}

impl LiveCallers {
    /// An empty record of the pods in these namespaces.
    pub(super) fn new(namespaces: BTreeSet<Arc<str>>) -> LiveCallers {
        LiveCallers { namespaces, known: Mutex::default() }
    }

    /// The namespaces of agents and extenders.
    pub(super) fn namespaces(&self) -> &BTreeSet<Arc<str>> {
        &self.namespaces
    }

    /// Takes over a pod.
    pub(super) fn pod_is(&self, pod: &Pod) {
        if !self.namespaces.contains(&pod.name.namespace) {
            return;
        }
        match &pod.node {
            Some(node) if !matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed) => {
                self.known.lock().pods.insert(pod.uid.clone(), node.clone());
            }
            _ => self.pod_gone(&pod.uid),
        }
    }

    /// A pod is gone or has ended: its stream ends.
    pub(super) fn pod_gone(&self, uid: &PodUid) {
        let mut known = self.known.lock();
        let Some(node) = known.pods.remove(uid) else { return };
        if let Some(stream) = known.streams.get(&node).filter(|stream| stream.pod.as_ref() == Some(uid)) {
            stream.signals.ends.cancel();
        }
    }

    /// Takes over a Node. The stream of an earlier Node of this name ends.
    pub(super) fn node_is(&self, node: &FollowedNode) {
        let mut known = self.known.lock();
        let before = known.nodes.insert(node.name.clone(), node.uid.clone());
        if before.is_some_and(|before| before != node.uid)
            && let Some(stream) = known.streams.get(&node.name)
        {
            stream.signals.ends.cancel();
        }
    }

    /// A Node is gone: its stream ends.
    pub(super) fn node_gone(&self, node: &FollowedNode) {
        let mut known = self.known.lock();
        if known.nodes.get(&node.name) == Some(&node.uid) {
            known.nodes.remove(&node.name);
            if let Some(stream) = known.streams.get(&node.name) {
                stream.signals.ends.cancel();
            }
        }
    }

    /// Checks that the Node and the pod of a token exist.
    pub(super) fn check(&self, node: &(NodeName, ObjectUid), pod: Option<&PodUid>) -> Result<(), NotLive> {
        self.known.lock().check(node, pod)
    }

    /// Records an open stream, and ends an earlier stream of the same Node. Returns the id and the signals of the new
    /// stream.
    pub(super) fn opens(
        &self,
        node: &(NodeName, ObjectUid),
        pod: Option<&PodUid>,
    ) -> Result<(StreamId, Arc<StreamSignals>), NotLive> {
        let mut known = self.known.lock();
        // Check under the same lock: if the pod is deleted after the check, the deletion ends the stream.
        known.check(node, pod)?;
        // Choose the id under the same lock. If a Node opens two streams, the later stream gets the larger id, and the
        // cluster's state refuses reports of the stream with the smaller id. If the order of the ids could differ from
        // the order here, both streams could end: one here, and the other in the cluster's state.
        known.last += 1;
        let (id, signals) = (StreamId(known.last), Arc::<StreamSignals>::default());
        let stream = OpenStream { id, pod: pod.cloned(), signals: Arc::clone(&signals) };
        if let Some(before) = known.streams.insert(node.0.clone(), stream) {
            before.signals.ends.cancel();
        }
        Ok((id, signals))
    }

    /// A Node was closed or opened: wakes its stream, which informs the agent.
    pub(super) fn look(&self, node: &NodeName) {
        if let Some(stream) = self.known.lock().streams.get(node) {
            stream.signals.look.notify_one();
        }
    }

    /// A stream has ended.
    pub(super) fn closes(&self, id: StreamId, node: &NodeName) {
        let mut known = self.known.lock();
        if known.streams.get(node).is_some_and(|stream| stream.id == id) {
            known.streams.remove(node);
        }
    }

    /// Number of open streams.
    pub(super) fn open_streams(&self) -> usize {
        self.known.lock().streams.len()
    }
}

impl KnownCallers {
    fn check(&self, (name, uid): &(NodeName, ObjectUid), pod: Option<&PodUid>) -> Result<(), NotLive> {
        if self.nodes.get(name) != Some(uid) {
            return Err(NotLive::Node);
        }
        match pod {
            Some(pod) if self.pods.get(pod) != Some(name) => Err(NotLive::Pod),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Barrier;

    fn pod(n: u32, namespace: &str, phase: &str) -> Pod {
        let text = json!({
            "metadata": { "name": "agent", "namespace": namespace, "uid": format!("{n:032x}"), "resourceVersion": "1" },
            "spec": { "nodeName": "n1", "containers": [] }, "status": { "phase": phase },
        });
        wire::pod::decode(text.to_string().as_bytes()).unwrap()
    }

    fn node(uid: &str) -> FollowedNode {
        let text = json!({ "metadata": { "name": "n1", "uid": uid, "resourceVersion": "1" } });
        wire::node::decode_followed_node(text.to_string().as_bytes()).unwrap()
    }

    fn live() -> (LiveCallers, (NodeName, ObjectUid), PodUid) {
        let live = LiveCallers::new(BTreeSet::from(["gpu".into()]));
        let of = node("u1");
        live.node_is(&of);
        live.pod_is(&pod(1, "gpu", "Running"));
        (live, (of.name, of.uid), pod(1, "gpu", "Running").uid)
    }

    #[test]
    fn a_caller_is_there_with_its_node_and_its_pod() {
        let (live, of, uid) = live();
        assert_eq!(live.check(&of, Some(&uid)), Ok(()));
        assert_eq!(live.check(&of, None), Ok(()), "a token that is bound to the Node alone");
        let other = (of.0.clone(), ObjectUid::parse("u2").unwrap());
        assert_eq!(live.check(&other, Some(&uid)), Err(NotLive::Node));
        live.pod_is(&pod(2, "ml", "Running"));
        assert_eq!(live.check(&of, Some(&pod(2, "ml", "Running").uid)), Err(NotLive::Pod), "another namespace");
        live.pod_gone(&uid);
        assert_eq!(live.check(&of, Some(&uid)), Err(NotLive::Pod));
    }

    #[test]
    fn a_stream_ends_with_its_pod_its_node_and_a_newer_stream() {
        for end in 0..5 {
            let (live, of, uid) = live();
            let (first, signals) = live.opens(&of, Some(&uid)).unwrap();
            match end {
                0 => live.pod_gone(&uid),
                1 => live.pod_is(&pod(1, "gpu", "Failed")),
                2 => live.node_gone(&node("u1")),
                3 => live.node_is(&node("u2")),
                _ => assert!(!live.opens(&of, Some(&uid)).unwrap().1.ends.is_cancelled()),
            }
            assert!(signals.ends.is_cancelled(), "{end}");
            assert_eq!(live.opens(&of, Some(&uid)).is_err(), end < 4, "{end}");
            live.closes(first, &of.0);
            assert_eq!(live.open_streams(), usize::from(end == 4), "a newer stream stays");
        }
    }

    #[test]
    fn another_pod_and_an_older_node_of_the_name_end_nothing() {
        let (live, of, uid) = live();
        let (_, signals) = live.opens(&of, Some(&uid)).unwrap();
        live.pod_is(&pod(2, "gpu", "Running"));
        live.pod_gone(&pod(2, "gpu", "Running").uid);
        live.node_is(&node("u1"));
        live.node_gone(&node("u0"));
        assert!(!signals.ends.is_cancelled());
    }

    #[test]
    fn of_streams_that_open_at_once_the_one_with_the_largest_id_stays() {
        let (live, of, uid) = live();
        for _ in 0..300 {
            let ready = Barrier::new(9);
            let open = || {
                ready.wait();
                live.opens(&of, Some(&uid)).unwrap()
            };
            let opened: Vec<_> = std::thread::scope(|scope| {
                // Hold the lock until all threads wait for it.
                let held = live.known.lock();
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                ready.wait();
                drop(held);
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let open = opened.iter().filter(|(_, signals)| !signals.ends.is_cancelled()).map(|(id, _)| *id);
            assert_eq!(open.collect::<Vec<_>>(), [opened.iter().map(|(id, _)| *id).max().unwrap()]);
        }
    }
}
