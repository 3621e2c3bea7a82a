//! Versions of CDI.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A version: `0.5.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CdiVersion {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
}

impl CdiVersion {
    /// The oldest version that runtimes support.
    pub const OLDEST: CdiVersion = CdiVersion::new(0, 3);

    /// `major.minor.0`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> CdiVersion {
        CdiVersion { major, minor, patch: 0 }
    }

    /// Reads three numbers, with or without a `v` before them.
    #[must_use]
    pub fn parse(text: &str) -> Option<CdiVersion> {
        let mut parts = text
            .strip_prefix('v')
            .unwrap_or(text)
            .split('.')
            .map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { part.parse().ok() } else { None });
        let version = CdiVersion { major: parts.next()??, minor: parts.next()??, patch: parts.next()?? };
        if parts.next().is_none() { Some(version) } else { None }
    }
}

impl fmt::Display for CdiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for CdiVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CdiVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        CdiVersion::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("not a version of three numbers: {}", crate::decode_error::shown(&text)))
        })
    }
}
