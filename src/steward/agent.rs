//! The node agent: starts its tasks and threads, connects them, and ends when one of them ends.
//!
//! ```text
//!   sampler, nvml | simulated, names, pods ──Observation──▶ owner ──watch──▶ http :9410, usage socket
//!                                                       └─▶ readiness, watchdog          admin :9411
//! ```

mod listeners;
mod driver_door;
mod addresses;
mod threads;
mod latch;
mod tell;
mod owner;
mod tallies;
mod reload;
mod serve;
mod text;
mod incidents;
mod guarding;
mod sharing;
pub(crate) mod clean;
pub(crate) mod clear;
mod node_writer;

use crate::args;
use crate::exit::Exit;
use crate::notify;
use crate::settings::Settings;
use crate::settings::layer::RawSettings;
use crate::settings::value::Gpus;
use crate::stop::{self, StopRequest};
use crate::telemetry::Telemetry;
use addresses::Addresses;
use apiserver::ApiConnection;
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::ApiServer;
use clean::Scope;
use driver_door::DriverDoor;
use effects::admin::{ClearIncident, DriverControl};
use effects::caller::AllowedHosts;
use effects::tallies::TallyFile;
use guarding::Guarding;
use incidents::IncidentKeeper;
use latch::{Latch, Progress};
use listeners::Listeners;
use model::id::NodeName;
use model::pod::{LabelKeys, PodList};
use model::view::NodeView;
use node_writer::Announcing;
use owner::Owner;
use reload::Reload;
use serve::Shown;
use sources::report::Reporter;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tallies::TallyKeeper;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Workers of the Tokio runtime. At most one of them blocks on disk I/O ([`effects::plugin::OneAtDisk`]), while the
/// other runs owner and watchdog. The ports have a thread of their own ([`serve::ports`]).
const WORKERS: usize = 2;
/// The stack size of a worker. Only the pages that it touches cost memory.
const STACK: usize = 1024 * 1024;
/// Threads for blocking work: few are enough, because files are read rarely.
const BLOCKING: usize = 4;
/// The part of the drain timeout that is reserved for requests other than kubelet's calls.
const LEFT: Duration = Duration::from_millis(500);

/// Runs the agent until it must stop. An error at the start goes to the log.
pub(crate) fn run(settings: Settings, spoken: RawSettings, telemetry: Telemetry) -> Exit {
    match start(settings, spoken, telemetry) {
        Ok(exit) => exit,
        Err(Failure { what, exit }) => {
            tracing::error!("{what}");
            exit
        }
    }
}

/// Removes what agents wrote on this node's Node, or on all Nodes.
pub(crate) fn clean(settings: &Settings, all: bool) -> Exit {
    let cleaned = || {
        let scope = if all { Scope::All } else { Scope::One(node_name(settings)?) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::io("start", &error))?;
        runtime.block_on(async {
            let connection = apiserver::connect(settings.kubeconfig.as_deref()).await;
            let connection = connection.map_err(|error| Failure { what: error.to_string(), exit: Exit::Usage })?;
            let cleaned = clean::clean(&connection, &scope).await;
            cleaned.map_err(|what| Failure { what, exit: Exit::Unavailable })
        })
    };
    match cleaned() {
        Ok(nodes) => {
            tracing::info!(nodes, "nothing that an agent wrote is left");
            Exit::Ok
        }
        Err(Failure { what, exit }) => {
            tracing::error!("{what}");
            exit
        }
    }
}

/// Clears the incidents of a GPU, or of all GPUs, in the agent that runs here.
pub(crate) fn clear(settings: &Settings, which: &str) -> Exit {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let cleared = runtime
        .map_err(|error| clear::NotCleared::io("start", &error))
        .and_then(|runtime| runtime.block_on(clear::clear(settings, which)));
    match cleared {
        Ok(text) => {
            tracing::info!("{}", text.trim_end());
            Exit::Ok
        }
        Err(error) => {
            tracing::error!("{error}");
            Exit::Unavailable
        }
    }
}

/// The reason why the agent does not start, and the exit code.
struct Failure {
    what: String,
    exit: Exit,
}

impl Failure {
    fn io(doing: &str, error: &std::io::Error) -> Failure {
        Failure { what: format!("cannot {doing}: {error}"), exit: Exit::from_io(error) }
    }
}

fn start(settings: Settings, spoken: RawSettings, telemetry: Telemetry) -> Result<Exit, Failure> {
    pprof::set_heap_sampling(settings.profiling);
    for (variable, near) in spoken.strange_variables() {
        let meant = near.unwrap_or_default();
        tracing::warn!(variable, meant, "an environment variable looks like a setting and is not one");
    }
    let name = node_name(&settings)?;
    let wrong = |what| Failure { what, exit: Exit::Usage };
    let hosts = AllowedHosts::new(settings.allowed_hosts.iter().map(String::as_str).chain([name.as_str()]));
    let http = reload::http_settings(&settings.live, hosts.clone()).map_err(wrong)?;
    let admin_token = settings.admin_token_file.as_deref().map(|path| reload::token("admin", path));
    let admin_token = admin_token.transpose().map_err(wrong)?;
    let asks = stop::listen().map_err(|error| Failure::io("listen for signals", &error))?;
    sharing::check(&settings.sharing, &name).map_err(wrong)?;
    let doors = Listeners::open(&settings).map_err(|error| Failure { what: error.to_string(), exit: error.exit() })?;
    // Before the start is announced: a SIGHUP right after it must compare with the settings of the start.
    let (http_sender, http) = watch::channel(http);
    let reload = Reload::new(spoken, settings.live.clone(), hosts.clone(), http_sender);
    let runtime = runtime().map_err(|error| Failure::io("start the runtime's threads", &error))?;
    let kubernetes = runtime.block_on(connect(&settings))?;
    let usage = runtime.block_on(open_usage(&settings, &name))?;
    let operator = addresses::operator_token();
    let _addresses = announce(&settings, &name, &doors, &operator);
    let drain = settings.drain_timeout;
    let exit = runtime.block_on(async {
        let ports = Ports { doors, usage, http, hosts, admin_token, operator };
        let mut agent = Agent::new(name.clone(), ports, &settings, &telemetry)?;
        if let Some(connection) = kubernetes {
            agent.follow_pods(connection.clone(), &name, Arc::clone(&settings.pod_labels));
            if !settings.standalone {
                agent.share(connection, &name, &settings)?;
            }
        }
        Ok(agent.live(asks, reload, &telemetry, drain).await)
    });
    // A thread that hangs in a driver must not keep the process.
    runtime.shutdown_background();
    exit
}

/// Prepares the connection to the API server; with `--standalone` only if `--kubeconfig` names a file. Sends nothing
/// yet: the agent starts even if the API server is down.
async fn connect(settings: &Settings) -> Result<Option<ApiConnection>, Failure> {
    if settings.standalone && settings.kubeconfig.is_none() {
        return Ok(None);
    }
    let connection = apiserver::connect(settings.kubeconfig.as_deref()).await;
    connection.map(Some).map_err(|error| Failure { what: error.to_string(), exit: Exit::Usage })
}

/// Opens the usage socket. If another program serves it, the start fails, unless that program is the agent that this
/// one replaces: an upgrade starts the new agent first.
async fn open_usage(
    settings: &Settings,
    name: &NodeName,
) -> Result<Option<(PathBuf, std::io::Result<UnixListener>)>, Failure> {
    let Some(path) = settings.usage_socket.clone() else { return Ok(None) };
    let opened = effects::usage::bind(&path);
    if let Err(error) = &opened
        && error.kind() == ErrorKind::AddrInUse
        && (settings.standalone || !crate::usage::answers(&path, name).await)
    {
        let what =
            format!("cannot serve usage: {error}; stop that program, or choose another socket with --usage-socket");
        return Err(Failure { what, exit: Exit::Unavailable });
    }
    Ok(Some((path, opened)))
}

/// Logs one line with the addresses of the agent, and writes them to a file for scripts.
fn announce(settings: &Settings, name: &NodeName, doors: &Listeners, operator: &str) -> Addresses {
    let usage = settings.usage_socket.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string());
    let (version, pid, metrics, admin) = (args::version(), std::process::id(), doors.metrics(), doors.admin());
    tracing::info!(version, node = %name, pid, metrics, admin, usage, "gpu-steward agent started");
    let content = serde_json::json!({
        "version": version, "node": name.as_str(), "pid": pid, "metrics": metrics, "admin": admin, "usage": usage,
        "operator_token": operator,
    });
    Addresses::write(&settings.state_dir, &content)
}

fn node_name(settings: &Settings) -> Result<NodeName, Failure> {
    if let Some(name) = &settings.node_name {
        return Ok(name.clone());
    }
    let from_kubernetes = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let name =
        from_kubernetes.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().trim().to_owned());
    NodeName::parse(&name).map_err(|error| Failure {
        what: format!("cannot name this node after NODE_NAME or the host: {error}; give --node-name"),
        exit: Exit::Usage,
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .thread_stack_size(STACK)
        .thread_name_fn(|| format!("steward-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
        .enable_all()
        .build()
}

/// The inputs of the servers.
struct Ports {
    doors: Listeners,
    /// The path of the usage socket, and the socket or the error; `None` if the setting is `none`.
    usage: Option<(PathBuf, std::io::Result<UnixListener>)>,
    http: watch::Receiver<effects::http::Settings>,
    hosts: AllowedHosts,
    admin_token: Option<Arc<str>>,
    operator: Arc<str>,
}

fn admin(
    ports: &Ports,
    settings: &Settings,
    telemetry: &Telemetry,
    (reload, clears, driver): (Arc<Notify>, mpsc::Sender<ClearIncident>, DriverDoor),
) -> effects::admin::Settings {
    let identified =
        ports.admin_token.is_some() || settings.admin_tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    effects::admin::Settings {
        profiling: settings.profiling,
        tls: settings.admin_tls.clone(),
        hosts: ports.hosts.clone(),
        token: ports.admin_token.clone(),
        operator: (!identified).then(|| Arc::clone(&ports.operator)),
        reload,
        level: telemetry.level.clone(),
        incidents: Some(clears),
        driver: matches!(settings.gpus, Gpus::Nvml).then(|| Arc::new(driver) as Arc<dyn DriverControl>),
    }
}

/// The running tasks.
struct Agent {
    tasks: JoinSet<(&'static str, std::io::Result<()>)>,
    /// Keeps the owner's queue open even when no source is left.
    reporter: Reporter,
    /// The newest view of the node.
    view: watch::Receiver<Arc<NodeView>>,
    /// The pods of the node; `None` before the first list.
    pods: watch::Receiver<Option<Arc<PodList>>>,
    /// Makes the admin port read its certificates again.
    certificates: Arc<Notify>,
    /// The owner notifies it when the NVIDIA driver was updated.
    replaced: Arc<Notify>,
    stop: CancellationToken,
    /// Releases the GPU driver when an operator asks for it.
    driver: DriverDoor,
    /// The progress of the start of sharing.
    progress: watch::Sender<Progress>,
    /// Ends sharing, before all other tasks end.
    sharing: Option<sharing::Run>,
}

impl Agent {
    /// Starts the sources, the owner and the servers.
    fn new(name: NodeName, ports: Ports, settings: &Settings, telemetry: &Telemetry) -> Result<Agent, Failure> {
        let stop = CancellationToken::new();
        let (reporter, observations) = Reporter::channel();
        let (view, view_seen) = watch::channel(Arc::new(NodeView::empty(name.clone(), sources::clock::now())));
        let driver = DriverDoor::default();
        let threads = threads::open(settings, (&name, &view_seen, &driver.0), &reporter, &stop)
            .map_err(|(doing, error)| Failure::io(&doing, &error))?;
        let latch = Latch::new(!settings.standalone);
        let (ready, ready_seen) = watch::channel(latch.readiness());
        let (usage_broken, usage) = watch::channel(None);
        let begins = if settings.standalone { Progress::Shares } else { Progress::Begins };
        let (progressing, progress) = watch::channel(begins);
        let (period, repeats) = (settings.period, telemetry.repeats.clone());
        let incidents = IncidentKeeper::open(settings);
        let now = sources::clock::now().monotonic;
        let node = decide::node::NodeState::new(name, settings.health.clone(), &incidents.found, now);
        let (kept, kept_seen) = watch::channel(incidents.found.clone().into());
        let (clearing, clears) = mpsc::channel(effects::admin::incident::QUEUE);
        let (pods, pods_seen) = watch::channel(None);
        let progress_seen = progress.clone();
        let replaced = Arc::<Notify>::default();
        let told = Arc::clone(&replaced);
        let owner = Owner {
            node,
            latch,
            observations,
            usage,
            progress,
            pods,
            clears,
            kept,
            view,
            replaced,
            ready,
            period,
            repeats,
        };
        let certificates = Arc::<Notify>::default();
        let mut agent = Agent {
            tasks: JoinSet::new(),
            reporter,
            view: view_seen.clone(),
            pods: pods_seen,
            certificates: Arc::clone(&certificates),
            replaced: told,
            stop: stop.clone(),
            driver: driver.clone(),
            progress: progressing,
            sharing: None,
        };
        agent.own(owner);
        agent.keep(incidents.run(kept_seen, stop.clone()), settings.state_dir.clone());
        agent.look(threads, settings.names.clone());
        let shown = Shown { view: view_seen, ready: ready_seen, stop: stop.clone() };
        let admin = admin(&ports, settings, telemetry, (certificates, clearing, driver));
        agent.must_not_end("ports", serve::ports((ports.doors, ports.http), admin, shown.clone()));
        match ports.usage {
            Some(socket) => agent.must_not_end("usage", serve::usage(socket, usage_broken, progress_seen, shown)),
            None => drop(usage_broken),
        }
        Ok(agent)
    }

    /// Starts the owner of the node's state.
    fn own(&mut self, owner: Owner) {
        let ended = self.stop.clone();
        self.must_not_end("owner", async move {
            owner.run(ended).await;
            Ok(())
        });
    }

    /// Starts the tasks that keep incidents of GPUs and tallies of pods on disk.
    fn keep(&mut self, incidents: impl Future<Output = std::io::Result<()>> + Send + 'static, state_dir: PathBuf) {
        self.must_not_end("incidents", incidents);
        let (view, reporter, ended) = (self.view.clone(), self.reporter.clone(), self.stop.clone());
        let file = TallyFile::new(&state_dir);
        let keeper = TallyKeeper { file, view, reporter, every: tallies::EVERY };
        self.must_not_end("tallies", async move {
            keeper.run(ended).await;
            Ok(())
        });
    }

    /// Watches the threads of the sources, and starts the source of container names. Starts the task that returns the
    /// memory of code that does not run any more.
    fn look(&mut self, threads: Vec<threads::Thread>, names: sources::names::Settings) {
        tokio::spawn(text::give_back(self.view.clone()));
        for (name, thread) in threads {
            self.must_not_end(name, threads::lives(thread, self.stop.clone()));
        }
        let (reporter, ended) = (self.reporter.clone(), self.stop.clone());
        self.must_not_end("names", async move {
            sources::names::run(names, reporter, ended).await;
            Ok(())
        });
    }

    /// Starts the list and watch of this node's pods at the API server.
    fn follow_pods(&mut self, connection: ApiConnection, node: &NodeName, label_keys: LabelKeys) {
        let (reporter, ended, node) = (self.reporter.clone(), self.stop.clone(), node.clone());
        self.must_not_end("pods", async move {
            sources::kubernetes::follow_pods((connection, &node), label_keys, reporter, ended).await;
            Ok(())
        });
    }

    /// Starts the tasks that share this node's GPUs through kubelet, and the tasks that write on its Node.
    fn share(&mut self, connection: ApiConnection, node: &NodeName, settings: &Settings) -> Result<(), Failure> {
        let unusable = |what: String| Failure { what, exit: Exit::Unavailable };
        let api = ApiServer::new(connection.clone(), node.clone());
        let own = OwnNodeReader::new(connection.clone(), node.clone());
        let teller = sharing::PodStatusWriter::new(api.clone(), own.clone(), node.clone());
        let out = (teller, self.reporter.clone(), connection);
        let opened = sharing::open(settings, node, (self.view.clone(), self.pods.clone()), out).map_err(unusable)?;
        let announcing = Announcing {
            config: opened.owner.config().clone(),
            split_counts: settings.sharing.split_counts.clone(),
            format: settings.sharing.register_format,
            handshakes: settings.sharing.handshakes,
            labelling: settings.sharing.labelling,
            quiet: settings.health.quiet,
            view: self.view.clone(),
            node: own,
            api,
            cordoned: opened.cordoned.clone(),
        };
        let (pods, evicts) = (self.pods.clone(), settings.sharing.evict_over_use);
        let guarding = Guarding { api: announcing.api.clone(), pods, evicts, say: opened.guards.clone() };
        let run = sharing::Run::new(self.stop.clone(), self.progress.clone());
        self.sharing = Some(run.clone());
        let (owning, serving) = opened.split(run);
        let stop = self.stop.clone();
        self.must_not_end("sharing", owning);
        self.must_not_end("plugin", serving);
        let ended = self.stop.clone();
        self.must_not_end("guarding", async move {
            guarding.run(ended).await;
            Ok(())
        });
        self.must_not_end("announcing", async move {
            announcing.run(stop).await;
            Ok(())
        });
        Ok(())
    }

    fn must_not_end(&mut self, name: &'static str, task: impl Future<Output = std::io::Result<()>> + Send + 'static) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// Handles signals until the agent must stop, then drains.
    async fn live(
        &mut self,
        mut asks: mpsc::Receiver<StopRequest>,
        mut reload: Reload,
        telemetry: &Telemetry,
        drain: Duration,
    ) -> Exit {
        let exit = loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(StopRequest::Stop(signal)) => {
                        tracing::info!(signal, "stopping: requests in flight may end, a second signal ends at once");
                        break Exit::Ok;
                    }
                    Some(StopRequest::Reload) => {
                        reload.again(&telemetry.level);
                        // The certificates are separate files: they are read again even if the configuration has a
                        // mistake.
                        self.certificates.notify_one();
                    }
                    Some(StopRequest::More) => telemetry.level.change("SIGUSR1", |now| now.more()),
                    Some(StopRequest::LetGo) => self.driver.signalled(),
                    Some(StopRequest::Less) => telemetry.level.change("SIGUSR2", |now| now.less()),
                    None => {
                        tracing::error!("the thread that listens for signals has ended");
                        break Exit::Failure;
                    }
                },
                () = self.replaced.notified() => {
                    tracing::error!(
                        "stopping: the NVIDIA driver was updated under this process, which cannot load the new library; the \
                         next process loads it, and running containers are not touched"
                    );
                    break Exit::DriverReplaced;
                }
                Some(ended) = self.tasks.join_next() => {
                    let (task, why, exit) = told(ended);
                    tracing::error!(task, why, "a task that must not end has ended; the agent ends with it");
                    break exit;
                }
            }
        };
        self.drain(drain).await;
        exit
    }

    /// Drains kubelet's calls first, because their answers need all other tasks; then all other requests.
    async fn drain(&mut self, patience: Duration) {
        notify::stopping();
        let until = tokio::time::Instant::now() + patience;
        if let Some(sharing) = &self.sharing {
            sharing.closing.cancel();
            let _ = tokio::time::timeout(patience.saturating_sub(LEFT), sharing.closed.cancelled()).await;
        }
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        match tokio::time::timeout_at(until, all).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => tracing::warn!(
                left = self.tasks.len(),
                seconds = patience.as_secs_f64(),
                "stopped: some requests did not end in time (--drain-timeout) and were cut"
            ),
        }
    }
}

type Ended = Result<(&'static str, std::io::Result<()>), tokio::task::JoinError>;

fn told(ended: Ended) -> (&'static str, String, Exit) {
    match ended {
        Ok((task, Ok(()))) => (task, "it returned".into(), Exit::Failure),
        // The error decides the exit code: where another agent has the socket, for example, a restart does not help.
        Ok((task, Err(error))) => (task, error.to_string(), Exit::from_io(&error)),
        Err(error) => ("unknown", error.to_string(), Exit::Failure),
    }
}
