//! The table of all settings. The name of a setting is its flag, its key in the configuration file and, in capitals,
//! its environment variable.

use super::raw_value::{Origin, RawValue};

/// One setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// The flag without its dashes, and the key in the file: `usage-socket`.
    pub name: &'static str,
    /// Heading in `--help` and docs/configuration.md.
    pub group: Group,
    /// The placeholder of the value in `--help`; with [`SWITCH`] the flag needs no value.
    pub value: &'static str,
    /// The value if neither flag, environment nor file sets a value.
    pub default: &'static str,
    /// The text in `--help` and docs/configuration.md: one or two sentences.
    pub help: &'static str,
    /// Whether SIGHUP applies a new value from the file.
    pub live: bool,
    /// Another environment variable of the setting, by which other projects know it. The variable with [`PREFIX`] overrides it.
    pub known_as: Option<&'static str>,
    /// The commands that read the setting. The other commands refuse its flag. In the file, which all commands share,
    /// they ignore it.
    pub readers: &'static [Reader],
}

/// A command that reads settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// `gpu-steward agent`.
    Agent,
    /// `gpu-steward usage`.
    Usage,
    /// `gpu-steward extender`.
    Extender,
    /// `gpu-steward clean-node`.
    CleanNode,
    /// `gpu-steward clear-incident`.
    ClearIncident,
}

/// The headings under which `--help` lists the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// The node, and the agent's mode.
    Node,
    /// The source of GPUs and their health.
    Gpu,
    /// How containers share GPUs.
    Sharing,
    /// How the extender places pods, and which extender leads.
    Scheduling,
    /// Paths and sockets of the host.
    Host,
    /// Addresses, metric names and access.
    Serving,
    /// Times between readings.
    Timing,
    /// Log and profiles of the agent itself.
    Telemetry,
}

impl Group {
    /// The text of the heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Group::Node => "Node",
            Group::Gpu => "GPUs",
            Group::Sharing => "Sharing",
            Group::Scheduling => "Scheduling",
            Group::Host => "Host",
            Group::Serving => "Serving",
            Group::Timing => "Timing",
            Group::Telemetry => "Telemetry",
        }
    }
}

/// The placeholder for the value of a setting that is on or off.
pub(crate) const SWITCH: &str = "true|false";

/// The prefix of every environment variable.
pub(crate) const PREFIX: &str = "GPU_STEWARD_";

/// The environment variable of a setting.
pub(crate) fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

const fn key(
    group: Group,
    name: &'static str,
    (value, default): (&'static str, &'static str),
    help: &'static str,
) -> Key {
    Key { name, group, value, default, help, live: false, known_as: None, readers: &[Reader::Agent] }
}

impl Key {
    const fn live(mut self) -> Key {
        self.live = true;
        self
    }

    const fn known_as(mut self, variable: &'static str) -> Key {
        self.known_as = Some(variable);
        self
    }

    const fn read_by(mut self, readers: &'static [Reader]) -> Key {
        self.readers = readers;
        self
    }

    /// The settings of a command, in the order of `--help`.
    pub(crate) fn of(reader: Reader) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.readers.contains(&reader))
    }

    /// The name of the setting's environment variable.
    pub(crate) fn variable(&self) -> String {
        variable_of(self.name)
    }

    /// The value if no source sets a value.
    pub(crate) fn default_value(&self) -> RawValue {
        RawValue { text: self.default.into(), origin: Origin::Default }
    }

    /// Whether the flag needs no value.
    pub(crate) fn is_switch(&self) -> bool {
        self.value == SWITCH
    }

    /// The setting of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }
}

use Group::{Gpu, Host, Node, Scheduling, Serving, Sharing, Telemetry, Timing};

/// The readers of a setting that agent and extender share.
const BOTH: &[Reader] = &[Reader::Agent, Reader::Extender];
const EXTENDER: &[Reader] = &[Reader::Extender];
/// The readers of the settings of the log.
const LOGGING: &[Reader] = &[Reader::Agent, Reader::Extender, Reader::CleanNode, Reader::ClearIncident];

/// All settings, in the order of `--help`.
pub(crate) const KEYS: &[Key] = &[
    key(
        Node,
        "standalone",
        (SWITCH, "false"),
        "Run without Kubernetes: read this machine and serve the readings, without an API server",
    ),
    key(Node, "node-name", ("NAME", "auto"), "This node's name; auto takes NODE_NAME, then the host's name; like the kubelet, in lower case"),
    key(
        Node,
        "kubeconfig",
        ("PATH", "auto"),
        "File with the API server and credentials; auto takes KUBECONFIG, then the pod's service account, then \
         ~/.kube/config. With --standalone the agent uses only a path that is given here, for the names of pods",
    )
    .read_by(&[Reader::Agent, Reader::Extender, Reader::CleanNode]),
    key(
        Node,
        "state-dir",
        ("DIR", "/var/lib/gpu-steward"),
        "Directory for the state that the agent keeps across restarts",
    )
    .read_by(&[Reader::Agent, Reader::ClearIncident]),
    key(
        Node,
        "drain-timeout",
        ("TIME", "5s"),
        "Longest time for the shutdown after SIGTERM or SIGINT, in which the agent answers kubelet's calls and then \
         the other requests in flight; a second signal ends it at once",
    )
    .read_by(BOTH),
    key(
        Node,
        "pod-labels",
        ("KEY,...", "none"),
        "Keys of the pod labels to show in gpu_steward_pod_labels_info, at most 16: app.kubernetes.io/name,team",
    ),
    key(
        Node,
        "workload-profiles",
        (SWITCH, "true"),
        "Keep histories of GPUs and pods and analyse them: cycles, trends and forecasts. The long histories are in \
         profile.db in the state directory. They cost memory and CPU time, which docs/specification.md bounds",
    ),
    key(
        Gpu,
        "gpus",
        ("SOURCE", "nvml"),
        "Source of GPUs: nvml, none, or simulated[=MODEL[:COUNT]] (default H100:8, at most 16), which the agent marks \
         as simulated everywhere",
    ),
    key(Gpu, "nvml-library", ("PATH", "auto"), "NVML library; auto asks the dynamic linker for libnvidia-ml.so.1"),
    key(
        Gpu,
        "kernel-log",
        ("PATH", "/dev/kmsg"),
        "Kernel log that the agent searches for driver errors (XIDs); syslog uses the system call of that name, for \
         containers that may not open the device; none disables the search",
    ),
    key(
        Gpu,
        "fatal-xids",
        ("NUMBER,...", "auto"),
        "Driver errors (XIDs) after which a GPU gets no new containers; auto takes those for which NVIDIA's catalogue \
         asks for a reset, a restart of the machine or a check of the hardware, except 109. Errors of applications \
         (13, 31, 43, 45, ...) are refused",
    ),
    key(
        Gpu,
        "health-quiet-period",
        ("TIME", "5m"),
        "How long a GPU must have no new incident and no recovery action from NVML before it gets new containers \
         again",
    ),
    key(
        Sharing,
        "split-count",
        ("NUMBER", "auto"),
        "Largest number of containers that may share a GPU; auto takes deviceSplitCount of the device configuration, \
         else 10",
    ),
    key(
        Sharing,
        "split-count-by-model",
        ("MODEL=NUMBER,...", "none"),
        "Split count for GPUs whose model name contains MODEL; the first match counts: A100=20,T4=4",
    ),
    key(
        Sharing,
        "memory-scaling",
        ("FACTOR", "auto"),
        "Memory that containers may claim for each byte of a GPU's memory; auto takes deviceMemoryScaling, else 1",
    ),
    key(
        Sharing,
        "core-scaling",
        ("FACTOR", "auto"),
        "SM time that containers may claim for each percent of a GPU's SM time; auto takes deviceCoreScaling, else 1",
    ),
    key(
        Sharing,
        "resource-name",
        ("NAME", "auto"),
        "Resource name for the number of GPUs; auto takes resourceCountName, else nvidia.com/gpu",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "resource-name-memory",
        ("NAME", "auto"),
        "Resource name for the memory of each GPU in MiB; auto takes resourceMemoryName, else nvidia.com/gpumem",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "resource-name-memory-percentage",
        ("NAME", "auto"),
        "Resource name for the memory of each GPU in percent; auto takes resourceMemoryPercentageName, else \
         nvidia.com/gpumem-percentage",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "resource-name-cores",
        ("NAME", "auto"),
        "Resource name for the SM time of each GPU in percent; auto takes resourceCoreName, else nvidia.com/gpucores",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "resource-name-priority",
        ("NAME", "auto"),
        "Resource name for the priority of a task, 0 high and 1 low; auto takes resourcePriorityName, else \
         nvidia.com/priority",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "device-config-file",
        ("PATH,...", "none"),
        "HAMi's device YAML, in HAMi's own format: resource names, scaling, split counts; and HAMi's file with the settings of \
         single nodes (nodeconfig), alone or beside it",
    )
    .read_by(BOTH),
    key(
        Sharing,
        "without-claim",
        ("auto|share|refuse", "auto"),
        "What happens to a pod that no GPU-aware scheduler placed: share gives it the GPUs of its slots, as \
         time-slicing does, and refuse does not let it start; auto shares only where the agent reports to no extender and no \
         such scheduler has ever served this node",
    ),
    key(
        Sharing,
        "same-gpu-twice",
        ("refuse|allow", "refuse"),
        "What happens to a container that requests several GPUs and would get the same GPU more than once: refuse \
         does not let it start, allow lets it start with one GPU",
    ),
    key(
        Sharing,
        "topology-policy",
        ("auto|none|best-effort|restricted|single-numa-node", "auto"),
        "kubelet's topology manager policy; with any policy except none the agent moves a claim to the devices that \
         kubelet chose, if it fits there; auto reads config.yaml in kubelet's directory, else none",
    ),
    key(
        Sharing,
        "host-cdi-dirs",
        ("DIR,...", "/etc/cdi,/var/run/cdi"),
        "Directories with the CDI spec of NVIDIA's container toolkit (nvidia*.yaml, nvidia*.json), in rising \
         priority; its libraries, hooks and device nodes go into every container with a GPU; none disables this",
    ),
    key(
        Sharing,
        "limiter-library",
        ("PATH", "none"),
        "HAMi-core's library (libvgpu.so) on this node, which enforces the limits inside containers; the agent keeps \
         each version for the containers that use it",
    ),
    key(
        Sharing,
        "pod-files-limit",
        ("SIZE", "64MiB"),
        "How much a pod may write to the limiter's writable folders; each file and folder counts as 4 KiB or more. \
         A pod above this limit gets an event and the mark for eviction",
    ),
    key(
        Sharing,
        "evict-over-use",
        (SWITCH, "false"),
        "Evict a pod that has held more GPU memory than its claim for 90 seconds, or has written more than \
         pod-files-limit; without this setting the agent writes an event and a metric",
    ),
    key(
        Sharing,
        "register-format",
        ("json|colon", "json"),
        "Format of the register annotation on this node's Node: json for HAMi 2.8 and later, colon for older \
         schedulers",
    ),
    key(
        Sharing,
        "handshake",
        (SWITCH, "true"),
        "Write a heartbeat for schedulers on this node's Node every four minutes; an agent that writes none removes an \
         old one",
    ),
    key(
        Sharing,
        "node-labels",
        ("auto|on|off", "auto"),
        "Write the labels of GPU feature discovery (nvidia.com/gpu.product, ...) on this node's Node; auto does so \
         unless another program writes them",
    ),
    key(
        Sharing,
        "profile-annotations",
        ("python|json|off", "python"),
        "Write on this node's Node what is known about the load of its GPUs: Alnair's annotations (ai.centaurus.io/gpu-0, \
         ...) as Python literals or as JSON, and gpu-steward.io/gpu-0-profile, ... as JSON; off removes them. It needs \
         workload-profiles",
    ),
    key(
        Sharing,
        "kubelet-root",
        ("DIR", "/var/lib/kubelet"),
        "kubelet's directory, with its device plugin sockets and its plugin registry",
    ),
    key(
        Sharing,
        "cdi-dir",
        ("DIR", "/var/run/cdi"),
        "Directory where the container runtime reads CDI specs that are written while it runs",
    ),
    key(Sharing, "dev-root", ("DIR", "/dev"), "Directory of the host's device nodes, as the container runtime sees it"),
    key(
        Sharing,
        "dev-root-mount",
        ("DIR", "auto"),
        "The same directory as the agent sees it; auto is the same path. In a container it is a mount of the host's \
         directory",
    ),
    key(
        Scheduling,
        "extender-listen",
        ("ADDRESS", "127.0.0.1:9444"),
        "Address of the extender; only a kube-scheduler on the same machine or in the same pod may call the verbs, \
         and every client may read health and metrics",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "extender-admin-listen",
        ("ADDRESS", "127.0.0.1:9445"),
        "Address for the extender's own profiles and log level, or none; addresses other than loopback need HTTPS, \
         with admin-client-ca or admin-token-file",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "node-scheduler-policy",
        ("binpack|spread", "binpack"),
        "Which of the nodes that fit is best: the fullest (binpack) or the emptiest (spread); a pod's annotation \
         hami.io/node-scheduler-policy overrides it",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "gpu-scheduler-policy",
        ("WORD,...", "spread"),
        "Which GPUs of a node are taken first: binpack, spread, numa, mutex (no other pod on the GPU), topology-aware (best \
         connected), or several; a pod's annotation hami.io/gpu-scheduler-policy overrides it",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "scoring-weights",
        ("slot=N,core=N,memory=N", "slot=1,core=1,memory=1"),
        "How much containers, SM time and memory count when GPUs and nodes are compared; a pod's annotation \
         hami.io/device-scoring-weights overrides it",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "node-choice",
        ("scheduler|extender", "scheduler"),
        "Who chooses among the nodes that fit: kube-scheduler, by the extender's scores and its own, or the extender, which \
         then names the best node only, as HAMi does",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "scheduler-name",
        ("NAME", "gpu-steward"),
        "spec.schedulerName of the pods that the kube-scheduler with this extender places: a new leader wakes those that wait, \
         and print-config kube-scheduler prints it",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "answered-nodes",
        ("auto|NUMBER", "auto"),
        "Largest number of nodes that the extender names to kube-scheduler, the best of those that fit; 0 names all \
         that fit; auto is 5 % of the nodes asked about, and at least 100. All are named for a pod that prefers \
         nodes by affinity or topology spread, and for a pod that comes back unbound; for a member of a gang \
         only the best is named at first",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "score-step",
        ("NUMBER", "121"),
        "Difference between the scores of neighbouring nodes in the extender's ranking; kube-scheduler multiplies \
         it by 10. With 121 the GPUs decide before kube-scheduler's own preferences; a smaller step gives those \
         preferences more weight",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "enable-realtime-check",
        (SWITCH, "true"),
        "Check a pod's request against the memory that is really in use; a pod's annotation hami.io/enable-realtime-check \
         overrides it. On an agent it counts only where it is set: false then ends the check on the agent's node for every pod. The variable \
         HAMI_ENABLE_REALTIME_CHECK sets it too",
    )
    .known_as("HAMI_ENABLE_REALTIME_CHECK")
    .read_by(BOTH),
    key(
        Scheduling,
        "realtime-check-mode",
        ("strict|warning|disabled", "strict"),
        "What follows where less memory is really free than a pod requests: strict refuses the GPU, warning takes it only after all \
         others, disabled ends the check for every pod. On an agent it counts only where it is set, for the agent's node. The \
         variable HAMI_REALTIME_CHECK_MODE sets it too",
    )
    .known_as("HAMI_REALTIME_CHECK_MODE")
    .read_by(BOTH),
    key(
        Scheduling,
        "realtime-check-margin",
        ("SIZE", "100MiB"),
        "Memory of processes outside all claims that does not count on a GPU; of more, this much counts in addition",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "realtime-check-override",
        ("any|only-on", "any"),
        "Whether a pod's annotation hami.io/enable-realtime-check counts always (any), or only if it switches the check on (only-on)",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "assume-annotation",
        (SWITCH, "false"),
        "Write on Nodes what is taken of their GPUs (hami.io/node-nvidia-assume), on one Node a second at most; each \
         write lets kube-scheduler try refused pods again",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "stream-listen",
        ("ADDRESS", "none"),
        "Address of the TLS port for the agents' reports and for the other extenders: 0.0.0.0:9443; none switches \
         it off",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "stream-address",
        ("HOST:PORT", "auto"),
        "Where agents and the other extenders reach this extender's TLS port; auto takes POD_IP, else the address of \
         stream-listen",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "stream-accounts",
        ("NAMESPACE:NAME,...", "none"),
        "Service accounts of the agents, which may report to the extender",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "stream-audience",
        ("NAME", "gpu-steward"),
        "Audience of the tokens with which agents and extenders authenticate to an extender",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "stream-token-file",
        ("PATH", "none"),
        "File with this program's token for stream-audience: for the agent's stream, and for an extender that \
         passes requests on to the leader",
    )
    .read_by(BOTH),
    key(
        Scheduling,
        "extender-address",
        ("HOST:PORT", "none"),
        "The extenders' Service, to which the agent reports; none: the agent reports to no extender",
    ),
    key(
        Scheduling,
        "extender-ca-file",
        ("PATH", "none"),
        "CA certificates by which the agent verifies the extenders",
    ),
    key(Scheduling, "lease-name", ("NAME", "gpu-steward-extender"), "Name of the Lease by which one extender leads")
        .read_by(EXTENDER),
    key(
        Scheduling,
        "lease-namespace",
        ("NAME", "auto"),
        "Namespace of the Lease; auto takes POD_NAMESPACE, then kube-system",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "lease-duration",
        ("TIME", "15s"),
        "How long after a leader's last renewal its Lease keeps other extenders from leading; whole seconds",
    )
    .read_by(EXTENDER),
    key(
        Scheduling,
        "renew-deadline",
        ("TIME", "10s"),
        "How long after its last renewal a leader still decides; shorter than lease-duration",
    )
    .read_by(EXTENDER),
    key(Scheduling, "retry-period", ("TIME", "2s"), "Time between two attempts to renew or to get the Lease")
        .read_by(EXTENDER),
    key(Host, "procfs-root", ("DIR", "/proc"), "Directory where the host's /proc is mounted"),
    key(Host, "cgroup-root", ("DIR", "/sys/fs/cgroup"), "Directory where the host's cgroup hierarchies are mounted"),
    key(Host, "sysfs-root", ("DIR", "/sys"), "Directory where the host's /sys is mounted"),
    key(
        Host,
        "cri-socket",
        ("PATH", "auto"),
        "Container runtime's socket: the agent asks it for container names, for whether CDI is enabled and for how \
         devices get into containers; auto tries the known paths, none disables these requests",
    ),
    key(
        Host,
        "log-links",
        ("DIR", "/var/log/containers"),
        "kubelet's log links, for container names where there is no runtime socket",
    ),
    key(
        Host,
        "pod-resources-socket",
        ("PATH", "/var/lib/kubelet/pod-resources/kubelet.sock"),
        "kubelet's PodResources socket, which lists the devices of each container",
    ),
    key(Serving, "listen", ("ADDRESS", "0.0.0.0:9410"), "Address for metrics, API and health"),
    key(
        Serving,
        "admin-listen",
        ("ADDRESS", "127.0.0.1:9411"),
        "Address for the agent's own profiles and log level, or none; addresses other than loopback need HTTPS, \
         with admin-client-ca or admin-token-file",
    ),
    key(
        Serving,
        "allowed-hosts",
        ("NAME,...", "none"),
        "More host names (Host headers) that callers of /api/v1 and of the admin port may use, besides localhost, the \
         address that they connect to and the name of the node or of the extender's pod; all others are refused",
    )
    .read_by(BOTH),
    key(Serving, "usage-socket", ("PATH", "/run/gpu-steward/agent.sock"), "Unix socket of the usage stream, or none")
        .read_by(&[Reader::Agent, Reader::Usage]),
    key(Serving, "metrics-dcgm", (SWITCH, "true"), "Also serve dcgm-exporter's metric names at /metrics").live(),
    key(
        Serving,
        "metrics-dcgm-renamed",
        (SWITCH, "false"),
        "Also serve the names that DCGM 4.6 has given to the same fields (..._TEMP_CELSIUS, ..._UTIL_RATIO, ...), \
         besides dcgm-exporter's names",
    )
    .live(),
    key(Serving, "metrics-hami", (SWITCH, "false"), "Also serve the metric names of HAMi's monitor at /metrics").live(),
    key(Serving, "metrics-cadvisor", (SWITCH, "false"), "Also serve cAdvisor's metric names at /metrics").live(),
    key(
        Serving,
        "api-token-file",
        ("PATH", "none"),
        "File with the bearer token that every caller of /api/v1 needs, even on this machine; with none, callers \
         from other machines are refused",
    )
    .live(),
    key(
        Serving,
        "tls-cert",
        ("PATH", "none"),
        "Certificate chain (PEM) with which --listen serves HTTPS, and nothing else: give the scheme to Prometheus and \
         to probes too",
    ),
    key(Serving, "tls-key", ("PATH", "none"), "Private key (PEM) of tls-cert"),
    key(Serving, "admin-tls-cert", ("PATH", "none"), "Certificate chain (PEM) with which the admin port serves HTTPS")
        .read_by(BOTH),
    key(Serving, "admin-tls-key", ("PATH", "none"), "Private key (PEM) of admin-tls-cert").read_by(BOTH),
    key(
        Serving,
        "admin-client-ca",
        ("PATH", "none"),
        "Certificate authorities (PEM): a caller of the admin port must show a certificate that one of them has \
         signed; needs HTTPS there",
    )
    .read_by(BOTH),
    key(
        Serving,
        "admin-token-file",
        ("PATH", "none"),
        "File with the bearer token that every caller of the admin port needs; it is read at the start",
    )
    .read_by(&[Reader::Agent, Reader::Extender, Reader::ClearIncident]),
    key(Timing, "period", ("TIME", "1s"), "Time between two readings of CPU, memory and the cheap GPU values"),
    key(Timing, "slow-period", ("TIME", "5s"), "Time between two readings of all other values of the host"),
    key(Timing, "process-period", ("TIME", "5s"), "Time between two listings of the GPU processes"),
    key(Telemetry, "v", ("0|2|4|5", "0"), "Detail of the log: 0 errors, warnings and key events, 5 everything")
        .live()
        .read_by(LOGGING),
    key(
        Telemetry,
        "log-format",
        ("FORMAT", "auto"),
        "Format of the log: text, json or journald; auto is journald under systemd, else text on stderr",
    )
    .read_by(LOGGING),
    key(Telemetry, "profiling", (SWITCH, "false"), "Serve /debug/pprof/ on the admin port").read_by(BOTH),
];

/// The setting whose name is most like `name`, if it is similar enough for a typing error.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let name = kebab(name);
    let (distance, best) = KEYS.iter().map(|key| (distance(&name, key.name), key.name)).min()?;
    (distance <= 1 + best.len() / 4).then_some(best)
}

/// Turns `usageSocket`, `usage_socket` and `--usage-socket` into `usage-socket`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.trim_start_matches('-').chars().take(40) {
        match c {
            '_' | '.' | ' ' => out.push('-'),
            c if c.is_uppercase() => {
                out.push('-');
                out.extend(c.to_lowercase());
            }
            c => out.push(c),
        }
    }
    out
}

/// The Levenshtein distance, computed one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// For a Service named `gpu-steward`, the kubelet sets `GPU_STEWARD_SERVICE_HOST`, `GPU_STEWARD_PORT_9410_TCP` and so
/// on in every container of the namespace. These variables are not settings.
pub(crate) fn is_service_variable(variable: &str) -> bool {
    variable.strip_prefix(PREFIX).is_some_and(|rest| {
        rest == "PORT" || rest.starts_with("PORT_") || rest == "SERVICE_HOST" || rest.starts_with("SERVICE_PORT")
    })
}

#[cfg(test)]
mod tests {
    use super::super::removed;
    use super::*;
    use model::nvidia;

    #[test]
    fn the_help_of_a_resource_name_ends_with_the_default() {
        for (name, default) in [
            ("resource-name", nvidia::COUNT),
            ("resource-name-memory", nvidia::MEMORY),
            ("resource-name-memory-percentage", nvidia::MEMORY_PERCENTAGE),
            ("resource-name-cores", nvidia::CORES),
            ("resource-name-priority", nvidia::PRIORITY),
        ] {
            let help = KEYS.iter().find(|key| key.name == name).map(|key| key.help);
            assert!(help.is_some_and(|help| help.ends_with(&format!("else {default}"))), "{name}: {help:?}");
        }
    }

    #[test]
    fn a_misspelt_name_finds_its_setting_and_other_text_finds_none() {
        for (name, expected) in [
            ("usage_socket", Some("usage-socket")),
            ("usageSocket", Some("usage-socket")),
            ("perod", Some("period")),
            ("metrics-dcmg", Some("metrics-dcgm")),
            ("cgroup", None),
            ("zzz", None),
        ] {
            assert_eq!(nearest(name), expected, "{name}");
        }
    }

    #[test]
    fn names_are_distinct_and_none_is_a_variable_that_kubernetes_sets_for_a_service() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{}", key.name);
            let variable = key.variable();
            assert!(!is_service_variable(&variable), "{variable}");
        }
    }

    /// The name of a command other than `agent`.
    fn command(reader: Reader) -> Option<&'static str> {
        match reader {
            Reader::Agent => None,
            Reader::Usage => Some("`usage`"),
            Reader::Extender => Some("`extender`"),
            Reader::CleanNode => Some("`clean-node`"),
            Reader::ClearIncident => Some("`clear-incident`"),
        }
    }

    /// The tables of docs/configuration.md.
    fn table() -> String {
        let mut out = String::new();
        let mut group = None;
        for key in KEYS {
            if group != Some(key.group) {
                group = Some(key.group);
                out += &format!(
                    "\n### {}\n\n| key and flag | value | default | what it does |\n|---|---|---|---|\n",
                    key.group.title()
                );
            }
            let live = if key.live { " *(SIGHUP)*" } else { "" };
            let others: Vec<&str> = key.readers.iter().filter_map(|reader| command(*reader)).collect();
            let commands = match (key.readers.contains(&Reader::Agent), others.join(", ")) {
                (_, others) if others.is_empty() => String::new(),
                (true, others) => format!("; also a flag of {others}"),
                (false, others) => format!("; of {others}"),
            };
            let value = key.value.replace('|', "\\|");
            out += &format!("| `{}` | `{value}` | `{}` | {}{commands}{live} |\n", key.name, key.default, key.help);
        }
        out += "\n### Removed settings\n\n| key and flag | what happens now |\n|---|---|\n";
        for row in removed::settings() {
            out += &format!("| `{}` | {} |\n", row.name, row.advice);
        }
        out + "\n"
    }

    #[test]
    fn the_default_quiet_period_is_that_of_the_health_policy() {
        let key = KEYS.iter().find(|key| key.name == "health-quiet-period").unwrap();
        assert_eq!(key.default, format!("{}m", decide::health::HealthPolicy::QUIET.as_secs() / 60));
    }

    #[test]
    fn the_tables_in_the_docs_match_the_settings() {
        const BEGIN: &str = "<!-- made from the table of settings by UPDATE_GOLDEN=1 cargo test -->\n";
        const END: &str = "<!-- end -->";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (shown, after) = rest.split_once(END).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        } else {
            assert_eq!(shown, table(), "UPDATE_GOLDEN=1 cargo test -p steward updates docs/configuration.md");
        }
    }
}
