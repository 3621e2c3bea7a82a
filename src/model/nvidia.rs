//! The names of NVIDIA's devices: resources, annotations, labels, device nodes, driver, and container runtime. The
//! devices of another vendor get a file like this one. The code in all other files takes the names from here. Only
//! three kinds of text contain the names themselves: sentences that users read (messages, help, advice), tests, and
//! `wire::kernel_log`, which parses the log lines of NVIDIA's driver.

/// Resource: the number of GPUs. A setting or HAMi's device configuration can give this and the following resources other names.
pub const COUNT: &str = "nvidia.com/gpu";
/// Memory of each GPU, in MiB.
pub const MEMORY: &str = "nvidia.com/gpumem";
/// Memory of each GPU, in percent.
pub const MEMORY_PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
/// SM time of each GPU, in percent.
pub const CORES: &str = "nvidia.com/gpucores";
/// Priority of a container on its GPUs.
pub const PRIORITY: &str = "nvidia.com/priority";

/// The name of the vendor in the device strings of a claim.
pub const VENDOR: &str = "NVIDIA";
/// The section of HAMi's device configuration about these devices.
pub const CONFIG_SECTION: &str = "nvidia";
/// Prefix of the annotations by which pods choose among these devices.
pub const KEY_PREFIX: &str = "nvidia.com/";
/// The kind of nvidia-ctk's CDI specs.
pub const CDI_KIND: &str = "nvidia.com/gpu";
/// The kind of the specs that the GPU Operator's toolkit writes for its own containers. They have the driver's libraries too.
pub const MANAGEMENT_CDI_KIND: &str = "management.nvidia.com/gpu";
/// The starts of the file names of these specs: `nvidia.yaml`, `nvidia-imex.json`, `management.nvidia.com-gpu.yaml`.
pub const CDI_FILES: [&str; 2] = ["nvidia", "management.nvidia"];
/// The kernel module of the driver, in `/sys/module` and `/proc/driver`.
pub const KERNEL_MODULE: &str = "nvidia";
/// The vendor of its PCI devices.
pub const PCI_VENDOR: u32 = 0x10de;
/// The NVML library, as the dynamic linker finds it.
pub const NVML: &str = "libnvidia-ml.so.1";
/// The name of the MPS server's process: the first 15 bytes of `nvidia-cuda-mps-server`, which are all that the kernel keeps.
pub const MPS_SERVER: &str = "nvidia-cuda-mps";
/// The program of NVIDIA's container runtime; its variants for one mode have a suffix (`nvidia-container-runtime.cdi`).
pub const RUNTIME: &str = "nvidia-container-runtime";
/// The start of the names of NVIDIA's own runtime classes: `nvidia`, `nvidia-cdi`, `nvidia-legacy`.
pub const RUNTIME_CLASSES: &str = "nvidia";
/// Environment variable that tells NVIDIA's container runtime which devices a container gets.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Folder in which NVIDIA's device plugin mounts a file for each GPU, with `--device-list-strategy=volume-mounts`.
pub const VOLUME_MOUNTS: &str = "/var/run/nvidia-container-devices/";
/// Prefix of the UUIDs of GPUs.
pub const GPU_UUID: &str = "GPU-";
/// Prefix of the UUIDs of MIG instances.
pub const MIG_UUID: &str = "MIG-";
/// Path of the device node of a GPU, without its number.
pub const DEVICE_NODE: &str = "/dev/nvidia";
/// Name of the device node of a GPU, without its number, in the folder of device nodes and in DCGM's metrics.
pub const DEVICE_NODE_NAME: &str = "nvidia";
/// Names of the device nodes that every container with a GPU opens in addition to the device node of its GPU.
pub const SHARED_NODE_NAMES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// Folder of the device nodes of MIG instances.
pub const CAPABILITY_NODES: &str = "/dev/nvidia-caps/";

/// Node annotation: the GPUs that the node registers (`wire::register`).
pub const REGISTER: &str = "hami.io/node-nvidia-register";
/// Node annotation: how well the node's GPUs are connected (`wire::links`).
pub const NODE_LINKS: &str = "hami.io/node-nvidia-score";
/// Node annotation: what the leading extender counts as taken of the node's GPUs (`wire::assumed`).
pub const ASSUMED: &str = "hami.io/node-nvidia-assume";

/// Pod annotation, as are the following (`wire::placement`): the product name of its GPUs contains one of these words.
pub const USE_TYPES: &str = "nvidia.com/use-gputype";
/// The product name of its GPUs contains none of these words.
pub const AVOID_TYPES: &str = "nvidia.com/nouse-gputype";
/// Its GPUs have only these UUIDs.
pub const USE_UUIDS: &str = "nvidia.com/use-gpuuuid";
/// Its GPUs have none of these UUIDs.
pub const AVOID_UUIDS: &str = "nvidia.com/nouse-gpuuuid";
/// Whether all GPUs of one container are on one NUMA node.
pub const NUMA_BIND: &str = "nvidia.com/numa-bind";
/// The sharing modes that its GPUs may have.
pub const SHARING_MODES: &str = "nvidia.com/vgpu-mode";

/// Label that GPU feature discovery (GFD) leaves on a Node that it labels.
pub const DISCOVERY: &str = "nvidia.com/gfd.timestamp";
/// Node label, as are the following (`wire::labels`): whether the node has GPUs.
pub const LABEL_PRESENT: &str = "nvidia.com/gpu.present";
/// Number of GPUs.
pub const LABEL_COUNT: &str = "nvidia.com/gpu.count";
/// Product name of the GPUs.
pub const LABEL_PRODUCT: &str = "nvidia.com/gpu.product";
/// Memory of each GPU, in MiB.
pub const LABEL_MEMORY: &str = "nvidia.com/gpu.memory";
/// Architecture of the GPUs.
pub const LABEL_FAMILY: &str = "nvidia.com/gpu.family";
/// Major number of the CUDA compute capability.
pub const LABEL_COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
/// Minor number of the CUDA compute capability.
pub const LABEL_COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
/// Number of slots of each GPU.
pub const LABEL_REPLICAS: &str = "nvidia.com/gpu.replicas";
/// How containers share a GPU.
pub const LABEL_SHARING: &str = "nvidia.com/gpu.sharing-strategy";
/// Whether at least one GPU supports MIG.
pub const LABEL_MIG_CAPABLE: &str = "nvidia.com/mig.capable";
/// MIG strategy, if a GPU is in MIG mode.
pub const LABEL_MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
/// Driver version.
pub const LABEL_DRIVER: &str = "nvidia.com/cuda.driver-version.full";
/// Parts of the driver version, each under its new and its old name.
pub const LABELS_DRIVER: [[&str; 2]; 3] = [
    ["nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"],
    ["nvidia.com/cuda.driver-version.minor", "nvidia.com/cuda.driver.minor"],
    ["nvidia.com/cuda.driver-version.revision", "nvidia.com/cuda.driver.rev"],
];
/// CUDA version of the driver.
pub const LABEL_RUNTIME: &str = "nvidia.com/cuda.runtime-version.full";
/// Parts of the CUDA version, each under its new and its old name.
pub const LABELS_RUNTIME: [[&str; 2]; 2] = [
    ["nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime.major"],
    ["nvidia.com/cuda.runtime-version.minor", "nvidia.com/cuda.runtime.minor"],
];
