//! Who is who: container id to namespace, pod, container and image, from the CRI socket or kubelet's log links; and from
//! PodResources which devices a named container holds.

use crate::report::Reporter;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

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
    let _ = (settings, reporter);
    stop.cancelled().await;
}
