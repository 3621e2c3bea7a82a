//! A running extender with its TLS port, and the objects that it needs.

use crate::program::BINARY;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::http::{self, HttpResponse};
use lab::tokens::claims;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const SOON: Duration = Duration::from_secs(60);
pub(super) const AGENTS: &str = "gpu:agent";
pub(super) const AUDIENCE: &str = "gpu-steward";

/// A running extender, with a short Lease.
pub(super) struct StreamExtender {
    child: Child,
    log: PathBuf,
    pub(super) address: SocketAddr,
    /// Of the TLS port.
    pub(super) streams: SocketAddr,
    _dir: TempDir,
}

impl StreamExtender {
    pub(super) fn start(server: &FakeApiServer) -> StreamExtender {
        let dir = tempfile::Builder::new().prefix("steward-").tempdir().unwrap();
        let (log, token) = (dir.path().join("log"), dir.path().join("token"));
        let own = claims("gpu:extender", AUDIENCE, ("n0", "uid-n0"), ("extender", &uid(9)));
        fs::write(&token, server.token(&own)).unwrap();
        let child = Command::new(BINARY)
            .args(["extender", "--extender-listen", "127.0.0.1:0", "--log-format", "json", "-v", "5"])
            .args(["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "200ms"])
            .args(["--lease-namespace", "gpu", "--stream-listen", "127.0.0.1:0", "--stream-accounts", AGENTS])
            .arg("--stream-token-file")
            .arg(token)
            .arg("--kubeconfig")
            .arg(server.kubeconfig(dir.path()))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let [address, streams] = ["address", "reports"].map(|field| {
            eventually("the addresses of the extender", SOON, || {
                let text = fs::read_to_string(&log).ok()?;
                let line = text.lines().find(|line| line.contains("gpu-steward extender started"))?;
                serde_json::from_str::<Value>(line).ok()?[field].as_str()?.parse().ok()
            })
        });
        StreamExtender { child, log, address, streams, _dir: dir }
    }

    pub(super) fn led(server: &FakeApiServer) -> StreamExtender {
        let extender = StreamExtender::start(server);
        eventually("the extender to lead", SOON, || extender.leads().then_some(()));
        extender
    }

    pub(super) fn leads(&self) -> bool {
        http::get(self.address, "/leadz").is_ok_and(|answer| answer.status == 200)
    }

    pub(super) fn ask(&self, verb: &str, question: &Value) -> HttpResponse {
        let kind = [("Content-Type", "application/json")];
        http::request(self.address, "POST", &format!("/{verb}"), &kind, question.to_string().as_bytes()).unwrap()
    }

    /// Whether the pod fits this node, or why it does not.
    pub(super) fn fits(&self, pod: &Value, node: &str) -> Result<(), Value> {
        let answer = self.ask("filter", &json!({ "Pod": pod, "Nodes": null, "NodeNames": [node] }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        if answer["NodeNames"] == json!([node]) { Ok(()) } else { Err(answer) }
    }

    /// The error of the bind; empty where the pod is bound.
    pub(super) fn bind(&self, pod: &Value, node: &str) -> String {
        let metadata = &pod["metadata"];
        let question = json!({
            "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node,
        });
        let answer = self.ask("bind", &question);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["Error"].as_str().unwrap().to_owned()
    }

    /// The value of a sample in `/metrics`.
    pub(super) fn metric(&self, sample: &str) -> u64 {
        let text = http::get(self.address, "/metrics").unwrap().text();
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{sample} in {text}"))
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(super) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for StreamExtender {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.char_indices().rev().nth(6000).map_or(0, |(place, _)| place);
            eprintln!("the extender's log, its end:\n{}", &log[from..]);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The certificates that agents trust, once the extender has published them.
pub(super) fn trusted(server: &FakeApiServer) -> String {
    eventually("the certificates of the extenders", SOON, || {
        let stored = server.object("configmaps", "gpu", "gpu-steward-extender-ca")?;
        stored["data"]["ca.crt"].as_str().map(str::to_owned)
    })
}

pub(super) fn uid(n: u32) -> String {
    format!("{n:08x}-0000-4000-8000-000000000001")
}

/// A token of the agent of this Node. Its pod has this number.
pub(super) fn agent_token(server: &FakeApiServer, node: &str, pod: u32) -> String {
    server.token(&claims(AGENTS, AUDIENCE, (node, &format!("uid-{node}")), (&format!("agent-{pod}"), &uid(pod))))
}

/// A Node with one GPU of 80 GiB, and the pod of its agent, which has this number.
pub(super) fn node(server: &FakeApiServer, name: &str, pod: u32) {
    let gpu = json!({
        "id": format!("GPU-{name}-0"), "index": 0, "count": 10, "devmem": 81920, "devcore": 100,
        "type": "NVIDIA-NVIDIA H100", "numa": 0, "mode": "hami-core", "health": true,
    });
    let annotations = json!({ "hami.io/node-nvidia-register": json!([gpu]).to_string() });
    server.put(
        "nodes",
        json!({ "metadata": { "name": name, "uid": format!("uid-{name}"), "annotations": annotations } }),
    );
    agent_pod(server, name, pod);
}

/// The pod of an agent.
pub(super) fn agent_pod(server: &FakeApiServer, node: &str, pod: u32) {
    server.put(
        "pods",
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("agent-{pod}"), "namespace": "gpu", "uid": uid(pod), "creationTimestamp": "2026-11-21T10:00:00Z",
            },
            "spec": { "nodeName": node, "containers": [{ "name": "agent", "image": "x" }] },
            "status": { "phase": "Running" },
        }),
    );
}

/// A pod without a node that requests a GPU with this memory.
pub(super) fn pod(server: &FakeApiServer, number: u32, mib: u32) -> Value {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("train-{number}"), "namespace": "ml", "uid": uid(number),
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": { "containers": [{ "name": "main", "image": "x", "resources": { "limits": limits, "requests": limits } }] },
        "status": { "phase": "Pending" },
    });
    server.put("pods", pod.clone());
    pod
}
