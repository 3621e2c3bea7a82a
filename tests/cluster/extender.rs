//! The extender on the real cluster: a real kube-scheduler calls it, and agents give the containers the devices that it chose.

use crate::audit;
use crate::bed::EVICT;
use crate::chart::NAMESPACE;
use crate::leaders;
use crate::order;
use crate::placed::{GPUS, Placed, SETTLED, container, spec, workload};
use crate::seats::{HostExtender, HostScheduler};
use crate::upgrade;
use lab::eventually::eventually;
use lab::http;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The number of pods that are created at once.
const BURST: usize = 60;

/// All checks of an extender whose Deployment stays, one after the other on one cluster of three nodes.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn placed_pods_get_what_they_request() {
    let placed = Placed::up_with("extender-places", &[order::ANSWERED]);
    order::check_choices(&placed);
    placed.clear();
    check_workloads(&placed);
    placed.clear();
    check_node_without_agent(&placed);
    placed.clear();
    // The agents report, so that claims also end by their reports about processes.
    placed.agents_report();
    check_bursts(&placed);
    let begun = Instant::now();
    check_one_eviction(&placed);
    println!("the eviction took {:.0} s", begun.elapsed().as_secs_f64());
    placed.clear();
    upgrade::check_replaced_agents(&placed);
}

/// Extenders that end at any moment. The outage of the API server comes last, because after an outage the garbage collector
/// may forget pods.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn extenders_that_end_at_any_moment_give_no_device_twice() {
    let placed = Placed::agents("extender-ends");
    leaders::check_paused_leader(&placed);
    placed.clear();
    check_killed_extenders(&placed);
}

/// Promise 40 in docs/specification.md: pods of one burst over several nodes and GPUs get what they request, and no claim
/// is left once they are gone. 20 rounds with `GPU_STEWARD_LONG`.
fn check_bursts(placed: &Placed) {
    let rounds = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 20 } else { 1 };
    for round in 0..rounds {
        // All Deployments have different requests, so that swapped devices are noticed.
        let deployments = [
            ("small", BURST / 2, json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000 }), json!(null)),
            (
                "slice",
                BURST / 3,
                json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4500, "nvidia.com/gpucores": 10 }),
                json!(null),
            ),
            (
                "pair",
                BURST / 6,
                json!({ "nvidia.com/gpu": 2, "nvidia.com/gpumem": 2000 }),
                json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 7000 }),
            ),
        ];
        let items: Vec<Value> = deployments
            .iter()
            .map(|(name, replicas, limits, init)| {
                let mut pod = spec(&[container("main", limits)]);
                if !init.is_null() {
                    let mut first = container("warm", init);
                    first["command"] = json!(["true"]);
                    pod["initContainers"] = json!([first]);
                }
                workload("Deployment", name, &pod, &json!({ "replicas": replicas }))
            })
            .collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let space = &placed.space.name;
        let from = audit::end(&placed.cluster);
        let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &list).ok();
        for (name, replicas, ..) in &deployments {
            placed.run(&format!("app={name}"), *replicas);
        }
        let containers = placed.check(placed.extender_address());
        println!("round {round}: {containers} containers have what their pods claim");
        assert_eq!(containers, BURST);
        let calls = audit::calls_for_pods_of_extenders(&placed.cluster, from);
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for call in &calls {
            *kinds.entry(format!("{} of {}", call.verb_and_subresource(), call.resource())).or_default() += 1;
        }
        println!("round {round}: {} calls for {BURST} pods: {kinds:?}", calls.len());
        // A binding and two events for each pod. A pod that kube-scheduler knows before the extender is read once.
        let reads = kinds.remove("get of pods").unwrap_or(0);
        assert!(reads <= BURST, "{reads} pods were read");
        let others = calls.len() - reads;
        assert!((BURST..=3 * BURST).contains(&others), "{others} calls for {BURST} pods: {kinds:?}");
        let _ = placed.admin.run(&["delete", "deployments", "--all", "-n", space]).ok();
        placed.empty();
        assert_eq!(placed.check(placed.extender_address()), 0);
    }
    // An extender that gets no calls writes only its Lease.
    let from = audit::end(&placed.cluster);
    eventually("three renewals of the Lease", SETTLED, || {
        let writes = audit::writes_of_extenders(&placed.cluster, from);
        let other: Vec<_> = writes.iter().filter(|write| write.resource() != "leases").collect();
        assert!(other.is_empty(), "{other:?}");
        (writes.len() >= 3).then_some(())
    });
}

/// Job, StatefulSet with a volume that waits for its first consumer, DaemonSet, and a pod that is too large for every GPU.
fn check_workloads(placed: &Placed) {
    let space = &placed.space.name;
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 5000 });
    let create = |object: &Value| {
        let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &object.to_string()).ok();
    };
    volumes(placed);
    let mut brief = spec(&[container("main", &share)]);
    brief["containers"][0]["command"] = json!(["true"]);
    brief["restartPolicy"] = "Never".into();
    create(&json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "brief" },
        "spec": { "completions": 6, "parallelism": 3, "template": { "spec": brief } },
    }));
    let mut stateful = spec(&[container("main", &share)]);
    stateful["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "gpu-steward-test",
            "resources": { "requests": { "storage": "1Mi" } },
        },
    });
    let more = json!({ "replicas": 2, "serviceName": "kept", "volumeClaimTemplates": [claim] });
    create(&workload("StatefulSet", "kept", &stateful, &more));
    create(&workload("DaemonSet", "each", &spec(&[container("main", &share)]), &Value::Null));
    placed.run("app=kept", 2);
    placed.run("app=each", 3);
    eventually("the end of the Job", SETTLED, || {
        let job = placed.admin.get(&["job", "brief", "-n", space]);
        (job["status"]["succeeded"] == 6).then_some(())
    });
    // The pods of the Job have ended and hold nothing.
    assert_eq!(placed.check(placed.extender_address()), 5);
    let large = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 100_000 });
    create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "large" }, "spec": spec(&[container("main", &large)]),
    }));
    eventually("an event that names the nearest fit", SETTLED, || {
        let selector = "involvedObject.name=large,reason=FilteringFailed";
        let events = placed.admin.get(&["events", "-n", space, "--field-selector", selector]);
        let says = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("requests 100000 MiB"));
        events["items"].as_array()?.iter().any(says).then_some(())
    });
    check_preemption(placed);
    let _ = placed.admin.run(&["delete", "storageclass", "gpu-steward-test"]).ok();
    let _ = placed.admin.run(&["delete", "persistentvolume", "-l", "test=gpu-steward", "--wait=false"]).ok();
}

/// A pod of higher priority preempts one pod of lower priority, and no more. A pod that would not fit any GPU of the node even
/// then preempts none, because the extender removes the node from kube-scheduler's proposal.
fn check_preemption(placed: &Placed) {
    const CLASS: &str = "gpu-steward-test-urgent";
    let space = &placed.space.name;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": CLASS }, "value": 1000,
    });
    let _ = placed.admin.apply(&class.to_string()).ok();
    let node = placed.cluster.status().nodes[0].name.clone();
    // Eight of the node's forty slots. Four such pods leave fewer than eight, because earlier pods also run there.
    let eight = |mib: usize| {
        let limits = json!({ "nvidia.com/gpu": 4, "nvidia.com/gpumem": mib });
        let mut pod = spec(&[container("one", &limits), container("two", &limits)]);
        pod["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
        pod
    };
    let _ = placed.admin.run(&["delete", "pod", "large", "-n", space]).ok();
    let fillers = workload("Deployment", "filler", &eight(1000), &json!({ "replicas": 4 }));
    let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &fillers.to_string()).ok();
    placed.run("app=filler", 4);
    let fillers = || -> BTreeSet<String> {
        let pods = placed.pods();
        let here =
            pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "filler" && pod["spec"]["nodeName"] == *node);
        here.map(|pod| pod["metadata"]["uid"].to_string()).collect()
    };
    let before = fillers();
    let urgent = |name: &str, mib: usize| {
        let mut pod = eight(mib);
        pod["priorityClassName"] = CLASS.into();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } }, "spec": pod });
        let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &pod.to_string()).ok();
    };
    let asked = || {
        let text = http::get(placed.extender_address(), "/metrics").expect("an answer").text();
        let line = text.lines().find_map(|line| {
            line.strip_prefix("gpu_steward_extender_answer_seconds_count{verb=\"preempt\"} ")?.parse::<u64>().ok()
        });
        line.unwrap_or_default()
    };
    let earlier = asked();
    urgent("too-large", 100_000);
    eventually("a preemption call", SETTLED, || (asked() > earlier).then_some(()));
    // kube-scheduler evicts right after the answer, and calls the extender again for each try of the pod.
    urgent("urgent", 2000);
    // kube-scheduler tries the pod again when its victim ends, perhaps before the extender has seen this, and after that only
    // at the next event (docs/scheduling.md).
    let mut changes = 0;
    eventually("the urgent pod to run", SETTLED, || {
        changes += 1;
        let label = format!("gpu-steward.test/change={changes}");
        let _ = placed.admin.run(&["label", "node", &node, &label, "--overwrite"]).ok();
        let pod = placed.admin.get(&["pod", "urgent", "-n", space]);
        (pod["status"]["phase"] == "Running").then_some(())
    });
    let _ = placed.admin.run(&["label", "node", &node, "gpu-steward.test/change-"]).ok();
    assert!(asked() > earlier + 1);
    let after = fillers();
    assert_eq!((after.len(), after.is_subset(&before)), (3, true), "{after:?} of {before:?}");
    assert_eq!(placed.check(placed.extender_address()), 5 + 2 * 4);
    let _ = placed.admin.run(&["delete", "priorityclass", CLASS]).ok();
}

/// A pod of higher priority evicts one pod on one of two full nodes, whose processes end seconds later, and no pod on the other
/// node, however often kube-scheduler tries it again meanwhile.
fn check_one_eviction(placed: &Placed) {
    const CLASS: &str = "gpu-steward-test-evicts";
    const FULL: &str = "gpu-steward.test/full";
    let space = &placed.space.name;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": CLASS }, "value": 1000,
    });
    let _ = placed.admin.apply(&class.to_string()).ok();
    let nodes: Vec<String> = placed.cluster.status().nodes.iter().take(2).map(|node| node.name.clone()).collect();
    for node in &nodes {
        let _ = placed.admin.run(&["label", "node", node, &format!("{FULL}=true"), "--overwrite"]).ok();
    }
    // The pod takes all forty slots of a node. Its processes ignore SIGTERM and are killed after three seconds. The agent's
    // list of processes, up to five seconds old, then still has them.
    let whole = || {
        let limits = json!({ "nvidia.com/gpu": 4, "nvidia.com/gpumem": 4000 });
        let containers: Vec<Value> = (0..10)
            .map(|number| {
                let mut container = container(&format!("c{number}"), &limits);
                container["command"] = json!(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
                container
            })
            .collect();
        let mut pod = spec(&containers);
        pod["terminationGracePeriodSeconds"] = 3.into();
        pod["nodeSelector"] = json!({ FULL: "true" });
        pod
    };
    let fillers = workload("Deployment", "filler", &whole(), &json!({ "replicas": 2 }));
    let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &fillers.to_string()).ok();
    placed.run("app=filler", 2);
    let running = || -> BTreeSet<String> {
        let pods = placed.pods();
        let stays = |pod: &&Value| {
            pod["metadata"]["labels"]["app"] == "filler"
                && pod["spec"]["nodeName"].is_string()
                && pod["metadata"]["deletionTimestamp"].is_null()
        };
        pods.iter().filter(stays).map(|pod| pod["metadata"]["uid"].to_string()).collect()
    };
    let before = running();
    assert_eq!(before.len(), 2);
    let mut urgent = whole();
    urgent["priorityClassName"] = CLASS.into();
    let urgent = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "urgent" }, "spec": urgent });
    let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &urgent.to_string()).ok();
    // Each change of a node lets kube-scheduler try the pod again.
    let mut changes = 0;
    eventually("the urgent pod to run", SETTLED, || {
        changes += 1;
        let label = format!("gpu-steward.test/change={changes}");
        let _ = placed.admin.run(&["label", "node", &nodes[0], &label, "--overwrite"]).ok();
        let left = running().intersection(&before).count();
        assert!(left >= 1, "a second pod is evicted: {}", placed.extender_log());
        let pod = placed.admin.get(&["pod", "urgent", "-n", space]);
        (pod["status"]["phase"] == "Running").then_some(())
    });
    assert_eq!(running().intersection(&before).count(), 1, "exactly one pod is evicted");
    let _ = placed.admin.run(&["label", "node", &nodes[0], "gpu-steward.test/change-"]).ok();
    for node in &nodes {
        let _ = placed.admin.run(&["label", "node", node, &format!("{FULL}-")]).ok();
    }
    let _ = placed.admin.run(&["delete", "priorityclass", CLASS]).ok();
}

/// Two volumes that pods of any node can mount, once a scheduler has chosen the node.
fn volumes(placed: &Placed) {
    let mut items = vec![json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "gpu-steward-test" },
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    })];
    for number in 0..2 {
        items.push(json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": format!("gpu-steward-{number}"), "labels": { "test": "gpu-steward" } },
            "spec": {
                "capacity": { "storage": "1Mi" }, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "gpu-steward-test",
                "hostPath": { "path": format!("/tmp/gpu-steward-volume-{number}"), "type": "DirectoryOrCreate" },
            },
        }));
    }
    let _ = placed.admin.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).ok();
}

/// Promise 41 in docs/specification.md: kube-scheduler counts GPUs itself, so no pod is placed on a node without an agent; and
/// the leader evicts marked pods as far as a disruption budget allows.
fn check_node_without_agent(placed: &Placed) {
    const AWAY: &str = "gpu-steward.test/away";
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000 });
    let node = placed.cluster.status().nodes[1].name.clone();
    // The agent of one node ends and does not come back.
    let affinity = json!({ "spec": { "template": { "spec": { "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": AWAY, "operator": "DoesNotExist" } ] }] } } } } } } });
    let daemonset = ["daemonset/gpu-steward-agent", "-n", NAMESPACE];
    let patch = affinity.to_string();
    let _ = placed.admin.run(&[&["patch"][..], &daemonset, &["-p", &patch]].concat()).ok();
    let wait = [&["rollout", "status"][..], &daemonset, &["--timeout=120s"]].concat();
    let _ = placed.admin.run(&wait).ok();
    let _ = placed.admin.run(&["label", "node", &node, &format!("{AWAY}=true"), "--overwrite"]).ok();
    let allocatable = |count: &str| {
        eventually(&format!("{count} GPUs on {node}"), SETTLED, || {
            let object = placed.admin.get(&["node", &node]);
            (object["status"]["allocatable"]["nvidia.com/gpu"] == *count).then_some(())
        });
    };
    allocatable("0");
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let (pods, pause) = if long { (60, Duration::from_secs(1)) } else { (30, Duration::from_millis(300)) };
    placed.deployment("load", &share);
    for replicas in 1..=pods {
        placed.scale("load", replicas);
        std::thread::sleep(pause);
    }
    placed.run("app=load", pods);
    let here = |node: &str| placed.pods().iter().filter(|pod| pod["spec"]["nodeName"] == *node).count();
    assert_eq!(here(&node), 0, "pods were bound to the node without an agent");
    let _ = placed.admin.run(&["label", "node", &node, &format!("{AWAY}-")]).ok();
    allocatable("40");
    check_evictions(placed);
}

/// A marked pod stays as long as the budget forbids its eviction. Once the budget allows it, the pod is evicted and replaced.
fn check_evictions(placed: &Placed) {
    let space = &placed.space.name;
    let budget = |available: usize| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "all", "namespace": space },
            "spec": { "minAvailable": available, "selector": { "matchLabels": { "app": "load" } } },
        })
        .to_string()
    };
    let pods = placed.pods();
    let _ = placed.admin.apply(&budget(pods.len())).ok();
    eventually("a budget that allows nothing", SETTLED, || {
        let budget = placed.admin.get(&["pdb", "all", "-n", space]);
        (budget["status"]["disruptionsAllowed"] == 0 && budget["status"]["currentHealthy"] == pods.len()).then_some(())
    });
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (name, uid) = (text(&pods[0]["metadata"]["name"]), text(&pods[0]["metadata"]["uid"]));
    let mark = json!({ "metadata": { "annotations": { EVICT: "never-starts" } } }).to_string();
    let _ = placed.admin.run(&["patch", "pod", &name, "-n", space, "-p", &mark]).ok();
    eventually("an eviction that the budget refused", SETTLED, || {
        placed.extender_log().contains("disruption budget").then_some(())
    });
    let lives = || placed.pods().iter().any(|pod| pod["metadata"]["uid"] == *uid);
    assert!(lives(), "the budget was not respected");
    let _ = placed.admin.apply(&budget(pods.len() - 1)).ok();
    eventually("the eviction of the marked pod", SETTLED, || (!lives()).then_some(()));
    placed.run("app=load", pods.len());
}

/// Promise 42 in docs/specification.md: extenders are killed again and again while they bind, and no device is given
/// twice. 100 kills with `GPU_STEWARD_LONG`.
fn check_killed_extenders(placed: &Placed) {
    let mut extender = HostExtender::start(placed, None);
    let scheduler = HostScheduler::start(placed, extender.address);
    // One more than a multiple of three, so that a third of the GPUs is in use in the end and the next pods find room.
    let kills: u64 = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 100 } else { 7 };
    // Each pod claims more than half of a GPU, and in the end there are as many pods as GPUs, so a GPU that is given twice is
    // overclaimed.
    placed.deployment("load", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 50_000 }));
    let (mut mid_bind, mut made) = (0, 0);
    for kill in 0..kills {
        extender.wait_until_leads();
        let before = extender.binds_begun();
        made += 4;
        if made > GPUS {
            placed.run("app=load", made - 4);
            extender.wait_until_leads();
            assert_eq!(placed.check(extender.address), made - 4);
            // Make room for more pods: the claims of deleted pods are free again.
            placed.scale("load", 0);
            placed.empty();
            made = 4;
        }
        placed.scale("load", made);
        eventually("a binding", SETTLED, || (extender.binds_begun() > before).then_some(()));
        // Each kill comes a bit later than the last one, so that kills hit before, during and after the calls of the bindings.
        std::thread::sleep(Duration::from_millis(7 * (kill % 10)));
        let unfinished = extender.kill();
        mid_bind += usize::from(unfinished > 0);
        extender = HostExtender::start(placed, Some(extender.address));
    }
    println!("{kills} kills, {mid_bind} of them while a binding was under way");
    assert!(mid_bind > 0, "no kill came in the middle of a binding");
    placed.run("app=load", made);
    extender.wait_until_leads();
    assert_eq!(placed.check(extender.address), made);
    // A restart of the scheduler while it places pods, and an outage of the API server, lose no pod either.
    let before = extender.binds_begun();
    placed.scale("load", made + 6);
    eventually("a binding", SETTLED, || (extender.binds_begun() > before).then_some(()));
    drop(scheduler);
    let scheduler = HostScheduler::start(placed, extender.address);
    placed.run("app=load", made + 6);
    assert_eq!(placed.check(extender.address), made + 6);
    placed.scale("load", made - 2);
    placed.scale("load", made + 6);
    // A clean stop of an API server takes a minute while it has watches.
    placed.cluster.part("kill", "apiserver");
    std::thread::sleep(Duration::from_secs(if kills > 7 { 120 } else { 30 }));
    placed.cluster.part("start", "apiserver");
    // kube-scheduler ends when it cannot renew its Lease. A kubelet would restart it.
    drop(scheduler);
    let _scheduler = HostScheduler::start(placed, extender.address);
    placed.run("app=load", made + 6);
    extender.wait_until_leads();
    assert_eq!(placed.check(extender.address), made + 6);
}
