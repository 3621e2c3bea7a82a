//! Metrics of the device plugin: its registration with the kubelet, its slots and claims, calls and container starts.

use super::input::MetricsInput;
use model::plugin::{CdiState, DeviceSlots, PluginView, PodFiles, RegistrationState};
use model::sample_value::SampleValue;
use serve::exposition::{Exposition, MetricFamily, MetricLabels};

const REGISTERED: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_registered",
    "1 while the kubelet watches the plugin's list of devices; way says how the plugin was registered.",
);
const CDI: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_cdi",
    "1 while containers get their GPUs by CDI; 0 while the kubelet or the container runtime does not support it, so that no GPU is offered.",
);
const REGISTRATIONS: MetricFamily = MetricFamily::counter(
    "gpu_steward_plugin_registrations_total",
    "How often the plugin was registered with the kubelet.",
);
const SLOTS: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_slots",
    "Slots of a GPU or MIG instance: free, used, unhealthy (not used, and not for new containers), used_unhealthy.",
);
const CLAIMS: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_claims",
    "Pods that claim a part of a GPU or MIG instance and have not ended; healthy says whether the device is fit for new containers.",
);
const CORDONED: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_cordoned",
    "1 while the GPU or MIG instance is cordoned, so that it gets no new containers.",
);
const TAKEN: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_taken",
    "1 while another owner holds the GPU or MIG instance, so that it gets no new containers: a pod got it from another device plugin, or has a claim that cannot be mapped to a device.",
);
const ALLOCATIONS: MetricFamily =
    MetricFamily::counter("gpu_steward_plugin_allocations_total", "Containers for which the kubelet called Allocate.");
const STARTS: MetricFamily = MetricFamily::counter(
    "gpu_steward_plugin_starts_total",
    "Container starts that were answered: filled, refused, late (a wait took too long), failed (files could not be written), foreign (slots of an earlier plugin).",
);
const WAITED: MetricFamily = MetricFamily::counter(
    "gpu_steward_plugin_starts_waited_total",
    "Container starts that had to wait, by what they waited for.",
);
const DIFFERING: MetricFamily = MetricFamily::counter(
    "gpu_steward_plugin_ids_differing_total",
    "Containers for which the kubelet's devices differ from the devices of the claim; the claim applies.",
);
const WITHOUT_GPU: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_pods_without_gpu",
    "Running pods that hold a GPU or MIG instance that this node does not list.",
);
const NOT_OFFERED: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_not_offered",
    "1 for each GPU or MIG instance that the driver lists and the agent does not offer to pods, by reason: no_device_node, no_memory_size, mig_unknown, no_mig_instance, unidentified.",
);
const MOVED: MetricFamily = MetricFamily::counter(
    "gpu_steward_plugin_claims_moved_total",
    "Containers whose claim moved to the devices that the kubelet chose, with the same memory and SM time.",
);
const FILES_BYTES: MetricFamily = MetricFamily {
    unit: "bytes",
    ..MetricFamily::gauge(
        "gpu_steward_plugin_pod_files_bytes",
        "Disk space of the files that a pod wrote to the limiter's writable folders.",
    )
};
const FILES: MetricFamily = MetricFamily::gauge(
    "gpu_steward_plugin_pod_files",
    "Files and folders that a pod wrote to the limiter's writable folders; over says whether the pod exceeds the limit.",
);
const GUARD: MetricFamily = MetricFamily::gauge(
    "gpu_steward_guard",
    "1 for the state of an admission policy of the chart: in_force, open (does not refuse a forbidden write), hinders (also refuses a write that this agent must make).",
);
const ALLOCATE: MetricFamily = MetricFamily::histogram(
    "gpu_steward_plugin_allocate_seconds",
    "Duration of Allocate, from the kubelet's request to the agent's answer.",
);
const START: MetricFamily = MetricFamily::histogram(
    "gpu_steward_plugin_start_seconds",
    "Duration of PreStartContainer, from the kubelet's request to the agent's answer.",
);

/// Writes the metrics of the device plugin; no series if GPUs are not shared.
pub fn write(input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    let plugin = input.view.plugin.as_deref();
    out.family(&REGISTERED);
    if let Some(plugin) = plugin {
        let method = match plugin.registration {
            RegistrationState::Registered => RegistrationState::WAY,
            RegistrationState::Waiting(_) | RegistrationState::Follows | RegistrationState::Undecided(_) => "",
        };
        let labels = MetricLabels::new().with("resource", &plugin.resource).with("way", method);
        out.sample(&[labels.as_str()], SampleValue::Whole(u64::from(!method.is_empty())));
    }
    out.family(&CDI);
    match plugin.map(|plugin| &plugin.cdi) {
        Some(CdiState::Works) => out.sample(&[], SampleValue::Whole(1)),
        Some(CdiState::Missing { .. }) => out.sample(&[], SampleValue::Whole(0)),
        Some(CdiState::Unknown) | None => {}
    }
    devices(plugin, out);
    counts(plugin, out);
    files(plugin, out);
    for (family, calls) in
        [(&ALLOCATE, plugin.map(|plugin| &plugin.allocate)), (&START, plugin.map(|plugin| &plugin.start))]
    {
        out.family(family);
        if let Some(calls) = calls {
            out.histogram(&[], calls);
        }
    }
}

fn devices(plugin: Option<&PluginView>, out: &mut Exposition<'_>) {
    let devices: Vec<(MetricLabels, &DeviceSlots)> = plugin
        .into_iter()
        .flat_map(|plugin| plugin.slots.iter())
        .map(|slots| (MetricLabels::new().with("uuid", slots.device.as_str()), slots))
        .collect();
    out.family(&SLOTS);
    for (labels, slots) in &devices {
        for (state, count) in [
            ("state=\"free\"", slots.free),
            ("state=\"used\"", slots.used),
            ("state=\"unhealthy\"", slots.unhealthy),
            ("state=\"used_unhealthy\"", slots.used_unhealthy),
        ] {
            out.sample(&[labels.as_str(), state], SampleValue::Whole(u64::from(count)));
        }
    }
    out.family(&CLAIMS);
    for (labels, slots) in &devices {
        let health = if slots.healthy { "healthy=\"true\"" } else { "healthy=\"false\"" };
        out.sample(&[labels.as_str(), health], SampleValue::Whole(u64::from(slots.claims)));
    }
    out.family(&NOT_OFFERED);
    for device in plugin.into_iter().flat_map(|plugin| plugin.withheld.iter()) {
        let labels = MetricLabels::new()
            .with("gpu", &device.index.to_string())
            .with("uuid", device.device.as_ref().map_or("", |uuid| uuid.as_str()))
            .with("reason", device.why.code());
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
    out.family(&CORDONED);
    for (labels, slots) in &devices {
        out.sample(&[labels.as_str()], SampleValue::Whole(u64::from(slots.cordoned)));
    }
    out.family(&TAKEN);
    for (labels, slots) in &devices {
        out.sample(&[labels.as_str()], SampleValue::Whole(u64::from(slots.taken)));
    }
}

fn files(plugin: Option<&PluginView>, out: &mut Exposition<'_>) {
    let labels = |files: &PodFiles| {
        let labels = MetricLabels::new().with("namespace", &files.pod.namespace).with("pod", &files.pod.name);
        labels.with("pod_uid", files.uid.as_str())
    };
    let files: Vec<(MetricLabels, &PodFiles)> =
        plugin.into_iter().flat_map(|plugin| plugin.files.iter()).map(|files| (labels(files), files)).collect();
    out.family(&FILES_BYTES);
    for (labels, files) in &files {
        out.sample(&[labels.as_str()], SampleValue::Whole(files.bytes.0));
    }
    out.family(&FILES);
    for (labels, files) in &files {
        let over = if files.over { "over=\"true\"" } else { "over=\"false\"" };
        out.sample(&[labels.as_str(), over], SampleValue::Whole(files.files));
    }
}

fn counts(plugin: Option<&PluginView>, out: &mut Exposition<'_>) {
    let whole = |pick: fn(&PluginView) -> u64| plugin.map(|plugin| SampleValue::Whole(pick(plugin)));
    for (family, count) in [
        (&REGISTRATIONS, whole(|plugin| plugin.registrations)),
        (&ALLOCATIONS, whole(|plugin| plugin.allocations)),
        (&DIFFERING, whole(|plugin| plugin.differing)),
        (&WITHOUT_GPU, whole(|plugin| plugin.without_gpu.into())),
        (&MOVED, whole(|plugin| plugin.moved)),
    ] {
        out.family(family);
        if let Some(count) = count {
            out.sample(&[], count);
        }
    }
    out.family(&GUARD);
    for (policy, guard) in plugin.into_iter().flat_map(|plugin| &plugin.guards) {
        let labels = MetricLabels::new().with("policy", policy.code()).with("state", guard.code());
        out.sample(&[labels.as_str()], SampleValue::Whole(1));
    }
    out.family(&STARTS);
    for (how, count) in plugin.into_iter().flat_map(|plugin| &plugin.starts) {
        let labels = MetricLabels::new().with("outcome", how.code()).with("reason", how.reason());
        out.sample(&[labels.as_str()], SampleValue::Whole(*count));
    }
    out.family(&WAITED);
    for (what, count) in plugin.into_iter().flat_map(|plugin| &plugin.waited) {
        out.sample(&[MetricLabels::new().with("what", what).as_str()], SampleValue::Whole(*count));
    }
}
