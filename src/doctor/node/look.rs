//! Looks at this machine.

use crate::cluster::ClusterReader;
use crate::finding::{Seen, Unread};
use crate::http::HttpConnection;
use model::id::NodeName;
use model::nvidia::REGISTER;
use model::time::WallTime;
use rustix::fs::{Access, access};
use sources::bounded_file;
use sources::cgroup::layout::{CgroupLayout, CgroupNamespace, kernel_release};
use sources::kernel_file::KernelFileReader;
use sources::nvml::probe::{NvmlFailure, NvmlProbe, probe};
use sources::procfs::process::namespace;
use sources::roots::HostRoots;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use wire::described_node::DescribedNode;
use wire::register;

/// How long the driver may take to answer. On a machine without the persistence daemon it loads its firmware first.
const DRIVER_WITHIN: Duration = Duration::from_secs(20);
/// How long a socket may take to accept a connection.
const SOCKET_WITHIN: Duration = Duration::from_secs(2);
/// Maximum bytes of the driver's version file that are read.
const MAX_VERSION: usize = 4096;
/// Maximum number of device nodes, and of specs, that are counted: more than a machine has.
const MAX_ENTRIES: usize = 4096;
/// Inode number of the first PID namespace, fixed in the kernel (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Where things are on this machine. The flags have the names and defaults of the agent's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlaces {
    pub(crate) node: Option<String>,
    pub(crate) nvml_library: Option<PathBuf>,
    pub(crate) procfs: PathBuf,
    pub(crate) cgroup: PathBuf,
    pub(crate) sysfs: PathBuf,
    pub(crate) dev: PathBuf,
    pub(crate) kubelet: PathBuf,
    pub(crate) cdi_dirs: Vec<PathBuf>,
    /// The folder in `cdi_dirs` in which the agent writes.
    pub(crate) own_cdi_dir: PathBuf,
    pub(crate) agent: SocketAddr,
    /// Whether the agent serves only HTTPS there.
    pub(crate) agent_has_tls: bool,
    pub(crate) usage_socket: PathBuf,
}

/// A path, and what could be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub(crate) path: PathBuf,
    /// The error says what failed.
    pub(crate) outcome: Result<(), String>,
}

/// A folder with CDI specs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CdiFolder {
    pub(crate) tried: Tried,
    /// Whether the agent writes its specs here.
    pub(crate) is_agents: bool,
    /// Number of the folder's files that NVIDIA's toolkit wrote, and of gpu-steward's files.
    pub(crate) toolkit: usize,
    pub(crate) own: usize,
}

/// What is known about this machine.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kernel: String,
    /// The first line of the driver's version file; `None` if it is not loaded.
    pub(crate) driver: Option<String>,
    pub(crate) nvml: Result<NvmlProbe, NvmlFailure>,
    /// The GPUs that the Node registers; `None` if the Node is not seen.
    pub(crate) registered: Option<Vec<String>>,
    pub(crate) devices: Vec<Tried>,
    pub(crate) sockets: Vec<Tried>,
    pub(crate) cdi: Vec<CdiFolder>,
    /// `v1`, `v2` or `hybrid`.
    pub(crate) cgroups: Result<String, String>,
    pub(crate) private_cgroups: Option<bool>,
    /// Whether this process sees the processes of the whole machine; `None` if the kernel does not show it.
    pub(crate) host_pids: Option<bool>,
    pub(crate) user: u32,
    /// The answer of this machine's agent at `/readyz`; `None` if it listens and serves HTTPS.
    pub(crate) agent: Result<Option<(u16, String)>, String>,
    pub(crate) usage_socket: Tried,
    /// Whether a flag, a kubeconfig or a service account names an API server. If none does, what only the API server knows is a
    /// note in the report, not a problem.
    pub(crate) has_cluster: bool,
    pub(crate) node: Seen<DescribedNode>,
    /// The time of the API server, and of this machine at that moment.
    pub(crate) clocks: Seen<(WallTime, WallTime)>,
}

/// Looks at everything. `has_cluster` says whether something names an API server.
pub(crate) async fn look(places: &NodePlaces, (cluster, has_cluster): (&Seen<ClusterReader>, bool)) -> NodeFacts {
    let name = node_name(places);
    let (node, clocks) = match cluster {
        Ok(cluster) => {
            let node = match NodeName::parse(&name) {
                Ok(name) => cluster.node(&name).await,
                Err(why) => Err(Unread::new(format!("Node {name:?}"), why)),
            };
            (node, cluster.server_time().await.map(|there| (there, clock::now().wall)))
        }
        Err(unread) => (Err(unread.clone()), Err(unread.clone())),
    };
    let registered: Option<Vec<String>> = node.as_ref().ok().and_then(|node| {
        let gpus = register::decode(node.annotations.get(REGISTER)?).ok()?;
        Some(gpus.iter().map(|gpu| gpu.uuid.to_string()).filter(|uuid| uuid.starts_with("GPU-")).collect())
    });
    let roots = HostRoots { procfs: places.procfs.clone(), cgroup: places.cgroup.clone(), sysfs: places.sysfs.clone() };
    let mut reader = KernelFileReader::default();
    let layout = CgroupLayout::detect(&mut reader, &roots);
    let cgroup_namespace = CgroupNamespace::detect(&mut reader, &roots);
    let (plugins, resources) = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock");
    NodeFacts {
        name,
        version: serve::version::version().to_owned(),
        kernel: kernel_release(&mut reader, &roots),
        driver: driver(&places.procfs),
        nvml: probe(places.nvml_library.clone(), registered.clone().unwrap_or_default(), DRIVER_WITHIN),
        registered,
        devices: devices(&places.dev),
        sockets: vec![socket(places.kubelet.join(plugins)).await, socket(places.kubelet.join(resources)).await],
        cdi: places.cdi_dirs.iter().map(|path| cdi_folder(path, *path == places.own_cdi_dir)).collect(),
        cgroups: layout.map(|layout| layout.version.code().to_owned()).map_err(|why| why.to_string()),
        private_cgroups: cgroup_namespace.private,
        host_pids: namespace(&mut reader, b"/proc", b"self", "pid").ok().map(|number| number == FIRST_PID_NAMESPACE),
        user: rustix::process::geteuid().as_raw(),
        agent: agent(places.agent, places.agent_has_tls).await,
        usage_socket: socket(places.usage_socket.clone()).await,
        has_cluster,
        node,
        clocks,
    }
}

/// The name of the Node: the given name, otherwise the host's name, as the kubelet uses it.
fn node_name(places: &NodePlaces) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    places.node.clone().unwrap_or(host)
}

fn driver(procfs: &Path) -> Option<String> {
    let text = bounded_file::read_start(&procfs.join("driver/nvidia/version"), MAX_VERSION).ok()?;
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
}

/// Names in a folder.
fn names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let names = entries.flatten().take(MAX_ENTRIES).map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// The device nodes of the driver: `nvidiactl`, `nvidia-uvm` and `nvidiaN`.
fn devices(dev: &Path) -> Vec<Tried> {
    let is_gpu = |name: &String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let gpus = names(dev).unwrap_or_default().into_iter().filter(is_gpu);
    let all = ["nvidiactl".to_owned(), "nvidia-uvm".to_owned()].into_iter().chain(gpus);
    all.map(|name| allowed(dev.join(name), Access::READ_OK | Access::WRITE_OK)).collect()
}

fn allowed(path: PathBuf, what: Access) -> Tried {
    let outcome = access(&path, what).map_err(|error| error.to_string());
    Tried { path, outcome }
}

fn cdi_folder(path: &Path, is_agents: bool) -> CdiFolder {
    let names = names(path);
    let count = |start: &str| names.iter().flatten().filter(|name| name.starts_with(start)).count();
    let (toolkit, own) = (count("nvidia"), count("gpu-steward.io-"));
    let tried = match &names {
        Ok(_) => allowed(path.to_owned(), Access::WRITE_OK),
        Err(why) => Tried { path: path.to_owned(), outcome: Err(why.clone()) },
    };
    CdiFolder { tried, is_agents, toolkit, own }
}

async fn socket(path: PathBuf) -> Tried {
    let outcome = match timeout(SOCKET_WITHIN, UnixStream::connect(&path)).await {
        Ok(connected) => connected.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("not accepted within {} s", SOCKET_WITHIN.as_secs())),
    };
    Tried { path, outcome }
}

async fn agent(address: SocketAddr, has_tls: bool) -> Result<Option<(u16, String)>, String> {
    let stream = match timeout(SOCKET_WITHIN, TcpStream::connect(address)).await {
        Ok(stream) => stream.map_err(|error| format!("no agent listens at {address}: {error}"))?,
        Err(_) => {
            return Err(format!("no agent listens at {address}: no connection within {} s", SOCKET_WITHIN.as_secs()));
        }
    };
    if has_tls {
        return Ok(None);
    }
    let mut http = HttpConnection::over(stream).await?;
    let (status, body) = http.get(&address.to_string(), "/readyz").await?;
    Ok(Some((status.as_u16(), String::from_utf8_lossy(&body).trim().to_owned())))
}
