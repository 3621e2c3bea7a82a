//! The cost of a stream to the leading extender for an agent. Three agents watch the same GPUs and pods in one run: alone,
//! with sharing, and with sharing and a stream to a `gpu-steward extender` with a fake API server. The cost of the extender
//! and the server is not counted. Promise 45 in docs/specification.md.
//!
//! The memory of each GPU changes with every sample, and the memory of each process every five seconds, so the agent has a
//! change to report once a second, which is the highest possible rate.
//!
//! The smoke test of each run is the same for 20 seconds, while other processes start and end: it checks the memory of the
//! three agents, and that nothing grows. It does not check CPU time, which takes minutes to measure.

use crate::process_cost::{ALONE_KIB, Measurand, Outcome, Running, SHARING_KIB, STREAM_KIB, all_hold, binary, measure};
use lab::agent::{Agent, Recipe};
use lab::api_server::{self, FakeApiServer};
use lab::eventually::eventually;
use lab::extender::ExtenderProcess;
use lab::pods::Pods;
use lab::scenario::{self, FakeNvml};
use lab::tokens::claims;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;

const NODE: &str = "bench-node";
const AUDIENCE: &str = "gpu-steward";
const AGENTS: &str = "gpu:agent";
const SOON: Duration = Duration::from_secs(60);
/// CPU time as a multiple of the CPU time of the agent alone in the same run.
const CPU_TIMES: f64 = 1.2;
/// The least share of one message a second that must have arrived, because an agent that reports nothing would look cheap.
const MESSAGES: f64 = 0.8;

/// GPUs whose memory changes, with one process of each pod, on the GPUs in turn.
fn restless(pods: &Pods, gpus: usize) -> Value {
    let mut pids: Vec<Vec<u32>> = vec![Vec::new(); gpus];
    for (index, pod) in pods.pods.iter().enumerate() {
        pids[index % gpus].push(pod.containers[0].pid);
    }
    let mut scenario = scenario::busy(&pids);
    let wave =
        |low: u64, period: u32| json!({ "square": { "low": low << 30, "high": (low + 1) << 30, "period_s": period } });
    for gpu in scenario["gpus"].as_array_mut().into_iter().flatten() {
        gpu["values"]["memory_used_bytes"] = wave(20, 2);
        for process in gpu["processes"].as_array_mut().into_iter().flatten() {
            process["memory"] = wave(1, 10);
        }
    }
    scenario
}

/// An API server with the Node and its pods.
fn api_server(pods: &Pods) -> FakeApiServer {
    let server = FakeApiServer::start();
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    server.put("nodes", json!({ "metadata": { "name": NODE, "uid": "uid-node" }, "status": { "nodeInfo": info } }));
    for pod in &pods.pods {
        let containers: Vec<(&str, &str)> = pod.containers.iter().map(|one| (&one.id[60..], &*one.id)).collect();
        server.put("pods", api_server::pod(NODE, "bench", &format!("pod-{}", pod.uid), &pod.uid, &containers));
    }
    server
}

/// A leading extender that serves streams.
fn extender(server: &FakeApiServer) -> ExtenderProcess {
    let extender = ExtenderProcess::start(&binary(), |dir| {
        let listen = ["--extender-listen", "127.0.0.1:0", "--stream-listen", "127.0.0.1:0", "--lease-namespace", "gpu"];
        let mut flags: Vec<std::ffi::OsString> = listen.map(Into::into).into();
        flags.extend(["--retry-period", "1s", "--stream-accounts", AGENTS, "--kubeconfig"].map(Into::into));
        flags.push(server.kubeconfig(dir).into());
        flags
    });
    extender.wait_until_leads();
    extender
}

/// Adds a stream to this extender.
fn reporting(recipe: Recipe, server: &FakeApiServer, extender: &ExtenderProcess) -> Outcome<Recipe> {
    let trusted = eventually("the certificates of the extenders", SOON, || {
        let stored = server.object("configmaps", "gpu", "gpu-steward-extender-ca")?;
        stored["data"]["ca.crt"].as_str().map(str::to_owned)
    });
    let [ca, token] = ["ca.crt", "token"].map(|name| recipe.dir().join(name));
    std::fs::write(&ca, trusted)?;
    let mut own = claims(AGENTS, AUDIENCE, (NODE, "uid-node"), ("", ""));
    own["kubernetes.io"]["pod"] = Value::Null;
    std::fs::write(&token, server.token(&own))?;
    let address = extender.started_with("reports").to_string();
    let recipe = recipe.with("--extender-address", address).with("--extender-ca-file", ca);
    Ok(recipe.with("--stream-token-file", token))
}

/// Starts an agent on a copy of the fake library, with one usage watcher.
fn start(recipe: Recipe, scenario: &Value) -> Outcome<(Agent, Running)> {
    let fake = FakeNvml::install(recipe.dir())?;
    fake.write_text(&serde_json::to_vec(scenario)?)?;
    let agent = recipe.with("--nvml-library", fake.library()).switch("--workload-profiles=off").start();
    let watcher = Command::new(binary())
        .args(["usage", "--watch", "-o", "json", "--usage-socket"])
        .arg(&agent.usage_socket)
        .stdout(Stdio::null())
        .spawn()?;
    Ok((agent, Running(watcher)))
}

/// Processes that start and end one after the other.
fn short_processes() -> Outcome<Running> {
    let endless = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).stdin(Stdio::null()).spawn()?;
    Ok(Running(endless))
}

pub(crate) fn bench(pods: &Pods, gpus: usize, span: Duration, smoke: bool) -> Outcome<bool> {
    let (scenario, binary) = (restless(pods, gpus), binary());
    let (quiet, server) = (api_server(pods), api_server(pods));
    let extender = extender(&server);
    let reports = reporting(Agent::in_cluster(&binary, &server, NODE), &server, &extender)?;
    let recipes = [
        ("alone", Agent::standalone(&binary)),
        ("with sharing", Agent::in_cluster(&binary, &quiet, NODE)),
        ("with stream", reports),
    ];
    let mut agents = Vec::new();
    for (name, recipe) in recipes {
        agents.push((name, start(recipe, &scenario)?));
    }
    let messages = || extender.metric("gpu_steward_extender_stream_messages_total");
    eventually("the stream", SOON, || (extender.metric("gpu_steward_extender_streams") == 1).then_some(()));
    let programs: Vec<Measurand> =
        agents.iter().map(|(name, (agent, _))| Measurand { name, pid: agent.pid(), address: agent.metrics }).collect();
    let _short = if smoke { Some(short_processes()?) } else { None };
    let before = messages();
    let measured = measure(&programs, span)?;
    let received = messages() - before;
    let seen = agents.iter().all(|(_, (agent, _))| {
        let listed = |path: &str, key: &str| agent.get(path).json()[key].as_array().map_or(0, Vec::len);
        listed("/api/v1/pods", "pods") >= pods.pods.len() && listed("/api/v1/gpus", "gpus") == gpus
    });
    let [alone, sharing, stream] = &measured[..] else { return Err("three agents are compared".into()) };
    for one in &measured {
        println!("{}", one.line());
    }
    println!(
        "the stream   {:>+6.2} % of a core  VmRSS {:>+7} KiB  RssAnon {:>+7} KiB  {received} messages in {} s",
        100.0 * (stream.cpu_share - sharing.cpu_share),
        stream.rss_kib.cast_signed() - sharing.rss_kib.cast_signed(),
        stream.anon_kib.cast_signed() - sharing.anon_kib.cast_signed(),
        span.as_secs()
    );
    let times = stream.cpu_share / alone.cpu_share;
    #[expect(clippy::cast_precision_loss, reason = "some hundred messages")]
    let reported = received as f64 >= MESSAGES * span.as_secs_f64();
    let mut checks = vec![
        ("all pods and GPUs are shown".to_owned(), seen),
        ("one stream, and nearly one message a second".to_owned(), reported),
    ];
    for (one, anon_kib) in [(alone, ALONE_KIB), (sharing, SHARING_KIB), (stream, STREAM_KIB)] {
        checks.extend(one.memory_checks(anon_kib));
        if smoke {
            checks.extend(one.growth_checks());
        }
    }
    if !smoke {
        checks.push((
            format!("{times:.2} times the CPU time of the agent alone, at most {CPU_TIMES}"),
            times <= CPU_TIMES,
        ));
    }
    Ok(all_hold(&checks))
}
