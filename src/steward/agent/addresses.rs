//! `addresses.json` in the state directory: where a running agent is to be found, for scripts and for those who let the
//! kernel choose a port. The same as the first log line says, and the token of operators. Nothing depends on it, so a read-only root or a full disk
//! is one warning.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Far more than five addresses.
const MAX_BYTES: u64 = 64 << 10;

/// The file with what was written into it, removed when the agent ends unless another agent has written it anew.
#[derive(Debug)]
pub(crate) struct Addresses(Option<(PathBuf, String)>);

impl Addresses {
    /// Writes it: a new file is renamed over the old one, so a reader never sees half of it.
    pub(crate) fn write(directory: &Path, content: &serde_json::Value) -> Addresses {
        let (path, new) = (directory.join("addresses.json"), directory.join("addresses.json.new"));
        let text = format!("{content:#}\n");
        // No other user of the host enters the state directory, whoever makes it.
        let written = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .and_then(|()| put(&new, &text))
            .and_then(|()| std::fs::rename(&new, &path));
        match written {
            Ok(()) => Addresses(Some((path, text))),
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

/// Writes a file that nobody else reads: it holds a token.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    // One that was left over may be open to others.
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// The admin port of the agent that runs with this state directory, and the token of its operators.
///
/// # Errors
/// A sentence that says why it is not known.
pub(super) fn admin(directory: &Path) -> Result<(SocketAddr, String), String> {
    let path = directory.join("addresses.json");
    let mut text = String::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    if let Err(error) = read {
        return Err(format!("no agent runs with this --state-dir: {}: {error}", path.display()));
    }
    let content: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let admin = content["admin"].as_str().unwrap_or_default();
    let address =
        admin.parse().map_err(|_| format!("the agent that runs here has no admin port (--admin-listen): {admin:?}"))?;
    Ok((address, content["operator_token"].as_str().unwrap_or_default().to_owned()))
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let is_ours = |(path, text): &&(PathBuf, String)| std::fs::read_to_string(path).is_ok_and(|now| now == *text);
        if let Some((path, _)) = self.0.as_ref().filter(is_ours) {
            // It may be gone already, with the whole directory.
            let _ = std::fs::remove_file(path);
        }
    }
}
