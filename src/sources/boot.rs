//! Reads the boot id of the machine.

use model::id::BootId;
use std::io::{self, Read};
use std::path::Path;

/// Maximum bytes that are read: enough for a UUID and a line end.
const MAX_BYTES: u64 = 64;

/// Reads `sys/kernel/random/boot_id` below `/proc`: it is the same in every container of the machine, and differs after
/// each boot.
///
/// # Errors
/// When it cannot be read, or is not a boot id.
pub fn boot_id(procfs: &Path) -> io::Result<BootId> {
    let mut text = String::new();
    std::fs::File::open(procfs.join("sys/kernel/random/boot_id"))?.take(MAX_BYTES).read_to_string(&mut text)?;
    BootId::parse(text.trim_end()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_read_and_malformed_text_is_an_error() {
        let id = boot_id(Path::new("/proc")).unwrap();
        assert_eq!(boot_id(Path::new("/proc")).unwrap(), id);
        let folder = tempfile::tempdir().unwrap();
        assert!(boot_id(folder.path()).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        let path = folder.path().join("sys/kernel/random");
        std::fs::create_dir_all(&path).unwrap();
        for text in ["", "\n", "6f1b8a0e-2c5d-4f3a-9b7c-0123456789ag\n", "6f1b8a0e", &"0".repeat(1000)] {
            std::fs::write(path.join("boot_id"), text).unwrap();
            assert!(boot_id(folder.path()).is_err(), "{text:?}");
        }
    }
}
