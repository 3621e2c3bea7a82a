//! Tests sharing on a node whose container runtime has its CDI switched off: the node offers no GPU, says what to change, and
//! recovers by itself. Also tests a kubelet whose checkpoint cannot be read.

use crate::bed::{Bed, Claim, SOON, devices_in};
use lab::cluster::{ClusterOptions, TestNamespace};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const NOTHING: Value = Value::Null;
const ONE: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 5)])];

/// The devices of a container as (UUID, bytes), from inside the container. Its limits file, its device nodes and the
/// variable that names the devices must agree.
fn devices_of_container(bed: &Bed, gpus: &[String], pod: &str, container: &str) -> Vec<(String, u64)> {
    let limits = bed.limits(pod, container);
    assert_eq!(limits["pod"]["name"], *pod, "{limits}");
    assert_eq!(limits["container"], *container, "{limits}");
    let devices = devices_in(&limits);
    let seen = bed.sh(pod, container, "ls /dev; echo $GPU_STEWARD_DEVICES");
    let nodes: BTreeSet<usize> = seen.lines().filter_map(|line| line.strip_prefix("nvidia")?.parse().ok()).collect();
    let own: BTreeSet<usize> =
        devices.iter().map(|(uuid, _)| gpus.iter().position(|gpu| gpu == uuid).expect("a GPU of the node")).collect();
    assert_eq!(nodes, own, "{pod}/{container}: {limits}");
    let named: Vec<&str> = seen.lines().last().unwrap_or_default().split(',').collect();
    assert!(named.iter().eq(devices.iter().map(|(uuid, _)| uuid)), "{pod}/{container}: {named:?} {limits}");
    devices
}

/// Waits for an event with this reason on the pod.
fn wait_for_event(bed: &Bed, pod: &str, reason: &str) {
    eventually(&format!("{reason} on {pod}"), SOON, || {
        let about = format!("involvedObject.name={pod}");
        let events = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", &about]);
        events["items"].as_array()?.iter().any(|event| event["reason"] == *reason).then_some(())
    });
}

fn wait_for_eviction_mark(bed: &Bed, pod: &str, reason: &str) {
    eventually(&format!("the mark for eviction on {pod}"), SOON, || {
        let now = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
        (now["metadata"]["annotations"]["gpu-steward.io/evict"] == *reason).then_some(())
    });
}

/// Creates the pod in its own namespace. The namespace exists until the result is dropped.
fn in_another_namespace(bed: &Bed, mut pod: Value) -> TestNamespace {
    let other = bed.cluster.namespace("cdi-off-other");
    pod["metadata"]["namespace"] = other.name.as_str().into();
    bed.create(&pod);
    other
}

/// Changes `enable_cdi` in the runtime's configuration, and restarts the runtime.
fn restart_runtime_with_cdi(bed: &Bed, before: bool, now: bool) {
    let change = format!("s/enable_cdi = {before}/enable_cdi = {now}/");
    let changed = bed.paths().command("sed").args(["-i", &change, "/etc/kubernetes/containerd.toml"]).status();
    assert!(changed.expect("sed").success());
    bed.part("kill", "containerd");
    bed.part("start", "containerd");
}

/// The node's GPU slots in capacity and in allocatable.
fn offered(bed: &Bed) -> [Value; 2] {
    let status = bed.node_object()["status"].clone();
    ["capacity", "allocatable"].map(|of| status[of]["nvidia.com/gpu"].clone())
}

/// Waits for an event with this reason on the Node; returns its note.
fn event_on_node(bed: &Bed, reason: &str) -> String {
    eventually(&format!("{reason} on the Node"), SOON, || {
        let about = format!("involvedObject.name={},reason={reason}", bed.node());
        let events = bed.admin.get(&["events", "-A", "--field-selector", &about]);
        Some(events["items"].as_array()?.last()?["message"].as_str()?.to_owned())
    })
}

/// Promise 44 in docs/specification.md: a node without CDI offers no GPU. Log, `/readyz`, metrics and an event on the Node
/// name the line to add and the file. Once the runtime has restarted with this line, pods get GPUs, without a restart of the
/// agent.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn a_node_without_cdi_offers_no_gpu_says_what_to_change_and_recovers_by_itself() {
    const LINES: [&str; 3] = ["enable_cdi = true", "/etc/containerd/config.toml", "io.containerd.cri.v1.runtime"];
    let bed = Bed::with("cdi-off", &ClusterOptions::nodes(1).with_cdi_off());
    let agent = bed.launch(&["--gpus=simulated=H100:3"]);
    agent.logs("this node offers no GPU");
    eventually("30 slots in capacity and none allocatable", SOON, || {
        (offered(&bed) == [json!("30"), json!("0")]).then_some(())
    });
    let ready = eventually("a reason at /readyz", SOON, || {
        let ready = agent.get("/readyz");
        (ready.status == 503 && ready.text().contains("no GPU is offered")).then(|| ready.text().to_owned())
    });
    for text in [ready, agent.log(), event_on_node(&bed, "CdiMissing")] {
        assert!(LINES.iter().all(|line| text.contains(line)) && text.contains("restart containerd"), "{text}");
    }
    assert_eq!(agent.get("/healthz").status, 200);
    assert!(agent.get("/metrics").text().contains("gpu_steward_plugin_cdi 0"));
    restart_runtime_with_cdi(&bed, false, true);
    eventually("allocatable slots", SOON, || (offered(&bed) == [json!("30"), json!("30")]).then_some(()));
    eventually("a ready agent", SOON, || (agent.get("/readyz").status == 200).then_some(()));
    assert!(agent.get("/metrics").text().contains("gpu_steward_plugin_cdi 1"));
    let _ = event_on_node(&bed, "CdiWorks");
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("first", &gpus, &ONE, &NOTHING));
    bed.ready(&["first"]);
    assert_eq!(devices_of_container(&bed, &gpus, "first", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    // The next agent knows from its start that CDI is off again.
    drop(agent);
    restart_runtime_with_cdi(&bed, true, false);
    let agent = bed.launch(&["--gpus=simulated=H100:3"]);
    agent.logs("this node offers no GPU");
    eventually("no slot is free", SOON, || (offered(&bed) == [json!("30"), json!("1")]).then_some(()));
    let first = bed.admin.get(&["pod", "first", "-n", &bed.space.name]);
    assert_eq!(
        first["metadata"]["annotations"]["gpu-steward.io/evict"],
        Value::Null,
        "it has the devices of its claim"
    );
}

/// The runtime's version has CDI, but CDI is switched off and the runtime does not report this. The agent finds out from
/// containers of two namespaces, marks them for eviction and offers no GPU any more. A report of the runtime overrides this.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn disabled_cdi_is_detected_from_the_first_containers_of_two_namespaces() {
    const SILENT: &str = "--cri-socket=/run/nobody.sock";
    let bed = Bed::with("cdi-silent", &ClusterOptions::nodes(1).with_cdi_off());
    let agent = bed.agent(&[SILENT]);
    let gpus = Bed::gpus(&agent);
    let warmed: [Claim<'_>; 2] = [("warm", "init", &[(0, 500, 5)]), ("main", "app", &[(0, 3000, 5)])];
    // The pod's init container finds no limits and fails again and again, so its app container never starts and cannot be
    // checked.
    bed.create(&bed.pod("stuck", &gpus, &warmed, &NOTHING));
    agent.logs("container devices delivered");
    bed.create(&bed.pod("first", &gpus, &ONE, &NOTHING));
    bed.create(&bed.pod("beside", &gpus, &ONE, &NOTHING));
    agent.logs("a container runs without its limits");
    assert!(!agent.log().contains("this node offers no GPU"), "one namespace does not close the node");
    let _other = in_another_namespace(&bed, bed.pod("elsewhere", &gpus, &ONE, &NOTHING));
    agent.logs("this node offers no GPU");
    for pod in ["first", "beside"] {
        wait_for_event(&bed, pod, "LimitsNotApplied");
        wait_for_eviction_mark(&bed, pod, "LimitsNotApplied");
    }
    wait_for_event(&bed, "stuck", "WithoutCdi");
    wait_for_eviction_mark(&bed, "stuck", "WithoutCdi");
    eventually("a count", SOON, || {
        let metrics = agent.get("/metrics").text();
        metrics.contains("gpu_steward_troubles_total{kind=\"edits_not_applied\"} 3").then_some(())
    });
    // The next agent knows from its start that CDI is off.
    drop(agent);
    let agent = bed.launch(&[SILENT]);
    agent.logs("containers did not get the edits of their CDI devices");
    drop(agent);
    // The runtime restarts and reports that CDI is on.
    restart_runtime_with_cdi(&bed, false, true);
    let agent = bed.agent(&[]);
    agent.logs("it reports that its CDI is on");
    bed.create(&bed.pod("second", &gpus, &warmed, &NOTHING));
    bed.ready(&["second"]);
    assert_eq!(devices_of_container(&bed, &gpus, "second", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    agent.logs("CDI works here");
}

/// Promise 28 in docs/specification.md while the kubelet's checkpoint is missing and then torn: PodResources names the
/// containers.
#[test]
#[ignore = "needs cluster: tests/run"]
fn without_the_checkpoint_pod_resources_identifies_the_container() {
    let bed = Bed::up("cdi-listing");
    let (root, _view) = bed.own_kubelet_root("view");
    let checkpoint = bed.paths().kubelet.join("view/device-plugins/kubelet_internal_checkpoint");
    let flag = format!("--kubelet-root={root}");
    let agent = bed.agent(&[&flag]);
    let gpus = Bed::gpus(&agent);
    let claims: [Claim<'_>; 3] =
        [("warm", "init", &[(1, 700, 7)]), ("one", "app", &[(0, 3000, 15)]), ("two", "app", &[(1, 2000, 10)])];
    let check = |names: &[&str]| {
        bed.ready(names);
        for pod in names {
            let log = bed.admin.run(&["logs", "-n", &bed.space.name, pod, "-c", "warm"]).ok();
            let warm: Value = serde_json::from_str(&log).expect("JSON");
            assert_eq!((devices_in(&warm), &warm["pod"]["name"]), (vec![(gpus[1].clone(), 700 * MIB)], &json!(pod)));
            assert_eq!(devices_of_container(&bed, &gpus, pod, "one"), [(gpus[0].clone(), 3000 * MIB)]);
            assert_eq!(devices_of_container(&bed, &gpus, pod, "two"), [(gpus[1].clone(), 2000 * MIB)]);
        }
    };
    for pod in ["missing-1", "missing-2", "missing-3"] {
        bed.create(&bed.pod(pod, &gpus, &claims, &NOTHING));
    }
    check(&["missing-1", "missing-2", "missing-3"]);
    std::fs::write(&checkpoint, "{\"Data\":").expect("a torn file");
    // The agent restarts in between, and still knows which slots belong to which ticket.
    bed.create(&bed.pod("torn", &gpus, &claims, &NOTHING));
    drop(agent);
    let _again = bed.agent(&[&flag]);
    let torn = bed.pod("torn", &gpus, &claims, &NOTHING);
    // The kubelet may have admitted the pod while no agent ran.
    let _ = bed.ready_with_retries(&[("torn".to_owned(), torn)], (1, &["torn"]));
    check(&["torn"]);
}
