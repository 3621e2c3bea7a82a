use super::*;
use rustix::fs::mkdirat;
use std::os::unix::fs::symlink;
use std::process::Command;

/// So many nested folders below `top`: far deeper than a path can name.
pub(in super::super) fn nest(top: &Path, levels: usize) {
    let mut folder = open(top, FOLDER_FLAGS, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&folder, "d", Mode::RWXU).unwrap();
        folder = openat(&folder, "d", FOLDER_FLAGS, Mode::empty()).unwrap();
    }
}

/// Runs this with as little stack as a thread may have.
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

/// A million with `GPU_STEWARD_LONG`.
#[test]
fn very_many_files_are_removed_in_turns() {
    let many: u32 = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 1_000_000 } else { 100_000 };
    let (_state, trash) = full_of(|folder| {
        let folder = open(folder, FOLDER_FLAGS, Mode::empty()).unwrap();
        for n in 0..many {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&folder, n.to_string(), flags, Mode::RUSR).unwrap());
        }
    });
    let mut pauses = 0;
    let emptied = trash.empty(&mut || pauses += 1);
    assert!(trash.is_empty(), "{emptied:?}");
    assert_eq!(emptied.removed, u64::from(many) + 1);
    assert!(pauses >= many / TURN, "{pauses}");
}

#[test]
fn what_links_lead_to_stays() {
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
    // The whole of what is taken may be a link.
    symlink(outside.path(), outside.path().join("link")).unwrap();
    trash.take(&outside.path().join("link")).unwrap();
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
    assert_eq!(fs::read_to_string(outside.path().join("folder/file")).unwrap(), "kept");
}

#[test]
fn folders_that_their_owner_has_closed_are_opened_and_removed() {
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

/// A container that still runs makes a file for each one that is removed.
#[test]
fn what_comes_while_it_is_emptied_does_not_keep_it_from_the_rest() {
    let (state, trash) = full_of(|folder| {
        for n in 0..2 * TURN {
            fs::write(folder.join(n.to_string()), "").unwrap();
        }
    });
    let other = state.path().join("other");
    fs::create_dir(&other).unwrap();
    trash.take(&other).unwrap();
    let mut came = 0;
    let held = open(state.path().join("trash/0"), FOLDER_FLAGS, Mode::empty()).unwrap();
    let _ = trash.empty(&mut || {
        came += 1;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        // None where the folder itself has gone.
        let _ = openat(&held, format!("late-{came}"), flags, Mode::RUSR).map(drop);
    });
    assert!(came > 0);
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
}

#[test]
fn names_of_an_earlier_life_are_passed_over() {
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

/// Undone at the end, whatever comes.
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn mount_points_and_immutable_files_are_told_and_what_is_mounted_stays() {
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
    // Nothing of that gets worse by trying again, and what is free then goes.
    assert_eq!(trash.empty(&mut || {}).left, 2);
    free();
    assert_eq!(trash.empty(&mut || {}).left, 1);
    unmount_below(state.path());
    assert_eq!(trash.empty(&mut || {}).left, 0);
    assert!(trash.is_empty());
    assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "kept");
}

/// Where a mount point is now is told by the kernel: its folder may have been moved.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|point| Path::new(point).starts_with(folder));
    for point in points {
        assert!(Command::new("umount").args(["-l", point]).status().unwrap().success());
    }
}
