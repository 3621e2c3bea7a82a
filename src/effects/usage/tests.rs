//! Tests the server over a real socket with a real client.

use super::convert::tests::node;
use super::*;
use std::future::Future;
use std::path::PathBuf;
use tokio::sync::watch::Sender;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;

/// Deadline for each step of these tests.
const LIMIT: Duration = Duration::from_secs(20);
const FAST: Pace =
    Pace { least: Duration::from_millis(1), most: Duration::from_secs(60), recheck: Duration::from_millis(1) };

struct Running {
    path: PathBuf,
    view: Sender<Arc<NodeView>>,
    stop: CancellationToken,
    served: JoinHandle<std::io::Result<()>>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(pace: Pace) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let listener = bind(&path).unwrap();
        let (view, newest) = latest::channel(Arc::new(node(1, 1)));
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve_at(pace, listener, newest, stop.clone()));
        Running { path, view, stop, served, _folder: folder }
    }

    fn show(&self, sequence: u64) {
        self.view.send_replace(Arc::new(node(sequence, sequence)));
    }

    async fn client(&self) -> UsageClient<Channel> {
        client(&self.path).await
    }
}

async fn client(path: &Path) -> UsageClient<Channel> {
    let address = format!("unix://{}", path.display());
    UsageClient::new(Endpoint::from_shared(address).unwrap().connect().await.unwrap())
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} took longer than {LIMIT:?}"))
}

#[tokio::test]
async fn get_returns_the_newest_state() {
    let running = Running::start(FAST);
    let mut client = running.client().await;
    for sequence in [1, 2, 77] {
        running.show(sequence);
        let response = soon("get", client.get(GetRequest {})).await.unwrap().into_inner();
        assert_eq!(
            (response.sequence, response.gpus[0].memory_used.as_ref().unwrap().value),
            (sequence, Some(sequence))
        );
    }
}

#[tokio::test]
async fn an_agent_answers_for_its_own_node_only_and_not_once_it_has_ended() {
    let running = Running::start(FAST);
    let own = running.view.borrow().name.clone();
    let answers = async |node: &NodeName| soon("answer", super::answers(&running.path, node)).await;
    assert!(answers(&own).await);
    assert!(!answers(&NodeName::parse("another").unwrap()).await);
    running.stop.cancel();
    soon("the end", running.served).await.unwrap().unwrap();
    assert!(!soon("answer", super::answers(&running.path, &own)).await);
}

#[tokio::test]
async fn watch_sends_at_once_and_then_each_change() {
    let running = Running::start(FAST);
    let mut stream = running.client().await.watch(WatchRequest {}).await.unwrap().into_inner();
    assert_eq!(soon("first", stream.message()).await.unwrap().unwrap().sequence, 1);
    running.show(2);
    assert_eq!(soon("second", stream.message()).await.unwrap().unwrap().sequence, 2);
}

#[tokio::test]
async fn watch_sends_nothing_without_a_change_until_its_longest_pause() {
    let running = Running::start(Pace { most: Duration::from_millis(300), ..FAST });
    // The time is taken before the first state is sent: on a busy machine the state may be received long after.
    let begun = Instant::now();
    let mut stream = running.client().await.watch(WatchRequest {}).await.unwrap().into_inner();
    soon("first", stream.message()).await.unwrap().unwrap();
    for sequence in 2..20 {
        running.view.send_replace(Arc::new(node(sequence, 1)));
    }
    let next = soon("the repeated state", stream.message()).await.unwrap().unwrap();
    assert_eq!(next.sequence, 19);
    assert!(
        begun.elapsed() >= Duration::from_millis(250),
        "the state was sent before its longest pause: {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn states_are_not_sent_faster_than_the_pace() {
    let running = Running::start(Pace { least: Duration::from_millis(100), ..FAST });
    // The time is taken before the first state is sent: on a busy machine the state may be received long after.
    let begun = Instant::now();
    let mut stream = running.client().await.watch(WatchRequest {}).await.unwrap().into_inner();
    soon("first", stream.message()).await.unwrap().unwrap();
    let mut sequence = 1;
    for _ in 0..3 {
        sequence += 1;
        running.show(sequence);
        assert_eq!(soon("next", stream.message()).await.unwrap().unwrap().sequence, sequence);
    }
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
}

/// The client is a thread with its own runtime that does nothing between two reads, like a stopped process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_paused_gets_the_newest_state_and_no_queue() {
    let running = Running::start(FAST);
    let path = running.path.clone();
    let (subscribed, subscription) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut stream =
            runtime.block_on(async { client(&path).await.watch(WatchRequest {}).await.unwrap().into_inner() });
        runtime.block_on(stream.message()).unwrap().unwrap();
        subscribed.send(()).unwrap();
        wait.recv().unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&1000) {
            let next = runtime.block_on(async { timeout(LIMIT, stream.message()).await }).unwrap().unwrap().unwrap();
            seen.push(next.sequence);
        }
        seen
    });
    tokio::task::spawn_blocking(move || subscription.recv().unwrap()).await.unwrap();
    for sequence in 2..=1000 {
        running.show(sequence);
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    go_on.send(()).unwrap();
    let seen = tokio::task::spawn_blocking(move || reader.join().unwrap()).await.unwrap();
    assert!(seen.len() <= 3, "at most what was on its way, then the newest: {seen:?}");
}

#[tokio::test]
async fn stop_ends_streams_and_the_server_at_once_and_removes_the_socket() {
    let running = Running::start(FAST);
    let mut stream = running.client().await.watch(WatchRequest {}).await.unwrap().into_inner();
    soon("first", stream.message()).await.unwrap().unwrap();
    let _silent = std::os::unix::net::UnixStream::connect(&running.path).unwrap();

    running.stop.cancel();
    let ended = soon("end of the stream", stream.message()).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    assert_eq!(ended.message(), "gpu-steward is stopping");
    soon("end of serving", running.served).await.unwrap().unwrap();
    assert!(!running.path.exists());
}

#[tokio::test]
async fn the_stream_ends_when_no_more_views_come() {
    let running = Running::start(FAST);
    let mut stream = running.client().await.watch(WatchRequest {}).await.unwrap().into_inner();
    soon("first", stream.message()).await.unwrap().unwrap();
    drop(running.view);
    assert_eq!(soon("end", stream.message()).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_stream_over_the_limit_is_refused_until_another_ends() {
    let running = Running::start(FAST);
    let mut client = running.client().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_STREAMS {
        streams.push(soon("watch", client.watch(WatchRequest {})).await.unwrap().into_inner());
    }
    let refused = soon("refusal", client.watch(WatchRequest {})).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("64 streams"), "{refused}");
    assert!(soon("get", client.get(GetRequest {})).await.is_ok(), "Get is not refused");

    streams.pop();
    let again = async {
        while client.watch(WatchRequest {}).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon("a freed stream", again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_open_connections_do_not_block_earlier_and_later_clients() {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limits.current.is_some_and(|now| now < 4096) {
        let raised =
            rustix::process::Rlimit { current: Some(limits.maximum.map_or(4096, |most| most.min(4096))), ..limits };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    }
    let running = Running::start(FAST);
    let mut before = running.client().await;
    before.get(GetRequest {}).await.unwrap();

    let path = running.path.clone();
    let crowd = tokio::task::spawn_blocking(move || {
        (0..1000)
            .map(|_| {
                loop {
                    match std::os::unix::net::UnixStream::connect(&path) {
                        Ok(stream) => break stream,
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            })
            .collect::<Vec<_>>()
    });
    let crowd = soon("a thousand connects", crowd).await.unwrap();
    assert!(soon("get", before.get(GetRequest {})).await.is_ok(), "an earlier client is still served");

    drop(crowd);
    let again = async {
        loop {
            let address = format!("unix://{}", running.path.display());
            if let Ok(channel) = Endpoint::from_shared(address).unwrap().connect().await
                && UsageClient::new(channel).get(GetRequest {}).await.is_ok()
            {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("a new client", again).await;
}

#[tokio::test]
async fn garbage_on_the_usage_socket_does_not_stop_the_server() {
    let running = Running::start(FAST);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&running.path).unwrap();
        let _ = std::io::Write::write_all(&mut stream, garbage);
    }
    assert!(soon("get", running.client().await.get(GetRequest {})).await.is_ok());
}
