//! Limits of what an agent may report: invalid tokens, reports about other nodes, and agents that send too much.

use super::stream_client::{StreamClient, change, full, gpu};
use super::stream_extender::{AGENTS, AUDIENCE, SOON, StreamExtender, agent_pod, agent_token, node, pod, trusted, uid};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::tokens::claims;
use proto::stream::{AgentMessage, NodeFull, Phase, Stage};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn a_caller_without_a_good_token_is_refused_with_the_reason_and_counted() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let good = || claims(AGENTS, AUDIENCE, ("n1", "uid-n1"), ("agent-1", &uid(1)));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut claims = good();
        change(&mut claims);
        server.token(&claims)
    };
    eventually("the agent's pod in the watch", SOON, || {
        StreamClient::open(extender.streams, &trusted, &server.token(&good())).ok()
    });
    let other_cluster = FakeApiServer::start().token(&good());
    let mut changed = server.token(&good());
    changed.replace_range(60..61, if changed.as_bytes()[60] == b'A' { "B" } else { "A" });
    for (token, status, reason, words) in [
        (String::new(), "401", "no_token", "Authorization"),
        ("a.b".to_owned(), "401", "unreadable", "cannot be read"),
        (other_cluster, "401", "bad_signature", "not signed by this cluster"),
        (with(&|claims| claims["iss"] = "https://other".into()), "401", "other_issuer", "another cluster"),
        (with(&|claims| claims["aud"] = json!(["api"])), "401", "other_audience", "another audience"),
        (with(&|claims| claims["exp"] = 1000.into()), "401", "expired", "expired"),
        (with(&|claims| claims["nbf"] = 9_000_000_000_u64.into()), "401", "not_yet", "not valid yet"),
        (
            with(&|claims| claims["sub"] = "system:serviceaccount:gpu:other".into()),
            "403",
            "other_account",
            "--stream-accounts",
        ),
        (with(&|claims| claims["kubernetes.io"]["node"] = Value::Null), "403", "no_node", "names no Node"),
        (
            with(&|claims| claims["kubernetes.io"]["node"]["uid"] = "uid-older".into()),
            "403",
            "node_gone",
            "Node of the token is gone",
        ),
        (
            with(&|claims| claims["kubernetes.io"]["pod"]["uid"] = uid(7).into()),
            "403",
            "pod_gone",
            "pod of the token is gone",
        ),
    ] {
        let sample = format!("gpu_steward_extender_refused_callers_total{{reason=\"{reason}\"}}");
        let before = extender.metric(&sample);
        let refused = StreamClient::open(extender.streams, &trusted, &token).err().unwrap();
        assert_eq!(refused.code, status, "{reason}: {refused:?}");
        assert!(refused.text.contains(words), "{reason}: {refused:?}");
        assert_eq!(extender.metric(&sample), before + 1, "{reason}");
    }
    check_changed_and_strange(&server, &extender, &changed, &good());
}

/// A token with a changed letter is refused, and a client that trusts another authority cannot even connect.
fn check_changed_and_strange(server: &FakeApiServer, extender: &StreamExtender, changed: &str, good: &Value) {
    let refused = StreamClient::open(extender.streams, &trusted(server), changed).err().unwrap();
    assert_eq!(refused.code, "401", "{refused:?}");
    let stranger = rcgen::generate_simple_self_signed(vec!["extender.gpu-steward.io".to_owned()]).unwrap();
    assert!(StreamClient::open(extender.streams, &stranger.cert.pem(), &server.token(good)).is_err());
}

#[test]
fn an_agent_speaks_for_its_own_node_only() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 2);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let mut own = eventually("a stream", SOON, || {
        StreamClient::open(extender.streams, &trusted, &agent_token(&server, "n2", 2)).ok()
    });
    own.send(full("n2", Phase::Serving, &[]));
    own.hear_until("an open node", |message| message.closed.is_empty() && message.epoch > 0);
    // The agent of n1 reports about n2, at the start and later.
    let token = agent_token(&server, "n1", 1);
    let first = StreamClient::open(extender.streams, &trusted, &token).unwrap();
    first.send(full("n2", Phase::Leaving, &[]));
    let why = first.end();
    assert_eq!(why.code, "other_node", "{why:?}");
    assert!(why.text.contains("the token is of node n1, and the report of node n2"), "{why:?}");
    let mut later = StreamClient::open(extender.streams, &trusted, &token).unwrap();
    later.send(full("n1", Phase::Serving, &[]));
    later.hear().unwrap();
    later.send(full("n2", Phase::Leaving, &[]));
    assert_eq!(later.end().code, "other_node");
    assert_eq!(extender.metric("gpu_steward_extender_stream_ends_total{reason=\"other_node\"}"), 2);
    assert_eq!(extender.fits(&pod(&server, 10, 1000), "n2"), Ok(()), "n2 is as its own agent reports");
    // The pod is deleted: its stream ends at once, and its token is no longer valid.
    server.remove("pods", "gpu", "agent-2");
    let why = own.end();
    assert_eq!(why.code, "caller_gone", "{why:?}");
    let refused = StreamClient::open(extender.streams, &trusted, &agent_token(&server, "n2", 2)).err().unwrap();
    assert!(refused.text.contains("pod of the token is gone"), "{refused:?}");
}

#[test]
fn an_agent_that_sends_too_much_is_bounded_counted_and_harms_nobody() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let token = agent_token(&server, "n1", 1);
    let open = || eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    let message = |full: NodeFull| AgentMessage { version: 1, full: Some(full), change: None };
    let huge = NodeFull { node: "n1".into(), gpus: vec![gpu("n1"); 1_000_000], ..NodeFull::default() };
    let many = NodeFull { node: "n1".into(), gpus: vec![gpu("n1"); 200], ..NodeFull::default() };
    for (full, words) in [
        (huge, "the message has"),
        (many, "200 GPUs, and at most 176 are read"),
        (NodeFull { node: "a b".into(), ..NodeFull::default() }, "name of a node"),
    ] {
        let stream = open();
        stream.send(message(full));
        let why = stream.end();
        assert_eq!(why.code, "bad_message", "{why:?}");
        assert!(why.text.contains(words), "{why:?}");
    }
    let stream = open();
    stream.send(change("n1", Phase::Serving, &[], &[]));
    assert!(stream.end().text.contains("must have the full state"));
    assert_eq!(extender.metric("gpu_steward_extender_stream_ends_total{reason=\"bad_message\"}"), 4);
    floods(&server, &extender, open);
    let messages = extender.metric("gpu_steward_extender_stream_messages_total");
    assert!(messages < 400, "{messages}");
}

/// Floods the extender, first as fast as possible, when the last message may be lost in the flood, then with twenty messages
/// a second.
fn floods(server: &FakeApiServer, extender: &StreamExtender, open: impl Fn() -> StreamClient) {
    let count =
        |reason: &str| extender.metric(&format!("gpu_steward_extender_stream_ends_total{{reason=\"{reason}\"}}"));
    for (pause, most) in [(Duration::ZERO, 5_000), (Duration::from_millis(50), 400)] {
        let before = (count("too_fast"), count("closed"));
        let stream = open();
        stream.send(full("n1", Phase::Serving, &[]));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..most {
                    if !stream.send(change("n1", Phase::Serving, &[(&uid(3), Stage::Started, u32::MAX)], &[])) {
                        return;
                    }
                    std::thread::sleep(pause);
                }
            });
            // During the flood, calls of kube-scheduler are answered.
            let other = pod(server, 11, 1000);
            for _ in 0..20 {
                assert!(extender.ask("filter", &json!({ "Pod": other, "NodeNames": ["n1"] })).status == 200);
            }
        });
        let why = stream.end();
        // The rate limit ends the stream.
        let ends = || (count("too_fast") - before.0, count("closed") - before.1);
        let ends = eventually("the counted end of the stream", SOON, || Some(ends()).filter(|ends| *ends != (0, 0)));
        assert!(why.code == "too_fast" || pause.is_zero() && why.code == "cut", "{why:?}");
        assert_eq!(ends, (1, 0), "{why:?}");
        eventually("no open stream", SOON, || (extender.metric("gpu_steward_extender_streams") == 0).then_some(()));
    }
}

#[test]
fn an_agent_that_opens_one_stream_after_another_is_bounded_as_one_that_stays() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    node(&server, "n2", 2);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let open = |node: &str, pod: u32| StreamClient::open(extender.streams, &trusted, &agent_token(&server, node, pod));
    let mut other = eventually("a stream of another agent", SOON, || open("n2", 2).ok());
    other.send(full("n2", Phase::Serving, &[]));
    other.hear_until("an open node", |message| message.closed.is_empty() && message.epoch > 0);
    let metric = |sample: &str| extender.metric(&format!("gpu_steward_extender_{sample}"));
    let done = || (metric("streams_opened_total"), metric("stream_messages_total"));
    let (before, begun) = (done(), Instant::now());
    while begun.elapsed() < Duration::from_secs(10) {
        let Ok(stream) = open("n1", 1) else {
            // Eight streams of this agent have not ended yet.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        stream.send(full("n1", Phase::Serving, &[]));
        for _ in 0..32 {
            if !stream.send(change("n1", Phase::Serving, &[(&uid(3), Stage::Started, 1)], &[])) {
                break;
            }
        }
    }
    let after = done();
    // The limits are 32 at once and two a second, both for opened streams and for messages. A message that exceeds the limit
    // is counted too.
    let most = 32 + 2 * (begun.elapsed().as_secs() + 1);
    let (opened, messages) = (after.0 - before.0, after.1 - before.1);
    let too_fast = metric("stream_ends_total{reason=\"too_fast\"}") + 8;
    // The other agent has sent nothing in the meantime.
    assert!(opened <= most, "{opened} of {most}");
    assert!(messages <= most + too_fast, "{messages} of {most} and {too_fast}");
    assert!(opened > 1 && messages > 1, "{opened} streams, {messages} messages");
    // The extender still reads the other agent's stream, and this agent's too once it slows down.
    other.send(full("n2", Phase::Leaving, &[]));
    other.hear_until("the leaving agent", |message| message.leaving);
    eventually("a stream that is answered", SOON, || {
        let mut stream = open("n1", 1).ok()?;
        stream.send(full("n1", Phase::Serving, &[]));
        stream.hear().ok()
    });
}

#[test]
fn reports_are_evidence_of_starts_and_ends_and_a_closed_stream_stops_binds() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let token = agent_token(&server, "n1", 1);
    let mut stream = eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    let first = pod(&server, 20, 60_000);
    stream.send(full("n1", Phase::Starting, &[]));
    let message = stream.hear().unwrap();
    assert!(message.closed.contains("not registered with the kubelet"), "{message:?}");
    assert_eq!(extender.fits(&first, "n1").unwrap_err()["FailedNodes"]["n1"], "NodeUnfitPod: NodeClosed");
    stream.send(change("n1", Phase::Serving, &[], &[]));
    stream.hear_until("an open node", |message| message.closed.is_empty());
    assert_eq!(extender.fits(&first, "n1"), Ok(()));
    assert_eq!(extender.bind(&first, "n1"), "");
    let claims = |state: &str| extender.metric(&format!("gpu_steward_extender_claims{{state=\"{state}\"}}"));
    eventually("a bound claim", SOON, || (claims("bound") == 1).then_some(()));
    // An agent that leaves gets the list of pods that still have to request their devices.
    stream.send(change("n1", Phase::Leaving, &[(&uid(20), Stage::Waiting, 0)], &[]));
    let message = stream.hear_until("the pod that has to ask", |message| message.leaving);
    assert_eq!(message.awaited, [uid(20)]);
    stream.send(change("n1", Phase::Leaving, &[(&uid(20), Stage::Started, 2)], &[]));
    stream.hear_until("nothing that is awaited", |message| message.leaving && message.awaited.is_empty());
    assert_eq!(claims("started"), 1);
    stream.send(change("n1", Phase::Serving, &[], &[]));
    stream.hear_until("an open node again", |message| message.closed.is_empty());
    // The pod is gone, but its processes still run.
    server.remove("pods", "ml", "train-20");
    let second = pod(&server, 21, 60_000);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(extender.fits(&second, "n1").unwrap_err()["FailedNodes"]["n1"], "CardInsufficientMemory");
    stream.send(change("n1", Phase::Serving, &[], &[&uid(20)]));
    eventually("room for the second pod", SOON, || extender.fits(&second, "n1").ok());
    // The agent ends without a message.
    drop(stream);
    let closed = eventually("a closed node", SOON, || extender.fits(&second, "n1").err());
    assert_eq!(closed["FailedNodes"]["n1"], "NodeUnfitPod: NodeClosed");
    let why = extender.bind(&second, "n1");
    assert!(why.contains("must be scheduled again"), "{why}");
    // A new pod of the DaemonSet on the same node.
    agent_pod(&server, "n1", 2);
    let next = eventually("the next agent", SOON, || {
        StreamClient::open(extender.streams, &trusted, &agent_token(&server, "n1", 2)).ok()
    });
    next.send(full("n1", Phase::Serving, &[]));
    eventually("an open node", SOON, || extender.fits(&second, "n1").ok());
    assert_eq!(extender.bind(&second, "n1"), "");
}
