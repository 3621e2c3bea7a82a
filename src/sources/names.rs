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
use crate::report::Reporter;
use crate::spell::{Source, Spell};
use model::observation::Trouble;
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

/// Where names are looked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's socket; `None` tries the known places.
    pub cri_socket: Option<PathBuf>,
    /// kubelet's links, `/var/log/containers`.
    pub log_links: PathBuf,
    /// kubelet's PodResources socket.
    pub pod_resources_socket: PathBuf,
}

/// Runs until `stop` is cancelled; never fails, reports what it can.
pub async fn run(settings: Settings, reporter: Reporter, stop: CancellationToken) {
    let Settings { cri_socket, log_links, pod_resources_socket } = settings;
    let runtime = Spell::of(Source {
        what: "container runtime",
        lost: "sandboxes and images are not known, names come from kubelet's log links alone",
        trouble: Some(Trouble::CriFailed),
        wanted: cri_socket.is_some(),
    });
    let kubelet = Spell::of(Source {
        what: "PodResources",
        lost: "it is not known which devices kubelet gave to which container",
        trouble: Some(Trouble::PodResourcesFailed),
        wanted: false,
    });
    let places = places(cri_socket);
    let asking = async {
        tokio::join!(
            socket::keep_asking(Cri::at(places, reporter.clone()), runtime, reporter.clone()),
            socket::keep_asking(PodResources::at(pod_resources_socket, reporter.clone()), kubelet, reporter.clone()),
            links::keep_reading(log_links, reporter.clone()),
        )
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = Box::pin(asking) => {}
    }
}

/// How the container runtime is set up. `None` for the socket tries the known places.
///
/// # Errors
/// A sentence that says who was asked and why that is not known.
pub async fn runtime_config(cri_socket: Option<PathBuf>) -> Result<RuntimeConfig, String> {
    runtime::ask(&places(cri_socket)).await.map(|(_, config)| config)
}

/// Which runtime answers (`containerd://2.1.4`, as a Node names it), and whether it says that its CDI is on. It need not be the one
/// that kubelet uses. `None` for the socket tries the known places.
///
/// # Errors
/// A sentence that says who was asked and why that is not known.
pub async fn runtime_cdi(cri_socket: Option<PathBuf>) -> Result<(String, Option<bool>), String> {
    runtime::ask(&places(cri_socket)).await.map(|(runtime, config)| (runtime, config.cdi))
}

fn places(cri_socket: Option<PathBuf>) -> Vec<PathBuf> {
    cri_socket.map_or_else(|| CRI_SOCKETS.map(PathBuf::from).to_vec(), |path| vec![path])
}

#[cfg(test)]
mod tests;
