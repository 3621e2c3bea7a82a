//! Who is who: container id to namespace, pod, container and image, from the CRI socket or kubelet's log links; and from
//! PodResources which devices a named container holds.
//!
//! ```text
//!   runtime's CRI socket ─── cri ────────────▶ Names(Cri)        with UID and image, sandboxes too
//!   /var/log/containers ──── links ──────────▶ Names(LogLinks)   where there is no such socket
//!   kubelet's PodResources ─ pod_resources ──▶ Devices           by name only: it tells neither UID nor id
//!   runtime's CRI socket ─── runtime ────────▶ how it is set up, when it is asked
//!        socket   one question at a time, each with limits in time and size
//! ```
//!
//! A report is the whole of what a source knows, and is made only when it differs from the one before. A source that
//! fails takes nothing back: what it said of a container stays true for as long as that container lives.
//!
//! What must never happen here: an unbounded answer, a question without a time limit, a line in the log each time.

mod socket;
pub mod cri;
mod links;
pub mod pod_resources;
mod runtime;

use self::cri::Cri;
use self::pod_resources::PodResources;
use crate::backoff::{Backoff, SourceName};
use crate::report::Reporter;
use model::observation::ErrorCounter;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;
use wire::runtime_config::RuntimeConfig;

/// Where runtimes listen, the likeliest first: containerd, CRI-O, k3s' containerd, Docker's adapter.
const CRI_SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/run/cri-dockerd.sock",
];

/// Where the container runtime is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CriSocket {
    /// At the known places.
    Auto,
    /// There.
    At(PathBuf),
    /// Nowhere: whoever may open that socket is as good as root, and an operator may not want that of us.
    None,
}

/// Where names are looked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's socket.
    pub cri_socket: CriSocket,
    /// kubelet's links, `/var/log/containers`.
    pub log_links: PathBuf,
    /// kubelet's PodResources socket.
    pub pod_resources_socket: PathBuf,
}

/// Runs until `stop` is cancelled; never fails, reports what it can.
pub async fn run(settings: Settings, reporter: Reporter, stop: CancellationToken) {
    let Settings { cri_socket, log_links, pod_resources_socket } = settings;
    let runtime = Backoff::of(SourceName {
        what: "container runtime socket",
        lost: "without it images of containers are not known, and names come from the kubelet's log links alone",
        advice: "if a runtime listens elsewhere, name its socket with --cri-socket",
        trouble: Some(ErrorCounter::CriFailed),
        wanted: matches!(cri_socket, CriSocket::At(_)),
    });
    let kubelet = Backoff::of(SourceName {
        what: "PodResources socket of the kubelet",
        lost: "without it the agent does not know which devices the kubelet gave to which container",
        advice: "if the kubelet has another directory, name the socket with --pod-resources-socket",
        trouble: Some(ErrorCounter::PodResourcesFailed),
        wanted: false,
    });
    let asked = cri_socket != CriSocket::None;
    let cri = Cri::at(cri_socket.places(), reporter.clone());
    let asking = async {
        tokio::join!(
            async {
                if asked {
                    socket::keep_asking(cri, runtime, reporter.clone()).await
                }
            },
            socket::keep_asking(PodResources::at(pod_resources_socket, reporter.clone()), kubelet, reporter.clone()),
            links::keep_reading(log_links, reporter.clone()),
        )
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = Box::pin(asking) => {}
    }
}

/// How the container runtime is set up.
///
/// # Errors
/// A sentence that says who was asked and why that is not known.
pub async fn runtime_config(cri_socket: CriSocket) -> Result<RuntimeConfig, String> {
    runtime::ask(&cri_socket.places()).await.map(|(_, config)| config)
}

/// Which runtime answers (`containerd://2.1.4`, as a Node names it), and whether it says that its CDI is on. It need not be the one
/// that kubelet uses.
///
/// # Errors
/// A sentence that says who was asked and why that is not known.
pub async fn runtime_cdi(cri_socket: CriSocket) -> Result<(String, Option<bool>), String> {
    runtime::ask(&cri_socket.places()).await.map(|(runtime, config)| (runtime, config.cdi))
}

impl CriSocket {
    fn places(self) -> Vec<PathBuf> {
        match self {
            CriSocket::Auto => CRI_SOCKETS.map(PathBuf::from).to_vec(),
            CriSocket::At(path) => vec![path],
            CriSocket::None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
