//! The heartbeat of a thread that calls NVML: every call is between two beats, so that one that does not return is seen
//! from outside, and a poller that was given up notices when it returns after all.

use crate::clock::monotonic;
use crate::nvml::absence::reason;
use model::Absence;
use model::time::Monotonic;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Low bits of the beat: the GPU's index plus one, or 0 for a call that is about no GPU. 64 GPUs need 7 bits.
const GPU_BITS: u32 = 8;

/// Shared by one poller, or the event thread, and the supervisor.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// 0 between calls; else milliseconds since boot, plus one, when the call began, above [`GPU_BITS`] of its GPU.
    beat: AtomicU64,
    /// The poller has been replaced, or the program stops: no further call, and away.
    dismissed: AtomicBool,
    /// Somebody saw a sign that the list of GPUs has changed.
    look_again: AtomicBool,
    /// Indices of the GPUs that are left alone because a call to them hangs in another poller.
    skipped: Mutex<BTreeSet<u32>>,
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// The index of the GPU it is about, if it is about one.
    pub(super) gpu: Option<u32>,
}

impl Pulse {
    /// For a poller that leaves these GPUs alone.
    pub(super) fn skipping(skipped: BTreeSet<u32>) -> Self {
        Pulse { skipped: Mutex::new(skipped), ..Pulse::default() }
    }

    /// Makes one call to NVML. A dismissed poller makes none.
    pub(super) fn call<T>(&self, gpu: Option<u32>, call: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Absence> {
        if self.dismissed() {
            return Err(Absence::CallHangs);
        }
        self.during(gpu, call).map_err(reason)
    }

    /// Does something that may not return.
    pub(super) fn during<T>(&self, gpu: Option<u32>, work: impl FnOnce() -> T) -> T {
        let began = monotonic().0 / 1_000_000 + 1;
        let place = gpu.map_or(0, |index| u64::from(index.saturating_add(1)) & ((1 << GPU_BITS) - 1));
        self.beat.store(began << GPU_BITS | place, Ordering::Release);
        let answer = work();
        self.beat.store(0, Ordering::Release);
        answer
    }

    /// The call that began more than `hang_after` ago and has not returned.
    pub(super) fn stuck(&self, now: Monotonic, hang_after: Duration) -> Option<Stuck> {
        let beat = self.beat.load(Ordering::Acquire);
        if beat == 0 {
            return None;
        }
        let began = Monotonic(((beat >> GPU_BITS) - 1).saturating_mul(1_000_000));
        let index = u32::try_from(beat & ((1 << GPU_BITS) - 1)).unwrap_or(0);
        (now.since(began) > hang_after).then(|| Stuck { gpu: index.checked_sub(1) })
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
    pub(super) fn skips(&self, index: u32) -> bool {
        self.skipped.lock().contains(&index)
    }

    /// Whether any GPU is left alone, that is, whether another thread is inside the library for good.
    pub(super) fn skips_any(&self) -> bool {
        !self.skipped.lock().is_empty()
    }

    /// The call to this GPU has returned after all.
    pub(super) fn no_longer_skip(&self, index: u32) {
        self.skipped.lock().remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_while_it_lasts_and_with_its_gpu() {
        let pulse = Pulse::default();
        let later = |seconds| monotonic().after(Duration::from_secs(seconds));
        for gpu in [None, Some(0), Some(63)] {
            let seen = pulse.call(gpu, || {
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
