//! The inputs of the servers of the open port, the admin port and the usage socket: the bound listeners, and the host
//! names, tokens and certificates by which callers are checked. This module opens and serves nothing.

use super::clear_incident::{self, ClearIncident};
use super::driver_release::DriverRelease;
use super::listeners::Listeners;
use super::release_command;
use super::settings::{AgentSettings, Gpus};
use serve::admin::OperatorCommands;
use serve::admin_access::AdminAccess;
use serve::caller::AllowedHosts;
use serve::log::Telemetry;
use serve::server::certificate::Certificates;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The inputs of the servers.
pub(super) struct Ports {
    pub(super) listeners: Listeners,
    /// The path of the usage socket, and the socket or the error; `None` if the setting is `none`.
    pub(super) usage: Option<(PathBuf, std::io::Result<UnixListener>)>,
    pub(super) http: watch::Receiver<effects::http::Settings>,
    pub(super) hosts: AllowedHosts,
    pub(super) admin: AdminAccess,
    pub(super) operator: Arc<str>,
}

impl Ports {
    /// The certificates of all ports.
    pub(super) fn certificates(&self) -> Vec<Arc<Certificates>> {
        let http = self.http.borrow().certificates.clone();
        http.into_iter().chain(self.admin.certificates.clone()).collect()
    }
}

/// The inputs of the admin port.
pub(super) fn admin(
    ports: &Ports,
    settings: &AgentSettings,
    telemetry: &Telemetry,
    (clears, driver): (mpsc::Sender<ClearIncident>, DriverRelease),
) -> serve::admin::Settings {
    let AdminAccess { token, certificates } = ports.admin.clone();
    serve::admin::Settings {
        profiling: settings.admin.profiling,
        certificates,
        hosts: ports.hosts.clone(),
        token,
        operator: (!settings.admin.identifies_callers()).then(|| Arc::clone(&ports.operator)),
        level: telemetry.level.clone(),
        commands: commands(clears, driver, matches!(settings.sources.gpus, Gpus::Nvml)),
    }
}

/// The commands of operators about GPUs. Without NVML there is no driver to release.
fn commands(clears: mpsc::Sender<ClearIncident>, driver: DriverRelease, nvml: bool) -> Vec<OperatorCommands> {
    let incidents = OperatorCommands { path: "/incidents", routes: clear_incident::router(clears) };
    let driver = nvml.then(|| OperatorCommands { path: "/nvml", routes: release_command::router(driver) });
    [incidents].into_iter().chain(driver).collect()
}
