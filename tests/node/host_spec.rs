//! The edits of the host's CDI spec on their way to a container: from the file of NVIDIA's container toolkit, through what the
//! node's container runtime reads, to the spec of a ticket.

use crate::driver::fake;
use crate::kubelet::Kubelet;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::scenario::{Scenario, fake_gpus};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);
const NODE: &str = "n1";

/// A node with a GPU, whose host has a CDI spec of nvidia-ctk, and its agent. The runtime does not answer the agent, so the agent
/// knows it from the Node.
struct NodeWithSpec {
    agent: Agent,
    kubelet: Kubelet,
    server: FakeApiServer,
    /// The driver's library, and the host's CDI spec.
    folder: TempDir,
}

/// A container that the kubelet has admitted.
struct Admitted {
    slot: String,
    /// The CDI spec that the container needs.
    spec: PathBuf,
}

impl NodeWithSpec {
    fn start(runtime: &str) -> NodeWithSpec {
        let server = FakeApiServer::start();
        let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": runtime });
        server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
        let (folder, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 1)], ..Scenario::default() });
        write_host_spec(folder.path(), &[]);
        let recipe = Agent::in_cluster(BINARY, &server, NODE)
            .with("--nvml-library", driver.library())
            .with("--host-cdi-dirs", folder.path());
        let kubelet = Kubelet::start(&recipe.dir().join("kubelet"));
        let agent = recipe.start();
        kubelet.plugin();
        let node = NodeWithSpec { agent, kubelet, server, folder };
        eventually("free slots", SOON, || node.free_slots().filter(|free| *free > 0));
        node
    }

    /// Admits a pod with a claim on the GPU.
    fn admit(&self) -> Admitted {
        const POD: &str = "dddddddd-0000-4000-8000-000000000001";
        // A plugin that has registered knows its GPUs.
        let gpu = self.agent.get("/api/v1/gpus").json()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
        let mut pod = lab::api_server::pod(NODE, "ml", "train", POD, &[("main", "")]);
        pod["metadata"]["annotations"] =
            json!({ "hami.io/vgpu-devices-allocated": format!("{gpu},NVIDIA,1000,10:;"), "hami.io/vgpu-node": NODE });
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "1" } });
        pod["status"] = json!({ "phase": "Pending" });
        self.server.put("pods", pod);
        let slot = format!("{gpu}-0");
        let ticket = self.kubelet.admits_with_answer(POD, &slot);
        Admitted { slot, spec: self.agent.dir().join(format!("cdi/gpu-steward.io-gpu-{ticket}.json")) }
    }

    /// The slots that no container has and that the kubelet may give away.
    fn free_slots(&self) -> Option<u32> {
        let metrics = self.agent.get("/metrics").text();
        let free = |line: &&str| line.starts_with("gpu_steward_plugin_slots{") && line.contains("state=\"free\"");
        metrics.lines().find(free)?.rsplit(' ').next()?.parse().ok()
    }

    /// Waits until `/readyz` has these words and no slot is free, or neither.
    fn closes(&self, closed: bool, words: &str) {
        eventually(&format!("closed: {closed}, {words}"), SOON, || {
            let says = self.agent.get("/readyz").text().contains(words);
            (says == closed && (self.free_slots()? == 0) == closed).then_some(())
        });
    }
}

/// The host's CDI spec, as nvidia-ctk 1.19 writes it: its version is 0.7 because of the groups for device nodes. Containers get
/// `more` fields too.
fn write_host_spec(folder: &Path, more: &[&str]) {
    let mut common = json!({ "env": ["FROM_THE_HOST=1"] });
    for field in more {
        common[*field] = json!([]);
    }
    let gpu = json!({ "deviceNodes": [{ "path": "/dev/nvidia0" }], "additionalGids": [44, 110] });
    let spec = json!({
        "cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "containerEdits": common,
        "devices": [{ "name": "0", "containerEdits": gpu }],
    });
    let next = folder.join("next");
    fs::write(&next, spec.to_string()).unwrap();
    fs::rename(next, folder.join("nvidia.json")).unwrap();
}

#[test]
fn the_spec_of_a_ticket_fits_the_container_runtime() {
    for (runtime, newest, groups) in [("cri-o://1.28.1", [0, 6, 0], false), ("cri-o://1.34.1", [1, 0, 0], true)] {
        let node = NodeWithSpec::start(runtime);
        let admitted = node.admit();
        node.kubelet.starts(&admitted.slot).unwrap();
        let text = fs::read_to_string(&admitted.spec).unwrap();
        let spec: Value = serde_json::from_str(&text).unwrap();
        let version = spec["cdiVersion"].as_str().unwrap().split('.');
        let version: Vec<u32> = version.map(|number| number.parse().unwrap()).collect();
        assert!(version[..] <= newest[..], "{runtime}: {text}");
        assert!(text.contains("FROM_THE_HOST=1") && text.contains("/dev/nvidia0"), "{runtime}: {text}");
        assert_eq!(text.contains("additionalGids"), groups, "{runtime}: {text}");
        let warned = node.agent.log().contains("containers do not get these fields of the host's CDI spec");
        assert_eq!(warned, !groups, "{runtime}: {}", node.agent.log());
    }
}

#[test]
fn no_container_starts_while_the_runtime_would_refuse_the_spec_of_its_ticket() {
    const WHY: &str = "netDevices of the host's CDI spec needs CDI 1.1.0, and cri-o://1.28.1 reads CDI up to 0.6.0";
    let node = NodeWithSpec::start("cri-o://1.28.1");
    node.closes(false, WHY);
    write_host_spec(node.folder.path(), &["netDevices"]);
    node.closes(true, WHY);
    let admitted = node.admit();
    let refused = node.kubelet.starts(&admitted.slot).unwrap_err();
    assert!(refused.contains(WHY), "{refused}");
    assert!(!admitted.spec.exists());
    let event = eventually("an event on the pod", SOON, || {
        node.server.objects("events").into_iter().find(|event| event["reason"] == "RuntimeTooOld")
    });
    assert!(event["note"].as_str().is_some_and(|note| note.contains(WHY)), "{event}");
    write_host_spec(node.folder.path(), &[]);
    node.closes(false, WHY);
    // The kubelet tries again.
    node.kubelet.starts(&admitted.slot).unwrap();
    assert!(admitted.spec.exists());
}
