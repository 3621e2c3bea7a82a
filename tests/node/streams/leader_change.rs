//! Several extenders: one that follows names the leader to agents, and passes questions of kube-scheduler on to it.

use super::stream_client::{StreamClient, connect, full};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, pod, trusted};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::Phase;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The status line of the answer to this question over TLS.
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
    // Another extender only, and not from a follower to the next one.
    let own = lab::tokens::claims("gpu:extender", "gpu-steward", ("n0", "uid-n0"), ("extender", "x"));
    let own = {
        let mut own = own;
        own["kubernetes.io"]["pod"] = Value::Null;
        server.token(&own)
    };
    for (extender, token, status) in [
        (&leader, String::new(), "401"),
        (&leader, agent_token(&server, "n1", 1), "403"),
        (&leader, own.clone(), "400"),
        (&follower, own, "503"),
    ] {
        let answer = asked(extender.streams, &trusted, "/filter", &token);
        assert!(answer.contains(status), "{status}: {answer}");
    }
    // An agent that asks the follower.
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
