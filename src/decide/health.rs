//! Decides from readings and events whether a GPU is fit for new containers.
//!
//! ```text
//!   condition in the readings (silent, remap, NVML's action) ──┐
//!   event (fatal XID, uncorrected ECC errors, stalls) ─────────┴─▶ unfit ──▶ no condition, no action from NVML,
//!                                                                           and the quiet period is over ──▶ fit
//!   a call hangs ──▶ unfit ──▶ it has returned ──▶ fit
//! ```
//!
//! Where NVML reports no recovery action (drivers before R565), an XID that needs a reset keeps the GPU unfit at least
//! until the agent sees evidence of a reset, or until an operator clears the incident. The evidence is: the GPU left
//! the driver's list and came back, the driver was loaded again, or counters started again at 0.
//!
//! A call that only stalls makes readings absent but does not make the GPU unfit by itself: calls that wait for seconds
//! are normal when many programs call the driver at the same time. A call that hangs makes the GPU unfit until it
//! returns, and no quiet period follows.
//!
//! Each GPU has its own record, so a failure never makes a neighbour unfit. Only the monotonic clock is used.
//!
//! What must never happen here: an application's own error (XID 13, 31, 43, 45, …) makes a GPU unfit; an error keeps a GPU unfit
//! although the driver calls it nonfatal; a GPU becomes fit again by a reading of the recovery action that is older than the
//! last event, or by time alone although it needs a reset; a GPU becomes unfit because of values that its model does not
//! support.

use crate::evidence::{Counters, ResetSearch};
use model::gpu::{GpuSample, XidSeverity};
use model::id::GpuUuid;
use model::incident::{GpuCondition, Incident, KeptIncidents};
use model::reading::{Absence, Reading};
use model::recovery::RecoveryAction;
use model::time::Monotonic;
use model::view::{GpuHealth, MAX_XID_CODES};
use model::xid;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Which errors make a GPU unfit, and the shortest time for which they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// XIDs that make a GPU unfit. An application's own errors never do, even if they are listed here, and neither do
    /// errors that the driver calls nonfatal.
    pub fatal: BTreeSet<u32>,
    /// The quiet period: how long no incident must occur before the GPU is fit again.
    pub quiet: Duration,
}

impl HealthPolicy {
    /// The default of `--health-quiet-period`, which `steward/settings/table.rs` states for users; a test compares the two.
    /// It is as long as Kubernetes leaves pods on a node that does not answer. By then, controllers that move work away
    /// have done so.
    pub const QUIET: Duration = Duration::from_secs(300);

    /// Whether a driver error makes a GPU unfit. The severity that the driver states decides, except for an error that
    /// is fatal by default and that the operator has taken off the list.
    fn makes_unfit(&self, code: u32, severity: Option<XidSeverity>) -> bool {
        let listed = self.fatal.contains(&code);
        let by_text = match severity {
            Some(XidSeverity::Nonfatal) => false,
            Some(XidSeverity::Fatal) => listed || !xid::fatal(code),
            None => listed,
        };
        by_text && !xid::of_application(code)
    }
}

/// After this many rounds in a row without a single core reading, a GPU is unfit. One round may coincide with a reset
/// by the driver itself. At the usual one second per round, three rounds are over before a pod that was just placed has
/// started.
const UNREAD_ROUNDS: u8 = 3;
/// This many stalled calls within [`STALLS_WITHIN`] make a GPU unfit. One may be a busy driver, two may be chance.
const STALLS: usize = 3;
/// Firmware that does not answer makes the driver wait 45 s for each request, so three such calls fit well within this
/// span.
const STALLS_WITHIN: Duration = Duration::from_secs(300);
/// The only incident that ends together with its cause, without a quiet period.
const HANGS: Incident = Incident::Silent(Absence::CallHangs);

impl Default for HealthPolicy {
    fn default() -> Self {
        HealthPolicy {
            fatal: xid::catalogue().filter(|entry| entry.fatal).map(|entry| entry.code).collect(),
            quiet: Self::QUIET,
        }
    }
}

/// A change of a GPU's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// The GPU is unfit for this reason (too).
    Unfit(Incident),
    /// The GPU is fit again.
    Fit,
}

/// The health record of one GPU.
#[derive(Debug, Default)]
pub struct HealthRecord {
    /// The incidents since the GPU was last fit, each with the time when it was first seen. At most [`MAX_XID_CODES`]
    /// XIDs.
    incidents: BTreeMap<Incident, Monotonic>,
    /// Whether an incident is a condition in the last readings.
    condition_present: bool,
    /// The time of the last event, or of the last reading with a new or continuing condition.
    last: Monotonic,
    /// The time of the last event.
    last_event: Monotonic,
    /// The counter of uncorrected ECC errors, once it was read.
    uncorrected: Option<u64>,
    /// Whether NVML has ever reported a recovery action for this GPU. Then the GPU becomes fit only when NVML reports
    /// that no action is needed.
    reports_recovery: bool,
    /// Whether the agent has tried to read the recovery action.
    recovery_read: bool,
    /// Counters that show a reset.
    counters: Counters,
    /// The search for evidence of a reset, since an XID that needs a reset.
    search: Option<ResetSearch>,
    /// Number of errors by XID, for the incidents of which only errors of unknown severity are known. The driver may still call
    /// them nonfatal. At most one entry for each incident.
    unstated: BTreeMap<u32, u32>,
    /// Number of rounds in a row in which no core reading succeeded, up to [`UNREAD_ROUNDS`].
    unread: u8,
    /// Times of stalled calls, newest last; at most [`STALLS`].
    stalls: VecDeque<Monotonic>,
}

impl HealthRecord {
    /// Takes in a driver error of this GPU, with the severity that the driver states.
    pub fn xid(
        &mut self,
        code: u32,
        severity: Option<XidSeverity>,
        policy: &HealthPolicy,
        now: Monotonic,
    ) -> Option<HealthChange> {
        if !policy.makes_unfit(code, severity) {
            return None;
        }
        if xid::needs_reset(code) {
            self.search = Some(ResetSearch::after(self.counters.marks()));
        }
        self.last_event = self.last_event.max(now);
        self.count_unstated(code, severity);
        if self.incidents.len() >= MAX_XID_CODES {
            self.last = now;
            return None;
        }
        self.add_incident(Incident::Xid(code), now)
    }

    fn count_unstated(&mut self, code: u32, severity: Option<XidSeverity>) {
        if severity.is_some() {
            self.unstated.remove(&code);
        } else if let Some(count) = self.unstated.get_mut(&code) {
            *count = count.saturating_add(1);
        } else if !self.incidents.contains_key(&Incident::Xid(code)) && self.incidents.len() < MAX_XID_CODES {
            self.unstated.insert(code, 1);
        }
    }

    /// The driver states the severity of an error that was taken in without it. If the driver calls all errors of an
    /// incident nonfatal, the incident is taken back.
    pub fn severity(
        &mut self,
        code: u32,
        severity: XidSeverity,
        policy: &HealthPolicy,
        now: Monotonic,
    ) -> Option<HealthChange> {
        if severity == XidSeverity::Fatal {
            return self.xid(code, Some(severity), policy, now);
        }
        let count = self.unstated.get_mut(&code)?;
        *count = count.saturating_sub(1);
        if *count > 0 {
            return None;
        }
        self.unstated.remove(&code);
        self.incidents.remove(&Incident::Xid(code))?;
        let needs_reset = |incident: &Incident| match incident {
            Incident::Xid(code) => xid::needs_reset(*code),
            other => *other == Incident::FallenOff,
        };
        if !self.incidents.keys().any(needs_reset) {
            self.search = None;
        }
        self.incidents.is_empty().then_some(HealthChange::Fit)
    }

    /// The driver says, without an XID, that this GPU has fallen off the bus.
    pub fn fell_off(&mut self, now: Monotonic) -> Option<HealthChange> {
        self.search = Some(ResetSearch::after(self.counters.marks()));
        self.last_event = self.last_event.max(now);
        // The driver reports one loss in up to three ways.
        if self.incidents.contains_key(&Incident::Xid(xid::FALLEN_OFF)) {
            self.last = self.last.max(now);
            return None;
        }
        self.add_incident(Incident::FallenOff, now)
    }

    /// The record from incidents that an earlier run of the agent saved in the same boot of the machine.
    #[must_use]
    pub fn restored(kept: &KeptIncidents, now: Monotonic) -> HealthRecord {
        // A time in the future was not written by this agent, and must not make the GPU unfit for ever.
        let last = kept.last.min(now);
        let incidents = kept.incidents.iter().filter(|(incident, _)| incident.is_event()).take(MAX_XID_CODES);
        HealthRecord {
            incidents: incidents.map(|(incident, since)| (*incident, (*since).min(now))).collect(),
            last,
            last_event: last,
            search: kept.awaits.map(ResetSearch::after),
            ..HealthRecord::default()
        }
    }

    /// The incidents to save for the next run of the agent; `None` if there are none.
    #[must_use]
    pub fn kept(&self, gpu: &GpuUuid) -> Option<KeptIncidents> {
        let events = self.incidents.iter().filter(|(incident, _)| incident.is_event());
        let incidents: Vec<(Incident, Monotonic)> = events.map(|(incident, since)| (*incident, *since)).collect();
        let awaits = self.search.as_ref().map(ResetSearch::marks);
        (!incidents.is_empty()).then(|| KeptIncidents {
            gpu: gpu.clone(),
            incidents,
            last: self.last_event,
            awaits,
            driver_load: None,
        })
    }

    /// The GPU was reset: from now on, only the quiet period is needed.
    pub fn was_reset(&mut self) {
        self.search = None;
    }

    /// An operator declares the GPU repaired. Conditions in the readings stay. Returns the number of cleared incidents,
    /// and whether the GPU is fit because of that.
    pub fn clear(&mut self) -> (usize, Option<HealthChange>) {
        let before = self.incidents.len();
        self.incidents.retain(|incident, _| !incident.is_event());
        self.unstated.clear();
        self.search = None;
        let gone = before - self.incidents.len();
        (gone, (gone > 0 && self.incidents.is_empty()).then_some(HealthChange::Fit))
    }

    /// Whether the GPU becomes fit only after a reset or when an operator clears the incidents.
    #[must_use]
    pub fn awaits_reset(&self) -> bool {
        self.search.is_some() && self.recovery_read && !self.reports_recovery && !self.incidents.is_empty()
    }

    /// A driver call that counts against this GPU has stalled.
    pub fn stalled(&mut self, now: Monotonic) -> Option<HealthChange> {
        if self.stalls.len() >= STALLS {
            self.stalls.pop_front();
        }
        self.stalls.push_back(now);
        let first = *self.stalls.front()?;
        let often = self.stalls.len() >= STALLS && now.since(first) <= STALLS_WITHIN;
        often.then(|| self.add_incident(Incident::Stalls, now))?
    }

    /// Takes in a sample of the GPU.
    pub fn read(&mut self, sample: &GpuSample, policy: &HealthPolicy, now: Monotonic) -> Vec<HealthChange> {
        let mut changes = Vec::new();
        self.reports_recovery |= sample.recovery.value().is_some();
        self.recovery_read |= sample.recovery != Reading::NOT_YET;
        let mut present = conditions(sample);
        present.extend(self.unread(sample));
        // A hung call has returned and the next call stalls: nothing was read in between, so it is the same hang.
        let stalls = sample.memory_used.absence() == Some(Absence::CallStalls);
        present.extend(Some(HANGS).filter(|hangs| stalls && self.incidents.contains_key(hangs)));
        self.condition_present = !present.is_empty();
        // A hung call that has returned leaves no quiet period.
        let returned = !present.contains(&HANGS) && self.incidents.remove(&HANGS).is_some();
        self.counters.read(sample);
        if let Some(search) = &mut self.search {
            search.complete(self.counters.marks());
            if search.reset(sample) {
                self.was_reset();
            }
        }
        changes.extend(present.into_iter().filter_map(|incident| self.add_incident(incident, now)));
        if let Some(count) = sample.ecc_volatile.uncorrected.get() {
            // The first reading counts errors from before this run. A smaller reading means that the driver was loaded
            // again.
            if self.uncorrected.replace(count.0).is_some_and(|before| count.0 > before) {
                self.last_event = self.last_event.max(now);
                changes.extend(self.add_incident(Incident::EccUncorrected, now));
            }
        }
        let quiet = self.recovery_allowed(sample) && now >= self.last.after(policy.quiet);
        if !self.incidents.is_empty() && !self.condition_present && quiet {
            self.incidents.clear();
            self.unstated.clear();
            self.search = None;
            changes.push(HealthChange::Fit);
        } else if self.incidents.is_empty() && returned {
            changes.push(HealthChange::Fit);
        }
        changes
    }

    /// Counts the rounds in which no core reading succeeded. Returns the incident from the third such round in a row.
    fn unread(&mut self, sample: &GpuSample) -> Option<Incident> {
        let fresh = match core(sample) {
            Core::Readable => {
                self.unread = 0;
                return None;
            }
            Core::NotRead => None,
            Core::Failed(why) => {
                self.unread = self.unread.saturating_add(1).min(UNREAD_ROUNDS);
                Some(Incident::Unread(why))
            }
        };
        // The incident stays the same when the reason changes, because all reasons share one code in the metrics.
        let known = self.incidents.keys().find(|incident| matches!(incident, Incident::Unread(_))).copied();
        known.or(fresh).filter(|_| self.unread >= UNREAD_ROUNDS)
    }

    fn add_incident(&mut self, incident: Incident, now: Monotonic) -> Option<HealthChange> {
        if incident != HANGS {
            self.last = self.last.max(now);
        }
        let new = !self.incidents.contains_key(&incident);
        self.incidents.entry(incident).or_insert(now);
        new.then_some(HealthChange::Unfit(incident))
    }

    /// Whether NVML has reported since the last event that no recovery action is needed. If the driver does not report recovery
    /// actions: whether no reset is required.
    fn recovery_allowed(&self, sample: &GpuSample) -> bool {
        match sample.recovery {
            Reading::Measured(RecoveryAction::None, at) => at >= self.last,
            Reading::Measured(..) => false,
            Reading::Absent(_) => !self.reports_recovery && self.search.is_none(),
        }
    }

    /// The incidents, and when they end.
    #[must_use]
    pub fn condition(&self, policy: &HealthPolicy) -> GpuCondition {
        let awaits_reset = self.awaits_reset();
        let by_time = !self.incidents.is_empty() && !self.condition_present && !awaits_reset;
        GpuCondition {
            incidents: self.incidents.iter().map(|(incident, since)| (*incident, *since)).collect(),
            fit_at: by_time.then(|| self.last.after(policy.quiet)),
            awaits_reset,
        }
    }

    /// The health in one word.
    #[must_use]
    pub fn health(&self, sample: &GpuSample) -> GpuHealth {
        if self.condition_present {
            GpuHealth::Unhealthy
        } else if !self.incidents.is_empty() {
            GpuHealth::Degraded
        } else if nothing_read(sample) {
            GpuHealth::Unknown
        } else {
            GpuHealth::Healthy
        }
    }
}

/// Whether the GPU was not read yet.
#[must_use]
pub fn nothing_read(sample: &GpuSample) -> bool {
    sample.memory_used == Reading::NOT_YET
        && sample.utilization == Reading::NOT_YET
        && sample.temperature == Reading::NOT_YET
}

/// The result of the core readings: memory, utilization, temperature and power. Every GPU supports some core readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Core {
    /// A core reading has a value, or this kind of GPU supports no core reading.
    Readable,
    /// They were not read: the GPU was left alone, or an incident of its own covers the reason ([`silence`]).
    NotRead,
    /// All reads failed, at least one of them for this reason, which a healthy GPU does not give.
    Failed(Absence),
}

fn core(sample: &GpuSample) -> Core {
    let core = core_absences(sample);
    if core.contains(&None) {
        return Core::Readable;
    }
    let failure = core.into_iter().flatten().find(|why| !is_unsupported(*why));
    match failure {
        None => Core::Readable,
        Some(Absence::NotYet | Absence::CallStalls | Absence::SwitchedOff) => Core::NotRead,
        Some(_) if silence(sample).is_some() => Core::NotRead,
        Some(why) => Core::Failed(why),
    }
}

/// Whether a healthy GPU can give this reason permanently.
fn is_unsupported(why: Absence) -> bool {
    matches!(why, Absence::NotSupported | Absence::NotInThisDriver | Absence::NotThisArchitecture | Absence::MigEnabled)
}

fn core_absences(sample: &GpuSample) -> [Option<Absence>; 4] {
    [sample.memory_used.absence(), sample.utilization.absence(), sample.temperature.absence(), sample.power.absence()]
}

/// The reason why a GPU does not answer; `None` if it answers. A single failed reading is a gap; these reasons concern the whole
/// GPU.
#[must_use]
pub fn silence(sample: &GpuSample) -> Option<Absence> {
    core_absences(sample).into_iter().flatten().find(|why| {
        matches!(
            why,
            Absence::GpuLost
                | Absence::CallHangs
                | Absence::ResetRequired
                | Absence::DriverNotLoaded
                | Absence::LibraryNotFound
        )
    })
}

/// The conditions in a sample that make a GPU unfit while they are present.
fn conditions(sample: &GpuSample) -> Vec<Incident> {
    let remapped = &sample.remapped;
    let advised = sample.recovery.get().filter(|action| *action != RecoveryAction::None);
    [
        silence(sample).map(Incident::Silent),
        (remapped.pending.get() == Some(true)).then_some(Incident::RemapPending),
        (remapped.failed.get() == Some(true)).then_some(Incident::RemapFailed),
        advised.map(Incident::Advised),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests;
