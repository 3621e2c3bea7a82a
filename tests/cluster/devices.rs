//! Device nodes with NVIDIA's major number and no driver behind it. The kernel answers an `open` of one with ENXIO where the
//! container's device cgroup lets it through, and with EPERM where it does not, so a container can be asked what it may reach.

use crate::bed::{Bed, Claim};
use crate::container::mknod;
use lab::kubectl::Kubectl;
use lab::scenario::{FakeGpu, FakeNvml, Scenario};
use serde_json::Value;
use std::path::{Path, PathBuf};

const REACHED: &str = "No such device or address";
const FORBIDDEN: &str = "Operation not permitted";
/// Of a node with an NVIDIA driver: name, minor number.
pub(crate) const NODES: [(&str, u32); 3] = [("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)];
/// Of a pod whose containers have the first GPU, the second and none.
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

/// What comes of opening this GPU in a container (namespace, pod and its own name): by the node that it was given, and by one that it
/// makes itself with the number of the GPU. A container has `CAP_MKNOD` by default, so a missing node alone keeps nobody out.
fn opens(admin: &Kubectl, container: [&str; 3], minor: usize) -> (Option<String>, String) {
    let script = format!(
        "open() {{ echo $1: $( (: <$2) 2>&1); }}; [ ! -e /dev/nvidia{minor} ] || open given /dev/nvidia{minor}; \
         rm -f /own; mknod /own c 195 {minor}; open made /own"
    );
    let [namespace, pod, container] = container;
    let said = admin.run(&["exec", "-n", namespace, pod, "-c", container, "--", "sh", "-c", &script]).ok();
    let answer = |node: &str| {
        let line = said.lines().find(|line| line.starts_with(node))?;
        Some(line.rsplit(": ").next()?.to_owned())
    };
    (answer("given:"), answer("made:").expect("an answer"))
}

/// Tries both GPUs in a container, which must reach those that are its own and no other.
pub(crate) fn reaches(admin: &Kubectl, container: [&str; 3], own: [bool; 2]) {
    let expect = |own| {
        if own { (Some(REACHED.to_owned()), REACHED.to_owned()) } else { (None, FORBIDDEN.to_owned()) }
    };
    assert_eq!([0, 1].map(|minor| opens(admin, container, minor)), own.map(expect), "{container:?}");
}

/// Promises 28 and 29 in docs/specification.md: a container reaches its own GPU, and neither that of its neighbour in the pod, nor
/// that of another pod, nor any where it asked for none.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_container_reaches_its_own_gpu_and_no_other() {
    let bed = Bed::up("devices");
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    fake.write(&Scenario { gpus: vec![FakeGpu { count: 2, ..FakeGpu::default() }], ..Scenario::default() })
        .expect("a scenario");
    let dev = nvidia_nodes(folder.path());
    for binding in ["late", "early"] {
        let agent = bed.agent(&[
            "--gpus=nvml",
            &format!("--nvml-library={}", fake.library().display()),
            &format!("--dev-root={}", dev.display()),
            &format!("--binding={binding}"),
        ]);
        let gpus = Bed::gpus(&agent);
        let (pair, other, outside) = (format!("{binding}-pair"), format!("{binding}-other"), format!("{binding}-none"));
        bed.create(&bed.pod(&pair, &gpus, &PAIR, &Value::Null));
        bed.create(&bed.pod(&other, &gpus, &[("main", "app", &[(1, 3000, 10)])], &Value::Null));
        bed.create(&bed.bare_pod(&outside, &[("main", "app", &[])], &Value::Null));
        bed.ready(&[&pair, &other, &outside]);
        for (pod, container, own) in [
            (&pair, "first", [true, false]),
            (&pair, "second", [false, true]),
            (&pair, "none", [false, false]),
            (&other, "main", [false, true]),
            (&outside, "main", [false, false]),
        ] {
            reaches(&bed.admin, [&bed.space.name, pod, container], own);
        }
        let words = ["delete", "pod", &pair, &other, &outside, "-n", &bed.space.name, "--now"];
        let _ = bed.admin.run(&words).ok();
        drop(agent);
    }
}
