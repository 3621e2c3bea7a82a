//! The GPUs of the node: the last sample of each, its errors, and the events worth a log line.

use crate::health::{HealthChange, HealthPolicy, HealthRecord, nothing_read, silence};
use crate::node_event::NodeEvent;
use crate::occupants::Occupants;
use model::gpu::{Gpu, GpuSample, MAX_GPUS, MissingGpu, UnidentifiedGpu, Xid};
use model::id::GpuUuid;
use model::incident::{GpuCondition, KeptIncidents};
use model::observation::GpuSourceState;
use model::process::{GpuProcess, GpuProcesses};
use model::reading::{Absence, Reading};
use model::time::Monotonic;
use model::unit::Bytes;
use model::usage::Rated;
use model::view::MAX_XID_CODES;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of one GPU.
#[derive(Debug)]
pub struct GpuState {
    /// The GPU's facts.
    pub gpu: Arc<Gpu>,
    /// The GPU's last sample.
    pub sample: Arc<GpuSample>,
    /// The GPU's processes.
    pub processes: Reading<Arc<[GpuProcess]>>,
    /// Number of processes beyond the bound.
    pub left_out: u32,
    /// Memory that was in use when the process list was made.
    pub listed_memory: Reading<Bytes>,
    /// The processes that use the GPU, from the last list that was read.
    pub occupants: Occupants,
    /// The last XID.
    pub last_xid: Option<Xid>,
    /// Number of XIDs by code.
    pub xids: BTreeMap<u32, u64>,
    /// Number of all XIDs.
    pub xid_count: u64,
    /// Number of values outside the physical range of their reading, by reading; at most one entry for each range.
    pub implausible: BTreeMap<&'static str, u64>,
    /// NVLink traffic and its rate.
    pub nvlink: Rated<Bytes>,
    /// The GPU's health record.
    pub record: HealthRecord,
}

impl GpuState {
    fn new(gpu: Gpu, record: HealthRecord) -> Self {
        GpuState {
            gpu: Arc::new(gpu),
            sample: Arc::default(),
            processes: Reading::NOT_YET,
            left_out: 0,
            listed_memory: Reading::NOT_YET,
            occupants: Occupants::default(),
            last_xid: None,
            xids: BTreeMap::new(),
            xid_count: 0,
            implausible: BTreeMap::new(),
            nvlink: Rated::default(),
            record,
        }
    }

    /// The GPU and its MIG instances.
    pub fn devices(&self) -> impl Iterator<Item = &GpuUuid> {
        std::iter::once(&self.gpu.uuid).chain(self.gpu.instances().iter().map(|instance| &instance.uuid))
    }

    /// Takes in a new sample. Returns events when the GPU stops answering or answers again, and when its health
    /// changes.
    fn read(&mut self, sample: Arc<GpuSample>, policy: &HealthPolicy, now: Monotonic) -> Vec<NodeEvent> {
        let before = silence(&self.sample);
        let after = silence(&sample);
        let first = nothing_read(&self.sample);
        self.sample = sample;
        for (reading, number) in &self.sample.implausible {
            *self.implausible.entry(reading).or_default() += u64::from(*number);
        }
        self.nvlink.update(self.sample.nvlink_bytes, |bytes| bytes.0);
        let answers_event = match (before, after) {
            (None, Some(why)) => Some(NodeEvent::GpuSick(self.gpu.uuid.clone(), why)),
            (Some(old), Some(why)) if old != why => Some(NodeEvent::GpuSick(self.gpu.uuid.clone(), why)),
            (Some(_), None) if !first => Some(NodeEvent::GpuAnswers(self.gpu.uuid.clone())),
            _ => None,
        };
        let changes = self.record.read(&self.sample, policy, now);
        answers_event.into_iter().chain(changes.into_iter().map(|change| self.changed(change))).collect()
    }

    fn changed(&self, change: HealthChange) -> NodeEvent {
        match change {
            HealthChange::Unfit(incident) => NodeEvent::GpuUnfit(self.gpu.uuid.clone(), incident),
            HealthChange::Fit => NodeEvent::GpuFit(self.gpu.uuid.clone()),
        }
    }

    fn silent(&mut self, why: Absence, policy: &HealthPolicy, now: Monotonic) {
        self.sample = Arc::new(GpuSample::absent(why));
        self.nvlink.update(self.sample.nvlink_bytes, |bytes| bytes.0);
        // A released driver proves nothing about the GPU.
        if why != Absence::Released {
            // No event for this change: the event of the GPU source covers all GPUs.
            let _ = self.record.read(&self.sample, policy, now);
        }
        self.processes = Reading::Absent(why);
        self.left_out = 0;
        self.listed_memory = Reading::Absent(why);
    }

    fn count(&mut self, xid: &Xid) {
        self.last_xid = Some(xid.clone());
        self.xid_count += 1;
        if self.xids.len() < MAX_XID_CODES || self.xids.contains_key(&xid.code) {
            *self.xids.entry(xid.code).or_default() += 1;
        }
    }
}

/// A GPU with incidents that is not in the list now.
#[derive(Debug)]
struct AbsentGpu {
    gpu: GpuUuid,
    record: HealthRecord,
    /// Whether the driver has reported a list without this GPU and without unidentified GPUs, which might be this GPU.
    left: bool,
}

/// All GPUs of the node, ordered by index.
#[derive(Debug)]
pub struct GpuStates {
    /// Whether the agent can see GPUs at all.
    pub source: GpuSourceState,
    /// Version of the driver that answered last.
    pub driver: Option<Arc<str>>,
    /// The listed GPUs, at most [`MAX_GPUS`].
    pub list: Vec<GpuState>,
    /// GPUs that could never be identified, ordered by index; at most [`MAX_GPUS`].
    pub unidentified: Vec<UnidentifiedGpu>,
    /// GPUs that the machine has and NVML does not list, ordered by PCI address; at most [`MAX_GPUS`].
    pub missing: Vec<MissingGpu>,
    /// The health policy.
    pub policy: HealthPolicy,
    /// GPUs that may come back; at most [`MAX_GPUS`].
    absent: Vec<AbsentGpu>,
    /// Whether the driver was found not loaded and has not worked since.
    unloaded: bool,
    /// The load of the driver with which the GPUs were last seen, by this or an earlier run of the agent.
    driver_load: Option<u64>,
}

impl Default for GpuStates {
    fn default() -> Self {
        GpuStates {
            source: GpuSourceState::Starting,
            driver: None,
            list: Vec::new(),
            unidentified: Vec::new(),
            missing: Vec::new(),
            policy: HealthPolicy::default(),
            absent: Vec::new(),
            unloaded: false,
            driver_load: None,
        }
    }
}

impl GpuStates {
    /// A state without GPUs. The saved incidents of an earlier run are applied to the GPUs that appear.
    #[must_use]
    pub fn restored(policy: HealthPolicy, kept: &[KeptIncidents], now: Monotonic) -> GpuStates {
        let mut absent: Vec<AbsentGpu> = Vec::new();
        for kept in kept.iter().take(MAX_GPUS) {
            if absent.iter().all(|known| known.gpu != kept.gpu) {
                absent.push(AbsentGpu {
                    gpu: kept.gpu.clone(),
                    record: HealthRecord::restored(kept, now),
                    left: false,
                });
            }
        }
        let driver_load = kept.iter().find_map(|kept| kept.driver_load);
        GpuStates { policy, absent, driver_load, ..GpuStates::default() }
    }

    /// The incidents to save for the next run of the agent, ordered by UUID: the incidents of listed GPUs and of GPUs
    /// that may come back.
    #[must_use]
    pub fn kept(&self) -> Vec<KeptIncidents> {
        let listed = self.list.iter().filter_map(|state| state.record.kept(&state.gpu.uuid));
        let mut kept: Vec<KeptIncidents> =
            listed.chain(self.absent.iter().filter_map(|one| one.record.kept(&one.gpu))).collect();
        kept.iter_mut().for_each(|kept| kept.driver_load = self.driver_load);
        kept.sort_by(|one, other| one.gpu.cmp(&other.gpu));
        kept
    }

    /// An operator declares this GPU, or all GPUs, repaired. Returns each GPU with cleared incidents and its remaining
    /// condition, and the events worth a log line.
    pub fn clear(&mut self, which: Option<&GpuUuid>) -> (Vec<(GpuUuid, GpuCondition)>, Vec<NodeEvent>) {
        let is_meant = |gpu: &GpuUuid| which.is_none_or(|which| which == gpu);
        let (mut cleared, mut events) = (Vec::new(), Vec::new());
        for state in self.list.iter_mut().filter(|state| is_meant(&state.gpu.uuid)) {
            let (gone, change) = state.record.clear();
            if gone > 0 {
                cleared.push((state.gpu.uuid.clone(), state.record.condition(&self.policy)));
            }
            events.extend(change.map(|change| state.changed(change)));
        }
        for absent in self.absent.extract_if(.., |absent| is_meant(&absent.gpu)) {
            cleared.push((absent.gpu, GpuCondition::default()));
        }
        (cleared, events)
    }

    /// The GPU source has changed. Known GPUs stay known; their readings become absent for the source's reason.
    pub fn source(&mut self, state: GpuSourceState, now: Monotonic) -> Vec<NodeEvent> {
        if self.source == state {
            return Vec::new();
        }
        self.unloaded |= matches!(&state, GpuSourceState::Missing { why: Absence::DriverNotLoaded, .. });
        if matches!(state, GpuSourceState::Working { .. }) && std::mem::take(&mut self.unloaded) {
            self.were_reset();
        }
        let why = match &state {
            GpuSourceState::Missing { why, .. } => Some(*why),
            GpuSourceState::Hanging => Some(Absence::CallHangs),
            GpuSourceState::SwitchedOff => Some(Absence::SwitchedOff),
            GpuSourceState::Released { .. } => Some(Absence::Released),
            GpuSourceState::Starting | GpuSourceState::Working { .. } => None,
        };
        if let Some(why) = why {
            self.list.iter_mut().for_each(|state| state.silent(why, &self.policy, now));
            self.unidentified.iter_mut().for_each(|gpu| gpu.why = why);
            // Without a session with the driver, no list is compared.
            self.missing.clear();
        }
        if let GpuSourceState::Working { driver, .. } = &state {
            self.driver = Some(Arc::clone(driver));
        }
        self.source = state.clone();
        vec![NodeEvent::GpuSource(state)]
    }

    /// The driver works, and this number identifies its load. A different load means that every GPU was reset, even if
    /// nothing saw the driver unloaded, because the agent had released NVML or was not running.
    pub fn driver_loaded(&mut self, load: u64) {
        if self.driver_load.replace(load).is_some_and(|before| before != load) {
            self.were_reset();
        }
    }

    fn were_reset(&mut self) {
        self.list.iter_mut().for_each(|state| state.record.was_reset());
        self.absent.iter_mut().for_each(|absent| absent.record.was_reset());
    }

    /// The list has changed. New GPUs start empty, known GPUs keep their samples and counts, and of removed GPUs only
    /// the incidents are kept.
    pub fn listed(&mut self, gpus: Vec<Gpu>) -> Vec<NodeEvent> {
        let mut events = Vec::new();
        let mut old = std::mem::take(&mut self.list);
        for gpu in gpus.into_iter().take(MAX_GPUS) {
            if self.list.iter().any(|state| state.gpu.uuid == gpu.uuid) {
                continue;
            }
            match old.iter().position(|state| state.gpu.uuid == gpu.uuid) {
                Some(place) => {
                    let mut state = old.swap_remove(place);
                    state.gpu = Arc::new(gpu);
                    self.list.push(state);
                }
                None => {
                    events.push(NodeEvent::GpuAppeared {
                        gpu: gpu.uuid.clone(),
                        model: Arc::clone(&gpu.model),
                        index: gpu.index,
                    });
                    let record = self.returning(&gpu.uuid);
                    self.list.push(GpuState::new(gpu, record));
                }
            }
        }
        for state in old {
            events.push(NodeEvent::GpuDisappeared(state.gpu.uuid.clone()));
            if state.record.kept(&state.gpu.uuid).is_some() && self.absent.len() < MAX_GPUS {
                self.absent.push(AbsentGpu { gpu: state.gpu.uuid.clone(), record: state.record, left: false });
            }
        }
        // An unidentified GPU may be any absent GPU.
        if self.unidentified.is_empty() {
            self.absent.iter_mut().for_each(|absent| absent.left = true);
        }
        self.list.sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
        events
    }

    /// The health record for a GPU that appears. If it had left the driver's list, the GPU or its driver was removed in
    /// between, which resets it.
    fn returning(&mut self, gpu: &GpuUuid) -> HealthRecord {
        let Some(place) = self.absent.iter().position(|absent| absent.gpu == *gpu) else {
            return HealthRecord::default();
        };
        let AbsentGpu { mut record, left, .. } = self.absent.swap_remove(place);
        if left {
            record.was_reset();
        }
        record
    }

    /// Replaces the list of GPUs that could not be identified. The source has logged the reasons.
    pub fn set_unidentified(&mut self, mut gpus: Vec<UnidentifiedGpu>) {
        gpus.sort_by_key(|gpu| gpu.index);
        gpus.dedup_by_key(|gpu| gpu.index);
        gpus.truncate(MAX_GPUS);
        self.unidentified = gpus;
    }

    /// Replaces the list of GPUs that the machine has and NVML does not list. Returns an event for each GPU that is new
    /// or missing for another reason, and for each GPU that is not missing any more.
    pub fn set_missing(&mut self, mut gpus: Vec<MissingGpu>) -> Vec<NodeEvent> {
        gpus.truncate(MAX_GPUS);
        let before = std::mem::replace(&mut self.missing, gpus);
        let same = |one: &MissingGpu, other: &MissingGpu| one.pci_bus_id == other.pci_bus_id;
        let new = self.missing.iter().filter(|gpu| !before.contains(gpu)).cloned().map(NodeEvent::GpuMissing);
        let gone = before.iter().filter(|gpu| !self.missing.iter().any(|now| same(gpu, now)));
        new.chain(gone.map(|gpu| NodeEvent::GpuNotMissing(Arc::clone(&gpu.pci_bus_id)))).collect()
    }

    /// Takes in a sample of one GPU. A sample of a GPU that is not listed is dropped, because the list comes first.
    pub fn read(&mut self, uuid: &GpuUuid, sample: GpuSample, now: Monotonic) -> Vec<NodeEvent> {
        let Some(state) = self.list.iter_mut().find(|state| &state.gpu.uuid == uuid) else {
            return Vec::new();
        };
        state.read(Arc::new(sample), &self.policy, now)
    }

    /// A driver call that counts against this GPU has stalled.
    pub fn stalled(&mut self, uuid: &GpuUuid, now: Monotonic) -> Vec<NodeEvent> {
        let Some(state) = self.list.iter_mut().find(|state| &state.gpu.uuid == uuid) else {
            return Vec::new();
        };
        let change = state.record.stalled(now);
        change.map(|change| state.changed(change)).into_iter().collect()
    }

    /// Takes in the processes of one GPU.
    pub fn processes(&mut self, report: GpuProcesses) {
        if let Some(state) = self.find(&report.gpu) {
            if let Some(list) = report.list.value() {
                state.occupants.replace(list, report.left_out);
            }
            state.processes = report.list.map(Arc::from);
            state.left_out = report.left_out;
            state.listed_memory = report.memory_used;
        }
    }

    /// Takes in a driver error: counts it on its GPU and always returns it as an event.
    pub fn xid(&mut self, mut xid: Xid, now: Monotonic) -> Vec<NodeEvent> {
        let state = match (&xid.gpu, &xid.pci_bus_id) {
            (Some(uuid), _) => self.list.iter_mut().find(|state| &state.gpu.uuid == uuid),
            (None, Some(address)) => self.list.iter_mut().find(|state| {
                state.gpu.pci_bus_id.value().is_some_and(|known| slot(known).is_some() && slot(known) == slot(address))
            }),
            (None, None) => None,
        };
        let (mut change, mut awaits) = (None, None);
        if let Some(state) = state {
            xid.gpu = Some(state.gpu.uuid.clone());
            state.count(&xid);
            let awaited = state.record.awaits_reset();
            change = state.record.xid(xid.code, xid.severity, &self.policy, now).map(|change| state.changed(change));
            awaits =
                (state.record.awaits_reset() && !awaited).then(|| NodeEvent::GpuAwaitsReset(state.gpu.uuid.clone()));
        }
        std::iter::once(NodeEvent::Xid(xid)).chain(change).chain(awaits).collect()
    }

    /// The driver says, without an XID, that the GPU in a slot has fallen off the bus.
    pub fn fell_off(&mut self, pci_bus_id: &Arc<str>, now: Monotonic) -> Vec<NodeEvent> {
        let place = slot(pci_bus_id);
        let state = self
            .list
            .iter_mut()
            .find(|state| place.is_some() && state.gpu.pci_bus_id.value().is_some_and(|known| slot(known) == place));
        let gpu = state.as_ref().map(|state| state.gpu.uuid.clone());
        let change = state.and_then(|state| state.record.fell_off(now).map(|change| state.changed(change)));
        // The driver repeats the line at each access to the GPU.
        if gpu.is_some() && change.is_none() {
            return Vec::new();
        }
        let said = NodeEvent::GpuFellOff { gpu, pci_bus_id: Arc::clone(pci_bus_id) };
        std::iter::once(said).chain(change).collect()
    }

    /// Takes in the process and the severity of an error that was counted without them. Adds them to the GPU's last XID
    /// and returns them as an event. The severity changes the GPU's health as if the error had come with it.
    pub fn xid_details(&mut self, xid: Xid, now: Monotonic) -> Vec<NodeEvent> {
        let mut change = None;
        if let Some(state) = self.list.iter_mut().find(|state| Some(&state.gpu.uuid) == xid.gpu.as_ref()) {
            if let Some(last) = state.last_xid.as_mut().filter(|last| last.code == xid.code) {
                if xid.pid.is_some() {
                    last.pid = xid.pid;
                    last.pod.clone_from(&xid.pod);
                }
                last.severity = xid.severity.or(last.severity);
            }
            let decided =
                xid.severity.and_then(|severity| state.record.severity(xid.code, severity, &self.policy, now));
            change = decided.map(|change| state.changed(change));
        }
        std::iter::once(NodeEvent::XidDetails(xid)).chain(change).collect()
    }

    fn find(&mut self, uuid: &GpuUuid) -> Option<&mut GpuState> {
        self.list.iter_mut().find(|state| &state.gpu.uuid == uuid)
    }
}

/// Domain, bus and device of a PCI address. NVML writes the domain with eight digits, the kernel with four and without
/// the function: `00000000:65:00.0` and `0000:65:00` are the same slot.
fn slot(address: &str) -> Option<(u32, u32, u32)> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let mut parts = address.split(':');
    let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let device = rest.split('.').next()?;
    if parts.next().is_some() { None } else { Some((hex(domain)?, hex(bus)?, hex(device)?)) }
}

#[cfg(test)]
mod tests;
