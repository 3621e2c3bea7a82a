//! From what is read and what happens to a word: may one trust this GPU with new work?
//!
//! ```text
//!   stands in the readings (silent, remap, NVML's advice) ───────────────┐
//!   happened (fatal XID, uncorrected ECC errors, stall after stall) ─────┴─▶ unfit ──▶ nothing stands, NVML advises nothing,
//!                                                                                    and the quiet period is over ──▶ fit
//!   a call hangs ──▶ unfit ──▶ it has returned ──▶ fit
//! ```
//!
//! Where NVML gives no advice (drivers before R565), an XID that asks for a reset waits for a sign of one: the card left the
//! driver's list and came back, the driver was loaded again, counters began again. Or for an operator's word.
//! A call that only stalls makes readings absent and condemns nothing: seconds of waiting are normal where many ask the
//! driver at a time. One that hangs condemns for as long as it does, and leaves no quiet period.
//!
//! Each card has a record of its own, so no neighbour is ever condemned with it. Of the clocks only the monotonic one is
//! looked at.
//!
//! What must never happen here: an application's own error (XID 13, 31, 43, 45, …) condemns a card; a card is trusted again
//! by an advice that NVML gave before the last thing happened, or by time alone where it needs a reset; a card is condemned for
//! what its model does not tell.

use crate::evidence::{Counters, Traces};
use model::gpu::{GpuSample, RecoveryAction};
use model::id::GpuUuid;
use model::incident::{GpuCondition, Incident, KeptIncidents};
use model::reading::{Absence, Reading};
use model::time::Monotonic;
use model::view::{GpuHealth, MAX_XID_CODES};
use model::xid;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// What condemns a GPU, and for how long at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// XIDs that condemn; an application's own never do, whatever stands here.
    pub fatal: BTreeSet<u32>,
    /// How long nothing must happen before it is trusted again.
    pub quiet: Duration,
}

impl HealthPolicy {
    /// As long as Kubernetes leaves pods on a node that does not answer: who moves work away has done so by then.
    pub const QUIET: Duration = Duration::from_secs(300);
}

/// Rounds in a row without a single core reading after which a card is not trusted. One round may fall into a reset of the
/// driver's own; at the usual second between two rounds, three are over before a pod that was just placed has started.
const UNREAD_ROUNDS: u8 = 3;
/// So many calls that stalled within [`STALLS_WITHIN`] condemn. One is a busy driver, two are chance.
const STALLS: usize = 3;
/// Firmware that does not answer makes the driver wait 45 s for each request, so three such calls fall well within.
const STALLS_WITHIN: Duration = Duration::from_secs(300);
/// The one incident that ends with its cause.
const HANGS: Incident = Incident::Silent(Absence::CallHangs);

impl Default for HealthPolicy {
    fn default() -> Self {
        HealthPolicy {
            fatal: xid::catalogue().filter(|entry| entry.fatal).map(|entry| entry.code).collect(),
            quiet: Self::QUIET,
        }
    }
}

/// What changed about a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// It is unfit for this reason as well.
    Condemned(Incident),
    /// It is fit again.
    Fit,
}

/// What is known of one card's health.
#[derive(Debug, Default)]
pub struct HealthRecord {
    /// Since when, for every reason that has come since the card was fit last. XIDs are at most [`MAX_XID_CODES`].
    incidents: BTreeMap<Incident, Monotonic>,
    /// Whether one of them stands in the readings.
    stands: bool,
    /// When something last happened or stood.
    last: Monotonic,
    /// When something last happened, stood it or not.
    happened: Monotonic,
    /// The counter of uncorrected ECC errors, once it was read.
    uncorrected: Option<u64>,
    /// Whether NVML has ever given its advice about this card: then it must be heard.
    advises: bool,
    /// Whether it was asked for its advice.
    asked: bool,
    /// Counters by which a reset is seen.
    counters: Counters,
    /// What would show a reset, since an XID that asks for one.
    traces: Option<Traces>,
    /// Rounds in a row in which no core reading succeeded, up to [`UNREAD_ROUNDS`].
    unread: u8,
    /// When calls stalled, the newest last; at most [`STALLS`].
    stalls: VecDeque<Monotonic>,
}

impl HealthRecord {
    /// A driver error has hit the card.
    pub fn xid(&mut self, code: u32, policy: &HealthPolicy, now: Monotonic) -> Option<HealthChange> {
        if !policy.fatal.contains(&code) || xid::of_application(code) {
            return None;
        }
        if xid::needs_reset(code) {
            self.traces = Some(Traces::after(self.counters.marks()));
        }
        self.happened = self.happened.max(now);
        if self.incidents.len() >= MAX_XID_CODES {
            self.last = now;
            return None;
        }
        self.happens(Incident::Xid(code), now)
    }

    /// What was kept of an earlier life of this program, in the same boot of the machine.
    #[must_use]
    pub fn restored(kept: &KeptIncidents, now: Monotonic) -> HealthRecord {
        // A time that is still to come was not written by us, and must not keep the card away for ever.
        let last = kept.last.min(now);
        let incidents = kept.incidents.iter().filter(|(incident, _)| incident.happened()).take(MAX_XID_CODES);
        HealthRecord {
            incidents: incidents.map(|(incident, since)| (*incident, (*since).min(now))).collect(),
            last,
            happened: last,
            traces: kept.awaits.map(Traces::after),
            ..HealthRecord::default()
        }
    }

    /// What is to be kept of it over the end of this program; none where nothing has happened.
    #[must_use]
    pub fn kept(&self, gpu: &GpuUuid) -> Option<KeptIncidents> {
        let happened = self.incidents.iter().filter(|(incident, _)| incident.happened());
        let incidents: Vec<(Incident, Monotonic)> = happened.map(|(incident, since)| (*incident, *since)).collect();
        let awaits = self.traces.as_ref().map(Traces::marks);
        (!incidents.is_empty()).then(|| KeptIncidents {
            gpu: gpu.clone(),
            incidents,
            last: self.happened,
            awaits,
            driver_load: None,
        })
    }

    /// The card was reset: what waited for that waits for quiet only.
    pub fn was_reset(&mut self) {
        self.traces = None;
    }

    /// An operator says that what has happened is mended. What stands in the readings stands on. Tells how many incidents
    /// went, and whether the card is fit by that.
    pub fn clear(&mut self) -> (usize, Option<HealthChange>) {
        let before = self.incidents.len();
        self.incidents.retain(|incident, _| !incident.happened());
        self.traces = None;
        let gone = before - self.incidents.len();
        (gone, (gone > 0 && self.incidents.is_empty()).then_some(HealthChange::Fit))
    }

    /// Whether only a reset, or an operator, makes the card fit again.
    #[must_use]
    pub fn awaits_reset(&self) -> bool {
        self.traces.is_some() && self.asked && !self.advises && !self.incidents.is_empty()
    }

    /// A call that counts against the card has stalled.
    pub fn stalled(&mut self, now: Monotonic) -> Option<HealthChange> {
        if self.stalls.len() >= STALLS {
            self.stalls.pop_front();
        }
        self.stalls.push_back(now);
        let first = *self.stalls.front()?;
        let often = self.stalls.len() >= STALLS && now.since(first) <= STALLS_WITHIN;
        often.then(|| self.happens(Incident::Stalls, now))?
    }

    /// The card was read.
    pub fn read(&mut self, sample: &GpuSample, policy: &HealthPolicy, now: Monotonic) -> Vec<HealthChange> {
        let mut changes = Vec::new();
        self.advises |= sample.recovery.value().is_some();
        self.asked |= sample.recovery != Reading::NOT_YET;
        let mut standing = standing(sample);
        standing.extend(self.unread(sample));
        // One call has returned and the next stalls: nothing was read in between, so it is the same hang.
        let stalls = sample.memory_used.absence() == Some(Absence::CallStalls);
        standing.extend(Some(HANGS).filter(|hangs| stalls && self.incidents.contains_key(hangs)));
        self.stands = !standing.is_empty();
        // A call that has returned is over: it leaves no quiet period.
        let returned = !standing.contains(&HANGS) && self.incidents.remove(&HANGS).is_some();
        self.counters.read(sample);
        if let Some(traces) = &mut self.traces {
            traces.complete(self.counters.marks());
            if traces.reset(sample) {
                self.was_reset();
            }
        }
        changes.extend(standing.into_iter().filter_map(|incident| self.happens(incident, now)));
        if let Some(count) = sample.ecc_volatile.uncorrected.get() {
            // The first reading tells of a time before this program; a smaller one, that the driver was loaded again.
            if self.uncorrected.replace(count.0).is_some_and(|before| count.0 > before) {
                self.happened = self.happened.max(now);
                changes.extend(self.happens(Incident::EccUncorrected, now));
            }
        }
        let quiet = self.heard(sample) && now >= self.last.after(policy.quiet);
        if !self.incidents.is_empty() && !self.stands && quiet {
            self.incidents.clear();
            self.traces = None;
            changes.push(HealthChange::Fit);
        } else if self.incidents.is_empty() && returned {
            changes.push(HealthChange::Fit);
        }
        changes
    }

    /// Counts the rounds in which no core reading succeeded; from the third in a row on, that stands.
    fn unread(&mut self, sample: &GpuSample) -> Option<Incident> {
        let fresh = match core(sample) {
            Core::Told => {
                self.unread = 0;
                return None;
            }
            Core::NotAsked => None,
            Core::Failed(why) => {
                self.unread = self.unread.saturating_add(1).min(UNREAD_ROUNDS);
                Some(Incident::Unread(why))
            }
        };
        // One incident whatever the reasons turn to: they share one word in the metrics.
        let known = self.incidents.keys().find(|incident| matches!(incident, Incident::Unread(_))).copied();
        known.or(fresh).filter(|_| self.unread >= UNREAD_ROUNDS)
    }

    fn happens(&mut self, incident: Incident, now: Monotonic) -> Option<HealthChange> {
        if incident != HANGS {
            self.last = self.last.max(now);
        }
        let new = !self.incidents.contains_key(&incident);
        self.incidents.entry(incident).or_insert(now);
        new.then_some(HealthChange::Condemned(incident))
    }

    /// Whether NVML has advised nothing since the last thing happened. Where the driver gives no such advice a reset is
    /// waited for, if one is needed.
    fn heard(&self, sample: &GpuSample) -> bool {
        match sample.recovery {
            Reading::Measured(RecoveryAction::None, at) => at >= self.last,
            Reading::Measured(..) => false,
            Reading::Absent(_) => !self.advises && self.traces.is_none(),
        }
    }

    /// The reasons, and until when.
    #[must_use]
    pub fn condition(&self, policy: &HealthPolicy) -> GpuCondition {
        let awaits_reset = self.awaits_reset();
        let by_time = !self.incidents.is_empty() && !self.stands && !awaits_reset;
        GpuCondition {
            incidents: self.incidents.iter().map(|(incident, since)| (*incident, *since)).collect(),
            fit_at: by_time.then(|| self.last.after(policy.quiet)),
            awaits_reset,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn health(&self, sample: &GpuSample) -> GpuHealth {
        if self.stands {
            GpuHealth::Unhealthy
        } else if !self.incidents.is_empty() {
            GpuHealth::Degraded
        } else if untold(sample) {
            GpuHealth::Unknown
        } else {
            GpuHealth::Healthy
        }
    }
}

/// Whether nothing was read yet.
#[must_use]
pub fn untold(sample: &GpuSample) -> bool {
    sample.memory_used == Reading::NOT_YET
        && sample.utilization == Reading::NOT_YET
        && sample.temperature == Reading::NOT_YET
}

/// What the core readings say of a card: memory, utilisation, temperature and power, of which every card has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Core {
    /// One of them has a value, or the card has none of them by its nature.
    Told,
    /// They were not asked: the card was left alone, or cannot be asked for a reason of its own ([`silence`]).
    NotAsked,
    /// All were asked in vain, and one of them for this reason, which a healthy card does not give.
    Failed(Absence),
}

fn core(sample: &GpuSample) -> Core {
    let core = core_absences(sample);
    if core.contains(&None) {
        return Core::Told;
    }
    let unnatural = core.into_iter().flatten().find(|why| !natural(*why));
    match unnatural {
        None => Core::Told,
        Some(Absence::NotYet | Absence::CallStalls | Absence::SwitchedOff) => Core::NotAsked,
        Some(_) if silence(sample).is_some() => Core::NotAsked,
        Some(why) => Core::Failed(why),
    }
}

/// Whether a healthy card gives this reason for good.
fn natural(why: Absence) -> bool {
    matches!(why, Absence::NotSupported | Absence::NotInThisDriver | Absence::NotThisArchitecture | Absence::MigEnabled)
}

fn core_absences(sample: &GpuSample) -> [Option<Absence>; 4] {
    [sample.memory_used.absence(), sample.utilization.absence(), sample.temperature.absence(), sample.power.absence()]
}

/// Why a GPU does not answer, if it does not. One reading that fails is a gap; these reasons are about the card as a whole.
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

/// What condemns a card for as long as it is read.
fn standing(sample: &GpuSample) -> Vec<Incident> {
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
