//! The files of `/proc` that describe the whole machine, parsed by the crate `procfs-core`
//! (docs/decisions/0072).
//!
//! ```text
//!   bytes ──complete? ASCII?──▶ procfs-core ──▶ the values of a sample
//! ```
//!
//! What must never happen here: a number from an incomplete file; a value for a key that the kernel did not write; a
//! panic. `procfs-core` cuts texts at byte positions and multiplies without a check, so a text is checked first.

use model::unit::{Bytes, Count};
use procfs_core::{Devices, DiskStat, ExplicitSystemInfo, FromBufRead, FromBufReadSI, FromRead, KernelStats};
use procfs_core::{LoadAverage, Meminfo, VmStat};

/// A file that does not have the form in which the kernel writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file is incomplete or not in the kernel's form")]
pub struct MalformedHostFile;

impl From<procfs_core::ProcError> for MalformedHostFile {
    fn from(_: procfs_core::ProcError) -> Self {
        MalformedHostFile // its text names a line of procfs-core's source and asks to report a bug
    }
}

/// The text of a complete file. The kernel ends each file with a newline and writes only ASCII.
fn complete(text: &[u8]) -> Result<&str, MalformedHostFile> {
    let text = str::from_utf8(text).map_err(|_| MalformedHostFile)?;
    if text.is_ascii() && text.ends_with('\n') { Ok(text) } else { Err(MalformedHostFile) }
}

/// The values used from `/proc/stat`; times are clock ticks of all processors since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStat {
    /// Time in user mode, including nice.
    pub user_ticks: u64,
    /// Time in the kernel, including interrupts.
    pub system_ticks: u64,
    /// Idle time.
    pub idle_ticks: u64,
    /// Idle time while a task waited for storage.
    pub iowait_ticks: u64,
    /// Time that the hypervisor took.
    pub steal_ticks: u64,
    /// Number of online processors.
    pub processors: u64,
    /// Time of boot in seconds since 1970.
    pub boot_seconds: u64,
}

/// Reads `/proc/stat`.
///
/// # Errors
/// [`MalformedHostFile`].
pub fn host_stat(text: &[u8]) -> Result<HostStat, MalformedHostFile> {
    // Only conversions to milliseconds would use these values.
    let system = ExplicitSystemInfo { boot_time_secs: 0, ticks_per_second: 1, page_size: 1, is_little_endian: true };
    let stat = KernelStats::from_buf_read(complete(text)?.as_bytes(), &system)?;
    let cpu = stat.total;
    let (Some(iowait_ticks), Some(irq), Some(softirq), Some(steal_ticks)) =
        (cpu.iowait, cpu.irq, cpu.softirq, cpu.steal)
    else {
        return Err(MalformedHostFile);
    };
    Ok(HostStat {
        user_ticks: cpu.user.saturating_add(cpu.nice),
        system_ticks: cpu.system.saturating_add(irq).saturating_add(softirq),
        idle_ticks: cpu.idle,
        iowait_ticks,
        steal_ticks,
        processors: stat.cpu_time.len() as u64,
        boot_seconds: stat.btime,
    })
}

/// The values used from `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// Total memory.
    pub total: Bytes,
    /// Memory available to new programs; absent on kernels before 3.14.
    pub available: Option<Bytes>,
    /// Anonymous memory; absent on kernels before 2.6.18.
    pub anonymous: Option<Bytes>,
    /// Page cache and buffers.
    pub cache: Bytes,
    /// Swap in use.
    pub swap_used: Bytes,
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// [`MalformedHostFile`].
pub fn meminfo(text: &[u8]) -> Result<MemInfo, MalformedHostFile> {
    let text = complete(text)?;
    // procfs-core multiplies a value by its unit without a check, so the product must fit. The kernel writes only kB.
    let fits = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        match words.next() {
            None => true,
            Some("kB") => value.is_some_and(|value| value <= u64::MAX >> 10),
            Some(_) => false,
        }
    };
    if !text.lines().all(fits) {
        return Err(MalformedHostFile);
    }
    let memory = Meminfo::from_buf_read(text.as_bytes())?;
    Ok(MemInfo {
        total: Bytes(memory.mem_total),
        available: memory.mem_available.map(Bytes),
        anonymous: memory.anon_pages.map(Bytes),
        cache: Bytes(memory.cached).plus(Bytes(memory.buffers)),
        swap_used: Bytes(memory.swap_total).less(Bytes(memory.swap_free)),
    })
}

/// The values used from `/proc/loadavg`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostLoad {
    /// Load averages over 1, 5 and 15 minutes.
    pub loads: [f64; 3],
    /// Number of processes and threads of the machine.
    pub tasks: u64,
}

/// Reads `/proc/loadavg`.
///
/// # Errors
/// [`MalformedHostFile`].
pub fn loadavg(text: &[u8]) -> Result<HostLoad, MalformedHostFile> {
    let load = LoadAverage::from_read(complete(text)?.as_bytes())?;
    let loads = [load.one, load.five, load.fifteen];
    if !loads.iter().all(|load| load.is_finite() && *load >= 0.0) {
        return Err(MalformedHostFile);
    }
    // procfs-core has `f32`: a load of 0.01 would be shown as 0.009999999776. The kernel writes hundredths.
    let loads = loads.map(|load| (f64::from(load) * 100.0).round() / 100.0);
    Ok(HostLoad { loads, tasks: u64::from(load.max) })
}

/// I/O of a disk since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskIo {
    /// Bytes read.
    pub read: Bytes,
    /// Bytes written.
    pub write: Bytes,
    /// Read operations.
    pub reads: Count,
    /// Write operations.
    pub writes: Count,
}

/// Calls `each` for every device of `/proc/diskstats`. The kernel counts sectors of 512 bytes, whatever the sector size
/// of the disk (Documentation/block/stat.rst).
///
/// # Errors
/// [`MalformedHostFile`], after `each` was called for the devices before the fault.
pub fn diskstats(text: &[u8], mut each: impl FnMut(&[u8], DiskIo)) -> Result<(), MalformedHostFile> {
    if text.is_empty() {
        return Ok(()); // a machine without a disk
    }
    let bytes = |sectors: u64| Bytes(sectors.saturating_mul(512));
    for line in complete(text)?.lines() {
        let disk = DiskStat::from_line(line)?;
        let (read, write) = (bytes(disk.sectors_read), bytes(disk.sectors_written));
        let (reads, writes) = (Count(disk.reads), Count(disk.writes));
        each(disk.name.as_bytes(), DiskIo { read, write, reads, writes });
    }
    Ok(())
}

/// Reads the number of OOM kills from `/proc/vmstat`; `None` on a kernel before 4.13, which does not count them.
///
/// # Errors
/// [`MalformedHostFile`].
pub fn oom_kills(text: &[u8]) -> Result<Option<Count>, MalformedHostFile> {
    let VmStat(values) = VmStat::from_buf_read(complete(text)?.as_bytes())?;
    let kills = values.get("oom_kill").map(|kills| u64::try_from(*kills).map(Count));
    kills.transpose().map_err(|_| MalformedHostFile)
}

/// Major numbers of block devices above other block devices or without a disk (loop, md, device-mapper, ram, zram),
/// from `/proc/devices`. Their I/O is counted again on the disk below, or never reaches a disk.
///
/// # Errors
/// [`MalformedHostFile`].
pub fn stacked_majors(text: &[u8]) -> Result<Vec<u32>, MalformedHostFile> {
    let devices = Devices::from_buf_read(complete(text)?.as_bytes())?;
    let stacked = ["loop", "md", "mdp", "device-mapper", "ramdisk", "zram"];
    let block = devices.block_devices.into_iter().filter(|device| stacked.contains(&device.name.as_str()));
    Ok(block.filter_map(|device| u32::try_from(device.major).ok()).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A `meminfo` with these lines (`MemTotal: 1 kB`) in place of the kernel's, and all other lines that a kernel
    /// always writes.
    pub(crate) fn meminfo_with(lines: &[&str]) -> String {
        let always = "MemTotal MemFree Buffers Cached SwapCached Active Inactive SwapTotal SwapFree Dirty Writeback Mapped Slab Committed_AS VmallocTotal VmallocUsed VmallocChunk";
        let given = |key: &&str| !lines.iter().any(|line| line.split(':').next() == Some(*key));
        let rest = always.split(' ').filter(given).map(|key| format!("{key}: 0 kB\n"));
        lines.iter().map(|line| format!("{line}\n")).chain(rest).collect()
    }

    #[test]
    fn the_times_of_all_processors_are_read() {
        let text = "cpu  1 2 3 4 5 6 7 8 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 5 1\nctxt 5\nbtime 1000\nprocesses 7\n";
        let expected = HostStat {
            user_ticks: 3,
            system_ticks: 16,
            idle_ticks: 4,
            iowait_ticks: 5,
            steal_ticks: 8,
            processors: 2,
            boot_seconds: 1000,
        };
        assert_eq!(host_stat(text.as_bytes()), Ok(expected));
        assert!(host_stat(&text.as_bytes()[..text.len() - 1]).is_err(), "cut off");
        assert!(host_stat(text.replace("btime 1000\n", "").as_bytes()).is_err());
        assert!(host_stat(text.replace("cpu  1 2 3 4 5 6 7 8 9 9\n", "cpu 1 2 3 4\n").as_bytes()).is_err());
    }

    #[test]
    fn memory_is_read_and_what_a_kernel_does_not_write_is_absent() {
        let lines = [
            "MemTotal: 100 kB",
            "MemAvailable: 50 kB",
            "Buffers: 1 kB",
            "Cached: 4 kB",
            "SwapTotal: 9 kB",
            "SwapFree: 4 kB",
            "AnonPages: 7 kB",
            "HugePages_Rsvd: 18446744073709551615",
        ];
        let memory = meminfo(meminfo_with(&lines).as_bytes()).unwrap();
        assert_eq!((memory.total, memory.available), (Bytes(102_400), Some(Bytes(51_200))));
        assert_eq!((memory.cache, memory.swap_used), (Bytes(5120), Bytes(5120)));
        assert_eq!(memory.anonymous, Some(Bytes(7168)));
        let old = meminfo(meminfo_with(&["MemTotal: 1 kB"]).as_bytes()).unwrap();
        assert_eq!((old.available, old.anonymous), (None, None));
        for wrong in ["MemTotal: x kB", "MemTotal: 18446744073709551615 kB", "Memé: 1 kB", "é 1", "MemTotal:"] {
            assert_eq!(meminfo(meminfo_with(&[wrong]).as_bytes()), Err(MalformedHostFile), "{wrong}");
        }
        assert!(meminfo(b"MemTotal: 1 kB\nCached: 1 kB\n").is_err(), "all other lines are missing");
    }

    #[test]
    fn loads_are_the_hundredths_that_the_kernel_wrote() {
        let load = HostLoad { loads: [0.01, 1.25, 1234.56], tasks: 100 };
        assert_eq!(loadavg(b"0.01 1.25 1234.56 3/100 4242\n"), Ok(load));
        for torn in ["0.50 1.25 2.00\n", "0.50 1.25 2.00 3\n", "0.50 1.25 2.00 3/ 7\n", "0.50 1.25 2.00 3/x 7\n"] {
            assert!(loadavg(torn.as_bytes()).is_err(), "{torn:?}");
        }
        for wrong in ["0.50 1.25 2.00 3/100 4242", "0.50 nan 1 3/100 1\n", "-1 0 0 3/100 1\n", "inf 0 0 3/100 1\n"] {
            assert!(loadavg(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn disks_count_sectors_of_512_bytes() {
        let mut seen = Vec::new();
        let text = b" 254 0 vda 9 1 100 5 8 2 200 10 0 12 15 6 14 8 8 2 1\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n";
        diskstats(text, |name, io| seen.push((name.to_vec(), io))).unwrap();
        let vda = DiskIo { read: Bytes(51_200), write: Bytes(102_400), reads: Count(9), writes: Count(8) };
        assert_eq!(seen, [(b"vda".to_vec(), vda), (b"loop0".to_vec(), DiskIo::default())]);
        assert!(diskstats(b" 254 0 vda 9 1\n", |_, _| {}).is_err());
        assert_eq!(diskstats(b"", |_, _| {}), Ok(()));
    }

    #[test]
    fn oom_kills_are_known_from_linux_4_13_on() {
        assert_eq!(oom_kills(b"nr_free_pages 1\noom_kill 7\n"), Ok(Some(Count(7))));
        assert_eq!(oom_kills(b"nr_free_pages 1\noom_kill_x 7\n"), Ok(None));
        assert!(oom_kills(b"nr_free_pages 1\noom_kill 7").is_err(), "cut off");
        assert!(oom_kills(b"oom_kill -1\n").is_err());
    }

    #[test]
    fn stacked_devices_are_known_by_their_driver() {
        let text = b"Character devices:\n  7 vcs\n  9 md\n\nBlock devices:\n  7 loop\n  8 sd\n253 device-mapper\n";
        assert_eq!(stacked_majors(text), Ok(vec![7, 253]));
    }

    #[test]
    fn the_files_of_the_machine_of_the_test_are_read() {
        let text = |name: &str| std::fs::read(format!("/proc/{name}")).unwrap();
        assert!(host_stat(&text("stat")).unwrap().processors > 0);
        assert!(meminfo(&text("meminfo")).unwrap().available.unwrap().0 > 0);
        assert!(loadavg(&text("loadavg")).unwrap().tasks > 0);
        assert_eq!(diskstats(&text("diskstats"), |_, _| {}), Ok(()));
        assert!(oom_kills(&text("vmstat")).unwrap().is_some());
        assert!(stacked_majors(&text("devices")).is_ok());
    }

    /// Bytes of any value, and lines that begin as those of the kernel do.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let words = [
            "cpu ",
            "cpu0 ",
            "btime ",
            "ctxt ",
            "MemTotal: ",
            " kB\n",
            " GB\n",
            "é",
            "18446744073709551615",
            "Block devices:\n",
            "oom_kill ",
            "-1",
            "nan ",
            "\n",
            " ",
            "/",
        ];
        let part = prop_oneof![
            prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
            any::<u64>().prop_map(|number| format!("{number} ").into_bytes()),
        ];
        (prop::collection::vec(part, 0..40), any::<bool>()).prop_map(|(parts, ends)| {
            let end: &[u8] = if ends { b"\n" } else { b"" };
            [&parts.concat()[..], end].concat()
        })
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(text in text()) {
            let _ = (host_stat(&text), meminfo(&text), loadavg(&text), diskstats(&text, |_, _| {}));
            let _ = (oom_kills(&text), stacked_majors(&text));
        }

        #[test]
        fn a_file_cut_anywhere_is_never_read_as_a_whole_one(total in 1_u32.., cut in 0_usize..400) {
            let total = format!("MemTotal: {total} kB");
            let text = meminfo_with(&[&total]);
            let cut = &text.as_bytes()[..cut.min(text.len() - 1)];
            prop_assert_eq!(meminfo(cut), Err(MalformedHostFile));
        }

        #[test]
        fn values_of_the_machine_are_read_unchanged(n in any::<[u32; 8]>()) {
            let [a, b, c, d, reads, read, writes, write] = n.map(u64::from);
            let lines = [("MemTotal", a), ("MemAvailable", b), ("Cached", c), ("AnonPages", d)];
            let lines = lines.map(|(key, value)| format!("{key}: {value} kB"));
            let memory = meminfo(meminfo_with(&lines.each_ref().map(String::as_str)).as_bytes()).unwrap();
            prop_assert_eq!((memory.total, memory.available), (Bytes(a * 1024), Some(Bytes(b * 1024))));
            prop_assert_eq!((memory.cache, memory.anonymous), (Bytes(c * 1024), Some(Bytes(d * 1024))));
            let hundredths = f64::from(n[0] % 10_000_000) / 100.0;
            let load = loadavg(format!("{hundredths:.2} 0.01 0.05 {a}/{b} {c}\n").as_bytes()).unwrap();
            prop_assert_eq!((load.tasks, load.loads), (b, [hundredths, 0.01, 0.05]));
            let text = format!("8 0 sda {reads} {a} {read} {b} {writes} {c} {write} {d} 0 0 0\n");
            let io = DiskIo { read: Bytes(read * 512), write: Bytes(write * 512), reads: Count(reads), writes: Count(writes) };
            let mut seen = None;
            diskstats(text.as_bytes(), |_, io| seen = Some(io)).unwrap();
            prop_assert_eq!(seen, Some(io));
            let kills = format!("nr_free_pages {a}\noom_kill {b}\noom_kill_x {c}\n");
            prop_assert_eq!(oom_kills(kills.as_bytes()), Ok(Some(Count(b))));
        }
    }
}
