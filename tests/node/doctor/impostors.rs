//! Pods that have the labels of gpu-steward and are not of it.

use super::{ACCOUNT, doctor, extender_pod, json_of, lease, node};
use crate::streams::stream_extender::StreamExtender;
use lab::api_server::{ApiServerFault, FakeApiServer};
use serde_json::json;
use std::process::Command;

/// The namespace of a tenant, which lists show before that of gpu-steward.
const TENANT: &str = "aaa";

/// A tenant's pod with the labels and the name of an extender, and with its own account of the same name.
fn impostor(server: &FakeApiServer, number: usize) {
    let (name, uid) = (format!("gpu-extender-{number}"), format!("ffffffff-0000-4000-8000-{number:012}"));
    let labels = json!({ "app.kubernetes.io/name": "gpu-steward", "app.kubernetes.io/component": "extender" });
    server.put(
        "pods",
        json!({
            "metadata": { "namespace": TENANT, "name": name, "uid": uid, "labels": labels },
            "spec": { "serviceAccountName": ACCOUNT, "containers": [{ "name": "extender", "image": "x" }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
}

/// How often something in the namespace of the tenant was asked for, such as a port or a log of a pod.
fn asked(server: &FakeApiServer) -> usize {
    let begin = format!("/api/v1/namespaces/{TENANT}/");
    server.requests().iter().filter(|request| request.path.starts_with(&begin)).count()
}

#[test]
fn the_chart_names_the_lease_after_the_service_account() {
    let chart = include_str!("../../../charts/gpu-steward/templates/extender/deployment.yaml");
    for key in ["serviceAccountName: ", "--lease-name="] {
        assert!(chart.contains(&format!("{key}{{{{ include \"steward.extender\" . }}}}\n")), "{key}");
    }
}

#[test]
fn pods_with_its_labels_in_another_namespace_are_not_asked_and_not_in_a_bundle() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    for number in 0..9 {
        impostor(&server, number);
    }
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 0 && !text.contains("LeaderNotSeen"), "{code}: {text}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar");
    let (code, text, error) = doctor(&server, &format!("bundle --file {}", file.display()));
    assert_eq!(code, 0, "{text}{error}");
    let names = String::from_utf8(Command::new("tar").arg("-tf").arg(&file).output().unwrap().stdout).unwrap();
    let logs: Vec<&str> = names.lines().filter(|name| name.starts_with("logs/")).collect();
    assert_eq!(logs, ["logs/gpu/gpu-extender-0-extender.log"]);
    assert!(!names.contains(TENANT), "{names}");
    assert_eq!(asked(&server), 0);
}

#[test]
fn two_namespaces_with_a_lease_are_named_and_none_is_asked_until_the_caller_names_one() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    impostor(&server, 0);
    lease(&server, TENANT, "gpu-extender-0_0123456789abcdef");
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("LeaderNotSeen"), "{code}: {text}");
    assert!(text.contains("(aaa, gpu)") && text.contains("--steward-namespace"), "{text}");
    let (code, _) = json_of(&server, "bundle --file /nonexistent/report.tar");
    assert_eq!((code, asked(&server)), (1, 0));
    assert!(!server.requests().iter().any(|request| request.path.ends_with("/portforward")), "{text}");
    let (code, text, _) = doctor(&server, "nodes --steward-namespace gpu");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn without_the_right_to_read_leases_all_pods_must_be_in_one_namespace() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    extender_pod(&server, "gpu-extender-0", closed);
    server.fault(ApiServerFault::RefusePath(403, "/leases"));
    let (_, text, _) = doctor(&server, "nodes");
    // The connection may be reset before the reason is read.
    let asked_one =
        server.requests().iter().any(|request| request.path.ends_with("/gpu/pods/gpu-extender-0/portforward"));
    assert!(asked_one && text.contains("gpu/gpu-extender-0"), "the only namespace is asked: {text}");
    impostor(&server, 0);
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("(aaa, gpu)") && text.contains("--steward-namespace"), "{code}: {text}");
    assert!(text.contains("allow this identity to get leases"), "{text}");
    assert_eq!(asked(&server), 0);
}

#[test]
fn more_pods_than_a_list_has_hide_the_extender_from_nobody_who_names_its_namespace() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    for number in 0..500 {
        impostor(&server, number);
    }
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("too many pods") && text.contains("--steward-namespace"), "{code}: {text}");
    assert_eq!(asked(&server), 0);
    assert_eq!(doctor(&server, "nodes --steward-namespace gpu").0, 0);
}
