//! NVLinks and fabric of a GPU: readings that are taken rarely and have more than one number. A rare reading that
//! dcgm-exporter has too is also written under dcgm-exporter's name.

use super::row::MetricRow;
use super::subject::LabelledSubjects;
use model::Reading;
use model::hardware::{FabricState, LinkError, NvLink};
use model::sample_value::SampleValue;
use model::unit::Count;
use model::view::GpuView;
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

const PREFIX: &str = "gpu_steward_gpu_";

/// Values derived from NVLinks and fabric, one for each GPU.
#[rustfmt::skip]
pub static GPU: &[MetricRow<GpuView>] = &[
    MetricRow::gauge("nvlinks", "", "NVLinks of the GPU, up or down.", |g| links(g).map(|all| SampleValue::Whole(all.len() as u64))),
    MetricRow::gauge("fabric_error", "", "NVML's status of the GPU's registration with the fabric manager: 0 is success. No series before the registration is completed.", |g| match g.sample.hardware.fabric {
        Reading::Measured(fabric, at) if fabric.state == FabricState::Completed => Reading::Measured(SampleValue::Whole(fabric.outcome.into()), at),
        Reading::Measured(..) => Reading::NOT_YET,
        Reading::Absent(why) => Reading::Absent(why),
    }),
];

/// The readings under dcgm-exporter's names.
#[rustfmt::skip]
pub static DCGM: &[MetricRow<GpuView>] = &[
    MetricRow::foreign_counter("DCGM_FI_DEV_RETIRED_SBE", "Total number of retired pages due to single-bit errors.", |g| g.sample.hardware.retired.corrected.number()),
    MetricRow::foreign_counter("DCGM_FI_DEV_RETIRED_DBE", "Total number of retired pages due to double-bit errors.", |g| g.sample.hardware.retired.uncorrected.number()),
    MetricRow::foreign_counter("DCGM_FI_DEV_RETIRED_PENDING", "Total number of pages pending retirement.", |g| g.sample.hardware.retired.pending.number()),
    MetricRow::foreign_counter("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Total number of NVLink flow-control CRC errors.", |g| sum(g, LinkError::CrcFlit)),
    MetricRow::foreign_counter("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "Total number of NVLink data CRC errors.", |g| sum(g, LinkError::CrcData)),
    MetricRow::foreign_counter("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Total number of NVLink retries.", |g| sum(g, LinkError::Replay)),
    MetricRow::foreign_counter("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Total number of NVLink recovery errors.", |g| sum(g, LinkError::Recovery)),
];

const BOARD: MetricFamily =
    family("board_info", MetricType::Info, "Serial number and VBIOS version of the GPU's board.");
const UP: MetricFamily = family("nvlink_up", MetricType::Gauge, "1 while the NVLink is up, 0 while it is down.");
const ERRORS: MetricFamily = family(
    "nvlink_errors_total",
    MetricType::Counter,
    "Errors on an NVLink since the driver was loaded, by type; the types depend on the GPU's architecture.",
);
const FABRIC: MetricFamily = family(
    "fabric_info",
    MetricType::Info,
    "The NVLink fabric of the GPU: GPUs of one cluster and clique reach each other.",
);
const STATE: MetricFamily = family(
    "fabric_state",
    MetricType::Gauge,
    "1 for the state of the GPU's registration with the fabric manager; CUDA starts when it is completed.",
);
const FAULT: MetricFamily = family(
    "fabric_fault",
    MetricType::Gauge,
    "1 for each fault that the GPU's fabric has, 0 for each that it does not have.",
);
const SUMMARY: MetricFamily = family(
    "fabric_health",
    MetricType::Gauge,
    "1 for NVML's health summary of the GPU's fabric: healthy, unhealthy, limited_capacity.",
);

const fn family(name: &'static str, kind: MetricType, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind, unit: "", help }
}

fn links(gpu: &GpuView) -> Reading<&[NvLink]> {
    match &gpu.sample.hardware.nvlinks {
        Reading::Measured(links, at) => Reading::Measured(links, *at),
        Reading::Absent(why) => Reading::Absent(*why),
    }
}

/// The sum over the links that count this kind of error; absent if no link counts it.
fn sum(gpu: &GpuView, kind: LinkError) -> Reading<SampleValue> {
    let all = match links(gpu) {
        Reading::Measured(all, _) => all.iter().map(|link| link.errors(kind)),
        Reading::Absent(why) => return Reading::Absent(why),
    };
    let sum = all.reduce(|sum, one| match (sum, one) {
        (Reading::Measured(sum, at), Reading::Measured(one, _)) => {
            Reading::Measured(Count(sum.0.saturating_add(one.0)), at)
        }
        (Reading::Absent(_), Reading::Measured(..)) => one,
        (_, Reading::Absent(_)) => sum,
    });
    sum.unwrap_or_default().number()
}

/// Writes the readings that have more than one value for each GPU.
pub fn write(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &BOARD);
    for gpu in &subjects.gpus {
        let board = &gpu.seen.gpu.board;
        if board.serial.value().is_some() || board.vbios.value().is_some() {
            let text = |reading: &Reading<std::sync::Arc<str>>| reading.value().map_or("", |text| text).to_owned();
            let label = MetricLabels::new().with("serial", &text(&board.serial)).with("vbios", &text(&board.vbios));
            out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(1));
        }
    }
    by_link(subjects, out);
    fabric(subjects, out);
}

fn by_link(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let all = || {
        subjects
            .gpus
            .iter()
            .flat_map(|gpu| links(gpu.seen).value().copied().unwrap_or_default().iter().map(move |link| (gpu, link)))
    };
    out.prefixed(PREFIX, &UP);
    for (gpu, link) in all() {
        let label = MetricLabels::new().with("link", &link.number.to_string());
        out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(u64::from(link.up)));
    }
    out.prefixed(PREFIX, &ERRORS);
    for (gpu, link) in all() {
        for kind in LinkError::ALL {
            if let Reading::Measured(count, _) = link.errors(kind) {
                let label = MetricLabels::new().with("link", &link.number.to_string()).with("type", kind.code());
                out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(count.0));
            }
        }
    }
}

fn fabric(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let all =
        || subjects.gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), gpu.seen.sample.hardware.fabric.get()?)));
    out.prefixed(PREFIX, &FABRIC);
    for (labels, fabric) in all() {
        let cluster = fabric.cluster().unwrap_or_default();
        let label = MetricLabels::new().with("cluster", &cluster).with("clique", &fabric.clique.to_string());
        out.sample(&[labels, label.as_str()], SampleValue::Whole(1));
    }
    out.prefixed(PREFIX, &STATE);
    for (labels, fabric) in all() {
        let label = MetricLabels::new().with("state", fabric.state.code());
        out.sample(&[labels, label.as_str()], SampleValue::Whole(1));
    }
    out.prefixed(PREFIX, &FAULT);
    for (labels, fabric) in all() {
        for (fault, is) in fabric.faults() {
            let label = MetricLabels::new().with("fault", fault);
            out.sample(&[labels, label.as_str()], SampleValue::Whole(u64::from(is)));
        }
    }
    out.prefixed(PREFIX, &SUMMARY);
    for (labels, fabric) in all() {
        if let Some(summary) = fabric.summary {
            let label = MetricLabels::new().with("state", summary.code());
            out.sample(&[labels, label.as_str()], SampleValue::Whole(1));
        }
    }
}

/// Writes an absent reading for each kind of link error that no link of the GPU counts.
pub fn absences(gpu: &GpuView, labels: &MetricLabels, out: &mut Exposition<'_>) {
    let links = links(gpu).value().copied().unwrap_or_default();
    for kind in LinkError::ALL {
        let counted = links.iter().any(|link| link.errors(kind).value().is_some());
        if let Some(why) = links.first().filter(|_| !counted).and_then(|link| link.errors(kind).absence()) {
            let label = MetricLabels::new().with("reading", "nvlink_errors").with("type", kind.code());
            let reason = MetricLabels::new().with("reason", why.code());
            out.sample(&[labels.as_str(), label.as_str(), reason.as_str()], SampleValue::Whole(1));
        }
    }
}
