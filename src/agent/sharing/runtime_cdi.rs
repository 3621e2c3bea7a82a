//! Finds out whether containers of this node get their devices by CDI: keeps the findings, and checks the first
//! containers.

use super::cdi_check::{self, CdiCheckResult, CdiChecks};
use decide::cdi::{CdiFinding, NodeCdi};
use effects::binding_file::BindingFile;
use model::id::{ContainerKey, PodRef, PodUid};
use model::pod::PodList;
use model::view::NodeView;
use sources::roots::HostRoots;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What is known about CDI, and the checks of containers.
#[derive(Debug)]
pub(super) struct RuntimeCdi {
    known: watch::Sender<NodeCdi>,
    changes: watch::Receiver<NodeCdi>,
    /// The finding that is in force; `None` before the first finding.
    finding: Option<CdiFinding>,
    /// Results of the tasks that check whether containers got their devices.
    results: (mpsc::Sender<CdiCheckResult>, mpsc::Receiver<CdiCheckResult>),
    /// The containers that were checked or are being checked.
    checks: CdiChecks,
    seen: CheckSources,
    state_dir: PathBuf,
}

/// The sources that a check reads to find a container.
#[derive(Clone, Debug)]
pub(super) struct CheckSources {
    /// The paths of the host's `/proc` and cgroups.
    pub roots: HostRoots,
    /// The node view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The pods of this node.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
}

/// An event for the sharing task.
#[derive(Debug)]
pub(super) enum CdiEvent {
    /// The knowledge about CDI has changed.
    Known,
    /// A check has ended.
    Checked(CdiCheckResult),
}

impl RuntimeCdi {
    /// Begins with the previous agent's finding.
    pub(super) fn new(seen: CheckSources, state_dir: &Path) -> RuntimeCdi {
        let (known, changes) = watch::channel(NodeCdi::new(sources::state_dir::cdi_support(state_dir)));
        let (state_dir, results) = (state_dir.to_owned(), mpsc::channel(1));
        RuntimeCdi { known, changes, finding: None, results, checks: CdiChecks::default(), seen, state_dir }
    }

    /// The sender for the answers of the API server and the runtime.
    pub(super) fn sender(&self) -> watch::Sender<NodeCdi> {
        self.known.clone()
    }

    /// Receives what is known about CDI, and each change of it.
    pub(super) fn watch(&self) -> watch::Receiver<NodeCdi> {
        self.changes.clone()
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Waits until it is known whether containers get their devices by CDI.
    pub(super) async fn is_known(&self) {
        // The channel does not close before the sharing task ends.
        let mut known = self.changes.clone();
        let _ = known.wait_for(|cdi| cdi.finding().is_some()).await.is_ok();
    }

    /// Waits for the next event. Neither channel closes before the sharing task ends.
    pub(super) async fn next(&mut self) -> Option<CdiEvent> {
        tokio::select! {
            changed = self.changes.changed() => changed.ok().map(|()| CdiEvent::Known),
            results = self.results.1.recv() => results.map(CdiEvent::Checked),
        }
    }

    /// Whether it is known that CDI works. This reads the newest finding, because an agent that waits for its turn has
    /// no finding in force yet.
    pub(super) fn works(&self) -> bool {
        self.changes.borrow().finding().is_some_and(|finding| finding.works())
    }

    /// The finding that is in force.
    pub(super) fn finding(&self) -> Option<&CdiFinding> {
        self.finding.as_ref()
    }

    /// Puts the newest finding in force, and saves it for the next agent. Returns the previous finding, if it differs.
    pub(super) fn take(&mut self) -> Option<Option<CdiFinding>> {
        let now = self.changes.borrow_and_update().finding();
        if now == self.finding {
            return None;
        }
        let works = |finding: &Option<CdiFinding>| finding.as_ref().is_some_and(CdiFinding::works);
        if works(&now) && !works(&self.finding) {
            // Earlier results no longer count.
            self.checks.begin();
        }
        if let Some(now) = &now {
            self.save(now);
        }
        Some(std::mem::replace(&mut self.finding, now))
    }

    fn save(&self, finding: &CdiFinding) {
        let file = BindingFile::new(&self.state_dir);
        if let Err(error) = file.write(finding.found, &finding.runtime) {
            tracing::warn!(file = %file.path().display(), %error, "cannot save for the agent's next start whether CDI works here");
        }
    }

    /// Forgets all pods except these.
    pub(super) fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.checks.forget(here);
    }

    /// Starts a check of this container, if it is one of the first.
    pub(super) fn check_first(&mut self, key: &ContainerKey, pod: &PodRef) {
        if self.checks.is_due_first(key) {
            self.check((key.clone(), pod.clone()));
        }
    }

    /// Starts a check of this container, unless its result is known.
    pub(super) fn check_any(&mut self, about: (ContainerKey, PodRef)) {
        if self.checks.is_due(&about.0) {
            self.check(about);
        }
    }

    fn check(&self, about: (ContainerKey, PodRef)) {
        let CheckSources { roots, view, pods } = self.seen.clone();
        tokio::spawn(cdi_check::watch(about, roots, (view, pods), self.results.0.clone()));
    }

    /// Records that a check has ended.
    pub(super) fn has_checked(&mut self, CdiCheckResult { key, has, .. }: &CdiCheckResult) {
        self.checks.ended(key, has.is_some());
    }

    /// Records that a container was seen with its devices. Returns whether it is the first such container.
    pub(super) fn has_devices(&mut self) -> bool {
        let first = self.checks.has();
        if first {
            self.known.send_if_modified(|cdi| cdi.containers_show(true));
        }
        first
    }

    /// Records that a container of this pod was seen without its devices. After enough such containers, the runtime
    /// counts as ignoring CDI devices, unless it reports that CDI is enabled.
    pub(super) fn lacks_devices(&mut self, pod: &PodRef) {
        let doubtful = self.finding.as_ref().is_some_and(|finding| finding.works() && !finding.announced);
        if self.checks.lacks(pod) && doubtful {
            self.known.send_if_modified(|cdi| cdi.containers_show(false));
        }
    }
}
