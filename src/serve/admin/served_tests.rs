//! The admin port as a client sees it: paths, and limits of connections and requests. `tests/profiled` checks what the
//! profiles contain.

use super::{CONNECTIONS, LogLevel, Settings, serve};
use crate::caller::AllowedHosts;
use lab::http::{HttpResponse, request};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

struct Level(AtomicU8);

impl LogLevel for Level {
    fn show(&self) -> String {
        self.0.load(Ordering::Relaxed).to_string()
    }

    fn set(&self, text: &str) -> Result<(), String> {
        let level = text.parse().ok().filter(|level| *level <= 5).ok_or("a number from 0 to 5 is accepted")?;
        self.0.store(level, Ordering::Relaxed);
        Ok(())
    }
}

/// A served port. Dropping it ends the server.
struct Served {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Served {
    fn new(profiling: bool) -> Served {
        let listener = crate::server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            profiling,
            certificates: None,
            hosts: AllowedHosts::default(),
            token: None,
            operator: None,
            level: Arc::new(Level(AtomicU8::new(2))),
            commands: Vec::new(),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(serve(listener, settings, CancellationToken::new()));
        Served { address, _runtime: runtime }
    }

    fn get(&self, path: &str) -> HttpResponse {
        self.ask("GET", path, "")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        request(self.address, method, path, &[], body.as_bytes()).unwrap()
    }
}

#[test]
fn without_profiling_the_profiles_are_forbidden_and_the_log_level_is_served() {
    let served = Served::new(false);
    for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"] {
        let answer = served.get(path);
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().contains("--profiling"), "{}", answer.text());
    }
    assert_eq!(served.get("/loglevel").text(), "2\n");
    let index = served.get("/").text();
    assert!(index.contains("--profiling") && !index.contains("pprof"), "no link to a forbidden path: {index}");
}

#[test]
fn with_profiling_the_profile_index_is_served_and_linked() {
    let served = Served::new(true);
    assert!(served.get("/").text().contains("/debug/pprof/"));
    assert!(served.get("/debug/pprof/").text().contains(">heap</a>"));
    for path in ["/nothing", "/debug/pprof/nothing"] {
        assert_eq!(served.get(path).status, 404, "{path}");
    }
}

#[test]
fn the_log_level_is_shown_and_set_and_an_invalid_one_is_refused() {
    let served = Served::new(true);
    assert_eq!(served.get("/loglevel").text(), "2\n");
    assert_eq!(served.ask("PUT", "/loglevel", "4\n").text(), "4\n");
    assert_eq!(served.get("/loglevel").text(), "4\n");
    for wrong in ["9", "", "loud", &"5".repeat(1000)] {
        let answer = served.ask("PUT", "/loglevel", wrong);
        assert_eq!(answer.status, 400, "{wrong}");
    }
    assert_eq!(served.get("/loglevel").text(), "4\n");
    assert_eq!(served.ask("DELETE", "/loglevel", "").status, 405);
}

#[test]
fn a_connection_over_the_limit_is_closed_and_the_others_are_served() {
    let served = Served::new(true);
    let mut open: Vec<TcpStream> =
        (0..=CONNECTIONS.connections).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    // The server may refuse any of them, because connections that come at the same time are accepted in any order.
    let closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut [0]) {
            Ok(bytes) => {
                assert_eq!(bytes, 0, "closed without an answer");
                true
            }
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    // Less than the 10 s for which a connection may stay silent.
    let deadline = Instant::now() + Duration::from_secs(8);
    while open.len() > CONNECTIONS.connections {
        assert!(Instant::now() < deadline, "none of {} connections was closed", open.len());
        std::thread::sleep(Duration::from_millis(5));
        open.retain_mut(|stream| !closed(stream));
    }
    assert_eq!(open.len(), CONNECTIONS.connections);
    for mut stream in open {
        stream.set_nonblocking(false).unwrap();
        write!(stream, "GET /loglevel HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("2\n"), "{text}");
    }
}

#[test]
fn an_oversized_body_or_header_is_refused() {
    let served = Served::new(true);
    for (method, path) in [("POST", "/debug/pprof/symbol"), ("PUT", "/loglevel")] {
        assert_eq!(served.ask(method, path, &"0x1+".repeat(100_000)).status, 413, "{path}");
    }
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = write!(stream, "GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
}
