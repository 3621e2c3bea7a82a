//! Invalid calls to the TLS port from callers with a valid token, and idle connections: each is bounded, answered and counted.

use super::stream_client::{OPENS, StreamClient, connect, full, read_message, status};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, pod, trusted};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::Phase;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

/// The status of the answer to these first lines of a request. If a stream was opened, also the reason code of its end after
/// only these bytes were sent.
fn asked(extender: &StreamExtender, (trusted, token): (&str, &str), head: &str, bytes: &[u8]) -> (u16, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = async {
        let mut stream = connect(extender.streams, trusted, b"http/1.1").await.unwrap();
        let rest = format!("Host: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), rest.as_bytes(), bytes].concat()).await.unwrap();
        let status = status(&mut stream).await.unwrap();
        if status != 101 {
            return (status, None);
        }
        // The agent sends nothing more.
        stream.shutdown().await.unwrap();
        (status, Some(read_message(&mut stream).await.unwrap().end.unwrap().reason))
    };
    runtime.block_on(async { tokio::time::timeout(SOON, asked).await.expect("an answer in time") })
}

#[test]
fn what_is_no_call_of_an_agent_is_answered_and_counted() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let caller = (&*trusted, &*token);
    let message = |length: u32, bytes: &[u8]| [&length.to_be_bytes()[..], bytes].concat();
    let ends =
        |reason: &str| extender.metric(&format!("gpu_steward_extender_stream_ends_total{{reason=\"{reason}\"}}"));
    for (bytes, reason) in [
        (vec![0xff; 400], "bad_message"),
        (message(5, &[0xff; 5]), "bad_message"),
        (message(256 << 10 | 1, &[0; 100]), "bad_message"),
        (message(u32::MAX, &[0; 100]), "bad_message"),
        // A message without content.
        (message(0, &[]), "bad_message"),
        // The connection ends within a message, within its length, and before it.
        (message(100, &[0x0a; 5]), "closed"),
        (vec![0, 0], "closed"),
        (Vec::new(), "closed"),
    ] {
        let before = ends(reason);
        assert_eq!(asked(&extender, caller, OPENS, &bytes), (101, Some(reason.to_owned())), "{bytes:?}");
        assert_eq!(ends(reason), before + 1, "{bytes:?}");
    }
    // These requests do not ask for a stream, or they ask for another protocol.
    for head in [
        "GET /v1/agent-stream HTTP/1.1\r\n",
        "POST /v1/agent-stream HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: gpu-steward-stream\r\n",
        "GET /v1/agent-stream HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
        "GET /v1/agent-stream HTTP/1.1\r\nUpgrade: gpu-steward-stream\r\n",
    ] {
        assert_eq!(asked(&extender, caller, head, b""), (426, None), "{head}");
    }
    // An agent may request nothing but its stream.
    let refused = "gpu_steward_extender_refused_callers_total{reason=\"other_account\"}";
    let before = extender.metric(refused);
    for path in ["/filter", "/bind", "/metrics", "/", "/gpu_steward.usage.v1.Usage/Get"] {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 0\r\n");
        assert_eq!(asked(&extender, caller, &head, b"").0, 403, "{path}");
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
    assert_eq!((&*why.code, &*why.text), ("bad_message", "the first message did not come in time"));
    assert!((Duration::from_secs(9)..Duration::from_secs(30)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(extender.metric("gpu_steward_extender_stream_ends_total{reason=\"bad_message\"}") >= 1);
    works(&extender, &trusted, &token);
}

#[test]
fn an_agent_that_falls_silent_is_given_up_and_its_node_closed() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let mut stream = StreamClient::open(extender.streams, &trusted, &token).unwrap();
    stream.send(full("n1", Phase::Serving, &[]));
    stream.hear_until("an open node", |message| message.closed.is_empty() && message.epoch > 0);
    let begun = Instant::now();
    let why = stream.end();
    assert_eq!((&*why.code, &*why.text), ("silent", "the agent is silent"));
    // Three heartbeat intervals of ten seconds.
    assert!((Duration::from_secs(30)..Duration::from_secs(60)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(extender.metric("gpu_steward_extender_stream_ends_total{reason=\"silent\"}"), 1);
    let asks = pod(&server, 10, 1000);
    eventually("a closed node", SOON, || extender.fits(&asks, "n1").err());
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
    // The test keeps open as many as its limit of file descriptors allows. Each begins a TLS handshake message that has
    // 64,511 bytes by its header, sends the first thousand bytes and nothing more.
    let begun = [&[22_u8, 3, 1, 64, 0, 1, 0, 251, 255][..], &[0; 1000]].concat();
    let (mut open, most) = (Vec::new(), 700);
    for _ in 0..10_000 {
        let mut stream = TcpStream::connect(extender.streams).unwrap();
        // The extender may have closed it for a newer one already.
        let _ = stream.write_all(&begun);
        open.push(stream);
        if open.len() > most {
            open.remove(0);
        }
    }
    // The open stream continues, and another agent gets a stream.
    assert_eq!(metric("streams"), 1);
    node(&server, "n2", 2);
    let other = agent_token(&server, "n2", 2);
    let mut second =
        eventually("a second stream", SOON, || StreamClient::open(extender.streams, &trusted, &other).ok());
    second.send(full("n2", Phase::Serving, &[]));
    second.hear().unwrap();
    assert_eq!(metric("streams"), 2);
    // Beside the streams there are at most 512 connections without a token, so their number bounds the memory.
    eventually("the limit of newcomers", SOON, || (metric("stream_connections") <= 2 + 512).then_some(()));
    drop(open);
    eventually("two connections", SOON, || (metric("stream_connections") == 2).then_some(()));
    let (failed, cut) = (metric("failed_handshakes_total"), metric("stream_connections_cut_total"));
    assert!(failed + cut > 9000, "{failed} handshakes failed, and {cut} connections were closed for newer ones");
    stream.send(full("n1", Phase::Leaving, &[]));
    stream.hear_until("the leaving agent", |message| message.leaving);
}

#[test]
fn one_agent_does_not_take_the_places_of_others() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    eventually("no open stream", SOON, || {
        (extender.metric("gpu_steward_extender_stream_connections") == 0).then_some(())
    });
    let open = || StreamClient::open(extender.streams, &trusted, &token);
    // None of these streams reports.
    let taken: Vec<StreamClient> = (0..8).map(|_| open().unwrap()).collect();
    let refused = open().err().unwrap();
    assert_eq!((&*refused.code, &*refused.text), ("429", "this Node has 8 streams that have not ended yet"));
    assert_eq!(extender.metric("gpu_steward_extender_refused_callers_total{reason=\"too_many_streams\"}"), 1);
    assert_eq!(extender.metric("gpu_steward_extender_stream_connections"), 8);
    node(&server, "n2", 2);
    let other = agent_token(&server, "n2", 2);
    let mut second =
        eventually("a stream of another agent", SOON, || StreamClient::open(extender.streams, &trusted, &other).ok());
    second.send(full("n2", Phase::Serving, &[]));
    second.hear().unwrap();
    drop(taken);
    eventually("a place", SOON, || open().ok());
    eventually("one open connection", SOON, || {
        (extender.metric("gpu_steward_extender_stream_connections") == 1).then_some(())
    });
}

/// The start of an HTTP/2 connection with a window of 0 for answers, and a request without a token (RFC 9113 and 7541).
fn request_without_room() -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], content].concat()
    };
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // GET, https, / and the authority x, with the flags END_HEADERS and END_STREAM.
    let headers = frame(1, 0x05, 1, &[0x82, 0x87, 0x84, 0x41, 1, b'x']);
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &headers].concat()
}

#[test]
fn a_caller_that_gives_its_refusal_no_room_is_cut_and_counted() {
    let server = FakeApiServer::start();
    let (extender, trusted, token) = started(&server);
    let metric = |sample: &str| extender.metric(&format!("gpu_steward_extender_{sample}"));
    let refused = "refused_callers_total{reason=\"no_token\"}";
    let before = (metric("stream_connections_cut_total"), metric(refused));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    runtime.block_on(async {
        let mut stream = connect(extender.streams, &trusted, b"h2").await.unwrap();
        stream.write_all(&request_without_room()).await.unwrap();
        // The connection ends without a TLS alert, which TLS treats as an error.
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await.expect("the end in time");
    });
    // The limit is ten seconds. A ping would come only after thirty, and a client that wants to stay would answer it.
    assert!((Duration::from_secs(9)..Duration::from_secs(25)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!((metric("stream_connections_cut_total"), metric(refused)), (before.0 + 1, before.1 + 1));
    works(&extender, &trusted, &token);
}
