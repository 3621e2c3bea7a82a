//! The thread that waits for NVML's events: XIDs, and changes of the MIG layout. Every call it makes is under the heartbeat
//! of [`Heartbeat`], so that the supervisor sees one that does not return.
//!
//! ```text
//!   set of all GPUs ──wait──▶ event, or none ──▶ wait again
//!         ▲             └───▶ a GPU is lost ──▶ asked one by one which, each by a set of its own ──┐
//!         └──────────────────────── without it, and now and then with it once more ────────────────┘
//! ```
//!
//! NVML fails a wait for all GPUs of a set when one of them is lost, and does so from then on.
//!
//! What must never happen here: a GPU's errors that are not heard because of its neighbour; a thread that spins.

use crate::clock::monotonic;
use crate::nvml::absence::reason;
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::inventory::Known;
use crate::nvml::message::Message;
use crate::nvml::raw::{self, Told};
use crate::nvml::xid::instance;
use crate::report::Reporter;
use model::gpu::{Xid, XidSource};
use model::id::GpuUuid;
use model::observation::{ErrorCounter, Observation};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long one wait lasts: so soon are a stop and a new GPU noticed.
pub(super) const WAIT: Duration = Duration::from_secs(1);
const WAIT_MS: u32 = 1000;
/// Pause after a wait that failed, so that a library that fails at once does not spin.
const PAUSE: Duration = Duration::from_secs(1);
/// So many failed waits in a row are told to the front door: as long as a wait that does not return.
const FAILURES: u32 = 3;
/// `NVML_…INSTANCE_ID` where there is none.
const NO_INSTANCE: u32 = u32::MAX;

/// The state of the thread.
pub(super) struct Events {
    pub(super) nvml: &'static Nvml,
    /// New lists of GPUs.
    pub(super) lists: Receiver<Vec<Known>>,
    pub(super) tell: SyncSender<Message>,
    pub(super) reporter: Reporter,
    pub(super) pulse: Arc<Heartbeat>,
    pub(super) stop: CancellationToken,
    /// Time between two attempts to hear a GPU that is lost.
    pub(super) again: Duration,
}

/// What becomes of a set that is not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The thread ends.
    Leave,
    /// Another set takes its place, without the GPUs that are lost.
    Anew,
}

/// How the waits went.
#[derive(Debug, Default)]
struct Waits {
    /// Failed in a row.
    failed: u32,
    /// The front door believes that they fail.
    told: bool,
}

/// GPUs whose events are in the set, those that refused, and those with which a wait fails.
#[derive(Debug, Default)]
struct Registered {
    known: Vec<Known>,
    done: BTreeSet<GpuUuid>,
    refused: BTreeSet<GpuUuid>,
    lost: BTreeSet<GpuUuid>,
}

impl Events {
    /// Waits until `stop`, or until nobody has a list of GPUs for this thread any more.
    pub(super) fn run(self) {
        self.listen();
        // The set is gone by now, so the library may be closed.
        let _ = self.tell.try_send(Message::EventsLeft);
    }

    fn listen(&self) {
        let (mut registered, mut waits) = (Registered::default(), Waits::default());
        let mut next = None;
        while next != Some(Next::Leave) && !self.stop.is_cancelled() {
            match self.pulse.during(None, || self.nvml.create_event_set()) {
                Ok(set) => {
                    let then = self.hear(&set, &mut registered, &mut waits);
                    self.pulse.during(None, || drop(set));
                    if then == Next::Anew {
                        self.put_aside(&mut registered);
                    }
                    next = Some(then);
                }
                Err(error) if next.is_none() => {
                    self.reporter.trouble(ErrorCounter::NvmlFailed);
                    tracing::warn!(%error, "NVML gives no event set, so XIDs come from the kernel log only");
                    return;
                }
                Err(error) => {
                    self.failed(&error, &mut waits);
                    match self.lists.recv_timeout(PAUSE) {
                        Ok(known) => registered.known = known,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => next = Some(Next::Leave),
                    }
                }
            }
        }
        self.heard(&mut waits);
    }

    fn hear(&self, set: &EventSet<'static>, registered: &mut Registered, waits: &mut Waits) -> Next {
        registered.retry(set, &self.pulse, false);
        let mut lost_due = monotonic().after(self.again);
        while !self.stop.is_cancelled() {
            loop {
                match self.lists.try_recv() {
                    Ok(known) => registered.renew(known, set, &self.pulse),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Next::Leave,
                }
            }
            if monotonic() >= lost_due {
                registered.retry(set, &self.pulse, true);
                lost_due = monotonic().after(self.again);
            }
            if registered.done.is_empty() {
                // NVML refuses to wait on an empty set.
                match self.lists.recv_timeout(PAUSE) {
                    Ok(known) => registered.renew(known, set, &self.pulse),
                    Err(RecvTimeoutError::Timeout) => registered.retry(set, &self.pulse, false),
                    Err(RecvTimeoutError::Disconnected) => return Next::Leave,
                }
                continue;
            }
            match self.pulse.during(None, || raw::wait(set, WAIT_MS)) {
                Ok(told) => {
                    self.heard(waits);
                    self.pass_on(&told, &registered.known);
                }
                Err(NvmlError::Timeout) => self.heard(waits),
                Err(NvmlError::GpuLost) => {
                    self.failed(&NvmlError::GpuLost, waits);
                    return Next::Anew;
                }
                Err(error) => {
                    self.failed(&error, waits);
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Next::Leave
    }

    /// A wait went well.
    fn heard(&self, waits: &mut Waits) {
        waits.failed = 0;
        if std::mem::take(&mut waits.told) {
            self.reporter.report(Observation::GpuEventsFail(false));
        }
    }

    /// A wait failed: counted, said once, and told when it goes on.
    fn failed(&self, error: &NvmlError, waits: &mut Waits) {
        self.reporter.trouble(ErrorCounter::NvmlFailed);
        if waits.failed == 0 {
            tracing::warn!(%error, "waiting for NVML's events failed, said once");
        }
        waits.failed = waits.failed.saturating_add(1);
        if waits.failed >= FAILURES && !std::mem::replace(&mut waits.told, true) {
            self.reporter.report(Observation::GpuEventsFail(true));
        }
        let _ = self.tell.try_send(Message::LookAgain);
    }

    /// Finds the GPUs with which a wait fails. The set that failed is gone.
    fn put_aside(&self, registered: &mut Registered) {
        let done = std::mem::take(&mut registered.done);
        let mut found = false;
        for known in registered.known.iter().filter(|known| done.contains(&known.gpu.uuid)) {
            match self.alone(known) {
                Ok(told) => self.pass_on(&told, &registered.known),
                Err(NvmlError::GpuLost) => {
                    found = true;
                    tracing::warn!(gpu_uuid = %known.gpu.uuid, "GPU is lost, and would keep NVML from telling events of the others: they are heard without it");
                    registered.lost.insert(known.gpu.uuid.clone());
                }
                Err(_) => {}
            }
        }
        if !found {
            std::thread::sleep(PAUSE);
        }
    }

    /// An event of this GPU that waits already, by a set of its own.
    fn alone(&self, known: &Known) -> Result<Told, NvmlError> {
        let set = self.pulse.during(None, || self.nvml.create_event_set())?;
        let answer = self.pulse.during(Some(&known.key()), || {
            raw::register(&known.device, EventTypes::CRITICAL_XID_ERROR.bits(), &set)?;
            raw::wait(&set, 0)
        });
        self.pulse.during(None, || drop(set));
        answer
    }

    fn pass_on(&self, told: &Told, known: &[Known]) {
        let kind = EventTypes::from_bits_truncate(told.kind);
        if kind.contains(EventTypes::MIG_CONFIG_CHANGE) {
            let _ = self.tell.try_send(Message::LookAgain);
        }
        if !kind.contains(EventTypes::CRITICAL_XID_ERROR) {
            return;
        }
        let Ok(code) = u32::try_from(told.data) else { return };
        // Handles first: a card that fell off the bus does not tell its UUID any more.
        let gpu = known.iter().find(|known| raw::same(&known.device, &told.device)).or_else(|| {
            let uuid = self.pulse.during(None, || told.device.uuid()).ok()?;
            known.iter().find(|known| known.gpu.uuid.as_str() == uuid)
        });
        let mig = gpu.filter(|_| told.gpu_instance != NO_INSTANCE).and_then(|known| {
            let compute = Some(told.compute_instance).filter(|number| *number != NO_INSTANCE);
            instance(known.gpu.instances(), told.gpu_instance, compute)
        });
        let xid = Xid {
            gpu: gpu.map(|known| known.gpu.uuid.clone()),
            mig: mig.map(|mig| mig.uuid.clone()),
            pci_bus_id: gpu.and_then(|known| known.gpu.pci_bus_id.value().cloned()),
            code,
            pid: None,
            pod: None,
            at: monotonic(),
            source: XidSource::Nvml,
        };
        if self.tell.try_send(Message::Event(xid)).is_err() {
            self.reporter.trouble(ErrorCounter::QueueFull);
        }
    }
}

impl Registered {
    /// Takes a new list; registers what is new in it.
    fn renew(&mut self, known: Vec<Known>, set: &EventSet<'static>, pulse: &Heartbeat) {
        self.known = known;
        let still = |uuid: &GpuUuid| self.known.iter().any(|known| known.gpu.uuid == *uuid);
        self.done.retain(|uuid| still(uuid));
        self.refused.retain(|uuid| still(uuid));
        self.lost.retain(|uuid| still(uuid));
        self.retry(set, pulse, false);
    }

    /// Registers the GPUs that are not in the set yet, each for what it offers; those that were lost only `with_lost`.
    fn retry(&mut self, set: &EventSet<'static>, pulse: &Heartbeat, with_lost: bool) {
        let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::MIG_CONFIG_CHANGE;
        for known in &self.known {
            let (uuid, gpu) = (&known.gpu.uuid, known.key());
            if self.done.contains(uuid) || (self.lost.contains(uuid) && !with_lost) {
                continue;
            }
            let kinds =
                pulse.during(Some(&gpu), || known.device.supported_event_types()).map(|offered| offered & wanted);
            // One that does not tell what it offers is asked for the one thing that matters.
            let kinds = kinds.unwrap_or(EventTypes::CRITICAL_XID_ERROR);
            let answer = if kinds.is_empty() {
                Err(NvmlError::NotSupported)
            } else {
                pulse.during(Some(&gpu), || raw::register(&known.device, kinds.bits(), set))
            };
            match answer {
                Ok(()) => {
                    if self.lost.remove(uuid) {
                        tracing::info!(gpu_uuid = %uuid, "GPU answers again, its events are heard");
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
