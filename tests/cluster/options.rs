//! Tests the effects of the plugin's options on the kubelet and on HAMi's scheduler.

use crate::bed::{Bed, SOON, devices_in};
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;

const REGISTER: &str = "hami.io/node-nvidia-register";
const HANDSHAKE: &str = "hami.io/node-handshake";
const MIB: u64 = 1 << 20;

/// An agent with two H100, once the Node has this number of slots.
fn agent(bed: &Bed, slots: u32, flags: &[&str]) -> Agent {
    let agent = bed.agent(&[&["--gpus=simulated=H100:2"], flags].concat());
    eventually(&format!("{slots} slots with {flags:?}"), SOON, || {
        (bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"] == *slots.to_string()).then_some(())
    });
    agent
}

/// The register annotation, once `holds` returns true for it.
fn register(bed: &Bed, holds: impl Fn(&str) -> bool) -> String {
    eventually("the register annotation", SOON, || {
        let node = bed.node_object();
        node["metadata"]["annotations"][REGISTER].as_str().filter(|text| holds(text)).map(str::to_owned)
    })
}

/// For each GPU in the register: slots, MiB and percent.
fn numbers_in(text: &str) -> Vec<[u64; 3]> {
    let gpus: Value = serde_json::from_str(text).expect("JSON");
    let of = |gpu: &Value| ["count", "devmem", "devcore"].map(|key| gpu[key].as_u64().expect("a number"));
    gpus.as_array().expect("a list").iter().map(of).collect()
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn counts_and_scaling_reach_the_kubelet_and_the_scheduler() {
    let bed = Bed::up("options");
    let all = [81559, 100];
    let yaml = bed.dir().join("device-config.yaml");
    std::fs::write(&yaml, "nvidia:\n  deviceSplitCount: 3\n  deviceMemoryScaling: 2\n  deviceCoreScaling: 1.5\n")
        .expect("the file can be written");
    let file = format!("--device-config-file={}", yaml.display());
    for (flags, slots, memory, cores) in [
        (vec!["--split-count=4"], 4, all[0], all[1]),
        (vec!["--split-count=4", "--split-count-by-model=T4=2,H100=7"], 7, all[0], all[1]),
        (vec!["--memory-scaling=1.5"], 10, all[0] * 3 / 2, all[1]),
        (vec!["--core-scaling=2"], 10, all[0], all[1] * 2),
        (vec![&*file], 3, all[0] * 2, all[1] * 3 / 2),
        // The agent's own settings override the file.
        (vec![&*file, "--split-count=5", "--memory-scaling=1"], 5, all[0], all[1] * 3 / 2),
    ] {
        let agent = agent(&bed, 2 * slots, &flags);
        let expected = [u64::from(slots), memory, cores];
        register(&bed, |text| numbers_in(text) == [expected, expected]);
        drop(agent);
    }
    // With memory scaling, claims may add up to more memory than the GPU has.
    let agent = agent(&bed, 20, &["--memory-scaling=2"]);
    let gpus = Bed::gpus(&agent);
    for name in ["one", "two"] {
        bed.create(&bed.pod(name, &gpus, &[("main", "app", &[(0, 70000, 10)])], &Value::Null));
        bed.ready(&[name]);
        assert_eq!(devices_in(&bed.limits(name, "main")), [(gpus[0].clone(), 70000 * MIB)]);
    }
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn the_register_has_two_forms_and_the_handshake_can_be_left_out() {
    let bed = Bed::up("options-register");
    // The handshake of an earlier agent.
    let old = [format!("{REGISTER}-"), format!("{HANDSHAKE}=1763730000")];
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &old[0], &old[1]]).ok();
    let agent = agent(&bed, 20, &["--register-format=colon", "--handshake=false"]);
    let text = register(&bed, |text| !text.starts_with('['));
    let gpus = Bed::gpus(&agent);
    let entries: Vec<Vec<&str>> =
        text.split(':').filter(|text| !text.is_empty()).map(|entry| entry.split(',').collect()).collect();
    let mut uuids: Vec<&str> = entries.iter().map(|entry| entry[0]).collect();
    uuids.sort_unstable();
    let mut own: Vec<&str> = gpus.iter().map(String::as_str).collect();
    own.sort_unstable();
    assert_eq!(uuids, own, "{text}");
    assert!(entries.iter().all(|entry| entry[1..4] == ["10", "81559", "100"]), "{text}");
    let node = bed.node_object();
    assert!(node["metadata"]["annotations"][HANDSHAKE].is_null(), "{}", node["metadata"]["annotations"]);
    drop(agent);
    let agent = self::agent(&bed, 20, &[]);
    register(&bed, |text| text.starts_with('['));
    eventually("the handshake", SOON, || {
        bed.node_object()["metadata"]["annotations"][HANDSHAKE].is_string().then_some(())
    });
    // HAMi's scheduler writes this to ask whether the node is alive. The agent answers only when the request is so old that
    // no other plugin will answer it.
    let request = format!("{HANDSHAKE}=Requesting_2026.01.01 00:00:00");
    let _ = bed.admin.run(&["annotate", "--overwrite", "node", bed.node(), &request]).ok();
    eventually("an answer to it", SOON, || {
        let node = bed.node_object();
        node["metadata"]["annotations"][HANDSHAKE].as_str()?.parse::<u64>().ok()
    });
    drop(agent);
}
