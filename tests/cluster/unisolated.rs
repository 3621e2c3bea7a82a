//! Tests a node on which a pod's own variables would open every GPU: early binding, and NVIDIA's runtime, which adds
//! the devices.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};

/// The node's GPU slots in capacity and in allocatable.
fn offered(bed: &Bed) -> [Value; 2] {
    let status = bed.node_object()["status"].clone();
    ["capacity", "allocatable"].map(|of| status[of]["nvidia.com/gpu"].clone())
}

/// If `auto` leads to early binding under NVIDIA's runtime, no container gets GPUs, and log and `/readyz` say why. With
/// the flag containers get GPUs, and log and `/readyz` say that they are not isolated.
#[test]
#[ignore = "needs cluster: tests/run"]
fn gpus_without_isolation_are_not_shared_unless_the_flag_allows_it() {
    let bed = Bed::up("unisolated");
    // The state file of an agent that has found out that CDI has no effect on this runtime.
    let runtime =
        bed.node_object()["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().expect("a version").to_owned();
    std::fs::create_dir_all(bed.state()).expect("a folder");
    std::fs::write(bed.state().join("binding"), format!("disproved {runtime}\n")).expect("a file");
    let flags = ["--device-strategy=envvar", "--cri-socket=none", "--gpus=simulated=H100:3"];
    let agent = bed.launch(&flags);
    agent.logs("no more containers get GPUs: early binding together with NVIDIA's runtime");
    eventually("30 slots in capacity and none allocatable", SOON, || {
        (offered(&bed) == [json!("30"), json!("0")]).then_some(())
    });
    let ready = agent.get("/readyz");
    assert_eq!(ready.status, 503);
    let text = ready.text();
    assert!(text.contains("NVIDIA_VISIBLE_DEVICES") && text.contains("--allow-unisolated-gpus"), "{text}");
    assert_eq!(agent.get("/healthz").status, 200);
    drop(agent);

    let agent = bed.launch(&[&flags[..], &["--allow-unisolated-gpus"]].concat());
    eventually("allocatable slots", SOON, || (offered(&bed) == [json!("30"), json!("30")]).then_some(()));
    agent.logs("--allow-unisolated-gpus allows it");
    let text = eventually("a ready agent that reports the missing isolation", SOON, || {
        let ready = agent.get("/readyz");
        (ready.status == 200 && ready.text().contains("not isolated")).then(|| ready.text().to_owned())
    });
    assert!(text.contains("opens every one"), "{text}");
}
