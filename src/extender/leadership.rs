//! Leadership: carries out the steps of the election at the API server, and knows which extender decides now.
//!
//! ```text
//!   Elector ──step──▶ LeaseClient ──answer──▶ Elector
//!      │ won: Nodes are read again, and all pods that were written before must be known
//!      └▶ follows ──▶ catches up ──everything from before the win is known──▶ decides ──▶ follows
//! ```
//!
//! A new leader decides only after it has seen everything that was written before it won. Lists that were begun after
//! the win show this; for pods, the leader's own mark in the pod watch is enough ([`super::own_mark`]).

use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use apiserver::ApiError;
use apiserver::chance;
use apiserver::lease::LeaseClient;
use decide::election::{ElectionChange, ElectionStep, Elector};
use model::lease::StoredLease;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// The rest of a term that never ends. A test plants this mistake.
const ENDLESS: Duration = Duration::from_secs(3600);

/// Which extender decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leader {
    /// Another process, if any: its identity as last seen.
    Other(Option<Arc<str>>),
    /// This process has won, and is still reading what was written before the win.
    CatchingUp,
    /// This process.
    This,
}

/// The state of the election. Every part of the extender asks it who leads.
#[derive(Debug)]
pub(super) struct Leadership {
    state: Mutex<LeadershipState>,
    /// Notified when this process must know all pods as they are now.
    pub(super) pods_wanted: Arc<Notify>,
    /// Notified when a new list of pods, or of Nodes, is wanted.
    pub(super) relists: [Arc<Notify>; 2],
    /// Number of bindings that were begun and whose outcome is not known.
    open_bindings: Arc<AtomicUsize>,
}

/// A binding that was begun. It counts as open until its outcome is known. If the value is dropped without
/// [`OpenBinding::settle`], it stays open.
#[derive(Debug)]
pub(super) struct OpenBinding(Arc<AtomicUsize>);

impl OpenBinding {
    /// The outcome is known.
    pub(super) fn settle(self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct LeadershipState {
    elector: Elector,
    /// This process must know everything that was written before this moment. It is the time when the process won, or
    /// learnt of a restore of etcd; `None` while it does not lead.
    won: Option<Instant>,
    /// Whether the process has seen everything that was written before `won`.
    caught_up: bool,
    /// Number of failed calls in a row, of which the first is logged.
    failures: u32,
}

impl Leadership {
    pub(super) fn new(elector: Elector) -> Leadership {
        let state = LeadershipState { elector, won: None, caught_up: false, failures: 0 };
        Leadership {
            state: Mutex::new(state),
            pods_wanted: Arc::default(),
            relists: Default::default(),
            open_bindings: Arc::default(),
        }
    }

    /// Which extender decides at this moment.
    pub(super) fn leader(&self) -> Leader {
        let state = self.state.lock();
        let leads = state.elector.leads(clock::monotonic())
            || planted(PlantedMistake::EndlessTerm) && state.elector.leads_until().is_some();
        match (leads, state.caught_up) {
            (false, _) => {
                let own = state.elector.identity();
                Leader::Other(state.elector.holder().filter(|holder| *holder != own).cloned())
            }
            (true, false) => Leader::CatchingUp,
            (true, true) => Leader::This,
        }
    }

    /// The address at which the leader serves agents and the other extenders; `None` if this process leads, or if the
    /// address is not known.
    pub(super) fn leader_address(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        let other =
            !state.elector.leads(clock::monotonic()) && state.elector.holder() != Some(state.elector.identity());
        other.then(|| state.elector.holder_address().cloned()).flatten()
    }

    /// Whether this process may decide and write at this moment.
    pub(super) fn decides(&self) -> bool {
        self.leader() == Leader::This
    }

    /// How long the term lasts without another renewal; `None` while this process does not lead.
    pub(super) fn term_left(&self) -> Option<Duration> {
        let until = self.state.lock().elector.leads_until()?;
        let left = until.since(clock::monotonic());
        if planted(PlantedMistake::EndlessTerm) {
            return Some(left.max(ENDLESS));
        }
        (!left.is_zero()).then_some(left)
    }

    /// Records that a binding has begun. The Lease is not released before the binding's outcome is known.
    pub(super) fn binding_begins(&self) -> OpenBinding {
        self.open_bindings.fetch_add(1, Ordering::Relaxed);
        OpenBinding(Arc::clone(&self.open_bindings))
    }

    /// How many bindings were begun and have no known outcome.
    pub(super) fn open_bindings(&self) -> usize {
        self.open_bindings.load(Ordering::Relaxed)
    }

    /// This process's identity.
    pub(super) fn identity(&self) -> Arc<str> {
        Arc::clone(self.state.lock().elector.identity())
    }

    /// Records that `epoch` was seen on a pod. Returns this process's own epoch while it leads.
    pub(super) fn epoch_is_used(&self, epoch: u64) -> Option<u64> {
        let mut state = self.state.lock();
        state.elector.epoch_is_used(epoch);
        state.elector.epoch()
    }

    /// Takes part in the election until `stop` is cancelled, then lets another process take over at once.
    pub(super) async fn run(self: Arc<Self>, lease: LeaseClient, cluster: Arc<LockedCluster>, stop: CancellationToken) {
        let times = self.state.lock().elector.times();
        let mut known = cluster.known();
        let mut led = false;
        loop {
            // A call that hangs must not hide that the term is over.
            if timeout(times.renew_deadline, self.step(&lease)).await.is_err() {
                self.failed("no answer within the renew deadline");
            }
            let leads = !matches!(self.leader(), Leader::Other(_));
            if led && !leads {
                // From now on the agents report to another extender.
                cluster.forget_agents();
            }
            led = leads;
            let chance = chance::below(100);
            let pause = if leads { times.pause(chance) } else { times.pause_of_follower(chance) };
            let until = Instant::now() + pause;
            loop {
                self.catch_up(&cluster);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return self.release(&lease).await,
                    () = tokio::time::sleep_until(until) => break,
                    // The sender is the cluster, which lives as long as this task.
                    _ = known.changed() => {}
                }
            }
        }
    }

    /// Carries out the next step of the election, and the steps that follow from its answer.
    async fn step(&self, lease: &LeaseClient) {
        let mut step = {
            let mut state = self.state.lock();
            let now = clock::now();
            let change = state.elector.tick(now.monotonic);
            let step = state.elector.next(now);
            self.changed(&mut state, change);
            step
        };
        loop {
            let sent = clock::monotonic();
            let written = match step {
                ElectionStep::Wait => return,
                ElectionStep::Read => match lease.get().await {
                    Ok(found) => {
                        step = self.found(found);
                        continue;
                    }
                    Err(error) => return self.call_failed(&error),
                },
                ElectionStep::Create(record) => lease.create(&record).await,
                ElectionStep::Replace(next) => lease.replace(&next).await,
            };
            return match written {
                Ok(stored) => {
                    let mut state = self.state.lock();
                    state.failures = 0;
                    let change = state.elector.written(stored, sent, clock::monotonic());
                    self.changed(&mut state, change);
                }
                Err(error) => self.call_failed(&error),
            };
        }
    }

    fn found(&self, found: Option<StoredLease>) -> ElectionStep {
        let mut state = self.state.lock();
        let before = state.elector.holder().cloned();
        let (step, change) = state.elector.found(found, clock::now());
        let holder = state.elector.holder().cloned();
        if holder != before && step == ElectionStep::Wait {
            let leader = holder.as_deref().unwrap_or_default();
            tracing::info!(leader, "another extender leads, {leader}; this one follows and can take over");
        }
        state.failures = 0;
        self.changed(&mut state, change);
        step
    }

    fn changed(&self, state: &mut LeadershipState, change: Option<ElectionChange>) {
        match change {
            None => {}
            Some(ElectionChange::Won) => {
                let (identity, epoch) = (state.elector.identity(), state.elector.epoch().unwrap_or(0));
                tracing::info!(%identity, epoch, "won the election; the first decision comes when everything written before is known");
                (state.won, state.caught_up) = (Some(Instant::now()), false);
                self.pods_wanted.notify_one();
                self.relists[1].notify_one();
            }
            Some(ElectionChange::Restored) => self.reads_again(state),
            Some(ElectionChange::Lost) => {
                (state.won, state.caught_up) = (None, false);
                tracing::warn!("this extender is no longer the leader; it decides nothing until it wins again");
            }
        }
    }

    /// A bound pod has no node any more. So etcd was restored to an older state, and everything that was read before
    /// may be wrong. A leader decides again only after it has read all pods and Nodes once more.
    pub(super) fn etcd_was_restored(&self) {
        let mut state = self.state.lock();
        if state.caught_up {
            self.reads_again(&mut state);
        }
    }

    fn reads_again(&self, state: &mut LeadershipState) {
        tracing::warn!(
            "etcd was restored to an older state: all pods and Nodes are read again before the next decision"
        );
        (state.won, state.caught_up) = (Some(Instant::now()), false);
        self.relists.iter().for_each(|relist| relist.notify_one());
    }

    /// Starts to decide if everything that was written before the win is known.
    fn catch_up(&self, cluster: &LockedCluster) {
        let mut state = self.state.lock();
        let Some(won) = state.won.filter(|_| !state.caught_up) else { return };
        let known = cluster.knows_all_before(won) || planted(PlantedMistake::NoListAfterWin);
        if !known || !state.elector.leads(clock::monotonic()) {
            return;
        }
        state.caught_up = true;
        let epoch = state.elector.settle_epoch().unwrap_or(0);
        cluster.begins_to_lead(epoch);
        tracing::info!(epoch, after_ms = won.elapsed().as_millis(), "this extender leads and decides from now on");
    }

    /// Lets another process lead at once. If the outcome of a binding is unknown, the API server may still carry it
    /// out, for example after a slow webhook. Then the Lease is not released: it expires as after a crash, and the next
    /// leader decides only then.
    async fn release(&self, lease: &LeaseClient) {
        let open = self.open_bindings.load(Ordering::Relaxed);
        let released = {
            let mut state = self.state.lock();
            (state.won, state.caught_up) = (None, false);
            if open > 0 {
                tracing::warn!(
                    open,
                    "the outcome of {open} bindings is not known: the Lease is not released and runs out"
                );
                return;
            }
            state.elector.release(clock::now())
        };
        let Some(released) = released else { return };
        match lease.replace(&released).await {
            Ok(_) => tracing::info!("the Lease is released: another extender can lead at once"),
            Err(error) => {
                tracing::warn!(%error, "the Lease is not released: another extender leads once it has run out")
            }
        }
    }

    fn call_failed(&self, error: &ApiError) {
        // Another process wrote first. The next attempt reads what that process wrote.
        if error.code() == Some(409) {
            self.state.lock().elector.failed();
            return;
        }
        self.failed(&error.to_string());
    }

    fn failed(&self, why: &str) {
        let mut state = self.state.lock();
        state.elector.failed();
        state.failures = state.failures.saturating_add(1);
        if state.failures == 1 {
            tracing::warn!(
                "the Lease of the election cannot be read or written: {why}; tried again at each retry period"
            );
        }
    }
}
