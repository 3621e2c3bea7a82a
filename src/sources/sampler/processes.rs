//! The host's processes: all are counted, and the processes with the most CPU and memory are kept.
//!
//! A pass reads `/proc/<pid>/stat` of every process (about 10 µs each), one slice in each turn of the sampler, so that
//! 20,000 processes do not delay the other readings. Passes are so far apart that they cost at most one part in
//! [`SHARE`] of a core. The owner of a process is read when the process is first seen, when it has executed another
//! program (a runtime moves a process into its cgroup before the program starts), while the owner is unknown, and from
//! time to time. `io` is read when a process is new or has used CPU time since its last reading, of `IO_A_SLICE` in a
//! turn.
//!
//! What must never happen here: memory that grows with the number of processes that ever lived. A process is forgotten
//! at the end of the first pass that does not see it.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::process_owner::ProcessOwnerReader;
use crate::procfs::process::{self, ProcError};
use crate::roots::{HostRoots, part};
use model::cgroup::ProcessIo;
use model::id::ProcessKey;
use model::process::{HostProcess, MAX_PROCESSES, ProcessOwner, ProcessPass};
use model::time::Monotonic;
use model::unit::{Bytes, Count, Nanos};
use model::{Absence, Reading};
use std::collections::HashMap;
use std::time::Duration;
use wire::cgroup_file::{digits, process_io};
use wire::proc_file::ProcStat;

/// Shortest time between the starts of two passes, as a multiple of the duration of a pass. So passes use at most a
/// quarter of a percent of a core.
pub const SHARE: u32 = 400;
/// [`SHARE`] applies at this period, the default slow period; a shorter period costs more in proportion.
const USUAL: Duration = Duration::from_secs(5);
/// Lower bound of the share for short periods: passes use at most a quarter of a core.
const LEAST_SHARE: u32 = 4;
/// Longest time between two passes, whatever they cost.
const LONGEST: Duration = Duration::from_secs(120);
/// Maximum number of processes that are read in one turn, which takes 20 to 30 ms.
const SLICE: usize = 2048;
/// Maximum number of processes whose `io` is read in one turn, about 15 µs each; the others keep their last reading.
const IO_A_SLICE: usize = 256;
/// The owner of a process is read again after this number of passes: a minute at the usual period. The PID decides in
/// which pass: with 400 processes, a pass reads 33 more files, in about half a millisecond.
const OWNER_EVERY: u64 = 12;
/// Maximum number of processes that are kept: the kernel's default limit of PIDs. Further processes are only counted.
const MAX_KNOWN: usize = 32_768;

/// The passes over processes. One pass is spread over a period in slices.
#[derive(Debug)]
pub struct ProcessPasses {
    procfs: Vec<u8>,
    reader: KernelFileReader,
    owners: ProcessOwnerReader,
    nanos_a_tick: u64,
    page: u64,
    period: Duration,
    share: u32,
    due: Monotonic,
    /// Processes of the current pass that are still to be read; `None` between passes.
    waiting: Option<Vec<u32>>,
    total: u32,
    spent: Duration,
    pass: u64,
    known: HashMap<u32, Known>,
    malformed: u32,
    logged: bool,
    list_failed: bool,
}

/// The data that is kept about a process.
#[derive(Debug)]
struct Known {
    process: HostProcess,
    /// CPU time used between the process's last two readings.
    used: u64,
    pass: u64,
}

impl Known {
    /// Updates the name of the process, and returns whether it has changed, which means that the process has executed
    /// another program.
    fn renamed(&mut self, stat: &ProcStat<'_>) -> bool {
        let known = &mut self.process.command;
        if *known.as_bytes() == *stat.command {
            return false;
        }
        // Bytes that are not UTF-8 are replaced for display, so the comparison uses the displayed text.
        let now = process::command(stat);
        let other = *known != now;
        *known = now;
        other
    }
}

fn share(period: Duration) -> u32 {
    let part = period.min(USUAL).as_millis() * u128::from(SHARE) / USUAL.as_millis();
    u32::try_from(part).unwrap_or(SHARE).max(LEAST_SHARE)
}

impl ProcessPasses {
    /// Passes under these roots, every `period`, or less often if that would cost too much.
    #[must_use]
    pub fn new(roots: &HostRoots, period: Duration) -> Self {
        ProcessPasses {
            procfs: part(&roots.procfs),
            reader: KernelFileReader::default(),
            owners: ProcessOwnerReader::new(roots.clone()),
            nanos_a_tick: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            page: rustix::param::page_size() as u64,
            period,
            share: share(period),
            due: Monotonic(0),
            waiting: None,
            total: 0,
            spent: Duration::ZERO,
            pass: 0,
            known: HashMap::new(),
            malformed: 0,
            logged: false,
            list_failed: false,
        }
    }

    /// Files that could not be parsed since this was last called.
    pub fn take_malformed(&mut self) -> u32 {
        std::mem::take(&mut self.malformed)
    }

    /// One turn: reads a slice if a pass is due. Returns the pass when it is complete.
    ///
    /// # Errors
    /// Why processes cannot be listed; all known processes are forgotten.
    pub fn turn(&mut self, now: Monotonic) -> Option<Result<ProcessPass, Absence>> {
        if self.waiting.is_none() && now < self.due {
            return None;
        }
        let mut waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            None => match self.begin(now) {
                Ok(waiting) => waiting,
                Err(why) => {
                    self.known.clear();
                    return Some(Err(why));
                }
            },
        };
        let mut io = IO_A_SLICE;
        for pid in waiting.drain(waiting.len().saturating_sub(SLICE)..) {
            self.read_process(pid, &mut io);
        }
        let ended = clock::monotonic();
        self.spent += ended.since(now);
        if !waiting.is_empty() {
            self.waiting = Some(waiting);
            return None;
        }
        // Counted from the beginning of the last turn, so that a cheap pass, which has one turn, keeps to the period.
        self.due = self.due.max(now.after(self.spent.saturating_mul(self.share).min(LONGEST)));
        Some(Ok(self.end(ended)))
    }

    fn begin(&mut self, now: Monotonic) -> Result<Vec<u32>, Absence> {
        self.due = now.after(self.period);
        let mut pids = Vec::new();
        let listed = self.reader.subdirectories(&[&self.procfs, b"/"], |name| {
            pids.extend(digits(name).and_then(|pid| u32::try_from(pid).ok()));
        });
        // The agent is a process itself, so a `/proc` without processes is not a proc file system.
        let listed = if pids.is_empty() { listed.and(Err(ReadFailure::NotFound)) } else { listed };
        if let Err(failure) = listed {
            self.malformed = self.malformed.saturating_add(1);
            if !std::mem::replace(&mut self.list_failed, true) {
                let path = String::from_utf8_lossy(&self.procfs);
                tracing::warn!(%path, error = %failure, "processes of the machine cannot be listed; further failures are only counted");
            }
            return Err(failure.absence());
        }
        self.total = u32::try_from(pids.len()).unwrap_or(u32::MAX);
        self.spent = Duration::ZERO;
        self.pass += 1;
        Ok(pids)
    }

    fn read_process(&mut self, pid: u32, io: &mut usize) {
        let ProcessPasses { reader, procfs, nanos_a_tick, page, known, pass, .. } = self;
        let stat = match process::stat(reader, procfs, pid) {
            Ok(stat) => stat,
            Err(ProcError::File(_)) => {
                self.total = self.total.saturating_sub(1); // the process ended
                return;
            }
            Err(ProcError::Text(malformed)) => {
                self.malformed = self.malformed.saturating_add(1);
                if !self.logged {
                    self.logged = true;
                    tracing::warn!(pid, error = %malformed, "stat of a process cannot be parsed; further ones are only counted");
                }
                return;
            }
        };
        let (key, at) = (process::key(&stat), clock::monotonic());
        let nanos = |ticks: u64| Nanos(ticks.saturating_mul(*nanos_a_tick));
        let (user, system) = (nanos(stat.user_ticks), nanos(stat.system_ticks));
        let (rss, threads) = (Bytes(stat.rss_pages.saturating_mul(*page)), Count(stat.threads));
        let fresh = known.get(&pid).is_none_or(|known| known.process.key != key);
        if fresh {
            if known.len() >= MAX_KNOWN && !known.contains_key(&pid) {
                return;
            }
            let process = HostProcess {
                key,
                command: process::command(&stat),
                owner: ProcessOwner::Unknown,
                cpu_user: user,
                cpu_system: system,
                rss,
                threads,
                read_bytes: Reading::NOT_YET,
                write_bytes: Reading::NOT_YET,
                at,
            };
            known.insert(pid, Known { process, used: 0, pass: *pass });
        }
        let mut read_owner = (*pass).wrapping_add(u64::from(pid)).is_multiple_of(OWNER_EVERY);
        if let Some(known) = known.get_mut(&pid) {
            read_owner |= known.process.owner == ProcessOwner::Unknown;
            read_owner |= known.renamed(&stat);
        }
        let owner = read_owner.then(|| self.owner(key));
        let Some(known) = self.known.get_mut(&pid) else { return };
        let process = &mut known.process;
        known.used = (user.0 + system.0).saturating_sub(process.cpu_user.0 + process.cpu_system.0);
        (known.pass, process.at) = (self.pass, at);
        (process.cpu_user, process.cpu_system, process.rss, process.threads) = (user, system, rss, threads);
        if let Some(owner) = owner {
            process.owner = owner;
        }
        if (fresh || known.used > 0) && *io > 0 {
            *io -= 1;
            let read = read_io(&mut self.reader, &self.procfs, pid);
            let io = Reading::from_result(read, clock::monotonic());
            (process.read_bytes, process.write_bytes) = (io.map(|io| io.read), io.map(|io| io.write));
        }
    }

    /// Reads the owner of a process, then checks that the PID still belongs to this process. An owner that has not
    /// changed needs no check.
    fn owner(&mut self, key: ProcessKey) -> ProcessOwner {
        let owner = self.owners.owner(key);
        if self.known.get(&key.pid).is_some_and(|known| known.process.key == key && known.process.owner == owner) {
            return owner;
        }
        match process::stat(&mut self.reader, &self.procfs, key.pid) {
            Ok(again) if process::key(&again) == key => owner,
            _ => ProcessOwner::Unknown,
        }
    }

    /// Forgets the processes that were not seen, and picks the processes to report.
    fn end(&mut self, at: Monotonic) -> ProcessPass {
        let pass = self.pass;
        self.known.retain(|_, known| known.pass == pass);
        // After a burst of processes, the table gives its memory back.
        if self.known.capacity() > 4 * self.known.len().max(1024) {
            self.known.shrink_to(2 * self.known.len());
        }
        let mut picked: Vec<&Known> = self.known.values().collect();
        if picked.len() > MAX_PROCESSES {
            let rank = |known: &&Known| std::cmp::Reverse((known.used, known.process.rss.0));
            picked.select_nth_unstable_by_key(MAX_PROCESSES, rank);
            picked.truncate(MAX_PROCESSES);
        }
        let processes = picked.into_iter().map(|known| known.process.clone()).collect();
        ProcessPass { processes, total: self.total, at }
    }
}

fn read_io(reader: &mut KernelFileReader, procfs: &[u8], pid: u32) -> Result<ProcessIo, Absence> {
    let text = reader.read_piece(&[procfs, b"/", KernelFileReader::decimal(pid, &mut [0; 10]), b"/io"]);
    match text.map(process_io) {
        Ok(Ok(io)) => Ok(io),
        Ok(Err(_)) => Err(Absence::Unreadable),
        Err(ReadFailure::Refused) => Err(Absence::NeedsPtrace),
        Err(ReadFailure::NotFound | ReadFailure::Gone) => Err(Absence::Vanished),
        Err(failure) => Err(failure.absence()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn process(root: &Path, pid: u32, start: u64, ticks: u64) {
        let at = root.join(pid.to_string());
        fs::create_dir_all(&at).unwrap();
        let stat = format!("{pid} (p{start}) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {start} 1000 5 0 0\n");
        fs::write(at.join("stat"), stat).unwrap();
        fs::write(at.join("cgroup"), format!("0::/docker/{:064x}\n", pid % 7)).unwrap();
        fs::write(at.join("io"), "read_bytes: 1\nwrite_bytes: 2\n").unwrap();
    }

    /// A temporary folder, in `/dev/shm` if possible: creating thousands of files on a disk is slow.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    fn passes(root: &Path) -> ProcessPasses {
        let roots = HostRoots { procfs: root.into(), cgroup: "/none".into(), sysfs: "/none".into() };
        ProcessPasses::new(&roots, Duration::ZERO)
    }

    fn pass(processes: &mut ProcessPasses) -> ProcessPass {
        loop {
            if let Some(pass) = processes.turn(Monotonic(u64::MAX / 2)) {
                return pass.unwrap();
            }
        }
    }

    #[test]
    fn processes_are_reported_with_their_containers_until_they_end() {
        let root = folder();
        process(root.path(), 7, 100, 5);
        process(root.path(), 8, 101, 5);
        fs::create_dir(root.path().join("sys")).unwrap();
        fs::create_dir(root.path().join("9")).unwrap();
        fs::write(root.path().join("9/stat"), "9 (torn) S 1").unwrap();
        let mut processes = passes(root.path());
        let first = pass(&mut processes);
        assert_eq!((first.processes.len(), processes.take_malformed()), (2, 1));
        let seven = first.processes.iter().find(|process| process.key.pid == 7).unwrap();
        assert_eq!((&*seven.command, seven.cpu_user.0), ("p100", 50_000_000));
        assert_eq!(seven.write_bytes.get(), Some(Bytes(2)));
        assert_eq!(path(seven), Some(format!("/docker/{:064x}", 0)));

        fs::remove_dir_all(root.path().join("8")).unwrap();
        fs::remove_dir_all(root.path().join("9")).unwrap();
        fs::remove_dir_all(root.path().join("7")).unwrap();
        process(root.path(), 7, 200, 1);
        let second = pass(&mut processes);
        assert_eq!((second.processes.len(), second.total, processes.known.len()), (1, 1, 1));
        assert_eq!(second.processes[0].key.start_ticks, 200, "the same PID is another process");
    }

    fn path(process: &HostProcess) -> Option<String> {
        match &process.owner {
            ProcessOwner::Cgroup(identity) => Some(identity.path.to_string()),
            ProcessOwner::Host | ProcessOwner::Unknown => None,
        }
    }

    #[test]
    fn a_process_that_moves_belongs_to_its_new_container() {
        let root = folder();
        process(root.path(), 7, 100, 5);
        let at = root.path().join("7");
        let cgroup = |text: &str| fs::write(at.join("cgroup"), text).unwrap();
        let run = |name: &str| {
            let stat = format!("7 ({name}) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 100 1000 5 0 0\n");
            fs::write(at.join("stat"), stat).unwrap();
        };
        let container = |number: u32| format!("/docker/{number:064x}");
        let mut processes = passes(root.path());
        let mut owner = || pass(&mut processes).processes[0].owner.clone();
        cgroup("0::/docker/");
        assert_eq!(owner(), ProcessOwner::Unknown, "torn");
        cgroup("0::/system.slice/runtime.service\n");
        assert_eq!(owner(), ProcessOwner::Host, "read again while the owner is unknown");
        cgroup(&format!("0::{}\n", container(1)));
        run("job");
        assert!(
            matches!(owner(), ProcessOwner::Cgroup(identity) if *identity.path == *container(1)),
            "it executed another program"
        );
        cgroup(&format!("0::{}\n", container(2)));
        let turns = (1..=OWNER_EVERY)
            .find(|_| matches!(owner(), ProcessOwner::Cgroup(identity) if *identity.path == *container(2)));
        assert!(turns.is_some(), "without a sign of the move, the owner is read again in turn");
    }

    #[test]
    fn a_proc_that_cannot_be_listed_is_absent_with_the_reason() {
        let root = folder();
        process(root.path(), 7, 100, 5);
        let mut processes = passes(root.path());
        assert_eq!(pass(&mut processes).total, 1);
        for missing in ["7", ""] {
            fs::remove_dir_all(root.path().join(missing)).unwrap();
            let result = processes.turn(Monotonic(u64::MAX / 2));
            assert_eq!(result.map(Result::err), Some(Some(Absence::NoSuchFile)));
            assert_eq!((processes.take_malformed(), processes.known.len()), (1, 0));
        }
    }

    #[test]
    fn the_busiest_processes_are_kept_if_there_are_too_many() {
        let root = folder();
        let count = u32::try_from(MAX_PROCESSES).unwrap() + 50;
        for pid in 1..=count {
            process(root.path(), pid, u64::from(pid), 1);
        }
        let mut processes = passes(root.path());
        pass(&mut processes);
        for pid in 100..110 {
            process(root.path(), pid, u64::from(pid), 500);
        }
        let busy = pass(&mut processes);
        assert_eq!((busy.processes.len(), busy.total), (MAX_PROCESSES, count));
        for pid in 100..110 {
            assert!(busy.processes.iter().any(|process| process.key.pid == pid), "{pid}");
        }
    }

    #[test]
    fn a_shorter_period_allows_a_higher_cost() {
        for (millis, expect) in [(0, 4), (250, 20), (5_000, 400), (60_000, 400)] {
            assert_eq!(share(Duration::from_millis(millis)), expect, "{millis} ms");
        }
    }

    #[test]
    fn a_costly_pass_is_followed_by_a_long_pause() {
        let root = folder();
        process(root.path(), 7, 100, 5);
        let mut processes = passes(root.path());
        let now = clock::monotonic();
        assert!(processes.turn(now).is_some());
        let spent = processes.spent;
        assert!(processes.due >= now.after(spent.saturating_mul(processes.share).min(LONGEST)));
        assert!(processes.turn(now).is_none(), "not due");
    }

    fn resident() -> u64 {
        let text = fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
    }

    #[test]
    #[ignore = "takes a minute: tests/run --long"]
    fn memory_does_not_grow_with_the_number_of_processes_that_ever_lived() {
        const AT_ONCE: u32 = 10_000;
        let root = folder();
        let mut processes = passes(root.path());
        let mut at_a_hundred_thousand = 0;
        for generation in 0..100 {
            // The same PIDs with other start times are other processes.
            for pid in 1..=AT_ONCE {
                process(root.path(), pid, u64::from(generation * AT_ONCE + pid), 1);
            }
            let seen = pass(&mut processes);
            assert_eq!((seen.total, processes.known.len()), (AT_ONCE, AT_ONCE as usize));
            if generation == 9 {
                at_a_hundred_thousand = resident();
            }
        }
        let grown = resident().saturating_sub(at_a_hundred_thousand);
        println!("{} KiB more after 1,000,000 processes than after 100,000", grown / 1024);
        assert!(grown < 1 << 20, "{grown} bytes more");
    }
}
