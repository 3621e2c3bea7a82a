//! Several extenders: a follower names the leader to agents, and passes calls of kube-scheduler on to the leader.

use super::stream_client::{StreamClient, connect, full};
use super::stream_extender::{
    AUDIENCE, SOON, StreamExtender, agent_pod, agent_token, extender_token, node, pod, trusted, uid,
};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::tokens::claims;
use proto::stream::Phase;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The status line of the answer to this request over TLS.
fn asked(address: SocketAddr, trusted: &str, path: &str, token: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = connect(address, trusted, b"http/1.1").await.unwrap();
        let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n");
        stream.write_all(format!("{head}{authorization}Content-Length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    })
}

#[test]
fn a_follower_passes_questions_on_to_the_leader_and_names_it_to_agents() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let leader = StreamExtender::led(&server);
    let follower = StreamExtender::start(&server);
    let trusted = trusted(&server);
    let first = pod(&server, 1, 50_000);
    eventually("an answer of the follower", SOON, || {
        let answer = follower.ask("filter", &json!({ "Pod": first, "NodeNames": ["n1"] }));
        (answer.status == 200).then(|| assert_eq!(answer.json()["NodeNames"], json!(["n1"])))
    });
    assert_eq!(follower.bind(&first, "n1"), "");
    let bound = server.object("pods", "ml", "train-1").unwrap();
    assert_eq!((&bound["spec"]["nodeName"], follower.leads()), (&json!("n1"), false));
    assert!(follower.metric("gpu_steward_extender_passed_on_total") >= 2);
    assert_eq!(leader.metric("gpu_steward_extender_answer_seconds_count{verb=\"bind\"}"), 1);
    // The leader accepts such calls only from another extender, and a follower passes no call on to another follower.
    let own = extender_token(&server, None);
    for (extender, token, status) in [
        (&leader, String::new(), "401"),
        (&leader, agent_token(&server, "n1", 1), "403"),
        (&leader, own.clone(), "400"),
        (&follower, own, "503"),
    ] {
        let answer = asked(extender.streams, &trusted, "/filter", &token);
        assert!(answer.contains(status), "{status}: {answer}");
    }
    // An agent connects to the follower.
    let mut stream = StreamClient::open(follower.streams, &trusted, &agent_token(&server, "n1", 1)).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    let why = stream.hear().unwrap_err();
    assert_eq!((why.code, why.text), ("not_leading".to_owned(), leader.streams.to_string()));
    // The leader ends: its streams end, and the follower serves them with a larger epoch.
    let mut stream = StreamClient::open(leader.streams, &trusted, &agent_token(&server, "n1", 1)).unwrap();
    stream.send(full("n1", Phase::Leaving, &[]));
    let epoch = stream.hear().unwrap().epoch;
    leader.signal("-TERM");
    assert_eq!(stream.end().code, "stopping");
    eventually("the follower to lead", SOON, || follower.leads().then_some(()));
    let second = pod(&server, 2, 20_000);
    assert_eq!(follower.fits(&second, "n1"), Ok(()), "no agent has reported to this leader");
    let mut stream = StreamClient::open(follower.streams, &trusted, &agent_token(&server, "n1", 1)).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    assert!(stream.hear().unwrap().epoch > epoch);
}

#[test]
fn the_token_of_an_extender_counts_as_long_as_its_pod_is_there() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    agent_pod(&server, "n1", 8);
    agent_pod(&server, "n1", 9);
    let [first, second] = [8, 9].map(|number| extender_token(&server, Some(number)));
    let leader = StreamExtender::start_with(&server, &first);
    leader.wait_until_leads();
    let follower = StreamExtender::start_with(&server, &second);
    let trusted = trusted(&server);
    let question = json!({ "Pod": pod(&server, 1, 50_000), "NodeNames": ["n1"] });
    eventually("an answer by way of the follower", SOON, || {
        (follower.ask("filter", &question).status == 200).then_some(())
    });
    let asked = |token: &str| asked(leader.streams, &trusted, "/filter", token);
    let refused =
        |reason: &str| leader.metric(&format!("gpu_steward_extender_refused_callers_total{{reason=\"{reason}\"}}"));
    // The request itself is invalid, but its token is valid.
    assert!(asked(&second).contains("400"));
    assert_eq!(refused("pod_gone"), 0);
    server.remove("pods", "gpu", "agent-9");
    eventually("a refusal by way of the follower", SOON, || {
        (follower.ask("filter", &question).status == 403).then_some(())
    });
    let before = refused("pod_gone");
    let answer = asked(&second);
    assert!(answer.contains("403"), "{answer}");
    assert_eq!(refused("pod_gone"), before + 1);
    assert!(asked(&first).contains("400"), "the pod of this token exists");
    // The extender runs in a pod, so the token of another extender is bound to a pod too, and names the Node of that pod.
    let mut unbound = claims("gpu:extender", AUDIENCE, ("n1", "uid-n1"), ("agent-8", &uid(8)));
    let mut nodeless = unbound.clone();
    unbound["kubernetes.io"]["pod"] = Value::Null;
    nodeless["kubernetes.io"]["node"] = Value::Null;
    for token in [server.token(&unbound), server.token(&nodeless), extender_token(&server, None)] {
        let before = refused("no_node");
        let answer = asked(&token);
        assert!(answer.contains("403"), "{answer}");
        assert_eq!(refused("no_node"), before + 1);
    }
}
