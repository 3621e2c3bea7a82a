//! Memory of a GPU or MIG instance, from the newest call that the driver has, or from the host if the GPU has no memory of
//! its own.
//!
//! ```text
//!   nvmlDeviceGetMemoryInfo_v2 ──not in this driver──▶ nvmlDeviceGetMemoryInfo   used contains what is reserved
//!              │ not supported, or as large as the host's memory
//!              ▼
//!   nvmlDeviceGetBAR1MemoryInfo ──not supported──▶ nvmlDeviceGetNumaNodeId ──none──▶ /proc/meminfo   shared with the host
//! ```
//!
//! What must never happen here: a part of the memory that is larger than the memory; a part that the driver does not
//! report, shown as zero; the host's memory, shown for a GPU with memory of its own.

use crate::bounded_file;
use crate::nvml::absence::none_of_it;
use crate::nvml::poll_round::PollRound;
use crate::nvml::polled_gpu::{GpuCaller, PolledGpu};
use crate::nvml::raw;
use crate::procfs::host_file::meminfo;
use model::gpu::MemoryKind;
use model::physical_range::PhysicalRange as Range;
use model::time::Monotonic;
use model::unit::Bytes;
use model::{Absence, Reading};
use nvml_wrapper::Device;
use std::path::Path;

/// Maximum bytes of `/proc/meminfo` that are read: the kernel's has 1.5 KiB.
const MAX_MEMINFO: usize = 16 << 10;
/// The driver's total is the host's memory if it differs from `MemTotal` by at most one part in this number. Drivers of a
/// GB10 report `MemTotal` itself. GPUs with their own memory and without BAR1 memory differ far more: a GH200 has 96 or 144
/// GB in a host with 120, 240 or 480 GB.
const SAME_SIZE: u64 = 20;

/// The parts of a memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryParts {
    pub(super) used: Reading<Bytes>,
    pub(super) reserved: Reading<Bytes>,
    pub(super) free: Reading<Bytes>,
}

impl MemoryParts {
    fn absent(why: Absence) -> MemoryParts {
        MemoryParts { used: Reading::Absent(why), reserved: Reading::Absent(why), free: Reading::Absent(why) }
    }
}

/// Reads the memory of a GPU into its sample.
pub(super) fn read(gpu: &mut PolledGpu, procfs: &Path, at: Monotonic) {
    let answer = gpu.asker.ask("memory", || raw::memory(&gpu.known.device));
    // If a GPU with memory of its own refuses the call once, its memory is absent. It must not get the host's memory
    // instead.
    let host = match gpu.known.gpu.memory_kind {
        MemoryKind::Host => host_instead_of(&answer, procfs),
        MemoryKind::Own | MemoryKind::OwnWithReserved => None,
    };
    let (answer, kind) = host.map_or_else(|| own(answer), |host| (Ok(host), MemoryKind::Host));
    let MemoryParts { used, reserved, free } = parts(&mut gpu.asker, answer, kind, at);
    (gpu.sample.memory_used, gpu.sample.memory_reserved, gpu.sample.memory_free) = (used, reserved, free);
}

/// Reads the memory of a GPU for the inventory, and finds out what the values mean.
///
/// For a GPU without memory of its own, some drivers refuse the call, and others answer with the size of the host's memory,
/// of which nothing is in use. A driver may also refuse the call for a GPU with memory of its own, or its size may be the
/// host's by chance. So the GPU gets the host's memory only if two more answers say that it has no memory of its own.
pub(super) fn identify(
    round: &mut PollRound<'_>,
    device: &Device<'static>,
    procfs: &Path,
) -> (Result<raw::Memory, Absence>, MemoryKind) {
    let answer = round.call("memory size", || raw::memory(device));
    match host_instead_of(&answer, procfs) {
        Some(host) if has_none_of_its_own(round, device) => (Ok(host), MemoryKind::Host),
        _ => own(answer),
    }
}

/// Whether the driver shows neither of two signs that a GPU has its own memory. BAR1 is the part of the memory that PCIe
/// can reach. A GPU that is linked to the processor (GH200) has no BAR1 memory; its memory is a NUMA node.
fn has_none_of_its_own(round: &mut PollRound<'_>, device: &Device<'static>) -> bool {
    matches!(round.call("BAR1 memory", || device.bar1_memory_info()), Err(Absence::NotSupported))
        && round.call("NUMA node", || device.numa_node_id()).is_err_and(none_of_it)
}

/// The answer of the driver, and what the values mean.
fn own(answer: Result<raw::Memory, Absence>) -> (Result<raw::Memory, Absence>, MemoryKind) {
    let kind = match &answer {
        Ok(memory) if memory.reserved.is_none() => MemoryKind::OwnWithReserved,
        _ => MemoryKind::Own,
    };
    (answer, kind)
}

/// The host's memory, if this is what a driver answers about a GPU that uses it: nothing, or about the host's total.
fn host_instead_of(answer: &Result<raw::Memory, Absence>, procfs: &Path) -> Option<raw::Memory> {
    match answer {
        Ok(memory) => of_host(procfs).filter(|host| memory.total.abs_diff(host.total) <= host.total / SAME_SIZE),
        Err(Absence::NotSupported) => of_host(procfs),
        Err(_) => None,
    }
}

/// The host's memory; `None` if the kernel does not report it.
fn of_host(procfs: &Path) -> Option<raw::Memory> {
    let text = bounded_file::read(&procfs.join("meminfo"), MAX_MEMINFO).ok()?;
    let memory = meminfo(&text).ok()?;
    let available = memory.available?;
    Some(raw::Memory { total: memory.total.0, used: memory.total.less(available).0, free: available.0, reserved: None })
}

/// The parts of an answer. If one of them is impossible, the others are not trusted either: together they are the whole.
pub(super) fn parts(
    asker: &mut GpuCaller,
    answer: Result<raw::Memory, Absence>,
    kind: MemoryKind,
    at: Monotonic,
) -> MemoryParts {
    let memory = match answer {
        Ok(memory) => memory,
        Err(why) => return MemoryParts::absent(why),
    };
    let Ok(total) = asker.within(Range::MEMORY_TOTAL, Ok(Bytes(memory.total))) else {
        return MemoryParts::absent(Absence::Implausible);
    };
    let mut part = |range: Range, bytes| asker.within(range.within(total), Ok(Bytes(bytes)));
    let used = part(Range::MEMORY_USED, memory.used);
    let reserved = memory.reserved.map(|reserved| part(Range::MEMORY_RESERVED, reserved));
    let free = part(Range::MEMORY_FREE, memory.free);
    if used.is_err() || free.is_err() || reserved.is_some_and(|reserved| reserved.is_err()) {
        return MemoryParts::absent(Absence::Implausible);
    }
    let without = if kind == MemoryKind::Host { Absence::NotSupported } else { Absence::NotInThisDriver };
    MemoryParts {
        used: Reading::from_result(used, at),
        reserved: Reading::from_result(reserved.unwrap_or(Err(without)), at),
        free: Reading::from_result(free, at),
    }
}
