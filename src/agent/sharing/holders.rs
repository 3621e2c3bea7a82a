//! Finds out from the kubelet which container holds which ids: from its checkpoint, and also from PodResources.

use super::listing::{Listed, Listing};
use crate::event_log::{PodEvent, log_not_taken, log_pod_event};
use decide::allocator::{HolderDisagreement, NodeAllocator, OtherHolding};
use model::checkpoint::{CheckpointEntry, ForeignEntry};
use model::file_stamp::FileStamp;
use model::id::{ContainerKey, GpuUuid, PodRef, PodUid};
use model::observation::{ContainerDevices, ErrorCounter};
use model::pod::{Pod, PodList};
use model::time::Monotonic;
use sources::checkpoint::{CheckpointEntries, CheckpointReader};
use sources::report::Reporter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// How often waiting calls are judged again if the checkpoint has not changed: a call that has waited too long is refused
/// with a reason.
const ANYWAY: Duration = Duration::from_millis(500);

/// The two sources.
#[derive(Debug)]
pub(super) struct HolderSources {
    checkpoint: CheckpointReader,
    /// The checkpoint entries that could not be read the last time.
    unreadable: Arc<[Arc<str>]>,
    /// The checkpoint's stamp when the agent last tried to answer the waiting calls, and the time of that try.
    last_try: (Option<FileStamp>, Instant),
    /// Devices that containers got from other plugins or under other resources, by the last reading of the checkpoint.
    foreign: Arc<[ForeignEntry]>,
    /// Whether the checkpoint existed at the last reading and could not be read.
    is_torn: bool,
    /// The GPUs that another owner holds, as last logged.
    taken: BTreeMap<GpuUuid, PodRef>,
    listing: Listing,
    reporter: Reporter,
}

impl HolderSources {
    /// Reads from this checkpoint and this listing.
    pub(super) fn new(checkpoint: CheckpointReader, listing: Listing, reporter: Reporter) -> HolderSources {
        HolderSources {
            checkpoint,
            unreadable: Arc::from([]),
            last_try: (None, Instant::now()),
            foreign: Arc::from([]),
            is_torn: false,
            taken: BTreeMap::new(),
            listing,
            reporter,
        }
    }

    /// A reader of the checkpoint for another thread, which passes its result to [`HolderSources::has_read`].
    pub(super) fn reader(&self) -> CheckpointReader {
        self.checkpoint.clone()
    }

    /// Reads the checkpoint.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) async fn read(&mut self) -> Result<Arc<[CheckpointEntry]>, String> {
        let mut checkpoint = self.checkpoint.clone();
        let read = move || {
            let entries = checkpoint.read();
            let is_torn = entries.is_err() && checkpoint.stamp().is_some();
            (entries, is_torn, checkpoint)
        };
        match spawn_blocking(read).await {
            Ok((entries, is_torn, checkpoint)) => {
                (self.checkpoint, self.is_torn) = (checkpoint, is_torn);
                let CheckpointEntries { held, foreign, unreadable } = entries?;
                self.foreign = foreign;
                self.note_unreadable(unreadable);
                Ok(held)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes the result of another thread's reading. Returns the entries; `None` if not all entries could be read.
    pub(super) fn has_read(
        &mut self,
        read: Result<CheckpointEntries, String>,
        checkpoint: CheckpointReader,
    ) -> Option<Arc<[CheckpointEntry]>> {
        self.checkpoint = checkpoint;
        let CheckpointEntries { held, foreign, unreadable } = read.ok()?;
        self.foreign = foreign;
        self.note_unreadable(unreadable);
        self.is_whole().then_some(held)
    }

    /// Whether all entries of the checkpoint could be read the last time.
    pub(super) fn is_whole(&self) -> bool {
        self.unreadable.is_empty()
    }

    /// The errors of the entries that could not be read the last time.
    pub(super) fn unreadable(&self) -> &[Arc<str>] {
        &self.unreadable
    }

    /// Whether the waiting calls must be judged again by the checkpoint, which costs a pass over all slots.
    pub(super) async fn must_judge_again(&mut self) -> bool {
        let checkpoint = self.checkpoint.clone();
        let stamp = spawn_blocking(move || checkpoint.stamp()).await.ok().flatten();
        let (seen, at) = self.last_try;
        let due = seen != stamp || at.elapsed() >= ANYWAY;
        if due {
            self.last_try = (stamp, Instant::now());
        }
        due
    }

    /// Notes the entries of the kubelet's checkpoint that cannot be read. Counts each change, and logs when the first
    /// such entries appear and when all entries can be read again.
    fn note_unreadable(&mut self, unreadable: Arc<[Arc<str>]>) {
        if unreadable == self.unreadable {
            return;
        }
        match (unreadable.first(), self.unreadable.is_empty()) {
            (Some(first), true) => {
                let count = unreadable.len();
                tracing::warn!(count, %first, "part of kubelet's checkpoint cannot be read: no files of pods are \
                     removed, and PodResources is asked which container holds which ids");
            }
            (Some(_), false) => {}
            (None, _) => tracing::info!("all of kubelet's checkpoint can be read again"),
        }
        if !unreadable.is_empty() {
            self.reporter.trouble(ErrorCounter::CheckpointUnreadable);
        }
        self.unreadable = unreadable;
    }

    /// The devices that the live pods among `pods` got from other plugins or under other resources, by the checkpoint
    /// and, while a part of it cannot be read, also by PodResources. PodResources does not show which plugin gave an id
    /// that looks like a slot, so the tickets in the allocator decide.
    pub(super) fn others(&self, pods: &PodList, allocator: &NodeAllocator) -> Vec<OtherHolding> {
        let live = || pods.pods.iter().filter(|pod| !pod.ended());
        let of = |pod: &Arc<Pod>, own_resource, devices: &[Arc<str>], nodes: &[u32]| OtherHolding {
            uid: pod.cgroup_uid().clone(),
            pod: pod.name.clone(),
            own_resource,
            devices: devices.to_vec(),
            nodes: nodes.to_vec(),
        };
        let by_checkpoint = self.foreign.iter().filter_map(|entry| {
            let pod = live().find(|pod| *pod.cgroup_uid() == entry.holder.pod)?;
            Some(of(pod, entry.own_resource, &entry.devices, &entry.nodes))
        });
        let mut others: Vec<OtherHolding> = by_checkpoint.collect();
        if self.is_torn || !self.is_whole() {
            let is = |pod: &&Arc<Pod>, one: &ContainerDevices| {
                pod.name.namespace == one.namespace && pod.name.name == one.pod
            };
            others.extend(self.listing.foreign().into_iter().filter_map(|(one, own_resource)| {
                let pod = live().find(|pod| is(pod, one))?;
                Some(of(pod, own_resource, &one.ids, &[]))
            }));
            let last = self.listing.last();
            others.extend(last.iter().flat_map(|listed| listed.iter()).filter_map(|one| {
                let pod = live().find(|pod| is(pod, one))?;
                let holder = ContainerKey { pod: pod.cgroup_uid().clone(), container: Arc::clone(&one.container) };
                (!allocator.may_have_given(&holder, &one.ids)).then(|| of(pod, true, &one.ids, &[]))
            }));
        }
        others.sort();
        others.dedup();
        others
    }

    /// The pods that got devices from other plugins or under other resources, by the checkpoint; the kubelet keeps the entries of a
    /// pod that is gone until it needs their ids.
    pub(super) fn foreign_pods(&self) -> impl Iterator<Item = &PodUid> {
        self.foreign.iter().map(|entry| &entry.holder.pod)
    }

    /// Asks PodResources for a list if not all of the checkpoint could be read the last time. A kubelet that has allocated
    /// nothing yet has no checkpoint.
    pub(super) fn ask_if_unreadable(&mut self) {
        if self.is_torn || !self.is_whole() {
            let _ = self.listing.since(clock::monotonic());
        }
    }

    /// Logs which GPUs another owner holds, and which GPUs are free of other owners again.
    pub(super) fn note_taken(&mut self, allocator: &NodeAllocator) {
        let now: BTreeMap<GpuUuid, PodRef> = allocator.taken().map(|(gpu, pod)| (gpu.clone(), pod.clone())).collect();
        if now == self.taken {
            return;
        }
        for (gpu, pod) in now.iter().filter(|(gpu, pod)| self.taken.get(*gpu) != Some(*pod)) {
            log_pod_event(pod, &PodEvent::GpuTaken(gpu));
        }
        self.taken.keys().filter(|gpu| !now.contains_key(*gpu)).for_each(log_not_taken);
        self.taken = now;
    }

    /// Waits for the next answer of PodResources.
    pub(super) async fn answered(&mut self) -> Option<Listed> {
        self.listing.answered().await
    }

    /// Takes an answer; returns the list to compare with the checkpoint, `None` if the kubelet gave no list.
    pub(super) fn take(&mut self, listed: Listed) -> Option<Arc<[ContainerDevices]>> {
        self.listing.take(listed)
    }

    /// The answer to a request that was sent to PodResources after `since`, if it has arrived; sends a request if not.
    pub(super) fn listed_since(&mut self, since: Monotonic) -> Option<Arc<[ContainerDevices]>> {
        self.listing.since(since)
    }

    /// The last answer of PodResources, however old.
    pub(super) fn listed_last(&self) -> Option<Arc<[ContainerDevices]>> {
        self.listing.last()
    }

    /// Called when the checkpoint has decided a start: asks PodResources for a list now and then, to compare it with the
    /// checkpoint.
    pub(super) fn compare_now_and_then(&mut self) {
        self.listing.compare_now_and_then();
    }

    /// Takes the disagreements that were found between PodResources and the checkpoint. Counts and logs new disagreements that were
    /// found twice.
    pub(super) fn disagree(&mut self, found: Vec<HolderDisagreement>) {
        for one in self.listing.disagree(found) {
            self.reporter.trouble(ErrorCounter::HoldersDisagree);
            tracing::warn!(
                checkpoint = %one.checkpoint, pod_resources = %one.listed, ids = ?one.ids,
                "kubelet's checkpoint and PodResources name different pods; the agent follows the checkpoint"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::allocator::WithoutClaim;
    use model::id::Ticket;
    use serde_json::json;

    const OURS: &str = "0b0d8d3c-6b5e-4f3c-9a5e-1d2f3a4b5c6d";
    const OTHERS: &str = "466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
    const RESOURCE: &str = "nvidia.com/gpu";
    const GPU: &str = "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        let text = json!({ "metadata": { "uid": uid, "namespace": "ml", "name": name },
            "spec": { "nodeName": "n1", "containers": [{ "name": "main" }] }, "status": { "phase": "Running" } });
        Arc::new(wire::pod::decode(text.to_string().as_bytes()).unwrap())
    }

    fn listed(pod: &str, id: &str) -> ContainerDevices {
        let (namespace, container) = ("ml".into(), "main".into());
        ContainerDevices { namespace, pod: pod.into(), container, resource: RESOURCE.into(), ids: vec![id.into()] }
    }

    #[test]
    fn an_id_like_the_agents_own_in_pod_resources_is_another_plugins_unless_there_is_a_ticket() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = CheckpointReader::new(folder.path(), RESOURCE.into());
        let listing = Listing::new(folder.path().join("kubelet.sock"), RESOURCE.into());
        let mut holders = HolderSources::new(checkpoint, listing, Reporter::channel().0);
        let [given, not_given] = [3, 4].map(|number| format!("{GPU}-{number}"));
        let answer = vec![listed("ours", &given), listed("hamis", &not_given)];
        holders.take(Listed::of(answer, RESOURCE)).unwrap();
        let mut allocator = NodeAllocator::new(WithoutClaim::Auto, false);
        allocator.issue(Ticket::of_random([7; 16]), &[given.as_str().into()]);
        let pods = PodList { pods: vec![pod("ours", OURS), pod("hamis", OTHERS)], ..PodList::default() };
        assert_eq!(holders.others(&pods, &allocator), [], "the checkpoint says more, while it can be read");
        holders.is_torn = true;
        let other = OtherHolding {
            uid: PodUid::parse(OTHERS).unwrap(),
            pod: PodRef { namespace: "ml".into(), name: "hamis".into() },
            own_resource: true,
            devices: vec![not_given.as_str().into()],
            nodes: Vec::new(),
        };
        assert_eq!(holders.others(&pods, &allocator), [other]);
    }
}
