//! Device nodes with NVIDIA's major number and no driver behind it. The kernel answers an `open` of one with ENXIO where the
//! container's device cgroup lets it through, and with EPERM where it does not, so a container can be asked what it may reach.

use crate::bed::{Bed, Claim};
use crate::container::mknod;
use lab::scenario::{Card, FakeNvml, Scenario};
use serde_json::Value;
use std::path::{Path, PathBuf};

const REACHED: &str = "No such device or address";
const FORBIDDEN: &str = "Operation not permitted";

/// A folder like `/dev` of a machine with two NVIDIA GPUs.
fn nvidia_nodes(folder: &Path) -> PathBuf {
    let dev = folder.join("dev");
    std::fs::create_dir(&dev).expect("a folder");
    for (name, minor) in [("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)] {
        mknod(&dev.join(name), 195, minor);
    }
    dev
}

/// What comes of opening this GPU: by the node that the container was given, and by one that it makes itself with the number of
/// the GPU. A container has `CAP_MKNOD` by default, so a missing node alone keeps nobody out.
fn opens(bed: &Bed, pod: &str, container: &str, minor: usize) -> (Option<String>, String) {
    let script = format!(
        "open() {{ echo $1: $( (: <$2) 2>&1); }}; [ ! -e /dev/nvidia{minor} ] || open given /dev/nvidia{minor}; \
         rm -f /own; mknod /own c 195 {minor}; open made /own"
    );
    let said = bed.sh(pod, container, &script);
    let answer = |node: &str| {
        let line = said.lines().find(|line| line.starts_with(node))?;
        Some(line.rsplit(": ").next()?.to_owned())
    };
    (answer("given:"), answer("made:").expect("an answer"))
}

/// Promises 28 and 29 in docs/specification.md: a container reaches its own GPU, and neither that of its neighbour in the pod, nor
/// that of another pod, nor any where it asked for none.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_container_reaches_its_own_gpu_and_no_other() {
    let bed = Bed::up("devices");
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    fake.write(&Scenario { gpus: vec![Card { count: 2, ..Card::default() }], ..Scenario::default() })
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
        let claims: [Claim<'_>; 3] =
            [("first", "app", &[(0, 3000, 10)]), ("second", "app", &[(1, 3000, 10)]), ("none", "app", &[])];
        let (pair, other, outside) = (format!("{binding}-pair"), format!("{binding}-other"), format!("{binding}-none"));
        bed.create(&bed.pod(&pair, &gpus, &claims, &Value::Null));
        bed.create(&bed.pod(&other, &gpus, &[("main", "app", &[(1, 3000, 10)])], &Value::Null));
        bed.create(&bed.bare_pod(&outside, &[("main", "app", &[])], &Value::Null));
        bed.ready(&[&pair, &other, &outside]);
        let reached = || (Some(REACHED.to_owned()), REACHED.to_owned());
        let forbidden = || (None, FORBIDDEN.to_owned());
        for (pod, container, expect) in [
            (&pair, "first", [reached(), forbidden()]),
            (&pair, "second", [forbidden(), reached()]),
            (&pair, "none", [forbidden(), forbidden()]),
            (&other, "main", [forbidden(), reached()]),
            (&outside, "main", [forbidden(), forbidden()]),
        ] {
            assert_eq!([0, 1].map(|minor| opens(&bed, pod, container, minor)), expect, "{pod}/{container}");
        }
        let words = ["delete", "pod", &pair, &other, &outside, "-n", &bed.space.name, "--now"];
        let _ = bed.admin.run(&words).ok();
        drop(agent);
    }
}
