//! A real cluster on this machine, as `tests/cluster/up` makes it (needs root). One at a time: whoever has a [`Cluster`]
//! holds the lock of the scripts, and others wait. Tests that leave the control plane alone go side by side in one
//! ([`Cluster::shared`]), each on a node of its own ([`Cluster::lease`]).

use crate::bearer::Bearer;
use crate::eventually::eventually;
use crate::kubectl::Kubectl;
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The scripts, beside the laboratory.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster");
const LOCK: &str = "/run/lock/gpu-steward-cluster";
/// Of the cluster that most tests use. More tests than that at once would keep two cores busy with themselves.
const NODES: u32 = 3;
/// Longer than anybody's tests hold it; a whole build from nothing may lie between.
const TURN: Duration = Duration::from_secs(1800);
/// The runtime of [`Wanted::usual`], where it is not the one with CDI: the same tests are then run on another.
const RUNTIME: &str = "GPU_STEWARD_CLUSTER_RUNTIME";
/// The version of Kubernetes, where it is not the usual one: the same tests are then run on another.
const KUBERNETES: &str = "GPU_STEWARD_CLUSTER_KUBERNETES";
/// With this in the environment, what a test brought up stays up for the next one; who set it takes it down.
const KEEP: &str = "GPU_STEWARD_CLUSTER_KEEP";

/// What to bring up.
#[derive(Clone, Debug)]
pub struct Wanted {
    nodes: u32,
    runtime: &'static str,
    scheduler: Option<PathBuf>,
}

/// A running cluster. Dropping it takes it down if this process brought it up and nobody else uses it.
#[derive(Debug)]
pub struct Cluster {
    status: Status,
    turn: File,
}

/// A node that nobody else uses, until this is dropped.
#[derive(Debug)]
pub struct Lease {
    /// Its name.
    pub node: String,
    _turn: File,
}

/// The cluster that is up was brought up here, and is not to be kept.
static OURS: AtomicBool = AtomicBool::new(false);

/// What `tests/cluster/status -o json` says.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Every part runs.
    pub up: bool,
    /// Of the group `system:masters`: for the tests' own hands only.
    pub kubeconfig: String,
    /// `https://…`
    pub server: String,
    /// The CA of the server's certificate.
    pub ca: String,
    /// Folders of programs, as in `PATH`.
    pub programs: String,
    /// `containerd2`, `containerd2-cdi-off` or `containerd1.6`.
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
    /// While it runs.
    pub pid: Option<u32>,
    /// What it wrote.
    pub log: PathBuf,
}

/// A node, with its places as they are seen from outside of its mount namespace. Inside everything has its usual path.
#[derive(Clone, Debug, Deserialize)]
pub struct ClusterNode {
    /// `node-1`, …
    pub name: String,
    /// The address that kubelet listens on, port 10250.
    pub address: String,
    /// The process that holds the mount namespace.
    pub pid: u32,
    /// Above kubelet's `kubepods`, in every hierarchy.
    pub cgroup: String,
    /// `/var/lib/kubelet`.
    pub kubelet: PathBuf,
    /// `/var/lib/kubelet/device-plugins`.
    pub plugins: PathBuf,
    /// kubelet's PodResources socket.
    pub pod_resources: PathBuf,
    /// kubelet's checkpoint of devices.
    pub checkpoint: PathBuf,
    /// `/run/cdi`.
    pub cdi: PathBuf,
    /// containerd's socket.
    pub containerd: PathBuf,
    /// Static pods.
    pub manifests: PathBuf,
    /// `/var/log/containers`.
    pub log_links: PathBuf,
}

/// A namespace that goes away with everything in it.
#[derive(Debug)]
pub struct TestNamespace {
    /// Its name.
    pub name: String,
    admin: Kubectl,
}

impl Wanted {
    /// This many nodes, with the runtime that has CDI; 0 is the control plane alone.
    #[must_use]
    pub fn nodes(nodes: u32) -> Wanted {
        Wanted { nodes, runtime: "containerd2", scheduler: None }
    }

    /// That of [`Cluster::shared`], for who needs it alone.
    ///
    /// # Panics
    /// When the environment names a runtime that is none.
    #[must_use]
    pub fn usual() -> Wanted {
        let wanted = Wanted::nodes(NODES);
        match std::env::var(RUNTIME).as_deref() {
            Err(_) | Ok("containerd2") => wanted,
            Ok("containerd2-cdi-off") => wanted.with_cdi_off(),
            Ok("containerd1.6") => wanted.without_cdi(),
            Ok(other) => panic!("{RUNTIME} is {other:?}"),
        }
    }

    /// With Debian's containerd, which has no CDI.
    #[must_use]
    pub fn without_cdi(mut self) -> Wanted {
        self.runtime = "containerd1.6";
        self
    }

    /// With the runtime that has CDI by its version and is told not to use it.
    #[must_use]
    pub fn with_cdi_off(mut self) -> Wanted {
        self.runtime = "containerd2-cdi-off";
        self
    }

    /// Adds this file (profiles, extenders) to kube-scheduler's configuration.
    #[must_use]
    pub fn scheduler(mut self, config: impl Into<PathBuf>) -> Wanted {
        self.scheduler = Some(config.into());
        self
    }

    /// Brings it up, or finds it up.
    fn bring_up(&self) {
        if !script("up", &self.words()).contains("already up") {
            OURS.store(std::env::var_os(KEEP).is_none(), Ordering::SeqCst);
        }
    }

    fn is_up(&self) -> bool {
        let output = command("up", &[self.words(), vec!["--check".into()]].concat()).output();
        output.expect("the script can be run").status.success()
    }

    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            ["--nodes", &self.nodes.to_string(), "--runtime", self.runtime].iter().map(OsString::from).collect();
        if let Some(version) = std::env::var_os(KUBERNETES) {
            words.extend(["--kubernetes".into(), version]);
        }
        if let Some(file) = &self.scheduler {
            words.extend(["--scheduler".into(), file.clone().into_os_string()]);
        }
        words
    }
}

impl Cluster {
    /// Brings it up, or takes the one that is up when it was asked for in the same words. Nobody else has it meanwhile.
    ///
    /// # Panics
    /// When it does not come up; the text holds what the script said.
    #[must_use]
    pub fn up(wanted: &Wanted) -> Cluster {
        let turn = alone(LOCK);
        wanted.bring_up();
        Cluster { status: status(), turn }
    }

    /// The usual one, beside other tests, which have nodes of their own: for tests that leave the control plane alone.
    ///
    /// # Panics
    /// When it does not come up; the text holds what the script said.
    #[must_use]
    pub fn shared() -> Cluster {
        let wanted = Wanted::usual();
        let turn = eventually("a turn in a cluster that others use", TURN, || {
            let turn = lock(LOCK, FlockOperation::NonBlockingLockShared)?;
            if wanted.is_up() {
                return Some(turn);
            }
            drop(turn);
            // Where somebody uses it, a part of his node is away for a moment: it is looked at again.
            let turn = lock(LOCK, FlockOperation::NonBlockingLockExclusive)?;
            wanted.bring_up();
            // Between the two locks somebody may have come who wants another cluster, so it is looked at again.
            drop(turn);
            None
        });
        Cluster { status: status(), turn }
    }

    /// A node of one's own.
    ///
    /// # Panics
    /// When none becomes free.
    #[must_use]
    pub fn lease(&self) -> Lease {
        eventually("a node that nobody uses", TURN, || {
            self.status.nodes.iter().find_map(|node| {
                let turn = lock(&format!("{LOCK}-{}", node.name), FlockOperation::NonBlockingLockExclusive)?;
                Some(Lease { node: node.name.clone(), _turn: turn })
            })
        })
    }

    /// Where everything is.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// A node by its name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn node(&self, name: &str) -> &ClusterNode {
        self.status.nodes.iter().find(|node| node.name == name).expect("a node of that name")
    }

    /// A program of the cluster: `kubectl`, `helm`, `ctr`, …
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        let folders = self.status.programs.split(':').map(|folder| Path::new(folder).join(name));
        folders.clone().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is in none of {folders:?}"))
    }

    /// `kubectl` of the group `system:masters`: makes what a test needs, and is never what is tested.
    #[must_use]
    pub fn admin(&self) -> Kubectl {
        Kubectl::with_config(self.program("kubectl"), &self.status.kubeconfig)
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

    /// A namespace of this name.
    ///
    /// # Panics
    /// When it cannot be made, or its service account does not come.
    #[must_use]
    pub fn namespace(&self, name: &str) -> TestNamespace {
        let admin = self.admin();
        // Left by a test that was killed in a cluster that was kept.
        let _ = admin.run(&["delete", "namespace", name, "--ignore-not-found"]).ok();
        let _ = admin.run(&["create", "namespace", name]).ok();
        // By the controller manager, which after an outage of the API server asks again half a minute later.
        admin.wait("create", Duration::from_secs(120), &["serviceaccount/default", "-n", name]);
        TestNamespace { name: name.to_owned(), admin }
    }

    /// `tests/cluster/part VERB PART`; returns when it is so.
    ///
    /// # Panics
    /// When it does not become so.
    pub fn part(&self, verb: &str, part: &str) {
        script("part", &[verb, part]);
    }

    /// Puts a program with its libraries as an image of this name on every node; `variables` (`NAME=value`) are the image's.
    ///
    /// # Panics
    /// When a node does not take it.
    pub fn image(&self, name: &str, program: &str, variables: &[&str]) {
        script("image", &[&[name, program], variables].concat());
    }

    /// A part's process, while it runs.
    #[must_use]
    pub fn pid(&self, part: &str) -> Option<u32> {
        status().parts.iter().find(|other| other.name == part).and_then(|part| part.pid)
    }

    /// Takes it down and waits for the end, whoever brought it up.
    pub fn down(self) {
        OURS.store(false, Ordering::SeqCst);
        script::<&str>("down", &[]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let last = || flock(&self.turn, FlockOperation::NonBlockingLockExclusive).is_ok();
        if OURS.load(Ordering::SeqCst) && last() {
            OURS.store(false, Ordering::SeqCst);
            // A panic in a drop would hide the test's own.
            let _ = command::<&str>("down", &[]).output();
        }
    }
}

impl ClusterNode {
    /// A command in the node's mount namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid.to_string(), "-m", "--"]).arg(program);
        command
    }

    /// Where this path of the node is, as a path that holds outside too: `/proc/PID/root/…`.
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

/// Waits until nobody holds this lock, and holds it.
///
/// # Panics
/// When it is not free within half an hour, or cannot be written.
#[must_use]
pub fn alone(path: &str) -> File {
    let mut file = eventually("the end of whoever uses the cluster", TURN, || {
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

/// Runs a script to its end and returns what it printed.
pub(crate) fn script<S: AsRef<OsStr> + std::fmt::Debug>(name: &str, args: &[S]) -> String {
    let output = command(name, args).output().expect("the script can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tests/cluster/{name} {args:?}: {}\n{said}{complained}", output.status);
    said
}

fn status() -> Status {
    let output = command("status", &["-o", "json"]).output().expect("the script can be run");
    serde_json::from_slice(&output.stdout).expect("the status in JSON")
}
