//! Tests a hostile container with its writable folders: it must not reach another container, a user of the host, or the
//! agent that removes the folders.

use crate::bed::{Bed, Claim, SOON};
use crate::chart;
use crate::container::{build_fake_limiter, events};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const ONE: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 5)])];

/// 1,900 levels at a time, because a path has at most 4,096 bytes.
const NEST_SCRIPT: &str = "cd /usr/local/vgpu && P=$(printf 'd/%.0s' $(seq 1900)) && mkdir a && \
                    for n in $(seq 11); do mkdir -p n/$P && mv a n/${P}a && mv n a || exit 1; done; echo nested";

fn uid(bed: &Bed, pod: &str) -> String {
    let state = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    state["metadata"]["uid"].as_str().expect("a UID").to_owned()
}

/// Whether an unprivileged user of the host can run this program.
fn can_run(program: &Path) -> bool {
    let unprivileged = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    // setpriv resolves its program while it still has root's capabilities. The shell resolves it after that.
    let shell = ["sh", "-c", "exec \"$0\" true"];
    let ran = Command::new("setpriv").args(unprivileged).args(shell).arg(program).output().expect("setpriv");
    ran.status.success()
}

/// A setuid program in the folders has no effect, each container has its own folders, and the agent removes 20,000
/// nested folders of a deleted pod and keeps running. A pod that writes too much is marked, and evicted if the flag is set.
#[test]
#[ignore = "needs cluster: tests/run"]
fn what_a_container_writes_harms_no_other_and_is_removed_with_it() {
    let bed = Bed::up("writable");
    chart::install(&bed.cluster, &chart::EXTRAS);
    // Users of the host can reach the state directory's parent, so only the directory's own mode protects it.
    fs::set_permissions(bed.dir(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let library = bed.dir().join("libvgpu.so");
    build_fake_limiter(&library, "one");
    let limiter = format!("--limiter-library={}", library.display());
    let agent = bed.agent(&[&limiter]);
    let gpus = Bed::gpus(&agent);
    for pod in ["hostile", "other"] {
        bed.create(&bed.pod(pod, &gpus, &ONE, &Value::Null));
    }
    bed.ready(&["hostile", "other"]);
    let own = bed.state().join("pods").join(uid(&bed, "hostile"));
    for folder in ["/usr/local/vgpu", "/tmp/vgpulock"] {
        let script = format!(
            "grep ' {folder} ' /proc/mounts; cp /bin/busybox {folder}; chmod 4755 {folder}/busybox; {folder}/busybox true; echo rc=$?"
        );
        let seen = bed.sh("hostile", "main", &script);
        for option in ["nosuid", "nodev", "noexec"] {
            assert!(seen.contains(option), "{folder} {option}: {seen}");
        }
        assert!(!seen.contains("rc=0"), "the container runs a setuid program: {seen}");
        assert_eq!(bed.sh("other", "main", &format!("ls {folder} | grep -c busybox; true")).trim(), "0");
    }
    let _ = bed.sh("other", "main", "dd if=/dev/zero of=/usr/local/vgpu/large bs=1M count=5 2>&1");
    let written = own.join("main/lock/busybox");
    assert_eq!(fs::metadata(&written).expect("root sees it").permissions().mode() & 0o7777, 0o4755);
    let plain = bed.dir().join("busybox");
    fs::copy(&written, &plain).expect("a copy");
    assert!(can_run(&plain), "the program itself can be run");
    assert!(!can_run(&written), "a user of the host can run it");

    assert_eq!(bed.sh("hostile", "main", NEST_SCRIPT).trim(), "nested");
    let _ = bed.admin.run(&["delete", "pod", "hostile", "-n", &bed.space.name, "--now"]).ok();
    let trash = bed.state().join("trash");
    eventually("the end of its folder", SOON, || {
        let is_empty = fs::read_dir(&trash).is_ok_and(|mut entries| entries.next().is_none());
        assert_eq!(agent.get("/healthz").status, 200, "{}", agent.log());
        (!own.exists() && is_empty).then_some(())
    });
    drop(agent);
    // The agent counts files at its start. HAMi-core's own file has 2 MiB.
    let agent = bed.agent(&[&limiter, "--pod-files-limit=4MiB"]);
    bed.create(&bed.pod("after", &gpus, &ONE, &Value::Null));
    bed.ready(&["after"]);
    eventually("the event about the files that it has written", SOON, || {
        let other = bed.admin.get(&["pod", "other", "-n", &bed.space.name]);
        let marked = other["metadata"]["annotations"]["gpu-steward.io/evict"] == "TooMuchWritten";
        let series = agent.get("/metrics").text();
        let counted = |line: &&str| line.starts_with("gpu_steward_plugin_pod_files{") && line.contains("over=\"true\"");
        (marked && series.lines().filter(counted).any(|line| line.contains("pod=\"other\""))).then_some(())
    });
    let after = bed.admin.get(&["pod", "after", "-n", &bed.space.name]);
    assert_eq!(after["metadata"]["annotations"]["gpu-steward.io/evict"], Value::Null, "the other pod is not marked");
    assert!(events(&bed, "other", "EvictedForFiles").is_empty(), "without the flag no pod is evicted");
    drop(agent);
    let agent = bed.agent(&[&limiter, "--pod-files-limit=4MiB", "--evict-over-use"]);
    check_eviction(&bed, "other", "after");
    drop(agent);
}

/// Checks that a pod that has written too much is evicted, and that its neighbour is not.
fn check_eviction(bed: &Bed, pod: &str, neighbour: &str) {
    eventually("the eviction", SOON, || {
        let state = bed.admin.run(&["get", "pod", pod, "-n", &bed.space.name]);
        (!state.success).then_some(())
    });
    // The agent writes the event after the eviction.
    let messages = eventually("an event about the eviction", SOON, || {
        let found = events(bed, pod, "EvictedForFiles");
        (!found.is_empty()).then_some(found)
    });
    assert!(messages.len() == 1 && messages[0].contains("--pod-files-limit"), "{messages:?}");
    assert!(events(bed, neighbour, "EvictedForFiles").is_empty());
    let state = bed.admin.get(&["pod", neighbour, "-n", &bed.space.name]);
    assert_eq!(state["status"]["phase"], "Running");
}

/// A container that requests two GPUs on a node with one GPU gets one event, and neither fails nor starts.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_container_does_not_get_the_same_gpu_twice() {
    let bed = Bed::up("same-gpu");
    let two = json!({ "resources": { "limits": { "nvidia.com/gpu": "2" } } });
    let flags = ["--gpus=simulated=H100:1", "--without-claim=share"];
    let agent = bed.agent(&flags);
    bed.create(&bed.bare_pod("twice", &ONE, &two));
    let messages = eventually("an event", SOON, || {
        let selector = "involvedObject.name=twice,reason=SameGpuTwice";
        let list = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", selector]);
        Some(list["items"].as_array()?.first()?["message"].as_str()?.to_owned())
    });
    assert!(messages.contains("--same-gpu-twice=allow") && messages.contains("nvidia.com/gpu"), "{messages}");
    let state = bed.admin.get(&["pod", "twice", "-n", &bed.space.name]);
    assert_eq!(state["status"]["phase"], "Pending", "{state}");
    assert_eq!(
        state["metadata"]["annotations"]["gpu-steward.io/evict"],
        Value::Null,
        "a replacement would be refused too"
    );
    drop(agent);
    // The pod waits, and the changed setting lets it start.
    let _agent = bed.agent(&[flags[0], flags[1], "--same-gpu-twice=allow"]);
    bed.ready(&["twice"]);
}
