//! The use of a GPU by each process: read once a second, and summed up between two process lists.
//!
//! `nvml.h` does not specify whether the number for a process is its newest sample or the mean since the given
//! timestamp; some drivers return the mean. With one read each second the two differ by at most one refresh of NVML's
//! samples. With one read for each process list, every five seconds, the agent would either count a short burst for all
//! five seconds, or count a steady load for one refresh only.
//!
//! What must never happen here: an impossible number from the driver taken for a measurement; processes that together
//! use more than the GPU reports for itself.

use crate::nvml::absence::{INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND};
use crate::nvml::polled_gpu::{BUFFERS, OwnUse, PolledGpu};
use crate::nvml::utilization::Buffer;
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
/// Two samples of one process that are no further apart than this belong to one run, and the later one covers all of
/// the time between them: with a read every second, one refresh may be missed. Any other sample covers one refresh.
const ONE_RUN: u64 = 2 * LONGEST_REFRESH;
/// Most samples kept between two lists: eight for each process that can be listed. The rest of a longer answer is
/// dropped.
const MAX_SAMPLES: usize = 8 * MAX_GPU_PROCESSES;
/// The largest valid share, in percent.
const ALL: u32 = 100;
/// Compute, encoder and decoder, each with its value in a sample.
const PARTS: [(Buffer, Value); 3] =
    [(Buffer::Gpu, |s| s.sm_util), (Buffer::Encoder, |s| s.enc_util), (Buffer::Decoder, |s| s.dec_util)];

type Value = fn(&ProcessUtilizationSample) -> u32;

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
        Use::measured([0.0; 3], at)
    }

    fn measured([sm, encoder, decoder]: [f64; 3], at: Monotonic) -> Self {
        let reading = |percent| Reading::Measured(Percent(percent), at);
        Use { sm: reading(sm), encoder: reading(encoder), decoder: reading(decoder) }
    }
}

/// The uses for a process list.
#[derive(Debug)]
pub(super) enum Uses {
    /// The list comes early: the last uses stay valid.
    Early,
    /// NVML does not report them.
    Absent(Absence),
    /// The use of each process with a sample, and the timestamp of its newest one; a process without a sample did
    /// nothing.
    Measured(BTreeMap<u32, (Use, Option<WallTime>)>, Monotonic),
}

/// State of one GPU between two lists.
#[derive(Debug, Default)]
pub(super) struct UseMeter {
    record: Record,
    /// Each process's newest timestamp before the record began.
    before: BTreeMap<u32, u64>,
    /// The newest NVML timestamp that was used.
    newest: Option<u64>,
    /// Why the last read failed.
    failed: Option<Absence>,
    /// When the last list got its uses.
    taken: Option<Monotonic>,
}

/// NVML's samples since the last list, in order for each process. Timestamps are NVML's, in microseconds.
#[derive(Debug, Default)]
struct Record {
    /// Timestamp at which the record begins.
    from: u64,
    /// Timestamp up to which NVML has been read; 0 before the first read.
    to: u64,
    samples: BTreeMap<u32, Vec<ProcessUtilizationSample>>,
    count: usize,
    /// Processes of which a sample was dropped.
    dropped: BTreeSet<u32>,
}

impl UseMeter {
    /// Reads new samples from NVML. If the GPU reports that it did nothing, its processes are not read.
    pub(super) fn collect(&mut self, gpu: &mut PolledGpu, now: Now) {
        let latest = gpu.skew.latest(now);
        let idle_until = now.wall.0.saturating_sub(LONGEST_REFRESH);
        if self.record.to == 0 || self.record.to > latest {
            // The first read, or the clock was set back: begins with the last sample, not with the start of NVML's
            // buffer.
            self.record = Record { from: idle_until, to: idle_until, ..Record::default() };
            self.before.clear();
            gpu.own = [OwnUse::default(); BUFFERS];
        }
        self.failed = None;
        let from = self.record.to;
        if idle(gpu) {
            self.record.to = from.max(idle_until);
            return;
        }
        let device = &gpu.known.device;
        let mut answer = gpu.asker.ask("process utilization", || device.process_utilization_stats(from));
        if answer.as_ref().err() == Some(&INSUFFICIENT_SIZE) {
            answer = gpu.asker.ask("process utilization", || device.process_utilization_stats(from));
        }
        match answer {
            Ok(samples) => {
                self.record.put(samples, latest).into_iter().for_each(|value| gpu.asker.count_implausible(value));
            }
            // The driver has no sample of a process that did nothing.
            Err(NOT_FOUND | NO_DATA) => {}
            Err(why) => self.failed = Some(gpu.under_mig(why)),
        }
        // Without new samples, the time up to now was idle, except for a sample that is still being made.
        if self.record.to == from {
            self.record.to = from.max(idle_until);
        } else {
            self.newest = Some(self.record.to);
        }
    }

    /// Whether a process that is not `known` used the GPU since the last list.
    pub(super) fn has_unknown_process(&self, known: impl Fn(u32) -> bool) -> bool {
        self.record.samples.keys().any(|pid| !known(*pid))
    }

    /// The newest NVML timestamp that was used.
    pub(super) fn newest(&self) -> Option<WallTime> {
        self.newest.map(WallTime)
    }

    /// The use of each process since the last list; `started` returns when the process with a PID started.
    pub(super) fn take(&mut self, gpu: &mut PolledGpu, started: impl Fn(u32) -> Option<WallTime>, now: Now) -> Uses {
        let since = self.taken.map(|at| now.monotonic.since(at));
        if since.is_some_and(|since| since < SHORTEST_WINDOW) {
            return Uses::Early;
        }
        self.taken = Some(now.monotonic);
        // Time up to here without a sample was idle.
        let until = self.record.to.max(now.wall.0.saturating_sub(LONGEST_REFRESH));
        let length = length(until.saturating_sub(self.record.from), since);
        let own = PARTS.map(|(buffer, _)| gpu.own[buffer as usize].take());
        let next = Record { from: until, to: self.record.to, ..Record::default() };
        let record = std::mem::replace(&mut self.record, next);
        if let Some(why) = self.failed {
            return Uses::Absent(why);
        }
        let shares: BTreeMap<u32, [f64; 3]> = record
            .samples
            .iter()
            .map(|(pid, samples)| {
                let before = self.before.get(pid).copied();
                let window = Window { until, length, before, started: started(*pid) };
                (*pid, PARTS.map(|(_, value)| window.mean(samples, value)))
            })
            .collect();
        let total = shares.values().fold([0.0; 3], |sum, shares| std::array::from_fn(|part| sum[part] + shares[part]));
        let factor: [f64; 3] = std::array::from_fn(|part| factor(total[part], own[part]));
        let newest = |pid: &u32| record.samples.get(pid)?.last().map(|sample| sample.timestamp);
        let at = now.monotonic;
        let mut uses: BTreeMap<u32, (Use, Option<WallTime>)> =
            record.dropped.iter().map(|pid| (*pid, (Use::absent(Absence::Implausible), None))).collect();
        uses.extend(shares.iter().map(|(pid, shares)| {
            let scaled = std::array::from_fn(|part| shares[part] * factor[part]);
            (*pid, (Use::measured(scaled, at), newest(pid).map(WallTime)))
        }));
        self.before.extend(record.samples.keys().filter_map(|pid| Some((*pid, newest(pid)?))));
        self.before.retain(|_, stamp| until.saturating_sub(*stamp) <= ONE_RUN);
        Uses::Measured(uses, at)
    }
}

/// Whether the GPU reports that no part of it did anything.
fn idle(gpu: &PolledGpu) -> bool {
    let sample = &gpu.sample;
    [sample.utilization, sample.encoder, sample.decoder].iter().all(|part| part.get() == Some(Percent(0.0)))
}

/// The length of a window that is `stamped` microseconds long by NVML's timestamps. It is at most the time on the
/// monotonic clock, in case the wall clock was set.
fn length(stamped: u64, since: Option<Duration>) -> u64 {
    let passed = since.map_or(u64::MAX, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
    if stamped > passed.saturating_add(ONE_RUN) { passed } else { stamped }
}

/// The factor for the processes' shares, so that together they do not exceed the GPU's own use. If that is unknown or
/// larger, the shares stay as they are: other processes, unknown to the agent, may use the GPU.
fn factor(total: f64, own: Option<f64>) -> f64 {
    own.filter(|own| total > *own).map_or(1.0, |own| own / total)
}

impl Record {
    /// Adds an answer. Samples that are not newer than the record are in it already. A sample with an impossible share
    /// is dropped with all its parts; returns the first such share of each process.
    fn put(&mut self, samples: Vec<ProcessUtilizationSample>, latest: u64) -> Vec<ImplausibleValue> {
        let from = self.to;
        let mut implausible = Vec::new();
        for sample in samples.into_iter().filter(|sample| sample.timestamp > from && sample.timestamp <= latest) {
            if self.count + self.dropped.len() >= MAX_SAMPLES {
                break;
            }
            let shares = [sample.sm_util, sample.mem_util, sample.enc_util, sample.dec_util];
            let outside = |share: u32| PhysicalRange::PROCESS_USE.check(Percent(share.into())).err();
            if let Some(value) = shares.into_iter().find_map(outside) {
                // The same sample is in the next answers too.
                if self.dropped.insert(sample.pid) {
                    implausible.push(value);
                }
                continue;
            }
            self.to = self.to.max(sample.timestamp);
            let samples = self.samples.entry(sample.pid).or_default();
            let place = samples.partition_point(|one| one.timestamp < sample.timestamp);
            if samples.get(place).is_none_or(|one| one.timestamp != sample.timestamp) {
                samples.insert(place, sample);
                self.count += 1;
            }
        }
        implausible
    }
}

/// The time over which one process's share is computed.
#[derive(Clone, Copy, Debug)]
struct Window {
    until: u64,
    length: u64,
    /// The process's newest sample before the window.
    before: Option<u64>,
    started: Option<WallTime>,
}

impl Window {
    /// The mean, weighted by time. A sample covers the time since the previous one of the same process, or one refresh
    /// if that is longer ago; time without a sample is idle.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a few seconds")]
    fn mean(&self, samples: &[ProcessUtilizationSample], value: Value) -> f64 {
        let started = self.started.map_or(0, |started| started.0);
        let from = self.until.saturating_sub(self.length);
        let (mut before, mut sum) = (self.before, 0.0);
        for sample in samples.iter().filter(|sample| sample.timestamp > started) {
            let since = match before {
                Some(before) if sample.timestamp.saturating_sub(before) <= ONE_RUN => before,
                _ => sample.timestamp.saturating_sub(LONGEST_REFRESH).max(from),
            };
            sum += f64::from(value(sample)) * sample.timestamp.saturating_sub(since.max(started)) as f64;
            before = Some(sample.timestamp);
        }
        if self.length > 0 { (sum / self.length as f64).min(ALL.into()) } else { 0.0 }
    }
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

    /// Timestamps and times in tenths of a second.
    fn share(samples: &[(u64, u32)], (from, until): (u64, u64), before: Option<u64>, started: Option<u64>) -> f64 {
        let samples: Vec<_> = samples.iter().map(|(stamp, sm)| sample(7, *stamp, *sm)).collect();
        let tenths = |number: u64| number * SECOND / 10;
        let started = started.map(|started| WallTime(tenths(started)));
        let (until, length) = (tenths(until), tenths(until) - tenths(from));
        let window = Window { until, length, before: before.map(tenths), started };
        window.mean(&samples, |sample| sample.sm_util)
    }

    #[test]
    fn a_sample_covers_the_time_since_the_previous_one_or_one_refresh() {
        let steady: Vec<(u64, u32)> = (1..=5).map(|second| (second * 10, 80)).collect();
        for (name, samples, window, before, started, expected) in [
            ("a steady load", &steady[..], (0, 50), Some(0), None, 80.0),
            ("a refresh that was missed", &[(10, 80), (30, 80), (40, 80), (50, 80)], (0, 50), Some(0), None, 80.0),
            ("a burst of a moment", &[(34, 100)], (0, 50), None, None, 20.0),
            ("the end of a run that began before", &[(2, 100)], (0, 50), Some(0), None, 4.0),
            ("a run that began in the window", &[(2, 100)], (0, 50), None, None, 4.0),
            ("the sample before was of another run", &[(30, 100)], (0, 50), Some(0), None, 20.0),
            ("no sample at all", &[], (0, 50), None, None, 0.0),
            ("no window", &[], (50, 50), None, None, 0.0),
            ("from its start only", &[(50, 100)], (0, 50), None, Some(45), 10.0),
            ("samples before its start are of another process", &[(10, 100), (20, 50)], (0, 50), None, Some(15), 5.0),
            ("never more than all", &[(10, 100), (20, 100)], (10, 20), Some(0), None, 100.0),
        ] {
            let got = share(samples, window, before, started);
            assert!((got - expected).abs() < 1e-9, "{name}: {got}");
        }
    }

    #[test]
    fn a_clock_that_is_set_forward_does_not_lengthen_the_window() {
        let seconds = Duration::from_secs;
        for (stamped, since, expected) in [
            (5 * SECOND, Some(seconds(5)), 5 * SECOND),
            (6 * SECOND, Some(seconds(5)), 6 * SECOND),
            (3605 * SECOND, Some(seconds(5)), 5 * SECOND),
            (SECOND, None, SECOND),
        ] {
            assert_eq!(length(stamped, since), expected, "{stamped} in {since:?}");
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
    fn impossible_samples_are_dropped_and_repeated_samples_count_once() {
        let mut record = Record { from: SECOND, to: SECOND, ..Record::default() };
        let garbage = ProcessUtilizationSample { enc_util: 4_000_000_000, ..sample(9, 15, 3) };
        let answer =
            [sample(7, 20, 40), sample(8, 15, 101), garbage, sample(7, 15, 20), sample(7, 10, 90), sample(7, 15, 20)];
        let counted =
            [record.put(answer.to_vec(), u64::MAX), record.put(answer.to_vec(), u64::MAX)].map(|all| all.len());
        assert_eq!(counted, [2, 0], "once for each process");
        let kept: Vec<(u32, Vec<u64>)> =
            record.samples.iter().map(|(pid, all)| (*pid, all.iter().map(|one| one.timestamp).collect())).collect();
        assert_eq!(kept, [(7, vec![1_500_000, 2_000_000])]);
        assert_eq!((record.to, record.count), (2_000_000, 2));
        assert_eq!(record.dropped.into_iter().collect::<Vec<_>>(), [8, 9]);
    }

    #[test]
    fn the_number_of_kept_samples_is_bounded() {
        let mut record = Record { from: 0, to: 0, ..Record::default() };
        let flood =
            |from: u32, sm| (from..from + 20_000).map(|pid| sample(pid, u64::from(pid), sm)).collect::<Vec<_>>();
        record.put(flood(1, 5), u64::MAX);
        record.put(flood(100_000, 500), u64::MAX);
        assert_eq!((record.count, record.samples.len()), (MAX_SAMPLES, MAX_SAMPLES));
        assert!(record.dropped.is_empty());
    }
}
