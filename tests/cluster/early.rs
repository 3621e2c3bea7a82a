//! Sharing where the runtime has no CDI: everything is given at `Allocate`, and nobody starts with what is another's.

use crate::bed::{Bed, Claim, SOON, promised};
use crate::sharing::refused_starts_are_told;
use lab::agent::Agent;
use lab::cluster::{TestNamespace, Wanted};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NOTHING: Value = Value::Null;

/// What a container has, from inside: the promise that it reads, the device nodes that it can open, and the variable that
/// names them, all of the same devices; as (UUID, bytes).
fn has(bed: &Bed, gpus: &[String], pod: &str, container: &str) -> Vec<(String, u64)> {
    let limits = bed.limits(pod, container);
    assert_eq!(limits["pod"]["name"], *pod, "{limits}");
    assert_eq!(limits["container"], *container, "{limits}");
    let devices = promised(&limits);
    let seen = bed.sh(pod, container, "ls /dev; echo $GPU_STEWARD_DEVICES");
    let nodes: BTreeSet<usize> = seen.lines().filter_map(|line| line.strip_prefix("nvidia")?.parse().ok()).collect();
    let own: BTreeSet<usize> =
        devices.iter().map(|(uuid, _)| gpus.iter().position(|gpu| gpu == uuid).expect("a GPU of the node")).collect();
    assert_eq!(nodes, own, "{pod}/{container}: {limits}");
    let named: Vec<&str> = seen.lines().last().unwrap_or_default().split(',').collect();
    assert!(named.iter().eq(devices.iter().map(|(uuid, _)| uuid)), "{pod}/{container}: {named:?} {limits}");
    devices
}

/// The claim as it stands on the pod, of its only container with devices.
fn claimed(pod: &Value) -> Vec<String> {
    let text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str().unwrap_or_default();
    text.split([';', ':']).filter_map(|one| Some(one.split_once(',')?.0.to_owned())).collect()
}

/// Waits until all are Ready. Pods that kubelet failed or that are marked for eviction are deleted and made again, as the
/// leader and their controller would. Only these may be, each of them once by kubelet and once by its mark; says how many were
/// either.
fn ready_with_a_leader(bed: &Bed, pods: &[(String, Value)], may_fail: &[(String, Value)]) -> (usize, usize) {
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

fn old(name: &str) -> (Bed, Agent, Vec<String>) {
    let bed = Bed::with(name, &Wanted::nodes(1).without_cdi());
    let agent = bed.agent(&["--gpus=simulated=H100:4"]);
    agent.logs("has no CDI");
    let gpus = Bed::gpus(&agent);
    (bed, agent, gpus)
}

/// Promise 28 in docs/specification.md, without CDI.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_each_container_has_its_own() {
    let (bed, agent, gpus) = old("early-own");
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
            assert_eq!((promised(&limits), &limits["container"]), (expect, &json!(container)));
        } else if devices.is_empty() {
            let seen = bed.sh(
                "many",
                container,
                "ls /etc/gpu-steward /dev 2>&1 | grep -e limits -e nvidia; env | grep -i cuda; true",
            );
            assert_eq!(seen, "", "a container that asks for no GPU sees none");
        } else {
            assert_eq!(has(&bed, &gpus, "many", container), expect, "{container}");
        }
    }
    // A container that ends is started again with the same.
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "many", "-c", "one", "--", "sh", "-c", "kill 1"]);
    eventually("a second start", SOON, || {
        let pod = bed.admin.get(&["pod", "many", "-n", &bed.space.name]);
        let states = pod["status"]["containerStatuses"].as_array()?.clone();
        let one = states.iter().find(|state| state["name"] == "one")?;
        (one["restartCount"].as_u64()? > 0 && one["state"]["running"].is_object()).then_some(())
    });
    assert_eq!(has(&bed, &gpus, "many", "one"), [(gpus[2].clone(), 3000 * MIB)]);
    drop(agent);
}

/// Promise 30 in docs/specification.md, without CDI.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_what_cannot_be_right_does_not_start_and_says_why() {
    let bed = Bed::with("early-refuse", &Wanted::nodes(1).without_cdi());
    let agent = bed.agent(&["--without-claim=refuse"]);
    agent.logs("has no CDI");
    refused_starts_are_told(&bed, &agent);
}

/// Promise 29 in docs/specification.md holds of the file; of variables only where the pod does not name them itself.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_the_file_stands_and_the_pods_own_variables_do_too() {
    let (bed, agent, gpus) = old("early-loosen");
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
    let said = |name: &str| env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
    // kubelet's order, not a promise of ours: the pod's own stand behind the plugin's.
    assert_eq!(said("CUDA_DEVICE_MEMORY_LIMIT_0").as_deref(), Some("999999m"));
    assert_eq!(said("CUDA_DEVICE_SM_LIMIT_0").as_deref(), Some("100"));
    // What the pod does not name is as it was given.
    assert_eq!(said("CUDA_DEVICE_MEMORY_LIMIT").as_deref(), Some("3000m"));
    assert_eq!(said("NVIDIA_VISIBLE_DEVICES").as_deref(), Some("void"));
    assert_eq!(said("GPU_STEWARD_TICKET").map(|ticket| ticket.len()), Some(33));
    let tried = bed.sh(
        "loose",
        "main",
        "f=/etc/gpu-steward/limits.json; (echo x >$f) 2>&1; rm -f $f 2>&1; mount -o remount,rw $f 2>&1; true",
    );
    assert!(tried.contains("Read-only file system"), "{tried}");
    assert_eq!(has(&bed, &gpus, "loose", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    drop(agent);
}

/// Promise 28 in docs/specification.md, without CDI and without a scheduler that keeps mistakable claims apart: identical and
/// different claims at once, and the agent killed in the middle.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn without_cdi_a_burst_and_a_killed_agent_mistake_nobody() {
    let (bed, mut agent, gpus) = old("early-burst");
    // Three shapes on four GPUs, so that some can be exchanged and some cannot.
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
    // kubelet fails nobody while the agent is there, and admits in the order of its watch, which is that of ours.
    let _ = ready_with_a_leader(&bed, first, &[]);
    println!("24 pods Ready after {:.1} s", began.elapsed().as_secs_f64());
    all_at_once(second);
    eventually("a ticket of the second burst", SOON, || {
        (agent.log().matches("kubelet allocates").count() > 24).then_some(())
    });
    agent.signal(9);
    drop(agent);
    agent = bed.agent(&["--gpus=simulated=H100:4"]);
    // Each of the six may come while no agent is there, or be one of two that it cannot tell apart when it is there again. The 24
    // run: none of them may.
    let (failed, evicted) = ready_with_a_leader(&bed, &pods, second);
    println!("6 more with the agent killed: {failed} failed by kubelet, {evicted} made again");
    let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
    let now = list["items"].as_array().expect("a list");
    let mut per_gpu = vec![0; gpus.len()];
    for (n, (name, _)) in pods.iter().enumerate() {
        let devices = has(&bed, &gpus, name, "main");
        assert_eq!(devices.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [shape(n).1 * MIB], "{name}");
        per_gpu[gpus.iter().position(|gpu| *gpu == devices[0].0).expect("a GPU")] += 1;
        let uuids: Vec<String> = devices.into_iter().map(|(uuid, _)| uuid).collect();
        let pod = now.iter().find(|pod| pod["metadata"]["name"] == **name).expect("the pod");
        assert_eq!(claimed(pod), uuids, "{name}: what it has stands on it");
    }
    println!("pods on each GPU: {per_gpu:?}");
    drop(agent);
}

/// Whether there is such an event on the pod.
fn is_told(bed: &Bed, pod: &str, reason: &str) {
    eventually(&format!("{reason} on {pod}"), SOON, || {
        let about = format!("involvedObject.name={pod}");
        let events = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", &about]);
        events["items"].as_array()?.iter().any(|event| event["reason"] == *reason).then_some(())
    });
}

fn is_marked(bed: &Bed, pod: &str, reason: &str) {
    eventually(&format!("the mark for eviction on {pod}"), SOON, || {
        let now = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
        (now["metadata"]["annotations"]["gpu-steward.io/evict"] == *reason).then_some(())
    });
}

/// Creates the pod in a namespace of its own, which is there for as long as what this returns.
fn in_another_namespace(bed: &Bed, mut pod: Value) -> TestNamespace {
    let other = bed.cluster.namespace("early-off-other");
    pod["metadata"]["namespace"] = other.name.as_str().into();
    bed.create(&pod);
    other
}

/// A runtime that has CDI by its version, does not use it and does not say so: found out, said, and gone over; nobody goes on
/// with a ticket that stands for nothing. One that says so is believed.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn cdi_that_is_switched_off_is_found_out_with_the_first_containers_of_two_namespaces() {
    const SILENT: &str = "--cri-socket=/run/nobody.sock";
    let bed = Bed::with("early-off", &Wanted::nodes(1).with_cdi_off());
    let agent = bed.agent(&[SILENT]);
    let gpus = Bed::gpus(&agent);
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 5)])];
    let warmed: [Claim<'_>; 2] = [("warm", "init", &[(0, 500, 5)]), ("main", "app", &[(0, 3000, 5)])];
    // Its init container finds no limits and ends with an error, again and again: what comes after it never tells anything.
    bed.create(&bed.pod("stuck", &gpus, &warmed, &NOTHING));
    agent.logs("container devices delivered");
    bed.create(&bed.pod("first", &gpus, &one, &NOTHING));
    bed.create(&bed.pod("beside", &gpus, &one, &NOTHING));
    agent.logs("a container runs without its limits");
    assert!(!agent.log().contains("get their devices from Allocate"), "one namespace does not speak for the node");
    let _other = in_another_namespace(&bed, bed.pod("elsewhere", &gpus, &one, &NOTHING));
    agent.logs("containers that come now get their devices from Allocate");
    for pod in ["first", "beside"] {
        is_told(&bed, pod, "LimitsNotApplied");
        is_marked(&bed, pod, "LimitsNotApplied");
    }
    is_told(&bed, "stuck", "WithoutCdi");
    is_marked(&bed, "stuck", "WithoutCdi");
    eventually("a count", SOON, || {
        let metrics = agent.get("/metrics").text();
        metrics.contains("gpu_steward_troubles_total{kind=\"edits_not_applied\"} 3").then_some(())
    });
    let gets_its_own = |pod: &str| {
        bed.create(&bed.pod(pod, &gpus, &warmed, &NOTHING));
        bed.ready(&[pod]);
        assert_eq!(has(&bed, &gpus, pod, "main"), [(gpus[0].clone(), 3000 * MIB)]);
    };
    gets_its_own("second");
    // And it is known at the next start.
    drop(agent);
    let agent = bed.agent(&[SILENT]);
    agent.logs("when that was last tried");
    gets_its_own("third");
    drop(agent);
    let fresh = format!("--state-dir={}", bed.dir().join("fresh").display());
    let agent = bed.agent(&[&fresh]);
    agent.logs("says that its CDI is switched off");
    gets_its_own("fourth");
    // It is started anew and says something else, and then the first again.
    let says = |before: bool, now: bool| {
        let change = format!("s/enable_cdi = {before}/enable_cdi = {now}/");
        let changed = bed.place().command("sed").args(["-i", &change, "/etc/kubernetes/containerd.toml"]).status();
        assert!(changed.expect("sed").success());
        bed.part("kill", "containerd");
        bed.part("start", "containerd");
    };
    says(false, true);
    agent.logs("says that its own is on");
    gets_its_own("fifth");
    agent.logs("CDI works here");
    says(true, false);
    eventually("early again", SOON, || (agent.log().matches("CDI is switched off").count() == 2).then_some(()));
    gets_its_own("sixth");
    let fifth = bed.admin.get(&["pod", "fifth", "-n", &bed.space.name]);
    assert_eq!(fifth["metadata"]["annotations"]["gpu-steward.io/evict"], Value::Null, "it has what it was promised");
}

/// As after a power loss: what was given at `Allocate` stands in kubelet's checkpoint too, and the container starts again with it.
#[test]
#[ignore = "needs cluster: tests/run"]
fn what_was_given_is_known_without_the_state_directory() {
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
    agent.logs("known from the kubelet's checkpoint only");
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, "kept", "--", "kill", "1"]);
    eventually("its second start", SOON, || {
        let state = bed.admin.get(&["pod", "kept", "-n", &bed.space.name]);
        let own = &state["status"]["containerStatuses"][0];
        (own["restartCount"].as_u64()? > 0 && own["ready"] == true).then_some(())
    });
    assert_eq!(has(&bed, &gpus, "kept", "main"), [(gpus[1].clone(), 3000 * MIB)]);
}

/// Whoever wants to have all at `Allocate` has it, also where there is CDI; and the other way once more after that.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_way_is_as_it_is_told() {
    let bed = Bed::up("early-told");
    for (way, known) in [("early", true), ("late", false)] {
        let agent = bed.agent(&[&format!("--binding={way}")]);
        agent.logs("containers get their devices as --binding says");
        let gpus = Bed::gpus(&agent);
        bed.create(&bed.pod(
            way,
            &gpus,
            &[("warm", "init", &[(1, 700, 7)]), ("main", "app", &[(0, 3000, 30)])],
            &NOTHING,
        ));
        bed.ready(&[way]);
        assert_eq!(has(&bed, &gpus, way, "main"), [(gpus[0].clone(), 3000 * MIB)]);
        // Only who gives all at `Allocate` has to know for whom.
        let log = agent.log();
        let asked: Vec<&str> = log.lines().filter(|line| line.contains("kubelet allocates")).collect();
        let whose = asked.iter().filter(|line| line.contains(&format!("pod=early-told/{way}"))).count();
        assert_eq!((asked.len(), whose), (2, if known { 2 } else { 0 }), "{asked:?}");
    }
}

/// Promise 28 in docs/specification.md, with kubelet's checkpoint missing and then torn: PodResources says who holds what.
#[test]
#[ignore = "needs cluster: tests/run"]
fn without_kubelets_checkpoint_pod_resources_tells_who_starts() {
    let bed = Bed::up("early-listing");
    let (root, _view) = bed.own_kubelet_root("view");
    let books = bed.place().kubelet.join("view/device-plugins/kubelet_internal_checkpoint");
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
            assert_eq!((promised(&warm), &warm["pod"]["name"]), (vec![(gpus[1].clone(), 700 * MIB)], &json!(pod)));
            assert_eq!(has(&bed, &gpus, pod, "one"), [(gpus[0].clone(), 3000 * MIB)]);
            assert_eq!(has(&bed, &gpus, pod, "two"), [(gpus[1].clone(), 2000 * MIB)]);
        }
    };
    for pod in ["missing-1", "missing-2", "missing-3"] {
        bed.create(&bed.pod(pod, &gpus, &claims, &NOTHING));
    }
    check(&["missing-1", "missing-2", "missing-3"]);
    std::fs::write(&books, "{\"Data\":").expect("a torn file");
    // A restart in between: which ids were given out with which ticket is kept.
    bed.create(&bed.pod("torn", &gpus, &claims, &NOTHING));
    drop(agent);
    let _again = bed.agent(&[&flag]);
    let torn = bed.pod("torn", &gpus, &claims, &NOTHING);
    // It may have come while the agent was away.
    let _ = bed.ready_in_the_end(&[("torn".to_owned(), torn)], (1, &["torn"]));
    check(&["torn"]);
}

/// Something is mounted over a folder of a node, until this is dropped: also by a test that fails.
struct ReadOnly<'a>(&'a Bed, PathBuf);

impl ReadOnly<'_> {
    fn at(bed: &Bed, folder: PathBuf) -> ReadOnly<'_> {
        let path = folder.to_str().expect("a path").to_owned();
        for words in [["-o", "bind", &path, &path].as_slice(), &["-o", "remount,bind,ro", &path]] {
            assert!(bed.place().command("mount").args(words).status().expect("mount").success());
        }
        ReadOnly(bed, folder)
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = self.0.place().command("umount").arg(&self.1).output();
    }
}

/// What is given at `Allocate` must be known after a restart: where it cannot be written down kubelet fails the pod for good, and
/// log and event say for which container of which pod, where and why.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn what_cannot_be_written_down_is_not_given_and_says_for_whom() {
    let (bed, agent, gpus) = old("early-locked");
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 30)])];
    bed.create(&bed.pod("first", &gpus, &one, &NOTHING));
    bed.ready(&["first"]);
    let covered = ReadOnly::at(&bed, bed.state().join("tickets"));
    bed.create(&bed.pod("locked", &gpus, &one, &NOTHING));
    let told = eventually("an event that says why the pod is failed", SOON, || {
        let events =
            bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", "involvedObject.name=locked"]);
        let events = events["items"].as_array()?.clone();
        let told = events.iter().find(|event| event["reason"] == "NotDelivered")?;
        Some(told["message"].as_str()?.to_owned())
    });
    for words in ["container main", "state/tickets/", "Read-only file system", "--state-dir"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let said = ["pod=early-locked/locked", "container main", "Read-only"];
    assert!(agent.log().lines().any(|line| said.iter().all(|words| line.contains(words))), "{}", agent.log());
    drop(covered);
    let _ = bed.admin.run(&["delete", "pod", "locked", "-n", &bed.space.name, "--now"]).ok();
    bed.create(&bed.pod("again", &gpus, &one, &NOTHING));
    bed.ready(&["again"]);
    assert_eq!(has(&bed, &gpus, "again", "main"), [(gpus[0].clone(), 3000 * MIB)]);
    drop(agent);
}
