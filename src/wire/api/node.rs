//! `/api/v1/node`: the host, the source of its GPU readings, and the state of the agent.

use super::gpus::{MissingGpuJson, UnidentifiedGpuJson};
use super::head::ViewHeadJson;
use super::reading::{ReadingAges, ReadingJson};
use model::Absence;
use model::cgroup::NetworkSample;
use model::host::HostPressure;
use model::observation::{ErrorCounter, GpuSourceState};
use model::plugin::{DeviceSlots, PluginView, PodFiles, RegistrationState};
use model::time::Now;
use model::view::{NodeView, PodWatchView};
use model::withheld::WithheldDevice;
use serde::{Deserialize, Serialize};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::host` and `model::view` with their unit")]
pub struct NodeJson {
    pub view: ViewHeadJson,
    pub gpu_source: GpuSourceJson,
    #[serde(default)]
    pub gpu_events_hang: bool,
    pub gpus: usize,
    #[serde(default)]
    pub gpus_unidentified: Vec<UnidentifiedGpuJson>,
    #[serde(default)]
    pub gpus_missing: Vec<MissingGpuJson>,
    pub pods: usize,
    pub kernel: String,
    /// `v1`, `v2` or `hybrid`.
    pub cgroups: ReadingJson<String>,
    pub private_cgroup_namespace: ReadingJson<bool>,
    pub processors: ReadingJson<u64>,
    pub load: ReadingJson<[f64; 3]>,
    pub cpu_cores: ReadingJson<f64>,
    pub cpu_user_seconds: ReadingJson<f64>,
    pub cpu_system_seconds: ReadingJson<f64>,
    pub cpu_idle_seconds: ReadingJson<f64>,
    pub cpu_iowait_seconds: ReadingJson<f64>,
    pub cpu_steal_seconds: ReadingJson<f64>,
    pub memory_total_bytes: ReadingJson<u64>,
    pub memory_available_bytes: ReadingJson<u64>,
    pub memory_working_set_bytes: ReadingJson<u64>,
    pub memory_rss_bytes: ReadingJson<u64>,
    pub memory_cache_bytes: ReadingJson<u64>,
    pub swap_used_bytes: ReadingJson<u64>,
    pub oom_kills: ReadingJson<u64>,
    pub disk_read_bytes: ReadingJson<u64>,
    pub disk_write_bytes: ReadingJson<u64>,
    pub disk_reads: ReadingJson<u64>,
    pub disk_writes: ReadingJson<u64>,
    pub disk_read_bytes_per_second: ReadingJson<f64>,
    pub disk_write_bytes_per_second: ReadingJson<f64>,
    pub net_rx_bytes: ReadingJson<u64>,
    pub net_tx_bytes: ReadingJson<u64>,
    pub net_rx_bytes_per_second: ReadingJson<f64>,
    pub net_tx_bytes_per_second: ReadingJson<f64>,
    pub net_rx_packets: ReadingJson<u64>,
    pub net_tx_packets: ReadingJson<u64>,
    pub net_rx_errors: ReadingJson<u64>,
    pub net_tx_errors: ReadingJson<u64>,
    pub net_rx_dropped: ReadingJson<u64>,
    pub net_tx_dropped: ReadingJson<u64>,
    pub tasks: ReadingJson<u64>,
    pub processes: ReadingJson<u64>,
    pub pressure: ReadingJson<HostPressureJson>,
    pub processes_left_out: u32,
    pub cgroups_left_out: u32,
    pub pass_seconds: f64,
    pub deadlines_missed: u64,
    pub troubles: Vec<ErrorCountJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_watch: Option<PodWatchJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginJson>,
}

/// Time that tasks waited, since boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::host::HostPressure` with their unit")]
pub struct HostPressureJson {
    pub cpu_waiting_seconds: f64,
    pub memory_waiting_seconds: f64,
    pub memory_stalled_seconds: f64,
    pub io_waiting_seconds: f64,
    pub io_stalled_seconds: f64,
}

/// State of the pod watch; missing if the agent does not use the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodWatchJson {
    /// `following`, `waiting` (for the first list) or `broken`.
    pub state: String,
    /// Seconds since the last answer or event of the API server; missing before the first list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// Why the watch is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of known pods; they stay known while the watch is broken.
    pub pods: u32,
    /// Number of pods beyond the limit of the agent.
    pub left_out: u32,
    /// Number of pods whose newest version cannot be read.
    pub unreadable: u32,
}

/// State of the device plugin; missing if the agent does not share GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginJson {
    /// Name of the resource: `nvidia.com/gpu`.
    pub resource: String,
    /// Whether kubelet watches the agent's list of devices.
    pub registered: bool,
    /// How the agent is registered: `classic`; missing while it is not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// What the agent waits for, while it is not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Slots of each device, ordered by device.
    pub slots: Vec<DeviceSlotsJson>,
    /// Devices that the driver lists and the agent does not offer, ordered by index.
    #[serde(default)]
    pub not_offered: Vec<WithheldDeviceJson>,
    /// Files of pods in the folders that must be writable for the limiter, ordered by UID.
    #[serde(default)]
    pub pod_files: Vec<PodFilesJson>,
}

/// A device that the agent does not offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WithheldDeviceJson {
    /// NVML's index of the GPU.
    pub index: u32,
    /// The GPU or MIG instance; missing for a GPU that could not be identified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// A stable reason code: see [`model::withheld::WithheldReason::code`].
    pub code: String,
    /// The reason as half a sentence.
    pub reason: String,
    /// What to do.
    pub advice: String,
}

impl WithheldDeviceJson {
    fn of(device: &WithheldDevice) -> WithheldDeviceJson {
        WithheldDeviceJson {
            index: device.index,
            uuid: device.device.as_ref().map(ToString::to_string),
            code: device.why.code().to_owned(),
            reason: device.why.to_string(),
            advice: device.why.advice().to_owned(),
        }
    }
}

/// Files that a pod has written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::plugin::PodFiles`")]
pub struct PodFilesJson {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub bytes: u64,
    pub files: u64,
    pub over: bool,
}

/// Slots and claims of one GPU or MIG instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::plugin::DeviceSlots`")]
pub struct DeviceSlotsJson {
    pub uuid: String,
    pub free: u32,
    pub used: u32,
    pub unhealthy: u32,
    pub used_unhealthy: u32,
    pub claims: u32,
    pub healthy: bool,
    pub cordoned: bool,
    /// Not in answers of earlier releases.
    #[serde(default)]
    pub taken: bool,
}

/// State of the source of GPU readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSourceJson {
    /// `working`, `starting`, `missing`, `hanging`, `released` or `switched_off`.
    pub state: String,
    /// Driver version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// NVML version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<String>,
    /// CUDA version of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// Why the GPUs cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the agent tried, and what the operator can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// An error counter: how often one kind of error happened since the start of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "two plain fields")]
pub struct ErrorCountJson {
    pub kind: String,
    pub count: u64,
}

impl NodeJson {
    /// The document for `view` in an answer at `now`.
    #[must_use]
    pub fn of(view: &NodeView, now: Now) -> NodeJson {
        let ages = ReadingAges(now.monotonic);
        let (host, rates) = (&view.host, &view.host_rates);
        let network = |pick: fn(&NetworkSample) -> u64| ages.with(&host.network, pick);
        NodeJson {
            view: ViewHeadJson::of(view, now),
            gpu_source: GpuSourceJson::of(&view.gpu_source),
            gpu_events_hang: view.gpu_events_hang,
            gpus: view.gpus.len(),
            gpus_unidentified: view.gpus_unidentified.iter().map(|gpu| UnidentifiedGpuJson::of(gpu, ages)).collect(),
            gpus_missing: view.gpus_missing.iter().map(MissingGpuJson::of).collect(),
            pods: view.pods.len(),
            kernel: view.facts.kernel.to_string(),
            cgroups: ages.of(&view.facts.cgroups),
            private_cgroup_namespace: ages.of(&view.facts.private_cgroup_namespace),
            processors: ages.of(&host.processors),
            load: ages.of(&host.load),
            cpu_cores: ages.of(&rates.cpu),
            cpu_user_seconds: ages.of(&host.cpu_user),
            cpu_system_seconds: ages.of(&host.cpu_system),
            cpu_idle_seconds: ages.of(&host.cpu_idle),
            cpu_iowait_seconds: ages.of(&host.cpu_iowait),
            cpu_steal_seconds: ages.of(&host.cpu_steal),
            memory_total_bytes: ages.of(&host.memory_total),
            memory_available_bytes: ages.of(&host.memory_available),
            memory_working_set_bytes: ages.of(&host.memory_working_set),
            memory_rss_bytes: ages.of(&host.memory_rss),
            memory_cache_bytes: ages.of(&host.memory_cache),
            swap_used_bytes: ages.of(&host.swap_used),
            oom_kills: ages.of(&host.oom_kills),
            disk_read_bytes: ages.of(&host.disk_read),
            disk_write_bytes: ages.of(&host.disk_write),
            disk_reads: ages.of(&host.disk_reads),
            disk_writes: ages.of(&host.disk_writes),
            disk_read_bytes_per_second: ages.of(&rates.disk_read),
            disk_write_bytes_per_second: ages.of(&rates.disk_write),
            net_rx_bytes: network(|network| network.rx_bytes.0),
            net_tx_bytes: network(|network| network.tx_bytes.0),
            net_rx_bytes_per_second: ages.of(&rates.net_rx),
            net_tx_bytes_per_second: ages.of(&rates.net_tx),
            net_rx_packets: network(|network| network.rx_packets.0),
            net_tx_packets: network(|network| network.tx_packets.0),
            net_rx_errors: network(|network| network.rx_errors.0),
            net_tx_errors: network(|network| network.tx_errors.0),
            net_rx_dropped: network(|network| network.rx_dropped.0),
            net_tx_dropped: network(|network| network.tx_dropped.0),
            tasks: ages.of(&host.tasks),
            processes: ages.of(&host.processes),
            pressure: ages.with(&host.pressure, HostPressureJson::of),
            processes_left_out: view.processes_left_out,
            cgroups_left_out: view.cgroups_left_out,
            pass_seconds: std::time::Duration::from_micros(view.pass_us).as_secs_f64(),
            deadlines_missed: view.deadlines_missed,
            troubles: view.troubles.iter().map(|&(kind, count)| ErrorCountJson::of(kind, count)).collect(),
            pod_watch: view.pod_watch.as_ref().map(|watch| PodWatchJson::of(watch, now)),
            plugin: view.plugin.as_deref().map(PluginJson::of),
        }
    }
}

impl HostPressureJson {
    fn of(pressure: &HostPressure) -> HostPressureJson {
        HostPressureJson {
            cpu_waiting_seconds: pressure.cpu_waiting.as_seconds(),
            memory_waiting_seconds: pressure.memory_waiting.as_seconds(),
            memory_stalled_seconds: pressure.memory_stalled.as_seconds(),
            io_waiting_seconds: pressure.io_waiting.as_seconds(),
            io_stalled_seconds: pressure.io_stalled.as_seconds(),
        }
    }
}

impl PodWatchJson {
    fn of(view: &PodWatchView, now: Now) -> PodWatchJson {
        let state = match (&view.watch.broken, view.watch.last_received) {
            (Some(_), _) => "broken",
            (None, Some(_)) => "following",
            (None, None) => "waiting",
        };
        PodWatchJson {
            state: state.to_owned(),
            age_seconds: view.watch.last_received.map(|heard| now.monotonic.since(heard).as_secs_f64()),
            reason: view.watch.broken.as_ref().map(ToString::to_string),
            pods: view.pods,
            left_out: view.left_out,
            unreadable: view.unreadable,
        }
    }
}

impl PluginJson {
    fn of(view: &PluginView) -> PluginJson {
        let (method, waiting_for) = match &view.registration {
            RegistrationState::Registered => (Some(RegistrationState::WAY.to_owned()), None),
            RegistrationState::Waiting(what) | RegistrationState::Undecided(what) => (None, Some(what.to_string())),
            RegistrationState::Follows => (None, Some(RegistrationState::FOLLOWS.to_owned())),
        };
        PluginJson {
            resource: view.resource.to_string(),
            registered: method.is_some(),
            way: method,
            waiting_for,
            slots: view.slots.iter().map(DeviceSlotsJson::of).collect(),
            not_offered: view.withheld.iter().map(WithheldDeviceJson::of).collect(),
            pod_files: view.files.iter().map(PodFilesJson::of).collect(),
        }
    }
}

impl PodFilesJson {
    fn of(files: &PodFiles) -> PodFilesJson {
        let PodFiles { uid, pod, bytes, files, over } = files.clone();
        let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
        PodFilesJson { uid: uid.to_string(), namespace, name, bytes: bytes.0, files, over }
    }
}

impl DeviceSlotsJson {
    fn of(slots: &DeviceSlots) -> DeviceSlotsJson {
        let DeviceSlots { device, free, used, unhealthy, used_unhealthy, claims, healthy, cordoned, taken } =
            slots.clone();
        let uuid = device.to_string();
        DeviceSlotsJson { uuid, free, used, unhealthy, used_unhealthy, claims, healthy, cordoned, taken }
    }
}

impl GpuSourceJson {
    fn of(state: &GpuSourceState) -> GpuSourceJson {
        let named = |word: &str| GpuSourceJson { state: word.to_owned(), ..GpuSourceJson::default() };
        match state {
            GpuSourceState::SwitchedOff => named("switched_off"),
            GpuSourceState::Starting => named("starting"),
            GpuSourceState::Hanging => named("hanging"),
            GpuSourceState::Released { .. } => {
                GpuSourceJson { reason: Some(Absence::Released.to_string()), ..named("released") }
            }
            GpuSourceState::Working { driver, nvml, cuda, simulated: _ } => GpuSourceJson {
                driver: Some(driver.to_string()),
                nvml: Some(nvml.to_string()),
                cuda: cuda.as_ref().map(ToString::to_string),
                ..named("working")
            },
            GpuSourceState::Missing { why, advice } => {
                GpuSourceJson { reason: Some(why.to_string()), advice: Some(advice.to_string()), ..named("missing") }
            }
        }
    }
}

impl ErrorCountJson {
    fn of(kind: ErrorCounter, count: u64) -> ErrorCountJson {
        ErrorCountJson { kind: error_counter_word(kind).to_owned(), count }
    }
}

/// The stable name of an error counter, in JSON and as a label value.
#[must_use]
pub fn error_counter_word(kind: ErrorCounter) -> &'static str {
    match kind {
        ErrorCounter::ProcUnreadable => "proc_unreadable",
        ErrorCounter::CgroupUnreadable => "cgroup_unreadable",
        ErrorCounter::CriFailed => "cri_failed",
        ErrorCounter::PodResourcesFailed => "pod_resources_failed",
        ErrorCounter::PodWatchFailed => "pod_watch_failed",
        ErrorCounter::PodUnreadable => "pod_unreadable",
        ErrorCounter::NvmlFailed => "nvml_failed",
        ErrorCounter::KernelLogFailed => "kernel_log_failed",
        ErrorCounter::QueueFull => "queue_full",
        ErrorCounter::HoldersDisagree => "holders_disagree",
        ErrorCounter::CheckpointUnreadable => "checkpoint_unreadable",
        ErrorCounter::EditsNotApplied => "edits_not_applied",
        ErrorCounter::NotRemoved => "not_removed",
        ErrorCounter::NotCounted => "not_counted",
        ErrorCounter::ProfileWriteDelayed => "profile_write_delayed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::NodeName;

    #[test]
    fn an_empty_node_has_reasons_and_survives_a_round_trip() {
        let now = Now { monotonic: model::time::Monotonic(5_000_000_000), wall: model::time::WallTime(9_000_000) };
        let view = NodeView::empty(NodeName::parse("n1").unwrap(), Now::default());
        let json = NodeJson::of(&view, now);
        assert_eq!(json.gpu_source.state, "starting");
        assert!((json.view.age_seconds - 5.0).abs() < 1e-9 && (json.view.time_seconds - 4.0).abs() < 1e-9);
        assert_eq!(json.memory_total_bytes.reason(), Some("not measured yet"));
        let text = serde_json::to_string(&json).unwrap();
        assert_eq!(serde_json::from_str::<NodeJson>(&text).unwrap(), json);
    }

    #[test]
    fn each_state_of_the_pod_watch_is_shown() {
        let now = Now { monotonic: model::time::Monotonic(5_000_000_000), ..Now::default() };
        let last_received = Some(model::time::Monotonic(2_000_000_000));
        for (last_received, broken, state, age) in [
            (None, None, "waiting", None),
            (last_received, None, "following", Some(3.0)),
            (last_received, Some("away"), "broken", Some(3.0)),
            (None, Some("away"), "broken", None),
        ] {
            let watch = model::pod::PodWatchState { last_received, broken: broken.map(Into::into) };
            let json = PodWatchJson::of(&PodWatchView { watch, pods: 2, ..PodWatchView::default() }, now);
            assert_eq!((json.state.as_str(), json.age_seconds, json.reason.as_deref()), (state, age, broken));
        }
    }
}
