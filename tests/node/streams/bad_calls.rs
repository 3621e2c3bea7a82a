//! Calls of the TLS port that are none, by callers with a good token, and connections that do nothing: bounded, answered and
//! counted.

use super::stream_client::{StreamClient, connect, full};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, trusted};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::Phase;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tonic::Code;

const REPORT: &str = "/gpu_steward.stream.v1.AgentStream/Report";

/// An extender with a node, and the token of its agent.
fn started(server: &FakeApiServer) -> (StreamExtender, String, String) {
    node(server, "n1", 1);
    let extender = StreamExtender::led(server);
    let (trusted, token) = (trusted(server), agent_token(server, "n1", 1));
    eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
    (extender, trusted, token)
}

/// An ordinary stream of the agent.
fn works(extender: &StreamExtender, trusted: &str, token: &str) {
    let mut stream = StreamClient::open(extender.streams, trusted, token).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    stream.hear_until("an open node", |message| message.closed.is_empty() && message.epoch > 0);
}

/// The status of HTTP, and that of gRPC if there is one, of a request with this path, media type and body.
fn asked(
    extender: &StreamExtender,
    (trusted, token): (&str, &str),
    (path, kind): (&str, &str),
    body: &[u8],
) -> (u16, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = connect(extender.streams, trusted, b"h2").await.unwrap();
        let (mut sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(driver);
        let request = Request::post(format!("https://extender.gpu-steward.io{path}"))
            .header("content-type", kind)
            .header("te", "trailers")
            .header("authorization", format!("Bearer {token}"))
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let answer =
            tokio::time::timeout(SOON, sender.send_request(request)).await.expect("an answer in time").unwrap();
        let status = answer.status().as_u16();
        let grpc = |headers: &HeaderMap| Some(headers.get("grpc-status")?.to_str().unwrap().to_owned());
        let first = grpc(answer.headers());
        let rest = tokio::time::timeout(SOON, answer.into_body().collect()).await.expect("an end in time");
        let last = rest.ok().and_then(|rest| rest.trailers().and_then(grpc));
        (status, first.or(last))
    })
}

#[test]
fn what_is_no_call_of_an_agent_is_answered_and_counted() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let caller = (&*trusted, &*token);
    let frame = |flag: u8, length: u32, bytes: &[u8]| [&[flag][..], &length.to_be_bytes(), bytes].concat();
    let bad = "gpu_steward_extender_stream_ends_total{reason=\"bad_message\"}";
    let before = extender.metric(bad);
    let bodies = [
        vec![0xff; 400],
        frame(0, 5, &[0xff; 5]),
        frame(1, 5, &[0xff; 5]),
        frame(0, 100, &[0x0a; 5]),
        frame(0, u32::MAX, &[0; 100]),
        // No message at all, and one without content.
        frame(0, 0, &[]),
    ];
    for body in &bodies {
        let (status, grpc) = asked(&extender, caller, (REPORT, "application/grpc"), body);
        assert_eq!(status, 200, "{body:?}");
        assert!(grpc.as_deref().is_some_and(|grpc| grpc != "0"), "{body:?}: {grpc:?}");
    }
    assert_eq!(extender.metric(bad), before + bodies.len() as u64);
    let (status, grpc) =
        asked(&extender, caller, ("/gpu_steward.stream.v1.AgentStream/Other", "application/grpc"), b"");
    assert_eq!((status, grpc.as_deref()), (200, Some("12")), "unimplemented");
    for kind in ["application/json", "text/plain"] {
        let (status, grpc) = asked(&extender, caller, (REPORT, kind), b"{}");
        assert!(status >= 400 || grpc.as_deref().is_some_and(|grpc| grpc != "0"), "{kind}: {status} {grpc:?}");
    }
    // An agent asks nothing but its stream.
    let refused = "gpu_steward_extender_refused_callers_total{reason=\"other_account\"}";
    let before = extender.metric(refused);
    for path in ["/filter", "/bind", "/metrics", "/", "/gpu_steward.usage.v1.Usage/Get"] {
        assert_eq!(asked(&extender, caller, (path, "application/json"), b"{}").0, 403, "{path}");
    }
    assert_eq!(extender.metric(refused), before + 5);
    works(&extender, &trusted, &token);
}

#[test]
fn an_agent_that_says_nothing_is_given_up() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let begun = Instant::now();
    let silent = StreamClient::open(extender.streams, &trusted, &token).unwrap();
    let why = silent.end();
    assert_eq!(why.code(), Code::DeadlineExceeded, "{why}");
    assert!((Duration::from_secs(9)..Duration::from_secs(30)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(extender.metric("gpu_steward_extender_stream_ends_total{reason=\"bad_message\"}") >= 1);
    works(&extender, &trusted, &token);
}

#[test]
fn ten_thousand_connections_to_the_tls_port_keep_no_agent_out() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let mut stream = StreamClient::open(extender.streams, &trusted, &token).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    stream.hear_until("an open node", |message| message.closed.is_empty() && message.epoch > 0);
    let metric = |name: &str| extender.metric(&format!("gpu_steward_extender_{name}"));
    // As many stay open as the limit of file descriptors of this test allows. None of them begins a handshake.
    let (mut open, most) = (Vec::new(), 700);
    for _ in 0..10_000 {
        open.push(TcpStream::connect(extender.streams).unwrap());
        if open.len() > most {
            open.remove(0);
        }
    }
    // The open stream goes on, and another agent gets one.
    assert_eq!(metric("streams"), 1);
    node(&server, "n2", 2);
    let other = agent_token(&server, "n2", 2);
    let mut second =
        eventually("a second stream", SOON, || StreamClient::open(extender.streams, &trusted, &other).ok());
    second.send(full("n2", Phase::Serving, &[]));
    second.hear().unwrap();
    assert_eq!(metric("streams"), 2);
    assert!(metric("stream_connections") <= 1000, "{}", metric("stream_connections"));
    drop(open);
    eventually("two connections", SOON, || (metric("stream_connections") == 2).then_some(()));
    assert!(metric("failed_handshakes_total") > 9000, "{}", metric("failed_handshakes_total"));
    stream.send(full("n1", Phase::Leaving, &[]));
    stream.hear_until("the leaving agent", |message| message.leaving);
}
