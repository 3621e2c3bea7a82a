//! Runs the built program in an empty directory, with ports that the kernel chooses, and state and socket in the
//! directory. The program is killed when the test is over.
//!
//! ```text
//!   Agent::standalone(binary).with("--gpus", "none").start()   starts, and waits until it is ready
//!   Agent::in_cluster(binary, &api_server, "n1")                 the same with an API server
//!                                                   .launch()  starts, and waits until it listens
//!                                                   .run()     waits for its end
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

/// Longest start. It is generous because tests run while other code compiles.
pub const START: Duration = Duration::from_secs(30);
/// Longest shutdown. It is longer than any promise, so that a test that checks a promise fails by itself.
pub const END: Duration = Duration::from_secs(30);

/// Characters of the log that a failed test shows.
const LOG_SHOWN: usize = 8000;

/// How to run the program.
#[derive(Debug)]
pub struct Recipe {
    binary: OsString,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    mount_script: Option<String>,
    mounts_of: Option<u32>,
    stderr: Option<PathBuf>,
    dir: TempDir,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    dir: TempDir,
    /// The address of metrics and API.
    pub metrics: SocketAddr,
    /// The address of the admin port, if it has one.
    pub admin: Option<SocketAddr>,
    /// The path of the usage socket.
    pub usage_socket: PathBuf,
}

/// The end of an agent.
#[derive(Debug)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// The time from the request to stop until the end.
    pub took: Duration,
    /// The whole log.
    pub log: String,
}

impl Agent {
    /// `gpu-steward agent --standalone` with port 0 and with all paths in an empty directory. It has no source of
    /// container names unless the test sets one, so that the machine's own runtime cannot affect the test.
    #[must_use]
    pub fn standalone(binary: &str) -> Recipe {
        Recipe::of(binary).switch("--standalone")
    }

    /// `gpu-steward agent` with this API server, as the agent of this node.
    #[must_use]
    pub fn in_cluster(binary: &str, server: &FakeApiServer, node: &str) -> Recipe {
        let recipe = Recipe::of(binary);
        let kubeconfig = server.kubeconfig(recipe.dir());
        recipe.with("--kubeconfig", kubeconfig).with("--node-name", node)
    }
}

impl Recipe {
    /// `gpu-steward agent` without flags.
    ///
    /// # Panics
    /// If no temporary directory can be made.
    #[must_use]
    pub fn of(binary: &str) -> Recipe {
        let dir = tempfile::Builder::new().prefix("steward-").tempdir().expect("a temporary directory");
        Recipe {
            binary: binary.into(),
            args: vec!["agent".into()],
            environment: Vec::new(),
            mount_script: None,
            mounts_of: None,
            stderr: None,
            dir,
        }
    }

    /// Adds a flag with its value.
    #[must_use]
    pub fn with(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.args.push(flag.into());
        self.args.push(value.as_ref().into());
        self
    }

    /// Adds a flag without a separate value: `--profiling`, `--metrics-dcgm=false`.
    #[must_use]
    pub fn switch(mut self, flag: &str) -> Self {
        self.args.push(flag.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().into()));
        self
    }

    /// Runs the agent in a new mount namespace, after this shell script has run there (as root). `$DIR` is the agent's
    /// directory.
    #[must_use]
    pub fn within(mut self, script: &str) -> Self {
        self.mount_script = Some(script.to_owned());
        self
    }

    /// Runs the agent in the mount namespace of this process, such as that of a [`crate::cluster::ClusterNode`].
    #[must_use]
    pub fn in_mounts_of(mut self, pid: u32) -> Self {
        self.mounts_of = Some(pid);
        self
    }

    /// Sends the log to this file; the harness then reads the addresses from the state directory.
    #[must_use]
    pub fn log_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.stderr = Some(path.into());
        self
    }

    /// Uses a configuration file with this text; [`Agent::write_config`] replaces it.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    pub fn config(self, text: &str) -> Self {
        let path = config_path(self.dir());
        std::fs::write(&path, text).expect("the configuration file is written");
        self.with("--config", path)
    }

    /// The agent's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The whole command line, with flags for ports, socket and state where the test gave none.
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
        let mut command = match &self.mount_script {
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
        // Variables of the machine or the test runner must not affect the test.
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

    /// Starts the agent, and waits until it is ready.
    ///
    /// # Panics
    /// If it ends or is not ready within [`START`]; the text contains its log.
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

    /// Starts the agent, and waits until it listens.
    ///
    /// # Panics
    /// If it ends or does not listen within [`START`]; the text contains its log.
    #[must_use]
    pub fn launch(self) -> Agent {
        let log = self.stderr.clone().unwrap_or_else(|| log_path(self.dir()));
        let open = std::fs::OpenOptions::new().create(true).write(true).truncate(true).open(log);
        let mut child =
            self.command().stderr(open.expect("the log can be written")).spawn().expect("the program can be run");
        let log_elsewhere = self.stderr.is_some();
        let dir = self.dir;
        let (metrics, admin, usage) = eventually("the log line with the addresses", START, || {
            let ended = child.try_wait().expect("the child can be waited for");
            if let Some(addresses) = addresses(dir.path(), log_elsewhere) {
                return Some(addresses);
            }
            let log = std::fs::read_to_string(log_path(dir.path())).unwrap_or_default();
            assert!(ended.is_none(), "ended before it listened: {ended:?}\n{log}");
            None
        });
        let metrics = metrics.parse().expect("an address");
        Agent { child, dir, metrics, admin: admin.parse().ok(), usage_socket: usage.into() }
    }

    /// Runs the program and waits until it ends by itself.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn run(self) -> Output {
        self.command().stderr(Stdio::piped()).output().expect("the program can be run")
    }
}

/// The memory of a process in MiB by this key of its `status`, unless it has ended.
fn memory_mib(pid: u32, key: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

impl Agent {
    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The resident memory (`VmRSS`) in MiB.
    ///
    /// # Panics
    /// If the agent has ended.
    #[must_use]
    pub fn resident_mib(&self) -> f64 {
        memory_mib(self.pid(), "VmRSS:").expect("it lives")
    }

    /// The agent's own memory (`RssAnon`) in MiB: without the pages of the program's file.
    ///
    /// # Panics
    /// If the agent has ended.
    #[must_use]
    pub fn anonymous_mib(&self) -> f64 {
        memory_mib(self.pid(), "RssAnon:").expect("it lives")
    }

    /// The CPU time of the agent, in ticks of 10 ms as the kernel counts it.
    ///
    /// # Panics
    /// If the agent has ended.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| fields[place].parse::<u64>().expect("ticks");
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// The resident memory of each child process in MiB.
    #[must_use]
    pub fn children_resident_mib(&self) -> Vec<f64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<u32> =
            lists.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        pids.into_iter().filter_map(|pid| memory_mib(pid, "VmRSS:")).collect()
    }

    /// The agent's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(log_path(self.dir.path())).unwrap_or_default()).into_owned()
    }

    /// Sends a GET request to the main port.
    ///
    /// # Panics
    /// If it does not answer; the text contains the log.
    #[must_use]
    pub fn get(&self, path: &str) -> HttpResponse {
        match http::get(self.metrics, path) {
            Ok(answer) => answer,
            Err(error) => panic!("GET {path}: {error}\n{}", self.log()),
        }
    }

    /// Sends a request to the admin port.
    ///
    /// # Panics
    /// If there is no admin port, or it does not answer.
    #[must_use]
    pub fn admin(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let address = self.admin.expect("an admin port");
        match http::request(address, method, path, &[], body.as_bytes()) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error}\n{}", self.log()),
        }
    }

    /// Waits until the log contains this text.
    ///
    /// # Panics
    /// If it does not within [`START`].
    pub fn logs(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), START, || self.log().contains(text).then_some(()));
    }

    /// Replaces the configuration file.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_config(&self, text: &str) {
        std::fs::write(config_path(self.dir()), text).expect("the configuration file is written");
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If there is no such process or signal.
    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal's number");
        rustix::process::kill_process(pid, signal).expect("the process takes a signal");
    }

    /// Sends SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// If it does not end within [`END`].
    #[must_use]
    pub fn terminate(self) -> Ended {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If it does not end within [`END`].
    #[must_use]
    pub fn wait(self) -> Ended {
        self.wait_within(END)
    }

    /// Waits for the end, at most for `within`.
    ///
    /// # Panics
    /// If it does not end within that time.
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
            // Directly to stderr: the test runner does not capture output that is printed during a panic.
            let _ = writeln!(std::io::stderr(), "the end of the agent's log:\n{}", &log[from..]);
        }
        // The process may have ended already.
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

/// An empty file, so that the machine's own configuration cannot affect the test.
fn empty_config(dir: &Path) -> PathBuf {
    let path = dir.join("empty.yaml");
    std::fs::write(&path, "").expect("an empty file is written");
    path
}

/// The addresses of a running agent: metrics, admin, usage. They come from the log, or from `addresses.json` if the log
/// is elsewhere.
fn addresses(dir: &Path, log_elsewhere: bool) -> Option<(String, String, String)> {
    let line = if log_elsewhere {
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
