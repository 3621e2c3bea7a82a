//! A running extender with its TLS port, and the objects that it needs.

use crate::program::BINARY;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::extender::ExtenderProcess;
use lab::tokens::claims;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const AGENTS: &str = "gpu:agent";
pub(crate) const AUDIENCE: &str = "gpu-steward";

/// A running extender with its TLS port.
pub(crate) struct StreamExtender {
    process: ExtenderProcess,
    /// The address of the TLS port.
    pub(crate) streams: SocketAddr,
}

impl StreamExtender {
    /// Starts an extender with a token for extenders outside pods.
    pub(crate) fn start(server: &FakeApiServer) -> StreamExtender {
        StreamExtender::start_with(server, &extender_token(server, None))
    }

    /// Starts an extender with this text as its own token.
    pub(crate) fn start_with(server: &FakeApiServer, own: &str) -> StreamExtender {
        StreamExtender::start_program(BINARY, server, own)
    }

    /// Starts this program with this text as its own token.
    pub(crate) fn start_program(program: &str, server: &FakeApiServer, own: &str) -> StreamExtender {
        let process = ExtenderProcess::start(program, |dir| {
            let token = dir.join("token");
            std::fs::write(&token, own).unwrap();
            let mut flags: Vec<OsString> = [
                "--extender-listen",
                "127.0.0.1:0",
                "-v",
                "5",
                "--retry-period",
                "200ms",
                "--lease-namespace",
                "gpu",
                "--stream-listen",
                "127.0.0.1:0",
                "--stream-accounts",
                AGENTS,
                "--stream-token-file",
            ]
            .map(OsString::from)
            .into();
            flags.extend([token.into(), "--kubeconfig".into(), server.kubeconfig(dir).into()]);
            flags
        });
        let streams = process.started_with("reports");
        StreamExtender { process, streams }
    }

    pub(crate) fn led(server: &FakeApiServer) -> StreamExtender {
        let extender = StreamExtender::start(server);
        extender.wait_until_leads();
        extender
    }

    /// `Ok` if the pod fits this node, or the reason why it does not.
    pub(crate) fn fits(&self, pod: &Value, node: &str) -> Result<(), Value> {
        let answer = self.filter(pod, &[node]);
        if answer["NodeNames"] == json!([node]) { Ok(()) } else { Err(answer) }
    }
}

impl Deref for StreamExtender {
    type Target = ExtenderProcess;

    fn deref(&self) -> &ExtenderProcess {
        &self.process
    }
}

/// The certificates that agents trust, once the extender has published them.
pub(crate) fn trusted(server: &FakeApiServer) -> String {
    eventually("the certificates of the extenders", SOON, || {
        let stored = server.object("configmaps", "gpu", "gpu-steward-extender-ca")?;
        stored["data"]["ca.crt"].as_str().map(str::to_owned)
    })
}

pub(crate) fn uid(n: u32) -> String {
    format!("{n:08x}-0000-4000-8000-000000000001")
}

/// A token of the agent of this Node. Its pod has this number.
pub(crate) fn agent_token(server: &FakeApiServer, node: &str, pod: u32) -> String {
    server.token(&claims(AGENTS, AUDIENCE, (node, &format!("uid-{node}")), (&format!("agent-{pod}"), &uid(pod))))
}

/// A token of an extender, in the pod with this number on the Node n1, or outside a pod.
pub(crate) fn extender_token(server: &FakeApiServer, pod: Option<u32>) -> String {
    let bound = pod.map(|pod| (format!("agent-{pod}"), uid(pod)));
    let bound = bound.as_ref().map_or(("", ""), |(name, uid)| (&**name, &**uid));
    let mut claims = claims("gpu:extender", AUDIENCE, ("n1", "uid-n1"), bound);
    if pod.is_none() {
        claims["kubernetes.io"] = Value::Null;
    }
    server.token(&claims)
}

/// A Node with one GPU of 80 GiB, and the pod of its agent, which has this number.
pub(crate) fn node(server: &FakeApiServer, name: &str, pod: u32) {
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

/// The pod of an agent. The pod of an extender looks the same.
pub(crate) fn agent_pod(server: &FakeApiServer, node: &str, pod: u32) {
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
pub(crate) fn pod(server: &FakeApiServer, number: u32, mib: u32) -> Value {
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
