//! Finds pods and containers by walking the mounted hierarchy.
//!
//! A directory is listed again when its number of subdirectories has changed, or when one of its children is gone. So a
//! walk costs one `stat` for each pod and each directory above pods if nothing has changed, and the first walk after a
//! container was made finds it. Directories with tracked children stay open, because most of the cost of such a `stat`
//! is to resolve the path from the root to the pod. If one child is removed while another is made, the number of
//! subdirectories stays the same; a thorough walk, which lists every directory, finds such a change.

use crate::kernel_file::{DirectoryLinks, KernelFileReader, ReadFailure};
use model::cgroup::{CgroupKind, MAX_CGROUPS, MAX_POD_CGROUPS};
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::sync::Arc;
use wire::cgroup_path::{CgroupPlace, place};

/// Maximum number of directories that are searched for pods and containers: pods ([`MAX_CGROUPS`] and [`MAX_POD_CGROUPS`] at
/// most) and thousands of directories of the host (a host has about a hundred services).
const MAX_DIRECTORIES: usize = 16_384;
/// Maximum depth that is followed: the deepest known tree (rootless Podman under systemd) has 7.
const MAX_DEPTH: usize = 16;

/// Maximum number of directories that are held open: a node has three with pods in them, and a host some dozens of
/// slices.
const MAX_HELD: usize = 64;

/// Every sixth full walk is thorough: every 30 s if a full walk is made every 5 s. Listing 100 pods costs about 1 ms.
const THOROUGH_EVERY: u64 = 6;

/// A newly found pod or container.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundCgroup {
    /// The cgroup's path below the hierarchy's root.
    pub path: Arc<str>,
    /// The cgroup's kind.
    pub kind: CgroupKind,
}

/// What a directory may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    /// Anything: a directory of the host.
    Anything,
    /// Containers of this pod.
    Containers,
    /// The cgroup tree of a kubelet that may run in this container, which belongs to no pod.
    Kubelet,
}

#[derive(Clone, Debug)]
struct Directory {
    path: Arc<str>,
    below: Below,
    /// The link count when the directory was last listed; `None` makes the next walk list it.
    links: Option<DirectoryLinks>,
    /// The open directory above this directory.
    above: Option<Arc<OwnedFd>>,
    /// This directory, held open for the directories in it.
    held: Option<Arc<OwnedFd>>,
}

impl FoundCgroup {
    /// Whether a table with `taken` pods and containers has a place for this cgroup. Some places are only for pods, so that
    /// containers cannot take them.
    #[must_use]
    pub fn has_place(&self, taken: usize) -> bool {
        let places = match self.kind {
            CgroupKind::Pod { .. } => MAX_CGROUPS + MAX_POD_CGROUPS,
            CgroupKind::Container { .. } => MAX_CGROUPS,
        };
        taken < places
    }
}

impl Directory {
    fn links(&self, reader: &mut KernelFileReader, tree: &[u8]) -> Result<DirectoryLinks, ReadFailure> {
        match (&self.above, self.path.rsplit_once('/')) {
            (Some(above), Some((_, name))) => reader.directory_links_in(above, &[name.as_bytes()]),
            _ => reader.directory_links(&[tree, self.path.as_bytes(), b"/"]),
        }
    }
}

/// Walks the tree, and remembers the directories that it has seen.
#[derive(Debug)]
pub struct CgroupWalk {
    tree: Vec<u8>,
    directories: Vec<Directory>,
    seen: HashSet<Arc<str>>,
    relist: HashSet<Arc<str>>,
    full_walks: u64,
    left_out: u32,
    child: String,
}

impl CgroupWalk {
    /// A walk that has not looked at anything yet.
    #[must_use]
    pub fn new(tree: &[u8]) -> Self {
        let root = Directory { path: Arc::from(""), below: Below::Anything, links: None, above: None, held: None };
        CgroupWalk {
            tree: tree.to_vec(),
            directories: vec![root],
            seen: HashSet::new(),
            relist: HashSet::new(),
            full_walks: 0,
            left_out: 0,
            child: String::new(),
        }
    }

    /// Searches changed directories for new pods and containers. A `full` walk also searches directories on file systems
    /// that do not count subdirectories, and from time to time all directories (a thorough walk). `keep` keeps a cgroup, or
    /// returns `false` if the table is full. Returns the number of cgroups that were not kept; a walk that is not thorough
    /// repeats the number of the last thorough walk.
    pub fn find(
        &mut self,
        reader: &mut KernelFileReader,
        full: bool,
        mut keep: impl FnMut(FoundCgroup) -> bool,
    ) -> u32 {
        // While not all cgroups fit, every full walk counts again how many are left out.
        let thorough = full && (self.full_walks.is_multiple_of(THOROUGH_EVERY) || self.left_out > 0);
        self.full_walks += u64::from(full);
        let mut left_out = 0;
        let mut at = 0;
        // New directories are added at the end, so this loop reaches them too.
        while at < self.directories.len() {
            let directory = &mut self.directories[at];
            let known = directory.links;
            let links = directory.links(reader, &self.tree);
            match links {
                Ok(links) => directory.links = Some(links),
                Err(_) if at > 0 => {
                    let gone = self.directories.swap_remove(at);
                    self.seen.remove(&gone.path);
                    continue;
                }
                Err(_) => {}
            }
            // Two links: there are no subdirectories. One link: the file system does not count them.
            let below = links.map_or(0, |links| links.count);
            let changed =
                directory.links != known || (!self.relist.is_empty() && self.relist.contains(&directory.path));
            let replaced = known.zip(directory.links).is_some_and(|(known, now)| known.inode != now.inode);
            if replaced {
                at = self.forget_below(at);
            }
            if changed || (full && below == 1) || (thorough && below != 2) {
                left_out += self.list(reader, at, &mut keep);
            }
            at += 1;
        }
        self.relist.clear();
        self.left_out = if thorough { left_out } else { self.left_out.max(left_out) };
        self.left_out
    }

    /// Whether the pod or container at `path` was found and kept, and has not been forgotten.
    #[must_use]
    pub fn knows(&self, path: &str) -> bool {
        self.seen.contains(path)
    }

    /// Records that a pod or container is gone: its path may be found again, and its directory is listed again.
    pub fn forget(&mut self, path: &str) {
        self.seen.remove(path);
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.relist.insert(Arc::from(parent));
        }
    }

    /// Forgets the contents of a directory that another directory of the same name has replaced. Returns the new index
    /// of the directory.
    fn forget_below(&mut self, at: usize) -> usize {
        self.directories[at].held = None;
        let above = format!("{}/", self.directories[at].path);
        self.seen.retain(|path| !path.starts_with(&above));
        let before = self.directories[..at].iter().filter(|directory| directory.path.starts_with(&above)).count();
        self.directories.retain(|directory| !directory.path.starts_with(&above));
        at - before
    }

    fn list(&mut self, reader: &mut KernelFileReader, at: usize, keep: &mut impl FnMut(FoundCgroup) -> bool) -> u32 {
        let CgroupWalk { tree, directories, seen, child, .. } = self;
        let Directory { path, below, .. } = directories[at].clone();
        let (mut left_out, first) = (0, directories.len());
        let listed = reader.subdirectories(&[tree, path.as_bytes(), b"/"], |name| {
            // The kubelet and container runtimes use only UTF-8 names.
            let Ok(name) = std::str::from_utf8(name) else { return };
            child.clear();
            child.push_str(&path);
            child.push('/');
            child.push_str(name);
            if seen.contains(child.as_str()) {
                return;
            }
            let (found, follow) = classify(child, below);
            if found.is_none() && follow.is_none() {
                return;
            }
            let path: Arc<str> = Arc::from(child.as_str());
            if let Some(kind) = found
                && !keep(FoundCgroup { path: Arc::clone(&path), kind })
            {
                left_out += 1;
                return;
            }
            if let Some(below) = follow {
                if directories.len() >= MAX_DIRECTORIES {
                    return;
                }
                directories.push(Directory { path: Arc::clone(&path), below, links: None, above: None, held: None });
            }
            seen.insert(path);
        });
        if listed.is_err_and(|failure| failure != ReadFailure::Refused) {
            directories[at].links = None; // the next walk tries again
        }
        if directories.len() > first {
            self.hold(reader, at, first);
        }
        left_out
    }

    /// Holds a directory open for the children found in it, which start at `first`.
    fn hold(&mut self, reader: &mut KernelFileReader, at: usize, first: usize) {
        let CgroupWalk { tree, directories, .. } = self;
        let held = directories.iter().filter(|directory| directory.held.is_some()).count();
        let directory = &mut directories[at];
        if directory.held.is_none() && held < MAX_HELD {
            directory.held = reader.directory(&[tree, directory.path.as_bytes(), b"/"]).ok().map(Arc::new);
        }
        let above = directory.held.clone();
        directories[first..].iter_mut().for_each(|directory| directory.above.clone_from(&above));
    }
}

/// The kind of a child, and which directories below it are followed.
fn classify(child: &str, below: Below) -> (Option<CgroupKind>, Option<Below>) {
    let shallow = child.bytes().filter(|b| *b == b'/').count() <= MAX_DEPTH;
    match place(child) {
        CgroupPlace::Foreign => (None, None),
        CgroupPlace::Host => (None, (below == Below::Anything && shallow).then_some(Below::Anything)),
        CgroupPlace::Inside { path, kind } if path == child => {
            let follow = match &kind {
                CgroupKind::Pod { .. } => Some(Below::Containers),
                CgroupKind::Container { pod: None, .. } => Some(Below::Kubelet),
                CgroupKind::Container { pod: Some(_), .. } => None,
            };
            (Some(kind), follow)
        }
        // Nested in a container outside any pod: followed only if its path looks like a kubelet's.
        CgroupPlace::Inside { path, kind: CgroupKind::Container { pod: None, .. } } => {
            let kubelet = shallow && child.get(path.len()..).is_some_and(|rest| rest.contains("kube"));
            (None, kubelet.then_some(Below::Kubelet))
        }
        CgroupPlace::Inside { .. } => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::part;
    use std::fs;

    const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

    fn id(n: u32) -> String {
        format!("{n:064x}")
    }

    fn find(walk: &mut CgroupWalk, full: bool) -> Vec<String> {
        let mut found = Vec::new();
        walk.find(&mut KernelFileReader::default(), full, |one| {
            found.push(one.path.to_string());
            true
        });
        found.sort();
        found
    }

    #[test]
    fn pods_and_containers_are_found_once_and_new_ones_by_the_next_walk() {
        let base = tempfile::tempdir().unwrap();
        let pod = format!("/kubepods/burstable/pod{UID}");
        let make = |path: &str| fs::create_dir_all(base.path().join(&path[1..])).unwrap();
        let docker = format!("/docker/{}", id(9));
        make(&format!("{pod}/{}/nested/docker/{}", id(1), id(2)));
        make("/system.slice/sshd.service");
        make(&format!("{docker}/kubelet/kubepods/pod{UID}/{}", id(3)));
        make(&format!("{docker}/init.scope/{}", id(4)));
        std::os::unix::fs::symlink(base.path(), base.path().join("loop")).unwrap();
        let mut walk = CgroupWalk::new(&part(base.path()));
        let first = find(&mut walk, false);
        let inner = format!("{docker}/kubelet/kubepods/pod{UID}");
        let container = format!("{pod}/{}", id(1));
        assert_eq!(first, [docker.clone(), inner.clone(), format!("{inner}/{}", id(3)), pod.clone(), container]);
        assert!(find(&mut walk, false).is_empty());
        assert!(find(&mut walk, true).is_empty());

        let new = format!("{pod}/{}", id(5));
        make(&new);
        assert_eq!(find(&mut walk, true), [new.as_str()]);
        fs::remove_dir(base.path().join(&new[1..])).unwrap();
        walk.forget(&new);
        assert!(find(&mut walk, false).is_empty());
        make(&new);
        assert_eq!(find(&mut walk, true), [new.as_str()], "the same path may come again");
    }

    #[test]
    fn a_directory_that_was_replaced_is_not_read_through_the_old_one() {
        let base = tempfile::tempdir().unwrap();
        let pod = |n: u32| format!("/kubepods/burstable/pod{UID}{n}").replace("d11", "d");
        let make = |path: &str| fs::create_dir_all(base.path().join(&path[1..])).unwrap();
        make(&format!("{}/{}", pod(10), id(1)));
        let mut walk = CgroupWalk::new(&part(base.path()));
        assert_eq!(find(&mut walk, false), [pod(10), format!("{}/{}", pod(10), id(1))]);
        // The same numbers of directories as before, one of them under its old name.
        fs::rename(base.path().join("kubepods/burstable"), base.path().join("old")).unwrap();
        make(&format!("{}/{}", pod(10), id(2)));
        assert_eq!(find(&mut walk, false), [pod(10), format!("{}/{}", pod(10), id(2))]);
        fs::remove_dir_all(base.path().join("kubepods")).unwrap();
        make(&pod(12));
        assert_eq!(find(&mut walk, false), [pod(12)]);
        make(&format!("{}/{}", pod(12), id(3)));
        assert_eq!(find(&mut walk, false), [format!("{}/{}", pod(12), id(3))]);
        assert!(walk.directories.iter().filter(|directory| directory.held.is_some()).count() >= 3);
    }

    #[test]
    fn cgroups_that_the_caller_cannot_keep_are_counted_and_found_later() {
        let base = tempfile::tempdir().unwrap();
        for n in 0..5 {
            fs::create_dir_all(base.path().join("docker").join(id(n))).unwrap();
        }
        let mut walk = CgroupWalk::new(&part(base.path()));
        let mut free = 2;
        let mut keep = |_| {
            let kept = free > 0;
            free -= i32::from(kept);
            kept
        };
        assert_eq!(walk.find(&mut KernelFileReader::default(), true, &mut keep), 3);
        assert_eq!(walk.find(&mut KernelFileReader::default(), true, &mut keep), 3, "counted, not added up");
        assert_eq!(find(&mut walk, true).len(), 3);
        assert_eq!(walk.find(&mut KernelFileReader::default(), true, &mut keep), 0);
    }
}
