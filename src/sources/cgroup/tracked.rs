//! One cgroup: its open files and its last readings.
//!
//! ```text
//!   every period         CPU time and memory usage; v2 also user time, system time and throttling (in the same file)
//!   every slow period    memory, tasks, processes, block I/O, pressure; v1 also user and system time, and throttling
//!                        if the cgroup has a quota
//!   every sixth slow     all of these even if the cgroup is idle; the limits, which only a resize of the pod changes;
//!   reading              files that were missing (v2 swap, pressure); v1 throttling without a quota, and v1 block I/O
//!                        where the kernel did not count it
//! ```
//!
//! The two files of every period stay open and cost one `pread` each. A slow reading has eleven files. Three of them
//! stay open: memory, tasks and the v1 CPU times. The other files are opened, read and closed below directories that
//! stay open. If all eleven stayed open, 300 cgroups would cost about 16 MiB of kernel memory. Resolving the whole path
//! of each file takes half of the time of reading it.
//!
//! A cgroup is idle if it used no CPU time and its memory usage did not change since its last slow reading. Half of the
//! cgroups of a usual node, including every sandbox, are idle. In an idle cgroup the agent does not read values again
//! that only the cgroup's own processes can change: memory, tasks, processes, and in v1 CPU times, throttling and block
//! I/O. The last values get a new time. Pressure and v2 block I/O are read even if the cgroup is idle.

use crate::cgroup::kernel::{CgroupFileReader, CgroupGone, Directories, Kept};
use crate::cgroup::layout::{CgroupController, CgroupTrees};
use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::network::NetworkTotals;
use crate::procfs::visibility::ProcVisibility;
use model::cgroup::{CgroupIdentity, CgroupKind, CgroupSample, NetworkSample, Pressure, ProcessIo};
use model::time::Monotonic;
use model::unit::{Bytes, Count, Nanos};
use model::{Absence, Reading};
use std::sync::Arc;
use wire::cgroup_file::{
    self as file, BlockIo, MalformedCgroupFile, blkio, cpu_stat, cpuacct_stat, io_stat, memory_limit, memory_stat,
    number, oom_kills, process_io,
};

/// The limits are read with every sixth slow reading.
const LIMITS_EVERY: u64 = 6;
/// Maximum number of processes of one cgroup whose `io` is read, about 15 µs each. A cgroup with more processes has no
/// sum, because a partial sum would be wrong.
const MAX_IO_PROCESSES: usize = 256;

/// The files of each slow reading that are worth keeping open: three of eleven.
#[derive(Debug, Default)]
struct SlowFiles {
    memory: Kept,
    times: Kept,
    tasks: Kept,
}

/// One cgroup and its last readings. Its files stay open from one reading to the next, because opening the files of
/// thousands of cgroups each time would cost too much.
#[derive(Debug)]
pub struct TrackedCgroup {
    /// The cgroup's path and kind.
    pub identity: Arc<CgroupIdentity>,
    /// The last readings.
    pub sample: CgroupSample,
    /// The network readings, if this cgroup has a network of its own.
    pub network: Reading<NetworkSample>,
    /// State of the network readings.
    pub totals: NetworkTotals,
    /// The pass of each slow period in which this cgroup is read.
    pub turn: u64,
    /// Containers directly in the cgroup, which are tracked separately.
    pub containers: u64,
    cpu: Kept,
    memory: Kept,
    slow: SlowFiles,
    directories: Directories,
    slow_readings: u64,
    /// CPU time and memory usage at the last slow reading.
    last_use: Option<(Nanos, Bytes)>,
    block_io_counts: bool,
}

impl TrackedCgroup {
    /// A cgroup without readings; different `turn`s spread the slow readings over time.
    #[must_use]
    pub fn new(identity: Arc<CgroupIdentity>, turn: u64) -> Self {
        TrackedCgroup {
            identity,
            sample: CgroupSample::default(),
            network: Reading::NOT_YET,
            totals: NetworkTotals::default(),
            turn,
            containers: 0,
            cpu: Kept::Closed,
            memory: Kept::Closed,
            slow: SlowFiles::default(),
            directories: Directories::default(),
            slow_readings: 0,
            last_use: None,
            block_io_counts: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn forget_idle_state(&mut self) {
        self.last_use = None;
    }

    /// Whether no slow reading has been made yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.slow_readings == 0
    }

    /// Closes its open files.
    pub fn release(&mut self, kernel: &mut CgroupFileReader) {
        kernel.close(&mut self.cpu);
        kernel.close(&mut self.memory);
        kernel.close(&mut self.slow.memory);
        kernel.close(&mut self.slow.times);
        kernel.close(&mut self.slow.tasks);
        self.directories.0.iter_mut().for_each(|directory| kernel.close(directory));
    }

    /// Reads CPU time and memory usage.
    ///
    /// # Errors
    /// [`CgroupGone`].
    pub fn read_use(&mut self, kernel: &mut CgroupFileReader) -> Result<(), CgroupGone> {
        let path = &*self.identity.path;
        let memory = match kernel.layout.trees {
            CgroupTrees::One(_) => {
                let stat = kernel.keep(
                    (&mut self.cpu, &mut self.directories),
                    (CgroupController::Cpu, path, "/cpu.stat"),
                    |text| {
                        let stat = cpu_stat(text)?;
                        Ok((stat.used.ok_or(MalformedCgroupFile::Missing("usage_usec"))?, stat.throttled))
                    },
                );
                self.sample.cpu_total = stat.map(|(used, _)| used.0);
                self.sample.cpu_user = stat.map(|(used, _)| used.1);
                self.sample.cpu_system = stat.map(|(used, _)| used.2);
                throttling(&mut self.sample, stat.map(|(_, throttled)| throttled));
                "/memory.current"
            }
            CgroupTrees::Many(_) => {
                let file = (CgroupController::CpuAccounting, path, "/cpuacct.usage");
                self.sample.cpu_total = kernel.keep((&mut self.cpu, &mut self.directories), file, number).map(Nanos);
                "/memory.usage_in_bytes"
            }
        };
        let file = (CgroupController::Memory, path, memory);
        self.sample.memory_usage = kernel.keep((&mut self.memory, &mut self.directories), file, number).map(Bytes);
        kernel.gone(path)
    }

    /// Reads everything else except the network. Call [`TrackedCgroup::read_use`] first, because the working set needs
    /// its reading.
    ///
    /// # Errors
    /// [`CgroupGone`].
    pub fn read_rest(&mut self, kernel: &mut CgroupFileReader) -> Result<(), CgroupGone> {
        let limits = self.slow_readings.is_multiple_of(LIMITS_EVERY);
        self.slow_readings += 1;
        let now = self.sample.cpu_total.get().zip(self.sample.memory_usage.get());
        let idle = now.is_some() && now == self.last_use && !limits;
        self.last_use = now;
        let v2 = matches!(kernel.layout.trees, CgroupTrees::One(_));
        if idle {
            refresh_times(&mut self.sample, v2, clock::monotonic());
        } else {
            self.read_memory(kernel, v2, limits);
            self.read_tasks(kernel);
        }
        if limits {
            self.read_limits(kernel, v2);
        }
        if v2 {
            self.read_block_io_v2(kernel);
        } else if !idle {
            self.read_cpu_v1(kernel, limits);
            // If the kernel does not count, the file is read only along with the limits, to notice when the kernel
            // begins to count.
            if limits || self.sample.io_read.absence() != Some(Absence::KernelDoesNotCount) {
                self.read_block_io_v1(kernel);
            }
        }
        // A v2 tree alongside v1 trees may not have this cgroup. Then the file is read again only along with the
        // limits.
        if limits || self.sample.pressure.absence() != Some(Absence::NoSuchFile) {
            self.read_pressure(kernel);
        }
        kernel.gone(&self.identity.path)
    }

    /// Reads memory. A kernel without swap accounting has no v2 file for swap, which is then read only along with the
    /// limits.
    fn read_memory(&mut self, kernel: &mut CgroupFileReader, v2: bool, limits: bool) {
        let (path, sample, directories) = (&*self.identity.path, &mut self.sample, &mut self.directories);
        let stat = kernel.keep(
            (&mut self.slow.memory, directories),
            (CgroupController::Memory, path, "/memory.stat"),
            memory_stat,
        );
        sample.memory_rss = stat.map(|stat| stat.rss);
        sample.memory_cache = stat.map(|stat| stat.cache);
        if !v2 {
            sample.memory_swap = optional_with(stat.map(|stat| stat.swap), Absence::KernelDoesNotCount);
        } else if limits || sample.memory_swap.absence() != Some(Absence::NoSuchFile) {
            let file = (CgroupController::Memory, path, "/memory.swap.current");
            sample.memory_swap = kernel.take(directories, file, number).map(Bytes);
        }
        sample.memory_working_set = match (stat, sample.memory_usage) {
            (Reading::Measured(stat, at), Reading::Measured(usage, _)) => {
                Reading::Measured(usage.less(stat.inactive_file), at)
            }
            (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
        };
        let name = if v2 { "/memory.events" } else { "/memory.oom_control" };
        sample.oom_kills = optional(kernel.take(directories, (CgroupController::Memory, path, name), oom_kills));
    }

    fn read_limits(&mut self, kernel: &mut CgroupFileReader, v2: bool) {
        let (path, sample, directories) = (&*self.identity.path, &mut self.sample, &mut self.directories);
        let name = if v2 { "/memory.max" } else { "/memory.limit_in_bytes" };
        sample.memory_limit = kernel.take(directories, (CgroupController::Memory, path, name), memory_limit);
        sample.cpu_limit = if v2 {
            kernel.take(directories, (CgroupController::Cpu, path, "/cpu.max"), file::cpu_max)
        } else {
            let mut kept = [0; 24];
            let quota = kernel.take(directories, (CgroupController::Cpu, path, "/cpu.cfs_quota_us"), |text| {
                let kept = kept.get_mut(..text.len()).ok_or(MalformedCgroupFile::NotANumber("quota"))?;
                kept.copy_from_slice(text);
                Ok(text.len())
            });
            match quota {
                Reading::Absent(why) => Reading::Absent(why),
                Reading::Measured(length, _) => {
                    kernel.take(directories, (CgroupController::Cpu, path, "/cpu.cfs_period_us"), |period| {
                        file::cfs_limit(&kept[..length], period)
                    })
                }
            }
        };
    }

    fn read_cpu_v1(&mut self, kernel: &mut CgroupFileReader, limits: bool) {
        let (path, sample, directories) = (&*self.identity.path, &mut self.sample, &mut self.directories);
        let tick = kernel.nanos_a_tick;
        let nanos = |ticks: u64| Nanos(ticks.saturating_mul(tick));
        let times = kernel.keep(
            (&mut self.slow.times, directories),
            (CgroupController::CpuAccounting, path, "/cpuacct.stat"),
            cpuacct_stat,
        );
        sample.cpu_user = times.map(|times| nanos(times.0));
        sample.cpu_system = times.map(|times| nanos(times.1));
        // Without a quota nothing is throttled: the counters do not change.
        if !limits && sample.cpu_limit.get() == Some(None) {
            let now = clock::monotonic();
            refresh_time(&mut sample.cfs_periods, now);
            refresh_time(&mut sample.cfs_throttled_periods, now);
            refresh_time(&mut sample.cfs_throttled, now);
            return;
        }
        let throttled =
            kernel.take(directories, (CgroupController::Cpu, path, "/cpu.stat"), cpu_stat).map(|stat| stat.throttled);
        throttling(sample, throttled);
    }

    /// Reads tasks and processes, and sums the I/O of the processes if the kernel does not count it by cgroup.
    fn read_tasks(&mut self, kernel: &mut CgroupFileReader) {
        let (path, directories) = (&*self.identity.path, &mut self.directories);
        self.sample.tasks = kernel
            .keep((&mut self.slow.tasks, directories), (CgroupController::Pids, path, "/pids.current"), number)
            .map(Count);
        let mut pids = std::mem::take(&mut kernel.pids);
        let listed = kernel.members(directories, (path, self.containers), &mut pids);
        let listed = listed.and_then(|hidden| self.all_listed(kernel.visibility, hidden, pids.len() as u64));
        self.sample.processes = Reading::from_result(listed, clock::monotonic());
        self.sample.process_io = match (&kernel.layout.trees, listed) {
            // The kernel counts I/O by cgroup, so it is not summed over processes.
            (CgroupTrees::One(_), _) => Reading::Absent(Absence::SwitchedOff),
            _ if self.block_io_counts => Reading::Absent(Absence::SwitchedOff),
            (_, Ok(_)) => Reading::from_result(sum_io(kernel, &pids), clock::monotonic()),
            (_, Err(why)) => Reading::Absent(why),
        };
        kernel.pids = pids;
    }

    /// The number of processes, if no process is hidden from the agent.
    fn all_listed(&self, visibility: ProcVisibility, hidden: u32, listed: u64) -> Result<Count, Absence> {
        let left_out = match visibility {
            ProcVisibility::Machine => false,
            // v1 lists silently leave out processes of other PID namespaces, so an empty list proves nothing unless
            // there is no task. A pod's own list is always empty, and its tasks are its containers' tasks.
            ProcVisibility::Private => {
                let container = matches!(self.identity.kind, CgroupKind::Container { .. });
                container && listed == 0 && self.sample.tasks.get() != Some(Count(0))
            }
            ProcVisibility::Mounted => true,
        };
        if hidden > 0 || left_out { Err(Absence::ProcessesHidden) } else { Ok(Count(listed)) }
    }

    fn read_block_io_v2(&mut self, kernel: &mut CgroupFileReader) {
        let stacked = std::mem::take(&mut kernel.stacked);
        let directories = &mut self.directories;
        let io = kernel.take(directories, (CgroupController::BlockIo, &self.identity.path, "/io.stat"), |text| {
            io_stat(text, &stacked)
        });
        kernel.stacked = stacked;
        self.sample.io_read = io.map(|io| Bytes(io.read));
        self.sample.io_write = io.map(|io| Bytes(io.write));
        self.sample.io_reads = io.map(|io| Count(io.reads));
        self.sample.io_writes = io.map(|io| Count(io.writes));
    }

    /// Reads v1 block I/O. Current kernels show `Total 0` whatever is read and written, so 0 counts only if the file
    /// names devices or has once shown another value.
    fn read_block_io_v1(&mut self, kernel: &mut CgroupFileReader) {
        let (path, directories) = (&*self.identity.path, &mut self.directories);
        let mut of = |names: [&str; 2]| {
            let stacked = std::mem::take(&mut kernel.stacked);
            let mut io =
                kernel.take(directories, (CgroupController::BlockIo, path, names[0]), |text| blkio(text, &stacked));
            if io.absence() == Some(Absence::NoSuchFile) {
                io =
                    kernel.take(directories, (CgroupController::BlockIo, path, names[1]), |text| blkio(text, &stacked));
            }
            kernel.stacked = stacked;
            io
        };
        let bytes = of(["/blkio.throttle.io_service_bytes_recursive", "/blkio.throttle.io_service_bytes"]);
        self.block_io_counts |= bytes.value().is_some_and(|io| io.devices > 0 || io.read > 0 || io.write > 0);
        let counts = self.block_io_counts;
        // Where the kernel does not count bytes, it does not count operations either: the second file is not read.
        let operations = match bytes {
            Reading::Measured(..) if counts => {
                of(["/blkio.throttle.io_serviced_recursive", "/blkio.throttle.io_serviced"])
            }
            other => other,
        };
        let counted = |io: Reading<BlockIo>| match io {
            Reading::Measured(..) if !counts => Reading::Absent(Absence::KernelDoesNotCount),
            io => io,
        };
        let (bytes, operations) = (counted(bytes), counted(operations));
        self.sample.io_read = bytes.map(|io| Bytes(io.read));
        self.sample.io_write = bytes.map(|io| Bytes(io.write));
        self.sample.io_reads = operations.map(|io| Count(io.read));
        self.sample.io_writes = operations.map(|io| Count(io.write));
    }

    fn read_pressure(&mut self, kernel: &mut CgroupFileReader) {
        let (path, directories) = (&*self.identity.path, &mut self.directories);
        let mut of = |name| kernel.take(directories, (CgroupController::Pressure, path, name), file::pressure);
        self.sample.pressure = match of("/cpu.pressure") {
            Reading::Absent(why) => Reading::Absent(why),
            Reading::Measured(cpu, _) => match (of("/memory.pressure"), of("/io.pressure")) {
                (Reading::Measured(memory, _), Reading::Measured(io, at)) => {
                    let pressure = Pressure {
                        cpu_waiting: cpu.0,
                        cpu_stalled: cpu.1,
                        memory_waiting: memory.0,
                        memory_stalled: memory.1,
                        io_waiting: io.0,
                        io_stalled: io.1,
                    };
                    Reading::Measured(pressure, at)
                }
                (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
            },
        };
    }
}

/// Sums `/proc/<pid>/io`; processes that end during the reads are left out.
fn sum_io(kernel: &mut CgroupFileReader, pids: &[u32]) -> Result<ProcessIo, Absence> {
    if pids.len() > MAX_IO_PROCESSES {
        return Err(Absence::NotAttributable);
    }
    let (mut sum, mut found) = (ProcessIo::default(), pids.is_empty());
    for &pid in pids {
        let mut digits = [0; 10];
        let path: [&[u8]; 4] = [&kernel.procfs, b"/", KernelFileReader::decimal(pid, &mut digits), b"/io"];
        match kernel.reader.read_piece(&path).map(process_io) {
            Ok(Ok(io)) => {
                found = true;
                sum = ProcessIo { read: sum.read.plus(io.read), write: sum.write.plus(io.write) };
            }
            Ok(Err(_)) => return Err(Absence::Unreadable),
            Err(ReadFailure::NotFound | ReadFailure::Gone) => {}
            Err(ReadFailure::Refused) => return Err(Absence::NeedsPtrace),
            Err(failure) => return Err(failure.absence()),
        }
    }
    // No process was found: all have ended, or all are hidden (`hidepid`). There is no sum then, rather than 0.
    if found { Ok(sum) } else { Err(Absence::Vanished) }
}

/// Sets the throttling counters; a v2 cgroup without the cpu controller has no such counters.
fn throttling(sample: &mut CgroupSample, throttled: Reading<Option<(Count, Count, Nanos)>>) {
    let throttled = optional_with(throttled, Absence::NoSuchFile);
    sample.cfs_periods = throttled.map(|t| t.0);
    sample.cfs_throttled_periods = throttled.map(|t| t.1);
    sample.cfs_throttled = throttled.map(|t| t.2);
}

/// If this kernel does not write the line of a value, the value is not supported.
fn optional<T>(reading: Reading<Option<T>>) -> Reading<T> {
    optional_with(reading, Absence::NotSupported)
}

fn optional_with<T>(reading: Reading<Option<T>>, without: Absence) -> Reading<T> {
    match reading {
        Reading::Measured(Some(value), at) => Reading::Measured(value, at),
        Reading::Measured(None, _) => Reading::Absent(without),
        Reading::Absent(why) => Reading::Absent(why),
    }
}

/// Gives an unchanged value a new time.
fn refresh_time<T>(reading: &mut Reading<T>, now: Monotonic) {
    if let Reading::Measured(_, at) = reading {
        *at = now;
    }
}

/// Gives a new time to all values that only running processes can change, because no process ran.
fn refresh_times(sample: &mut CgroupSample, v2: bool, now: Monotonic) {
    refresh_time(&mut sample.memory_working_set, now);
    refresh_time(&mut sample.memory_rss, now);
    refresh_time(&mut sample.memory_cache, now);
    refresh_time(&mut sample.memory_swap, now);
    refresh_time(&mut sample.oom_kills, now);
    refresh_time(&mut sample.tasks, now);
    refresh_time(&mut sample.processes, now);
    refresh_time(&mut sample.process_io, now);
    if !v2 {
        refresh_time(&mut sample.cpu_user, now);
        refresh_time(&mut sample.cpu_system, now);
        refresh_time(&mut sample.cfs_periods, now);
        refresh_time(&mut sample.cfs_throttled_periods, now);
        refresh_time(&mut sample.cfs_throttled, now);
        refresh_time(&mut sample.io_read, now);
        refresh_time(&mut sample.io_write, now);
        refresh_time(&mut sample.io_reads, now);
        refresh_time(&mut sample.io_writes, now);
    }
}
