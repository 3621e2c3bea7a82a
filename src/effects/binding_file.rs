//! The file in the state directory that keeps whether the container runtime supports CDI, so that the agent need not
//! find this out again at its next start.

use crate::state_file::StateFile;
use model::cdi_support::CdiSupport;
use std::io;
use std::path::Path;
use wire::binding_file::{FILE, encode};

/// The file with the result of the check for CDI.
#[derive(Clone, Debug)]
pub struct BindingFile(StateFile);

impl BindingFile {
    /// The file in this state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> BindingFile {
        BindingFile(StateFile::new(state_dir, FILE))
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes the result of the check, and the name of the runtime that was checked.
    ///
    /// # Errors
    /// If the file cannot be written; it then keeps its old content.
    pub fn write(&self, found: CdiSupport, runtime: &str) -> io::Result<()> {
        self.0.sweep();
        self.0.write(encode(found, runtime).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::binding_file::decode;

    #[test]
    fn the_last_written_finding_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = BindingFile::new(folder.path());
        for found in [CdiSupport::Works, CdiSupport::Disproved] {
            file.write(found, "containerd://2.1.4").unwrap();
            let text = std::fs::read(file.path()).unwrap();
            assert_eq!(decode(&text), Ok((found, "containerd://2.1.4".into())));
        }
    }
}
