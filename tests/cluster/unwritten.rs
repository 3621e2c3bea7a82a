//! Tests writes on pods while the API server is away.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::path::PathBuf;

const CLAIM: &str = "hami.io/vgpu-devices-allocated";

/// A pod whose container starts when the gate opens: the kubelet has admitted the pod, and its first container waits.
pub(crate) struct GatedPod<'a> {
    bed: &'a Bed,
    name: &'static str,
    folder: PathBuf,
}

impl GatedPod<'_> {
    /// A gated pod that requests a GPU and has no claim.
    fn without_claim<'a>(bed: &'a Bed, name: &'static str) -> GatedPod<'a> {
        GatedPod::of(bed, name, bed.bare_pod(name, &[("main", "app", &[(0, 0, 0)])], &Value::Null))
    }

    /// A gated copy of this pod, which has no init container of its own. Returns when it waits at the gate.
    pub(crate) fn of<'a>(bed: &'a Bed, name: &'static str, mut pod: Value) -> GatedPod<'a> {
        let gated = GatedPod { bed, name, folder: bed.dir().join(name) };
        std::fs::create_dir(&gated.folder).expect("a folder");
        pod["spec"]["volumes"] = json!([{ "name": "gate", "hostPath": { "path": gated.folder } }]);
        pod["spec"]["initContainers"] = json!([{
            "name": "gate", "image": "registry.local/busybox:1",
            "command": ["sh", "-c", "while ! test -e /gate/open; do sleep 0.2; done"],
            "volumeMounts": [{ "name": "gate", "mountPath": "/gate" }],
        }]);
        // A claim has an entry for each container, init containers first.
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

    /// The pod's claim, once it is written on the pod.
    fn claim(&self) -> String {
        let claim = eventually("the share on the pod", SOON, || {
            self.now()["metadata"]["annotations"][CLAIM].as_str().map(str::to_owned)
        });
        assert_eq!(self.now()["metadata"]["annotations"]["gpu-steward.io/placed-by"], "agent");
        claim
    }
}

/// The container starts while the API server is away, so the agent cannot write the claim on its pod. When the API
/// server is back, the agent writes the claim without another start, also if the agent that delivered the devices was
/// killed before.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn claims_are_written_on_pods_when_the_api_server_is_back() {
    const FLAGS: [&str; 1] = ["--without-claim=share"];
    let bed = Bed::exclusive("unwritten-share");
    let agent = bed.agent(&FLAGS);
    let late = GatedPod::without_claim(&bed, "late");
    let later = GatedPod::without_claim(&bed, "later");
    bed.cluster.part("kill", "apiserver");
    late.open();
    agent.logs("container devices delivered");
    agent.logs("cannot write on the API server: which devices this pod has");
    bed.cluster.part("start", "apiserver");
    bed.ready(&["late"]);
    assert_eq!(late.claim().matches("NVIDIA").count(), 1);
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
    agent.logs("the claim of this pod is not written on it yet");
    assert_eq!(later.claim().matches("NVIDIA").count(), 1);
    bed.ready(&["late", "later"]);
    assert!(!agent.log().contains("container devices delivered"), "no other start");
}
