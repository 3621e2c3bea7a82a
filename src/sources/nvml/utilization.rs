//! Utilisation from NVML's sample buffers: each sample counts once, by its NVML timestamp, however often it is read.

use crate::nvml::absence::{INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND};
use crate::nvml::polled_gpu::{BUFFERS, PolledGpu};
use model::time::{Monotonic, Now, WallTime};
use model::unit::Percent;
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::struct_wrappers::device::Sample;
use std::time::Duration;

/// The first read takes the last second of the buffer; older samples are from before the agent started.
const FIRST_READ: Duration = Duration::from_secs(1);
/// While a buffer has no newer sample, the last mean stays valid for this long: three times the interval of the slowest
/// buffer (one second, on Ampere). After that the agent uses the plain call, so that a changed load does not look like
/// the old one.
const VALID_FOR: Duration = Duration::from_secs(3);

/// One of NVML's sample buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Buffer {
    Gpu = 0,
    Memory = 1,
    Encoder = 2,
    Decoder = 3,
}

const _: () = assert!(Buffer::Decoder as usize + 1 == BUFFERS, "each buffer has its stamp");

/// The mean of distinct samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    percent: f64,
    newest: u64,
    count: u32,
    /// The time that the mean covers.
    micros: u64,
}

/// Reads all four utilisations of a GPU into its sample.
pub(super) fn read(gpu: &mut PolledGpu, now: Now) {
    whole(gpu, now);
    gpu.sample.memory_copy = part(gpu, Buffer::Memory, gpu.sample.memory_copy, now);
    gpu.sample.encoder = part(gpu, Buffer::Encoder, gpu.sample.encoder, now);
    gpu.sample.decoder = part(gpu, Buffer::Decoder, gpu.sample.decoder, now);
}

/// The utilisation of the whole GPU, with its timestamp and the number of samples.
fn whole(gpu: &mut PolledGpu, now: Now) {
    let at = now.monotonic;
    gpu.sample.utilization_samples = 0;
    match newer(gpu, Buffer::Gpu, now) {
        Ok(mean) => {
            gpu.sample.utilization = Reading::Measured(Percent(mean.percent), at);
            gpu.sample.utilization_stamp = Reading::Measured(WallTime(mean.newest), at);
            gpu.sample.utilization_samples = mean.count;
        }
        // The last reading stays, with its old time.
        Err(why) if still_valid(gpu, Buffer::Gpu, why, at) => {}
        Err(why) => {
            gpu.sample.utilization = rate(gpu, Buffer::Gpu, at);
            gpu.sample.utilization_stamp = Reading::Absent(gpu.under_mig(why));
        }
    }
}

fn part(gpu: &mut PolledGpu, buffer: Buffer, before: Reading<Percent>, now: Now) -> Reading<Percent> {
    match newer(gpu, buffer, now) {
        Ok(mean) => Reading::Measured(Percent(mean.percent), now.monotonic),
        Err(why) if still_valid(gpu, buffer, why, now.monotonic) => before,
        Err(_) => rate(gpu, buffer, now.monotonic),
    }
}

/// Whether the buffer's last mean is still valid: it has no newer sample, and its last one is recent.
fn still_valid(gpu: &PolledGpu, buffer: Buffer, why: Absence, now: Monotonic) -> bool {
    let lately = gpu.fed[buffer as usize].is_some_and(|fed| now.since(fed) < VALID_FOR);
    lately && matches!(why, NOT_FOUND | NO_DATA | INSUFFICIENT_SIZE)
}

/// The plain call, for GPUs whose sample buffers are missing or have no new samples: NVML's own latest value.
fn rate(gpu: &mut PolledGpu, buffer: Buffer, at: Monotonic) -> Reading<Percent> {
    let device = &gpu.known.device;
    let answer = match buffer {
        Buffer::Gpu => gpu.asker.ask("utilization rates", || device.utilization_rates()).map(|rates| rates.gpu),
        Buffer::Memory => gpu.asker.ask("utilization rates", || device.utilization_rates()).map(|rates| rates.memory),
        Buffer::Encoder => gpu.asker.ask("encoder utilization", || device.encoder_utilization()).map(|i| i.utilization),
        Buffer::Decoder => gpu.asker.ask("decoder utilization", || device.decoder_utilization()).map(|i| i.utilization),
    };
    if let Ok(percent) = answer {
        gpu.own[buffer as usize].hold(f64::from(percent), at);
    }
    Reading::from_result(answer.map(|percent| Percent(f64::from(percent))).map_err(|why| gpu.under_mig(why)), at)
}

/// Reads the new samples of one buffer. A buffer that returns only old samples counts as one without new samples.
fn newer(gpu: &mut PolledGpu, buffer: Buffer, now: Now) -> Result<Mean, Absence> {
    let (name, kind) = match buffer {
        Buffer::Gpu => ("utilization samples", Sampling::GpuUtilization),
        Buffer::Memory => ("memory copy samples", Sampling::MemoryUtilization),
        Buffer::Encoder => ("encoder samples", Sampling::EncoderUtilization),
        Buffer::Decoder => ("decoder samples", Sampling::DecoderUtilization),
    };
    let latest = gpu.skew.latest(now);
    let last = if gpu.stamps[buffer as usize] > latest { 0 } else { gpu.stamps[buffer as usize] };
    let samples = gpu.asker.ask(name, || gpu.known.device.samples(kind, last))?;
    let mean = mean(&samples, last, latest).ok_or(NOT_FOUND)?;
    gpu.stamps[buffer as usize] = mean.newest;
    gpu.fed[buffer as usize] = Some(now.monotonic);
    gpu.own[buffer as usize].add(mean.percent, mean.micros, now.monotonic);
    Ok(mean)
}

/// The mean over the samples with distinct stamps after `last` and up to `latest`.
fn mean(samples: &[Sample], last: u64, latest: u64) -> Option<Mean> {
    let accepted = samples.iter().filter(|sample| sample.timestamp > last && sample.timestamp <= latest);
    let newest = accepted.clone().map(|sample| sample.timestamp).max()?;
    let from = match last {
        0 => newest.saturating_sub(u64::try_from(FIRST_READ.as_micros()).unwrap_or(0)),
        last => last,
    };
    let mut fresh: Vec<(u64, f64)> = accepted
        .filter(|sample| sample.timestamp > from)
        .map(|sample| (sample.timestamp, number(&sample.value)))
        .collect();
    fresh.sort_by_key(|(stamp, _)| *stamp);
    fresh.dedup_by_key(|(stamp, _)| *stamp);
    let count = u32::try_from(fresh.len()).unwrap_or(u32::MAX);
    let sum: f64 = fresh.iter().map(|(_, percent)| percent).sum();
    Some(Mean { percent: sum / f64::from(count), newest, count, micros: newest - from })
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn number(value: &SampleValue) -> f64 {
    match *value {
        SampleValue::F64(number) => number,
        SampleValue::U32(number) => f64::from(number),
        SampleValue::U64(number) => number as f64,
        SampleValue::I64(number) => number as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(pairs: &[(u64, u32)]) -> Vec<Sample> {
        pairs
            .iter()
            .map(|(timestamp, value)| Sample { timestamp: *timestamp, value: SampleValue::U32(*value) })
            .collect()
    }

    #[test]
    fn a_sample_that_is_twice_in_the_buffer_counts_once() {
        let buffer = samples(&[(5_000_000, 90), (5_200_000, 10), (5_200_000, 10), (5_400_000, 40)]);
        assert_eq!(
            mean(&buffer, 5_000_000, u64::MAX),
            Some(Mean { percent: 25.0, newest: 5_400_000, count: 2, micros: 400_000 })
        );
        assert_eq!(mean(&buffer, 5_400_000, u64::MAX), None, "nothing is newer");
        assert_eq!(mean(&[], 1, u64::MAX), None);
        let accepted = mean(&buffer, 5_000_000, 5_300_000).map(|mean| mean.newest);
        assert_eq!(accepted, Some(5_200_000), "samples later than a clock that was set back are left out");
    }

    #[test]
    fn the_first_read_uses_only_the_last_second() {
        let buffer = samples(&[(1_000_000, 100), (9_500_000, 20), (10_000_000, 40)]);
        assert_eq!(
            mean(&buffer, 0, u64::MAX),
            Some(Mean { percent: 30.0, newest: 10_000_000, count: 2, micros: 1_000_000 })
        );
    }
}
