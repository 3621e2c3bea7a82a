//! One GPU while it is polled: its handles, what was last read of it, and what it has refused to answer.

use crate::clock::monotonic;
use crate::nvml::absence::{lasting, ordinary};
use crate::nvml::inventory::Known;
use crate::nvml::pulse::Pulse;
use crate::report::Reporter;
use model::Absence;
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::observation::Trouble;
use model::time::Monotonic;
use nvml_wrapper::GpmSample;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A call that was refused for good (not supported, not in this driver, no permission) is not made again before this.
const REFUSAL_LASTS: Duration = Duration::from_secs(60);

/// Sample buffers that are read: GPU, memory, encoder, decoder.
pub(super) const BUFFERS: usize = 4;

/// Asks one GPU, remembers refusals, and says each kind of failure once.
#[derive(Debug)]
pub(super) struct Asker {
    pulse: Arc<Pulse>,
    reporter: Reporter,
    uuid: GpuUuid,
    index: u32,
    answers: BTreeMap<&'static str, Refusal>,
    lost: bool,
}

/// What a call answered last when it was not a value. There are at most as many as calls in this room, some thirty.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    why: Absence,
    at: Monotonic,
}

impl Asker {
    pub(super) fn new(pulse: Arc<Pulse>, reporter: Reporter, known: &Known) -> Self {
        let (uuid, index) = (known.gpu.uuid.clone(), known.gpu.index);
        Asker { pulse, reporter, uuid, index, answers: BTreeMap::new(), lost: false }
    }

    /// NVML may have given it another index.
    pub(super) fn renumber(&mut self, index: u32) {
        self.index = index;
    }

    /// Makes the call named `name`, unless it was refused lately.
    pub(super) fn ask<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        let now = monotonic();
        let before = self.answers.get(name).copied();
        if let Some(refusal) = before
            && lasting(refusal.why)
            && now.since(refusal.at) < REFUSAL_LASTS
        {
            return Err(refusal.why);
        }
        match self.pulse.call(Some(self.index), call) {
            Ok(value) => {
                if before.is_some() {
                    self.answers.remove(name);
                }
                Ok(value)
            }
            Err(why) => {
                self.refused(name, why, before);
                Err(why)
            }
        }
    }

    /// Makes a call whose refusals are part of its answer.
    pub(super) fn plain<T>(&self, call: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Absence> {
        self.pulse.call(Some(self.index), call)
    }

    fn refused(&mut self, call: &'static str, why: Absence, before: Option<Refusal>) {
        self.lost |= why == Absence::GpuLost;
        self.answers.insert(call, Refusal { why, at: monotonic() });
        let said = before.is_some_and(|refusal| refusal.why == why);
        if ordinary(why) {
            if !said {
                tracing::debug!(gpu_uuid = %self.uuid, call, reason = %why, "NVML has no such value of this GPU");
            }
        } else {
            self.reporter.trouble(Trouble::NvmlFailed);
            if !said {
                tracing::warn!(gpu_uuid = %self.uuid, call, reason = %why, "NVML call failed, said once");
            }
        }
    }

    /// Whether a call has answered since the last time that the GPU is lost.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Forgets refusals: the GPU was away and may be another one in what it can do.
    pub(super) fn forget(&mut self) {
        self.answers.clear();
    }
}

/// One GPU.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) known: Known,
    pub(super) asker: Asker,
    /// All readings, each of its own time.
    pub(super) sample: GpuSample,
    /// NVML's newest stamp in each sample buffer that is read, in its microseconds; 0 before the first.
    pub(super) stamps: [u64; BUFFERS],
    /// The last sample of the profiling unit: of the whole GPU, and of each MIG instance.
    pub(super) gpm: Option<GpmSample<'static>>,
    pub(super) gpm_mig: BTreeMap<GpuUuid, GpmSample<'static>>,
}

impl Card {
    pub(super) fn new(known: Known, asker: Asker) -> Self {
        let (gpm, gpm_mig) = (None, BTreeMap::new());
        Card { known, asker, sample: GpuSample::default(), stamps: [0; BUFFERS], gpm, gpm_mig }
    }

    /// Whether MIG is on, in which case much is not readable.
    pub(super) fn divided(&self) -> bool {
        self.known.gpu.mig_mode.get() == Some(true)
    }

    /// `NotSupported` has a better reason where the same GPU would answer without MIG.
    pub(super) fn under_mig(&self, why: Absence) -> Absence {
        if self.divided() && why == Absence::NotSupported { Absence::MigEnabled } else { why }
    }
}
