//! Tests that a GPU which pods cannot get is named, with the reason and what to do, wherever an operator looks.

use crate::driver::fake;
use crate::kubelet::Kubelet;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::scenario::{CallFault, Code, Scenario, Which, fake_gpus};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The agent compares the lists of GPUs every 10 s, and two comparisons in a row must agree.
const SOON: Duration = Duration::from_secs(90);
const NODE: &str = "n1";
const REGISTER: &str = "hami.io/node-nvidia-register";
/// The address of a GPU that is on the bus, and that NVML does not list.
const UNLISTED: &str = "0000:c2:00.0";

/// The UUID of the fake driver's GPU at this place.
fn uuid(place: usize) -> String {
    format!("GPU-5eed0000-0000-4000-8000-{place:012x}")
}

/// A call that the driver does not support for one GPU.
fn refused(call: &str, gpu: u32) -> CallFault {
    let (gpu, error) = (Some(Which::Place(gpu)), Some(Code::NOT_SUPPORTED));
    CallFault { call: call.into(), gpu, error, ..CallFault::default() }
}

/// A PCI bus with one GPU, to which no kernel driver is bound.
fn bus(sysfs: &Path) {
    let folder = sysfs.join("bus/pci/devices").join(UNLISTED);
    std::fs::create_dir_all(&folder).unwrap();
    for (file, text) in [("vendor", "0x10de\n"), ("class", "0x030200\n")] {
        std::fs::write(folder.join(file), text).unwrap();
    }
}

/// The first GPU has no device node, as under WSL; for the second the driver reports no memory; the third is well; a fourth
/// is on the bus alone.
#[test]
fn a_gpu_that_pods_cannot_get_is_named_with_reason_and_remedy_everywhere() {
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let faults = vec![refused("nvmlDeviceGetMinorNumber", 0), refused("nvmlDeviceGetMemoryInfo*", 1)];
    let (folder, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 3)], faults, ..Scenario::default() });
    let sysfs = folder.path().join("sys");
    bus(&sysfs);
    let recipe = Agent::in_cluster(BINARY, &server, NODE);
    let recipe = recipe.with("--nvml-library", driver.library()).with("--sysfs-root", &sysfs);
    let _kubelet = Kubelet::start(&recipe.dir().join("kubelet"));
    let agent = recipe.launch();
    let withheld = [
        format!(
            "GPU 0 ({}) is not offered: its device node is not known: not supported by this device. The GPU has no /dev/nvidiaN",
            uuid(0)
        ),
        format!(
            "GPU 1 ({}) is not offered: its memory size is not known: not supported by this device. State its memory in MiB",
            uuid(1)
        ),
    ];
    let why = "NVIDIA's driver has not initialised it";
    eventually("all of it at /readyz", SOON, || {
        let text = agent.get("/readyz").text();
        let unlisted = text.contains(&format!("GPU at {UNLISTED} is missing: {why}. Check the kernel log"));
        (unlisted && withheld.iter().all(|sentence| text.contains(sentence))).then_some(())
    });
    withheld.iter().for_each(|sentence| agent.logs(sentence));
    agent.logs(&format!("this machine has a GPU that NVML does not list: {why}. Check the kernel log"));
    in_api_and_metrics(&agent);
    on_the_node(&server);
    let event = eventually("an event on the Node", SOON, || {
        server.objects("events").into_iter().find(|event| event["reason"] == "GpuMissing")
    });
    let note = event["note"].as_str().unwrap_or_default();
    let expect =
        format!("GPU at {UNLISTED}: NVML does not list it: {why}. It gets no containers. Check the kernel log");
    assert!(note.starts_with(&expect), "{event}");
}

fn in_api_and_metrics(agent: &Agent) {
    let codes = ["no_device_node", "no_memory_size"];
    let node = agent.get("/api/v1/node").json();
    let not_offered = &node["plugin"]["not_offered"];
    assert_eq!(not_offered.as_array().map(Vec::len), Some(codes.len()), "{not_offered}");
    for (place, code) in codes.into_iter().enumerate() {
        let one = &not_offered[place];
        assert_eq!((&one["index"], &one["uuid"], &one["code"]), (&json!(place), &json!(uuid(place)), &json!(code)));
        assert!(one["advice"].as_str().is_some_and(|advice| advice.ends_with('.')), "{one}");
    }
    let unlisted = &node["gpus_missing"];
    assert_eq!(unlisted.as_array().map(Vec::len), Some(1), "{unlisted}");
    assert_eq!((&unlisted[0]["pci_bus_id"], &unlisted[0]["code"]), (&json!(UNLISTED), &json!("not_initialised")));
    let metrics = agent.get("/metrics").text();
    let labels = |place: usize| format!("gpu=\"{place}\",uuid=\"{}\",reason=\"{}\"", uuid(place), codes[place]);
    for line in [
        format!("gpu_steward_plugin_not_offered{{{}}} 1", labels(0)),
        format!("gpu_steward_plugin_not_offered{{{}}} 1", labels(1)),
        format!("gpu_steward_gpus_missing{{pci_bus_id=\"{UNLISTED}\",reason=\"not_initialised\"}} 1"),
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
}

/// The labels and the register promise only the GPU that is offered.
fn on_the_node(server: &FakeApiServer) {
    let (count, register) = eventually("labels and register", SOON, || {
        let metadata = server.object("nodes", "", NODE)?["metadata"].clone();
        let register = metadata["annotations"][REGISTER].as_str()?.to_owned();
        Some((metadata["labels"]["nvidia.com/gpu.count"].as_str()?.to_owned(), register))
    });
    assert_eq!(count, "1");
    let gpus: Vec<Value> = serde_json::from_str(&register).unwrap();
    let ids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu["id"].as_str()).collect();
    assert_eq!(ids, [uuid(2)]);
}
