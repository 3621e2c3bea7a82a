//! Leader election with a Lease, by the algorithm of client-go, as a state machine without clock and I/O.
//!
//! ```text
//!   next() ──▶ Read ──GET──▶ found(…) ──▶ Wait | Create | Replace ──POST, PUT──▶ written(…) ──▶ leads(now)
//!     ▲                                            │
//!     └──── conflict, lost answer: failed() ◀──────┘      released: an empty holder for one second
//! ```
//!
//! A Lease is valid from the moment at which *this* process saw its record change, for the duration in the record. The
//! times in the record are never compared with a clock, so clocks may differ. During one lease duration two
//! clocks may drift apart by less than the lease duration minus the renew deadline.
//!
//! What must never happen here: a leader whose last renewal was sent longer ago than the renew deadline; a take-over of
//! a Lease that is valid; a write without the version that was read.

use model::lease::{LeaseRecord, StoredLease};
use model::time::{Monotonic, Now, WallTime};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two tries is longer than the retry period by at most this percentage.
const JITTER: u32 = 20;
/// How many times a follower reads the Lease during one pause between two tries of a leader.
const LOOKS: u32 = 4;

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimes {
    /// How long a Lease is valid after its last change was seen; whole seconds.
    pub lease: Duration,
    /// How long a leader still leads after its last renewal.
    pub renew_deadline: Duration,
    /// The pause between two tries, to which up to a fifth is added.
    pub retry: Duration,
}

impl Default for ElectionTimes {
    /// The times of Kubernetes' own components, for tests. The program takes its times from the settings, whose defaults are the
    /// same (`src/steward/settings/table.rs`, `lease-duration`); a test compares them.
    fn default() -> Self {
        ElectionTimes {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl ElectionTimes {
    /// Checks that a leader stops before another process may take over, and has several tries until then.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(self) -> Result<ElectionTimes, &'static str> {
        if self.lease.subsec_nanos() != 0 {
            return Err("the lease duration must be whole seconds");
        }
        if self.lease <= self.renew_deadline {
            return Err("the lease duration must be longer than the renew deadline");
        }
        if self.retry.is_zero() || self.renew_deadline <= self.longest_pause() {
            return Err("the retry period must not be zero, and the renew deadline must exceed 1.2 times it");
        }
        Ok(self)
    }

    /// The pause before the next try; `chance`, a random number from 0 to 99, spreads the tries of the processes.
    #[must_use]
    pub fn pause(self, chance: u32) -> Duration {
        self.retry + self.retry * (JITTER * chance.min(99)) / (100 * 100)
    }

    /// The pause before a follower reads the Lease again: a quarter of the pause between two tries. It is short,
    /// because a read costs little, and after a release no process leads until one of them reads the Lease.
    #[must_use]
    pub fn pause_of_follower(self, chance: u32) -> Duration {
        self.pause(chance) / LOOKS
    }

    fn longest_pause(self) -> Duration {
        self.retry * (100 + JITTER) / 100
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Read the Lease, then call [`Elector::found`].
    Read,
    /// Nothing until the next try: another process holds the Lease.
    Wait,
    /// Create the Lease, then call [`Elector::written`] or [`Elector::failed`].
    Create(LeaseRecord),
    /// Replace the Lease of this version, then call [`Elector::written`] or [`Elector::failed`].
    Replace(StoredLease),
}

/// The change that a step has caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionChange {
    /// Leads from now on.
    Won,
    /// Leads no longer.
    Lost,
    /// Still leads, but the Lease is older than the Lease that was seen before: etcd was restored to an older state.
    Restored,
}

/// One process in an election.
#[derive(Clone, Debug)]
pub struct Elector {
    times: ElectionTimes,
    identity: Arc<str>,
    /// The address at which this process serves agents and the other processes, if it serves them.
    address: Option<Arc<str>>,
    /// The Lease as last read or written, and when its record was first seen; `None` if it does not exist or was never read.
    seen: Option<(StoredLease, Monotonic)>,
    /// Whether the next write may use the version of `seen`, without a read before it.
    current: bool,
    leading: Option<Leading>,
    /// The largest epoch ever seen on a pod or in the Lease.
    epoch_seen: u64,
}

/// The term of a leader.
#[derive(Clone, Copy, Debug)]
struct Leading {
    /// When the last successful write was *sent*. Other processes count from when they see it, which is later.
    renewed: Monotonic,
    epoch: u64,
}

impl Elector {
    /// A process with an identity that no other process has or had, not even an earlier process on the same machine.
    #[must_use]
    pub fn new(identity: Arc<str>, times: ElectionTimes) -> Elector {
        Elector { times, identity, address: None, seen: None, current: false, leading: None, epoch_seen: 0 }
    }

    /// Sets the address that the Lease names while this process holds it.
    #[must_use]
    pub fn at(mut self, address: Option<Arc<str>>) -> Elector {
        self.address = address;
        self
    }

    /// This process's identity.
    #[must_use]
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// The times.
    #[must_use]
    pub fn times(&self) -> ElectionTimes {
        self.times
    }

    /// The holder of the Lease, as last seen.
    #[must_use]
    pub fn holder(&self) -> Option<&Arc<str>> {
        self.seen.as_ref()?.0.record.holder.as_ref()
    }

    /// The address at which the holder of the Lease serves, as last seen.
    #[must_use]
    pub fn holder_address(&self) -> Option<&Arc<str>> {
        let record = &self.seen.as_ref()?.0.record;
        record.holder.as_ref().and(record.address.as_ref())
    }

    /// Whether this process leads at this moment.
    #[must_use]
    pub fn leads(&self, now: Monotonic) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// Until when this process leads without a further renewal; `None` if it does not lead.
    #[must_use]
    pub fn leads_until(&self) -> Option<Monotonic> {
        self.leading.map(|leading| leading.renewed.after(self.times.renew_deadline))
    }

    /// The epoch of this process's claims; `None` if it does not lead.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.leading.map(|leading| leading.epoch)
    }

    /// Takes in an epoch that is written on a pod. If it is larger than this leader's epoch, the leader continues with an even
    /// larger epoch.
    pub fn epoch_is_used(&mut self, epoch: u64) {
        self.epoch_seen = self.epoch_seen.max(epoch);
        if let Some(leading) = &mut self.leading
            && leading.epoch < epoch
        {
            leading.epoch = epoch.saturating_add(1);
        }
    }

    /// Sets and returns the epoch of the claims of this term: larger than every epoch that was found. Call this once:
    /// after reading everything that was written before the term, and before the first claim.
    pub fn settle_epoch(&mut self) -> Option<u64> {
        let leading = self.leading.as_mut()?;
        if leading.epoch <= self.epoch_seen {
            leading.epoch = self.epoch_seen.saturating_add(1);
        }
        Some(leading.epoch)
    }

    /// Ends the term if its time is over. It must be called before each step and regularly, because only this call
    /// reports that the term has ended.
    pub fn tick(&mut self, now: Monotonic) -> Option<ElectionChange> {
        let over = self.leading.is_some() && !self.leads(now);
        if over { self.lost() } else { None }
    }

    /// The next step. A leader renews with the version that it wrote last; all others read first.
    #[must_use]
    pub fn next(&self, now: Now) -> ElectionStep {
        match &self.seen {
            Some((lease, _)) if self.current && self.leads(now.monotonic) => {
                ElectionStep::Replace(self.next_record(Some(lease), now.wall))
            }
            _ => ElectionStep::Read,
        }
    }

    /// Takes in the Lease that a read has found; `None` if it does not exist. Returns the next step.
    pub fn found(&mut self, found: Option<StoredLease>, now: Now) -> (ElectionStep, Option<ElectionChange>) {
        let Some(lease) = found else {
            // The Lease was deleted, and another process may create it at this moment.
            (self.seen, self.current) = (None, false);
            let change = self.lost();
            return (ElectionStep::Create(self.next_record(None, now.wall).record), change);
        };
        self.epoch_seen = self.epoch_seen.max(lease.record.epoch.unwrap_or(0));
        let since = match &self.seen {
            Some((known, since)) if known.record == lease.record => *since,
            _ => now.monotonic,
        };
        let own = lease.record.holder.as_ref() == Some(&self.identity);
        let valid = lease.record.holder.is_some() && now.monotonic < since.after(lease.record.duration);
        let older = |(known, _): &(StoredLease, Monotonic)| lease.record.renewed < known.record.renewed;
        let change = if !own {
            self.lost()
        } else if self.leading.is_some() && self.seen.as_ref().is_some_and(older) {
            Some(ElectionChange::Restored)
        } else {
            None
        };
        let step = if valid && !own {
            ElectionStep::Wait
        } else {
            ElectionStep::Replace(self.next_record(Some(&lease), now.wall))
        };
        (self.seen, self.current) = (Some((lease, since)), true);
        (step, change)
    }

    /// Takes in a successful write: the Lease as it is stored now, and when the write was *sent*.
    pub fn written(&mut self, lease: StoredLease, sent: Monotonic, now: Monotonic) -> Option<ElectionChange> {
        let epoch = lease.record.epoch.unwrap_or(0);
        (self.seen, self.current) = (Some((lease, now)), true);
        if now >= sent.after(self.times.renew_deadline) {
            // The write took so long that the term is already over; the next try renews.
            return self.lost();
        }
        match &mut self.leading {
            Some(leading) => {
                leading.renewed = sent;
                None
            }
            None => {
                let epoch = epoch.max(self.epoch_seen.saturating_add(1));
                self.leading = Some(Leading { renewed: sent, epoch });
                Some(ElectionChange::Won)
            }
        }
    }

    /// Records that a write was refused or that its outcome is not known: the Lease must be read before the next write.
    pub fn failed(&mut self) {
        self.current = false;
    }

    /// Ends the term, and returns the write that lets another process take over at once; `None` if this process does
    /// not lead. The caller must have finished all decisions of the term.
    pub fn release(&mut self, now: Now) -> Option<StoredLease> {
        let leads = self.leads(now.monotonic);
        let epoch = self.epoch();
        self.lost();
        let (lease, _) = self.seen.as_ref().filter(|_| leads && self.current)?;
        let record = LeaseRecord {
            holder: None,
            duration: Duration::from_secs(1),
            acquired: Some(now.wall),
            renewed: Some(now.wall),
            transitions: lease.record.transitions,
            epoch: epoch.or(lease.record.epoch),
            address: None,
        };
        self.current = false;
        Some(StoredLease { version: Arc::clone(&lease.version), record })
    }

    fn lost(&mut self) -> Option<ElectionChange> {
        self.leading.take().map(|leading| {
            self.epoch_seen = self.epoch_seen.max(leading.epoch);
            ElectionChange::Lost
        })
    }

    /// The Lease with this process as its holder.
    fn next_record(&self, lease: Option<&StoredLease>, wall: WallTime) -> StoredLease {
        let before = lease.map(|lease| &lease.record);
        let own = before.filter(|record| record.holder.as_ref() == Some(&self.identity));
        let transitions = match (own, before) {
            (Some(own), _) => own.transitions,
            (None, Some(other)) => other.transitions.saturating_add(1),
            (None, None) => 0,
        };
        let epoch = self.epoch().unwrap_or_else(|| {
            let stored = before.and_then(|record| record.epoch).unwrap_or(0);
            transitions.max(stored).max(self.epoch_seen).saturating_add(1)
        });
        let record = LeaseRecord {
            holder: Some(Arc::clone(&self.identity)),
            duration: self.times.lease,
            acquired: own.and_then(|own| own.acquired).or(Some(wall)),
            renewed: Some(wall),
            transitions,
            epoch: Some(epoch),
            address: self.address.clone(),
        };
        StoredLease { version: lease.map_or_else(|| "".into(), |lease| Arc::clone(&lease.version)), record }
    }
}

#[cfg(test)]
mod tests;
