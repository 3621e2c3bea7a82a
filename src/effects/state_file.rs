//! A file in the state directory that the agent writes, and reads after a restart: limited in size, written whole or
//! not at all, readable only by the agent's user.
//!
//! The file is not synced to the disk: a power loss also reboots the machine, and then the recorded state of the node
//! is no longer true.
//!
//! What must never happen here: a file of this name is incomplete, even while two agents write during an upgrade.

use crate::delivery::rename_through;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Only the user that runs the agent can read and write the file.
const MODE: u32 = 0o600;
/// If the agent makes the state directory, no other user of the host may enter it.
const FOLDER_MODE: u32 = 0o700;
/// A temporary file of this age was left by a killed agent, because writing takes milliseconds.
const LEFT: Duration = Duration::from_secs(60);
/// Maximum number of entries of the state directory that are searched for temporary files.
const MAX_ENTRIES: usize = 4096;

/// One file in the state directory.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file of this name in this state directory.
    #[must_use]
    pub fn new(state_dir: &Path, name: &str) -> StateFile {
        StateFile { path: state_dir.join(name) }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, at most one byte more than `max_bytes`; the file's decoder refuses that length. `None` if the
    /// file does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match fs::File::open(&self.path).and_then(|file| file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the file, and makes the state directory if it is missing.
    ///
    /// # Errors
    /// If it cannot be written: the old content stays.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        }
        let mut own = [0; 8];
        rustix::rand::getrandom(&mut own, rustix::rand::GetRandomFlags::empty())?;
        let hidden = self.path.with_file_name(format!("{}{:016x}", self.hidden(), u64::from_le_bytes(own)));
        Ok(rename_through(&hidden, &self.path, bytes, MODE)?)
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the temporary files of agents that were killed while they wrote this file.
    pub fn sweep(&self) {
        let beside = self.path.parent().and_then(|folder| fs::read_dir(folder).ok());
        let hidden = self.hidden();
        for entry in beside.into_iter().flatten().flatten().take(MAX_ENTRIES) {
            let age = entry.metadata().and_then(|file| file.modified()).map(|written| written.elapsed());
            let left = matches!(age, Ok(Ok(age)) if age >= LEFT);
            if left && entry.file_name().to_string_lossy().starts_with(&hidden) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The prefix of the temporary file's name.
    fn hidden(&self) -> String {
        format!(".{}.", self.path.file_name().unwrap_or_default().to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_written_file_is_read_back_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(&folder.path().join("state"), "a.json");
        assert_eq!(file.read(10).unwrap(), None);
        file.write(b"first").unwrap();
        file.write(b"second").unwrap();
        assert_eq!(file.read(10).unwrap().unwrap(), b"second");
        assert_eq!(file.read(3).unwrap().unwrap(), b"seco", "one byte more than it may have");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(file.path().parent().unwrap())), (0o600, 0o700));
        assert_eq!(names(file.path().parent().unwrap()), ["a.json"]);
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.read(10).unwrap(), None);
    }

    #[test]
    fn a_failed_write_changes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a.json")).unwrap();
        assert!(StateFile::new(folder.path(), "a.json").write(b"x").is_err(), "something else has the name");
        assert_eq!(names(folder.path()), ["a.json"]);
        fs::write(folder.path().join("b"), "").unwrap();
        assert!(StateFile::new(&folder.path().join("b"), "a.json").write(b"x").is_err());
    }

    #[test]
    fn old_temporary_files_are_removed_and_new_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".a.json.1", ".a.json.2", ".b.json.1"] {
            fs::write(folder.path().join(name), "{").unwrap();
        }
        for name in [".a.json.1", ".b.json.1"] {
            let file = fs::File::options().write(true).open(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - LEFT * 2).unwrap();
        }
        StateFile::new(folder.path(), "a.json").sweep();
        assert_eq!(names(folder.path()), [".a.json.2", ".b.json.1"]);
    }
}
