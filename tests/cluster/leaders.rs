//! Two extenders, of which the leader is paused: the other one takes over, and the paused one gives no device when it
//! continues.

use crate::placed::{GPUS, Placed, SETTLED};
use crate::seats::{HostExtender, HostScheduler};
use lab::eventually::eventually;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Pods that are added before and during each pause.
const MORE: usize = 3;
/// The annotations of a binding.
const OF_A_BINDING: &str = include_str!("../golden/claims/version-1.json");

/// Promise 42 in docs/specification.md: SIGSTOP in the middle of bindings, and SIGCONT while the other extender binds.
/// 20 pauses with `GPU_STEWARD_LONG`.
pub(crate) fn check_paused_leader(placed: &Placed) {
    let pauses: u64 = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 20 } else { 4 };
    // Each pod claims more than half of a GPU, and there are at most as many pods as GPUs, so a GPU that is given twice is
    // overclaimed.
    placed.deployment("load", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 50_000 }));
    let (mut leader, mut other) = (HostExtender::start(placed, None), HostExtender::start(placed, None));
    eventually("one extender to lead", SETTLED, || (leader.leads() || other.leads()).then_some(()));
    if other.leads() {
        std::mem::swap(&mut leader, &mut other);
    }
    let (mut made, mut mid_bind) = (0, 0);
    for pause in 0..pauses {
        if made + 2 * MORE > GPUS {
            placed.scale("load", 0);
            placed.empty();
            made = 0;
        }
        let scheduler = HostScheduler::start(placed, leader.address);
        let before = leader.binds_begun();
        made += MORE;
        placed.scale("load", made);
        eventually("a binding", SETTLED, || (leader.binds_begun() > before).then_some(()));
        std::thread::sleep(Duration::from_millis(5 * (pause % 8)));
        mid_bind += usize::from(leader.pause() > 0);
        drop(scheduler);
        other.wait_until_leads();
        let scheduler = HostScheduler::start(placed, other.address);
        let before = other.binds_begun();
        made += MORE;
        placed.scale("load", made);
        eventually("a binding of the other extender", SETTLED, || (other.binds_begun() > before).then_some(()));
        leader.signal("-CONT");
        placed.run("app=load", made);
        eventually("the paused extender to follow", SETTLED, || (!leader.leads()).then_some(()));
        assert_eq!(placed.check(other.address), made);
        drop(scheduler);
        std::mem::swap(&mut leader, &mut other);
    }
    println!("{pauses} pauses, {mid_bind} of them while a binding was under way");
    assert!(mid_bind > 0, "no pause came in the middle of a binding");
    check_bound_twice(placed, &leader);
}

/// Leaders of two terms have bound two pods to the same memory, which no fence prevents. One pod starts. The other pod never
/// starts: an event says why, the leader evicts it, and its Deployment creates a new pod, which gets its own memory.
fn check_bound_twice(placed: &Placed, leader: &HostExtender) {
    let sample = placed.pods().swap_remove(0);
    let own = |key: &str| -> Value {
        sample["metadata"]["annotations"][key].as_str().expect("a binding of the leader").into()
    };
    let written: Map<String, Value> = serde_json::from_str(OF_A_BINDING).expect("JSON");
    let annotations: Map<String, Value> = written
        .into_iter()
        .map(|(key, value)| match &*key {
            // The agent of the running pod has changed this annotation since.
            "hami.io/bind-phase" => (key, value),
            "hami.io/vgpu-devices-to-allocate" => (key, own("hami.io/vgpu-devices-allocated")),
            _ => (key.clone(), own(&key)),
        })
        .collect();
    placed.scale("load", 0);
    placed.empty();
    placed.deployment("twice", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 50_000 }));
    placed.scale("twice", 2);
    let space = &placed.space.name;
    let pods = eventually("two pods without a node", SETTLED, || Some(placed.pods()).filter(|pods| pods.len() == 2));
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name, "annotations": annotations },
            "target": { "apiVersion": "v1", "kind": "Node", "name": sample["spec"]["nodeName"] },
        });
        let path = format!("/api/v1/namespaces/{space}/pods/{name}/binding");
        let _ = placed.admin.run_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string()).ok();
    }
    let uids = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let first = uids(&pods);
    eventually("one running pod and one that was created again", SETTLED, || {
        let pods = placed.pods();
        let old: Vec<&Value> = pods.iter().filter(|pod| first.contains(&pod["metadata"]["uid"])).collect();
        let starts = old.iter().filter(|pod| pod["status"]["containerStatuses"][0]["started"] == true).count();
        assert!(starts < 2, "both have started: {old:#?}");
        (pods.len() == 2 && old.len() == 1 && starts == 1).then_some(())
    });
    let events = placed.admin.get(&["events", "-n", space]);
    let said = |event: &&Value| event["message"].as_str().is_some_and(|text| text.contains("50000 MiB"));
    let warnings = events["items"].as_array().expect("a list").iter().filter(|event| event["type"] == "Warning");
    let said: Vec<&Value> = warnings.filter(said).collect();
    said.iter().for_each(|event| println!("{}: {}", event["reason"], event["message"]));
    assert!(!said.is_empty(), "{events:#?}");
    let _scheduler = HostScheduler::start(placed, leader.address);
    placed.run("app=twice", 2);
    assert_eq!(placed.check(leader.address), 2);
}
