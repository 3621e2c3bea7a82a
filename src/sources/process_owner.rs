//! Finds the container that a process belongs to: PID, start time and cgroup of one process, read together.
//!
//! ```text
//!   stat ─▶ cgroup ─▶ stat again: the same start time, so all three reads saw one process
//!
//!   paths in /proc match the mounted hierarchy:        /proc/<pid>/cgroup
//!   they do not (private cgroup namespace):            cgroup.procs of every pod and container, kept for a second
//! ```
//!
//! A container engine inside a pod may put its containers into cgroups outside the pod (`/docker/<id>`, `/actions_job/<id>`,
//! `/ecs/<task>/<id>`). Such a process belongs to the pod around it if one of its ancestors is in that pod: a process of the
//! host has no ancestor in a pod. The name of its cgroup alone proves nothing.
//!
//! A node may have more containers than the walk keeps. A process in a container that it does not keep belongs to the pod.
//!
//! What must never happen here: a process is assigned to the container of an earlier or later process with the same PID.

use crate::cgroup::layout::{CgroupLayout, CgroupNamespace};
use crate::cgroup::members::{MAX_MEMBERS, members_with};
use crate::cgroup::walk::{CgroupWalk, FoundCgroup};
use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::host_file::host_stat;
use crate::procfs::process::{self, ProcError};
use crate::procfs::visibility::ProcVisibility;
use crate::roots::{HostRoots, part};
use model::cgroup::{CgroupIdentity, CgroupKind, MAX_CGROUPS};
use model::id::ProcessKey;
use model::process::ProcessOwner;
use model::time::{Monotonic, WallTime};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use wire::cgroup_path::{CgroupPlace, place};
use wire::proc_file::{CgroupMembership, memberships};

/// Maximum number of ancestors that are looked at: below a container's own init there are a shell or two and a supervisor.
const MAX_ANCESTORS: usize = 16;
/// Maximum number of attempts for one PID. An attempt fails only if the PID is reused between two reads.
const MAX_ATTEMPTS: usize = 3;
/// How long the result of a walk over `cgroup.procs` is used.
const KEPT: Duration = Duration::from_secs(1);
/// Shortest time between two walks, for any number of young processes: a walk over 300 cgroups costs about 5 ms.
const APART: Duration = Duration::from_millis(100);
/// Start times are exact to one tick (10 ms): a walk may have missed a process that started this close before it.
const TICK: Duration = Duration::from_millis(20);

/// A process at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentifiedProcess {
    /// PID and start time.
    pub key: ProcessKey,
    /// `comm`.
    pub command: Arc<str>,
    /// The container that the process belongs to, or the host.
    pub owner: ProcessOwner,
}

/// When the machine started.
#[derive(Clone, Copy, Debug)]
pub struct BootTime {
    seconds: u64,
    ticks_a_second: u64,
}

/// Reads which container a process belongs to, and keeps the owners of cgroups so that later reads are cheap. Each
/// thread has its own.
#[derive(Debug)]
pub struct ProcessOwnerReader {
    procfs: Vec<u8>,
    reader: KernelFileReader,
    visibility: ProcVisibility,
    ticks_a_second: u64,
    identities: HashMap<Arc<str>, Arc<CgroupIdentity>>,
    members: Option<Members>,
}

/// The cgroup of each process, as a walk over the mounted hierarchy found it.
#[derive(Debug)]
struct Members {
    layout: Option<CgroupLayout>,
    walk: CgroupWalk,
    cgroups: Vec<Arc<CgroupIdentity>>,
    owners: HashMap<u32, Arc<CgroupIdentity>>,
    began: Option<Monotonic>,
    complete: bool,
}

impl ProcessOwnerReader {
    /// A reader for processes under these roots.
    #[must_use]
    pub fn new(roots: HostRoots) -> Self {
        let mut reader = KernelFileReader::default();
        let members =
            CgroupNamespace::detect(&mut reader, &roots).mounted_above.then(|| Members::new(&mut reader, &roots));
        let procfs = part(&roots.procfs);
        ProcessOwnerReader {
            visibility: ProcVisibility::detect(&mut reader, &procfs),
            procfs,
            reader,
            ticks_a_second: rustix::param::clock_ticks_per_second().max(1),
            identities: HashMap::new(),
            members,
        }
    }

    /// Reads the process now; `None` if no process has that PID (or it is hidden from the agent).
    pub fn identify(&mut self, pid: u32) -> Option<IdentifiedProcess> {
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            let before = process::key(&process::stat(&mut self.reader, &self.procfs, pid).ok()?);
            let owner = self.owner(before);
            let owner = self.around(before, owner);
            let after = process::stat(&mut self.reader, &self.procfs, pid).ok()?;
            let (key, command) = (process::key(&after), process::command(&after));
            if key == before {
                return Some(IdentifiedProcess { key, command, owner });
            }
            last = Some(IdentifiedProcess { key, command, owner: ProcessOwner::Unknown });
        }
        last
    }

    /// The container of a pod in which an ancestor of this process is, if the process itself is in no pod; otherwise `own`.
    fn around(&mut self, key: ProcessKey, own: ProcessOwner) -> ProcessOwner {
        let in_pod = |owner: &ProcessOwner| matches!(owner, ProcessOwner::Cgroup(identity) if identity.pod().is_some());
        if own == ProcessOwner::Unknown || in_pod(&own) {
            return own;
        }
        let mut child = key;
        for _ in 0..MAX_ANCESTORS {
            let Some(parent) = self.parent(child) else { return own };
            let owner = self.owner(parent);
            // The PID of the parent belonged to the same process, and that process was the child's parent, before and after its
            // cgroup was read.
            if owner == ProcessOwner::Unknown || self.parent(child) != Some(parent) {
                return own;
            }
            if in_pod(&owner) {
                return owner;
            }
            child = parent;
        }
        own
    }

    /// The parent of a process; `None` if it has no parent, or the parent has ended.
    fn parent(&mut self, child: ProcessKey) -> Option<ProcessKey> {
        let stat = process::stat(&mut self.reader, &self.procfs, child.pid).ok()?;
        let parent = stat.parent;
        // The init process of the host is in no pod.
        if process::key(&stat) != child || parent <= 1 {
            return None;
        }
        Some(process::key(&process::stat(&mut self.reader, &self.procfs, parent).ok()?))
    }

    /// Like [`ProcessOwnerReader::identify`], for a PID that the GPU driver reported, which is a PID of the host. If
    /// the agent has its own PID namespace, that number would name another process there, so the result is `None`.
    /// `known` is the earlier result. If PID, start time, command and owner still match, no third read is needed: a
    /// process that took the PID over after the first read would have to be in the same container.
    pub fn identify_reported(&mut self, pid: u32, known: Option<&IdentifiedProcess>) -> Option<IdentifiedProcess> {
        if self.visibility == ProcVisibility::Private {
            return None;
        }
        if let Some(known) = known {
            let stat = process::stat(&mut self.reader, &self.procfs, pid).ok()?;
            let same = process::key(&stat) == known.key && process::command(&stat) == known.command;
            if same && known.owner != ProcessOwner::Unknown && self.owner(known.key) == known.owner {
                return Some(known.clone());
            }
        }
        self.identify(pid)
    }

    /// The owner of the process that has this PID now. The caller checks that it is still the same process.
    pub fn owner(&mut self, key: ProcessKey) -> ProcessOwner {
        let ProcessOwnerReader { procfs, reader, ticks_a_second, identities, members, .. } = self;
        if let Some(members) = members {
            let nanos = u128::from(key.start_ticks) * 1_000_000_000 / u128::from(*ticks_a_second);
            return members.owner(reader, key.pid, Monotonic(u64::try_from(nanos).unwrap_or(u64::MAX)));
        }
        let text =
            match reader.read_piece(&[procfs, b"/", KernelFileReader::decimal(key.pid, &mut [0; 10]), b"/cgroup"]) {
                Ok(text) => text,
                Err(_) => return ProcessOwner::Unknown,
            };
        let mut inside: Option<(u8, &str, CgroupKind)> = None;
        let mut foreign = false;
        let whole = memberships(text, |membership| match place(membership.path) {
            CgroupPlace::Host => {}
            CgroupPlace::Foreign => foreign = true,
            // The process may be in a container in one hierarchy and not in another: its owner is the container.
            CgroupPlace::Inside { path, kind } => {
                let rank = rank(membership);
                if inside.as_ref().is_none_or(|(known, ..)| rank < *known) {
                    inside = Some((rank, path, kind));
                }
            }
        });
        match (whole, inside) {
            (Err(_), _) => ProcessOwner::Unknown,
            (Ok(()), Some((_, path, kind))) => {
                ProcessOwner::Cgroup(intern(identities, path, || CgroupIdentity { path: Arc::from(path), kind }))
            }
            (Ok(()), None) if foreign => ProcessOwner::Unknown,
            (Ok(()), None) => ProcessOwner::Host,
        }
    }

    /// When the machine started, as of now: this changes when the clock is set. `/proc/stat` also lists every processor
    /// and every interrupt, which costs the kernel of a large machine milliseconds, so one read serves many processes.
    pub fn boot(&mut self) -> Option<BootTime> {
        let text = self.reader.read(&[&self.procfs, b"/stat"]).map(host_stat);
        Some(BootTime { seconds: text.ok()?.ok()?.boot_seconds, ticks_a_second: self.ticks_a_second })
    }
}

impl BootTime {
    /// When a process with these start ticks started, on the wall clock, in microseconds.
    #[must_use]
    pub fn started_at(self, start_ticks: u64) -> Option<WallTime> {
        let micros = u128::from(start_ticks) * 1_000_000 / u128::from(self.ticks_a_second);
        Some(WallTime(self.seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(micros).ok()?)))
    }
}

/// Rank of a hierarchy if several differ: the hierarchy that the kubelet and the walk use comes first.
fn rank(membership: CgroupMembership<'_>) -> u8 {
    match membership.controllers {
        "memory" => 0,
        "" => 2,
        named if named.starts_with("name=") => 3,
        _ => 1,
    }
}

/// The shared identity of a path. Paths of removed cgroups fill the table in time, so it is emptied when it is full.
fn intern(
    known: &mut HashMap<Arc<str>, Arc<CgroupIdentity>>,
    path: &str,
    make: impl FnOnce() -> CgroupIdentity,
) -> Arc<CgroupIdentity> {
    if let Some(identity) = known.get(path) {
        return Arc::clone(identity);
    }
    if known.len() >= MAX_CGROUPS {
        known.clear();
    }
    let identity = Arc::new(make());
    known.insert(Arc::clone(&identity.path), Arc::clone(&identity));
    identity
}

impl Members {
    fn new(reader: &mut KernelFileReader, roots: &HostRoots) -> Self {
        let layout = CgroupLayout::detect(reader, roots).ok();
        let walk = CgroupWalk::new(layout.as_ref().map(CgroupLayout::walked).unwrap_or_default());
        Members { layout, walk, cgroups: Vec::new(), owners: HashMap::new(), began: None, complete: false }
    }

    fn owner(&mut self, reader: &mut KernelFileReader, pid: u32, started: Monotonic) -> ProcessOwner {
        let Some(layout) = &self.layout else { return ProcessOwner::Unknown };
        let tree = layout.walked().to_vec();
        let now = clock::monotonic();
        let answers = |began: Monotonic| started.after(TICK) < began;
        let stale =
            self.began.is_none_or(|began| now.since(began) > KEPT || (!answers(began) && now.since(began) > APART));
        if stale {
            self.began = Some(now);
            self.refresh(reader, &tree);
        }
        match (self.owners.get(&pid), self.began) {
            // The list showed the PID after this process started, and the process still lives: so the entry was this
            // process.
            (Some(identity), Some(began)) if answers(began) => ProcessOwner::Cgroup(Arc::clone(identity)),
            (None, Some(began)) if answers(began) && self.complete => ProcessOwner::Host,
            // The process started after the last walk, or the last walk was incomplete.
            _ => ProcessOwner::Unknown,
        }
    }

    /// Walks `cgroup.procs` of every pod and container.
    fn refresh(&mut self, reader: &mut KernelFileReader, tree: &[u8]) {
        let Members { walk, cgroups, owners, .. } = self;
        let left_out = walk.find(reader, true, |one| {
            let fits = one.has_place(cgroups.len());
            if fits {
                let FoundCgroup { path, kind } = one;
                cgroups.push(Arc::new(CgroupIdentity { path, kind }));
            }
            fits
        });
        owners.clear();
        let mut complete = left_out == 0;
        let mut pids = Vec::new();
        cgroups.retain(|identity| {
            let listed = members_with(reader, (tree, &identity.path), |child| !walk.knows(child), &mut pids);
            match listed {
                // Processes without a PID in this namespace are left out: no caller looks them up by a PID.
                Ok(_) => {
                    // Of a longer list, the rest is not known.
                    complete &= pids.len() < MAX_MEMBERS;
                    owners.extend(pids.iter().map(|pid| (*pid, Arc::clone(identity))));
                    true
                }
                Err(ProcError::File(ReadFailure::NotFound | ReadFailure::Gone)) => {
                    walk.forget(&identity.path);
                    false
                }
                Err(_) => {
                    complete = false;
                    true
                }
            }
        });
        self.complete = complete;
    }
}

#[cfg(test)]
mod tests;
