//! The thread that waits for NVML's events: XIDs, and changes of the MIG layout. Every call it makes is under the heartbeat
//! of [`Pulse`], so that the supervisor sees one that does not return.

use crate::clock::monotonic;
use crate::nvml::absence::reason;
use crate::nvml::inventory::Known;
use crate::nvml::message::Message;
use crate::nvml::pulse::Pulse;
use crate::nvml::raw::{self, Told};
use crate::nvml::xid::instance;
use crate::report::Reporter;
use model::gpu::{Xid, XidSource};
use model::id::GpuUuid;
use model::observation::Trouble;
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
/// `NVML_…INSTANCE_ID` where there is none.
const NO_INSTANCE: u32 = u32::MAX;

/// The state of the thread.
pub(super) struct Events {
    pub(super) nvml: &'static Nvml,
    /// New lists of GPUs.
    pub(super) lists: Receiver<Vec<Known>>,
    pub(super) tell: SyncSender<Message>,
    pub(super) reporter: Reporter,
    pub(super) pulse: Arc<Pulse>,
    pub(super) stop: CancellationToken,
}

/// GPUs whose events are in the set, and those that refused.
#[derive(Debug, Default)]
struct Registered {
    known: Vec<Known>,
    done: BTreeSet<GpuUuid>,
    refused: BTreeSet<GpuUuid>,
}

impl Events {
    /// Waits until `stop`, or until nobody has a list of GPUs for this thread any more.
    pub(super) fn run(self) {
        self.listen();
        // The set is gone by now, so the library may be closed.
        let _ = self.tell.try_send(Message::EventsLeft);
    }

    fn listen(&self) {
        match self.pulse.during(None, || self.nvml.create_event_set()) {
            Ok(set) => {
                self.hear(&set);
                self.pulse.during(None, || drop(set));
            }
            Err(error) => {
                self.reporter.trouble(Trouble::NvmlFailed);
                tracing::warn!(%error, "NVML gives no event set, so XIDs come from the kernel log only");
            }
        }
    }

    fn hear(&self, set: &EventSet<'static>) {
        let mut registered = Registered::default();
        let mut failing = false;
        while !self.stop.is_cancelled() {
            loop {
                match self.lists.try_recv() {
                    Ok(known) => registered.renew(known, set, &self.pulse),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if registered.done.is_empty() {
                // NVML refuses to wait on an empty set.
                match self.lists.recv_timeout(PAUSE) {
                    Ok(known) => registered.renew(known, set, &self.pulse),
                    Err(RecvTimeoutError::Timeout) => registered.retry(set, &self.pulse),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                continue;
            }
            match self.pulse.during(None, || raw::wait(set, WAIT_MS)) {
                Ok(told) => {
                    failing = false;
                    self.pass_on(&told, &registered.known);
                }
                Err(NvmlError::Timeout) => failing = false,
                Err(error) => {
                    self.reporter.trouble(Trouble::NvmlFailed);
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "waiting for NVML's events failed, said once");
                    }
                    let _ = self.tell.try_send(Message::LookAgain);
                    std::thread::sleep(PAUSE);
                }
            }
        }
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
            self.reporter.trouble(Trouble::QueueFull);
        }
    }
}

impl Registered {
    /// Takes a new list; registers what is new in it.
    fn renew(&mut self, known: Vec<Known>, set: &EventSet<'static>, pulse: &Pulse) {
        self.known = known;
        let still = |uuid: &GpuUuid| self.known.iter().any(|known| known.gpu.uuid == *uuid);
        self.done.retain(|uuid| still(uuid));
        self.refused.retain(|uuid| still(uuid));
        self.retry(set, pulse);
    }

    /// Registers the GPUs that are not in the set yet, each for what it offers.
    fn retry(&mut self, set: &EventSet<'static>, pulse: &Pulse) {
        let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::MIG_CONFIG_CHANGE;
        for known in &self.known {
            let (uuid, gpu) = (&known.gpu.uuid, known.key());
            if self.done.contains(uuid) {
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
                    self.refused.remove(uuid);
                    self.done.insert(uuid.clone());
                }
                Err(error) => {
                    if self.refused.insert(uuid.clone()) {
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
