//! One GPU while it is polled: its handles, its last readings, and the calls that it has refused.

use crate::nvml::absence::{lasting, ordinary};
use crate::nvml::heartbeat::{GpuKey, Heartbeat};
use crate::nvml::inventory::KnownGpu;
use crate::report::Reporter;
use clock::monotonic;
use model::Absence;
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::observation::ErrorCounter;
use model::physical_range::{ImplausibleValue, PhysicalRange};
use model::sample_value::BaseUnits;
use model::time::{Monotonic, Now};
use model::utilization::{MAX_UTILIZATION_SAMPLES, UtilizationSample, UtilizationSamples};
use nvml_wrapper::GpmSample;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A call that was refused for a lasting reason (not supported, not in this driver, no permission) is not repeated for this
/// long.
const REFUSAL_LASTS: Duration = Duration::from_secs(60);

/// Calls one GPU, remembers refusals, and logs each kind of failure once.
#[derive(Debug)]
pub(super) struct GpuCaller {
    heartbeat: Arc<Heartbeat>,
    reporter: Reporter,
    uuid: GpuUuid,
    key: GpuKey,
    answers: BTreeMap<Call, Refusal>,
    /// NVLink fields that this driver or this GPU does not know, with the reason.
    unknown_link_fields: BTreeMap<u32, Absence>,
    /// Number of values outside the range of their reading since the last sample. A reading whose number was counted for an
    /// earlier sample stays here with 0.
    implausible: BTreeMap<&'static str, u32>,
    lost: bool,
}

/// The error of one field. A driver older than the field reports an invalid argument.
pub(super) fn of_field(error: NvmlError) -> NvmlError {
    if matches!(error, NvmlError::InvalidArg) { NvmlError::FunctionNotFound } else { error }
}

/// The name of a call, and the MIG instance that it reads, if any: each instance refuses calls by itself.
type Call = (&'static str, Option<GpuUuid>);

/// The last answer of a call that gave no value. There is at most one for each call of the NVML source, about thirty,
/// and two for each MIG instance.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    why: Absence,
    /// The call is not repeated for a while after this time; `None`: it is repeated at once.
    at: Option<Monotonic>,
    /// How long the call is not repeated, if the reason lasts.
    lasts: Duration,
}

impl Refusal {
    fn is_valid(&self, now: Monotonic) -> bool {
        lasting(self.why) && self.at.is_some_and(|at| now.since(at) < self.lasts)
    }
}

impl GpuCaller {
    pub(super) fn new(heartbeat: Arc<Heartbeat>, reporter: Reporter, known: &KnownGpu) -> Self {
        let (uuid, key) = (known.gpu.uuid.clone(), known.key());
        GpuCaller {
            heartbeat,
            reporter,
            uuid,
            key,
            answers: BTreeMap::new(),
            unknown_link_fields: BTreeMap::new(),
            implausible: BTreeMap::new(),
            lost: false,
        }
    }

    /// Makes the call named `name`, unless it was refused lately.
    pub(super) fn ask<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        self.make((name, None), call)
    }

    /// Like [`GpuCaller::ask`], for one MIG instance: another instance may answer a call that this instance refuses.
    pub(super) fn ask_instance<T>(
        &mut self,
        name: &'static str,
        instance: &GpuUuid,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        self.make((name, Some(instance.clone())), call)
    }

    fn make<T>(&mut self, of: Call, call: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Absence> {
        let now = monotonic();
        let before = self.answers.get(&of).copied();
        if let Some(refusal) = before.filter(|refusal| refusal.is_valid(now)) {
            return Err(refusal.why);
        }
        match self.heartbeat.call(Some(&self.key), call) {
            Ok(value) => {
                if before.is_some() {
                    self.answers.remove(&of);
                }
                Ok(value)
            }
            Err(why) => {
                self.refused(of, why, before);
                Err(why)
            }
        }
    }

    /// Like [`GpuCaller::ask`], for one field of `nvmlDeviceGetFieldValues`. A field that the driver or the GPU does
    /// not know is not read again until the library is reopened: neither changes while it is loaded.
    pub(super) fn ask_field(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<Result<u64, NvmlError>, NvmlError>,
    ) -> Result<u64, Absence> {
        let mut unknown = false;
        let answer = self.make((name, None), || {
            call()?.map_err(|error| {
                let error = of_field(error);
                unknown = matches!(error, NvmlError::FunctionNotFound | NvmlError::NotSupported);
                error
            })
        });
        if unknown && let Some(refusal) = self.answers.get_mut(&(name, None)) {
            refusal.lasts = Duration::MAX;
        }
        answer
    }

    /// Why an NVLink field is not read any more, until the library is reopened.
    pub(super) fn unknown_link_field(&self, id: u32) -> Option<Absence> {
        self.unknown_link_fields.get(&id).copied()
    }

    /// Records that this driver or this GPU does not know an NVLink field.
    pub(super) fn link_field_is_unknown(&mut self, id: u32, why: Absence) {
        self.unknown_link_fields.insert(id, why);
    }

    /// Makes a call whose errors the caller handles itself.
    pub(super) fn plain<T>(&self, call: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Absence> {
        self.heartbeat.call(Some(&self.key), call)
    }

    fn refused(&mut self, of: Call, why: Absence, before: Option<Refusal>) {
        self.lost |= why == Absence::GpuLost;
        let (call, instance) = (of.0, of.1.as_ref().map(GpuUuid::as_str));
        let already_logged = before.is_some_and(|refusal| refusal.why == why);
        if ordinary(why) {
            if !already_logged {
                tracing::debug!(gpu_uuid = %self.uuid, mig_uuid = instance, call, reason = %why, "NVML does not have this value for this GPU");
            }
        } else {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
            if !already_logged {
                tracing::warn!(gpu_uuid = %self.uuid, mig_uuid = instance, call, reason = %why, "NVML call failed; repeats are only counted");
            }
        }
        self.answers.insert(of, Refusal { why, at: Some(monotonic()), lasts: REFUSAL_LASTS });
    }

    /// The value, if it is in the physical range of its reading. Any other value is counted.
    pub(super) fn within<T: BaseUnits + Copy>(
        &mut self,
        range: PhysicalRange,
        answer: Result<T, Absence>,
    ) -> Result<T, Absence> {
        range.accept(answer, |value| self.count_implausible(value))
    }

    /// Counts a value outside the range of its reading, and logs the first of each reading.
    pub(super) fn count_implausible(&mut self, ImplausibleValue { reading, value }: ImplausibleValue) {
        let first = !self.implausible.contains_key(reading);
        let count = self.implausible.entry(reading).or_default();
        *count = count.saturating_add(1);
        if first {
            tracing::warn!(
                gpu_uuid = %self.uuid, reading, value,
                "the driver reports a value that no GPU can have, so this reading is absent; repeats are only counted"
            );
        }
    }

    /// Reports NVML's own samples of utilisation, which have just been read, to subscribers. A dismissed poller reports nothing.
    pub(super) fn report_utilization(&self, samples: &[UtilizationSample]) {
        let samples = &samples[samples.len().saturating_sub(MAX_UTILIZATION_SAMPLES)..];
        if samples.is_empty() || self.heartbeat.dismissed() {
            return;
        }
        self.reporter.utilization(samples.len(), || UtilizationSamples {
            gpu: self.uuid.clone(),
            read_at: monotonic(),
            samples: samples.to_vec(),
        });
    }

    /// The number of such values by reading, since this was last called.
    pub(super) fn take_implausible(&mut self) -> Vec<(&'static str, u32)> {
        let counts = self.implausible.iter_mut().map(|(reading, count)| (*reading, std::mem::take(count)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether a call has answered "GPU is lost" since this was last called.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Lets calls that were refused for lack of permission be made again in the next round: if a GPU answers nothing
    /// else, that state may pass.
    pub(super) fn ask_permission_again(&mut self) {
        let refused = self.answers.values_mut().filter(|refusal| refusal.why == Absence::NoPermission);
        refused.for_each(|refusal| refusal.at = None);
    }

    /// Forgets the refusals of instances that no longer exist.
    pub(super) fn forget_instances(&mut self, present: impl Fn(&GpuUuid) -> bool) {
        self.answers.retain(|(_, instance), _| instance.as_ref().is_none_or(&present));
    }

    /// Forgets all refusals: the GPU was away, or the library was reopened, so it may answer other calls now.
    pub(super) fn forget(&mut self) {
        self.answers.clear();
        self.unknown_link_fields.clear();
    }
}

/// One GPU and its polling state.
#[derive(Debug)]
pub(super) struct PolledGpu {
    pub(super) known: KnownGpu,
    pub(super) asker: GpuCaller,
    /// All readings, each with its own time.
    pub(super) sample: GpuSample,
    /// Mean use of each part of the GPU since the last process list, from the plain calls.
    pub(super) own: [OwnUse; PARTS],
    /// Whether the wall clock, which NVML uses for its timestamps, was set back.
    pub(super) skew: Skew,
    /// The last GPM samples: of the whole GPU, and of each MIG instance.
    pub(super) gpm: Option<GpmSample<'static>>,
    pub(super) gpm_mig: BTreeMap<GpuUuid, GpmSample<'static>>,
    /// Number of rounds of expensive calls; the most expensive calls are made in every nth round.
    pub(super) rounds: u32,
}

/// A part of the GPU whose use the driver reports, for the whole GPU and for each process.
#[derive(Clone, Copy, Debug)]
pub(super) enum GpuPart {
    Whole = 0,
    Encoder = 1,
    Decoder = 2,
}

/// Number of parts of a GPU: the variants of [`GpuPart`].
pub(super) const PARTS: usize = 3;

const _: () = assert!(GpuPart::Decoder as usize + 1 == PARTS, "each part has its place");

/// Use of a part of the GPU, summed up: percent times seconds, and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnUse {
    busy: f64,
    seconds: f64,
    /// When the last value was added.
    added: Option<Monotonic>,
}

impl OwnUse {
    /// A plain call does not show how long its value was valid. The agent counts it for at most this long, which is the
    /// time between two process lists.
    const LONGEST: Duration = Duration::from_secs(5);

    /// Adds a percentage for the time since the last value was added.
    pub(super) fn hold(&mut self, percent: f64, now: Monotonic) {
        let since = self.added.replace(now).map_or(Duration::ZERO, |added| now.since(added)).min(Self::LONGEST);
        self.busy += percent * since.as_secs_f64();
        self.seconds += since.as_secs_f64();
    }

    /// The mean since this was last called; `None` if there is no value.
    pub(super) fn take(&mut self) -> Option<f64> {
        let mean = (self.seconds > 0.0).then(|| self.busy / self.seconds);
        (self.busy, self.seconds) = (0.0, 0.0);
        mean
    }
}

/// When the wall clock is set back, NVML's buffers hold timestamps in the future. The agent ignores these samples until
/// they have left the buffers. Otherwise one of them would count as the newest, and no sample would be newer until the
/// clock has caught up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skew {
    /// Wall clock minus monotonic clock at the last check, in microseconds.
    offset: Option<i128>,
    back: Option<Monotonic>,
}

impl Skew {
    /// Microseconds: a clock that goes back by less than this is being slewed.
    const STEP: i128 = 2_000_000;
    /// NVML's buffers hold samples of at most this much time.
    const BUFFERED: Duration = Duration::from_secs(120);

    /// Compares the clocks.
    pub(super) fn look(&mut self, now: Now) {
        let offset = i128::from(now.wall.0) - i128::from(now.monotonic.0 / 1000);
        if self.offset.is_some_and(|before| before - offset > Self::STEP) {
            self.back = Some(now.monotonic);
        }
        self.offset = Some(offset);
    }

    /// The latest timestamp that is accepted; no limit if the clock was not set back lately.
    pub(super) fn latest(&self, now: Now) -> u64 {
        match self.back {
            Some(back) if now.monotonic.since(back) < Self::BUFFERED => {
                now.wall.0.saturating_add(u64::try_from(Self::STEP).unwrap_or(0))
            }
            _ => u64::MAX,
        }
    }
}

impl PolledGpu {
    pub(super) fn new(known: KnownGpu, asker: GpuCaller) -> Self {
        let (gpm, gpm_mig) = (None, BTreeMap::new());
        let (sample, own) = (GpuSample::default(), [OwnUse::default(); PARTS]);
        PolledGpu { known, asker, sample, own, skew: Skew::default(), gpm, gpm_mig, rounds: 0 }
    }

    /// Whether MIG is on, in which case many values cannot be read.
    pub(super) fn divided(&self) -> bool {
        self.known.gpu.mig_mode.get() == Some(true)
    }

    /// Replaces `NotSupported` by the better reason `MigEnabled` if MIG is on.
    pub(super) fn under_mig(&self, why: Absence) -> Absence {
        if self.divided() && why == Absence::NotSupported { Absence::MigEnabled } else { why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::WallTime;

    #[test]
    fn a_lasting_refusal_blocks_the_call_for_its_time_and_another_error_does_not() {
        let after = |seconds: u64| Monotonic(0).after(Duration::from_secs(seconds));
        let refusal = |why, lasts| Refusal { why, at: Some(Monotonic(0)), lasts };
        for (why, lasts, seconds, is_valid) in [
            (Absence::NotSupported, REFUSAL_LASTS, 59, true),
            (Absence::NotSupported, REFUSAL_LASTS, 61, false),
            (Absence::NotInThisDriver, Duration::MAX, 1_000_000, true),
            (Absence::Nvml(999), REFUSAL_LASTS, 0, false),
            (Absence::Nvml(999), Duration::MAX, 0, false),
        ] {
            assert_eq!(refusal(why, lasts).is_valid(after(seconds)), is_valid, "{why} after {seconds} s");
        }
    }

    #[test]
    fn the_use_of_a_gpu_is_a_mean_weighted_by_time() {
        let second = |number: u64| Monotonic(number * 1_000_000_000);
        let mut own = OwnUse::default();
        assert_eq!(own.take(), None, "no value yet");
        own.hold(90.0, second(0));
        own.hold(100.0, second(1));
        own.hold(0.0, second(4));
        assert_eq!(own.take(), Some(25.0));
        assert_eq!(own.take(), None, "each time counts once");
        own.hold(50.0, second(5));
        own.hold(10.0, second(100));
        assert_eq!(own.take(), Some((50.0 + 5.0 * 10.0) / 6.0), "an old number holds for a while only");
    }

    #[test]
    fn after_the_clock_was_set_back_later_timestamps_are_ignored_for_a_while() {
        let at = |seconds: u64, wall: u64| Now {
            monotonic: Monotonic(seconds * 1_000_000_000),
            wall: WallTime(wall * 1_000_000),
        };
        let mut skew = Skew::default();
        for now in [at(10, 5000), at(11, 5001), at(12, 9000)] {
            skew.look(now);
            assert_eq!(skew.latest(now), u64::MAX, "a clock that was set forward is harmless");
        }
        skew.look(at(13, 5003));
        assert_eq!(skew.latest(at(13, 5003)), 5_005_000_000);
        skew.look(at(200, 5190));
        assert_eq!(skew.latest(at(200, 5190)), u64::MAX);
    }
}
