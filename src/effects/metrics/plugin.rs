//! The device plugin: how it stands with kubelet, what was asked of it, what became of it.

use super::scene::Scene;
use crate::exposition::{Exposition, Family, Kind, Labels, Number};
use model::plugin::{DeviceSlots, PluginView, PodFiles, Standing};

const REGISTERED: Family = gauge(
    "gpu_steward_plugin_registered",
    "1 while kubelet watches our list of devices, and which way it came to know us.",
);
const REGISTRATIONS: Family =
    counter("gpu_steward_plugin_registrations_total", "How often kubelet came to know the plugin.");
const SLOTS: Family = gauge(
    "gpu_steward_plugin_slots",
    "Slots of a GPU or MIG instance: free, used, unhealthy (free and not to be handed out), used_unhealthy.",
);
const CLAIMS: Family = gauge(
    "gpu_steward_plugin_claims",
    "Pods that were promised something of a GPU or MIG instance and have not ended; healthy says whether it can be trusted.",
);
const CORDONED: Family =
    gauge("gpu_steward_plugin_cordoned", "1 while an operator keeps the GPU or MIG instance from new containers.");
const ALLOCATIONS: Family = counter("gpu_steward_plugin_allocations_total", "Containers that kubelet allocated.");
const STARTS: Family = counter(
    "gpu_steward_plugin_starts_total",
    "Starts of containers that were answered: filled, refused, late (waited for in vain), failed (could not be written), foreign.",
);
const WAITED: Family =
    counter("gpu_steward_plugin_starts_waited_total", "Starts that had to wait, by what they waited for.");
const DIFFERING: Family = counter(
    "gpu_steward_plugin_ids_differing_total",
    "Containers for which kubelet counts other devices than those of the claim, which holds.",
);
const WITHOUT_GPU: Family = gauge(
    "gpu_steward_plugin_pods_without_gpu",
    "Pods that run and hold a GPU or MIG instance that this node does not list.",
);
const MOVED: Family = counter(
    "gpu_steward_plugin_claims_moved_total",
    "Containers that got other devices than their claim named, with the same numbers: exchanged with another claim, or alone.",
);
const FILES_BYTES: Family = Family {
    unit: "bytes",
    ..gauge(
        "gpu_steward_plugin_pod_files_bytes",
        "Room on the node's disk that a pod takes by what it wrote into the folders that the limiter needs writable.",
    )
};
const FILES: Family = gauge(
    "gpu_steward_plugin_pod_files",
    "Files and folders that a pod wrote into the folders that the limiter needs writable; over says whether that is too much.",
);
const GUARD: Family = gauge(
    "gpu_steward_guard",
    "1 for what was found of a policy of the chart: in_force, open (it lets through what must not be written), hinders (it refuses what this agent has to write).",
);
const ALLOCATE: Family =
    histogram("gpu_steward_plugin_allocate_seconds", "Allocate, from kubelet's request to our answer.");
const START: Family =
    histogram("gpu_steward_plugin_start_seconds", "PreStartContainer, from kubelet's request to our answer.");

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, unit: "", help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, unit: "", help }
}

const fn histogram(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Histogram, unit: "seconds", help }
}

/// Writes all of it; nothing where GPUs are not shared.
pub fn write(scene: &Scene<'_>, out: &mut Exposition<'_>) {
    let plugin = scene.view.plugin.as_deref();
    out.family(&REGISTERED);
    if let Some(plugin) = plugin {
        let way = match plugin.standing {
            Standing::Registered(way) => way,
            Standing::Waiting(_) | Standing::Follows | Standing::Undecided(_) => "",
        };
        let labels = Labels::new().with("resource", &plugin.resource).with("way", way);
        out.sample(&[labels.as_str()], Number::Whole(u64::from(!way.is_empty())));
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
    let devices: Vec<(Labels, &DeviceSlots)> = plugin
        .into_iter()
        .flat_map(|plugin| plugin.slots.iter())
        .map(|slots| (Labels::new().with("uuid", slots.device.as_str()), slots))
        .collect();
    out.family(&SLOTS);
    for (labels, slots) in &devices {
        for (state, count) in [
            ("state=\"free\"", slots.free),
            ("state=\"used\"", slots.used),
            ("state=\"unhealthy\"", slots.unhealthy),
            ("state=\"used_unhealthy\"", slots.used_unhealthy),
        ] {
            out.sample(&[labels.as_str(), state], Number::Whole(u64::from(count)));
        }
    }
    out.family(&CLAIMS);
    for (labels, slots) in &devices {
        let health = if slots.healthy { "healthy=\"true\"" } else { "healthy=\"false\"" };
        out.sample(&[labels.as_str(), health], Number::Whole(u64::from(slots.claims)));
    }
    out.family(&CORDONED);
    for (labels, slots) in &devices {
        out.sample(&[labels.as_str()], Number::Whole(u64::from(slots.cordoned)));
    }
}

fn files(plugin: Option<&PluginView>, out: &mut Exposition<'_>) {
    let labels = |files: &PodFiles| {
        let labels = Labels::new().with("namespace", &files.pod.namespace).with("pod", &files.pod.name);
        labels.with("pod_uid", files.uid.as_str())
    };
    let files: Vec<(Labels, &PodFiles)> =
        plugin.into_iter().flat_map(|plugin| plugin.files.iter()).map(|files| (labels(files), files)).collect();
    out.family(&FILES_BYTES);
    for (labels, files) in &files {
        out.sample(&[labels.as_str()], Number::Whole(files.bytes.0));
    }
    out.family(&FILES);
    for (labels, files) in &files {
        let over = if files.over { "over=\"true\"" } else { "over=\"false\"" };
        out.sample(&[labels.as_str(), over], Number::Whole(files.files));
    }
}

fn counts(plugin: Option<&PluginView>, out: &mut Exposition<'_>) {
    let whole = |pick: fn(&PluginView) -> u64| plugin.map(|plugin| Number::Whole(pick(plugin)));
    for (family, count) in [
        (&REGISTRATIONS, whole(|plugin| plugin.registrations)),
        (&ALLOCATIONS, whole(|plugin| plugin.allocations)),
        (&DIFFERING, whole(|plugin| plugin.differing)),
        (&WITHOUT_GPU, whole(|plugin| plugin.without_gpu.into())),
    ] {
        out.family(family);
        if let Some(count) = count {
            out.sample(&[], count);
        }
    }
    out.family(&GUARD);
    for (policy, guard) in plugin.into_iter().flat_map(|plugin| &plugin.guards) {
        let labels = Labels::new().with("policy", policy.code()).with("state", guard.code());
        out.sample(&[labels.as_str()], Number::Whole(1));
    }
    out.family(&MOVED);
    if let Some(plugin) = plugin {
        out.sample(&["how=\"exchanged\""], Number::Whole(plugin.moves.exchanged));
        out.sample(&["how=\"alone\""], Number::Whole(plugin.moves.alone));
    }
    out.family(&STARTS);
    for (how, count) in plugin.into_iter().flat_map(|plugin| &plugin.starts) {
        let labels = Labels::new().with("outcome", how.code()).with("reason", how.reason());
        out.sample(&[labels.as_str()], Number::Whole(*count));
    }
    out.family(&WAITED);
    for (what, count) in plugin.into_iter().flat_map(|plugin| &plugin.waited) {
        out.sample(&[Labels::new().with("what", what).as_str()], Number::Whole(*count));
    }
}
