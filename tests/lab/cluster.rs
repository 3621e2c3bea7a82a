//! A real cluster on this machine, which `tests/cluster/up` starts (needs root). There is one at a time: a [`Cluster`]
//! holds the lock of the scripts, and other tests wait. Tests that do not change the control plane run in parallel in
//! one cluster ([`Cluster::shared`]), each on its own node ([`Cluster::lease`]).

use crate::bearer::Bearer;
use crate::eventually::eventually;
use crate::kubectl::Kubectl;
use crate::object_reads::ObjectReads;
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The folder of the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster");
const LOCK: &str = "/run/lock/gpu-steward-cluster";
/// Nodes of the cluster that tests use exclusively.
const NODES: u32 = 3;
/// Nodes of the cluster that tests share, one for each. More parallel tests would overload a machine with two cores.
const SHARED_NODES: u32 = 4;
/// Longest wait for the lock. Another test may hold it while it builds everything from scratch.
const LOCK_WAIT: Duration = Duration::from_secs(1800);
/// The variable with the version of Kubernetes, to run the same tests on a version other than the usual one.
const KUBERNETES: &str = "GPU_STEWARD_CLUSTER_KUBERNETES";
/// With this variable a cluster stays up after the test that started it. The user who sets it must take the cluster
/// down.
const KEEP: &str = "GPU_STEWARD_CLUSTER_KEEP";

/// The cluster that a test needs.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    nodes: u32,
    runtime: &'static str,
    scheduler: Option<PathBuf>,
}

/// A running cluster. Dropping it takes the cluster down if this process brought it up and no other test uses it.
#[derive(Debug)]
pub struct Cluster {
    status: Status,
    cluster_lock: File,
}

/// A node that no other test uses until this is dropped.
#[derive(Debug)]
pub struct Lease {
    /// The name of the node.
    pub node: String,
    _node_lock: File,
}

/// Whether this process brought the cluster up and must take it down.
static OURS: AtomicBool = AtomicBool::new(false);

/// The output of `tests/cluster/status -o json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Whether every part runs.
    pub up: bool,
    /// The path of a kubeconfig of the group `system:masters`, for the tests' own calls only.
    pub kubeconfig: String,
    /// The URL of the API server, `https://…`
    pub server: String,
    /// The path of the CA of the server's certificate.
    pub ca: String,
    /// Folders of programs, as in `PATH`.
    pub programs: String,
    /// `containerd2` or `containerd2-cdi-off`.
    pub runtime: String,
    /// The API server's audit log, one request a line.
    pub audit: PathBuf,
    /// The processes.
    pub parts: Vec<Part>,
    /// The nodes.
    pub nodes: Vec<ClusterNode>,
}

/// A process of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub struct Part {
    /// `apiserver`, `node-1-kubelet`, …
    pub name: String,
    /// The process id, while it runs.
    pub pid: Option<u32>,
    /// The path of its log.
    pub log: PathBuf,
}

/// A node, with its paths as seen from outside its mount namespace. Inside everything has its usual path.
#[derive(Clone, Debug, Deserialize)]
pub struct ClusterNode {
    /// `node-1`, …
    pub name: String,
    /// The address that kubelet listens on, port 10250.
    pub address: String,
    /// The process that holds the mount namespace.
    pub pid: u32,
    /// The cgroup above kubelet's `kubepods`, in every hierarchy.
    pub cgroup: String,
    /// `/var/lib/kubelet`.
    pub kubelet: PathBuf,
    /// `/var/lib/kubelet/device-plugins`.
    pub plugins: PathBuf,
    /// kubelet's PodResources socket.
    pub pod_resources: PathBuf,
    /// kubelet's checkpoint.
    pub checkpoint: PathBuf,
    /// `/run/cdi`.
    pub cdi: PathBuf,
    /// containerd's socket.
    pub containerd: PathBuf,
    /// The folder of static pods.
    pub manifests: PathBuf,
    /// `/var/log/containers`.
    pub log_links: PathBuf,
}

/// A namespace. Dropping it deletes the namespace with everything in it.
#[derive(Debug)]
pub struct TestNamespace {
    /// The name of the namespace.
    pub name: String,
    admin: Kubectl,
}

impl ClusterOptions {
    /// A cluster of this many nodes, with the runtime that has CDI; 0 is the control plane only.
    #[must_use]
    pub fn nodes(nodes: u32) -> ClusterOptions {
        ClusterOptions { nodes, runtime: "containerd2", scheduler: None }
    }

    /// The cluster of most tests that need it exclusively.
    #[must_use]
    pub fn usual() -> ClusterOptions {
        ClusterOptions::nodes(NODES)
    }

    /// With the runtime whose version has CDI, but whose configuration disables it.
    #[must_use]
    pub fn with_cdi_off(mut self) -> ClusterOptions {
        self.runtime = "containerd2-cdi-off";
        self
    }

    /// Adds this file (profiles, extenders) to kube-scheduler's configuration.
    #[must_use]
    pub fn scheduler(mut self, config: impl Into<PathBuf>) -> ClusterOptions {
        self.scheduler = Some(config.into());
        self
    }

    /// Brings the cluster up if it is not up yet.
    fn bring_up(&self) {
        if !script("up", &self.arguments()).contains("already up") {
            OURS.store(std::env::var_os(KEEP).is_none(), Ordering::SeqCst);
        }
    }

    fn is_up(&self) -> bool {
        let output = command("up", &[self.arguments(), vec!["--check".into()]].concat()).output();
        output.expect("the script can be run").status.success()
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            ["--nodes", &self.nodes.to_string(), "--runtime", self.runtime].iter().map(OsString::from).collect();
        if let Some(version) = std::env::var_os(KUBERNETES) {
            arguments.extend(["--kubernetes".into(), version]);
        }
        if let Some(file) = &self.scheduler {
            arguments.extend(["--scheduler".into(), file.clone().into_os_string()]);
        }
        arguments
    }
}

impl Cluster {
    /// Brings the cluster up, or takes a running one that was started with the same arguments. No other test uses it
    /// at the same time.
    ///
    /// # Panics
    /// If it does not come up; the text contains the script's output.
    #[must_use]
    pub fn up(options: &ClusterOptions) -> Cluster {
        let cluster_lock = exclusive_lock(LOCK);
        options.bring_up();
        Cluster { status: status(), cluster_lock }
    }

    /// A cluster that is shared with other tests, each on its own nodes: for tests that do not change the control
    /// plane.
    ///
    /// # Panics
    /// If it does not come up; the text contains the script's output.
    #[must_use]
    pub fn shared() -> Cluster {
        let options = ClusterOptions::nodes(SHARED_NODES);
        let cluster_lock = eventually("a cluster that other tests share", LOCK_WAIT, || {
            let cluster_lock = lock(LOCK, FlockOperation::NonBlockingLockShared)?;
            if options.is_up() {
                return Some(cluster_lock);
            }
            drop(cluster_lock);
            // This lock fails while another test holds the shared lock: that test has stopped a part of its node for a
            // moment, or it uses another cluster. Check again later.
            let cluster_lock = lock(LOCK, FlockOperation::NonBlockingLockExclusive)?;
            options.bring_up();
            // Between the two locks a test may start another cluster, so check again with the shared lock.
            drop(cluster_lock);
            None
        });
        Cluster { status: status(), cluster_lock }
    }

    /// Takes a node that no other test uses.
    ///
    /// # Panics
    /// If none becomes free.
    #[must_use]
    pub fn lease(&self) -> Lease {
        eventually("a node that no other test uses", LOCK_WAIT, || {
            self.status.nodes.iter().find_map(|node| {
                let node_lock = lock(&format!("{LOCK}-{}", node.name), FlockOperation::NonBlockingLockExclusive)?;
                Some(Lease { node: node.name.clone(), _node_lock: node_lock })
            })
        })
    }

    /// The paths and processes of the cluster.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// A node by its name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn node(&self, name: &str) -> &ClusterNode {
        self.status.nodes.iter().find(|node| node.name == name).expect("a node of that name")
    }

    /// The path of a program of the cluster: `kubectl`, `ctr`, …
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        let folders = self.status.programs.split(':').map(|folder| Path::new(folder).join(name));
        folders.clone().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is in none of {folders:?}"))
    }

    /// `kubectl` of the group `system:masters`, for the objects that a test needs. Tests do not test its rights.
    #[must_use]
    pub fn admin(&self) -> Kubectl {
        let Status { server, ca, kubeconfig, .. } = &self.status;
        Kubectl::with_config(self.program("kubectl"), kubeconfig).reading(ObjectReads::beside(server, ca, "admin"))
    }

    /// `kubectl` with a token.
    #[must_use]
    pub fn bearer(&self, token: &str) -> Kubectl {
        Kubectl::with_token(self.program("kubectl"), &self.status.server, &self.status.ca, token)
    }

    /// Single requests with a token.
    #[must_use]
    pub fn caller(&self, token: &str) -> Bearer {
        Bearer::of(&self.status.server, &self.status.ca, token)
    }

    /// Makes a namespace of this name.
    ///
    /// # Panics
    /// If it cannot be made, or its service account does not appear.
    #[must_use]
    pub fn namespace(&self, name: &str) -> TestNamespace {
        let admin = self.admin();
        // A killed test may have left the namespace in a cluster that was kept.
        let _ = admin.run(&["delete", "namespace", name, "--ignore-not-found"]).ok();
        let _ = admin.run(&["create", "namespace", name]).ok();
        // The controller manager creates the account. After an outage of the API server it retries half a minute later.
        admin.wait("create", Duration::from_secs(120), &["serviceaccount/default", "-n", name]);
        TestNamespace { name: name.to_owned(), admin }
    }

    /// Runs `tests/cluster/part VERB PART`, which returns when the part is in the new state.
    ///
    /// # Panics
    /// If the script fails.
    pub fn part(&self, verb: &str, part: &str) {
        script("part", &[verb, part]);
    }

    /// Makes an image of this name from a program and its libraries on every node. `variables` (`NAME=value`) are the
    /// image's environment.
    ///
    /// # Panics
    /// If the script fails on a node.
    pub fn image(&self, name: &str, program: &str, variables: &[&str]) {
        script("image", &[&[name, program], variables].concat());
    }

    /// Makes an image on one node only.
    ///
    /// # Panics
    /// If the script fails.
    pub fn image_on(&self, node: &str, name: &str, program: &str) {
        script("image", &["--node", node, name, program]);
    }

    /// Removes an image from a node.
    ///
    /// # Panics
    /// If `ctr` cannot be run.
    pub fn remove_image_on(&self, node: &str, name: &str) {
        let mut remove = self.node(node).command(self.program("ctr"));
        let _ = remove.args(["-n", "k8s.io", "images", "rm", "--sync", name]).output().expect("ctr");
    }

    /// The process id of a part of the cluster (a name of `tests/cluster/part`), or `None` while it does not run.
    #[must_use]
    pub fn pid(&self, part: &str) -> Option<u32> {
        status().parts.iter().find(|other| other.name == part).and_then(|part| part.pid)
    }

    /// Takes the cluster down and waits for its end, even if another process brought it up.
    pub fn down(self) {
        OURS.store(false, Ordering::SeqCst);
        script::<&str>("down", &[]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let last = || flock(&self.cluster_lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if OURS.load(Ordering::SeqCst) && last() {
            OURS.store(false, Ordering::SeqCst);
            // No panic here: it would hide the panic of the test.
            let _ = command::<&str>("down", &[]).output();
        }
    }
}

impl ClusterNode {
    /// A command that runs in the node's mount namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid.to_string(), "-m", "--"]).arg(program);
        command
    }

    /// Turns a path of the node into one that is valid outside its mount namespace: `/proc/PID/root/…`.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        let _ = self.admin.run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// The path of helm. It is built if it is missing, and needs no cluster.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn helm() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| PathBuf::from(script("up", &["--helm"]).trim())).clone()
}

/// Waits until this lock is free, and takes it.
///
/// # Panics
/// If it is not free within half an hour, or cannot be written.
#[must_use]
pub fn exclusive_lock(path: &str) -> File {
    let mut file = eventually("the end of other tests that use the cluster", LOCK_WAIT, || {
        lock(path, FlockOperation::NonBlockingLockExclusive)
    });
    file.set_len(0).expect("the lock can be written");
    writeln!(file, "process {}, a test", std::process::id()).expect("the lock can be written");
    file
}

fn lock(path: &str, operation: FlockOperation) -> Option<File> {
    let file = File::options().create(true).append(true).open(path).expect("the lock can be opened");
    flock(&file, operation).ok()?;
    Some(file)
}

fn command<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Command {
    let mut command = Command::new(Path::new(SCRIPTS).join(name));
    command.args(args).env("GPU_STEWARD_CLUSTER_HELD", "1").stdin(Stdio::null());
    command
}

/// Runs a script to its end and returns its stdout.
pub(crate) fn script<S: AsRef<OsStr> + std::fmt::Debug>(name: &str, args: &[S]) -> String {
    let output = command(name, args).output().expect("the script can be run");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tests/cluster/{name} {args:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

fn status() -> Status {
    let output = command("status", &["-o", "json"]).output().expect("the script can be run");
    serde_json::from_slice(&output.stdout).expect("the status in JSON")
}
