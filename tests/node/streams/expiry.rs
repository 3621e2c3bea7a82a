//! The expiry of a token: a stream does not outlive its token, and an agent with a newer token never loses its stream.

use super::agent_process::{NODE, bare_node, reporting};
use super::stream_client::{StreamClient, full};
use super::stream_extender::{AGENTS, AUDIENCE, SOON, StreamExtender, agent_token, node, pod, trusted, uid};
use crate::kubelet::Kubelet;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::relay::Relay;
use lab::tokens::claims;
use parking_lot::Mutex;
use proto::stream::Phase;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long an extender accepts a token after its expiry, because clocks differ.
const LEEWAY: u64 = 60;
const ENDS: &str = "gpu_steward_extender_stream_ends_total";

/// A token of the agent of this Node, without a pod unless one is given. An extender accepts it for this many more seconds.
fn ending(server: &FakeApiServer, node: &str, pod: Option<u32>, seconds: u64) -> String {
    let pod = pod.map(|pod| (format!("agent-{pod}"), uid(pod)));
    let bound = pod.as_ref().map_or(("", ""), |(name, uid)| (&**name, &**uid));
    let mut claims = claims(AGENTS, AUDIENCE, (node, &format!("uid-{node}")), bound);
    if pod.is_none() {
        claims["kubernetes.io"]["pod"] = Value::Null;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    claims["nbf"] = (now - 3600).into();
    claims["exp"] = (now + seconds - LEEWAY).into();
    server.token(&claims)
}

/// Waits until the agent has opened its first stream and its reports have opened its node to this pod.
fn reports(extender: &StreamExtender, asks: &Value) {
    eventually("the first stream", SOON, || {
        (extender.metric("gpu_steward_extender_streams_opened_total") == 1).then_some(())
    });
    eventually("an open node", SOON, || extender.fits(asks, NODE).ok());
}

#[test]
fn a_stream_ends_when_its_token_has_expired_also_outside_a_pod() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    eventually("the Node in the watch", SOON, || {
        StreamClient::open(extender.streams, &trusted, &agent_token(&server, "n1", 1)).ok()
    });
    for (count, pod) in [None, Some(1)].into_iter().enumerate() {
        let mut stream = StreamClient::open(extender.streams, &trusted, &ending(&server, "n1", pod, 5))
            .expect("the token is still valid");
        let opened = Instant::now();
        stream.send(full("n1", Phase::Serving, &[]));
        stream.hear().unwrap();
        let why = stream.end();
        assert_eq!(why.code, "token_expired", "{why:?}");
        assert!(why.text.contains("token of the agent has expired"), "{why:?}");
        let after = opened.elapsed();
        assert!((Duration::from_secs(3)..Duration::from_secs(20)).contains(&after), "{after:?}");
        let ended = extender.metric(&format!("{ENDS}{{reason=\"token_expired\"}}"));
        assert_eq!(usize::try_from(ended).unwrap(), count + 1);
    }
    // An expiry that no clock can reach ends no stream, and causes no error.
    let mut claims = claims(AGENTS, AUDIENCE, ("n1", "uid-n1"), ("agent-1", &uid(1)));
    claims["exp"] = u64::MAX.into();
    let mut stream = StreamClient::open(extender.streams, &trusted, &server.token(&claims)).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    stream.hear_until("an open node", |message| message.closed.is_empty());
}

#[test]
fn an_agent_with_a_newer_token_renews_its_stream_before_the_old_one_ends() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (recipe, root) = reporting(&server, &extender.streams.to_string());
    let file = recipe.dir().join("token");
    std::fs::write(&file, ending(&server, NODE, None, 12)).unwrap();
    let opened = Instant::now();
    let agent = recipe.start();
    let _kubelet = Kubelet::registers(&root);
    let asks = pod(&server, 70, 3000);
    reports(&extender, &asks);
    let metric = |sample: &str| extender.metric(&format!("gpu_steward_extender_{sample}"));
    // The token is replaced in one step, as by the kubelet, and by the timer of an agent outside pods.
    let next = file.with_extension("next");
    std::fs::write(&next, agent_token(&server, NODE, 1)).unwrap();
    std::fs::rename(&next, &file).unwrap();
    let mut closed = Vec::new();
    while opened.elapsed() < Duration::from_secs(20) {
        closed.extend(extender.fits(&asks, NODE).err());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(closed.is_empty(), "the node was closed: {closed:?}\n{}", agent.log());
    assert_eq!((metric("streams"), metric("streams_opened_total")), (1, 2), "{}", agent.log());
    let ended = |reason: &str| metric(&format!("stream_ends_total{{reason=\"{reason}\"}}"));
    assert_eq!((ended("token_expired"), ended("caller_gone")), (0, 0));
    assert_eq!(ended("replaced") + ended("closed"), 1);
    assert!(agent.log().contains("continues with a newer token"), "{}", agent.log());
    assert!(!agent.log().contains("has ended"), "{}", agent.log());
}

#[test]
fn a_renewal_that_is_refused_or_meets_an_extender_that_follows_leaves_the_stream_as_it_is() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let (leader, follower) = (StreamExtender::led(&server), StreamExtender::start(&server));
    eventually("a follower that is ready", SOON, || (follower.get("/readyz").status == 200).then_some(()));
    let server_of_next = Arc::new(Mutex::new(leader.streams));
    let found = Arc::clone(&server_of_next);
    let relay = Relay::to_any(Ipv4Addr::LOCALHOST.into(), Duration::ZERO, move || Some(*found.lock()));
    let (recipe, root) = reporting(&server, &relay.address.to_string());
    let file = recipe.dir().join("token");
    // The token is valid for a minute, and an agent looks for a newer token each second.
    std::fs::write(&file, ending(&server, NODE, None, LEEWAY)).unwrap();
    let agent = recipe.start();
    let _kubelet = Kubelet::registers(&root);
    let asks = pod(&server, 72, 3000);
    reports(&leader, &asks);
    let replace = |token: String| {
        let next = file.with_extension("next");
        std::fs::write(&next, token).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    let metric = |sample: &str| leader.metric(&format!("gpu_steward_extender_{sample}"));
    // The node stays open while the renewal fails this many times.
    let stays_open = |what: &str, failed: &dyn Fn() -> u64| {
        eventually(what, SOON, || {
            assert_eq!(leader.fits(&asks, NODE), Ok(()), "{what}: {}", agent.log());
            (failed() >= 5).then_some(())
        });
        assert_eq!((metric("streams"), metric("streams_opened_total")), (1, 1), "{what}: {}", agent.log());
    };
    let mut other = claims(AGENTS, AUDIENCE, (NODE, &format!("uid-{NODE}")), ("agent-1", &uid(1)));
    other["aud"] = "api".into();
    replace(server.token(&other));
    let sample = "refused_callers_total{reason=\"other_audience\"}";
    stays_open("a token that is refused", &|| metric(sample));
    *server_of_next.lock() = follower.streams;
    replace(agent_token(&server, NODE, 1));
    stays_open("an extender that follows", &|| follower.metric(&format!("{ENDS}{{reason=\"not_leading\"}}")));
    // The errors are over, and the renewal succeeds.
    *server_of_next.lock() = leader.streams;
    eventually("a renewed stream", SOON, || (metric("streams_opened_total") == 2).then_some(()));
    assert_eq!(leader.fits(&asks, NODE), Ok(()), "{}", agent.log());
    let log = agent.log();
    for words in
        ["cannot renew the stream to the extender", "the new stream was refused; the previous stream continues"]
    {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(!log.contains("has ended"), "{log}");
}

#[test]
fn an_agent_whose_token_has_expired_says_so_and_comes_back_with_a_newer_one() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (recipe, root) = reporting(&server, &extender.streams.to_string());
    let file = recipe.dir().join("token");
    std::fs::write(&file, ending(&server, NODE, None, 8)).unwrap();
    let agent = recipe.start();
    let _kubelet = Kubelet::registers(&root);
    let asks = pod(&server, 71, 3000);
    agent.logs("reports to the extender at");
    agent.logs("has ended: the token of the agent has expired");
    agent.logs("cannot report to the extender");
    let expired = extender.metric(&format!("{ENDS}{{reason=\"token_expired\"}}"));
    assert_eq!(expired, 1);
    eventually("a closed node", SOON, || extender.fits(&asks, NODE).err());
    std::fs::write(&file, agent_token(&server, NODE, 1)).unwrap();
    eventually("an open node", SOON, || extender.fits(&asks, NODE).ok());
}
