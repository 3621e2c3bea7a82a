//! Tests which pod holds which GPU in the metrics: the claim decides, not the slot that the kubelet counts. Also tests
//! pods whose GPUs no longer exist.

use crate::bed::{Bed, Claim, SOON};
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::time::Duration;

/// 15 s until a GPU that is not listed counts as gone, and extra time for a slow machine.
const GONE_WITHIN: Duration = Duration::from_secs(120);

/// The value of label `name` in the dcgm-exporter series of one GPU; empty if the series has no such label.
fn label(agent: &Agent, gpu: &str, name: &str) -> Option<String> {
    let text = agent.get("/metrics/dcgm").text();
    let of_gpu = |line: &&str| line.starts_with("DCGM_FI_DEV_GPU_UTIL{") && line.contains(&format!("UUID=\"{gpu}\""));
    let line = text.lines().find(of_gpu)?;
    let value = line.split(&format!(",{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    Some(value.unwrap_or_default().to_owned())
}

/// The agent's data about container `main` of a pod: the ids that the kubelet counts, and the GPUs of its processes.
fn ids_and_gpus_of_main(agent: &Agent, pod: &str) -> Option<(Vec<String>, Vec<String>)> {
    let answer = agent.get("/api/v1/pods").json();
    let pod = answer["pods"].as_array()?.iter().find(|seen| seen["name"] == *pod)?.clone();
    let main = pod["containers"].as_array()?.iter().find(|container| container["name"] == "main")?.clone();
    let texts = |list: &Value, pick: &dyn Fn(&Value) -> Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|one| pick(one).as_str().map(str::to_owned)).collect()
    };
    Some((texts(&main["devices"], &Value::clone), texts(&main["gpus"], &|share| share["gpu"].clone())))
}

/// Promise 6 in docs/specification.md: the kubelet lets a container use the slots of an earlier init container,
/// whatever GPU its claim names. Simulated processes follow the claim too.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_series_of_a_gpu_name_the_pod_whose_claim_has_it() {
    let bed = Bed::up("holders-claim");
    let agent = bed.agent(&["--process-period=1s"]);
    let gpus = Bed::gpus(&agent);
    let claims: [Claim<'_>; 2] = [("warm", "init", &[(0, 1000, 10)]), ("main", "app", &[(1, 3000, 30)])];
    // The agent knows the claims before the kubelet calls GetPreferredAllocation.
    bed.part("pause", "kubelet");
    bed.create(&bed.pod("train", &gpus, &claims, &Value::Null));
    eventually("both claims in the agent's view", SOON, || {
        let metrics = agent.get("/metrics").text();
        let claims = metrics.lines().filter(|line| line.starts_with("gpu_steward_plugin_claims{"));
        (claims.filter(|line| line.contains("healthy=\"true\"") && line.ends_with(" 1")).count() == 2).then_some(())
    });
    bed.part("resume", "kubelet");
    bed.ready(&["train"]);
    let main = eventually("kubelet's ids, and a process on the GPU of the claim", SOON, || {
        ids_and_gpus_of_main(&agent, "train").filter(|(ids, used)| !ids.is_empty() && !used.is_empty())
    });
    assert!(main.0.iter().all(|id| id.starts_with(&gpus[0])), "kubelet counts the init container's slot: {main:?}");
    assert_eq!(main.1, [gpus[1].clone()], "the simulated use follows the claim");
    eventually("the pod on the GPU of its claim", SOON, || {
        let named = [label(&agent, &gpus[1], "pod")?, label(&agent, &gpus[1], "container")?];
        (named == ["train", "main"]).then_some(())
    });
    assert_eq!(label(&agent, &gpus[0], "pod").as_deref(), Some(""), "no pod has the other GPU");
    let holders = |gpu: usize| agent.get("/api/v1/gpus").json()["gpus"][gpu]["holders"].as_array().map(Vec::len);
    assert_eq!((holders(0), holders(1)), (Some(0), Some(1)));
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_whose_gpu_is_gone_gets_an_event_and_is_logged_and_counted() {
    let bed = Bed::up("holders-gone");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    for (name, gpu) in [("stays", 0), ("stranded", 1)] {
        bed.create(&bed.pod(name, &gpus, &[("main", "app", &[(gpu, 3000, 30)])], &Value::Null));
    }
    bed.ready(&["stays", "stranded"]);
    agent.signal(9);
    drop(agent);
    let agent = bed.agent(&["--gpus=simulated=H100:1"]);
    assert_eq!(Bed::gpus(&agent), gpus[..1], "the UUIDs depend on the node and not on the agent");
    let selector = "involvedObject.name=stranded,reason=GpuMissing";
    let events = || bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", selector])["items"].clone();
    eventually("an event on the pod", GONE_WITHIN, || {
        let events = events();
        let note = events.as_array()?.first()?["message"].as_str()?.to_owned();
        (note.contains(&gpus[1]) && note.contains("delete the pod")).then_some(())
    });
    agent.logs("a pod runs and holds a GPU that this node does not list");
    eventually("the count", SOON, || {
        agent.get("/metrics").text().contains("\ngpu_steward_plugin_pods_without_gpu 1\n").then_some(())
    });
    let _ = bed.admin.run(&["delete", "pod", "stranded", "-n", &bed.space.name, "--now"]).ok();
    eventually("the count to fall", GONE_WITHIN, || {
        agent.get("/metrics").text().contains("\ngpu_steward_plugin_pods_without_gpu 0\n").then_some(())
    });
    assert!(!agent.log().contains("stays"), "the other pod gets no event: {}", agent.log());
}
