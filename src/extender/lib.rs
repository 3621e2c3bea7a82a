//! The extender: decides for kube-scheduler which nodes fit a pod and which GPUs it gets, and binds it.
//!
//! ```text
//!   followers of all pods and Nodes ──▶ locked cluster (decide::cluster) ◀── verbs ◀── port :9444 ◀── kube-scheduler
//!                                          │ orders                  │ events, decisions
//!                                          ▼                         ▼
//!   leadership (decide::election) ──▶ binder ──POST──▶ API server ◀── event writer, evictor, waker
//!   operators ──admin :9445──▶ profiles, log level
//!   agents, other extenders ──TLS :9443──▶ stream port ──▶ agent streams ──▶ locked cluster;  verbs, which only the leader answers
//! ```
//!
//! ```text
//!   settings                      what it takes from the program
//!   locked_cluster deferred_pods large_pods follow watch_health
//!                                 the cluster's state behind one lock; what the watches of pods and Nodes feed into it, and
//!                                 whether they run
//!   leadership own_mark           who decides now; whether this process has seen everything that was written before
//!   verbs port proxy plain_pods   kube-scheduler's calls; forwarded to the leader if another process leads
//!   binder eviction waker assumed_writer
//!                                 writes bindings, evictions, wakes, and what is assumed on Nodes at the API server
//!   events closings closing_pace  events on pods and Nodes, and how often
//!   decisions explain pod_steps   the last decisions, for /api/v1/decisions; the texts of decisions; one pod's lines in the log
//!   beliefs                       what is believed of the nodes, for /api/v1/nodes
//!   realtime                      what the real-time check of memory finds, for the log and the metrics
//!   streams stream_port agent_streams stream_limit stream_counts
//!                                 the agents' streams
//!   callers live_callers          who may call the TLS port
//!   authority_keeper port_certificate
//!                                 the extenders' certificates
//!   metrics hami_metrics scrape_counts measures
//!                                 /metrics and /metrics/hami
//!   admin                         profiles and log level
//!   simulation planted            a simulated cluster, and the mistakes that it must find
//! ```
//!
//! Only the leader decides and writes. Any other extender forwards calls to the leader, or answers 503 and names the
//! leader.

pub mod settings;
mod planted;
mod plain_pods;
mod deferred_pods;
mod large_pods;
mod pod_steps;
mod locked_cluster;
mod leadership;
mod own_mark;
mod live_callers;
mod stream_limit;
mod callers;
mod stream_counts;
mod closing_pace;
mod events;
mod closings;
mod agent_streams;
mod authority_keeper;
mod port_certificate;
mod measures;
mod realtime;
mod proxy;
mod explain;
mod decisions;
mod beliefs;
mod eviction;
mod waker;
mod assumed_writer;
mod watch_health;
mod follow;
mod binder;
mod verbs;
mod metrics;
mod hami_metrics;
mod scrape_counts;
mod port;
mod stream_port;
mod streams;
mod admin;
#[cfg(test)]
mod simulation;

use apiserver::client::ApiClient;
use apiserver::follow::Follower;
use apiserver::kind::{AllNodes, AllPods};
use apiserver::lease::LeaseClient;
use apiserver::writes::ApiServer;
use apiserver::{ApiConnection, connect};
use assumed_writer::AssumedWriter;
use binder::Binder;
use decide::election::Elector;
use eviction::Evictor;
use follow::{NodeFeed, PodFeed};
use leadership::Leadership;
use live_callers::LiveCallers;
use locked_cluster::LockedCluster;
use measures::Measures;
use model::id::{NodeName, PodRef, PodUid};
use model::lease::LeaseName;
use own_mark::OwnMark;
use port::ExtenderPort;
use serve::exit::Exit;
use serve::lifecycle::{self, DrainFirst, Lifecycle, Mode, StartError};
use serve::log::Telemetry;
use serve::open_files;
use serve::server::certificate::Certificates;
use serve::server::{ConnectionCounts, HttpServer, bind};
use serve::stop;
use serve::version::version;
use settings::{ExtenderSettings, LeaseSettings};
use std::net::TcpListener;
use std::sync::Arc;
use streams::{StreamParts, Streams};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use verbs::Verbs;
use waker::Waker;
use watch_health::WatchHealth;
use wire::resource::RequestRules;

/// Number of workers of the Tokio runtime. A filter call for 5,000 nodes takes a worker for milliseconds; the election and the
/// watches run at the same time.
const WORKERS: usize = 4;
/// A heap sample in 2^19 bytes (512 KiB): a filter call for 5,000 nodes allocates more, and each sample walks a stack.
const HEAP_SAMPLES: usize = 19;
/// Maximum number of threads for blocking work: the resolver of names, and what scrapes show of the cluster.
const BLOCKING: usize = 4;
/// Number of calls about the Lease for which the renew deadline has time, even if no call gets an answer.
const CALLS: u32 = 3;
/// Number of open files in addition to the connections of agents: connections of kube-scheduler, watches and other calls to the API
/// server, and files.
const OTHER_FILES: u64 = 512;

/// Runs the extender until it must stop. `requests` says how the amounts in pods become requests. An error at the start goes
/// to the log.
pub fn run(settings: ExtenderSettings, requests: RequestRules, telemetry: &Telemetry) -> Exit {
    lifecycle::outcome(start(settings, requests, telemetry))
}

/// Raises the limit of open files to the hard limit, and warns if it is too low for the agents' connections.
fn allow_connections(serves_agents: bool) {
    let most = u64::try_from(stream_port::CONNECTIONS.connections).unwrap_or(u64::MAX) + OTHER_FILES;
    let limit = open_files::raise_limit().filter(|limit| serves_agents && *limit < most);
    if let Some(limit) = limit {
        tracing::warn!(
            limit,
            serves = most,
            "few files may be open: with about as many agents the extender can accept no connection and bind no pod; raise the \
             hard limit (LimitNOFILE= of systemd, or of the container runtime)"
        );
    }
}

fn start(settings: ExtenderSettings, requests: RequestRules, telemetry: &Telemetry) -> Result<Exit, StartError> {
    pprof::set_heap_sampling(settings.admin.profiling);
    pprof::set_heap_sample_interval(HEAP_SAMPLES);
    let asks = stop::listen().map_err(|error| StartError::io("listen for signals", &error))?;
    let listener = bind(settings.listen).map_err(|error| StartError {
        what: format!("cannot listen on {}: {error}; choose another address with --extender-listen", settings.listen),
        exit: Exit::from_io(&error),
    })?;
    allow_connections(settings.streams.is_some());
    let streams = settings.streams.as_ref().map(streams::open).transpose()?;
    let host = host();
    let admin = admin::open(&settings, &host)?;
    let runtime =
        lifecycle::runtime(WORKERS, BLOCKING).map_err(|error| StartError::io("start the runtime's threads", &error))?;
    let kubeconfig = settings.kubeconfig.clone();
    let connection = runtime
        .block_on(async { connect(kubeconfig.as_deref()).await })
        .map_err(|error| StartError::usage(error.to_string()))?;
    let identity = identity(&host)?;
    let own_pod = own_pod();
    let address = listener.local_addr().map_or_else(|_| settings.listen.to_string(), |address| address.to_string());
    let (version, pid) = (version(), std::process::id());
    let reports = streams.as_ref().map_or_else(|| "none".to_owned(), |opened| opened.address.to_string());
    let shown = admin.address();
    tracing::info!(version, %identity, pid, address, reports, admin = shown, "gpu-steward extender started");
    let drain = settings.drain_timeout;
    let exit = runtime.block_on(async {
        let reached = streams.as_ref().map(|opened| Arc::clone(&opened.address));
        let itself = OwnIdentity { name: identity.clone(), address: reached, pod: own_pod };
        let mut extender = Extender::new(&settings, requests, &itself, connection);
        extender.feed();
        if settings.assume_annotation {
            extender.write_assumed();
        }
        extender.serve(listener, streams);
        let mut live = Live { certificates: admin.access.certificates.clone() };
        extender.lifecycle.must_not_end("admin port", admin.serve(telemetry.level.clone(), extender.lifecycle.stop()));
        extender.lifecycle.run(asks, &mut live, &telemetry.level, drain).await
    });
    runtime.shutdown_background();
    Ok(exit)
}

/// The name of the pod, or of the machine.
fn host() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    pod.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().trim().to_owned())
}

/// The name of this process in the election: the name of its pod or machine and random digits, because an earlier process of
/// the same pod is a different candidate.
fn identity(host: &str) -> Result<NodeName, StartError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| StartError::io("get random bytes", &error.into()))?;
    let name = format!("{host}_{:016x}", u64::from_be_bytes(random));
    NodeName::parse(&name)
        .map_err(|error| StartError::usage(format!("cannot name this process after the host: {error}")))
}

/// This process's pod; `None` outside a pod, and if its UID is not set in the environment.
fn own_pod() -> Option<(PodUid, PodRef)> {
    let told = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let uid = PodUid::parse(&told("POD_UID")?).ok()?;
    Some((uid, PodRef { namespace: pod_namespace()?.into(), name: told("POD_NAME")?.into() }))
}

/// The namespace of this process's pod; `None` outside a pod.
fn pod_namespace() -> Option<String> {
    std::env::var("POD_NAMESPACE").ok().filter(|namespace| !namespace.is_empty())
}

fn namespace(settings: &LeaseSettings) -> Arc<str> {
    settings.namespace.clone().or_else(pod_namespace).unwrap_or_else(|| "kube-system".to_owned()).into()
}

/// How this process is known to others.
#[derive(Clone, Debug)]
struct OwnIdentity {
    /// The process's name in the election.
    name: NodeName,
    /// The address at which agents and the other extenders reach this process.
    address: Option<Arc<str>>,
    /// The process's pod; `None` outside a pod.
    pod: Option<(PodUid, PodRef)>,
}

/// The running parts.
struct Extender {
    lifecycle: Lifecycle,
    connection: ApiConnection,
    cluster: Arc<LockedCluster>,
    leadership: Arc<Leadership>,
    mark: Arc<OwnMark>,
    evictor: Arc<Evictor>,
    watches: [Arc<WatchHealth>; 2],
    verbs: Arc<Verbs>,
    measures: Arc<Measures>,
    binder: Arc<Binder>,
    lease: LeaseClient,
    live: Arc<LiveCallers>,
    /// Namespace and name of the Lease; the objects of the certificate authority have names made from it.
    place: (Arc<str>, Arc<str>),
}

impl Extender {
    fn new(
        settings: &ExtenderSettings,
        requests: RequestRules,
        itself: &OwnIdentity,
        connection: ApiConnection,
    ) -> Extender {
        let mut lifecycle = Lifecycle::new("extender");
        let place: (Arc<str>, Arc<str>) = (namespace(&settings.lease), settings.lease.name.as_str().into());
        let lease_name = LeaseName::new(&place.0, &place.1);
        let cluster = LockedCluster::new(settings.rules.clone(), requests, lease_name);
        let cluster = Arc::new(cluster.of_scheduler(Arc::clone(&settings.scheduler_name)));
        let identity = &itself.name;
        let elector = Elector::new(identity.as_str().into(), settings.lease.times).at(itself.address.clone());
        let leadership = Arc::new(Leadership::new(elector));
        let (events, writer) = events::queue(ApiServer::new(connection.clone(), identity.clone()));
        let client = ApiClient::new(connection.clone());
        let mark = Arc::new(OwnMark::new(client.clone(), identity.as_str().into(), itself.pod.clone()));
        let measures = Arc::<Measures>::default();
        let watches = [WatchHealth::new("pods"), WatchHealth::new("nodes")];
        let binder = Arc::new(Binder {
            client,
            watches: watches.clone(),
            cluster: Arc::clone(&cluster),
            leadership: Arc::clone(&leadership),
            events: Arc::clone(&events),
            reads: Semaphore::new(binder::READS),
            orders: Default::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let verbs = Arc::new(Verbs {
            cluster: Arc::clone(&cluster),
            binder: Arc::clone(&binder),
            events,
            decisions: Default::default(),
            measures: Arc::clone(&measures),
        });
        lifecycle.must_run("events", writer.run(lifecycle.stop()));
        let lease = LeaseClient::new(connection.clone(), place.clone(), settings.lease.times.renew_deadline / CALLS);
        let own = pod_namespace().map(Arc::<str>::from).into_iter().chain([Arc::clone(&place.0)]);
        let namespaces = settings.streams.as_ref().map(|streams| callers::namespaces(streams, own)).unwrap_or_default();
        Extender {
            lifecycle,
            connection,
            cluster,
            leadership,
            mark,
            evictor: Arc::default(),
            watches,
            verbs,
            measures,
            binder,
            lease,
            live: Arc::new(LiveCallers::new(namespaces)),
            place,
        }
    }

    /// Starts the followers, which feed the cluster's state, the election, the evictions, and the wakes.
    fn feed(&mut self) {
        let [pods, nodes] = self.leadership.relists.clone();
        let pod_feed = PodFeed {
            cluster: Arc::clone(&self.cluster),
            leadership: Arc::clone(&self.leadership),
            mark: Arc::clone(&self.mark),
            evictor: Arc::clone(&self.evictor),
            events: Arc::clone(&self.verbs.events),
            live: Arc::clone(&self.live),
            health: Arc::clone(&self.watches[0]),
        };
        let node_feed = NodeFeed {
            cluster: Arc::clone(&self.cluster),
            leadership: Arc::clone(&self.leadership),
            events: Arc::clone(&self.verbs.events),
            live: Arc::clone(&self.live),
            health: Arc::clone(&self.watches[1]),
        };
        let marks = (Arc::clone(&self.leadership.pods_wanted), Arc::clone(&pods));
        let marking = Arc::clone(&self.mark).run(Arc::clone(&self.cluster), marks, self.lifecycle.stop());
        self.lifecycle.must_run("own mark", marking);
        let kind = AllPods::with_rules(self.cluster.rules()).needing(self.live.namespaces().clone());
        let kind = kind.placed_by(Arc::clone(self.cluster.scheduler()));
        self.follow("pods", kind, (pod_feed, pods));
        self.follow("nodes", AllNodes, (node_feed, nodes));
        let told = (Arc::clone(&self.verbs.events), Arc::clone(&self.live));
        let (cluster, leadership) = (Arc::clone(&self.cluster), Arc::clone(&self.leadership));
        self.lifecycle.must_run("closings", closings::watch(cluster, told, leadership, self.lifecycle.stop()));
        let (leadership, stop) = (Arc::clone(&self.leadership), self.lifecycle.stop());
        self.lifecycle.must_run("election", leadership.run(self.lease.clone(), Arc::clone(&self.cluster), stop));
        let (client, leadership) = (ApiClient::new(self.connection.clone()), Arc::clone(&self.leadership));
        let evicting = Arc::clone(&self.evictor).run(client, leadership, self.lifecycle.stop());
        self.lifecycle.must_run("evictions", evicting);
        let client = ApiClient::new(self.connection.clone());
        let waker = Arc::new(Waker::new(client, Arc::clone(&self.cluster), Arc::clone(&self.leadership)));
        self.lifecycle.must_run("wakes", waker.run(self.lifecycle.stop()));
    }

    /// Starts to write on Nodes how much of their GPUs is assumed to be taken.
    fn write_assumed(&mut self) {
        let writer = AssumedWriter {
            cluster: Arc::clone(&self.cluster),
            leadership: Arc::clone(&self.leadership),
            client: ApiClient::new(self.connection.clone()),
        };
        self.lifecycle.must_run("assumed", writer.run(self.lifecycle.stop()));
    }

    fn follow<K, L>(&mut self, name: &'static str, kind: K, (feed, relist): (L, Arc<Notify>))
    where
        K: apiserver::kind::Followed,
        L: apiserver::follow::FollowListener<K> + Sync + 'static,
    {
        let follower = Follower::new(self.connection.clone(), kind, feed).relist_on(relist);
        let stop = self.lifecycle.stop();
        self.lifecycle.must_run(name, async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = Box::pin(follower.run()) => {}
            }
        });
    }

    /// Serves the ports. At a stop they drain first: open requests, then orders in progress. The Lease is released last.
    fn serve(&mut self, listener: TcpListener, opened: Option<streams::OpenedStreams>) {
        let [closing, closed] = [CancellationToken::new(), CancellationToken::new()];
        let counts = Arc::<ConnectionCounts>::default();
        let mut application = ExtenderPort::new(
            Arc::clone(&self.verbs),
            Arc::clone(&self.leadership),
            Arc::clone(&self.measures),
            self.watches.clone(),
            Arc::clone(&counts),
        );
        let streams = opened.map(|opened| {
            let parts = StreamParts {
                cluster: Arc::clone(&self.cluster),
                leadership: Arc::clone(&self.leadership),
                live: Arc::clone(&self.live),
            };
            Streams::new(opened, (self.connection.clone(), &self.place), parts, closing.clone())
        });
        if let Some(streams) = &streams {
            application = application.with_streams((streams.scrape(), streams.readiness()), streams.proxy());
        }
        let application = Arc::new(application);
        if let Some(streams) = streams {
            let stop = self.lifecycle.stop();
            self.lifecycle.must_run("token keys", Arc::clone(&streams.callers).keep_fresh(stop.clone()));
            self.lifecycle.must_not_end("streams", streams.run(Arc::clone(&application), stop));
        }
        let server = HttpServer { application, limits: port::CONNECTIONS, certificates: None, counts };
        let (binder, stop) = (Arc::clone(&self.binder), self.lifecycle.stop());
        let (until, ended) = (closing.clone(), closed.clone());
        self.lifecycle.must_not_end("port", async move {
            let served = server.serve(listener, until).await;
            binder.stop.cancel();
            binder.tasks.close();
            binder.tasks.wait().await;
            ended.cancel();
            if served.is_ok() {
                stop.cancelled().await;
            }
            served
        });
        self.lifecycle.drain_first(DrainFirst { closing, closed });
    }
}

/// What the extender does on signals. It never ends by itself.
struct Live {
    /// The certificates of the admin port, which SIGHUP reads again.
    certificates: Option<Arc<Certificates>>,
}

impl Mode for Live {
    fn reload(&mut self) {
        tracing::info!("SIGHUP: the extender reads its configuration at its start only, and certificates again");
        self.certificates.iter().for_each(|certificates| certificates.read_again());
    }

    fn realtime_signal(&mut self) {}

    async fn must_end(&self) -> Exit {
        std::future::pending().await
    }
}
