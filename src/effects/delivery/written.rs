//! How much containers have written into their writable folders. A container may have made any tree in them, so the walk has a bound
//! in entries and in depth, and what lies beyond a bound counts as too much.
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

/// What a file or folder counts at least: its entry and its inode take room as well, so that very many empty files are too much.
const LEAST: u64 = 4096;
/// Folders within folders. HAMi-core makes none.
const MAX_DEPTH: usize = 32;

/// What a pod has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Room on the disk.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
    /// Whether it is more than it may be. Then the walk ended there, and there may be more than the numbers say.
    pub over: bool,
}

/// What is written into these folders of containers, up to `limit`.
pub(super) fn into(folders: impl Iterator<Item = PathBuf>, limit: Bytes) -> Written {
    let mut walk = Walk { limit: limit.0, charged: 0, written: Written::default() };
    for folder in folders {
        for name in WRITABLE {
            walk.folder(&folder.join(name));
        }
    }
    walk.written
}

struct Walk {
    limit: u64,
    charged: u64,
    written: Written,
}

impl Walk {
    /// What cannot be read is not counted: a container of another user has closed it, and it was counted itself.
    fn folder(&mut self, top: &Path) {
        let Ok(top) = openat(CWD, top, FOLDER_FLAGS, Mode::empty()) else { return };
        let _ = self.walk(top);
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
            let Ok(about) = statat(&*folder, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.counts(u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(512));
            if FileType::from_raw_mode(about.st_mode) != FileType::Directory {
                continue;
            }
            if depth >= MAX_DEPTH {
                self.written.over = true;
            } else if let Ok(next) = open_below(folder, &name, FOLDER_FLAGS)
                && let Ok(entries) = Dir::read_from(&next)
            {
                folders.push((entries, next));
            }
        }
    }

    fn counts(&mut self, bytes: u64) {
        self.written.files += 1;
        self.written.bytes = self.written.bytes.saturating_add(bytes);
        self.charged = self.charged.saturating_add(bytes.max(LEAST));
        self.written.over |= self.charged > self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::super::trash::tests::nest;
    use super::super::{Delivery, Kit, Tickets};
    use super::*;
    use model::id::{PodUid, Ticket};
    use std::fs;
    use std::os::unix::fs::symlink;

    const LIMIT: Bytes = Bytes(1 << 20);

    fn of(make: impl FnOnce(&Path)) -> Written {
        let folder = tempfile::tempdir().unwrap();
        let delivery = Delivery::new(&folder.path().join("state"), &folder.path().join("cdi"), Kit::default()).unwrap();
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        let own = folder.path().join("state/pods").join(uid.as_str()).join("main/vgpu");
        fs::create_dir_all(&own).unwrap();
        make(&own);
        delivery.written(&uid, (&Tickets::new(&folder.path().join("state")), &[]), LIMIT)
    }

    #[test]
    fn files_and_their_bytes_are_counted_and_beyond_the_limit_it_is_too_much() {
        assert_eq!(of(|_| ()), Written::default());
        let little = of(|own| {
            fs::create_dir(own.join("a")).unwrap();
            fs::write(own.join("a/b"), [1; 100_000]).unwrap();
        });
        assert_eq!((little.files, little.over), (2, false));
        assert!(little.bytes >= 100_000, "{little:?}");
        assert!(of(|own| fs::write(own.join("large"), vec![1; 2 << 20]).unwrap()).over);
        // Sparse: what the library's own file is.
        let sparse = of(|own| fs::File::create(own.join("sparse")).unwrap().set_len(1 << 40).unwrap());
        assert!(!sparse.over && sparse.bytes < 1 << 20, "{sparse:?}");
    }

    #[test]
    fn very_many_empty_files_and_very_deep_folders_are_too_much_and_the_walk_ends() {
        let many = of(|own| (0..2000).for_each(|n| fs::write(own.join(n.to_string()), "").unwrap()));
        assert!(many.over && many.files == LIMIT.0 / LEAST + 1, "{many:?}");
        let deep = of(|own| nest(own, 1000));
        assert!(deep.over && deep.files <= MAX_DEPTH as u64 + 1, "{deep:?}");
    }

    #[test]
    fn links_lead_nowhere_and_a_folder_that_is_a_link_is_not_walked() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("large"), vec![1; 2 << 20]).unwrap();
        let linked = of(|own| symlink(outside.path(), own.join("link")).unwrap());
        assert_eq!((linked.files, linked.over), (1, false));
        let replaced = of(|own| {
            fs::remove_dir(own).unwrap();
            symlink(outside.path(), own).unwrap();
        });
        assert_eq!(replaced, Written::default());
    }

    /// Without CDI the folders are those of the tickets.
    #[test]
    fn what_is_written_into_the_folders_of_tickets_is_the_pods() {
        let state = tempfile::tempdir().unwrap();
        let delivery = Delivery::new(state.path(), &state.path().join("cdi"), Kit::default()).unwrap();
        let (tickets, ticket) = (Tickets::new(state.path()), Ticket::of_random([1; 16]));
        fs::create_dir_all(tickets.folder(&ticket).join("lock")).unwrap();
        fs::write(tickets.folder(&ticket).join("lock/lock"), "").unwrap();
        let uid = PodUid::parse(&"1".repeat(32)).unwrap();
        assert_eq!(delivery.written(&uid, (&tickets, &[ticket]), LIMIT).files, 1);
        assert_eq!(delivery.written(&uid, (&tickets, &[]), LIMIT).files, 0);
    }
}
