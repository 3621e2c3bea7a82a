//! Device delivery: writes the files through which a container gets its devices, variables and limits.
//!
//! ```text
//!   ContainerLimits ──edits──▶ CDI spec  <cdi>/gpu-steward.io-gpu-<ticket>.json   read by the container runtime
//!                   ├────────▶ limits    <state>/pods/<uid>/<container>/limits.json   mounted read-only
//!                   └────────▶ limiter   HAMi-core's library and its files, if the agent has the library
//! ```
//!
//! A container that got its devices at `Allocate`, from an earlier release, mounts its files from the folder of its
//! ticket. The agent writes the files there again when the container starts again.
//!
//! `<state>/started` has one line for each pod that has started: the agent answered a start of it.
//!
//! Specs and limits are written to a hidden or unnamed file in the same folder and then renamed or linked, because
//! runtimes react to renames and must never read an incomplete file. All files of a pod are in one folder, so that
//! they are removed together.
//!
//! If a file cannot be written, the caller (`agent/sharing/container_files.rs`) refuses the start with the event
//! `NotDelivered`, and the kubelet tries again.
//!
//! What must never happen here: a file is written for a container whose claim is not known; a path is made from a name
//! that was not checked; a spec of another vendor is changed or removed.

mod file;
mod started_pods;
mod trash;
mod limiter;
mod edits;
mod tickets;
mod pod_files;

pub use edits::{HostDeviceNode, NodeEdits};
pub use file::DeliveryError;
pub(crate) use file::rename_through;
pub use limiter::LimiterLibrary;
pub use pod_files::PodFileSize;
pub use started_pods::StartedPodsFile;
pub use tickets::TicketFolders;
pub use trash::{EmptiedTrash, Trash};

use file::{failed, link_spec, make_folder, put, put_spec, restrict};

use model::id::{PodUid, Ticket};
use model::limits::ContainerLimits;
use model::unit::Bytes;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::decode_error::DecodeError;
use wire::{cdi, limits, ticket};

/// Maximum number of entries of a folder in one sweep: more than ten times the number on the largest node.
const MAX_ENTRIES: usize = 65_536;

/// Maximum number of folders of one pod: far more containers than any pod has.
const MAX_CONTAINERS: usize = 256;

/// Writes the files of containers, for one node.
#[derive(Debug)]
pub struct DeviceDelivery {
    state: PathBuf,
    pods: PathBuf,
    cdi: PathBuf,
    trash: Trash,
    node_edits: NodeEdits,
}

impl DeviceDelivery {
    /// A delivery that keeps the files of pods under `state` and the specs in `cdi`; missing folders are made.
    ///
    /// # Errors
    /// If a folder cannot be made or written to: the agent reports this at its start, not at the first pod.
    pub fn new(state: &Path, cdi: &Path, node_edits: NodeEdits) -> Result<DeviceDelivery, DeliveryError> {
        let pods = state.join(limits::PODS);
        make_folder(state)?;
        restrict_to_agent(state)?;
        make_folder(&pods)?;
        let trash = Trash::new(state)?;
        let delivery = DeviceDelivery { state: state.to_owned(), pods, cdi: cdi.to_owned(), trash, node_edits };
        fs::DirBuilder::new().recursive(true).mode(0o755).create(cdi).map_err(failed("make folder", cdi))?;
        let probe = cdi.join(".gpu-steward-probe");
        fs::write(&probe, b"").map_err(failed("write into the folder of CDI specs:", &probe))?;
        fs::remove_file(&probe).map_err(failed("remove", &probe))?;
        Ok(delivery)
    }

    /// A delivery into the same folders with another [`NodeEdits`].
    pub fn with(&self, node_edits: NodeEdits) -> DeviceDelivery {
        let (state, pods, cdi) = (self.state.clone(), self.pods.clone(), self.cdi.clone());
        DeviceDelivery { state, pods, cdi, trash: self.trash.clone(), node_edits }
    }

    /// Writes the files of a container and the spec of its `ticket`. A second call writes the same files.
    ///
    /// # Errors
    /// If a file cannot be written. The runtime never reads an unfinished file.
    pub fn deliver(&self, ticket: &Ticket, container_limits: &ContainerLimits) -> Result<(), DeliveryError> {
        self.spec(ticket, container_limits).and_then(|(path, text)| put_spec(&path, text.as_bytes()))?;
        crate::failpoint!("spec-renamed");
        Ok(())
    }

    /// Delivers to several containers, and returns the tickets that succeeded. For each file that is renamed in the
    /// folder, the runtime reads all specs of the folder again. So only the last spec is renamed, and the runtime
    /// finds the others when it reads the folder.
    #[must_use]
    pub fn deliver_all<'a>(&self, all: &'a [(Ticket, ContainerLimits)]) -> Vec<&'a Ticket> {
        let Some((last, others)) = all.split_last() else { return Vec::new() };
        let link_spec = |(ticket, container_limits)| {
            self.spec(ticket, container_limits).and_then(|(path, text)| link_spec(&path, text.as_bytes()))
        };
        let mut linked: Vec<_> =
            others.iter().filter(|(ticket, container_limits)| link_spec((ticket, container_limits)).is_ok()).collect();
        linked.push(last);
        // The runtime finds the others only when a later spec is renamed.
        while let Some((ticket, container_limits)) = linked.last()
            && self.deliver(ticket, container_limits).is_err()
        {
            linked.pop();
        }
        linked.into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// Writes all files except the spec; returns the path and the text of the spec.
    fn spec(&self, ticket: &Ticket, container_limits: &ContainerLimits) -> Result<(PathBuf, String), DeliveryError> {
        let folder = self.folder(container_limits);
        let file = self.fill(&folder, container_limits)?;
        crate::failpoint!("limits-renamed");
        let path = self.cdi.join(ticket::file_name(ticket));
        self.check_no_other_spec(ticket)?;
        let edits = self.node_edits.edits(container_limits, &file);
        let spec = cdi::CdiSpec::of_device(ticket::KIND, ticket.as_str(), edits, self.node_edits.carried);
        let text = cdi::encode(&spec, self.node_edits.newest).map_err(cannot_encode(&path))?;
        Ok((path, text))
    }

    /// Fills `folder` for a container that got its devices at `Allocate`, from an earlier release, and mounts its
    /// files from there.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn deliver_early(&self, folder: &Path, container_limits: &ContainerLimits) -> Result<(), DeliveryError> {
        self.fill(&self.folder(container_limits), container_limits)?;
        self.fill(folder, container_limits).map(drop)
    }

    /// Writes the files of one container into a folder of the state directory; returns the path of the limits file.
    fn fill(&self, folder: &Path, container_limits: &ContainerLimits) -> Result<PathBuf, DeliveryError> {
        make_folder(folder)?;
        let file = folder.join(limits::FILE_NAME);
        put(&file, limits::encode(container_limits).map_err(cannot_encode(&file))?.as_bytes())?;
        if let Some(limiter) = self.node_edits.limiter_for(container_limits) {
            limiter.fill(folder, &self.node_edits.limits(container_limits), container_limits.holder.pod.as_str())?;
        }
        Ok(file)
    }

    /// The size of the files that this pod has written to the writable folders of its containers and its tickets, up
    /// to `limit`. Calls `pause` after every 1,024 entries.
    #[must_use]
    pub fn written(
        &self,
        pod: &PodUid,
        (tickets, own): (&TicketFolders, &[Ticket]),
        limit: Bytes,
        pause: &mut dyn FnMut(),
    ) -> PodFileSize {
        let folders = self.containers(pod).chain(own.iter().map(|ticket| tickets.folder(ticket)));
        pod_files::measure(folders, limit, pause)
    }

    /// The folders of the containers of a pod.
    fn containers(&self, pod: &PodUid) -> impl Iterator<Item = PathBuf> {
        let containers = fs::read_dir(self.pods.join(pod.as_str())).into_iter().flatten().flatten();
        containers.take(MAX_CONTAINERS).map(|entry| entry.path())
    }

    /// Checks that no other spec has the device: a runtime refuses a device that is in two files of the folder, and
    /// its error names neither file.
    fn check_no_other_spec(&self, ticket: &Ticket) -> Result<(), DeliveryError> {
        for entry in fs::read_dir(&self.cdi).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let ours = name.to_str().is_none_or(|name| name.starts_with('.') || ticket::of_file_name(name).is_some());
            if ours || !path.extension().is_some_and(|end| end == "json" || end == "yaml") {
                continue;
            }
            let mut bytes = Vec::new();
            let read = fs::File::open(&path).and_then(|file| file.take(cdi::MAX_BYTES as u64).read_to_end(&mut bytes));
            let name = ticket.as_str().as_bytes();
            if read.is_ok() && bytes.windows(name.len()).any(|part| part == name) {
                let why = format!("it has the device {ticket} too, and the runtime would refuse both; remove it");
                return Err(failed("write a CDI spec beside", &path)(io::Error::other(why)));
            }
        }
        Ok(())
    }

    /// The folders of pods that are gone; they stay here until they are removed.
    #[must_use]
    pub fn trash(&self) -> &Trash {
        &self.trash
    }

    /// Moves the folders of pods that are not in `pods` into the trash. Removes specs whose ticket is not in `tickets`,
    /// and versions of the limiter that no folder uses. Returns the number of pods and of specs.
    pub fn sweep(&self, pods: &BTreeSet<PodUid>, tickets: &BTreeSet<Ticket>) -> (usize, usize) {
        let mut removed = (0, 0);
        for entry in fs::read_dir(&self.pods).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let gone = entry
                .file_name()
                .to_str()
                .and_then(|name| PodUid::parse(name).ok())
                .is_some_and(|uid| !pods.contains(&uid));
            if gone && self.trash.take(&entry.path()).is_ok() {
                removed.0 += 1;
            }
        }
        for entry in fs::read_dir(&self.cdi).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let gone = entry
                .file_name()
                .to_str()
                .and_then(ticket::of_file_name)
                .is_some_and(|ticket| !tickets.contains(&ticket));
            if gone && fs::remove_file(entry.path()).is_ok() {
                removed.1 += 1;
            }
        }
        self.sweep_versions();
        removed
    }

    /// Moves the folders that containers of these pods can write to into the trash, and leaves their limits files. The pods are
    /// gone, so what their containers write is not counted. Returns the number of folders.
    pub fn strip(&self, pods: &BTreeSet<PodUid>) -> usize {
        let containers = pods.iter().flat_map(|pod| self.containers(pod));
        let writable = containers.flat_map(|container| limiter::WRITABLE.map(|name| container.join(name)));
        writable.filter(|folder| folder.is_dir() && self.trash.take(folder).is_ok()).count()
    }

    /// Removes versions of the limiter that no container uses. A folder in the trash still uses its version.
    pub fn sweep_versions(&self) {
        limiter::sweep(&self.state);
    }

    fn folder(&self, container_limits: &ContainerLimits) -> PathBuf {
        // A UID was checked when it was parsed. The API server requires a container's name to be a DNS label, but the
        // agent does not rely on this: any other name is written in hexadecimal digits.
        let name = &*container_limits.holder.container;
        let plain = !name.is_empty()
            && name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        let name = if plain {
            Arc::clone(&container_limits.holder.container)
        } else {
            let digits: String = name.bytes().take(100).map(|b| format!("{b:02x}")).collect();
            format!("0x{digits}").into()
        };
        self.pods.join(container_limits.holder.pod.as_str()).join(&*name)
    }
}

/// Keeps other users of the host out of the state directory: containers write to folders below it, and a file of a
/// container, such as a program with the setuid bit, must not be usable by a user of the host.
fn restrict_to_agent(state: &Path) -> Result<(), DeliveryError> {
    let metadata = fs::metadata(state).map_err(failed("read the metadata of", state))?;
    if state.parent().is_none() || metadata.permissions().mode() & 0o1000 != 0 {
        let why = "it is open to all users, and the agent needs a directory that no other user can enter";
        return Err(failed("use as the state directory", state)(io::Error::other(why)));
    }
    for folder in [state.to_owned(), state.join(limits::PODS), state.join("tickets"), state.join("limiter")] {
        if folder.exists() {
            restrict(&folder)?;
        }
    }
    // Containers from before decision 0110 share this lock folder.
    let shared = state.join("limiter/lock");
    if shared.exists() {
        let sticky = fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777));
        sticky.map_err(failed("make sticky", &shared))?;
    }
    Ok(())
}

fn cannot_encode(path: &Path) -> impl FnOnce(DecodeError) -> DeliveryError {
    let path = path.to_owned();
    move |fault: DecodeError| failed("make the text of", &path)(io::Error::other(fault.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{ContainerKey, GpuUuid, PodRef};
    use model::limits::DeviceLimits;
    use model::unit::CorePercent;

    fn uid(n: u8) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    fn container_limits(n: u8, container: &str) -> ContainerLimits {
        let device = |gpu: u8, mib: u64, cores| DeviceLimits {
            uuid: GpuUuid::parse(&format!("GPU-{gpu}")).unwrap(),
            index: u32::from(gpu),
            model: "NVIDIA H100".into(),
            memory: Bytes(mib << 20),
            unlimited: false,
            cores,
        };
        ContainerLimits {
            holder: ContainerKey { pod: uid(n), container: container.into() },
            pod: PodRef { namespace: "ml".into(), name: "train".into() },
            devices: vec![device(1, 3000, Some(CorePercent(30))), device(0, 2000, None)],
            priority: None,
        }
    }

    fn node_edits() -> NodeEdits {
        let mut node_edits = NodeEdits::default();
        for minor in 0..2 {
            let node = HostDeviceNode { path: format!("/dev/nvidia{minor}"), host: "/dev/null".into() };
            node_edits.nodes.insert(GpuUuid::parse(&format!("GPU-{minor}")).unwrap(), vec![node]);
        }
        node_edits
    }

    fn delivery(folder: &Path) -> DeviceDelivery {
        DeviceDelivery::new(&folder.join("state"), &folder.join("cdi"), node_edits()).unwrap()
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Counts the inotify events on which the CDI library of container runtimes acts: a rename, a removal and a
    /// written spec. The library ignores a new name.
    #[test]
    fn many_specs_cause_one_rename_after_all_are_written() {
        use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        let specs = folder.path().join("cdi");
        let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
        let watched = WatchFlags::MOVED_FROM | WatchFlags::DELETE | WatchFlags::MODIFY;
        inotify::add_watch(&watch, &specs, watched).unwrap();
        let renames = || {
            let (mut buffer, mut renamed) = ([std::mem::MaybeUninit::uninit(); 4096], 0);
            let mut reader = Reader::new(&watch, &mut buffer);
            while let Ok(event) = reader.next() {
                let name = event.file_name().unwrap().to_str().unwrap().to_owned();
                match event.events() {
                    ReadFlags::MODIFY => assert!(!name.ends_with(".json"), "{name}"),
                    ReadFlags::MOVED_FROM | ReadFlags::DELETE => renamed += 1,
                    other => panic!("{other:?}"),
                }
            }
            renamed
        };
        let all: Vec<(Ticket, ContainerLimits)> =
            (0..5).map(|n| (Ticket::of_random([n; 16]), container_limits(n, "main"))).collect();
        let unnamed = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
        let once = rustix::fs::open(&specs, unnamed, rustix::fs::Mode::RUSR).is_ok();
        assert_eq!(delivery.deliver_all(&all).len(), 5);
        assert_eq!(renames(), if once { 1 } else { 5 });
        let files = names(&specs);
        assert_eq!(files, all.iter().map(|(ticket, _)| ticket::file_name(ticket)).collect());
        let modes = files.iter().map(|name| fs::metadata(specs.join(name)).unwrap().permissions().mode() & 0o777);
        assert_eq!(
            modes.collect::<BTreeSet<_>>(),
            BTreeSet::from([0o400]),
            "only root may read which pods have which devices"
        );
        // Specs that already exist are written again, and each of them is renamed.
        assert_eq!(delivery.deliver_all(&all[..2]).len(), 2);
        assert_eq!((renames(), names(&specs)), (2, files));
        // If the last spec cannot be written, the spec before it is renamed.
        let next = [5, 6, 7].map(|n| (Ticket::of_random([n; 16]), container_limits(n, "main")));
        fs::create_dir(specs.join(ticket::file_name(&next[2].0))).unwrap();
        assert_eq!(delivery.deliver_all(&next), [&next[0].0, &next[1].0]);
        assert!(renames() > 0);
        assert_eq!(delivery.deliver_all(&next[2..]), Vec::<&Ticket>::new());
        assert_eq!(delivery.deliver_all(&[]), Vec::<&Ticket>::new());
    }

    #[test]
    fn a_container_gets_its_devices_its_limits_and_all_limit_variables() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        let ticket = Ticket::of_random([7; 16]);
        for _ in 0..2 {
            delivery.deliver(&ticket, &container_limits(1, "main")).unwrap();
        }
        let file = folder.path().join("state/pods").join(uid(1).as_str()).join("main/limits.json");
        assert_eq!(limits::decode(&fs::read(&file).unwrap()).unwrap(), container_limits(1, "main"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(names(&folder.path().join("cdi")), BTreeSet::from([ticket::file_name(&ticket)]));
        let spec = cdi::decode(&fs::read(folder.path().join("cdi").join(ticket::file_name(&ticket))).unwrap()).unwrap();
        assert_eq!(spec.kind, ticket::KIND);
        let edits = &spec.device(ticket.as_str()).unwrap().container_edits;
        let nodes: Vec<&str> = edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia1", "/dev/nvidia0"], "in the order of the claim");
        assert_eq!(edits.mounts, [cdi::CdiMount::read_only(file.to_str().unwrap(), limits::PATH)]);
        for expect in [
            "NVIDIA_VISIBLE_DEVICES=void",
            "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
            "CUDA_DEVICE_MEMORY_LIMIT_1=2000m",
            "CUDA_DEVICE_MEMORY_LIMIT_15=2000m",
            "CUDA_DEVICE_MEMORY_LIMIT=2000m",
            "CUDA_DEVICE_SM_LIMIT_0=30",
            "CUDA_DEVICE_SM_LIMIT_1=0",
            "CUDA_DEVICE_SM_LIMIT=30",
        ] {
            assert!(edits.env.iter().any(|variable| variable == expect), "{expect} in {:?}", edits.env);
        }
    }

    #[test]
    fn the_agents_edits_override_those_of_the_hosts_spec() {
        let mut node_edits = node_edits();
        node_edits.common.env.push("NVIDIA_VISIBLE_DEVICES=all".into());
        node_edits.common.mounts.push(cdi::CdiMount::read_only("/tmp/loose", limits::PATH));
        let edits = node_edits.edits(&container_limits(1, "main"), Path::new("/limits"));
        let visible: Vec<&String> =
            edits.env.iter().filter(|variable| variable.starts_with("NVIDIA_VISIBLE")).collect();
        assert_eq!(visible, ["NVIDIA_VISIBLE_DEVICES=void"]);
        assert_eq!(edits.mounts, [cdi::CdiMount::read_only("/limits", limits::PATH)]);
    }

    #[test]
    fn each_device_brings_only_its_own_edits_of_the_hosts_spec() {
        let mut node_edits = node_edits();
        let node = |path: &str, host: &str| cdi::CdiDeviceNode {
            host_path: Some(host.into()),
            ..cdi::CdiDeviceNode::at(path)
        };
        for minor in 0..2 {
            let own = cdi::CdiEdits {
                device_nodes: vec![
                    node(&format!("/dev/nvidia{minor}"), &format!("/run/nvidia/driver/dev/nvidia{minor}")),
                    node(&format!("/dev/dri/card{minor}"), &format!("/dev/dri/card{minor}")),
                ],
                ..cdi::CdiEdits::default()
            };
            node_edits.own.insert(GpuUuid::parse(&format!("GPU-{minor}")).unwrap(), own);
        }
        node_edits.shared_nodes.push(HostDeviceNode { path: "/dev/nvidiactl".into(), host: "/dev/nvidiactl".into() });
        node_edits.common.device_nodes.push(node("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"));
        let mut one = container_limits(1, "main");
        one.devices.truncate(1);
        let edits = node_edits.edits(&one, Path::new("/limits"));
        let nodes: Vec<_> =
            edits.device_nodes.iter().map(|node| (node.path.as_str(), node.host_path.as_deref().unwrap())).collect();
        let expect = [
            ("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),
            ("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1"),
            ("/dev/dri/card1", "/dev/dri/card1"),
        ];
        assert_eq!(nodes, expect);
    }

    #[test]
    fn the_nvidia_runtime_gets_device_names_and_no_device_nodes() {
        let node_edits = NodeEdits { runtime_injects: true, ..node_edits() };
        let edits = node_edits.edits(&container_limits(1, "main"), Path::new("/limits"));
        assert!(edits.env.contains(&"NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-0".to_owned()));
        assert!(edits.device_nodes.is_empty());
    }

    #[test]
    fn a_sweep_removes_files_of_gone_pods_and_leaves_foreign_files() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        let (kept, gone) = (Ticket::of_random([1; 16]), Ticket::of_random([2; 16]));
        delivery.deliver(&kept, &container_limits(1, "main")).unwrap();
        delivery.deliver(&gone, &container_limits(2, "main")).unwrap();
        let strange = ["nvidia.json", "gpu-steward.io-gpu-.json", "gpu-steward.io-gpu-xyz.yaml"];
        for name in strange {
            fs::write(folder.path().join("cdi").join(name), "{}").unwrap();
        }
        fs::create_dir(folder.path().join("state/pods/lost+found")).unwrap();
        assert_eq!(delivery.sweep(&BTreeSet::from([uid(1)]), &BTreeSet::from([kept.clone()])), (1, 1));
        let mut left: BTreeSet<String> = strange.map(str::to_owned).into();
        left.insert(ticket::file_name(&kept));
        assert_eq!(names(&folder.path().join("cdi")), left);
        let pods = BTreeSet::from([uid(1).to_string(), "lost+found".to_owned()]);
        assert_eq!(names(&folder.path().join("state/pods")), pods);
    }

    /// The pod was deleted by force, and its container runs on.
    #[test]
    fn of_a_pod_that_runs_on_only_the_folders_that_it_can_write_to_are_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (state, source) = (folder.path().join("state"), folder.path().join("libvgpu.so"));
        fs::write(&source, b"\x7fELF").unwrap();
        let limiter = LimiterLibrary::keep(&state, &source).unwrap();
        let delivery = delivery(folder.path()).with(NodeEdits { limiter: Some(limiter), ..node_edits() });
        delivery.deliver(&Ticket::of_random([1; 16]), &container_limits(1, "main")).unwrap();
        let own = state.join(limits::PODS).join(uid(1).as_str()).join("main");
        let exist = || ["vgpu", "lock", "limits.json"].map(|name| own.join(name).exists());
        assert_eq!(exist(), [true; 3]);
        let pods = BTreeSet::from([uid(1), uid(2)]);
        assert_eq!((delivery.strip(&pods), exist()), (2, [false, false, true]));
        assert_eq!((delivery.strip(&pods), delivery.trash().is_empty()), (0, false));
        assert_eq!(delivery.sweep(&pods, &BTreeSet::new()), (0, 1));
        assert_eq!(exist(), [false, false, true]);
    }

    /// 20,000 nested folders, which a container may make: they would overflow the stack of a recursive removal.
    #[test]
    fn a_sweep_removes_deeply_nested_folders() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        delivery.deliver(&Ticket::of_random([1; 16]), &container_limits(1, "main")).unwrap();
        let pod = folder.path().join("state/pods").join(uid(1).as_str());
        trash::tests::nest(&pod.join("main"), 20_000);
        let swept = {
            let sweep = move || {
                let swept = delivery.sweep(&BTreeSet::new(), &BTreeSet::new());
                (swept, delivery.trash().empty(&mut || {}).left)
            };
            std::thread::Builder::new().stack_size(1 << 20).spawn(sweep).unwrap().join().unwrap()
        };
        assert_eq!(swept, ((1, 1), 0));
        assert!(!pod.exists());
    }

    /// Damage that a power loss may cause.
    #[test]
    fn a_damaged_limits_file_or_spec_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        let ticket = Ticket::of_random([1; 16]);
        delivery.deliver(&ticket, &container_limits(1, "main")).unwrap();
        let file = folder.path().join("state/pods").join(uid(1).as_str()).join("main/limits.json");
        let spec = folder.path().join("cdi").join(ticket::file_name(&ticket));
        let (whole, whole_spec) = (fs::read(&file).unwrap(), fs::read(&spec).unwrap());
        for left in [&[][..], &[0; 4096], &whole[..whole.len() / 2]] {
            for path in [&file, &spec] {
                fs::remove_file(path).unwrap();
                fs::write(path, left).unwrap();
            }
            assert!(limits::decode(&fs::read(&file).unwrap()).is_err());
            delivery.deliver(&ticket, &container_limits(1, "main")).unwrap();
            assert_eq!((fs::read(&file).unwrap(), fs::read(&spec).unwrap()), (whole.clone(), whole_spec.clone()));
        }
    }

    #[test]
    fn the_state_directory_is_closed_to_other_users_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        for name in ["pods/old/main/vgpu", "tickets", "limiter/lock"] {
            fs::create_dir_all(state.join(name)).unwrap();
        }
        for (name, mode) in
            [("", 0o755), ("pods", 0o711), ("tickets", 0o711), ("limiter", 0o711), ("limiter/lock", 0o777)]
        {
            fs::set_permissions(state.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let source = folder.path().join("libvgpu.so");
        fs::write(&source, b"\x7fELF").unwrap();
        let limiter = LimiterLibrary::keep(&state, &source).unwrap();
        let delivery = delivery(folder.path()).with(NodeEdits { limiter: Some(limiter), ..node_edits() });
        delivery.deliver(&Ticket::of_random([1; 16]), &container_limits(1, "main")).unwrap();
        let mode = |name: &str| fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o7777;
        for name in ["", "pods", "tickets", "limiter", "trash"] {
            assert_eq!(mode(name), 0o700, "{name:?}");
        }
        let own = format!("pods/{}/main", uid(1));
        assert_eq!(mode(&own), 0o700);
        // Every user of the container may write there, and no user can remove a file of another user.
        for name in ["limiter/lock".to_owned(), format!("{own}/vgpu"), format!("{own}/lock")] {
            assert_eq!(mode(&name), 0o1777, "{name}");
        }
        assert_eq!(mode(&format!("{own}/vgpu/{}.cache", uid(1))), 0o666);
    }

    /// The cache file is made once, and never through a link that a container has put there.
    #[test]
    fn a_cache_file_that_is_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (state, source) = (folder.path().join("state"), folder.path().join("libvgpu.so"));
        fs::write(&source, b"\x7fELF").unwrap();
        let limiter = LimiterLibrary::keep(&state, &source).unwrap();
        let delivery = delivery(folder.path()).with(NodeEdits { limiter: Some(limiter), ..node_edits() });
        let (ticket, target) = (Ticket::of_random([1; 16]), folder.path().join("target"));
        delivery.deliver(&ticket, &container_limits(1, "main")).unwrap();
        let own = state.join(limits::PODS).join(uid(1).as_str()).join("main/vgpu");
        let cache = own.join(format!("{}.cache", uid(1)));
        fs::remove_file(&cache).unwrap();
        std::os::unix::fs::symlink(&target, &cache).unwrap();
        delivery.deliver(&ticket, &container_limits(1, "main")).unwrap();
        assert!(!target.exists() && cache.is_symlink());
    }

    #[test]
    fn a_world_writable_state_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("shared");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o1777)).unwrap();
        let error =
            DeviceDelivery::new(&state, &folder.path().join("cdi"), NodeEdits::default()).unwrap_err().to_string();
        assert!(error.contains("open to all users"), "{error}");
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o7777, 0o1777, "the mode is unchanged");
    }

    /// A container keeps the version that it started with; the next container gets the newest version; an unused version is
    /// removed.
    #[test]
    fn only_new_containers_get_a_new_version_of_the_limiter() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (source, plain) = (folder.path().join("libvgpu.so"), delivery(folder.path()));
        let (one, two) = (Ticket::of_random([1; 16]), Ticket::of_random([2; 16]));
        let deliver = |text: &[u8], ticket: &Ticket, pod: u8| {
            fs::write(&source, text).unwrap();
            let limiter = LimiterLibrary::keep(&state, &source).unwrap();
            let delivery = plain.with(NodeEdits { limiter: Some(limiter), ..node_edits() });
            delivery.deliver(ticket, &container_limits(pod, "main")).unwrap();
            delivery
        };
        let own = |pod: u8, name: &str| state.join(limits::PODS).join(uid(pod).as_str()).join("main").join(name);
        let versions = || names(&state.join("limiter")).into_iter().filter(|name| name.starts_with("libvgpu")).count();
        deliver(b"\x7fELF one", &one, 1);
        deliver(b"\x7fELF one", &one, 1);
        assert_eq!(versions(), 1, "the same content is one version");
        let delivery = deliver(b"\x7fELF two", &two, 2);
        assert_eq!(fs::read(own(1, "libvgpu.so")).unwrap(), b"\x7fELF one");
        assert_eq!(fs::read(own(2, "libvgpu.so")).unwrap(), b"\x7fELF two");
        assert_eq!(fs::read(state.join("limiter/current")).unwrap(), b"\x7fELF two");
        let both = BTreeSet::from([one.clone(), two.clone()]);
        delivery.sweep(&BTreeSet::from([uid(1), uid(2)]), &both);
        assert_eq!(versions(), 2, "a version in use stays");
        delivery.sweep(&BTreeSet::from([uid(2)]), &both);
        assert_eq!(versions(), 2, "a folder in the trash still has it");
        delivery.trash().empty(&mut || {});
        delivery.sweep_versions();
        assert_eq!(versions(), 1);
        delivery.sweep(&BTreeSet::new(), &BTreeSet::new());
        delivery.trash().empty(&mut || {});
        delivery.sweep_versions();
        assert_eq!(versions(), 1, "the newest stays");
    }

    #[test]
    fn a_container_gets_the_limiter_with_its_limits_and_a_mig_instance_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let source = folder.path().join("libvgpu.so");
        fs::write(&source, b"\x7fELF").unwrap();
        let limiter = LimiterLibrary::keep(&state, &source).unwrap();
        let delivery = delivery(folder.path()).with(NodeEdits { limiter: Some(limiter.clone()), ..node_edits() });
        let ticket = Ticket::of_random([1; 16]);
        let mut limits = container_limits(1, "main");
        limits.priority = Some(0);
        delivery.deliver(&ticket, &limits).unwrap();
        let text = fs::read(folder.path().join("cdi").join(ticket::file_name(&ticket))).unwrap();
        let edits = cdi::decode(&text).unwrap().device(ticket.as_str()).unwrap().container_edits.clone();
        let mounts: Vec<(&str, bool)> = edits
            .mounts
            .iter()
            .map(|mount| (mount.container_path.as_str(), mount.options.contains(&"ro".to_owned())))
            .collect();
        let expect = [
            ("/usr/local/vgpu", false),
            ("/usr/local/vgpu/libvgpu.so", true),
            ("/etc/ld.so.preload", true),
            ("/overrideEnv", true),
            ("/tmp/vgpulock", false),
            ("/etc/gpu-steward/limits.json", true),
        ];
        assert_eq!(mounts, expect);
        for mount in edits.mounts.iter().filter(|mount| mount.options.contains(&"rw".to_owned())) {
            for option in ["nosuid", "nodev", "noexec"] {
                assert!(mount.options.contains(&option.to_owned()), "{mount:?}");
            }
            assert!(
                Path::new(&mount.host_path).starts_with(state.join(limits::PODS).join(uid(1).as_str()).join("main")),
                "its own"
            );
        }
        let own = state.join(limits::PODS).join(uid(1).as_str()).join("main");
        let set = fs::read_to_string(own.join("overrideEnv")).unwrap();
        assert!(set.contains("CUDA_DEVICE_MEMORY_LIMIT_0=3000m\n") && set.contains("CUDA_TASK_PRIORITY=0\n"), "{set}");
        assert!(!set.contains("NVIDIA_VISIBLE_DEVICES"), "{set}");
        // In both, so that a child process with a different value in its environment counts in the same file as the
        // others.
        let shared = format!("CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/{}.cache", uid(1));
        assert!(set.lines().any(|line| line == shared) && edits.env.contains(&shared), "{set}");
        assert_eq!(fs::read_to_string(state.join("limiter/ld.so.preload")).unwrap(), "/usr/local/vgpu/libvgpu.so\n");
        let mut partition = container_limits(2, "main");
        for device in &mut partition.devices {
            device.uuid = GpuUuid::parse("MIG-1").unwrap();
        }
        assert_eq!(
            NodeEdits { limiter: Some(limiter), ..node_edits() }
                .edits(&partition, Path::new("/x/limits.json"))
                .mounts
                .len(),
            1
        );
        for wrong in [&b"#!/bin/sh"[..], b""] {
            fs::write(&source, wrong).unwrap();
            assert!(LimiterLibrary::keep(&state, &source).unwrap_err().to_string().contains("shared library"));
        }
        assert!(LimiterLibrary::keep(&state, &folder.path().join("none")).is_err());
    }

    #[test]
    fn a_foreign_spec_with_the_same_ticket_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        let ticket = Ticket::of_random([1; 16]);
        let other = folder.path().join("cdi/other.yaml");
        fs::write(&other, format!("kind: gpu-steward.io/gpu\ndevices: [{{name: {ticket}}}]\n")).unwrap();
        let error = delivery.deliver(&ticket, &container_limits(1, "main")).unwrap_err().to_string();
        assert!(error.contains("other.yaml") && error.contains(ticket.as_str()), "{error}");
        assert!(!folder.path().join("cdi").join(ticket::file_name(&ticket)).exists());
        delivery.deliver(&Ticket::of_random([2; 16]), &container_limits(1, "main")).unwrap();
    }

    #[test]
    fn an_invalid_container_name_cannot_leave_the_folder_of_the_pod() {
        let folder = tempfile::tempdir().unwrap();
        let delivery = delivery(folder.path());
        for name in ["../../../escape", "", "a/b", "\u{fc}"] {
            let made = delivery.folder(&container_limits(1, name));
            let pod = folder.path().join("state/pods").join(uid(1).as_str());
            assert_eq!(made.parent().unwrap(), pod, "{name:?}");
            assert!(!made.to_str().unwrap().contains(".."), "{made:?}");
        }
    }

    #[test]
    fn an_unwritable_folder_is_an_error_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cdi");
        fs::write(&file, "").unwrap();
        let error = DeviceDelivery::new(folder.path(), &file, NodeEdits::default()).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }
}
