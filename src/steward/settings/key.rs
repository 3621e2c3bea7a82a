//! Every setting, once: its name is the flag, the key of the file and (in capitals) the environment variable.

/// One setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// `usage-socket`: the flag without its dashes, the key in the file.
    pub name: &'static str,
    /// Heading in `--help` and docs/configuration.md.
    pub group: Group,
    /// What to write for the value; [`SWITCH`] makes a flag that needs none.
    pub value: &'static str,
    /// What holds when nobody says anything.
    pub default: &'static str,
    /// One sentence or two.
    pub help: &'static str,
    /// Whether SIGHUP takes a new value over from the file.
    pub live: bool,
}

/// Headings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Which node, which mode.
    Node,
    /// GPUs.
    Gpu,
    /// How GPUs are cut and handed out.
    Sharing,
    /// Where the host is looked at.
    Host,
    /// What is served where.
    Serving,
    /// How often.
    Timing,
    /// Log and profiles of the program itself.
    Telemetry,
}

impl Group {
    /// The heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Group::Node => "Node",
            Group::Gpu => "GPUs",
            Group::Sharing => "Sharing",
            Group::Host => "Host",
            Group::Serving => "Serving",
            Group::Timing => "Timing",
            Group::Telemetry => "Telemetry",
        }
    }
}

/// The value of a setting that is on or off.
pub(crate) const SWITCH: &str = "true|false";

/// What an environment variable begins with.
pub(crate) const PREFIX: &str = "GPU_STEWARD_";

const fn key(
    group: Group,
    name: &'static str,
    (value, default): (&'static str, &'static str),
    help: &'static str,
) -> Key {
    Key { name, group, value, default, help, live: false }
}

impl Key {
    const fn live(mut self) -> Key {
        self.live = true;
        self
    }

    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase().replace('-', "_"))
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

use Group::{Gpu, Host, Node, Serving, Sharing, Telemetry, Timing};

/// All of them, in the order of `--help`.
pub(crate) const KEYS: &[Key] = &[
    key(
        Node,
        "standalone",
        (SWITCH, "false"),
        "Run without Kubernetes: look at this machine and serve what is seen, ask no API server",
    ),
    key(Node, "node-name", ("NAME", "auto"), "This node's name; auto takes NODE_NAME, then the host's name"),
    key(
        Node,
        "kubeconfig",
        ("PATH", "auto"),
        "API server and credentials; auto takes KUBECONFIG, then the pod's service account, then ~/.kube/config. With --standalone only a path that is given is used, for names",
    ),
    key(Node, "state-dir", ("DIR", "/var/lib/gpu-steward"), "Directory for what outlives the program"),
    key(
        Node,
        "drain-timeout",
        ("TIME", "5s"),
        "How long the end may take after SIGTERM or SIGINT, in which kubelet's calls and then requests in flight are answered; a second signal ends at once",
    ),
    key(
        Node,
        "pod-labels",
        ("KEY,...", "none"),
        "Labels of pods to show in gpu_steward_pod_labels_info, at most 16: app.kubernetes.io/name,team",
    ),
    key(
        Gpu,
        "gpus",
        ("SOURCE", "nvml"),
        "Where GPUs come from: nvml, none, or simulated[=MODEL[:COUNT]] (H100:8, at most 16): made-up GPUs, marked as such everywhere",
    ),
    key(Gpu, "nvml-library", ("PATH", "auto"), "NVML library; auto asks the dynamic linker for libnvidia-ml.so.1"),
    key(
        Gpu,
        "kernel-log",
        ("PATH", "/dev/kmsg"),
        "Kernel log in which driver errors (XIDs) are looked for; syslog takes the system call of that name, for containers that may \
         not open the device; or none",
    ),
    key(
        Gpu,
        "fatal-xids",
        ("NUMBER,...", "auto"),
        "Driver errors (XIDs) after which a GPU gets no new containers; auto takes those for which NVIDIA's catalogue wants a reset, \
         a restart or a look at the hardware, but for 109. Errors of applications (13, 31, 43, 45, ...) are refused",
    ),
    key(
        Gpu,
        "health-quiet-period",
        ("TIME", "5m"),
        "How long nothing must happen to a GPU, and NVML advise nothing, before it gets new containers again",
    ),
    key(
        Sharing,
        "split-count",
        ("NUMBER", "auto"),
        "How many containers may share a GPU; auto takes deviceSplitCount of the device configuration, else 10",
    ),
    key(
        Sharing,
        "split-count-by-model",
        ("MODEL=NUMBER,...", "none"),
        "Another number for models whose name holds MODEL, the first that fits: A100=20,T4=4",
    ),
    key(
        Sharing,
        "memory-scaling",
        ("FACTOR", "auto"),
        "How much memory may be promised for each byte of a GPU; auto takes deviceMemoryScaling, else 1",
    ),
    key(
        Sharing,
        "core-scaling",
        ("FACTOR", "auto"),
        "How much SM time may be promised for each percent of a GPU; auto takes deviceCoreScaling, else 1",
    ),
    key(
        Sharing,
        "resource-name",
        ("NAME", "auto"),
        "Resource that counts GPUs; auto takes resourceCountName, else nvidia.com/gpu",
    ),
    key(
        Sharing,
        "resource-name-memory",
        ("NAME", "auto"),
        "Resource for MiB of each GPU; auto takes resourceMemoryName, else nvidia.com/gpumem",
    ),
    key(
        Sharing,
        "resource-name-memory-percentage",
        ("NAME", "auto"),
        "Resource for percent of each GPU's memory; auto takes resourceMemoryPercentageName, else nvidia.com/gpumem-percentage",
    ),
    key(
        Sharing,
        "resource-name-cores",
        ("NAME", "auto"),
        "Resource for percent of each GPU's SM time; auto takes resourceCoreName, else nvidia.com/gpucores",
    ),
    key(
        Sharing,
        "resource-name-priority",
        ("NAME", "auto"),
        "Resource for the priority of a task, 0 high and 1 low; auto takes resourcePriorityName, else nvidia.com/priority",
    ),
    key(
        Sharing,
        "device-config-file",
        ("PATH", "none"),
        "HAMi's device YAML, read as it is: names, scaling, counts, overrides of single nodes",
    ),
    key(
        Sharing,
        "registration",
        ("auto|watcher|classic", "auto"),
        "How kubelet comes to know the plugin: its plugin registry, or Register as kubelets of old want it; auto tries in this order",
    ),
    key(
        Sharing,
        "without-claim",
        ("auto|share|refuse", "auto"),
        "What a pod gets that no scheduler with an extender placed: the GPUs of its slots as time-slicing gives them, or no start; \
         auto shares only where no such scheduler has ever served this node",
    ),
    key(
        Sharing,
        "same-gpu-twice",
        ("refuse|allow", "refuse"),
        "What happens to a container that asks for several GPUs and would get the same one more than once: its start is refused, or it \
         starts and sees one GPU",
    ),
    key(
        Sharing,
        "binding",
        ("auto|late|early", "auto"),
        "When a container gets its devices: when it starts and is known (late; needs CDI), or when kubelet allocates, confirmed \
         at the start (early); auto goes by the versions of kubelet and runtime, by whether the runtime says that its CDI is on, \
         and by whether the first containers got them",
    ),
    key(
        Sharing,
        "topology-policy",
        ("auto|none|best-effort|restricted|single-numa-node", "auto"),
        "kubelet's topology manager policy: with any but none a claim moves to the devices that kubelet chose, where it fits; \
         auto reads config.yaml in kubelet's directory, else none",
    ),
    key(
        Sharing,
        "device-strategy",
        ("auto|cdi|envvar", "auto"),
        "Who puts devices into containers: we by CDI, or the NVIDIA runtime by NVIDIA_VISIBLE_DEVICES; auto asks the container \
         runtime and is envvar where every pod runs under NVIDIA's, else cdi",
    ),
    key(
        Sharing,
        "allow-unisolated-gpus",
        (SWITCH, "false"),
        "Share GPUs also where binding is early and NVIDIA's runtime puts devices into containers (envvar): there a pod's own \
         NVIDIA_VISIBLE_DEVICES=all opens every GPU of the node. Without it no container gets GPUs there",
    ),
    key(
        Sharing,
        "host-cdi-dirs",
        ("DIR,...", "/etc/cdi,/var/run/cdi"),
        "Where the CDI spec of NVIDIA's container toolkit (nvidia*.yaml, nvidia*.json) is looked for, in rising priority; what it \
         gives (libraries, hooks, nodes) goes into every container with a GPU; none takes nothing",
    ),
    key(
        Sharing,
        "limiter-library",
        ("PATH", "none"),
        "HAMi-core's library (libvgpu.so) on this node, which holds containers to their limits; each version is kept for the \
         containers that have it",
    ),
    key(
        Sharing,
        "pod-files-limit",
        ("SIZE", "64MiB"),
        "How much a pod may write into the folders that the limiter needs writable, each file and folder counted as 4 KiB or more; \
         beyond it the pod gets an event and the mark for eviction",
    ),
    key(
        Sharing,
        "evict-over-use",
        (SWITCH, "false"),
        "Evict a pod that has held more GPU memory than it was promised for a minute and a half, or has written more than \
         pod-files-limit; without it there is an event and a metric",
    ),
    key(
        Sharing,
        "register-format",
        ("json|colon", "json"),
        "How this node's GPUs are written on its Node: json for HAMi 2.8 and later, colon for older schedulers",
    ),
    key(
        Sharing,
        "handshake",
        (SWITCH, "true"),
        "Write a sign of life on our Node every four minutes, for HAMi's scheduler",
    ),
    key(
        Sharing,
        "node-labels",
        ("auto|on|off", "auto"),
        "Describe this node's GPUs by the labels that GPU feature discovery writes (nvidia.com/gpu.product, ...); auto does so unless somebody else does",
    ),
    key(
        Sharing,
        "kubelet-root",
        ("DIR", "/var/lib/kubelet"),
        "kubelet's directory, with its device plugins and registry",
    ),
    key(
        Sharing,
        "cdi-dir",
        ("DIR", "/var/run/cdi"),
        "Where the container runtime looks for CDI specs that are made while it runs",
    ),
    key(Sharing, "dev-root", ("DIR", "/dev"), "Where the host's device nodes lie, as the container runtime sees it"),
    key(
        Sharing,
        "dev-root-mount",
        ("DIR", "auto"),
        "Where this program sees that directory; auto is the same path. In a container it is a mount of the host's",
    ),
    key(Host, "procfs-root", ("DIR", "/proc"), "Where the host's /proc is mounted"),
    key(Host, "cgroup-root", ("DIR", "/sys/fs/cgroup"), "Where the host's cgroup hierarchies are mounted"),
    key(Host, "sysfs-root", ("DIR", "/sys"), "Where the host's /sys is mounted"),
    key(
        Host,
        "cri-socket",
        ("PATH", "auto"),
        "Container runtime's socket, for names, for whether its CDI is on and for who puts devices into containers; auto tries the known \
         places, none asks nobody",
    ),
    key(Host, "log-links", ("DIR", "/var/log/containers"), "kubelet's links, for names where there is no such socket"),
    key(
        Host,
        "pod-resources-socket",
        ("PATH", "/var/lib/kubelet/pod-resources/kubelet.sock"),
        "kubelet's socket that tells which devices a container holds",
    ),
    key(Serving, "listen", ("ADDRESS", "0.0.0.0:9410"), "Metrics, API and health"),
    key(
        Serving,
        "admin-listen",
        ("ADDRESS", "127.0.0.1:9411"),
        "Profiles and log level of the program itself, or none; elsewhere than on loopback only over HTTPS, with admin-client-ca or admin-token-file",
    ),
    key(
        Serving,
        "allowed-hosts",
        ("NAME,...", "none"),
        "Further names (Host headers) under which callers may ask for /api/v1 and the admin port, beside localhost, the address that they reach and the node's name; all others are refused",
    ),
    key(Serving, "usage-socket", ("PATH", "/run/gpu-steward/agent.sock"), "Unix socket of the usage stream, or none"),
    key(Serving, "metrics-dcgm", (SWITCH, "true"), "Carry dcgm-exporter's names at /metrics too").live(),
    key(
        Serving,
        "metrics-dcgm-renamed",
        (SWITCH, "false"),
        "Carry beside dcgm-exporter's names those that DCGM 4.6 has given to the same fields (..._TEMP_CELSIUS, ..._UTIL_RATIO, ...)",
    )
    .live(),
    key(Serving, "metrics-hami", (SWITCH, "false"), "Carry HAMi monitor's names at /metrics too").live(),
    key(Serving, "metrics-cadvisor", (SWITCH, "false"), "Carry cAdvisor's names at /metrics too").live(),
    key(
        Serving,
        "api-token-file",
        ("PATH", "none"),
        "File with the bearer token that every caller needs for /api/v1, also on this machine; none refuses callers from elsewhere",
    )
    .live(),
    key(Serving, "admin-tls-cert", ("PATH", "none"), "Certificate chain (PEM) that makes the admin port HTTPS"),
    key(Serving, "admin-tls-key", ("PATH", "none"), "Its key (PEM)"),
    key(
        Serving,
        "admin-client-ca",
        ("PATH", "none"),
        "Authorities (PEM) one of which must have signed the certificate that a caller of the admin port shows; needs HTTPS there",
    ),
    key(
        Serving,
        "admin-token-file",
        ("PATH", "none"),
        "File with the bearer token that every caller of the admin port needs; read at the start",
    ),
    key(Timing, "period", ("TIME", "1s"), "Time between two looks at CPU, memory and the cheap GPU readings"),
    key(Timing, "slow-period", ("TIME", "5s"), "Time between two looks at all else of the host"),
    key(Timing, "process-period", ("TIME", "5s"), "Time between two lists of GPU processes"),
    key(Telemetry, "v", ("0|2|4|5", "0"), "Detail of the log: 0 errors, warnings and key events, 5 everything").live(),
    key(
        Telemetry,
        "log-format",
        ("FORMAT", "auto"),
        "text, json or journald; auto is journald under systemd, else text on stderr",
    ),
    key(Telemetry, "profiling", (SWITCH, "false"), "Serve /debug/pprof/ on the admin port"),
];

/// The setting whose name is most like `name`, if any is near enough to be what was meant.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let asked = kebab(name);
    let (distance, best) = KEYS.iter().map(|key| (distance(&asked, key.name), key.name)).min()?;
    (distance <= 1 + best.len() / 4).then_some(best)
}

/// `usageSocket`, `usage_socket` and `--usage-socket` are all meant as `usage-socket`.
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

/// Levenshtein's distance, one row at a time.
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

/// A Service called `gpu-steward` makes kubelet set `GPU_STEWARD_SERVICE_HOST`, `GPU_STEWARD_PORT_9410_TCP` and the like
/// in every container of its namespace; they are not settings.
pub(crate) fn is_service_variable(variable: &str) -> bool {
    variable.strip_prefix(PREFIX).is_some_and(|rest| {
        rest == "PORT" || rest.starts_with("PORT_") || rest == "SERVICE_HOST" || rest.starts_with("SERVICE_PORT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_setting_and_nonsense_finds_none() {
        for (slip, meant) in [
            ("usage_socket", Some("usage-socket")),
            ("usageSocket", Some("usage-socket")),
            ("perod", Some("period")),
            ("metrics-dcmg", Some("metrics-dcgm")),
            ("cgroup", None),
            ("zzz", None),
        ] {
            assert_eq!(nearest(slip), meant, "{slip}");
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

    /// The table of docs/configuration.md.
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
            let value = key.value.replace('|', "\\|");
            out += &format!("| `{}` | `{value}` | `{}` | {}{live} |\n", key.name, key.default, key.help);
        }
        out + "\n"
    }

    #[test]
    fn the_reference_is_this_table() {
        const BEGIN: &str = "<!-- made from the table of settings by UPDATE_GOLDEN=1 cargo test -->\n";
        const END: &str = "<!-- end -->";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (shown, after) = rest.split_once(END).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        } else {
            assert_eq!(shown, table(), "UPDATE_GOLDEN=1 cargo test -p steward writes it anew");
        }
    }
}
