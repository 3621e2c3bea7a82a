//! Tests sharing on a runtime without CDI: all devices are in the answer to `Allocate`, and no container starts with
//! another container's devices.

use crate::bed::{Bed, Claim, SOON, devices_in};
use crate::life::sleeper;
use crate::sharing::check_refused_starts;
use lab::agent::Agent;
use lab::cluster::{Cluster, ClusterOptions, TestNamespace};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NOTHING: Value = Value::Null;

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

/// The UUIDs of the claim on the pod, whose only container with devices has them.
fn claimed_uuids(pod: &Value) -> Vec<String> {
    let text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().unwrap_or_default();
    text.split([';', ':']).filter_map(|one| Some(one.split_once(',')?.0.to_owned())).collect()
}

/// Waits until all pods are Ready. Deletes and makes again, as a controller would, pods that failed admission or are
/// marked for eviction. Only the pods `may_fail` may, each of them once in each way. Returns how many pods failed and
/// how many were marked.
fn ready_with_controller(bed: &Bed, pods: &[(String, Value)], may_fail: &[(String, Value)]) -> (usize, usize) {
    let (mut failed, mut evicted) = (BTreeSet::new(), BTreeSet::new());
    eventually("every pod Ready", Duration::from_secs(240), || {
        let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
        let items = list["items"].as_array()?;
        let mut ready = 0;
        for (name, pod) in pods {
            let Some(now) = items.iter().find(|item| item["metadata"]["name"] == **name) else {
                bed.create(pod);
                continue;
            };
            let failure = now["status"]["phase"] == "Failed";
            if failure || now["metadata"]["annotations"]["gpu-steward.io/evict"].is_string() {
                let what = &now["status"];
                assert!(may_fail.iter().any(|(other, _)| other == name), "{name} may not fail: {failure} {what}");
                let is_new = if failure { &mut failed } else { &mut evicted }.insert(name.clone());
                assert!(is_new, "{name} has failed twice: {failure} {what}");
                let _ = bed.admin.run(&["delete", "pod", name, "-n", &bed.space.name, "--now"]).ok();
            }
            let mut conditions = now["status"]["conditions"].as_array().into_iter().flatten();
            ready += usize::from(conditions.any(|one| one["type"] == "Ready" && one["status"] == "True"));
        }
        (ready == pods.len()).then_some(())
    });
    (failed.len(), evicted.len())
}

fn bed_without_cdi(name: &str) -> (Bed, Agent, Vec<String>) {
    let bed = Bed::with(name, &ClusterOptions::nodes(1).without_cdi());
    let agent = bed.agent(&["--gpus=simulated=H100:4"]);
    agent.logs("has no CDI");
    let gpus = Bed::gpus(&agent);
    (bed, agent, gpus)
}

/// Debian's containerd 1.6 runs pods under the same kubelet.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_old_runtime_runs_pods() {
    let cluster = Cluster::up(&ClusterOptions::nodes(1).without_cdi());
    let (admin, space) = (cluster.admin(), cluster.namespace("life-old"));
    let node = admin.get(&["node", "node-1"]);
    let runtime = node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap_or_default();
    assert!(runtime.starts_with("containerd://1.6."), "{runtime}");
    let _ = admin.apply(&sleeper(&space.name, "sleeper", "node-1")).ok();
    admin.wait("condition=Ready", SOON, &["pod/sleeper", "-n", &space.name]);
    assert_eq!(admin.exec(&space.name, "sleeper", &["echo", "from inside"]).trim(), "from inside");
}

/// Promise 28 in docs/specification.md, without CDI.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_each_container_gets_its_own_devices() {
    let (bed, agent, gpus) = bed_without_cdi("early-own");
    let claims: [Claim<'_>; 5] = [
        ("warm", "init", &[(0, 1000, 10)]),
        ("beside", "sidecar", &[(1, 500, 5)]),
        ("one", "app", &[(2, 3000, 30)]),
        ("both", "app", &[(1, 2000, 20), (0, 4000, 40)]),
        ("none", "app", &[]),
    ];
    bed.create(&bed.pod("many", &gpus, &claims, &NOTHING));
    bed.ready(&["many"]);
    for (container, kind, devices) in claims {
        let expect: Vec<(String, u64)> = devices.iter().map(|(gpu, mib, _)| (gpus[*gpu].clone(), mib * MIB)).collect();
        if kind == "init" {
            let log = bed.admin.run(&["logs", "-n", &bed.space.name, "many", "-c", container]).ok();
            let limits: Value = serde_json::from_str(&log).expect("JSON");
            assert_eq!((devices_in(&limits), &limits["container"]), (expect, &json!(container)));
        } else if devices.is_empty() {
            let seen = bed.sh(
                "many",
                container,
                "ls /etc/gpu-steward /dev 2>&1 | grep -e limits -e nvidia; env | grep -i cuda; true",
            );
            assert_eq!(seen, "", "a container that asks for no GPU sees none");
        } else {
            assert_eq!(devices_of_container(&bed, &gpus, "many", container), expect, "{container}");
        }
    }
    // A container that ends gets the same devices when it starts again.
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "many", "-c", "one", "--", "sh", "-c", "kill 1"]);
    eventually("a second start", SOON, || {
        let pod = bed.admin.get(&["pod", "many", "-n", &bed.space.name]);
        let states = pod["status"]["containerStatuses"].as_array()?.clone();
        let one = states.iter().find(|state| state["name"] == "one")?;
        (one["restartCount"].as_u64()? > 0 && one["state"]["running"].is_object()).then_some(())
    });
    assert_eq!(devices_of_container(&bed, &gpus, "many", "one"), [(gpus[2].clone(), 3000 * MIB)]);
    drop(agent);
}

/// Promise 30 in docs/specification.md, without CDI.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_a_wrong_claim_does_not_start_and_an_event_says_why() {
    let bed = Bed::with("early-refuse", &ClusterOptions::nodes(1).without_cdi());
    let agent = bed.agent(&["--without-claim=refuse"]);
    agent.logs("has no CDI");
    check_refused_starts(&bed, &agent);
}

/// Promise 29 in docs/specification.md holds for the limits file. It holds for variables only if the pod does not set
/// them itself.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_the_limits_file_holds_and_the_pods_own_variables_win() {
    let (bed, agent, gpus) = bed_without_cdi("early-loosen");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "loose", "namespace": bed.space.name },
        "data": { "CUDA_DEVICE_SM_LIMIT_0": "100" },
    });
    bed.create(&map);
    let loose = json!({
        "env": [{ "name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "999999m" }],
        "envFrom": [{ "configMapRef": { "name": "loose" } }],
    });
    bed.create(&bed.pod("loose", &gpus, &[("main", "app", &[(0, 3000, 30)])], &loose));
    bed.ready(&["loose"]);
    let env = bed.sh("loose", "main", "tr '\\0' '\\n' </proc/1/environ");
    let value_of =
        |name: &str| env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
    // The kubelet's order, not a promise of the agent: the pod's own variables come after those of the plugin.
    assert_eq!(value_of("CUDA_DEVICE_MEMORY_LIMIT_0").as_deref(), Some("999999m"));
    assert_eq!(value_of("CUDA_DEVICE_SM_LIMIT_0").as_deref(), Some("100"));
    // Variables that the pod does not set have the agent's values.
    assert_eq!(value_of("CUDA_DEVICE_MEMORY_LIMIT").as_deref(), Some("3000m"));
    assert_eq!(value_of("NVIDIA_VISIBLE_DEVICES").as_deref(), Some("void"));
    assert_eq!(value_of("GPU_STEWARD_TICKET").map(|ticket| ticket.len()), Some(33));
    let output = bed.sh(
        "loose",
        "main",
        "f=/etc/gpu-steward/limits.json; (echo x >$f) 2>&1; rm -f $f 2>&1; mount -o remount,rw $f 2>&1; true",
    );
    assert!(output.contains("Read-only file system"), "{output}");
    assert_eq!(devices_of_container(&bed, &gpus, "loose", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    drop(agent);
}

/// Promise 28 in docs/specification.md, without CDI and without a scheduler that keeps apart pods that could be
/// confused: a burst of equal and different claims, and the agent is killed in the middle of another burst.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_a_burst_and_a_killed_agent_give_no_container_anothers_devices() {
    let (bed, mut agent, gpus) = bed_without_cdi("early-burst");
    // Three shapes on four GPUs, so that some pods could be exchanged and others not.
    let shape = |n: usize| (n % 4, 1000 + 500 * (n % 3) as u64, 5);
    let pods: Vec<(String, Value)> = (0..30)
        .map(|n| {
            let name = format!("pod-{n}");
            let pod = bed.pod(&name, &gpus, &[("main", "app", &[shape(n)])], &NOTHING);
            (name, pod)
        })
        .collect();
    let all_at_once = |pods: &[(String, Value)]| {
        let items: Vec<&Value> = pods.iter().map(|(_, pod)| pod).collect();
        bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
    };
    let (first, second) = pods.split_at(24);
    let began = std::time::Instant::now();
    all_at_once(first);
    // While the agent runs, the kubelet fails no pod. It admits pods in the order of its watch, which is also the order
    // of the agent's watch.
    let _ = ready_with_controller(&bed, first, &[]);
    println!("24 pods Ready after {:.1} s", began.elapsed().as_secs_f64());
    all_at_once(second);
    eventually("a ticket of the second burst", SOON, || {
        (agent.log().matches("kubelet allocates").count() > 24).then_some(())
    });
    agent.signal(9);
    drop(agent);
    agent = bed.agent(&["--gpus=simulated=H100:4"]);
    // Each of the six pods may come while no agent runs, or be one of two pods that the new agent cannot tell apart.
    // The first 24 pods run, and none of them may fail.
    let (failed, evicted) = ready_with_controller(&bed, &pods, second);
    println!("6 more with the agent killed: {failed} failed by kubelet, {evicted} made again");
    let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
    let now = list["items"].as_array().expect("a list");
    let mut per_gpu = vec![0; gpus.len()];
    for (n, (name, _)) in pods.iter().enumerate() {
        let devices = devices_of_container(&bed, &gpus, name, "main");
        assert_eq!(devices.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [shape(n).1 * MIB], "{name}");
        per_gpu[gpus.iter().position(|gpu| *gpu == devices[0].0).expect("a GPU")] += 1;
        let uuids: Vec<String> = devices.into_iter().map(|(uuid, _)| uuid).collect();
        let pod = now.iter().find(|pod| pod["metadata"]["name"] == **name).expect("the pod");
        assert_eq!(claimed_uuids(pod), uuids, "{name}: its claim is written on it");
    }
    println!("pods on each GPU: {per_gpu:?}");
    drop(agent);
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
    let other = bed.cluster.namespace("early-off-other");
    pod["metadata"]["namespace"] = other.name.as_str().into();
    bed.create(&pod);
    other
}

/// The runtime's version has CDI, but CDI is switched off and the runtime does not report that. The agent finds that out,
/// logs it and changes to early binding. No container keeps a ticket that has no effect. If the runtime reports whether
/// CDI is on, the agent uses the report.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn disabled_cdi_is_detected_from_the_first_containers_of_two_namespaces() {
    const SILENT: &str = "--cri-socket=/run/nobody.sock";
    let bed = Bed::with("early-off", &ClusterOptions::nodes(1).with_cdi_off());
    let agent = bed.agent(&[SILENT]);
    let gpus = Bed::gpus(&agent);
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 5)])];
    let warmed: [Claim<'_>; 2] = [("warm", "init", &[(0, 500, 5)]), ("main", "app", &[(0, 3000, 5)])];
    // The pod's init container finds no limits and fails again and again, so its app container never starts and proves
    // nothing.
    bed.create(&bed.pod("stuck", &gpus, &warmed, &NOTHING));
    agent.logs("container devices delivered");
    bed.create(&bed.pod("first", &gpus, &one, &NOTHING));
    bed.create(&bed.pod("beside", &gpus, &one, &NOTHING));
    agent.logs("a container runs without its limits");
    assert!(!agent.log().contains("get their devices from Allocate"), "one namespace does not change the mode");
    let _other = in_another_namespace(&bed, bed.pod("elsewhere", &gpus, &one, &NOTHING));
    agent.logs("containers that come now get their devices from Allocate");
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
    let check_new_pod = |pod: &str| {
        bed.create(&bed.pod(pod, &gpus, &warmed, &NOTHING));
        bed.ready(&[pod]);
        assert_eq!(devices_of_container(&bed, &gpus, pod, "main"), [(gpus[0].clone(), 3000 * MIB)]);
    };
    check_new_pod("second");
    // The next agent knows it from its start.
    drop(agent);
    let agent = bed.agent(&[SILENT]);
    agent.logs("when that was last tried");
    check_new_pod("third");
    drop(agent);
    let fresh = format!("--state-dir={}", bed.dir().join("fresh").display());
    let agent = bed.agent(&[&fresh]);
    agent.logs("reports that its CDI is switched off");
    check_new_pod("fourth");
    // The runtime starts again and says that CDI is on, and later that it is off again.
    let restart_runtime_with_cdi = |before: bool, now: bool| {
        let change = format!("s/enable_cdi = {before}/enable_cdi = {now}/");
        let changed = bed.paths().command("sed").args(["-i", &change, "/etc/kubernetes/containerd.toml"]).status();
        assert!(changed.expect("sed").success());
        bed.part("kill", "containerd");
        bed.part("start", "containerd");
    };
    restart_runtime_with_cdi(false, true);
    agent.logs("reports that its own CDI is on");
    check_new_pod("fifth");
    agent.logs("CDI works here");
    restart_runtime_with_cdi(true, false);
    eventually("early again", SOON, || (agent.log().matches("CDI is switched off").count() == 2).then_some(()));
    check_new_pod("sixth");
    let fifth = bed.admin.get(&["pod", "fifth", "-n", &bed.space.name]);
    assert_eq!(
        fifth["metadata"]["annotations"]["gpu-steward.io/evict"],
        Value::Null,
        "it has the devices of its claim"
    );
}

/// After a loss of power: the kubelet's checkpoint also has what the answer to `Allocate` gave, so the container starts
/// again with it.
#[test]
#[ignore = "needs cluster: tests/run"]
fn with_early_binding_a_lost_state_directory_is_restored_from_the_checkpoint() {
    let bed = Bed::up("early-lost");
    let agent = bed.agent(&["--binding=early"]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.pod("kept", &gpus, &[("main", "app", &[(1, 3000, 5)])], &NOTHING));
    bed.ready(&["kept"]);
    drop(agent);
    for lost in ["tickets", "pods"] {
        std::fs::remove_dir_all(bed.state().join(lost)).expect("it was there");
    }
    let _ = std::fs::write(bed.state().join("started"), [0; 4096]);
    let agent = bed.agent(&["--binding=early"]);
    agent.logs("this ticket is in the kubelet's checkpoint only");
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "kept", "--", "kill", "1"]);
    eventually("its second start", SOON, || {
        let state = bed.admin.get(&["pod", "kept", "-n", &bed.space.name]);
        let own = &state["status"]["containerStatuses"][0];
        (own["restartCount"].as_u64()? > 0 && own["ready"] == true).then_some(())
    });
    assert_eq!(devices_of_container(&bed, &gpus, "kept", "main"), [(gpus[1].clone(), 3000 * MIB)]);
}

/// `--binding=early` gives all devices in the answer to `Allocate` also if the runtime has CDI. `--binding=late` works
/// after that again.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_flag_binding_sets_the_binding_mode() {
    let bed = Bed::up("early-flag");
    for (binding, known) in [("early", true), ("late", false)] {
        let agent = bed.agent(&[&format!("--binding={binding}")]);
        agent.logs("--binding sets how containers get their devices");
        let gpus = Bed::gpus(&agent);
        bed.create(&bed.pod(
            binding,
            &gpus,
            &[("warm", "init", &[(1, 700, 7)]), ("main", "app", &[(0, 3000, 30)])],
            &NOTHING,
        ));
        bed.ready(&[binding]);
        assert_eq!(devices_of_container(&bed, &gpus, binding, "main"), [(gpus[0].clone(), 3000 * MIB)]);
        // Only with early binding the agent must know at `Allocate` which pod the call is for.
        let log = agent.log();
        let calls: Vec<&str> = log.lines().filter(|line| line.contains("kubelet allocates")).collect();
        let with_pod = calls.iter().filter(|line| line.contains(&format!("pod=early-flag/{binding}"))).count();
        assert_eq!((calls.len(), with_pod), (2, if known { 2 } else { 0 }), "{calls:?}");
    }
}

/// Promise 28 in docs/specification.md while the kubelet's checkpoint is missing and then torn: PodResources names the
/// containers.
#[test]
#[ignore = "needs cluster: tests/run"]
fn without_the_checkpoint_pod_resources_identifies_the_container() {
    let bed = Bed::up("early-listing");
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
    // The agent restarts in between: it keeps which slots it gave out with which ticket.
    bed.create(&bed.pod("torn", &gpus, &claims, &NOTHING));
    drop(agent);
    let _again = bed.agent(&[&flag]);
    let torn = bed.pod("torn", &gpus, &claims, &NOTHING);
    // The pod may have come while no agent ran.
    let _ = bed.ready_with_retries(&[("torn".to_owned(), torn)], (1, &["torn"]));
    check(&["torn"]);
}

/// A read-only mount over a folder of a node. It is removed when this is dropped, also if the test fails.
struct ReadOnlyMount<'a>(&'a Bed, PathBuf);

impl ReadOnlyMount<'_> {
    fn at(bed: &Bed, folder: PathBuf) -> ReadOnlyMount<'_> {
        let path = folder.to_str().expect("a path").to_owned();
        for words in [["-o", "bind", &path, &path].as_slice(), &["-o", "remount,bind,ro", &path]] {
            assert!(bed.paths().command("mount").args(words).status().expect("mount").success());
        }
        ReadOnlyMount(bed, folder)
    }
}

impl Drop for ReadOnlyMount<'_> {
    fn drop(&mut self) {
        let _ = self.0.paths().command("umount").arg(&self.1).output();
    }
}

/// The agent must know after a restart what the answer to `Allocate` gave. If it cannot write that down, the kubelet
/// fails the pod, and log and event name the pod, the container, the path and the reason.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_an_allocation_that_cannot_be_saved_fails_and_names_its_container() {
    let (bed, agent, gpus) = bed_without_cdi("early-locked");
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 30)])];
    bed.create(&bed.pod("first", &gpus, &one, &NOTHING));
    bed.ready(&["first"]);
    let covered = ReadOnlyMount::at(&bed, bed.state().join("tickets"));
    bed.create(&bed.pod("locked", &gpus, &one, &NOTHING));
    let message = eventually("an event that says why the pod fails", SOON, || {
        let events =
            bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", "involvedObject.name=locked"]);
        let events = events["items"].as_array()?.clone();
        let event = events.iter().find(|event| event["reason"] == "NotDelivered")?;
        Some(event["message"].as_str()?.to_owned())
    });
    for words in ["container main", "state/tickets/", "Read-only file system", "--state-dir"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let parts = ["pod=early-locked/locked", "container main", "Read-only"];
    assert!(agent.log().lines().any(|line| parts.iter().all(|words| line.contains(words))), "{}", agent.log());
    drop(covered);
    let _ = bed.admin.run(&["delete", "pod", "locked", "-n", &bed.space.name, "--now"]).ok();
    bed.create(&bed.pod("again", &gpus, &one, &NOTHING));
    bed.ready(&["again"]);
    assert_eq!(devices_of_container(&bed, &gpus, "again", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    drop(agent);
}
