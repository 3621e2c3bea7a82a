//! Compares the health of GPUs with the last view, and turns each change into a Kubernetes event.

use super::missing::{Holding, Missing};
use apiserver::writes::{EventType, ObjectEvent};
use model::gpu::{Gpu, MissingGpu};
use model::id::{GpuUuid, PodUid};
use model::incident::{GpuCondition, Incident};
use model::time::Monotonic;
use model::view::NodeView;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The `action` of events about a change of health.
const ACTION: &str = "HealthCheck";

/// The health of each GPU in the last view.
#[derive(Debug, Default)]
pub(crate) struct GpuHealthWatch {
    gpus: BTreeMap<GpuUuid, (Arc<Gpu>, GpuCondition)>,
    /// The GPUs of the machine that NVML did not list.
    unlisted: Vec<MissingGpu>,
    /// For each GPU, the time of the last driver error about which a pod got an event.
    reported: BTreeMap<GpuUuid, Monotonic>,
    /// The pods whose GPUs are not listed.
    missing: Missing,
}

/// A change of one GPU's health, as an event for the Node and for the pods that hold the GPU.
#[derive(Debug)]
pub(super) struct HealthChange {
    /// The GPU and its MIG instances; empty for a GPU that NVML does not list.
    pub devices: Vec<GpuUuid>,
    /// The event.
    pub event: ObjectEvent,
}

impl GpuHealthWatch {
    /// Compares a view with the previous view, and returns the changes. A new GPU that is healthy is not a change.
    pub(super) fn look(&mut self, view: &NodeView, at: &str) -> Vec<HealthChange> {
        let mut changes = Vec::new();
        let now: BTreeMap<GpuUuid, (Arc<Gpu>, GpuCondition)> =
            view.gpus.iter().map(|gpu| (gpu.gpu.uuid.clone(), (Arc::clone(&gpu.gpu), gpu.condition.clone()))).collect();
        for (uuid, (gpu, condition)) in &now {
            let before = self.gpus.get(uuid).map(|(_, condition)| condition);
            let known = |incident: &Incident| {
                before.is_some_and(|before| before.incidents.iter().any(|(other, _)| other == incident))
            };
            for (incident, _) in condition.incidents.iter().filter(|(incident, _)| !known(incident)) {
                changes.push(unhealthy(gpu, *incident, condition, at));
            }
            if condition.fit() && before.is_some_and(|before| !before.fit()) {
                let note = format!("{}: healthy again; it gets new containers.", named(gpu));
                changes.push(of(gpu, EventType::Normal, "GpuHealthy", note, at));
            }
        }
        // If the driver is gone, no GPU is listed, and each GPU gets this event.
        for (gpu, _) in self.gpus.iter().filter(|(uuid, _)| !now.contains_key(uuid)).map(|(_, seen)| seen) {
            let note = format!("{}: no longer listed by the driver; its slots are gone.", named(gpu));
            changes.push(of(gpu, EventType::Warning, "GpuRemoved", note, at));
        }
        self.gpus = now;
        let new = view.gpus_missing.iter().filter(|gpu| !self.unlisted.contains(gpu));
        changes.extend(new.map(|gpu| unlisted(gpu, at)));
        self.unlisted.clone_from(&view.gpus_missing);
        changes
    }

    /// The devices that running pods hold and that have not been listed for long enough. `without` returns the devices
    /// that running pods hold except the listed devices.
    pub(super) fn missing(
        &mut self,
        view: &NodeView,
        without: impl FnOnce(&BTreeSet<&GpuUuid>) -> Vec<Holding>,
    ) -> Vec<Holding> {
        self.missing.look(view, without)
    }
}

/// A driver error that names a process of a pod.
#[derive(Debug)]
pub(super) struct PodError {
    /// The pod of the process.
    pub pod: PodUid,
    /// The XID: the number in NVIDIA's catalogue.
    pub code: u32,
    /// The note of the event.
    pub note: String,
}

impl GpuHealthWatch {
    /// The last driver error of each GPU, if it names a process of a pod and no event was written about it yet.
    pub(super) fn errors(&mut self, view: &NodeView) -> Vec<PodError> {
        self.reported.retain(|uuid, _| view.gpus.iter().any(|gpu| gpu.gpu.uuid == *uuid));
        let mut errors = Vec::new();
        for gpu in &view.gpus {
            let Some(xid) = &gpu.last_xid else { continue };
            let (Some(pid), Some(pod)) = (xid.pid, &xid.pod) else { continue };
            if self.reported.insert(gpu.gpu.uuid.clone(), xid.at) == Some(xid.at) {
                continue;
            }
            let meaning = model::xid::find(xid.code).map_or("not in NVIDIA's catalogue", |entry| entry.meaning);
            let note = format!(
                "{}: the driver reports XID {} ({meaning}) and names process {pid} of this pod; look at what the pod logged then",
                named(&gpu.gpu),
                xid.code
            );
            errors.push(PodError { pod: pod.clone(), code: xid.code, note });
        }
        errors
    }
}

fn unhealthy(gpu: &Gpu, incident: Incident, condition: &GpuCondition, at: &str) -> HealthChange {
    let note = format!(
        "{}: {incident}. It gets no new containers; what runs on it is left alone. {}",
        named(gpu),
        condition.advice(incident)
    );
    of(gpu, EventType::Warning, "GpuUnhealthy", note, at)
}

fn unlisted(gpu: &MissingGpu, at: &str) -> HealthChange {
    let (reason, advice) = (gpu.reason(), gpu.advice());
    let note = format!("GPU at {}: NVML does not list it: {reason}. It gets no containers. {advice}", gpu.pci_bus_id);
    HealthChange { devices: Vec::new(), event: event(EventType::Warning, "GpuMissing", note, at) }
}

fn named(gpu: &Gpu) -> String {
    format!("GPU {} ({}, {})", gpu.index, gpu.model, gpu.uuid)
}

fn of(gpu: &Gpu, event_type: EventType, reason: &'static str, note: String, at: &str) -> HealthChange {
    let inside = gpu.instances().iter().map(|instance| instance.uuid.clone());
    let devices = std::iter::once(gpu.uuid.clone()).chain(inside).collect();
    HealthChange { devices, event: event(event_type, reason, note, at) }
}

fn event(weight: EventType, reason: &'static str, note: String, at: &str) -> ObjectEvent {
    ObjectEvent { weight, reason, action: ACTION, note, at: at.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu::{Xid, XidSource};
    use model::id::NodeName;
    use model::reading::{Absence, Reading};
    use model::time::{Monotonic, Now};
    use model::view::{GpuHealth, GpuView, SoleHolders};

    fn gpu(number: u32, incidents: &[Incident]) -> GpuView {
        let gpu = Gpu {
            uuid: GpuUuid::parse(&format!("GPU-{number}")).unwrap(),
            index: number,
            minor: Reading::NOT_YET,
            model: "H100".into(),
            pci_bus_id: Reading::NOT_YET,
            numa_node: Reading::NOT_YET,
            architecture: Reading::NOT_YET,
            compute: Reading::NOT_YET,
            memory_total: Reading::NOT_YET,
            memory_kind: model::gpu::MemoryKind::Own,
            power_limit: Reading::NOT_YET,
            mig_mode: Reading::NOT_YET,
            mig: Reading::NOT_YET,
            links: Vec::new(),
            nvlinks_active: Reading::NOT_YET,
            board: model::hardware::Board::default(),
        };
        let incidents = incidents.iter().map(|incident| (*incident, Monotonic(1))).collect();
        GpuView {
            gpu: Arc::new(gpu),
            sample: Arc::default(),
            health: GpuHealth::Healthy,
            condition: GpuCondition { incidents, ..GpuCondition::default() },
            processes: Reading::NOT_YET,
            processes_left_out: 0,
            holders: Vec::new(),
            sole_holders: SoleHolders::default(),
            nvlink_rate: Reading::NOT_YET,
            strangers: 0,
            memory_used_now: Reading::NOT_YET,
            listed_memory: Reading::NOT_YET,
            unattributed_memory: Reading::NOT_YET,
            unattributed_sm: Reading::NOT_YET,
            last_xid: None,
            xids: Vec::new(),
            xid_count: 0,
            implausible: Vec::new(),
        }
    }

    #[test]
    fn each_change_gets_one_event_with_cause_and_advice() {
        let mut watched = GpuHealthWatch::default();
        let mut look = |gpus: Vec<GpuView>| -> Vec<(&'static str, String)> {
            let mut view = NodeView::empty(NodeName::parse("n").unwrap(), Now::default());
            view.gpus = gpus;
            watched.look(&view, "").into_iter().map(|change| (change.event.reason, change.event.note)).collect()
        };
        let (fell, lost) = (Incident::Xid(79), Incident::Silent(Absence::GpuLost));
        assert_eq!(look(vec![gpu(0, &[]), gpu(1, &[])]), []);
        let events = look(vec![gpu(0, &[]), gpu(1, &[fell])]);
        let text = "GPU 1 (H100, GPU-1): XID 79: GPU has fallen off the bus. It gets no new containers; what runs on it is \
                    left alone. Drain and restart the node.";
        assert_eq!(events, [("GpuUnhealthy", text.to_owned())]);
        assert_eq!(look(vec![gpu(0, &[]), gpu(1, &[fell])]), []);
        assert_eq!(look(vec![gpu(0, &[]), gpu(1, &[lost, fell])]).len(), 1, "another reason");
        assert_eq!(look(vec![gpu(0, &[]), gpu(1, &[])])[0].0, "GpuHealthy");
        assert_eq!(look(vec![gpu(0, &[])])[0].0, "GpuRemoved");
        assert_eq!(look(vec![gpu(0, &[]), gpu(1, &[])]), []);
    }

    #[test]
    fn a_gpu_that_nvml_does_not_list_gets_one_event_for_each_reason() {
        let mut watched = GpuHealthWatch::default();
        let mut look = |gpus: Vec<MissingGpu>| {
            let mut view = NodeView::empty(NodeName::parse("n").unwrap(), Now::default());
            view.gpus_missing = gpus;
            watched.look(&view, "")
        };
        let failed = MissingGpu { pci_bus_id: "0000:65:00.0".into(), on_bus: true, in_driver: false, bound_to: None };
        let other = MissingGpu { bound_to: Some("nouveau".into()), ..failed.clone() };
        let changes = look(vec![failed.clone()]);
        assert_eq!((changes.len(), changes[0].event.reason), (1, "GpuMissing"));
        assert!(changes[0].event.weight == EventType::Warning && changes[0].devices.is_empty());
        let text = "GPU at 0000:65:00.0: NVML does not list it: NVIDIA's driver has not initialised it. It gets no \
                    containers. Check the kernel log (dmesg)";
        assert!(changes[0].event.note.starts_with(text), "{}", changes[0].event.note);
        assert!(look(vec![failed.clone()]).is_empty(), "once");
        let changes = look(vec![other]);
        assert!(changes[0].event.note.contains("bound to the kernel driver nouveau"), "{}", changes[0].event.note);
        assert!(look(Vec::new()).is_empty());
        assert_eq!(look(vec![failed]).len(), 1, "it is missing again");
    }

    #[test]
    fn the_pod_of_the_process_that_an_error_names_gets_one_event() {
        let pod = PodUid::parse("0b0d8d3c-6b5e-4f3c-9a5e-1d2f3a4b5c6d").unwrap();
        let mut watched = GpuHealthWatch::default();
        let mut look = |code, pid: Option<u32>, seconds| {
            let at = Monotonic(seconds);
            let pod = pid.map(|_| pod.clone());
            let (mig, pci_bus_id, severity, source) = (None, None, None, XidSource::KernelLog);
            let xid = Xid { gpu: None, mig, pci_bus_id, code, severity, pid, pod, at, source };
            let mut view = NodeView::empty(NodeName::parse("n").unwrap(), Now::default());
            view.gpus = vec![GpuView { last_xid: Some(xid), ..gpu(0, &[]) }];
            watched.errors(&view)
        };
        assert!(look(31, None, 1).is_empty(), "no process is named");
        let events = look(31, Some(77), 1);
        assert_eq!((events.len(), &events[0].pod, events[0].code), (1, &pod, 31));
        assert!(
            events[0].note.contains("XID 31 (") && events[0].note.contains("process 77 of this pod"),
            "{}",
            events[0].note
        );
        assert!(look(31, Some(77), 1).is_empty(), "once");
        assert_eq!(look(31, Some(77), 9).len(), 1, "a later error is a new event");
    }
}
