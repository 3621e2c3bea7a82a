//! The command line of `gpu-steward doctor`.

use crate::bundle::BundleOptions;
use crate::leader::LeaderPlace;
use crate::node::NodePlaces;
use crate::print::Output;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use model::id::PodRef;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The name of the scheduler in the chart.
const SCHEDULER: &str = "gpu-steward";
/// The name of the command.
pub const NAME: &str = "doctor";

const ABOUT: &str = "Find out why a pod waits, and whether nodes are well";

const LONG: &str = "\
Looks at the cluster with your own kubeconfig, and at this machine, and says what is wrong and what to do.
It changes nothing. What it may not read it names, with the right that is missing, and goes on.";

const EXAMPLES: &str = "\
Examples:
  gpu-steward doctor pod ml/train-0           why the pod waits for its GPUs, and what to do
  gpu-steward doctor nodes                    every Node with GPUs: register, handshake, slots, health, stream, driver, CDI
  gpu-steward doctor node                     this machine: driver, devices, kubelet, CDI, cgroups, rights, clock
  gpu-steward doctor bundle                   a tar archive for a report of a problem";

const EXIT_CODES: &str = "\
Exit codes:
   0  nothing is wrong
   1  something is wrong
   2  nothing was found to be wrong, but not everything that the answer needs could be looked at
  64  a flag is wrong";

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// All Nodes with GPUs, or with `true` all Nodes.
    Nodes(bool),
    /// This pod, which the scheduler of this name is to place.
    Pod {
        /// The pod.
        pod: PodRef,
        /// The name of the scheduler.
        scheduler: String,
    },
    /// This machine.
    Node(NodePlaces),
    /// Collects what a report of a problem needs.
    Bundle(BundleOptions),
}

/// A parsed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorCommand {
    pub(crate) subject: Subject,
    pub(crate) access: ClusterAccess,
    pub(crate) output: Output,
}

/// How the cluster is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterAccess {
    /// `None` takes `KUBECONFIG`, then the service account of the pod, then `~/.kube/config`.
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) leader: LeaderPlace,
    /// The namespace of gpu-steward; if `None`, its pods and its Lease show it.
    pub(crate) namespace: Option<String>,
}

/// The definition of the command.
#[must_use]
pub fn command() -> Command {
    Command::new(NAME)
        .about(ABOUT)
        .long_about(LONG)
        .after_help(format!("{EXAMPLES}\n\n{EXIT_CODES}"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(pod())
        .subcommand(nodes())
        .subcommand(node())
        .subcommand(bundle())
}

fn pod() -> Command {
    let pod = Arg::new("pod")
        .value_name("NAMESPACE/NAME")
        .required(true)
        .value_parser(pod_ref)
        .help("The pod, as kubectl get pods -A shows it");
    let command = Command::new("pod").about("Find out why a pod waits for its GPUs, and what to do").long_about(
        "Finds out why a pod waits for its GPUs. It looks at the pod and its events, at the pods of the extender, at the decisions of \
         the leading extender, and at the Nodes that were refused, and ends with what to do.\n\
         It needs the rights to get the pod, to list the events of its namespace, to list pods with the label \
         app.kubernetes.io/name=gpu-steward, to get the Lease of the extender (unless --steward-namespace is given), and to get (from \
         Kubernetes 1.35 on also to create) pods/portforward there. It names each right that is missing, and goes on.",
    );
    with_cluster(command.args([pod, scheduler()]))
}

/// The name of the scheduler that asks the extender.
fn scheduler() -> Arg {
    Arg::new("scheduler-name")
        .long("scheduler-name")
        .value_name("NAME")
        .default_value(SCHEDULER)
        .help("spec.schedulerName of pods that gpu-steward is to place (extender.schedulerName of the chart)")
}

fn bundle() -> Command {
    let file = Arg::new("file")
        .short('f')
        .long("file")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .default_value("gpu-steward-bundle.tar")
        .help("The file to write, which must not exist");
    let pod = Arg::new("pod")
        .long("pod")
        .value_name("NAMESPACE/NAME")
        .value_parser(pod_ref)
        .help("A pod that the report is about");
    let command = Command::new("bundle").about("Write what a report of a problem needs into a tar archive").long_about(
        "Writes what a report of a problem needs into a tar archive of at most 20 MiB, and lists what is in it and what is missing: what \
         doctor nodes says, the pods of gpu-steward and the ends of their logs, events, and what the leading extender believes; with --pod \
         also why that pod waits.\n\
         It reads no Secret, and no environment or argument of a container, and removes tokens from log lines. It names pods and nodes.\n\
         Besides the rights of doctor nodes it needs those to list events and to get pods/log.",
    );
    with_cluster(command.args([file, pod, scheduler()]))
}

/// Namespace and name.
fn pod_ref(text: &str) -> Result<PodRef, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(PodRef { namespace: namespace.into(), name: name.into() })
        }
        _ => Err("write NAMESPACE/NAME, such as ml/train-0".to_owned()),
    }
}

fn nodes() -> Command {
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Show Nodes without GPUs, too");
    let command =
        Command::new("nodes").about("Show every Node with GPUs, what is wrong with it, and what to do").long_about(
            "Shows every Node with GPUs as a row. The columns are\n\
           REGISTER       the list of its GPUs, hami.io/node-nvidia-register: ok, none, empty or unreadable\n\
           HANDSHAKE      the age of hami.io/node-handshake; more than 300 s is too old\n\
           SLOTS          what the kubelet offers / what is registered\n\
           HEALTHY        GPUs that get new containers / registered GPUs\n\
           STREAM         the agent's stream to the leading extender, and the age of its last message\n\
           OTHER VENDORS  registered devices of other vendors, which gpu-steward does not place\n\
         A problem that several Nodes have is one finding.",
        );
    with_cluster(command.arg(all))
}

/// The flags with which `doctor node` finds things: name, placeholder, default and help. They have the names, defaults and
/// environment variables of the agent's settings.
const PLACES: [(&str, &str, &str, &str, &str); 12] = [
    (
        "node-name",
        "GPU_STEWARD_NODE_NAME",
        "NAME",
        "auto",
        "This node's name; auto takes the host's name, in lower case",
    ),
    (
        "nvml-library",
        "GPU_STEWARD_NVML_LIBRARY",
        "PATH",
        "auto",
        "NVML library; auto asks the dynamic linker for libnvidia-ml.so.1",
    ),
    ("procfs-root", "GPU_STEWARD_PROCFS_ROOT", "DIR", "/proc", "Directory where the host's /proc is mounted"),
    (
        "cgroup-root",
        "GPU_STEWARD_CGROUP_ROOT",
        "DIR",
        "/sys/fs/cgroup",
        "Directory where the host's cgroup hierarchies are mounted",
    ),
    ("sysfs-root", "GPU_STEWARD_SYSFS_ROOT", "DIR", "/sys", "Directory where the host's /sys is mounted"),
    (
        "dev-root",
        "GPU_STEWARD_DEV_ROOT",
        "DIR",
        "/dev",
        "Directory of the device nodes, as the container runtime sees it",
    ),
    (
        "dev-root-mount",
        "GPU_STEWARD_DEV_ROOT_MOUNT",
        "DIR",
        "auto",
        "The same directory as the agent sees it; auto is the same path",
    ),
    ("kubelet-root", "GPU_STEWARD_KUBELET_ROOT", "DIR", "/var/lib/kubelet", "kubelet's directory, with its sockets"),
    ("cdi-dir", "GPU_STEWARD_CDI_DIR", "DIR", "/var/run/cdi", "Directory where the container runtime reads CDI specs"),
    ("listen", "GPU_STEWARD_LISTEN", "ADDRESS", "0.0.0.0:9410", "Address of the agent on this node"),
    (
        "tls-cert",
        "GPU_STEWARD_TLS_CERT",
        "PATH",
        "none",
        "Certificate with which the agent serves HTTPS; it is then not asked whether it is ready",
    ),
    ("usage-socket", "GPU_STEWARD_USAGE_SOCKET", "PATH", "/run/gpu-steward/agent.sock", "Usage socket of the agent"),
];

fn node() -> Command {
    let places = PLACES.map(|(name, variable, value, default, help)| {
        Arg::new(name).long(name).env(variable).value_name(value).default_value(default).help(help)
    });
    let command = Command::new("node").about("Check this machine: driver, devices, kubelet, CDI, cgroups, rights, clock").long_about(
        "Checks this machine as an agent needs it: the NVIDIA driver and its library, the device nodes, the sockets of the kubelet, the \
         folders with CDI specs, the cgroups, the rights of this user, the agent that runs here, versions, and the clock.\n\
         Run it where the agent runs, because it sees what the agent sees: kubectl exec AGENT-POD -- gpu-steward doctor node\n\
         With access to the API server it also compares the GPUs of the driver with those that the Node registers, and the clocks.",
    );
    with_cluster(command.args(places))
}

fn places(matches: &ArgMatches) -> Result<NodePlaces, clap::Error> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let known = |name: &str| Some(text(name)).filter(|text| text != "auto");
    let listen = text("listen");
    let agent: SocketAddr = listen.parse().map_err(|_| {
        let why = format!("--listen {listen:?} is not an address: write 127.0.0.1:9410\n");
        clap::Error::raw(clap::error::ErrorKind::ValueValidation, why)
    })?;
    // An agent that listens on every address is reached on loopback.
    let loopback = SocketAddr::from(([127, 0, 0, 1], agent.port()));
    let own_cdi_dir = PathBuf::from(text("cdi-dir"));
    let mut cdi_dirs = vec![PathBuf::from("/etc/cdi"), PathBuf::from("/var/run/cdi")];
    if !cdi_dirs.contains(&own_cdi_dir) {
        cdi_dirs = vec![own_cdi_dir.clone()];
    }
    Ok(NodePlaces {
        node: known("node-name").or_else(|| std::env::var("NODE_NAME").ok()),
        nvml_library: known("nvml-library").map(PathBuf::from),
        procfs: text("procfs-root").into(),
        cgroup: text("cgroup-root").into(),
        sysfs: text("sysfs-root").into(),
        dev: known("dev-root-mount").unwrap_or_else(|| text("dev-root")).into(),
        kubelet: text("kubelet-root").into(),
        cdi_dirs,
        own_cdi_dir,
        agent: if agent.ip().is_unspecified() { loopback } else { agent },
        agent_has_tls: text("tls-cert") != "none",
        usage_socket: text("usage-socket").into(),
    })
}

/// The flags of all commands that look at the cluster.
fn with_cluster(command: Command) -> Command {
    let kubeconfig = Arg::new("kubeconfig").long("kubeconfig").value_name("PATH").value_parser(value_parser!(PathBuf)).help(
        "File with the API server and your credentials [default: KUBECONFIG, then the pod's service account, then ~/.kube/config]",
    );
    let extender = Arg::new("extender").long("extender").value_name("URL").value_parser(LeaderPlace::parse).help(
        "Address of the leading extender, such as http://127.0.0.1:9444 [default: a port forwarded into its pod]",
    );
    let namespace = Arg::new("steward-namespace")
        .long("steward-namespace")
        .value_name("NAMESPACE")
        .help("Namespace of gpu-steward, if you may not list the pods of all namespaces [default: where an extender has held its Lease]");
    command.args([kubeconfig, extender, namespace, output()]).after_help(EXIT_CODES)
}

fn output() -> Arg {
    Arg::new("output")
        .short('o')
        .long("output")
        .value_name("FORMAT")
        .value_parser(value_parser!(Output))
        .default_value("text")
        .help("text, or json (one document)")
}

fn scheduler_of(matches: &ArgMatches) -> String {
    matches.get_one::<String>("scheduler-name").cloned().unwrap_or_else(|| SCHEDULER.to_owned())
}

/// Reads matches of [`command`].
///
/// # Errors
/// Without a subcommand, which clap itself does not let through.
pub fn read(matches: &ArgMatches) -> Result<DoctorCommand, clap::Error> {
    let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
    let (subject, sub) = match matches.subcommand() {
        Some(("nodes", sub)) => (Subject::Nodes(sub.get_flag("all")), sub),
        Some(("node", sub)) => (Subject::Node(places(sub)?), sub),
        Some(("pod", sub)) => {
            let pod: PodRef = sub.get_one("pod").cloned().ok_or_else(missing)?;
            (Subject::Pod { pod, scheduler: scheduler_of(sub) }, sub)
        }
        Some(("bundle", sub)) => {
            let file = sub.get_one::<PathBuf>("file").cloned().ok_or_else(missing)?;
            let namespace = sub.get_one("steward-namespace").cloned();
            let options =
                BundleOptions { file, pod: sub.get_one("pod").cloned(), scheduler: scheduler_of(sub), namespace };
            (Subject::Bundle(options), sub)
        }
        _ => return Err(missing()),
    };
    let access = ClusterAccess {
        kubeconfig: sub.get_one("kubeconfig").cloned(),
        leader: sub.get_one("extender").cloned().unwrap_or(LeaderPlace::Pods),
        namespace: sub.get_one("steward-namespace").cloned(),
    };
    Ok(DoctorCommand { subject, access, output: sub.get_one("output").copied().unwrap_or(Output::Text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<DoctorCommand, clap::error::ErrorKind> {
        let matches = command().try_get_matches_from(line.split(' ')).map_err(|error| error.kind())?;
        read(&matches).map_err(|error| error.kind())
    }

    #[test]
    fn the_definition_of_the_command_line_is_valid_and_each_help_names_the_exit_codes() {
        command().debug_assert();
        for sub in command().get_subcommands_mut() {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("2  nothing was found to be wrong"), "{help}");
        }
    }

    #[test]
    fn a_machine_is_looked_at_where_the_agent_looks() {
        let places = |line: &str| match parsed(line).unwrap().subject {
            Subject::Node(places) => places,
            other => panic!("{other:?}"),
        };
        let mounted = places("doctor node --dev-root-mount /host/dev --tls-cert /tls/tls.crt --cdi-dir /etc/cdi");
        assert_eq!((mounted.dev, mounted.own_cdi_dir), ("/host/dev".into(), "/etc/cdi".into()));
        assert!(mounted.agent_has_tls && mounted.cdi_dirs.len() == 2);
        let plain = places("doctor node --dev-root-mount auto --dev-root /d --tls-cert none --cdi-dir /c");
        assert_eq!((plain.dev, plain.agent_has_tls, plain.cdi_dirs), ("/d".into(), false, vec![plain.own_cdi_dir]));
    }

    #[test]
    fn commands_and_flags_are_read() {
        use clap::error::ErrorKind;
        let nodes = parsed("doctor nodes").unwrap();
        let train = PodRef { namespace: "ml".into(), name: "train-0".into() };
        for (line, scheduler) in
            [("doctor pod ml/train-0", SCHEDULER), ("doctor pod --scheduler-name x ml/train-0", "x")]
        {
            let expected = Subject::Pod { pod: train.clone(), scheduler: scheduler.to_owned() };
            assert_eq!(parsed(line).unwrap().subject, expected);
        }
        let access = ClusterAccess { kubeconfig: None, leader: LeaderPlace::Pods, namespace: None };
        assert_eq!(nodes, DoctorCommand { subject: Subject::Nodes(false), access, output: Output::Text });
        let line = "doctor nodes --all -o json --kubeconfig /k --extender http://h:1 --steward-namespace gpu";
        let DoctorCommand { subject, access, output } = parsed(line).unwrap();
        assert_eq!((subject, output), (Subject::Nodes(true), Output::Json));
        assert_eq!(access.kubeconfig, Some("/k".into()));
        assert_eq!((access.leader, access.namespace), (LeaderPlace::Address("h:1".into()), Some("gpu".into())));
        for (line, kind) in [
            ("doctor", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("doctor everything", ErrorKind::InvalidSubcommand),
            ("doctor nodes --extender https://h", ErrorKind::ValueValidation),
            ("doctor pod train-0", ErrorKind::ValueValidation),
            ("doctor node --listen here", ErrorKind::ValueValidation),
            ("doctor pod a/b/c", ErrorKind::ValueValidation),
            ("doctor pod", ErrorKind::MissingRequiredArgument),
            ("doctor nodes -o yaml", ErrorKind::InvalidValue),
        ] {
            assert_eq!(parsed(line).err(), Some(kind), "{line}");
        }
    }
}
