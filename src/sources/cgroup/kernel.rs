//! Reads files of cgroups. Some files stay open while the limit of open files allows it. The others are opened below an
//! open directory, or by their whole path if the limit does not allow the directory to stay open.
//!
//! ```text
//!   keep   pread of an open file     ─┐
//!   take   below an open directory    ├─▶ parsed ─▶ Reading
//!          by the whole path          ┘      └─ file not found: is the whole cgroup gone?
//! ```
//!
//! What must never happen here: more open files than the limit allows, a log line for each malformed file.

use crate::cgroup::layout::{CgroupController, CgroupLayout, CgroupTrees};
use crate::cgroup::members::{members, members_in};
use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::process::ProcError;
use crate::procfs::visibility::ProcVisibility;
use model::{Absence, Reading};
use rustix::fd::OwnedFd;
use wire::cgroup_file::MalformedCgroupFile;

/// Reads and parses cgroup files, and counts failures. All readings of cgroups share it.
#[derive(Debug)]
pub struct CgroupFileReader {
    /// The reader of files.
    pub reader: KernelFileReader,
    /// `/proc`.
    pub procfs: Vec<u8>,
    /// Whether process lists are complete, and whether `/proc` has the same PIDs.
    pub visibility: ProcVisibility,
    /// The cgroup trees.
    pub layout: CgroupLayout,
    /// Nanoseconds of one clock tick.
    pub nanos_a_tick: u64,
    /// Major numbers of stacked block devices.
    pub stacked: Vec<u32>,
    /// How many more files may be kept open.
    pub files_left: usize,
    /// Files that could not be parsed since this count was last taken.
    pub malformed: u32,
    /// The first malformed file has been logged.
    pub logged: bool,
    /// A file was not found: the whole cgroup may be gone.
    pub(super) not_found: bool,
    /// A list of processes, kept to reuse its memory.
    pub(super) pids: Vec<u32>,
}

/// A file that may be kept open.
#[derive(Debug, Default)]
pub(super) enum Kept {
    /// Not open yet, or closed again.
    #[default]
    Closed,
    /// Open; counts against the limit of open files.
    Open(OwnedFd),
}

/// The directories of one cgroup, one for each controller's tree; opened when first needed, while the limit allows it.
#[derive(Debug, Default)]
pub(super) struct Directories(pub(super) [Kept; CONTROLLERS]);

/// Number of entries of [`Directories`]: one for each [`CgroupController`]. In a v2 tree all controllers share entry 0.
const CONTROLLERS: usize = 6;

/// A cgroup that no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupGone;

impl CgroupFileReader {
    /// A reader of these trees; `files_left` files may be kept open.
    #[must_use]
    pub fn new(
        mut reader: KernelFileReader,
        procfs: Vec<u8>,
        layout: CgroupLayout,
        stacked: Vec<u32>,
        files_left: usize,
    ) -> Self {
        let nanos_a_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        CgroupFileReader {
            visibility: ProcVisibility::detect(&mut reader, &procfs),
            reader,
            procfs,
            layout,
            nanos_a_tick,
            stacked,
            files_left,
            malformed: 0,
            logged: false,
            not_found: false,
            pids: Vec::new(),
        }
    }

    /// Reads a file of a cgroup and parses it.
    pub(super) fn take<T>(
        &mut self,
        directories: &mut Directories,
        (controller, path, name): (CgroupController, &str, &str),
        parse: impl FnOnce(&[u8]) -> Result<T, MalformedCgroupFile>,
    ) -> Reading<T> {
        let Some(tree) = self.layout.tree(controller) else { return Reading::Absent(Absence::NoSuchFile) };
        let slot = if matches!(self.layout.trees, CgroupTrees::One(_)) { 0 } else { controller as usize };
        let held = &mut directories.0[slot];
        hold(&mut self.reader, &mut self.files_left, held, &[tree, path.as_bytes()]);
        let text = match held {
            Kept::Open(directory) => self.reader.read_piece_in(&*directory, &name.as_bytes()[1..]),
            Kept::Closed => self.reader.read_piece(&[tree, path.as_bytes(), name.as_bytes()]),
        };
        let result = text.map(parse);
        // The directory may belong to a removed cgroup while a new cgroup has its name, so it is opened again next
        // time.
        if result.is_err() {
            self.close(held);
        }
        self.reading(result, path, name)
    }

    /// Lists the processes in the cgroup at `path`. `others` is the number of child cgroups that are tracked separately
    /// (see [`members_in`]).
    pub(super) fn members(
        &mut self,
        directories: &mut Directories,
        (path, others): (&str, u64),
        pids: &mut Vec<u32>,
    ) -> Result<u32, Absence> {
        let tree = self.layout.walked();
        // cgroup v2 has one tree, whose directory is entry 0. In cgroup v1 the agent walks the memory controller's tree
        // if it is mounted, so this uses the open directory of that controller.
        let held = &mut directories.0
            [if matches!(self.layout.trees, CgroupTrees::One(_)) { 0 } else { CgroupController::Memory as usize }];
        let own = self.layout.tree(CgroupController::Memory) == Some(tree);
        if own {
            hold(&mut self.reader, &mut self.files_left, held, &[tree, path.as_bytes()]);
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
            self.not_found |= fault == ProcError::File(ReadFailure::NotFound);
            fault.absence()
        })
    }

    /// Like [`CgroupFileReader::take`], from a file that is kept open while the limit allows it.
    pub(super) fn keep<T>(
        &mut self,
        (kept, directories): (&mut Kept, &mut Directories),
        (controller, path, name): (CgroupController, &str, &str),
        parse: impl FnOnce(&[u8]) -> Result<T, MalformedCgroupFile>,
    ) -> Reading<T> {
        if let (Kept::Closed, Some(tree), 1..) = (&*kept, self.layout.tree(controller), self.files_left)
            && let Ok(file) = self.reader.open(&[tree, path.as_bytes(), name.as_bytes()])
        {
            self.files_left -= 1;
            *kept = Kept::Open(file);
        }
        let Kept::Open(file) = kept else { return self.take(directories, (controller, path, name), parse) };
        let result = self.reader.read_open_piece(&*file).map(parse);
        if result.is_err() {
            self.not_found = true;
            self.close(kept);
        }
        self.reading(result, path, name)
    }

    /// Closes a file, so that another file may be kept open.
    pub(super) fn close(&mut self, kept: &mut Kept) {
        if let Kept::Open(file) = std::mem::take(kept) {
            drop(file);
            self.files_left += 1;
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
                    tracing::warn!(cgroup = path, file = name, error = %malformed, "cgroup file cannot be parsed; further ones are only counted");
                }
                Reading::Absent(Absence::Unreadable)
            }
            Err(failure) => {
                self.not_found |= failure == ReadFailure::NotFound;
                Reading::Absent(failure.absence())
            }
        }
    }

    /// Whether the cgroup is gone; checked only after one of its files was not found.
    pub(super) fn gone(&mut self, path: &str) -> Result<(), CgroupGone> {
        if !std::mem::take(&mut self.not_found) {
            return Ok(());
        }
        match self.reader.directory_links(&[self.layout.walked(), path.as_bytes()]) {
            Err(ReadFailure::NotFound) => Err(CgroupGone),
            _ => Ok(()),
        }
    }
}

/// Keeps a directory open, if the limit allows it.
fn hold(reader: &mut KernelFileReader, files_left: &mut usize, held: &mut Kept, path: &[&[u8]]) {
    if let (Kept::Closed, 1..) = (&*held, *files_left)
        && let Ok(directory) = reader.directory(path)
    {
        *files_left -= 1;
        *held = Kept::Open(directory);
    }
}
