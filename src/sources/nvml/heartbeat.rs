//! The heartbeat of a thread that calls NVML. Every call is made between two beats, so the supervisor sees a call that
//! does not return. When such a call returns after all, its poller learns from the heartbeat that it was replaced.

use crate::nvml::absence::reason;
use crate::nvml::settings::DriverPatience;
use clock::monotonic;
use model::Absence;
use model::id::GpuUuid;
use model::time::Monotonic;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The state that the supervisor shares with one poller or the event thread.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// The call in progress.
    call: Mutex<Option<Call>>,
    /// When the last call that has returned began.
    answered: Mutex<Option<Monotonic>>,
    /// The poller has been replaced, or the agent stops: the thread makes no further call and ends.
    dismissed: AtomicBool,
    /// The list of GPUs may have changed.
    inventory_requested: AtomicBool,
    /// GPUs that this poller skips because a call to them hangs in another poller.
    skipped: Mutex<BTreeSet<GpuKey>>,
}

/// How a GPU is identified between calls. Its index is not used: NVML renumbers GPUs when one leaves the bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GpuKey {
    Uuid(GpuUuid),
    /// A GPU whose UUID has not been read yet has only its index.
    Index(u32),
}

#[derive(Debug)]
struct Call {
    began: Monotonic,
    gpu: Option<GpuKey>,
    /// The call opens the library, which may take longer than other calls.
    opens: bool,
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// The GPU that the call is about, if any.
    pub(super) gpu: Option<GpuKey>,
    /// The call hangs; otherwise it only stalls.
    pub(super) hangs: bool,
}

impl Heartbeat {
    /// The heartbeat of a poller that skips these GPUs.
    pub(super) fn skipping(skipped: BTreeSet<GpuKey>) -> Self {
        Heartbeat { skipped: Mutex::new(skipped), ..Heartbeat::default() }
    }

    /// Makes one call to NVML. A dismissed poller makes no calls.
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

    /// Runs work that may not return.
    pub(super) fn during<T>(&self, gpu: Option<&GpuKey>, work: impl FnOnce() -> T) -> T {
        self.beat(Call { began: monotonic(), gpu: gpu.cloned(), opens: false }, work)
    }

    /// Opens the library. A dismissed poller does not.
    pub(super) fn open<T>(&self, open: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Absence> {
        if self.dismissed() {
            return Err(Absence::CallHangs);
        }
        self.beat(Call { began: monotonic(), gpu: None, opens: true }, open).map_err(reason)
    }

    fn beat<T>(&self, call: Call, work: impl FnOnce() -> T) -> T {
        let began = call.began;
        *self.call.lock() = Some(call);
        let answer = work();
        *self.call.lock() = None;
        *self.answered.lock() = Some(began);
        answer
    }

    /// When the last call that has returned began.
    pub(super) fn answered(&self) -> Option<Monotonic> {
        *self.answered.lock()
    }

    /// When the call in progress began.
    pub(super) fn began(&self) -> Option<Monotonic> {
        self.call.lock().as_ref().map(|call| call.began)
    }

    /// Sets the state as if a call that began at that time had returned.
    #[cfg(test)]
    pub(super) fn was_answered(&self, began: Monotonic) {
        *self.answered.lock() = Some(began);
    }

    /// The call that has not returned in time.
    pub(super) fn stuck(&self, now: Monotonic, patience: &DriverPatience) -> Option<Stuck> {
        let call = self.call.lock();
        let call = call.as_ref().filter(|call| now.since(call.began) > patience.absent_after)?;
        let hangs_after = if call.opens { patience.open_hangs_after } else { patience.hang_after };
        Some(Stuck { gpu: call.gpu.clone(), hangs: now.since(call.began) > hangs_after })
    }

    /// Whether a call has been in progress for longer than this.
    pub(super) fn silent_for(&self, now: Monotonic, long: Duration) -> bool {
        self.call.lock().as_ref().is_some_and(|call| now.since(call.began) > long)
    }

    /// Forbids further calls.
    pub(super) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::Release);
    }

    /// Whether the thread must end.
    pub(super) fn dismissed(&self) -> bool {
        self.dismissed.load(Ordering::Acquire)
    }

    /// Requests a new inventory of GPUs in the next round.
    pub(super) fn request_inventory(&self) {
        self.inventory_requested.store(true, Ordering::Release);
    }

    /// Whether a new inventory was requested since this was last called.
    pub(super) fn take_inventory_request(&self) -> bool {
        self.inventory_requested.swap(false, Ordering::AcqRel)
    }

    /// Whether this GPU is skipped.
    pub(super) fn skips(&self, gpu: &GpuKey) -> bool {
        self.skipped.lock().contains(gpu)
    }

    /// Whether any GPU is skipped, that is, whether another thread hangs inside the library.
    pub(super) fn skips_any(&self) -> bool {
        !self.skipped.lock().is_empty()
    }

    /// Whether a GPU is skipped that is known only by its index.
    pub(super) fn skips_an_index(&self) -> bool {
        self.skipped.lock().iter().any(|gpu| matches!(gpu, GpuKey::Index(_)))
    }

    /// Stops skipping this GPU: the call to it has returned after all.
    pub(super) fn no_longer_skip(&self, gpu: &GpuKey) {
        self.skipped.lock().remove(gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdue_call_is_reported_with_its_gpu_while_it_lasts() {
        let (heartbeat, patience) = (Heartbeat::default(), DriverPatience::default());
        let stuck = |seconds| heartbeat.stuck(monotonic().after(Duration::from_secs(seconds)), &patience);
        let named = GpuKey::Uuid(GpuUuid::parse("GPU-a").unwrap());
        for gpu in [None, Some(GpuKey::Index(0)), Some(named)] {
            let seen = heartbeat.call(gpu.as_ref(), || Ok([0, 3, 20, 31].map(stuck)));
            let [none, stalls, still, hangs] = seen.unwrap();
            assert_eq!(none, None, "not before two seconds");
            assert_eq!((stalls.clone(), still), (Some(Stuck { gpu: gpu.clone(), hangs: false }), stalls));
            assert_eq!(hangs, Some(Stuck { gpu, hangs: true }), "after thirty");
            assert_eq!(stuck(31), None, "between calls nothing hangs");
        }
        let opening = heartbeat.open(|| Ok([3, 50, 61].map(|seconds| stuck(seconds).map(|stuck| stuck.hangs))));
        assert_eq!(opening, Ok([Some(false), Some(false), Some(true)]), "opening the library may take a minute");
    }

    #[test]
    fn a_dismissed_poller_makes_no_call() {
        let heartbeat = Heartbeat::default();
        heartbeat.dismiss();
        assert_eq!(heartbeat.call(None, || -> Result<(), _> { panic!("called") }), Err(Absence::CallHangs));
        assert_eq!(heartbeat.open(|| -> Result<(), _> { panic!("opened") }), Err(Absence::CallHangs));
    }
}
