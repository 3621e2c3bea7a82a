//! Our own metrics of GPUs and MIG instances.

use super::hardware;
use super::input::MetricsInput;
use super::row::{MetricRow, reading_family};
use super::subject::LabelledSubjects;
use model::gpu::{GPU_READINGS, MigInstance, MigSample, THROTTLE_REASONS};
use model::hardware::HARDWARE_READINGS;
use model::sample_value::SampleValue;
use model::time::Monotonic;
use model::view::{GpuHealth, GpuView};
use model::{Absence, Reading};
use serve::exposition::{Exposition, MetricFamily, MetricLabels, MetricType};

const PREFIX: &str = "gpu_steward_gpu_";

/// Values that the agent knows of a GPU in addition to its readings.
#[rustfmt::skip]
static GPU: &[MetricRow<GpuView>] = &[
    MetricRow::gauge("processes", "", "Processes on the GPU.", |g| match &g.processes {
        Reading::Measured(list, at) => Reading::Measured(SampleValue::Whole(list.len() as u64 + u64::from(g.processes_left_out)), *at),
        Reading::Absent(why) => Reading::Absent(*why),
    }),
    MetricRow::gauge("mig_instances", "", "MIG instances on the GPU.", |g| match &g.gpu.mig {
        Reading::Measured(list, at) => Reading::Measured(SampleValue::Whole(list.len() as u64), *at),
        Reading::Absent(why) => Reading::Absent(*why),
    }),
    MetricRow::gauge("unattributed_memory_bytes", "bytes", "Memory in use beyond the sum of the pods' processes.", |g| g.unattributed_memory.number()),
    MetricRow::gauge("unattributed_sm_ratio", "ratio", "SM use of processes that belong to no pod.", |g| g.unattributed_sm.number()),
];

const INFO: MetricFamily = family("info", MetricType::Info, "", "Identity of the GPU.");
const HEALTH: MetricFamily = family(
    "health",
    MetricType::Gauge,
    "",
    "1 for the current state of the GPU: healthy, degraded (recovering), unhealthy, unknown.",
);
const INCIDENT: MetricFamily =
    family("incident", MetricType::Gauge, "", "1 for each reason why the GPU gets no new containers.");
const FIT_IN: MetricFamily = family(
    "fit_in_seconds",
    MetricType::Gauge,
    "seconds",
    "Time until the GPU gets new containers again if no new incident occurs; no series while an incident lasts or waits for a reset.",
);
const STRANGERS: MetricFamily =
    family("strangers", MetricType::Gauge, "", "Processes on the GPU that belong to no pod.");
const HOLDERS: MetricFamily = family(
    "holders",
    MetricType::Gauge,
    "",
    "Pods that have a process on the GPU or hold it by their claim, or without a claim by a slot that the kubelet allocated.",
);
const XIDS: MetricFamily = family(
    "xids_total",
    MetricType::Counter,
    "",
    "Driver errors since the program started, by XID. XIDs that make the GPU unfit have a series with 0 from the start.",
);
const XID_EVENTS: MetricFamily =
    family("xid_events_total", MetricType::Counter, "", "Driver errors since the program started, all XIDs together.");
const IMPLAUSIBLE: MetricFamily = family(
    "implausible_values_total",
    MetricType::Counter,
    "",
    "Numbers from the driver outside the physical range of their reading, since the program started. The reading is then absent.",
);
const REASON: MetricFamily = family(
    "clock_throttle_reason",
    MetricType::Gauge,
    "",
    "1 for each reason why the clocks are not higher, 0 for all other reasons that NVML knows.",
);
const AGE: MetricFamily =
    family("sample_age_seconds", MetricType::Gauge, "seconds", "Age of the GPU's newest reading.");
const LIST_AGE: MetricFamily =
    family("processes_age_seconds", MetricType::Gauge, "seconds", "Age of the list of the GPU's processes.");
const ABSENT: MetricFamily =
    family("reading_absent", MetricType::Gauge, "", "1 for each reading of the GPU that is absent, with the reason.");

const MIG_PREFIX: &str = "gpu_steward_mig_";
const MIG_INFO: MetricFamily = family("info", MetricType::Info, "", "Identity of the MIG instance.");
const MIG_TOTAL: MetricFamily = family("memory_total_bytes", MetricType::Gauge, "bytes", "Memory of the MIG instance.");
const MIG_ABSENT: MetricFamily = family(
    "reading_absent",
    MetricType::Gauge,
    "",
    "1 for each reading of the MIG instance that is absent, with the reason.",
);

#[rustfmt::skip]
static MIG: &[MetricRow<MigSample>] = &[
    MetricRow::gauge("memory_used_bytes", "bytes", "Memory that processes hold in the MIG instance.", |m| m.memory_used.number()),
    MetricRow::gauge("memory_reserved_bytes", "bytes", "Memory reserved in the MIG instance.", |m| m.memory_reserved.number()),
    MetricRow::gauge("memory_free_bytes", "bytes", "Free memory of the MIG instance.", |m| m.memory_free.number()),
    MetricRow::gauge("graphics_active_ratio", "ratio", "Compute engine of the instance active (GPM).", |m| m.gpm.graphics_active.number()),
    MetricRow::gauge("sm_active_ratio", "ratio", "Multiprocessors of the instance with at least one warp (GPM).", |m| m.gpm.sm_active.number()),
    MetricRow::gauge("sm_occupancy_ratio", "ratio", "Resident warps of the instance as a share of the maximum (GPM).", |m| m.gpm.sm_occupancy.number()),
    MetricRow::gauge("tensor_active_ratio", "ratio", "Tensor pipes of the instance active (GPM).", |m| m.gpm.tensor_active.number()),
    MetricRow::gauge("dram_active_ratio", "ratio", "Memory interface of the instance active (GPM).", |m| m.gpm.dram_active.number()),
];

const fn family(name: &'static str, kind: MetricType, unit: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind, unit, help }
}

/// Writes the metrics of GPUs and MIG instances.
pub fn write(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    identity(input, subjects, out);
    each_metric(|family, label, read| {
        out.prefixed(PREFIX, family);
        for gpu in &subjects.gpus {
            if let Reading::Measured(value, _) = read(gpu.seen) {
                out.sample(&[gpu.labels.as_str(), label], value);
            }
        }
    });
    hardware::write(subjects, out);
    state(subjects, out);
    xids(input, subjects, out);
    implausible(input, subjects, out);
    throttling(subjects, out);
    incidents(input.now.monotonic, subjects, out);
    ages(input.now.monotonic, subjects, out);
    absences(subjects, out);
    mig(subjects, out);
}

/// Calls `row` with each metric that has one value for a GPU: its family, its fixed label, and the function that reads
/// the value.
fn each_metric(mut row: impl FnMut(&MetricFamily, &'static str, &dyn Fn(&GpuView) -> Reading<SampleValue>)) {
    for (name, read) in GPU_READINGS {
        row(&reading_family(name), name.label, &|seen| read(&seen.gpu, &seen.sample));
    }
    for own in GPU {
        row(&own.family, own.labels, &own.read);
    }
    for (name, read) in HARDWARE_READINGS {
        row(&reading_family(name), name.label, &|seen| read(&seen.gpu.board, &seen.sample.hardware));
    }
    for own in hardware::GPU {
        row(&own.family, own.labels, &own.read);
    }
}

fn identity(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &INFO);
    for gpu in &subjects.gpus {
        let known = &gpu.seen.gpu;
        let text =
            |reading: &Reading<std::sync::Arc<str>>| reading.value().map_or_else(String::new, ToString::to_string);
        let number = |reading: &Reading<u32>| reading.get().map_or_else(String::new, |number| number.to_string());
        let more = MetricLabels::new()
            .with("model", &known.model)
            .with("pci_bus_id", &text(&known.pci_bus_id))
            .with("architecture", &text(&known.architecture))
            .with("numa_node", &number(&known.numa_node))
            .with("minor", &number(&known.minor))
            .with("mig", mig_mode(&known.mig_mode))
            .with("memory", known.memory_kind.code())
            .with("simulated", if input.view.gpu_source.simulated() { "true" } else { "false" });
        out.sample(&[gpu.labels.as_str(), more.as_str()], SampleValue::Whole(1));
    }
}

/// The value of the label `mig`; empty if the mode could not be read, as for other labels.
fn mig_mode(mode: &Reading<bool>) -> &'static str {
    match mode {
        Reading::Measured(true, _) => "on",
        Reading::Measured(false, _) | Reading::Absent(Absence::NotSupported | Absence::NotInThisDriver) => "off",
        Reading::Absent(_) => "",
    }
}

fn state(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &HEALTH);
    for gpu in &subjects.gpus {
        for state in [GpuHealth::Healthy, GpuHealth::Degraded, GpuHealth::Unhealthy, GpuHealth::Unknown] {
            let label = MetricLabels::new().with("state", state.code());
            out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(u64::from(gpu.seen.health == state)));
        }
    }
    out.prefixed(PREFIX, &HOLDERS);
    for gpu in &subjects.gpus {
        out.sample(&[gpu.labels.as_str()], SampleValue::Whole(gpu.seen.holders.len() as u64));
    }
    out.prefixed(PREFIX, &STRANGERS);
    for gpu in subjects.gpus.iter().filter(|gpu| gpu.seen.processes.value().is_some()) {
        out.sample(&[gpu.labels.as_str()], SampleValue::Whole(u64::from(gpu.seen.strangers)));
    }
}

/// Writes the XID counters. The program counts XIDs from its start. The series for all XIDs together, and the series
/// of each XID that makes a GPU unfit, starts at 0. The series of any other XID starts with its first error, which
/// `increase()` misses in the text format 0.0.4.
fn xids(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let since = input.footprint.started_seconds.get();
    out.prefixed(PREFIX, &XID_EVENTS);
    for gpu in &subjects.gpus {
        out.counted(&[gpu.labels.as_str()], SampleValue::Whole(gpu.seen.xid_count), since);
    }
    out.prefixed(PREFIX, &XIDS);
    for gpu in &subjects.gpus {
        for (code, count) in &gpu.seen.xids {
            let label = MetricLabels::new().with("xid", &code.to_string());
            out.counted(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(*count), since);
        }
    }
}

/// Writes the numbers that were dropped because no such GPU can exist.
fn implausible(input: &MetricsInput<'_>, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let since = input.footprint.started_seconds.get();
    out.prefixed(PREFIX, &IMPLAUSIBLE);
    for gpu in &subjects.gpus {
        for (reading, count) in &gpu.seen.implausible {
            let label = MetricLabels::new().with("reading", reading.trim_end_matches("_total"));
            out.counted(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(*count), since);
        }
    }
}

/// Writes one series for each known bit of `nvmlClocksThrottleReason…`. Bits that this program does not know yet
/// appear only in the bit set `clock_throttle_reasons`.
fn throttling(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    let reasons: Vec<(u64, MetricLabels)> =
        THROTTLE_REASONS.iter().map(|(bit, word)| (*bit, MetricLabels::new().with("reason", word))).collect();
    out.prefixed(PREFIX, &REASON);
    for gpu in &subjects.gpus {
        let Some(set) = gpu.seen.sample.throttle_reasons.get() else { continue };
        for (bit, label) in &reasons {
            out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(u64::from(set & bit != 0)));
        }
    }
}

/// Writes incidents and the time until each GPU is fit again. If the wait is over but the GPU was not evaluated
/// since, the time is 0, not negative.
fn incidents(now: Monotonic, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &INCIDENT);
    for gpu in &subjects.gpus {
        for (incident, _) in &gpu.seen.condition.incidents {
            let label = MetricLabels::new().with("incident", &incident.code());
            out.sample(&[gpu.labels.as_str(), label.as_str()], SampleValue::Whole(1));
        }
    }
    out.prefixed(PREFIX, &FIT_IN);
    for gpu in &subjects.gpus {
        if let Some(at) = gpu.seen.condition.fit_at {
            out.sample(&[gpu.labels.as_str()], SampleValue::Real(at.since(now).as_secs_f64()));
        }
    }
}

fn ages(now: Monotonic, subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &AGE);
    for gpu in &subjects.gpus {
        // Facts of the GPU are read once, so only readings that are repeated show how fresh the sample is.
        let sample = &gpu.seen.sample;
        let read = [sample.memory_used.at(), sample.utilization.at(), sample.power.at(), sample.temperature.at()];
        if let Some(at) = read.into_iter().flatten().max() {
            out.sample(&[gpu.labels.as_str()], SampleValue::Real(now.since(at).as_secs_f64()));
        }
    }
    out.prefixed(PREFIX, &LIST_AGE);
    for gpu in &subjects.gpus {
        if let Some(at) = gpu.seen.processes.at() {
            out.sample(&[gpu.labels.as_str()], SampleValue::Real(now.since(at).as_secs_f64()));
        }
    }
}

fn absences(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(PREFIX, &ABSENT);
    for gpu in &subjects.gpus {
        each_metric(|family, label, read| {
            if let Reading::Absent(why) = read(gpu.seen) {
                let reading = MetricLabels::new().with("reading", family.name.trim_end_matches("_total"));
                let reason = MetricLabels::new().with("reason", why.code());
                out.sample(&[gpu.labels.as_str(), reading.as_str(), label, reason.as_str()], SampleValue::Whole(1));
            }
        });
        hardware::absences(gpu.seen, &gpu.labels, out);
    }
}

/// Writes the MIG metrics. The readings belong to GPU instances, so each GPU instance has one series, under its first
/// compute instance. The sum over all series is then the value of the GPU.
fn mig(subjects: &LabelledSubjects<'_>, out: &mut Exposition<'_>) {
    out.prefixed(MIG_PREFIX, &MIG_INFO);
    for gpu in &subjects.gpus {
        for instance in gpu.seen.gpu.instances() {
            let labels = of_instance(&gpu.labels, instance);
            let more = MetricLabels::new()
                .with("profile", &instance.profile)
                .with("gpu_instance", &instance.gpu_instance.to_string())
                .with("compute_instance", &instance.compute_instance.to_string());
            out.sample(&[labels.as_str(), more.as_str()], SampleValue::Whole(1));
        }
    }
    let firsts = subjects.gpus.iter().flat_map(|gpu| {
        let firsts = gpu.seen.gpu.gpu_instances().filter_map(|inside| inside.first());
        firsts.map(move |instance| {
            let sample = gpu.seen.sample.mig.iter().find(|mig| mig.uuid == instance.uuid);
            (instance, sample, of_instance(&gpu.labels, instance))
        })
    });
    measured(&firsts.collect::<Vec<_>>(), out);
}

fn of_instance(gpu: &MetricLabels, instance: &MigInstance) -> MetricLabels {
    gpu.clone().with("mig_uuid", instance.uuid.as_str())
}

fn measured(instances: &[(&MigInstance, Option<&MigSample>, MetricLabels)], out: &mut Exposition<'_>) {
    let mut absent: Vec<(&MetricLabels, &'static str, Absence)> = Vec::new();
    out.prefixed(MIG_PREFIX, &MIG_TOTAL);
    for (instance, _, labels) in instances {
        match instance.memory_total.number() {
            Reading::Measured(value, _) => out.sample(&[labels.as_str()], value),
            Reading::Absent(why) => absent.push((labels, MIG_TOTAL.name, why)),
        }
    }
    for row in MIG {
        out.prefixed(MIG_PREFIX, &row.family);
        for (_, sample, labels) in instances {
            match sample.map_or(Reading::NOT_YET, row.read) {
                Reading::Measured(value, _) => out.sample(&[labels.as_str()], value),
                Reading::Absent(why) => absent.push((labels, row.family.name, why)),
            }
        }
    }
    out.prefixed(MIG_PREFIX, &MIG_ABSENT);
    for (labels, reading, why) in absent {
        let more = MetricLabels::new().with("reading", reading).with("reason", why.code());
        out.sample(&[labels.as_str(), more.as_str()], SampleValue::Whole(1));
    }
}
