//! How the cgroup hierarchies are laid out under a root.

use crate::kernel_file::KernelFileReader;
use crate::procfs::{host_file, process};
use crate::roots::{HostRoots, part};
use model::host::CgroupVersion;
use std::path::PathBuf;
use wire::cgroup_file::fields;
use wire::proc_file::{mountinfo, unescape};

/// The root has no cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("looked for cgroups in {root} and found neither cgroup.controllers (v2) nor a controller's directory (v1)")]
pub struct NoCgroups {
    /// The root.
    pub root: PathBuf,
}

/// The layout of the cgroup trees. Paths have no slash at their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLayout {
    /// The version, or versions, that are mounted.
    pub version: CgroupVersion,
    /// Which tree has which controller.
    pub trees: CgroupTrees,
}

/// The cgroup trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupTrees {
    /// v2: one tree for all controllers.
    One(Vec<u8>),
    /// v1: one tree for each controller.
    Many(Box<ControllerTrees>),
}

/// A group of counters, as v1 divides them into controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupController {
    /// Limits and throttling.
    Cpu,
    /// CPU time.
    CpuAccounting,
    /// Memory.
    Memory,
    /// Block I/O.
    BlockIo,
    /// Tasks.
    Pids,
    /// Pressure, which only v2 has.
    Pressure,
}

/// v1: the tree of each controller, if it is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerTrees {
    /// Limits and throttling.
    pub cpu: Option<Vec<u8>>,
    /// CPU time.
    pub cpuacct: Option<Vec<u8>>,
    /// Memory.
    pub memory: Option<Vec<u8>>,
    /// Block I/O.
    pub blkio: Option<Vec<u8>>,
    /// Tasks.
    pub pids: Option<Vec<u8>>,
    /// The v2 tree alongside them, which has pressure.
    pub unified: Option<Vec<u8>>,
}

impl CgroupLayout {
    /// Detects the layout under the root.
    ///
    /// # Errors
    /// [`NoCgroups`].
    pub fn detect(reader: &mut KernelFileReader, roots: &HostRoots) -> Result<CgroupLayout, NoCgroups> {
        let root = part(&roots.cgroup);
        let v2 = |reader: &mut KernelFileReader, tree: &[u8]| reader.open(&[tree, b"/cgroup.controllers"]).is_ok();
        if v2(reader, &root) {
            return Ok(CgroupLayout { version: CgroupVersion::V2, trees: CgroupTrees::One(root) });
        }
        let unified = [&root[..], b"/unified"].concat();
        let unified = v2(reader, &unified).then_some(unified);
        let mut found = ControllerTrees::default();
        for (name, tree) in controllers(reader, &root) {
            if let Some(slot) = found.slot(&name) {
                *slot = Some(tree);
            }
        }
        found.unified = unified;
        let version = match (found.any().is_some(), &found.unified) {
            (true, Some(_)) => CgroupVersion::Hybrid,
            (true, None) => CgroupVersion::V1,
            (false, Some(tree)) => {
                return Ok(CgroupLayout { version: CgroupVersion::V2, trees: CgroupTrees::One(tree.clone()) });
            }
            (false, None) => return Err(NoCgroups { root: roots.cgroup.clone() }),
        };
        Ok(CgroupLayout { version, trees: CgroupTrees::Many(Box::new(found)) })
    }

    /// The tree with this controller, if it is mounted.
    #[must_use]
    pub fn tree(&self, controller: CgroupController) -> Option<&[u8]> {
        let tree = match (&self.trees, controller) {
            (CgroupTrees::One(tree), _) => return Some(tree),
            (CgroupTrees::Many(found), CgroupController::Cpu) => &found.cpu,
            (CgroupTrees::Many(found), CgroupController::CpuAccounting) => &found.cpuacct,
            (CgroupTrees::Many(found), CgroupController::Memory) => &found.memory,
            (CgroupTrees::Many(found), CgroupController::BlockIo) => &found.blkio,
            (CgroupTrees::Many(found), CgroupController::Pids) => &found.pids,
            (CgroupTrees::Many(found), CgroupController::Pressure) => &found.unified,
        };
        tree.as_deref()
    }

    /// The tree that is searched for pods, containers and their processes.
    #[must_use]
    pub fn walked(&self) -> &[u8] {
        match &self.trees {
            CgroupTrees::One(tree) => tree,
            CgroupTrees::Many(controllers) => controllers.any().unwrap_or_default(),
        }
    }
}

impl ControllerTrees {
    /// The tree to search. Memory comes first: every runtime joins it, and the kubelet itself uses it.
    fn any(&self) -> Option<&[u8]> {
        [&self.memory, &self.cpuacct, &self.cpu, &self.pids, &self.blkio]
            .into_iter()
            .flatten()
            .next()
            .map(Vec::as_slice)
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut Option<Vec<u8>>> {
        match name {
            b"cpu" => Some(&mut self.cpu),
            b"cpuacct" => Some(&mut self.cpuacct),
            b"memory" => Some(&mut self.memory),
            b"blkio" => Some(&mut self.blkio),
            b"pids" => Some(&mut self.pids),
            _ => None,
        }
    }
}

/// Controllers and their trees: directories such as `memory` or `cpu,cpuacct`. The symlinks `cpu -> cpu,cpuacct`, which
/// usually exist too, are not needed.
fn controllers(reader: &mut KernelFileReader, root: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = Vec::new();
    // A root that cannot be listed gives no controllers: the caller reports that.
    let _ = reader.subdirectories(&[root, b"/"], |name| names.push(name.to_vec()));
    names.retain(|name| reader.open(&[root, b"/", name, b"/cgroup.procs"]).is_ok());
    let tree = |name: &[u8]| [root, b"/", name].concat();
    names.iter().flat_map(|name| name.split(|b| *b == b',').map(|one| (one.to_vec(), tree(name)))).collect()
}

/// How the agent's cgroup namespace changes what it sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupNamespace {
    /// Whether the agent's namespace differs from the host's; `None` if the kernel does not show it.
    pub private: Option<bool>,
    /// Whether the mounted hierarchy begins above the root of the agent's namespace. Then paths in `/proc/<pid>/cgroup`
    /// differ from paths in the hierarchy, and the agent finds processes by walking `cgroup.procs`.
    pub mounted_above: bool,
}

/// Inode number of the first cgroup namespace, fixed in the kernel (`PROC_CGROUP_INIT_INO`, include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFB;

impl CgroupNamespace {
    /// Reads the agent's own namespace and how the hierarchy is mounted.
    pub fn detect(reader: &mut KernelFileReader, roots: &HostRoots) -> CgroupNamespace {
        let proc = part(&roots.procfs);
        let ours = process::namespace(reader, &proc, b"self", "cgroup").ok();
        let cgroup = part(&roots.cgroup);
        let mut mounted_above = false;
        if let Ok(text) = reader.read(&[&proc, b"/self/mountinfo"]) {
            // The lines before a torn line are valid.
            let _ = mountinfo(text, |mount| {
                let here =
                    unescape(mount.point).strip_prefix(&cgroup[..]).is_some_and(|r| r.is_empty() || r[0] == b'/');
                let kind = matches!(mount.kind, b"cgroup" | b"cgroup2");
                mounted_above |= here && kind && (mount.root == b"/.." || mount.root.starts_with(b"/../"));
            });
        }
        CgroupNamespace { private: ours.map(|number| number != FIRST_NAMESPACE), mounted_above }
    }
}

/// Major numbers of this machine's stacked block devices; empty if `/proc/devices` cannot be read.
pub fn stacked_majors(reader: &mut KernelFileReader, roots: &HostRoots) -> Vec<u32> {
    let text = reader.read(&[&part(&roots.procfs), b"/devices"]).unwrap_or_default();
    host_file::stacked_majors(text).unwrap_or_default()
}

/// The release of the kernel.
pub fn kernel_release(reader: &mut KernelFileReader, roots: &HostRoots) -> String {
    let text = reader.read(&[&part(&roots.procfs), b"/sys/kernel/osrelease"]).unwrap_or_default();
    String::from_utf8_lossy(fields(text).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn roots(base: &Path) -> HostRoots {
        HostRoots { procfs: base.join("proc"), cgroup: base.join("cgroup"), sysfs: base.join("sys") }
    }

    fn tree(files: &[&str]) -> (tempfile::TempDir, HostRoots) {
        let base = tempfile::tempdir().unwrap();
        for file in files {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let roots = roots(base.path());
        (base, roots)
    }

    #[test]
    fn every_cgroup_layout_is_recognised() {
        let v1 = ["cgroup/cpu,cpuacct/cgroup.procs", "cgroup/memory/cgroup.procs", "cgroup/systemd/cgroup.procs"];
        let unified = "cgroup/unified/cgroup.controllers";
        for (files, version, walked) in [
            (vec!["cgroup/cgroup.controllers"], CgroupVersion::V2, "cgroup"),
            (v1.to_vec(), CgroupVersion::V1, "cgroup/memory"),
            ([&v1[..], &[unified]].concat(), CgroupVersion::Hybrid, "cgroup/memory"),
            (vec!["cgroup/systemd/cgroup.procs", unified], CgroupVersion::V2, "cgroup/unified"),
        ] {
            let (base, roots) = tree(&files);
            let layout = CgroupLayout::detect(&mut KernelFileReader::default(), &roots).unwrap();
            assert_eq!(layout.version, version, "{files:?}");
            assert_eq!(layout.walked(), part(&base.path().join(walked)));
        }
        let (_base, roots) = tree(&["cgroup/readme/x"]);
        let error = CgroupLayout::detect(&mut KernelFileReader::default(), &roots).unwrap_err();
        assert!(error.to_string().contains(roots.cgroup.to_str().unwrap()));
    }

    #[test]
    fn joined_controllers_share_a_tree() {
        let (base, roots) = tree(&["cgroup/cpu,cpuacct/cgroup.procs"]);
        let CgroupTrees::Many(found) = CgroupLayout::detect(&mut KernelFileReader::default(), &roots).unwrap().trees
        else {
            panic!()
        };
        assert_eq!(found.cpu, Some(part(&base.path().join("cgroup/cpu,cpuacct"))));
        assert_eq!((&found.cpu, &found.memory), (&found.cpuacct, &None));
    }

    #[test]
    fn a_hierarchy_mounted_above_the_agents_namespace_is_detected() {
        let (base, roots) = tree(&["proc/self/ns/x"]);
        std::os::unix::fs::symlink("cgroup:[4026532000]", base.path().join("proc/self/ns/cgroup")).unwrap();
        let at = roots.cgroup.to_str().unwrap();
        for (root, point, above) in [
            ("/", at.to_string(), false),
            ("/../..", at.to_string(), true),
            ("/..", format!("{at}/memory"), true),
            ("/..", format!("{at}x"), false),
        ] {
            fs::write(base.path().join("proc/self/mountinfo"), format!("1 2 0:3 {root} {point} rw - cgroup2 x rw\n"))
                .unwrap();
            let namespace = CgroupNamespace::detect(&mut KernelFileReader::default(), &roots);
            assert_eq!(namespace, CgroupNamespace { private: Some(true), mounted_above: above }, "{root} {point}");
        }
        assert_eq!(
            CgroupNamespace::detect(&mut KernelFileReader::default(), &super::tests::roots(Path::new("/none"))),
            CgroupNamespace::default()
        );
    }
}
