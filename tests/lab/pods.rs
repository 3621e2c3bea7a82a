//! Pods without a kubelet: real cgroups with real processes, under the paths that kubelet's cgroupfs driver uses. Needs
//! root. The UID of each pod begins with [`MARK`], so that the next run finds and removes what a killed run has left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The prefix of the UID of every pod that is made here.
pub const MARK: &str = "f007f007-0000-4000-8000-";

/// The cgroup v1 controllers in which a container gets a cgroup. `cpuset` is left out because its new groups accept no
/// process.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "memory", "blkio", "pids", "freezer"];

/// One container: its cgroup and its first process.
#[derive(Debug)]
pub struct FakeContainer {
    /// The container id, 64 hexadecimal digits.
    pub id: String,
    /// The path of the cgroup below the root of each hierarchy.
    pub path: String,
    /// The container's first process.
    pub pid: u32,
}

impl FakeContainer {
    /// Names the container as kubelet does, by an entry `<pod>_<namespace>_<container>-<id>.log` in the folder of log
    /// links.
    ///
    /// # Errors
    /// If the entry cannot be made.
    pub fn named(&self, folder: &Path, (pod, namespace, container): (&str, &str, &str)) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        // The agent reads only the name of the entry, so it need not be a link.
        fs::write(folder.join(format!("{pod}_{namespace}_{container}-{}.log", self.id)), "")
    }
}

/// One pod.
#[derive(Debug)]
pub struct FakePod {
    /// The UID, which begins with [`MARK`].
    pub uid: String,
    /// The containers, in the order of their start.
    pub containers: Vec<FakeContainer>,
}

/// Pods with their processes. Dropping it kills the processes and removes the cgroups.
#[derive(Debug)]
pub struct Pods {
    hierarchies: Vec<PathBuf>,
    /// The pods.
    pub pods: Vec<FakePod>,
    leaders: Vec<Child>,
}

impl Pods {
    /// Finds the hierarchies under `cgroup_root` and removes the pods that an earlier run has left.
    ///
    /// # Errors
    /// If there is no cgroup hierarchy.
    pub fn prepare(cgroup_root: &Path) -> io::Result<Pods> {
        let mut hierarchies: Vec<PathBuf> = CONTROLLERS
            .iter()
            .map(|name| cgroup_root.join(name))
            .filter(|dir| dir.join("cgroup.procs").exists())
            .collect();
        if hierarchies.is_empty() && cgroup_root.join("cgroup.controllers").exists() {
            hierarchies.push(cgroup_root.to_path_buf());
        }
        if hierarchies.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no cgroup hierarchy under {}", cgroup_root.display()),
            ));
        }
        let pods = Pods { hierarchies, pods: Vec::new(), leaders: Vec::new() };
        pods.remove_leftovers();
        Ok(pods)
    }

    /// The UID of the pod with this number.
    #[must_use]
    pub fn uid(number: u32) -> String {
        format!("{MARK}{number:012x}")
    }

    /// Makes pod `number` with `containers` containers in a new network namespace. Each container runs `command`
    /// (program and arguments), which must not end by itself.
    ///
    /// # Errors
    /// If a cgroup or process cannot be made.
    pub fn add(&mut self, number: u32, containers: u32, command: &[&str]) -> io::Result<&FakePod> {
        let uid = Pods::uid(number);
        let quoted: Vec<String> = command.iter().map(|word| format!("'{word}'")).collect();
        let quoted = quoted.join(" ");
        // The shell starts the other containers inside the new namespace, prints their process ids, and becomes the first
        // container.
        let script = format!(
            "i=1; while [ $i -lt {containers} ]; do {quoted} >/dev/null & echo $!; i=$((i+1)); done; echo done; exec {quoted} >/dev/null"
        );
        let mut leader = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut pids = vec![leader.id()];
        if let Some(output) = leader.stdout.take() {
            let lines = io::BufRead::lines(io::BufReader::new(output));
            for line in lines {
                let line = line?;
                if line == "done" {
                    break;
                }
                pids.push(line.trim().parse().map_err(io::Error::other)?);
            }
        }
        self.leaders.push(leader);
        let mut pod = FakePod { uid: uid.clone(), containers: Vec::new() };
        for (index, pid) in pids.into_iter().enumerate() {
            // As with real runtimes, no two ids begin with the same digits.
            let first = (u64::from(number) << 16 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let id = format!("{first:016x}{number:024x}{index:024x}");
            let path = format!("/kubepods/burstable/pod{uid}/{id}");
            for hierarchy in &self.hierarchies {
                let group = hierarchy.join(&path[1..]);
                fs::create_dir_all(&group)?;
                fs::write(group.join("cgroup.procs"), pid.to_string())?;
            }
            pod.containers.push(FakeContainer { id, path, pid });
        }
        self.pods.push(pod);
        self.pods.last().ok_or_else(|| io::Error::other("the pod that was just added is gone"))
    }

    /// Kills and removes the last pod; `false` if there is none.
    pub fn remove_last(&mut self) -> bool {
        let (Some(pod), Some(mut leader)) = (self.pods.pop(), self.leaders.pop()) else { return false };
        self.remove(&pod.uid);
        let _ = leader.wait();
        true
    }

    fn remove_leftovers(&self) {
        for hierarchy in &self.hierarchies {
            let Ok(entries) = fs::read_dir(hierarchy.join("kubepods/burstable")) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if let Some(uid) = name.strip_prefix("pod").filter(|uid| uid.starts_with(MARK)) {
                    self.remove(uid);
                }
            }
        }
    }

    fn remove(&self, uid: &str) {
        let deadline = Instant::now() + Duration::from_secs(5);
        for hierarchy in &self.hierarchies {
            let pod = hierarchy.join("kubepods/burstable").join(format!("pod{uid}"));
            let containers: Vec<PathBuf> =
                fs::read_dir(&pod).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
            for group in containers.iter().chain([&pod]) {
                kill_all(group);
                // A killed process stays in its cgroup until it has exited.
                while fs::remove_dir(group).is_err() && group.exists() && Instant::now() < deadline {
                    kill_all(group);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        while self.remove_last() {}
        for hierarchy in &self.hierarchies {
            // Removes empty directories only, so the directories of a real kubelet stay.
            let _ = fs::remove_dir(hierarchy.join("kubepods/burstable"));
            let _ = fs::remove_dir(hierarchy.join("kubepods"));
        }
    }
}

fn kill_all(group: &Path) {
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
