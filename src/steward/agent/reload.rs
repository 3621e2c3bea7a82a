//! SIGHUP: the configuration file is read again. What can change while running changes; of the rest the log says that
//! it needs a restart, with the old value and the new one. A bad file changes nothing.

use crate::settings::key::KEYS;
use crate::settings::layer::{RawSettings, RawValue};
use crate::settings::{Live, Settings};
use crate::telemetry::level::Level;
use effects::caller::AllowedHosts;
use effects::http;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// A token is a line; more than this is not one.
const MAX_TOKEN: u64 = 4096;

/// What holds now, and what a new file is compared with.
#[derive(Debug)]
pub(crate) struct Reload {
    spoken: RawSettings,
    /// As of the start, or the last file that was good; settings that need a restart stay as of the start.
    said: BTreeMap<&'static str, RawValue>,
    live: Live,
    hosts: AllowedHosts,
    http: watch::Sender<http::Settings>,
}

/// What the HTTP server is told.
///
/// # Errors
/// A sentence about the token's file.
pub(crate) fn http_settings(live: &Live, hosts: AllowedHosts) -> Result<http::Settings, String> {
    let api_token = live.api_token_file.as_deref().map(|path| token("API", path)).transpose()?;
    Ok(http::Settings { sets: live.sets, api_token, hosts, clock: sources::clock::now })
}

/// A token of this purpose.
///
/// # Errors
/// A sentence about its file.
pub(crate) fn token(purpose: &str, path: &Path) -> Result<Arc<str>, String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the {purpose} token from {}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("the {purpose} token in {} is empty", path.display())),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.into()),
        _ => Err(format!("the {purpose} token in {} is not one line of printable ASCII", path.display())),
    }
}

impl Reload {
    /// What was said at the start, and the way to the HTTP server.
    pub(crate) fn new(
        spoken: RawSettings,
        live: Live,
        hosts: AllowedHosts,
        http: watch::Sender<http::Settings>,
    ) -> Self {
        let said = spoken.layer().said;
        Reload { spoken, said, live, hosts, http }
    }

    /// Reads the file again.
    pub(crate) fn again(&mut self, level: &Level) {
        let (settings, said) = match Settings::hear(&self.spoken) {
            Ok(read) => read,
            Err(problems) => {
                for problem in problems {
                    tracing::error!(%problem, "the configuration was not reloaded: the settings stay as they are");
                }
                return;
            }
        };
        let http = match http_settings(&settings.live, self.hosts.clone()) {
            Ok(http) => http,
            Err(problem) => {
                tracing::error!(problem, "the configuration was not reloaded: the settings stay as they are");
                return;
            }
        };
        let changed = self.compare(said);
        if settings.live.verbosity != self.live.verbosity {
            level.change("SIGHUP", |_| settings.live.verbosity);
        }
        self.live = settings.live;
        self.http.send_replace(http);
        tracing::info!(changed, "configuration reloaded");
    }

    /// Says what changed; returns how many settings did so while running.
    fn compare(&mut self, mut said: BTreeMap<&'static str, RawValue>) -> usize {
        let mut changed = 0;
        for key in KEYS {
            let (Some(old), Some(new)) = (self.said.get(key.name), said.remove(key.name)) else { continue };
            if old.text == new.text {
                continue;
            }
            let (old_text, new_text, origin) = (&*old.text, &*new.text, new.origin.to_string());
            if key.live {
                changed += 1;
                tracing::info!(key = key.name, old = old_text, new = new_text, origin, "setting changed");
                self.said.insert(key.name, new);
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
