//! GPU performance monitoring (GPM) of Hopper and later: ratios and rates between two samples, of the whole GPU and of
//! each MIG instance.

use crate::nvml::polled_gpu::PolledGpu;
use model::gpu::GpmSample as Counters;
use model::time::Monotonic;
use model::unit::{Bytes, BytesPerSecond, Ratio};
use model::{Absence, Reading};
use nvml_wrapper::GpmSample;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;

/// The metrics, in the order in which they are read below.
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

/// Architectures without GPM, as NVML names them; on unknown ones the agent calls NVML.
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
    gpu.sample.gpm = between(gpu, gpu.gpm.as_ref(), newer.as_ref(), at);
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
    gpu: &PolledGpu,
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
    let mut answers = answers.into_iter().map(|answer| answer.map(|metric| metric.value));
    let mut next = || match answers.next() {
        // For two samples at the same time, the library divides by zero.
        Some(Ok(value)) if value.is_finite() => Reading::Measured(value, at),
        Some(Ok(_)) | None => Reading::Absent(Absence::NotYet),
        Some(Err(error)) => Reading::Absent(crate::nvml::absence::reason(error)),
    };
    let share = |percent: f64| Ratio((percent / 100.0).clamp(0.0, 1.0));
    Counters {
        graphics_active: next().map(share),
        sm_active: next().map(share),
        sm_occupancy: next().map(share),
        tensor_active: next().map(share),
        dram_active: next().map(share),
        fp64_active: next().map(share),
        fp32_active: next().map(share),
        fp16_active: next().map(share),
        pcie_tx: next().map(mebibytes),
        pcie_rx: next().map(mebibytes),
        nvlink_tx: next().map(mebibytes),
        nvlink_rx: next().map(mebibytes),
    }
}

/// `nvml.h`: GPM gives PCIe and NVLink traffic in MiB a second.
#[expect(clippy::cast_precision_loss, reason = "2^20 is exact")]
fn mebibytes(number: f64) -> BytesPerSecond {
    BytesPerSecond(number * Bytes::MIB as f64)
}
