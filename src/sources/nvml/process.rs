//! The processes on a GPU, the containers that they belong to, and what they use.
//!
//! A PID in NVML's list does not show which process has it now, so the agent reads each identity (start time and
//! cgroup) before and after the list. The reading after one list also serves as the reading
//! before the next list. Only a process that is new in a list has no earlier reading; for it the agent reads the list
//! a second time.

use crate::nvml::absence::{INSUFFICIENT_SIZE, none_of_it};
use crate::nvml::polled_gpu::{GpuCaller, PolledGpu};
use crate::nvml::process_use::{Use, UseMeter, Uses};
use crate::nvml::raw::{self, ProcessList};
use crate::process_owner::{IdentifiedProcess, ProcessOwnerReader};
use clock::monotonic;
use model::gpu::MigInstance;
use model::physical_range::PhysicalRange;
use model::process::{GpuProcess, GpuProcessKind, GpuProcesses, MAX_GPU_PROCESSES, ProcessOwner};
use model::time::{Now, WallTime};
use model::unit::Bytes;
use model::{Absence, Reading};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An empty list of graphics processes is read again after this many lists, usually a minute: a compute node has no
/// graphics processes. It is read at once when the GPU shows signs of a process that is in no other list.
const GRAPHICS_EVERY: u32 = 12;
/// If the used memory that belongs to no listed process grows by this much, the list of graphics processes is read at
/// once. Drivers keep smaller, changing amounts for themselves; the smallest client of a display takes about this much.
const UNEXPLAINED: Bytes = Bytes(32 * Bytes::MIB);

/// State of one GPU's processes between two lists.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The process that had each PID after the last list.
    identities: BTreeMap<u32, IdentifiedProcess>,
    /// The last measured use of each process.
    uses: BTreeMap<u32, Use>,
    meter: UseMeter,
    graphics: Graphics,
}

/// Decides when the list of graphics processes is read.
#[derive(Debug, Default)]
struct Graphics {
    /// The list was read, and it was empty.
    empty: bool,
    /// Number of process lists since the last reading of the graphics list.
    without: u32,
    /// The smallest amount of unexplained memory since that reading, in bytes; `None` if unknown.
    unexplained: Option<u64>,
}

impl Graphics {
    /// Whether the list must be read. `unexplained` is the used memory that belongs to no process of the other lists.
    /// `seen`: a process that is in no other list used the GPU.
    fn must_read(&mut self, unexplained: Option<u64>, seen: bool) -> bool {
        let grown = match (self.unexplained, unexplained) {
            (Some(before), Some(now)) => now >= before.saturating_add(UNEXPLAINED.0),
            _ => true,
        };
        self.without += 1;
        self.unexplained = self.unexplained.min(unexplained);
        !self.empty || self.without >= GRAPHICS_EVERY || grown || seen
    }

    /// Records that the list was read.
    fn was_read(&mut self, empty: bool, unexplained: Option<u64>) {
        *self = Graphics { empty, without: 0, unexplained };
    }
}

/// One entry of NVML's process lists.
#[derive(Clone, Copy, Debug)]
struct Listed {
    kind: GpuProcessKind,
    /// `None`: the driver does not report it.
    memory: Option<Result<Bytes, Absence>>,
    instance: Option<(u32, Option<u32>)>,
}

/// Lists the processes of one GPU.
pub(super) fn list(
    gpu: &mut PolledGpu,
    clients: &mut Clients,
    owners: &mut ProcessOwnerReader,
    now: Now,
) -> GpuProcesses {
    let uuid = gpu.known.gpu.uuid.clone();
    let uses = clients.meter.read(gpu, now);
    let (listed, befores, afters) = match list_with_identities(gpu, clients, owners, &uses) {
        Ok(lists) => lists,
        Err(why) => {
            *clients = Clients::default();
            let list = Reading::Absent(why);
            return GpuProcesses { gpu: uuid, list, memory_used: Reading::Absent(why), stamp: None, left_out: 0 };
        }
    };
    // The use of a PID that another process has now is dropped.
    clients.uses.retain(|pid, _| {
        clients.identities.get(pid).map(|before| before.key) == afters.get(pid).map(|after| after.key)
    });
    let boot = if listed.is_empty() { None } else { owners.boot() };
    let started =
        |pid: u32| afters.get(&pid).zip(boot).and_then(|(process, boot)| boot.started_at(process.key.start_ticks));
    let mut processes: Vec<GpuProcess> = listed
        .iter()
        .map(|(pid, entry)| {
            let (its_use, newest) = use_of(*pid, &uses, &clients.uses);
            let agreed = agree(befores.get(pid), afters.get(pid), newest, started(*pid));
            process(gpu, *pid, entry, agreed, its_use)
        })
        .collect();
    clients.uses =
        processes.iter().map(|p| (p.pid, Use { sm: p.sm, encoder: p.encoder, decoder: p.decoder })).collect();
    clients.identities = afters;
    processes.sort_by_key(|process| {
        (std::cmp::Reverse(process.memory_used.get().map_or(0, |memory| memory.0)), process.pid)
    });
    let left_out = u32::try_from(processes.len().saturating_sub(MAX_GPU_PROCESSES)).unwrap_or(u32::MAX);
    processes.truncate(MAX_GPU_PROCESSES);
    let stamp = clients.meter.newest();
    // It was read in the same round, a moment before.
    let memory_used = gpu.sample.memory_used;
    GpuProcesses { gpu: uuid, list: Reading::Measured(processes, monotonic()), memory_used, stamp, left_out }
}

/// The use of one process, and the timestamp of its newest sample.
fn use_of(pid: u32, uses: &Uses, before: &BTreeMap<u32, Use>) -> (Use, Option<WallTime>) {
    match uses {
        Uses::Early => (before.get(&pid).copied().unwrap_or(Use::absent(Absence::NotYet)), None),
        Uses::Absent(why) => (Use::absent(*why), None),
        Uses::Measured(all, at) => all.get(&pid).copied().unwrap_or((Use::idle(*at), None)),
    }
}

type Lists = (BTreeMap<u32, Listed>, BTreeMap<u32, IdentifiedProcess>, BTreeMap<u32, IdentifiedProcess>);

/// NVML's list, with the identities before and after it.
fn list_with_identities(
    gpu: &mut PolledGpu,
    clients: &mut Clients,
    owners: &mut ProcessOwnerReader,
    uses: &Uses,
) -> Result<Lists, Absence> {
    let mut listed = merged_lists(gpu, clients, uses)?;
    let mut befores = clients.identities.clone();
    let mut afters: BTreeMap<u32, IdentifiedProcess> =
        listed.keys().filter_map(|pid| Some((*pid, owners.identify_reported(*pid, befores.get(pid))?))).collect();
    let changed: Vec<u32> = listed.keys().copied().filter(|pid| befores.get(pid) != afters.get(pid)).collect();
    if !changed.is_empty() {
        // For these processes, this reading is the reading before the second list.
        for pid in &changed {
            match afters.remove(pid) {
                Some(before) => befores.insert(*pid, before),
                None => befores.remove(pid),
            };
        }
        listed = merged_lists(gpu, clients, uses)?;
        for pid in listed.keys() {
            if !afters.contains_key(pid)
                && let Some(after) = owners.identify_reported(*pid, None)
            {
                afters.insert(*pid, after);
            }
        }
        afters.retain(|pid, _| listed.contains_key(pid));
    }
    Ok((listed, befores, afters))
}

/// NVML's three lists merged, by PID.
///
/// # Errors
/// If a list cannot be read: the other lists would look complete.
fn merged_lists(gpu: &mut PolledGpu, clients: &mut Clients, uses: &Uses) -> Result<BTreeMap<u32, Listed>, Absence> {
    let device = &gpu.known.device;
    let asker = &mut gpu.asker;
    let compute = whole(asker, "compute processes", || raw::processes(device, ProcessList::Compute))?;
    let mps = or_none(whole(asker, "mps processes", || raw::processes(device, ProcessList::Mps)))?;
    let mut all = BTreeMap::new();
    for (infos, kind) in [(compute, GpuProcessKind::Compute), (mps, GpuProcessKind::Mps)] {
        for info in infos {
            let memory = memory(asker, gpu.known.gpu.memory_total, &info);
            put(&mut all, &info, memory, kind);
        }
    }
    let unexplained = unexplained(gpu.sample.memory_used.get(), &all);
    let seen = uses.has_unknown_process(|pid| all.contains_key(&pid));
    if clients.graphics.must_read(unexplained, seen) {
        // Until it succeeds, the list is read each time.
        clients.graphics.empty = false;
        let graphics = or_none(whole(asker, "graphics processes", || raw::processes(device, ProcessList::Graphics)))?;
        clients.graphics.was_read(graphics.is_empty(), unexplained);
        for info in graphics {
            let memory = memory(asker, gpu.known.gpu.memory_total, &info);
            put(&mut all, &info, memory, GpuProcessKind::Graphics);
        }
    }
    Ok(all)
}

/// Used memory that belongs to no process in the lists; `None` if the driver does not report the used memory, or the
/// memory of a process.
fn unexplained(used: Option<Bytes>, listed: &BTreeMap<u32, Listed>) -> Option<u64> {
    let explained = listed.values().try_fold(0_u64, |sum, entry| Some(sum.saturating_add(entry.memory?.ok()?.0)))?;
    Some(used?.0.saturating_sub(explained))
}

/// Reads a list, and once more if it grew during the read.
fn whole(
    asker: &mut GpuCaller,
    name: &'static str,
    call: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, Absence> {
    match asker.ask(name, &call) {
        Err(INSUFFICIENT_SIZE) => asker.ask(name, &call),
        answer => answer,
    }
}

/// A GPU or a driver without such a list has no such process.
fn or_none(answer: Result<Vec<ProcessInfo>, Absence>) -> Result<Vec<ProcessInfo>, Absence> {
    match answer {
        Err(why) if none_of_it(why) => Ok(Vec::new()),
        answer => answer,
    }
}

/// The memory of a process, at most the memory of the GPU; `None` if the driver does not report it.
fn memory(asker: &mut GpuCaller, total: Reading<Bytes>, info: &ProcessInfo) -> Option<Result<Bytes, Absence>> {
    let range = PhysicalRange::PROCESS_MEMORY.within(total.get().unwrap_or(Bytes(u64::MAX)));
    match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(asker.within(range, Ok(Bytes(bytes)))),
        UsedGpuMemory::Unavailable => None,
    }
}

/// Adds an entry. A process may be in more than one list, each time with all of its memory.
fn put(
    all: &mut BTreeMap<u32, Listed>,
    info: &ProcessInfo,
    memory: Option<Result<Bytes, Absence>>,
    kind: GpuProcessKind,
) {
    let instance = info.gpu_instance_id.map(|gpu| (gpu, info.compute_instance_id));
    let entry = all.entry(info.pid).or_insert(Listed { kind, memory, instance });
    let known = [entry.memory, memory].into_iter().flatten();
    entry.memory = known.max_by_key(|memory| memory.map(|bytes| bytes.0).ok());
    entry.instance = entry.instance.or(instance);
    if kind == GpuProcessKind::Mps {
        entry.kind = kind;
    }
}

/// The process that has the PID, if both identities and the samples agree.
fn agree<'a>(
    before: Option<&IdentifiedProcess>,
    after: Option<&'a IdentifiedProcess>,
    newest: Option<WallTime>,
    started: Option<WallTime>,
) -> Option<&'a IdentifiedProcess> {
    let (before, after) = (before?, after?);
    // Samples that end before this process started belong to an earlier process, which the driver may still be tearing
    // down.
    let older = matches!((newest, started), (Some(newest), Some(started)) if newest < started);
    (before.key == after.key && before.owner == after.owner && !older).then_some(after)
}

fn process(gpu: &PolledGpu, pid: u32, entry: &Listed, identified: Option<&IdentifiedProcess>, uses: Use) -> GpuProcess {
    let without = if gpu.divided() { Absence::MigEnabled } else { Absence::NotSupported };
    GpuProcess {
        pid,
        key: identified.map(|process| process.key),
        command: identified.map_or_else(|| Arc::from(""), |process| Arc::clone(&process.command)),
        owner: identified.map_or(ProcessOwner::Unknown, |process| process.owner.clone()),
        kind: entry.kind,
        mig: entry.instance.and_then(|ids| instance(gpu.known.gpu.instances(), ids)).map(|mig| mig.uuid.clone()),
        memory_used: Reading::from_result(entry.memory.unwrap_or(Err(without)), monotonic()),
        sm: uses.sm,
        encoder: uses.encoder,
        decoder: uses.decoder,
    }
}

fn instance(instances: &[MigInstance], (gpu, compute): (u32, Option<u32>)) -> Option<&MigInstance> {
    instances
        .iter()
        .find(|mig| mig.gpu_instance == gpu && compute.is_none_or(|compute| mig.compute_instance == compute))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::ProcessKey;

    fn identified(start_ticks: u64, owner: ProcessOwner) -> IdentifiedProcess {
        IdentifiedProcess { key: ProcessKey { pid: 7, start_ticks }, command: "x".into(), owner }
    }

    #[test]
    fn the_graphics_list_is_read_rarely_while_it_stays_empty() {
        const MIB: u64 = Bytes::MIB;
        let mut graphics = Graphics::default();
        assert!(graphics.must_read(Some(500 * MIB), false), "the first time");
        graphics.was_read(true, Some(500 * MIB));
        let reads = (1..=24).filter(|_| {
            let must_read = graphics.must_read(Some(510 * MIB), false);
            if must_read {
                graphics.was_read(true, Some(510 * MIB));
            }
            must_read
        });
        assert_eq!(reads.collect::<Vec<_>>(), [12, 24]);
        for (name, unexplained, seen, must_read) in [
            ("memory of an unlisted process", Some(542 * MIB), false, true),
            ("work of an unlisted process", Some(510 * MIB), true, true),
            ("a driver that does not report memory", None, false, true),
            ("a little more", Some(541 * MIB), false, false),
        ] {
            graphics.was_read(true, Some(510 * MIB));
            assert_eq!(graphics.must_read(unexplained, seen), must_read, "{name}");
        }
        graphics.was_read(true, Some(510 * MIB));
        assert!(!graphics.must_read(Some(100 * MIB), false), "a process that ended");
        assert!(graphics.must_read(Some(140 * MIB), false), "another process that appeared");
        graphics.was_read(false, Some(510 * MIB));
        assert!(graphics.must_read(Some(510 * MIB), false), "a list that is not empty is read each time");
    }

    /// Promise 7 in docs/specification.md.
    #[test]
    fn a_pid_is_attributed_only_if_both_identities_and_the_samples_agree() {
        let one = identified(10, ProcessOwner::Host);
        let reused = identified(99, ProcessOwner::Host);
        let moved = identified(10, ProcessOwner::Unknown);
        let stamp = |at| Some(WallTime(at));
        for (name, before, after, newest, started, agreed) in [
            ("the same before and after", Some(&one), Some(&one), None, stamp(5), true),
            ("with samples after its start", Some(&one), Some(&one), stamp(6), stamp(5), true),
            ("the number was used again", Some(&one), Some(&reused), None, stamp(5), false),
            ("it changed its cgroup", Some(&one), Some(&moved), None, stamp(5), false),
            ("it vanished", Some(&one), None, None, None, false),
            ("it appeared", None, Some(&one), None, stamp(5), false),
            ("all samples are older than it", Some(&one), Some(&one), stamp(4), stamp(5), false),
        ] {
            assert_eq!(agree(before, after, newest, started).is_some(), agreed, "{name}");
        }
    }

    #[test]
    fn a_process_in_several_lists_is_counted_once() {
        let info = |memory| ProcessInfo {
            pid: 7,
            used_gpu_memory: UsedGpuMemory::Used(memory),
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let mut all = BTreeMap::new();
        for (memory, kind) in
            [(100, GpuProcessKind::Compute), (120, GpuProcessKind::Mps), (100, GpuProcessKind::Graphics)]
        {
            put(&mut all, &info(memory), Some(Ok(Bytes(memory))), kind);
        }
        assert_eq!(all.len(), 1);
        assert_eq!((all[&7].memory, all[&7].kind), (Some(Ok(Bytes(120))), GpuProcessKind::Mps));
    }
}
