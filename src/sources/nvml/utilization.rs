//! Utilisation from NVML's sample buffers: each sample counts once, by its NVML timestamp, however often it is read.

use crate::nvml::absence::{INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND};
use crate::nvml::polled_gpu::{BUFFERS, PolledGpu};
use model::physical_range::{ImplausibleValue, PhysicalRange};
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

impl Buffer {
    fn range(self) -> PhysicalRange {
        match self {
            Buffer::Gpu => PhysicalRange::UTILIZATION,
            Buffer::Memory => PhysicalRange::MEMORY_COPY,
            Buffer::Encoder => PhysicalRange::ENCODER,
            Buffer::Decoder => PhysicalRange::DECODER,
        }
    }
}

const _: () = assert!(Buffer::Decoder as usize + 1 == BUFFERS, "each buffer has its stamp");

/// The distinct new samples of a buffer.
#[derive(Clone, Debug, PartialEq)]
struct NewSamples {
    newest: u64,
    /// The time that the samples cover.
    micros: u64,
    /// Those within the physical range.
    percents: Vec<f64>,
    implausible: Vec<ImplausibleValue>,
}

/// The mean of the distinct samples that are within the physical range.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    percent: f64,
    newest: u64,
    count: u32,
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
    let answer = gpu.asker.within(buffer.range(), answer.map(|percent| Percent(f64::from(percent))));
    if let Ok(percent) = answer {
        gpu.own[buffer as usize].hold(percent.0, at);
    }
    Reading::from_result(answer.map_err(|why| gpu.under_mig(why)), at)
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
    let new = new_samples(&samples, (last, latest), buffer.range()).ok_or(NOT_FOUND)?;
    gpu.stamps[buffer as usize] = new.newest;
    new.implausible.iter().for_each(|value| gpu.asker.count_implausible(*value));
    let mean = new.mean().ok_or(Absence::Implausible)?;
    gpu.fed[buffer as usize] = Some(now.monotonic);
    gpu.own[buffer as usize].add(mean.percent, new.micros, now.monotonic);
    Ok(mean)
}

/// The samples with distinct stamps after `last` and up to `latest`; `None` if there is none.
fn new_samples(samples: &[Sample], (last, latest): (u64, u64), range: PhysicalRange) -> Option<NewSamples> {
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
    let mut new = NewSamples { newest, micros: newest - from, percents: Vec::new(), implausible: Vec::new() };
    for (_, percent) in fresh {
        match range.check(Percent(percent)) {
            Ok(Percent(percent)) => new.percents.push(percent),
            Err(value) => new.implausible.push(value),
        }
    }
    Some(new)
}

impl NewSamples {
    /// The mean; `None` if every sample is impossible.
    fn mean(&self) -> Option<Mean> {
        let count = u32::try_from(self.percents.len()).unwrap_or(u32::MAX);
        let sum: f64 = self.percents.iter().sum();
        (count > 0).then(|| Mean { percent: sum / f64::from(count), newest: self.newest, count })
    }
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

    /// The mean, the newest stamp, the number of samples, and the time that they cover.
    fn mean(samples: &[Sample], last: u64, latest: u64) -> Option<(f64, u64, u32, u64)> {
        let new = new_samples(samples, (last, latest), PhysicalRange::UTILIZATION)?;
        new.mean().map(|mean| (mean.percent, mean.newest, mean.count, new.micros))
    }

    #[test]
    fn a_sample_that_is_twice_in_the_buffer_counts_once() {
        let buffer = samples(&[(5_000_000, 90), (5_200_000, 10), (5_200_000, 10), (5_400_000, 40)]);
        assert_eq!(mean(&buffer, 5_000_000, u64::MAX), Some((25.0, 5_400_000, 2, 400_000)));
        assert_eq!(mean(&buffer, 5_400_000, u64::MAX), None, "nothing is newer");
        assert_eq!(mean(&[], 1, u64::MAX), None);
        let accepted = mean(&buffer, 5_000_000, 5_300_000).map(|mean| mean.1);
        assert_eq!(accepted, Some(5_200_000), "samples later than a clock that was set back are left out");
    }

    #[test]
    fn the_first_read_uses_only_the_last_second() {
        let buffer = samples(&[(1_000_000, 100), (9_500_000, 20), (10_000_000, 40)]);
        assert_eq!(mean(&buffer, 0, u64::MAX), Some((30.0, 10_000_000, 2, 1_000_000)));
    }

    #[test]
    fn an_impossible_sample_is_not_part_of_the_mean() {
        let mut buffer = samples(&[(5_200_000, 40), (5_300_000, 808_334_905), (5_400_000, 20)]);
        for (place, value) in
            [SampleValue::I64(-1), SampleValue::F64(f64::NAN), SampleValue::U64(101)].iter().enumerate()
        {
            buffer.push(Sample { timestamp: 5_500_000 + place as u64, value: value.clone() });
        }
        let new = new_samples(&buffer, (5_000_000, u64::MAX), PhysicalRange::UTILIZATION).unwrap();
        assert_eq!(new.mean().map(|mean| (mean.percent, mean.count)), Some((30.0, 2)));
        assert_eq!((new.newest, new.implausible.len()), (5_500_002, 4), "each is dropped once");
        let only = new_samples(&buffer, (5_400_000, u64::MAX), PhysicalRange::UTILIZATION).unwrap();
        assert_eq!((only.mean(), only.implausible.len()), (None, 3));
    }
}
