//! The use of a GPU by each process, as the driver's mean since the last process list.
//!
//! `nvml.h` does not say whether the number for a process is its newest sample or the mean since the given timestamp. `man
//! nvidia-smi` says that it is a mean, and so it is on a real GPU (`tests/gpu/runs`: a load of 50 % reads 44 to 56 over five
//! seconds). The call takes 2 to 3.5 ms of CPU time, so it is made once for each list, and not at all while the GPU is idle.
//!
//! What must never happen here: an impossible number from the driver taken for a measurement; processes that together
//! use more than the GPU reports for itself.

use crate::nvml::absence::{INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND};
use crate::nvml::polled_gpu::{GpuPart, OwnUse, PARTS, PolledGpu};
use crate::nvml::utilization;
use model::physical_range::{ImplausibleValue, PhysicalRange};
use model::process::MAX_GPU_PROCESSES;
use model::time::{Monotonic, Now, WallTime};
use model::unit::Percent;
use model::{Absence, Reading};
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A list that comes early, after a jump of memory, keeps the last measured use: over a shorter time than this, a busy
/// process may have no new sample and would look idle.
const SHORTEST_WINDOW: Duration = Duration::from_secs(2);
/// The longest time, in microseconds, that one sample of NVML covers: `nvml.h` says a sixth of a second to one second.
const LONGEST_REFRESH: u64 = 1_000_000;
/// Maximum number of samples of one answer that are used: eight for each process that can be listed.
const MAX_SAMPLES: usize = 8 * MAX_GPU_PROCESSES;

/// The use of one process, as means over the time since the last list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    pub(super) sm: Reading<Percent>,
    pub(super) encoder: Reading<Percent>,
    pub(super) decoder: Reading<Percent>,
}

impl Use {
    pub(super) fn absent(why: Absence) -> Self {
        Use { sm: Reading::Absent(why), encoder: Reading::Absent(why), decoder: Reading::Absent(why) }
    }

    /// The use of a process that did nothing.
    pub(super) fn idle(at: Monotonic) -> Self {
        Use::measured([0.0; PARTS], at)
    }

    fn measured([sm, encoder, decoder]: [f64; PARTS], at: Monotonic) -> Self {
        let reading = |percent| Reading::Measured(Percent(percent), at);
        Use { sm: reading(sm), encoder: reading(encoder), decoder: reading(decoder) }
    }
}

/// The uses for a process list.
#[derive(Debug)]
pub(super) enum Uses {
    /// The list comes early: the last uses stay valid.
    Early,
    /// NVML does not report uses.
    Absent(Absence),
    /// The use of each process with a sample, and the timestamp of its newest sample; a process without a sample did nothing.
    Measured(BTreeMap<u32, (Use, Option<WallTime>)>, Monotonic),
}

/// State of one GPU between two lists.
#[derive(Debug, Default)]
pub(super) struct UseMeter {
    /// NVML's timestamp up to which samples have been counted, in microseconds; 0 before the first list.
    counted: u64,
    /// NVML's timestamp of the newest sample of a process.
    newest: Option<u64>,
    /// When the last list got its uses.
    taken: Option<Monotonic>,
}

/// One answer of the driver.
#[derive(Debug, Default)]
struct ProcessShares {
    /// Sums of the shares of each process, their number, and the newest timestamp.
    sums: BTreeMap<u32, ([f64; PARTS], u32, u64)>,
    /// Processes with an impossible share.
    dropped: BTreeSet<u32>,
    implausible: Vec<ImplausibleValue>,
}

impl Uses {
    /// Whether a process that is not `known` used the GPU.
    pub(super) fn has_unknown_process(&self, known: impl Fn(u32) -> bool) -> bool {
        matches!(self, Uses::Measured(all, _) if all.keys().any(|pid| !known(*pid)))
    }
}

impl UseMeter {
    /// The newest NVML timestamp of a process that was used.
    pub(super) fn newest(&self) -> Option<WallTime> {
        self.newest.map(WallTime)
    }

    /// Reads the use of each process since the last list. If the GPU reports that it did nothing, its processes are not
    /// read.
    pub(super) fn read(&mut self, gpu: &mut PolledGpu, now: Now) -> Uses {
        if self.taken.is_some_and(|at| now.monotonic.since(at) < SHORTEST_WINDOW) {
            return Uses::Early;
        }
        self.taken = Some(now.monotonic);
        let latest = gpu.skew.latest(now);
        let one_refresh_ago = now.wall.0.saturating_sub(LONGEST_REFRESH);
        if self.counted == 0 || self.counted > latest {
            // For the first list, and after the clock was set back, do not read NVML's buffer from its start.
            self.counted = one_refresh_ago;
        }
        let since = self.counted;
        let mean = utilization::mean_since(gpu, since, latest);
        let now_shown = [gpu.sample.utilization, gpu.sample.encoder, gpu.sample.decoder];
        let held = gpu.own.each_mut().map(OwnUse::take);
        let mut own: [Option<f64>; PARTS] =
            std::array::from_fn(|part| held[part].or(now_shown[part].get().map(|percent| percent.0)));
        own[GpuPart::Whole as usize] = mean.as_ref().ok().map(|mean| mean.percent).or(own[GpuPart::Whole as usize]);
        // If the sample buffer could not be read, the next window begins `LONGEST_REFRESH` ago: the newest sample may cover this
        // time.
        self.counted = mean.map_or(one_refresh_ago, |mean| mean.newest).max(since);
        if own.iter().all(|part| *part == Some(0.0)) {
            return Uses::Measured(BTreeMap::new(), now.monotonic);
        }
        let device = &gpu.known.device;
        let mut answer = gpu.asker.ask("process utilization", || device.process_utilization_stats(since));
        if answer.as_ref().err() == Some(&INSUFFICIENT_SIZE) {
            answer = gpu.asker.ask("process utilization", || device.process_utilization_stats(since));
        }
        let shares = match answer {
            Ok(samples) => ProcessShares::of(&samples, (since, latest)),
            // The driver has no sample of a process that did nothing.
            Err(NOT_FOUND | NO_DATA) => ProcessShares::default(),
            Err(why) => return Uses::Absent(gpu.under_mig(why)),
        };
        shares.implausible.iter().for_each(|value| gpu.asker.count_implausible(*value));
        self.newest = shares.sums.values().map(|(_, _, stamp)| *stamp).max().or(self.newest);
        Uses::Measured(shares.uses(own, now.monotonic), now.monotonic)
    }
}

impl ProcessShares {
    /// The samples with stamps after `since` and up to `latest`. A sample with an impossible share is dropped with all its
    /// parts, and with it the use of its process.
    fn of(samples: &[ProcessUtilizationSample], (since, latest): (u64, u64)) -> ProcessShares {
        let mut shares = ProcessShares::default();
        let new = samples.iter().filter(|sample| sample.timestamp > since && sample.timestamp <= latest);
        for sample in new.take(MAX_SAMPLES) {
            let all = [sample.sm_util, sample.mem_util, sample.enc_util, sample.dec_util];
            let outside = |share: u32| PhysicalRange::PROCESS_USE.check(Percent(share.into())).err();
            if let Some(value) = all.into_iter().find_map(outside) {
                if shares.dropped.insert(sample.pid) {
                    shares.implausible.push(value);
                }
                continue;
            }
            let (sums, count, newest) = shares.sums.entry(sample.pid).or_default();
            for (sum, share) in sums.iter_mut().zip([sample.sm_util, sample.enc_util, sample.dec_util]) {
                *sum += f64::from(share);
            }
            *count += 1;
            *newest = (*newest).max(sample.timestamp);
        }
        shares.sums.retain(|pid, _| !shares.dropped.contains(pid));
        shares
    }

    /// The use of each process, scaled down to the GPU's own use of each part.
    fn uses(&self, own: [Option<f64>; PARTS], at: Monotonic) -> BTreeMap<u32, (Use, Option<WallTime>)> {
        let means: BTreeMap<u32, [f64; PARTS]> =
            self.sums.iter().map(|(pid, (sums, count, _))| (*pid, sums.map(|sum| sum / f64::from(*count)))).collect();
        let total =
            means.values().fold([0.0; PARTS], |sum, shares| std::array::from_fn(|part| sum[part] + shares[part]));
        let factor: [f64; PARTS] = std::array::from_fn(|part| factor(total[part], own[part]));
        let mut uses: BTreeMap<u32, (Use, Option<WallTime>)> =
            self.dropped.iter().map(|pid| (*pid, (Use::absent(Absence::Implausible), None))).collect();
        uses.extend(means.iter().map(|(pid, shares)| {
            let scaled = std::array::from_fn(|part| shares[part] * factor[part]);
            let newest = self.sums.get(pid).map(|(_, _, stamp)| WallTime(*stamp));
            (*pid, (Use::measured(scaled, at), newest))
        }));
        uses
    }
}

/// The factor for the processes' shares, so that together they do not exceed the GPU's own use. If that is unknown or
/// larger, the shares stay as they are: other processes, unknown to the agent, may use the GPU.
fn factor(total: f64, own: Option<f64>) -> f64 {
    own.filter(|own| total > *own).map_or(1.0, |own| own / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn sample(pid: u32, tenths: u64, sm_util: u32) -> ProcessUtilizationSample {
        ProcessUtilizationSample {
            pid,
            timestamp: tenths * SECOND / 10,
            sm_util,
            mem_util: 0,
            enc_util: 0,
            dec_util: 0,
        }
    }

    #[test]
    fn the_factor_scales_shares_down_to_the_use_of_the_gpu_and_never_up() {
        for (total, own, expected) in [
            (200.0, Some(100.0), 0.5),
            (100.0, Some(4.0), 0.04),
            (30.0, Some(60.0), 1.0),
            (30.0, Some(0.0), 0.0),
            (0.0, Some(0.0), 1.0),
            (150.0, None, 1.0),
        ] {
            assert!((factor(total, own) - expected).abs() < 1e-9, "{total} of {own:?}");
        }
    }

    #[test]
    fn a_process_with_an_impossible_share_has_no_use_and_old_samples_do_not_count() {
        let garbage = ProcessUtilizationSample { enc_util: 4_000_000_000, ..sample(9, 15, 3) };
        let answer =
            [sample(7, 20, 40), sample(8, 15, 101), garbage, sample(7, 10, 90), sample(9, 20, 5), sample(6, 99, 1)];
        let shares = ProcessShares::of(&answer, (SECOND, 9 * SECOND));
        assert_eq!(shares.implausible.len(), 2, "once for each process");
        let uses = shares.uses([None; PARTS], Monotonic(1));
        let shown = |pid: u32| uses.get(&pid).map(|(its, newest)| (its.sm.get().map(|sm| sm.0), newest.map(|at| at.0)));
        assert_eq!([6, 7].map(shown), [None, Some((Some(40.0), Some(2_000_000)))]);
        for pid in [8, 9] {
            assert_eq!(uses[&pid].0.sm.absence(), Some(Absence::Implausible), "{pid}");
        }
    }

    #[test]
    fn the_number_of_samples_is_bounded() {
        let flood: Vec<_> = (1..20_000).map(|pid| sample(pid, u64::from(pid), 5)).collect();
        assert_eq!(ProcessShares::of(&flood, (0, u64::MAX)).sums.len(), MAX_SAMPLES);
    }
}
