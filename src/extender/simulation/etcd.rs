//! The simulated etcd: the objects, the changes since the last compaction, and snapshots.

use super::object::{SimNode, SimPod};
use super::weather::MS;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::annotation_keys::ALLOCATED;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pods,
    Nodes,
    Leases,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Pod(Arc<SimPod>),
    Node(Arc<SimNode>),
    Lease(Value),
}

impl Content {
    fn summary(&self) -> String {
        match self {
            Content::Pod(pod) => {
                let SimPod { name, uid, node, phase, deleted, .. } = &**pod;
                let (started, claim) = (pod.started(), pod.annotations.get(ALLOCATED));
                format!("{name} {uid} on {node:?} {phase} deleted {deleted} started {started} {claim:?}")
            }
            Content::Node(node) => format!("{} {}", node.name, node.uid),
            Content::Lease(lease) => {
                format!("lease {} {}", lease["spec"]["holderIdentity"], lease["metadata"]["annotations"])
            }
        }
    }
}

/// An object of one version.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) version: u64,
    /// The object's JSON.
    pub(super) text: String,
    pub(super) content: Content,
}

impl Stored {
    fn of(content: Content, version: u64) -> Arc<Stored> {
        let text = match &content {
            Content::Pod(pod) => pod.text(version),
            Content::Node(node) => node.text(version),
            Content::Lease(lease) => {
                let mut lease = lease.clone();
                lease["metadata"]["resourceVersion"] = version.to_string().into();
                lease.to_string()
            }
        };
        Arc::new(Stored { version, text, content })
    }

    pub(super) fn pod(&self) -> &Arc<SimPod> {
        match &self.content {
            Content::Pod(pod) => pod,
            other => panic!("not a pod: {other:?}"),
        }
    }

    pub(super) fn node(&self) -> &Arc<SimNode> {
        match &self.content {
            Content::Node(node) => node,
            other => panic!("not a Node: {other:?}"),
        }
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Create,
    Change,
    Delete,
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) did: Did,
    /// The object after the change; for a deletion its last state, with the version of the deletion.
    pub(super) object: Arc<Stored>,
}

type Objects = BTreeMap<String, Arc<Stored>>;

/// A copy of all objects.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    objects: [Objects; 3],
}

#[derive(Debug, Default)]
pub(super) struct Etcd {
    pub(super) version: u64,
    objects: [Objects; 3],
    history: [Vec<Change>; 3],
    /// The version of the newest change of an object other than a Lease.
    pub(super) changed: u64,
    /// No watch begins below this version.
    pub(super) compacted: u64,
    /// The version after the last restore.
    pub(super) restored: u64,
    /// What happens, for a person who repeats a seed.
    pub(super) journal: Option<Vec<String>>,
    /// The simulated time, for the journal.
    pub(super) now: u64,
}

impl Etcd {
    /// Writes a line into the journal.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(journal) = &mut self.journal {
            let (ms, version) = (self.now / MS, self.version);
            journal.push(format!("{ms:>8} ms v{version} {}", what()));
        }
    }

    pub(super) fn objects(&self, kind: Kind) -> &Objects {
        &self.objects[kind as usize]
    }

    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<&Arc<Stored>> {
        self.objects(kind).get(name)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<SimPod>> {
        self.objects(Kind::Pods).values().map(|stored| stored.pod())
    }

    pub(super) fn pod(&self, name: &str) -> Option<&Arc<SimPod>> {
        self.get(Kind::Pods, name).map(|stored| stored.pod())
    }

    pub(super) fn put(&mut self, kind: Kind, name: &str, content: Content) -> Arc<Stored> {
        self.version += 1;
        if kind != Kind::Leases {
            self.changed = self.version;
        }
        let object = Stored::of(content, self.version);
        self.note(|| format!("is {}", object.content.summary()));
        let before = self.objects[kind as usize].insert(name.to_owned(), Arc::clone(&object));
        let did = if before.is_some() { Did::Change } else { Did::Create };
        self.history[kind as usize].push(Change { version: self.version, did, object: Arc::clone(&object) });
        object
    }

    pub(super) fn put_pod(&mut self, pod: SimPod) {
        let name = pod.name.clone();
        self.put(Kind::Pods, &name, Content::Pod(Arc::new(pod)));
    }

    pub(super) fn delete(&mut self, kind: Kind, name: &str) {
        let Some(object) = self.objects[kind as usize].remove(name) else { return };
        self.version += 1;
        self.changed = self.version;
        let object = Stored::of(object.content.clone(), self.version);
        self.note(|| format!("gone {}", object.content.summary()));
        self.history[kind as usize].push(Change { version: self.version, did: Did::Delete, object });
    }

    /// The version of the newest change of this kind since the last restore; 0 without one.
    pub(super) fn newest(&self, kind: Kind) -> u64 {
        self.history[kind as usize].last().map_or(0, |change| change.version)
    }

    /// The changes after `version`, oldest first.
    pub(super) fn after(&self, kind: Kind, version: u64) -> &[Change] {
        let history = &self.history[kind as usize];
        &history[history.partition_point(|change| change.version <= version)..]
    }

    /// No new watch can begin below this version. Watches under way go on: the caches of the servers have their changes.
    pub(super) fn compact(&mut self, version: u64) {
        self.compacted = self.compacted.max(version);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { objects: self.objects.clone() }
    }

    /// Goes back to a snapshot as Kubernetes' documentation says: versions go on above all that were ever given, and the
    /// history is marked as compacted, so that every watcher reads a new list.
    pub(super) fn restore(&mut self, snapshot: Snapshot) {
        self.version += 1000;
        self.note(|| "etcd is restored".to_owned());
        self.objects = snapshot.objects;
        self.history = Default::default();
        (self.changed, self.compacted, self.restored) = (self.version, self.version, self.version);
    }
}
