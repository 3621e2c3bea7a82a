//! HTTP/2 over TLS: gRPC with tonic's router, and the ends of a connection.

use super::*;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use hyper::client::conn::http2::{Builder, SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::usage::usage_client::UsageClient;
use proto::usage::usage_server::{Usage, UsageServer};
use proto::usage::{GetRequest, NodeUsage, WatchRequest};
use std::convert::Infallible;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt;

const HTTP2: Option<HttpVersions> = Some(HttpVersions::Http1AndHttp2 { streams: 8 });

/// A gRPC service whose stream sends one message and stays open.
struct Grpc {
    open_streams: parking_lot::Mutex<Vec<tokio::sync::mpsc::Sender<Result<NodeUsage, Status>>>>,
}

fn of(node: &str) -> NodeUsage {
    NodeUsage { node: node.to_owned(), ..NodeUsage::default() }
}

#[tonic::async_trait]
impl Usage for Grpc {
    async fn get(&self, request: tonic::Request<GetRequest>) -> Result<tonic::Response<NodeUsage>, Status> {
        match request.metadata().get("authorization") {
            Some(_) => Ok(tonic::Response::new(of("got"))),
            None => Err(Status::unauthenticated("no token")),
        }
    }

    type WatchStream = ReceiverStream<Result<NodeUsage, Status>>;

    async fn watch(&self, _: tonic::Request<WatchRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(Ok(of("watched"))).await.unwrap();
        self.open_streams.lock().push(sender);
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

/// tonic's router as the application of a port. Its services check their callers.
struct GrpcRoutes(Routes);

impl GrpcRoutes {
    fn new() -> GrpcRoutes {
        GrpcRoutes(Routes::new(UsageServer::new(Grpc { open_streams: parking_lot::Mutex::default() })))
    }
}

impl HttpApplication for GrpcRoutes {
    type Body = tonic::body::Body;

    fn access(&self, _uri: &Uri) -> &Access {
        &Access::Everyone
    }

    async fn answer(&self, request: Request<Incoming>, _ends: Ends) -> Response<tonic::body::Body> {
        match self.0.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// One item of an answer's body.
type Part = Result<Frame<Bytes>, Infallible>;

/// Answers one request with the parts that the test sends.
struct Parts(parking_lot::Mutex<Option<ReceiverStream<Part>>>);

impl HttpApplication for Parts {
    type Body = StreamBody<ReceiverStream<Part>>;

    fn access(&self, _uri: &Uri) -> &Access {
        &Access::Everyone
    }

    async fn answer(&self, _request: Request<Incoming>, _ends: Ends) -> Response<StreamBody<ReceiverStream<Part>>> {
        let parts = self.0.lock().take();
        Response::new(StreamBody::new(parts.expect("one request")))
    }
}

impl Served {
    async fn tls_stream(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let (config, name) = self.tls(&[protocol]).expect("a port with HTTPS");
        TlsConnector::from(config).connect(name, TcpStream::connect(self.address).await?).await
    }

    /// A client of HTTP/2. Its connection lives as long as the server's runtime, or until the server ends it.
    async fn http2<B>(&self) -> SendRequest<B>
    where
        B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(self.tls_stream("h2").await.unwrap());
        let (client, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// The same with a flow control window of `bytes`: the server can send no more of an answer until the client reads
    /// its body. The client answers pings whether or not it reads.
    async fn http2_with_room<B>(&self, bytes: u32) -> SendRequest<B>
    where
        B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(self.tls_stream("h2").await.unwrap());
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(bytes);
        let (client, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn grpc(&self) -> UsageClient<Channel> {
        let stream = parking_lot::Mutex::new(Some(self.tls_stream("h2").await.unwrap()));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.lock().take().map(TokioIo::new);
            std::future::ready(stream.ok_or_else(|| std::io::Error::other("the test has one connection")))
        });
        let endpoint = Endpoint::from_static("http://localhost");
        UsageClient::new(endpoint.connect_with_connector(connector).await.unwrap())
    }
}

fn post_to(uri: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(uri).body(body.into()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

#[test]
fn grpc_calls_streams_and_trailers_go_over_one_connection() {
    let served = serve(GrpcRoutes::new(), ConnectionLimits { drain: SHORT, ..LIMITS }, HTTP2);
    served.runtime.block_on(async {
        let mut client = served.grpc().await;
        let mut stream = client.watch(WatchRequest {}).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap(), Some(of("watched")));
        let mut request = tonic::Request::new(GetRequest {});
        request.metadata_mut().insert("authorization", "Bearer t".parse().unwrap());
        assert_eq!(client.get(request).await.unwrap().into_inner(), of("got"));
        let refused = client.get(GetRequest {}).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (tonic::Code::Unauthenticated, "no token"));
        assert_eq!(served.open(), 1);

        // At a stop new connections are refused, and an open stream ends with its connection after the drain.
        served.stop.cancel();
        assert!(stream.message().await.is_err(), "the stream does not stay open");
    });
    until("the connection is closed", || served.open() == 0);
}

#[test]
fn one_port_serves_http1_and_http2_and_a_port_without_http2_refuses_it() {
    let both = serve(Echo::new(), LIMITS, HTTP2);
    both.runtime.block_on(async {
        let mut client = both.http2().await;
        // Requests at the same time on one connection.
        let (first, second) = tokio::join!(
            client.clone().send_request(post_to("https://localhost/", "first")),
            client.clone().send_request(post_to("https://localhost/", "second")),
        );
        assert_eq!((text(first.unwrap()).await, text(second.unwrap()).await), ("first".into(), "second".into()));
        let long = client.send_request(post_to("https://localhost/", LONG_BODY)).await.unwrap();
        assert_eq!(long.status(), StatusCode::PAYLOAD_TOO_LARGE);
        for (uri, status) in [
            ("https://localhost/secret", StatusCode::UNAUTHORIZED),
            ("https://rebound.example/secret", StatusCode::FORBIDDEN),
            ("https://localhost/", StatusCode::OK),
        ] {
            assert_eq!(client.send_request(post_to(uri, "x")).await.unwrap().status(), status, "{uri}");
        }
        assert_eq!(both.open(), 1, "none of them ended the connection");
    });
    assert!(both.ask(&post("hello", 5)).ends_with("hello"), "a client that offers no protocol");
    let one = serve(Echo::new(), LIMITS, HTTP1);
    let refused = one.runtime.block_on(one.tls_stream("h2")).unwrap_err();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
}

/// More than the limit of the test's application.
const LONG_BODY: &str =
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789x";

#[test]
fn a_connection_is_closed_when_no_request_comes() {
    let served = serve(Echo::new(), ConnectionLimits { header_timeout: SHORT, drain: SHORT, ..LIMITS }, HTTP2);
    served.runtime.block_on(async {
        // The client does not even send the HTTP/2 preface.
        let _silent = served.tls_stream("h2").await.unwrap();
        let mut client = served.http2().await;
        let answer = client.send_request(post_to("https://localhost/", "in")).await.unwrap();
        assert_eq!(text(answer).await, "in");
    });
    until("both are closed", || served.open() == 0);
    assert_eq!(served.cut(), 0);
}

#[test]
fn a_request_in_flight_at_the_stop_is_answered() {
    let echo = Echo { body: BodyLimits { time: LONG, ..BODY }, ..Echo::new() };
    let requests = Arc::clone(&echo.requests);
    let served = serve(echo, ConnectionLimits { drain: LONG, ..LIMITS }, HTTP2);
    served.runtime.block_on(async {
        let mut client = served.http2().await;
        let (sender, parts) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
        let request = Request::post("https://localhost/").body(StreamBody::new(ReceiverStream::new(parts))).unwrap();
        let answer = tokio::spawn(client.send_request(request));
        sender.send(Ok(Frame::data("first ".into()))).await.unwrap();
        while requests.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        served.stop.cancel();
        sender.send(Ok(Frame::data("second".into()))).await.unwrap();
        drop(sender);
        assert_eq!(text(answer.await.unwrap().unwrap()).await, "first second");
    });
    until("the connection is closed", || served.open() == 0);
}

#[test]
fn a_client_that_gives_an_answer_no_room_is_cut_and_counted() {
    // A refusal of the server, and an answer of the application.
    for (uri, status) in
        [("https://localhost/secret", StatusCode::UNAUTHORIZED), ("https://localhost/", StatusCode::OK)]
    {
        let served = serve(Echo::new(), ConnectionLimits { write_timeout: SHORT, ..LIMITS }, HTTP2);
        let begun = Instant::now();
        let held = served.runtime.block_on(async {
            let mut client = served.http2_with_room(0).await;
            let answer = client.send_request(post_to(uri, "x")).await.unwrap();
            assert_eq!(answer.status(), status, "the head needs no flow control window");
            (client, answer)
        });
        until("the connection is closed", || served.open() == 0);
        assert!((SHORT..LONG / 2).contains(&begun.elapsed()), "{uri}: {:?}", begun.elapsed());
        assert_eq!(served.cut(), 1, "{uri}");
        drop(held);
    }
}

#[test]
fn clients_that_give_answers_no_room_keep_nobody_out() {
    // The time to take an answer is longer than the test.
    let served = serve(Echo::new(), LIMITS, HTTP2);
    let held = served.runtime.block_on(async {
        let mut held = Vec::new();
        for _ in 0..LIMITS.connections {
            let mut client = served.http2_with_room(0).await;
            let answer = client.send_request(post_to("https://localhost/secret", "x")).await.unwrap();
            held.push((client, answer));
        }
        held
    });
    assert_eq!((served.open(), served.cut()), (LIMITS.connections as u64, 0));
    assert!(served.ask(&post("in", 2)).ends_with("in"));
    assert_eq!(served.cut(), 1, "one of them was closed");
    drop(held);
}

#[test]
fn an_answer_that_makes_progress_or_waits_for_the_application_is_not_cut() {
    // The client takes a part in a third of the time that it has, and all of them in more than that time.
    let (write_timeout, pause) = (Duration::from_secs(2), Duration::from_millis(700));
    let (sender, parts) = tokio::sync::mpsc::channel::<Part>(8);
    let parts = Parts(parking_lot::Mutex::new(Some(ReceiverStream::new(parts))));
    let served = serve(parts, ConnectionLimits { write_timeout, ..LIMITS }, HTTP2);
    served.runtime.block_on(async {
        let mut client = served.http2_with_room(4).await;
        let mut answer = client.send_request(post_to("https://localhost/", "")).await.unwrap().into_body();
        let part = Bytes::from_static(b"part");
        for _ in 0..5 {
            sender.send(Ok(Frame::data(part.clone()))).await.unwrap();
        }
        for number in 0..5 {
            tokio::time::sleep(pause).await;
            let frame = answer.frame().await.unwrap();
            assert_eq!(frame.unwrap().into_data().ok(), Some(part.clone()), "part {number}");
        }
        // There is nothing to take for longer than that time.
        tokio::time::sleep(write_timeout + pause).await;
        sender.send(Ok(Frame::data(part.clone()))).await.unwrap();
        let frame = answer.frame().await.unwrap();
        assert_eq!(frame.unwrap().into_data().ok(), Some(part), "after the pause");
    });
    assert_eq!(served.cut(), 0);
}
