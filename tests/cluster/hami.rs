//! Starts pods exactly as HAMi 2.10.0's own scheduler placed them, all at once on a real kubelet. Compares what the
//! containers get with the answers of HAMi's own plugin for the same pods. A table here lists every difference with its
//! reason.

use crate::bed::{Bed, SOON, devices_in};
use crate::container::{build_fake_limiter, events};
use crate::fleet::{check_all_containers, process};
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::scenario::FakeNvml;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

const SCHEDULER: &str = include_str!("../golden/hami/scheduler.json");
const PLUGIN: &str = include_str!("../golden/hami/plugin.json");
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const LEFT: &str = "hami.io/vgpu-devices-to-allocate";
const LOCK: &str = "hami.io/mutex.lock";
const MIB: u64 = 1 << 20;

/// Variables whose values differ from those of HAMi's plugin, and the reason. All other variables must be equal.
const DIFFERENT: [(&str, &str); 1] =
    [("NVIDIA_VISIBLE_DEVICES", "void: the runtime must inject nothing, because the devices come by CDI")];

/// An agent on GPUs with these UUIDs.
fn agent(bed: &Bed, gpus: &[(&str, String)], more: &[&str]) -> (Agent, FakeNvml) {
    let fake = FakeNvml::install(bed.dir()).expect("a fake library");
    let gpus: Vec<Value> = gpus.iter().map(|(model, uuid)| json!({ "model": model, "uuid": uuid })).collect();
    fake.write_text(json!({ "gpus": gpus }).to_string().as_bytes()).expect("a scenario");
    let library = format!("--nvml-library={}", fake.library().display());
    let nodes = format!("--dev-root={}", nodes(bed, gpus.len()).display());
    (bed.agent(&[&["--gpus=nvml", &library, &nodes], more].concat()), fake)
}

/// Harmless device nodes for this many GPUs.
fn nodes(bed: &Bed, gpus: usize) -> PathBuf {
    let folder = bed.dir().join("dev");
    std::fs::create_dir_all(&folder).expect("a folder");
    let own = (0..gpus).map(|number| format!("nvidia{number}"));
    for name in own.chain(["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]) {
        let made = Command::new("mknod").arg(folder.join(name)).args(["c", "1", "3"]).status();
        assert!(made.expect("mknod").success());
    }
    folder
}

/// The pod as HAMi's scheduler left it after the binding, except for the name of the node.
fn placed(bed: &Bed, name: &str, init: &[Value], containers: &[Value], allocated: &Value) -> Value {
    let container = |(number, (kind, limits)): (usize, (&str, &Value))| {
        let command =
            if kind == "i" { "cat /etc/gpu-steward/limits.json" } else { "trap exit TERM; sleep 100000 & wait" };
        json!({
            "name": format!("{kind}{number}"), "image": "registry.local/busybox:1", "command": ["sh", "-c", command],
            "resources": { "limits": limits },
        })
    };
    let of = |kind: &'static str, limits: &[Value]| -> Vec<Value> {
        limits.iter().enumerate().map(|(number, limits)| container((number, (kind, limits)))).collect()
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": bed.space.name,
            "annotations": {
                "hami.io/bind-phase": "allocating", "hami.io/bind-time": "1795256507", "hami.io/vgpu-node": bed.node(),
                "hami.io/vgpu-time": "1795256507", ALLOCATED: allocated, LEFT: allocated,
            },
        },
        "spec": {
            "nodeName": bed.node(), "terminationGracePeriodSeconds": 0, "dnsPolicy": "Default",
            "automountServiceAccountToken": false, "initContainers": of("i", init), "containers": of("c", containers),
        },
    })
}

/// Creates all pods at once while `holder` holds the node lock, and waits until HAMi's scheduler could continue.
fn serve(bed: &Bed, pods: &[Value], holder: &str) {
    let lock = format!("{LOCK}=2026-11-21T10:21:47Z,{},{holder}", bed.space.name);
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &lock]).ok();
    bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }));
    let name = |pod: &Value| pod["metadata"]["name"].as_str().expect("a name").to_owned();
    let pods: Vec<(String, Value)> = pods.iter().map(|pod| (name(pod), pod.clone())).collect();
    // The agent always runs here, so no pod may fail.
    let _ = bed.ready_with_retries(&pods, (0, &[]));
    for (name, _) in &pods {
        eventually(&format!("{name} reported to HAMi's scheduler"), SOON, || {
            let annotations = bed.admin.get(&["pod", name, "-n", &bed.space.name])["metadata"]["annotations"].clone();
            let left = annotations[LEFT].as_str().unwrap_or_default();
            (annotations["hami.io/bind-phase"] == "success" && left.trim_matches(';').is_empty()).then_some(())
        });
    }
    eventually("the node's lock released", SOON, || {
        bed.node_object()["metadata"]["annotations"][LOCK].is_null().then_some(())
    });
}

/// The claims that HAMi's scheduler wrote for seventeen pods, created as one burst. HAMi's scheduler reduces a request
/// of more SM time than a GPU has and places the pod; the agent reports the wrong request in an event.
#[test]
#[ignore = "needs cluster: tests/run"]
fn pods_placed_by_hamis_scheduler_get_their_devices_in_one_burst() {
    let bed = Bed::up("hami-scheduler");
    let gpus: Vec<(&str, String)> = [("A100", "a100", 4), ("T4", "t4", 4), ("H100", "h100", 8)]
        .into_iter()
        .flat_map(|(model, word, count)| {
            (0..count).map(move |n| (model, format!("GPU-{word}-{n:04}-0000-0000-000000000000")))
        })
        .collect();
    let (_agent, _fake) = agent(&bed, &gpus, &[]);
    let cases: Vec<Value> = serde_json::from_str(SCHEDULER).expect("JSON");
    let (wrong, cases): (Vec<Value>, Vec<Value>) = cases.into_iter().partition(|case| case["case"] == "too-many-cores");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let pod = |case: &Value| {
        let name = case["case"].as_str().expect("a name");
        let (init, containers) = (list(&case["initContainers"]), list(&case["containers"]));
        placed(&bed, name, &init, &containers, &case["annotations"][ALLOCATED])
    };
    let pods: Vec<Value> = cases.iter().map(pod).collect();
    serve(&bed, &pods, "one-slice");
    bed.create(&pod(&wrong[0]));
    eventually("an event that says what is wrong with the request", SOON, || {
        let messages = events(&bed, "too-many-cores", "BadRequest");
        messages.first().filter(|text| text.contains("101")).map(|_| ())
    });
    // HAMi's own annotation of `sidecar-first` lacks a slot. So this pod is compared with its request, not with the
    // annotation.
    let (sidecar, rest): (Vec<&str>, Vec<&str>) =
        cases.iter().filter_map(|case| case["case"].as_str()).partition(|name| *name == "sidecar-first");
    assert_eq!(
        devices_in(&bed.limits(sidecar[0], "c1")),
        [("GPU-a100-0000-0000-0000-000000000000".into(), 1000 * MIB)]
    );
    assert_eq!(bed.sh(sidecar[0], "c0", "ls /etc/gpu-steward /dev | grep -e limits -e nvidia; true"), "");
    let _ = bed.admin.run(&["delete", "pod", "-n", &bed.space.name, sidecar[0], "--now"]).ok();
    let containers = check_all_containers(&bed);
    println!("{} pods as HAMi's scheduler placed them, {containers} containers with GPUs", rest.len() + 1);
    assert_eq!(containers, 16);
}

/// The answers of HAMi's own plugin to a real kubelet, for six containers.
#[test]
#[ignore = "needs cluster: tests/run"]
fn containers_differ_from_those_of_hamis_plugin_only_as_listed() {
    let bed = Bed::up("hami-plugin");
    let gpus: Vec<(&str, String)> =
        (0..4).map(|n| ("A100", format!("GPU-{n:08}-fa4e-4000-8000-000000000000"))).collect();
    let library = bed.dir().join("libvgpu.so");
    build_fake_limiter(&library, "any");
    let (_agent, _fake) = agent(&bed, &gpus, &[&format!("--limiter-library={}", library.display())]);
    let answers: Vec<Value> = serde_json::from_str(PLUGIN).expect("JSON");
    let by_pod: BTreeMap<&str, &Value> =
        answers.iter().map(|answer| (answer["pod"].as_str().expect("a name"), answer)).collect();
    let pods: Vec<Value> = by_pod
        .iter()
        .map(|(name, answer)| {
            placed(&bed, name, &[], answer["limits"].as_array().expect("limits"), &answer["allocated"])
        })
        .collect();
    serve(&bed, &pods, "one");
    let cgroup = bed.paths().cgroup.clone();
    let mut different = BTreeSet::new();
    for answer in &answers {
        let (name, container) =
            (answer["pod"].as_str().expect("a name"), answer["container"].as_str().expect("a name"));
        let pod = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
        let states = pod["status"]["containerStatuses"].as_array().expect("states");
        let state = states.iter().find(|state| state["name"] == container).expect("its state");
        let id = state["containerID"].as_str().and_then(|id| id.rsplit('/').next()).expect("an id");
        let process = process(&cgroup, pod["metadata"]["uid"].as_str().expect("a UID"), id).expect("its process");
        let environ = String::from_utf8(std::fs::read(process.join("environ")).expect("variables")).expect("text");
        let own: BTreeMap<&str, &str> = environ.split('\0').filter_map(|line| line.split_once('=')).collect();
        for path in answer["mounts"].as_array().expect("paths").iter().filter_map(Value::as_str) {
            let here = process.join("root").join(path.trim_start_matches('/'));
            assert!(here.exists(), "{name}/{container}: {path} is missing, but HAMi's plugin mounts it");
        }
        for (variable, value) in answer["env"].as_object().expect("variables") {
            let value = value.as_str().expect("text");
            if own.get(variable.as_str()) == Some(&value) {
                continue;
            }
            assert!(
                DIFFERENT.iter().any(|(name, _)| name == variable),
                "{name}/{container}: {variable} is {:?}, from HAMi's plugin {value}",
                own.get(variable.as_str())
            );
            different.insert(variable.clone());
        }
    }
    for (variable, why) in DIFFERENT {
        println!("differs: {variable}: {why}");
        assert!(different.contains(variable), "{variable} does not differ any more: take it from the table");
    }
}

/// HAMi's scheduler places one pod at a time on a node. The agent releases the node lock as soon as the kubelet has admitted
/// the pod, without waiting for its image. A pod that will be refused is not reported as served; it is reported as failed
/// after its refusal.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_node_lock_is_released_while_an_image_is_pulled() {
    let bed = Bed::up("hami-pull");
    let gpus: Vec<(&str, String)> =
        (0..2).map(|n| ("A100", format!("GPU-{n:08}-fa4e-4000-8000-000000000000"))).collect();
    let (_agent, _fake) = agent(&bed, &gpus, &[]);
    let limits = [json!({ "nvidia.com/gpu": "1" })];
    let pod = |name: &str, gpu: &str| {
        let allocated = format!("{gpu},NVIDIA,3000,10:;");
        let mut pod = placed(&bed, name, &[], &limits, &allocated.into());
        pod["spec"]["containers"][0]["image"] = "registry.local/is-never-there:1".into();
        pod
    };
    let annotations =
        |name: &str| bed.admin.get(&["pod", name, "-n", &bed.space.name])["metadata"]["annotations"].clone();
    let lock = |name: &str| {
        let lock = format!("{LOCK}=2026-11-21T10:21:47Z,{},{name}", bed.space.name);
        let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &lock]).ok();
    };
    lock("pulls");
    bed.create(&pod("pulls", &gpus[0].1));
    eventually("the node's lock released", SOON, || {
        bed.node_object()["metadata"]["annotations"][LOCK].is_null().then_some(())
    });
    eventually("the pod reported to HAMi's scheduler", SOON, || {
        (annotations("pulls")["hami.io/bind-phase"] == "success").then_some(())
    });
    let state = bed.admin.get(&["pod", "pulls", "-n", &bed.space.name])["status"].clone();
    assert!(state["containerStatuses"][0]["state"]["running"].is_null(), "its image does not exist: {state}");

    lock("strange");
    bed.create(&pod("strange", "GPU-ffffffff-fa4e-4000-8000-000000000000"));
    bed.create(&pod("next", &gpus[1].1));
    eventually("the pod after it reported to HAMi's scheduler", SOON, || {
        (annotations("next")["hami.io/bind-phase"] == "success").then_some(())
    });
    assert_eq!(annotations("strange")["hami.io/bind-phase"], "allocating", "the node has no such GPU");

    // A pod whose start was refused must not keep the node lock either.
    lock("refused");
    let mut refused = pod("refused", "GPU-ffffffff-fa4e-4000-8000-000000000000");
    refused["spec"]["containers"][0]["image"] = "registry.local/busybox:1".into();
    bed.create(&refused);
    eventually("the refusal reported to HAMi's scheduler", SOON, || {
        (annotations("refused")["hami.io/bind-phase"] == "failed").then_some(())
    });
    eventually("the node's lock released again", SOON, || {
        bed.node_object()["metadata"]["annotations"][LOCK].is_null().then_some(())
    });
}
