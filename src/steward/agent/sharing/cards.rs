//! From GPUs as NVML tells them to devices that are shared, by the configuration.

use decide::share::Card;
use effects::delivery::{Kit, Node};
use model::gpu::Gpu;
use model::id::GpuUuid;
use model::unit::Bytes;
use model::view::{GpuView, NodeView};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use wire::device_config::{CorePolicy, DeviceConfig};
use wire::register;

/// The devices of a view: every GPU, or its MIG instances where MIG is on.
pub(crate) fn of(view: &NodeView, config: &DeviceConfig, counts: &[(String, u32)]) -> Vec<Card> {
    view.gpus.iter().filter(|gpu| !filtered(&gpu.gpu, config)).flat_map(|gpu| cards(gpu, config, counts)).collect()
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

fn cards(view: &GpuView, config: &DeviceConfig, counts: &[(String, u32)]) -> Vec<Card> {
    let gpu = &view.gpu;
    let model = gpu.model.to_lowercase();
    let own = counts.iter().find(|(name, _)| model.contains(&name.to_lowercase())).map(|(_, count)| *count);
    let card = |device: &GpuUuid, memory: Bytes| Card {
        device: device.clone(),
        index: gpu.index,
        model: register::product(&gpu.model).into(),
        slots: u16::try_from(own.unwrap_or(config.slots)).unwrap_or(u16::MAX).min(model::share::MAX_SLOTS_PER_DEVICE),
        memory,
        cores: config.offered_cores().0,
        numa: gpu.numa_node.get(),
        healthy: view.condition.fit(),
    };
    if gpu.mig_mode.get() == Some(true) {
        // A MIG instance is a partition: its memory is what it is, no scaling makes it more.
        let instance = |mig: &model::gpu::MigInstance| Some(card(&mig.uuid, mig.memory_total.get()?));
        return gpu.instances().iter().filter_map(instance).collect();
    }
    // Whether a card is divided must be known before it is offered whole.
    if gpu.mig.value().is_none() {
        return Vec::new();
    }
    let total = gpu.memory_total.get().or(config.preconfigured_memory.map(|memory| memory.bytes()));
    total.map(|total| card(&gpu.uuid, config.offered_memory(total).bytes())).into_iter().collect()
}

/// HAMi-core's word.
fn policy(config: &DeviceConfig) -> &'static str {
    match config.core_policy {
        _ if config.disable_core_limit => "disable",
        CorePolicy::Default => "default",
        CorePolicy::Force => "force",
        CorePolicy::Disable => "disable",
    }
}

/// Where device nodes lie, and what was made of the last view.
#[derive(Debug)]
pub(crate) struct Devices {
    root: PathBuf,
    runtime_injects: bool,
    last: Option<Vec<(GpuUuid, Option<u32>)>>,
}

/// What every container with a GPU opens beside its own card's node, as far as the host has it.
const SHARED: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// The node that stands in for a made-up card's: a character device that is harmless in every container.
const STAND_IN: &str = "/dev/null";

impl Devices {
    /// Nodes under `root` (`/dev`).
    pub(crate) fn new(root: &Path, runtime_injects: bool) -> Devices {
        Devices { root: root.to_owned(), runtime_injects, last: None }
    }

    /// What containers are given, if it is not what it was.
    pub(super) fn kit(&mut self, view: &NodeView, config: &DeviceConfig) -> Option<Kit> {
        let now: Vec<(GpuUuid, Option<u32>)> =
            view.gpus.iter().map(|gpu| (gpu.gpu.uuid.clone(), gpu.gpu.minor.get())).collect();
        if self.last.as_ref() == Some(&now) {
            return None;
        }
        self.last = Some(now);
        let simulated = view.gpu_source.simulated();
        let node = |name: String| {
            let host = if simulated { STAND_IN.into() } else { self.root.join(&name) };
            Node { path: format!("/dev/{name}"), host }
        };
        let mut kit = Kit {
            runtime_injects: self.runtime_injects,
            oversubscribed: config.memory_scaling.factor() > 1.0,
            log_level: config.log_level.clone(),
            core_policy: policy(config),
            ..Kit::default()
        };
        for gpu in &view.gpus {
            let Some(minor) = gpu.gpu.minor.get() else { continue };
            let nodes = vec![node(format!("nvidia{minor}"))];
            for mig in gpu.gpu.instances() {
                kit.nodes.insert(mig.uuid.clone(), nodes.clone());
            }
            kit.nodes.insert(gpu.gpu.uuid.clone(), nodes);
        }
        let here = |name: &str| simulated || self.root.join(name).exists();
        kit.shared_nodes = SHARED.into_iter().filter(|name| here(name)).map(|name| node(name.to_owned())).collect();
        Some(kit)
    }
}
