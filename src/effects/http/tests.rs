//! Tests of the metrics port on a real socket.

mod profiles;

use super::*;
use crate::metrics::ServerCounts;
use crate::sample_view;
use serve::answer_queue::AnswerLimits;
use serve::caller::AllowedHosts;
use serve::server::{ConnectionLimits, bind};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Socket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A server on a real socket.
struct Served {
    address: SocketAddr,
    own: Arc<ServerCounts>,
    ready: watch::Sender<Result<(), Arc<str>>>,
    view: watch::Sender<Arc<NodeView>>,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    runtime: tokio::runtime::Runtime,
}

fn served(view: NodeView, limits: Limits) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let profiles = Some(profiles::source(&runtime));
    serving(runtime, (view, profiles), limits)
}

fn serving(
    runtime: tokio::runtime::Runtime,
    (view, profiles): (NodeView, Option<ProfileSource>),
    limits: Limits,
) -> Served {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (view, view_shown) = watch::channel(Arc::new(view));
    let (ready, readiness) = watch::channel(Ok(()));
    let shown = Shown { view: view_shown, profiles, ready: readiness };
    let stop = CancellationToken::new();
    let sets = MetricSets { dcgm: true, dcgm_renamed: false, hami: false, cadvisor: false };
    let hosts = AllowedHosts::new(["n"]);
    let settings = Settings { sets, api_token: None, hosts, certificates: None, clock: sample_view::clock };
    let application = Routes::new(settings, shown, limits);
    let own = Arc::clone(&application.own);
    let counts = Arc::clone(&own.connections);
    let server = HttpServer { application, limits: limits.connections, certificates: None, counts };
    let task = Some(runtime.spawn(server.serve(listener, stop.clone())));
    Served { address, own, ready, view, stop, task, runtime }
}

/// Limits with shorter waits, for tests.
fn short_limits() -> Limits {
    let short = Duration::from_millis(300);
    let connections = ConnectionLimits { header_timeout: short, write_timeout: short, ..Limits::default().connections };
    Limits { connections, answers: AnswerLimits { wait: short, ..AnswerLimits::default() } }
}

struct HttpAnswer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl HttpAnswer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Served {
    fn connect(&self) -> Socket {
        let socket = Socket::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// A scrape from 127.0.0.`last` that does not read its answer.
    fn slow_scrape(&self, last: u8) -> Socket {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let mut socket = Socket::from(socket);
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
        socket
    }

    fn request(&self, request: &str) -> HttpAnswer {
        let mut socket = self.connect();
        socket.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer with a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpAnswer { status, head: head.to_lowercase(), body: bytes[end + 4..].to_vec() }
    }

    fn get(&self, path: &str, headers: &str) -> HttpAnswer {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n{headers}\r\n"))
    }

    /// Waits until `holds` returns true; fails after a deadline.
    fn until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    fn open(&self) -> u64 {
        self.own.connections.open.load(Ordering::Relaxed)
    }
}

#[test]
fn every_path_answers_and_other_paths_get_a_sentence() {
    let served = served(sample_view::small(), Limits::default());
    let index = served.get("/", "");
    let paths: Vec<&str> =
        index.text().lines().filter_map(|line| line.split(' ').next()).filter(|p| p.starts_with('/')).collect();
    assert_eq!(paths.len(), 13);
    for path in paths {
        let path = if path == "/api/v1/history" { "/api/v1/history?series=gpu/0/utilization" } else { path };
        let answer = served.get(path, "");
        assert_eq!(answer.status, 200, "{path}");
        assert!(
            !answer.body.is_empty() && answer.head.contains(&format!("content-length: {}", answer.body.len())),
            "{path}"
        );
        if path.starts_with("/api/") {
            serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap();
        }
        let head = served.request(&format!("HEAD {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"));
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert!(!head.head.contains("content-length: 0"), "{path}");
    }
    for (request, status, sentence) in [
        ("GET /metric HTTP/1.1", 404, "no such path; / lists the paths.\n"),
        ("PUT /metrics HTTP/1.1", 405, "only GET and HEAD are answered here.\n"),
        ("GET /api/v1/pods?name=x HTTP/1.1", 400, "query key \"name\" is not known: use namespace, pod or gpu\n"),
    ] {
        let answer = served.request(&format!("{request}\r\nHost: n\r\nConnection: close\r\n\r\n"));
        assert_eq!((answer.status, answer.text()), (status, sentence), "{request}");
    }
}

#[test]
fn the_format_follows_accept_and_gzip_contains_the_same_text() {
    let served = served(sample_view::small(), Limits::default());
    let classic = served.get("/metrics/dcgm", "");
    assert!(classic.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"));
    let both = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    for path in ["/metrics", "/metrics/dcgm"] {
        let answer = served.get(path, both);
        assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{path} has DCGM's counters");
        assert!(answer.text().contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"), "{path}");
    }
    let forced = served.get("/metrics/dcgm", "Accept: application/openmetrics-text\r\n");
    assert!(forced.text().contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"));
    let open = served.get("/metrics/gpu", both);
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.text().ends_with("# EOF\n"));
    let packed = served.get("/metrics/dcgm", "Accept-Encoding: gzip\r\n");
    assert!(packed.head.contains("content-encoding: gzip") && packed.body.len() * 5 < classic.body.len());
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_end(&mut plain).unwrap();
    assert!(plain == classic.body);
}

#[test]
fn readyz_gives_the_reason_and_a_removed_pod_is_not_in_the_next_scrape() {
    let served = served(sample_view::small(), Limits::default());
    served.ready.send(Err("GPU calls hang".into())).unwrap();
    let answer = served.get("/readyz", "");
    let pod_watch = "watch of pods at the API server: heard 12 s ago";
    let kubelet = "nvidia.com/gpu at kubelet: registered\n\
                   admission policies: in force: agent-nodes; NOT in force: agent-pods";
    let withheld = "GPU 3 (GPU-00000003-1111-2222-3333-444444444444) is not offered: its memory size is not known: \
                    not supported by this device. State its memory in MiB";
    assert!(answer.text().contains(withheld), "{}", answer.text());
    let missing = "GPU at 0000:c2:00.0 is missing: NVIDIA's driver has not initialised it. Check the kernel log";
    let start = format!("GPU calls hang\n{pod_watch}\n{kubelet}\n");
    assert!(answer.status == 503 && answer.text().starts_with(&start), "{}", answer.text());
    assert!(answer.text().contains(missing), "{}", answer.text());
    assert_eq!(served.get("/healthz", "").status, 200);
    assert!(served.get("/metrics", "").text().contains("pod=\"serve-a\""));
    let mut view = sample_view::small();
    let plugin = view.plugin.as_deref().cloned().unwrap();
    view.plugin = Some(Arc::new(model::plugin::PluginView { lacks: Some("no CDI spec".into()), ..plugin }));
    served.view.send(Arc::new(view.clone())).unwrap();
    assert!(served.get("/readyz", "").text().contains("\nno CDI spec\n"));
    view.pod_watch.as_mut().unwrap().left_out = 7;
    served.view.send(Arc::new(view.clone())).unwrap();
    let crowded = format!("{pod_watch}; 7 pods are too many to keep: delete pods of this node that are not needed\n");
    assert!(served.get("/readyz", "").text().contains(&crowded));
    view.pods.retain(|pod| pod.name.as_ref().is_none_or(|name| &*name.name != "serve-a"));
    view.pod_watch = None;
    view.plugin = None;
    view.gpus_missing.clear();
    served.view.send(Arc::new(view)).unwrap();
    served.ready.send(Ok(())).unwrap();
    assert_eq!(served.get("/readyz", "").text(), "ready\n", "there is no pod watch");
    assert!(!served.get("/metrics", "").text().contains("serve-a"));
}

#[test]
fn a_query_filters_the_lists() {
    let served = served(sample_view::small(), Limits::default());
    let count = |path: &str, list: &str| {
        let document: serde_json::Value = serde_json::from_slice(&served.get(path, "").body).unwrap();
        document[list].as_array().unwrap().len()
    };
    for (path, list, expected) in [
        ("/api/v1/gpus", "gpus", 4),
        ("/api/v1/gpus?gpu=1", "gpus", 1),
        ("/api/v1/gpus", "gpus_unidentified", 1),
        ("/api/v1/gpus?gpu=4", "gpus_unidentified", 1),
        ("/api/v1/gpus?gpu=1", "gpus_unidentified", 0),
        ("/api/v1/gpus?namespace=ml", "gpus_unidentified", 0),
        ("/api/v1/node", "gpus_unidentified", 1),
        ("/api/v1/gpus?namespace=ml", "gpus", 3),
        ("/api/v1/gpus?gpu=GPU-00000001-1111-2222-3333-444444444444&pod=train-0", "gpus", 0),
        ("/api/v1/pods", "pods", 6),
        ("/api/v1/pods?namespace=ml&pod=serve-a", "pods", 1),
        ("/api/v1/pods?gpu=1", "pods", 2),
        ("/api/v1/processes", "processes", 6),
        ("/api/v1/processes?gpu=1", "processes", 3),
        ("/api/v1/processes?pod=train-0", "processes", 2),
    ] {
        assert_eq!(count(path, list), expected, "{path}");
    }
}

#[test]
fn a_client_that_does_not_read_is_closed_and_its_buffer_returns_to_the_pool() {
    let served = served(sample_view::large(8, 1250, 4), short_limits());
    let mut silent = served.connect();
    silent.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
    Served::until("the request is being answered", || served.own.scrapes.load(Ordering::Relaxed) == 1);
    assert_eq!(served.get("/healthz", "").status, 200);
    Served::until("the silent reader is cut", || served.open() == 0);
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    let whole = served.get("/metrics", "");
    assert!(rest.len() < whole.body.len(), "{} of {}", rest.len(), whole.body.len());
    assert!(
        whole.text().lines().filter(|line| line.starts_with("gpu_steward_container_cpu_seconds_total{")).count()
            == 5000
    );
}

/// Promise 19 in docs/specification.md.
#[test]
fn slow_readers_from_one_address_do_not_block_a_scrape_from_another_address() {
    // `write_timeout` is longer than the test, so no slow reader is cut. Only the limit for each address can let
    // the scrape in.
    let mut limits = Limits::default();
    limits.connections.write_timeout = Duration::from_secs(300);
    let served = served(sample_view::large(8, 1250, 4), limits);
    let mut held: Vec<Socket> = (0..100).map(|_| served.slow_scrape(2)).collect();
    let limits = Limits::default();
    let refused = 100 - (limits.answers.answers_per_peer + limits.answers.waiting_per_peer) as u64;
    Served::until("the others of that address are refused", || {
        served.own.scrapes_refused.load(Ordering::Relaxed) >= refused
    });
    for _ in 0..3 {
        assert_eq!(served.get("/metrics", "").status, 200);
    }
    assert_eq!(served.get("/healthz", "").status, 200);
    held.clear();
}

#[test]
fn slow_readers_from_eight_addresses_do_not_block_a_scrape() {
    // The limits `write_timeout` and `wait` are longer than the test. Only the shorter limit `busy_write_timeout`
    // can free an answer in time.
    let long = Duration::from_secs(300);
    let mut limits = Limits { answers: AnswerLimits { wait: long, ..AnswerLimits::default() }, ..Limits::default() };
    limits.connections.write_timeout = long;
    let served = served(sample_view::large(8, 600, 4), limits);
    let each = limits.answers.answers_per_peer + limits.answers.waiting_per_peer;
    let held: Vec<Socket> =
        (2..=9).flat_map(|last| (0..each).map(move |_| last)).map(|last| served.slow_scrape(last)).collect();
    Served::until("all answers are under way", || {
        served.own.scrapes.load(Ordering::Relaxed) >= limits.answers.answers as u64
    });
    assert_eq!(served.get("/metrics", "").status, 200);
    assert_eq!(served.own.scrapes_refused.load(Ordering::Relaxed), 0);
    drop(held);
}

#[test]
fn the_api_accepts_only_hosts_of_this_node_and_metrics_and_health_accept_every_host() {
    let served = served(sample_view::small(), Limits::default());
    for (host, path, status) in [
        ("rebound.example:9410", "/api/v1/node", 403),
        ("rebound.example", "/api/v1/processes", 403),
        ("localhost:9410", "/api/v1/node", 200),
        ("127.0.0.1", "/api/v1/node", 200),
        ("n", "/api/v1/node", 200),
        ("rebound.example", "/metrics", 200),
        ("10.0.0.1:9410", "/healthz", 200),
        ("10.0.0.1:9410", "/readyz", 200),
    ] {
        let answer = served.request(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        assert_eq!(answer.status, status, "{host} {path}: {}", answer.text());
    }
}

#[test]
fn a_thousand_connections_are_limited_and_do_not_block_health_checks() {
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        limit
    });
    let served = served(sample_view::large(8, 100, 2), Limits::default());
    assert_eq!(served.get("/metrics", "").status, 200);
    let mut idle: Vec<Socket> = (0..1000).map(|_| served.connect()).collect();
    assert_eq!(served.get("/healthz", "").text(), "ok\n");
    // The tasks of the closed connections end shortly after.
    Served::until("256 connections and the connection of the request are left", || served.open() <= 257);
    assert!(served.own.connections.cut.load(Ordering::Relaxed) >= 744);
    for socket in &mut idle {
        // A write to a connection that was cut fails, as it should.
        let _ = socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n");
    }
    let start = Instant::now();
    assert_eq!(served.get("/healthz", "").text(), "ok\n");
    assert!(start.elapsed() < Duration::from_secs(10));
    // tests/node measures the memory cost on the whole program; here other tests share the process.
}

#[test]
fn slow_headers_large_headers_and_bodies_end_the_connection() {
    let served = served(sample_view::small(), short_limits());
    let mut slow = served.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    Served::until("the slow connection is cut", || {
        served.own.scrapes.load(Ordering::Relaxed) == 0 && served.open() == 0
    });
    let large = format!("X: {}\r\n", "a".repeat(64 * 1024));
    assert_eq!(served.get("/metrics", &large).status, 431);
    let body = format!("Content-Length: 1000000\r\n\r\n{}", "b".repeat(1000));
    let answer = served.request(&format!("GET /healthz HTTP/1.1\r\nHost: n\r\n{body}"));
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("connection: close"));
    let answer = served.request("nonsense\r\n\r\n");
    assert_eq!(answer.status, 400);
}

#[test]
fn a_request_sent_just_before_the_stop_is_answered() {
    let served = served(sample_view::small(), Limits::default());
    let mut socket = served.connect();
    Served::until("the connection is taken", || served.open() == 1);
    served.stop.cancel();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"), "{answer:?}");
}

#[test]
fn a_stop_closes_idle_connections_at_once() {
    let mut served = served(sample_view::small(), Limits::default());
    let _idle = served.connect();
    Served::until("it is in", || served.open() == 1);
    let start = Instant::now();
    served.stop.cancel();
    let task = served.task.take().unwrap();
    served.runtime.block_on(task).unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "not after the 30 s that it may be idle: {:?}", start.elapsed());
    assert!(Socket::connect(served.address).is_err());
}
