//! The physical range of each number that a driver reports about a GPU. A number outside its range is not a reading:
//! drivers are known to report utilisations of millions of percent, and all bits set for "I do not know".
//!
//! What must never happen here: a bound that real hardware reaches within the next generations. Bounds are a few times
//! the largest known value.

use crate::Absence;
use crate::sample_value::{BaseUnits, SampleValue};

/// The range of one reading, in base units. A number outside it, or a value that is not a number, is not a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhysicalRange {
    /// The reading: its metric without prefix, or the name of a number that has no metric of its own.
    pub reading: &'static str,
    least: f64,
    most: f64,
}

/// A number outside the physical range of its reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImplausibleValue {
    /// The reading.
    pub reading: &'static str,
    /// The number, in base units.
    pub value: f64,
}

/// A share of a whole: at most 1.
const ALL: f64 = 1.0;
/// The profiling unit divides two counters that are read one after the other, so a busy GPU can show a little more than
/// 1; its reader caps the value to 1.
const ALL_COUNTED: f64 = 1.01;
/// Upper bound on the power of a GPU: GB200, with its processor the hungriest module on the market, draws 2.7 kW.
pub const MOST_WATTS: u64 = 5_000;
#[expect(clippy::cast_precision_loss, reason = "a small number")]
const WATTS: f64 = MOST_WATTS as f64;
/// 10 GHz: no multiprocessor runs at more than 3.1 GHz.
const SM_HERTZ: f64 = 10e9;
/// 50 GHz: NVML reports half of the data rate, 14 GHz for GDDR7.
const MEMORY_HERTZ: f64 = 50e9;
/// 150 degrees: chips switch themselves off below 120 degrees, and NVML reports no temperature below zero.
const CELSIUS: f64 = 150.0;
/// 1 TB/s: PCIe 7 with 16 lanes carries 242 GB/s each way; the link between Grace and its GPU 450 GB/s.
const PCIE_BYTES_PER_SECOND: f64 = 1e12;
/// 10 TB/s: all NVLink 5 links of a GPU together carry 900 GB/s each way.
const NVLINK_BYTES_PER_SECOND: f64 = 1e13;
/// 8: the newest standard is PCIe 7.
const PCIE_GENERATION: f64 = 8.0;
/// 32 lanes: the standard's widest link.
const PCIE_WIDTH: f64 = 32.0;
/// 16 TiB: the largest GPUs have 0.3 TB, and a machine that shares its memory with a GPU has a few TB.
const MEMORY_BYTES: f64 = 17_592_186_044_416.0;
/// A counter of 32 bits with all bits set means "not known", and so does a counter of 64 bits. No error was ever
/// counted 2^53 times.
const COUNT_32: f64 = 4_294_967_294.0;
const COUNT_64: f64 = 9_007_199_254_740_992.0;
/// Seconds and joules of a century at full power.
const SECONDS: f64 = 100.0 * 366.0 * 86_400.0;
const JOULES: f64 = SECONDS * WATTS;
/// 2^64 - 4096: a sum that has reached the largest number of 64 bits is not a count any more.
const COUNTED_BYTES: f64 = 18_446_744_073_709_547_520.0;

macro_rules! ranges {
    ($($(#[$doc:meta])* $name:ident = $reading:literal, $least:expr, $most:expr;)*) => {
        impl PhysicalRange {
            $($(#[$doc])* pub const $name: PhysicalRange =
                PhysicalRange { reading: $reading, least: $least, most: $most };)*

            /// All ranges.
            pub const EVERY: &'static [PhysicalRange] = &[$(PhysicalRange::$name),*];
        }
    };
}

ranges! {
    /// All memory of a GPU or MIG instance. The used, reserved and free part are within it: [`PhysicalRange::within`].
    MEMORY_TOTAL = "memory_total_bytes", 1.0, MEMORY_BYTES;
    /// Memory in use.
    MEMORY_USED = "memory_used_bytes", 0.0, MEMORY_BYTES;
    /// Memory that the driver keeps.
    MEMORY_RESERVED = "memory_reserved_bytes", 0.0, MEMORY_BYTES;
    /// Free memory.
    MEMORY_FREE = "memory_free_bytes", 0.0, MEMORY_BYTES;
    /// Memory of one process.
    PROCESS_MEMORY = "process_memory_used_bytes", 0.0, MEMORY_BYTES;
    /// Share of time with a kernel running.
    UTILIZATION = "utilization_ratio", 0.0, ALL;
    /// Share of time with memory being copied.
    MEMORY_COPY = "memory_copy_ratio", 0.0, ALL;
    /// Use of the encoder.
    ENCODER = "encoder_ratio", 0.0, ALL;
    /// Use of the decoder.
    DECODER = "decoder_ratio", 0.0, ALL;
    /// Use of a GPU's parts by one process.
    PROCESS_USE = "process_utilization_ratio", 0.0, ALL;
    /// Power drawn.
    POWER = "power_watts", 0.0, WATTS;
    /// Enforced power limit.
    POWER_LIMIT = "power_limit_watts", 0.0, WATTS;
    /// Default power limit.
    POWER_DEFAULT = "power_limit_default_watts", 0.0, WATTS;
    /// Lowest power limit that can be set.
    POWER_LEAST = "power_limit_minimum_watts", 0.0, WATTS;
    /// Highest power limit that can be set.
    POWER_MOST = "power_limit_maximum_watts", 0.0, WATTS;
    /// Energy since the driver was loaded.
    ENERGY = "energy_joules_total", 0.0, JOULES;
    /// Clock of the multiprocessors.
    CLOCK_SM = "clock_sm_hertz", 0.0, SM_HERTZ;
    /// Clock of the memory.
    CLOCK_MEMORY = "clock_memory_hertz", 0.0, MEMORY_HERTZ;
    /// Time for which the clocks were reduced.
    VIOLATION = "violation_seconds_total", 0.0, SECONDS;
    /// Temperature of the chip.
    TEMPERATURE = "temperature_celsius", 0.0, CELSIUS;
    /// Temperature of the memory.
    MEMORY_TEMPERATURE = "memory_temperature_celsius", 0.0, CELSIUS;
    /// PCIe, sent.
    PCIE_TX = "pcie_transmit_bytes_per_second", 0.0, PCIE_BYTES_PER_SECOND;
    /// PCIe, received.
    PCIE_RX = "pcie_receive_bytes_per_second", 0.0, PCIE_BYTES_PER_SECOND;
    /// PCIe packets sent again.
    PCIE_REPLAYS = "pcie_replays_total", 0.0, COUNT_32;
    /// PCIe generation.
    PCIE_LINK_GENERATION = "pcie_link_generation", 1.0, PCIE_GENERATION;
    /// Highest PCIe generation.
    PCIE_LINK_GENERATION_MOST = "pcie_link_generation_maximum", 1.0, PCIE_GENERATION;
    /// PCIe lanes.
    PCIE_LINK_WIDTH = "pcie_link_width", 1.0, PCIE_WIDTH;
    /// Maximum number of PCIe lanes.
    PCIE_LINK_WIDTH_MOST = "pcie_link_width_maximum", 1.0, PCIE_WIDTH;
    /// Bytes over all NVLinks.
    NVLINK_BYTES = "nvlink_bytes_total", 0.0, COUNTED_BYTES;
    /// Errors of one NVLink.
    NVLINK_ERRORS = "nvlink_errors_total", 0.0, COUNT_64;
    /// ECC errors since the driver was loaded.
    ECC_VOLATILE = "ecc_volatile_errors_total", 0.0, COUNT_64;
    /// ECC errors over the life of the GPU.
    ECC_AGGREGATE = "ecc_aggregate_errors_total", 0.0, COUNT_64;
    /// Remapped rows.
    REMAPPED = "remapped_rows_total", 0.0, COUNT_32;
    /// Retired pages.
    RETIRED = "retired_pages_total", 0.0, COUNT_32;
    /// Graphics or compute engine active.
    GRAPHICS_ACTIVE = "graphics_active_ratio", 0.0, ALL_COUNTED;
    /// Multiprocessors active.
    SM_ACTIVE = "sm_active_ratio", 0.0, ALL_COUNTED;
    /// Resident warps.
    SM_OCCUPANCY = "sm_occupancy_ratio", 0.0, ALL_COUNTED;
    /// Tensor pipes active.
    TENSOR_ACTIVE = "tensor_active_ratio", 0.0, ALL_COUNTED;
    /// Memory interface active.
    DRAM_ACTIVE = "dram_active_ratio", 0.0, ALL_COUNTED;
    /// FP64 pipe active.
    FP64_ACTIVE = "fp64_active_ratio", 0.0, ALL_COUNTED;
    /// FP32 pipe active.
    FP32_ACTIVE = "fp32_active_ratio", 0.0, ALL_COUNTED;
    /// FP16 pipe active.
    FP16_ACTIVE = "fp16_active_ratio", 0.0, ALL_COUNTED;
    /// PCIe sent, as the profiling unit counts it.
    COUNTED_PCIE_TX = "counted_pcie_transmit_bytes_per_second", 0.0, PCIE_BYTES_PER_SECOND;
    /// PCIe received, as the profiling unit counts it.
    COUNTED_PCIE_RX = "counted_pcie_receive_bytes_per_second", 0.0, PCIE_BYTES_PER_SECOND;
    /// NVLink sent.
    COUNTED_NVLINK_TX = "counted_nvlink_transmit_bytes_per_second", 0.0, NVLINK_BYTES_PER_SECOND;
    /// NVLink received.
    COUNTED_NVLINK_RX = "counted_nvlink_receive_bytes_per_second", 0.0, NVLINK_BYTES_PER_SECOND;
}

impl PhysicalRange {
    /// The same range, but at most `most`: the parts of a memory are within the memory.
    #[must_use]
    pub fn within(self, most: impl BaseUnits) -> PhysicalRange {
        PhysicalRange { most: self.most.min(number(most)), ..self }
    }

    /// The answer, if its value is in the range; `note` takes any other value.
    ///
    /// # Errors
    /// Why there is no answer, or [`Absence::Implausible`].
    pub fn accept<T: BaseUnits + Copy>(
        self,
        answer: Result<T, Absence>,
        note: impl FnOnce(ImplausibleValue),
    ) -> Result<T, Absence> {
        self.check(answer?).map_err(|value| {
            note(value);
            Absence::Implausible
        })
    }

    /// The value, if it is in the range.
    ///
    /// # Errors
    /// The value that is outside.
    pub fn check<T: BaseUnits + Copy>(self, value: T) -> Result<T, ImplausibleValue> {
        let number = number(value);
        if (self.least..=self.most).contains(&number) {
            Ok(value)
        } else {
            Err(ImplausibleValue { reading: self.reading, value: number })
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "bounds are not exact to the last digit")]
fn number(value: impl BaseUnits) -> f64 {
    match value.in_base_units() {
        SampleValue::Whole(number) => number as f64,
        SampleValue::Real(number) => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GPU_READINGS;
    use crate::hardware::HARDWARE_READINGS;
    use crate::unit::{Bytes, Celsius, Count, Megahertz, Millijoules, Percent, Ratio, Watts};
    use std::collections::BTreeSet;

    #[test]
    fn every_number_of_a_gpu_has_a_range() {
        let ranges: BTreeSet<&str> = PhysicalRange::EVERY.iter().map(|range| range.reading).collect();
        assert_eq!(ranges.len(), PhysicalRange::EVERY.len(), "each reading has one range");
        // Sets of bits, yes or no, numbers that the agent itself counts, and numbers of the kernel.
        let without: BTreeSet<&str> = [
            "clock_throttle_reasons",
            "nvlinks_active",
            "row_remap_pending",
            "row_remap_failed",
            "recovery_action",
            "pcie_errors_total",
            "retired_pages_pending",
        ]
        .into();
        let shown = GPU_READINGS.iter().map(|(name, _)| name).chain(HARDWARE_READINGS.iter().map(|(name, _)| name));
        for name in shown {
            assert_ne!(ranges.contains(name.metric), without.contains(name.metric), "{}", name.metric);
        }
    }

    #[test]
    fn impossible_numbers_are_refused_and_the_ends_of_a_range_belong_to_it() {
        for (name, fits) in [
            ("no use", PhysicalRange::UTILIZATION.check(Percent(0.0)).is_ok()),
            ("full use", PhysicalRange::UTILIZATION.check(Percent(100.0)).is_ok()),
            ("jitter of the profiling unit", PhysicalRange::SM_ACTIVE.check(Ratio(1.004)).is_ok()),
            ("a hot GPU", PhysicalRange::TEMPERATURE.check(Celsius(104)).is_ok()),
            ("a whole superchip", PhysicalRange::POWER.check(Watts(2_700.0)).is_ok()),
            ("GDDR7", PhysicalRange::CLOCK_MEMORY.check(Megahertz(14_001)).is_ok()),
            ("full memory", PhysicalRange::MEMORY_USED.within(Bytes(10)).check(Bytes(10)).is_ok()),
            ("ten years at 1 kW", PhysicalRange::ENERGY.check(Millijoules(315_360_000_000_000)).is_ok()),
        ] {
            assert!(fits, "{name}");
        }
        for (name, value) in [
            ("a rare sample of a driver", PhysicalRange::UTILIZATION.check(Percent(808_334_905.0)).err()),
            ("another one", PhysicalRange::UTILIZATION.check(Percent(1980.0)).err()),
            ("less than nothing", PhysicalRange::SM_ACTIVE.check(Ratio(-0.01)).err()),
            ("infinity", PhysicalRange::POWER.check(Watts(f64::INFINITY)).err()),
            ("all bits", PhysicalRange::CLOCK_SM.check(Megahertz(u32::MAX)).err()),
            ("all bits of 64", PhysicalRange::ENERGY.check(Millijoules(u64::MAX)).err()),
            ("all bits of a count", PhysicalRange::PCIE_REPLAYS.check(Count(u32::MAX.into())).err()),
            ("all bits of a count of 64", PhysicalRange::ECC_VOLATILE.check(Count(u64::MAX)).err()),
            ("frost", PhysicalRange::TEMPERATURE.check(Celsius(-1)).err()),
            ("no memory", PhysicalRange::MEMORY_TOTAL.check(Bytes(0)).err()),
            ("more than the GPU has", PhysicalRange::MEMORY_USED.within(Bytes(10)).check(Bytes(11)).err()),
        ] {
            assert!(value.is_some(), "{name}");
        }
        assert!(PhysicalRange::SM_ACTIVE.check(Ratio(f64::NAN)).is_err(), "not a number");
    }
}
