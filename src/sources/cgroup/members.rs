//! The processes in one cgroup and in the cgroups nested in it.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::process::ProcError;
use rustix::fd::AsFd;
use wire::cgroup_file::processes;
use wire::cgroup_path::{CgroupPlace, place};

/// Maximum number of processes of one cgroup that are listed: the kernel's default limit of PIDs.
pub const MAX_MEMBERS: usize = 32_768;
/// Maximum number of cgroups nested in one pod or container that are read: systemd in a container makes about fifty.
const MAX_NESTED: usize = 256;

/// Empties `pids` and fills it with the processes in the cgroup at `path` below `tree`. Containers in a pod are left
/// out: they are cgroups of their own. Returns the number of further processes, which have no PID here because they
/// live outside the agent's PID namespace.
///
/// # Errors
/// [`ProcError`] when the cgroup's own list cannot be read. Lists of nested cgroups that cannot be read are skipped,
/// because nested cgroups come and go.
pub fn members(reader: &mut KernelFileReader, tree: &[u8], path: &str, pids: &mut Vec<u32>) -> Result<u32, ProcError> {
    members_with(reader, (tree, path), |_| false, pids)
}

/// Like [`members`]; if `counted` is true for a container in the pod, its processes count as the pod's.
///
/// # Errors
/// Like [`members`].
pub fn members_with(
    reader: &mut KernelFileReader,
    (tree, path): (&[u8], &str),
    counted: impl Fn(&str) -> bool,
    pids: &mut Vec<u32>,
) -> Result<u32, ProcError> {
    let directory = reader.directory(&[tree, path.as_bytes()])?;
    list(reader, &directory, (tree, path, 0), counted, pids)
}

/// Like [`members`], with an open directory of the cgroup. `others` is the number of child cgroups that are tracked
/// separately (the containers of a pod). If the cgroup has no other child, its directory is not listed.
///
/// # Errors
/// Like [`members`].
pub fn members_in(
    reader: &mut KernelFileReader,
    directory: impl AsFd,
    (tree, path, others): (&[u8], &str, u64),
    pids: &mut Vec<u32>,
) -> Result<u32, ProcError> {
    list(reader, directory, (tree, path, others), |_| false, pids)
}

fn list(
    reader: &mut KernelFileReader,
    directory: impl AsFd,
    (tree, path, others): (&[u8], &str, u64),
    counted: impl Fn(&str) -> bool,
    pids: &mut Vec<u32>,
) -> Result<u32, ProcError> {
    let belongs = |child: &str| {
        matches!(place(child), CgroupPlace::Inside { path: owner, .. } if owner == path) || counted(child)
    };
    pids.clear();
    let mut hidden = add(reader.read_records_in(&directory, b"cgroup.procs")?, pids)?;
    if reader.directory_links_in(&directory, &[]).is_ok_and(|links| links.count == 2 + others) {
        return Ok(hidden); // nothing is nested, which is the usual case
    }
    let mut nested = children(reader, tree, path, &belongs);
    let mut at = 0;
    while let Some(child) = nested.get(at).cloned() {
        // A threaded cgroup refuses to list processes (EOPNOTSUPP); the domain cgroup above lists them.
        let text = reader.read(&[tree, child.as_bytes(), b"/cgroup.procs"]).map_err(ProcError::from);
        hidden += text.and_then(|text| add(text, pids)).unwrap_or(0);
        if nested.len() < MAX_NESTED {
            nested.append(&mut children(reader, tree, &child, &belongs));
            nested.truncate(MAX_NESTED);
        }
        at += 1;
    }
    Ok(hidden)
}

fn add(text: &[u8], pids: &mut Vec<u32>) -> Result<u32, ProcError> {
    let hidden = processes(text, |pid| {
        if pids.len() < MAX_MEMBERS {
            pids.push(pid);
        }
    })?;
    Ok(hidden)
}

/// Cgroups in `parent` that `belongs` accepts.
fn children(reader: &mut KernelFileReader, tree: &[u8], parent: &str, belongs: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let _: Result<(), ReadFailure> = reader.subdirectories(&[tree, parent.as_bytes()], |name| {
        if let Ok(name) = std::str::from_utf8(name) {
            let child = format!("{parent}/{name}");
            if found.len() < MAX_NESTED && belongs(&child) {
                found.push(child);
            }
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::part;
    use std::fs;

    #[test]
    fn nested_processes_belong_to_the_container_and_a_pods_containers_do_not_belong_to_the_pod_itself() {
        let base = tempfile::tempdir().unwrap();
        let pod = "/kubepods/pod0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
        let container = format!("{pod}/{:064x}", 7);
        for (path, text) in [
            (pod.to_string(), "1\n"),
            (container.clone(), "2\n3\n"),
            (format!("{container}/a"), "4\n0\n"),
            (format!("{container}/a/b"), "5\n"),
            (format!("{pod}/crio-conmon-{:064x}", 7), "6\n"),
        ] {
            fs::create_dir_all(base.path().join(&path[1..])).unwrap();
            fs::write(base.path().join(&path[1..]).join("cgroup.procs"), text).unwrap();
        }
        let (tree, mut reader, mut pids) = (part(base.path()), KernelFileReader::default(), Vec::new());
        for (path, expected, hidden) in [(container.as_str(), vec![2, 3, 4, 5], 1), (pod, vec![1, 6], 0)] {
            assert_eq!(members(&mut reader, &tree, path, &mut pids), Ok(hidden));
            pids.sort_unstable();
            assert_eq!(pids, expected);
        }
        // The pod has two child cgroups. If both are tracked separately, no child is listed; if only one is, the
        // processes of the other belong to the pod itself.
        let directory = reader.directory(&[&tree, pod.as_bytes()]).unwrap();
        for (others, expected) in [(2, vec![1]), (1, vec![1, 6])] {
            assert_eq!(members_in(&mut reader, &directory, (&tree, pod, others), &mut pids), Ok(0));
            assert_eq!(pids, expected, "{others}");
        }
        let gone = members(&mut reader, &tree, "/kubepods/none", &mut pids);
        assert_eq!(gone, Err(ProcError::File(ReadFailure::NotFound)));
    }
}
