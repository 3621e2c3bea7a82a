//! The thread that reads host, cgroups, networks and processes by deadline.
//!
//! ```text
//!   deadline ─▶ cgroups (all: CPU and memory; by turns: the rest) ─▶ host ─▶ some processes ─▶ reports ─▶ sleep
//! ```
//!
//! Deadlines lie on a grid of the monotonic clock, so they do not drift. A deadline that comes during a pass is counted
//! and skipped.
//!
//! What must never happen here: a pass waits for another thread or for the report queue; the time is read from a clock
//! that can be set.

use crate::cgroup::layout::{CgroupLayout, CgroupNamespace, kernel_release};
use crate::cgroup::table::CgroupTable;
use crate::infiniband::Infiniband;
use crate::kernel_file::KernelFileReader;
use crate::procfs::host::HostReader;
use crate::procfs::visibility::ProcVisibility;
use crate::report::Reporter;
use crate::roots::{HostRoots, part};
use crate::sampler::deadline::{Deadlines, ThreadStop};
use crate::sampler::processes::ProcessPasses;
use model::cgroup::{MAX_CGROUPS, MAX_POD_CGROUPS};
use model::host::HostFacts;
use model::observation::{CgroupPass, ErrorCounter, Fact, Sample};
use model::unit::Count;
use model::{Absence, Reading};
use rustix::process::{Resource, getrlimit};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub mod deadline;
pub mod processes;

/// Settings of the sampler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Roots of the file trees.
    pub roots: HostRoots,
    /// Time between two passes over CPU and memory.
    pub period: Duration,
    /// Time between two passes over all other files.
    pub slow_period: Duration,
}

/// Maximum number of errors that are reported in one pass. At most 4,096 events of all sources can wait, and thousands
/// of bad files must not take the place of other events.
const ERRORS_A_PASS: u32 = 16;
/// The shortest period: a pass over a full node does not end in a shorter period.
const SHORTEST: Duration = Duration::from_millis(10);
/// Number of open files left to the rest of the agent: connections, devices, state.
const OTHER_FILES: u64 = 2048;
/// Maximum number of files that are kept open: two for each possible cgroup.
const MOST_FILES: u64 = 2 * (MAX_CGROUPS + MAX_POD_CGROUPS) as u64;

/// Starts the thread `sampler`. It ends when `stop` is cancelled: at once if it waits, otherwise after the pass.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("sampler".into()).spawn(move || {
        let stop = ThreadStop::new(stop);
        let mut deadlines = Deadlines::new(settings.period.max(SHORTEST), clock::monotonic());
        let mut sampler = Sampler::new(settings, keep_open());
        reporter.fact(Fact::HostFacts(sampler.facts()));
        let mut missed = 0;
        while !stop.is_cancelled() {
            sampler.pass(missed, &reporter);
            let next = deadlines.next(clock::monotonic());
            missed = next.missed;
            if stop.wait_until(next.at) {
                break;
            }
        }
    })
}

/// How many files may be kept open, computed from the limit of open files. With fewer open files each pass takes
/// longer.
fn keep_open() -> usize {
    let soft = getrlimit(Resource::Nofile).current;
    let max_open_files = soft.map_or(MOST_FILES, |soft| soft.saturating_sub(OTHER_FILES).max(soft / 4)).min(MOST_FILES);
    usize::try_from(max_open_files).unwrap_or(0)
}

/// Reads everything that belongs to a pass.
#[derive(Debug)]
pub struct Sampler {
    settings: Settings,
    turns: u64,
    pass: u64,
    max_open_files: usize,
    reader: KernelFileReader,
    table: Option<CgroupTable>,
    host: HostReader,
    infiniband: Infiniband,
    had_ports: bool,
    host_faults: u64,
    visibility: ProcVisibility,
    processes: ProcessPasses,
    total_processes: Reading<Count>,
}

impl Sampler {
    /// `max_open_files` files may be kept open.
    #[must_use]
    pub fn new(settings: Settings, max_open_files: usize) -> Self {
        let period = settings.period.max(SHORTEST);
        let turns = settings.slow_period.as_nanos().div_ceil(period.as_nanos());
        Sampler {
            turns: u64::try_from(turns).unwrap_or(u64::MAX).max(1),
            pass: 0,
            max_open_files,
            visibility: ProcVisibility::detect(&mut KernelFileReader::default(), &part(&settings.roots.procfs)),
            reader: KernelFileReader::default(),
            table: None,
            host: HostReader::new(&settings.roots),
            infiniband: Infiniband::new(&settings.roots),
            had_ports: false,
            host_faults: 0,
            processes: ProcessPasses::new(&settings.roots, settings.slow_period),
            total_processes: Reading::NOT_YET,
            settings,
        }
    }

    /// Facts about the machine.
    pub fn facts(&mut self) -> HostFacts {
        let (roots, reader) = (&self.settings.roots, &mut self.reader);
        let layout = CgroupLayout::detect(reader, roots);
        if let Err(missing) = &layout {
            tracing::warn!(%missing, "pods and containers cannot be seen; the agent looks for cgroups again in every slow period");
        }
        if self.visibility != ProcVisibility::Machine {
            tracing::warn!(
                "the agent runs in its own PID namespace (no hostPID), so processes of the host and of pods, and readings that need them, are absent"
            );
        }
        let version = layout.map(|layout| layout.version).map_err(|_| Absence::NoSuchFile);
        let private = CgroupNamespace::detect(reader, roots).private.ok_or(Absence::NoSuchFile);
        let at = clock::monotonic();
        HostFacts {
            kernel: kernel_release(reader, roots).into(),
            cgroups: Reading::from_result(version, at),
            private_cgroup_namespace: Reading::from_result(private, at),
        }
    }

    /// One pass over everything that is due.
    pub fn pass(&mut self, missed: u32, reporter: &Reporter) {
        let began = clock::monotonic();
        let slow = self.pass.is_multiple_of(self.turns);
        self.pass += 1;
        if slow {
            self.host.find_disks(&mut self.reader);
            self.host.find_interfaces(&mut self.reader);
            self.host.read_slow(&mut self.reader);
            self.find_table();
            let ports = self.infiniband.read(&mut self.reader);
            // A machine that never had a port reports no ports.
            if !ports.is_empty() || std::mem::take(&mut self.had_ports) {
                self.had_ports = !ports.is_empty();
                reporter.fact(Fact::Infiniband(ports.into()));
            }
        }
        let (reports, left_out) = match &mut self.table {
            Some(table) => (table.pass(), table.left_out()),
            None => (Vec::new(), 0),
        };
        let took = clock::monotonic().since(began);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        reporter.sample(Sample::Cgroups(CgroupPass { reports, left_out, took_us, missed }));
        let mut host = self.host.read(&mut self.reader);
        host.processes = self.total_processes;
        reporter.sample(Sample::Host(host));
        if let Some(pass) = self.processes.turn(clock::monotonic()) {
            self.total_processes = match &pass {
                Err(why) => Reading::Absent(*why),
                Ok(_) if self.visibility == ProcVisibility::Private => Reading::Absent(Absence::ProcessesHidden),
                Ok(pass) => Reading::Measured(Count(u64::from(pass.total)), pass.at),
            };
            // If processes cannot be listed, the processes of the last list are no longer shown.
            reporter.sample(Sample::Processes(pass.unwrap_or_default()));
        }
        self.report_errors(reporter);
    }

    /// Searches for cgroups, which may be mounted after the agent has started.
    fn find_table(&mut self) {
        if self.table.is_none()
            && let Ok(layout) = CgroupLayout::detect(&mut self.reader, &self.settings.roots)
        {
            self.table = Some(CgroupTable::new(&self.settings.roots, layout, self.turns, self.max_open_files));
        }
    }

    /// Reports the errors since the last pass.
    fn report_errors(&mut self, reporter: &Reporter) {
        let cgroups = self.table.as_mut().map_or(0, CgroupTable::take_malformed);
        let host = self.host.faults - self.host_faults;
        self.host_faults = self.host.faults;
        let proc = u32::try_from(host).unwrap_or(u32::MAX).saturating_add(self.processes.take_malformed());
        for (count, counter) in [(cgroups, ErrorCounter::CgroupUnreadable), (proc, ErrorCounter::ProcUnreadable)] {
            for _ in 0..count.min(ERRORS_A_PASS) {
                reporter.trouble(counter);
            }
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod truth;
