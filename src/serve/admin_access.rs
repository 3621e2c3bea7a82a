//! Access to the admin port of agent and extender, from the settings that both share.
//!
//! What must never happen here: a token or a key in a log line.

use crate::server::certificate::{Certificates, HttpVersions, Tls};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum bytes of a token file that are read. A token is one line.
const MAX_TOKEN: u64 = 4096;

/// The address of the admin port, and what its callers must show.
#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// `None`: there is no admin port.
    pub listen: Option<SocketAddr>,
    /// Certificates with which the port serves HTTPS.
    pub tls: Option<Tls>,
    /// The token that every caller needs.
    pub token_file: Option<PathBuf>,
    /// Whether the port serves profiles.
    pub profiling: bool,
}

impl AdminSettings {
    /// Whether every caller proves who it is, by a certificate or a token.
    pub fn identifies_callers(&self) -> bool {
        self.token_file.is_some() || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }
}

/// What callers of the admin port must show, and its certificates for HTTPS.
#[derive(Clone)]
pub struct AdminAccess {
    /// Token that every request needs; with `None` no request needs a token.
    pub token: Option<Arc<str>>,
    /// Certificates for HTTPS; `None` serves plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
}

impl std::fmt::Debug for AdminAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminAccess").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

impl AdminAccess {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// A sentence that says what is wrong with a file.
    pub fn read(settings: &AdminSettings) -> Result<AdminAccess, String> {
        let certificates = certificates("admin", settings.tls.as_ref())?;
        let token = settings.token_file.as_deref().map(|path| token("admin", path)).transpose()?;
        Ok(AdminAccess { token, certificates })
    }
}

/// Reads the certificates of a port, if it serves HTTPS.
///
/// # Errors
/// A sentence that says what is wrong with the files.
pub fn certificates(port: &'static str, files: Option<&Tls>) -> Result<Option<Arc<Certificates>>, String> {
    let loaded = files.map(|files| Certificates::load(port, files.clone(), HttpVersions::Http1)).transpose();
    loaded.map(|loaded| loaded.map(Arc::new)).map_err(|error| format!("cannot serve HTTPS on the {port} port: {error}"))
}

/// Reads a token from its file. `purpose` names it in errors.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub fn token(purpose: &str, path: &Path) -> Result<Arc<str>, String> {
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
