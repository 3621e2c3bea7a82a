//! The inputs of the servers of the open port, the admin port and the usage socket: the open listeners, and the host
//! names, tokens and certificates against which callers are checked. This module opens and serves nothing.

use super::driver_release::DriverRelease;
use super::listeners::Listeners;
use crate::settings::Settings;
use crate::settings::value::Gpus;
use crate::telemetry::Telemetry;
use effects::admin::{ClearIncident, DriverControl};
use effects::caller::AllowedHosts;
use effects::server::certificate::{Certificates, HttpVersions, Tls};
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
    pub(super) admin_token: Option<Arc<str>>,
    pub(super) admin_certificates: Option<Arc<Certificates>>,
    pub(super) operator: Arc<str>,
}

impl Ports {
    /// The certificates of all ports.
    pub(super) fn certificates(&self) -> Vec<Arc<Certificates>> {
        let http = self.http.borrow().certificates.clone();
        http.into_iter().chain(self.admin_certificates.clone()).collect()
    }
}

/// Reads the certificates of a port, if it serves HTTPS.
///
/// # Errors
/// What is wrong with the files, as a sentence.
pub(super) fn certificates(port: &'static str, files: Option<&Tls>) -> Result<Option<Arc<Certificates>>, String> {
    let loaded = files.map(|files| Certificates::load(port, files.clone(), HttpVersions::Http1)).transpose();
    loaded.map(|loaded| loaded.map(Arc::new)).map_err(|error| format!("cannot serve HTTPS on the {port} port: {error}"))
}

/// The inputs of the admin port.
pub(super) fn admin(
    ports: &Ports,
    settings: &Settings,
    telemetry: &Telemetry,
    (clears, driver): (mpsc::Sender<ClearIncident>, DriverRelease),
) -> effects::admin::Settings {
    let identified =
        ports.admin_token.is_some() || settings.admin_tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    effects::admin::Settings {
        profiling: settings.profiling,
        certificates: ports.admin_certificates.clone(),
        hosts: ports.hosts.clone(),
        token: ports.admin_token.clone(),
        operator: (!identified).then(|| Arc::clone(&ports.operator)),
        level: telemetry.level.clone(),
        incidents: Some(clears),
        driver: matches!(settings.gpus, Gpus::Nvml).then(|| Arc::new(driver) as Arc<dyn DriverControl>),
    }
}
