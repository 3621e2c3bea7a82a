//! Names and identities, checked once when they are made and cheap to copy afterwards (`Arc<str>`).

use crate::nvidia;
use std::fmt;
use std::sync::Arc;

/// Why a text is not a name of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind}: {text:?}")]
pub struct NotAName {
    /// The kind of name that was expected.
    pub kind: &'static str,
    /// The text, cut to 80 characters.
    pub text: String,
}

fn refuse<T>(kind: &'static str, text: &str) -> Result<T, NotAName> {
    Err(NotAName { kind, text: text.chars().take(80).collect() })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and keeps `text`.
            ///
            /// # Errors
            /// [`NotAName`] when the text cannot be a name of this kind.
            pub fn parse(text: &str) -> Result<Self, NotAName> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(Arc::from(text))) } else { refuse($kind, text) }
            }

            /// The text.
            #[must_use]
            #[inline]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Printable ASCII without white space, and short enough to be a label value.
fn plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.bytes().all(|b| b.is_ascii_graphic())
}

fn hex(text: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

name!(
    /// A GPU's or MIG instance's UUID as NVML writes it: `GPU-…` or `MIG-…`, at most 96 characters (NVML's buffer).
    GpuUuid, "GPU UUID", |t| plain(t) && t.len() <= 96
);
name!(
    /// A node's name.
    NodeName, "node name", plain
);
name!(
    /// The UID of any object at the API server.
    ObjectUid, "UID", plain
);
name!(
    /// A pod's UID: the API server's (with dashes) or, for a static pod, the 32 hexadecimal digits of its manifest's hash.
    PodUid, "pod UID", |t| hex(&t.replace('-', ""), 32..=32) && t.len() <= 36
);
name!(
    /// A container's id: 64 hexadecimal digits in all current runtimes; shorter ids of 12 or more digits are accepted
    /// too.
    ContainerId, "container id", |t| hex(t, 12..=64)
);

name!(
    /// One boot of the machine: the kernel's `random/boot_id`, a UUID with dashes.
    BootId, "boot id", |t| t.len() == 36 && hex(&t.replace('-', ""), 32..=32)
);

name!(
    /// A ticket: the name of a CDI device that stands for one container, used once, until the agent knows which
    /// container it is. It begins with a letter, as the oldest CDI version requires, and is short enough for a label
    /// value.
    Ticket, "ticket", |t| t.len() == 33 && t.starts_with('t') && t.bytes().skip(1).all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
);

// Lets a map with `NodeName` keys be searched with a `&str`: equal names have equal texts and equal hashes.
impl std::borrow::Borrow<str> for NodeName {
    // A filter call looks up thousands of names.
    #[inline]
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl NodeName {
    /// The name under which the kubelet registers a host of this name: in lower case, without white space around it.
    ///
    /// # Errors
    /// [`NotAName`] when the text cannot be a node name.
    pub fn of_host(text: &str) -> Result<NodeName, NotAName> {
        NodeName::parse(&text.trim().to_lowercase())
    }
}

impl GpuUuid {
    /// Whether the id is the UUID of a MIG instance.
    #[must_use]
    pub fn is_mig_instance(&self) -> bool {
        self.0.starts_with(nvidia::MIG_UUID)
    }
}

impl Ticket {
    /// A ticket made of 16 random bytes. A ticket must never repeat, so the bytes must come from a good random source.
    #[must_use]
    pub fn of_random(bytes: [u8; 16]) -> Ticket {
        Ticket(Arc::from(format!("t{:032x}", u128::from_be_bytes(bytes))))
    }
}

/// Namespace and name of a pod. Not an identity, because another pod can get the same name later: [`PodUid`] is the
/// identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One container of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    /// The pod.
    pub pod: PodUid,
    /// The container's name in the pod.
    pub container: Arc<str>,
}

/// The identity of a process: the kernel reuses a PID, but never a PID together with a start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    /// The PID, in the host's PID namespace.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and the process's start.
    pub start_ticks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_uids_with_dashes_and_manifest_hashes_are_accepted_and_other_texts_are_not() {
        assert!(PodUid::parse("0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11").is_ok());
        assert!(PodUid::parse("0f5b9a3e0d2c4b7f9a512f1f6a1f8d11").is_ok());
        for bad in ["", "pod", "0f5b9a3e-0d2c", "../../etc/passwd", "0f5b9a3e_0d2c_4b7f_9a51_2f1f6a1f8d11"] {
            assert!(PodUid::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_named_as_the_kubelet_registers_it() {
        for host in ["MG357.Corp.Example", " mg357.corp.example\n"] {
            assert_eq!(NodeName::of_host(host).map(|name| name.to_string()), Ok("mg357.corp.example".to_owned()));
        }
        assert!(NodeName::of_host(" \n").is_err());
    }

    #[test]
    fn a_ticket_is_a_letter_and_32_digits() {
        let ticket = Ticket::of_random([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(ticket.as_str(), "t000102030405060708090a0b0c0d0eff");
        assert_eq!(Ticket::parse(ticket.as_str()), Ok(ticket));
        for bad in ["", "t", "000102030405060708090a0b0c0d0eff0", "t000102030405060708090A0B0C0D0EFF", "../t00"] {
            assert!(Ticket::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_uuid_of_a_mig_instance_is_known_by_its_begin() {
        let is_instance = |text: &str| GpuUuid::parse(text).unwrap().is_mig_instance();
        assert!(is_instance("MIG-1") && is_instance("MIG-GPU-1/13/10") && !is_instance("GPU-1"));
    }

    #[test]
    fn an_error_quotes_at_most_80_characters_of_the_text() {
        let error = GpuUuid::parse(&"x y".repeat(1000)).unwrap_err();
        assert!(error.to_string().starts_with("not a GPU UUID: \"x yx y"));
        assert!(error.text.len() <= 80);
    }
}
