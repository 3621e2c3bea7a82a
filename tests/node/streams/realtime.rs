//! The real-time check of memory: what an agent reports keeps pods away, and the extender says why.

use super::stream_client::{StreamClient, gpu};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, pod, trusted};
use crate::extender::events;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::{AgentMessage, GpuReport, MemoryUser, NodeChange, NodeFull, Phase, RealtimeCheck};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// The GPU of n1 with this much memory in use, in MiB, by a process of the host.
fn used(mib: u64) -> GpuReport {
    let user = MemoryUser { name: "process 4021 python".into(), memory: mib * MIB };
    GpuReport {
        memory_used: Some(mib * MIB),
        memory_listed: Some(mib * MIB),
        processes: Some(1),
        utilization: Some(45),
        users: vec![user],
        ..gpu("n1")
    }
}

fn full(gpu: GpuReport) -> AgentMessage {
    let full = NodeFull { node: "n1".into(), phase: Phase::Serving.into(), gpus: vec![gpu], ..NodeFull::default() };
    AgentMessage { version: 1, full: Some(full), change: None }
}

fn change(gpu: GpuReport, realtime_check: Option<RealtimeCheck>) -> AgentMessage {
    let change = NodeChange { phase: Phase::Serving.into(), gpus: vec![gpu], realtime_check, ..NodeChange::default() };
    AgentMessage { version: 1, full: None, change: Some(change) }
}

/// Whether the extender has logged these words; the log of these tests is JSON.
fn logs(extender: &StreamExtender, words: &str) -> bool {
    extender.log().contains(&words.replace('"', "\\\""))
}

#[test]
fn no_pod_is_placed_into_memory_that_a_stranger_uses() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let token = agent_token(&server, "n1", 1);
    let stream = eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    stream.send(full(used(2048)));
    let whole = pod(&server, 20, 81_920);
    let refused = json!({ "n1": "CardInsufficientMemory" });
    eventually("a refusal", SOON, || (extender.filter(&whole, &["n1"])["FailedNodes"] == refused).then_some(()));
    let note = eventually("an event", SOON, || events(&server, "FilteringFailed").pop());
    let words =
        "requests 81920 MiB; most free is 79772 MiB on n1 GPU 0: claims leave 81920 MiB, but other memory is in use";
    assert!(note.contains(words) && !note.contains("python"), "{note}");
    let decisions = extender.get("/api/v1/decisions?pod=ml/train-20").text();
    assert!(
        decisions.contains("2048 MiB are used without a claim, most by process 4021 python (2048 MiB)"),
        "{decisions}"
    );
    for line in [
        "Updated real-time device usage nodeID=\"n1\" deviceID=\"GPU-n1-0\" cachedUsedMemMB=0 realTimeUsedMemMB=2048 \
         utilization=45 processCount=1",
        "Real-time memory check failed pod=\"ml/train-20\" device=\"GPU-n1-0\" requestedMem=81920 realUsedMem=2148 \
         totalMem=81920",
    ] {
        assert!(logs(&extender, line), "{line}\n{}", extender.log());
    }
    assert!(extender.metric("gpu_steward_extender_realtime_checks_total{result=\"refused\"}") > 0);
    assert!(extender.metric("gpu_steward_extender_realtime_changed_decisions_total{mode=\"strict\"}") > 0);
    assert_eq!(extender.metric("gpu_steward_extender_realtime_gap_bytes_count"), 1);

    let mut unchecked = pod(&server, 21, 81_920);
    unchecked["metadata"]["annotations"] = json!({ "hami.io/enable-realtime-check": "false" });
    assert_eq!(extender.fits(&unchecked, "n1"), Ok(()));
    unchecked["metadata"]["annotations"] = json!({ "hami.io/enable-realtime-check": "never" });
    let why = extender.fits(&unchecked, "n1").unwrap_err().to_string();
    assert!(why.contains("write true or false instead of \\\"never\\\""), "{why}");
    // The settings of the agent are final for its node.
    let warns = RealtimeCheck { enabled: None, mode: "warning".into() };
    stream.send(change(used(2048), Some(warns)));
    eventually("a warning", SOON, || extender.fits(&whole, "n1").ok());
    assert!(extender.metric("gpu_steward_extender_realtime_checks_total{result=\"warned\"}") > 0);
    stream.send(change(used(2048), None));
    eventually("a refusal", SOON, || extender.fits(&whole, "n1").err());
    stream.send(change(used(0), None));
    eventually("room", SOON, || extender.fits(&whole, "n1").ok());
    assert!(extender.metric("gpu_steward_extender_realtime_checks_total{result=\"passed\"}") > 0);
    // An agent of an earlier release reports no list with its memory.
    let earlier = GpuReport { memory_listed: None, ..used(2048) };
    stream.send(change(earlier, None));
    eventually("a refusal", SOON, || extender.fits(&whole, "n1").err());
    let less = pod(&server, 22, 79_872);
    assert_eq!(extender.fits(&less, "n1"), Ok(()), "without a list the margin does not count");
    let missing = "Failed to get real-time usage, using cached data nodeID=\"n1\" deviceID=\"GPU-n1-0\" error=";
    assert!(logs(&extender, missing), "{}", extender.log());
}
