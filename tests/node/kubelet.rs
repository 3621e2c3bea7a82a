//! A fake kubelet for device plugins: it answers `Register`, and watches the list of each plugin that registers.

use lab::eventually::eventually;
use prost::Message;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use proto::device_plugin::registration_server::{Registration, RegistrationServer};
use proto::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest, Empty,
    PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

const SOON: Duration = Duration::from_secs(60);

/// The kubelet, which runs until it is dropped.
pub(crate) struct Kubelet {
    runtime: Runtime,
    root: PathBuf,
    registered: watch::Receiver<Option<PathBuf>>,
}

impl Kubelet {
    /// Starts with this root directory.
    pub(crate) fn start(root: &Path) -> Kubelet {
        let plugins = root.join("device-plugins");
        fs::create_dir_all(&plugins).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sockets, registered) = watch::channel(None);
        let own = plugins.join("kubelet.sock");
        let service = RegistrationServer::new(DeviceManager { plugins, sockets });
        runtime.block_on(async {
            let incoming = UnixListenerStream::new(UnixListener::bind(own).unwrap());
            tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        });
        Kubelet { runtime, root: root.to_owned(), registered }
    }

    /// The same, once a plugin has registered.
    pub(crate) fn registers(root: &Path) -> Kubelet {
        let kubelet = Kubelet::start(root);
        kubelet.plugin();
        kubelet
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether a plugin has registered.
    pub(crate) fn is_offered(&self) -> bool {
        self.registered.borrow().is_some()
    }

    /// The socket of the plugin that registered last. Waits for the first one.
    pub(crate) fn plugin(&self) -> PathBuf {
        eventually("a plugin to register", SOON, || self.registered.borrow().clone())
    }

    /// Admits a pod: calls `Allocate` for its container, and writes the checkpoint, without the plugin's answer.
    pub(crate) fn admits(&self, uid: &str, slot: &str) {
        self.allocates(slot);
        self.writes_checkpoint(uid, slot);
    }

    /// The same with the plugin's answer. Returns the ticket in it.
    pub(crate) fn admits_with_answer(&self, uid: &str, slot: &str) -> String {
        let answer = self.allocates(slot);
        self.writes_answer(uid, slot, &base64(&answer.encode_to_vec()));
        answer.cdi_devices[0].name.rsplit('=').next().unwrap().to_owned()
    }

    /// Calls `Allocate` for a container.
    fn allocates(&self, slot: &str) -> ContainerAllocateResponse {
        let socket = self.plugin();
        self.runtime.block_on(async {
            let mut plugin = DevicePluginClient::new(connect(&socket).await.unwrap());
            let container = ContainerAllocateRequest { device_ids: vec![slot.to_owned()] };
            let request = AllocateRequest { container_requests: vec![container] };
            let mut answer = plugin.allocate(request).await.unwrap().into_inner();
            answer.container_responses.remove(0)
        })
    }

    /// Calls `PreStartContainer` for the container with this slot. Returns the plugin's refusal.
    pub(crate) fn starts(&self, slot: &str) -> Result<(), String> {
        let socket = self.plugin();
        self.runtime.block_on(async {
            let mut plugin = DevicePluginClient::new(connect(&socket).await.unwrap());
            let request = PreStartContainerRequest { device_ids: vec![slot.to_owned()] };
            plugin.pre_start_container(request).await.map(drop).map_err(|status| status.message().to_owned())
        })
    }

    /// The slot that the plugin prefers among these.
    pub(crate) fn preferred(&self, available: &[String]) -> String {
        let socket = self.plugin();
        self.runtime.block_on(async {
            let mut plugin = DevicePluginClient::new(connect(&socket).await.unwrap());
            let container = ContainerPreferredAllocationRequest {
                available_device_ids: available.to_vec(),
                must_include_device_ids: Vec::new(),
                allocation_size: 1,
            };
            let request = PreferredAllocationRequest { container_requests: vec![container] };
            let answer = plugin.get_preferred_allocation(request).await.unwrap().into_inner();
            answer.container_responses[0].device_ids[0].clone()
        })
    }

    /// Writes in the checkpoint that container `main` of this pod has this slot.
    pub(crate) fn writes_checkpoint(&self, uid: &str, slot: &str) {
        self.writes_answer(uid, slot, "");
    }

    /// The same, with the plugin's answer to `Allocate`: protobuf in base64.
    pub(crate) fn writes_answer(&self, uid: &str, slot: &str, answer: &str) {
        let entry = json!({
            "PodUID": uid, "ContainerName": "main", "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": { "-1": [slot] }, "AllocResp": answer,
        });
        let checkpoint = json!({ "Data": { "PodDeviceEntries": [entry], "RegisteredDevices": {} }, "Checksum": 0 });
        fs::write(self.root.join("device-plugins/kubelet_internal_checkpoint"), checkpoint.to_string()).unwrap();
    }
}

/// The part of the kubelet that plugins register with.
struct DeviceManager {
    plugins: PathBuf,
    sockets: watch::Sender<Option<PathBuf>>,
}

#[tonic::async_trait]
impl Registration for DeviceManager {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let socket = self.plugins.join(request.into_inner().endpoint);
        let channel = connect(&socket).await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut plugin = DevicePluginClient::new(channel);
        plugin.get_device_plugin_options(Empty {}).await?;
        let mut list = plugin.list_and_watch(Empty {}).await?.into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = list.message().await {} });
        self.sockets.send_replace(Some(socket));
        Ok(Response::new(Empty {}))
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::try_from(format!("unix://{}", socket.display()))?.connect().await
}

/// Base64 with padding, as Go writes bytes in JSON.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let byte = |place: usize| usize::from(three.get(place).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |place: usize| match place <= three.len() {
            true => char::from(DIGITS[bits >> (18 - 6 * place) & 63]),
            false => '=',
        };
        [0, 1, 2, 3].map(digit)
    };
    bytes.chunks(3).flat_map(four).collect()
}
