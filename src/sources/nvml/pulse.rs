//! The heartbeat of a thread that calls NVML: every call is between two beats, so that one that does not return is seen
//! from outside, and a poller that was given up notices when it returns after all.

use crate::clock::monotonic;
use crate::nvml::absence::reason;
use model::Absence;
use model::id::GpuUuid;
use model::time::Monotonic;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shared by one poller, or the event thread, and the supervisor.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The call that is being made.
    call: Mutex<Option<Call>>,
    /// The poller has been replaced, or the program stops: no further call, and away.
    dismissed: AtomicBool,
    /// Somebody saw a sign that the list of GPUs has changed.
    look_again: AtomicBool,
    /// GPUs that are left alone because a call to them hangs in another poller.
    skipped: Mutex<BTreeSet<GpuKey>>,
}

/// How a GPU is named from one call to the next. Its index is no name: NVML counts anew when another GPU leaves the bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GpuKey {
    Uuid(GpuUuid),
    /// One whose UUID has not been read yet has only its index.
    Index(u32),
}

#[derive(Debug)]
struct Call {
    began: Monotonic,
    gpu: Option<GpuKey>,
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// The GPU it is about, if it is about one.
    pub(super) gpu: Option<GpuKey>,
}

impl Pulse {
    /// For a poller that leaves these GPUs alone.
    pub(super) fn skipping(skipped: BTreeSet<GpuKey>) -> Self {
        Pulse { skipped: Mutex::new(skipped), ..Pulse::default() }
    }

    /// Makes one call to NVML. A dismissed poller makes none.
    pub(super) fn call<T>(
        &self,
        gpu: Option<&GpuKey>,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        if self.dismissed() {
            return Err(Absence::CallHangs);
        }
        self.during(gpu, call).map_err(reason)
    }

    /// Does something that may not return.
    pub(super) fn during<T>(&self, gpu: Option<&GpuKey>, work: impl FnOnce() -> T) -> T {
        *self.call.lock() = Some(Call { began: monotonic(), gpu: gpu.cloned() });
        let answer = work();
        *self.call.lock() = None;
        answer
    }

    /// The call that began more than `hang_after` ago and has not returned.
    pub(super) fn stuck(&self, now: Monotonic, hang_after: Duration) -> Option<Stuck> {
        let call = self.call.lock();
        let call = call.as_ref().filter(|call| now.since(call.began) > hang_after)?;
        Some(Stuck { gpu: call.gpu.clone() })
    }

    /// No further calls, please.
    pub(super) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::Release);
    }

    /// Whether the poller is to end.
    pub(super) fn dismissed(&self) -> bool {
        self.dismissed.load(Ordering::Acquire)
    }

    /// Asks for a look at the list of GPUs in the next round.
    pub(super) fn look_again(&self) {
        self.look_again.store(true, Ordering::Release);
    }

    /// Whether somebody asked since the last time.
    pub(super) fn take_look_again(&self) -> bool {
        self.look_again.swap(false, Ordering::AcqRel)
    }

    /// Whether this GPU is left alone.
    pub(super) fn skips(&self, gpu: &GpuKey) -> bool {
        self.skipped.lock().contains(gpu)
    }

    /// Whether any GPU is left alone, that is, whether another thread is inside the library for good.
    pub(super) fn skips_any(&self) -> bool {
        !self.skipped.lock().is_empty()
    }

    /// Whether a GPU is left alone of which only the index is known.
    pub(super) fn skips_an_index(&self) -> bool {
        self.skipped.lock().iter().any(|gpu| matches!(gpu, GpuKey::Index(_)))
    }

    /// The call to this GPU has returned after all.
    pub(super) fn no_longer_skip(&self, gpu: &GpuKey) {
        self.skipped.lock().remove(gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_while_it_lasts_and_with_its_gpu() {
        let pulse = Pulse::default();
        let later = |seconds| monotonic().after(Duration::from_secs(seconds));
        let named = GpuKey::Uuid(GpuUuid::parse("GPU-a").unwrap());
        for gpu in [None, Some(GpuKey::Index(0)), Some(named)] {
            let seen = pulse.call(gpu.as_ref(), || {
                assert_eq!(pulse.stuck(monotonic(), Duration::from_secs(2)), None);
                Ok(pulse.stuck(later(3), Duration::from_secs(2)))
            });
            assert_eq!(seen, Ok(Some(Stuck { gpu })));
            assert_eq!(pulse.stuck(later(3), Duration::from_secs(2)), None, "between calls nothing hangs");
        }
    }

    #[test]
    fn a_dismissed_poller_makes_no_call() {
        let pulse = Pulse::default();
        pulse.dismiss();
        assert_eq!(pulse.call(None, || -> Result<(), _> { panic!("called") }), Err(Absence::CallHangs));
    }
}
