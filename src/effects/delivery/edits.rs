//! The CDI edits that make a container see only its device shares. The runtime applies them last, so that they override
//! the variables of the pod and of the image.

use super::limiter::{self, LimiterLibrary};
use model::id::GpuUuid;
use model::limits::ContainerLimits;
use model::nvidia;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wire::cdi::{CdiDeviceNode, CdiEdits, CdiMount, CdiVersion};
use wire::limits;

/// The number of devices with a separate limit: HAMi-core reads 16.
const INDEXES: usize = 16;

/// A device node of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDeviceNode {
    /// The device node's path in the container.
    pub path: String,
    /// The device node's path on the host.
    pub host: PathBuf,
}

/// The settings of this node that the edits need in addition to the claim.
#[derive(Clone, Debug)]
pub struct NodeEdits {
    /// Device nodes of each device.
    pub nodes: BTreeMap<GpuUuid, Vec<HostDeviceNode>>,
    /// The edits of the host's CDI spec for each device. If a path is also in `nodes`, these edits take precedence.
    pub own: BTreeMap<GpuUuid, CdiEdits>,
    /// Device nodes that every container with a GPU gets.
    pub shared_nodes: Vec<HostDeviceNode>,
    /// The edits of the host's CDI spec for every container with a GPU (libraries, hooks), inlined.
    pub common: CdiEdits,
    /// The CDI version of the host's spec.
    pub carried: CdiVersion,
    /// The newest CDI version that the container runtime reads, if it is known.
    pub newest: Option<CdiVersion>,
    /// HAMi-core's library, if the agent has it.
    pub limiter: Option<LimiterLibrary>,
    /// Whether the runtime injects devices by `NVIDIA_VISIBLE_DEVICES`, so that the agent adds none.
    pub runtime_injects: bool,
    /// Whether claims may add up to more memory than the GPUs have.
    pub oversubscribed: bool,
    /// HAMi-core's log level, if it is set.
    pub log_level: Option<String>,
    /// HAMi-core's policy for SM time: `default` (limits while other processes wait), `force`, `disable`.
    pub core_policy: &'static str,
}

impl Default for NodeEdits {
    fn default() -> NodeEdits {
        NodeEdits {
            nodes: BTreeMap::new(),
            own: BTreeMap::new(),
            shared_nodes: Vec::new(),
            common: CdiEdits::default(),
            carried: CdiVersion::OLDEST,
            newest: None,
            limiter: None,
            runtime_injects: false,
            oversubscribed: false,
            log_level: None,
            core_policy: "default",
        }
    }
}

impl NodeEdits {
    /// All edits for one container. `limits_file` is its limits file on the host.
    #[must_use]
    pub fn edits(&self, container_limits: &ContainerLimits, limits_file: &Path) -> CdiEdits {
        let mut edits = CdiEdits::default();
        if !self.runtime_injects {
            edits.add(&self.common);
            for own in container_limits.devices.iter().filter_map(|device| self.own.get(&device.uuid)) {
                edits.add(own);
            }
            let own = container_limits.devices.iter().filter_map(|device| self.nodes.get(&device.uuid)).flatten();
            // If the driver runs in a container, only the host's spec has the paths of its device nodes.
            let nodes: Vec<CdiDeviceNode> = own
                .chain(&self.shared_nodes)
                .filter(|node| edits.device_nodes.iter().all(|known| known.path != node.path))
                .map(|node| CdiDeviceNode {
                    host_path: Some(node.host.display().to_string()),
                    ..CdiDeviceNode::at(&node.path)
                })
                .collect();
            edits.add(&CdiEdits { device_nodes: nodes, ..CdiEdits::default() });
        }
        if let Some((limiter, folder)) = self.limiter_for(container_limits).zip(limits_file.parent()) {
            edits.add(&limiter.edits(folder, container_limits.holder.pod.as_str()));
        }
        // Last, so that the edits on which limits depend override all others.
        edits.add(&CdiEdits {
            env: self.variables(container_limits),
            mounts: vec![CdiMount::read_only(&limits_file.display().to_string(), limits::PATH)],
            ..CdiEdits::default()
        });
        edits
    }

    /// The limiter for this container; `None` if all its devices are MIG instances, which the GPU itself limits.
    pub(super) fn limiter_for(&self, container_limits: &ContainerLimits) -> Option<&LimiterLibrary> {
        self.limiter.as_ref().filter(|_| container_limits.devices.iter().any(|device| !device.uuid.is_mig_instance()))
    }

    /// Every variable on which limits depend, each with a value, so that the pod cannot set these variables.
    fn variables(&self, container_limits: &ContainerLimits) -> Vec<String> {
        let uuids: Vec<&str> = container_limits.devices.iter().map(|device| device.uuid.as_str()).collect();
        let visible = if self.runtime_injects { uuids.join(",") } else { "void".into() };
        let mut env = vec![
            format!("{}={visible}", nvidia::VISIBLE_DEVICES),
            format!("GPU_STEWARD_LIMITS={}", limits::PATH),
            format!("GPU_STEWARD_DEVICES={}", uuids.join(",")),
        ];
        env.extend(self.limits(container_limits));
        env
    }

    /// The variables that HAMi-core reads.
    pub(super) fn limits(&self, container_limits: &ContainerLimits) -> Vec<String> {
        let mut env = vec![
            "CUDA_DISABLE_CONTROL=false".into(),
            format!("GPU_CORE_UTILIZATION_POLICY={}", self.core_policy),
            format!("CUDA_OVERSUBSCRIBE={}", self.oversubscribed),
            format!("CUDA_TASK_PRIORITY={}", container_limits.priority.unwrap_or(1)),
            // The defaults of HAMi-core, set so that no pod can switch off its OOM killer or the recording of
            // kernels, from which its priority is judged.
            "ACTIVE_OOM_KILLER=true".into(),
            "RECORD_KERNEL_INTERVAL=1".into(),
            // HAMi-core loads the library of this name as itself, so a pod must not be able to choose the name.
            format!("CUDA_REDIRECT={}", limiter::LIBRARY),
        ];
        if let Some(level) = &self.log_level {
            env.push(format!("LIBCUDA_LOG_LEVEL={level}"));
        }
        // The general limits apply to devices without a separate limit, so they are the smallest of all limits.
        let memory = container_limits.devices.iter().map(|device| device.memory.0 >> 20).min().unwrap_or(0);
        let cores =
            container_limits.devices.iter().filter_map(|device| device.cores).map(|cores| cores.0).min().unwrap_or(0);
        env.push(format!("CUDA_DEVICE_MEMORY_LIMIT={memory}m"));
        env.push(format!("CUDA_DEVICE_SM_LIMIT={cores}"));
        for index in 0..INDEXES {
            let device = container_limits.devices.get(index);
            let memory = device.map_or(memory, |device| device.memory.0 >> 20);
            let cores = device.map_or(cores, |device| device.cores.map_or(0, |cores| cores.0));
            env.push(format!("CUDA_DEVICE_MEMORY_LIMIT_{index}={memory}m"));
            env.push(format!("CUDA_DEVICE_SM_LIMIT_{index}={cores}"));
        }
        env
    }
}
