//! `addresses.json` in the state directory: where a running agent is to be found, for scripts and for those who let the
//! kernel choose a port. The same as the first log line says, and the token of operators. Nothing depends on it, so a read-only root or a full disk
//! is one warning.

use effects::state_file::StateFile;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// In the state directory.
const FILE: &str = "addresses.json";
/// Far more than five addresses.
const MAX_BYTES: usize = 64 << 10;

/// The file with what was written into it, removed when the agent ends unless another agent has written it anew.
#[derive(Debug)]
pub(crate) struct Addresses(Option<(StateFile, String)>);

impl Addresses {
    /// Writes it for nobody else: it holds a token.
    pub(crate) fn write(directory: &Path, content: &serde_json::Value) -> Addresses {
        let (file, text) = (StateFile::new(directory, FILE), format!("{content:#}\n"));
        file.sweep();
        match file.write(text.as_bytes()) {
            Ok(()) => Addresses(Some((file, text))),
            Err(error) => {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "cannot write the state directory (--state-dir); all else goes on");
                Addresses(None)
            }
        }
    }
}

/// A secret of this life of the program, which stands in the state directory: who can read it is an operator. Without random
/// bytes nobody is.
pub(super) fn operator_token() -> Arc<str> {
    let mut bytes = [0; 16];
    let mut hex = String::new();
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) == Ok(bytes.len()) {
        hex = format!("{:032x}", u128::from_be_bytes(bytes));
    }
    hex.into()
}

/// The admin port of the agent that runs with this state directory, and the token of its operators.
///
/// # Errors
/// A sentence that says why it is not known.
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
            // It may be gone already, with the whole directory.
            let _ = file.remove();
        }
    }
}
