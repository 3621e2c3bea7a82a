//! Living processes of this machine that are shown as users of the simulated GPUs, so that finding the container of a
//! process works as with real GPUs. With sharing, these are processes of the containers that hold GPUs. Otherwise they
//! are any processes except the agent, processes in containers first.

use crate::process_owner::{IdentifiedProcess, ProcessOwnerReader};
use crate::roots::HostRoots;
use model::id::{ContainerId, GpuUuid};
use model::process::ProcessOwner;
use model::unit::Bytes;
use std::fmt;

/// Number of processes on one GPU.
pub(super) const ON_EACH: usize = 2;
/// Maximum number of processes that are read in one search: each costs a few reads of `/proc`, so a search takes about
/// 20 ms. If one search does not find enough processes, the next process list searches again.
const LOOKED_AT: usize = 512;

/// A container that holds one of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedHolder {
    /// The container.
    pub container: ContainerId,
    /// The GPU.
    pub gpu: GpuUuid,
    /// How much of the GPU's memory the container may use; `None`: no limit.
    pub memory: Option<Bytes>,
}

/// Returns the containers that hold GPUs now, and which GPU each container holds.
pub struct SimulatedHolders(pub Box<dyn Fn() -> Vec<SimulatedHolder> + Send>);

impl fmt::Debug for SimulatedHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holders")
    }
}

/// The processes that are shown on the GPUs.
#[derive(Debug)]
pub(super) struct SimulatedProcesses {
    roots: HostRoots,
    owners: ProcessOwnerReader,
    wanted: usize,
    chosen: Vec<SimulatedProcess>,
}

/// A process that is shown as a user of a GPU.
#[derive(Clone, Debug)]
pub(super) struct SimulatedProcess {
    pub(super) process: IdentifiedProcess,
    /// The index of the GPU that it holds; `None` if it holds no GPU: such processes are spread over the GPUs.
    gpu: Option<usize>,
    /// Maximum memory that the process may use.
    pub(super) memory: Option<Bytes>,
}

impl SimulatedProcess {
    /// A process that holds no GPU.
    pub(super) fn of(process: IdentifiedProcess) -> Self {
        SimulatedProcess { process, gpu: None, memory: None }
    }
}

impl SimulatedProcesses {
    /// Makes the list for this many GPUs. No process is chosen yet.
    pub(super) fn new(roots: HostRoots, owners: ProcessOwnerReader, gpus: u32) -> Self {
        let wanted = ON_EACH * usize::try_from(gpus).unwrap_or(usize::MAX);
        SimulatedProcesses { roots, owners, wanted, chosen: Vec::new() }
    }

    /// Drops the processes that have ended, and looks for others.
    pub(super) fn renew(&mut self) {
        self.forget_the_dead();
        if self.chosen.len() < self.wanted {
            let known: Vec<u32> = self.chosen.iter().map(|tenant| tenant.process.key.pid).collect();
            let mut found = self.search(|pid| known.contains(&pid));
            found.sort_by_key(|process| (!matches!(process.owner, ProcessOwner::Cgroup(_)), process.key));
            found.truncate(self.wanted - self.chosen.len());
            self.chosen.extend(found.into_iter().map(SimulatedProcess::of));
        }
    }

    /// Chooses one process of each container that holds a GPU, and no other process.
    pub(super) fn of_holders(&mut self, holders: &[SimulatedHolder], gpus: &[GpuUuid]) {
        self.forget_the_dead();
        let mut processes: Vec<IdentifiedProcess> = self.chosen.drain(..).map(|tenant| tenant.process).collect();
        let inside = |process: &IdentifiedProcess, holder: &SimulatedHolder| match &process.owner {
            ProcessOwner::Cgroup(cgroup) => cgroup.container() == Some(&holder.container),
            ProcessOwner::Host | ProcessOwner::Unknown => false,
        };
        if holders.iter().any(|holder| !processes.iter().any(|process| inside(process, holder))) {
            processes.extend(self.search(|_| false));
        }
        for holder in holders {
            let process = processes.iter().filter(|process| inside(process, holder)).min_by_key(|process| process.key);
            let gpu = gpus.iter().position(|uuid| *uuid == holder.gpu);
            if let (Some(process), Some(gpu)) = (process, gpu) {
                self.chosen.push(SimulatedProcess { process: process.clone(), gpu: Some(gpu), memory: holder.memory });
            }
        }
    }

    /// The processes on one GPU. Processes that hold no GPU are assigned to the GPUs in turn, so that a few processes
    /// are spread over many GPUs.
    pub(super) fn of(&self, gpu: u32) -> Vec<SimulatedProcess> {
        let gpus = self.wanted / ON_EACH;
        let place = usize::try_from(gpu).unwrap_or(usize::MAX);
        let turns = self.chosen.iter().filter(|tenant| tenant.gpu.is_none()).skip(place).step_by(gpus.max(1));
        let own = self.chosen.iter().filter(|tenant| tenant.gpu == Some(place));
        turns.take(ON_EACH).chain(own).cloned().collect()
    }

    fn forget_the_dead(&mut self) {
        let owners = &mut self.owners;
        self.chosen.retain_mut(|tenant| match owners.identify(tenant.process.key.pid) {
            Some(now) if now.key == tenant.process.key => {
                tenant.process = now;
                true
            }
            _ => false,
        });
    }

    /// Processes that are not known yet, without kernel threads (which have no command line) and the agent itself.
    fn search(&mut self, known: impl Fn(u32) -> bool) -> Vec<IdentifiedProcess> {
        let Ok(entries) = std::fs::read_dir(&self.roots.procfs) else { return Vec::new() };
        let mut pids: Vec<u32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The youngest processes are more likely workloads than services of the machine.
        pids.sort_unstable_by(|one, other| other.cmp(one));
        let own = self.own_pid();
        let mut found = Vec::new();
        for pid in pids.into_iter().filter(|pid| Some(*pid) != own).take(LOOKED_AT) {
            let command_line = std::fs::read(self.roots.procfs.join(pid.to_string()).join("cmdline"));
            if !known(pid) && command_line.is_ok_and(|text| !text.is_empty()) {
                found.extend(self.owners.identify(pid));
            }
        }
        found
    }

    /// The agent's PID in the host's `/proc`, which differs if the agent is in a PID namespace of its own.
    fn own_pid(&self) -> Option<u32> {
        std::fs::read_link(self.roots.procfs.join("self")).ok()?.to_str()?.parse().ok()
    }
}
