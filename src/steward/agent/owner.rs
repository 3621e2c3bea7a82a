//! The one task that owns the node's state: takes observations in, shows the view, gives the sign of life.

use super::latch::{Latch, Progress};
use super::tell::tell;
use crate::notify;
use crate::telemetry::repeats::Repeats;
use decide::node::NodeState;
use effects::admin::ClearIncident;
use model::incident::KeptIncidents;
use model::observation::Observation;
use model::pod::PodList;
use model::view::NodeView;
use sources::report::Observations;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long after a pass over cgroups the view is made: what belongs to the same pass is reported within this time.
const SETTLE: Duration = Duration::from_millis(50);
/// After this long the service manager is told that we are up even if a first look still hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Observations taken in before the clock is looked at again.
const BATCH: usize = 64;

/// The owner.
#[derive(Debug)]
pub(crate) struct Owner {
    /// The state.
    pub node: NodeState,
    /// What is waited for before we are ready.
    pub latch: Latch,
    /// From the eyes.
    pub observations: Observations,
    /// Why the usage socket is not served, if it is not.
    pub usage: watch::Receiver<Option<Arc<str>>>,
    /// How far sharing is.
    pub progress: watch::Receiver<Progress>,
    /// To whoever shares GPUs out.
    pub pods: watch::Sender<Option<Arc<PodList>>>,
    /// Operators who say that something is mended.
    pub clears: mpsc::Receiver<ClearIncident>,
    /// What is to be kept over the end of the program.
    pub kept: watch::Sender<Arc<[KeptIncidents]>>,
    /// To the servers.
    pub view: watch::Sender<Arc<NodeView>>,
    /// To whoever ends the program.
    pub replaced: Arc<Notify>,
    /// To `/readyz`.
    pub ready: watch::Sender<Result<(), Arc<str>>>,
    /// Time between two passes.
    pub period: Duration,
    /// What was said again and again.
    pub repeats: Repeats,
}

impl Owner {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let begin = Instant::now();
        let mut announced = false;
        let mut publish_at = begin + self.period;
        let beat = notify::heartbeat();
        let mut beat_at = begin;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            // The timers come first: a flood of observations must not keep the view old or the watchdog hungry.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(beat_at), if beat.is_some() => {
                    notify::alive();
                    beat_at = Instant::now() + beat.unwrap_or(PATIENCE);
                }
                () = sleep_until(publish_at) => {
                    self.publish();
                    publish_at = Instant::now() + self.period + self.period / 2;
                    if !announced && (self.latch.opened() || begin.elapsed() > PATIENCE) {
                        announced = true;
                        notify::ready(&self.summary());
                    }
                }
                Ok(()) = self.usage.changed() => {
                    self.latch.usage = self.usage.borrow_and_update().clone();
                    self.judge();
                }
                Ok(()) = self.progress.changed() => {
                    self.latch.progress = *self.progress.borrow_and_update();
                    self.judge();
                }
                Some(clear) = self.clears.recv() => {
                    self.clear(clear);
                    self.keep();
                }
                count = self.observations.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for observation in batch.drain(..) {
                        if matches!(observation, Observation::Cgroups(_)) {
                            publish_at = publish_at.min(Instant::now() + SETTLE);
                        }
                        self.latch.see(&observation);
                        self.take(observation);
                    }
                    self.judge();
                    self.keep();
                }
            }
        }
    }

    fn take(&mut self, observation: Observation) {
        if matches!(observation, Observation::GpuDriverReplaced) {
            self.replaced.notify_one();
        }
        if let Observation::Pods(list) = &observation {
            self.pods.send_replace(Some(Arc::new(list.clone())));
        }
        for remark in self.node.apply(observation, sources::clock::now()) {
            tell(&remark, &self.view.borrow());
        }
    }

    fn clear(&mut self, clear: ClearIncident) {
        let (cleared, remarks) = self.node.clear_incidents(clear.gpu.as_ref());
        for (gpu, _) in &cleared {
            tracing::warn!(gpu_uuid = %gpu, "an operator has cleared what had happened to the GPU");
        }
        remarks.iter().for_each(|remark| tell(remark, &self.view.borrow()));
        // Who asked may have given up.
        let _ = clear.answer.send(cleared);
    }

    fn keep(&self) {
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
        let view = self.node.view(sources::clock::now());
        self.view.send_replace(Arc::new(view));
        self.repeats.tell(std::time::Instant::now());
    }

    fn judge(&self) {
        let readiness = self.latch.readiness();
        let changed = self.ready.send_if_modified(|now| {
            let changed = *now != readiness;
            now.clone_from(&readiness);
            changed
        });
        if changed {
            match readiness {
                Ok(()) => tracing::info!("ready"),
                Err(why) if self.latch.opened() => tracing::warn!(reason = &*why, "not ready"),
                Err(why) => tracing::debug!(reason = &*why, "not ready yet"),
            }
            notify::status(&self.summary());
        }
    }

    /// One line for `systemctl status`.
    fn summary(&self) -> String {
        let view = self.view.borrow();
        let ready = self.ready.borrow();
        let state = ready.as_ref().map_or_else(|why| format!("not ready: {why}"), |()| "ready".to_owned());
        let simulated = if view.gpu_source.simulated() { " simulated" } else { "" };
        format!("{state}; {}{simulated} GPUs, {} pods", view.gpus.len(), view.pods.len())
    }
}
