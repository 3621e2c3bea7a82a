//! What the open port, the admin port and the usage socket are started with: listeners that are open already, and what
//! they check callers against. Nothing is opened or served here.

use super::driver_door::DriverDoor;
use super::listeners::Listeners;
use crate::settings::Settings;
use crate::settings::value::Gpus;
use crate::telemetry::Telemetry;
use effects::admin::{ClearIncident, DriverControl};
use effects::caller::AllowedHosts;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, watch};

/// The inputs of the servers.
pub(super) struct Ports {
    pub(super) doors: Listeners,
    /// The path of the usage socket, and the socket or the error; `None` if the setting is `none`.
    pub(super) usage: Option<(PathBuf, std::io::Result<UnixListener>)>,
    pub(super) http: watch::Receiver<effects::http::Settings>,
    pub(super) hosts: AllowedHosts,
    pub(super) admin_token: Option<Arc<str>>,
    pub(super) operator: Arc<str>,
}

/// The inputs of the admin port.
pub(super) fn admin(
    ports: &Ports,
    settings: &Settings,
    telemetry: &Telemetry,
    (reload, clears, driver): (Arc<Notify>, mpsc::Sender<ClearIncident>, DriverDoor),
) -> effects::admin::Settings {
    let identified =
        ports.admin_token.is_some() || settings.admin_tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    effects::admin::Settings {
        profiling: settings.profiling,
        tls: settings.admin_tls.clone(),
        hosts: ports.hosts.clone(),
        token: ports.admin_token.clone(),
        operator: (!identified).then(|| Arc::clone(&ports.operator)),
        reload,
        level: telemetry.level.clone(),
        incidents: Some(clears),
        driver: matches!(settings.gpus, Gpus::Nvml).then(|| Arc::new(driver) as Arc<dyn DriverControl>),
    }
}
