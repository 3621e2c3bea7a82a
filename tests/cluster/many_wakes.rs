//! Wakes of many pods, and of one pod beside many: how soon pods have a node after there is room.

use crate::audit;
use crate::placed::{Placed, SETTLED};
use crate::seats::{HostExtender, HostScheduler};
use crate::throughput::{self, CHUNK, GPU_MIB, GPUS, add_nodes, pod, quantile};
use crate::wakes::{GIB, QUIET, Stranger, create, is_bound, job, wait_until_refused};
use jiff::Timestamp;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest time until thousands of pods were refused: kube-scheduler writes at most 50 of them a second.
const REFUSED: Duration = Duration::from_secs(1200);
/// The marks: seconds after there is room until 99 of 100 pods of 200 have a node, and until one pod beside 10,000 refused ones has.
const MANY_WITHIN: f64 = 15.0;
const ONE_WITHIN: f64 = 5.0;

/// How often pods were woken that ended in this way, as the extender in the cluster counts them.
fn wakes(placed: &Placed, outcome: &str) -> usize {
    let name = format!("gpu_steward_extender_wakes_total{{outcome=\"{outcome}\"}} ");
    placed.metric(&name).unwrap_or_default()
}

/// How many pods of the test are like this.
fn count(placed: &Placed, is: impl Fn(&Value) -> bool) -> usize {
    placed.pods().iter().filter(|pod| is(pod)).count()
}

/// Waits until kube-scheduler has asked about this many pods at least, and asks no more.
fn wait_until_quiet(placed: &Placed, pods: usize) {
    let mut last = (0, Instant::now());
    eventually("kube-scheduler to be quiet", REFUSED, || {
        let calls = placed.metric("gpu_steward_extender_answer_seconds_count{verb=\"filter\"} ").unwrap_or_default();
        if calls != last.0 {
            last = (calls, Instant::now());
        }
        (calls >= pods && last.1.elapsed() > QUIET).then_some(())
    });
}

/// 200 pods, each of which requests a whole GPU, wait for 200 others. When those are gone, each has a node soon, and no pod is
/// woken in vain.
#[test]
#[ignore = "takes minutes and a cluster: tests/run --long"]
fn two_hundred_pods_are_bound_soon_after_there_is_room_for_them() {
    const NODES: usize = 25;
    const PODS: usize = NODES * GPUS;
    let placed = Placed::control_plane("extender-many");
    add_nodes(&placed, 0..NODES);
    let extender = HostExtender::start(&placed, None);
    extender.wait_until_leads();
    let _scheduler = HostScheduler::start_unbounded(&placed, extender.address);
    let whole = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": GPU_MIB });
    let make = |app: &str| {
        let one = |number: usize| {
            let mut pod = pod(&format!("{app}-{number}"), &whole);
            pod["metadata"]["labels"] = json!({ "app": app });
            pod
        };
        throughput::create(&placed, (0..PODS).map(one).collect());
    };
    make("full");
    let bound = |pod: &Value| pod["spec"]["nodeName"].is_string();
    eventually("all GPUs in use", REFUSED, || (count(&placed, bound) == PODS).then_some(()));
    make("waits");
    let refused = |pod: &Value| pod["status"]["conditions"][0]["reason"] == "Unschedulable";
    eventually("the other pods to be refused", REFUSED, || (count(&placed, refused) == PODS).then_some(()));
    std::thread::sleep(QUIET);
    let from = audit::end(&placed.cluster);
    let path = format!("/api/v1/namespaces/{}/pods?labelSelector=app%3Dfull", placed.space.name);
    let _ = placed.admin.run(&["delete", "--raw", &path]).ok();
    let free = Timestamp::now();
    assert_eq!(placed.pods().len(), PODS, "the first pods are gone");
    let mut waited: Vec<f64> = eventually("all pods to be bound", SETTLED, || {
        std::thread::sleep(Duration::from_secs(1));
        let writes = audit::writes_of_extenders(&placed.cluster, from);
        let bindings = writes.iter().filter(|call| call.verb_and_subresource() == "create binding" && call.succeeded());
        let waited: Vec<f64> = bindings.map(|call| call.ended().duration_since(free).as_secs_f64()).collect();
        (waited.len() >= PODS).then_some(waited)
    });
    let [half, most] = [50, 99].map(|percent| quantile(&mut waited, percent));
    let [passed, in_vain] = ["passed", "refused"]
        .map(|outcome| extender.metric(&format!("gpu_steward_extender_wakes_total{{outcome=\"{outcome}\"}}")));
    println!(
        "{PODS} pods: 50 of 100 are bound {half:.1} s after there is room, 99 of 100 after {most:.1} s (at most {MANY_WITHIN})"
    );
    println!("woken pods for which a node fitted: {passed}, for which none did: {in_vain}");
    assert!(most <= MANY_WITHIN, "{waited:?}");
    assert_eq!(in_vain, 0);
}

/// 10,000 pods of another namespace were refused and can never fit. A pod that waits beside them has a node soon after a process of
/// the host has left the GPU. Only this pod is woken: an event that kube-scheduler sees would bring all of them back.
#[test]
#[ignore = "takes 15 minutes and a cluster: tests/run --long"]
fn one_pod_is_bound_soon_beside_ten_thousand_refused_pods_of_another_namespace() {
    const OTHERS: usize = 10_000;
    let stranger = Stranger::holding(60 * GIB);
    let placed = stranger.placed("extender-beside");
    let others = placed.cluster.namespace("extender-hopeless");
    let huge = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 10 * GPU_MIB });
    let pods: Vec<Value> = (0..OTHERS).map(|number| pod(&format!("huge-{number}"), &huge)).collect();
    for items in pods.chunks(CHUNK) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let _ = placed.admin.run_with(&["create", "-n", &others.name, "-f", "-"], &list).ok();
    }
    wait_until_quiet(&placed, OTHERS);
    create(&placed, &job("waits", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 40_000 })));
    wait_until_refused(&placed, "waits");
    wait_until_quiet(&placed, OTHERS + 1);
    let before = (wakes(&placed, "passed"), wakes(&placed, "refused"));
    stranger.holds(0);
    let left = Instant::now();
    eventually("the pod to be bound", SETTLED, || is_bound(&placed.pods(), "waits").then_some(()));
    let took = left.elapsed().as_secs_f64();
    println!("bound {took:.1} s after the process had left, beside {OTHERS} refused pods (at most {ONE_WITHIN})");
    assert!(took <= ONE_WITHIN, "{took} {}", placed.extender_log());
    assert_eq!((wakes(&placed, "passed"), wakes(&placed, "refused")), (before.0 + 1, before.1));
}
