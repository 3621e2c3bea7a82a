//! kubelet's own books: which container of which pod holds which ids, and the answer that it was given for them.
//!
//! ```text
//!   device-plugins/kubelet_internal_checkpoint ──stat, read──▶ wire::checkpoint ──▶ rows of one resource
//! ```
//!
//! What must never happen here: the file is never written, and a file that cannot be read is never an empty one.

use model::share::{ContainerKey, Held};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{checkpoint, ticket};

/// The name of the file in the folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Reads the books, and does not read them again while the file is the same.
#[derive(Clone, Debug)]
pub struct Books {
    path: PathBuf,
    resource: Arc<str>,
    seen: Option<(Stamp, Arc<[Held]>)>,
}

/// kubelet replaces the file by a new one, so that one of these changes each time.
type Stamp = (u64, u64, i64, i64);

impl Books {
    /// The books of `resource` in kubelet's folder of device plugins.
    #[must_use]
    pub fn new(folder: &Path, resource: Arc<str>) -> Books {
        Books { path: folder.join(FILE), resource, seen: None }
    }

    /// All rows of the resource. Blocks for as long as the file system takes.
    ///
    /// # Errors
    /// A sentence that names the file: it is missing, unreadable or not kubelet's.
    pub fn read(&mut self) -> Result<Arc<[Held]>, String> {
        let told = |error: &dyn std::fmt::Display| format!("kubelet's checkpoint {}: {error}", self.path.display());
        let mut file = fs::File::open(&self.path).map_err(|error| told(&error))?;
        let about = file.metadata().map_err(|error| told(&error))?;
        let stamp = (about.ino(), about.size(), about.mtime(), about.mtime_nsec());
        if let Some((seen, rows)) = &self.seen
            && *seen == stamp
        {
            return Ok(Arc::clone(rows));
        }
        let mut bytes = Vec::new();
        let limit = checkpoint::MAX_BYTES as u64 + 1;
        file.by_ref().take(limit).read_to_end(&mut bytes).map_err(|error| told(&error))?;
        let books = checkpoint::parse(&bytes).map_err(|fault| told(&fault))?;
        let rows: Arc<[Held]> =
            books.allocations.into_iter().filter(|row| *row.resource == *self.resource).map(held).collect();
        self.seen = Some((stamp, Arc::clone(&rows)));
        Ok(rows)
    }
}

/// The ids that kubelet has written down as devices of `resource`, whichever plugin told them; none where the books cannot be
/// read. Blocks for as long as the file system takes.
#[must_use]
pub fn registered(folder: &Path, resource: &str) -> Vec<Arc<str>> {
    let mut bytes = Vec::new();
    let limit = checkpoint::MAX_BYTES as u64 + 1;
    let read = fs::File::open(folder.join(FILE)).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    let books = read.ok().and_then(|_| checkpoint::parse(&bytes).ok());
    books.and_then(|mut books| books.registered.remove(resource)).unwrap_or_default()
}

fn held(row: checkpoint::Allocation) -> Held {
    let late = row.cdi_devices.iter().find_map(|name| ticket::parse(name).ok());
    Held {
        holder: ContainerKey { pod: row.pod, container: row.container },
        ids: row.ids,
        early: late.is_none() && row.ticket.is_some(),
        ticket: late.or(row.ticket),
        foreign: row.foreign,
    }
}
