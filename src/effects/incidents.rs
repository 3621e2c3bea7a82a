//! The file in the state directory that keeps the incidents of GPUs over a restart of the agent.
//!
//! What must never happen here: an unreadable file stops the start, or is overwritten before a person could read it.

use crate::state_file::StateFile;
use model::id::BootId;
use model::incident::KeptIncidents;
use model::time::Now;
use std::fs;
use std::io;
use std::path::Path;
use wire::incidents::{self, MAX_BYTES};

/// The name of the file in the state directory.
const FILE: &str = "incidents.json";
/// An unreadable file is renamed to this, and replaces an older file of this name.
const UNREADABLE: &str = "incidents.json.unreadable";

/// The incident file, for one boot of the machine.
#[derive(Clone, Debug)]
pub struct IncidentFile {
    file: StateFile,
    boot: BootId,
}

/// The content of the file when the agent starts.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundIncidents {
    /// The incidents that were kept in this boot.
    Kept(Vec<KeptIncidents>),
    /// There is no file, or the file is from an earlier boot: every GPU was reset since.
    Nothing,
    /// The file cannot be read: the reason, and its new name.
    Unreadable(String),
}

impl IncidentFile {
    /// The file in this state directory.
    #[must_use]
    pub fn new(directory: &Path, boot: BootId) -> IncidentFile {
        IncidentFile { file: StateFile::new(directory, FILE), boot }
    }

    /// Reads the incidents, and removes temporary files that a killed agent left.
    #[must_use]
    pub fn read(&self) -> FoundIncidents {
        self.file.sweep();
        let why = match self.file.read(MAX_BYTES) {
            Ok(None) => return FoundIncidents::Nothing,
            Err(error) => error.to_string(),
            Ok(Some(bytes)) => match incidents::decode(&bytes) {
                Ok((boot, kept)) if boot == self.boot => return FoundIncidents::Kept(kept),
                Ok(_) => return FoundIncidents::Nothing,
                Err(fault) => fault.to_string(),
            },
        };
        let path = self.file.path();
        let new_path = path.with_file_name(UNREADABLE);
        let renamed = match fs::rename(path, &new_path) {
            Ok(()) => format!("it is put aside as {}", new_path.display()),
            Err(error) => format!("it cannot be put aside: {error}"),
        };
        FoundIncidents::Unreadable(format!("{}: {why}; {renamed}", path.display()))
    }

    /// Writes the incidents, whole or not at all. Without incidents it removes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, kept: &[KeptIncidents], now: Now) -> io::Result<()> {
        if kept.is_empty() {
            return self.file.remove();
        }
        let text = incidents::encode(&self.boot, kept, now)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault.to_string()))?;
        self.file.write(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::GpuUuid;
    use model::incident::Incident;
    use model::time::Monotonic;

    fn boot(last: char) -> BootId {
        BootId::parse(&format!("6f1b8a0e-2c5d-4f3a-9b7c-0123456789a{last}")).unwrap()
    }

    fn kept() -> Vec<KeptIncidents> {
        let gpu = GpuUuid::parse("GPU-1").unwrap();
        let at = Monotonic(1);
        vec![KeptIncidents {
            gpu,
            incidents: vec![(Incident::Xid(95), at)],
            last: at,
            awaits: None,
            driver_load: Some(7),
        }]
    }

    fn files(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(name).collect()
    }

    #[test]
    fn kept_incidents_are_found_in_this_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = IncidentFile::new(folder.path(), boot('b'));
        assert_eq!(file.read(), FoundIncidents::Nothing);
        file.write(&kept(), Now::default()).unwrap();
        assert_eq!(file.read(), FoundIncidents::Kept(kept()));
        assert_eq!(
            IncidentFile::new(folder.path(), boot('c')).read(),
            FoundIncidents::Nothing,
            "the machine has rebooted"
        );
        assert_eq!(file.read(), FoundIncidents::Kept(kept()));
        file.write(&[], Now::default()).unwrap();
        assert_eq!(files(folder.path()), Vec::<String>::new());
        file.write(&[], Now::default()).unwrap();
    }

    #[test]
    fn an_unreadable_incident_file_is_reported_and_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let file = IncidentFile::new(folder.path(), boot('b'));
        for bytes in [b"".to_vec(), b"{\"version\":2}".to_vec(), vec![0; 4096], vec![b' '; MAX_BYTES + 1]] {
            fs::write(folder.path().join(FILE), &bytes).unwrap();
            let FoundIncidents::Unreadable(why) = file.read() else { panic!("{} bytes", bytes.len()) };
            assert!(why.contains(FILE) && why.contains("put aside"), "{why}");
            assert_eq!(fs::read(folder.path().join(UNREADABLE)).unwrap(), bytes);
            assert_eq!(file.read(), FoundIncidents::Nothing, "reported once");
        }
    }
}
