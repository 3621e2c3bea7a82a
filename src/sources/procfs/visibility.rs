//! Which PID namespace we live in, and which one the `/proc` shows that we read.
//!
//! ```text
//!   our namespace   is the machine's              everything can be seen
//!                   is private, `/proc` is ours   only our own: no machine, no host's network behind process 1
//!                   is private, `/proc` is not    it shows another one's numbers, the kernel tells us ours
//! ```
//!
//! What must never happen here: what a container sees of itself shown as what the machine has.

use crate::kernel_file::KernelFileReader;
use crate::procfs::process::namespace;
use wire::cgroup_file::digits;

/// The inode of the machine's own PID namespace: fixed in the kernel (`PROC_PID_INIT_INO`) since Linux 3.8.
const MACHINES: u64 = 0xeffffffc;

/// What can be seen of processes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcVisibility {
    /// All of them (or nothing speaks against it, as in a tree that was made by hand).
    Machine,
    /// Those of our own private namespace: `/proc` has no others, and lists of processes leave the others out.
    Private,
    /// We are in a private namespace and read a `/proc` that was mounted in one above. It is the machine's, but the
    /// numbers in lists of processes are of ours, and mean others there.
    Mounted,
}

impl ProcVisibility {
    /// Looks at ourselves as `/proc` shows us, for which no capability is needed.
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
    fn the_namespace_is_told_by_our_own_link_and_our_own_number() {
        let own = std::process::id();
        for (number, link, sight) in [
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
                sight,
                "{number} {link:?}"
            );
        }
    }
}
