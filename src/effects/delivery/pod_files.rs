//! Counts the bytes and files that containers have written to their writable folders. A container may have made any
//! tree in them, so the walk is limited in entries and depth, and a tree beyond a limit counts as too large.
//!
//! What must never happen here: a link is followed, a mount point is entered, a walk without an end.

use super::limiter::WRITABLE;
use super::trash::{FOLDER_FLAGS, open_below};
use model::unit::Bytes;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, openat, statat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The least size in bytes that is counted for a file or folder. A directory entry and an inode take space too, so very
/// many empty files exceed the limit.
const LEAST: u64 = 4096;
/// Maximum depth of nested folders. HAMi-core creates no nested folders.
const MAX_DEPTH: usize = 32;

/// The walk pauses after this number of entries. A pod may permanently keep 16,384 entries, and a node has more than a
/// hundred pods.
const PAUSE_EVERY: u32 = 1024;

/// The files that a pod has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodFileSize {
    /// Their size on the disk.
    pub bytes: u64,
    /// The number of files and folders.
    pub files: u64,
    /// Whether a limit is exceeded. The walk stops there, so the true numbers may be larger.
    pub over: bool,
    /// Whether a folder could not be opened: its content is not in the numbers and is unknown.
    pub closed: bool,
}

/// Counts the files in these folders of containers, up to `limit`. Calls `pause` after every 1,024 entries.
pub(super) fn measure(folders: impl Iterator<Item = PathBuf>, limit: Bytes, pause: &mut dyn FnMut()) -> PodFileSize {
    let mut walk = Walk { limit: limit.0, charged: 0, since_pause: 0, pause, written: PodFileSize::default() };
    for folder in folders {
        for name in WRITABLE {
            walk.folder(&folder.join(name));
        }
    }
    walk.written
}

struct Walk<'a> {
    limit: u64,
    charged: u64,
    since_pause: u32,
    pause: &'a mut dyn FnMut(),
    written: PodFileSize,
}

impl Walk<'_> {
    fn folder(&mut self, top: &Path) {
        let walked = openat(CWD, top, FOLDER_FLAGS, Mode::empty()).and_then(|top| self.walk(top));
        self.note_error(walked.err());
    }

    fn walk(&mut self, top: OwnedFd) -> Result<(), Errno> {
        let mut folders = vec![(Dir::read_from(&top)?, top)];
        loop {
            let depth = folders.len();
            let Some((entries, folder)) = folders.last_mut().filter(|_| !self.written.over) else { return Ok(()) };
            let Some(entry) = entries.read() else {
                folders.pop();
                continue;
            };
            let name = CString::from(entry?.file_name());
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let metadata = match statat(&*folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(metadata) => metadata,
                Err(error) => {
                    self.note_error(Some(error));
                    continue;
                }
            };
            self.count(u64::try_from(metadata.st_blocks).unwrap_or(0).saturating_mul(512));
            if FileType::from_raw_mode(metadata.st_mode) != FileType::Directory {
                continue;
            }
            if depth >= MAX_DEPTH {
                self.written.over = true;
                continue;
            }
            match open_below(folder, &name, FOLDER_FLAGS).and_then(|next| Ok((Dir::read_from(&next)?, next))) {
                Ok(next) => folders.push(next),
                Err(error) => self.note_error(Some(error)),
            }
        }
    }

    /// Marks the count as closed on an error. A folder that does not exist, or is a link or a mount point, has no files
    /// of the pod, so that is not an error. In all other cases the content is unknown: the root user of a container has
    /// removed access through the folder's mode (if the agent lacks CAP_DAC_OVERRIDE), or the agent itself has a
    /// problem.
    fn note_error(&mut self, error: Option<Errno>) {
        let is_nothing = |error| matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV);
        self.written.closed |= error.is_some_and(|error| !is_nothing(error));
    }

    fn count(&mut self, bytes: u64) {
        self.written.files += 1;
        self.written.bytes = self.written.bytes.saturating_add(bytes);
        self.charged = self.charged.saturating_add(bytes.max(LEAST));
        self.written.over |= self.charged > self.limit;
        self.since_pause += 1;
        if self.since_pause >= PAUSE_EVERY {
            self.since_pause = 0;
            (self.pause)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trash::tests::nest;
    use super::super::{DeviceDelivery, NodeEdits, TicketFolders};
    use super::*;
    use model::id::{PodUid, Ticket};
    use std::fs;
    use std::os::unix::fs::symlink;

    const LIMIT: Bytes = Bytes(1 << 20);

    fn of(make: impl FnOnce(&Path)) -> PodFileSize {
        let folder = tempfile::tempdir().unwrap();
        let delivery =
            DeviceDelivery::new(&folder.path().join("state"), &folder.path().join("cdi"), NodeEdits::default())
                .unwrap();
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let own = folder.path().join("state/pods").join(uid.as_str()).join("main/vgpu");
        fs::create_dir_all(&own).unwrap();
        make(&own);
        delivery.written(&uid, (&TicketFolders::new(&folder.path().join("state")), &[]), LIMIT, &mut || {})
    }

    /// Runs `task` without the capabilities that let root into every folder.
    fn without_capabilities<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> T {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        // Capabilities belong to one thread.
        let run = move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, sets).unwrap();
            task()
        };
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn an_unreadable_folder_is_not_counted_as_empty() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (name, closed_mode, files) in [("", 0o000, 0), ("", 0o400, 0), ("below", 0o000, 1), ("below", 0o300, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let own = folder.path().join(WRITABLE[0]);
            fs::create_dir_all(own.join("below")).unwrap();
            fs::write(own.join("below/large"), vec![1; 2 << 20]).unwrap();
            mode(&own.join(name), closed_mode);
            let top = folder.path().to_owned();
            let written = without_capabilities(move || measure(std::iter::once(top), LIMIT, &mut || {}));
            mode(&own.join(name), 0o700);
            let closed = PodFileSize { files, closed: true, over: false, bytes: written.bytes };
            assert_eq!(written, closed, "{name} {closed_mode:o}");
        }
        assert!(!of(|own| fs::create_dir(own.join("open")).unwrap()).closed);
    }

    #[test]
    fn a_count_pauses_after_each_thousand_entries() {
        let mut pauses = 0;
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(WRITABLE[0]);
        fs::create_dir(&own).unwrap();
        (0..2 * PAUSE_EVERY).for_each(|n| fs::write(own.join(n.to_string()), "").unwrap());
        let written = measure(std::iter::once(folder.path().to_owned()), Bytes(64 << 20), &mut || pauses += 1);
        assert_eq!((written.files, pauses), (u64::from(2 * PAUSE_EVERY), 2));
    }

    #[test]
    fn files_and_bytes_are_counted_up_to_the_limit() {
        assert_eq!(of(|_| ()), PodFileSize::default());
        let little = of(|own| {
            fs::create_dir(own.join("a")).unwrap();
            fs::write(own.join("a/b"), [1; 100_000]).unwrap();
        });
        assert_eq!((little.files, little.over), (2, false));
        assert!(little.bytes >= 100_000, "{little:?}");
        assert!(of(|own| fs::write(own.join("large"), vec![1; 2 << 20]).unwrap()).over);
        // A sparse file, like the library's own cache file.
        let sparse = of(|own| fs::File::create(own.join("sparse")).unwrap().set_len(1 << 40).unwrap());
        assert!(!sparse.over && sparse.bytes < 1 << 20, "{sparse:?}");
    }

    #[test]
    fn too_many_empty_files_or_too_deep_folders_exceed_the_limit() {
        let many = of(|own| (0..2000).for_each(|n| fs::write(own.join(n.to_string()), "").unwrap()));
        assert!(many.over && many.files == LIMIT.0 / LEAST + 1, "{many:?}");
        let deep = of(|own| nest(own, 1000));
        assert!(deep.over && deep.files <= MAX_DEPTH as u64 + 1, "{deep:?}");
    }

    #[test]
    fn links_are_counted_and_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("large"), vec![1; 2 << 20]).unwrap();
        let linked = of(|own| symlink(outside.path(), own.join("link")).unwrap());
        assert_eq!((linked.files, linked.over), (1, false));
        let replaced = of(|own| {
            fs::remove_dir(own).unwrap();
            symlink(outside.path(), own).unwrap();
        });
        assert_eq!(replaced, PodFileSize::default());
    }

    /// Without CDI, containers write to the folders of their tickets.
    #[test]
    fn files_in_ticket_folders_count_for_the_pod() {
        let state = tempfile::tempdir().unwrap();
        let delivery = DeviceDelivery::new(state.path(), &state.path().join("cdi"), NodeEdits::default()).unwrap();
        let (tickets, ticket) = (TicketFolders::new(state.path()), Ticket::of_random([1; 16]));
        fs::create_dir_all(tickets.folder(&ticket).join("lock")).unwrap();
        fs::write(tickets.folder(&ticket).join("lock/lock"), "").unwrap();
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        assert_eq!(delivery.written(&uid, (&tickets, &[ticket]), LIMIT, &mut || {}).files, 1);
        assert_eq!(delivery.written(&uid, (&tickets, &[]), LIMIT, &mut || {}).files, 0);
    }
}
