//! The running scenario, its clock, and the checks at the start of each call.

use crate::code::Code;
use crate::gpu::{Board, Instance, boards, listed};
use crate::profile::matches;
use crate::scenario::{CallFault, Clock, ReadingKind, Scenario, Which, XidEvent};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Shortest time between two checks of the scenario file. A call that comes at least this long after a change sees the new
/// scenario.
const LOOK: Duration = Duration::from_millis(2);

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The GPU that a call names.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// No GPU.
    System,
    /// A GPU or MIG instance by its handle.
    Handle(usize),
    /// A GPU instance by the handle of its GPU and its id.
    Instance(usize, u32),
    /// A GPU by NVML's index.
    Index(u32),
    /// A GPU or MIG instance by its UUID.
    Uuid(String),
    /// A GPU by its PCI bus id.
    Pci(String),
}

/// The scenario at one moment, for one call.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The scenario.
    pub(crate) scenario: Arc<Scenario>,
    /// All GPUs of the file.
    pub(crate) boards: Arc<Vec<Board>>,
    /// Positions of the GPUs that NVML lists.
    pub(crate) listed: Vec<usize>,
    /// Scenario second.
    pub(crate) time: f64,
    /// Wall clock at scenario second 0, microseconds.
    pub(crate) origin_us: u64,
    /// Position of the GPU that the call names.
    pub(crate) place: Option<usize>,
    /// Position of the MIG instance that the call names.
    pub(crate) instance: Option<u32>,
    /// The file in which calls are logged; `None` if calls are not logged.
    pub(crate) log: Option<PathBuf>,
}

/// Sums over time of one GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    until: f64,
    epoch: u64,
    /// Energy since the epoch began.
    pub(crate) energy_millijoules: f64,
    /// Bytes sent over all NVLinks.
    pub(crate) nvlink_tx: f64,
    /// Bytes received over all NVLinks.
    pub(crate) nvlink_rx: f64,
}

#[derive(Debug)]
struct State {
    path: Option<PathBuf>,
    looked: Option<Instant>,
    /// Change time, size and inode of the file that was read last, valid or not.
    stamp: Option<(SystemTime, u64, u64)>,
    /// Whether a scenario has been read.
    begun: bool,
    scenario: Arc<Scenario>,
    boards: Arc<Vec<Board>>,
    anchor: (Instant, f64),
    origin_us: u64,
    inits: u32,
    /// The file that stands for `/dev/nvidiactl`, open during a session.
    device: Option<File>,
    /// The driver epoch at the time of `nvmlInit`.
    session: u64,
    /// UUIDs listed at the last `nvmlInit`.
    at_init: Option<Vec<String>>,
    /// UUIDs of the handles that were returned. A handle's pointer consists of the position in this list plus 1 and the MIG
    /// instance.
    handles: Vec<String>,
    /// How often calls matched each fault, by its text.
    met: HashMap<String, u32>,
    delivered: HashSet<u64>,
    sums: HashMap<String, Sums>,
}

impl State {
    fn new() -> State {
        let scenario = Scenario::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        State {
            path: scenario_path(),
            looked: None,
            stamp: None,
            begun: false,
            boards: Arc::new(boards(&scenario)),
            scenario: Arc::new(scenario),
            anchor: (Instant::now(), 0.0),
            origin_us: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            inits: 0,
            device: None,
            session: 0,
            at_init: None,
            handles: Vec::new(),
            met: HashMap::new(),
            delivered: HashSet::new(),
            sums: HashMap::new(),
        }
    }

    fn time(&self) -> f64 {
        let Clock { scale, frozen_at_s, .. } = self.scenario.clock;
        frozen_at_s.unwrap_or_else(|| self.anchor.1 + self.anchor.0.elapsed().as_secs_f64() * scale)
    }

    /// Reads the file again if it has changed. A torn or invalid file is reported once, and the old scenario stays.
    fn refresh(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let Some(path) = self.path.clone() else { return };
        let Ok(metadata) = std::fs::metadata(&path) else { return };
        let stamp = (metadata.modified().unwrap_or(UNIX_EPOCH), metadata.len(), metadata.ino());
        if self.stamp == Some(stamp) {
            return;
        }
        self.stamp = Some(stamp);
        let directory = path.parent().unwrap_or(Path::new("/"));
        let read = std::fs::read(&path).map_err(|error| error.to_string());
        match read.and_then(|text| Scenario::parse(&text, directory)) {
            Ok(scenario) => self.change(scenario),
            #[expect(clippy::print_stderr, reason = "a tester must see a mistake in the file; there is no logger here")]
            Err(problem) => eprintln!("fake-nvml: {}: {problem}; the old scenario stays in use", path.display()),
        }
    }

    fn change(&mut self, scenario: Scenario) {
        // Time begins with the first scenario that is read; the time of the default scenario does not count.
        let now = if self.begun { self.time() } else { 0.0 };
        if self.begun {
            for place in 0..self.boards.len() {
                self.sums(place, now);
            }
        }
        self.begun = true;
        self.anchor = (Instant::now(), now);
        if let Some(origin) = scenario.clock.origin_us {
            self.origin_us = origin;
        }
        self.boards = Arc::new(boards(&scenario));
        self.scenario = Arc::new(scenario);
    }

    /// Adds to the sums of a GPU until now.
    fn sums(&mut self, place: usize, now: f64) -> Sums {
        let boards = self.boards.clone();
        let Some(board) = boards.get(place) else { return Sums::default() };
        let sums = self.sums.entry(board.uuid.clone()).or_insert(Sums { until: now, ..Sums::default() });
        if sums.epoch != board.spec.energy_epoch {
            *sums = Sums { until: now, epoch: board.spec.energy_epoch, ..Sums::default() };
        }
        let seconds = (now - sums.until).max(0.0);
        let grown = |what| board.mean(what, sums.until, now).unwrap_or(0.0) * seconds;
        let (energy, tx, rx) = (
            grown(ReadingKind::PowerWatts) * 1000.0,
            grown(ReadingKind::NvlinkTxBytesPerSecond),
            grown(ReadingKind::NvlinkRxBytesPerSecond),
        );
        sums.energy_millijoules += energy;
        sums.nvlink_tx += tx;
        sums.nvlink_rx += rx;
        sums.until = sums.until.max(now);
        *sums
    }

    fn view(&self) -> View {
        View {
            scenario: self.scenario.clone(),
            boards: self.boards.clone(),
            listed: listed(&self.boards, self.at_init.as_deref(), self.scenario.list),
            time: self.time(),
            origin_us: self.origin_us,
            place: None,
            instance: None,
            log: self.scenario.log_calls.then(|| self.path.as_ref()?.parent().map(|at| at.join("calls.log"))).flatten(),
        }
    }

    /// Finds the GPU that a call names. An unknown handle names no GPU.
    fn resolve(&self, subject: &Subject) -> View {
        let mut view = self.view();
        let by = |is: &dyn Fn(&Board) -> bool| view.listed.iter().copied().find(|place| is(&view.boards[*place]));
        (view.place, view.instance) = match subject {
            Subject::System => (None, None),
            Subject::Handle(handle) => {
                (self.gpu(&view, *handle), u32::try_from(handle % 0x100).ok().and_then(|at| at.checked_sub(1)))
            }
            Subject::Instance(handle, id) => {
                let place = self.gpu(&view, *handle);
                let instances = place.map_or(&[][..], |place| &view.boards[place].instances);
                let at = instances.iter().position(|instance| instance.gpu_instance == *id);
                (place, at.and_then(|at| u32::try_from(at).ok()))
            }
            Subject::Index(index) => (view.listed.get(*index as usize).copied(), None),
            Subject::Pci(id) => (by(&|board| same_bus(&board.pci_bus_id, id)), None),
            Subject::Uuid(uuid) => match by(&|board| board.uuid == *uuid) {
                Some(place) => (Some(place), None),
                None => view.listed.iter().fold((None, None), |found, place| {
                    let mut instances = view.boards[*place].instances.iter().zip(0u32..);
                    let here = instances.find(|(instance, _)| instance.uuid == *uuid);
                    here.map_or(found, |(_, at)| (Some(*place), Some(at)))
                }),
            },
        };
        view
    }

    /// Position of the GPU of a handle, which may be the handle of its MIG instance.
    fn gpu(&self, view: &View, handle: usize) -> Option<usize> {
        let uuid = (handle / 0x100).checked_sub(1).and_then(|slot| self.handles.get(slot))?;
        view.boards.iter().position(|board| board.uuid == *uuid)
    }

    /// The first fault that applies to this call, unless it is used up.
    fn fault(&mut self, function: &str, view: &View) -> Option<CallFault> {
        let board = view.place.map(|place| &view.boards[place]);
        let instance = board.zip(view.instance).and_then(|(board, at)| board.instances.get(at as usize));
        let means = |which: &Which| {
            let named = |one: &Instance| matches!(which, Which::Uuid(uuid) if *uuid == one.uuid);
            board.is_some_and(|board| board.is(which)) || instance.is_some_and(named)
        };
        for fault in &view.scenario.faults {
            let here = fault.gpu.as_ref().is_none_or(means);
            if !here || !matches(&fault.call, function) {
                continue;
            }
            let met = self.met.entry(format!("{fault:?}")).or_insert(0);
            *met = met.saturating_add(1);
            let used_up = fault.times.is_some_and(|times| *met > times.saturating_add(fault.after));
            if *met > fault.after && !used_up {
                return Some(fault.clone());
            }
        }
        None
    }
}

/// Whether two PCI bus ids mean the same GPU, as `00000000:65:00.0`, `0000:65:00.0` and `65:00.0` do. NVML accepts each form.
fn same_bus(one: &str, other: &str) -> bool {
    let short = |text: &str| text.rsplit(':').take(2).collect::<Vec<_>>().join(":").to_ascii_lowercase();
    short(one) == short(other)
}

/// The path of the scenario: `FAKE_NVML_SCENARIO`, else `scenario.json` next to the loaded library, so that each copy
/// has its own scenario.
fn scenario_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FAKE_NVML_SCENARIO") {
        return Some(path.into());
    }
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let inside = std::ptr::from_ref(&STATE).cast();
    #[expect(unsafe_code, reason = "there is no other way to learn where this library was loaded from")]
    // SAFETY: `info` is writable and of the right type, and `inside` is an address in this library; dladdr fills the
    // structure, or leaves the zeros that were put there. A name that is not null is a C string that lives as long as
    // the library is loaded.
    let name = unsafe {
        libc::dladdr(inside, info.as_mut_ptr());
        let name = info.assume_init().dli_fname;
        if name.is_null() { return None } else { CStr::from_ptr(name) }
    };
    let library = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let library = library.canonicalize().unwrap_or_else(|_| library.to_path_buf());
    Some(library.parent()?.join("scenario.json"))
}

/// The state, after a check of the scenario file.
fn state() -> impl std::ops::DerefMut<Target = State> {
    let mut state = MutexGuard::map(STATE.lock(), |state| state.get_or_insert_with(State::new));
    state.refresh();
    state
}

/// Writes a line to `calls.log` next to the scenario, if the scenario has `log_calls`: the C function (or `field:N`)
/// and the position of the GPU, or `-` if the call names no GPU.
pub(crate) fn log_call(function: &str, view: &View) {
    let Some(path) = view.log.as_deref() else { return };
    let place = view.place.map_or_else(|| "-".to_owned(), |place| place.to_string());
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // An error cannot be reported here. A test that counts calls fails if the lines are not written.
    let _ = file.and_then(|mut file| file.write_all(format!("{function} {place}\n").as_bytes()));
}

/// Applies the delays, errors and hangs of the scenario.
fn suffer(function: &str, subject: &Subject) -> Result<(), Code> {
    let fault = {
        let mut state = state();
        let view = state.resolve(subject);
        log_call(function, &view);
        state.fault(function, &view)
    };
    if let Some(fault) = fault {
        std::thread::sleep(Duration::from_millis(fault.latency_ms));
        while fault.hang && state().scenario.faults.contains(&fault) {
            std::thread::sleep(LOOK);
        }
        if let Some(error) = fault.error {
            return Err(error);
        }
    }
    Ok(())
}

/// The start of each call: applies faults of the scenario, and refuses calls without `nvmlInit` and on lost GPUs.
pub(crate) fn enter(function: &str, subject: &Subject) -> Result<View, Code> {
    suffer(function, subject)?;
    let state = state();
    if state.inits == 0 {
        return Err(Code::UNINITIALIZED);
    }
    if state.session != state.scenario.driver_epoch {
        return Err(Code::DRIVER_NOT_LOADED);
    }
    let view = state.resolve(subject);
    if SINCE.iter().any(|(pattern, branch)| view.driver() < *branch && matches(pattern, function)) {
        return Err(Code::FUNCTION_NOT_FOUND);
    }
    match (subject, view.place) {
        (Subject::System, _) => {}
        (Subject::Handle(handle) | Subject::Instance(handle, _), None)
            if *handle / 0x100 > 0 && *handle / 0x100 <= state.handles.len() =>
        {
            return Err(Code::GPU_IS_LOST);
        }
        (Subject::Handle(_) | Subject::Instance(..) | Subject::Index(_), None) => return Err(Code::INVALID_ARGUMENT),
        (Subject::Uuid(_) | Subject::Pci(_), None) => return Err(Code::NOT_FOUND),
        (_, Some(place)) => reachable(function, &view, place)?,
    }
    Ok(view)
}

/// Whether a GPU answers this function at all.
fn reachable(function: &str, view: &View, place: usize) -> Result<(), Code> {
    let board = &view.boards[place];
    if board.spec.lost || !board.spec.present {
        return Err(Code::GPU_IS_LOST);
    }
    if view.instance.is_some_and(|at| at as usize >= board.instances.len()) {
        return Err(Code::NOT_FOUND);
    }
    let refused = board.refuses(function)
        || (view.instance.is_some() && !ON_INSTANCES.contains(&function))
        || (view.instance.is_none() && board.mig_enabled() && NOT_UNDER_MIG.contains(&function));
    if refused { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

/// The functions that older drivers do not have, with the first branch that has them. (A real library lacks the symbol;
/// the symbols of this library are fixed.)
const SINCE: [(&str, u32); 8] = [
    ("nvmlDeviceGetMemoryInfo_v2", 510),
    ("nvmlDeviceGetComputeRunningProcesses_v3", 510),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 510),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 510),
    ("nvmlDeviceGetComputeRunningProcesses_v2", 450),
    ("nvmlDeviceGetGraphicsRunningProcesses_v2", 450),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v2", 450),
    ("nvmlGpm*", 520),
];

/// The functions that accept the handle of a MIG instance.
const ON_INSTANCES: [&str; 24] = [
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmMigSampleGet",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand",
];

/// The functions that the driver refuses for a GPU with MIG mode.
const NOT_UNDER_MIG: [&str; 6] = [
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
];

/// `nvmlInit`. The library counts the calls; only the first one opens the driver.
pub(crate) fn init() -> Result<(), Code> {
    suffer("nvmlInit_v2", &Subject::System)?;
    let mut state = state();
    if let Some(error) = state.scenario.init_error {
        return Err(error);
    }
    if state.inits == 0 {
        let device = state.path.as_ref().and_then(|path| path.parent()).map(|directory| directory.join("nvidiactl"));
        state.device = device.and_then(|device| File::open(device).ok());
        state.session = state.scenario.driver_epoch;
    }
    state.inits += 1;
    state.at_init = None;
    let places = listed(&state.boards, None, state.scenario.list);
    state.at_init = Some(places.iter().map(|place| state.boards[*place].uuid.clone()).collect());
    Ok(())
}

/// `nvmlShutdown`. It also ends a session with a driver that was unloaded.
pub(crate) fn shutdown() -> Result<(), Code> {
    suffer("nvmlShutdown", &Subject::System)?;
    let mut state = state();
    state.inits = state.inits.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    if state.inits == 0 {
        state.device = None;
    }
    Ok(())
}

/// The handle of a GPU or of one of its MIG instances. It is the same each time.
pub(crate) fn handle(uuid: &str, instance: Option<u32>) -> usize {
    let mut state = state();
    let slot = state.handles.iter().position(|known| known == uuid).unwrap_or_else(|| {
        state.handles.push(uuid.to_owned());
        state.handles.len() - 1
    });
    (slot + 1) * 0x100 + instance.map_or(0, |instance| instance as usize + 1)
}

/// The sums over time, until now, of the GPU in a view.
pub(crate) fn sums(view: &View) -> Sums {
    view.place.map_or_else(Sums::default, |place| state().sums(place, view.time))
}

/// The next event on one of these GPUs that was not delivered yet; `None` if no event is pending.
pub(crate) fn next_event(gpus: &[(String, u64)]) -> Option<(XidEvent, View)> {
    let mut state = state();
    let mut view = state.view();
    let boards = view.boards.clone();
    for event in &state.scenario.clone().xids {
        let Some(place) = boards.iter().position(|board| board.is(&event.gpu)) else { continue };
        let registered = gpus.iter().any(|(uuid, mask)| *uuid == boards[place].uuid && mask & event.event != 0);
        if registered && event.at_s <= view.time && state.delivered.insert(event.id) {
            view.place = Some(place);
            return Some((event.clone(), view));
        }
    }
    None
}

/// Whether one of these GPUs is lost. If so, a wait for events of all of them fails.
pub(crate) fn any_lost(gpus: &[(String, u64)]) -> bool {
    let state = state();
    let lost = |board: &Board| board.spec.lost || !board.spec.present;
    state.boards.iter().any(|board| lost(board) && gpus.iter().any(|(uuid, _)| *uuid == board.uuid))
}

impl View {
    /// The GPU that the call names.
    pub(crate) fn board(&self) -> Result<&Board, Code> {
        self.place.and_then(|place| self.boards.get(place)).ok_or(Code::INVALID_ARGUMENT)
    }

    /// The driver's branch: 550 of `550.127.08`.
    pub(crate) fn driver(&self) -> u32 {
        self.scenario.driver.split('.').next().and_then(|branch| branch.parse().ok()).unwrap_or(0)
    }

    /// One number of that GPU, now.
    pub(crate) fn read(&self, what: ReadingKind) -> Result<f64, Code> {
        self.board()?.read(what, self.time)
    }

    /// A scenario second on the wall clock, in microseconds.
    pub(crate) fn stamp_us(&self, time: f64) -> u64 {
        self.origin_us.saturating_add(crate::gpu::whole(time.max(0.0) * 1e6))
    }

    /// NVML's index of a GPU.
    pub(crate) fn index_of(&self, place: usize) -> Result<u32, Code> {
        let index = self.listed.iter().position(|listed| *listed == place).ok_or(Code::GPU_IS_LOST)?;
        u32::try_from(index).map_err(|_| Code::UNKNOWN)
    }
}

/// NVML's version, which the library also reports without `nvmlInit`.
pub(crate) fn nvml_version() -> Result<String, Code> {
    suffer("nvmlSystemGetNVMLVersion", &Subject::System)?;
    Ok(state().scenario.nvml.clone())
}
