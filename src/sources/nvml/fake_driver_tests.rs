//! Tests with the real wrapper over a fake driver library, which can return every result.

mod cost;
mod event;
mod every_call;
mod fault;
mod hang;
mod identity;
mod old_driver;
mod process;
mod process_use;
mod probe;
mod reading;
mod hardware;
mod release;

use crate::nvml::{DriverGate, DriverPatience, Settings, spawn};
use crate::report::{Observations, Reporter};
use crate::roots::HostRoots;
pub(super) use lab::scenario::{
    CallFault, Code, FakeGpu, FakeNvml, ReadingKind, Scenario, SickLink, Value, Which, XidEvent, fake_gpus,
};
use model::gpu::{Gpu, GpuSample, UnidentifiedGpu};
use model::id::GpuUuid;
use model::observation::{ErrorCounter, Fact, GpuSourceState, Observation, Sample, SourceEvent};
use model::process::GpuProcesses;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// How long a test waits for an expected report; the machine may be busy with other tests.
const DEADLINE: Duration = Duration::from_secs(30);

/// The NVML source over a fake library, and its reports so far.
pub(super) struct Harness {
    pub(super) fake: FakeNvml,
    pub(super) scenario: Scenario,
    pub(super) seen: Seen,
    /// Twenty times shorter limits than the defaults would make calls fail on a busy machine.
    pub(super) patience: DriverPatience,
    directory: TempDir,
    queue: Option<Observations>,
    pub(super) gate: DriverGate,
    stop: CancellationToken,
}

/// The newest report of each kind.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) source: Vec<GpuSourceState>,
    pub(super) events_hang: Vec<bool>,
    pub(super) events_fail: Vec<bool>,
    /// Failures of NVML that were counted.
    pub(super) failures: usize,
    /// How often a replaced driver was reported.
    pub(super) replaced: usize,
    /// The loads of the driver that were reported.
    pub(super) loads: Vec<u64>,
    /// GPUs whose calls stalled, in order.
    pub(super) stalled: Vec<GpuUuid>,
    /// GPUs whose readings were all absent at some time, with the reason.
    pub(super) absent: BTreeSet<(GpuUuid, model::Absence)>,
    pub(super) gpus: Option<Vec<Gpu>>,
    pub(super) unidentified: Vec<UnidentifiedGpu>,
    /// PCI address and reason of the GPUs that NVML does not list.
    pub(super) missing: Vec<(String, &'static str)>,
    pub(super) samples: BTreeMap<GpuUuid, GpuSample>,
    pub(super) processes: BTreeMap<GpuUuid, GpuProcesses>,
    pub(super) xids: Vec<model::gpu::Xid>,
    /// Errors whose process or severity was reported later.
    pub(super) completed: Vec<model::gpu::Xid>,
    pub(super) sxids: Vec<model::switch::Sxid>,
    /// Slots of GPUs that the driver calls lost without an XID.
    pub(super) fell_off: Vec<String>,
}

impl Harness {
    /// Without the threads: a library, a scenario, and empty file trees of the kernel.
    pub(super) fn prepare(scenario: Scenario) -> Harness {
        let directory = TempDir::new().unwrap();
        let fake = FakeNvml::install(directory.path()).unwrap();
        fake.write(&scenario).unwrap();
        for tree in ["proc", "cgroup", "sys"] {
            std::fs::create_dir(directory.path().join(tree)).unwrap();
        }
        std::fs::write(directory.path().join("kmsg"), "").unwrap();
        let patience = DriverPatience {
            absent_after: Duration::from_millis(700),
            hang_after: Duration::from_millis(1500),
            open_hangs_after: Duration::from_millis(1500),
            first_retry: Duration::from_millis(100),
        };
        let (stop, gate) = (CancellationToken::new(), DriverGate::default());
        Harness { fake, scenario, seen: Seen::default(), patience, gate, directory, queue: None, stop }
    }

    /// The running source, with periods twenty times shorter than the defaults.
    pub(super) fn start(scenario: Scenario) -> Harness {
        let mut harness = Harness::prepare(scenario);
        harness.open();
        harness
    }

    pub(super) fn open(&mut self) {
        let library = self.fake.library().to_owned();
        self.open_at(library);
    }

    pub(super) fn open_at(&mut self, library: PathBuf) {
        let settings = Settings {
            library: Some(library),
            roots: self.roots(),
            period: Duration::from_millis(50),
            process_period: Duration::from_millis(250),
            patience: self.patience,
            kernel_log: Some(self.path("kmsg")),
            gate: self.gate.clone(),
        };
        let (reporter, queue) = Reporter::channel();
        self.queue = Some(queue);
        spawn(settings, reporter, self.stop.clone()).unwrap();
    }

    /// The fake kernel's trees.
    pub(super) fn roots(&self) -> HostRoots {
        HostRoots { procfs: self.path("proc"), cgroup: self.path("cgroup"), sysfs: self.path("sys") }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Changes the scenario while the source runs.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        self.fake.write(&self.scenario).unwrap();
    }

    /// Waits until `find` finds a value in the reports.
    pub(super) fn until<T>(&mut self, what: &str, mut find: impl FnMut(&Seen) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.take();
            if let Some(found) = find(&self.seen) {
                return found;
            }
            assert!(began.elapsed() < DEADLINE, "not seen in time: {what}; sources {:?}", self.seen.source);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits for a condition.
    pub(super) fn wait(&mut self, what: &str, mut condition: impl FnMut(&Seen) -> bool) {
        self.until(what, |seen| condition(seen).then_some(()));
    }

    /// Takes in all reports.
    fn take(&mut self) {
        while let Some(Ok(observation)) = self.queue.as_mut().map(Observations::try_recv) {
            self.seen.take(observation);
        }
    }

    /// Waits for this many further samples of a GPU, so that something that must *not* happen had its chance.
    pub(super) fn rounds(&mut self, place: usize, count: usize) {
        let uuid = self.uuid(place);
        self.rounds_of(&uuid, count);
    }

    /// The same, for the GPU with this UUID.
    pub(super) fn rounds_of(&mut self, uuid: &GpuUuid, count: usize) {
        for _ in 0..count {
            self.seen.samples.remove(uuid);
            self.wait("another round", |seen| seen.samples.contains_key(uuid));
        }
    }

    /// The UUID of the GPU at this place, once it is listed.
    pub(super) fn uuid(&mut self, place: usize) -> GpuUuid {
        self.until("the list of GPUs", |seen| Some(seen.gpus.as_ref()?.get(place)?.uuid.clone()))
    }

    /// The newest readings of a GPU that fit a condition.
    pub(super) fn sample(&mut self, place: usize, what: &str, condition: impl Fn(&GpuSample) -> bool) -> GpuSample {
        let uuid = self.uuid(place);
        self.until(what, |seen| seen.samples.get(&uuid).filter(|sample| condition(sample)).cloned())
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
        // Calls that hang return, so that the threads end with the test.
        let _ = self.fake.write(&Scenario::default());
    }
}

impl Seen {
    fn take(&mut self, observation: Observation) {
        match observation {
            Observation::Fact(Fact::GpuSource(state)) => self.source.push(state),
            Observation::Fact(Fact::GpuEventsHang(hang)) => self.events_hang.push(hang),
            Observation::Fact(Fact::GpuEventsFail(fail)) => self.events_fail.push(fail),
            Observation::Fact(Fact::GpuDriverReplaced) => self.replaced += 1,
            Observation::Fact(Fact::GpuDriverLoaded(load)) => self.loads.push(load),
            Observation::Event(SourceEvent::GpuStalled(gpu)) => self.stalled.push(gpu),
            Observation::Fact(Fact::Gpus(gpus)) => self.gpus = Some(gpus),
            Observation::Fact(Fact::GpusUnidentified(gpus)) => self.unidentified = gpus,
            Observation::Fact(Fact::GpusMissing(gpus)) => {
                self.missing = gpus.iter().map(|gpu| (gpu.pci_bus_id.to_string(), gpu.code())).collect();
            }
            Observation::Sample(Sample::Gpu(uuid, sample)) => {
                if let Some(why) = sample.power.absence()
                    && *sample == GpuSample::absent(why)
                {
                    self.absent.insert((uuid.clone(), why));
                }
                self.samples.insert(uuid, *sample);
            }
            Observation::Sample(Sample::GpuProcesses(processes)) => {
                self.processes.insert(processes.gpu.clone(), processes);
            }
            Observation::Event(SourceEvent::Xid(xid)) => self.xids.push(xid),
            Observation::Event(SourceEvent::XidDetails(xid)) => self.completed.push(xid),
            Observation::Event(SourceEvent::Sxid(sxid)) => self.sxids.push(sxid),
            Observation::Event(SourceEvent::GpuFellOff(slot)) => self.fell_off.push(slot.to_string()),
            Observation::Event(SourceEvent::Trouble(ErrorCounter::NvmlFailed)) => self.failures += 1,
            _ => {}
        }
    }

    /// Index and reason of the GPUs that were not identified.
    pub(super) fn unidentified_reasons(&self) -> Vec<(u32, model::Absence)> {
        self.unidentified.iter().map(|gpu| (gpu.index, gpu.why)).collect()
    }
}

/// A scenario with these GPUs.
pub(super) fn of(gpus: Vec<FakeGpu>) -> Scenario {
    Scenario { gpus, ..Scenario::default() }
}

/// A GPU with these values.
pub(super) fn with(gpu: FakeGpu, values: &[(ReadingKind, f64)]) -> FakeGpu {
    let values = values.iter().map(|(quantity, value)| (*quantity, Value::Constant(*value))).collect();
    FakeGpu { values, ..gpu }
}

/// A call on a GPU that fails.
pub(super) fn error(call: &str, gpu: u32, code: u32) -> CallFault {
    CallFault { call: call.into(), gpu: Some(Which::Place(gpu)), error: Some(Code(code)), ..CallFault::default() }
}

/// A call on a GPU that does not return.
pub(super) fn hang(call: &str, gpu: u32) -> CallFault {
    CallFault { call: call.into(), gpu: Some(Which::Place(gpu)), hang: true, ..CallFault::default() }
}

/// Writes a file, and the folders above it.
pub(super) fn put(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
