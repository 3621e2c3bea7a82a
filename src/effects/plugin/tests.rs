//! Tests both methods of registration with a fake kubelet that sends the same bytes as the real one.

use super::call::{PluginCall, PluginCallReceiver, PluginCallSender, PluginDevice};
use super::register::{REMEMBERED_AFTER, serve};
use super::service::{Service, Watches};
use super::settings::{RegistrationCourse, RegistrationMethod, RegistrationStart, Settings};
use super::socket_name;
use super::socket_name::tests::authority;
use model::plugin::{RegistrationState, SecondConnection};
use proto::device_plugin as v1beta1;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use proto::device_plugin::device_plugin_server::DevicePlugin;
use proto::device_plugin::registration_server::{Registration as Register, RegistrationServer};
use proto::plugin_registration::registration_client::RegistrationClient;
use proto::plugin_registration::{InfoRequest, RegistrationStatus};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Limit of each step; no step takes longer unless it is broken.
const LIMIT: Duration = Duration::from_secs(30);
const RESOURCE: &str = "nvidia.com/gpu";
/// The HTTP/2 stream of the call; stream 0 is for the connection itself.
const STREAM: u32 = 1;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PROTOCOL_ERROR: u32 = 1;

/// The kubelet's two folders, and the plugin that registers.
struct Node {
    plugins: PathBuf,
    registry: PathBuf,
    state: watch::Receiver<RegistrationState>,
    closing: CancellationToken,
    stop: CancellationToken,
    alone: CancellationToken,
    followed: Arc<OnceLock<bool>>,
    served: JoinHandle<std::io::Result<()>>,
    list: watch::Sender<Arc<[PluginDevice]>>,
    receiver: PluginCallReceiver,
    _folder: tempfile::TempDir,
}

impl Node {
    /// `kubelet` prepares the plugin folder before the plugin starts.
    fn with(registration: RegistrationMethod, kubelet: impl FnOnce(&Path)) -> Node {
        Node::entering(RegistrationStart::Fresh, registration, kubelet)
    }

    fn entering(entry: RegistrationStart, registration: RegistrationMethod, kubelet: impl FnOnce(&Path)) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let (plugins, registry) = (folder.path().join("device-plugins"), folder.path().join("plugins_registry"));
        for folder in [&plugins, &registry] {
            std::fs::create_dir(folder).unwrap();
        }
        kubelet(&plugins);
        let settings =
            Settings { resource: RESOURCE.into(), registration, registry: registry.clone(), plugins: plugins.clone() };
        let device = PluginDevice { id: "GPU-1-0".into(), healthy: true, numa: None };
        let (list, listed) = watch::channel(Arc::from([device]));
        let (state_sender, state) = watch::channel(RegistrationState::Waiting("the start".into()));
        let (stop, followed) = (CancellationToken::new(), Arc::<OnceLock<bool>>::default());
        let (calls, receiver) = PluginCallSender::channel();
        let [alone, closing] = std::array::from_fn(|_| CancellationToken::new());
        let course = RegistrationCourse {
            entry,
            closing: closing.clone(),
            stop: stop.clone(),
            alone: alone.clone(),
            followed: Arc::clone(&followed),
        };
        let served = tokio::spawn(serve(settings, listed, calls, state_sender, course));
        Node { plugins, registry, state, closing, stop, alone, followed, served, list, receiver, _folder: folder }
    }

    async fn socket(&self, path: PathBuf) -> PathBuf {
        soon("a socket", async {
            while UnixStream::connect(&path).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        path
    }

    fn in_registry(&self) -> PathBuf {
        self.registry.join(socket_name::registry(RESOURCE))
    }

    fn in_plugins(&self) -> PathBuf {
        self.plugins.join(socket_name::plugin(RESOURCE))
    }

    async fn expect_state(&mut self, expected: RegistrationState) {
        soon(&format!("{expected:?}"), self.state.wait_for(|now| *now == expected)).await.unwrap();
    }

    async fn end(self) {
        self.stop.cancel();
        soon("the end", self.served).await.unwrap().unwrap();
        for folder in [&self.registry, &self.plugins] {
            let left = std::fs::read_dir(folder).unwrap().flatten().filter(|file| file.file_name() != "kubelet.sock");
            assert_eq!(left.count(), 0, "{}", folder.display());
        }
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} took longer than {LIMIT:?}"))
}

async fn connect(path: &Path, authority: &str) -> Channel {
    let origin = format!("http://{authority}").parse().unwrap();
    Endpoint::try_from(format!("unix://{}", path.display())).unwrap().origin(origin).connect().await.unwrap()
}

/// The kubelet's plugin watcher, which uses the path as its authority.
async fn watcher(path: &Path) -> RegistrationClient<Channel> {
    RegistrationClient::new(connect(path, &authority(path)).await)
}

async fn watched(path: &Path) -> tonic::Streaming<v1beta1::ListAndWatchResponse> {
    let mut plugin = DevicePluginClient::new(connect(path, "localhost").await);
    let mut list = plugin.list_and_watch(v1beta1::Empty {}).await.unwrap().into_inner();
    assert_eq!(list.message().await.unwrap().unwrap().devices.len(), 1);
    list
}

fn health(list: &v1beta1::ListAndWatchResponse) -> Vec<&str> {
    list.devices.iter().map(|device| device.health.as_str()).collect()
}

/// The kubelet's own socket: reports which endpoints were registered.
struct Kubelet {
    plugins: PathBuf,
    endpoints: mpsc::UnboundedSender<String>,
}

#[tonic::async_trait]
impl Register for Kubelet {
    /// Connects to the plugin and requests its options inside the call, as kubelets from 1.25 on do.
    async fn register(&self, request: Request<v1beta1::RegisterRequest>) -> Result<Response<v1beta1::Empty>, Status> {
        let endpoint = request.into_inner().endpoint;
        let mut plugin = DevicePluginClient::new(connect(&self.plugins.join(&endpoint), "localhost").await);
        let options = plugin.get_device_plugin_options(v1beta1::Empty {}).await;
        let _ = self.endpoints.send(endpoint);
        options.map(|_| Response::new(v1beta1::Empty {}))
    }
}

/// Runs until the test is over.
fn kubelet(plugins: &Path) -> mpsc::UnboundedReceiver<String> {
    let (endpoints, registered) = mpsc::unbounded_channel();
    let listener = UnixListener::bind(plugins.join("kubelet.sock")).unwrap();
    let service = RegistrationServer::new(Kubelet { plugins: plugins.to_owned(), endpoints });
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)));
    registered
}

/// Sends `GetInfo` with this authority, byte for byte; returns the kind and the content of the first frame of the
/// answer.
async fn get_info(path: &Path, authority: &str) -> (u8, Vec<u8>) {
    let frame = |kind: u8, flags: u8, stream: u32, content: &[u8]| {
        let len = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes()[..], content].concat()
    };
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/pluginregistration.Registration/GetInfo"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // Literal, without an index and without Huffman coding; a length below 127 is one byte.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|len| *len < 127).expect("a short text"));
            block.extend(text.as_bytes());
        }
    }
    let mut stream = UnixStream::connect(path).await.unwrap();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        // END_HEADERS, and a message of no bytes with END_STREAM.
        frame(HEADERS, 4, STREAM, &block),
        frame(0, 1, STREAM, &[0; 5]),
    ];
    stream.write_all(&request.concat()).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut content = vec![0; len];
        stream.read_exact(&mut content).await.unwrap();
        if u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == STREAM {
            return (head[3], content);
        }
    }
}

/// Shows why the socket has this name: the same call to the same server, in the bytes of the kubelet's client.
#[tokio::test]
async fn the_path_of_the_agents_socket_is_accepted_as_authority_and_others_are_refused() {
    let mut node = Node::with(RegistrationMethod::Watcher, |_| {});
    let missing = format!("kubelet, which does not listen on {}", node.plugins.join("kubelet.sock").display());
    node.expect_state(RegistrationState::Waiting(missing.into())).await;
    let socket = node.socket(node.in_registry()).await;
    let (kind, _) = soon("an answer", get_info(&socket, &authority(&socket))).await;
    assert_eq!(kind, HEADERS);
    for other in [node.registry.join("gpu.sock"), node.in_plugins()] {
        let (kind, content) = soon("an answer", get_info(&socket, &authority(&other))).await;
        assert_eq!((kind, content), (RST_STREAM, PROTOCOL_ERROR.to_be_bytes().to_vec()));
    }
    node.end().await;
}

#[tokio::test]
async fn the_agent_does_not_call_register_if_the_plugin_watcher_asks() {
    let mut registered = None;
    let mut node = Node::with(RegistrationMethod::Auto, |plugins| registered = Some(kubelet(plugins)));
    let socket = node.socket(node.in_registry()).await;
    let mut client = watcher(&socket).await;
    let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((&*info.r#type, &*info.name, &*info.endpoint), ("DevicePlugin", RESOURCE, ""));
    assert_eq!(info.supported_versions, ["v1beta1"]);
    let list = watched(&socket).await;
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    let _ = client.notify_registration_status(status).await.unwrap();
    node.expect_state(RegistrationState::Registered("watcher")).await;
    assert!(!node.in_plugins().exists(), "one socket at a time");

    // The agent notices the end of the registration, and makes the socket again.
    drop((list, client));
    soon("the loss", node.state.wait_for(|now| matches!(now, RegistrationState::Waiting(_)))).await.unwrap();
    let socket = node.socket(node.in_registry()).await;
    let mut client = watcher(&socket).await;
    let _ = client.get_info(InfoRequest {}).await.unwrap();
    let _list = watched(&socket).await;
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    let _ = client.notify_registration_status(status).await.unwrap();
    node.expect_state(RegistrationState::Registered("watcher")).await;
    assert!(registered.unwrap().try_recv().is_err(), "Register was not called");
    node.end().await;
}

/// Kubelets before 1.29 send the path without escapes.
#[tokio::test]
async fn a_kubelet_with_an_unescaped_authority_is_registered_the_classic_way() {
    let mut registered = None;
    let mut node = Node::with(RegistrationMethod::Auto, |plugins| registered = Some(kubelet(plugins)));
    let socket = node.socket(node.in_registry()).await;
    let (kind, _) = soon("an answer", get_info(&socket, socket.to_str().unwrap())).await;
    assert_eq!(kind, RST_STREAM);
    let endpoint = soon("Register", registered.unwrap().recv()).await.unwrap();
    assert_eq!(endpoint, socket_name::plugin(RESOURCE));
    assert!(!node.in_registry().exists(), "one socket at a time");
    let _list = watched(&node.socket(node.in_plugins()).await).await;
    node.expect_state(RegistrationState::Registered("classic")).await;
    node.end().await;
}

/// The agent registers by the other method, and not before the kubelet has forgotten the first registration.
#[tokio::test]
async fn after_a_refusal_the_agent_registers_by_the_other_method() {
    let mut registered = None;
    let mut node = Node::with(RegistrationMethod::Auto, |plugins| registered = Some(kubelet(plugins)));
    let socket = node.socket(node.in_registry()).await;
    let mut client = watcher(&socket).await;
    let _ = client.get_info(InfoRequest {}).await.unwrap();
    let began = std::time::Instant::now();
    let status = RegistrationStatus { plugin_registered: false, error: "no handler registered".into() };
    let _ = client.notify_registration_status(status).await.unwrap();
    let why = "kubelet refused the plugin: no handler registered".into();
    node.expect_state(RegistrationState::Waiting(why)).await;
    let _ = soon("Register", registered.unwrap().recv()).await.unwrap();
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "the kubelet would drop the new registration with the old one: {began:?}"
    );
    node.end().await;
}

/// A kubelet that sends garbage, and one that sends impossible numbers.
#[tokio::test]
async fn garbage_from_the_kubelet_does_not_stop_the_plugin() {
    let mut node = Node::with(RegistrationMethod::Watcher, |_| {});
    let socket = node.socket(node.in_registry()).await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"]
    {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        let _ = stream.write_all(garbage).await;
    }
    let mut plugin = DevicePluginClient::new(connect(&socket, "localhost").await);
    let odd = v1beta1::ContainerPreferredAllocationRequest {
        available_device_ids: vec!["\u{0}".into(), String::new(), "GPU-1-99999999999".into()],
        must_include_device_ids: vec!["unknown".into()],
        allocation_size: -5,
    };
    let request = v1beta1::PreferredAllocationRequest { container_requests: vec![odd] };
    let owner = async {
        let Some(PluginCall::Prefer { available, must, size, reply }) = node.receiver.calls.recv().await else {
            panic!("no call")
        };
        reply.send(Vec::new()).unwrap();
        (available.len(), must.len(), size)
    };
    let (answer, counts) =
        soon("an answer", async { tokio::join!(plugin.get_preferred_allocation(request), owner) }).await;
    assert_eq!((answer.unwrap().into_inner().container_responses.len(), counts), (1, (3, 1, 0)));
    drop((plugin, watched(&socket).await));
    node.end().await;
}

/// A GPU that is added while the agent runs can make the list this long; the kubelet would end the stream at such a
/// message.
#[tokio::test]
async fn a_device_list_that_is_too_long_for_the_kubelet_is_not_sent() {
    let node = Node::with(RegistrationMethod::Watcher, |_| {});
    let mut lists = watched(&node.socket(node.in_registry()).await).await;
    let of = |count: usize| -> Arc<[PluginDevice]> {
        (0..count).map(|slot| PluginDevice { id: format!("GPU-1-{slot}").into(), healthy: true, numa: None }).collect()
    };
    node.list.send_replace(of(300_000));
    // This runtime has one thread: after some turns every task that waits for a list has seen this one.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    node.list.send_replace(of(2));
    // Lists arrive in order: if the agent had sent the long one, it would arrive first.
    assert_eq!(soon("the next list", lists.message()).await.unwrap().unwrap().devices.len(), 2);
    drop(lists);
    node.end().await;
}

#[tokio::test]
async fn stale_sockets_of_another_resource_are_removed_and_live_ones_are_not() {
    let bind = |path: PathBuf| std::os::unix::net::UnixListener::bind(path).unwrap();
    let mut live = None;
    let node = Node::with(RegistrationMethod::Watcher, |plugins| {
        let registry = plugins.with_file_name("plugins_registry");
        drop(bind(registry.join(socket_name::registry("example.com/vgpu"))));
        drop(bind(plugins.join(socket_name::plugin("example.com/vgpu"))));
        live = Some(bind(plugins.join(socket_name::plugin("example.com/other"))));
    });
    let ours = node.socket(node.in_registry()).await;
    let names = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().flatten().map(|file| file.path()).collect()
    };
    assert_eq!(names(&node.registry), [ours]);
    let others = node.plugins.join(socket_name::plugin("example.com/other"));
    assert_eq!(names(&node.plugins), std::slice::from_ref(&others));
    drop(live);
    std::fs::remove_file(others).unwrap();
    node.end().await;
}

/// A call of the kubelet is under way when the agent stops: the agent answers it, and ends the list after that.
#[tokio::test]
async fn an_admission_call_in_progress_at_the_stop_is_answered() {
    let mut node = Node::with(RegistrationMethod::Watcher, |_| {});
    let socket = node.socket(node.in_registry()).await;
    let mut list = watched(&socket).await;
    let mut plugin = DevicePluginClient::new(connect(&socket, "localhost").await);
    let container = v1beta1::ContainerAllocateRequest { device_ids: vec!["GPU-1-0".into()] };
    let allocation = tokio::spawn(async move {
        let request = v1beta1::AllocateRequest { container_requests: vec![container] };
        plugin.allocate(request).await
    });
    let Some(PluginCall::Allocate { reply, .. }) = soon("the call", node.receiver.calls.recv()).await else {
        panic!("no call")
    };
    node.stop.cancel();
    assert!(timeout(Duration::from_millis(300), list.message()).await.is_err(), "the list ends after the answer");
    assert!(!node.served.is_finished());
    reply.send(Ok(super::AllocateAnswer { cdi: vec!["nvidia.com/gpu=x".into()], fields: Vec::new() })).unwrap();
    let answer = soon("the answer", allocation).await.unwrap().expect("an answer");
    assert_eq!(answer.into_inner().container_responses[0].cdi_devices[0].name, "nvidia.com/gpu=x");
    assert!(!matches!(soon("the end of the list", list.message()).await, Ok(Some(_))));
    node.end().await;
}

/// An upgrade: the first agent leaves its socket in the registry; the second one registers the classic way at once, and
/// removes that socket at its own end. The first agent may still run when the second one registers.
#[tokio::test]
async fn an_agent_that_follows_another_registers_at_once_and_keeps_the_registry_socket() {
    for alive in [false, true] {
        let mut registered = None;
        let mut left = None;
        let entry = if alive { RegistrationStart::Beside(SecondConnection::Kept) } else { RegistrationStart::After };
        let mut node = Node::entering(entry, RegistrationMethod::Auto, |plugins| {
            registered = Some(kubelet(plugins));
            let registry = plugins.with_file_name("plugins_registry").join(socket_name::registry(RESOURCE));
            let bind = |path: &Path| std::os::unix::net::UnixListener::bind(path).unwrap();
            left = Some((bind(&registry), bind(&plugins.join(socket_name::plugin(RESOURCE)))));
            if !alive {
                left = None;
            }
        });
        let endpoint = soon("Register", registered.as_mut().unwrap().recv()).await.unwrap();
        let expect = if alive { socket_name::plugin_beside(RESOURCE) } else { socket_name::plugin(RESOURCE) };
        assert_eq!(endpoint, expect);
        let _list = watched(&node.plugins.join(endpoint)).await;
        node.expect_state(RegistrationState::Registered("classic")).await;
        assert!(node.in_registry().exists(), "the kubelet would drop this agent with that socket");
        drop(left);
        node.end().await;
    }
}

/// A kubelet that remembers one connection must remember none while the previous agent's connection ends, and this
/// agent's after that.
#[tokio::test]
async fn beside_another_agent_the_kubelet_remembers_no_connection_until_that_agent_ends() {
    let mut registered = None;
    let mut theirs = None;
    let entry = RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
    let mut node = Node::entering(entry, RegistrationMethod::Auto, |plugins| {
        registered = Some(kubelet(plugins));
        theirs = Some(std::os::unix::net::UnixListener::bind(plugins.join(socket_name::plugin(RESOURCE))).unwrap());
    });
    let mut registered = registered.unwrap();
    let mut next = async || soon("Register", registered.recv()).await.unwrap();
    let beside = next().await;
    assert_eq!(beside, socket_name::plugin_beside(RESOURCE));
    let first = watched(&node.plugins.join(&beside)).await;
    assert_eq!(next().await, socket_name::unanswering(RESOURCE), "this registration fails");
    node.expect_state(RegistrationState::Registered("classic")).await;
    assert!(!node.plugins.join(socket_name::unanswering(RESOURCE)).exists());
    drop(theirs);
    node.alone.cancel();
    assert_eq!(next().await, beside);
    let _second = watched(&node.plugins.join(&beside)).await;
    assert!(timeout(Duration::from_millis(300), node.state.changed()).await.is_err(), "the state does not change");
    // The agent notices the end of each connection, also of the one that the kubelet no longer remembers.
    drop(first);
    assert_eq!(next().await, beside, "it registers again");
    let _third = watched(&node.plugins.join(&beside)).await;
    node.expect_state(RegistrationState::Registered("classic")).await;
    node.end().await;
}

/// The kubelet may remember no connection when the agent is stopped, and then does not notice its end: its last list
/// says that no device is healthy. An agent that is followed must not send that, because it would replace the list of the next one.
#[tokio::test]
async fn the_last_list_of_an_agent_says_that_its_devices_are_unhealthy_unless_it_is_followed() {
    for followed in [false, true] {
        let mut registered = None;
        let entry = RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
        let mut node = Node::entering(entry, RegistrationMethod::Auto, |plugins| registered = Some(kubelet(plugins)));
        let mut registered = registered.unwrap();
        let socket = node.plugins.join(soon("Register", registered.recv()).await.unwrap());
        let mut list = watched(&socket).await;
        assert!(soon("the failing Register", registered.recv()).await.unwrap().ends_with(",0.sock"));
        node.expect_state(RegistrationState::Registered("classic")).await;
        // The previous agent has ended, and this one is about to stop: the next one may already register.
        node.closing.cancel();
        node.alone.cancel();
        node.followed.set(followed).unwrap();
        assert!(timeout(REMEMBERED_AFTER * 2, registered.recv()).await.is_err(), "it registers no more");
        node.stop.cancel();
        if !followed {
            let last = soon("the last list", list.message()).await.unwrap().expect("a list");
            assert_eq!(health(&last), ["Unhealthy"]);
        }
        assert!(soon("the end of the list", list.message()).await.is_ok_and(|list| list.is_none()));
        soon("the end", node.served).await.unwrap().unwrap();
        assert!(registered.try_recv().is_err(), "it registers no more");
    }
}

/// The kubelet may open a stream for a `Register` that was under way when the agent was stopped.
#[tokio::test]
async fn a_list_that_is_asked_for_while_the_agent_stops_is_the_last_one() {
    let (calls, _queue) = PluginCallSender::channel();
    let (_changes, list) = watch::channel(vec![PluginDevice { id: "one".into(), healthy: true, numa: None }].into());
    let [leaves, end] = std::array::from_fn(|_| CancellationToken::new());
    let service = Service { calls, list, watched: watch::channel(Watches::default()).0, leaves, end };
    let list = async || service.list_and_watch(Request::new(v1beta1::Empty {})).await.unwrap().into_inner();
    let mut before = list().await;
    assert_eq!(health(&before.next().await.unwrap().unwrap()), ["Healthy"]);
    service.leaves.cancel();
    service.end.cancel();
    for mut list in [before, list().await] {
        assert_eq!(health(&list.next().await.unwrap().unwrap()), ["Unhealthy"]);
        assert!(list.next().await.is_none());
    }
}

#[tokio::test]
async fn an_agent_that_is_followed_leaves_its_socket_in_the_registry() {
    let node = Node::with(RegistrationMethod::Watcher, |_| {});
    let socket = node.socket(node.in_registry()).await;
    node.followed.set(true).unwrap();
    node.stop.cancel();
    soon("the end", node.served).await.unwrap().unwrap();
    assert!(socket.exists() && UnixStream::connect(&socket).await.is_err());
}
