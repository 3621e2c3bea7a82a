//! `addresses.json` in the state directory: the addresses of the running agent, for scripts and for settings with
//! port 0. It contains the values of the first log line, and the operator token. The agent also runs without the
//! file, so a read-only root or a full disk only causes one warning.

use effects::state_file::StateFile;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The name of the file in the state directory.
const FILE: &str = "addresses.json";
/// Maximum size of the file in bytes, far more than five addresses need.
const MAX_BYTES: usize = 64 << 10;

/// The file and its content. The agent removes the file when it ends, unless another agent has written it since.
#[derive(Debug)]
pub(crate) struct Addresses(Option<(StateFile, String)>);

impl Addresses {
    /// Writes the file, readable for its owner only, because it contains a token.
    pub(crate) fn write(directory: &Path, content: &serde_json::Value) -> Addresses {
        let (file, text) = (StateFile::new(directory, FILE), format!("{content:#}\n"));
        file.sweep();
        match file.write(text.as_bytes()) {
            Ok(()) => Addresses(Some((file, text))),
            Err(error) => {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "cannot write the state directory (--state-dir); everything else continues");
                Addresses(None)
            }
        }
    }
}

/// The operator token: a secret for one run of the agent, in a file of the state directory. A caller who can read the
/// file counts as an operator. If there are no random bytes, the token is empty and no caller counts as an operator.
pub(super) fn operator_token() -> Arc<str> {
    let mut bytes = [0; 16];
    let mut hex = String::new();
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) == Ok(bytes.len()) {
        hex = format!("{:032x}", u128::from_be_bytes(bytes));
    }
    hex.into()
}

/// Reads the admin port of the agent that runs with this state directory, and its operator token.
///
/// # Errors
/// A sentence that says why the port or the token is not known.
pub(super) fn admin(directory: &Path) -> Result<(SocketAddr, String), String> {
    let file = StateFile::new(directory, FILE);
    let path = file.path().display();
    let none = |error: &dyn std::fmt::Display| format!("no agent runs with this --state-dir: {path}: {error}");
    let text = file.read(MAX_BYTES).map_err(|error| none(&error))?.ok_or_else(|| none(&"there is no such file"))?;
    let content: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| format!("{path} cannot be read: {error}"))?;
    let admin = content["admin"].as_str().unwrap_or_default();
    let address =
        admin.parse().map_err(|_| format!("the agent that runs here has no admin port (--admin-listen): {admin:?}"))?;
    Ok((address, content["operator_token"].as_str().unwrap_or_default().to_owned()))
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let is_ours = |(file, text): &&(StateFile, String)| {
            file.read(MAX_BYTES).is_ok_and(|now| now.is_some_and(|now| now == text.as_bytes()))
        };
        if let Some((file, _)) = self.0.as_ref().filter(is_ours) {
            // The file may already be gone together with its directory.
            let _ = file.remove();
        }
    }
}
