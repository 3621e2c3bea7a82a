//! An extender and a kube-scheduler as processes of this machine, with the account that the chart gives them. Tests kill
//! them, pause them and start them again.

use crate::built::{TEST_BUILD, binary};
use crate::chart::{self, EXTENDER, NAMESPACE};
use crate::placed::Placed;
use lab::extender::ExtenderProcess;
use serde_json::json;
use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A running extender with the rights of the chart.
#[derive(Debug)]
pub(crate) struct HostExtender(ExtenderProcess);

/// A running kube-scheduler, with the configuration that the program prints.
#[derive(Debug)]
pub(crate) struct HostScheduler {
    child: Child,
    _dir: TempDir,
}

/// A kubeconfig with a token of the extender's account.
pub(crate) fn kubeconfig(placed: &Placed, dir: &Path) -> PathBuf {
    let status = placed.cluster.status();
    let token = chart::token(&placed.admin, EXTENDER, &["--duration=2h"]);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": status.server, "certificate-authority": status.ca } }],
        "users": [{ "name": "u", "user": { "token": token } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    let path = dir.join("kubeconfig");
    std::fs::write(&path, config.to_string()).expect("the kubeconfig is written");
    path
}

impl HostExtender {
    /// Starts an extender, at the address of an earlier one or at a free one. It logs each refused node.
    pub(crate) fn start(placed: &Placed, at: Option<SocketAddr>) -> HostExtender {
        HostExtender::start_with(placed, at, "4")
    }

    /// Starts an extender with the default log level, for comparisons with a program of the tests, so from the same build
    /// profile.
    pub(crate) fn start_measured(placed: &Placed) -> HostExtender {
        HostExtender::start_build(TEST_BUILD, placed, None, "0")
    }

    /// Starts an extender with this kubeconfig.
    pub(crate) fn start_from(kubeconfig: &Path) -> HostExtender {
        HostExtender::start_in(kubeconfig, &[])
    }

    /// The same with variables that describe a pod to its process.
    pub(crate) fn start_in(kubeconfig: &Path, pod: &[(&str, &str)]) -> HostExtender {
        HostExtender(ExtenderProcess::start_in(&binary(), pod, |_| {
            let mut flags: Vec<OsString> =
                ["--lease-duration", "15s", "--lease-namespace", NAMESPACE].map(OsString::from).into();
            flags.extend(["--extender-listen".into(), "127.0.0.1:0".into()]);
            flags.extend(["--kubeconfig".into(), kubeconfig.into()]);
            flags
        }))
    }

    fn start_with(placed: &Placed, at: Option<SocketAddr>, verbosity: &str) -> HostExtender {
        HostExtender::start_build(&binary(), placed, at, verbosity)
    }

    fn start_build(build: &str, placed: &Placed, at: Option<SocketAddr>, verbosity: &str) -> HostExtender {
        HostExtender(ExtenderProcess::start(build, |dir| {
            let listen = at.map_or_else(|| "127.0.0.1:0".to_owned(), |at| at.to_string());
            let mut flags: Vec<OsString> =
                ["-v", verbosity, "--retry-period", "300ms", "--lease-namespace", NAMESPACE].map(OsString::from).into();
            // The next leader takes over once the Lease of a killed leader has expired, and the tests kill many leaders.
            flags.extend(["--lease-duration", "6s", "--renew-deadline", "4s"].map(OsString::from));
            flags.extend(["--extender-listen".into(), listen.into()]);
            flags.extend(["--kubeconfig".into(), kubeconfig(placed, dir).into()]);
            flags
        }))
    }

    /// The number of bindings that the extender has begun to write.
    pub(crate) fn binds_begun(&self) -> u64 {
        self.assumed() + self.metric("gpu_steward_extender_answer_seconds_count{verb=\"bind\"}")
    }

    /// Bindings that are reserved but that the pod watch has not shown yet.
    fn assumed(&self) -> u64 {
        self.metric("gpu_steward_extender_claims{state=\"assumed\"}")
    }

    /// Bindings without an answer from the API server.
    fn open_bindings(&self) -> u64 {
        self.metric("gpu_steward_extender_open_bindings")
    }

    /// Sends SIGSTOP. Returns how many bindings had no answer from the API server a moment before.
    pub(crate) fn pause(&self) -> u64 {
        let open = self.open_bindings();
        self.0.signal("-STOP");
        open
    }

    /// Stops the extender as a cluster does, and waits for its end.
    pub(crate) fn terminate(&mut self) {
        self.0.terminate();
    }

    /// Sends SIGKILL. Returns how many bindings had no answer from the API server a moment before.
    pub(crate) fn kill(&mut self) -> u64 {
        let open = self.open_bindings();
        self.0.kill();
        open
    }
}

impl Deref for HostExtender {
    type Target = ExtenderProcess;

    fn deref(&self) -> &ExtenderProcess {
        &self.0
    }
}

impl HostScheduler {
    /// Starts a kube-scheduler that calls the extender at this address.
    pub(crate) fn start(placed: &Placed, extender: SocketAddr) -> HostScheduler {
        // A short backoff, because a pod whose extender was killed must be tried again soon, and the test kills many.
        HostScheduler::start_with(placed, extender, ("", "2"), "true")
    }

    /// The same without a limit on its calls per second, and without a Lease, so that it can be paused for a while.
    pub(crate) fn start_unbounded(placed: &Placed, extender: SocketAddr) -> HostScheduler {
        HostScheduler::start_with(placed, extender, (", qps: 2000, burst: 4000", "60"), "false")
    }

    fn start_with(
        placed: &Placed,
        extender: SocketAddr,
        (calls, backoff): (&str, &str),
        elected: &str,
    ) -> HostScheduler {
        let dir = tempfile::Builder::new().prefix("steward-").tempdir().expect("a directory");
        let printed = Command::new(binary())
            .args(["print-config", "kube-scheduler", "--extender-listen", &extender.to_string()])
            .output()
            .expect("the program can be run");
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let printed = String::from_utf8(printed.stdout).expect("UTF-8");
        // A kube-scheduler outside a pod also needs credentials and the namespace of its Lease.
        let namespace = format!("  resourceName: gpu-steward-scheduler\n  resourceNamespace: {NAMESPACE}\n");
        let config = printed
            .replace("  resourceName: gpu-steward-scheduler\n", &namespace)
            .replace("leaderElect: true", &format!("leaderElect: {elected}"))
            .replace("podMaxBackoffSeconds: 60", &format!("podMaxBackoffSeconds: {backoff}"))
            + &format!("clientConnection: {{kubeconfig: {}{calls}}}\n", kubeconfig(placed, dir.path()).display());
        let own = [namespace, format!("podMaxBackoffSeconds: {backoff}")];
        assert!(own.iter().all(|text| config.contains(text)), "{printed}");
        let path = dir.path().join("scheduler.yaml");
        std::fs::write(&path, config).expect("the configuration is written");
        let child = Command::new(placed.cluster.program("kube-scheduler"))
            .args(["--secure-port=0", "-v=2", "--config"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("log")).expect("the log can be written"))
            .spawn()
            .expect("kube-scheduler can be run");
        HostScheduler { child, _dir: dir }
    }
}

impl HostScheduler {
    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(status.success());
    }
}

impl Drop for HostScheduler {
    fn drop(&mut self) {
        // When kube-scheduler ends, it releases its Lease, so that the next one leads at once.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}
