//! Names of containers. The CRI socket or the kubelet's log links map a container id to namespace, pod, container and
//! image; PodResources lists the devices of a named container.
//!
//! ```text
//!   runtime's CRI socket ─── cri ────────────▶ Names(Cri)        with UID and image, sandboxes too
//!   /var/log/containers ──── links ──────────▶ Names(LogLinks)   where there is no CRI socket
//!   kubelet's PodResources ─ pod_resources ──▶ Devices           by name only: it has neither UID nor container id
//!   runtime's CRI socket ─── runtime ────────▶ the runtime's configuration, on request
//!        socket   one request at a time, each with limits in time and size
//! ```
//!
//! A report holds all that a source knows, and is sent only when it differs from the previous report. When a source
//! fails, its last report stays valid: the name of a container does not change while the container lives.
//!
//! What must never happen here: an unbounded response, a request without a time limit, a log line for every request.

mod socket;
pub mod cri;
mod links;
pub mod pod_resources;
mod runtime;

use self::cri::Cri;
use self::pod_resources::PodResources;
use crate::report::Reporter;
use crate::source_failures::{SourceFailures, SourceName};
use model::observation::ErrorCounter;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;
use wire::runtime_config::RuntimeConfig;

/// Usual sockets of container runtimes, the likeliest first: containerd, CRI-O, containerd of k3s, Docker's adapter.
const CRI_SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/run/cri-dockerd.sock",
];

/// Which socket of the container runtime is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CriSocket {
    /// The first of the usual sockets at which a runtime answers.
    Auto,
    /// This socket.
    At(PathBuf),
    /// No socket: access to it is as good as root, so an operator may not want to give it to the agent.
    None,
}

/// Where names are read from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's socket.
    pub cri_socket: CriSocket,
    /// The kubelet's log links, `/var/log/containers`.
    pub log_links: PathBuf,
    /// The kubelet's PodResources socket.
    pub pod_resources_socket: PathBuf,
}

/// Reads names until `stop` is cancelled. It never fails; it reports what it can read.
pub async fn run(settings: Settings, reporter: Reporter, stop: CancellationToken) {
    let Settings { cri_socket, log_links, pod_resources_socket } = settings;
    let runtime = SourceFailures::of(SourceName {
        what: "container runtime socket",
        lost: "without it images of containers are not known, and names come from the kubelet's log links alone",
        advice: "if a runtime listens elsewhere, name its socket with --cri-socket",
        counter: Some(ErrorCounter::CriFailed),
        required: matches!(cri_socket, CriSocket::At(_)),
    });
    let kubelet = SourceFailures::of(SourceName {
        what: "PodResources socket of the kubelet",
        lost: "without it the agent does not know which devices the kubelet gave to which container",
        advice: "if the kubelet has another directory, name the socket with --pod-resources-socket",
        counter: Some(ErrorCounter::PodResourcesFailed),
        required: false,
    });
    let use_cri = cri_socket != CriSocket::None;
    let cri = Cri::at(cri_socket.paths(), reporter.clone());
    let polling = async {
        tokio::join!(
            async {
                if use_cri {
                    socket::poll_forever(cri, runtime, reporter.clone()).await
                }
            },
            socket::poll_forever(PodResources::at(pod_resources_socket, reporter.clone()), kubelet, reporter.clone()),
            links::follow(log_links, reporter.clone()),
        )
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = Box::pin(polling) => {}
    }
}

/// The runtime that answers (`containerd://2.1.4`, as a Node names it) and its configuration.
///
/// # Errors
/// A sentence that names the socket and the reason.
pub async fn runtime_config(cri_socket: CriSocket) -> Result<(String, RuntimeConfig), String> {
    runtime::read(&cri_socket.paths()).await
}

/// The runtime that answers (`containerd://2.1.4`, as a Node names it), and whether it reports that CDI is on. It need
/// not be the runtime that the kubelet uses.
///
/// # Errors
/// A sentence that names the socket and the reason.
pub async fn runtime_cdi(cri_socket: CriSocket) -> Result<(String, Option<bool>), String> {
    runtime::read(&cri_socket.paths()).await.map(|(runtime, config)| (runtime, config.cdi))
}

impl CriSocket {
    fn paths(self) -> Vec<PathBuf> {
        match self {
            CriSocket::Auto => CRI_SOCKETS.map(PathBuf::from).to_vec(),
            CriSocket::At(path) => vec![path],
            CriSocket::None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
