//! Compares each reading of the agent that `nvidia-smi` has too.

use crate::Outcome;
use crate::machine::Machine;
use crate::record::Record;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use std::time::{Duration, Instant};

const MIB: f64 = 1_048_576.0;
/// Values that are means of a second have this time to follow a change of the load.
const SETTLE: Duration = Duration::from_secs(3);

/// A GPU, as `nvidia-smi` identifies it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) pci_bus_id: String,
    pub(crate) driver: String,
    pub(crate) index: String,
}

/// A reading in both programs.
struct Row {
    /// The field of `nvidia-smi --query-gpu`.
    field: &'static str,
    /// The metric, without `gpu_steward_gpu_`.
    metric: &'static str,
    /// A label that selects one of several series.
    label: &'static str,
    /// The unit of `nvidia-smi` in that of the metric.
    unit: f64,
    /// The largest difference: this share of the number, and this many units. `nvidia-smi` is asked before and after the
    /// agent, and any number between its two answers is right.
    share: f64,
    units: f64,
}

const fn row(field: &'static str, metric: &'static str, unit: f64, (share, units): (f64, f64)) -> Row {
    Row { field, metric, label: "", unit, share, units }
}

const fn labelled(field: &'static str, metric: &'static str, label: &'static str) -> Row {
    Row { field, metric, label, unit: 1.0, share: 0.0, units: 0.0 }
}

const EQUAL: (f64, f64) = (0.0, 0.001);

const ROWS: &[Row] = &[
    row("memory.total", "memory_total_bytes", MIB, (0.0, 1.0)),
    row("memory.used", "memory_used_bytes", MIB, (0.02, 16.0)),
    row("memory.reserved", "memory_reserved_bytes", MIB, (0.02, 16.0)),
    row("memory.free", "memory_free_bytes", MIB, (0.02, 16.0)),
    row("utilization.gpu", "utilization_ratio", 0.01, (0.0, 10.0)),
    row("utilization.memory", "memory_copy_ratio", 0.01, (0.0, 10.0)),
    row("utilization.encoder", "encoder_ratio", 0.01, (0.0, 1.0)),
    row("utilization.decoder", "decoder_ratio", 0.01, (0.0, 1.0)),
    row("power.draw", "power_watts", 1.0, (0.1, 10.0)),
    row("enforced.power.limit", "power_limit_watts", 1.0, EQUAL),
    row("power.default_limit", "power_limit_default_watts", 1.0, EQUAL),
    row("power.min_limit", "power_limit_minimum_watts", 1.0, EQUAL),
    row("power.max_limit", "power_limit_maximum_watts", 1.0, EQUAL),
    row("clocks.current.sm", "clock_sm_hertz", 1e6, (0.1, 15.0)),
    row("clocks.current.memory", "clock_memory_hertz", 1e6, EQUAL),
    row("clocks_event_reasons.active", "clock_throttle_reasons", 1.0, EQUAL),
    row("temperature.gpu", "temperature_celsius", 1.0, (0.0, 3.0)),
    row("temperature.memory", "memory_temperature_celsius", 1.0, (0.0, 3.0)),
    row("pcie.link.gen.current", "pcie_link_generation", 1.0, EQUAL),
    row("pcie.link.gen.max", "pcie_link_generation_maximum", 1.0, EQUAL),
    row("pcie.link.width.current", "pcie_link_width", 1.0, EQUAL),
    row("pcie.link.width.max", "pcie_link_width_maximum", 1.0, EQUAL),
    labelled("ecc.errors.corrected.volatile.total", "ecc_volatile_errors_total", "type=\"corrected\""),
    labelled("ecc.errors.uncorrected.volatile.total", "ecc_volatile_errors_total", "type=\"uncorrected\""),
    labelled("ecc.errors.corrected.aggregate.total", "ecc_aggregate_errors_total", "type=\"corrected\""),
    labelled("ecc.errors.uncorrected.aggregate.total", "ecc_aggregate_errors_total", "type=\"uncorrected\""),
    labelled("retired_pages.single_bit_ecc.count", "retired_pages_total", "cause=\"corrected\""),
    labelled("retired_pages.double_bit.count", "retired_pages_total", "cause=\"uncorrected\""),
];

/// What the profiling unit must show: (metric, the most while idle, the least under load).
const PROFILING: [(&str, f64, f64); 4] = [
    ("graphics_active_ratio", 0.1, 0.8),
    ("sm_active_ratio", 0.1, 0.5),
    ("sm_occupancy_ratio", 0.1, 0.1),
    ("dram_active_ratio", 0.1, 0.05),
];

/// The GPUs of the machine.
pub(crate) fn identities(machine: &Machine) -> Outcome<Vec<Identity>> {
    let lines = machine.nvidia_smi("--query-gpu=uuid,name,pci.bus_id,driver_version,index")?;
    let identity = |line: Vec<String>| {
        let [uuid, name, pci_bus_id, driver, index] = line.try_into().map_err(|line| format!("{line:?}"))?;
        Ok(Identity { uuid, name, pci_bus_id, driver, index })
    };
    lines.into_iter().map(identity).collect()
}

/// Compares identity and readings of each GPU.
pub(crate) fn compare(
    record: &mut Record,
    machine: &Machine,
    agent: &Agent,
    gpus: &[Identity],
    when: &str,
) -> Outcome<()> {
    record.part(&format!("readings, {when}"));
    wait(agent, gpus.len());
    let shown = agent.get("/api/v1/gpus").json()["gpus"].as_array().cloned().unwrap_or_default();
    for gpu in gpus {
        let same = shown.iter().any(|one| {
            one["uuid"] == *gpu.uuid && one["model"] == *gpu.name && one["pci_bus_id"]["value"] == *gpu.pci_bus_id
        });
        record.check(same, &format!("GPU {}: UUID, model and PCI address", gpu.index));
    }
    let before = ask(machine)?;
    let metrics = agent.get("/metrics").text();
    let after = ask(machine)?;
    for (place, gpu) in gpus.iter().enumerate() {
        for (column, row) in ROWS.iter().enumerate() {
            let cells = [&before, &after].map(|lines| lines[place][column].as_str());
            let agent = series(&metrics, row.metric, row.label, &gpu.uuid);
            let (holds, text) = judge(row, cells, agent);
            record.check(holds, &text);
        }
        profiling(record, &metrics, &gpu.uuid, when);
    }
    energy(record, machine, agent, &gpus[0].uuid);
    Ok(())
}

/// Waits until every reading has been tried, and until means no longer hold what was before.
fn wait(agent: &Agent, count: usize) {
    eventually("every GPU with its profiling counters, or the reason why it has none", START, || {
        let gpus = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
        let read = |gpu: &serde_json::Value| {
            gpu["power_watts"]["absent"] != "not_yet" && gpu["gpm"]["sm_active"]["absent"] != "not_yet"
        };
        (gpus.len() == count && gpus.iter().all(read)).then_some(())
    });
    std::thread::sleep(SETTLE);
}

/// All fields of all GPUs. A field that this `nvidia-smi` does not know is empty; it then refuses the whole query.
fn ask(machine: &Machine) -> Outcome<Vec<Vec<String>>> {
    let fields: Vec<&str> = ROWS.iter().map(|row| row.field).collect();
    if let Ok(lines) = machine.nvidia_smi(&format!("--query-gpu={}", fields.join(","))) {
        return Ok(lines);
    }
    let gpus = machine.nvidia_smi("--query-gpu=index")?.len();
    let mut lines = vec![Vec::new(); gpus];
    for field in fields {
        let column = machine.nvidia_smi(&format!("--query-gpu={field}")).unwrap_or_default();
        for (place, line) in lines.iter_mut().enumerate() {
            line.push(column.get(place).and_then(|cells| cells.first().cloned()).unwrap_or_default());
        }
    }
    Ok(lines)
}

/// The number in a cell of `nvidia-smi`; bit sets are hexadecimal.
fn number(cell: &str) -> Option<f64> {
    match cell.strip_prefix("0x") {
        #[expect(clippy::cast_precision_loss, reason = "a set of few bits")]
        Some(bits) => u64::from_str_radix(bits, 16).ok().map(|bits| bits as f64),
        None => cell.parse().ok(),
    }
}

fn judge(row: &Row, cells: [&str; 2], agent: Option<f64>) -> (bool, String) {
    let shown = agent.map_or("absent".to_owned(), |value| format!("{:.3}", value / row.unit));
    let text = format!("{}: nvidia-smi {} then {}, agent {shown}", row.field, cells[0], cells[1]);
    let holds = match (cells.map(number), agent) {
        ([Some(before), Some(after)], Some(agent)) => {
            let agent = agent / row.unit;
            let (least, most) = (before.min(after), before.max(after));
            agent >= least - least * row.share - row.units && agent <= most + most * row.share + row.units
        }
        ([None, None], None) => true,
        // A reading that the agent has, and that this nvidia-smi does not know by this name.
        ([None, None], Some(_)) => cells == ["", ""],
        _ => false,
    };
    (holds, text)
}

/// The value of a series of a GPU.
pub(crate) fn series(metrics: &str, metric: &str, label: &str, uuid: &str) -> Option<f64> {
    let start = format!("gpu_steward_gpu_{metric}{{");
    let uuid = format!("uuid=\"{uuid}\"");
    let line = metrics.lines().find(|line| line.starts_with(&start) && line.contains(label) && line.contains(&uuid))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// `nvidia-smi` has no profiling counters that can be asked once, so the load says what they must be.
fn profiling(record: &mut Record, metrics: &str, uuid: &str, when: &str) {
    for (metric, idle, busy) in PROFILING {
        let Some(value) = series(metrics, metric, "", uuid) else {
            record.line(&format!("         {metric}: absent"));
            continue;
        };
        let holds = if when == "idle" { value <= idle } else { value >= busy };
        record.check(holds, &format!("{metric} {when}: {value:.3}"));
    }
}

/// Energy must grow by the power that is shown. The agent reads energy with the process list, every five seconds, and power every
/// second. So the time counts from one new value of the energy to another one.
fn energy(record: &mut Record, machine: &Machine, agent: &Agent, uuid: &str) {
    /// Longer than the period of the process lists.
    const NEXT: Duration = Duration::from_secs(15);
    let look = || {
        let metrics = agent.get("/metrics").text();
        Some((series(&metrics, "energy_joules_total", "", uuid)?, series(&metrics, "power_watts", "", uuid)?))
    };
    let mut powers = Vec::new();
    let mut changes_from = |before: f64| {
        let asked = Instant::now();
        while asked.elapsed() < NEXT {
            std::thread::sleep(Duration::from_millis(100));
            let (energy, power) = look()?;
            powers.push(power);
            #[expect(clippy::float_cmp, reason = "the same text is the same number")]
            if energy != before {
                return Some((energy, Instant::now()));
            }
        }
        None
    };
    let Some((shown, _)) = look() else {
        record.line("         energy: absent");
        return;
    };
    let Some((first, began)) = changes_from(shown) else {
        record.check(false, &format!("energy grows from {shown} J"));
        return;
    };
    let (mut last, mut ended) = (first, began);
    while ended - began < machine.length.min(Duration::from_secs(10)) {
        let Some((energy, at)) = changes_from(last) else { break };
        (last, ended) = (energy, at);
    }
    #[expect(clippy::cast_precision_loss, reason = "a few looks")]
    let mean = powers.iter().sum::<f64>() / powers.len().max(1) as f64;
    let seconds = (ended - began).as_secs_f64();
    let grown = (last - first) / seconds;
    // Both values are seen a moment after they were read.
    let holds = ended > began && (grown - mean).abs() <= mean * (0.1 + 0.5 / seconds);
    record.check(holds, &format!("energy grows by {grown:.1} W, power is {mean:.1} W"));
}
