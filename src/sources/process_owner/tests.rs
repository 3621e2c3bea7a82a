//! Tests of owners over trees in a temporary directory.

use super::*;
use std::fs;
use std::path::Path;

const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

fn container(n: u32) -> String {
    format!("/kubepods/burstable/pod{UID}/{n:064x}")
}

/// A `/proc` with the given processes.
struct Tree {
    base: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Tree { base: tempfile::tempdir().unwrap() };
        tree.write("proc/stat", "cpu  1 2 3 4 5 6 7 8 0 0\nctxt 1\nbtime 1000\nprocesses 1\n");
        tree
    }

    fn roots(&self) -> HostRoots {
        let at = |name| self.base.path().join(name);
        HostRoots { procfs: at("proc"), cgroup: at("cgroup"), sysfs: at("sys") }
    }

    fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.base.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: u32, start: u64, name: &[u8], cgroup: &str) {
        self.child((pid, 1), start, name, cgroup);
    }

    fn child(&self, (pid, parent): (u32, u32), start: u64, name: &[u8], cgroup: &str) {
        let tail =
            format!(") S {parent} 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {start} 1000 5 18446744073709551615 1 1 0\n");
        self.write(format!("proc/{pid}/stat"), [format!("{pid} (").as_bytes(), name, tail.as_bytes()].concat());
        self.write(format!("proc/{pid}/cgroup"), cgroup);
    }
}

#[test]
fn a_process_is_identified_with_its_container() {
    let tree = Tree::new();
    let path = container(1);
    tree.process(10, 500, b"train", &format!("5:memory:{path}/nested\n3:cpu:/\n0::{path}\n"));
    tree.process(11, 501, b"a) R (\xff", "5:memory:/user.slice\n0::/user.slice\n");
    tree.process(12, 502, b"far", "0::/../../kubepods/x\n");
    tree.process(13, 503, b"torn", "0::/user.slice");
    tree.process(14, 504, b"only systemd knows", &format!("5:memory:/\n1:name=systemd:{path}\n"));
    let mut owners = ProcessOwnerReader::new(tree.roots());
    let first = owners.identify(10).unwrap();
    assert_eq!((first.key, &*first.command), (ProcessKey { pid: 10, start_ticks: 500 }, "train"));
    let ProcessOwner::Cgroup(identity) = &first.owner else { panic!("{first:?}") };
    assert_eq!(*identity.path, *path);
    let Some(IdentifiedProcess { owner: ProcessOwner::Cgroup(again), .. }) = owners.identify(10) else { panic!() };
    assert!(Arc::ptr_eq(identity, &again), "the same path has one identity");
    let named = owners.identify(11).unwrap();
    assert_eq!((&*named.command, named.owner), ("a) R (\u{fffd}", ProcessOwner::Host));
    for (pid, owner) in [(12, ProcessOwner::Unknown), (13, ProcessOwner::Unknown), (14, first.owner.clone())] {
        assert_eq!(owners.identify(pid).unwrap().owner, owner, "{pid}");
    }
    assert_eq!(owners.identify(99), None);
}

/// A container engine inside a pod, which makes its containers in cgroups of the host.
#[test]
fn a_process_of_a_nested_container_belongs_to_the_pod_of_its_ancestors_and_else_to_none() {
    let tree = Tree::new();
    let path = container(1);
    let nested = format!("{:064x}", 77);
    tree.process(1, 1, b"init", "0::/init.scope\n");
    tree.child((10, 1), 500, b"dockerd", &format!("0::{path}\n"));
    tree.child((11, 10), 501, b"containerd-shim", &format!("0::{path}/init\n"));
    for (pid, cgroup) in [
        (20, format!("/actions_job/{nested}")),
        (21, format!("/ecs/task/{nested}")),
        (22, format!("/k8s.io/{nested}")),
        (23, format!("/docker/{nested}")),
        (24, "/".to_owned()),
    ] {
        tree.child((pid, 11), 600, b"bash", &format!("0::{cgroup}\n"));
        tree.child((pid + 10, pid), 700, b"python", &format!("0::{cgroup}\n"));
    }
    // The same cgroups, made by an engine of the host.
    tree.child((40, 1), 500, b"containerd-shim", "0::/system.slice/containerd.service\n");
    tree.child((41, 40), 600, b"python", &format!("0::/actions_job/{nested}\n"));
    tree.child((42, 40), 600, b"python", &format!("0::/docker/{nested}\n"));
    // Its parent has ended, and its new one is the init process of the host.
    tree.child((50, 1), 600, b"python", &format!("0::/actions_job/{nested}\n"));
    tree.child((51, 99), 600, b"python", &format!("0::/actions_job/{nested}\n"));
    let mut owners = ProcessOwnerReader::new(tree.roots());
    for pid in (20..25).chain(30..35) {
        let ProcessOwner::Cgroup(identity) = owners.identify(pid).unwrap().owner else { panic!("{pid}") };
        assert_eq!(*identity.path, *path, "{pid}");
    }
    for pid in [40, 41, 50, 51] {
        assert_eq!(owners.identify(pid).unwrap().owner, ProcessOwner::Host, "{pid}");
    }
    let ProcessOwner::Cgroup(docker) = owners.identify(42).unwrap().owner else { panic!("a container without a pod") };
    assert_eq!(docker.pod(), None);
    let known = owners.identify(30);
    assert_eq!(owners.identify_reported(30, known.as_ref()), known);
    // A long chain ends somewhere.
    (100..200).for_each(|pid| tree.child((pid, pid - 1), 900, b"sh", "0::/user.slice\n"));
    tree.child((99, 11), 900, b"sh", "0::/user.slice\n");
    assert_eq!(owners.identify(199).unwrap().owner, ProcessOwner::Host);
}

#[test]
fn a_truncated_stat_gives_no_process() {
    let tree = Tree::new();
    tree.process(10, 500, b"x", "0::/\n");
    tree.write("proc/10/stat", "10 (x) S 1 1");
    assert_eq!(ProcessOwnerReader::new(tree.roots()).identify(10), None);
}

#[test]
fn start_times_are_given_on_the_wall_clock() {
    let tree = Tree::new();
    let mut owners = ProcessOwnerReader::new(tree.roots());
    let second = rustix::param::clock_ticks_per_second();
    let started = owners.boot().and_then(|boot| boot.started_at(3 * second));
    assert_eq!(started, Some(WallTime(1_003_000_000)));
    tree.write("proc/stat", "cpu 1");
    assert!(owners.boot().is_none());
}

#[test]
fn the_number_of_kept_identities_is_bounded() {
    let mut known = HashMap::new();
    for n in 0..3 * u32::try_from(MAX_CGROUPS).unwrap() {
        let path = container(n);
        let CgroupPlace::Inside { kind, .. } = place(&path) else { panic!() };
        intern(&mut known, &path, || CgroupIdentity { path: Arc::from(path.as_str()), kind });
        assert!(known.len() <= MAX_CGROUPS);
    }
}

#[test]
fn in_a_private_cgroup_namespace_owners_are_found_by_a_walk() {
    let tree = Tree::new();
    let at = tree.roots().cgroup;
    tree.write("proc/self/mountinfo", format!("1 2 0:3 /../../.. {} rw - cgroup2 x rw\n", at.display()));
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    let path = container(1);
    tree.write(format!("cgroup{path}/cgroup.procs"), "10\n");
    tree.write(format!("cgroup{path}/nested/cgroup.procs"), "11\n");
    tree.write(format!("cgroup/kubepods/burstable/pod{UID}/cgroup.procs"), "");
    for pid in 10..14 {
        tree.process(pid, 500, b"x", "0::/\n");
    }
    // Began after any walk that this test can see.
    tree.process(13, u64::MAX / 2_000_000_000, b"young", "0::/\n");
    let mut owners = ProcessOwnerReader::new(tree.roots());
    for pid in [10, 11] {
        let Some(IdentifiedProcess { owner: ProcessOwner::Cgroup(identity), .. }) = owners.identify(pid) else {
            panic!("{pid}")
        };
        assert_eq!(*identity.path, *path);
    }
    assert_eq!(
        owners.identify(12).unwrap().owner,
        ProcessOwner::Host,
        "a process of the hierarchy that is in no pod or container"
    );
    assert_eq!(
        owners.identify(13).unwrap().owner,
        ProcessOwner::Unknown,
        "a process younger than the walk is not called a host process"
    );
}

/// A user of the node starts so many containers that those of other pods have no place in the walk.
#[test]
fn in_a_private_cgroup_namespace_a_process_of_a_container_without_a_place_belongs_to_its_pod() {
    let mut tree = Tree::new();
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        tree.base = memory;
    }
    let at = tree.roots().cgroup;
    tree.write("proc/self/mountinfo", format!("1 2 0:3 /../../.. {} rw - cgroup2 x rw\n", at.display()));
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    for n in 0..MAX_CGROUPS {
        tree.write(format!("cgroup/docker/{n:064x}/cgroup.procs"), "");
    }
    let pod = format!("/kubepods/burstable/pod{UID}");
    tree.write(format!("cgroup{pod}/cgroup.procs"), "10\n");
    tree.write(format!("cgroup{}/cgroup.procs", container(1)), "11\n");
    tree.write(format!("cgroup{}/nested/cgroup.procs", container(1)), "12\n");
    (10..13).for_each(|pid| tree.process(pid, 500, b"x", "0::/\n"));
    let mut owners = ProcessOwnerReader::new(tree.roots());
    for pid in 10..13 {
        let Some(IdentifiedProcess { owner: ProcessOwner::Cgroup(identity), .. }) = owners.identify(pid) else {
            panic!("{pid}")
        };
        assert_eq!(*identity.path, *pod, "{pid}");
    }
}

#[test]
fn in_a_private_cgroup_namespace_without_a_hierarchy_no_owner_is_known() {
    let tree = Tree::new();
    let at = tree.roots().cgroup;
    tree.write("proc/self/mountinfo", format!("1 2 0:3 /.. {} rw - cgroup2 x rw\n", at.display()));
    tree.process(10, 500, b"x", "0::/\n");
    assert_eq!(ProcessOwnerReader::new(tree.roots()).identify(10).unwrap().owner, ProcessOwner::Unknown);
}

#[test]
fn a_pid_reused_between_two_reads_is_never_attributed_to_the_wrong_container() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let tree = Tree::new();
    let base = tree.base.path();
    let stop = AtomicBool::new(false);
    // Each life of number 10 is a directory of its own; a link is moved from one to the next in one step.
    let begin = |life: u32| {
        let tail = format!("S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {life} 1000 5 18446744073709551615 1 1 0\n");
        tree.write(format!("lives/{life}/stat"), format!("10 (x) {tail}"));
        tree.write(format!("lives/{life}/cgroup"), format!("0::{}\n", container(life)));
        std::os::unix::fs::symlink(base.join(format!("lives/{life}")), base.join("next")).unwrap();
        fs::rename(base.join("next"), base.join("proc/10")).unwrap();
    };
    begin(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for life in (2..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                begin(life);
                fs::remove_dir_all(base.join(format!("lives/{}", life - 1))).unwrap();
            }
        });
        let mut owners = ProcessOwnerReader::new(tree.roots());
        let (mut attributed, mut last) = (0, 0);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while (attributed < 500 || last < 200) && std::time::Instant::now() < deadline {
            if let Some(IdentifiedProcess { key, owner: ProcessOwner::Cgroup(identity), .. }) = owners.identify(10) {
                let expected = container(u32::try_from(key.start_ticks).unwrap());
                if *identity.path != *expected {
                    stop.store(true, Ordering::Relaxed);
                    panic!("life {} was attributed to {}", key.start_ticks, identity.path);
                }
                (attributed, last) = (attributed + 1, key.start_ticks);
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(attributed >= 500 && last >= 200, "attributed {attributed} times, in {last} lives");
    });
}
