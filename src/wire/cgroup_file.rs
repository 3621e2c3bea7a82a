//! Files of cgroups, version 1 and 2, as the kernel writes them.
//!
//! ```text
//!   one number            cpuacct.usage  memory.current  pids.current
//!   a number or `max`     memory.max, and in v1 a number that means "no limit"
//!   `key value` lines     cpu.stat  memory.stat  memory.events  memory.oom_control
//!   one line per device   io.stat  blkio.throttle.*
//! ```
//!
//! What must never happen here: a number from an incomplete file. The kernel ends every file with a newline, so a file
//! without a newline at its end is [`MalformedCgroupFile::Incomplete`]. A missing key that every kernel writes is an
//! error, never 0.

use model::cgroup::ProcessIo;
use model::unit::{Bytes, Count, Nanos};

/// Why the text of a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCgroupFile {
    /// The file is empty, or its last line has no newline.
    #[error("the file is incomplete: its last line has no newline")]
    Incomplete,
    /// A value that must be a number is not a number, or is too large.
    #[error("{0} is not a number")]
    NotANumber(&'static str),
    /// A line or key that every kernel writes is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// The lines of a complete file.
///
/// # Errors
/// [`MalformedCgroupFile::Incomplete`].
pub fn lines(text: &[u8]) -> Result<impl Iterator<Item = &[u8]>, MalformedCgroupFile> {
    let body = text.strip_suffix(b"\n").ok_or(MalformedCgroupFile::Incomplete)?;
    Ok(body.split(|b| *b == b'\n'))
}

/// The fields of a line, separated by white space.
pub fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// A decimal number that has only digits and fits.
#[must_use]
pub fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads a file with one number.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn number(text: &[u8]) -> Result<u64, MalformedCgroupFile> {
    let line = text.strip_suffix(b"\n").ok_or(MalformedCgroupFile::Incomplete)?;
    digits(line).ok_or(MalformedCgroupFile::NotANumber("the value"))
}

/// A v1 limit of this number or more means "no limit": the kernel writes `i64::MAX`, rounded down to its page size (4
/// KiB or 64 KiB).
const NO_LIMIT: u64 = 1 << 62;

/// Reads `memory.max` or `memory.limit_in_bytes`; `None` without a limit.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn memory_limit(text: &[u8]) -> Result<Option<Bytes>, MalformedCgroupFile> {
    if text == b"max\n" {
        return Ok(None);
    }
    Ok(Some(number(text)?).filter(|limit| *limit < NO_LIMIT).map(Bytes))
}

/// Reads `cpu.max` (`50000 100000`, `max 100000`) as cores; `None` without a limit.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn cpu_max(text: &[u8]) -> Result<Option<f64>, MalformedCgroupFile> {
    let line = text.strip_suffix(b"\n").ok_or(MalformedCgroupFile::Incomplete)?;
    let mut fields = fields(line);
    let quota = fields.next().ok_or(MalformedCgroupFile::Missing("quota"))?;
    let period = fields.next().and_then(digits).ok_or(MalformedCgroupFile::NotANumber("period"))?;
    if quota == b"max" {
        return Ok(None);
    }
    cores(digits(quota).ok_or(MalformedCgroupFile::NotANumber("quota"))?, period)
}

/// Reads `cpu.cfs_quota_us` and `cpu.cfs_period_us` as cores; `None` without a limit (`-1`).
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn cfs_limit(quota: &[u8], period: &[u8]) -> Result<Option<f64>, MalformedCgroupFile> {
    if quota == b"-1\n" {
        return Ok(None);
    }
    cores(number(quota)?, number(period)?)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds far below 2^53")]
fn cores(quota: u64, period: u64) -> Result<Option<f64>, MalformedCgroupFile> {
    if period == 0 { Err(MalformedCgroupFile::NotANumber("period")) } else { Ok(Some(quota as f64 / period as f64)) }
}

/// The content of `cpu.stat`. In v1 it has only the throttling; in v2 without the cpu controller it has only the CPU
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStat {
    /// Total, user and system time (v2).
    pub used: Option<(Nanos, Nanos, Nanos)>,
    /// Number of enforcement periods, number of throttled periods, and throttled time.
    pub throttled: Option<(Count, Count, Nanos)>,
}

/// Reads `cpu.stat` of cgroup v1 or v2.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn cpu_stat(text: &[u8]) -> Result<CpuStat, MalformedCgroupFile> {
    let [usage, user, system, periods, times, usec, nsec] = keys(
        text,
        [
            b"usage_usec",
            b"user_usec",
            b"system_usec",
            b"nr_periods",
            b"nr_throttled",
            b"throttled_usec",
            b"throttled_time",
        ],
    )?;
    let micros = |number: u64| Nanos(number.saturating_mul(1000));
    let used = match (usage, user, system) {
        (Some(usage), Some(user), Some(system)) => Some((micros(usage), micros(user), micros(system))),
        (None, None, None) => None,
        _ => return Err(MalformedCgroupFile::Missing("usage_usec, user_usec or system_usec")),
    };
    let throttled = match (periods, times, usec.map(micros).or(nsec.map(Nanos))) {
        (Some(periods), Some(times), Some(time)) => Some((Count(periods), Count(times), time)),
        (None, None, None) => None,
        _ => return Err(MalformedCgroupFile::Missing("nr_periods, nr_throttled or the time throttled")),
    };
    if used.is_none() && throttled.is_none() {
        Err(MalformedCgroupFile::Missing("all of cpu.stat"))
    } else {
        Ok(CpuStat { used, throttled })
    }
}

/// Reads `cpuacct.stat`: user and system time in clock ticks.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn cpuacct_stat(text: &[u8]) -> Result<(u64, u64), MalformedCgroupFile> {
    let [user, system] = keys(text, [b"user", b"system"])?;
    Ok((user.ok_or(MalformedCgroupFile::Missing("user"))?, system.ok_or(MalformedCgroupFile::Missing("system"))?))
}

/// The fields that are read from `memory.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Anonymous memory.
    pub rss: Bytes,
    /// Page cache.
    pub cache: Bytes,
    /// File pages that were not used recently.
    pub inactive_file: Bytes,
    /// Swap in use (v1, if the kernel accounts for swap; v2 has a separate file).
    pub swap: Option<Bytes>,
}

/// Reads `memory.stat`: the `total_…` lines of v1, which include the cgroups below, or the names of v2.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn memory_stat(text: &[u8]) -> Result<MemoryStat, MalformedCgroupFile> {
    let [rss, cache, inactive, swap, anon, file, inactive_v2] = keys(
        text,
        [b"total_rss", b"total_cache", b"total_inactive_file", b"total_swap", b"anon", b"file", b"inactive_file"],
    )?;
    let v1 = rss.zip(cache).zip(inactive);
    let v2 = anon.zip(file).zip(inactive_v2);
    let ((rss, cache), inactive) = v1.or(v2).ok_or(MalformedCgroupFile::Missing("rss, cache or inactive_file"))?;
    Ok(MemoryStat { rss: Bytes(rss), cache: Bytes(cache), inactive_file: Bytes(inactive), swap: swap.map(Bytes) })
}

/// Reads `oom_kill` from `memory.events` or `memory.oom_control`; `None` on a kernel before 4.13, which has no such
/// line in v1.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn oom_kills(text: &[u8]) -> Result<Option<Count>, MalformedCgroupFile> {
    let [kills] = keys(text, [b"oom_kill"])?;
    Ok(kills.map(Count))
}

/// The values of these keys in a file of `key value` lines. Other lines are skipped, but must end with a
/// newline.
fn keys<const N: usize>(text: &[u8], names: [&[u8]; N]) -> Result<[Option<u64>; N], MalformedCgroupFile> {
    let mut found = [None; N];
    for line in lines(text)? {
        let Some(space) = line.iter().position(|b| *b == b' ') else { continue };
        let (key, value) = (&line[..space], &line[space + 1..]);
        if let Some(at) = names.iter().position(|name| *name == key) {
            found[at] = Some(digits(value).ok_or(MalformedCgroupFile::NotANumber("a value"))?);
        }
    }
    Ok(found)
}

/// Block I/O summed over devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockIo {
    /// Reads from devices: bytes in `io.stat` and `…io_service_bytes`, operations in `…io_serviced`.
    pub read: u64,
    /// Writes to devices, in the unit of `read`.
    pub write: u64,
    /// Read operations (`io.stat` only).
    pub reads: u64,
    /// Write operations (`io.stat` only).
    pub writes: u64,
    /// Number of devices in the file, without stacked devices.
    pub devices: u32,
}

/// Reads `io.stat`. Devices whose major number is in `stacked` (loop, md, device-mapper) are skipped, because their I/O
/// is counted again on the disk below them.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn io_stat(text: &[u8], stacked: &[u32]) -> Result<BlockIo, MalformedCgroupFile> {
    let mut sum = BlockIo::default();
    if text.is_empty() {
        return Ok(sum); // no device has been used yet; only this file and `cgroup.procs` may be empty
    }
    for line in lines(text)? {
        let mut fields = fields(line);
        let Some(major) = fields.next().and_then(major) else {
            return Err(MalformedCgroupFile::NotANumber("the device"));
        };
        if stacked.contains(&major) {
            continue;
        }
        sum.devices += 1;
        for field in fields {
            let slot = match field.split(|b| *b == b'=').next() {
                Some(b"rbytes") => &mut sum.read,
                Some(b"wbytes") => &mut sum.write,
                Some(b"rios") => &mut sum.reads,
                Some(b"wios") => &mut sum.writes,
                _ => continue,
            };
            let value = field.iter().position(|b| *b == b'=').and_then(|at| digits(&field[at + 1..]));
            *slot = slot.saturating_add(value.ok_or(MalformedCgroupFile::NotANumber("a counter"))?);
        }
    }
    Ok(sum)
}

/// Reads `blkio.throttle.io_service_bytes[_recursive]` or `…io_serviced…` (v1). Without any I/O the file names no
/// device and has only the line `Total 0`.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn blkio(text: &[u8], stacked: &[u32]) -> Result<BlockIo, MalformedCgroupFile> {
    let mut sum = BlockIo::default();
    let mut last = None;
    for line in lines(text)? {
        let mut fields = fields(line);
        let (device, name, value) = (fields.next(), fields.next(), fields.next());
        if device == Some(b"Total") {
            continue;
        }
        let Some(number) = device.and_then(major) else { return Err(MalformedCgroupFile::NotANumber("the device")) };
        let value = value.and_then(digits).ok_or(MalformedCgroupFile::NotANumber("a counter"))?;
        if stacked.contains(&number) {
            continue;
        }
        if last != device {
            sum.devices += 1;
            last = device;
        }
        match name {
            Some(b"Read") => sum.read = sum.read.saturating_add(value),
            Some(b"Write") => sum.write = sum.write.saturating_add(value),
            _ => {}
        }
    }
    Ok(sum)
}

/// The major number of `8:0`.
fn major(device: &[u8]) -> Option<u32> {
    let colon = device.iter().position(|b| *b == b':')?;
    digits(&device[colon + 1..])?;
    u32::try_from(digits(&device[..colon])?).ok()
}

/// Reads the totals of one pressure file: the time in which some tasks waited, and the time in which all tasks waited.
/// Before Linux 5.13 the file of processor pressure has no `full` line; the kernel defines this value as 0.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn pressure(text: &[u8]) -> Result<(Nanos, Nanos), MalformedCgroupFile> {
    let (mut some, mut full) = (None, Nanos(0));
    for line in lines(text)? {
        let total = fields(line).find_map(|field| field.strip_prefix(b"total=")).and_then(digits);
        let total = Nanos(total.ok_or(MalformedCgroupFile::NotANumber("total"))?.saturating_mul(1000));
        match fields(line).next() {
            Some(b"some") => some = Some(total),
            Some(b"full") => full = total,
            _ => {}
        }
    }
    Ok((some.ok_or(MalformedCgroupFile::Missing("some"))?, full))
}

/// Calls `each` for every PID in `cgroup.procs`. A 0 stands for a process outside the agent's PID namespace, which has
/// no PID here (v2; v1 omits such processes). Returns the number of these processes.
///
/// # Errors
/// [`MalformedCgroupFile`], after `each` was called for the PIDs before the fault.
pub fn processes(text: &[u8], mut each: impl FnMut(u32)) -> Result<u32, MalformedCgroupFile> {
    let mut hidden = 0u32;
    if text.is_empty() {
        return Ok(hidden); // the cgroup has no process
    }
    for line in lines(text)? {
        let pid =
            digits(line).and_then(|pid| u32::try_from(pid).ok()).ok_or(MalformedCgroupFile::NotANumber("a process"))?;
        match pid {
            0 => hidden = hidden.saturating_add(1),
            pid => each(pid),
        }
    }
    Ok(hidden)
}

/// Reads `/proc/<pid>/io`: the bytes that a process read from storage and wrote to it.
///
/// # Errors
/// [`MalformedCgroupFile`].
pub fn process_io(text: &[u8]) -> Result<ProcessIo, MalformedCgroupFile> {
    let [read, write] = keys(text, [b"read_bytes:", b"write_bytes:"])?;
    match (read, write) {
        (Some(read), Some(write)) => Ok(ProcessIo { read: Bytes(read), write: Bytes(write) }),
        _ => Err(MalformedCgroupFile::Missing("read_bytes or write_bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_incomplete_number_is_an_error() {
        assert_eq!(number(b"18446744073709551615\n"), Ok(u64::MAX));
        for bad in [&b""[..], b"12", b"\n", b"-1\n", b"12 \n", b"18446744073709551616\n", b"1\n2\n", b"\xff\n"] {
            assert!(number(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_missing_limit_is_recognised_in_both_versions() {
        for (text, limit) in [
            (&b"max\n"[..], None),
            (b"9223372036854771712\n", None),
            (b"9223372036854710272\n", None),
            (b"67108864\n", Some(Bytes(64 << 20))),
        ] {
            assert_eq!(memory_limit(text), Ok(limit));
        }
        assert_eq!(cpu_max(b"max 100000\n"), Ok(None));
        assert_eq!(cpu_max(b"150000 100000\n"), Ok(Some(1.5)));
        assert_eq!(cfs_limit(b"-1\n", b"100000\n"), Ok(None));
        assert_eq!(cfs_limit(b"50000\n", b"100000\n"), Ok(Some(0.5)));
        assert!(cfs_limit(b"5\n", b"0\n").is_err());
        assert!(cpu_max(b"5 0\n").is_err());
    }

    #[test]
    fn cpu_stat_of_both_versions_is_read_in_nanoseconds() {
        let v1 = cpu_stat(b"nr_periods 7\nnr_throttled 3\nthrottled_time 12345\nnr_bursts 0\n").unwrap();
        assert_eq!(v1, CpuStat { used: None, throttled: Some((Count(7), Count(3), Nanos(12345))) });
        let v2 = cpu_stat(b"usage_usec 9\nuser_usec 5\nsystem_usec 4\nnice_usec 0\n").unwrap();
        assert_eq!(v2, CpuStat { used: Some((Nanos(9000), Nanos(5000), Nanos(4000))), throttled: None });
        assert_eq!(cpu_stat(b"usage_usec 9\nuser_us"), Err(MalformedCgroupFile::Incomplete));
        assert!(cpu_stat(b"usage_usec 9\n").is_err());
        assert!(cpu_stat(b"\n").is_err());
    }

    #[test]
    fn memory_stat_takes_the_hierarchy_in_v1_and_the_new_names_in_v2() {
        let v1 =
            memory_stat(b"cache 1\nrss 1\ninactive_file 1\ntotal_cache 30\ntotal_rss 20\ntotal_inactive_file 10\n");
        let v2 = memory_stat(b"anon 20\nfile 30\nkernel 4\ninactive_file 10\n");
        let expected = MemoryStat { rss: Bytes(20), cache: Bytes(30), inactive_file: Bytes(10), swap: None };
        assert_eq!((v1, v2), (Ok(expected), Ok(expected)));
        let accounted = memory_stat(b"swap 1\ntotal_cache 30\ntotal_rss 20\ntotal_inactive_file 10\ntotal_swap 7\n");
        assert_eq!(accounted, Ok(MemoryStat { swap: Some(Bytes(7)), ..expected }));
        assert!(memory_stat(b"anon 20\nfile 30\n").is_err());
    }

    #[test]
    fn oom_kills_are_read_from_both_files() {
        assert_eq!(oom_kills(b"low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n"), Ok(Some(Count(2))));
        assert_eq!(oom_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Ok(Some(Count(3))));
        assert_eq!(oom_kills(b"oom_kill_disable 0\nunder_oom 0\n"), Ok(None));
    }

    #[test]
    fn block_io_is_summed_over_disks_without_stacked_devices() {
        let text = b"259:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n253:0 rbytes=10 wbytes=20 rios=1 wios=2\n8:0 rbytes=1 wbytes=1 rios=1 wios=1\n";
        assert_eq!(io_stat(text, &[253]), Ok(BlockIo { read: 11, write: 21, reads: 2, writes: 3, devices: 2 }));
        assert_eq!(io_stat(b"", &[]), Ok(BlockIo::default()));
        assert!(io_stat(b"8:0 rbytes=1", &[]).is_err());
        assert!(io_stat(b"8:0 rbytes\n", &[]).is_err());
        let v1 =
            b"8:0 Read 5\n8:0 Write 6\n8:0 Sync 11\n8:0 Async 0\n8:0 Total 11\n8:16 Read 1\n8:16 Total 1\nTotal 12\n";
        assert_eq!(blkio(v1, &[]), Ok(BlockIo { read: 6, write: 6, devices: 2, ..BlockIo::default() }));
        assert_eq!(blkio(b"Total 0\n", &[]), Ok(BlockIo::default()));
        assert!(blkio(b"8:0 Read\n", &[]).is_err());
    }

    #[test]
    fn pressure_totals_are_microseconds() {
        let text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        assert_eq!(pressure(text), Ok((Nanos(7000), Nanos(3000))));
        assert_eq!(pressure(b"some avg10=0.00 total=7\n"), Ok((Nanos(7000), Nanos(0))));
        assert!(pressure(b"full total=1\n").is_err());
    }

    #[test]
    fn processes_outside_the_pid_namespace_are_counted() {
        let mut seen = Vec::new();
        assert_eq!(processes(b"1\n0\n4194304\n0\n", |pid| seen.push(pid)), Ok(2));
        assert_eq!(seen, [1, 4_194_304]);
        assert_eq!(processes(b"", |_| {}), Ok(0));
        assert!(processes(b"1\n41", |_| {}).is_err());
        assert!(processes(b"4294967296\n", |_| {}).is_err());
    }

    #[test]
    fn the_io_of_a_process_is_read() {
        let text = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n";
        assert_eq!(process_io(text), Ok(ProcessIo { read: Bytes(5), write: Bytes(6) }));
        assert!(process_io(&text[..60]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(text in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"0123456789 \n:=max".to_vec())], 0..200)) {
            let _ = (number(&text), memory_limit(&text), cpu_max(&text), cfs_limit(&text, &text), cpu_stat(&text));
            let _ = (cpuacct_stat(&text), memory_stat(&text), oom_kills(&text), io_stat(&text, &[7]), blkio(&text, &[7]));
            let _ = (pressure(&text), processes(&text, |_| {}), process_io(&text));
        }

        #[test]
        fn a_file_cut_anywhere_is_an_error_and_never_a_smaller_number(usage in any::<u64>(), cut in 0usize..60) {
            let text = format!("usage_usec {usage}\nuser_usec {usage}\nsystem_usec {usage}\n");
            let incomplete = &text.as_bytes()[..cut.min(text.len() - 1)];
            prop_assert!(cpu_stat(incomplete).is_err());
            let alone = format!("{usage}\n");
            prop_assert!(number(&alone.as_bytes()[..alone.len() - 1]).is_err());
        }
    }
}
