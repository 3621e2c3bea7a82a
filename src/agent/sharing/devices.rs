//! Makes the shared devices that the kubelet is offered, and the [`NodeEdits`] with the device nodes and CDI edits that
//! containers get. Both come from the GPUs of the node view and the device configuration.

use super::host::HostFindings;
use decide::allocator::SharedDevice;
use decide::cdi as cdi_support;
use effects::delivery::{HostDeviceNode, NodeEdits};
use model::gpu::{Gpu, MigInstance};
use model::id::GpuUuid;
use model::nvidia::{DEVICE_NODE_NAME, SHARED_NODE_NAMES};
use model::unit::Bytes;
use model::view::{GpuView, NodeView};
use model::withheld::{WithheldDevice, WithheldReason};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::cdi::CdiVersion;
use wire::device_config::{CorePolicy, DeviceConfig};
use wire::{cdi, register};

/// The shared devices of a view: every GPU, or its MIG instances if MIG is on.
pub(crate) fn of(view: &NodeView, config: &DeviceConfig, counts: &[(String, u32)]) -> Vec<SharedDevice> {
    view.gpus
        .iter()
        .filter(|gpu| !filtered(&gpu.gpu, config))
        .flat_map(|gpu| shared_devices(gpu, config, counts))
        .collect()
}

/// The GPUs that have no MIG instances, as the driver reports, including GPUs that are not offered.
pub(super) fn whole(view: &NodeView) -> BTreeSet<GpuUuid> {
    let whole = |gpu: &&GpuView| gpu.gpu.mig.value().is_some_and(Vec::is_empty);
    view.gpus.iter().filter(whole).map(|gpu| gpu.gpu.uuid.clone()).collect()
}

/// The devices that an operator keeps from new containers: a GPU with all its MIG instances, or one instance.
pub(super) fn cordoned(view: &NodeView, named: &BTreeSet<GpuUuid>) -> BTreeSet<GpuUuid> {
    let whole = view.gpus.iter().filter(|gpu| named.contains(&gpu.gpu.uuid));
    let inside = whole.flat_map(|gpu| gpu.gpu.instances().iter().map(|instance| instance.uuid.clone()));
    named.iter().cloned().chain(inside).collect()
}

fn filtered(gpu: &Gpu, config: &DeviceConfig) -> bool {
    config.hidden_uuids.contains(&gpu.uuid) || config.hidden_indexes.contains(&gpu.index)
}

/// Whether pods are offered this GPU or one of its MIG instances.
pub(crate) fn offers(gpu: &Gpu, config: &DeviceConfig) -> bool {
    !filtered(gpu, config) && gpu.is_offered(configured_memory(config))
}

/// The devices that the driver lists and the agent does not offer, except GPUs that the configuration hides.
pub(super) fn withheld(view: &NodeView, config: &DeviceConfig) -> Vec<WithheldDevice> {
    let listed = view.gpus.iter().map(|gpu| &*gpu.gpu).filter(|gpu| !filtered(gpu, config));
    let of_gpu = |gpu: &Gpu| -> Vec<WithheldDevice> {
        let one = |device: &GpuUuid, why| WithheldDevice { index: gpu.index, device: Some(device.clone()), why };
        match gpu.withheld(configured_memory(config)) {
            Some(why) => vec![one(&gpu.uuid, why)],
            None => {
                let unread = gpu.instances().iter().filter_map(|mig| Some((&mig.uuid, mig.memory_total.absence()?)));
                unread.map(|(mig, why)| one(mig, WithheldReason::NoMemorySize(why))).collect()
            }
        }
    };
    let unidentified = view.gpus_unidentified.iter().map(|gpu| WithheldDevice {
        index: gpu.index,
        device: None,
        why: WithheldReason::Unidentified(gpu.why),
    });
    let mut all: Vec<WithheldDevice> = listed.flat_map(of_gpu).chain(unidentified).collect();
    all.sort_by_key(|device| device.index);
    all
}

/// The memory that the device configuration states for GPUs whose driver reports no memory.
fn configured_memory(config: &DeviceConfig) -> Option<Bytes> {
    config.preconfigured_memory.map(|memory| memory.bytes())
}

fn shared_devices(view: &GpuView, config: &DeviceConfig, counts: &[(String, u32)]) -> Vec<SharedDevice> {
    let gpu = &view.gpu;
    if gpu.withheld(configured_memory(config)).is_some() {
        return Vec::new();
    }
    let model = gpu.model.to_lowercase();
    let own = counts.iter().find(|(name, _)| model.contains(&name.to_lowercase())).map(|(_, count)| *count);
    let offer = |device: &GpuUuid, memory: Bytes| SharedDevice {
        device: device.clone(),
        parent: (*device != gpu.uuid).then(|| gpu.uuid.clone()),
        index: gpu.index,
        minor: gpu.minor.get(),
        model: register::product(&gpu.model).into(),
        slots: u16::try_from(own.unwrap_or(config.slots)).unwrap_or(u16::MAX).min(model::slot::MAX_SLOTS_PER_DEVICE),
        memory,
        cores: config.offered_cores().0,
        numa: gpu.numa_node.get(),
        healthy: view.condition.fit(),
    };
    if gpu.mig_mode.get() == Some(true) {
        let instance = |mig: &MigInstance| Some(offer(&mig.uuid, memory_of(mig, gpu.instances())?));
        return gpu.instances().iter().filter_map(instance).collect();
    }
    let total = gpu.memory_to_offer(configured_memory(config));
    total.map(|total| offer(&gpu.uuid, config.offered_memory(total).bytes())).into_iter().collect()
}

/// How much memory of a MIG instance claims may use. A MIG instance is a partition, so memory scaling does not apply. The
/// compute instances of one GPU instance share its memory, and the driver does not divide it, so each offers an equal part.
fn memory_of(instance: &MigInstance, all: &[MigInstance]) -> Option<Bytes> {
    let together = all.iter().filter(|other| other.gpu_instance == instance.gpu_instance).count() as u64;
    Some(Bytes(instance.memory_total.get()?.0 / together.max(1)))
}

/// HAMi-core's name of the core policy.
fn policy(config: &DeviceConfig) -> &'static str {
    match config.core_policy {
        _ if config.disable_core_limit => "disable",
        CorePolicy::Default => "default",
        CorePolicy::Force => "force",
        CorePolicy::Disable => "disable",
    }
}

/// The folder of the device nodes, and the inputs of the last [`NodeEdits`].
#[derive(Debug)]
pub(crate) struct SharedDevices {
    /// The folder as the container runtime sees it.
    root: PathBuf,
    /// The folder as this program sees it.
    here: PathBuf,
    last: Option<NodeEditsInputs>,
}

/// The edits that containers get, and whether the container runtime reads them.
#[derive(Debug)]
pub(crate) struct ReadableEdits {
    pub(super) edits: NodeEdits,
    /// Why the runtime would refuse the edits.
    pub(super) unreadable: Option<Arc<str>>,
}

/// The inputs of a [`NodeEdits`].
#[derive(Debug)]
struct NodeEditsInputs {
    devices: Vec<Device>,
    /// The names in [`SHARED_NODE_NAMES`] that the host has.
    shared: Vec<&'static str>,
    host: HostFindings,
    /// The container runtime that reads the specs.
    runtime: Option<Arc<str>>,
}

/// A GPU or MIG instance, with the names by which a CDI spec may list it.
#[derive(Clone, Debug, PartialEq)]
struct Device {
    uuid: GpuUuid,
    minor: u32,
    names: Vec<String>,
}

/// The device node that containers get in place of a simulated GPU's: a harmless character device.
const STAND_IN: &str = "/dev/null";

impl SharedDevices {
    /// Device nodes are under `root` (`/dev`), which is mounted at `here` for this program.
    pub(super) fn new(root: &Path, here: &Path) -> SharedDevices {
        SharedDevices { root: root.to_owned(), here: here.to_owned(), last: None }
    }

    /// The edits that containers get; `None` if they have not changed.
    pub(super) fn node_edits(
        &mut self,
        view: &NodeView,
        config: &DeviceConfig,
        (host, runtime): (&HostFindings, Option<Arc<str>>),
    ) -> Option<ReadableEdits> {
        let simulated = view.gpu_source.simulated();
        let exists = |name: &&str| simulated || self.here.join(name).exists();
        let now = NodeEditsInputs {
            devices: view.gpus.iter().flat_map(|gpu| devices(&gpu.gpu)).collect(),
            shared: SHARED_NODE_NAMES.into_iter().filter(exists).collect(),
            host: host.clone(),
            runtime: cdi_support::spec_reader(runtime.as_ref(), host.runtime.as_ref()).cloned(),
        };
        let same = |last: &NodeEditsInputs| {
            last.devices == now.devices
                && last.shared == now.shared
                && last.host.is_same(&now.host)
                && last.runtime == now.runtime
        };
        if self.last.as_ref().is_some_and(same) {
            return None;
        }
        let node = |name: &str| {
            let host = if simulated { STAND_IN.into() } else { self.root.join(name) };
            HostDeviceNode { path: format!("/dev/{name}"), host }
        };
        let mut node_edits = NodeEdits {
            runtime_injects: host.runtime_injects,
            oversubscribed: config.memory_scaling.factor() > 1.0,
            log_level: config.log_level.clone(),
            core_policy: policy(config),
            limiter: host.limiter.clone(),
            shared_nodes: now.shared.iter().map(|name| node(name)).collect(),
            ..NodeEdits::default()
        };
        for device in &now.devices {
            node_edits.nodes.insert(device.uuid.clone(), vec![node(&format!("{DEVICE_NODE_NAME}{}", device.minor))]);
        }
        // Simulated GPUs have no driver, so the host's spec has nothing for them.
        if let Some(toolkit) = host.spec.as_ref().filter(|_| !simulated) {
            node_edits.common.clone_from(&toolkit.spec.container_edits);
            node_edits.carried = toolkit.spec.cdi_version;
            for device in &now.devices {
                match cdi::host::for_device(&toolkit.spec, &device.names, device.minor) {
                    Ok(Some(edits)) => {
                        node_edits.own.insert(device.uuid.clone(), edits);
                    }
                    Ok(None) => tracing::debug!(uuid = %device.uuid, "the host's CDI spec does not list this device"),
                    Err(why) => tracing::warn!(
                        uuid = %device.uuid, file = %toolkit.path.display(), why,
                        "the host's CDI spec does not match this GPU: containers get only what the spec gives to all"
                    ),
                }
            }
        }
        let unreadable = now.runtime.as_deref().and_then(|runtime| fit(&mut node_edits, runtime));
        self.last = Some(now);
        Some(ReadableEdits { edits: node_edits, unreadable })
    }
}

/// Removes the edits that this runtime does not read and that a container can do without, and logs a warning. If the runtime
/// would refuse the remaining edits too, returns the reason.
fn fit(edits: &mut NodeEdits, runtime: &str) -> Option<Arc<str>> {
    let (major, minor) = cdi_support::newest_spec(runtime)?;
    let (newest, carried) = (CdiVersion::new(major, minor), edits.carried);
    edits.newest = Some(newest);
    // NVIDIA's runtime makes the edits of the host's spec itself.
    if edits.runtime_injects {
        return None;
    }
    let parts = std::iter::once(&mut edits.common).chain(edits.own.values_mut());
    let left_out: BTreeSet<&str> = parts.flat_map(|part| part.leave_out(carried, newest)).collect();
    if !left_out.is_empty() {
        tracing::warn!(
            runtime, fields = ?left_out,
            "{runtime} reads CDI up to {newest}, so containers do not get these fields of the host's CDI spec: programs that do \
             not run as root may be unable to open device nodes that only a group may open; upgrade the container runtime"
        );
    }
    let mut parts = std::iter::once(&edits.common).chain(edits.own.values());
    let (field, needs) = parts.find_map(|part| part.unreadable(carried, newest))?;
    let why = format!("{field} of the host's CDI spec needs CDI {needs}, and {runtime} reads CDI up to {newest}");
    tracing::error!(runtime, "no container with a GPU can start: {why}; upgrade the container runtime");
    Some(why.into())
}

/// The GPU and its MIG instances, once the GPU's device node is known.
fn devices(gpu: &Gpu) -> Vec<Device> {
    let Some(minor) = gpu.minor.get() else { return Vec::new() };
    let named = |uuid: &GpuUuid, others: [String; 2]| {
        let [one, other] = others;
        Device { uuid: uuid.clone(), minor, names: vec![uuid.as_str().to_owned(), one, other] }
    };
    let mut devices = vec![named(&gpu.uuid, [gpu.index.to_string(), format!("gpu{}", gpu.index)])];
    for mig in gpu.instances() {
        let place = format!("{}:{}", gpu.index, mig.index);
        devices.push(named(&mig.uuid, [place.clone(), format!("mig{place}")]));
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::reading::Reading;
    use model::time::Monotonic;

    /// nvidia-ctk 1.19.1 writes CDI 0.7 with groups, which containerd before 1.7.20 does not read.
    #[test]
    fn edits_are_fitted_to_the_runtime_or_the_reason_is_given() {
        let spec = |more: &str| {
            let text = format!(
                r#"{{"cdiVersion":"0.7.0","kind":"nvidia.com/gpu","containerEdits":{{"env":["A=b"]{more}}},
                "devices":[{{"name":"0","containerEdits":{{"deviceNodes":[{{"path":"/dev/nvidia0"}}],"additionalGids":[44,110]}}}}]}}"#
            );
            cdi::decode(text.as_bytes()).unwrap()
        };
        let edits = |more: &str| {
            let spec = spec(more);
            let own = (GpuUuid::parse("GPU-1").unwrap(), spec.devices[0].container_edits.clone());
            NodeEdits {
                common: spec.container_edits,
                own: [own].into(),
                carried: spec.cdi_version,
                ..NodeEdits::default()
            }
        };
        for (runtime, newest, gids) in [
            ("containerd://1.7.2", Some(CdiVersion::new(0, 5)), false),
            ("containerd://1.7.27", Some(CdiVersion::new(0, 7)), true),
            ("cri-o://1.28.1", Some(CdiVersion::new(0, 6)), false),
            ("other://1", None, true),
        ] {
            let mut edits = edits("");
            assert_eq!(fit(&mut edits, runtime), None, "{runtime}");
            let own = edits.own.values().next().unwrap();
            assert_eq!((edits.newest, own.other.contains_key("additionalGids")), (newest, gids), "{runtime}");
        }
        let why = fit(&mut edits(r#","netDevices":[]"#), "containerd://1.7.27").unwrap();
        let expect = "netDevices of the host's CDI spec needs CDI 1.1.0, and containerd://1.7.27 reads CDI up to 0.7.0";
        assert_eq!(&*why, expect);
    }

    #[test]
    fn compute_instances_of_one_gpu_instance_share_its_memory() {
        let instance = |number: u32, gpu_instance, memory_total| MigInstance {
            uuid: GpuUuid::parse(&format!("MIG-{number}")).unwrap(),
            index: number,
            gpu_instance,
            compute_instance: number,
            profile: "1c.2g.20gb".into(),
            memory_total,
        };
        let memory = |gib: u64| Reading::Measured(Bytes(gib << 30), Monotonic(1));
        let all = [instance(0, 1, memory(20)), instance(1, 1, memory(20)), instance(2, 2, memory(10))];
        let offered: Vec<Option<Bytes>> = all.iter().map(|one| memory_of(one, &all)).collect();
        assert_eq!(offered, [10, 10, 10].map(|gib| Some(Bytes(gib << 30))));
        let unread = [instance(0, 1, Reading::NOT_YET)];
        assert_eq!(memory_of(&unread[0], &unread), None, "a device with unknown memory is not offered");
    }
}
