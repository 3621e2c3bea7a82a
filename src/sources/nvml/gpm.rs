//! GPU performance monitoring (GPM) of Hopper and later: ratios and rates between two samples, of the whole GPU and of
//! each MIG instance.

use crate::nvml::polled_gpu::PolledGpu;
use model::gpu::GpmSample as Counters;
use model::physical_range::PhysicalRange;
use model::time::Monotonic;
use model::unit::{Bytes, BytesPerSecond, Percent, Ratio};
use model::{Absence, Reading};
use nvml_wrapper::GpmSample;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;

/// The metrics, shares first.
const METRICS: [GpmMetricId; 12] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::Fp64Util,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
];

/// The ranges of the shares, then of the rates, in the order of [`METRICS`].
const SHARES: [PhysicalRange; 8] = [
    PhysicalRange::GRAPHICS_ACTIVE,
    PhysicalRange::SM_ACTIVE,
    PhysicalRange::SM_OCCUPANCY,
    PhysicalRange::TENSOR_ACTIVE,
    PhysicalRange::DRAM_ACTIVE,
    PhysicalRange::FP64_ACTIVE,
    PhysicalRange::FP32_ACTIVE,
    PhysicalRange::FP16_ACTIVE,
];
const RATES: [PhysicalRange; 4] = [
    PhysicalRange::COUNTED_PCIE_TX,
    PhysicalRange::COUNTED_PCIE_RX,
    PhysicalRange::COUNTED_NVLINK_TX,
    PhysicalRange::COUNTED_NVLINK_RX,
];

/// Architectures without GPM, as NVML names them; on unknown architectures the agent calls NVML.
const WITHOUT: [&str; 7] = ["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada"];

/// Takes a sample of the whole GPU and of its instances, and computes the counters since the previous samples.
pub(super) fn read(gpu: &mut PolledGpu, at: Monotonic) {
    if let Err(why) = offered(gpu) {
        gpu.gpm = None;
        gpu.gpm_mig.clear();
        gpu.sample.gpm = Counters::absent(why);
        for sample in &mut gpu.sample.mig {
            sample.gpm = Counters::absent(why);
        }
        return;
    }
    let newer = gpu.asker.ask("gpm sample", || gpu.known.device.gpm_sample());
    let older = gpu.gpm.take();
    gpu.sample.gpm = between(gpu, older.as_ref(), newer.as_ref(), at);
    gpu.gpm = newer.ok();
    // GPM counts all of the time between two samples; the plain call measures 20 ms.
    if let (Reading::Measured(..), Reading::Measured(..)) = (gpu.sample.gpm.pcie_tx, gpu.sample.gpm.pcie_rx) {
        (gpu.sample.pcie_tx, gpu.sample.pcie_rx) = (gpu.sample.gpm.pcie_tx, gpu.sample.gpm.pcie_rx);
    }
    instances(gpu, at);
}

fn instances(gpu: &mut PolledGpu, at: Monotonic) {
    let mut before = std::mem::take(&mut gpu.gpm_mig);
    for index in 0..gpu.known.instances.len().min(gpu.sample.mig.len()) {
        let Some(instance) = gpu.known.instances.get(index) else { continue };
        let (uuid, number) = (instance.identity.uuid.clone(), instance.identity.gpu_instance);
        let newer = gpu.asker.ask_instance("gpm mig sample", &uuid, || gpu.known.device.gpm_mig_sample(number));
        let counters = between(gpu, before.remove(&uuid).as_ref(), newer.as_ref(), at);
        if let Some(sample) = gpu.sample.mig.get_mut(index) {
            sample.gpm = counters;
        }
        if let Ok(newer) = newer {
            gpu.gpm_mig.insert(uuid, newer);
        }
    }
}

/// Whether this GPU has GPM.
fn offered(gpu: &mut PolledGpu) -> Result<(), Absence> {
    if gpu.gpm.is_some() {
        return Ok(());
    }
    if gpu.known.gpu.architecture.value().is_some_and(|name| WITHOUT.contains(&&**name)) {
        return Err(Absence::NotThisArchitecture);
    }
    let device = &gpu.known.device;
    let answer = gpu.asker.ask("gpm support", || {
        device.gpm_support().and_then(|offered| if offered { Ok(()) } else { Err(NvmlError::NotSupported) })
    });
    answer.map_err(|why| if why == Absence::NotSupported { Absence::NotThisArchitecture } else { why })
}

/// The counters between two samples.
fn between(
    gpu: &mut PolledGpu,
    older: Option<&GpmSample<'static>>,
    newer: Result<&GpmSample<'static>, &Absence>,
    at: Monotonic,
) -> Counters {
    let newer = match newer {
        Ok(newer) => newer,
        Err(why) => return Counters::absent(*why),
    };
    let Some(older) = older else { return Counters::absent(Absence::NotYet) };
    let nvml = gpu.known.device.nvml();
    let answers = match gpu.asker.plain(|| gpm_metrics_get(nvml, older, newer, &METRICS)) {
        Ok(answers) => answers,
        Err(why) => return Counters::absent(why),
    };
    let asker = &mut gpu.asker;
    let mut answers = answers.into_iter().map(|answer| match answer {
        Ok(metric) => Ok(metric.value),
        Err(error) => Err(crate::nvml::absence::reason(error)),
    });
    // For two samples at the same time, the library divides by zero: that is not in the range either.
    let mut next = || answers.next().unwrap_or(Err(Absence::NotYet));
    let shares = SHARES.map(|range| {
        let share = asker.within(range, next().map(|percent| Percent(percent).ratio()));
        Reading::from_result(share.map(|share| Ratio(share.0.min(1.0))), at)
    });
    let rates = RATES.map(|range| Reading::from_result(asker.within(range, next().map(mebibytes)), at));
    let [graphics_active, sm_active, sm_occupancy, tensor_active, dram_active, fp64_active, fp32_active, fp16_active] =
        shares;
    let [pcie_tx, pcie_rx, nvlink_tx, nvlink_rx] = rates;
    Counters {
        graphics_active,
        sm_active,
        sm_occupancy,
        tensor_active,
        dram_active,
        fp64_active,
        fp32_active,
        fp16_active,
        pcie_tx,
        pcie_rx,
        nvlink_tx,
        nvlink_rx,
    }
}

/// `nvml.h`: GPM gives PCIe and NVLink traffic in MiB a second.
#[expect(clippy::cast_precision_loss, reason = "2^20 is exact")]
fn mebibytes(number: f64) -> BytesPerSecond {
    BytesPerSecond(number * Bytes::MIB as f64)
}
