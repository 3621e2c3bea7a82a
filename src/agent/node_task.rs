//! The task that holds the node's state: it applies observations, publishes the view and sends heartbeats to the
//! service manager.

use super::clear_incident::ClearIncident;
use super::event_log::{log_cleared, log_event};
use super::readiness::{Progress, Readiness};
use decide::node::NodeState;
use model::incident::KeptIncidents;
use model::observation::{Fact, Observation, Sample};
use model::pod::PodList;
use model::view::NodeView;
use serve::log::repeats::Repeats;
use serve::notify;
use sources::report::Observations;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long after a pass over the cgroups the task publishes the view. All observations of the pass arrive within this
/// time.
const SETTLE: Duration = Duration::from_millis(50);
/// After this time the agent reports to the service manager that it runs, even if a first reading still hangs.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(20);
/// The task applies at most this many observations before it checks the timers again.
const BATCH: usize = 64;

/// The task, with its inputs and outputs. Its state is `node`.
#[derive(Debug)]
pub(crate) struct NodeTask {
    /// The node's state.
    pub node: NodeState,
    /// The conditions of readiness.
    pub readiness: Readiness,
    /// The observations of the sources.
    pub observations: Observations,
    /// The reason why the usage socket is not served; `None` if it is served.
    pub usage: watch::Receiver<Option<Arc<str>>>,
    /// The progress of the start of sharing.
    pub progress: watch::Receiver<Progress>,
    /// The pods of the node, for the sharing task.
    pub pods: watch::Sender<Option<Arc<PodList>>>,
    /// Requests of operators to clear incidents.
    pub clears: mpsc::Receiver<ClearIncident>,
    /// The incidents to keep on disk.
    pub kept: watch::Sender<Arc<[KeptIncidents]>>,
    /// The newest view, for the servers.
    pub view: watch::Sender<Arc<NodeView>>,
    /// Notifies the agent that the NVIDIA driver was updated, so that it ends.
    pub replaced: Arc<Notify>,
    /// The answer of `/readyz`.
    pub ready: watch::Sender<Result<(), Arc<str>>>,
    /// The time between two passes of the sampler.
    pub period: Duration,
    /// The counts of repeated log lines, which the task logs.
    pub repeats: Repeats,
}

impl NodeTask {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let begin = Instant::now();
        let mut announced = false;
        let mut publish_at = begin + self.period;
        let beat = notify::heartbeat();
        let mut beat_at = begin;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            // The timers come first: a flood of observations must delay neither the view nor the heartbeat.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(beat_at), if beat.is_some() => {
                    notify::alive();
                    beat_at = Instant::now() + beat.unwrap_or(ANNOUNCE_WITHIN);
                }
                () = sleep_until(publish_at) => {
                    self.publish();
                    publish_at = Instant::now() + self.period + self.period / 2;
                    if !announced && (self.readiness.opened() || begin.elapsed() > ANNOUNCE_WITHIN) {
                        announced = true;
                        notify::ready(&self.summary());
                    }
                }
                Ok(()) = self.usage.changed() => {
                    self.readiness.usage = self.usage.borrow_and_update().clone();
                    self.update_readiness();
                }
                Ok(()) = self.progress.changed() => {
                    self.readiness.progress = *self.progress.borrow_and_update();
                    self.update_readiness();
                }
                Some(clear) = self.clears.recv() => {
                    self.clear(clear);
                    self.keep_incidents();
                }
                count = self.observations.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for observation in batch.drain(..) {
                        if matches!(observation, Observation::Sample(Sample::Cgroups(_))) {
                            publish_at = publish_at.min(Instant::now() + SETTLE);
                        }
                        self.readiness.observe(&observation);
                        self.apply(observation);
                    }
                    self.update_readiness();
                    self.keep_incidents();
                }
            }
        }
    }

    fn apply(&mut self, observation: Observation) {
        if matches!(observation, Observation::Fact(Fact::GpuDriverReplaced)) {
            self.replaced.notify_one();
        }
        if let Observation::Fact(Fact::Pods(list)) = &observation {
            self.pods.send_replace(Some(Arc::new(list.clone())));
        }
        for event in self.node.apply(observation, clock::now()) {
            log_event(&event, &self.view.borrow());
        }
    }

    fn clear(&mut self, clear: ClearIncident) {
        let (cleared, events) = self.node.clear_incidents(clear.gpu.as_ref());
        cleared.iter().for_each(|(gpu, _)| log_cleared(gpu));
        events.iter().for_each(|event| log_event(event, &self.view.borrow()));
        // The caller may have closed its connection.
        let _ = clear.answer.send(cleared);
    }

    fn keep_incidents(&self) {
        let now = self.node.kept();
        self.kept.send_if_modified(|before| {
            let changed = **before != *now;
            if changed {
                *before = now.into();
            }
            changed
        });
    }

    fn publish(&mut self) {
        let view = self.node.view(clock::now());
        self.view.send_replace(Arc::new(view));
        self.repeats.log_counts(std::time::Instant::now());
    }

    fn update_readiness(&self) {
        let readiness = self.readiness.check();
        let changed = self.ready.send_if_modified(|now| {
            let changed = *now != readiness;
            now.clone_from(&readiness);
            changed
        });
        if changed {
            match readiness {
                Ok(()) => tracing::info!("ready"),
                Err(why) if self.readiness.opened() => tracing::warn!(reason = &*why, "not ready"),
                Err(why) => tracing::debug!(reason = &*why, "not ready yet"),
            }
            notify::status(&self.summary());
        }
    }

    /// The line for `systemctl status`.
    fn summary(&self) -> String {
        let view = self.view.borrow();
        let ready = self.ready.borrow();
        let state = ready.as_ref().map_or_else(|why| format!("not ready: {why}"), |()| "ready".to_owned());
        let simulated = if view.gpu_source.simulated() { " simulated" } else { "" };
        format!("{state}; {}{simulated} GPUs, {} pods", view.gpus.len(), view.pods.len())
    }
}
