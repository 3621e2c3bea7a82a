//! A real agent and a real extender: the agent reports, follows the leader, and ends only when no bound pod still has to
//! request its devices.

use super::stream_extender::{AGENTS, AUDIENCE, SOON, StreamExtender, agent_pod, agent_token, pod, trusted, uid};
use crate::kubelet::Kubelet;
use crate::program::BINARY;
use lab::agent::{Agent, Recipe};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) const NODE: &str = "n1";

/// A Node without a register, which its agent then writes.
pub(super) fn bare_node(server: &FakeApiServer) {
    let info = json!({ "kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4" });
    let metadata = json!({ "name": NODE, "uid": format!("uid-{NODE}") });
    server.put("nodes", json!({ "metadata": metadata, "status": { "nodeInfo": info } }));
    agent_pod(server, NODE, 1);
}

/// An agent that reports to the extender at this address.
pub(super) fn reporting(server: &FakeApiServer, address: &str) -> (Recipe, PathBuf) {
    let (recipe, kubelet) = reporting_from(server, address);
    (recipe.with("--gpus", "simulated=H100:2"), kubelet)
}

/// The same without its source of GPUs.
pub(super) fn reporting_from(server: &FakeApiServer, address: &str) -> (Recipe, PathBuf) {
    let recipe = Agent::in_cluster(BINARY, server, NODE);
    let kubelet = recipe.dir().join("kubelet");
    fs::create_dir_all(kubelet.join("device-plugins")).unwrap();
    let [ca, token] = ["ca.crt", "token"].map(|name| recipe.dir().join(name));
    fs::write(&ca, trusted(server)).unwrap();
    fs::write(&token, agent_token(server, NODE, 1)).unwrap();
    let recipe = recipe.with("--extender-address", address).with("--extender-ca-file", ca);
    (recipe.with("--stream-token-file", token).with("-v", "4"), kubelet)
}

fn bound_to(server: &FakeApiServer, name: &str) -> Value {
    server.object("pods", "ml", name).unwrap()["spec"]["nodeName"].clone()
}

#[test]
fn an_agent_opens_its_node_when_it_is_registered_and_leaves_when_no_bound_pod_has_to_ask() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (recipe, root) = reporting(&server, &extender.streams.to_string());
    let agent = recipe.start();
    agent.logs("reports to the extender at");
    let first = pod(&server, 30, 3000);
    eventually("the GPUs of the node", SOON, || {
        let node = server.object("nodes", "", NODE)?;
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"].is_string().then_some(())
    });
    let why = eventually("a node that is closed", SOON, || {
        let why = extender.fits(&first, NODE).err()?;
        (why["FailedNodes"][NODE] == "NodeUnfitPod: NodeClosed").then_some(why)
    });
    println!("before the registration: {why}");
    let kubelet = Kubelet::registers(&root);
    eventually("an open node", SOON, || extender.fits(&first, NODE).ok());
    assert_eq!(extender.bind(&first, NODE), "");
    assert_eq!(bound_to(&server, "train-30"), NODE);
    // Also after a restart without an extender, it must not give its GPUs to pods without a claim.
    let served = agent.dir().join("state/served-by-scheduler");
    eventually("the saved mark that a scheduler places pods here", SOON, || served.exists().then_some(()));
    agent.signal(libc::SIGTERM);
    agent.logs("asked the extender to bind no more pods to this node");
    let second = pod(&server, 31, 3000);
    eventually("a node that is closed", SOON, || extender.fits(&second, NODE).err());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lab::http::get(agent.metrics, "/healthz").unwrap().status, 200, "it waits: {}", agent.log());
    let gpu = agent.get("/api/v1/gpus").json()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    let asked = Instant::now();
    kubelet.admits(&uid(30), &format!("{gpu}-0"));
    let ended = agent.wait();
    assert!(ended.status.success(), "{}", ended.log);
    assert!(ended.log.contains("all pods that are bound to this node have asked"), "{}", ended.log);
    println!("ended {:.1} s after the last pod had asked", asked.elapsed().as_secs_f64());
    let why = extender.bind(&second, NODE);
    assert!(why.contains("about to stop") || why.contains("not back") || why.contains("scheduled again"), "{why}");
    assert_eq!(bound_to(&server, "train-31"), Value::Null);
}

#[test]
fn an_agent_without_bound_pods_leaves_at_once_and_one_that_is_awaited_in_vain_after_20_seconds() {
    for (pods, least, most) in [(0, 0, 19), (1, 19, 58)] {
        let server = FakeApiServer::start();
        bare_node(&server);
        let extender = StreamExtender::led(&server);
        let (recipe, root) = reporting(&server, &extender.streams.to_string());
        let agent = recipe.start();
        let _kubelet = Kubelet::registers(&root);
        let waits = pod(&server, 40, 3000);
        eventually("an open node", SOON, || extender.fits(&waits, NODE).ok());
        if pods > 0 {
            assert_eq!(extender.bind(&waits, NODE), "");
        }
        agent.logs("reports to the extender at");
        let begun = Instant::now();
        agent.signal(libc::SIGTERM);
        let ended = agent.wait_within(Duration::from_secs(60));
        let took = begun.elapsed();
        assert!(ended.status.success(), "{}", ended.log);
        assert!((least..most).contains(&took.as_secs()), "{pods} pods: {took:?}\n{}", ended.log);
        assert_eq!(ended.log.contains("1 pods that are bound"), pods > 0, "{}", ended.log);
    }
}

#[test]
fn an_agent_moves_to_the_next_leader_and_runs_without_one() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let leader = StreamExtender::led(&server);
    let follower = StreamExtender::start(&server);
    // The Service points to the follower, which names the leader.
    let (recipe, root) = reporting(&server, &follower.streams.to_string());
    let agent = recipe.start();
    let _kubelet = Kubelet::registers(&root);
    agent.logs(&format!("reports to the extender at {}", leader.streams));
    eventually("one stream", SOON, || (leader.metric("gpu_steward_extender_streams") == 1).then_some(()));
    leader.signal("-KILL");
    eventually("the follower to lead", SOON, || follower.leads().then_some(()));
    agent.logs(&format!("reports to the extender at {}", follower.streams));
    eventually("one stream", SOON, || (follower.metric("gpu_steward_extender_streams") == 1).then_some(()));
    let one = pod(&server, 50, 3000);
    eventually("an open node", SOON, || extender_fits(&follower, &one));
    follower.signal("-KILL");
    agent.logs(&format!("the stream to the extender at {} has ended", follower.streams));
    // A new leader may start, so the agent waits as long as for a leader that does not answer.
    agent.signal(libc::SIGTERM);
    let ended = agent.wait_within(Duration::from_secs(60));
    assert!(ended.status.success() && ended.log.contains("the extender has not answered within"), "{}", ended.log);
}

fn extender_fits(extender: &StreamExtender, pod: &Value) -> Option<()> {
    extender.fits(pod, NODE).ok()
}

#[test]
fn an_agent_whose_token_is_refused_says_why_and_shares_its_gpus() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (recipe, root) = reporting(&server, &extender.streams.to_string());
    let mut claims = lab::tokens::claims(AGENTS, AUDIENCE, (NODE, "uid-n1"), ("agent-1", &uid(1)));
    claims["aud"] = json!(["api"]);
    fs::write(recipe.dir().join("token"), server.token(&claims)).unwrap();
    let agent = recipe.start();
    let _kubelet = Kubelet::registers(&root);
    agent.logs("the token is for another audience");
    let one = pod(&server, 60, 3000);
    eventually("a node that is judged by the API server alone", SOON, || extender.fits(&one, NODE).ok());
}
