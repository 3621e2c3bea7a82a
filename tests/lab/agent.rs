//! The built program, run in an empty directory of its own: ports chosen by the kernel, state and socket in the
//! directory, killed when the test is over.
//!
//! ```text
//!   Agent::standalone(binary).with("--gpus", "none").start()   runs until ready
//!   Agent::in_cluster(binary, &api_server, "n1")                 the same with an API server
//!                                                   .launch()  runs, readiness not waited for
//!                                                   .run()     runs to its end
//! ```

use crate::api_server::FakeApiServer;
use crate::eventually::eventually;
use crate::http::{self, HttpResponse};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a start may take; generous, because tests share two cores with compilers.
pub const START: Duration = Duration::from_secs(30);
/// How long an end may take before it is a failure of the harness rather than of a promise.
pub const END: Duration = Duration::from_secs(30);

/// Characters of the log that a test shows when it fails.
const LOG_SHOWN: usize = 8000;

/// What to run.
#[derive(Debug)]
pub struct Recipe {
    binary: OsString,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    world: Option<String>,
    mounts_of: Option<u32>,
    stderr: Option<PathBuf>,
    dir: TempDir,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    dir: TempDir,
    /// `:9410`.
    pub metrics: SocketAddr,
    /// The loopback port, if it has one.
    pub admin: Option<SocketAddr>,
    /// Path of the usage socket.
    pub usage_socket: PathBuf,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// From the request to the end.
    pub took: Duration,
    /// Everything it logged.
    pub log: String,
}

impl Agent {
    /// `gpu-steward agent --standalone` with ports 0 and everything else in an empty directory. Names come from nowhere
    /// unless the test says otherwise, so that the machine's own runtime does not show through.
    #[must_use]
    pub fn standalone(binary: &str) -> Recipe {
        Recipe::of(binary).switch("--standalone")
    }

    /// `gpu-steward agent` with this API server, on a node of this name.
    #[must_use]
    pub fn in_cluster(binary: &str, server: &FakeApiServer, node: &str) -> Recipe {
        let recipe = Recipe::of(binary);
        let kubeconfig = server.kubeconfig(recipe.dir());
        recipe.with("--kubeconfig", kubeconfig).with("--node-name", node)
    }
}

impl Recipe {
    /// `gpu-steward agent` and no more.
    ///
    /// # Panics
    /// When no temporary directory can be made.
    #[must_use]
    pub fn of(binary: &str) -> Recipe {
        let dir = tempfile::Builder::new().prefix("steward-").tempdir().expect("a temporary directory");
        Recipe {
            binary: binary.into(),
            args: vec!["agent".into()],
            environment: Vec::new(),
            world: None,
            mounts_of: None,
            stderr: None,
            dir,
        }
    }

    /// One flag with its value.
    #[must_use]
    pub fn with(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.args.push(flag.into());
        self.args.push(value.as_ref().into());
        self
    }

    /// One flag as it stands: `--profiling`, `--metrics-dcgm=false`.
    #[must_use]
    pub fn switch(mut self, flag: &str) -> Self {
        self.args.push(flag.into());
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().into()));
        self
    }

    /// A world of its own: a mount namespace in which this shell script has run (as root). `$DIR` is the agent's directory.
    #[must_use]
    pub fn within(mut self, script: &str) -> Self {
        self.world = Some(script.to_owned());
        self
    }

    /// In the mount namespace of this process: that of a [`crate::cluster::Node`], where every path is the node's own.
    #[must_use]
    pub fn in_mounts_of(mut self, pid: u32) -> Self {
        self.mounts_of = Some(pid);
        self
    }

    /// Sends the log elsewhere; the addresses are then read from the state directory.
    #[must_use]
    pub fn log_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.stderr = Some(path.into());
        self
    }

    /// A configuration file of this text; [`Agent::write_config`] writes it anew.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[must_use]
    pub fn config(self, text: &str) -> Self {
        let path = config_path(self.dir());
        std::fs::write(&path, text).expect("the configuration file is written");
        self.with("--config", path)
    }

    /// The directory that is its own.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The whole command line: flags for ports, socket and state are added where the test gave none.
    fn command(&self) -> Command {
        let dir = self.dir();
        let defaults: [(&str, OsString); 11] = [
            ("--kubelet-root", dir.join("kubelet").into()),
            ("--cdi-dir", dir.join("cdi").into()),
            ("--listen", "127.0.0.1:0".into()),
            ("--admin-listen", "127.0.0.1:0".into()),
            ("--usage-socket", dir.join("agent.sock").into()),
            ("--state-dir", dir.join("state").into()),
            ("--cri-socket", dir.join("no-cri.sock").into()),
            ("--log-links", dir.join("no-links").into()),
            ("--pod-resources-socket", dir.join("no-kubelet.sock").into()),
            ("--kernel-log", "none".into()),
            ("--config", empty_config(dir).into()),
        ];
        let mut command = match &self.world {
            None => match self.mounts_of {
                None => Command::new(&self.binary),
                Some(pid) => {
                    let mut command = Command::new("nsenter");
                    command.args(["-t", &pid.to_string(), "-m", "--"]).arg(&self.binary);
                    command
                }
            },
            Some(script) => {
                let mut command = Command::new("unshare");
                let script = format!("set -e\n{script}\nexec \"$@\"");
                command.args(["-m", "--propagation", "private", "bash", "-c", &script, "world"]).arg(&self.binary);
                command.env("DIR", dir);
                command
            }
        };
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null());
        for (flag, value) in defaults {
            let own = format!("{flag}=");
            if !self.args.iter().any(|given| given == flag || given.to_string_lossy().starts_with(&own)) {
                command.arg(flag).arg(value);
            }
        }
        // What the machine or the test runner is told must not show through.
        let of_managers = [
            "NODE_NAME",
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "HOME",
            "NOTIFY_SOCKET",
            "JOURNAL_STREAM",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "LISTEN_FDS",
        ];
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("GPU_STEWARD_") || of_managers.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it until it is ready.
    ///
    /// # Panics
    /// When it ends or is not ready within [`START`]; the text holds its log.
    #[must_use]
    pub fn start(self) -> Agent {
        let mut agent = self.launch();
        let deadline = Instant::now() + START;
        loop {
            let answer = http::get(agent.metrics, "/readyz");
            if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                return agent;
            }
            let ended = agent.child.try_wait().expect("the child can be waited for");
            assert!(ended.is_none(), "ended before it was ready: {ended:?}\n{}", agent.log());
            assert!(Instant::now() < deadline, "not ready within {START:?}: {answer:?}\n{}", agent.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs it until it listens.
    ///
    /// # Panics
    /// When it ends or does not listen within [`START`]; the text holds its log.
    #[must_use]
    pub fn launch(self) -> Agent {
        let log = self.stderr.clone().unwrap_or_else(|| log_path(self.dir()));
        let open = std::fs::OpenOptions::new().create(true).write(true).truncate(true).open(log);
        let mut child =
            self.command().stderr(open.expect("the log can be written")).spawn().expect("the program can be run");
        let elsewhere = self.stderr.is_some();
        let dir = self.dir;
        let (metrics, admin, usage) = eventually("the line that tells the addresses", START, || {
            let ended = child.try_wait().expect("the child can be waited for");
            if let Some(addresses) = addresses(dir.path(), elsewhere) {
                return Some(addresses);
            }
            let log = std::fs::read_to_string(log_path(dir.path())).unwrap_or_default();
            assert!(ended.is_none(), "ended before it listened: {ended:?}\n{log}");
            None
        });
        let metrics = metrics.parse().expect("an address");
        Agent { child, dir, metrics, admin: admin.parse().ok(), usage_socket: usage.into() }
    }

    /// Runs it to its end, which must come by itself.
    ///
    /// # Panics
    /// When it cannot be run.
    #[must_use]
    pub fn run(self) -> Output {
        self.command().stderr(Stdio::piped()).output().expect("the program can be run")
    }
}

/// Resident memory of a process, unless it has ended.
fn resident_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

impl Agent {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory (`VmRSS`), in MiB.
    ///
    /// # Panics
    /// When it runs no more.
    #[must_use]
    pub fn resident_mib(&self) -> f64 {
        resident_mib(self.pid()).expect("it lives")
    }

    /// Processor time that it has taken, as the kernel accounts for it: in ticks of 10 ms.
    ///
    /// # Panics
    /// When it runs no more.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| fields[place].parse::<u64>().expect("ticks");
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// Resident memory of each child that it has now, in MiB.
    #[must_use]
    pub fn children_resident_mib(&self) -> Vec<f64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<u32> =
            lists.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        pids.into_iter().filter_map(resident_mib).collect()
    }

    /// The directory that is its own.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(log_path(self.dir.path())).unwrap_or_default()).into_owned()
    }

    /// Asks the main port.
    ///
    /// # Panics
    /// When it does not answer; the text holds its log.
    #[must_use]
    pub fn get(&self, path: &str) -> HttpResponse {
        match http::get(self.metrics, path) {
            Ok(answer) => answer,
            Err(error) => panic!("GET {path}: {error}\n{}", self.log()),
        }
    }

    /// Asks the admin port.
    ///
    /// # Panics
    /// When there is none or it does not answer.
    #[must_use]
    pub fn admin(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let address = self.admin.expect("an admin port");
        match http::request(address, method, path, &[], body.as_bytes()) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error}\n{}", self.log()),
        }
    }

    /// Waits until the log holds this text.
    ///
    /// # Panics
    /// When it does not within [`START`].
    pub fn logs(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), START, || self.log().contains(text).then_some(()));
    }

    /// Writes the configuration file anew.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write_config(&self, text: &str) {
        std::fs::write(config_path(self.dir()), text).expect("the configuration file is written");
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When there is no such process or signal.
    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal's number");
        rustix::process::kill_process(pid, signal).expect("the process takes a signal");
    }

    /// SIGTERM, and how it ended.
    ///
    /// # Panics
    /// When it does not end within [`END`].
    #[must_use]
    pub fn terminate(self) -> Ended {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`END`].
    #[must_use]
    pub fn wait(self) -> Ended {
        self.wait_within(END)
    }

    /// The same with a deadline of the test's own.
    ///
    /// # Panics
    /// When it does not end within that time.
    #[must_use]
    pub fn wait_within(mut self, within: Duration) -> Ended {
        let begin = Instant::now();
        let status = eventually("its end", within, || self.child.try_wait().expect("the child can be waited for"));
        Ended { status, took: begin.elapsed(), log: self.log() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.char_indices().rev().nth(LOG_SHOWN).map_or(0, |(place, _)| place);
            // Straight to the stream: what is printed while a panic is under way is not kept for the test's own output.
            let _ = writeln!(std::io::stderr(), "the agent's log, its end:\n{}", &log[from..]);
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn config_path(dir: &Path) -> PathBuf {
    dir.join("config.yaml")
}

/// An empty file, so that the machine's own configuration does not show through.
fn empty_config(dir: &Path) -> PathBuf {
    let path = dir.join("empty.yaml");
    std::fs::write(&path, "").expect("an empty file is written");
    path
}

/// Where a running agent listens: metrics, admin, usage; from the log's line, or from the file where the log is elsewhere.
fn addresses(dir: &Path, elsewhere: bool) -> Option<(String, String, String)> {
    let line = if elsewhere {
        let file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("state/addresses.json")).ok()?).ok()?;
        file.to_string()
    } else {
        let log = std::fs::read_to_string(log_path(dir)).ok()?;
        log.lines().find(|line| line.contains("gpu-steward agent started"))?.to_owned()
    };
    Some((field(&line, "metrics")?, field(&line, "admin")?, field(&line, "usage")?))
}

/// The value of a field in a log line, in either format: `metrics=127.0.0.1:1` or `"metrics":"127.0.0.1:1"`.
fn field(line: &str, name: &str) -> Option<String> {
    if let Ok(line) = serde_json::from_str::<serde_json::Value>(line) {
        return Some(line.get(name)?.as_str()?.to_owned());
    }
    let rest = line.split_once(&format!(" {name}="))?.1;
    Some(rest.split(' ').next()?.trim_matches('"').to_owned())
}
