//! Versions of CDI, and which one a file needs.

use super::{Edits, Spec};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;

/// A version: `0.5.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
}

impl Version {
    /// The oldest that runtimes know.
    pub const OLDEST: Version = Version::new(0, 3);

    /// `major.minor.0`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Version {
        Version { major, minor, patch: 0 }
    }

    /// Reads three numbers, with or without a `v` before them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text
            .strip_prefix('v')
            .unwrap_or(text)
            .split('.')
            .map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { part.parse().ok() } else { None });
        let version = Version { major: parts.next()??, minor: parts.next()??, patch: parts.next()?? };
        if parts.next().is_none() { Some(version) } else { None }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Version::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("not a version of three numbers: {}", crate::fault::shown(&text)))
        })
    }
}

/// The lowest version that has all that is in `spec`.
#[must_use]
pub fn needed(spec: &Spec) -> Version {
    let class = spec.kind.split_once('/').map_or("", |(_, class)| class);
    let mut needed = Version::OLDEST;
    let mut need = |wanted: bool, version: Version| {
        if wanted {
            needed = needed.max(version);
        }
    };
    need(class.contains('.') || !spec.annotations.is_empty(), Version::new(0, 6));
    need(!spec.other.is_empty(), spec.cdi_version);
    for device in &spec.devices {
        need(device.name.starts_with(|first: char| first.is_ascii_digit()), Version::new(0, 5));
        need(!device.annotations.is_empty(), Version::new(0, 6));
        need(!device.other.is_empty(), spec.cdi_version);
        need(true, of_edits(&device.container_edits, spec.cdi_version));
    }
    need(true, of_edits(&spec.container_edits, spec.cdi_version));
    needed
}

fn of_edits(edits: &Edits, carried: Version) -> Version {
    let nodes = edits.device_nodes.iter().map(|node| {
        let own = if node.host_path.is_some() { Version::new(0, 5) } else { Version::OLDEST };
        own.max(of_unknown(&node.other, carried))
    });
    let mounts = edits.mounts.iter().map(|mount| {
        let own = if mount.kind.is_some() { Version::new(0, 4) } else { Version::OLDEST };
        own.max(of_unknown(&mount.other, carried))
    });
    let hooks = edits.hooks.iter().map(|hook| of_unknown(&hook.other, carried));
    let others = edits.other.keys().map(|key| match key.as_str() {
        "additionalGids" => Version::new(0, 7),
        "netDevices" => Version::new(1, 1),
        // What is inside `intelRdt` decides between 0.7 and 1.1; the file it came from knew.
        _ => carried,
    });
    nodes.chain(mounts).chain(hooks).chain(others).max().unwrap_or(Version::OLDEST)
}

fn of_unknown(other: &Map<String, Value>, carried: Version) -> Version {
    if other.is_empty() { Version::OLDEST } else { carried }
}
