//! Removes folders that a container could write into. A container may have made any tree in them: 20,000 levels deep, a
//! million files, folders without read permission, mount points.
//!
//! ```text
//!   pods/<uid> ──rename──▶ trash/1       trash/1/a/b/c: each folder in trash/1 that is not empty is renamed up,
//!                                        trash/2/b/c, trash/3/c … until every folder is empty and removed
//! ```
//!
//! A container of a pod that was deleted by force may still run. Through its mount it can write into an entry of the
//! trash as fast as the agent removes files. So each visit to an entry is limited, and the next round continues with
//! the rest.
//!
//! A removal needs four descriptors and less than 100 KiB of memory, whatever the shape of the tree. Only root can
//! enter `trash` (0700), so a container that still runs can write inside its own entry but cannot rename or replace
//! an entry. An entry that cannot be removed stays there, and the agent retries.
//!
//! What must never happen here: a link is followed, a mount point is entered, a call that recurses with the tree.

use super::file::{DeliveryError, failed};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, open, openat, openat2, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The name of the trash folder in the state directory.
const FOLDER: &str = "trash";
/// The mode of the folder: only the agent may enter it.
const MODE: Mode = Mode::RWXU;
/// Number of entries that are removed between two pauses. Removing them takes about 10 ms while a slow disk's metadata
/// is cached.
const PAUSE_EVERY: u32 = 1024;
/// Maximum number of remembered names of folders that were moved up. The next round finds the rest.
const MAX_NAMES: usize = 4096;
/// Maximum number of entries in one visit to a folder of the trash, including the folders below it. A pod within the
/// usual limit for its files (64 MiB, counted as at least 4 KiB each) has no more entries than this. With the pauses, a
/// visit takes about a second, and the next folder can wait that long.
const PER_VISIT: u32 = 16 * PAUSE_EVERY;
/// Maximum number of rounds in one call. After them, the call returns even if entries are left.
const MAX_ROUNDS: usize = 8;
/// Maximum number of passes over one folder in one visit. Entries that a pass missed, or that were added during the
/// passes, wait for the next visit.
const MAX_PASSES: usize = 2;
/// Maximum number of names that are tried to find a free name. Names of an earlier agent process may be taken.
const MAX_TRIES: usize = 1 << 20;

/// Opens a folder for reading and never follows a link.
pub(super) const FOLDER_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The trash folder. Clones share it.
#[derive(Clone, Debug)]
pub struct Trash {
    path: PathBuf,
    next: Arc<AtomicU64>,
    /// Whether a warning about folders that cannot be moved here was already logged in this episode.
    warned: Arc<AtomicBool>,
    /// The number of folders that could not be moved here.
    not_taken: Arc<AtomicU64>,
}

/// The result of emptying the trash.
#[derive(Debug, Default)]
pub struct EmptiedTrash {
    /// The number of entries that were removed.
    pub removed: u64,
    /// The number of entries that could not be removed.
    pub left: u64,
    /// The first entry that could not be removed, and its error.
    pub first: Option<(PathBuf, io::Error)>,
    /// Whether entries are left because the call reached its limit: the next call continues.
    pub unfinished: bool,
}

impl Trash {
    /// The trash in this state directory; a missing folder is made.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(state: &Path) -> Result<Trash, DeliveryError> {
        let path = state.join(FOLDER);
        let made = fs::create_dir(&path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)))
            .map_err(failed("make folder", &path))?;
        Ok(Trash { path, next: Arc::default(), warned: Arc::default(), not_taken: Arc::default() })
    }

    /// Moves a folder into the trash. Its old path is free at once, and [`Trash::empty`] removes it.
    ///
    /// # Errors
    /// If it cannot be moved: it is a mount point, or on another file system.
    pub fn take(&self, folder: &Path) -> io::Result<()> {
        let moved = self.open().and_then(|trash| self.move_up(|name| renameat(rustix::fs::CWD, folder, &trash, name)));
        if let Err(error) = moved {
            self.not_taken.fetch_add(1, Ordering::Relaxed);
            if !self.warned.swap(true, Ordering::Relaxed) {
                let path = folder.display();
                tracing::warn!(%path, %error, "cannot move {path}, of a pod that is gone, into the trash: {error}; is something mounted there?");
            }
        }
        Ok(moved.map(drop)?)
    }

    /// The number of folders that could not be moved here since the last call. After a call that returns 0, the next
    /// folder that cannot be moved is logged again.
    pub fn not_taken(&self) -> u64 {
        let count = self.not_taken.swap(0, Ordering::Relaxed);
        if count == 0 {
            self.warned.store(false, Ordering::Relaxed);
        }
        count
    }

    /// Whether the trash is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Removes the entries of the trash. Calls `pause` after every 1,024 entries. Returns when all are gone, when
    /// nothing more can be removed, or after a limited number of rounds, each of which visits every entry once. In the
    /// last case the result says that entries are left.
    pub fn empty(&self, pause: &mut dyn FnMut()) -> EmptiedTrash {
        self.rounds(MAX_ROUNDS, pause)
    }

    fn rounds(&self, most: usize, pause: &mut dyn FnMut()) -> EmptiedTrash {
        let emptied = EmptiedTrash::default();
        let mut removal = Removal { trash: self, pause, since_pause: 0, visit: 0, moved: Vec::new(), emptied };
        for _ in 0..most {
            let before = removal.emptied.removed;
            (removal.emptied.left, removal.emptied.first) = (0, None);
            if let Err(error) = removal.visit_all() {
                removal.emptied.left += 1;
                removal.emptied.first.get_or_insert((self.path.clone(), error.into()));
            }
            if removal.emptied.left == 0 && self.is_empty() || removal.emptied.removed == before {
                return removal.emptied;
            }
        }
        removal.emptied.unfinished = true;
        removal.emptied
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        open(&self.path, FOLDER_FLAGS, Mode::empty())
    }

    /// Renames a folder to the next free name in the trash, and returns the name's number.
    fn move_up(&self, rename: impl Fn(&str) -> Result<(), Errno>) -> Result<u64, Errno> {
        for _ in 0..MAX_TRIES {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            match rename(&number.to_string()) {
                Ok(()) => return Ok(number),
                // An earlier agent process has taken the name. An empty folder of that name is replaced, which is
                // harmless.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }
}

struct Removal<'a> {
    trash: &'a Trash,
    pause: &'a mut dyn FnMut(),
    since_pause: u32,
    /// Entries that this visit has read.
    visit: u32,
    /// Folders that were moved up and not visited yet.
    moved: Vec<u64>,
    emptied: EmptiedTrash,
}

impl Removal<'_> {
    /// Visits every entry that is in the trash now once. A folder that is moved here during the round is part of the
    /// visit that moved it, or waits for the next round. Otherwise a container that makes folders as fast as they are
    /// removed would make the round endless.
    fn visit_all(&mut self) -> Result<(), Errno> {
        let trash = self.trash.open()?;
        let mut entries = Dir::read_from(&trash)?;
        let mut last = None;
        while let Some(entry) = entries.read() {
            last = last.max(number(entry?.file_name()));
        }
        // Names of an earlier agent process may be higher than `next`; new names must be above all names in the trash.
        self.trash.next.fetch_max(last.map_or(0, |last| last.saturating_add(1)), Ordering::Relaxed);
        entries.rewind();
        while let Some(entry) = entries.read() {
            let name = entry?.file_name().to_owned();
            if !is_dots(&name) && number(&name) <= last {
                self.visit(&trash, &name);
            }
        }
        Ok(())
    }

    /// Removes one entry of the trash and the folders that are moved up from it, up to the limit of one visit.
    fn visit(&mut self, trash: &OwnedFd, name: &CStr) {
        self.visit = 0;
        self.remove(trash, name);
        while self.visit < PER_VISIT
            && let Some(number) = self.moved.pop()
        {
            if let Ok(name) = CString::new(number.to_string()) {
                self.remove(trash, &name);
            }
        }
        // The next round finds them in the trash.
        self.moved.clear();
    }

    /// Removes one entry of the trash. Folders in it that are not empty become entries of the trash.
    fn remove(&mut self, trash: &OwnedFd, name: &CStr) {
        match self.try_remove(trash, name) {
            Ok(()) | Err(Errno::NOENT) => {}
            // An entry in this folder could not be removed, and was counted.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => self.count_left(&[name], error),
        }
    }

    fn try_remove(&mut self, trash: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let metadata = statat(trash, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::Directory {
            unlinkat(trash, name, AtFlags::empty())?;
            self.count_removed();
            return Ok(());
        }
        let folder = enter(trash, name)?;
        // Without capabilities, the owner needs these rights to empty the folder. If `fchmod` fails, so does the
        // removal, which reports its error.
        let _ = fchmod(&folder, MODE);
        let mut entries = Dir::read_from(&folder)?;
        for _ in 0..MAX_PASSES {
            let before = self.emptied.removed;
            while let Some(entry) = entries.read() {
                let entry = entry?;
                if is_dots(entry.file_name()) {
                    continue;
                }
                if self.visit >= PER_VISIT {
                    // The rest waits for the next visit.
                    return Ok(());
                }
                self.visit += 1;
                match self.clear(trash, &folder, (entry.file_name(), entry.file_type())) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => self.count_left(&[name, entry.file_name()], error),
                }
            }
            match unlinkat(trash, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.emptied.removed > before => entries.rewind(),
                ended => {
                    self.emptied.removed += u64::from(ended.is_ok());
                    self.count_step();
                    return ended;
                }
            }
        }
        Err(Errno::NOTEMPTY)
    }

    /// Takes one entry out of a folder of the trash: removes it, or moves it up if it is a folder that is not empty.
    fn clear(&mut self, trash: &OwnedFd, folder: &OwnedFd, (name, kind): (&CStr, FileType)) -> Result<(), Errno> {
        if kind != FileType::Directory {
            match unlinkat(folder, name, AtFlags::empty()) {
                // The entry is a folder: the file system does not report types, or the container has replaced the
                // entry.
                Err(Errno::ISDIR | Errno::PERM) if is_folder(folder, name) => {}
                Ok(()) => {
                    self.count_removed();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        match unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.count_removed();
                return Ok(());
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let up = || self.trash.move_up(|number| renameat(folder, name, trash, number));
        let number = match up() {
            // Moving a folder needs write permission on it.
            Err(Errno::ACCESS) => {
                drop(unlock(folder, name)?);
                up()?
            }
            moved => moved?,
        };
        // This counts as progress: the tree has one level less.
        self.count_removed();
        if self.moved.len() < MAX_NAMES {
            self.moved.push(number);
        }
        Ok(())
    }

    fn count_removed(&mut self) {
        self.emptied.removed += 1;
        self.count_step();
    }

    fn count_left(&mut self, names: &[&CStr], error: Errno) {
        self.emptied.left += 1;
        let path = || names.iter().fold(self.trash.path.clone(), |path, name| path.join(&*name.to_string_lossy()));
        if self.emptied.first.is_none() {
            self.emptied.first = Some((path(), error.into()));
        }
        self.count_step();
    }

    fn count_step(&mut self) {
        self.since_pause += 1;
        if self.since_pause >= PAUSE_EVERY {
            self.since_pause = 0;
            (self.pause)();
        }
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// The number that is the name of an entry of the trash.
fn number(name: &CStr) -> Option<u64> {
    name.to_str().ok()?.parse().ok()
}

fn is_folder(folder: &OwnedFd, name: &CStr) -> bool {
    let metadata = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    metadata.is_ok_and(|metadata| FileType::from_raw_mode(metadata.st_mode) == FileType::Directory)
}

/// Opens a folder of the trash for reading, unless it is a mount point.
fn enter(trash: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    match open_below(trash, name, FOLDER_FLAGS) {
        Err(Errno::ACCESS) => {
            drop(unlock(trash, name)?);
            open_below(trash, name, FOLDER_FLAGS)
        }
        opened => opened,
    }
}

/// If the agent owns the folder, gives it access to the folder, whatever its mode was. Never follows a link.
fn unlock(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let folder = open_below(parent, name, FOLDER_FLAGS.union(OFlags::PATH))?;
    // A path descriptor has no `fchmod`, so this uses the descriptor's link in `/proc`, which always leads to this
    // folder.
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), MODE)?;
    Ok(folder)
}

/// Opens an entry of `parent` that is not a mount point.
pub(super) fn open_below(parent: &OwnedFd, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(parent, name, flags, Mode::empty(), within) {
        // Linux before 5.6 has no `openat2`, so compare the devices. A mount of the same device is not noticed, but a
        // mount point cannot be renamed, so it is never moved into the trash.
        Err(Errno::NOSYS | Errno::PERM) => {
            let opened = openat(parent, name, flags, Mode::empty())?;
            let device = |of: &OwnedFd| fstat(of).map(|metadata| metadata.st_dev);
            if device(&opened)? == device(parent)? { Ok(opened) } else { Err(Errno::XDEV) }
        }
        opened => opened,
    }
}

#[cfg(test)]
pub(super) mod tests;
