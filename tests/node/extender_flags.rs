//! The effects of the extender's flags: how much it logs, which program chooses the node, how many nodes it names, and how
//! far apart scores are.

use crate::extender::{Extender, SOON, events, node, pod};
use crate::program::BINARY;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// A GPU on one of two nodes is taken, so that their scores differ; a third node has no GPUs.
fn nodes(server: &FakeApiServer, extender: &Extender) {
    extender.wait_until_leads();
    let first = pod(server, 1, 8000);
    extender.filter(&first, &["n1"]);
    assert_eq!(extender.bind(&first, "n1"), "");
}

fn server() -> FakeApiServer {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 1);
    server
}

#[test]
fn each_verbosity_has_its_lines_about_a_filter_call() {
    let server = server();
    let extender = Extender::start_with(BINARY, &server, &[]);
    nodes(&server, &extender);
    for (number, verbosity) in [(10, 0), (11, 2), (12, 4), (13, 5)] {
        assert_eq!(extender.admin("PUT", "/loglevel", &verbosity.to_string()).status, 200);
        let (asks, large) = (pod(&server, number, 1000), pod(&server, number + 10, 90_000));
        assert_eq!(extender.filter(&asks, &["n1", "n2", "n3"])["NodeNames"], json!(["n1", "n2"]));
        assert_eq!(extender.filter(&large, &["n1"])["NodeNames"], Value::Null);
        assert_eq!(extender.bind(&asks, "n2"), "");
        let bound = "gpu_steward_extender_claims{state=\"bound\"}";
        eventually("the pod watch shows it", SOON, || (extender.metric(bound) == u64::from(number) - 8).then_some(()));
        let lines = [
            (2, format!("score of node n1 for pod ml/train-{number}: ")),
            (4, format!("Node n3 filtered out: NodeUnfitPod: NodeUnregistered; pod ml/train-{number}")),
            (2, format!("FilteringFailed: pod ml/train-{}: no node fits", number + 10)),
            (4, format!("FilteringSucceed: pod ml/train-{number}: 2 of 3 nodes fit")),
            (0, format!("BindingSucceed: bound ml/train-{number} to n2")),
            (5, format!("pod ml/train-{number}: filter: kube-scheduler asks about 3 nodes")),
            (5, format!("pod ml/train-{number}: bind: kube-scheduler has chosen n2")),
            (5, format!("pod ml/train-{number}: bind: reserved on n2: GPU-n2-0 1000 MiB")),
            (5, format!("pod ml/train-{number}: bind: the API server has bound the pod")),
            (5, format!("pod ml/train-{number}: the pod watch shows it bound to n2")),
        ];
        let log = eventually("the lines of this verbosity", SOON, || {
            let (log, due) = (extender.log(), lines.iter().filter(|(least, _)| verbosity >= *least));
            due.clone().all(|(_, words)| log.contains(words)).then_some(log)
        });
        for (least, words) in lines {
            assert_eq!(log.contains(&words), verbosity >= least, "-v {verbosity}, {words}: {log}");
        }
        let missing = "Node n1 filtered out: CardInsufficientMemory, requested 90000Mi but available ";
        assert_eq!(log.contains(missing), verbosity >= 4, "-v {verbosity}: {log}");
    }
}

/// The scores of these nodes for a new pod, and the nodes that its filter call leaves.
fn asked(server: &FakeApiServer, flags: &[&str]) -> (Vec<i64>, Value) {
    let extender = Extender::start_with(BINARY, server, flags);
    extender.wait_until_leads();
    let asks = pod(server, 20, 1000);
    let question = json!({ "Pod": asks, "Nodes": null, "NodeNames": ["n1", "n2"] });
    let fit = extender.filter(&asks, &["n1", "n2"])["NodeNames"].clone();
    let scores = extender.ask("prioritize", &question).json();
    let score = |one: &Value| one["Score"].as_i64().expect("a score");
    (scores.as_array().expect("a list").iter().map(score).collect(), fit)
}

#[test]
fn flags_set_the_step_between_scores_and_who_chooses_the_node() {
    let server = server();
    nodes(&server, &Extender::start_with(BINARY, &server, &[]));
    for (flags, step, fit) in [
        (&[][..], 121, json!(["n1", "n2"])),
        (&["--score-step", "7"], 7, json!(["n1", "n2"])),
        // Only named nodes get scores.
        (&["--node-choice", "extender"], 0, json!(["n1"])),
        (&["--answered-nodes", "1"], 0, json!(["n1"])),
        (&["--answered-nodes", "0"], 121, json!(["n1", "n2"])),
    ] {
        // The default policy fills nodes that are already in use.
        assert_eq!(asked(&server, flags), (vec![step, 0], fit), "{flags:?}");
    }
}

#[test]
fn nodes_that_fit_and_are_not_named_are_in_no_list_and_in_the_event() {
    let server = server();
    node(&server, "n3", 1);
    let extender = Extender::start_with(BINARY, &server, &["--answered-nodes", "1"]);
    nodes(&server, &extender);
    let (names, asks) = (["n1", "n2", "n3", "n4"], pod(&server, 20, 1000));
    let answer = extender.filter(&asks, &names);
    assert_eq!((&answer["NodeNames"], &answer["FailedNodes"]), (&json!(["n1"]), &Value::Null));
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({ "n4": "NodeUnfitPod: NodeUnregistered" }));
    let note = "1 of 4 nodes are named, n1 best; 2 more nodes fit; 1 node refused";
    let told = || events(&server, "FilteringSucceed").into_iter().find(|told| told.starts_with(note));
    eventually("the event of the pod", SOON, told);
    assert_eq!(extender.filter(&asks, &names)["NodeNames"], json!(["n1", "n2", "n3"]), "it has come back unbound");
    let mut prefers = pod(&server, 21, 1000);
    prefers["spec"]["topologySpreadConstraints"] = json!([{ "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway" }]);
    server.put("pods", prefers.clone());
    assert_eq!(extender.filter(&prefers, &names)["NodeNames"], json!(["n1", "n2", "n3"]));
}

#[test]
fn without_an_api_server_the_extender_names_a_flag_that_it_has() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(BINARY);
    command.args(["extender", "--extender-listen", "127.0.0.1:0", "--extender-admin-listen", "127.0.0.1:0"]);
    command.env("HOME", home.path()).env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains("found no Kubernetes API server") && text.contains("give --kubeconfig PATH"), "{text}");
    assert!(!text.contains("standalone"), "{text}");
}
