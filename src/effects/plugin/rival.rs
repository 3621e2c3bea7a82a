//! Another plugin that serves the same resource: kubelet would take the newer of the two and drop both later, so we look
//! before we register.

use proto::device_plugin::Empty;
use proto::device_plugin::device_plugin_client::DevicePluginClient;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

/// A living plugin answers in milliseconds; a dead one's socket refuses at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Sockets looked at; a node has a handful of plugins.
pub(super) const MAX_SOCKETS: usize = 64;

/// A plugin that hands out what we are to hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RivalPlugin {
    /// Its socket.
    pub socket: PathBuf,
    /// Its process, where the kernel tells one.
    pub pid: Option<i32>,
    /// How many devices it lists.
    pub devices: usize,
    /// One of them.
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

/// The first living plugin in `folder`, other than the sockets named in `but`, that lists GPUs or any of the ids that kubelet
/// has `registered` for our resource: NVIDIA's plugin can be told to name GPUs by their index.
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

/// How long a predecessor of ours may take to close its sockets after it has let its state directory go.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(200);

/// An agent that listens where we are to.
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

/// Whoever still listens at one of these sockets, which are to be ours, after the time that a predecessor needs to end. An agent
/// that was killed listens no more.
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

/// Whoever listens at one of these sockets now.
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
