//! The kubelet's PodResources, the second source beside its checkpoint. The agent asks it where the checkpoint cannot
//! be read, and now and then to see whether the two agree. A task of its own asks, so that a slow kubelet holds up no
//! start.

use decide::allocator::HolderDisagreement;
use model::observation::ContainerDevices;
use sources::names::pod_resources::list_once;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// Pause between two requests: the kubelet answers all its callers together a hundred times a second.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between two comparisons.
const COMPARE: Duration = Duration::from_secs(15);
/// Pause after a first disagreement: a change between two readings is over by then.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// An answer, and when the agent asked for it.
#[derive(Debug)]
pub(crate) struct Listed {
    asked: Instant,
    answer: Result<Arc<[ContainerDevices]>, String>,
}

/// Asks PodResources, and keeps the last answer.
#[derive(Debug)]
pub(crate) struct Listing {
    path: PathBuf,
    resource: Arc<str>,
    say: mpsc::Sender<Listed>,
    /// Answers as they come.
    pub answers: mpsc::Receiver<Listed>,
    asked: Option<Instant>,
    under_way: bool,
    compare: Option<Instant>,
    last: Option<(Instant, Arc<[ContainerDevices]>)>,
    failed: bool,
    suspected: BTreeSet<HolderDisagreement>,
    told: BTreeSet<HolderDisagreement>,
}

impl Listing {
    /// Asks at this socket, about one resource.
    pub(crate) fn new(path: PathBuf, resource: Arc<str>) -> Listing {
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
            suspected: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// What the kubelet listed when it was asked after `since`, if that has come. Asks again when the last request is
    /// older than `PAUSE`.
    pub(super) fn since(&mut self, since: Instant) -> Option<Arc<[ContainerDevices]>> {
        self.request(PAUSE, Duration::ZERO);
        self.last.as_ref().filter(|(asked, _)| *asked >= since).map(|(_, listed)| Arc::clone(listed))
    }

    /// What the kubelet listed last, however long ago.
    pub(super) fn last(&self) -> Option<Arc<[ContainerDevices]>> {
        self.last.as_ref().map(|(_, listed)| Arc::clone(listed))
    }

    /// A start was answered by the checkpoint: asks for a list now and then, to compare the two.
    pub(super) fn compare_now_and_then(&mut self) {
        if self.compare.is_none_or(|last| last.elapsed() >= COMPARE) {
            self.compare = Some(Instant::now());
            self.request(PAUSE, Duration::ZERO);
        }
    }

    fn request(&mut self, pause: Duration, delay: Duration) {
        if self.under_way || self.asked.is_some_and(|asked| asked.elapsed() < pause) {
            return;
        }
        self.under_way = true;
        self.asked = Some(Instant::now());
        let (path, resource, say) = (self.path.clone(), Arc::clone(&self.resource), self.say.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            let asked = Instant::now();
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
        let found: BTreeSet<HolderDisagreement> = found.into_iter().collect();
        let certain: Vec<HolderDisagreement> = found.intersection(&self.suspected).cloned().collect();
        self.told.retain(|told| found.contains(told));
        let new = certain.into_iter().filter(|one| self.told.insert(one.clone())).collect();
        if found != self.suspected && !found.is_empty() {
            self.request(Duration::ZERO, LOOK_AGAIN);
        }
        self.suspected = found;
        new
    }
}
