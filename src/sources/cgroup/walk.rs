//! Finds pods and containers by walking the mounted hierarchy.
//!
//! A directory is listed again when its number of subdirectories changed and when one of its children was found gone. So
//! a look that finds nothing new costs one `stat` for each pod and each directory above pods, and a container is seen at
//! the first look after it was made. Directories in which others are watched are held, because walking the path from the
//! root to each pod anew is most of what such a `stat` costs. What that cannot show (a child of no interest goes while
//! another comes) is found at a thorough look, which lists everything.

use crate::kernel_file::{DirectoryLinks, KernelFileReader, ReadFailure};
use model::cgroup::CgroupKind;
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::sync::Arc;
use wire::cgroup_path::{CgroupPlace, place};

/// Directories that are watched for pods and containers: pods ([`model::cgroup::MAX_CGROUPS`] at most) and as many of
/// the host's own (a host has some hundred services).
const MAX_DIRECTORIES: usize = 16_384;
/// Directories below one another that are followed: the deepest known (rootless Podman under systemd) is 7.
const MAX_DEPTH: usize = 16;

/// Directories that are held, each an open file: a node has three with pods in them, and a host some dozens of slices.
const MAX_HELD: usize = 64;

/// Full looks from one thorough look to the next: with one every 5 s, 30 s. Listing 100 pods costs about 1 ms.
const THOROUGH_EVERY: u64 = 6;

/// A pod or container that was not known before.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundCgroup {
    /// Its path below the hierarchy's root.
    pub path: Arc<str>,
    /// What it is.
    pub kind: CgroupKind,
}

/// What may lie in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    /// Anything: a directory of the host.
    Anything,
    /// Containers of this pod.
    Containers,
    /// A kubelet's own tree, if it runs in this container of no pod.
    Kubelet,
}

#[derive(Clone, Debug)]
struct Directory {
    path: Arc<str>,
    below: Below,
    /// As it was when it was listed; `None` makes the next look list it.
    links: Option<DirectoryLinks>,
    /// The directory that it lies in.
    above: Option<Arc<OwnedFd>>,
    /// Itself, held for those in it.
    held: Option<Arc<OwnedFd>>,
}

impl Directory {
    fn links(&self, reader: &mut KernelFileReader, tree: &[u8]) -> Result<DirectoryLinks, ReadFailure> {
        match (&self.above, self.path.rsplit_once('/')) {
            (Some(above), Some((_, name))) => reader.directory_links_in(above, &[name.as_bytes()]),
            _ => reader.directory_links(&[tree, self.path.as_bytes(), b"/"]),
        }
    }
}

/// The walk: what it knows of the tree.
#[derive(Debug)]
pub struct CgroupWalk {
    tree: Vec<u8>,
    directories: Vec<Directory>,
    seen: HashSet<Arc<str>>,
    disturbed: HashSet<Arc<str>>,
    full_looks: u64,
    refused: u32,
    child: String,
}

impl CgroupWalk {
    /// Nothing has been looked at yet.
    #[must_use]
    pub fn new(tree: &[u8]) -> Self {
        let root = Directory { path: Arc::from(""), below: Below::Anything, links: None, above: None, held: None };
        CgroupWalk {
            tree: tree.to_vec(),
            directories: vec![root],
            seen: HashSet::new(),
            disturbed: HashSet::new(),
            full_looks: 0,
            refused: 0,
            child: String::new(),
        }
    }

    /// Looks for what is new where something changed; `full` also where the file system does not count subdirectories,
    /// and everywhere at times. `keep` says whether there is room for one more. Returns how many found no room; a look
    /// that is not thorough repeats the number of the last one that was.
    pub fn look(
        &mut self,
        reader: &mut KernelFileReader,
        full: bool,
        mut keep: impl FnMut(FoundCgroup) -> bool,
    ) -> u32 {
        // As long as there is no room for all, every full look counts those left out anew.
        let thorough = full && (self.full_looks.is_multiple_of(THOROUGH_EVERY) || self.refused > 0);
        self.full_looks += u64::from(full);
        let mut refused = 0;
        let mut at = 0;
        // New directories are put at the end, so this reaches them too.
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
            // Two links: the kernel says that nothing is below. One link: the file system does not count them.
            let below = links.map_or(0, |links| links.count);
            let changed =
                directory.links != known || (!self.disturbed.is_empty() && self.disturbed.contains(&directory.path));
            let replaced = known.zip(directory.links).is_some_and(|(known, now)| known.inode != now.inode);
            if replaced {
                at = self.forget_below(at);
            }
            if changed || (full && below == 1) || (thorough && below != 2) {
                refused += self.list(reader, at, &mut keep);
            }
            at += 1;
        }
        self.disturbed.clear();
        self.refused = if thorough { refused } else { self.refused.max(refused) };
        self.refused
    }

    /// A pod or container is gone: its path may be found again, and what is beside it is looked at.
    pub fn forget(&mut self, path: &str) {
        self.seen.remove(path);
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.disturbed.insert(Arc::from(parent));
        }
    }

    /// Another directory has this one's name: what was in the old one is gone with it. Returns where the new one is now.
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
        let (mut refused, first) = (0, directories.len());
        let listed = reader.subdirectories(&[tree, path.as_bytes(), b"/"], |name| {
            // A name that is not UTF-8 is none of kubelet's or a runtime's.
            let Ok(name) = std::str::from_utf8(name) else { return };
            child.clear();
            child.push_str(&path);
            child.push('/');
            child.push_str(name);
            if seen.contains(child.as_str()) {
                return;
            }
            let (found, follow) = judge(child, below);
            if found.is_none() && follow.is_none() {
                return;
            }
            let path: Arc<str> = Arc::from(child.as_str());
            if let Some(kind) = found
                && !keep(FoundCgroup { path: Arc::clone(&path), kind })
            {
                refused += 1;
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
            directories[at].links = None; // the next look tries again
        }
        if directories.len() > first {
            self.hold(reader, at, first);
        }
        refused
    }

    /// Holds a directory for those in it that were found, the ones from `first` on.
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

/// What a child is, and whether what is below it is of interest.
fn judge(child: &str, below: Below) -> (Option<CgroupKind>, Option<Below>) {
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
        // Nested in a container of no pod: followed only where it looks like a kubelet's.
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

    fn look(walk: &mut CgroupWalk, full: bool) -> Vec<String> {
        let mut found = Vec::new();
        walk.look(&mut KernelFileReader::default(), full, |one| {
            found.push(one.path.to_string());
            true
        });
        found.sort();
        found
    }

    #[test]
    fn pods_and_containers_are_found_once_and_new_ones_at_the_next_look() {
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
        let first = look(&mut walk, false);
        let inner = format!("{docker}/kubelet/kubepods/pod{UID}");
        let container = format!("{pod}/{}", id(1));
        assert_eq!(first, [docker.clone(), inner.clone(), format!("{inner}/{}", id(3)), pod.clone(), container]);
        assert!(look(&mut walk, false).is_empty());
        assert!(look(&mut walk, true).is_empty());

        let new = format!("{pod}/{}", id(5));
        make(&new);
        assert_eq!(look(&mut walk, true), [new.as_str()]);
        fs::remove_dir(base.path().join(&new[1..])).unwrap();
        walk.forget(&new);
        assert!(look(&mut walk, false).is_empty());
        make(&new);
        assert_eq!(look(&mut walk, true), [new.as_str()], "the same path may come again");
    }

    #[test]
    fn a_directory_that_was_made_anew_between_two_looks_is_not_looked_into_through_the_old_one() {
        let base = tempfile::tempdir().unwrap();
        let pod = |n: u32| format!("/kubepods/burstable/pod{UID}{n}").replace("d11", "d");
        let make = |path: &str| fs::create_dir_all(base.path().join(&path[1..])).unwrap();
        make(&format!("{}/{}", pod(10), id(1)));
        let mut walk = CgroupWalk::new(&part(base.path()));
        assert_eq!(look(&mut walk, false), [pod(10), format!("{}/{}", pod(10), id(1))]);
        // As many of everything as before, one of them under its old name.
        fs::rename(base.path().join("kubepods/burstable"), base.path().join("old")).unwrap();
        make(&format!("{}/{}", pod(10), id(2)));
        assert_eq!(look(&mut walk, false), [pod(10), format!("{}/{}", pod(10), id(2))]);
        fs::remove_dir_all(base.path().join("kubepods")).unwrap();
        make(&pod(12));
        assert_eq!(look(&mut walk, false), [pod(12)]);
        make(&format!("{}/{}", pod(12), id(3)));
        assert_eq!(look(&mut walk, false), [format!("{}/{}", pod(12), id(3))]);
        assert!(walk.directories.iter().filter(|directory| directory.held.is_some()).count() >= 3);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_found_later() {
        let base = tempfile::tempdir().unwrap();
        for n in 0..5 {
            fs::create_dir_all(base.path().join("docker").join(id(n))).unwrap();
        }
        let mut walk = CgroupWalk::new(&part(base.path()));
        let mut room = 2;
        let mut keep = |_| {
            let kept = room > 0;
            room -= i32::from(kept);
            kept
        };
        assert_eq!(walk.look(&mut KernelFileReader::default(), true, &mut keep), 3);
        assert_eq!(walk.look(&mut KernelFileReader::default(), true, &mut keep), 3, "counted, not added up");
        assert_eq!(look(&mut walk, true).len(), 3);
        assert_eq!(walk.look(&mut KernelFileReader::default(), true, &mut keep), 0);
    }
}
