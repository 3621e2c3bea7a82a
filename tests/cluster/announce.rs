//! Tests what an agent writes about its node, as seen by others: with the script that HAMi's users run over all nodes, and
//! in the API server's audit log.

use crate::audit::{self, Call};
use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cluster/check-node-annotations.sh");

/// The lines of the script for each node.
fn script_lines(bed: &Bed) -> Vec<(String, Vec<String>)> {
    let status = bed.cluster.status();
    let path = format!("{}:{}", status.programs, std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .arg(SCRIPT)
        .env("PATH", path)
        .env("KUBECONFIG", &status.kubeconfig)
        .output()
        .expect("bash can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines_of_nodes = String::from_utf8(output.stdout).expect("UTF-8");
    let mut nodes: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines_of_nodes.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("--- node: "), nodes.last_mut()) {
            (Some(name), _) => nodes.push((name.trim_end_matches(" ---").to_owned(), Vec::new())),
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => panic!("{line}"),
        }
    }
    nodes
}

#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_check_script_finds_our_node_ok_a_silent_node_stale_and_other_nodes_without_gpus() {
    let bed = Bed::exclusive("announce");
    for key in ["hami.io/node-nvidia-register-", "hami.io/node-handshake-"] {
        let _ = bed.admin.run(&["annotate", "node", "node-1", "node-2", "node-3", key]).ok();
    }
    let agent = bed.agent(&[]);
    let lines_of_nodes = eventually("the GPUs and the handshake of this node", SOON, || {
        let lines_of_nodes = script_lines(&bed);
        lines_of_nodes[0].1.iter().all(|line| line.starts_with("[OK]")).then_some(lines_of_nodes)
    });
    let names: Vec<&str> = lines_of_nodes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names.as_slice(), bed.node()), (&["node-1", "node-2", "node-3"][..], "node-1"));
    assert_eq!(lines_of_nodes[0].1[0], "[OK] GPUs registered");
    assert!(lines_of_nodes[0].1[1].starts_with("[OK] handshake ("), "{lines_of_nodes:?}");
    for (_, bare) in &lines_of_nodes[1..] {
        assert_eq!(*bare, ["[WARNING] no GPUs registered", "[WARNING] no handshake"]);
    }

    // A node whose agent has not written its handshake for more than 300 s.
    drop(agent);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let stale = format!("hami.io/node-handshake={}", now - 301);
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &stale]).ok();
    let lines_of_nodes = script_lines(&bed);
    assert_eq!(lines_of_nodes[0].1[0], "[OK] GPUs registered");
    assert!(lines_of_nodes[0].1[1].starts_with("[ERROR] handshake is stale ("), "{lines_of_nodes:?}");
}

/// Promise 31 in docs/specification.md: counted for 20 minutes with `tests/run --long`, otherwise for 90 seconds, in
/// which no write is due.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_idle_node_writes_at_most_sixteen_times_an_hour() {
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let (span, most) = if long { (Duration::from_secs(20 * 60), 16 * 20 / 60) } else { (Duration::from_secs(90), 0) };
    let bed = Bed::up("idle");
    let from = audit::end(&bed.cluster);
    // The loads of simulated GPUs change all the time, and the agent would write that (tests/cluster/profile.rs).
    let agent = bed.agent(&["--gpus=simulated=H100:8", "--profile-annotations=off"]);
    let gpus = Bed::gpus(&agent);
    // A node with a running pod is also idle, once the containers run.
    bed.create(&bed.pod("at-work", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["at-work"]);
    // The agent writes its handshake when it starts. From then on it is idle, and its next handshake is due within 240
    // s.
    eventually("the first handshake", SOON, || {
        audit::writes_since(&bed, from).iter().any(|write| write.resource() == "nodes").then_some(())
    });
    let node = bed.node_object();
    assert!(node["metadata"]["annotations"]["hami.io/node-handshake"].is_string());
    let from = audit::end(&bed.cluster);
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert_eq!(agent.get("/healthz").status, 200);
        std::thread::sleep(Duration::from_secs(1));
    }
    let writes: Vec<Call> = audit::writes_since(&bed, from);
    println!("{} writes in {} s: {writes:#?}", writes.len(), span.as_secs());
    assert!(writes.len() <= most, "{writes:#?}");
    assert!(writes.iter().all(|write| write.resource() == "nodes"), "{writes:#?}");
    assert!(!long || writes.len() >= 4, "the handshake is due every 240 s: {writes:#?}");
}

const LABEL: &str = "nvidia.com/gpu.";

/// The labels of the node's GPUs.
fn labels(bed: &Bed) -> Vec<(String, String)> {
    let node = bed.node_object();
    let all = node["metadata"]["labels"].as_object().expect("labels").clone();
    let text = |value: Value| value.as_str().expect("a text").to_owned();
    all.into_iter().filter(|(key, _)| key.starts_with("nvidia.com/")).map(|(key, value)| (key, text(value))).collect()
}

/// The agent writes the labels of GPU feature discovery. It does not write them while GPU feature discovery runs or over
/// labels of other programs, and it removes them when labels are switched off.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_node_gets_gpu_labels_unless_another_program_writes_them() {
    let bed = Bed::up("labels");
    let agent = bed.agent(&["--gpus=simulated=H100:2"]);
    let value =
        |name: &str| labels(&bed).into_iter().find(|(key, _)| *key == format!("{LABEL}{name}")).map(|(_, value)| value);
    eventually("the labels", SOON, || (value("count")? == "2").then_some(()));
    for (name, expected) in [
        ("product", "NVIDIA-H100-80GB-HBM3-simulated"),
        ("memory", "81559"),
        ("family", "hopper"),
        ("compute.major", "9"),
        ("compute.minor", "0"),
        ("replicas", "10"),
        ("present", "true"),
        ("sharing-strategy", "time-slicing"),
    ] {
        assert_eq!(value(name).as_deref(), Some(expected), "{name}");
    }
    // GPU feature discovery starts and stops again.
    let label = |pair: &str| drop(bed.admin.run(&["label", "--overwrite", "node", bed.node(), pair]).ok());
    label("nvidia.com/gfd.timestamp=1763730000");
    eventually("the removal of the agent's labels", SOON, || (labels(&bed).len() == 1).then_some(()));
    label("nvidia.com/gfd.timestamp-");
    eventually("the agent's labels again", SOON, || value("count"));
    // Another program writes one of the labels: the agent leaves that label and removes its own.
    label("nvidia.com/gpu.product=Other");
    eventually("only the other program's label", SOON, || {
        (labels(&bed) == [(format!("{LABEL}product"), "Other".to_owned())]).then_some(())
    });
    drop(agent);
    label("nvidia.com/gpu.product-");
    let agent = bed.agent(&["--gpus=simulated=H100:2"]);
    eventually("all labels", SOON, || value("product"));
    drop(agent);
    let _agent = bed.agent(&["--gpus=simulated=H100:2", "--node-labels=off"]);
    eventually("no labels", SOON, || labels(&bed).is_empty().then_some(()));
}
