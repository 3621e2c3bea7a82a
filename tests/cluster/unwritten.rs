//! What is to be written on pods while nobody takes it.

use crate::bed::{Bed, Claim, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};

/// The container starts while the API server is away, so that what it got cannot be written on its pod; once the API server is
/// back it stands there, without another start.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn what_an_api_server_missed_is_written_when_it_is_back() {
    let bed = Bed::alone("unwritten-share");
    let agent = bed.agent(&["--without-claim=share"]);
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 0, 0)])];
    let mut pod = bed.bare_pod("late", &one, &Value::Null);
    let gate = "while ! test -e /gate/open; do sleep 0.2; done";
    let folder = bed.dir().join("gate");
    std::fs::create_dir(&folder).expect("a folder");
    pod["spec"]["volumes"] = json!([{ "name": "gate", "hostPath": { "path": folder } }]);
    pod["spec"]["initContainers"] = json!([{
        "name": "gate", "image": "registry.local/busybox:1", "command": ["sh", "-c", gate],
        "volumeMounts": [{ "name": "gate", "mountPath": "/gate" }],
    }]);
    bed.create(&pod);
    let now = || bed.admin.get(&["pod", "late", "-n", &bed.space.name]);
    eventually("the gate", SOON, || {
        now()["status"]["initContainerStatuses"][0]["state"]["running"].is_object().then_some(())
    });
    bed.cluster.part("kill", "apiserver");
    std::fs::write(folder.join("open"), b"").expect("the gate opens");
    agent.logs("a container gets its GPUs");
    agent.logs("cannot write on the API server: which devices this pod has");
    bed.cluster.part("start", "apiserver");
    bed.ready(&["late"]);
    let claim = eventually("the share on the pod", SOON, || {
        now()["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().map(str::to_owned)
    });
    assert_eq!(claim.matches("NVIDIA").count(), 1, "{claim}");
    assert_eq!(now()["metadata"]["annotations"]["gpu-steward.io/placed-by"], "agent");
    assert_eq!(agent.log().matches("a container gets its GPUs").count(), 1, "one start");
    agent.logs("it is written now: which devices this pod has");
}
