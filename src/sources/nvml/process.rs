//! Processes on a GPU, whose they are, and what they do there.
//!
//! A number in NVML's list says nothing of who has it now, so identity (start time and cgroup) is read before and after
//! the list. For a process that was there last time, what was read after the last list is the reading before this one;
//! only a new one costs a second list.

use crate::clock::monotonic;
use crate::nvml::absence::{INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND, none_of_it};
use crate::nvml::card::{Asker, Card};
use crate::owner::{Identified, Owners};
use model::gpu::MigInstance;
use model::process::{GpuProcess, GpuProcessKind, GpuProcesses, MAX_GPU_PROCESSES, Owner};
use model::time::{Monotonic, Now, WallTime};
use model::unit::{Bytes, Percent};
use model::{Absence, Reading};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// NVML refreshes its samples every sixth of a second to a second. Over a shorter time than this, a busy process may have
/// no new sample and would look idle, so a list that comes early keeps the use that was measured last.
const SHORTEST_WINDOW: Duration = Duration::from_secs(2);
/// The longest time, in microseconds, that NVML takes for one sample.
const LONGEST_REFRESH: u64 = 1_000_000;
/// The first look at use goes back this far, not to the beginning of NVML's buffer.
const FIRST_WINDOW: Duration = Duration::from_secs(5);
/// What is kept of one GPU's processes between two lists.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Who had each number when it was looked at after the last list.
    identities: BTreeMap<u32, Identified>,
    /// What each process did when that was measured last.
    uses: BTreeMap<u32, Use>,
    /// Up to where on NVML's clock use has been measured.
    stamp: Option<u64>,
    /// NVML's newest stamp that was used.
    newest: Option<u64>,
    measured: Option<Monotonic>,
}

/// One entry of NVML's lists.
#[derive(Clone, Copy, Debug)]
struct Listed {
    kind: GpuProcessKind,
    memory: Option<Bytes>,
    instance: Option<(u32, Option<u32>)>,
}

/// What one process did, as means over the time since the last stamp.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Use {
    sm: Reading<Percent>,
    encoder: Reading<Percent>,
    decoder: Reading<Percent>,
}

/// What NVML recorded since the last time, each process's samples in order.
#[derive(Debug, Default)]
struct Record {
    from: u64,
    to: u64,
    samples: BTreeMap<u32, Vec<ProcessUtilizationSample>>,
}

/// Lists the processes of one GPU.
pub(super) fn list(card: &mut Card, clients: &mut Clients, owners: &mut Owners, now: Now) -> GpuProcesses {
    let gpu = card.known.gpu.uuid.clone();
    let (listed, befores, afters) = match settled(card, clients, owners) {
        Ok(lists) => lists,
        Err(why) => {
            *clients = Clients::default();
            return GpuProcesses { gpu, list: Reading::Absent(why), stamp: None, left_out: 0 };
        }
    };
    // A number that somebody else has now brings nothing along.
    clients.uses.retain(|pid, _| clients.identities.get(pid).map(|who| who.key) == afters.get(pid).map(|who| who.key));
    let record = record(card, clients, now);
    let look = Look { record: record.as_ref(), before: &clients.uses, at: now.monotonic };
    let boot = if listed.is_empty() { None } else { owners.boot() };
    let mut processes: Vec<GpuProcess> = listed
        .iter()
        .map(|(pid, entry)| {
            let started = afters.get(pid).zip(boot).and_then(|(who, boot)| boot.started_at(who.key.start_ticks));
            let agreed = agree(befores.get(pid), afters.get(pid), look.newest(*pid), started);
            process(card, *pid, entry, agreed, look.of(*pid, started))
        })
        .collect();
    clients.uses =
        processes.iter().map(|p| (p.pid, Use { sm: p.sm, encoder: p.encoder, decoder: p.decoder })).collect();
    if let Some(Ok(record)) = &record {
        // Where nothing was recorded, the time up to now was idle, but for a sample that is still being made.
        let idle_until = now.wall.0.saturating_sub(LONGEST_REFRESH);
        clients.stamp = Some(if record.samples.is_empty() { record.to.max(idle_until) } else { record.to });
        clients.newest = if record.samples.is_empty() { clients.newest } else { Some(record.to) };
        clients.measured = Some(now.monotonic);
    }
    clients.identities = afters;
    processes.sort_by_key(|process| {
        (std::cmp::Reverse(process.memory_used.get().map_or(0, |memory| memory.0)), process.pid)
    });
    let left_out = u32::try_from(processes.len().saturating_sub(MAX_GPU_PROCESSES)).unwrap_or(u32::MAX);
    processes.truncate(MAX_GPU_PROCESSES);
    let stamp = clients.newest.map(WallTime);
    GpuProcesses { gpu, list: Reading::Measured(processes, monotonic()), stamp, left_out }
}

type Lists = (BTreeMap<u32, Listed>, BTreeMap<u32, Identified>, BTreeMap<u32, Identified>);

/// NVML's list with the identities before and after it.
fn settled(card: &mut Card, clients: &Clients, owners: &mut Owners) -> Result<Lists, Absence> {
    let mut listed = lists(card)?;
    let mut befores = clients.identities.clone();
    let mut afters: BTreeMap<u32, Identified> =
        listed.keys().filter_map(|pid| Some((*pid, owners.identify_told(*pid, befores.get(pid))?))).collect();
    let news: Vec<u32> = listed.keys().copied().filter(|pid| befores.get(pid) != afters.get(pid)).collect();
    if !news.is_empty() {
        // For these, what was just read comes before the second list.
        for pid in &news {
            match afters.remove(pid) {
                Some(before) => befores.insert(*pid, before),
                None => befores.remove(pid),
            };
        }
        listed = lists(card)?;
        for pid in listed.keys() {
            if !afters.contains_key(pid)
                && let Some(after) = owners.identify_told(*pid, None)
            {
                afters.insert(*pid, after);
            }
        }
        afters.retain(|pid, _| listed.contains_key(pid));
    }
    Ok((listed, befores, afters))
}

/// The three lists of NVML in one, by number.
///
/// # Errors
/// When one of them is not known: what is left would look like all.
fn lists(card: &mut Card) -> Result<BTreeMap<u32, Listed>, Absence> {
    let device = &card.known.device;
    let asker = &mut card.asker;
    let compute = whole(asker, "compute processes", || device.running_compute_processes())?;
    let graphics = or_none(whole(asker, "graphics processes", || device.running_graphics_processes()))?;
    let mps = or_none(whole(asker, "mps processes", || device.mps_running_compute_processes()))?;
    let mut all = BTreeMap::new();
    for (infos, kind) in
        [(compute, GpuProcessKind::Compute), (mps, GpuProcessKind::Mps), (graphics, GpuProcessKind::Graphics)]
    {
        for info in infos {
            put(&mut all, &info, kind);
        }
    }
    Ok(all)
}

/// Asks for a list, and once more if it grew meanwhile.
fn whole(
    asker: &mut Asker,
    name: &'static str,
    call: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, Absence> {
    match asker.ask(name, &call) {
        Err(INSUFFICIENT_SIZE) => asker.ask(name, &call),
        answer => answer,
    }
}

/// A GPU or a driver without such a list has no process in it.
fn or_none(answer: Result<Vec<ProcessInfo>, Absence>) -> Result<Vec<ProcessInfo>, Absence> {
    match answer {
        Err(why) if none_of_it(why) => Ok(Vec::new()),
        answer => answer,
    }
}

/// A process may be in more than one list, each time with all of its memory.
fn put(all: &mut BTreeMap<u32, Listed>, info: &ProcessInfo, kind: GpuProcessKind) {
    let memory = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    };
    let instance = info.gpu_instance_id.map(|gpu| (gpu, info.compute_instance_id));
    let entry = all.entry(info.pid).or_insert(Listed { kind, memory, instance });
    entry.memory = [entry.memory, memory].into_iter().flatten().max_by_key(|bytes| bytes.0);
    entry.instance = entry.instance.or(instance);
    if kind == GpuProcessKind::Mps {
        entry.kind = kind;
    }
}

/// Who has the number, if nothing speaks against it.
fn agree<'a>(
    before: Option<&Identified>,
    after: Option<&'a Identified>,
    newest: Option<WallTime>,
    started: Option<WallTime>,
) -> Option<&'a Identified> {
    let (before, after) = (before?, after?);
    // Samples that end before this process began are of an earlier one, which the driver may still be tearing down.
    let older = matches!((newest, started), (Some(newest), Some(started)) if newest < started);
    (before.key == after.key && before.owner == after.owner && !older).then_some(after)
}

fn process(card: &Card, pid: u32, entry: &Listed, who: Option<&Identified>, uses: Use) -> GpuProcess {
    let without = if card.divided() { Absence::MigEnabled } else { Absence::NotSupported };
    GpuProcess {
        pid,
        key: who.map(|who| who.key),
        command: who.map_or_else(|| Arc::from(""), |who| Arc::clone(&who.command)),
        owner: who.map_or(Owner::Unknown, |who| who.owner.clone()),
        kind: entry.kind,
        mig: entry.instance.and_then(|ids| instance(card.known.gpu.instances(), ids)).map(|mig| mig.uuid.clone()),
        memory_used: entry.memory.map_or(Reading::Absent(without), |bytes| Reading::Measured(bytes, monotonic())),
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

/// What NVML recorded since the last stamp; `None` when it is too early to ask again.
fn record(card: &mut Card, clients: &Clients, now: Now) -> Option<Result<Record, Absence>> {
    if clients.measured.is_some_and(|at| now.monotonic.since(at) < SHORTEST_WINDOW) {
        return None;
    }
    let latest = card.skew.latest(now);
    let first = now.wall.0.saturating_sub(u64::try_from(FIRST_WINDOW.as_micros()).unwrap_or(0));
    let from = clients.stamp.filter(|stamp| *stamp <= latest).unwrap_or(first);
    let device = &card.known.device;
    let mut answer = card.asker.ask("process utilization", || device.process_utilization_stats(from));
    if answer.as_ref().err() == Some(&INSUFFICIENT_SIZE) {
        answer = card.asker.ask("process utilization", || device.process_utilization_stats(from));
    }
    Some(match answer {
        Ok(samples) => Ok(sort(samples, from, latest)),
        // The driver keeps no sample of a process that did nothing.
        Err(NOT_FOUND | NO_DATA) => Ok(Record { from, to: from, samples: BTreeMap::new() }),
        Err(why) => Err(card.under_mig(why)),
    })
}

fn sort(samples: Vec<ProcessUtilizationSample>, from: u64, latest: u64) -> Record {
    let mut record = Record { from, to: from, samples: BTreeMap::new() };
    let believed = |sample: &ProcessUtilizationSample| sample.timestamp > from && sample.timestamp <= latest;
    for sample in samples.into_iter().filter(believed) {
        record.to = record.to.max(sample.timestamp);
        record.samples.entry(sample.pid).or_default().push(sample);
    }
    for samples in record.samples.values_mut() {
        samples.sort_by_key(|sample| sample.timestamp);
        samples.dedup_by_key(|sample| sample.timestamp);
    }
    record
}

/// What is known of use at one moment.
struct Look<'a> {
    /// `None` when it was too early to ask again.
    record: Option<&'a Result<Record, Absence>>,
    /// What was measured last.
    before: &'a BTreeMap<u32, Use>,
    at: Monotonic,
}

impl Look<'_> {
    /// The newest stamp of one process.
    fn newest(&self, pid: u32) -> Option<WallTime> {
        let samples = self.record?.as_ref().ok()?.samples.get(&pid)?;
        samples.last().map(|sample| WallTime(sample.timestamp))
    }

    /// What one process did.
    fn of(&self, pid: u32, started: Option<WallTime>) -> Use {
        let all = |reading| Use { sm: reading, encoder: reading, decoder: reading };
        match self.record {
            None => self.before.get(&pid).copied().unwrap_or(all(Reading::NOT_YET)),
            Some(Err(why)) => all(Reading::Absent(*why)),
            Some(Ok(record)) => {
                let mean = |value: fn(&ProcessUtilizationSample) -> u32| {
                    let samples = record.samples.get(&pid).map_or(&[][..], Vec::as_slice);
                    Reading::Measured(Percent(mean(samples, (record.from, record.to), started, value)), self.at)
                };
                Use { sm: mean(|s| s.sm_util), encoder: mean(|s| s.enc_util), decoder: mean(|s| s.dec_util) }
            }
        }
    }
}

/// The mean over the window, weighted by time: a sample stands for the time since the one before it (of the same
/// process), and time without a sample is idle.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a few seconds")]
fn mean(
    samples: &[ProcessUtilizationSample],
    (from, to): (u64, u64),
    started: Option<WallTime>,
    value: fn(&ProcessUtilizationSample) -> u32,
) -> f64 {
    let mut before = started.map_or(from, |started| started.0.max(from));
    let mut sum = 0.0;
    for sample in samples {
        if sample.timestamp > before {
            sum += f64::from(value(sample).min(100)) * (sample.timestamp - before) as f64;
            before = sample.timestamp;
        }
    }
    if to > from { sum / (to - from) as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::ProcessKey;

    fn sample(pid: u32, timestamp: u64, sm_util: u32) -> ProcessUtilizationSample {
        ProcessUtilizationSample { pid, timestamp, sm_util, mem_util: 0, enc_util: 0, dec_util: 0 }
    }

    fn who(start_ticks: u64, owner: Owner) -> Identified {
        Identified { key: ProcessKey { pid: 7, start_ticks }, command: "x".into(), owner }
    }

    fn share(samples: &[(u64, u32)], window: (u64, u64), started: Option<u64>) -> f64 {
        let samples: Vec<_> = samples.iter().map(|(stamp, sm)| sample(7, *stamp, *sm)).collect();
        mean(&samples, window, started.map(WallTime), |sample| sample.sm_util)
    }

    #[test]
    fn use_is_weighted_by_time_since_the_last_stamp() {
        for (name, samples, window, started, expected) in [
            ("one sample stands for all of the window", &[(4, 80)][..], (0, 4), None, 80.0),
            ("a short burst weighs little", &[(1, 100), (4, 0)], (0, 4), None, 25.0),
            ("idle since its last sample", &[(1, 100)], (0, 4), None, 25.0),
            ("no sample at all", &[], (0, 4), None, 0.0),
            ("no window", &[], (4, 4), None, 0.0),
            ("from its start only", &[(4, 100)], (0, 4), Some(3), 25.0),
            ("samples before its start are of another", &[(1, 100), (4, 50)], (0, 4), Some(2), 25.0),
            ("nonsense is cut", &[(4, 4_000_000_000)], (0, 4), None, 100.0),
        ] {
            assert!((share(samples, window, started) - expected).abs() < 1e-9, "{name}");
        }
    }

    /// Promise 7 in docs/specification.md.
    #[test]
    fn a_number_is_somebody_only_if_nothing_speaks_against_it() {
        let one = who(10, Owner::Host);
        let reused = who(99, Owner::Host);
        let moved = who(10, Owner::Unknown);
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
    fn a_process_in_two_lists_is_one_with_its_memory_counted_once() {
        let info = |memory| ProcessInfo {
            pid: 7,
            used_gpu_memory: UsedGpuMemory::Used(memory),
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let mut all = BTreeMap::new();
        put(&mut all, &info(100), GpuProcessKind::Compute);
        put(&mut all, &info(120), GpuProcessKind::Mps);
        put(&mut all, &info(100), GpuProcessKind::Graphics);
        assert_eq!(all.len(), 1);
        assert_eq!((all[&7].memory, all[&7].kind), (Some(Bytes(120)), GpuProcessKind::Mps));
    }
}
