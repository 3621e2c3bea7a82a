//! Whether a container has a file mounted, from the mounts that its processes see.

use crate::cgroup::layout::CgroupLayout;
use crate::cgroup::members::members;
use crate::kernel_file::KernelFileReader;
use crate::roots::{HostRoots, part};

/// Maximum number of processes that are read in one container; its first process exists since the start.
const MAX_PROCESSES: usize = 16;

/// Files that the kubelet and the runtime mount in each container, unless its pod mounts another file there. A process
/// that sees none of these mounts is not in its container's mount namespace. It is in the runtime's namespace, because
/// the container has not started yet, or in a namespace that the process has made itself.
const EVERYWHERE: [&[u8]; 3] = [b"/etc/hosts", b"/etc/resolv.conf", b"/dev/termination-log"];

/// Whether something is mounted at `path` in the container with this cgroup. `None` if no process shows the container's
/// mounts: the container has ended, its processes are hidden from the agent (no hostPID), or they are in other mount
/// namespaces.
#[must_use]
pub fn mounted(roots: &HostRoots, cgroup: &str, path: &str) -> Option<bool> {
    let mut reader = KernelFileReader::default();
    let layout = CgroupLayout::detect(&mut reader, roots).ok()?;
    let mut pids = Vec::new();
    members(&mut reader, layout.walked(), cgroup, &mut pids).ok()?;
    let (procfs, mut seen) = (part(&roots.procfs), None);
    for pid in pids.into_iter().take(MAX_PROCESSES) {
        let name = pid.to_string();
        let Ok(text) = reader.read(&[&procfs, b"/", name.as_bytes(), b"/mountinfo"]) else { continue };
        match has(text, path.as_bytes()) {
            Some(true) => return Some(true),
            Some(false) => seen = Some(false),
            None => {}
        }
    }
    seen
}

/// Whether something is mounted at `path` in these mounts; `None` if they are not a container's.
fn has(mountinfo: &[u8], path: &[u8]) -> Option<bool> {
    let is_a_containers = EVERYWHERE.iter().any(|path| is_mount_point(mountinfo, path));
    is_a_containers.then(|| is_mount_point(mountinfo, path))
}

/// Whether `path` is a mount point, which is the fifth field of a line.
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
    fn a_process_without_any_runtime_mount_gives_no_answer() {
        let limits = "/etc/gpu-steward/limits.json";
        let check = |points: &[&str]| {
            let line = |point: &&str| format!("23 28 8:1 / {point} rw - ext4 /dev/sda rw\n");
            has(points.iter().map(line).collect::<String>().as_bytes(), limits.as_bytes())
        };
        assert_eq!(check(&["/", "/proc", "/dev/termination-log", limits]), Some(true));
        assert_eq!(check(&["/", "/proc", "/etc/hosts"]), Some(false));
        assert_eq!(check(&["/", "/proc", "/etc/resolv.conf"]), Some(false));
        assert_eq!(check(&["/", "/proc"]), None, "as after pivot_root into a file system of its own");
        assert_eq!(check(&["/", limits]), None);
    }

    #[test]
    fn unreadable_folders_give_no_answer() {
        let nowhere = tempfile::tempdir().unwrap();
        let at = nowhere.path().to_owned();
        let roots = HostRoots { procfs: at.clone(), cgroup: at.clone(), sysfs: at };
        assert_eq!(mounted(&roots, "/kubepods/x", "/etc/gpu-steward/limits.json"), None);
    }
}
