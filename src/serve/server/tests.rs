//! The server as a client sees it, over HTTP and HTTPS on a real socket.

use super::body::BodyLimits;
use super::certificate::{Certificates, HttpVersions, Tls};
use super::*;
use crate::caller::{Access, AllowedHosts, BearerToken, Condition, Ends};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, Uri};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream as Socket;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

mod http2;

/// Longer than any wait of the server under test.
const LONG: Duration = Duration::from_secs(20);
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 8,
    newcomers: None,
    header_timeout: LONG,
    write_timeout: LONG,
    busy_write_timeout: LONG,
    drain: Duration::from_secs(2),
};
const BODY: BodyLimits = BodyLimits { bytes: 100, time: SHORT };
/// A time that runs out during a test.
const SHORT: Duration = Duration::from_millis(300);
const HTTP1: Option<HttpVersions> = Some(HttpVersions::Http1);

/// Answers with the request body, and at the path `/large` with 32 MiB. `/secret` answers only callers with a token;
/// `/never` never answers. A client that asks for `/known` has shown who it is.
struct Echo {
    access: Access,
    body: BodyLimits,
    /// Requests that have reached the application.
    requests: Arc<AtomicU64>,
}

impl Echo {
    fn new() -> Echo {
        let token = BearerToken { secret: "t".into(), opens: "this path", name: "token" };
        let access = Access::Callers(AllowedHosts::default(), Condition::Token(token));
        Echo { access, body: BODY, requests: Arc::default() }
    }
}

impl HttpApplication for Echo {
    type Body = Full<Bytes>;

    fn access(&self, uri: &Uri) -> &Access {
        if uri.path() == "/secret" { &self.access } else { &Access::Everyone }
    }

    async fn answer(&self, request: Request<Incoming>, ends: Ends) -> Response<Full<Bytes>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        assert!(ends.peer.is_loopback() && ends.local.is_loopback(), "{ends:?}");
        if request.uri().path() == "/large" {
            return Response::new(vec![b'x'; 32 << 20].into());
        }
        if request.uri().path() == "/never" {
            return std::future::pending().await;
        }
        if request.uri().path() == "/known" {
            request.extensions().get::<Newcomer>().unwrap().identified();
        }
        match body::read(request.into_body(), self.body).await {
            Ok(bytes) => Response::new(bytes.into()),
            Err(error) => {
                let mut response = Response::new(error.to_string().into());
                *response.status_mut() = error.status();
                response
            }
        }
    }
}

/// A server on a real socket. Dropping it ends the server.
struct Served {
    address: SocketAddr,
    counts: Arc<ConnectionCounts>,
    stop: CancellationToken,
    certificate: Option<CertificateDer<'static>>,
    _folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

/// Serves over HTTPS with these versions of HTTP, or over plain HTTP.
fn serve<A: HttpApplication>(application: A, limits: ConnectionLimits, https: Option<HttpVersions>) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let files = Tls { chain: folder.path().join("chain.pem"), key: folder.path().join("key.pem"), client_ca: None };
    std::fs::write(&files.chain, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let certificates = https.map(|versions| Arc::new(Certificates::load("test", files, versions).unwrap()));
    let (counts, stop) = (Arc::default(), CancellationToken::new());
    let server = HttpServer { application, limits, certificates, counts: Arc::clone(&counts) };
    runtime.spawn(server.serve(listener, stop.clone()));
    let certificate = https.map(|_| made.cert.der().clone());
    Served { address, counts, stop, certificate, _folder: folder, runtime }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Served {
    fn socket(&self) -> Socket {
        let socket = Socket::connect(self.address).unwrap();
        socket.set_read_timeout(Some(2 * LONG)).unwrap();
        socket
    }

    /// The configuration of an HTTPS client that trusts the server's certificate and offers these protocols.
    fn tls(&self, protocols: &[&str]) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()?).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Some((Arc::new(config), ServerName::try_from("localhost").unwrap()))
    }

    /// A connection over HTTP or HTTPS; the handshake happens at the first write.
    fn connect(&self) -> Box<dyn Stream> {
        let Some((config, name)) = self.tls(&[]) else { return Box::new(self.socket()) };
        Box::new(StreamOwned::new(ClientConnection::new(config, name).unwrap(), self.socket()))
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn open(&self) -> u64 {
        self.counts.open.load(Ordering::Relaxed)
    }

    fn cut(&self) -> u64 {
        self.counts.cut.load(Ordering::Relaxed)
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn post(body: &str, length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn bodies_are_read_up_to_their_limits_over_http_and_https() {
    for https in [None, HTTP1] {
        let served = serve(Echo::new(), LIMITS, https);
        for (request, status, text) in [
            (post("hello", 5), StatusCode::OK, "hello"),
            (post("", 101), StatusCode::PAYLOAD_TOO_LARGE, "longer than 100 bytes"),
            (post("half", 8), StatusCode::REQUEST_TIMEOUT, "did not arrive within 0.3 s"),
        ] {
            let answer = served.ask(&request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {} ", status.as_u16())), "{https:?} {answer}");
            assert!(answer.contains(text), "{https:?} {answer}");
        }
    }
}

#[test]
fn a_client_that_sends_too_much_before_it_reads_gets_the_reason() {
    let served = serve(Echo::new(), LIMITS, None);
    for body in ["x".repeat(101), "x".repeat(200)] {
        let answer = served.ask(&post(&body, body.len()));
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}

#[test]
fn a_caller_is_checked_before_the_body_is_read() {
    for https in [None, HTTP1] {
        let served = serve(Echo::new(), LIMITS, https);
        // The body never arrives: an application that waits for it would answer 408.
        let ask = |host: &str, token: &str| {
            served.ask(&format!(
                "POST /secret HTTP/1.1\r\nHost: {host}\r\n{token}Connection: close\r\nContent-Length: 9\r\n\r\n"
            ))
        };
        let (none, wrong, right) = ("", "Authorization: Bearer x\r\n", "Authorization: Bearer t\r\n");
        for (host, token, status, text) in [
            ("localhost", none, 401, "this path needs the header Authorization: Bearer <token>.\n"),
            ("localhost", wrong, 403, "this token is not valid for this path.\n"),
            ("rebound.example", right, 403, "or add the name to --allowed-hosts.\n"),
            ("localhost", right, 408, "did not arrive within 0.3 s"),
        ] {
            let answer = ask(host, token);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{https:?} {answer}");
            assert!(answer.ends_with(text), "{https:?} {answer}");
            assert_eq!(answer.to_lowercase().contains("www-authenticate: bearer\r\n"), status == 401, "{answer}");
        }
    }
}

#[test]
fn a_connection_answers_one_request_after_another_and_is_closed_when_it_stays_idle() {
    for https in [None, HTTP1] {
        let served = serve(Echo::new(), ConnectionLimits { header_timeout: SHORT, ..LIMITS }, https);
        let mut stream = served.connect();
        for body in ["first", "second", "third"] {
            let length = body.len();
            write!(stream, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(body.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{https:?} {}", String::from_utf8_lossy(&answer));
            assert_eq!(served.open(), 1, "{https:?}");
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "closed without an answer: {}", String::from_utf8_lossy(&rest));
        assert_eq!(served.cut(), 0, "{https:?}");
    }
}

#[test]
fn a_client_that_does_not_finish_the_handshake_is_closed() {
    let served = serve(Echo::new(), ConnectionLimits { header_timeout: SHORT, ..LIMITS }, HTTP1);
    let mut silent = served.socket();
    // The server resets it, so that nothing is left in the kernel.
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "closed by the server");
    let mut plain = served.socket();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The server closes with unread bytes, which the kernel may report as a reset.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1"), "no answer in plain text where clients expect TLS");
    until("both connections are closed", || served.open() == 0);
    assert!(served.ask(&post("again", 5)).ends_with("again"));
}

#[test]
fn an_unfinished_handshake_is_closed_for_a_client_that_sends_a_request() {
    let served = serve(Echo::new(), LIMITS, HTTP1);
    let silent: Vec<Socket> = (0..3 * LIMITS.connections).map(|_| served.socket()).collect();
    until("the connections over the limit are cut", || served.cut() >= 2 * LIMITS.connections as u64);
    assert!(served.ask(&post("in", 2)).ends_with("in"));
    drop(silent);
}

#[test]
fn clients_that_do_not_show_who_they_are_close_only_each_others_connections() {
    for https in [None, HTTP1] {
        let echo = Echo::new();
        let requests = Arc::clone(&echo.requests);
        let limits = ConnectionLimits { connections: 100, newcomers: Some(4), ..LIMITS };
        let served = serve(echo, limits, https);
        let mut known = served.connect();
        let mut asks = || {
            known.write_all(b"GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                known.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
        };
        asks();
        let mut busy: Vec<Box<dyn Stream>> = (0..4).map(|_| served.connect()).collect();
        for stream in &mut busy {
            stream.write_all(b"GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        }
        until("four requests are being answered", || requests.load(Ordering::Relaxed) == 5);
        let silent: Vec<Socket> = (0..20).map(|_| served.socket()).collect();
        until("four newcomers are left", || served.cut() == 20);
        assert!(served.ask(&post("in", 2)).ends_with("in"), "{https:?}");
        until("the busy ones and most silent ones are closed", || served.open() <= 5);
        asks();
        drop((busy, silent));
    }
}

#[test]
fn if_every_connection_is_busy_an_https_client_is_closed_without_an_answer() {
    let echo = Echo::new();
    let requests = Arc::clone(&echo.requests);
    let served = serve(echo, ConnectionLimits { connections: 1, ..LIMITS }, HTTP1);
    let mut busy = served.connect();
    busy.write_all(b"GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    until("the request is being answered", || requests.load(Ordering::Relaxed) == 1);
    let mut refused = served.socket();
    let mut answer = Vec::new();
    let _ = refused.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    assert_eq!((served.open(), served.cut()), (1, 1));
}

#[test]
fn a_client_that_does_not_read_its_answer_is_cut_over_https_too() {
    for https in [None, HTTP1] {
        let served = serve(Echo::new(), ConnectionLimits { write_timeout: SHORT, ..LIMITS }, https);
        let mut stream = served.connect();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        until("the client is cut", || served.open() == 0);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 32 << 20, "{https:?}: {} bytes", rest.len());
    }
}

#[test]
fn a_request_sent_just_before_the_stop_is_answered_over_https() {
    let served = serve(Echo::new(), LIMITS, HTTP1);
    let mut stream = served.connect();
    // The handshake and the first half of the request.
    let request = post("hello", 5);
    let (first, second) = request.split_at(20);
    stream.write_all(first.as_bytes()).unwrap();
    stream.flush().unwrap();
    until("the connection is open", || served.open() == 1);
    served.stop.cancel();
    stream.write_all(second.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("hello"), "{text}");
    until("the port is closed", || {
        Socket::connect(served.address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
}

#[test]
fn the_busy_answer_counts_its_own_bytes() {
    let text = std::str::from_utf8(BUSY).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
}

#[test]
fn the_kernel_keeps_little_for_a_client_of_another_machine_that_sends_what_is_not_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The server reads for a while, so that the kernel would let the buffer grow, and then no more.
    let unread = |peer: &str| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = Socket::connect(listener.local_addr().unwrap()).unwrap();
            client.set_write_timeout(Some(SHORT)).unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            connection::limit_buffers(&server, peer.parse().unwrap());
            let sends = std::thread::spawn(move || {
                while client.write_all(&[0; 64 << 10]).is_ok() {}
                client
            });
            let (mut read, mut piece) = (0, vec![0; 16 << 10]);
            while read < 16 << 20 {
                read += tokio::io::AsyncReadExt::read(&mut server, &mut piece).await.unwrap();
            }
            let _client = sends.join().unwrap();
            rustix::io::ioctl_fionread(&server).unwrap()
        })
    };
    let near = unread("127.0.0.1");
    for far in ["10.1.2.3", "fd00::1", "::ffff:10.1.2.3"] {
        let far = unread(far);
        assert!((1..=96 << 10).contains(&far) && near > 4 * far, "{far} of a far client, {near} of a near one");
    }
}

#[test]
fn what_a_client_does_not_take_leaves_the_kernel_when_its_connection_is_cut() {
    let limits = ConnectionLimits { write_timeout: SHORT, busy_write_timeout: SHORT, ..LIMITS };
    let served = serve(Echo::new(), limits, None);
    let mut silent = served.socket();
    rustix::net::sockopt::set_socket_recv_buffer_size(&silent, 4096).unwrap();
    silent.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    until("the connection is cut", || served.open() == 0);
    // A client that takes nothing finds a reset instead of the rest of the answer.
    let mut taken = 0;
    let mut piece = vec![0; 1 << 20];
    let end = loop {
        match silent.read(&mut piece) {
            Ok(0) => break ErrorKind::UnexpectedEof,
            Ok(more) => taken += more,
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(end, ErrorKind::ConnectionReset, "after {taken} bytes");
    assert!(taken < 16 << 20, "{taken}");
}

#[test]
fn a_client_that_closes_after_its_answer_is_not_reset() {
    let served = serve(Echo::new(), LIMITS, None);
    let mut client = served.socket();
    client.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 32 << 20, "{}", answer.len());
    until("the connection ends", || served.open() == 0);
}
