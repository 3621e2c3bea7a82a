//! The edits that make a container see its share and nothing else. The runtime applies them last, so that neither the
//! pod's own variables nor the image's stand against them.

use super::limiter::{self, LimiterLibrary};
use model::id::GpuUuid;
use model::limits::ContainerLimits;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wire::cdi::{CdiDeviceNode, CdiEdits, CdiMount, CdiVersion};
use wire::limits;

/// Limits by index that HAMi-core reads: 16 devices, as many as it has room for.
const INDEXES: usize = 16;

/// A device node of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDeviceNode {
    /// Where the container sees it.
    pub path: String,
    /// Where it is.
    pub host: PathBuf,
}

/// What containers of this node are given beside their promise.
#[derive(Clone, Debug)]
pub struct NodeKit {
    /// Nodes of each device.
    pub nodes: BTreeMap<GpuUuid, Vec<HostDeviceNode>>,
    /// What the host's CDI spec says of each device. A path that it names is taken from it and not from `nodes`.
    pub own: BTreeMap<GpuUuid, CdiEdits>,
    /// Nodes that every container with a GPU gets.
    pub shared_nodes: Vec<HostDeviceNode>,
    /// The host's own edits for every container with a GPU (libraries, hooks), inlined from its CDI spec.
    pub common: CdiEdits,
    /// The version of the spec that these came from.
    pub carried: CdiVersion,
    /// The library that limits containers, if there is one.
    pub limiter: Option<LimiterLibrary>,
    /// Whether the runtime injects devices by `NVIDIA_VISIBLE_DEVICES`, so that we give none.
    pub runtime_injects: bool,
    /// Whether more memory is promised than the cards have.
    pub oversubscribed: bool,
    /// HAMi-core's log level, if it is set.
    pub log_level: Option<String>,
    /// What HAMi-core does about SM time: `default` (as far as others wait), `force`, `disable`.
    pub core_policy: &'static str,
}

impl Default for NodeKit {
    fn default() -> NodeKit {
        NodeKit {
            nodes: BTreeMap::new(),
            own: BTreeMap::new(),
            shared_nodes: Vec::new(),
            common: CdiEdits::default(),
            carried: CdiVersion::OLDEST,
            limiter: None,
            runtime_injects: false,
            oversubscribed: false,
            log_level: None,
            core_policy: "default",
        }
    }
}

impl NodeKit {
    /// All edits for one container. `limits_file` is its file on the host.
    #[must_use]
    pub fn edits(&self, promise: &ContainerLimits, limits_file: &Path) -> CdiEdits {
        let mut edits = CdiEdits::default();
        if !self.runtime_injects {
            edits.add(&self.common);
            for own in promise.devices.iter().filter_map(|device| self.own.get(&device.uuid)) {
                edits.add(own);
            }
            let own = promise.devices.iter().filter_map(|device| self.nodes.get(&device.uuid)).flatten();
            // Where the driver lives in a container of its own, only the host's spec knows where its nodes are.
            let nodes: Vec<CdiDeviceNode> = own
                .chain(&self.shared_nodes)
                .filter(|node| edits.device_nodes.iter().all(|there| there.path != node.path))
                .map(|node| CdiDeviceNode {
                    host_path: Some(node.host.display().to_string()),
                    ..CdiDeviceNode::at(&node.path)
                })
                .collect();
            edits.add(&CdiEdits { device_nodes: nodes, ..CdiEdits::default() });
        }
        if let Some((limiter, folder)) = self.limiter_for(promise).zip(limits_file.parent()) {
            edits.add(&limiter.edits(folder, promise.uid.as_str()));
        }
        // Last: what limits must stand against everything else.
        edits.add(&CdiEdits {
            env: self.variables(promise),
            mounts: vec![CdiMount::read_only(&limits_file.display().to_string(), limits::PATH)],
            ..CdiEdits::default()
        });
        edits
    }

    /// MIG instances are limited by the card itself.
    pub(super) fn limiter_for(&self, promise: &ContainerLimits) -> Option<&LimiterLibrary> {
        let whole = |uuid: &GpuUuid| !uuid.as_str().starts_with("MIG-");
        self.limiter.as_ref().filter(|_| promise.devices.iter().any(|device| whole(&device.uuid)))
    }

    /// Every variable that limits rest on, each with a value, so that none is left for the pod to fill.
    fn variables(&self, promise: &ContainerLimits) -> Vec<String> {
        let uuids: Vec<&str> = promise.devices.iter().map(|device| device.uuid.as_str()).collect();
        let visible = if self.runtime_injects { uuids.join(",") } else { "void".into() };
        let mut env = vec![
            format!("NVIDIA_VISIBLE_DEVICES={visible}"),
            format!("GPU_STEWARD_LIMITS={}", limits::PATH),
            format!("GPU_STEWARD_DEVICES={}", uuids.join(",")),
        ];
        env.extend(self.limits(promise));
        env
    }

    /// Those that HAMi-core reads.
    pub(super) fn limits(&self, promise: &ContainerLimits) -> Vec<String> {
        let mut env = vec![
            "CUDA_DISABLE_CONTROL=false".into(),
            format!("GPU_CORE_UTILIZATION_POLICY={}", self.core_policy),
            format!("CUDA_OVERSUBSCRIBE={}", self.oversubscribed),
            format!("CUDA_TASK_PRIORITY={}", promise.priority.unwrap_or(1)),
            // As they are by themselves, so that no pod switches off who ends it or what its priority is judged by.
            "ACTIVE_OOM_KILLER=true".into(),
            "RECORD_KERNEL_INTERVAL=1".into(),
            // Nor what HAMi-core opens in its own place.
            format!("CUDA_REDIRECT={}", limiter::LIBRARY),
        ];
        if let Some(level) = &self.log_level {
            env.push(format!("LIBCUDA_LOG_LEVEL={level}"));
        }
        // The general limits count for devices that have none of their own, so they are the smallest there is.
        let memory = promise.devices.iter().map(|device| device.memory.0 >> 20).min().unwrap_or(0);
        let cores = promise.devices.iter().filter_map(|device| device.cores).map(|cores| cores.0).min().unwrap_or(0);
        env.push(format!("CUDA_DEVICE_MEMORY_LIMIT={memory}m"));
        env.push(format!("CUDA_DEVICE_SM_LIMIT={cores}"));
        for index in 0..INDEXES {
            let device = promise.devices.get(index);
            let memory = device.map_or(memory, |device| device.memory.0 >> 20);
            let cores = device.map_or(cores, |device| device.cores.map_or(0, |cores| cores.0));
            env.push(format!("CUDA_DEVICE_MEMORY_LIMIT_{index}={memory}m"));
            env.push(format!("CUDA_DEVICE_SM_LIMIT_{index}={cores}"));
        }
        env
    }
}
