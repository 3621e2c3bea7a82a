//! Alnair's annotations of a Node about the load of its GPUs, in Python literals or JSON. The fields and their order are those of
//! Alnair's profiler, because readers of `gpu-static` count characters.
//!
//! ```text
//!   ai.centaurus.io/gpu-static    {'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}
//!   ai.centaurus.io/gpu-0         {'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 1, 'pid-mem': [(18477, '11094MB')],
//!                                  'cyclic_pattern': True, 'period': '6.02', 'max_mem_util': 66, 'max_gpu_util': 97}
//!   ai.centaurus.io/GPU-0-job-type        DLT | Empty | Others
//!   ai.centaurus.io/GPU-0-mem-util-max    66
//! ```
//!
//! `GB` and `MB` are GiB and MiB, rounded up, as Alnair writes them. The period counts samples of one second. Values of simulated
//! GPUs have the field `simulated` at the end. The reader skips fields that it does not know.
//!
//! What must never happen here: a field for a value that is not known.

mod literal;
#[cfg(test)]
mod tests;

pub use literal::LiteralForm;

use crate::annotation_keys::GPU_STATIC;
use crate::decode_error::DecodeError;
use literal::Literal;
use model::node_profile::{GpuSnapshot, GpuStatic, MAX_LISTED};
use model::unit::Mib;
use std::time::Duration;

/// Maximum size of a value in bytes: Alnair lists every process, with about 25 bytes.
const MAX_TEXT: usize = 32 * 1024;
/// Maximum number of characters of a model: NVML's buffer for a name has 96 bytes.
const MAX_MODEL: usize = 96;
/// Longest period in samples, which is a day. Two minutes are analysed.
const MAX_PERIOD: f64 = 86_400.0;
/// The name of a value of one GPU in errors.
const SNAPSHOT: &str = "ai.centaurus.io/gpu-N";

/// Writes what the GPUs are.
#[must_use]
pub fn encode_static(facts: &GpuStatic, form: LiteralForm) -> String {
    let model: String = facts.model.chars().take(MAX_MODEL).collect();
    let mut fields = vec![
        ("count", form.text(&facts.count.to_string())),
        ("model", form.text(&model)),
        ("mem_size", form.text(&format!("{}GB", facts.memory_gib))),
    ];
    if let Some((generation, lanes)) = facts.pcie {
        fields.push(("pcie_gen_width", form.text(&format!("{generation}x{lanes}"))));
    }
    form.map(&fields)
}

/// Writes memory, processes and load of one GPU.
#[must_use]
pub fn encode_snapshot(snapshot: &GpuSnapshot, form: LiteralForm) -> String {
    let mut fields = vec![
        ("mem_used", form.text(&format!("{}GB", snapshot.memory_used_gib))),
        ("mem_free", form.text(&format!("{}GB", snapshot.memory_free_gib))),
    ];
    fields.extend(snapshot.processes.map(|count| ("process_cnt", count.to_string())));
    if !snapshot.listed.is_empty() {
        let one = |(pid, memory): &(u32, Mib)| form.pair(&pid.to_string(), &form.text(&format!("{}MB", memory.0)));
        let all: Vec<String> = snapshot.listed.iter().take(MAX_LISTED).map(one).collect();
        fields.push(("pid-mem", format!("[{}]", all.join(", "))));
    }
    fields.push(("cyclic_pattern", form.flag(snapshot.period.is_some()).to_owned()));
    fields.extend(snapshot.period.map(|period| ("period", form.text(&samples(period)))));
    fields.extend(snapshot.memory_copy_maximum.map(|maximum| ("max_mem_util", encode_maximum(maximum))));
    fields.extend(snapshot.utilization_maximum.map(|maximum| ("max_gpu_util", encode_maximum(maximum))));
    if snapshot.simulated {
        fields.push(("simulated", form.flag(true).to_owned()));
    }
    form.map(&fields)
}

/// A period in samples of one second, as Python writes a float, to a hundredth.
fn samples(period: Duration) -> String {
    format!("{:?}", (period.as_secs_f64() * 100.0).round() / 100.0)
}

/// Writes a maximum as whole percent.
#[must_use]
pub fn encode_maximum(percent: f64) -> String {
    format!("{:.0}", percent.clamp(0.0, 100.0))
}

/// Reads a maximum; `None` for a text that is not a number from 0 to 100.
#[must_use]
pub fn decode_maximum(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}

/// Reads what the GPUs are, and the form of the text.
///
/// # Errors
/// [`DecodeError`] if the text is not such a literal.
pub fn decode_static(text: &str) -> Result<(GpuStatic, LiteralForm), DecodeError> {
    let value = read(GPU_STATIC, text)?;
    let wrong = |what: &str| DecodeError::new(GPU_STATIC, 0, what);
    let pcie = match value.field("pcie_gen_width").and_then(Literal::text) {
        None => None,
        Some(link) => {
            let numbers = link.split_once('x').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
            Some(numbers.ok_or_else(|| wrong("pcie_gen_width is not like 3x16"))?)
        }
    };
    let facts = GpuStatic {
        count: value.field("count").and_then(Literal::number).ok_or_else(|| wrong("count is not a number"))?,
        model: value.field("model").and_then(Literal::text).ok_or_else(|| wrong("model is not a text"))?.into(),
        memory_gib: amount(&value, "mem_size", "GB").ok_or_else(|| wrong("mem_size is not like 12GB"))?,
        pcie,
    };
    Ok((facts, LiteralForm::of(text)))
}

/// Reads memory, processes and load of one GPU, and the form of the text. Of the processes, the first [`MAX_LISTED`] are kept.
///
/// # Errors
/// [`DecodeError`] if the text is not such a literal.
pub fn decode_snapshot(text: &str) -> Result<(GpuSnapshot, LiteralForm), DecodeError> {
    let value = read(SNAPSHOT, text)?;
    let wrong = |what: &str| DecodeError::new(SNAPSHOT, 0, what);
    let memory = |key: &str| amount(&value, key, "GB").ok_or_else(|| wrong("mem_used or mem_free is not like 12GB"));
    let maximum = |key: &str| match value.field(key) {
        None => Ok(None),
        Some(found) => {
            let percent = found.number::<f64>().filter(|percent| (0.0..=100.0).contains(percent));
            percent.map(Some).ok_or_else(|| wrong("a maximum is not a percentage"))
        }
    };
    let period = match value.field("cyclic_pattern") {
        Some(Literal::Flag(true)) => {
            let seconds = value.field("period").and_then(Literal::number::<f64>).filter(|count| *count <= MAX_PERIOD);
            let period = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            Some(period.ok_or_else(|| wrong("period is not a number of samples"))?)
        }
        Some(Literal::Flag(false)) => None,
        _ => return Err(wrong("cyclic_pattern is neither True nor False")),
    };
    let processes = match value.field("process_cnt") {
        None => None,
        Some(count) => Some(count.number().ok_or_else(|| wrong("process_cnt is not a number"))?),
    };
    let snapshot = GpuSnapshot {
        memory_used_gib: memory("mem_used")?,
        memory_free_gib: memory("mem_free")?,
        processes,
        listed: listed(&value).ok_or_else(|| wrong("pid-mem is not like [(4711, '12MB')]"))?,
        period,
        memory_copy_maximum: maximum("max_mem_util")?,
        utilization_maximum: maximum("max_gpu_util")?,
        simulated: value.field("simulated") == Some(&Literal::Flag(true)),
    };
    Ok((snapshot, LiteralForm::of(text)))
}

fn read<'t>(key: &'static str, text: &'t str) -> Result<Literal<'t>, DecodeError> {
    if text.len() > MAX_TEXT {
        return Err(DecodeError::too_long(key, text.len(), MAX_TEXT));
    }
    Literal::read(text).map_err(|(at, what)| DecodeError::new(key, at, what))
}

/// The number before `unit` in a text such as `12GB`.
fn amount(value: &Literal<'_>, key: &str, unit: &str) -> Option<u64> {
    value.field(key)?.text()?.strip_suffix(unit)?.parse().ok()
}

/// The processes with their memory; `None` if the list has another form.
fn listed(value: &Literal<'_>) -> Option<Vec<(u32, Mib)>> {
    let Some(list) = value.field("pid-mem") else { return Some(Vec::new()) };
    let Literal::List(list) = list else { return None };
    let one = |pair: &Literal<'_>| match pair {
        Literal::List(pair) => match pair.as_slice() {
            [pid, memory] => Some((pid.number::<u32>()?, Mib(memory.text()?.strip_suffix("MB")?.parse().ok()?))),
            _ => None,
        },
        _ => None,
    };
    list.iter().take(MAX_LISTED).map(one).collect()
}
