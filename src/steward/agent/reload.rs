//! Reads the configuration file again on SIGHUP. Settings that can change while the agent runs change. For each other
//! changed setting the log says that it needs a restart, with the old and the new value. A file with a mistake changes
//! nothing.

use crate::admin_port::token;
use crate::settings::layer::{RawSettings, RawValue};
use crate::settings::table::{Key, Reader};
use crate::settings::{Live, Settings};
use crate::telemetry;
use crate::telemetry::level::Level;
use effects::caller::AllowedHosts;
use effects::http;
use effects::server::certificate::Certificates;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The current settings, with which a new file is compared.
#[derive(Debug)]
pub(crate) struct Reload {
    raw: RawSettings,
    /// The values of the start or of the last valid file. A setting that needs a restart keeps its value of the start.
    values: BTreeMap<&'static str, RawValue>,
    live: Live,
    access: PortAccess,
    http: watch::Sender<http::Settings>,
}

/// What the HTTP server keeps while its settings change.
#[derive(Clone, Debug)]
pub(crate) struct PortAccess {
    /// Accepted `Host` names.
    pub hosts: AllowedHosts,
    /// Certificates for HTTPS. Their files are read again; which files they are needs a restart to change.
    pub certificates: Option<Arc<Certificates>>,
}

/// The settings of the HTTP server.
///
/// # Errors
/// What is wrong with the token's file, as a sentence.
pub(crate) fn http_settings(live: &Live, access: PortAccess) -> Result<http::Settings, String> {
    let api_token = live.api_token_file.as_deref().map(|path| token("API", path)).transpose()?;
    let PortAccess { hosts, certificates } = access;
    Ok(http::Settings { sets: live.sets, api_token, hosts, certificates, clock: sources::clock::now })
}

impl Reload {
    /// Starts from the settings of the start; `http` takes new settings to the HTTP server.
    pub(crate) fn new(raw: RawSettings, live: Live, access: PortAccess, http: watch::Sender<http::Settings>) -> Self {
        let values = raw.layer().values;
        Reload { raw, values, live, access, http }
    }

    /// Reads the file again, and applies it.
    pub(crate) fn reload(&mut self, level: &Level) {
        let (settings, values) = match Settings::load(&self.raw) {
            Ok(read) => read,
            Err(problems) => {
                for problem in problems {
                    tracing::error!(%problem, "the configuration was not reloaded: the settings stay as they are");
                }
                return;
            }
        };
        let http = match http_settings(&settings.live, self.access.clone()) {
            Ok(http) => http,
            Err(problem) => {
                tracing::error!(problem, "the configuration was not reloaded: the settings stay as they are");
                return;
            }
        };
        self.raw.layer().ignored.iter().for_each(telemetry::setting_has_gone);
        let changed = self.compare(values);
        if settings.live.verbosity != self.live.verbosity {
            level.change("SIGHUP", |_| settings.live.verbosity);
        }
        self.live = settings.live;
        self.http.send_replace(http);
        tracing::info!(changed, "configuration reloaded");
    }

    /// Logs each changed setting; returns the number of settings that change now, without a restart.
    fn compare(&mut self, mut values: BTreeMap<&'static str, RawValue>) -> usize {
        let mut changed = 0;
        for key in Key::of(Reader::Agent) {
            let (Some(old), Some(new)) = (self.values.get(key.name), values.remove(key.name)) else { continue };
            if old.text == new.text {
                continue;
            }
            let (old_text, new_text, origin) = (&*old.text, &*new.text, new.origin.to_string());
            if key.live {
                changed += 1;
                tracing::info!(key = key.name, old = old_text, new = new_text, origin, "setting changed");
                self.values.insert(key.name, new);
            } else {
                tracing::warn!(
                    key = key.name,
                    old = old_text,
                    new = new_text,
                    origin,
                    "setting needs a restart to change"
                );
            }
        }
        changed
    }
}
