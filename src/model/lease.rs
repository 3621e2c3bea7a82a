//! The Lease by which one of several processes becomes the leader.

use crate::time::WallTime;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Namespace and name of a Lease. The extenders of one installation share one Lease, and no other installation uses it.
/// A Lease that was deleted and created again counts as the same. Each claim names its Lease (`gpu-steward.io/lease`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName(Arc<str>);

impl LeaseName {
    /// The Lease of this name.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> LeaseName {
        LeaseName(format!("{namespace}/{name}").into())
    }

    /// The name as a claim has it: `NAMESPACE/NAME`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a Lease records about its holder. The times are for people only: no decision compares them with a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The identity of the holder; `None` if the Lease was released.
    pub holder: Option<Arc<str>>,
    /// How long the Lease is valid after its last change was seen; whole seconds.
    pub duration: Duration,
    /// When the holder took the Lease.
    pub acquired: Option<WallTime>,
    /// When the holder renewed the Lease last.
    pub renewed: Option<WallTime>,
    /// How often the holder has changed.
    pub transitions: u64,
    /// The epoch of the holder's claims (`gpu-steward.io/epoch`); `None` if no holder has written an epoch.
    pub epoch: Option<u64>,
    /// The address at which the holder serves agents and the other extenders (`gpu-steward.io/address`); `None` if it
    /// does not serve them.
    pub address: Option<Arc<str>>,
}

/// A Lease as the API server stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// The resource version. A write with an older version is refused.
    pub version: Arc<str>,
    /// The content.
    pub record: LeaseRecord,
}
