//! Searches for another device plugin on this node: requests the list of devices from each socket in the kubelet's
//! folders.
//!
//! ```text
//!   <folder>/*.sock ──connect, ListAndWatch──▶ device ids ──is it ours? (the caller)──▶ RivalPlugin
//! ```
//!
//! What must never happen here: a registration, or any other call that changes something; a wait for a plugin that does
//! not answer.

use proto::device_plugin::Empty;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time limit for a response. A running plugin answers in milliseconds; after its end, the socket refuses at once.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of files of a folder that are read; a node has a handful of plugins.
const MAX_SOCKETS: usize = 64;
/// Maximum size of a plugin's list in bytes: the kubelet's own limit, so a plugin with a longer list does not work.
const MAX_LIST: usize = 4 << 20;
/// The kubelet's own socket in the folder of device plugins.
const KUBELET: &str = "kubelet.sock";

/// Another plugin that offers the same GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RivalPlugin {
    /// The plugin's socket.
    pub socket: PathBuf,
    /// The id of the plugin's process, if the kernel reports it.
    pub pid: Option<i32>,
    /// The number of devices that the plugin lists.
    pub devices: usize,
    /// One of the plugin's devices.
    pub example: String,
}

impl std::fmt::Display for RivalPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} devices such as {}", self.socket.display(), self.devices, self.example)?;
        match self.pid {
            Some(pid) => write!(f, ", process {pid})"),
            None => f.write_str(")"),
        }
    }
}

/// The first running plugin in `folder`, other than the sockets named in `except`, that lists a device whose id is
/// `ours`.
pub async fn find(folder: &Path, except: &[String], ours: impl Fn(&str) -> bool) -> Option<RivalPlugin> {
    let entries = std::fs::read_dir(folder).ok()?;
    for entry in entries.take(MAX_SOCKETS).flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name == KUBELET || except.contains(&name) || path.extension().is_none_or(|end| end != "sock") {
            continue;
        }
        if let Ok(Some(rival)) = timeout(RESPONSE_TIMEOUT, list_devices(&path, &ours)).await {
            return Some(rival);
        }
    }
    None
}

async fn list_devices(path: &Path, ours: impl Fn(&str) -> bool) -> Option<RivalPlugin> {
    let pid = UnixStream::connect(path).await.ok()?.peer_cred().ok()?.pid();
    let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", path.display())).ok()?;
    let mut client = DevicePluginClient::new(endpoint.connect().await.ok()?).max_decoding_message_size(MAX_LIST);
    let list = client.list_and_watch(Empty {}).await.ok()?.into_inner().message().await.ok()??;
    let example = list.devices.iter().map(|device| &device.id).find(|id| ours(id))?;
    Some(RivalPlugin { socket: path.to_owned(), pid, devices: list.devices.len(), example: example.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::device_plugin as v1beta1;
    use proto::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};

    /// A plugin that lists these ids and answers nothing else.
    struct Plugin(&'static [&'static str]);

    type Answer<T> = Result<Response<T>, Status>;

    #[tonic::async_trait]
    impl DevicePlugin for Plugin {
        type ListAndWatchStream = tokio_stream::Once<Result<v1beta1::ListAndWatchResponse, Status>>;

        async fn list_and_watch(&self, _: Request<Empty>) -> Answer<Self::ListAndWatchStream> {
            let device = |id: &&str| v1beta1::Device { id: (*id).into(), ..v1beta1::Device::default() };
            let list = v1beta1::ListAndWatchResponse { devices: self.0.iter().map(device).collect() };
            Ok(Response::new(tokio_stream::once(Ok(list))))
        }

        async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<v1beta1::DevicePluginOptions> {
            Err(Status::unimplemented(""))
        }

        async fn get_preferred_allocation(
            &self,
            _: Request<v1beta1::PreferredAllocationRequest>,
        ) -> Answer<v1beta1::PreferredAllocationResponse> {
            Err(Status::unimplemented(""))
        }

        async fn allocate(&self, _: Request<v1beta1::AllocateRequest>) -> Answer<v1beta1::AllocateResponse> {
            Err(Status::unimplemented(""))
        }

        async fn pre_start_container(
            &self,
            _: Request<v1beta1::PreStartContainerRequest>,
        ) -> Answer<v1beta1::PreStartContainerResponse> {
            Err(Status::unimplemented(""))
        }
    }

    fn serve(path: &Path, ids: &'static [&'static str]) {
        let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let server = Server::builder().add_service(DevicePluginServer::new(Plugin(ids)));
        tokio::spawn(server.serve_with_incoming(incoming));
    }

    #[tokio::test]
    async fn a_plugin_that_lists_one_of_the_agents_devices_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let ours = |id: &str| id == "GPU-2";
        let find = |except: &[&str]| {
            let except: Vec<String> = except.iter().map(|name| (*name).to_owned()).collect();
            let folder = folder.path().to_owned();
            async move { super::find(&folder, &except, ours).await }
        };
        serve(&folder.path().join("nic.sock"), &["nic-0"]);
        serve(&folder.path().join(KUBELET), &["GPU-2"]);
        drop(UnixListener::bind(folder.path().join("dead.sock")).unwrap());
        std::fs::write(folder.path().join("file.sock"), "").unwrap();
        assert_eq!(find(&[]).await, None);
        serve(&folder.path().join("own.sock"), &["GPU-1", "GPU-2"]);
        assert_eq!(find(&["own.sock"]).await, None);
        let rival = find(&[]).await.unwrap();
        assert_eq!((rival.socket, rival.devices, &*rival.example), (folder.path().join("own.sock"), 2, "GPU-2"));
        assert_eq!(rival.pid, i32::try_from(std::process::id()).ok());
        assert_eq!(super::find(&folder.path().join("none"), &[], ours).await, None);
    }

    /// The folder is open to every plugin of the node, so a socket may accept a connection and never answer.
    #[tokio::test]
    async fn a_plugin_that_does_not_answer_delays_the_start_by_a_bounded_time() {
        let folder = tempfile::tempdir().unwrap();
        let _silent = UnixListener::bind(folder.path().join("silent.sock")).unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(find(folder.path(), &[], |_| true).await, None);
        // Nothing else ends the wait, so any bound shows that it ends.
        assert!(began.elapsed() <= RESPONSE_TIMEOUT * 15);
    }
}
