//! The loop of the thread `profile`: once a second it takes what has come, analyses what is due, and publishes; it answers questions
//! as they come.
//!
//! What must never happen here: more analysis in a second than [`profiles::schedule::MOST_IN_A_SECOND`]; a question without an
//! answer while the thread runs.

use super::keeper::HistoryKeeper;
use crate::settings::AgentSettings;
use effects::api::history::{HistoryRefusal, HistoryRequest};
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::observation::CgroupPass;
use model::time::{Monotonic, Now};
use model::utilization::UtilizationSamples;
use model::view::NodeView;
use model::workload_profile::{HistoryAnswer, HistoryQuery, WorkloadProfiles};
use profiles::recorder::Periods;
use profiles::schedule::AnalysisPace;
use profiles::{Recorder, RecorderEvent};
use sources::series::{SeriesPart, Subscription};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// The time between two publications: a pod that is gone must not be shown for more than 10 s (promise 8), and its end is in a view
/// within a few seconds.
const PUBLISHED_EVERY: Duration = Duration::from_secs(5);
/// The time between two writes: one write changes some thirty pages of the file, and a kill costs this much of the minutes.
const WRITTEN_EVERY: Duration = Duration::from_secs(300);

/// What the thread reads.
#[derive(Debug)]
pub(super) struct Streams {
    /// Readings of GPUs.
    pub(super) gpus: Subscription<(GpuUuid, GpuSample)>,
    /// NVML's own samples of utilisation.
    pub(super) utilization: Subscription<UtilizationSamples>,
    /// Passes over the cgroups.
    pub(super) cgroups: Subscription<CgroupPass>,
    /// The newest view.
    pub(super) view: watch::Receiver<Arc<NodeView>>,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct ProfileTask {
    streams: Streams,
    recorder: Recorder,
    keeper: HistoryKeeper,
    pace: AnalysisPace,
    shown: watch::Sender<Arc<WorkloadProfiles>>,
    questions: mpsc::Receiver<HistoryRequest>,
    /// Grows with each round, so that a stall is noticed.
    rounds: Arc<AtomicU64>,
    published: Monotonic,
    written: Monotonic,
}

impl ProfileTask {
    /// The task before it starts. It opens its file on its own thread.
    pub(super) fn new(
        settings: &AgentSettings,
        streams: Streams,
        (shown, questions): (watch::Sender<Arc<WorkloadProfiles>>, mpsc::Receiver<HistoryRequest>),
        rounds: Arc<AtomicU64>,
    ) -> ProfileTask {
        let sources = &settings.sources;
        let periods = Periods { period: sources.period, slow: sources.slow_period, lists: sources.process_period };
        ProfileTask {
            streams,
            recorder: Recorder::new(periods, None),
            keeper: HistoryKeeper::new(settings.state_dir.clone(), &sources.roots.procfs),
            pace: AnalysisPace::default(),
            shown,
            questions,
            rounds,
            published: Monotonic::default(),
            written: Monotonic::default(),
        }
    }

    /// Runs until the agent stops, and writes then what waits.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let now = clock::now();
        self.keeper.open(&mut self.recorder, now);
        self.written = now.monotonic;
        let mut rounds = tokio::time::interval(ROUND);
        // Rounds that were missed are not made up for: two of them in one second could take twice the time of a second.
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = rounds.tick() => self.round(clock::now()),
                Some(HistoryRequest { query, answer }) = self.questions.recv() => {
                    // The client may have stopped to wait.
                    let _ = answer.send(self.answer(&query, clock::now()));
                }
            }
        }
        let now = clock::now().monotonic;
        self.take(now);
        self.write(now);
    }

    fn round(&mut self, now: Now) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.keeper.open(&mut self.recorder, now);
        self.take(now.monotonic);
        self.analyze(now);
        if now.monotonic.since(self.written) >= WRITTEN_EVERY {
            self.written = now.monotonic;
            self.write(now.monotonic);
        }
        if now.monotonic.since(self.published) >= PUBLISHED_EVERY {
            self.published = now.monotonic;
            self.publish(now);
        }
    }

    /// Takes what the sources have reported since the last round.
    fn take(&mut self, now: Monotonic) {
        let Streams { gpus, utilization, cgroups, view } = &mut self.streams;
        let recorder = &mut self.recorder;
        let SeriesPart { samples, missed } = gpus.take();
        recorder.apply(RecorderEvent::Missed(missed), now);
        samples.iter().for_each(|sample| recorder.apply(RecorderEvent::Gpu(&sample.0, &sample.1), now));
        let SeriesPart { samples, missed } = utilization.take();
        recorder.apply(RecorderEvent::Missed(missed), now);
        samples.iter().for_each(|batch| recorder.apply(RecorderEvent::Utilization(batch), now));
        let SeriesPart { samples, missed } = cgroups.take();
        recorder.apply(RecorderEvent::Missed(missed), now);
        samples.iter().for_each(|pass| recorder.apply(RecorderEvent::Cgroups(pass), now));
        if view.has_changed().unwrap_or(false) {
            let view = Arc::clone(&view.borrow_and_update());
            recorder.apply(RecorderEvent::View(&view), now);
        }
        recorder.close_steps(now);
    }

    /// Makes the analyses that are due, as many as fit into this second.
    fn analyze(&mut self, now: Now) {
        self.pace.renew();
        while let Some(analysis) = self.recorder.due(now.monotonic) {
            if !self.pace.allows(analysis.kind) {
                break;
            }
            let began = clock::thread_time();
            let stored = self.recorder.stored_range(&analysis, now.monotonic);
            // Without the steps on disk the analysis sees less, and says so.
            let stored = stored.and_then(|range| self.keeper.read(&range).ok()).unwrap_or_default();
            self.recorder.analyze(&analysis, &stored, now);
            let took = clock::thread_time().saturating_sub(began);
            self.pace.took(analysis.kind, took);
            self.recorder.count(took);
        }
    }

    fn write(&mut self, now: Monotonic) {
        self.keeper.write(&mut self.recorder, now);
    }

    fn publish(&self, now: Now) {
        let mut profiles = self.recorder.profiles(now);
        profiles.recorder.busiest_second = self.pace.busiest();
        (profiles.recorder.file, profiles.recorder.not_kept) = self.keeper.state();
        self.shown.send_replace(Arc::new(profiles));
    }

    fn answer(&mut self, query: &HistoryQuery, now: Now) -> Result<HistoryAnswer, HistoryRefusal> {
        let plan = self.recorder.plan(query, now);
        let stored = match &plan.stored {
            Some(range) => self.keeper.read(range).map_err(HistoryRefusal::Unreadable)?,
            None => Vec::new(),
        };
        self.recorder.answer(&plan, &stored, now).ok_or(HistoryRefusal::NotKept)
    }
}
