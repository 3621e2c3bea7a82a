//! What a user of the cluster tries against the extender: pods whose JSON is far larger than they are, pods whose annotations
//! leave no room, pods that name their node themselves.

use crate::placed::{Placed, SETTLED, container, spec};
use lab::eventually::eventually;
use lab::http;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Instant;

/// One attack after the other on one cluster of three nodes.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn a_user_cannot_stop_the_extender_with_pods() {
    let placed = Placed::up_with("attack", &[]);
    placed.allows_any_shape();
    placed.agents_report();
    let begun = Instant::now();
    // First, while no node has had a pod with a claim.
    check_named_nodes(&placed);
    placed.clear();
    check_escaped_texts(&placed);
    placed.clear();
    check_full_annotations(&placed);
    println!("these attacks took {:.0} s", begun.elapsed().as_secs_f64());
}

fn create(placed: &Placed, pods: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string();
    let _ = placed.admin.run_with(&["create", "-n", &placed.space.name, "-f", "-"], &list).ok();
}

/// A pod that waits, with a share of a GPU.
fn pod(name: &str, annotations: &Value) -> Value {
    let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000 });
    let metadata = json!({ "name": name, "labels": { "app": name }, "annotations": annotations });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(&[container("main", &share)]) })
}

/// The API server escapes `<` in JSON six-fold: all of these pods together have 36 MiB in a list.
fn check_escaped_texts(placed: &Placed) {
    let pods: Vec<Value> = (0..24)
        .map(|number| {
            let mut pod = pod(&format!("escaped-{number}"), &json!({ "a": "<".repeat(256 * 1024 - 1) }));
            pod["spec"]["schedulerName"] = "nobody".into();
            pod
        })
        .collect();
    pods.chunks(4).for_each(|some| create(placed, some));
    // The new leader lists all pods.
    placed.replace_extender();
    placed.agents_report();
    create(placed, &[pod("among", &json!({}))]);
    placed.run("app=among", 1);
    let ready = http::get(placed.extender_address(), "/readyz").expect("an answer of the extender");
    assert_eq!((ready.status, ready.text().as_str()), (200, "ready\n"));
}

/// The API server binds a pod whose annotations have no room for the claim, and then refuses each status of its kubelet.
fn check_full_annotations(placed: &Placed) {
    create(
        placed,
        &[pod("full", &json!({ "a": "x".repeat(262_099) })), pod("fits", &json!({ "a": "x".repeat(245_700) }))],
    );
    placed.run("app=fits", 1);
    let space = &placed.space.name;
    eventually("an event that says what to do", SETTLED, || {
        let selector = "involvedObject.name=full,reason=FilteringFailed";
        let events = placed.admin.get(&["events", "-n", space, "--field-selector", selector]);
        let says = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("make them shorter"));
        events["items"].as_array()?.iter().any(says).then_some(())
    });
    assert!(placed.admin.get(&["pod", "full", "-n", space])["spec"]["nodeName"].is_null());
}

/// Pods with `nodeName` and without a claim, again and again, on nodes that have had no pod with a claim.
fn check_named_nodes(placed: &Placed) {
    let nodes = placed.admin.get(&["nodes"]);
    let names = nodes["items"].as_array().expect("a list").iter().filter_map(|node| node["metadata"]["name"].as_str());
    let names: Vec<&str> = names.collect();
    let mut made = 0;
    for round in 0..10 {
        // Each takes one of the 40 slots of its node.
        let hand = |name: &&str| {
            let mut pod = pod(&format!("hand-{round}-{name}"), &json!({}));
            pod["spec"]["nodeName"] = (*name).into();
            pod
        };
        create(placed, &names.iter().map(hand).collect::<Vec<Value>>());
        made += names.len();
        assert_eq!(placed.closed_nodes(), Some(0), "after {made} pods");
    }
    create(placed, &[pod("last", &json!({}))]);
    placed.run("app=last", 1);
    all_refused(placed, made);
    assert_eq!(placed.closed_nodes(), Some(0));
    let by_hand = |pod: &&Value| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("hand-"));
    let pods = placed.pods();
    assert!(pods.iter().filter(by_hand).all(|pod| pod["status"]["phase"] != "Running"), "{pods:#?}");
}

/// Waits until this number of pods has an event that says why it is not started.
fn all_refused(placed: &Placed, count: usize) {
    eventually("the agents' refusals", SETTLED, || {
        let events = placed.admin.get(&["events", "-n", &placed.space.name, "--field-selector", "reason=NotPlaced"]);
        let about = |event: &Value| event["involvedObject"]["name"].as_str().map(str::to_owned);
        let pods: BTreeSet<String> = events["items"].as_array()?.iter().filter_map(about).collect();
        (pods.len() == count).then_some(())
    });
}
