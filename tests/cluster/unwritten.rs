//! Writes on pods while the API server does not accept them.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::path::PathBuf;

const CLAIM: &str = "hami.io/vgpu-devices-allocated";

/// A pod whose container starts when the gate opens: kubelet has admitted it, and its first container waits.
pub(crate) struct Gated<'a> {
    bed: &'a Bed,
    name: &'static str,
    folder: PathBuf,
}

impl Gated<'_> {
    /// One that asks for a GPU without a claim.
    fn made<'a>(bed: &'a Bed, name: &'static str) -> Gated<'a> {
        Gated::of(bed, name, bed.bare_pod(name, &[("main", "app", &[(0, 0, 0)])], &Value::Null))
    }

    /// This one, which has no init container of its own; returns when it waits at the gate.
    pub(crate) fn of<'a>(bed: &'a Bed, name: &'static str, mut pod: Value) -> Gated<'a> {
        let gated = Gated { bed, name, folder: bed.dir().join(name) };
        std::fs::create_dir(&gated.folder).expect("a folder");
        pod["spec"]["volumes"] = json!([{ "name": "gate", "hostPath": { "path": gated.folder } }]);
        pod["spec"]["initContainers"] = json!([{
            "name": "gate", "image": "registry.local/busybox:1",
            "command": ["sh", "-c", "while ! test -e /gate/open; do sleep 0.2; done"],
            "volumeMounts": [{ "name": "gate", "mountPath": "/gate" }],
        }]);
        // A claim counts all containers, init containers first.
        if let Some(claim) = pod["metadata"]["annotations"][CLAIM].as_str() {
            pod["metadata"]["annotations"][CLAIM] = format!(";{claim}").into();
        }
        bed.create(&pod);
        eventually("the gate", SOON, || {
            let now = gated.now();
            now["status"]["initContainerStatuses"][0]["state"]["running"].is_object().then_some(())
        });
        gated
    }

    fn now(&self) -> Value {
        self.bed.admin.get(&["pod", self.name, "-n", &self.bed.space.name])
    }

    pub(crate) fn open(&self) {
        std::fs::write(self.folder.join("open"), b"").expect("the gate opens");
    }

    /// Its share, once that stands on it.
    fn share(&self) -> String {
        let claim = eventually("the share on the pod", SOON, || {
            self.now()["metadata"]["annotations"][CLAIM].as_str().map(str::to_owned)
        });
        assert_eq!(self.now()["metadata"]["annotations"]["gpu-steward.io/placed-by"], "agent");
        claim
    }
}

/// The container starts while the API server is away, so that what it got cannot be written on its pod; once the API server is
/// back it stands there, without another start, and also when the agent that gave it was killed before that.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn what_an_api_server_missed_is_written_when_it_is_back() {
    const FLAGS: [&str; 1] = ["--without-claim=share"];
    let bed = Bed::alone("unwritten-share");
    let agent = bed.agent(&FLAGS);
    let late = Gated::made(&bed, "late");
    let later = Gated::made(&bed, "later");
    bed.cluster.part("kill", "apiserver");
    late.open();
    agent.logs("container devices delivered");
    agent.logs("cannot write on the API server: which devices this pod has");
    bed.cluster.part("start", "apiserver");
    bed.ready(&["late"]);
    assert_eq!(late.share().matches("NVIDIA").count(), 1);
    assert_eq!(agent.log().matches("container devices delivered").count(), 1, "one start");
    agent.logs("it is written now: which devices this pod has");
    bed.cluster.part("kill", "apiserver");
    later.open();
    eventually("the second start", SOON, || {
        (agent.log().matches("container devices delivered").count() == 2).then_some(())
    });
    agent.signal(9);
    drop(agent);
    bed.cluster.part("start", "apiserver");
    let agent = bed.agent(&FLAGS);
    agent.logs("what this pod was given is not written on it yet");
    assert_eq!(later.share().matches("NVIDIA").count(), 1);
    bed.ready(&["late", "later"]);
    assert!(!agent.log().contains("container devices delivered"), "no other start");
}
