//! Finds another plugin that serves the same resource. The kubelet would accept the newer of the two and drop both
//! later, so the agent checks before it registers.

use proto::device_plugin::Empty;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

/// A running plugin answers in milliseconds; the socket of an ended one refuses at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Limit of files that are looked at in a folder; a node has a handful of plugins.
pub(super) const MAX_SOCKETS: usize = 64;

/// Another plugin that offers the same GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RivalPlugin {
    /// Its socket.
    pub socket: PathBuf,
    /// The id of its process, if the kernel reports one.
    pub pid: Option<i32>,
    /// The number of devices that it lists.
    pub devices: usize,
    /// One of its devices.
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

/// The first running plugin in `folder`, other than the sockets named in `but`, that lists GPUs or any of the ids that
/// the kubelet has `registered` for the agent's resource: NVIDIA's plugin can be configured to name GPUs by their
/// index.
pub async fn find(folder: &Path, but: &[String], registered: &[Arc<str>]) -> Option<RivalPlugin> {
    let registered: BTreeSet<&str> = registered.iter().map(|id| &**id).collect();
    let entries = std::fs::read_dir(folder).ok()?;
    for entry in entries.take(MAX_SOCKETS).flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name == "kubelet.sock" || but.contains(&name) || path.extension().is_none_or(|end| end != "sock") {
            continue;
        }
        if let Ok(Some(rival)) = timeout(ANSWERS_WITHIN, ask(&path, &registered)).await {
            return Some(rival);
        }
    }
    None
}

/// How long a previous agent may take to close its sockets after it has released its state directory.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two checks of the sockets.
const LOOK: Duration = Duration::from_millis(200);

/// Another agent that listens on a socket that this agent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondAgent {
    socket: PathBuf,
    pid: Option<i32>,
}

impl std::fmt::Display for SecondAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "another agent already shares GPUs on this node: it listens at {}", self.socket.display())?;
        if let Some(pid) = self.pid {
            write!(f, " (process {pid})")?;
        }
        f.write_str("; stop it, or, where this one is to follow it, give both the same --state-dir")
    }
}

impl From<SecondAgent> for std::io::Error {
    fn from(second: SecondAgent) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::AddrInUse, second.to_string())
    }
}

/// An agent that still listens on one of these sockets, which this agent needs, after the time that a previous agent
/// needs to end. An agent that was killed does not listen any more.
pub async fn find_second(sockets: &[PathBuf]) -> Option<SecondAgent> {
    let until = Instant::now() + CLOSES_WITHIN;
    loop {
        let second = listening(sockets).await?;
        if Instant::now() >= until {
            return Some(second);
        }
        sleep(LOOK).await;
    }
}

/// An agent that listens on one of these sockets now.
pub(super) async fn listening(sockets: &[PathBuf]) -> Option<SecondAgent> {
    for socket in sockets {
        if let Ok(stream) = UnixStream::connect(socket).await {
            let pid = stream.peer_cred().ok().and_then(|cred| cred.pid()).filter(|pid| *pid > 0);
            return Some(SecondAgent { socket: socket.clone(), pid });
        }
    }
    None
}

async fn ask(path: &Path, registered: &BTreeSet<&str>) -> Option<RivalPlugin> {
    let pid = UnixStream::connect(path).await.ok()?.peer_cred().ok()?.pid();
    let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", path.display())).ok()?;
    let mut client = DevicePluginClient::new(endpoint.connect().await.ok()?);
    let list = client.list_and_watch(Empty {}).await.ok()?.into_inner().message().await.ok()??;
    let ours = |id: &&String| id.starts_with("GPU-") || id.starts_with("MIG-") || registered.contains(id.as_str());
    let example = list.devices.iter().map(|device| &device.id).find(ours)?;
    Some(RivalPlugin { socket: path.to_owned(), pid, devices: list.devices.len(), example: example.clone() })
}
