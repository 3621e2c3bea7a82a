//! The admin port of the extender: profiles of this process, and the log level. It has its own address, because an
//! agent and an extender may run on one machine. It accepts the same callers as the agent's admin port.

use super::settings::ExtenderSettings;
use serve::admin::{LogLevel, Settings};
use serve::admin_access::AdminAccess;
use serve::caller::AllowedHosts;
use serve::exit::Exit;
use serve::lifecycle::StartError;
use serve::server::bind;
use std::net::TcpListener;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The port after it is opened and before it is served.
#[derive(Debug)]
pub(super) struct OpenedAdmin {
    /// `None` if the setting is `none`.
    listener: Option<TcpListener>,
    pub(super) access: AdminAccess,
    hosts: AllowedHosts,
    profiling: bool,
}

/// Opens the port; `host` is the name of this pod or machine.
pub(super) fn open(settings: &ExtenderSettings, host: &str) -> Result<OpenedAdmin, StartError> {
    let admin = &settings.admin;
    let access = AdminAccess::read(admin).map_err(StartError::usage)?;
    let bound = |address| {
        bind(address).map_err(|error| StartError {
            what: format!(
                "cannot listen on {address} for profiles and log level: {error}; choose another address with \
                 --extender-admin-listen"
            ),
            exit: Exit::from_io(&error),
        })
    };
    let listener = admin.listen.map(bound).transpose()?;
    let hosts = AllowedHosts::new(settings.allowed_hosts.iter().map(String::as_str).chain([host]));
    Ok(OpenedAdmin { listener, access, hosts, profiling: admin.profiling })
}

impl OpenedAdmin {
    /// The port's address, or `none`.
    pub(super) fn address(&self) -> String {
        let shown = |listener: &TcpListener| {
            listener.local_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
        };
        self.listener.as_ref().map_or_else(|| "none".to_owned(), shown)
    }

    /// Serves the port until `stop` is cancelled.
    pub(super) async fn serve(self, level: Arc<dyn LogLevel>, stop: CancellationToken) -> std::io::Result<()> {
        let Some(listener) = self.listener else {
            stop.cancelled().await;
            return Ok(());
        };
        let AdminAccess { token, certificates } = self.access;
        let fresh = certificates.clone();
        let fresh = async {
            match fresh {
                Some(certificates) => certificates.keep_fresh().await,
                None => std::future::pending().await,
            }
        };
        // The extender has no GPUs, so there is nothing that an operator could clear or release.
        let settings = Settings {
            profiling: self.profiling,
            certificates,
            hosts: self.hosts,
            token,
            operator: None,
            level,
            commands: Vec::new(),
        };
        tokio::select! {
            served = serve::admin::serve(listener, settings, stop) => served,
            never = fresh => match never {},
        }
    }
}
