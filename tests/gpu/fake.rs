//! The fake NVML library, and a fake `nvidia-smi` that prints the same numbers from a file.

use crate::Outcome;
use crate::cuda::Pattern;
use crate::machine::Machine;
use lab::scenario::FakeNvml;
use serde_json::json;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const UUID: &str = "GPU-5eed0000-0000-4000-8000-000000000000";
const PROCESS_MIB: u64 = 1536;

/// Answers from the files `values` (a field and its value on each line) and `processes` beside it.
const NVIDIA_SMI: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
--query-gpu=*)
  awk -v fields="${1#*=}" '
    { field = $1; sub(/^[^ ]+ /, ""); value[field] = $0 }
    END {
      count = split(fields, asked, ",")
      for (i = 1; i <= count; i++) {
        if (!(asked[i] in value)) { print "Field \"" asked[i] "\" is not a valid field to query."; exit 2 }
        printf "%s%s", value[asked[i]], (i < count ? ", " : "\n")
      }
    }' "$here/values" ;;
--query-compute-apps=*) cat "$here/processes" ;;
*) echo "unknown: $*"; exit 2 ;;
esac
"#;

/// The folder with the library, its scenario, and the fake `nvidia-smi`.
#[derive(Debug)]
pub(crate) struct FakeMachine {
    folder: TempDir,
    nvml: FakeNvml,
}

/// The machine, and a folder for its record.
pub(crate) fn machine(binary: String) -> Outcome<(Machine, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let nvml = FakeNvml::install(folder.path())?;
    let fake = FakeMachine { folder, nvml };
    std::fs::write(fake.nvidia_smi(), NVIDIA_SMI)?;
    std::fs::set_permissions(fake.nvidia_smi(), std::fs::Permissions::from_mode(0o755))?;
    fake.idle()?;
    let records = fake.folder.path().join("records");
    Ok((Machine::fake(binary, fake), records))
}

impl FakeMachine {
    /// The path of the fake `nvidia-smi`.
    pub(crate) fn nvidia_smi(&self) -> PathBuf {
        self.folder.path().join("nvidia-smi")
    }

    /// The path of the fake library.
    pub(crate) fn library(&self) -> &Path {
        self.nvml.library()
    }

    /// The GPU does nothing.
    pub(crate) fn idle(&self) -> Outcome<()> {
        self.write((0, 0), 70, None, &json!(0))
    }

    /// This process uses the GPU.
    pub(crate) fn busy(&self, pid: u32, pattern: Pattern) -> Outcome<()> {
        let use_of_time = match pattern {
            Pattern::Steady => json!(97),
            Pattern::Square => json!({"square": {"low": 0, "high": 97, "period_s": 1.4, "duty": 0.5, "phase_s": 0}}),
        };
        self.write((97, 40), 550, Some(pid), &use_of_time)
    }

    /// Writes the same numbers for the library and for `nvidia-smi`.
    fn write(
        &self,
        (utilization, copy): (u32, u32),
        watts: u32,
        pid: Option<u32>,
        use_of_time: &serde_json::Value,
    ) -> Outcome<()> {
        let used = pid.map_or(0, |_| PROCESS_MIB);
        let busy = pid.is_some();
        let (total, reserved) = (81_559_u64, 551_u64);
        let processes = pid.map(|pid| json!({"pid": pid, "memory": PROCESS_MIB << 20, "sm": 90}));
        let gpm = if busy { 90 } else { 0 };
        let scenario = json!({"gpus": [{
            "model": "H100",
            "pci_bus_id": "00000000:10:00.0",
            "processes": processes.into_iter().collect::<Vec<_>>(),
            "values": {
                "memory_total_bytes": total << 20, "memory_reserved_bytes": reserved << 20, "memory_used_bytes": used << 20,
                "utilization_percent": use_of_time, "memory_copy_percent": copy, "power_watts": watts, "power_limit_watts": 700,
                "clock_sm_mhz": 1980, "clock_memory_mhz": 2619, "throttle_reasons": u32::from(!busy),
                "temperature_celsius": 35, "temperature_memory_celsius": 40, "ecc_aggregate_corrected": 3,
                "gpm_graphics_percent": gpm, "gpm_sm_percent": gpm, "gpm_sm_occupancy_percent": gpm, "gpm_dram_percent": gpm,
            },
        }]});
        self.nvml.write_text(&serde_json::to_vec(&scenario)?)?;
        let mut values = String::new();
        let free = total - reserved - used;
        for (field, value) in [
            ("uuid", UUID.to_owned()),
            ("name", "NVIDIA H100 80GB HBM3".to_owned()),
            ("pci.bus_id", "00000000:10:00.0".to_owned()),
            ("driver_version", "550.127.08".to_owned()),
            ("index", "0".to_owned()),
            ("memory.total", total.to_string()),
            ("memory.used", used.to_string()),
            ("memory.reserved", reserved.to_string()),
            ("memory.free", free.to_string()),
            ("utilization.gpu", utilization.to_string()),
            ("utilization.memory", copy.to_string()),
            ("utilization.encoder", "0".to_owned()),
            ("utilization.decoder", "0".to_owned()),
            ("power.draw", format!("{watts}.00")),
            ("enforced.power.limit", "700.00".to_owned()),
            ("clocks.current.sm", "1980".to_owned()),
            ("clocks.current.memory", "2619".to_owned()),
            ("clocks_event_reasons.active", format!("0x{:016x}", u32::from(!busy))),
            ("temperature.gpu", "35".to_owned()),
            ("temperature.memory", "40".to_owned()),
            ("ecc.errors.corrected.volatile.total", "0".to_owned()),
            ("ecc.errors.uncorrected.volatile.total", "0".to_owned()),
            ("ecc.errors.corrected.aggregate.total", "3".to_owned()),
            ("ecc.errors.uncorrected.aggregate.total", "0".to_owned()),
            ("retired_pages.single_bit_ecc.count", "[N/A]".to_owned()),
            ("retired_pages.double_bit.count", "[N/A]".to_owned()),
        ] {
            writeln!(values, "{field} {value}")?;
        }
        std::fs::write(self.folder.path().join("values"), values)?;
        let processes = pid.map_or(String::new(), |pid| format!("{UUID}, {pid}, {PROCESS_MIB}\n"));
        std::fs::write(self.folder.path().join("processes"), processes)?;
        Ok(())
    }
}
