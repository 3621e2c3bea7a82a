//! The thread that polls NVML. It makes every call under a [`Heartbeat`], and ends when it is dismissed.

use crate::nvml::allowance::Allowance;
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::inventory::{self, InventorySource, KnownGpu};
use crate::nvml::library::{self, Missing};
use crate::nvml::message::Message;
use crate::nvml::poll_round::Failed;
use crate::nvml::polled_gpu::{GpuCaller, PolledGpu};
use crate::nvml::process::{self, Clients};
use crate::nvml::session::{Open, Session};
use crate::nvml::settings::Settings;
use crate::nvml::{gpm, presence, read, topology};
use crate::process_owner::ProcessOwnerReader;
use crate::report::Reporter;
use clock::{self, monotonic};
use model::gpu::{GpuSample, MissingGpu, UnidentifiedGpu};
use model::id::GpuUuid;
use model::observation::{ErrorCounter, Fact, GpuSourceState, Sample};
use model::physical_range::ImplausibleValue;
use model::process::GpuProcesses;
use model::time::Monotonic;
use model::unit::Bytes;
use model::{Absence, Reading};
use nvml_wrapper::Nvml;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use wire::kernel_log::PciSlot;

/// Time between two inventories of GPUs, in process periods (10 s): NVML has no event for hot-plug.
const INVENTORY: u32 = 2;
/// Time between two rounds of the expensive calls on one GPU, in process periods (15 s). PCIe throughput takes 40 ms if
/// GPM does not count it; for 16 GPUs the thread is then busy for 4 % of the time, one GPU at a time.
const SELDOM: u32 = 3;
/// Time between two readings of the topology, in process periods (60 s); 16 GPUs cost about 500 calls.
const TOPOLOGY: u32 = 12;
/// A change of used memory by this much means that a process came, went or grew: a bare CUDA context takes over 100
/// MiB, and the caching allocators of frameworks grow in steps of 2 to 20 MiB.
const MEMORY_JUMP: Bytes = Bytes(32 * Bytes::MIB);
/// Maximum number of extra process lists after a jump of used memory. For one GPU: two at once, then one in each process
/// period, so that constant jumps at most double the cost of lists. For the node: 16 at once, one for each of 16 GPUs,
/// as when a job starts on all of them; then five in each process period (one a second). One list took up to 4.5 ms, and
/// a GPU has three (compute, MPS, graphics).
const LISTS_OF_ONE: u32 = 2;
const LISTS_OF_ALL: u32 = 16;
const LISTS_OF_ALL_IN_A_PERIOD: u32 = 5;

/// A poller, with all its state. Only its own thread sees it.
pub(super) struct Poller {
    settings: Arc<Settings>,
    reporter: Reporter,
    heartbeat: Arc<Heartbeat>,
    messages: SyncSender<Message>,
    session: Session,
    owners: ProcessOwnerReader,
    gpus: Vec<ScheduledGpu>,
    /// Allowance of extra process lists, of all GPUs.
    out_of_turn: Allowance,
    /// The last report of unidentified GPUs.
    unidentified: Vec<UnidentifiedGpu>,
    /// New unidentified GPUs since the last check for slots that NVML does not list.
    unidentified_anew: bool,
    /// GPUs that NVML does not list: by the last report, and by the last comparison.
    missing: Vec<MissingGpu>,
    missing_at_last: Vec<MissingGpu>,
    inventory_failed: Option<Absence>,
    /// The calls that failed in the last round of each kind.
    failed: BTreeMap<&'static str, Vec<(GpuUuid, Failed)>>,
    new_session: bool,
    /// Slots for which the library was already reopened, whether that helped or not.
    reopened_for: BTreeSet<PciSlot>,
}

/// One GPU, and when its next readings are due.
struct ScheduledGpu {
    polled: PolledGpu,
    clients: Clients,
    seldom_due: Monotonic,
    processes_due: Monotonic,
    memory_at_list: Option<Bytes>,
    /// Allowance of extra process lists.
    out_of_turn: Allowance,
    lost: bool,
}

impl Poller {
    pub(super) fn new(
        settings: Arc<Settings>,
        reporter: Reporter,
        heartbeat: Arc<Heartbeat>,
        messages: SyncSender<Message>,
        open: Open,
    ) -> Self {
        let owners = ProcessOwnerReader::new(settings.roots.clone());
        let every = settings.process_period / LISTS_OF_ALL_IN_A_PERIOD;
        let session =
            Session::new(Arc::clone(&settings), reporter.clone(), Arc::clone(&heartbeat), messages.clone(), open);
        Poller {
            out_of_turn: Allowance::new(LISTS_OF_ALL, every, monotonic()),
            settings,
            reporter,
            heartbeat,
            messages,
            session,
            owners,
            gpus: Vec::new(),
            unidentified: Vec::new(),
            unidentified_anew: false,
            missing: Vec::new(),
            missing_at_last: Vec::new(),
            inventory_failed: None,
            failed: BTreeMap::new(),
            new_session: true,
            reopened_for: BTreeSet::new(),
        }
    }

    /// Polls until dismissed.
    pub(super) fn run(mut self, known: Vec<KnownGpu>) {
        self.set_gpus(known);
        while !self.heartbeat.dismissed() {
            if self.release() {
                continue;
            }
            let missing = match self.session.open() {
                Ok(nvml) => {
                    self.new_session = true;
                    self.rounds(nvml)
                }
                Err(missing) => Some(missing),
            };
            if let Some(missing) = missing.filter(|_| !self.heartbeat.dismissed()) {
                let pause = self.session.missing(&missing);
                for gpu in &self.gpus {
                    gpu.report_absent(&self.reporter, missing.why);
                }
                self.sleep_until(monotonic().after(pause));
            }
        }
    }

    /// Closes the library if an operator requests that, and waits until it may be opened again. Returns `false` if
    /// there is no request, or the library cannot be closed.
    fn release(&mut self) -> bool {
        let gate = self.settings.gate.clone();
        gate.expire(monotonic());
        if gate.closed(monotonic()).is_none() {
            return false;
        }
        self.drop_samples();
        if let Err(why) = self.session.release() {
            tracing::warn!("the GPU driver cannot be released: {why}");
            gate.refuse(why);
            return false;
        }
        let mut reported = None;
        while let Some(until) = gate.released(monotonic()) {
            if self.heartbeat.dismissed() {
                return true;
            }
            if reported.replace(until) != Some(until) {
                self.send(Message::Source(GpuSourceState::Released { until }));
            }
            std::thread::park_timeout(until.since(monotonic()));
        }
        gate.expire(monotonic());
        // The GPUs may have been changed since: no earlier state is valid.
        self.gpus.iter_mut().for_each(|gpu| gpu.reset(monotonic()));
        true
    }

    /// Runs rounds by deadline until dismissed, until it must close the library (`None`), or until the driver is gone.
    fn rounds(&mut self, nvml: &'static Nvml) -> Option<Missing> {
        let mut deadline = monotonic();
        let mut inventory_due = deadline;
        let mut topology_due = deadline;
        while !self.heartbeat.dismissed() && self.settings.gate.closed(monotonic()).is_none() {
            if monotonic() >= inventory_due || self.heartbeat.take_inventory_request() {
                if let Err(why) = self.inventory(nvml, &mut topology_due) {
                    if self.heartbeat.dismissed() {
                        return None;
                    }
                    if !self.session.verified() || library::session_over(why) {
                        self.drop_samples();
                        self.session.close();
                        return Some(library::over(self.settings.library.as_deref(), why));
                    }
                    self.reporter.trouble(ErrorCounter::NvmlFailed);
                    if self.inventory_failed.replace(why) != Some(why) {
                        tracing::warn!(reason = %why, "NVML does not list the GPUs; repeats are only counted");
                    }
                }
                inventory_due = monotonic().after(self.settings.process_period * INVENTORY);
                if self.has_new_slot() {
                    self.drop_samples();
                    if self.session.reopen(nvml) {
                        self.new_session = true;
                        inventory_due = monotonic();
                        continue;
                    }
                }
            }
            for index in 0..self.gpus.len() {
                self.round(index);
            }
            deadline = next(deadline, self.settings.period, monotonic());
            self.sleep_until(deadline);
        }
        None
    }

    /// Whether the kernel serves a GPU that the library has not listed since it was opened.
    fn has_new_slot(&mut self) -> bool {
        let known: Vec<KnownGpu> = self.gpus.iter().map(|gpu| gpu.polled.known.clone()).collect();
        let unlisted = inventory::unlisted(&self.settings.roots.procfs, &known);
        // Each slot is tried once while it exists: the container may not be allowed to see its GPU at all.
        self.reopened_for.retain(|slot| unlisted.contains(slot));
        let is_new = unlisted.difference(&self.reopened_for).next().is_some();
        // If there are no more such slots than GPUs that have just become unidentified, these GPUs are in the slots.
        let of_unidentified = std::mem::take(&mut self.unidentified_anew) && unlisted.len() <= self.unidentified.len();
        if !is_new || self.heartbeat.skips_any() {
            return false;
        }
        self.reopened_for = unlisted;
        !of_unidentified
    }

    /// Drops the samples and refusals that must not outlive the session.
    fn drop_samples(&mut self) {
        for gpu in &mut self.gpus {
            gpu.polled.gpm = None;
            gpu.polled.gpm_mig.clear();
            gpu.polled.asker.forget();
        }
    }

    /// Takes the inventory of GPUs, and reports it when something has changed.
    fn inventory(&mut self, nvml: &'static Nvml, topology_due: &mut Monotonic) -> Result<(), Absence> {
        let before: Vec<KnownGpu> = self.gpus.iter().map(|gpu| gpu.polled.known.clone()).collect();
        let heartbeat = Arc::clone(&self.heartbeat);
        let settings = Arc::clone(&self.settings);
        let source = InventorySource { nvml, heartbeat: &heartbeat, roots: &settings.roots };
        let mut found = inventory::take(source, &before)?;
        self.inventory_failed = None;
        self.log_failures("identity", std::mem::take(&mut found.failed));
        let implausible = std::mem::take(&mut found.implausible);
        if monotonic() >= *topology_due || !inventory::same_set(&before, &found.known) {
            let failed = topology::read(source, &mut found.known);
            self.log_failures("topology", failed);
            *topology_due = monotonic().after(self.settings.process_period * TOPOLOGY);
        }
        if heartbeat.dismissed() {
            return Ok(());
        }
        self.session.prove(nvml);
        let new_session = std::mem::take(&mut self.new_session);
        self.unidentified(inventory::unidentified_gpus(&settings.roots.procfs, &found), new_session);
        let roots = (&*settings.roots.procfs, &*settings.roots.sysfs);
        self.missing(presence::missing(roots, &found), new_session);
        // A new session may have new handles for the same GPUs.
        let changed =
            new_session || !before.iter().map(|known| &known.gpu).eq(found.known.iter().map(|known| &known.gpu));
        if changed {
            self.reporter.fact(Fact::Gpus(found.known.iter().map(|known| known.gpu.clone()).collect()));
            self.send(Message::Inventory(found.known.clone()));
            self.set_gpus(found.known);
        }
        self.count_implausible(implausible);
        Ok(())
    }

    /// Logs the calls that failed in this round and did not fail for the same reason in the last round of its kind.
    fn log_failures(&mut self, kind: &'static str, failed: Vec<(GpuUuid, Failed)>) {
        if self.heartbeat.dismissed() {
            return;
        }
        let before = self.failed.remove(kind).unwrap_or_default();
        for (uuid, calls) in &failed {
            let old = before.iter().find(|(known, _)| known == uuid).map(|(_, calls)| calls);
            for (call, why) in calls {
                self.reporter.trouble(ErrorCounter::NvmlFailed);
                if old.is_none_or(|old| old.get(call) != Some(why)) {
                    tracing::warn!(gpu_uuid = %uuid, call, reason = %why, "NVML call failed; repeats are only counted");
                }
            }
        }
        self.failed.insert(kind, failed);
    }

    /// Counts the impossible values of an inventory on their GPUs.
    fn count_implausible(&mut self, values: Vec<(GpuUuid, Vec<ImplausibleValue>)>) {
        for (uuid, values) in values {
            if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.polled.known.gpu.uuid == uuid) {
                values.into_iter().for_each(|value| gpu.polled.asker.count_implausible(value));
            }
        }
    }

    /// Reports the GPUs that NVML counts but the agent cannot identify, when they have changed or the session is new.
    /// Logs each once for each reason.
    fn unidentified(&mut self, now: Vec<UnidentifiedGpu>, new_session: bool) {
        let same = |one: &UnidentifiedGpu, other: &UnidentifiedGpu| {
            (one.index, one.why, one.pci_bus_id.value()) == (other.index, other.why, other.pci_bus_id.value())
        };
        for gpu in &now {
            let before = self.unidentified.iter().find(|before| before.index == gpu.index);
            self.unidentified_anew |= before.is_none();
            if before.is_none_or(|before| before.why != gpu.why) {
                self.reporter.trouble(ErrorCounter::NvmlFailed);
                tracing::warn!(
                    gpu_index = gpu.index, reason = %gpu.why, pci = gpu.pci_bus_id.value().map(|slot| &**slot),
                    "GPU cannot be identified, so only its index is shown (is its device node passed to this container?)"
                );
            }
        }
        let changed =
            self.unidentified.len() != now.len() || !self.unidentified.iter().zip(&now).all(|(a, b)| same(a, b));
        if changed || new_session {
            self.reporter.fact(Fact::GpusUnidentified(now.clone()));
            self.unidentified = now;
        }
    }

    /// Reports the GPUs that the machine has and NVML does not list, when they have changed or the session is new. A GPU
    /// that is added or removed is in one list before it is in the others, so it must be missing in two comparisons.
    fn missing(&mut self, now: Vec<MissingGpu>, new_session: bool) {
        let before = std::mem::replace(&mut self.missing_at_last, now);
        let lasting = self.missing_at_last.iter().filter(|gpu| before.contains(gpu)).cloned();
        let lasting: Vec<MissingGpu> =
            if self.heartbeat.skips_any() { self.missing.clone() } else { lasting.collect() };
        if lasting != self.missing || new_session {
            self.reporter.fact(Fact::GpusMissing(lasting.clone()));
            self.missing = lasting;
        }
    }

    /// Replaces the list of GPUs; a known GPU keeps its readings.
    fn set_gpus(&mut self, known: Vec<KnownGpu>) {
        let mut before = std::mem::take(&mut self.gpus);
        for known in known {
            match before.iter().position(|gpu| gpu.polled.known.gpu.uuid == known.gpu.uuid) {
                Some(old) => {
                    let mut gpu = before.swap_remove(old);
                    if gpu.polled.known.gpu.mig_mode != known.gpu.mig_mode {
                        gpu.polled.asker.forget();
                    }
                    let exists = |uuid: &GpuUuid| known.instances.iter().any(|one| one.identity.uuid == *uuid);
                    gpu.polled.asker.forget_instances(exists);
                    gpu.polled.known = known;
                    self.gpus.push(gpu);
                }
                None => {
                    let asker = GpuCaller::new(Arc::clone(&self.heartbeat), self.reporter.clone(), &known);
                    self.gpus.push(ScheduledGpu {
                        polled: PolledGpu::new(known, asker),
                        clients: Clients::default(),
                        seldom_due: Monotonic::default(),
                        processes_due: Monotonic::default(),
                        memory_at_list: None,
                        out_of_turn: Allowance::new(LISTS_OF_ONE, self.settings.process_period, monotonic()),
                        lost: false,
                    });
                }
            }
        }
    }

    /// Polls one GPU once.
    fn round(&mut self, index: usize) {
        let Some(gpu) = self.gpus.get_mut(index) else { return };
        if self.heartbeat.dismissed() || self.heartbeat.skips(&gpu.polled.known.key()) {
            return;
        }
        let now = clock::now();
        if !read::often(&mut gpu.polled, &self.settings.roots.procfs, now) {
            gpu.lost = true;
            if !self.heartbeat.dismissed() {
                gpu.report_absent(&self.reporter, Absence::GpuLost);
            }
            return;
        }
        if std::mem::take(&mut gpu.lost) {
            gpu.reset(now.monotonic);
        }
        if now.monotonic >= gpu.seldom_due {
            read::seldom(&mut gpu.polled, &self.settings.roots.sysfs);
            gpu.seldom_due = later(gpu.seldom_due, self.settings.process_period * SELDOM, now.monotonic, index);
        }
        let due = now.monotonic >= gpu.processes_due;
        if due {
            gpm::read(&mut gpu.polled, now.monotonic);
            read::energy(&mut gpu.polled, now.monotonic);
            gpu.processes_due = later(gpu.processes_due, self.settings.process_period, now.monotonic, index);
        }
        let processes = if due || gpu.may_list_now(&mut self.out_of_turn, now.monotonic) {
            gpu.memory_at_list = gpu.polled.sample.memory_used.get();
            Some(process::list(&mut gpu.polled, &mut gpu.clients, &mut self.owners, now))
        } else {
            None
        };
        if self.heartbeat.dismissed() {
            return;
        }
        gpu.polled.sample.implausible = gpu.polled.asker.take_implausible();
        let uuid = gpu.polled.known.gpu.uuid.clone();
        self.reporter.sample(Sample::Gpu(uuid, Box::new(gpu.polled.sample.clone())));
        if let Some(processes) = processes {
            self.reporter.sample(Sample::GpuProcesses(processes));
        }
    }

    /// Sleeps until the deadline, until dismissed, or until it must close the library (the supervisor unparks the
    /// thread then).
    fn sleep_until(&self, deadline: Monotonic) {
        loop {
            let left = deadline.since(monotonic());
            if left.is_zero() || self.heartbeat.dismissed() || self.settings.gate.closed(monotonic()).is_some() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    fn send(&self, message: Message) {
        // Fails only when the supervisor has ended, and then this thread is about to end.
        let _ = self.messages.send(message);
    }
}

impl ScheduledGpu {
    /// Whether to make an extra process list after a jump of memory. If there is no allowance now, the jump is still
    /// there in the next round.
    fn may_list_now(&mut self, of_all: &mut Allowance, now: Monotonic) -> bool {
        let may = self.memory_jumped() && self.out_of_turn.has(now) && of_all.has(now);
        if may {
            self.out_of_turn.spend();
            of_all.spend();
        }
        may
    }

    fn memory_jumped(&self) -> bool {
        match (self.memory_at_list, self.polled.sample.memory_used.get()) {
            (Some(then), Some(now)) => now.0.abs_diff(then.0) >= MEMORY_JUMP.0,
            _ => false,
        }
    }

    /// The GPU answers again: forgets what it refused, and makes all readings due.
    fn reset(&mut self, now: Monotonic) {
        self.polled.asker.forget();
        self.polled.gpm = None;
        self.polled.gpm_mig.clear();
        self.polled.rounds = 0;
        self.clients = Clients::default();
        self.seldom_due = now;
        self.processes_due = now;
    }

    fn report_absent(&self, reporter: &Reporter, why: Absence) {
        absent(reporter, &self.polled.known.gpu.uuid, why);
    }
}

/// Reports a GPU of which nothing can be read.
pub(super) fn absent(reporter: &Reporter, gpu: &GpuUuid, why: Absence) {
    reporter.sample(Sample::Gpu(gpu.clone(), Box::new(GpuSample::absent(why))));
    reporter.sample(Sample::GpuProcesses(GpuProcesses {
        gpu: gpu.clone(),
        list: Reading::Absent(why),
        memory_used: Reading::Absent(why),
        stamp: None,
        left_out: 0,
    }));
}

/// The next deadline that lies in the future. Missed deadlines are skipped, and later deadlines do not move.
fn next(deadline: Monotonic, period: Duration, now: Monotonic) -> Monotonic {
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    let missed = now.0.saturating_sub(deadline.0) / period;
    Monotonic(deadline.0.saturating_add(period.saturating_mul(missed.saturating_add(1))))
}

/// When to repeat readings that were due; the first time, GPUs are spread over the period by their index.
fn later(due: Monotonic, period: Duration, now: Monotonic, index: usize) -> Monotonic {
    if due != Monotonic::default() {
        return now.after(period);
    }
    // The first round reads everything of all GPUs; after it, each GPU has its own tick.
    let share = u32::try_from(index % 16).unwrap_or(0);
    now.after(period - period / 16 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn poll_deadlines_do_not_drift_and_missed_ones_are_skipped() {
        for (now, expected) in
            [(10, 11), (10 * SECOND, 11 * SECOND), (10 * SECOND + 7, 11 * SECOND), (13 * SECOND + 7, 14 * SECOND)]
        {
            let (deadline, period) = if now == 10 { (10, 1) } else { (10 * SECOND, SECOND) };
            assert_eq!(next(Monotonic(deadline), Duration::from_nanos(period), Monotonic(now)), Monotonic(expected));
        }
    }

    #[test]
    fn the_first_deadlines_of_gpus_are_spread_over_the_period() {
        let (now, period) = (Monotonic(100 * SECOND), Duration::from_secs(16));
        assert_eq!(later(Monotonic::default(), period, now, 0), Monotonic(116 * SECOND));
        assert_eq!(later(Monotonic::default(), period, now, 3), Monotonic(113 * SECOND));
        assert_eq!(later(Monotonic(1), period, now, 3), Monotonic(116 * SECOND));
    }
}
