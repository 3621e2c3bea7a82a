//! Counts what the device plugin does, and makes the view of it that metrics and JSON show.

use crate::agent::guarding::Guards;
use effects::plugin::CallMeter;
use model::claim::ContainerClaim;
use model::plugin::{ClaimMoves, DeviceIsolation, DeviceSlots, PluginView, PodFiles, RegistrationState, StartOutcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The counts since the program started.
#[derive(Debug)]
pub(crate) struct Counts {
    resource: Arc<str>,
    meter: Arc<CallMeter>,
    standing: watch::Receiver<RegistrationState>,
    registrations: u64,
    /// These three lists grow with the pods of the node, and a view is made each second: a list that has not changed is
    /// neither copied nor compared.
    slots: Arc<[DeviceSlots]>,
    claims: Arc<[ContainerClaim]>,
    files: Arc<[PodFiles]>,
    allocations: u64,
    /// At most one entry for each outcome and each code of a refusal.
    starts: BTreeMap<StartOutcome, u64>,
    written: Arc<Written>,
    waited: BTreeMap<&'static str, u64>,
    differing: u64,
    without_gpu: u32,
    moves: ClaimMoves,
    guards: watch::Receiver<Guards>,
    isolation: DeviceIsolation,
    last: Option<Arc<PluginView>>,
}

/// The counts of the threads that write files of containers.
#[derive(Debug, Default)]
pub(super) struct Written {
    well: AtomicU64,
    failed: AtomicU64,
}

impl Written {
    /// Counts a device delivery that succeeded or failed.
    pub(super) fn with(&self, well: bool) {
        let count = if well { &self.well } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    /// All counts are zero.
    pub(super) fn new(
        resource: Arc<str>,
        meter: Arc<CallMeter>,
        (standing, guards): (watch::Receiver<RegistrationState>, watch::Receiver<Guards>),
    ) -> Counts {
        Counts {
            resource,
            meter,
            standing,
            registrations: 0,
            slots: Arc::default(),
            claims: Arc::default(),
            files: Arc::default(),
            allocations: 0,
            starts: BTreeMap::new(),
            written: Arc::default(),
            waited: BTreeMap::new(),
            differing: 0,
            without_gpu: 0,
            moves: ClaimMoves::default(),
            guards,
            isolation: DeviceIsolation::default(),
            last: None,
        }
    }

    pub(super) fn allocated(&mut self) {
        self.allocations += 1;
    }

    /// Counts a start that was answered without a device delivery.
    pub(super) fn ended(&mut self, how: StartOutcome) {
        *self.starts.entry(how).or_default() += 1;
    }

    /// The counts for the threads that write files of containers.
    pub(super) fn writing(&self) -> Arc<Written> {
        Arc::clone(&self.written)
    }

    pub(super) fn waits(&mut self, what: &'static str) {
        *self.waited.entry(what).or_default() += 1;
    }

    pub(super) fn differs(&mut self) {
        self.differing += 1;
    }

    pub(super) fn without_gpu(&mut self, pods: usize) {
        self.without_gpu = u32::try_from(pods).unwrap_or(u32::MAX);
    }

    pub(super) fn moved(&mut self, exchanged: u64, alone: u64) {
        self.moves.exchanged += exchanged;
        self.moves.alone += alone;
    }

    pub(super) fn slots_are(&mut self, slots: Vec<DeviceSlots>, claims: Vec<ContainerClaim>) {
        self.slots = slots.into();
        self.claims = claims.into();
    }

    /// Sets what pods have written.
    pub(super) fn files_are(&mut self, files: Vec<PodFiles>) {
        self.files = files.into();
    }

    /// Sets whether containers are kept from the GPUs of others. Returns whether that is new.
    pub(super) fn isolation_is(&mut self, isolation: DeviceIsolation) -> bool {
        std::mem::replace(&mut self.isolation, isolation) != isolation
    }

    /// The view of all counts; `None` if it has not changed.
    pub(super) fn changed(&mut self) -> Option<Arc<PluginView>> {
        if self.standing.has_changed().unwrap_or(false)
            && matches!(*self.standing.borrow(), RegistrationState::Registered(_))
        {
            self.registrations += 1;
        }
        let standing = self.standing.borrow_and_update().clone();
        let mut starts = self.starts.clone();
        for (how, count) in [(StartOutcome::Filled, &self.written.well), (StartOutcome::Failed, &self.written.failed)] {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                starts.insert(how, count);
            }
        }
        let view = PluginView {
            resource: Arc::clone(&self.resource),
            standing,
            registrations: self.registrations,
            slots: Arc::clone(&self.slots),
            claims: Arc::clone(&self.claims),
            allocations: self.allocations,
            starts: starts.into_iter().collect(),
            waited: self.waited.iter().map(|(what, count)| (*what, *count)).collect(),
            differing: self.differing,
            without_gpu: self.without_gpu,
            moves: self.moves,
            files: Arc::clone(&self.files),
            isolation: self.isolation,
            guards: self.guards.borrow().iter().map(|(policy, guard)| (*policy, *guard)).collect(),
            allocate: self.meter.allocate(),
            start: self.meter.start(),
        };
        if self.last.as_deref() == Some(&view) {
            return None;
        }
        let view = Arc::new(view);
        self.last = Some(Arc::clone(&view));
        Some(view)
    }
}
