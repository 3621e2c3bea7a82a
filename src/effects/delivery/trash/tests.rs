use super::*;
use rustix::fs::mkdirat;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Makes this number of nested folders below `top`, many more than a path can name.
pub(in super::super) fn nest(top: &Path, levels: usize) {
    let mut folder = open(top, FOLDER_FLAGS, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&folder, "d", Mode::RWXU).unwrap();
        folder = openat(&folder, "d", FOLDER_FLAGS, Mode::empty()).unwrap();
    }
}

/// Runs the function on a very small stack.
fn on_a_small_stack<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(128 << 10).spawn(run).unwrap().join().unwrap()
}

fn full_of(make: impl FnOnce(&Path)) -> (tempfile::TempDir, Trash) {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("full");
    fs::create_dir(&folder).unwrap();
    make(&folder);
    let trash = Trash::new(state.path()).unwrap();
    trash.take(&folder).unwrap();
    assert!(!folder.exists());
    (state, trash)
}

#[test]
fn folders_20_000_levels_deep_are_removed_without_recursion() {
    let (_state, trash) = full_of(|folder| {
        nest(folder, 20_000);
        for n in 0..10 {
            fs::create_dir_all(folder.join(format!("a{n}/b/c"))).unwrap();
        }
    });
    let emptied = {
        let trash = trash.clone();
        on_a_small_stack(move || trash.empty(&mut || {}))
    };
    assert!(trash.is_empty(), "{emptied:?}");
    assert_eq!(emptied.left, 0);
}

/// With `GPU_STEWARD_LONG`: a million files.
#[test]
fn very_many_files_are_removed_with_pauses() {
    let many: u32 = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 1_000_000 } else { 100_000 };
    let (_state, trash) = full_of(|folder| {
        let folder = open(folder, FOLDER_FLAGS, Mode::empty()).unwrap();
        for n in 0..many {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&folder, n.to_string(), flags, Mode::RUSR).unwrap());
        }
    });
    let (mut pauses, mut removed, mut unfinished) = (0, 0, true);
    while unfinished {
        let emptied = trash.empty(&mut || pauses += 1);
        (removed, unfinished) = (removed + emptied.removed, emptied.unfinished);
    }
    assert!(trash.is_empty());
    assert_eq!(removed, u64::from(many) + 1);
    assert!(pauses >= many / PAUSE_EVERY, "{pauses}");
}

#[test]
fn the_targets_of_links_are_not_removed() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("folder")).unwrap();
    fs::write(outside.path().join("folder/file"), "kept").unwrap();
    let (_state, trash) = full_of(|folder| {
        symlink(outside.path(), folder.join("folder")).unwrap();
        symlink(outside.path().join("folder/file"), folder.join("file")).unwrap();
        symlink("nowhere", folder.join("dangling")).unwrap();
        fs::create_dir(folder.join("below")).unwrap();
        symlink(outside.path(), folder.join("below/up")).unwrap();
    });
    // The folder that is moved may itself be a link.
    symlink(outside.path(), outside.path().join("link")).unwrap();
    trash.take(&outside.path().join("link")).unwrap();
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
    assert_eq!(fs::read_to_string(outside.path().join("folder/file")).unwrap(), "kept");
}

#[test]
fn folders_without_permissions_are_removed() {
    let (_state, trash) = full_of(|folder| {
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        for (name, mode) in [("a/b/c", 0), ("a/b", 0), ("a", 0o500)] {
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o100)).unwrap();
    });
    let emptied = trash.empty(&mut || {});
    assert!(trash.is_empty(), "{emptied:?}");
}

/// A container of a pod that was deleted by force still runs, and makes files without end, faster than they are
/// removed.
#[test]
fn a_container_that_writes_without_end_does_not_delay_other_removals() {
    let state = tempfile::tempdir().unwrap();
    let trash = Trash::new(state.path()).unwrap();
    // One folder before `written` and one after it, because entries are read in no particular order.
    for name in ["one", "written", "two"] {
        fs::create_dir_all(state.path().join(name).join("below")).unwrap();
        fs::write(state.path().join(name).join("below/file"), "").unwrap();
    }
    let held = open(state.path().join("written"), FOLDER_FLAGS, Mode::empty()).unwrap();
    for name in ["one", "written", "two"] {
        trash.take(&state.path().join(name)).unwrap();
    }
    let mut written: u32 = 0;
    let mut write = || {
        let more = written + PAUSE_EVERY + 64;
        for n in written..more {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&held, format!("late-{n}"), flags, Mode::RUSR).unwrap());
        }
        written = more;
        assert!(written < 4 * PER_VISIT, "the writer delays the removal");
    };
    write();
    // Two rounds, because each entry takes a write to the disk; a real call makes more rounds.
    let emptied = trash.rounds(2, &mut write);
    assert!(emptied.unfinished && emptied.left == 0, "{emptied:?}");
    let names =
        |path: &Path| -> Vec<PathBuf> { fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect() };
    let left_over = names(&state.path().join("trash"));
    assert_eq!(left_over.len(), 1, "all others are gone after the first call: {left_over:?}");
    assert!(names(&left_over[0]).iter().all(|path| path.file_name().unwrap().to_str().unwrap().starts_with("late-")));
    // The container has ended.
    while trash.empty(&mut || {}).unfinished {}
    assert!(trash.is_empty());
}

/// Each folder of the tree is moved up and visited in turn, and the other entries do not wait for it.
#[test]
fn a_tree_larger_than_one_visit_is_continued_after_the_other_entries() {
    let (state, trash) = full_of(|folder| nest(folder, PER_VISIT as usize + 1000));
    fs::create_dir(state.path().join("other")).unwrap();
    trash.take(&state.path().join("other")).unwrap();
    let emptied = trash.rounds(1, &mut || {});
    assert!(emptied.unfinished && emptied.left == 0, "{emptied:?}");
    assert!(!state.path().join("trash/1").exists(), "the other entry");
    assert!(!trash.empty(&mut || {}).unfinished);
    assert!(trash.is_empty());
}

#[test]
fn folders_that_cannot_be_moved_are_counted() {
    let state = tempfile::tempdir().unwrap();
    let trash = Trash::new(state.path()).unwrap();
    // A folder cannot be moved into itself, nor into a folder that is gone.
    assert!(trash.take(state.path()).is_err());
    fs::remove_dir(state.path().join("trash")).unwrap();
    fs::create_dir(state.path().join("pod")).unwrap();
    assert!(trash.take(&state.path().join("pod")).is_err());
    let warned = || trash.warned.load(Ordering::Relaxed);
    assert_eq!(trash.not_taken(), 2);
    assert!(warned(), "the folders may still be there: no second line for them");
    assert_eq!(trash.not_taken(), 0, "since the last call");
    assert!(!warned(), "a later folder is a new episode and gets a line");
}

#[test]
fn names_of_an_earlier_agent_process_are_skipped() {
    let state = tempfile::tempdir().unwrap();
    for name in ["trash/0/full", "trash/1", "next/full"] {
        fs::create_dir_all(state.path().join(name)).unwrap();
    }
    fs::write(state.path().join("trash/1/file"), "").unwrap();
    let trash = Trash::new(state.path()).unwrap();
    assert_eq!(fs::metadata(state.path().join("trash")).unwrap().permissions().mode() & 0o777, 0o700);
    trash.take(&state.path().join("next")).unwrap();
    assert!(state.path().join("trash/2/full").exists());
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
}

/// Runs the function at the end of the test, even after a panic.
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn mount_points_and_immutable_files_are_reported_and_mounts_stay() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "kept").unwrap();
    let state = tempfile::tempdir().unwrap();
    let (trash, folder) = (Trash::new(state.path()).unwrap(), state.path().join("full"));
    fs::create_dir_all(folder.join("a/b/mounted")).unwrap();
    fs::write(folder.join("a/fixed"), "").unwrap();
    let fixed = fs::File::open(folder.join("a/fixed")).unwrap();
    ioctl_setflags(&fixed, ioctl_getflags(&fixed).unwrap() | IFlags::IMMUTABLE).unwrap();
    let free = || ioctl_setflags(&fixed, ioctl_getflags(&fixed).unwrap() - IFlags::IMMUTABLE).unwrap();
    let _free = Undo(free);
    let mount = [outside.path().to_owned(), folder.join("a/b/mounted")];
    assert!(Command::new("mount").arg("--bind").args(&mount).status().unwrap().success());
    let _off = Undo(|| unmount_below(state.path()));
    assert!(trash.take(&folder.join("a/b/mounted")).is_err(), "a mount point is not taken");
    trash.take(&folder).unwrap();
    let emptied = trash.empty(&mut || {});
    assert_eq!(emptied.left, 2, "{emptied:?}");
    assert!(emptied.first.is_some_and(|(path, _)| path.starts_with(state.path().join("trash"))));
    assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "kept");
    // Another attempt does no harm, and removes folders that have become free.
    assert_eq!(trash.empty(&mut || {}).left, 2);
    free();
    assert_eq!(trash.empty(&mut || {}).left, 1);
    unmount_below(state.path());
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
    assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "kept");
}

/// Unmounts by the paths that the kernel reports, because the folder may have been moved.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|point| Path::new(point).starts_with(folder));
    for point in points {
        assert!(Command::new("umount").args(["-l", point]).status().unwrap().success());
    }
}
