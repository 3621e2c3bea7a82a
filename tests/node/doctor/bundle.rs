//! `doctor bundle` where there is more than one list, one log or one file has.

use super::{doctor, extender_pod, node};
use crate::streams::stream_extender::{StreamExtender, pod};
use lab::api_server::{ApiServerFault, FakeApiServer};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A file of the archive.
fn content(archive: &Path, name: &str) -> String {
    let output = Command::new("tar").arg("-xOf").arg(archive).arg(name).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn agent_pod(server: &FakeApiServer, number: usize) {
    let labels = json!({ "app.kubernetes.io/name": "gpu-steward", "app.kubernetes.io/component": "agent" });
    let (name, uid) = (format!("gpu-agent-{number:04}"), format!("aaaaaaaa-0000-4000-8000-{number:012}"));
    server.put(
        "pods",
        json!({
            "metadata": { "namespace": "gpu", "name": name, "uid": uid, "labels": labels },
            "spec": { "nodeName": "n1", "containers": [{ "name": "agent", "image": "x" }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
}

#[test]
fn more_agents_and_events_than_one_list_has_hide_neither_the_leader_nor_the_newest_events() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    for number in 0..501 {
        agent_pod(&server, number);
    }
    let event = |name: String, minute: &str, text: &str| {
        let at = format!("2026-11-21T10:{minute}:00Z");
        let metadata = json!({ "namespace": "gpu", "name": name });
        server.put("events", json!({ "metadata": metadata, "reason": "Test", "message": text, "lastTimestamp": at }));
    };
    for number in 0..600 {
        event(format!("a-{number:03}"), "00", "old");
    }
    event("z".to_owned(), "01", "the newest event");
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    pod(&server, 1, 3000);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar");
    let (code, text, error) = doctor(&server, &format!("bundle --pod ml/train-1 --file {}", file.display()));
    assert_eq!(code, 0, "{text}{error}");
    let believed: Value = serde_json::from_str(&content(&file, "leader/nodes.json")).unwrap();
    assert_eq!(believed["nodes"][0]["node"], "n1");
    assert!(!content(&file, "pod.json").contains("SchedulerNotRunning"), "the scheduler runs");
    content(&file, "logs/gpu/gpu-extender-0-extender.log");
    let events: Vec<Value> = serde_json::from_str(&content(&file, "events/gpu.json")).unwrap();
    assert_eq!((events.len(), &events[0]["note"]), (500, &json!("the newest event")));
    for missing in ["pods of the agents beyond the first 500", "events/gpu.json: 101 older events"] {
        assert!(text.contains(missing), "{missing}: {text}");
    }
}

#[test]
fn a_bundle_without_what_it_may_not_read_is_exit_code_2() {
    let server = FakeApiServer::start();
    agent_pod(&server, 0);
    server.fault(ApiServerFault::RefusePath(403, "/log"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar");
    let (code, text, _) = doctor(&server, &format!("bundle --file {}", file.display()));
    assert!(code == 2 && text.contains("logs/gpu/gpu-agent-0000-agent.log"), "{code}: {text}");
    let contents = content(&file, "CONTENTS.txt");
    assert!(contents.contains("   missing  logs/gpu/gpu-agent-0000-agent.log"), "{contents}");
}

#[test]
fn the_newest_lines_of_a_long_log_are_in_the_bundle() {
    let server = FakeApiServer::start();
    agent_pod(&server, 0);
    let mut logs = server.object("pods", "gpu", "gpu-agent-0000").unwrap();
    let lines: String = (0..6000).map(|n| format!("line {n} {}\n", "x".repeat(800))).collect();
    logs["metadata"]["annotations"]["lab/log"] = lines.into();
    server.put("pods", logs);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar");
    let (_, text, _) = doctor(&server, &format!("bundle --file {}", file.display()));
    let log = content(&file, "logs/gpu/gpu-agent-0000-agent.log");
    assert!(log.contains("line 5999 ") && !log.contains("line 4000 ") && log.len() == 1 << 20, "{}", log.len());
    assert!(text.contains("bytes before its last 1048576 bytes"), "{text}");
}
