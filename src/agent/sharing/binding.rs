//! Holds the current binding mode. With late binding, checks whether the first containers got the devices of their
//! tickets.

use super::binding_mode::{self, BindingModeResult};
use super::cdi_check::{self, CdiCheckResult, CdiChecks};
use decide::allocator::BindingMode;
use model::id::{ContainerKey, PodRef, PodUid};
use model::pod::PodList;
use model::view::NodeView;
use sources::roots::HostRoots;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The binding mode, and the checks of containers.
#[derive(Debug)]
pub(super) struct NodeBinding {
    /// The binding mode, once it is known.
    mode: watch::Receiver<Option<BindingModeResult>>,
    /// Changes the binding mode.
    sender: watch::Sender<Option<BindingModeResult>>,
    /// Results of the tasks that check whether containers got their devices with late binding.
    results: (mpsc::Sender<CdiCheckResult>, mpsc::Receiver<CdiCheckResult>),
    /// The containers that were checked, and those that are being checked.
    checks: CdiChecks,
    seen: CheckSources,
    state_dir: PathBuf,
    /// Whether GPUs are shared even where nothing keeps a pod from the GPUs of others.
    allow_unisolated: bool,
}

/// Where a check finds a container.
#[derive(Clone, Debug)]
pub(super) struct CheckSources {
    /// The paths of the host's `/proc` and cgroups.
    pub roots: HostRoots,
    /// The node view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The pods of this node.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
}

/// What has happened.
#[derive(Debug)]
pub(super) enum BindingEvent {
    /// The mode has been found or has changed.
    Mode,
    /// A check has ended.
    Checked(CdiCheckResult),
}

impl NodeBinding {
    /// The mode is not known yet.
    pub(super) fn new(seen: CheckSources, state_dir: &Path, allow_unisolated: bool) -> NodeBinding {
        let (sender, mode) = watch::channel(None);
        let (state_dir, results) = (state_dir.to_owned(), mpsc::channel(1));
        NodeBinding { mode, sender, results, checks: CdiChecks::default(), seen, state_dir, allow_unisolated }
    }

    /// Receives the mode as soon as it is found.
    pub(super) fn sender(&self) -> watch::Sender<Option<BindingModeResult>> {
        self.sender.clone()
    }

    /// The mode as it changes.
    pub(super) fn watch(&self) -> watch::Receiver<Option<BindingModeResult>> {
        self.mode.clone()
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Waits until the mode is known.
    pub(super) async fn is_known(&self) {
        // The channel does not close before the owner ends.
        let mut mode = self.mode.clone();
        let _ = mode.wait_for(Option::is_some).await.is_ok();
    }

    /// Waits for the next event. Neither channel closes before the owner ends.
    pub(super) async fn next(&mut self) -> Option<BindingEvent> {
        tokio::select! {
            changed = self.mode.changed() => changed.ok().map(|()| BindingEvent::Mode),
            results = self.results.1.recv() => results.map(BindingEvent::Checked),
        }
    }

    /// The mode, once it is known.
    pub(super) fn mode(&self) -> Option<BindingMode> {
        self.mode.borrow().as_ref().map(|found| found.binding)
    }

    /// Whether it is known that the runtime ignores tickets.
    pub(super) fn is_lost(&self) -> bool {
        self.mode.borrow().as_ref().is_some_and(|found| found.lost)
    }

    /// Takes a change: the mode, and whether it is known that the runtime ignores tickets.
    pub(super) fn take_mode(&mut self) -> (Option<BindingMode>, bool) {
        let (mode, lost) = self.mode.borrow_and_update().as_ref().map(|found| (found.binding, found.lost)).unzip();
        (mode, lost == Some(true))
    }

    /// Whether GPUs are shared even where nothing keeps a pod from the GPUs of others.
    pub(super) fn allows_unisolated(&self) -> bool {
        self.allow_unisolated
    }

    /// Tickets are issued from now on, and were not before: what was seen before no longer counts.
    pub(super) fn tickets_begin(&mut self) {
        self.checks.begin();
    }

    /// Forgets pods that are gone.
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

    /// A check has ended.
    pub(super) fn has_checked(&mut self, CdiCheckResult { key, has, .. }: &CdiCheckResult) {
        self.checks.ended(key, has.is_some());
    }

    /// A container was seen with its devices. Returns whether it is the first.
    pub(super) fn has_devices(&mut self) -> bool {
        self.checks.has()
    }

    /// CDI works here: removes the note of an earlier start that it does not.
    pub(super) fn proved(&self) {
        binding_mode::proved(&self.state_dir);
    }

    /// A container has the devices of its CDI device, after other containers seemed to show that the runtime ignores
    /// CDI devices. Changes back to late binding where that is possible, and returns whether it did.
    pub(super) fn return_to_late(&self) -> bool {
        let found = self.mode.borrow().as_ref().and_then(|found| found.taken_back(&self.state_dir));
        let returns = found.is_some();
        if returns {
            self.sender.send_replace(found);
        }
        returns
    }

    /// A container of this pod was seen without its devices. Returns the mode to give up: the agent chose late
    /// binding itself, enough containers lack their devices, and the runtime has not reported that its CDI is on.
    pub(super) fn lacks(&mut self, pod: &PodRef) -> Option<BindingModeResult> {
        let found = self.mode.borrow().clone().filter(|found| found.auto && found.binding == BindingMode::Late);
        let enough = self.checks.lacks(pod);
        found.filter(|found| enough && !found.announced)
    }

    /// The runtime ignored the CDI edits: changes to early binding.
    pub(super) fn disprove(&self, found: &BindingModeResult) {
        self.sender.send_replace(Some(found.disproved(&self.state_dir)));
    }
}
