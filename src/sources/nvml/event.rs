//! The thread that waits for NVML's events: XIDs, and changes of the MIG layout. It makes every call under a
//! [`Heartbeat`], so that the supervisor sees a call that does not return.
//!
//! ```text
//!   set of all GPUs ──wait──▶ event, or none ──▶ wait again
//!         ▲             └───▶ a GPU is lost ──▶ a wait on a separate set for each GPU finds it ──┐
//!         └──────────────── a new set without the lost GPU; later one with it again ──────────┘
//! ```
//!
//! When one GPU of a set is lost, NVML fails every wait on that set from then on.
//!
//! What must never happen here: a GPU whose errors are missed because of another GPU; a thread that spins.

use crate::nvml::absence::reason;
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::inventory::KnownGpu;
use crate::nvml::message::Message;
use crate::nvml::raw::{self, NvmlEvent};
use crate::nvml::xid::instance;
use crate::report::Reporter;
use clock::monotonic;
use model::gpu::{Xid, XidSource};
use model::id::GpuUuid;
use model::observation::{ErrorCounter, Fact};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long one wait lasts, which is the delay until a stop or a new GPU is noticed.
pub(super) const WAIT: Duration = Duration::from_secs(1);
const WAIT_MS: u32 = 1000;
/// Pause after a wait that failed, so that a library that fails at once does not spin.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of failed waits in a row before the failure is reported: together they last as long as a wait that is
/// reported as hanging.
const FAILURES: u32 = 3;
/// `NVML_…INSTANCE_ID` for "no instance".
const NO_INSTANCE: u32 = u32::MAX;

/// The state of the thread.
pub(super) struct Events {
    pub(super) nvml: &'static Nvml,
    /// Receives new lists of GPUs.
    pub(super) lists: Receiver<Vec<KnownGpu>>,
    pub(super) messages: SyncSender<Message>,
    pub(super) reporter: Reporter,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) stop: CancellationToken,
    /// Time between two attempts to register for events of a lost GPU.
    pub(super) lost_retry: Duration,
}

/// The next step when the thread stops waiting on a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// The thread ends.
    End,
    /// The thread makes a new set, without the lost GPUs.
    NewSet,
}

/// Results of the waits.
#[derive(Debug, Default)]
struct Waits {
    /// Failed waits in a row.
    failed: u32,
    /// The failure has been reported.
    reported: bool,
}

/// GPUs whose events are in the set, GPUs that refused, and GPUs that make a wait fail.
#[derive(Debug, Default)]
struct Registered {
    known: Vec<KnownGpu>,
    done: BTreeSet<GpuUuid>,
    refused: BTreeSet<GpuUuid>,
    lost: BTreeSet<GpuUuid>,
}

impl Events {
    /// Waits until `stop`, or until the supervisor drops the sender of the lists.
    pub(super) fn run(self) {
        self.listen();
        // The set is dropped by now, so the library may be closed.
        let _ = self.messages.try_send(Message::EventsLeft);
    }

    fn listen(&self) {
        let (mut registered, mut waits) = (Registered::default(), Waits::default());
        let mut next = None;
        while next != Some(NextStep::End) && !self.stop.is_cancelled() {
            match self.heartbeat.during(None, || self.nvml.create_event_set()) {
                Ok(set) => {
                    let step = self.wait_on(&set, &mut registered, &mut waits);
                    self.heartbeat.during(None, || drop(set));
                    if step == NextStep::NewSet {
                        self.find_lost(&mut registered);
                    }
                    next = Some(step);
                }
                Err(error) if next.is_none() => {
                    self.reporter.trouble(ErrorCounter::NvmlFailed);
                    tracing::warn!(%error, "NVML gives no event set, so XIDs come from the kernel log only");
                    return;
                }
                Err(error) => {
                    self.wait_failed(&error, &mut waits);
                    match self.lists.recv_timeout(PAUSE) {
                        Ok(known) => registered.known = known,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => next = Some(NextStep::End),
                    }
                }
            }
        }
        self.wait_succeeded(&mut waits);
    }

    fn wait_on(&self, set: &EventSet<'static>, registered: &mut Registered, waits: &mut Waits) -> NextStep {
        registered.retry(set, &self.heartbeat, false);
        let mut lost_due = monotonic().after(self.lost_retry);
        while !self.stop.is_cancelled() {
            loop {
                match self.lists.try_recv() {
                    Ok(known) => registered.update(known, set, &self.heartbeat),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return NextStep::End,
                }
            }
            if monotonic() >= lost_due {
                registered.retry(set, &self.heartbeat, true);
                lost_due = monotonic().after(self.lost_retry);
            }
            if registered.done.is_empty() {
                // NVML refuses to wait on an empty set.
                match self.lists.recv_timeout(PAUSE) {
                    Ok(known) => registered.update(known, set, &self.heartbeat),
                    Err(RecvTimeoutError::Timeout) => registered.retry(set, &self.heartbeat, false),
                    Err(RecvTimeoutError::Disconnected) => return NextStep::End,
                }
                continue;
            }
            match self.heartbeat.during(None, || raw::wait(set, WAIT_MS)) {
                Ok(event) => {
                    self.wait_succeeded(waits);
                    self.report_event(&event, &registered.known);
                }
                Err(NvmlError::Timeout) => self.wait_succeeded(waits),
                Err(NvmlError::GpuLost) => {
                    self.wait_failed(&NvmlError::GpuLost, waits);
                    return NextStep::NewSet;
                }
                Err(error) => {
                    self.wait_failed(&error, waits);
                    std::thread::sleep(PAUSE);
                }
            }
        }
        NextStep::End
    }

    /// Handles a wait that succeeded.
    fn wait_succeeded(&self, waits: &mut Waits) {
        waits.failed = 0;
        if std::mem::take(&mut waits.reported) {
            self.reporter.fact(Fact::GpuEventsFail(false));
        }
    }

    /// Handles a wait that failed: counts it, logs the first in a row, and reports when failures go on.
    fn wait_failed(&self, error: &NvmlError, waits: &mut Waits) {
        self.reporter.trouble(ErrorCounter::NvmlFailed);
        if waits.failed == 0 {
            tracing::warn!(%error, "waiting for NVML's events failed; repeats are only counted");
        }
        waits.failed = waits.failed.saturating_add(1);
        if waits.failed >= FAILURES && !std::mem::replace(&mut waits.reported, true) {
            self.reporter.fact(Fact::GpuEventsFail(true));
        }
        let _ = self.messages.try_send(Message::GpusChanged);
    }

    /// Finds the GPUs that make a wait fail. The failed set is dropped already.
    fn find_lost(&self, registered: &mut Registered) {
        let done = std::mem::take(&mut registered.done);
        let mut found = false;
        for known in registered.known.iter().filter(|known| done.contains(&known.gpu.uuid)) {
            match self.pending_event(known) {
                Ok(event) => self.report_event(&event, &registered.known),
                Err(NvmlError::GpuLost) => {
                    found = true;
                    tracing::warn!(gpu_uuid = %known.gpu.uuid, "GPU is lost: the agent waits for events of the other GPUs without it, because NVML fails every wait that includes it");
                    registered.lost.insert(known.gpu.uuid.clone());
                }
                Err(_) => {}
            }
        }
        if !found {
            std::thread::sleep(PAUSE);
        }
    }

    /// A pending event of this GPU, read through a separate set.
    fn pending_event(&self, known: &KnownGpu) -> Result<NvmlEvent, NvmlError> {
        let set = self.heartbeat.during(None, || self.nvml.create_event_set())?;
        let answer = self.heartbeat.during(Some(&known.key()), || {
            raw::register(&known.device, EventTypes::CRITICAL_XID_ERROR.bits(), &set)?;
            raw::wait(&set, 0)
        });
        self.heartbeat.during(None, || drop(set));
        answer
    }

    fn report_event(&self, event: &NvmlEvent, known: &[KnownGpu]) {
        let kind = EventTypes::from_bits_truncate(event.kind);
        if kind.contains(EventTypes::MIG_CONFIG_CHANGE) {
            let _ = self.messages.try_send(Message::GpusChanged);
        }
        if !kind.contains(EventTypes::CRITICAL_XID_ERROR) {
            return;
        }
        let Ok(code) = u32::try_from(event.data) else { return };
        // Handles come first: the UUID of a GPU that fell off the bus can no longer be read.
        let gpu = known.iter().find(|known| raw::same(&known.device, &event.device)).or_else(|| {
            let uuid = self.heartbeat.during(None, || event.device.uuid()).ok()?;
            known.iter().find(|known| known.gpu.uuid.as_str() == uuid)
        });
        let mig = gpu.filter(|_| event.gpu_instance != NO_INSTANCE).and_then(|known| {
            let compute = Some(event.compute_instance).filter(|number| *number != NO_INSTANCE);
            instance(known.gpu.instances(), event.gpu_instance, compute)
        });
        let xid = Xid {
            gpu: gpu.map(|known| known.gpu.uuid.clone()),
            mig: mig.map(|mig| mig.uuid.clone()),
            pci_bus_id: gpu.and_then(|known| known.gpu.pci_bus_id.value().cloned()),
            code,
            severity: None,
            pid: None,
            pod: None,
            at: monotonic(),
            source: XidSource::Nvml,
        };
        if self.messages.try_send(Message::Event(xid)).is_err() {
            self.reporter.trouble(ErrorCounter::QueueFull);
        }
    }
}

impl Registered {
    /// Takes a new list, and registers the new GPUs in it.
    fn update(&mut self, known: Vec<KnownGpu>, set: &EventSet<'static>, heartbeat: &Heartbeat) {
        self.known = known;
        let still = |uuid: &GpuUuid| self.known.iter().any(|known| known.gpu.uuid == *uuid);
        self.done.retain(|uuid| still(uuid));
        self.refused.retain(|uuid| still(uuid));
        self.lost.retain(|uuid| still(uuid));
        self.retry(set, heartbeat, false);
    }

    /// Registers the GPUs that are not in the set yet, each for the events that it supports; lost GPUs only
    /// `with_lost`.
    fn retry(&mut self, set: &EventSet<'static>, heartbeat: &Heartbeat, with_lost: bool) {
        let kinds_to_register = EventTypes::CRITICAL_XID_ERROR | EventTypes::MIG_CONFIG_CHANGE;
        for known in &self.known {
            let (uuid, gpu) = (&known.gpu.uuid, known.key());
            if self.done.contains(uuid) || (self.lost.contains(uuid) && !with_lost) {
                continue;
            }
            let kinds = heartbeat
                .during(Some(&gpu), || known.device.supported_event_types())
                .map(|offered| offered & kinds_to_register);
            // A GPU whose supported events cannot be read is registered for XIDs only.
            let kinds = kinds.unwrap_or(EventTypes::CRITICAL_XID_ERROR);
            let answer = if kinds.is_empty() {
                Err(NvmlError::NotSupported)
            } else {
                heartbeat.during(Some(&gpu), || raw::register(&known.device, kinds.bits(), set))
            };
            match answer {
                Ok(()) => {
                    if self.lost.remove(uuid) {
                        tracing::info!(gpu_uuid = %uuid, "GPU answers again; the agent waits for its events");
                    }
                    self.refused.remove(uuid);
                    self.done.insert(uuid.clone());
                }
                Err(error) => {
                    if !self.lost.contains(uuid) && self.refused.insert(uuid.clone()) {
                        tracing::info!(
                            gpu_uuid = %uuid, reason = %reason(error),
                            "GPU offers no events, so its XIDs come from the kernel log only"
                        );
                    }
                }
            }
        }
    }
}
