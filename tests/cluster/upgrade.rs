//! An upgrade under load: five pods a second are created while the agent is replaced twice. Each time the new agent starts
//! before the old one ends.

use crate::bed::{Bed, SOON};
use crate::fleet::check_all_containers;
use crate::placed::{Placed, SETTLED, container, spec};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pause between two pods.
const APART: Duration = Duration::from_millis(200);
/// Longest time until a hundred containers run on two cores.
const RUN_WITHIN: Duration = Duration::from_secs(300);

/// Promise 39 in docs/specification.md. Without `GPU_STEWARD_LONG` there are 40 pods.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn no_pod_fails_while_the_agent_is_replaced_twice() {
    let bed = Bed::exclusive("upgrade");
    let pods = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 100 } else { 40 };
    let gpus = "--gpus=simulated=H100:10";
    let first = bed.agent(&[gpus]);
    let uuids = Bed::gpus(&first);
    let made = AtomicUsize::new(0);
    let agent = std::thread::scope(|scope| {
        let mut agent = first;
        scope.spawn(|| {
            let began = Instant::now();
            for n in 0..pods {
                std::thread::sleep((APART * n).saturating_sub(began.elapsed()));
                let name = format!("pod-{n}");
                let claim = [(n as usize % uuids.len(), 1000 + u64::from(n), 1)];
                bed.create(&bed.pod(&name, &uuids, &[("main", "app", &claim)], &Value::Null));
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        for part in 1..=2 {
            let due = part * pods as usize / 3;
            eventually("the time of the next replacement", SOON, || {
                (made.load(Ordering::Relaxed) >= due).then_some(())
            });
            let next = bed.launch(&[gpus]);
            // As with the DaemonSet: the old agent gets SIGTERM when the new one is ready.
            eventually("the new agent to be ready", SOON, || (next.get("/readyz").status == 200).then_some(()));
            next.logs("another agent shares the GPUs of this node");
            let began = Instant::now();
            let ended = agent.terminate();
            assert!(ended.status.success(), "{}", ended.log);
            agent = next;
            agent.logs("] registered with kubelet");
            println!(
                "replaced {:.0} ms after SIGTERM: {}",
                began.elapsed().as_secs_f64() * 1000.0,
                made.load(Ordering::Relaxed)
            );
        }
        agent
    });
    let failed = eventually("every pod to run or fail", RUN_WITHIN, || {
        let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
        let items = list["items"].as_array()?;
        let in_phase = |phase: &str| items.iter().filter(|pod| pod["status"]["phase"] == phase).collect::<Vec<_>>();
        let (failed, runs) = (in_phase("Failed"), in_phase("Running").len());
        (items.len() == pods as usize && runs + failed.len() == items.len())
            .then(|| failed.iter().map(|pod| pod["status"]["message"].to_string()).collect::<Vec<_>>())
    });
    let kubelet = &bed.node_object()["status"]["nodeInfo"]["kubeletVersion"];
    println!("{pods} pods, two replacements, kubelet {kubelet}: {} failed for good {failed:#?}", failed.len());
    assert!(failed.is_empty(), "{failed:#?}\n{}", agent.log());
    assert!(check_all_containers(&bed) >= pods as usize);
    // The kubelet sees the end of the agent that it knows.
    drop(agent);
    eventually("kubelet to see the end of the plugin", SOON, || {
        (bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"] == "0").then_some(())
    });
    check_end_of_both_agents(&bed);
}

/// Both agents of an upgrade get SIGTERM: the new agent before or just after the kubelet has forgotten the connections of the
/// resource (docs/decisions/0120). The kubelet notices that no plugin is left. Twenty times with `GPU_STEWARD_LONG`.
fn check_end_of_both_agents(bed: &Bed) {
    let rounds = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 20 } else { 2 };
    let gpus = "--gpus=simulated=H100:1";
    let allocatable = |count: &str| {
        eventually(&format!("kubelet to have {count} GPUs"), SOON, || {
            (bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"] == *count).then_some(())
        });
    };
    for round in 0..rounds {
        let first = bed.agent(&[gpus]);
        allocatable("10");
        let next = bed.launch(&[gpus]);
        eventually("the new agent to be ready", SOON, || (next.get("/readyz").status == 200).then_some(()));
        first.signal(libc::SIGTERM);
        if round % 2 == 0 {
            next.logs("] registered with kubelet");
        } else {
            // SIGTERM comes at a different moment in each round, before or after the kubelet forgets the connections.
            std::thread::sleep(Duration::from_millis(60 + 10 * round));
        }
        next.signal(libc::SIGTERM);
        let (first, next) = (first.wait(), next.wait());
        assert!(first.status.success() && next.status.success(), "{}\n{}", first.log, next.log);
        allocatable("0");
    }
}

/// Promise 43 in docs/specification.md: all agents of the cluster are replaced while a real kube-scheduler and the extender
/// place five pods a second. Each agent that ends asks the leader to bind nothing more to its node, and waits for the pods
/// that are bound. With `GPU_STEWARD_LONG` there are 100 pods, and the pods of the extender and kube-scheduler are replaced at
/// the same time, so that the leader changes.
pub(crate) fn check_replaced_agents(placed: &Placed) {
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let pods = if long { 100 } else { 60 };
    let relay = long.then(|| placed.agents_report_over_relay());
    if relay.is_none() {
        placed.agents_report();
    }
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000 });
    placed.deployment("load", &share);
    let replaced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            for n in 1..=pods {
                std::thread::sleep((APART * n).saturating_sub(began.elapsed()));
                placed.scale("load", n as usize);
            }
            println!(
                "{pods} pods in {:.1} s, agents replaced: {}",
                began.elapsed().as_secs_f64(),
                replaced.load(Ordering::Relaxed)
            );
        });
        scope.spawn(|| {
            let began = Instant::now();
            placed.replace_agents();
            replaced.store(true, Ordering::Relaxed);
            println!("all agents replaced in {:.1} s", began.elapsed().as_secs_f64());
        });
        if long {
            scope.spawn(|| {
                let began = Instant::now();
                placed.replace_extender();
                println!("the extender replaced in {:.1} s", began.elapsed().as_secs_f64());
            });
        }
    });
    placed.run("app=load", pods as usize);
    assert_eq!(placed.check(placed.extender_address()), pods as usize);
    check_unplaced_pod(placed);
}

/// A pod that names no GPU scheduler is placed on a node with pods of the extender: the agent refuses its start and reports
/// this, and the node stays open.
fn check_unplaced_pod(placed: &Placed) {
    let space = &placed.space.name;
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for pod in placed.pods() {
        *nodes.entry(pod["spec"]["nodeName"].as_str().expect("a node").to_owned()).or_default() += 1;
    }
    let node = nodes.iter().min_by_key(|(_, pods)| **pods).expect("a node with pods").0;
    let create = |name: &str, scheduler: &str, limits: &Value| {
        let mut spec = spec(&[container("main", limits)]);
        spec["schedulerName"] = scheduler.into();
        spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
        let metadata = json!({ "name": name, "labels": { "app": name } });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        let _ = placed.admin.run_with(&["create", "-n", space, "-f", "-"], &pod.to_string()).ok();
    };
    create("unplaced", "default-scheduler", &json!({ "nvidia.com/gpu": 1 }));
    eventually("the pod to be refused", SETTLED, || {
        let selector = "involvedObject.name=unplaced,reason=NotPlaced";
        let events = placed.admin.get(&["events", "-n", space, "--field-selector", selector]);
        events["items"].as_array()?.first().map(|_| ())
    });
    eventually("no node to be closed", SETTLED, || (placed.closed_nodes()? == 0).then_some(()));
    create("beside", "gpu-steward", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000 }));
    placed.run("app=beside", 1);
}
