//! The file of histories: what it keeps, what it refuses, and what a kill leaves of it.

use super::*;
use model::id::{GpuUuid, PodUid};
use model::workload_profile::{ProfiledQuantity, ProfiledSubject};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A day of 2027 in quarters of an hour, and in minutes.
const QUARTERS: u64 = 20_000 * 96;
const MINUTES: u64 = 20_000 * 1440;
const NOW: WallTime = WallTime(20_000 * 86_400_000_000);
/// Names the folder for the child process that writes until it is killed.
const CHILD: &str = "PROFILE_STORE_CHILD";

fn boot(last: char) -> BootId {
    BootId::parse(&format!("6f1b8a0e-2c5d-4f3a-9b7c-0123456789a{last}")).unwrap()
}

fn clock() -> KeptClock {
    KeptClock { boot: boot('b'), pair: Now { monotonic: Monotonic(5_000), wall: NOW } }
}

fn key(number: u32) -> HistoryKey {
    let subject = ProfiledSubject::Pod(PodUid::parse(&format!("{number:032x}")).unwrap());
    HistoryKey { subject, quantity: ProfiledQuantity::Cpu }
}

fn step(index: u64, value: f64) -> HistoryStep {
    HistoryStep { index, value: StepValue { mean: value, maximum: value + 1.0 } }
}

fn unwritten(key: HistoryKey, tier: StoredTier, steps: &[HistoryStep]) -> UnwrittenSteps {
    UnwrittenSteps { key, tier, steps: steps.to_vec() }
}

fn opened(folder: &TempDir) -> ProfileStore {
    let opened = ProfileStore::open(folder.path()).unwrap();
    assert_eq!(opened.put_aside, None);
    opened.store
}

fn write(store: &mut ProfileStore, steps: &[UnwrittenSteps]) -> Result<(), StoreError> {
    store.write(|| steps.iter().cloned(), &clock(), NOW)
}

#[test]
fn steps_are_read_back_after_a_restart_and_none_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = ProfiledSubject::Gpu(GpuUuid::parse("GPU-1").unwrap());
    let gpu = HistoryKey { subject: gpu, quantity: ProfiledQuantity::Power };
    // Two blocks, and a gap between them.
    let first: Vec<HistoryStep> =
        (QUARTERS - 5..QUARTERS).chain(QUARTERS + 2..QUARTERS + 4).map(|at| step(at, 3.0)).collect();
    let mut store = opened(&folder);
    write(
        &mut store,
        &[unwritten(gpu.clone(), StoredTier::Quarter, &first), unwritten(key(1), StoredTier::Minute, &[])],
    )
    .unwrap();
    drop(store);
    let mut store = opened(&folder);
    let again = [step(QUARTERS + 3, 99.0), step(QUARTERS + 4, 5.0)];
    write(&mut store, &[unwritten(gpu.clone(), StoredTier::Quarter, &again)]).unwrap();
    let all = [first.clone(), vec![step(QUARTERS + 4, 5.0)]].concat();
    assert_eq!(store.read(&gpu, StoredTier::Quarter, QUARTERS - 1000..QUARTERS + 1000).unwrap(), all);
    assert_eq!(store.read(&gpu, StoredTier::Quarter, QUARTERS - 1..QUARTERS + 3).unwrap(), all[4..6]);
    assert!(store.read(&gpu, StoredTier::Minute, 0..u64::MAX).unwrap().is_empty());
    assert!(store.read(&key(7), StoredTier::Quarter, 0..u64::MAX).unwrap().is_empty());
    assert_eq!(store.clock(&boot('b')).unwrap(), Some(clock().pair));
    assert_eq!(store.clock(&boot('c')).unwrap(), None, "the machine has rebooted");
    assert!(store.bytes() > 0 && store.bytes() < MAX_BYTES);
}

#[test]
fn what_is_older_than_its_tier_keeps_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = opened(&folder);
    let old = [step(QUARTERS - 40 * 96, 1.0), step(QUARTERS - 30 * 96, 2.0)];
    let minutes = [step(MINUTES - 1600, 1.0), step(MINUTES - 1000, 2.0)];
    let both = [unwritten(key(1), StoredTier::Quarter, &old), unwritten(key(1), StoredTier::Minute, &minutes)];
    write(&mut store, &both).unwrap();
    assert_eq!(store.read(&key(1), StoredTier::Quarter, QUARTERS - 50 * 96..QUARTERS).unwrap(), old[1..]);
    assert_eq!(store.read(&key(1), StoredTier::Minute, MINUTES - 2000..MINUTES).unwrap(), minutes[1..]);
}

#[test]
fn only_the_owner_reads_the_file_and_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut store = ProfileStore::open(&state).unwrap().store;
    write(&mut store, &[unwritten(key(1), StoredTier::Minute, &[step(MINUTES, 1.0)])]).unwrap();
    let mode = |name: &str| fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("."), mode(FILE), mode("profile.db-wal")), (0o700, 0o600, 0o600));
    drop(store);
    fs::set_permissions(state.join(FILE), fs::Permissions::from_mode(0o644)).unwrap();
    drop(ProfileStore::open(&state).unwrap());
    assert_eq!(mode(FILE), 0o600);
}

/// A file of histories with many rows, as bytes.
fn bytes_of_a_file() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let mut store = opened(&folder);
    let steps: Vec<HistoryStep> = (QUARTERS..QUARTERS + 90).map(|at| step(at, 1.0)).collect();
    let all: Vec<UnwrittenSteps> = (0..200).map(|number| unwritten(key(number), StoredTier::Quarter, &steps)).collect();
    write(&mut store, &all).unwrap();
    drop(store);
    fs::read(folder.path().join(FILE)).unwrap()
}

#[test]
fn a_file_that_is_cut_foreign_damaged_or_of_a_later_release_is_put_aside() {
    let whole = bytes_of_a_file();
    let mut damaged = whole.clone();
    damaged[8192..20_000].fill(0xa5);
    let foreign = {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("other.db")).unwrap();
        connection.execute_batch("CREATE TABLE other (number INTEGER); INSERT INTO other VALUES (1)").unwrap();
        drop(connection);
        fs::read(folder.path().join("other.db")).unwrap()
    };
    let later = {
        let mut later = whole.clone();
        // The field `user_version` of SQLite's header.
        later[60..64].copy_from_slice(&2_u32.to_be_bytes());
        later
    };
    for (what, bytes, reason) in [
        ("text", vec![b'x'; 200], "not a database"),
        ("cut", whole[..whole.len() / 2].to_vec(), ""),
        ("damaged", damaged, ""),
        ("foreign", foreign, "another program"),
        ("later", later, "later release"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), &bytes).unwrap();
        let OpenedStore { mut store, put_aside } = ProfileStore::open(folder.path()).unwrap();
        let said = put_aside.unwrap_or_else(|| panic!("{what}"));
        assert!(said.contains(reason) && said.contains("profile.db.unreadable"), "{what}: {said}");
        assert_eq!(
            fs::read(folder.path().join("profile.db.unreadable")).unwrap(),
            bytes,
            "{what}: it is kept unchanged"
        );
        write(&mut store, &[unwritten(key(1), StoredTier::Minute, &[step(MINUTES, 1.0)])]).unwrap();
        drop(store);
        assert_eq!(opened(&folder).read(&key(1), StoredTier::Minute, MINUTES..MINUTES + 1).unwrap().len(), 1);
    }
}

#[test]
fn a_link_is_not_followed_but_the_state_directory_may_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, "of another program").unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    symlink(&target, state.join(FILE)).unwrap();
    symlink(&state, folder.path().join("link")).unwrap();
    let opened = ProfileStore::open(&folder.path().join("link")).unwrap();
    assert!(opened.put_aside.unwrap().contains("not a regular file"));
    assert_eq!(fs::read_to_string(target).unwrap(), "of another program");
    assert!(fs::symlink_metadata(state.join(FILE)).unwrap().is_file());
}

#[test]
fn a_second_process_does_not_get_the_file_until_the_first_has_closed_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(&folder);
    assert_eq!(ProfileStore::open(folder.path()).unwrap_err(), StoreError::Locked);
    drop(store);
    drop(opened(&folder));
}

#[test]
fn rows_that_nobody_wrote_have_no_steps() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = opened(&folder);
    write(&mut store, &[unwritten(key(1), StoredTier::Minute, &[step(MINUTES, 1.0)])]).unwrap();
    for row in [&b""[..], b"\x01", b"\xff\xff\xff\xff\xff", &[0; 4000]] {
        store.connection.execute("UPDATE history SET steps = ?1", [row]).unwrap();
        assert!(store.read(&key(1), StoredTier::Minute, MINUTES..MINUTES + 60).unwrap().is_empty());
    }
    let again = [unwritten(key(1), StoredTier::Minute, &[step(MINUTES + 1, 2.0)])];
    write(&mut store, &again).unwrap();
    assert_eq!(store.read(&key(1), StoredTier::Minute, MINUTES..MINUTES + 60).unwrap(), again[0].steps);
}

#[test]
fn a_file_that_is_full_loses_its_oldest_days() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = opened(&folder);
    let day = |number: u64| {
        let steps: Vec<HistoryStep> = (0..96).map(|at| step(QUARTERS - (30 - number) * 96 + at, 1.0)).collect();
        (0..100).map(|series| unwritten(key(series), StoredTier::Quarter, &steps)).collect::<Vec<_>>()
    };
    (0..10).for_each(|number| write(&mut store, &day(number)).unwrap());
    let pages = store.used_pages().unwrap();
    store.connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    (10..14).for_each(|number| write(&mut store, &day(number)).unwrap());
    let range = QUARTERS - 30 * 96..QUARTERS;
    let kept = store.read(&key(50), StoredTier::Quarter, range.clone()).unwrap();
    assert_eq!(kept.last().unwrap().index, QUARTERS - 16 * 96 - 1, "the newest day is there");
    assert!(kept.first().unwrap().index > range.start, "an old one is gone");
    store.shrink(pages / 2).unwrap();
    assert!(store.used_pages().unwrap() <= pages / 2);
    assert!(!store.read(&key(50), StoredTier::Quarter, range).unwrap().is_empty());
}

#[test]
fn pods_that_come_and_go_do_not_fill_the_file_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = opened(&folder);
    let series = |store: &ProfileStore| {
        store.connection.query_row("SELECT count(*) FROM series", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    for day in 0..10_u32 {
        let steps: Vec<HistoryStep> = (0..96).map(|at| step(QUARTERS - (10 - u64::from(day)) * 96 + at, 1.0)).collect();
        let new: Vec<_> = (0..100).map(|at| unwritten(key(day * 100 + at), StoredTier::Quarter, &steps)).collect();
        write(&mut store, &new).unwrap();
    }
    assert_eq!(series(&store), 1000);
    store.shrink(store.used_pages().unwrap() / 2).unwrap();
    let kept = series(&store);
    assert!((100..=600).contains(&kept), "{kept}");
}

/// A file system of this size in memory, until it is dropped.
struct Mounted(TempDir);

impl Mounted {
    fn of(size: &str) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        assert!(mount.status().unwrap().success());
        Mounted(folder)
    }

    /// Fills it to the last byte. Returns the file that does.
    fn fill(&self) -> PathBuf {
        let rest = self.0.path().join("rest");
        let error = fs::write(&rest, vec![b'x'; 4 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        rest
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_full_disk_refuses_a_write_and_keeps_what_is_in_the_file() {
    let disk = Mounted::of("2m");
    let rest = disk.fill();
    assert_eq!(ProfileStore::open(disk.0.path()).unwrap_err(), StoreError::Full);
    fs::remove_file(rest).unwrap();
    let mut store = opened(&disk.0);
    let minute = |index| {
        (0..50).map(|series| unwritten(key(series), StoredTier::Minute, &[step(index, 7.0)])).collect::<Vec<_>>()
    };
    write(&mut store, &minute(MINUTES)).unwrap();
    let rest = disk.fill();
    let written = |store: &ProfileStore| {
        let steps = store.read(&key(49), StoredTier::Minute, MINUTES..MINUTES + 60).unwrap();
        steps.iter().map(|step| step.index - MINUTES).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(write(&mut store, &minute(MINUTES + 1)), Err(StoreError::Full));
        assert_eq!(written(&store), [0]);
    }
    fs::remove_file(rest).unwrap();
    write(&mut store, &minute(MINUTES + 1)).unwrap();
    assert_eq!(written(&store), [0, 1], "what waited is written once there is room");
}

/// In the child process of the test below: writes one minute after the other, until it is killed. Elsewhere it does nothing.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let mut store = ProfileStore::open(Path::new(&folder)).unwrap().store;
    for index in MINUTES.. {
        let steps: Vec<UnwrittenSteps> =
            (0..50).map(|series| unwritten(key(series), StoredTier::Minute, &[step(index, 7.0)])).collect();
        write(&mut store, &steps).unwrap();
        println!("written {index}");
    }
}

#[test]
fn a_kill_in_the_middle_of_a_write_loses_that_write_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut known = MINUTES;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "profile_store::tests::child_that_writes_until_it_is_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut written =
            lines.map(Result::unwrap).filter_map(|line| line.strip_prefix("written ")?.parse::<u64>().ok());
        known = known.max(written.by_ref().take(20 * round).last().unwrap());
        child.kill().unwrap();
        drop(written);
        child.wait().unwrap();
        let store = opened(&folder);
        for series in [0, 49] {
            let steps = store.read(&key(series), StoredTier::Minute, MINUTES..MINUTES + 1000).unwrap();
            assert!(steps.len() as u64 > known - MINUTES, "round {round}: {} steps", steps.len());
            assert!(steps.iter().zip(MINUTES..).all(|(kept, index)| *kept == step(index, 7.0)), "round {round}");
        }
        let all = |series| store.read(&key(series), StoredTier::Minute, MINUTES..MINUTES + 1000).unwrap().len();
        assert_eq!(all(0), all(49), "a write is there whole or not at all");
    }
}
