//! Detects in which PID namespace the agent is, and which PID namespace its `/proc` shows.
//!
//! ```text
//!   the agent's namespace is the machine's             everything is visible
//!   it is private, and so is `/proc`                   only its own processes, not the machine or the host's network
//!   it is private, and `/proc` is that of one above   `/proc` shows other PIDs than the kernel's lists of processes
//! ```
//!
//! What must never happen here: values of a container are shown as values of the machine.

use crate::kernel_file::KernelFileReader;
use crate::procfs::process::namespace;
use wire::cgroup_file::digits;

/// Inode of the machine's own PID namespace: fixed in the kernel (`PROC_PID_INIT_INO`) since Linux 3.8.
const MACHINES: u64 = 0xeffffffc;

/// Which processes the agent can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcVisibility {
    /// All processes. This is also assumed if nothing shows otherwise, as in a tree that a test made.
    Machine,
    /// The processes of the agent's private namespace: `/proc` and lists of processes have no other processes.
    Private,
    /// The agent is in a private namespace and reads a `/proc` that was mounted in a namespace above. That `/proc` is
    /// the machine's. PIDs in process lists are PIDs of the agent's namespace; in that `/proc` they are other
    /// processes.
    Mounted,
}

impl ProcVisibility {
    /// Detects the visibility from `/proc/self`, which needs no capability.
    #[must_use]
    pub fn detect(reader: &mut KernelFileReader, procfs: &[u8]) -> ProcVisibility {
        match namespace(reader, procfs, b"self", "pid") {
            Ok(MACHINES) | Err(_) => return ProcVisibility::Machine,
            Ok(_) => {}
        }
        let own = reader.link(&[procfs, b"/self"]).ok().and_then(digits);
        if own == Some(u64::from(std::process::id())) { ProcVisibility::Private } else { ProcVisibility::Mounted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::part;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn visibility_is_detected_from_the_agents_pid_namespace_and_pid() {
        let own = std::process::id();
        for (number, link, visibility) in [
            (own, Some(0xeffffffc_u64), ProcVisibility::Machine),
            (own, Some(4_026_532_999), ProcVisibility::Private),
            (own + 1, Some(4_026_532_999), ProcVisibility::Mounted),
            (own, None, ProcVisibility::Machine),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join(format!("{number}/ns"))).unwrap();
            symlink(number.to_string(), root.path().join("self")).unwrap();
            if let Some(link) = link {
                symlink(format!("pid:[{link}]"), root.path().join("self/ns/pid")).unwrap();
            }
            assert_eq!(
                ProcVisibility::detect(&mut KernelFileReader::default(), &part(root.path())),
                visibility,
                "{number} {link:?}"
            );
        }
    }
}
