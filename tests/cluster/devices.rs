//! Tests device nodes with NVIDIA's major number and no driver. An `open` fails with ENXIO if the container's device
//! cgroup allows the device, and with EPERM if it does not. This shows which GPUs a container can reach.

use crate::bed::{Bed, Claim};
use crate::container::mknod;
use lab::kubectl::Kubectl;
use lab::scenario::{FakeGpu, FakeNvml, Scenario};
use serde_json::Value;
use std::path::{Path, PathBuf};

const REACHED: &str = "No such device or address";
const FORBIDDEN: &str = "Operation not permitted";
/// The device nodes of a node with an NVIDIA driver: name, minor number.
pub(crate) const NODES: [(&str, u32); 3] = [("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)];
/// The claims of a pod whose containers have the first GPU, the second GPU and no GPU.
pub(crate) const PAIR: [Claim<'_>; 3] =
    [("first", "app", &[(0, 3000, 10)]), ("second", "app", &[(1, 3000, 10)]), ("none", "app", &[])];

/// A folder like `/dev` of a machine with two NVIDIA GPUs.
fn nvidia_nodes(folder: &Path) -> PathBuf {
    let dev = folder.join("dev");
    std::fs::create_dir(&dev).expect("a folder");
    for (name, minor) in NODES {
        mknod(&dev.join(name), 195, minor);
    }
    dev
}

/// Opens this GPU in a container (namespace, pod, container) in two ways: by the device node that the container was given,
/// and by a node that the container creates. A container has `CAP_MKNOD` by default, so a missing node does not protect a
/// GPU. Returns the two error messages.
fn open_results(admin: &Kubectl, container: [&str; 3], minor: usize) -> (Option<String>, String) {
    let script = format!(
        "open() {{ echo $1: $( (: <$2) 2>&1); }}; [ ! -e /dev/nvidia{minor} ] || open given /dev/nvidia{minor}; \
         rm -f /own; mknod /own c 195 {minor}; open made /own"
    );
    let [namespace, pod, container] = container;
    let output = admin.run(&["exec", "-n", namespace, pod, "-c", container, "--", "sh", "-c", &script]).ok();
    let answer = |node: &str| {
        let line = output.lines().find(|line| line.starts_with(node))?;
        Some(line.rsplit(": ").next()?.to_owned())
    };
    (answer("given:"), answer("made:").expect("an answer"))
}

/// Tries both GPUs in a container, which must reach its own GPUs and no other.
pub(crate) fn check_reachable_gpus(admin: &Kubectl, container: [&str; 3], own: [bool; 2]) {
    let expect = |own| {
        if own { (Some(REACHED.to_owned()), REACHED.to_owned()) } else { (None, FORBIDDEN.to_owned()) }
    };
    assert_eq!([0, 1].map(|minor| open_results(admin, container, minor)), own.map(expect), "{container:?}");
}

/// Promises 28 and 29 in docs/specification.md: a container reaches its own GPU. It does not reach the GPU of another
/// container in the pod or of another pod, and without a request it reaches no GPU.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_container_reaches_its_own_gpu_and_no_other() {
    let bed = Bed::up("devices");
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    fake.write(&Scenario { gpus: vec![FakeGpu { count: 2, ..FakeGpu::default() }], ..Scenario::default() })
        .expect("a scenario");
    let dev = nvidia_nodes(folder.path());
    let agent = bed.agent(&[
        "--gpus=nvml",
        &format!("--nvml-library={}", fake.library().display()),
        &format!("--dev-root={}", dev.display()),
    ]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("pair", &gpus, &PAIR, &Value::Null));
    bed.create(&bed.pod("other", &gpus, &[("main", "app", &[(1, 3000, 10)])], &Value::Null));
    bed.create(&bed.bare_pod("none", &[("main", "app", &[])], &Value::Null));
    bed.ready(&["pair", "other", "none"]);
    for (pod, container, own) in [
        ("pair", "first", [true, false]),
        ("pair", "second", [false, true]),
        ("pair", "none", [false, false]),
        ("other", "main", [false, true]),
        ("none", "main", [false, false]),
    ] {
        check_reachable_gpus(&bed.admin, [&bed.space.name, pod, container], own);
    }
}
