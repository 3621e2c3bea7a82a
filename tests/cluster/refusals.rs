//! Tests starts that are refused because data that the agent needs was lost or is ambiguous. Promise 30 in
//! docs/specification.md: the container does not start, and an event on its pod says why.

use crate::bed::{Bed, Claim, SOON, devices_in};
use crate::outage::GatedPod;
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NOTHING: Value = Value::Null;
const ONE: [Claim<'static>; 1] = [("main", "app", &[(0, 3000, 30)])];
const EVICT: &str = "gpu-steward.io/evict";
/// Longer than the two seconds for which an agent may use the checkpoint that it has read.
const CHECKPOINT_IS_OLD: Duration = Duration::from_secs(3);

fn pod(bed: &Bed, name: &str) -> Value {
    bed.admin.get(&["pod", name, "-n", &bed.space.name])
}

/// Waits for the event, and checks that the container has not started.
fn wait_for_refusal(bed: &Bed, name: &str, reason: &str, words: &str) {
    eventually(&format!("{reason} on {name}"), SOON, || {
        let selector = format!("involvedObject.name={name},reason={reason}");
        let events = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", &selector]);
        let matches = |event: &Value| event["message"].as_str().unwrap_or_default().contains(words);
        events["items"].as_array()?.iter().any(matches).then_some(())
    });
    let state = &pod(bed, name)["status"]["containerStatuses"][0];
    assert!(state["state"]["running"].is_null() && state["restartCount"] == 0, "{name}: {state}");
}

fn wait_for_eviction_mark(bed: &Bed, name: &str, reason: &str) {
    eventually(&format!("the mark for eviction on {name}"), SOON, || {
        (pod(bed, name)["metadata"]["annotations"][EVICT] == reason).then_some(())
    });
}

/// Kills the agent, and starts another one with an empty state directory.
fn without_state(bed: &Bed, agent: Agent, flags: &[&str]) -> Agent {
    agent.signal(9);
    drop(agent);
    let state = format!("--state-dir={}", bed.dir().join("fresh").display());
    bed.agent(&[&[state.as_str()], flags].concat())
}

/// Ends the thread when it is dropped, even if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The kubelet's checkpoint has the slots of a container without the agent's answer, as if the kubelet had ended in the
/// middle of an allocation.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_start_without_the_plugins_answer_in_the_checkpoint_is_refused() {
    let bed = Bed::up("refusals-answer");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let gated = GatedPod::of(&bed, "lost", bed.pod("lost", &gpus, &ONE, &NOTHING));
    let path = bed.paths().checkpoint.clone();
    let mut checkpoint: Value = serde_json::from_slice(&std::fs::read(&path).expect("the checkpoint")).expect("JSON");
    let uid = pod(&bed, "lost")["metadata"]["uid"].clone();
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array_mut().expect("entries");
    entries.iter_mut().filter(|entry| entry["PodUID"] == uid).for_each(|entry| entry["AllocResp"] = Value::Null);
    std::fs::write(&path, checkpoint.to_string()).expect("the checkpoint is written");
    // An agent that has read the checkpoint before this change may use what it has read.
    std::thread::sleep(CHECKPOINT_IS_OLD);
    gated.open();
    wait_for_refusal(&bed, "lost", "AnswerLost", "container main");
    wait_for_eviction_mark(&bed, "lost", "AnswerLost");
    drop(agent);
}

/// The checkpoint cannot be read, and the tickets are lost. PodResources names the pod, but does not say which ticket
/// belongs to it. The start waits, is refused, and succeeds once the checkpoint can be read.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_start_is_refused_until_its_container_is_known() {
    let bed = Bed::up("refusals-holder");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let gated = GatedPod::of(&bed, "unknown", bed.pod("unknown", &gpus, &ONE, &NOTHING));
    let path = bed.paths().checkpoint.clone();
    let checkpoint = std::fs::read(&path).expect("the checkpoint");
    // The garbage is written again and again, because the kubelet writes its checkpoint when a plugin registers.
    let done = AtomicBool::new(false);
    let agent = std::thread::scope(|scope| {
        let end = EndOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = std::fs::write(&path, b"{\"Data\":");
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let agent = without_state(&bed, agent, &[]);
        gated.open();
        wait_for_refusal(&bed, "unknown", "HolderUnknown", "container main");
        drop(end);
        agent
    });
    std::fs::write(&path, checkpoint).expect("the checkpoint is written");
    bed.ready(&["unknown"]);
    assert_eq!(devices_in(&bed.limits("unknown", "main")), [(gpus[0].clone(), 3000 << 20)]);
    drop(agent);
}
