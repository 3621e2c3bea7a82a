//! Whether a container has what it was to be given: its own view of its mounts says so.

use crate::cgroup::layout::Layout;
use crate::cgroup::members::members;
use crate::kernel_file::Reader;
use crate::roots::{HostRoots, part};

/// Processes of a container that are looked at: the first is there from the beginning.
const MAX_LOOKED_AT: usize = 16;

/// Whether something is mounted at `path` in the container whose cgroup this is. `None` where no process of it can be
/// looked at: it has ended, or its processes are hidden from us (no hostPID).
#[must_use]
pub fn mounted(roots: &HostRoots, cgroup: &str, path: &str) -> Option<bool> {
    let mut reader = Reader::default();
    let layout = Layout::detect(&mut reader, roots).ok()?;
    let mut pids = Vec::new();
    members(&mut reader, layout.walked(), cgroup, &mut pids).ok()?;
    let (procfs, mut seen) = (part(&roots.procfs), None);
    for pid in pids.into_iter().take(MAX_LOOKED_AT) {
        let name = pid.to_string();
        let Ok(text) = reader.read(&[&procfs, b"/", name.as_bytes(), b"/mountinfo"]) else { continue };
        if is_mount_point(text, path.as_bytes()) {
            return Some(true);
        }
        seen = Some(false);
    }
    seen
}

/// The fifth field of a line is where something is mounted.
fn is_mount_point(mountinfo: &[u8], path: &[u8]) -> bool {
    mountinfo.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_the_fifth_field() {
        let text = b"22 28 0:21 / /sys rw - sysfs sysfs rw\n23 28 8:1 /state/limits.json /etc/gpu-steward/limits.json ro - ext4 /dev/sda rw\n";
        assert!(is_mount_point(text, b"/etc/gpu-steward/limits.json"));
        for other in ["/etc/gpu-steward", "/state/limits.json", ""] {
            assert!(!is_mount_point(text, other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_not_told() {
        let nowhere = tempfile::tempdir().unwrap();
        let at = nowhere.path().to_owned();
        let roots = HostRoots { procfs: at.clone(), cgroup: at.clone(), sysfs: at };
        assert_eq!(mounted(&roots, "/kubepods/x", "/etc/gpu-steward/limits.json"), None);
    }
}
