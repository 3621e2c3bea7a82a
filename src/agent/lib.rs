//! The node agent: starts its tasks and threads, connects them, and ends when one of them ends.
//!
//! ```text
//!   sampler, nvml | simulated, names, pods ──Observation──▶ node task ──watch──▶ http :9410, usage socket
//!                                                       └─▶ readiness, watchdog          admin :9411
//!
//!   settings                        the agent's settings, and those that may change while it runs
//!   prepare listeners ports         node name, connections, sockets and callers, before anything is served
//!   addresses                       addresses.json: the addresses of this agent, for scripts
//!   threads                         the threads of the sources
//!   node_task event_log readiness   the task that holds the node's state; log lines about GPUs and pods; /readyz
//!   servers reload                  the ports as tasks; settings that change on SIGHUP
//!   incidents                       incidents of GPUs, kept over a restart
//!   profile                         the thread `profile`: histories of GPUs and pods, and what follows from them
//!   clear_incident release_command  commands of operators at the admin port (driver_release: the GPU driver)
//!   clean clear                     commands of the program: clean-node, clear-incident
//!   cluster                         tasks that only an agent in a cluster runs:
//!     node_writer                     annotations and labels of its Node
//!     node_register profile_annotations cordon   the list of its GPUs, their load; the GPUs that get no containers
//!     guarding                        whether the admission policies are in force
//!     leader_stream departure         reports to the leading extender; tells the leader before the agent stops
//!     sharing                         the device plugin
//! ```
//!
//! What must never happen here: a decision (decisions are in `decide`), a format (formats are in `wire`), code of the
//! extender.

pub mod settings;
mod listeners;
mod clear_incident;
mod driver_release;
mod release_command;
mod addresses;
mod threads;
mod readiness;
mod departure;
mod leader_stream;
mod event_log;
mod node_task;
mod reload;
mod servers;
mod incidents;
mod profile;
mod guarding;
mod sharing;
mod prepare;
mod ports;
pub mod clean;
pub mod clear;
mod profile_annotations;
mod node_register;
mod cordon;
mod node_writer;
mod cluster;

use apiserver::kind::PodsOfNode;
use cluster::Cluster;
use departure::Departure;
use driver_release::DriverRelease;
use effects::state_file::StateFile;
use incidents::IncidentKeeper;
use listeners::Listeners;
use model::id::NodeName;
use model::pod::PodList;
use model::view::NodeView;
use model::workload_profile::WorkloadProfiles;
use node_task::NodeTask;
use ports::{Ports, admin};
use prepare::{announce, connect, node_name, open_usage};
use profile::Profiling;
use readiness::{Progress, Readiness};
use reload::{PortAccess, Reload};
use serve::admin_access::{self, AdminAccess};
use serve::caller::AllowedHosts;
use serve::exit::Exit;
use serve::lifecycle::{self, Lifecycle, Mode, Preparation, StartError};
use serve::log::Telemetry;
use serve::log::level::Level;
use serve::server::certificate::Certificates;
use serve::stop::{self, StopRequest};
use servers::Shown;
use settings::{AgentSettings, ReadAgain};
use sources::report::Reporter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Number of workers of the Tokio runtime. At most one of them blocks on disk I/O ([`effects::plugin::OneAtDisk`]),
/// while the other runs the node task and the watchdog. The ports have their own thread ([`servers::ports`]).
const WORKERS: usize = 2;
/// Maximum number of threads for blocking work: few are enough, because files are read rarely.
const BLOCKING: usize = 4;

/// Runs the agent until it must stop; on SIGHUP `read_again` reads its settings. An error at the start is logged.
pub fn run(settings: AgentSettings, read_again: ReadAgain, telemetry: Telemetry) -> Exit {
    lifecycle::outcome(start(settings, read_again, telemetry))
}

fn start(settings: AgentSettings, read_again: ReadAgain, telemetry: Telemetry) -> Result<Exit, StartError> {
    pprof::set_heap_sampling(settings.admin.profiling);
    // The sampler keeps files open up to the limit. If the limit cannot be raised, the sampler only takes more time.
    let _ = serve::open_files::raise_limit();
    let name = node_name(&settings)?;
    let hosts = AllowedHosts::new(settings.allowed_hosts.iter().map(String::as_str).chain([name.as_str()]));
    let certificates = admin_access::certificates("metrics", settings.tls.as_ref()).map_err(StartError::usage)?;
    let admin_access = AdminAccess::read(&settings.admin).map_err(StartError::usage)?;
    let access = PortAccess { hosts: hosts.clone(), certificates };
    let http = reload::http_settings(&settings.live, access.clone()).map_err(StartError::usage)?;
    let requests = stop::listen().map_err(|error| StartError::io("listen for signals", &error))?;
    let config = sharing::read(&settings.sharing, &name).map_err(StartError::usage)?;
    let listeners =
        Listeners::open(&settings).map_err(|error| StartError { what: error.to_string(), exit: error.exit() })?;
    let (http_sender, http) = watch::channel(http);
    let reload = Reload::new(read_again, settings.live.clone(), access, http_sender);
    let runtime =
        lifecycle::runtime(WORKERS, BLOCKING).map_err(|error| StartError::io("start the runtime's threads", &error))?;
    let kubernetes = runtime.block_on(connect(&settings))?;
    let usage = runtime.block_on(open_usage(&settings, &name))?;
    let operator = addresses::operator_token();
    let _addresses = announce(&settings, &name, &listeners, &operator);
    let drain = settings.drain_timeout;
    let exit = runtime.block_on(async {
        let ports = Ports { listeners, usage, http, hosts, admin: admin_access, operator };
        let mut agent = Agent::new(name.clone(), ports, &settings, &telemetry)?;
        if let Some(connection) = kubernetes {
            let mut cluster = agent.cluster();
            let pods = PodsOfNode::new(name.clone(), Arc::clone(&settings.pod_labels));
            cluster.follow_pods(connection.clone(), pods.with_resources(config.rules.names.all()));
            if !settings.standalone {
                let departure = cluster.share(connection, &name, (&settings, config))?;
                agent.departure = departure;
            }
        }
        Ok(agent.run(requests, reload, &telemetry, drain).await)
    });
    // A thread that hangs in a driver must not keep the process alive.
    runtime.shutdown_background();
    exit
}

/// The running tasks.
struct Agent {
    lifecycle: Lifecycle,
    /// Keeps the node task's queue open even when no source is left.
    reporter: Reporter,
    /// The newest view of the node.
    view: watch::Receiver<Arc<NodeView>>,
    /// The newest profiles; `None` with `--workload-profiles=off`.
    profiles: Option<watch::Receiver<Arc<WorkloadProfiles>>>,
    /// The pods of the node; `None` before the first list.
    pods: watch::Receiver<Option<Arc<PodList>>>,
    /// The certificates of the ports, which SIGHUP reads again.
    certificates: Vec<Arc<Certificates>>,
    /// Notified by the node task when the NVIDIA driver was updated.
    replaced: Arc<Notify>,
    /// Releases the GPU driver when an operator requests it.
    driver: DriverRelease,
    /// The progress of the start of sharing.
    progress: watch::Sender<Progress>,
    /// How the agent ends if it reports to an extender.
    departure: Option<Departure>,
}

impl Agent {
    /// Starts the sources, the node task and the servers.
    fn new(name: NodeName, ports: Ports, settings: &AgentSettings, telemetry: &Telemetry) -> Result<Agent, StartError> {
        let lifecycle = Lifecycle::new("agent");
        let stop = lifecycle.stop();
        let (reporter, observations) = Reporter::channel();
        let (view, view_seen) = watch::channel(Arc::new(NodeView::empty(name.clone(), clock::now())));
        let driver = DriverRelease::default();
        let threads =
            threads::open((&settings.sources, settings.standalone), (&name, &view_seen, &driver.0), &reporter, &stop)
                .map_err(|(doing, error)| StartError::io(&doing, &error))?;
        let profiling = Profiling::open(settings, &reporter, &view_seen, &stop);
        let readiness = Readiness::new(!settings.standalone);
        let (ready, ready_seen) = watch::channel(readiness.check());
        let (usage_broken, usage) = watch::channel(None);
        let initial = if settings.standalone { Progress::Shares } else { Progress::Begins };
        let (progressing, progress) = watch::channel(initial);
        let (period, repeats) = (settings.sources.period, telemetry.repeats.clone());
        let incidents = IncidentKeeper::open(settings);
        remove_old_tallies(&settings.state_dir);
        let now = clock::now().monotonic;
        let node = decide::node::NodeState::new(name, settings.health.clone(), &incidents.found, now);
        let (kept, kept_seen) = watch::channel(incidents.found.clone().into());
        let (clearing, clears) = mpsc::channel(clear_incident::QUEUE);
        let (pods, pods_seen) = watch::channel(None);
        let (replaced, watched) = (Arc::<Notify>::default(), progress.clone());
        let replaced_seen = Arc::clone(&replaced);
        let node = NodeTask {
            node,
            readiness,
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
        let mut agent = Agent {
            lifecycle,
            reporter,
            view: view_seen.clone(),
            profiles: profiling.profiles(),
            pods: pods_seen,
            certificates: ports.certificates(),
            replaced: replaced_seen,
            driver: driver.clone(),
            progress: progressing,
            departure: None,
        };
        agent.lifecycle.must_run("node", node.run(stop.clone()));
        agent.lifecycle.must_not_end("incidents", incidents.run(kept_seen, stop.clone()));
        agent.watch_sources(threads, settings.names.clone());
        let shown = Shown { view: view_seen, profiles: profiling.source(), ready: ready_seen, stop };
        agent.lifecycle.must_run("profile", profiling.watch(shown.stop.clone()));
        let admin = admin(&ports, settings, telemetry, (clearing, driver));
        agent.serve(ports, admin, (usage_broken, watched), shown);
        Ok(agent)
    }

    /// Starts the servers.
    fn serve(
        &mut self,
        ports: Ports,
        admin: serve::admin::Settings,
        (usage_broken, progress): (watch::Sender<Option<Arc<str>>>, watch::Receiver<Progress>),
        shown: Shown,
    ) {
        self.lifecycle.must_not_end("ports", servers::ports((ports.listeners, ports.http), admin, shown.clone()));
        match ports.usage {
            Some(socket) => {
                self.lifecycle.must_not_end("usage", servers::usage(socket, usage_broken, progress, shown));
            }
            None => drop(usage_broken),
        }
    }

    /// Watches the threads of the sources, and starts the source of container names.
    fn watch_sources(&mut self, threads: Vec<threads::Thread>, names: sources::names::Settings) {
        for (name, thread) in threads {
            self.lifecycle.must_not_end(name, threads::await_end(thread, self.lifecycle.stop()));
        }
        let (reporter, ended) = (self.reporter.clone(), self.lifecycle.stop());
        self.lifecycle.must_run("names", sources::names::run(names, reporter, ended));
    }

    fn cluster(&mut self) -> Cluster<'_> {
        let Agent { lifecycle, reporter, view, profiles, pods, progress, .. } = self;
        Cluster { lifecycle, reporter, view, profiles: profiles.clone(), pods, progress }
    }

    /// Runs until the agent must stop, then drains.
    async fn run(
        &mut self,
        requests: mpsc::Receiver<StopRequest>,
        reload: Reload,
        telemetry: &Telemetry,
        drain: Duration,
    ) -> Exit {
        let mut mode = Live {
            reload,
            level: Arc::clone(&telemetry.level),
            certificates: self.certificates.clone(),
            replaced: Arc::clone(&self.replaced),
            driver: self.driver.clone(),
            departure: self.departure.take(),
        };
        self.lifecycle.run(requests, &mut mode, &telemetry.level, drain).await
    }
}

/// Removes the file in which earlier releases kept GPU time and energy of pods. These counters start at 0 now.
fn remove_old_tallies(state_dir: &Path) {
    let file = StateFile::new(state_dir, "tallies.json");
    file.sweep();
    if let Err(error) = file.remove() {
        tracing::debug!(file = %file.path().display(), %error, "cannot remove a file of an earlier release");
    }
}

/// How the agent reacts to signals, and why it ends on its own.
struct Live {
    reload: Reload,
    level: Arc<Level>,
    certificates: Vec<Arc<Certificates>>,
    replaced: Arc<Notify>,
    driver: DriverRelease,
    departure: Option<Departure>,
}

impl Mode for Live {
    fn reload(&mut self) {
        self.reload.reload(&self.level);
        // The certificates are separate files: they are read again even if the configuration has an error.
        self.certificates.iter().for_each(|certificates| certificates.read_again());
    }

    fn realtime_signal(&mut self) {
        self.driver.signalled();
    }

    async fn must_end(&self) -> Exit {
        self.replaced.notified().await;
        tracing::error!(
            "stopping: the NVIDIA driver was updated under this process, which cannot load the new library; the \
             next process loads it, and running containers are not touched"
        );
        Exit::Restart
    }

    fn before_drain(&mut self) -> Preparation {
        match self.departure.take() {
            Some(mut departure) => Box::pin(async move { departure.wait().await }),
            None => Box::pin(std::future::ready(())),
        }
    }
}
