//! The kubelet's links to container logs: the file names contain the names of every container that the kubelet
//! created.

use crate::report::Reporter;
use crate::source_failures::{FailureSeverity, SourceFailures, SourceName};
use model::cgroup::{ContainerName, MAX_CGROUPS, NameSource};
use model::observation::Fact;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

/// Time between two reads of a folder without an inotify watch (no inotify instance was available).
const UNWATCHED: Duration = Duration::from_secs(5);
/// Time between two reads of a watched folder without events.
const WATCHED: Duration = Duration::from_secs(60);
/// Pause after an event: pods that start at fifty a second then cause two reads a second, not a hundred.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of entries that are read: links of four ended containers for each running container.
const MAX_ENTRIES: usize = 5 * MAX_CGROUPS;

/// Reads the folder whenever it changes, until the task is cancelled.
pub(super) async fn follow(folder: PathBuf, reporter: Reporter) {
    let mut failures = SourceFailures::of(SourceName {
        what: "folder of the kubelet's log links",
        lost: "without it containers have no names where the container runtime does not report them",
        advice: "if the links are elsewhere, name the folder with --log-links",
        counter: None,
        required: false,
    });
    let mut reported: Option<Vec<ContainerName>> = None;
    let mut watch: Option<Watch> = None;
    loop {
        // The watch starts before the read, so that no change between them is missed.
        if watch.is_none() {
            watch = Watch::on(&folder).ok();
        }
        match read(&folder).await {
            Ok(names) => {
                failures.worked();
                if reported.as_ref() != Some(&names) {
                    reporter.fact(Fact::Names { source: NameSource::LogLinks, names: names.clone() });
                    reported = Some(names);
                }
                watch = settle(watch).await;
            }
            Err(error) => {
                let failure =
                    if error.kind() == ErrorKind::NotFound { FailureSeverity::Absent } else { FailureSeverity::Broken };
                let text = format!("tried to read {}: {error}", folder.display());
                watch = None;
                sleep(failures.failed(failure, &text).1).await;
            }
        }
    }
}

/// Waits until the folder must be read again; returns the watch if it is still valid.
async fn settle(watch: Option<Watch>) -> Option<Watch> {
    let Some(mut watch) = watch else {
        sleep(UNWATCHED).await;
        return None;
    };
    match timeout(WATCHED, watch.happened()).await {
        Ok(Ok(())) => {
            sleep(SETTLE).await;
            Some(watch)
        }
        // The folder itself is gone, or the watch is broken: a new watch is made before the next read.
        Ok(Err(_)) => {
            sleep(SETTLE).await;
            None
        }
        Err(_) => Some(watch),
    }
}

/// The names of all links in the folder, ordered by id. Runs in the blocking pool, because a file system may hang.
async fn read(folder: &Path) -> Result<Vec<ContainerName>> {
    let folder = folder.to_owned();
    tokio::task::spawn_blocking(move || names_in(&folder)).await.map_err(Error::other)?
}

fn names_in(folder: &Path) -> Result<Vec<ContainerName>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_ENTRIES) {
        if let Ok(name) = wire::log_link::parse(entry?.file_name().as_bytes()) {
            names.push(name);
        }
    }
    names.sort_by(|one: &ContainerName, other| one.id.cmp(&other.id));
    names.truncate(MAX_CGROUPS);
    Ok(names)
}

/// An inotify watch that reports files which come and go in a folder.
struct Watch {
    events: AsyncFd<OwnedFd>,
}

impl Watch {
    #[expect(unsafe_code, reason = "tokio has no safe way to wait for a descriptor that is not its own kind")]
    fn on(folder: &Path) -> Result<Watch> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let what = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&events, folder, what)?;
        // SAFETY: `OwnedFd` always gives the same open descriptor, and nothing takes it out of the `AsyncFd`.
        let events = unsafe { AsyncFd::register(events)? };
        Ok(Watch { events })
    }

    /// Waits for an event, and takes all events that are there.
    ///
    /// # Errors
    /// When the folder itself is gone, or the watch cannot be read.
    async fn happened(&mut self) -> Result<()> {
        loop {
            let mut ready = self.events.readable().await?;
            match drain(ready.get_inner()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                outcome => return outcome,
            }
        }
    }
}

/// Takes all pending events; `WouldBlock` when there was no event.
fn drain(events: &OwnedFd) -> Result<()> {
    let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events, &mut buffer);
    let mut any = false;
    loop {
        match reader.next() {
            Ok(event) if event.events().intersects(gone) => return Err(ErrorKind::NotFound.into()),
            Ok(_) => any = true,
            Err(Errno::WOULDBLOCK) if any => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_container_log_links_are_read_and_names_that_are_not_utf8_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let id = "a".repeat(64);
        for name in [format!("train-0_ml_main-{id}.log"), "notes.txt".into(), "x_y_z.log".into()] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe.log")), "").unwrap();
        let names = names_in(folder.path()).unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!((names[0].id.as_str(), &*names[0].pod.name), (id.as_str(), "train-0"));
    }
}
