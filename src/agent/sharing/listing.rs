//! Reads from the kubelet's PodResources which container has which devices, as a second source besides the checkpoint. The
//! agent uses PodResources if the checkpoint cannot be read, and compares the two from time to time. A separate task sends
//! the requests, so that a slow kubelet delays no start.

use decide::allocator::HolderDisagreement;
use model::gpu_id;
use model::observation::ContainerDevices;
use model::slot::Slot;
use model::time::Monotonic;
use sources::names::pod_resources::list_once;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Pause between two requests: the kubelet answers at most 100 requests a second from all callers together.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between two comparisons.
const COMPARE: Duration = Duration::from_secs(15);
/// Pause after a first disagreement: a change between two readings is over by then.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// An answer, and when the agent asked for it.
#[derive(Debug)]
pub(super) struct Listed {
    requested_at: Monotonic,
    answer: Result<ListedDevices, String>,
}

/// The containers with devices.
#[derive(Debug)]
struct ListedDevices {
    /// Containers with devices of the agent's resource.
    own: Arc<[ContainerDevices]>,
    /// Containers with ids of another plugin, or with GPUs under another resource.
    foreign: Arc<[ContainerDevices]>,
}

/// Asks PodResources, and keeps the last answer.
#[derive(Debug)]
pub(super) struct Listing {
    path: PathBuf,
    resource: Arc<str>,
    sender: mpsc::Sender<Listed>,
    /// Receives the answers.
    answers: mpsc::Receiver<Listed>,
    requested_at: Option<Monotonic>,
    under_way: bool,
    compare: Option<Monotonic>,
    last: Option<(Monotonic, Arc<[ContainerDevices]>)>,
    /// The foreign entries of the last answer.
    foreign: Arc<[ContainerDevices]>,
    failed: bool,
    disagreements: Disagreements,
}

/// Where the two sources disagreed the last time.
#[derive(Debug, Default)]
struct Disagreements {
    suspected: BTreeSet<HolderDisagreement>,
    reported: BTreeSet<HolderDisagreement>,
}

impl ListedDevices {
    fn of(listed: Vec<ContainerDevices>, resource: &str) -> ListedDevices {
        ListedDevices {
            foreign: listed.iter().filter(|one| is_foreign(one, resource)).cloned().collect(),
            own: listed.into_iter().filter(|one| *one.resource == *resource).collect(),
        }
    }
}

#[cfg(test)]
impl Listed {
    /// An answer with these containers.
    pub(super) fn of(listed: Vec<ContainerDevices>, resource: &str) -> Listed {
        Listed { requested_at: clock::monotonic(), answer: Ok(ListedDevices::of(listed, resource)) }
    }
}

impl Listing {
    /// A listing that asks at this socket about one resource.
    pub(super) fn new(path: PathBuf, resource: Arc<str>) -> Listing {
        let (sender, answers) = mpsc::channel(1);
        Listing {
            path,
            resource,
            sender,
            answers,
            requested_at: None,
            under_way: false,
            compare: None,
            last: None,
            foreign: Arc::from([]),
            failed: false,
            disagreements: Disagreements::default(),
        }
    }

    /// Waits for the next answer.
    pub(super) async fn answered(&mut self) -> Option<Listed> {
        self.answers.recv().await
    }

    /// The kubelet's answer to a request that was sent after `since`, if it has arrived. Asks again when the last request
    /// is older than `PAUSE`.
    pub(super) fn since(&mut self, since: Monotonic) -> Option<Arc<[ContainerDevices]>> {
        self.request(PAUSE, Duration::ZERO);
        self.last.as_ref().filter(|(requested_at, _)| *requested_at >= since).map(|(_, listed)| Arc::clone(listed))
    }

    /// The kubelet's last answer, however old.
    pub(super) fn last(&self) -> Option<Arc<[ContainerDevices]>> {
        self.last.as_ref().map(|(_, listed)| Arc::clone(listed))
    }

    /// The entries of the last answer that are from another plugin or of another resource. The flag says whether an
    /// entry is of the agent's resource.
    pub(super) fn foreign(&self) -> Vec<(&ContainerDevices, bool)> {
        self.foreign.iter().map(|one| (one, one.resource == self.resource)).collect()
    }

    /// Called when the checkpoint has decided a start: asks for a list now and then, to compare it with the checkpoint.
    pub(super) fn compare_now_and_then(&mut self) {
        let now = clock::monotonic();
        if self.compare.is_none_or(|last| now.since(last) >= COMPARE) {
            self.compare = Some(now);
            self.request(PAUSE, Duration::ZERO);
        }
    }

    fn request(&mut self, pause: Duration, delay: Duration) {
        let now = clock::monotonic();
        if self.under_way || self.requested_at.is_some_and(|requested_at| now.since(requested_at) < pause) {
            return;
        }
        self.under_way = true;
        self.requested_at = Some(now);
        let (path, resource, sender) = (self.path.clone(), Arc::clone(&self.resource), self.sender.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            let requested_at = clock::monotonic();
            let answer = list_once(&path).await;
            let answer = answer.map(|listed| ListedDevices::of(listed, &resource));
            let _ = sender.send(Listed { requested_at, answer }).await;
        });
    }

    /// Takes an answer; returns the list to compare with the checkpoint, `None` if the kubelet gave no list.
    pub(super) fn take(&mut self, Listed { requested_at, answer }: Listed) -> Option<Arc<[ContainerDevices]>> {
        self.under_way = false;
        match answer {
            Ok(ListedDevices { own, foreign }) => {
                self.failed = false;
                self.last = Some((requested_at, Arc::clone(&own)));
                self.foreign = foreign;
                Some(own)
            }
            Err(why) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(
                        why,
                        "kubelet's PodResources does not list devices of containers; only the checkpoint has them"
                    );
                }
                None
            }
        }
    }

    /// Takes the disagreements that were found; returns new disagreements that were found twice.
    pub(super) fn disagree(&mut self, found: Vec<HolderDisagreement>) -> Vec<HolderDisagreement> {
        let (new, looks_again) = self.disagreements.take(found.into_iter().collect());
        if looks_again {
            self.request(Duration::ZERO, LOOK_AGAIN);
        }
        new
    }
}

/// Whether an entry has ids that this agent does not give, or GPUs under another resource. PodResources has no answers of
/// plugins, so GPUs that another resource names by other ids than UUIDs are not recognised. Only the tickets show the
/// owner of ids that look like slots (`HolderSources::others`).
fn is_foreign(one: &ContainerDevices, resource: &str) -> bool {
    match *one.resource == *resource {
        true => one.ids.iter().any(|id| Slot::parse(id).is_none()),
        false => one.ids.iter().any(|id| gpu_id::is_of_gpu(id)),
    }
}

impl Disagreements {
    /// Returns the disagreements that were found twice and are new, and whether the agent must look again to be certain.
    fn take(&mut self, found: BTreeSet<HolderDisagreement>) -> (Vec<HolderDisagreement>, bool) {
        let certain: Vec<HolderDisagreement> = found.intersection(&self.suspected).cloned().collect();
        self.reported.retain(|reported| found.contains(reported));
        let new = certain.into_iter().filter(|one| self.reported.insert(one.clone())).collect();
        let looks_again = found != self.suspected && !found.is_empty();
        self.suspected = found;
        (new, looks_again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::PodRef;

    fn found(ids: &[&str]) -> BTreeSet<HolderDisagreement> {
        let pod = |name: &str| PodRef { namespace: "ml".into(), name: name.into() };
        let one = |id: &&str| HolderDisagreement { ids: vec![Arc::from(*id)], checkpoint: pod("a"), listed: pod("b") };
        ids.iter().map(one).collect()
    }

    #[test]
    fn ids_of_another_plugin_and_gpus_under_another_resource_are_foreign() {
        let gpu = "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
        let listed = |resource: &str, id: &str| ContainerDevices {
            namespace: "ml".into(),
            pod: "train".into(),
            container: "main".into(),
            resource: resource.into(),
            ids: vec![id.into()],
        };
        for (resource, id, foreign) in [
            ("nvidia.com/gpu", &*format!("{gpu}-3"), false),
            ("nvidia.com/gpu", gpu, true),
            ("nvidia.com/gpu", "nvidia0", true),
            ("nvidia.com/gpu", &*format!("{gpu}-_-3"), true),
            ("nvidia.com/mig-1g.10gb", "MIG-1f5b9a3e", true),
            ("nvidia.com/gpu.shared", &*format!("{gpu}::1"), true),
            ("rdma.example.com/hca", "mlx5_0", false),
        ] {
            assert_eq!(is_foreign(&listed(resource, id), "nvidia.com/gpu"), foreign, "{resource} {id}");
        }
    }

    #[test]
    fn a_disagreement_is_reported_once_when_two_lists_in_a_row_have_it() {
        let mut disagreements = Disagreements::default();
        for (ids, new, looks_again) in [
            (&["x"][..], 0, true),
            (&["x"], 1, false),
            (&["x", "y"], 0, true),
            (&["x", "y"], 1, false),
            (&[], 0, false),
            (&["x"], 0, true),
            (&["x"], 1, false),
        ] {
            let (certain, again) = disagreements.take(found(ids));
            assert_eq!((certain.len(), again), (new, looks_again), "{ids:?}");
        }
    }
}
