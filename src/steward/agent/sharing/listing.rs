//! The kubelet's PodResources, the second source beside its checkpoint. The agent asks it where the checkpoint cannot
//! be read, and now and then to see whether the two agree. A task of its own asks, so that a slow kubelet holds up no
//! start.

use decide::allocator::HolderDisagreement;
use model::observation::ContainerDevices;
use model::time::Monotonic;
use sources::clock;
use sources::names::pod_resources::list_once;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Pause between two requests: the kubelet answers all its callers together a hundred times a second.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between two comparisons.
const COMPARE: Duration = Duration::from_secs(15);
/// Pause after a first disagreement: a change between two readings is over by then.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// An answer, and when the agent asked for it.
#[derive(Debug)]
pub(super) struct Listed {
    asked: Monotonic,
    answer: Result<Arc<[ContainerDevices]>, String>,
}

/// Asks PodResources, and keeps the last answer.
#[derive(Debug)]
pub(super) struct Listing {
    path: PathBuf,
    resource: Arc<str>,
    say: mpsc::Sender<Listed>,
    /// Answers as they come.
    answers: mpsc::Receiver<Listed>,
    asked: Option<Monotonic>,
    under_way: bool,
    compare: Option<Monotonic>,
    last: Option<(Monotonic, Arc<[ContainerDevices]>)>,
    failed: bool,
    disagreements: Disagreements,
}

/// Where the two sources disagreed the last time.
#[derive(Debug, Default)]
struct Disagreements {
    suspected: BTreeSet<HolderDisagreement>,
    told: BTreeSet<HolderDisagreement>,
}

impl Listing {
    /// Asks at this socket, about one resource.
    pub(super) fn new(path: PathBuf, resource: Arc<str>) -> Listing {
        let (say, answers) = mpsc::channel(1);
        Listing {
            path,
            resource,
            say,
            answers,
            asked: None,
            under_way: false,
            compare: None,
            last: None,
            failed: false,
            disagreements: Disagreements::default(),
        }
    }

    /// Waits for the next answer.
    pub(super) async fn answered(&mut self) -> Option<Listed> {
        self.answers.recv().await
    }

    /// What the kubelet listed when it was asked after `since`, if that has come. Asks again when the last request is
    /// older than `PAUSE`.
    pub(super) fn since(&mut self, since: Monotonic) -> Option<Arc<[ContainerDevices]>> {
        self.request(PAUSE, Duration::ZERO);
        self.last.as_ref().filter(|(asked, _)| *asked >= since).map(|(_, listed)| Arc::clone(listed))
    }

    /// What the kubelet listed last, however long ago.
    pub(super) fn last(&self) -> Option<Arc<[ContainerDevices]>> {
        self.last.as_ref().map(|(_, listed)| Arc::clone(listed))
    }

    /// A start was answered by the checkpoint: asks for a list now and then, to compare the two.
    pub(super) fn compare_now_and_then(&mut self) {
        let now = clock::monotonic();
        if self.compare.is_none_or(|last| now.since(last) >= COMPARE) {
            self.compare = Some(now);
            self.request(PAUSE, Duration::ZERO);
        }
    }

    fn request(&mut self, pause: Duration, delay: Duration) {
        let now = clock::monotonic();
        if self.under_way || self.asked.is_some_and(|asked| now.since(asked) < pause) {
            return;
        }
        self.under_way = true;
        self.asked = Some(now);
        let (path, resource, say) = (self.path.clone(), Arc::clone(&self.resource), self.say.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            let asked = clock::monotonic();
            let answer = list_once(&path).await;
            let own =
                |listed: Vec<ContainerDevices>| listed.into_iter().filter(|one| one.resource == resource).collect();
            let _ = say.send(Listed { asked, answer: answer.map(own) }).await;
        });
    }

    /// Takes an answer; returns the list to compare with the checkpoint, `None` if the kubelet gave none.
    pub(super) fn take(&mut self, Listed { asked, answer }: Listed) -> Option<Arc<[ContainerDevices]>> {
        self.under_way = false;
        match answer {
            Ok(listed) => {
                self.failed = false;
                self.last = Some((asked, Arc::clone(&listed)));
                Some(listed)
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

    /// Takes the disagreements that were found; returns those that were found twice and are new.
    pub(super) fn disagree(&mut self, found: Vec<HolderDisagreement>) -> Vec<HolderDisagreement> {
        let (new, looks_again) = self.disagreements.take(found.into_iter().collect());
        if looks_again {
            self.request(Duration::ZERO, LOOK_AGAIN);
        }
        new
    }
}

impl Disagreements {
    /// Returns what was found twice and is new, and whether the agent must look again to be certain.
    fn take(&mut self, found: BTreeSet<HolderDisagreement>) -> (Vec<HolderDisagreement>, bool) {
        let certain: Vec<HolderDisagreement> = found.intersection(&self.suspected).cloned().collect();
        self.told.retain(|told| found.contains(told));
        let new = certain.into_iter().filter(|one| self.told.insert(one.clone())).collect();
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
    fn a_disagreement_counts_when_it_was_found_twice_and_once_for_as_long_as_it_lasts() {
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
