//! Memory of a GPU or MIG instance.
//!
//! What must never happen here: a part of the memory that is larger than the memory.

use crate::nvml::polled_gpu::{GpuCaller, PolledGpu};
use model::physical_range::PhysicalRange as Range;
use model::time::Monotonic;
use model::unit::Bytes;
use model::{Absence, Reading};
use nvml_wrapper::struct_wrappers::device::MemoryInfo;

/// The parts of a memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryParts {
    pub(super) used: Reading<Bytes>,
    pub(super) reserved: Reading<Bytes>,
    pub(super) free: Reading<Bytes>,
}

/// Reads the memory of a GPU into its sample.
pub(super) fn read(gpu: &mut PolledGpu, at: Monotonic) {
    let info = gpu.asker.ask("memory", || gpu.known.device.memory_info());
    let MemoryParts { used, reserved, free } = parts(&mut gpu.asker, info, at);
    (gpu.sample.memory_used, gpu.sample.memory_reserved, gpu.sample.memory_free) = (used, reserved, free);
}

/// The parts of an answer. If one of them is impossible, the others are not trusted either: together they are the whole.
pub(super) fn parts(asker: &mut GpuCaller, info: Result<MemoryInfo, Absence>, at: Monotonic) -> MemoryParts {
    let checked = info.and_then(|info| {
        let total = asker.within(Range::MEMORY_TOTAL, Ok(Bytes(info.total)))?;
        let ranges = [(Range::MEMORY_USED, info.used), (Range::MEMORY_RESERVED, info.reserved), (Range::MEMORY_FREE, info.free)];
        // All three, so that each of them is counted.
        let checked = ranges.map(|(range, bytes)| asker.within(range.within(total), Ok(Bytes(bytes))));
        let [used, reserved, free] = checked;
        Ok((used?, reserved?, free?))
    });
    match checked {
        Ok((used, reserved, free)) => MemoryParts {
            used: Reading::Measured(used, at),
            reserved: Reading::Measured(reserved, at),
            free: Reading::Measured(free, at),
        },
        Err(why) => {
            MemoryParts { used: Reading::Absent(why), reserved: Reading::Absent(why), free: Reading::Absent(why) }
        }
    }
}
