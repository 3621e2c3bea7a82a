//! What an agent is told at its start, and what it can be told while it runs. This file knows no flag, no variable and no
//! file: whoever starts the agent fills it.

use decide::device_injection::DeviceStrategy;
use decide::health::HealthPolicy;
use decide::labels::Labelling;
use effects::http::MetricSets;
use model::id::NodeName;
use model::pod::LabelKeys;
use model::unit::Bytes;
use serve::admin_access::AdminSettings;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use serve::server::certificate::Tls;
use sources::roots::HostRoots;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wire::device_config::DeviceScaling;
use wire::resource::ResourceOverrides;

/// The settings of an agent, parsed. It has one field for each setting or group of settings.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub standalone: bool,
    /// `None`: from `NODE_NAME`, then from the host.
    pub node_name: Option<NodeName>,
    /// `None`: search the usual places, unless standalone.
    pub kubeconfig: Option<PathBuf>,
    pub state_dir: PathBuf,
    pub drain_timeout: Duration,
    /// Keys of the pod labels to show.
    pub pod_labels: LabelKeys,
    pub health: HealthPolicy,
    pub sources: SourceSettings,
    pub names: sources::names::Settings,
    pub sharing: SharingSettings,
    /// How the agent reports to the extenders; `None` where it does not.
    pub report: Option<ReportSettings>,
    pub listen: SocketAddr,
    pub admin: AdminSettings,
    pub usage_socket: Option<PathBuf>,
    pub allowed_hosts: Vec<String>,
    /// Certificates with which the port for metrics and API serves HTTPS.
    pub tls: Option<Tls>,
    pub log_format: LogFormat,
    pub live: LiveSettings,
}

/// What the threads read that measure this machine and its GPUs, and how often.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    pub gpus: Gpus,
    /// `None`: ask the dynamic linker.
    pub nvml_library: Option<PathBuf>,
    pub kernel_log: Option<PathBuf>,
    pub roots: HostRoots,
    pub period: Duration,
    pub slow_period: Duration,
    pub process_period: Duration,
}

/// The settings of sharing. Where not noted otherwise, `None` means the value of the device configuration, else its
/// default. It has one field for each setting.
#[derive(Clone, Debug)]
pub struct SharingSettings {
    pub split_count: Option<u32>,
    pub split_counts: Vec<(String, u32)>,
    pub memory_scaling: Option<DeviceScaling>,
    pub core_scaling: Option<DeviceScaling>,
    pub resources: ResourceOverrides,
    pub device_config: Option<PathBuf>,
    pub without_claim: decide::allocator::WithoutClaim,
    pub same_gpu_twice: bool,
    /// `None`: the agent decides by versions, the runtime's configuration and the first containers.
    pub binding: Option<decide::allocator::BindingMode>,
    /// `None`: from kubelet's configuration.
    pub topology: Option<Topology>,
    pub strategy: DeviceStrategy,
    pub allow_unisolated: bool,
    pub host_cdi_dirs: Vec<PathBuf>,
    pub limiter_library: Option<PathBuf>,
    pub pod_files_limit: Bytes,
    pub evict_over_use: bool,
    pub register_format: RegisterFormat,
    pub handshakes: bool,
    pub labelling: Labelling,
    pub kubelet_root: PathBuf,
    pub cdi_dir: PathBuf,
    pub dev_root: PathBuf,
    /// `None`: the same path as `dev_root`.
    pub dev_root_mount: Option<PathBuf>,
}

/// Takes over settings that were read again. With an error the agent keeps those that it has.
pub type TakeOver<'a> = &'a mut dyn FnMut(LiveSettings) -> Result<(), String>;

/// Reads the settings again after SIGHUP, and passes them on if they are valid.
pub type ReadAgain = Box<dyn FnMut(TakeOver<'_>) + Send>;

/// The settings that SIGHUP may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    pub verbosity: Verbosity,
    pub sets: MetricSets,
    pub api_token_file: Option<PathBuf>,
}

/// How an agent reports to the extenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSettings {
    /// The Service of the extenders.
    pub address: String,
    /// The certificates of their authority.
    pub ca_file: PathBuf,
    /// The own token.
    pub token_file: PathBuf,
}

/// The source of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// NVML, the library of the NVIDIA driver.
    Nvml,
    /// Simulated GPUs.
    Simulated {
        /// The model, such as `H100`.
        model: String,
        /// The number of GPUs.
        count: u32,
    },
    /// No GPUs.
    None,
}

/// Whether kubelet's topology manager takes part in the choice of a container's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// It does not.
    None,
    /// It aligns them with CPUs and memory.
    Aligned,
}

impl Topology {
    /// Whether a policy of the topology manager, by kubelet's name, aligns devices; `None` for another word.
    pub fn of_policy(name: &str) -> Option<Topology> {
        match name {
            "none" => Some(Topology::None),
            "best-effort" | "restricted" | "single-numa-node" => Some(Topology::Aligned),
            _ => None,
        }
    }
}

/// The format of the register annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterFormat {
    /// HAMi 2.8 and later.
    Json,
    /// HAMi up to 2.7.
    Colon,
}
