//! Counts the agent's writes to the API server for each pod, from the audit log.

use crate::audit;
use crate::bed::{Bed, Claim, SOON};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The agent's writes since this position in the log, without those on its Node: verbs by object. Pods of this test
/// appear without their namespace.
fn pod_writes(bed: &Bed, from: u64) -> BTreeMap<String, Vec<String>> {
    let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for write in audit::writes_since(bed, from).iter().filter(|write| write.resource() != "nodes") {
        let (space, name) = write.name();
        let ours = write.resource() == "pods" && space == bed.space.name;
        let name = if ours { name.to_owned() } else { format!("{} {space}/{name}", write.resource()) };
        writes.entry(name).or_default().push(write.verb_and_subresource());
    }
    writes
}

/// A pod with a claim, as HAMi's scheduler leaves it while the scheduler waits for the agent.
fn bound_by_hami(mut pod: Value) -> Value {
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["hami.io/vgpu-devices-to-allocate"] = annotations["hami.io/vgpu-devices-allocated"].clone();
    for (key, value) in [("bind-phase", "allocating"), ("bind-time", "1795256507"), ("vgpu-time", "1795256507")] {
        annotations[format!("hami.io/{key}")] = value.into();
    }
    pod
}

/// Ends a container, and waits until it is started again.
fn restart_container(bed: &Bed, name: &str, container: &str) {
    // The command ends its own container, and kubectl may report that as an error.
    let _ = bed.admin.run(&["exec", "-n", &bed.space.name, name, "-c", container, "--", "sh", "-c", "kill 1"]);
    eventually(&format!("a second start in {name}"), SOON, || {
        let pod = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
        let again = |state: &Value| {
            state["restartCount"].as_u64().is_some_and(|count| count > 0) && state["state"]["running"].is_object()
        };
        pod["status"]["containerStatuses"].as_array()?.iter().any(again).then_some(())
    });
}

/// Promise 37 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_with_a_claim_needs_no_write_and_any_other_pod_one() {
    let bed = Bed::up("writes");
    let flags = ["--gpus=simulated=H100:4", "--split-count=20", "--without-claim=share", "--profile-annotations=off"];
    let agent = bed.agent(&flags);
    let gpus = Bed::gpus(&agent);
    let from = audit::end(&bed.cluster);
    let all_at_once = |pods: &[Value]| bed.create(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }));
    let ready = |names: &[String]| bed.ready(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let named = |word: &str, count: usize| -> Vec<String> { (0..count).map(|n| format!("{word}-{n}")).collect() };

    // Pods with a complete claim, for which no scheduler waits. Every fourth has an init container too.
    let own = named("own", 20);
    let pods: Vec<Value> = own
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let devices = [(n % 4, 1000 + 500 * (n as u64 % 3), 5)];
            let all: [Claim<'_>; 2] = [("warm", "init", &devices), ("main", "app", &devices)];
            bed.pod(name, &gpus, if n % 4 == 0 { &all } else { &all[1..] }, &Value::Null)
        })
        .collect();
    all_at_once(&pods);
    ready(&own);

    // Pods as HAMi's scheduler leaves them. It places the next pod when it reads `success`.
    let hami = named("hami", 5);
    let pods: Vec<Value> = hami
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let (one, two) = ([(n % 4, 1000, 5)], [((n + 1) % 4, 1000, 5)]);
            let all: [Claim<'_>; 2] = [("one", "app", &one), ("two", "app", &two)];
            bound_by_hami(bed.pod(name, &gpus, &all, &Value::Null))
        })
        .collect();
    all_at_once(&pods);
    ready(&hami);
    for name in &hami {
        eventually(&format!("{name} reported to HAMi's scheduler"), SOON, || {
            let pod = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
            (pod["metadata"]["annotations"]["hami.io/bind-phase"] == "success").then_some(())
        });
    }
    // Pods without a claim. The agent writes their claim once all of their containers have devices.
    let plain = named("plain", 3);
    let claims: [Claim<'_>; 2] = [("one", "app", &[(0, 0, 0)]), ("two", "app", &[(0, 0, 0)])];
    let pods: Vec<Value> = plain.iter().map(|name| bed.bare_pod(name, &claims, &Value::Null)).collect();
    all_at_once(&pods);
    ready(&plain);
    // A second start of a container needs no write.
    restart_container(&bed, &own[0], "main");
    restart_container(&bed, &hami[0], "one");
    restart_container(&bed, &plain[0], "one");
    // One more pod without a claim. Its write comes after all earlier writes.
    let mut last = pods[0].clone();
    last["metadata"]["name"] = "last".into();
    bed.create(&last);
    let writes = eventually("the last write in the log", SOON, || {
        let writes = pod_writes(&bed, from);
        writes.contains_key("last").then_some(writes)
    });
    println!("20 pods with claims, 5 that HAMi's scheduler waits for, 4 without a claim; writes: {writes:#?}");
    let once = hami.iter().chain(&plain).cloned().chain(["last".to_owned()]);
    let expect: BTreeMap<String, Vec<String>> = once.map(|name| (name, vec!["patch".to_owned()])).collect();
    assert_eq!(writes, expect);
    // Writes on the Node are the handshake, and the release of the lock for each pod of HAMi's scheduler.
    let on_node = audit::writes_since(&bed, from).iter().filter(|write| write.resource() == "nodes").count();
    assert!(on_node <= 1 + hami.len(), "{on_node} writes on the Node");
    assert_eq!(agent.get("/healthz").status, 200);
}
