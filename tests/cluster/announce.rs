//! What a node writes about itself, as others find it: the script that HAMi's users run over all nodes, and the API
//! server's audit log.

use crate::audit::{self, Write};
use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cluster/check-node-annotations.sh");

/// What the script says of each node.
fn checked(bed: &Bed) -> Vec<(String, Vec<String>)> {
    let status = bed.cluster.status();
    let path = format!("{}:{}", status.programs, std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .arg(SCRIPT)
        .env("PATH", path)
        .env("KUBECONFIG", &status.kubeconfig)
        .output()
        .expect("bash can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let mut nodes: Vec<(String, Vec<String>)> = Vec::new();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
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
fn the_check_of_all_nodes_finds_ours_well_a_silent_one_stale_and_the_others_bare() {
    let bed = Bed::alone("announce");
    for key in ["hami.io/node-nvidia-register-", "hami.io/node-handshake-"] {
        let _ = bed.admin.run(&["annotate", "node", "node-1", "node-2", "node-3", key]).ok();
    }
    let agent = bed.agent(&[]);
    let said = eventually("what this node has, and that it lives", SOON, || {
        let said = checked(&bed);
        said[0].1.iter().all(|line| line.starts_with("[OK]")).then_some(said)
    });
    let names: Vec<&str> = said.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names.as_slice(), bed.node()), (&["node-1", "node-2", "node-3"][..], "node-1"));
    assert_eq!(said[0].1[0], "[OK] GPUs registered");
    assert!(said[0].1[1].starts_with("[OK] handshake ("), "{said:?}");
    for (_, bare) in &said[1..] {
        assert_eq!(*bare, ["[WARNING] no GPUs registered", "[WARNING] no handshake"]);
    }

    // A node whose agent has been silent for longer than 300 s.
    drop(agent);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let stale = format!("hami.io/node-handshake={}", now - 301);
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &stale]).ok();
    let said = checked(&bed);
    assert_eq!(said[0].1[0], "[OK] GPUs registered");
    assert!(said[0].1[1].starts_with("[ERROR] handshake is stale ("), "{said:?}");
}

/// Promise 31 in docs/specification.md: counted for 20 minutes with `tests/run --long`, else for 90 seconds, in which nothing
/// is due.
#[test]
#[ignore = "needs cluster: tests/run"]
fn an_idle_node_writes_at_most_sixteen_times_an_hour() {
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let (span, most) = if long { (Duration::from_secs(20 * 60), 16 * 20 / 60) } else { (Duration::from_secs(90), 0) };
    let bed = Bed::up("idle");
    let from = audit::end(&bed);
    let agent = bed.agent(&["--gpus=simulated=H100:8"]);
    let gpus = Bed::gpus(&agent);
    // One with work is idle too, once its containers run.
    bed.create(&bed.pod("at-work", &gpus, &[("main", "app", &[(0, 1000, 10)])], &Value::Null));
    bed.ready(&["at-work"]);
    // What it writes when it comes up is that it is there; from then on it is idle. Its next sign of life is due within 240 s.
    eventually("the first handshake", SOON, || {
        audit::writes_since(&bed, from).iter().any(|write| write.resource() == "nodes").then_some(())
    });
    let node = bed.told();
    assert!(node["metadata"]["annotations"]["hami.io/node-handshake"].is_string());
    let from = audit::end(&bed);
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert_eq!(agent.get("/healthz").status, 200);
        std::thread::sleep(Duration::from_secs(1));
    }
    let writes: Vec<Write> = audit::writes_since(&bed, from);
    println!("{} writes in {} s: {writes:#?}", writes.len(), span.as_secs());
    assert!(writes.len() <= most, "{writes:#?}");
    assert!(writes.iter().all(|write| write.resource() == "nodes"), "{writes:#?}");
    assert!(!long || writes.len() >= 4, "the sign of life is due every 240 s: {writes:#?}");
}

const LABEL: &str = "nvidia.com/gpu.";

/// The labels of the node's GPUs.
fn labels(bed: &Bed) -> Vec<(String, String)> {
    let node = bed.told();
    let all = node["metadata"]["labels"].as_object().expect("labels").clone();
    let text = |value: Value| value.as_str().expect("a text").to_owned();
    all.into_iter().filter(|(key, _)| key.starts_with("nvidia.com/")).map(|(key, value)| (key, text(value))).collect()
}

/// Written as GPU feature discovery writes them; not beside it, not over what others wrote, and taken away when switched off.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_node_is_labelled_by_its_gpus_unless_somebody_else_does() {
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
    // GPU feature discovery comes, and goes again.
    let label = |pair: &str| drop(bed.admin.run(&["label", "--overwrite", "node", bed.node(), pair]).ok());
    label("nvidia.com/gfd.timestamp=1763730000");
    eventually("the end of our labels", SOON, || (labels(&bed).len() == 1).then_some(()));
    label("nvidia.com/gfd.timestamp-");
    eventually("our labels again", SOON, || value("count"));
    // Somebody else writes one of them: it is theirs, and the rest goes.
    label("nvidia.com/gpu.product=Other");
    eventually("nothing but theirs", SOON, || {
        (labels(&bed) == [(format!("{LABEL}product"), "Other".to_owned())]).then_some(())
    });
    drop(agent);
    label("nvidia.com/gpu.product-");
    let agent = bed.agent(&["--gpus=simulated=H100:2"]);
    eventually("all of them", SOON, || value("product"));
    drop(agent);
    let _agent = bed.agent(&["--gpus=simulated=H100:2", "--node-labels=off"]);
    eventually("none of them", SOON, || labels(&bed).is_empty().then_some(()));
}
