//! Tests sharing with an API server and a fake kubelet that only registers plugins; the tests make the kubelet's calls.

use crate::kubelet::Kubelet;
use crate::program::BINARY;
use lab::agent::{Agent, Recipe};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
const NODE: &str = "n1";

/// An agent that shares two simulated GPUs, and its kubelet.
fn recipe(server: &FakeApiServer) -> (Recipe, Kubelet) {
    let recipe = Agent::in_cluster(BINARY, server, NODE).with("--gpus", "simulated=H100:2");
    let kubelet = Kubelet::start(&recipe.dir().join("kubelet"));
    (recipe, kubelet)
}

/// How often the agent asked for its Node to learn the versions of the kubelet and the runtime.
fn node_requests(server: &FakeApiServer) -> usize {
    let for_versions = |request: &lab::api_server::ReceivedRequest| {
        request.path == "/api/v1/nodes/n1" && request.query.contains_key("resourceVersion")
    };
    server.requests().iter().filter(|request| for_versions(request)).count()
}

/// A fresh machine: the agent starts before the kubelet has made the Node, and the runtime's socket is not at a known
/// path. A pod that started on a node without CDI would get neither its devices nor its limits.
#[test]
fn no_slot_is_offered_before_it_is_known_whether_there_is_cdi() {
    let server = FakeApiServer::start();
    let (recipe, kubelet) = recipe(&server);
    let (agent, started) = (recipe.start(), Instant::now());
    eventually("ten requests for the Node", SOON, || (node_requests(&server) >= 10).then_some(()));
    assert!(
        started.elapsed() >= Duration::from_secs(3),
        "the Node is read without a pause: {}",
        node_requests(&server)
    );
    assert!(!kubelet.is_offered(), "{}", agent.log());
    let why = "there is no node n1 at";
    let ready = agent.get("/readyz");
    assert_eq!(ready.status, 200, "CPU, memory and GPUs are served: {}", ready.text());
    for text in [agent.log(), ready.text()] {
        for words in [why, "container runtime not found: no socket at", "no-cri.sock"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    let node = |info: serde_json::Value| json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } });
    // Another client has created the Node before the kubelet has reported its versions.
    server.put("nodes", node(json!({ "kubeletVersion": "", "containerRuntimeVersion": "" })));
    agent.logs("does not name its versions yet");
    let before = node_requests(&server);
    eventually("some more requests", SOON, || (node_requests(&server) >= before + 3).then_some(()));
    assert!(!kubelet.is_offered(), "{}", agent.log());
    server.put("nodes", node(json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" })));
    kubelet.plugin();
    agent.logs("its version supports CDI");
    assert!(!agent.log().contains("offers no GPU"), "{}", agent.log());
}

/// A later start: the versions of the last run count at once, even while the API server is unreachable.
#[test]
fn the_versions_of_the_last_run_are_enough_to_start() {
    let mut server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let state = tempfile::tempdir().unwrap();
    for (why, away) in [("its version supports CDI", false), ("it had CDI when the agent ran last", true)] {
        let (recipe, kubelet) = recipe(&server);
        if away {
            server.stop();
        }
        let agent = recipe.with("--state-dir", state.path()).launch();
        kubelet.plugin();
        agent.logs(why);
        assert!(agent.terminate().status.success());
    }
}

/// An upgrade: the second agent waits for the first, says so, is ready, and then takes over the sharing and the usage
/// socket.
#[test]
fn a_second_agent_is_ready_says_that_it_waits_and_takes_over() {
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let shared = tempfile::tempdir().unwrap();
    let (state, usage) = (shared.path().join("state"), shared.path().join("agent.sock"));
    let (first, kubelet) = recipe(&server);
    let first = first.with("--state-dir", &state).with("--usage-socket", &usage).start();
    kubelet.plugin();
    let (second, _) = recipe(&server);
    let second = second
        .with("--state-dir", &state)
        .with("--usage-socket", &usage)
        .with("--kubelet-root", kubelet.root())
        .start();
    let says_that_it_waits =
        |agent: &Agent| agent.get("/readyz").text().contains("another agent shares the GPUs of this node");
    eventually("a line at /readyz", SOON, || says_that_it_waits(&second).then_some(()));
    assert_eq!(second.get("/readyz").status, 200);
    second.logs("another agent shares the GPUs of this node");
    assert!(!says_that_it_waits(&first));
    let ended = first.terminate();
    assert!(ended.status.success(), "{}", ended.log);
    second.logs("the other agent is ending: this agent shares the GPUs from now on");
    assert!(state.join("addresses.json").exists(), "the file of the second agent");
    eventually("the usage socket", SOON, || std::os::unix::net::UnixStream::connect(&usage).ok());
    eventually("no mention of another agent", SOON, || (!says_that_it_waits(&second)).then_some(()));
    assert_eq!(second.get("/readyz").status, 200, "{}", second.log());
}

/// Sends a call as the kubelet sends it, byte for byte, over its own connection. Does not wait for the answer.
fn call(socket: &Path, method: &str, request: &[u8]) -> UnixStream {
    let frame = |kind: u8, flags: u8, stream: u8, content: &[u8]| {
        let len = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags, 0, 0, 0, stream], content].concat()
    };
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &format!("/v1beta1.DevicePlugin/{method}")),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // Literal header field without indexing and without Huffman coding.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    let message = [&[0, 0, 0, 0, u8::try_from(request.len()).unwrap()], request].concat();
    let mut stream = UnixStream::connect(socket).unwrap();
    let call = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &block),
        frame(0, 1, 1, &message),
    ];
    stream.write_all(&call.concat()).unwrap();
    stream
}

/// A length-delimited field of a protobuf message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// The data of the whole answer.
fn answer(mut stream: UnixStream) -> Vec<u8> {
    const END_OF_STREAM: u8 = 1;
    let mut data = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut content).unwrap();
        match (head[3], head[8]) {
            (0, 1) => data.append(&mut content),
            (1, 1) if head[4] & END_OF_STREAM != 0 => return data,
            _ => {}
        }
    }
}

/// The socket on which the kubelet would call the agent, and a slot of the first GPU.
fn offered(agent: &Agent, kubelet: &Kubelet) -> (PathBuf, String) {
    // A plugin that has registered knows its GPUs.
    let socket = kubelet.plugin();
    let gpu = agent.get("/api/v1/gpus").json()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    (socket, format!("{gpu}-0"))
}

/// HTTP clients of the open port wait for each other, but the kubelet does not wait for them: it gets several times more
/// answers than each client. If both used one worker, the worker would serve all callers in turn, and each would get as many.
#[test]
fn kubelet_calls_do_not_wait_for_requests_of_the_open_port() {
    const CALLERS: usize = 24;
    const CALLS: usize = 100;
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let (recipe, kubelet) = recipe(&server);
    let agent = recipe.start();
    let (socket, id) = offered(&agent, &kubelet);
    let (served, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (served, calls) = std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let answer = lab::http::get(agent.metrics, "/metrics").unwrap();
                    // A client gets status 503 while too many answers are in progress.
                    assert!([200, 503].contains(&answer.status), "{}", answer.text());
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("each client to be served", SOON, || (served.load(Ordering::Relaxed) >= CALLERS).then_some(()));
        let before = served.load(Ordering::Relaxed);
        // On a busy machine, all calls of the kubelet may end before any client is served.
        let mut calls = 0;
        while calls < CALLS || served.load(Ordering::Relaxed) == before && calls < 50 * CALLS {
            let one = field(1, &field(1, id.as_bytes()));
            assert!(!answer(call(&socket, "Allocate", &one)).is_empty(), "{}", agent.log());
            calls += 1;
        }
        let after = served.load(Ordering::Relaxed);
        done.store(true, Ordering::Relaxed);
        (after - before, calls)
    });
    let each = served as f64 / CALLERS as f64;
    println!("while kubelet got {calls} answers, each of {CALLERS} callers of the open port got {each:.1}");
    assert!(served > 0 && each * 2.0 < calls as f64, "{each:.1} answers for each client");
}

/// The agent judges a waiting start when something has changed, and otherwise twice a second. Each time it checks all
/// slots of the node.
#[test]
fn a_waiting_start_is_judged_only_a_few_times_a_second() {
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let (recipe, kubelet) = recipe(&server);
    let agent = recipe.with("-v", "5").start();
    let (socket, id) = offered(&agent, &kubelet);
    let _call = call(&socket, "PreStartContainer", &field(1, id.as_bytes()));
    let tries = || agent.log().matches("a start waits").count();
    eventually("the start to wait", SOON, || (tries() > 0).then_some(()));
    let (before, began) = (tries(), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let (tries, seconds) = (tries() - before, began.elapsed().as_secs_f64());
    println!("{:.1} tries a second at a start that waits", tries as f64 / seconds);
    assert!(tries >= 1, "the start is still judged");
    assert!((tries as f64) <= 10.0 * seconds, "{tries} tries in {seconds:.1} s");
    // The kubelet's checkpoint has the slot now, with a pod that the agent does not know.
    kubelet.writes_checkpoint("466d3e0f-28fd-4a4c-a28d-790ef2a79f8c", &id);
    eventually("another try of the start", SOON, || {
        let log = agent.log();
        (log.contains("what=Pod")
            || log.contains("AnswerLost")
            || log.contains("Foreign")
            || log.contains("earlier plugin"))
        .then_some(())
    });
}

/// A node whose runtime has no CDI, with a pod that got its devices at `Allocate` from an earlier release: no slot is free,
/// and the agent is ready as long as the pod exists. Once the runtime is upgraded, the slots are free.
#[test]
fn a_node_without_cdi_offers_no_free_slot_and_counts_the_pods_of_an_earlier_release() {
    const POD: &str = "466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
    // `annotations { key: "gpu-steward.io/ticket" value: "t0…" }`, as the kubelet keeps the answer.
    const ANSWER: &str = "IgYKAWESAWIiOgoVZ3B1LXN0ZXdhcmQuaW8vdGlja2V0EiF0MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=";
    let server = FakeApiServer::start();
    let node = |runtime: &str| {
        let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": runtime });
        server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    };
    node("containerd://1.6.20");
    let mut pod = lab::api_server::pod(NODE, "ml", "old", POD, &[("main", "")]);
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "1" } });
    server.put("pods", pod);
    let (recipe, kubelet) = recipe(&server);
    kubelet.writes_answer(POD, "GPU-x-0", ANSWER);
    let agent = recipe.launch();
    agent.logs("this node offers no GPU");
    kubelet.plugin();
    let says = |status: u16, words: &[&str]| {
        eventually(&format!("{words:?} at /readyz"), SOON, || {
            let ready = agent.get("/readyz");
            (ready.status == status && words.iter().all(|word| ready.text().contains(word))).then_some(())
        });
    };
    let change = ["upgrade containerd to 1.7", "enable_cdi = true", "/etc/containerd/config.toml"];
    says(200, &[&change[..], &["an earlier release started without CDI keep their GPUs: 1"]].concat());
    let metric = |line: &str| {
        eventually(line, SOON, || agent.get("/metrics").text().lines().any(|one| one == line).then_some(()));
    };
    metric("gpu_steward_plugin_cdi 0");
    assert!(!agent.get("/metrics").text().lines().any(|line| {
        line.starts_with("gpu_steward_plugin_slots{") && line.contains("state=\"free\"") && !line.ends_with(" 0")
    }));
    let event = eventually("an event on the Node", SOON, || {
        server.objects("events").into_iter().find(|event| event["reason"] == "CdiMissing")
    });
    assert!(change.iter().all(|word| event["note"].as_str().unwrap_or_default().contains(word)), "{event}");
    server.remove("pods", "ml", "old");
    says(503, &change);
    node("containerd://2.1.4");
    says(200, &[]);
    metric("gpu_steward_plugin_cdi 1");
    eventually("an event on the Node", SOON, || {
        server.objects("events").into_iter().find(|event| event["reason"] == "CdiWorks")
    });
    eventually("free slots", SOON, || {
        let free = |line: &str| line.starts_with("gpu_steward_plugin_slots{") && line.ends_with("state=\"free\"} 10");
        (agent.get("/metrics").text().lines().filter(|line| free(line)).count() == 2).then_some(())
    });
}

/// A live node moves from NVIDIA's plugin to this agent: a pod of that plugin still runs on the first GPU.
#[test]
fn a_gpu_that_a_pod_has_from_nvidias_plugin_is_not_offered_until_the_pod_ends() {
    const POD: &str = "466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE }, "status": { "nodeInfo": info } }));
    let mut pod = lab::api_server::pod(NODE, "ml", "old", POD, &[("main", "")]);
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "1" } });
    pod["status"] = json!({ "phase": "Running" });
    server.put("pods", pod.clone());
    let (recipe, kubelet) = recipe(&server);
    let agent = recipe.start();
    let (_, slot) = offered(&agent, &kubelet);
    let gpu = slot.trim_end_matches("-0").to_owned();
    let gpus = agent.get("/api/v1/gpus").json()["gpus"].clone();
    let slots: Vec<String> = [0, 1].map(|n| format!("{}-0", gpus[n]["uuid"].as_str().unwrap())).into();
    let shows = |gpu: &str, free: u32, taken: u32| {
        let lines = [
            format!("gpu_steward_plugin_slots{{uuid=\"{gpu}\",state=\"free\"}} {free}"),
            format!("gpu_steward_plugin_taken{{uuid=\"{gpu}\"}} {taken}"),
        ];
        eventually(&lines.concat(), SOON, || {
            let metrics = agent.get("/metrics").text();
            lines.iter().all(|line| metrics.lines().any(|one| one == line)).then_some(())
        });
    };
    shows(&gpu, 10, 0);
    assert_eq!(kubelet.preferred(&slots), slot, "equal GPUs are taken in order");
    // `envs { key: "NVIDIA_VISIBLE_DEVICES" value: "0" }`: the plugin gives devices by index.
    kubelet.writes_answer(POD, &gpu, "ChsKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSATA=");
    shows(&gpu, 0, 1);
    agent.logs("a GPU gets no new containers until the pod ml/old ends");
    assert_eq!(kubelet.preferred(&slots), slots[1]);
    let registered = |healthy: bool| {
        eventually("the register", SOON, || {
            let node = server.object("nodes", "", NODE)?;
            let text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].as_str()?.to_owned();
            let gpus: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
            let own = gpus.iter().find(|one| one["id"] == *gpu)?;
            ((own["health"] == true) == healthy).then_some(())
        });
    };
    registered(false);
    pod["status"] = json!({ "phase": "Succeeded" });
    server.put("pods", pod);
    shows(&gpu, 10, 0);
    agent.logs("no other owner holds the GPU any more");
    registered(true);
}

/// The kubelet registers the host `Ab.Example` as the Node `ab.example`.
#[test]
#[ignore = "needs root: tests/run"]
fn an_agent_without_a_given_name_finds_its_node_by_the_name_of_the_host_in_lower_case() {
    const NAME: &str = "ab.example";
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NAME }, "status": { "nodeInfo": info } }));
    let recipe = Recipe::of(BINARY);
    let kubeconfig = server.kubeconfig(recipe.dir());
    let recipe = recipe.with("--kubeconfig", kubeconfig).with("--gpus", "simulated=H100:2");
    let kubelet = Kubelet::start(&recipe.dir().join("kubelet"));
    let agent = recipe.within("exec unshare --uts sh -c 'hostname Ab.Example && exec \"$@\"' sh \"$@\"").start();
    kubelet.plugin();
    eventually("the register", SOON, || {
        let node = server.object("nodes", "", NAME)?;
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"].is_string().then_some(())
    });
    assert!(agent.log().contains(&format!("node={NAME} ")), "{}", agent.log());
    let requests = server.requests();
    let of_nodes = requests.iter().filter_map(|request| request.path.strip_prefix("/api/v1/nodes/"));
    assert!(of_nodes.clone().count() > 0 && of_nodes.clone().all(|name| name == NAME), "{requests:?}");
    let selector = format!("spec.nodeName={NAME}");
    assert!(requests.iter().any(|request| request.query.get("fieldSelector") == Some(&selector)), "{requests:?}");
}
