//! All pods and containers: finds, reads, forgets and reports their cgroups.

use crate::cgroup::kernel::CgroupFileReader;
use crate::cgroup::layout::{CgroupLayout, stacked_majors};
use crate::cgroup::members::members;
use crate::cgroup::tracked::TrackedCgroup;
use crate::cgroup::walk::{CgroupWalk, FoundCgroup};
use crate::kernel_file::KernelFileReader;
use crate::procfs::network::{NetworkNamespaces, NetworkReader, NetworkTotals};
use crate::procfs::process;
use crate::procfs::visibility::ProcVisibility;
use crate::roots::{HostRoots, part};
use model::cgroup::{CgroupIdentity, CgroupKind, CgroupReport, ProcessIo};
use model::unit::Count;
use model::{Absence, Reading};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of processes of one pod through which one reading tries to read its network.
const NETWORK_TRIES: usize = 16;
/// Maximum number of such processes in the same container.
const TRIES_A_CONTAINER: usize = 2;

/// The cgroups of all pods and containers. Each pass uses its buffers again, so that a pass allocates little.
#[derive(Debug)]
pub struct CgroupTable {
    kernel: CgroupFileReader,
    walk: CgroupWalk,
    cgroups: BTreeMap<Arc<str>, TrackedCgroup>,
    /// Passes in one slow period.
    turns: u64,
    pass: u64,
    left_out: u32,
    /// How network namespaces are identified, detected once. Before that, no pod's network is read.
    namespaces: Option<NetworkNamespaces>,
    found: Vec<FoundCgroup>,
    due: Vec<Arc<str>>,
    pids: Vec<u32>,
    candidates: Vec<(u64, u32)>,
    /// The pod that was read last has processes that are hidden from the agent.
    hidden: bool,
}

impl CgroupTable {
    /// An empty table. `turns` passes make a slow period; `max_open_files` files may be kept open.
    #[must_use]
    pub fn new(roots: &HostRoots, layout: CgroupLayout, turns: u64, max_open_files: usize) -> Self {
        let mut reader = KernelFileReader::default();
        let stacked = stacked_majors(&mut reader, roots);
        let walk = CgroupWalk::new(layout.walked());
        CgroupTable {
            kernel: CgroupFileReader::new(reader, part(&roots.procfs), layout, stacked, max_open_files),
            walk,
            cgroups: BTreeMap::new(),
            turns: turns.max(1),
            pass: 0,
            left_out: 0,
            namespaces: None,
            found: Vec::new(),
            due: Vec::new(),
            pids: Vec::new(),
            candidates: Vec::new(),
            hidden: false,
        }
    }

    /// One pass: new cgroups are read completely at once, known cgroups in their turn.
    pub fn pass(&mut self) -> Vec<CgroupReport> {
        let turn = self.pass % self.turns;
        if self.find(turn == 0) {
            self.count_containers();
        }
        if self.read(turn) {
            self.count_containers();
        }
        self.read_networks();
        self.pass += 1;
        self.report()
    }

    /// Pods and containers that were left out at the last full walk, because the table was full.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// Files that could not be parsed since this was last called.
    pub fn take_malformed(&mut self) -> u32 {
        std::mem::take(&mut self.kernel.malformed)
    }

    /// Number of tracked pods and containers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cgroups.len()
    }

    /// Whether no pod or container is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// Finds new cgroups. Returns whether there were any.
    fn find(&mut self, full: bool) -> bool {
        let CgroupTable { kernel, walk, cgroups, found, turns, .. } = self;
        let left_out = walk.find(&mut kernel.reader, full, |one| {
            let fits = one.has_place(cgroups.len() + found.len());
            if fits {
                found.push(one);
            }
            fits
        });
        self.left_out = left_out;
        let any_new = !found.is_empty();
        for FoundCgroup { path, kind } in found.drain(..) {
            let turn = cgroups.len() as u64 % *turns;
            let identity = Arc::new(CgroupIdentity { path: Arc::clone(&path), kind });
            // A path that is found again before its removal was noticed is a new cgroup of the same name.
            if let Some(mut before) = cgroups.insert(path, TrackedCgroup::new(identity, turn)) {
                before.release(kernel);
            }
        }
        any_new
    }

    fn count_containers(&mut self) {
        self.cgroups.values_mut().for_each(|tracked| tracked.containers = 0);
        let paths: Vec<Arc<str>> = self.cgroups.keys().map(Arc::clone).collect();
        for path in paths {
            let above = path.rsplit_once('/').and_then(|(above, _)| self.cgroups.get_mut(above));
            if let Some(pod) = above {
                pod.containers += 1;
            }
        }
    }

    /// Reads the cgroups that are due. Returns whether any is gone.
    fn read(&mut self, turn: u64) -> bool {
        let CgroupTable { kernel, walk, cgroups, due, .. } = self;
        let before = cgroups.len();
        due.clear();
        cgroups.retain(|path, tracked| {
            let mut here = tracked.read_use(kernel);
            if here.is_ok() && (tracked.is_new() || tracked.turn == turn) {
                here = tracked.read_rest(kernel);
                if has_network(&tracked.identity.kind) {
                    due.push(Arc::clone(path));
                } else {
                    tracked.network = Reading::Absent(Absence::NotAttributable);
                }
            }
            if here.is_err() {
                tracked.release(kernel);
                walk.forget(path);
            }
            here.is_ok()
        });
        cgroups.len() < before
    }

    fn read_networks(&mut self) {
        if self.namespaces.is_none() {
            self.namespaces = NetworkNamespaces::find(&mut self.kernel.reader, &self.kernel.procfs).ok();
        }
        let due = std::mem::take(&mut self.due);
        for path in &due {
            let Some(tracked) = self.cgroups.get_mut(path) else { continue };
            let mut totals = std::mem::take(&mut tracked.totals);
            let reading = self.read_network(path, &mut totals);
            if let Some(tracked) = self.cgroups.get_mut(path) {
                (tracked.totals, tracked.network) = (totals, reading);
            }
        }
        self.due = due;
    }

    fn read_network(&mut self, path: &str, totals: &mut NetworkTotals) -> Reading<model::cgroup::NetworkSample> {
        if self.kernel.visibility == ProcVisibility::Mounted {
            return Reading::Absent(Absence::ProcessesHidden);
        }
        let Some(namespaces) = self.namespaces else { return Reading::Absent(Absence::NeedsPtrace) };
        let net = NetworkReader { procfs: &self.kernel.procfs, namespaces };
        if let Some(reading) = totals.read_again(&mut self.kernel.reader, net) {
            return reading;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        self.find_candidates(path, &mut candidates);
        self.pids.clear();
        self.pids.extend(candidates.iter().map(|(_, pid)| *pid));
        self.candidates = candidates;
        let net = NetworkReader { procfs: &self.kernel.procfs, namespaces };
        let reading = totals.read_through(&mut self.kernel.reader, net, &self.pids);
        match reading.absence() {
            // In a private PID namespace, process 1 is not the host's process 1, so a pod that shares its network is
            // not in the host's network.
            Some(Absence::NoLivingProcess | Absence::HostNetwork)
                if self.kernel.visibility == ProcVisibility::Private =>
            {
                Reading::Absent(Absence::ProcessesHidden)
            }
            Some(Absence::NoLivingProcess) if self.hidden => Reading::Absent(Absence::ProcessesHidden),
            _ => reading,
        }
    }

    /// Living processes of a pod with their start times, the oldest first. The oldest process is the sandbox's, which
    /// is in the pod's network namespace; a container may have made another namespace.
    fn find_candidates(&mut self, path: &str, candidates: &mut Vec<(u64, u32)>) {
        let CgroupTable { kernel, cgroups, pids, hidden, .. } = self;
        candidates.clear();
        *hidden = false;
        let parts = cgroups
            .range::<str, _>((Bound::Included(path), Bound::Unbounded))
            .take_while(|(part, _)| part.starts_with(path));
        for (part, _) in parts {
            if candidates.len() >= NETWORK_TRIES {
                break;
            }
            let Ok(without_number) = members(&mut kernel.reader, kernel.layout.walked(), part, pids) else { continue };
            *hidden |= without_number > 0;
            for &pid in pids.iter().take(TRIES_A_CONTAINER) {
                if let Ok(stat) = process::stat(&mut kernel.reader, &kernel.procfs, pid) {
                    candidates.push((stat.start_ticks, pid));
                }
            }
        }
        candidates.sort_unstable();
    }

    /// The last readings of all cgroups. Paths are sorted, so a pod comes before its containers. Their processes are
    /// added to the pod's.
    fn report(&self) -> Vec<CgroupReport> {
        let mut reports: Vec<CgroupReport> = Vec::with_capacity(self.cgroups.len());
        let mut pod: Option<usize> = None;
        for tracked in self.cgroups.values() {
            let identity = Arc::clone(&tracked.identity);
            match &identity.kind {
                CgroupKind::Pod { .. } => pod = Some(reports.len()),
                CgroupKind::Container { pod: Some(_), .. } => {
                    if let Some(pod) = pod.and_then(|at| reports.get_mut(at))
                        && pod.identity.pod() == identity.pod()
                    {
                        let (sum, one) = (&mut pod.sample, &tracked.sample);
                        sum.processes = plus(sum.processes, one.processes, |a, b| Count(a.0 + b.0));
                        sum.process_io = plus(sum.process_io, one.process_io, |a, b| ProcessIo {
                            read: a.read.plus(b.read),
                            write: a.write.plus(b.write),
                        });
                    }
                }
                CgroupKind::Container { pod: None, .. } => {}
            }
            reports.push(CgroupReport { identity, sample: tracked.sample.clone(), network: tracked.network.clone() });
        }
        reports
    }
}

/// A pod has its own network, and so has a container outside any pod; a container in a pod shares the pod's.
fn has_network(kind: &CgroupKind) -> bool {
    !matches!(kind, CgroupKind::Container { pod: Some(_), .. })
}

/// Adds two readings. The sum is as old as its oldest part, and absent if a part is absent.
fn plus<T>(one: Reading<T>, other: Reading<T>, sum: impl Fn(T, T) -> T) -> Reading<T> {
    match (one, other) {
        (Reading::Measured(a, first), Reading::Measured(b, second)) => Reading::Measured(sum(a, b), first.min(second)),
        (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
    }
}

#[cfg(test)]
impl CgroupTable {
    /// Makes every cgroup look active since its last slow reading, to measure the cost of a node without idle cgroups.
    pub(crate) fn forget_idle_state(&mut self) {
        self.cgroups.values_mut().for_each(TrackedCgroup::forget_idle_state);
    }

    /// Makes the reader work as if it had no permission to read the links of namespaces.
    pub(crate) fn identify_namespaces_by_counters(&mut self) {
        self.namespaces = NetworkNamespaces::by_counters(&mut self.kernel.reader, &self.kernel.procfs).ok();
    }
}

#[cfg(test)]
mod tests;
