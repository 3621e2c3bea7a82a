//! This program's use of memory, CPU time and files, from `/proc/self`. The metrics server reads nothing else from
//! the host.

use crate::metrics::ProcessFootprint;
use model::time::{Monotonic, Now};
use model::unit::{Bytes, Count};
use model::{Absence, Reading};
use rustix::process::Resource;
use rustix::time::ClockId;
use std::fs;
use wire::proc_file::stat;
use wire::proc_line::status;

/// Reads the values; this takes about 50 µs.
pub(super) fn read(now: Now) -> ProcessFootprint {
    let at = now.monotonic;
    let reading = |value: Option<u64>| Reading::from_result(value.ok_or(Absence::Unreadable), at);
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| reading(status(&text, key).and_then(|kib| kib.checked_mul(1024))).map(Bytes);
    ProcessFootprint {
        started_seconds: Reading::from_result(started(now).ok_or(Absence::Unreadable), at),
        cpu_seconds: Reading::from_result(cpu_seconds().ok_or(Absence::Unreadable), at),
        resident: kib("VmRSS:"),
        address_space: kib("VmSize:"),
        files: reading(files()).map(Count),
        files_limit: reading(rustix::process::getrlimit(Resource::Nofile).current).map(Count),
        threads: reading(status(&text, "Threads:")).map(Count),
    }
}

/// The number of open files. Since Linux 6.2 it is the size of the directory. On older kernels the directory is
/// listed, which takes a millisecond for 2,500 files.
fn files() -> Option<u64> {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER).ok()?.len() {
        0 => fs::read_dir(FOLDER).ok().map(|entries| entries.count() as u64),
        size => Some(size),
    }
}

fn cpu_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    Some(std::time::Duration::new(seconds, nanos).as_secs_f64())
}

/// The start time of the program. `/proc/self/stat` has it in clock ticks since boot.
fn started(now: Now) -> Option<f64> {
    let text = fs::read("/proc/self/stat").ok()?;
    let nanos = stat(&text).ok()?.start_ticks.checked_mul(1_000_000_000)? / rustix::param::clock_ticks_per_second();
    Some(now.wall_of(Monotonic(nanos)).as_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_footprint_of_this_process_has_memory_files_and_threads() {
        let now = Now { monotonic: Monotonic(u64::MAX), wall: model::time::WallTime(u64::MAX) };
        let footprint = read(now);
        assert!(footprint.started_seconds.get().is_some());
        assert!(footprint.resident.get().unwrap().0 > 100_000);
        let listed = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let files = footprint.files.get().unwrap().0;
        assert!(files >= 3 && files.abs_diff(listed) < 100, "{files} beside {listed}: other tests open some meanwhile");
        assert!(footprint.threads.get().unwrap().0 >= 1);
        assert!(footprint.cpu_seconds.get().unwrap() > 0.0);
    }
}
