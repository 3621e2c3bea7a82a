//! Counts the device plugin's work, and reports the counts to the node state, in the form that metrics and JSON show.

use crate::event_log::log_withheld;
use crate::guarding::Guards;
use decide::agent_report::SharingStages;
use effects::plugin::CallMeter;
use model::claim::ContainerClaim;
use model::limits::PodMemoryClaim;
use model::observation::{ErrorCounter, Fact};
use model::plugin::{CdiState, DeviceSlots, PluginView, PodFiles, RegistrationState, StartOutcome};
use model::withheld::WithheldDevice;
use sources::report::Reporter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The counts since the program started.
#[derive(Debug)]
pub(super) struct Counts {
    meter: Arc<CallMeter>,
    registration: watch::Receiver<RegistrationState>,
    guards: watch::Receiver<Guards>,
    /// Answered starts, by outcome. Outcomes and their codes are a fixed set, which bounds the map.
    starts: BTreeMap<StartOutcome, u64>,
    waited: BTreeMap<&'static str, u64>,
    written: Arc<Written>,
    /// All other counts. Its lists grow with the pods of the node, and a view is made each second, so an unchanged list
    /// is neither copied nor compared.
    now: PluginView,
    last: Option<Arc<PluginView>>,
    /// The memory claims that were reported last.
    memory_claims: Arc<[PodMemoryClaim]>,
    /// The stages of the pods, for the stream to the extender.
    stages: watch::Sender<SharingStages>,
    reporter: Reporter,
}

/// The counts of the threads that write files of containers.
#[derive(Debug, Default)]
pub(super) struct Written {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

impl Written {
    /// Counts a device delivery that succeeded or failed.
    pub(super) fn count(&self, succeeded: bool) {
        let count = if succeeded { &self.succeeded } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    /// All counts are zero.
    pub(super) fn new(
        resource: Arc<str>,
        meter: Arc<CallMeter>,
        (registration, guards): (watch::Receiver<RegistrationState>, watch::Receiver<Guards>),
        reporter: Reporter,
    ) -> Counts {
        let now = PluginView {
            resource,
            registration: registration.borrow().clone(),
            registrations: 0,
            slots: Arc::default(),
            claims: Arc::default(),
            allocations: 0,
            starts: Vec::new(),
            waited: Vec::new(),
            differing: 0,
            without_gpu: 0,
            withheld: Arc::default(),
            moved: 0,
            files: Arc::default(),
            cdi: CdiState::default(),
            lacks: None,
            guards: Vec::new(),
            allocate: meter.allocate(),
            start: meter.start(),
        };
        let (starts, waited, written) = (BTreeMap::new(), BTreeMap::new(), Arc::default());
        Counts {
            meter,
            registration,
            guards,
            starts,
            waited,
            written,
            now,
            last: None,
            memory_claims: Arc::from([]),
            stages: watch::Sender::default(),
            reporter,
        }
    }

    /// The stages of the pods, for the stream to the extender.
    pub(super) fn stages(&self) -> watch::Receiver<SharingStages> {
        self.stages.subscribe()
    }

    /// Whether a stream to the extender reads the stages.
    pub(super) fn stages_are_read(&self) -> bool {
        self.stages.receiver_count() > 0
    }

    /// Whether the agent is registered with the kubelet, and containers get their devices by CDI.
    pub(super) fn serves(&self) -> bool {
        let registered = matches!(*self.registration.borrow(), RegistrationState::Registered);
        registered && self.now.cdi == CdiState::Works
    }

    /// Sets the stages of the node's pods.
    pub(super) fn stages_are(&self, now: SharingStages) {
        self.stages.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
    }

    /// Counts an error.
    pub(super) fn error(&self, counter: ErrorCounter) {
        self.reporter.trouble(counter);
    }

    /// Reports the memory claims of pods, if they have changed. Their memory use is compared with these claims.
    pub(super) fn memory_claims_are(&mut self, memory_claims: Arc<[PodMemoryClaim]>) {
        if memory_claims != self.memory_claims {
            self.reporter.fact(Fact::MemoryClaims(Arc::clone(&memory_claims)));
            self.memory_claims = memory_claims;
        }
    }

    pub(super) fn allocated(&mut self) {
        self.now.allocations += 1;
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
        self.now.differing += 1;
    }

    pub(super) fn without_gpu(&mut self, pods: usize) {
        self.now.without_gpu = u32::try_from(pods).unwrap_or(u32::MAX);
    }

    /// Sets which devices are not offered. Logs devices that were offered before or get another reason.
    pub(super) fn withheld_are(&mut self, withheld: Vec<WithheldDevice>) {
        if *self.now.withheld == *withheld {
            return;
        }
        let before = std::mem::replace(&mut self.now.withheld, withheld.into());
        self.now.withheld.iter().filter(|device| !before.contains(device)).for_each(log_withheld);
    }

    pub(super) fn moved(&mut self, containers: u64) {
        self.now.moved += containers;
    }

    pub(super) fn slots_are(&mut self, slots: Vec<DeviceSlots>, claims: Vec<ContainerClaim>) {
        self.now.slots = slots.into();
        self.now.claims = claims.into();
    }

    /// Sets how much pods have written.
    pub(super) fn files_are(&mut self, files: Vec<PodFiles>) {
        self.now.files = files.into();
    }

    /// Sets whether containers get their GPUs by CDI.
    pub(super) fn cdi_is(&mut self, cdi: CdiState) {
        self.now.cdi = cdi;
    }

    /// Sets the text that says what this host does not give to containers with a GPU, and what to do about it.
    pub(super) fn host_lacks(&mut self, what: Option<Arc<str>>) {
        self.now.lacks = what;
    }

    /// Reports the counts, if they have changed.
    pub(super) fn report(&mut self) {
        if let Some(view) = self.changed() {
            self.reporter.fact(Fact::Plugin(view));
        }
    }

    /// The view of all counts; `None` if it has not changed.
    fn changed(&mut self) -> Option<Arc<PluginView>> {
        if self.registration.has_changed().unwrap_or(false)
            && matches!(*self.registration.borrow(), RegistrationState::Registered)
        {
            self.now.registrations += 1;
        }
        let mut starts = self.starts.clone();
        for (how, count) in
            [(StartOutcome::Filled, &self.written.succeeded), (StartOutcome::Failed, &self.written.failed)]
        {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                starts.insert(how, count);
            }
        }
        self.now.registration = self.registration.borrow_and_update().clone();
        self.now.starts = starts.into_iter().collect();
        self.now.waited = self.waited.iter().map(|(what, count)| (*what, *count)).collect();
        self.now.guards = self.guards.borrow().iter().map(|(policy, guard)| (*policy, *guard)).collect();
        (self.now.allocate, self.now.start) = (self.meter.allocate(), self.meter.start());
        if self.last.as_deref() == Some(&self.now) {
            return None;
        }
        let view = Arc::new(self.now.clone());
        self.last = Some(Arc::clone(&view));
        Some(view)
    }
}
