//! A node where a pod's own variables would open every GPU: early binding, and NVIDIA's runtime that puts devices in.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};

/// What kubelet offers of the node's GPUs: all slots, and those that can be had.
fn offered(bed: &Bed) -> [Value; 2] {
    let status = bed.told()["status"].clone();
    ["capacity", "allocatable"].map(|of| status[of]["nvidia.com/gpu"].clone())
}

/// Where `auto` comes to early binding under NVIDIA's runtime, no container gets GPUs, and log and `/readyz` say why, until it is
/// asked for by name; then they say what is given up.
#[test]
#[ignore = "needs cluster: tests/run"]
fn gpus_that_nothing_isolates_are_not_shared_unless_asked_for_by_name() {
    let bed = Bed::up("unisolated");
    // What an agent keeps that found out that CDI does nothing on this runtime.
    let runtime = bed.told()["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().expect("a version").to_owned();
    std::fs::create_dir_all(bed.state()).expect("a folder");
    std::fs::write(bed.state().join("binding"), format!("disproved {runtime}\n")).expect("a file");
    let flags = ["--device-strategy=envvar", "--cri-socket=none", "--gpus=simulated=H100:3"];
    let agent = bed.launch(&flags);
    agent.logs("no more containers get GPUs: early binding together with NVIDIA's runtime");
    eventually("30 slots of which none can be had", SOON, || {
        (offered(&bed) == [json!("30"), json!("0")]).then_some(())
    });
    let told = agent.get("/readyz");
    assert_eq!(told.status, 503);
    let text = told.text();
    assert!(text.contains("NVIDIA_VISIBLE_DEVICES") && text.contains("--allow-unisolated-gpus"), "{text}");
    assert_eq!(agent.get("/healthz").status, 200);
    drop(agent);

    let agent = bed.launch(&[&flags[..], &["--allow-unisolated-gpus"]].concat());
    eventually("slots that can be had", SOON, || (offered(&bed) == [json!("30"), json!("30")]).then_some(()));
    agent.logs("it was asked for (--allow-unisolated-gpus)");
    let text = eventually("a ready agent that says what is given up", SOON, || {
        let told = agent.get("/readyz");
        (told.status == 200 && told.text().contains("not isolated")).then(|| told.text().to_owned())
    });
    assert!(text.contains("opens every one"), "{text}");
}
