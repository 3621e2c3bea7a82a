//! Tests the registration with a fake kubelet.

use super::call::{PluginCall, PluginCallReceiver, PluginCallSender, PluginDevice};
use super::register::{REMEMBERED_AFTER, serve};
use super::service::{Service, Watches};
use super::settings::{RegistrationCourse, RegistrationStart, Settings};
use super::socket_name;
use model::plugin::{RegistrationState, SecondConnection};
use proto::device_plugin as v1beta1;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use proto::device_plugin::device_plugin_server::DevicePlugin;
use proto::device_plugin::registration_server::{Registration as Register, RegistrationServer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Timeout of each step; every step that works is faster.
const LIMIT: Duration = Duration::from_secs(30);
const RESOURCE: &str = "nvidia.com/gpu";

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
    /// A node with a kubelet and without an earlier agent.
    fn fresh() -> Node {
        Node::entering(RegistrationStart::Fresh, |plugins| drop(kubelet(plugins)))
    }

    /// `prepare` changes the plugin folder before the plugin starts.
    fn entering(entry: RegistrationStart, prepare: impl FnOnce(&Path)) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let (plugins, registry) = (folder.path().join("device-plugins"), folder.path().join("plugins_registry"));
        for folder in [&plugins, &registry] {
            std::fs::create_dir(folder).unwrap();
        }
        prepare(&plugins);
        let settings = Settings { resource: RESOURCE.into(), registry: registry.clone(), plugins: plugins.clone() };
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

fn bind(path: &Path) -> std::os::unix::net::UnixListener {
    std::os::unix::net::UnixListener::bind(path).unwrap()
}

/// The socket that an agent of an earlier release left.
fn left_in_registry(plugins: &Path) -> PathBuf {
    plugins.with_file_name("plugins_registry").join(socket_name::registry(RESOURCE))
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} took longer than {LIMIT:?}"))
}

async fn connect(path: &Path, authority: &str) -> Channel {
    let origin = format!("http://{authority}").parse().unwrap();
    Endpoint::try_from(format!("unix://{}", path.display())).unwrap().origin(origin).connect().await.unwrap()
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
    /// Connects to the plugin and requests its options inside the call, as the kubelet does.
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

/// A kubelet that sends garbage, and a kubelet that sends impossible numbers.
#[tokio::test]
async fn garbage_from_the_kubelet_does_not_stop_the_plugin() {
    let mut node = Node::fresh();
    let socket = node.socket(node.in_plugins()).await;
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
    let node = Node::fresh();
    let mut lists = watched(&node.socket(node.in_plugins()).await).await;
    let of = |count: usize| -> Arc<[PluginDevice]> {
        (0..count).map(|slot| PluginDevice { id: format!("GPU-1-{slot}").into(), healthy: true, numa: None }).collect()
    };
    node.list.send_replace(of(300_000));
    // This runtime has one thread: after some turns every task that waits for a list has seen this list.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    node.list.send_replace(of(2));
    // Lists arrive in order: if the agent had sent the long list, it would arrive first.
    assert_eq!(soon("the next list", lists.message()).await.unwrap().unwrap().devices.len(), 2);
    drop(lists);
    node.end().await;
}

#[tokio::test]
async fn stale_sockets_of_another_resource_are_removed_and_live_ones_are_not() {
    let mut live = None;
    let node = Node::entering(RegistrationStart::Fresh, |plugins| {
        drop(kubelet(plugins));
        let registry = plugins.with_file_name("plugins_registry");
        drop(bind(&registry.join(socket_name::registry("example.com/vgpu"))));
        drop(bind(&plugins.join(socket_name::plugin("example.com/vgpu"))));
        live = Some(bind(&plugins.join(socket_name::plugin("example.com/other"))));
    });
    let _ours = node.socket(node.in_plugins()).await;
    let names = |folder: &Path| -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().flatten().map(|file| file.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    assert!(names(&node.registry).is_empty());
    let other = socket_name::plugin("example.com/other");
    assert_eq!(names(&node.plugins), [&*other, &*socket_name::plugin(RESOURCE), "kubelet.sock"]);
    drop(live);
    std::fs::remove_file(node.plugins.join(other)).unwrap();
    node.end().await;
}

/// A call of the kubelet is under way when the agent stops: the agent answers it, and ends the list after that.
#[tokio::test]
async fn an_admission_call_in_progress_at_the_stop_is_answered() {
    let mut node = Node::fresh();
    let socket = node.socket(node.in_plugins()).await;
    let mut list = watched(&socket).await;
    let mut plugin = DevicePluginClient::new(connect(&socket, "localhost").await);
    let container = v1beta1::ContainerAllocateRequest { device_ids: vec!["GPU-1-0".into()] };
    let allocation = tokio::spawn(async move {
        let request = v1beta1::AllocateRequest { container_requests: vec![container] };
        plugin.allocate(request).await
    });
    node.stop.cancel();
    assert!(timeout(Duration::from_millis(300), list.message()).await.is_err(), "the list ends after the answer");
    assert!(!node.served.is_finished());
    let state = tempfile::tempdir().unwrap();
    node.receiver.tickets.send_replace(Some(Arc::new(super::TicketJournal::new(state.path()))));
    let Some(PluginCall::Allocated { ticket, .. }) = soon("the call", node.receiver.calls.recv()).await else {
        panic!("no call")
    };
    let answer = soon("the answer", allocation).await.unwrap().expect("an answer");
    let devices = &answer.into_inner().container_responses[0].cdi_devices;
    assert_eq!(devices[0].name, wire::ticket::qualified(&ticket));
    assert!(!matches!(soon("the end of the list", list.message()).await, Ok(Some(_))));
    node.end().await;
}

/// An upgrade from a release that registered through a socket in the registry and left it there. The first agent may
/// still run when the second agent registers.
#[tokio::test]
async fn an_agent_that_follows_another_registers_at_once_and_keeps_the_registry_socket() {
    for alive in [false, true] {
        let mut registered = None;
        let mut left = None;
        let entry = if alive { RegistrationStart::Beside(SecondConnection::Kept) } else { RegistrationStart::After };
        let mut node = Node::entering(entry, |plugins| {
            registered = Some(kubelet(plugins));
            left = Some((bind(&left_in_registry(plugins)), bind(&plugins.join(socket_name::plugin(RESOURCE)))));
            if !alive {
                left = None;
            }
        });
        let endpoint = soon("Register", registered.as_mut().unwrap().recv()).await.unwrap();
        let expect = if alive { socket_name::plugin_beside(RESOURCE) } else { socket_name::plugin(RESOURCE) };
        assert_eq!(endpoint, expect);
        let _list = watched(&node.plugins.join(endpoint)).await;
        node.expect_state(RegistrationState::Registered).await;
        assert!(node.in_registry().exists(), "the kubelet would drop this agent with that socket");
        drop(left);
        node.end().await;
    }
}

/// The end of the list alone does not show why it ended. But if the kubelet's socket is another one, the kubelet has
/// restarted, and then it drops no plugin when the socket in its registry disappears.
#[tokio::test]
async fn the_registry_socket_of_an_earlier_release_is_removed_after_a_restart_of_the_kubelet() {
    let mut registered = None;
    let mut node = Node::entering(RegistrationStart::After, |plugins| {
        registered = Some(kubelet(plugins));
        drop(bind(&left_in_registry(plugins)));
    });
    let mut registered = registered.unwrap();
    let socket = node.plugins.join(soon("Register", registered.recv()).await.unwrap());
    let list = watched(&socket).await;
    node.expect_state(RegistrationState::Registered).await;
    drop(list);
    soon("the next Register", registered.recv()).await.unwrap();
    let list = watched(&socket).await;
    node.expect_state(RegistrationState::Registered).await;
    assert!(node.in_registry().exists(), "the kubelet may not have restarted");
    // So fast that the agent never finds the kubelet absent.
    std::fs::remove_file(node.plugins.join("kubelet.sock")).unwrap();
    let mut registered = kubelet(&node.plugins);
    drop(list);
    soon("the Register after the restart", registered.recv()).await.unwrap();
    let _list = watched(&socket).await;
    soon("the end of the socket", async {
        while node.in_registry().exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    node.end().await;
}

#[tokio::test]
async fn the_registry_socket_of_an_earlier_release_is_removed_while_no_kubelet_runs() {
    let mut node = Node::entering(RegistrationStart::After, |plugins| drop(bind(&left_in_registry(plugins))));
    let missing = format!("kubelet, which does not listen on {}", node.plugins.join("kubelet.sock").display());
    node.expect_state(RegistrationState::Waiting(missing.into())).await;
    soon("the end of the socket", async {
        while node.in_registry().exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    node.end().await;
}

/// The agent of an earlier release was killed: the kubelet drops the plugin of the resource when it sees that the
/// socket is gone.
#[tokio::test]
async fn an_agent_without_a_previous_one_removes_the_registry_socket_and_waits_before_it_registers() {
    let mut registered = None;
    let began = std::time::Instant::now();
    let node = Node::entering(RegistrationStart::Fresh, |plugins| {
        registered = Some(kubelet(plugins));
        drop(bind(&left_in_registry(plugins)));
    });
    soon("Register", registered.unwrap().recv()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "the kubelet would drop this registration with that socket");
    assert!(!node.in_registry().exists());
    node.end().await;
}

/// A kubelet that remembers one connection must remember none while the previous agent's connection ends, and must
/// remember this agent's connection after that.
#[tokio::test]
async fn beside_another_agent_the_kubelet_remembers_no_connection_until_that_agent_ends() {
    let mut registered = None;
    let mut theirs = None;
    let entry = RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
    let mut node = Node::entering(entry, |plugins| {
        registered = Some(kubelet(plugins));
        theirs = Some(std::os::unix::net::UnixListener::bind(plugins.join(socket_name::plugin(RESOURCE))).unwrap());
    });
    let mut registered = registered.unwrap();
    let mut next = async || soon("Register", registered.recv()).await.unwrap();
    let beside = next().await;
    assert_eq!(beside, socket_name::plugin_beside(RESOURCE));
    let first = watched(&node.plugins.join(&beside)).await;
    assert_eq!(next().await, socket_name::unanswering(RESOURCE), "this registration fails");
    node.expect_state(RegistrationState::Registered).await;
    assert!(!node.plugins.join(socket_name::unanswering(RESOURCE)).exists());
    drop(theirs);
    node.alone.cancel();
    assert_eq!(next().await, beside);
    let _second = watched(&node.plugins.join(&beside)).await;
    assert!(timeout(Duration::from_millis(300), node.state.changed()).await.is_err(), "the state does not change");
    // The agent notices the end of each connection, even of a connection that the kubelet no longer remembers.
    drop(first);
    assert_eq!(next().await, beside, "it registers again");
    let _third = watched(&node.plugins.join(&beside)).await;
    node.expect_state(RegistrationState::Registered).await;
    node.end().await;
}

/// If the kubelet remembers no connection when the agent is stopped, it does not notice the agent's end; so the
/// agent's last list says that no device is healthy. If a next agent takes over, the agent must not send this list,
/// because it would replace the next agent's list.
#[tokio::test]
async fn the_last_list_of_an_agent_says_that_its_devices_are_unhealthy_unless_it_is_followed() {
    for followed in [false, true] {
        let mut registered = None;
        let entry = RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
        let mut node = Node::entering(entry, |plugins| registered = Some(kubelet(plugins)));
        let mut registered = registered.unwrap();
        let socket = node.plugins.join(soon("Register", registered.recv()).await.unwrap());
        let mut list = watched(&socket).await;
        assert!(soon("the failing Register", registered.recv()).await.unwrap().ends_with(",0.sock"));
        node.expect_state(RegistrationState::Registered).await;
        // The previous agent has ended, and this agent is about to stop: the next agent may already register.
        node.closing.cancel();
        node.alone.cancel();
        node.followed.set(followed).unwrap();
        assert!(timeout(REMEMBERED_AFTER * 2, registered.recv()).await.is_err(), "the agent does not register again");
        node.stop.cancel();
        if !followed {
            let last = soon("the last list", list.message()).await.unwrap().expect("a list");
            assert_eq!(health(&last), ["Unhealthy"]);
        }
        assert!(soon("the end of the list", list.message()).await.is_ok_and(|list| list.is_none()));
        soon("the end", node.served).await.unwrap().unwrap();
        assert!(registered.try_recv().is_err(), "the agent does not register again");
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
