//! `addresses.json` in the state directory: where a running agent is to be found, for scripts and for those who let the
//! kernel choose a port. The same as the first log line says. Nothing depends on it, so a read-only root or a full disk
//! is one warning.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

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
            .and_then(|()| std::fs::write(&new, &text))
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

impl Drop for Addresses {
    fn drop(&mut self) {
        let is_ours = |(path, text): &&(PathBuf, String)| std::fs::read_to_string(path).is_ok_and(|now| now == *text);
        if let Some((path, _)) = self.0.as_ref().filter(is_ours) {
            // It may be gone already, with the whole directory.
            let _ = std::fs::remove_file(path);
        }
    }
}
