//! `gpu-steward doctor` with a fake API server and a running extender, which is reached through a port forwarded into its pod.

mod bundle;
mod impostors;

use crate::program::BINARY;
use crate::streams::stream_client::{StreamClient, full};
use crate::streams::stream_extender::{SOON, StreamExtender, agent_pod, agent_token, pod, trusted};
use lab::api_server::{ApiServerFault, FakeApiServer};
use lab::eventually::eventually;
use proto::stream::Phase;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The service account of the extenders, after which the chart names their Lease.
const ACCOUNT: &str = "gpu-steward-extender";

/// The exit code, standard output and standard error.
type Said = (i32, String, String);

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Said {
    let output = Command::new(BINARY).arg("doctor").args(arguments).env_remove("KUBECONFIG").output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code().expect("an exit code"), text(&output.stdout), text(&output.stderr))
}

/// Runs a command that looks at the cluster.
fn doctor(server: &FakeApiServer, line: &str) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(folder.path());
    let arguments = line.split(' ').map(OsStr::new);
    run(arguments.chain([OsStr::new("--kubeconfig"), kubeconfig.as_os_str()]))
}

fn json_of(server: &FakeApiServer, line: &str) -> (i32, Value) {
    let (code, out, error) = doctor(server, &format!("{line} -o json"));
    (code, serde_json::from_str(&out).unwrap_or_else(|why| panic!("{why}: {out}{error}")))
}

/// The codes of the findings that are wrong.
fn wrong(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["verdict"] == "wrong").map(|finding| finding["code"].as_str().unwrap()).collect()
}

/// A Node with this many GPUs of 80 GiB whose agent was alive `age` seconds ago.
fn node(server: &FakeApiServer, name: &str, (gpus, age): (usize, u64)) {
    let gpu = |index: usize| {
        json!({
            "id": format!("GPU-{name}-{index}"), "index": index, "count": 10, "devmem": 81920, "devcore": 100,
            "type": "NVIDIA-NVIDIA H100", "numa": 0, "mode": "hami-core", "health": true,
        })
    };
    let register = Value::from((0..gpus).map(gpu).collect::<Vec<_>>()).to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let annotations =
        json!({ "hami.io/node-nvidia-register": register, "hami.io/node-handshake": (now - age).to_string() });
    let labels = json!({ "nvidia.com/cuda.driver-version.full": "550.127.08" });
    let status = json!({
        "conditions": [{ "type": "Ready", "status": "True" }], "allocatable": { "nvidia.com/gpu": (gpus * 10).to_string() },
        "nodeInfo": { "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" },
    });
    let metadata = json!({ "name": name, "uid": format!("uid-{name}"), "annotations": annotations, "labels": labels });
    server.put("nodes", json!({ "metadata": metadata, "status": status }));
}

/// The Lease of the extenders of this namespace, as this process has left it.
fn lease(server: &FakeApiServer, namespace: &str, holder: &str) {
    let annotations = json!({ "gpu-steward.io/epoch": "1" });
    let metadata = json!({ "namespace": namespace, "name": ACCOUNT, "annotations": annotations });
    server.put("leases", json!({ "metadata": metadata, "spec": { "holderIdentity": holder } }));
}

/// The pod of an extender that listens at this address. The extenders of these tests have their Lease in its namespace.
fn extender_pod(server: &FakeApiServer, name: &str, address: SocketAddr) {
    let labels = json!({ "app.kubernetes.io/name": "gpu-steward", "app.kubernetes.io/component": "extender" });
    let ports = json!([{ "name": "metrics", "containerPort": 9444 }, { "name": "streams", "containerPort": 9443 }]);
    server.put(
        "pods",
        json!({
            "metadata": { "namespace": "gpu", "name": name, "uid": "eeeeeeee-0000-4000-8000-000000000001", "labels": labels },
            "spec": {
                "nodeName": "control", "serviceAccountName": ACCOUNT,
                "containers": [{ "name": "extender", "image": "x", "ports": ports }],
            },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
    server.forward(("gpu", name, 9444), address);
}

#[test]
fn nodes_are_a_table_with_what_the_leader_believes_and_problems_have_advice() {
    let server = FakeApiServer::start();
    node(&server, "n1", (2, 10));
    node(&server, "n2", (1, 1000));
    server.put("nodes", json!({ "metadata": { "name": "plain", "uid": "uid-plain" } }));
    server.put(
        "nodes",
        json!({ "metadata": { "name": "dcu", "uid": "uid-dcu", "annotations": { "hami.io/node-dcu-register": "x" } } }),
    );
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    agent_pod(&server, "n1", 1);
    let token = agent_token(&server, "n1", 1);
    let trusted = trusted(&server);
    let stream = eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    stream.send(full("n1", Phase::Serving, &[]));
    eventually("the leader knows the agent", SOON, || {
        (extender.metric("gpu_steward_extender_streams") == 1).then_some(())
    });

    let (code, report) = json_of(&server, "nodes");
    assert_eq!((code, wrong(&report)), (1, vec!["HandshakeStale"]), "{report:#}");
    let rows = report["rows"].as_array().unwrap();
    let [n1, n2] = &rows[..] else { panic!("{report:#}") };
    assert_eq!((&n1["node"], &n1["stream"], &n2["stream"]), (&json!("n1"), &json!("open"), &json!("never")));
    assert_eq!(
        (&n1["register"], &n1["slots_registered"], &n1["slots_allocatable"]),
        (&json!("ok"), &json!(20), &json!(20))
    );
    assert_eq!((&n1["driver"], &n1["cdi"], &n1["gpus_healthy"]), (&json!("550.127.08"), &json!("yes"), &json!(2)));
    assert!(
        n1["stream_age_seconds"].as_f64().unwrap() < 60.0 && n2["handshake_age_seconds"].as_f64().unwrap() >= 1000.0
    );

    let (code, text, _) = doctor(&server, "nodes --all");
    assert_eq!(code, 1);
    for part in ["NODE", "n1", "Hygon DCU devices (not implemented)", "plain", "What to do:", "reaches the API server"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let believed = extender.get("/api/v1/nodes?node=n1").json();
    let device = &believed["nodes"][0]["devices"][1];
    assert_eq!(
        (&device["index"], &device["memory_bytes"], &device["slots"]),
        (&json!(1), &json!(80_u64 << 30), &json!(10))
    );
    assert_eq!(extender.get("/api/v1/nodes?node=n9").status, 404);
    assert_eq!(extender.get("/api/v1/nodes?pod=a").status, 400);
    assert!(extender.get("/api/v1/nodes").json()["nodes"][0]["devices"].is_null(), "devices only of one node");
}

#[test]
fn a_right_that_is_missing_is_named_and_the_rest_is_shown() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    server.fault(ApiServerFault::RefusePath(403, "portforward"));
    let (code, text, _) = doctor(&server, "nodes");
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("LeaderNotSeen") && text.contains("allow this identity to get pods/portforward"), "{text}");
    let (code, text, _) = doctor(&server, &format!("nodes --extender http://{}", extender.address));
    assert!(code == 0 && !text.contains("LeaderNotSeen"), "an address needs no right: {text}");

    server.fault(ApiServerFault::RefuseExactly(403, "/api/v1/nodes"));
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("allow this identity to list and watch nodes"), "{code}: {text}");
}

/// The machine of the caller may have any time.
#[test]
fn ages_are_by_the_clock_of_the_api_server() {
    let server = FakeApiServer::start();
    server.date("Sun, 13 Sep 2020 12:26:40 GMT");
    node(&server, "n1", (1, 10));
    let mut n1 = server.object("nodes", "", "n1").unwrap();
    n1["metadata"]["annotations"]["hami.io/node-handshake"] = "1599999900".into();
    server.put("nodes", n1);
    let (_, report) = json_of(&server, "nodes");
    assert_eq!((wrong(&report), &report["rows"][0]["handshake_age_seconds"]), (vec![], &json!(100.0)), "{report:#}");
    server.fault(ApiServerFault::RefusePath(403, "/version"));
    let (_, report) = json_of(&server, "nodes");
    assert_eq!(wrong(&report), ["HandshakeStale"]);
    assert!(report.to_string().contains("ages are by the clock of this machine"), "{report:#}");
}

#[test]
fn a_port_of_a_pod_that_nobody_listens_on_is_reported_with_the_kubelets_reason() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    extender_pod(&server, "gpu-extender-0", closed);
    lease(&server, "gpu", "gpu-extender-0_0123456789abcdef");
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("error forwarding port 9444 to pod"), "{code}: {text}");
}

#[test]
fn what_cannot_be_looked_at_is_exit_code_2_and_a_wrong_flag_is_64() {
    let mut server = FakeApiServer::start();
    server.stop();
    let (code, text, _) = doctor(&server, "nodes");
    assert!(code == 2 && text.contains("not everything could be looked at"), "{code}: {text}");
    let (code, text, _) = run(["nodes", "--kubeconfig", "/nonexistent/kubeconfig"]);
    assert!(code == 2 && text.contains("/nonexistent/kubeconfig"), "{code}: {text}");
    assert_eq!(run(["everything"]).0, 64);
}

#[test]
fn a_refused_pod_is_explained_with_the_leaders_reasons_and_live_use() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    let mut large = pod(&server, 1, 90_000);
    large["spec"]["schedulerName"] = "gpu-steward".into();
    server.put("pods", large.clone());
    let before = json_of(&server, "pod ml/train-1");
    assert_eq!((before.0, wrong(&before.1)), (1, vec!["NoEvent"]), "{:#}", before.1);
    extender.filter(&large, &["n1"]);
    let (code, report) = json_of(&server, "pod ml/train-1");
    assert_eq!((code, wrong(&report)), (1, vec!["CardInsufficientMemory"]), "{report:#}");
    let evidence = report["findings"][0]["evidence"].to_string();
    for part in ["requests 90000 MiB", "n1: ", "n1 GPU 0: 81920 MiB, 0 MiB claimed by 0 containers"] {
        assert!(evidence.contains(part), "{part}: {evidence}");
    }
    let (_, text, _) = doctor(&server, "pod ml/train-1");
    assert!(text.contains("What to do:\n  1. request less nvidia.com/gpumem"), "{text}");

    // Without the leader, the event says why.
    eventually("the event", SOON, || {
        server.objects("events").iter().any(|event| event["reason"] == "FilteringFailed").then_some(())
    });
    server.fault(ApiServerFault::RefusePath(403, "portforward"));
    let (code, report) = json_of(&server, "pod ml/train-1");
    assert_eq!((code, wrong(&report)), (1, vec!["CardInsufficientMemory"]), "{report:#}");
    assert!(report["findings"][1]["what"].as_str().unwrap().contains("pods/portforward"), "{report:#}");
}

/// A StatefulSet makes its pod again under the same name.
#[test]
fn decisions_about_an_earlier_pod_of_the_same_name_say_nothing_about_this_one() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    let mut again = pod(&server, 1, 90_000);
    extender.filter(&again, &["n1"]);
    assert_eq!(wrong(&json_of(&server, "pod ml/train-1").1), ["CardInsufficientMemory"]);
    again["metadata"]["uid"] = "dddddddd-0000-4000-8000-000000000001".into();
    again["spec"]["schedulerName"] = "another-scheduler".into();
    server.put("pods", again);
    let (code, report) = json_of(&server, "pod ml/train-1");
    assert_eq!((code, wrong(&report)), (1, vec!["OtherScheduler"]), "{report:#}");
}

#[test]
fn a_pod_that_is_not_there_is_wrong_and_text_of_the_cluster_does_not_reach_the_terminal() {
    let server = FakeApiServer::start();
    let (code, text, _) = doctor(&server, "pod ml/none");
    assert!(code == 1 && text.contains("there is no pod ml/none"), "{code}: {text}");
    let mut hostile = pod(&server, 2, 3000);
    hostile["status"] = json!({ "phase": "Failed", "reason": "Evil", "message": "\u{1b}]0;owned\u{7}\u{202e}" });
    server.put("pods", hostile);
    for line in ["pod ml/train-2", "pod ml/train-2 -o json"] {
        let (code, text, _) = doctor(&server, line);
        assert!(code == 1 && text.contains("owned"), "{code}: {text}");
        assert!(!text.contains(|c: char| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
    }
}

/// `/api/v1/nodes` and the pods are read for no pod that needs none of them.
#[test]
fn a_bound_pod_is_well() {
    let server = FakeApiServer::start();
    let mut bound = pod(&server, 3, 3000);
    bound["spec"]["nodeName"] = "n1".into();
    bound["status"] = json!({ "phase": "Running" });
    server.put("pods", bound);
    let (code, report) = json_of(&server, "pod ml/train-3");
    assert_eq!(
        (code, &report["verdict"], &report["findings"][0]["code"]),
        (0, &json!("well"), &json!("PodBound")),
        "{report:#}"
    );
}

/// Whether a command says what it must within this time. Another program may have delayed it once.
fn says_within(server: &FakeApiServer, line: &str, most: Duration, is_right: impl Fn(&Value) -> bool) {
    let mut took = [(); 3].map(|()| {
        let begun = Instant::now();
        let (_, report) = json_of(server, line);
        let took = begun.elapsed();
        assert!(is_right(&report), "{line}: {:.4000}", report.to_string());
        took
    });
    took.sort_unstable();
    println!("doctor {line}: {took:.2?}");
    assert!(took[1] <= most, "doctor {line}: {took:.2?}, and the mark is {most:?}");
}

#[test]
#[ignore = "takes a minute: tests/run --long"]
fn the_table_of_5000_nodes_takes_5_seconds_and_the_reason_of_a_pod_that_all_refuse_takes_2() {
    let server = FakeApiServer::start();
    let names: Vec<String> = (0..5000).map(|number| format!("gpu-{number:04}")).collect();
    // The images are most of a Node.
    let image = |number: u32| json!({ "names": [format!("registry.example.com/team/{number:0170}")], "sizeBytes": 1 });
    let images = Value::from((0..50).map(image).collect::<Vec<_>>());
    for name in &names {
        node(&server, name, (8, 10));
        let mut whole = server.object("nodes", "", name).unwrap();
        whole["status"]["images"] = images.clone();
        server.put("nodes", whole);
    }
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    let mut large = pod(&server, 1, 90_000);
    large["spec"]["schedulerName"] = "gpu-steward".into();
    server.put("pods", large.clone());
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let answer = extender.filter(&large, &asked);
    assert!(answer["NodeNames"].as_array().is_none_or(Vec::is_empty), "{:.400}", answer.to_string());
    says_within(&server, "nodes", Duration::from_secs(5), |report| {
        let rows = report["rows"].as_array().unwrap();
        rows.len() == names.len() && rows.iter().all(|row| row["stream"] == "never")
    });
    says_within(&server, "pod ml/train-1", Duration::from_secs(2), |report| {
        wrong(report) == ["CardInsufficientMemory"]
    });
}

/// A folder that looks like a machine with the kubelet and CDI, and the flags that name it.
struct Machine {
    folder: tempfile::TempDir,
    _sockets: Vec<std::os::unix::net::UnixListener>,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for directory in ["kubelet/device-plugins", "kubelet/pod-resources", "cdi", "dev", "cgroup", "proc"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for file in ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0", "cgroup/cgroup.controllers", "cdi/nvidia.yaml"] {
            std::fs::write(at(file), "").unwrap();
        }
        let sockets = ["kubelet/device-plugins/kubelet.sock", "kubelet/pod-resources/kubelet.sock"];
        let sockets = sockets.map(|path| std::os::unix::net::UnixListener::bind(at(path)).unwrap());
        Machine { folder, _sockets: sockets.into() }
    }

    fn look(&self, server: &FakeApiServer, library: &std::path::Path, agent: SocketAddr) -> (i32, Value) {
        let at = |path: &str| self.folder.path().join(path).into_os_string();
        let kubeconfig = server.kubeconfig(self.folder.path());
        let mut arguments: Vec<std::ffi::OsString> = ["node", "-o", "json", "--node-name", "n1"].map(Into::into).into();
        arguments.extend(["--listen".into(), agent.to_string().into(), "--nvml-library".into(), library.into()]);
        arguments.extend(["--kubeconfig".into(), kubeconfig.into(), "--usage-socket".into(), at("agent.sock")]);
        for (flag, path) in
            [("kubelet-root", "kubelet"), ("cdi-dir", "cdi"), ("dev-root", "dev"), ("cgroup-root", "cgroup")]
        {
            arguments.extend([format!("--{flag}").into(), at(path)]);
        }
        let (code, out, error) = run(arguments);
        (code, serde_json::from_str(&out).unwrap_or_else(|why| panic!("{why}: {out}{error}")))
    }
}

#[test]
fn a_node_is_checked_from_its_driver_to_its_clock() {
    use crate::driver::fake;
    use lab::scenario::{Code, FakeGpu, Scenario};
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let machine = Machine::new();
    let gpu = FakeGpu { uuid: Some("GPU-n1-0".into()), ..FakeGpu::default() };
    let scenario = Scenario { gpus: vec![gpu], ..Scenario::default() };
    let (_directory, driver) = fake(&scenario);
    // Something answers at the address of the agent, and it is not an agent.
    let other = FakeApiServer::start();
    let (code, report) = machine.look(&server, driver.library(), other.address());
    assert_eq!((code, wrong(&report)), (1, vec!["AgentNotReady"]), "{report:#}");
    let well = |report: &Value, code: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().any(|finding| finding["code"] == code && finding["verdict"] == "well")
    };
    for part in ["Driver", "Devices", "Kubelet", "CdiFolders", "Cgroups", "Clock", "Versions"] {
        assert!(well(&report, part), "{part}: {report:#}");
    }

    driver.write(&Scenario { init_error: Some(Code(9)), ..scenario.clone() }).unwrap();
    let (_, report) = machine.look(&server, driver.library(), other.address());
    assert_eq!(wrong(&report)[0], "DriverNotLoaded", "{report:#}");

    // The Node registers a GPU that the driver does not know.
    node(&server, "n1", (2, 10));
    driver.write(&scenario).unwrap();
    let (_, report) = machine.look(&server, driver.library(), other.address());
    assert!(wrong(&report).contains(&"DeviceNotFound"), "{report:#}");
    assert!(
        report.to_string().contains("failed to get device handle for UUID GPU-n1-1: NVML_ERROR_NOT_FOUND"),
        "{report:#}"
    );
}

#[test]
fn a_bundle_has_what_a_report_needs_and_no_secret() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = StreamExtender::led(&server);
    extender_pod(&server, "gpu-extender-0", extender.address);
    let mut logs = server.object("pods", "gpu", "gpu-extender-0").unwrap();
    logs["metadata"]["annotations"]["lab/log"] = "I1121 started\nW1121 token=hidden-token got\n".into();
    logs["spec"]["containers"][0]["env"] = json!([{ "name": "PASSWORD", "value": "hidden-password" }]);
    server.put("pods", logs);
    let secret =
        json!({ "metadata": { "namespace": "gpu", "name": "s", "uid": "s" }, "data": { "key": "hidden-secret" } });
    server.put("secrets", secret);
    let waits = pod(&server, 1, 90_000);
    extender.filter(&waits, &["n1"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar");
    let line = format!("bundle --pod ml/train-1 --file {}", file.display());
    let (code, text, error) = doctor(&server, &line);
    assert_eq!(code, 0, "{text}{error}");
    let archive = std::fs::read(&file).unwrap();
    assert!(archive.len() <= 20 << 20);
    let names = Command::new("tar").arg("-tf").arg(&file).output().unwrap();
    let names = String::from_utf8(names.stdout).unwrap();
    for name in [
        "nodes.json",
        "pods.json",
        "pod.json",
        "leader/nodes.json",
        "leader/decisions.json",
        "leader/metrics.txt",
        "events/gpu.json",
    ] {
        assert!(names.lines().any(|line| line == name) && text.contains(name), "{name}: {names}{text}");
    }
    assert_eq!(names.lines().last(), Some("CONTENTS.txt"));
    let content = String::from_utf8_lossy(&archive);
    assert!(content.contains("I1121 started") && content.contains("CardInsufficientMemory"));
    assert!(!content.contains("hidden-") && !content.contains(lab::api_server::TOKEN), "a secret is in the bundle");
    assert!(!server.requests().iter().any(|asked| asked.path.ends_with("/secrets/s")), "no Secret is read");
    let again = doctor(&server, &line);
    assert!(again.0 == 1 && again.1.contains("NotWritten"), "an existing file stays: {}", again.1);
}

/// The commands of the guide, without their comments.
fn commands(guide: &str) -> Vec<&str> {
    let blocks = guide.split("```sh\n").skip(1).filter_map(|block| Some(block.split_once("```")?.0));
    let lines = blocks.flat_map(str::lines).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once("  #").map_or(line, |(command, _)| command).trim()).collect()
}

/// kubectl itself needs a real API server. What can be wrong in its commands is checked: verbs, labels, containers, ports, and what it
/// runs in a pod.
fn kubectl(command: &str) {
    let chart = concat!(
        include_str!("../../charts/gpu-steward/templates/extender/deployment.yaml"),
        include_str!("../../charts/gpu-steward/templates/agent/daemonset.yaml"),
        include_str!("../../charts/gpu-steward/templates/_names.tpl"),
    );
    let words: Vec<&str> = command.split_whitespace().collect();
    assert!(["get", "describe", "logs", "exec", "port-forward"].contains(&words[1]), "{command}");
    let after = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1)).copied();
    if let Some((key, value)) = after("-l").and_then(|label| label.split_once('=')) {
        assert!(chart.contains(&format!("{key}: {value}")), "{command}: the chart sets no such label");
    }
    if let Some(container) = after("-c") {
        assert!(chart.contains(&format!("- name: {container}\n")), "{command}: no such container");
    }
    if words[1] == "port-forward" {
        assert_eq!(words.last(), Some(&"9445"), "{command}");
    }
    if let Some((_, inside)) = command.split_once(" -- gpu-steward doctor ") {
        assert!((0..=2).contains(&run(inside.split(' ').chain(["--kubeconfig", "/nonexistent"])).0), "{command}");
    }
}

#[test]
fn every_command_of_the_guide_to_troubleshooting_runs() {
    let server = FakeApiServer::start();
    node(&server, "n1", (1, 10));
    let extender = crate::extender::Extender::start_with(BINARY, &server, &["--profiling"]);
    extender.wait_until_leads();
    extender_pod(&server, "gpu-extender-0", extender.address);
    let waits = pod(&server, 1, 90_000);
    extender.filter(&waits, &["n1"]);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(folder.path());
    let places = [
        ("NAMESPACE/NAME", "ml/train-1".to_owned()),
        ("gpu-system", "gpu".to_owned()),
        ("http://127.0.0.1:9444", format!("http://{}", extender.address)),
        ("/tmp/report.tar", folder.path().join("report.tar").display().to_string()),
        ("?seconds=30", "?seconds=1".to_owned()),
    ];
    let all = commands(include_str!("../../docs/troubleshooting.md"));
    assert!(all.len() > 15, "{all:?}");
    for command in all {
        let told = places.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to));
        let words: Vec<&str> = told.split_whitespace().collect();
        let url = words.last().and_then(|url| url.strip_prefix("http://127.0.0.1:9445"));
        match (words[0], url) {
            ("gpu-steward", _) => {
                let mut program = Command::new(BINARY);
                program.args(&words[1..]).arg("--kubeconfig").arg(&kubeconfig).current_dir(folder.path());
                let output = program.output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!((0..=2).contains(&output.status.code().unwrap()), "{command}: {output:?}");
                assert!(!said.is_empty() && output.stderr.is_empty(), "{command}: {output:?}");
            }
            ("tar", _) => {
                assert!(Command::new("tar").args(&words[1..]).output().unwrap().status.success(), "{command}")
            }
            ("curl", Some(path)) if words.contains(&"PUT") => {
                assert_eq!(extender.admin("PUT", path, words[words.len() - 2]).status, 200, "{command}");
            }
            ("curl" | "go", Some(path)) => assert_eq!(extender.admin("GET", path, "").status, 200, "{command}"),
            ("kubectl", _) => kubectl(&told),
            _ => panic!("{command}: unknown"),
        }
    }
}
