//! A tar archive (POSIX ustar) of files with a bound on its size.

use std::time::Duration;

/// Bytes of a block; every part of an archive has a whole number of blocks.
const BLOCK: usize = 512;
/// Bytes of the two empty blocks at the end.
const END: usize = 2 * BLOCK;
/// Maximum size of a file name in bytes. A longer name would need a second field of the header.
const MAX_NAME: usize = 100;

/// The archive so far.
#[derive(Debug)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    most: usize,
    /// Time of all files since 1970.
    at: Duration,
}

impl Archive {
    /// An empty archive that gets at most `most` bytes long.
    pub(crate) fn new(most: usize, at: Duration) -> Archive {
        Archive { bytes: Vec::new(), most, at }
    }

    /// Bytes of content that still fit for one file.
    pub(crate) fn room(&self) -> usize {
        let left = self.most.saturating_sub(self.bytes.len() + BLOCK + END);
        left / BLOCK * BLOCK
    }

    /// Adds a file, whose content must fit ([`Archive::room`]). Returns whether it was added.
    pub(crate) fn add(&mut self, name: &str, content: &[u8]) -> bool {
        if name.is_empty() || name.len() > MAX_NAME || content.len() > self.room() {
            return false;
        }
        self.bytes.extend(header(name, content.len(), self.at));
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        true
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + END, 0);
        self.bytes
    }
}

/// The header of a file that its owner may read and write.
fn header(name: &str, size: usize, at: Duration) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut set = |at: usize, text: &[u8]| {
        if let Some(field) = header.get_mut(at..at + text.len()) {
            field.copy_from_slice(text);
        }
    };
    set(0, name.as_bytes());
    set(100, b"0000600\0");
    set(108, b"0000000\0");
    set(116, b"0000000\0");
    set(124, format!("{size:011o}\0").as_bytes());
    set(136, format!("{:011o}\0", at.as_secs().min(0o777_7777_7777)).as_bytes());
    // The sum is made with spaces in its own place.
    set(148, b"        ");
    set(156, b"0");
    set(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    if let Some(field) = header.get_mut(148..156) {
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn tar_reads_the_files_as_they_were() {
        let mut archive = Archive::new(1 << 20, Duration::from_secs(1_795_256_472));
        let long = "x".repeat(MAX_NAME);
        let files = [("nodes.json", &b"{}"[..]), ("logs/a.log", &[b'l'; 1000]), ("empty", b""), (&long, &[7; 512])];
        assert!(files.iter().all(|(name, content)| archive.add(name, content)));
        assert!(!archive.add(&format!("{long}x"), b""), "the name is too long");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % BLOCK, 0);
        let folder = std::env::temp_dir().join(format!("doctor-tar-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut tar = Command::new("tar").args(["-x", "-C"]).arg(&folder).stdin(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(tar.wait().unwrap().success());
        for (name, content) in files {
            assert_eq!(std::fs::read(folder.join(name)).unwrap(), content, "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_archive_never_gets_longer_than_its_bound() {
        let mut archive = Archive::new(8 * BLOCK, Duration::ZERO);
        assert_eq!(archive.room(), 5 * BLOCK);
        assert!(!archive.add("large", &[0; 5 * BLOCK + 1]));
        assert!(archive.add("fits", &[0; 3 * BLOCK + 1]));
        assert!(archive.room() == 0 && !archive.add("more", &[1]));
        assert_eq!(archive.finish().len(), 7 * BLOCK);
    }
}
