//! From what is read and what happens to a word: may one trust this GPU with new work?
//!
//! ```text
//!   stands in the readings (silent, remap, NVML's advice) ─┐
//!   happened (fatal XID, uncorrected ECC errors) ──────────┴─▶ unfit ──▶ nothing stands, NVML advises nothing,
//!                                                                      and the quiet period is over ──▶ fit
//! ```
//!
//! Each card has a record of its own, so no neighbour is ever condemned with it. Of the clocks only the monotonic one is
//! looked at.
//!
//! What must never happen here: an application's own error (XID 13, 31, 43, 45, …) condemns a card; a card is trusted again
//! by an advice that NVML gave before the last thing happened.

use model::gpu::{GpuSample, RecoveryAction};
use model::incident::{Condition, Incident};
use model::reading::{Absence, Reading};
use model::time::Monotonic;
use model::view::{Health, MAX_XID_CODES};
use model::xid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What condemns a GPU, and for how long at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// XIDs that condemn; an application's own never do, whatever stands here.
    pub fatal: BTreeSet<u32>,
    /// How long nothing must happen before it is trusted again.
    pub quiet: Duration,
}

impl Policy {
    /// As long as Kubernetes leaves pods on a node that does not answer: who moves work away has done so by then.
    pub const QUIET: Duration = Duration::from_secs(300);
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            fatal: xid::catalogue().filter(|entry| entry.fatal).map(|entry| entry.code).collect(),
            quiet: Self::QUIET,
        }
    }
}

/// What changed about a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is unfit for this reason as well.
    Condemned(Incident),
    /// It is fit again.
    Fit,
}

/// What is known of one card's health.
#[derive(Debug, Default)]
pub struct Record {
    /// Since when, for every reason that has come since the card was fit last. XIDs are at most [`MAX_XID_CODES`].
    incidents: BTreeMap<Incident, Monotonic>,
    /// Whether one of them stands in the readings.
    stands: bool,
    /// When something last happened or stood.
    last: Monotonic,
    /// The counter of uncorrected ECC errors, once it was read.
    uncorrected: Option<u64>,
    /// Whether NVML has ever given its advice about this card: then it must be heard.
    advises: bool,
}

impl Record {
    /// A driver error has hit the card.
    pub fn xid(&mut self, code: u32, policy: &Policy, now: Monotonic) -> Option<Change> {
        if !policy.fatal.contains(&code) || xid::of_application(code) {
            return None;
        }
        if self.incidents.len() >= MAX_XID_CODES {
            self.last = now;
            return None;
        }
        self.happens(Incident::Xid(code), now)
    }

    /// The card was read.
    pub fn read(&mut self, sample: &GpuSample, policy: &Policy, now: Monotonic) -> Vec<Change> {
        let mut changes = Vec::new();
        self.advises |= sample.recovery.value().is_some();
        let standing = standing(sample);
        self.stands = !standing.is_empty();
        changes.extend(standing.into_iter().filter_map(|incident| self.happens(incident, now)));
        if let Some(count) = sample.ecc_volatile.uncorrected.get() {
            // The first reading tells of a time before this program; a smaller one, that the driver was loaded again.
            if self.uncorrected.replace(count.0).is_some_and(|before| count.0 > before) {
                changes.extend(self.happens(Incident::EccUncorrected, now));
            }
        }
        if !self.incidents.is_empty() && !self.stands && self.heard(sample) && now >= self.last.after(policy.quiet) {
            self.incidents.clear();
            changes.push(Change::Fit);
        }
        changes
    }

    fn happens(&mut self, incident: Incident, now: Monotonic) -> Option<Change> {
        self.last = self.last.max(now);
        let new = !self.incidents.contains_key(&incident);
        self.incidents.entry(incident).or_insert(now);
        new.then_some(Change::Condemned(incident))
    }

    /// Whether NVML has advised nothing since the last thing happened. Drivers that give no such advice are not waited for.
    fn heard(&self, sample: &GpuSample) -> bool {
        match sample.recovery {
            Reading::Measured(RecoveryAction::None, at) => at >= self.last,
            Reading::Measured(..) => false,
            Reading::Absent(_) => !self.advises,
        }
    }

    /// The reasons, and until when.
    #[must_use]
    pub fn condition(&self, policy: &Policy) -> Condition {
        let fit_at = (!self.incidents.is_empty() && !self.stands).then(|| self.last.after(policy.quiet));
        Condition { incidents: self.incidents.iter().map(|(incident, since)| (*incident, *since)).collect(), fit_at }
    }

    /// The word for it.
    #[must_use]
    pub fn health(&self, sample: &GpuSample) -> Health {
        if self.stands {
            Health::Unhealthy
        } else if !self.incidents.is_empty() {
            Health::Degraded
        } else if untold(sample) {
            Health::Unknown
        } else {
            Health::Healthy
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

/// Why a GPU does not answer, if it does not. One reading that fails is a gap; these reasons are about the card as a whole.
#[must_use]
pub fn silence(sample: &GpuSample) -> Option<Absence> {
    [sample.memory_used.absence(), sample.utilization.absence(), sample.temperature.absence(), sample.power.absence()]
        .into_iter()
        .flatten()
        .find(|why| {
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
