//! Tests for which node a caller may write: the node claim of its token decides, however the caller got the token. Promise
//! 27 in docs/specification.md.

use crate::chart::{AGENT, EXTRAS, NAMESPACE, SERVICE, bound, install, token};
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

const READY: Duration = Duration::from_secs(60);

/// The user that the API server sees for a caller.
fn whoami(caller: &Kubectl) -> Value {
    let output = caller.run(&["auth", "whoami", "-o", "json"]).ok();
    serde_json::from_str::<Value>(&output).expect("JSON")["status"]["userInfo"].clone()
}

fn node_of(caller: &Kubectl) -> Value {
    let user = whoami(caller);
    let of = |account: &str| format!("system:serviceaccount:{NAMESPACE}:{account}");
    assert!([AGENT, SERVICE].map(of).iter().any(|name| user["username"] == *name), "{user}");
    user["extra"]["authentication.kubernetes.io/node-name"].clone()
}

/// A token that is bound to a Node or a Pod, or that the kubelet put into a pod, has the node's name. An unbound token
/// does not.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_bound_token_names_its_node() {
    let cluster = Cluster::shared();
    install(&cluster, &[]);
    let admin = cluster.admin();
    assert_eq!(node_of(&cluster.bearer(&bound(&cluster, AGENT, "node-2"))), json!(["node-2"]));

    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: token-holder, namespace: {NAMESPACE}}}, spec: {{nodeName: node-3, \
         serviceAccountName: {AGENT}, terminationGracePeriodSeconds: 0, dnsPolicy: Default, containers: [{{name: main, \
         image: 'registry.local/busybox:1', command: [sleep, '100000']}}]}}}}"
    );
    let _ = admin.run(&["delete", "pod", "-n", NAMESPACE, "token-holder", "--ignore-not-found"]).ok();
    let _ = admin.apply(&pod).ok();
    admin.wait("condition=Ready", READY, &["pod/token-holder", "-n", NAMESPACE]);
    let of_pod = token(&admin, AGENT, &["--bound-object-kind", "Pod", "--bound-object-name", "token-holder"]);
    assert_eq!(node_of(&cluster.bearer(&of_pod)), json!(["node-3"]));
    let path = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let projected = admin.exec(NAMESPACE, "token-holder", &["cat", path]);
    assert_eq!(node_of(&cluster.bearer(&projected)), json!(["node-3"]));
    let _ = admin.run(&["delete", "pod", "-n", NAMESPACE, "token-holder"]).ok();

    assert_eq!(node_of(&cluster.bearer(&token(&admin, AGENT, &[]))), Value::Null);
}

/// An agent under systemd renews its own token, for its own Node and for a limited time, and can get no other token.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_agent_under_systemd_renews_its_own_token_and_no_other() {
    let cluster = Cluster::shared();
    install(&cluster, &EXTRAS);
    let agent = cluster.bearer(&bound(&cluster, SERVICE, "node-1"));
    let own = ["--bound-object-kind", "Node", "--bound-object-name", "node-1"];
    let renewed = cluster.bearer(&token(&agent, SERVICE, &own));
    assert_eq!(node_of(&renewed), json!(["node-1"]));
    let again = cluster.bearer(&token(&renewed, SERVICE, &[&own[..], &["--duration", "24h"]].concat()));
    assert_eq!(node_of(&again), json!(["node-1"]), "a renewed token can be renewed");

    let refusal_of = |arguments: &[&str]| agent.run(&[&["create", "token"], arguments].concat()).refused();
    let of_agent = [SERVICE, "-n", NAMESPACE];
    for (what, arguments) in [
        ("of no node", &[][..]),
        ("of another node", &["--bound-object-kind", "Node", "--bound-object-name", "node-2"]),
        ("of a node by the name of a pod", &["--bound-object-kind", "Pod", "--bound-object-name", "node-1"]),
        ("for long", &[&own[..], &["--duration", "25h"]].concat()),
    ] {
        let output = refusal_of(&[&of_agent[..], arguments].concat());
        assert!(
            output.contains("the agent of node node-1 may request only tokens bound to that Node"),
            "{what}: {output}"
        );
    }
    let output = refusal_of(&[&of_agent[..], &own, &["--audience", "vault"]].concat());
    assert!(output.contains("may request only tokens of the audiences in service.audiences, not of vault"), "{output}");
    let path = |account: &str| format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "boundObjectRef": { "apiVersion": "v1", "kind": "Node", "name": "node-1" } },
    });
    for (by, of) in [(SERVICE, AGENT), (SERVICE, "default"), (AGENT, AGENT), (AGENT, SERVICE)] {
        let output = cluster.caller(&bound(&cluster, by, "node-1")).post(&path(of), &request).forbidden();
        assert!(output.contains("cannot create resource \"serviceaccounts/token\""), "{by} for {of}: {output}");
    }
}

/// The script of the systemd timer replaces the token in the file. If the API server refuses, the file stays.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_timer_renews_the_token_in_its_file() {
    let cluster = Cluster::shared();
    install(&cluster, &EXTRAS);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    let first = bound(&cluster, SERVICE, "node-1");
    fs::write(&file, &first).expect("a token");
    let renew = |node: &str, server: &str| {
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/renew-token"));
        script.env("STEWARD_API", server).env("STEWARD_NODE", node).env("STEWARD_CA", &cluster.status().ca);
        let output = script.env("STEWARD_TOKEN", &file).output().expect("the script can be run");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let server = cluster.status().server.as_str();
    assert_eq!(renew("node-1", server), (true, String::new()));
    let second = fs::read_to_string(&file).expect("a token");
    assert_ne!(second, first);
    assert_eq!(node_of(&cluster.bearer(&second)), json!(["node-1"]));
    assert_eq!(fs::metadata(&file).expect("a token").permissions().mode() & 0o777, 0o600);

    let (success, output) = renew("node-2", server);
    assert!(!success && output.contains("may request only tokens bound to that Node"), "{output}");
    // The script does not send the token over an unencrypted connection.
    let (success, output) = renew("node-1", &server.replace("https:", "http:"));
    assert!(!success && output.contains("STEWARD_API must begin with https://"), "{output}");
    let (success, output) = renew("node-1", "https://127.0.0.1:1");
    assert!(!success && output.contains("the API server did not answer"), "{output}");
    assert_eq!(fs::read_to_string(&file).expect("a token"), second, "a refusal changes nothing");
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "and leaves nothing behind");
}

/// For an agent that reports to the extender, the script also renews a token for the extender's audience, and stores the
/// certificates that the extenders publish.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_timer_keeps_what_an_agent_needs_at_the_extender() {
    let cluster = Cluster::shared();
    install(&cluster, &EXTRAS);
    // The name differs from that of an extender that another test may install.
    let extender = "renewed-extender";
    let rights = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": extender, "namespace": NAMESPACE },
            "rules": [{
                "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [format!("{extender}-ca")], "verbs": ["get"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": extender, "namespace": NAMESPACE },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": extender },
            "subjects": [{ "kind": "ServiceAccount", "name": SERVICE, "namespace": NAMESPACE }],
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("{extender}-ca"), "namespace": NAMESPACE },
            "data": { "ca.crt": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" },
        }),
    ];
    let _ = cluster.admin().apply(&rights.map(|object| object.to_string()).join("\n---\n")).ok();
    let dir = tempfile::tempdir().expect("a directory");
    let [own, stream, ca] = ["token", "stream-token", "extender-ca.crt"].map(|name| dir.path().join(name));
    fs::write(&own, bound(&cluster, SERVICE, "node-1")).expect("a token");
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/renew-token"))
        .env("STEWARD_API", &cluster.status().server)
        .env("STEWARD_NODE", "node-1")
        .env("STEWARD_CA", &cluster.status().ca)
        .env("STEWARD_EXTENDER", format!("{NAMESPACE}/{extender}"))
        .env("STEWARD_TOKEN", &own)
        .env("STEWARD_STREAM_TOKEN", &stream)
        .env("STEWARD_STREAM_CA", &ca)
        .output()
        .expect("the script can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": fs::read_to_string(&stream).expect("a token"), "audiences": ["gpu-steward"] },
    });
    let output = cluster.admin().run_with(&["create", "-o", "json", "-f", "-"], &review.to_string()).ok();
    let status = serde_json::from_str::<Value>(&output).expect("JSON")["status"].clone();
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/node-name"], json!(["node-1"]), "{status}");
    let text = fs::read_to_string(&ca).expect("certificates");
    assert_eq!(text, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----");
    let of_stream = cluster.bearer(&fs::read_to_string(&stream).expect("a token")).run(&["auth", "whoami"]);
    assert!(of_stream.refused().contains("Unauthorized"), "the API server accepts no token of this audience");
}

/// A token becomes invalid with the Node to which it is bound. A later Node of the same name does not make it valid again.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_token_ends_with_its_node() {
    let cluster = Cluster::shared();
    install(&cluster, &[]);
    let admin = cluster.admin();
    let _ = admin.apply("{apiVersion: v1, kind: Node, metadata: {name: passing}}").ok();
    let agent = cluster.bearer(&bound(&cluster, AGENT, "passing"));
    assert_eq!(node_of(&agent), json!(["passing"]));
    let _ = admin.run(&["delete", "node", "passing"]).ok();
    eventually("the token to be refused", Duration::from_secs(30), || {
        agent.run(&["auth", "whoami"]).err.contains("Unauthorized").then_some(())
    });
    let _ = admin.apply("{apiVersion: v1, kind: Node, metadata: {name: passing}}").ok();
    let output = agent.run(&["auth", "whoami"]).refused();
    assert!(output.contains("Unauthorized"), "{output}");
    let _ = admin.run(&["delete", "node", "passing"]).ok();
}
