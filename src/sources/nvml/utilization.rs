//! Utilisation: NVML's newest sample once a second, and the mean of all samples between two process lists.
//!
//! The plain calls take less than a microsecond on a newer driver, which answers them from memory that the GPU writes.
//! Reading a sample buffer asks the GPU's own processor and takes 2 to 3.4 ms of this thread's CPU time (`tests/gpu/runs`),
//! so a buffer is read only with a process list.

use crate::nvml::absence::NOT_FOUND;
use crate::nvml::polled_gpu::{GpuPart, PolledGpu};
use model::physical_range::{ImplausibleValue, PhysicalRange};
use model::time::{Monotonic, WallTime};
use model::unit::Percent;
use model::utilization::UtilizationSample;
use model::{Absence, Reading};
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::struct_wrappers::device::Sample;

/// The distinct new samples of a buffer.
#[derive(Clone, Debug, PartialEq)]
struct NewSamples {
    newest: u64,
    /// The samples within the physical range.
    plausible: Vec<UtilizationSample>,
    implausible: Vec<ImplausibleValue>,
}

/// The mean of the distinct samples that are within the physical range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleMean {
    pub(super) percent: f64,
    /// NVML's timestamp of the newest sample, in microseconds.
    pub(super) newest: u64,
    count: u32,
}

/// Reads all four utilisations of a GPU into its sample.
pub(super) fn read(gpu: &mut PolledGpu, at: Monotonic) {
    let device = &gpu.known.device;
    let rates = gpu.asker.ask("utilization rates", || device.utilization_rates());
    let encoder = gpu.asker.ask("encoder utilization", || device.encoder_utilization()).map(|info| info.utilization);
    let decoder = gpu.asker.ask("decoder utilization", || device.decoder_utilization()).map(|info| info.utilization);
    let (whole, copy) = (rates.as_ref().map(|rates| rates.gpu), rates.as_ref().map(|rates| rates.memory));
    let (whole, copy) = (whole.map_err(|why| *why), copy.map_err(|why| *why));
    gpu.sample.utilization = part(gpu, whole, PhysicalRange::UTILIZATION, at);
    gpu.sample.memory_copy = part(gpu, copy, PhysicalRange::MEMORY_COPY, at);
    gpu.sample.encoder = part(gpu, encoder, PhysicalRange::ENCODER, at);
    gpu.sample.decoder = part(gpu, decoder, PhysicalRange::DECODER, at);
    for (of, reading) in [
        (GpuPart::Whole, gpu.sample.utilization),
        (GpuPart::Encoder, gpu.sample.encoder),
        (GpuPart::Decoder, gpu.sample.decoder),
    ] {
        if let Some(percent) = reading.get() {
            gpu.own[of as usize].hold(percent.0, at);
        }
    }
}

fn part(gpu: &mut PolledGpu, answer: Result<u32, Absence>, range: PhysicalRange, at: Monotonic) -> Reading<Percent> {
    let answer = gpu.asker.within(range, answer.map(|percent| Percent(f64::from(percent))));
    Reading::from_result(answer.map_err(|why| gpu.under_mig(why)), at)
}

/// The mean use of the whole GPU over all samples with stamps after `since` and up to `latest`, each counted once. Reports the
/// samples themselves to subscribers.
pub(super) fn mean_since(gpu: &mut PolledGpu, since: u64, latest: u64) -> Result<SampleMean, Absence> {
    let device = &gpu.known.device;
    let samples = gpu.asker.ask("utilization samples", || device.samples(Sampling::GpuUtilization, since))?;
    let new = new_samples(&samples, (since, latest), PhysicalRange::UTILIZATION).ok_or(NOT_FOUND)?;
    new.implausible.iter().for_each(|value| gpu.asker.count_implausible(*value));
    gpu.asker.report_utilization(&new.plausible);
    new.mean().ok_or(Absence::Implausible)
}

/// The samples with distinct stamps after `last` and up to `latest`; `None` if there is no such sample.
fn new_samples(samples: &[Sample], (last, latest): (u64, u64), range: PhysicalRange) -> Option<NewSamples> {
    let accepted = samples.iter().filter(|sample| sample.timestamp > last && sample.timestamp <= latest);
    let mut fresh: Vec<(u64, f64)> = accepted.map(|sample| (sample.timestamp, number(&sample.value))).collect();
    fresh.sort_by_key(|(stamp, _)| *stamp);
    fresh.dedup_by_key(|(stamp, _)| *stamp);
    let (newest, _) = *fresh.last()?;
    let mut new = NewSamples { newest, plausible: Vec::new(), implausible: Vec::new() };
    for (stamp, percent) in fresh {
        match range.check(Percent(percent)) {
            Ok(percent) => new.plausible.push(UtilizationSample { stamp: WallTime(stamp), percent }),
            Err(value) => new.implausible.push(value),
        }
    }
    Some(new)
}

impl NewSamples {
    /// The mean; `None` if every sample is impossible.
    fn mean(&self) -> Option<SampleMean> {
        let count = u32::try_from(self.plausible.len()).unwrap_or(u32::MAX);
        let sum: f64 = self.plausible.iter().map(|sample| sample.percent.0).sum();
        (count > 0).then(|| SampleMean { percent: sum / f64::from(count), newest: self.newest, count })
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

    /// The mean, the newest stamp, and the number of samples.
    fn mean(samples: &[Sample], last: u64, latest: u64) -> Option<(f64, u64, u32)> {
        let new = new_samples(samples, (last, latest), PhysicalRange::UTILIZATION)?;
        new.mean().map(|mean| (mean.percent, mean.newest, mean.count))
    }

    #[test]
    fn a_sample_that_is_twice_in_the_buffer_counts_once() {
        let buffer = samples(&[(5_000_000, 90), (5_200_000, 10), (5_200_000, 10), (5_400_000, 40)]);
        assert_eq!(mean(&buffer, 5_000_000, u64::MAX), Some((25.0, 5_400_000, 2)));
        assert_eq!(mean(&buffer, 5_400_000, u64::MAX), None, "nothing is newer");
        assert_eq!(mean(&[], 1, u64::MAX), None);
        let accepted = mean(&buffer, 5_000_000, 5_300_000).map(|mean| mean.1);
        assert_eq!(accepted, Some(5_200_000), "samples later than a clock that was set back are left out");
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
        let kept: Vec<(u64, f64)> = new.plausible.iter().map(|sample| (sample.stamp.0, sample.percent.0)).collect();
        assert_eq!(kept, [(5_200_000, 40.0), (5_400_000, 20.0)], "the others keep their stamps");
        let only = new_samples(&buffer, (5_400_000, u64::MAX), PhysicalRange::UTILIZATION).unwrap();
        assert_eq!((only.mean(), only.implausible.len()), (None, 3));
    }
}
