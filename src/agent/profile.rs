//! The thread `profile`: it keeps histories of GPUs and pods, and says what follows from them.
//!
//! ```text
//!   series of the sources (GPUs, NVML's own samples, cgroups) ─┐                        ┌─▶ watch: WorkloadProfiles
//!   watch: NodeView ───────────────────────────────────────────┴▶ profiles::Recorder ───┼─▶ file of histories (`keeper`)
//!   questions about histories ──────────────────────────────────────▶ (`task`) ─────────┘   answers
//! ```
//!
//! What must never happen here: the agent ends, stops to be ready or waits because this thread stalls, panics, or cannot write.

#[cfg(test)]
mod five_weeks;
mod keeper;
mod task;

use super::settings::AgentSettings;
use effects::api::history::{MAX_QUESTIONS, ProfileSource};
use model::view::NodeView;
use model::workload_profile::{RecorderState, WorkloadProfiles};
use sources::report::Reporter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use task::{ProfileTask, Streams};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The stack of the thread. Only the pages that it touches cost memory.
const STACK: usize = 1024 * 1024;
/// Time without progress after which the log says that the thread stalls: longer than any write to a disk that works.
const STALLED: Duration = Duration::from_secs(60);
/// How long a stop of the agent waits for the last write, which takes milliseconds.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// Pause between two looks at the thread.
const PAUSE: Duration = Duration::from_secs(1);

/// The thread, or nothing if it is switched off or cannot be started.
#[derive(Debug)]
pub(super) struct Profiling(Option<Running>);

#[derive(Debug)]
struct Running {
    source: ProfileSource,
    /// A second sender, for the time after a panic of the thread.
    shown: watch::Sender<Arc<WorkloadProfiles>>,
    /// Grows with each round of the thread.
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Profiling {
    /// Starts the thread, unless it is switched off. If it cannot be started, the log says so and there are no profiles.
    pub(super) fn open(
        settings: &AgentSettings,
        reporter: &Reporter,
        view: &watch::Receiver<Arc<NodeView>>,
        stop: &CancellationToken,
    ) -> Profiling {
        if !settings.workload_profiles {
            return Profiling(None);
        }
        match start(settings, reporter, view, stop) {
            Ok(running) => Profiling(Some(running)),
            Err(error) => {
                tracing::error!(%error, "cannot start the thread `profile`, so there are no profiles of GPUs and pods: {error}");
                Profiling(None)
            }
        }
    }

    /// The newest profiles; `None` if there are none.
    pub(super) fn profiles(&self) -> Option<watch::Receiver<Arc<WorkloadProfiles>>> {
        self.0.as_ref().map(|running| running.source.profiles.clone())
    }

    /// The profiles and the way to the histories, for the servers; `None` if there are none.
    pub(super) fn source(&self) -> Option<ProfileSource> {
        self.0.as_ref().map(|running| running.source.clone())
    }

    /// Watches the thread until the agent stops, and waits then for its last write. If the thread panics, the log says so once,
    /// and there are no profiles any more.
    pub(super) async fn watch(self, stop: CancellationToken) {
        let Some(Running { source, shown, rounds, thread }) = self.0 else { return stop.cancelled().await };
        drop(source);
        let mut stalls = Stalls::new(Instant::now());
        while !thread.is_finished() && !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => stalls.look(rounds.load(Ordering::Relaxed), Instant::now()),
            }
        }
        let until = Instant::now() + LAST_WRITE;
        while stop.is_cancelled() && !thread.is_finished() && Instant::now() < until {
            tokio::time::sleep(LAST_WRITE / 50).await;
        }
        if thread.is_finished() && thread.join().is_err() {
            tracing::error!(
                "the thread `profile` panicked: there are no profiles and histories of GPUs and pods until the agent is restarted; everything else goes on"
            );
            let not_kept = Some("the thread that makes profiles has panicked".into());
            let recorder = RecorderState { not_kept, ..RecorderState::default() };
            shown.send_replace(Arc::new(WorkloadProfiles { recorder, ..WorkloadProfiles::default() }));
        }
        stop.cancelled().await;
    }
}

fn start(
    settings: &AgentSettings,
    reporter: &Reporter,
    view: &watch::Receiver<Arc<NodeView>>,
    stop: &CancellationToken,
) -> std::io::Result<Running> {
    let too_many = || std::io::Error::other("too many subscriptions to a series");
    let streams = Streams {
        gpus: reporter.gpu_series().ok_or_else(too_many)?,
        utilization: reporter.utilization_series().ok_or_else(too_many)?,
        cgroups: reporter.cgroup_series().ok_or_else(too_many)?,
        view: view.clone(),
    };
    let (shown, profiles) = watch::channel(Arc::default());
    let (history, questions) = mpsc::channel(MAX_QUESTIONS);
    let rounds = Arc::<AtomicU64>::default();
    let task = ProfileTask::new(settings, streams, (shown.clone(), questions), Arc::clone(&rounds));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let ended = stop.clone();
    let thread = std::thread::Builder::new().name("profile".into()).stack_size(STACK);
    let thread = thread.spawn(move || runtime.block_on(task.run(ended)))?;
    Ok(Running { source: ProfileSource { profiles, history }, shown, rounds, thread })
}

/// Notices that the thread makes no progress, and logs it once each time.
#[derive(Debug)]
struct Stalls {
    rounds: u64,
    since: Instant,
    logged: bool,
}

impl Stalls {
    fn new(now: Instant) -> Stalls {
        Stalls { rounds: 0, since: now, logged: false }
    }

    fn look(&mut self, rounds: u64, now: Instant) {
        if rounds != self.rounds {
            if self.logged {
                tracing::info!("the thread `profile` goes on");
            }
            *self = Stalls { rounds, since: now, logged: false };
        } else if !self.logged && now.duration_since(self.since) >= STALLED {
            self.logged = true;
            tracing::warn!(
                seconds = STALLED.as_secs(),
                "the thread `profile` makes no progress, probably because the disk of --state-dir does not answer: profiles of GPUs and pods become old"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serve::lifecycle::runtime;

    fn running(thread: JoinHandle<()>) -> (Profiling, watch::Receiver<Arc<WorkloadProfiles>>) {
        let (shown, profiles) = watch::channel(Arc::default());
        let source = ProfileSource { profiles: profiles.clone(), history: mpsc::channel(1).0 };
        (Profiling(Some(Running { source, shown, rounds: Arc::default(), thread })), profiles)
    }

    #[test]
    fn a_panic_of_the_thread_costs_the_profiles_only() {
        let (profiling, mut profiles) = running(std::thread::spawn(|| panic!("on purpose")));
        let stop = CancellationToken::new();
        runtime(2, 1).unwrap().block_on(async {
            let watching = tokio::spawn(profiling.watch(stop.clone()));
            profiles.changed().await.unwrap();
            let reason = profiles.borrow().recorder.not_kept.clone();
            assert!(reason.is_some_and(|reason| reason.contains("panicked")));
            assert!(!watching.is_finished(), "a task that ends would end the agent");
            stop.cancel();
            watching.await.unwrap();
        });
    }

    #[test]
    fn a_thread_that_hangs_delays_the_end_of_the_agent_by_a_second_at_most() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (profiling, _profiles) = running(std::thread::spawn(move || {
            let _ = held.recv();
        }));
        let stop = CancellationToken::new();
        stop.cancel();
        let ended = runtime(2, 1)
            .unwrap()
            .block_on(async { tokio::time::timeout(LAST_WRITE * 10, profiling.watch(stop)).await });
        assert!(ended.is_ok());
        drop(release);
    }

    #[test]
    fn a_stall_is_noticed_after_a_minute_and_once() {
        let began = Instant::now();
        let mut stalls = Stalls::new(began);
        stalls.look(1, began);
        stalls.look(1, began + STALLED - Duration::from_secs(1));
        assert!(!stalls.logged);
        stalls.look(1, began + STALLED);
        assert!(stalls.logged);
        stalls.look(2, began + STALLED * 2);
        assert!(!stalls.logged, "it goes on");
    }
}
