//! One simulated process: the extender's own code on a runtime with a clock that the simulation sets. The process can be
//! left alone between any two steps of its tasks (a pause), or dropped (a crash).

use super::super::agent_streams::AgentStreams;
use super::super::callers::AgentIdentity;
use super::super::measures::Verb;
use super::super::settings::{ExtenderSettings, LeaseSettings};
use super::super::{Extender, OwnIdentity};
use super::network::{Outbox, SimulatedNetwork};
use super::preemption::{self, Waits};
use super::random::Random;
use apiserver::{ApiConnection, chance};
use decide::cluster::{AnsweredNodes, ClusterRules, ClusterState};
use decide::election::ElectionTimes;
use model::id::{NodeName, ObjectUid, PodRef, PodUid};
use model::time::{Monotonic, Now, WallTime};
use parking_lot::Mutex;
use serve::admin_access::AdminSettings;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use std::future::{Future, poll_fn};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use stream::MessageStream;
use tokio::io::DuplexStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wire::resource::RequestRules;

/// The answer to a question of kube-scheduler: the body, or why there is no body.
pub(super) type VerbAnswer = Result<String, String>;

/// The answers that kube-scheduler has not seen yet, each with the number of its question.
pub(super) type Answers = Arc<Mutex<Vec<(u64, VerbAnswer)>>>;

/// The agent's end of a stream; dropping it ends the stream.
pub(super) type AgentEnd = MessageStream<DuplexStream>;

/// Bytes that a stream's buffer holds: more than an agent sends before the extender runs, so that no write waits.
const PIPE: usize = 1 << 20;

/// A process.
pub(super) struct Process {
    /// No two processes have the same number, not even on one machine.
    pub(super) number: u64,
    pub(super) outbox: Outbox,
    runtime: Runtime,
    extender: Extender,
    streams: Arc<AgentStreams>,
    /// Cancelled when all streams must end.
    closing: CancellationToken,
    /// Simulated time up to which the process has run.
    ran: u64,
    /// The process's clocks at the time `ran`.
    now: Now,
    /// How much faster the process's clocks run, in millionths.
    drift: u64,
    entropy: Random,
    /// Whether the process is stopping, or did not decide at the start of its last run. Then it has forgotten the reports of
    /// agents, even if it decides again now.
    pub(super) lapsed: bool,
    stopping: bool,
    /// What is wrong in an answer to kube-scheduler.
    wrong: Arc<Mutex<Option<String>>>,
    waits: Arc<Mutex<Waits>>,
}

/// What differs between the machines of processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineClock {
    pub(super) boot: u64,
    pub(super) wall: u64,
    pub(super) drift: u64,
}

impl Process {
    /// Starts a process in this pod.
    pub(super) fn start(
        (number, pod): (u64, Option<(PodUid, PodRef)>),
        at: u64,
        times: ElectionTimes,
        clock: MachineClock,
        seed: u64,
    ) -> Process {
        // One step of a task between two looks at the simulation.
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).event_interval(1).build().unwrap();
        let (outbox, mut entropy) = (Outbox::default(), Random::new(seed));
        let now = Now { monotonic: Monotonic(clock.boot + at), wall: WallTime((clock.wall + at) / 1000) };
        clock::simulate(Some(now));
        chance::simulate(Some(entropy.number()));
        let closing = CancellationToken::new();
        let (extender, streams) = {
            let _entered = runtime.enter();
            let client = kube::Client::new(SimulatedNetwork(Arc::clone(&outbox)), "default");
            let connection = ApiConnection::of(client, "simulated".into(), "simulation".into());
            let identity = NodeName::parse(&format!("extender-{number}")).unwrap();
            // Agents find it by its name.
            let itself = OwnIdentity { address: Some(identity.as_str().into()), name: identity, pod };
            let mut extender = Extender::new(&settings(times, seed), RequestRules::default(), &itself, connection);
            extender.feed();
            let Extender { cluster, leadership, live, .. } = &extender;
            let (cluster, leadership, live) = (Arc::clone(cluster), Arc::clone(leadership), Arc::clone(live));
            let streams = Arc::new(AgentStreams::new(cluster, leadership, live, closing.clone()));
            let watching = Arc::clone(&streams);
            runtime.spawn(async move { watching.watch_term().await });
            (extender, streams)
        };
        clock::simulate(None);
        chance::simulate(None);
        let drift = clock.drift;
        Process {
            number,
            outbox,
            runtime,
            extender,
            streams,
            closing,
            ran: at,
            now,
            drift,
            entropy,
            lapsed: true,
            stopping: false,
            wrong: Arc::default(),
            waits: Arc::default(),
        }
    }

    /// Runs up to `steps` steps of its tasks at this moment.
    ///
    /// # Errors
    /// If a task has ended that must not, or an answer to kube-scheduler is wrong.
    pub(super) fn run(&mut self, at: u64, steps: u64) -> Result<(), String> {
        let passed = at - self.ran;
        let own = passed + passed / 1_000_000 * self.drift;
        self.ran = at;
        self.now =
            Now { monotonic: Monotonic(self.now.monotonic.0 + own), wall: WallTime(self.now.wall.0 + own / 1000) };
        let entropy = self.entropy.number();
        let ended = self.with_clock(|process| {
            chance::simulate(Some(entropy));
            process.lapsed = process.stopping || !process.extender.leadership.decides();
            let lifecycle = &mut process.extender.lifecycle;
            let ended = process.runtime.block_on(async {
                if own > 0 {
                    tokio::time::advance(Duration::from_nanos(own)).await;
                }
                for _ in 0..steps {
                    tokio::task::yield_now().await;
                }
                let mut ended = pin!(lifecycle.ended());
                poll_fn(|cx| match ended.as_mut().poll(cx) {
                    Poll::Ready(ended) => Poll::Ready(ended),
                    Poll::Pending => Poll::Ready(None),
                })
                .await
            });
            chance::simulate(None);
            ended
        });
        if let Some(why) = self.wrong.lock().take() {
            return Err(format!("extender-{} {why}", self.number));
        }
        match ended.filter(|_| !self.stopping) {
            None => Ok(()),
            Some(ended) => Err(format!("extender-{}: the task {} has ended: {}", self.number, ended.task, ended.why)),
        }
    }

    /// The wall clock of the process's machine jumps.
    pub(super) fn wall_jumps(&mut self, to: u64) {
        self.now.wall = WallTime(to);
    }

    /// The machine sleeps: the clock since boot goes on, and timers do not.
    pub(super) fn sleeps(&mut self, nanos: u64) {
        self.now.monotonic = Monotonic(self.now.monotonic.0 + nanos);
    }

    /// Stops as after SIGTERM: the orders under way end, then the Lease is released.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.closing.cancel();
        let (binder, stop) = (Arc::clone(&self.extender.binder), self.extender.lifecycle.stop());
        self.runtime.spawn(async move {
            binder.stop.cancel();
            binder.tasks.close();
            binder.tasks.wait().await;
            stop.cancel();
        });
    }

    /// Asks a verb, as kube-scheduler does over the port.
    pub(super) fn ask(&self, question: u64, verb: Verb, body: String, answers: &Answers) {
        let (leadership, verbs) = (Arc::clone(&self.extender.leadership), Arc::clone(&self.extender.verbs));
        let (answers, wrong, cluster) =
            (Arc::clone(answers), Arc::clone(&self.wrong), Arc::clone(&self.extender.cluster));
        let waits = Arc::clone(&self.waits);
        self.runtime.spawn(async move {
            let answer = match verb {
                _ if !leadership.decides() => Err("503".to_owned()),
                Verb::Filter => verbs.filter(body.as_bytes()),
                Verb::Prioritize => verbs.prioritize(body.as_bytes()),
                Verb::Preempt => {
                    let answer = verbs.preempt(body.as_bytes());
                    if let Ok(text) = &answer {
                        let (mut waits, now) = (waits.lock(), clock::monotonic());
                        let checked = cluster.inspect(|cluster| {
                            preemption::check(cluster, &body, text)?;
                            preemption::check_wait(cluster, &body, text, (&mut waits, now))
                        });
                        checked.err().into_iter().for_each(|why| *wrong.lock() = Some(why));
                    }
                    answer
                }
                Verb::Bind => verbs.bind(body.as_bytes()).await,
            };
            answers.lock().push((question, answer));
        });
    }

    /// Opens a stream for the agent of this Node. Its token is valid for this long.
    pub(super) fn stream(&self, node: (NodeName, ObjectUid), token: Duration) -> AgentEnd {
        let _entered = self.runtime.enter();
        let (near, far) = tokio::io::duplex(PIPE);
        let agent = AgentIdentity { node, pod: None, until: Instant::now() + token };
        self.runtime.spawn(Arc::clone(&self.streams).serve(agent, MessageStream::new(far)));
        MessageStream::new(near)
    }

    /// Whether the process says that it decides.
    pub(super) fn decides(&mut self) -> bool {
        self.with_clock(|process| process.extender.leadership.decides())
    }

    /// The time of the process's clock since boot.
    pub(super) fn monotonic(&self) -> Monotonic {
        self.now.monotonic
    }

    /// What the process believes of the cluster.
    pub(super) fn believes<R>(&self, look: impl FnOnce(&ClusterState) -> R) -> R {
        self.extender.cluster.inspect(look)
    }

    fn with_clock<R>(&mut self, act: impl FnOnce(&mut Process) -> R) -> R {
        clock::simulate(Some(self.now));
        let result = act(self);
        clock::simulate(None);
        result
    }
}

fn settings(times: ElectionTimes, seed: u64) -> ExtenderSettings {
    let answered_nodes = match usize::try_from(seed % 3).ok().and_then(NonZeroUsize::new) {
        Some(most) => AnsweredNodes::AtMost(most),
        None => AnsweredNodes::Share,
    };
    ExtenderSettings {
        kubeconfig: None,
        drain_timeout: Duration::from_secs(30),
        listen: ([127, 0, 0, 1], 0).into(),
        admin: AdminSettings { listen: None, tls: None, token_file: None, profiling: false },
        allowed_hosts: Vec::new(),
        streams: None,
        lease: LeaseSettings { name: "gpu-steward".to_owned(), namespace: Some("kube-system".to_owned()), times },
        assume_annotation: false,
        scheduler_name: "gpu-steward".into(),
        rules: ClusterRules { answered_nodes, ..ClusterRules::default() },
        log_format: LogFormat::Text,
        verbosity: Verbosity(0),
    }
}
