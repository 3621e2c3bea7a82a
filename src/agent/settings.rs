//! The settings of an agent: some apply at its start, others can change while it runs. This file knows no flag, no
//! environment variable and no file: the program that starts the agent fills in the settings.

use decide::health::HealthPolicy;
use decide::labels::Labelling;
use effects::http::MetricSets;
use model::id::NodeName;
use model::pod::LabelKeys;
use model::realtime::NodeCheck;
use model::unit::Bytes;
use serve::admin_access::AdminSettings;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use serve::server::certificate::Tls;
use sources::roots::HostRoots;
use sources::simulated;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wire::alnair::LiteralForm;
use wire::device_config::DeviceScaling;
use wire::resource::ResourceOverrides;

/// The parsed settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Runs without Kubernetes.
    pub standalone: bool,
    /// `None`: the name from `NODE_NAME`, otherwise the host's name.
    pub node_name: Option<NodeName>,
    /// `None`: search the usual places, unless standalone.
    pub kubeconfig: Option<PathBuf>,
    /// The folder for files that outlive the process.
    pub state_dir: PathBuf,
    /// How long open requests may take at a stop.
    pub drain_timeout: Duration,
    /// Keys of the pod labels to show.
    pub pod_labels: LabelKeys,
    /// Whether the agent keeps histories of GPUs and pods and analyses them.
    pub workload_profiles: bool,
    /// When a GPU is unhealthy, and when it recovers.
    pub health: HealthPolicy,
    /// What is read, and how often.
    pub sources: SourceSettings,
    /// Where the names of containers come from.
    pub names: sources::names::Settings,
    /// How GPUs are shared among pods.
    pub sharing: SharingSettings,
    /// How the agent reports to the extenders; `None` if it does not report.
    pub report: Option<ReportSettings>,
    /// The address of the port.
    pub listen: SocketAddr,
    /// The admin port.
    pub admin: AdminSettings,
    /// The unix socket of the usage stream; `None` if the stream is not served.
    pub usage_socket: Option<PathBuf>,
    /// Accepted `Host` names in addition to the node's own.
    pub allowed_hosts: Vec<String>,
    /// Certificates for HTTPS on the port for metrics and API.
    pub tls: Option<Tls>,
    /// The destination and the format of the log.
    pub log_format: LogFormat,
    /// The settings that SIGHUP may change.
    pub live: LiveSettings,
}

/// What the source threads read from this machine and its GPUs, and how often.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Where the readings of GPUs come from.
    pub gpus: Gpus,
    /// `None`: the dynamic linker finds it.
    pub nvml_library: Option<PathBuf>,
    /// The kernel log; `None` if it is not read.
    pub kernel_log: Option<PathBuf>,
    /// The roots of the file trees of the kernel.
    pub roots: HostRoots,
    /// The period of cheap readings.
    pub period: Duration,
    /// The period of readings that rarely change.
    pub slow_period: Duration,
    /// The period of process lists.
    pub process_period: Duration,
}

/// The settings of sharing. If not noted otherwise, `None` means the value of the device configuration, or its default
/// value.
#[derive(Clone, Debug)]
pub struct SharingSettings {
    /// Slots of each GPU.
    pub split_count: Option<u32>,
    /// Slots of the GPUs of certain models.
    pub split_counts: Vec<(String, u32)>,
    /// Memory that is offered, as a multiple of the memory that exists.
    pub memory_scaling: Option<DeviceScaling>,
    /// Cores that are offered, as a multiple of the cores that exist.
    pub core_scaling: Option<DeviceScaling>,
    /// Names of the resources.
    pub resources: ResourceOverrides,
    /// The files of HAMi's device configuration.
    pub device_config: Vec<PathBuf>,
    /// The default of a pod without a claim.
    pub without_claim: decide::allocator::WithoutClaim,
    /// Whether a container may have two slots of one GPU.
    pub same_gpu_twice: bool,
    /// `None`: from kubelet's configuration.
    pub topology: Option<Topology>,
    /// The runtime's folders of CDI specs, as paths of the host.
    pub host_cdi_dirs: Vec<PathBuf>,
    /// The library that enforces limits in a container.
    pub limiter_library: Option<PathBuf>,
    /// Maximum number of bytes that a pod may write to its files.
    pub pod_files_limit: Bytes,
    /// Whether pods that use more memory than they claim are evicted.
    pub evict_over_use: bool,
    /// The form of the annotation `hami.io/node-nvidia-register`.
    pub register_format: RegisterFormat,
    /// Whether handshakes are written.
    pub handshakes: bool,
    /// The labels of the Node.
    pub labelling: Labelling,
    /// The form of Alnair's annotations about the load of GPUs; `None`: the Node has no annotations about it.
    pub profile_annotations: Option<LiteralForm>,
    /// The kubelet's folder.
    pub kubelet_root: PathBuf,
    /// The folder of CDI specs that the agent writes.
    pub cdi_dir: PathBuf,
    /// The root of the device nodes on the host.
    pub dev_root: PathBuf,
    /// `None`: the same path as `dev_root`.
    pub dev_root_mount: Option<PathBuf>,
}

/// Applies settings that were read again. On an error the agent keeps the settings that it has.
pub type TakeOver<'a> = &'a mut dyn FnMut(LiveSettings) -> Result<(), String>;

/// Reads the settings again after SIGHUP, and passes them on if they are valid.
pub type ReadAgain = Box<dyn FnMut(TakeOver<'_>) + Send>;

/// The settings that SIGHUP may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    /// The level of the log.
    pub verbosity: Verbosity,
    /// The foreign metric names of `/metrics`.
    pub sets: MetricSets,
    /// The file of the token for `/api/v1`; `None`: only callers on this machine get an answer.
    pub api_token_file: Option<PathBuf>,
}

/// How an agent reports to the extenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSettings {
    /// The Service of the extenders.
    pub address: String,
    /// The CA certificates of the extenders.
    pub ca_file: PathBuf,
    /// The file of this agent's token.
    pub token_file: PathBuf,
    /// What the settings say about the real-time check.
    pub check: NodeCheck,
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

impl Gpus {
    /// Parses `nvml`, `none` or `simulated[=MODEL[:COUNT]]`.
    ///
    /// # Errors
    /// What is expected, or why such GPUs cannot be simulated.
    pub fn parse(text: &str) -> Result<Gpus, String> {
        const EXPECTED: &str = "expected nvml, none or simulated[=MODEL[:COUNT]], such as simulated=H100:8";
        let what = match text {
            "nvml" => return Ok(Gpus::Nvml),
            "none" => return Ok(Gpus::None),
            "simulated" => "H100:8",
            _ => text.strip_prefix("simulated=").ok_or(EXPECTED)?,
        };
        let (model, count) = what.split_once(':').unwrap_or((what, "8"));
        if model.is_empty() {
            return Err(EXPECTED.into());
        }
        let count = count.parse::<u32>().map_err(|_| EXPECTED)?;
        simulated::check(model, count)?;
        Ok(Gpus::Simulated { model: model.into(), count })
    }
}

/// Whether kubelet's topology manager takes part in the choice of a container's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// The topology manager takes no part.
    None,
    /// The topology manager aligns the devices with CPUs and memory.
    Aligned,
}

impl Topology {
    /// Whether the topology manager aligns devices under the policy of this name, which is the kubelet's name for it.
    /// `None` for an unknown name.
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

impl RegisterFormat {
    /// Parses `json` or `colon`.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<RegisterFormat, String> {
        match text {
            "json" => Ok(RegisterFormat::Json),
            "colon" => Ok(RegisterFormat::Colon),
            _ => Err("expected json or colon".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_sources_are_parsed() {
        let simulated = |model: &str, count| Some(Gpus::Simulated { model: model.into(), count });
        for (text, expect) in [
            ("nvml", Some(Gpus::Nvml)),
            ("none", Some(Gpus::None)),
            ("simulated", simulated("H100", 8)),
            ("simulated=A100", simulated("A100", 8)),
            ("simulated=T4:2", simulated("T4", 2)),
            ("simulated=", None),
            ("simulated=T4:0", None),
            ("simulated=T4:16", simulated("T4", 16)),
            ("simulated=T4:17", None),
            ("simulated=T4:-1", None),
            ("simulated=T5:2", None),
            ("simulated:T4", None),
            ("cuda", None),
        ] {
            assert_eq!(Gpus::parse(text).ok(), expect, "{text}");
        }
    }
}
