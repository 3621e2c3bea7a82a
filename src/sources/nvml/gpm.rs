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

/// Architectures without GPM, as NVML names them; unknown ones are asked.
const WITHOUT: [&str; 7] = ["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada"];

/// Takes a sample of the whole GPU and of its instances, and computes the counters since the previous samples.
pub(super) fn read(card: &mut PolledGpu, at: Monotonic) {
    if let Err(why) = offered(card) {
        card.gpm = None;
        card.gpm_mig.clear();
        card.sample.gpm = Counters::absent(why);
        for sample in &mut card.sample.mig {
            sample.gpm = Counters::absent(why);
        }
        return;
    }
    let newer = card.asker.ask("gpm sample", || card.known.device.gpm_sample());
    card.sample.gpm = between(card, card.gpm.as_ref(), newer.as_ref(), at);
    card.gpm = newer.ok();
    // GPM counts all of the time between two samples; the plain call measures 20 ms.
    if let (Reading::Measured(..), Reading::Measured(..)) = (card.sample.gpm.pcie_tx, card.sample.gpm.pcie_rx) {
        (card.sample.pcie_tx, card.sample.pcie_rx) = (card.sample.gpm.pcie_tx, card.sample.gpm.pcie_rx);
    }
    instances(card, at);
}

fn instances(card: &mut PolledGpu, at: Monotonic) {
    let mut before = std::mem::take(&mut card.gpm_mig);
    for place in 0..card.known.instances.len().min(card.sample.mig.len()) {
        let Some(instance) = card.known.instances.get(place) else { continue };
        let (uuid, number) = (instance.identity.uuid.clone(), instance.identity.gpu_instance);
        let newer = card.asker.ask_instance("gpm mig sample", &uuid, || card.known.device.gpm_mig_sample(number));
        let counters = between(card, before.remove(&uuid).as_ref(), newer.as_ref(), at);
        if let Some(sample) = card.sample.mig.get_mut(place) {
            sample.gpm = counters;
        }
        if let Ok(newer) = newer {
            card.gpm_mig.insert(uuid, newer);
        }
    }
}

/// Whether this GPU has GPM.
fn offered(card: &mut PolledGpu) -> Result<(), Absence> {
    if card.gpm.is_some() {
        return Ok(());
    }
    if card.known.gpu.architecture.value().is_some_and(|name| WITHOUT.contains(&&**name)) {
        return Err(Absence::NotThisArchitecture);
    }
    let device = &card.known.device;
    let answer = card.asker.ask("gpm support", || {
        device.gpm_support().and_then(|offered| if offered { Ok(()) } else { Err(NvmlError::NotSupported) })
    });
    answer.map_err(|why| if why == Absence::NotSupported { Absence::NotThisArchitecture } else { why })
}

/// The counters between two samples.
fn between(
    card: &PolledGpu,
    older: Option<&GpmSample<'static>>,
    newer: Result<&GpmSample<'static>, &Absence>,
    at: Monotonic,
) -> Counters {
    let newer = match newer {
        Ok(newer) => newer,
        Err(why) => return Counters::absent(*why),
    };
    let Some(older) = older else { return Counters::absent(Absence::NotYet) };
    let nvml = card.known.device.nvml();
    let answers = match card.asker.plain(|| gpm_metrics_get(nvml, older, newer, &METRICS)) {
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
