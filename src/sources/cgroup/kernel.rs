//! How files of cgroups are read: kept open while there is room, else below directories that are held, else by their
//! whole path.
//!
//! ```text
//!   keep   pread of a kept-open file ─┐
//!   take   below a held directory     ├─▶ understood ─▶ Reading
//!          by the whole path          ┘        └─ a file that is not there: is the whole cgroup gone?
//! ```
//!
//! What must never happen here: more files open than there is room for, a log line for each file that is odd.

use crate::cgroup::layout::{CgroupController, CgroupLayout, CgroupTrees};
use crate::cgroup::members::{members, members_in};
use crate::clock;
use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::process::ProcError;
use crate::procfs::visibility::ProcVisibility;
use model::{Absence, Reading};
use rustix::fd::OwnedFd;
use wire::cgroup_file::MalformedCgroupFile;

/// What reading needs, and what it found out on the way.
#[derive(Debug)]
pub struct CgroupFileReader {
    /// Files are read with this.
    pub reader: KernelFileReader,
    /// `/proc`.
    pub procfs: Vec<u8>,
    /// Whether the numbers in lists of processes are all, and mean the same in `/proc`.
    pub sight: ProcVisibility,
    /// The trees.
    pub layout: CgroupLayout,
    /// One clock tick.
    pub nanos_a_tick: u64,
    /// Majors of devices that lie on others.
    pub stacked: Vec<u32>,
    /// How many more files may be kept open.
    pub room: usize,
    /// Files that could not be understood since this was last looked at.
    pub malformed: u32,
    /// The first of them since the start has been logged.
    pub logged: bool,
    /// A file was not there: perhaps the whole cgroup is gone.
    pub(super) missed: bool,
    /// A list of processes, kept for its memory.
    pub(super) pids: Vec<u32>,
}

/// A file that may be kept open.
#[derive(Debug, Default)]
pub(super) enum Kept {
    /// Not yet, or not any more.
    #[default]
    Closed,
    /// It takes one place of the room.
    Open(OwnedFd),
}

/// The directories of one cgroup, one for each controller's tree; opened when first needed, while there is room.
#[derive(Debug, Default)]
pub(super) struct Directories(pub(super) [Kept; CONTROLLERS]);

/// Slots of [`Directories`]: one for each [`CgroupController`]. In a v2 tree they are one directory, held once.
const CONTROLLERS: usize = 6;

/// A cgroup that is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupGone;

impl CgroupFileReader {
    /// For these trees; `room` files may be kept open.
    #[must_use]
    pub fn new(
        mut reader: KernelFileReader,
        procfs: Vec<u8>,
        layout: CgroupLayout,
        stacked: Vec<u32>,
        room: usize,
    ) -> Self {
        let nanos_a_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        CgroupFileReader {
            sight: ProcVisibility::detect(&mut reader, &procfs),
            reader,
            procfs,
            layout,
            nanos_a_tick,
            stacked,
            room,
            malformed: 0,
            logged: false,
            missed: false,
            pids: Vec::new(),
        }
    }

    /// Reads a file of a cgroup and understands it.
    pub(super) fn take<T>(
        &mut self,
        directories: &mut Directories,
        (controller, path, name): (CgroupController, &str, &str),
        parse: impl FnOnce(&[u8]) -> Result<T, MalformedCgroupFile>,
    ) -> Reading<T> {
        let Some(tree) = self.layout.tree(controller) else { return Reading::Absent(Absence::NoSuchFile) };
        let slot = if matches!(self.layout.trees, CgroupTrees::One(_)) { 0 } else { controller as usize };
        let held = &mut directories.0[slot];
        hold(&mut self.reader, &mut self.room, held, &[tree, path.as_bytes()]);
        let text = match held {
            Kept::Open(directory) => self.reader.read_piece_in(&*directory, &name.as_bytes()[1..]),
            Kept::Closed => self.reader.read_piece(&[tree, path.as_bytes(), name.as_bytes()]),
        };
        let result = text.map(parse);
        // The directory may be that of a cgroup which was removed and made again under its old name.
        if result.is_err() {
            self.close(held);
        }
        self.reading(result, path, name)
    }

    /// The processes in a cgroup, of which so many others are known to lie directly in it: see [`members_in`].
    pub(super) fn members(
        &mut self,
        directories: &mut Directories,
        (path, others): (&str, u64),
        pids: &mut Vec<u32>,
    ) -> Result<u32, Absence> {
        let tree = self.layout.walked();
        // Both are 0 in a v2 tree; else memory's is the one that is walked, and held already, wherever it is mounted.
        let held = &mut directories.0
            [if matches!(self.layout.trees, CgroupTrees::One(_)) { 0 } else { CgroupController::Memory as usize }];
        let own = self.layout.tree(CgroupController::Memory) == Some(tree);
        if own {
            hold(&mut self.reader, &mut self.room, held, &[tree, path.as_bytes()]);
        }
        let listed = match held {
            Kept::Open(directory) if own => members_in(&mut self.reader, directory, (tree, path, others), pids),
            _ => members(&mut self.reader, tree, path, pids),
        };
        // As in `take`.
        if listed.is_err() {
            self.close(held);
        }
        listed.map_err(|fault| {
            self.missed |= fault == ProcError::File(ReadFailure::NotFound);
            fault.absence()
        })
    }

    /// As [`CgroupFileReader::take`], from a file that is kept open while there is room.
    pub(super) fn keep<T>(
        &mut self,
        (kept, directories): (&mut Kept, &mut Directories),
        (controller, path, name): (CgroupController, &str, &str),
        parse: impl FnOnce(&[u8]) -> Result<T, MalformedCgroupFile>,
    ) -> Reading<T> {
        if let (Kept::Closed, Some(tree), 1..) = (&*kept, self.layout.tree(controller), self.room)
            && let Ok(file) = self.reader.open(&[tree, path.as_bytes(), name.as_bytes()])
        {
            self.room -= 1;
            *kept = Kept::Open(file);
        }
        let Kept::Open(file) = kept else { return self.take(directories, (controller, path, name), parse) };
        let result = self.reader.read_open_piece(&*file).map(parse);
        if result.is_err() {
            self.missed = true;
            self.close(kept);
        }
        self.reading(result, path, name)
    }

    /// Gives a file's place back.
    pub(super) fn close(&mut self, kept: &mut Kept) {
        if let Kept::Open(file) = std::mem::take(kept) {
            drop(file);
            self.room += 1;
        }
    }

    fn reading<T>(
        &mut self,
        result: Result<Result<T, MalformedCgroupFile>, ReadFailure>,
        path: &str,
        name: &str,
    ) -> Reading<T> {
        match result {
            Ok(Ok(value)) => Reading::Measured(value, clock::monotonic()),
            Ok(Err(malformed)) => {
                self.malformed = self.malformed.saturating_add(1);
                if !self.logged {
                    self.logged = true;
                    tracing::warn!(cgroup = path, file = name, error = %malformed, "cgroup file could not be understood; further ones are only counted");
                }
                Reading::Absent(Absence::Unreadable)
            }
            Err(failure) => {
                self.missed |= failure == ReadFailure::NotFound;
                Reading::Absent(failure.absence())
            }
        }
    }

    /// Whether the cgroup is gone, asked only after a file of it was not there.
    pub(super) fn gone(&mut self, path: &str) -> Result<(), CgroupGone> {
        if !std::mem::take(&mut self.missed) {
            return Ok(());
        }
        match self.reader.directory_links(&[self.layout.walked(), path.as_bytes()]) {
            Err(ReadFailure::NotFound) => Err(CgroupGone),
            _ => Ok(()),
        }
    }
}

/// Holds a directory from now on, if there is room.
fn hold(reader: &mut KernelFileReader, room: &mut usize, held: &mut Kept, path: &[&[u8]]) {
    if let (Kept::Closed, 1..) = (&*held, *room)
        && let Ok(directory) = reader.directory(path)
    {
        *room -= 1;
        *held = Kept::Open(directory);
    }
}
