//! Applies settings that can change while the agent runs: they are read again on SIGHUP.

use super::settings::{LiveSettings, ReadAgain};
use effects::http;
use serve::admin_access::token;
use serve::caller::AllowedHosts;
use serve::log::level::Level;
use serve::server::certificate::Certificates;
use std::sync::Arc;
use tokio::sync::watch;

/// The settings that can change, and where changes are sent.
pub(crate) struct Reload {
    read_again: ReadAgain,
    live: LiveSettings,
    access: PortAccess,
    http: watch::Sender<http::Settings>,
}

/// The settings of the HTTP server that do not change on SIGHUP.
#[derive(Clone, Debug)]
pub(crate) struct PortAccess {
    /// Accepted `Host` names.
    pub hosts: AllowedHosts,
    /// Certificates for HTTPS. Their files are read again; a change of the paths needs a restart.
    pub certificates: Option<Arc<Certificates>>,
}

/// The settings of the HTTP server.
///
/// # Errors
/// The error in the token file, as a sentence.
pub(crate) fn http_settings(live: &LiveSettings, access: PortAccess) -> Result<http::Settings, String> {
    let api_token = live.api_token_file.as_deref().map(|path| token("API", path)).transpose()?;
    let PortAccess { hosts, certificates } = access;
    Ok(http::Settings { sets: live.sets, api_token, hosts, certificates, clock: clock::now })
}

impl Reload {
    /// `live` has the settings with which the agent started; `http` passes new settings to the HTTP server.
    pub(crate) fn new(
        read_again: ReadAgain,
        live: LiveSettings,
        access: PortAccess,
        http: watch::Sender<http::Settings>,
    ) -> Self {
        Reload { read_again, live, access, http }
    }

    /// Reads the settings again, and applies them.
    pub(crate) fn reload(&mut self, level: &Level) {
        let Reload { read_again, live, access, http } = self;
        read_again(&mut |new| {
            let port = http_settings(&new, access.clone())?;
            if new.verbosity != live.verbosity {
                level.change("SIGHUP", |_| new.verbosity);
            }
            *live = new;
            http.send_replace(port);
            Ok(())
        });
    }
}
